"""What is derived from an erased conversation is refused, and a turn is derived once, whoever repeats it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, get_ident
from typing import Any

import pytest
from gatekit.derived import SESSION, App, Undisturbed, found_in, rows
from gatekit.nursery import Nursery, clear, clear_history, purge
from gatekit.systems import Place

CANARY = "canary-"
AGAIN = 7  # the number of a turn after everything was erased


@pytest.fixture(scope="module")
def nursery(forks: Any, system: Any) -> Iterator[Nursery]:
    """Other processes."""
    with Nursery(forks, system) as nursery:
        yield nursery


@pytest.mark.gate(row=17, memkit_only=True)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
@pytest.mark.parametrize("turns", [1, 3])
def test_another_process_clears_the_history_alone(turns: int, place: Place, system: Any, nursery: Nursery) -> None:
    """What was derived from it is not recalled, in its session and elsewhere."""
    app = App(system, place)
    for n in range(turns):
        app.turn("u1-", n, CANARY)
    assert CANARY in repr(app.recalled("u1-"))
    nursery.run([(clear_history, place, "u1-", None)])
    assert CANARY not in repr(app.recalled("u1-"))
    app.turn("u1-", AGAIN)
    assert CANARY not in repr(app.shown[get_ident()])
    assert app.log("u1-") == [f"turn{AGAIN}"] * 2


@pytest.mark.gate(row=17, memkit_only=True)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
@pytest.mark.parametrize("erase", [clear, purge])
@pytest.mark.parametrize("turns", [0, 3], ids=["new session", "begun session"])
def test_another_process_erases_during_a_turn(
    turns: int, erase: Callable[..., None], place: Place, system: Any, nursery: Nursery
) -> None:
    """At whichever moment: nothing of the turn nor of those before is in any part, and the next turn is derived."""
    app, calm = App(system, place), Undisturbed(system, place)
    moments = ["model", "told first", "names", "embedding", *(["summary"] if turns else [])]
    for moment in moments:
        user = f"{moment.replace(' ', '-')}-"
        for n in range(turns):
            app.turn(user, n, f"{CANARY}{user}")
        erasing: Callable[[], Any] = lambda user=user: nursery.run([(erase, place, user, None)])  # noqa: E731
        app.at = {moment: erasing}
        if moment == "names":  # names are looked for in the question as well: only in the save it counts
            app.at = {"told first": lambda erasing=erasing: app.at.update(names=erasing)}
        app.turn(user, turns, f"{CANARY}{user}")
        assert app.at == {}, f"{moment} was not reached"
        left = [row for those in rows(place).values() for row in those if f"{CANARY}{user}" in row]
        assert left == [], f"erased at {moment}"
        app.turn(user, 0)
        assert app.recalled(user) == calm.recalled(1), f"after it was erased at {moment}"
    if place.kind == "sqlite":
        assert found_in(place, CANARY) == []


@pytest.mark.gate(row=17, memkit_only=True)
def test_a_turn_that_many_repeat_at_once_is_derived_once(place: Place, system: Any) -> None:
    """Four apps with caches of their own hold the same turn: it is stored once, and recalled as one."""
    apps, calm, barrier = [App(system, place) for _ in range(4)], Undisturbed(system, place), Barrier(4)

    def repeat(app: App) -> None:
        barrier.wait(10)
        for n in range(3):
            app.turn("u1-", n)

    with ThreadPoolExecutor(len(apps)) as pool:
        list(pool.map(repeat, apps))
    app = App(system, place)
    assert app.log("u1-") == [mark for n in range(3) for mark in [f"turn{n}"] * 2]
    assert app.recalled("u1-") == calm.recalled(3)
    assert app.index("u1-") == 0
    assert app.books(SESSION, "u1-").titles() == []
