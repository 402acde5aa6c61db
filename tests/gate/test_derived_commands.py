"""One command of a turn with memories, or of a purge, breaks off; the server goes in the middle of a save."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from gatekit.derived import App, Undisturbed, after_fault, ahead, question, rows
from gatekit.systems import Place
from gatekit.wire import CutError

from langchain_memkit import purge_user

OF_A_TURN, OF_A_PURGE = 16, 36  # commands that are sent at most, which the tests prove
RUNS = [
    ("standalone", "never sent"),
    ("standalone", "reply lost"),
    ("replica_set", "reply lost"),
    ("replica_set", "never sent"),
]
TURNS = 2  # before the one with the fault, in which a summary is written
CANARY = "canary-"


@contextmanager
def broken_at(wire: Any, n: int, how: str) -> Iterator[list[str]]:
    """Breaks off the n-th command that is sent meanwhile; the names of all."""
    sent: list[str] = []

    def on_command(name: str) -> str | None:
        sent.append(name)
        if len(sent) - 1 != n:
            return None
        if how == "never sent":
            raise CutError
        return "deaf"

    wire.on_command = on_command
    try:
        yield sent
    finally:
        wire.on_command = lambda name: None


def at_each(commands: Sequence[int], run: Callable[[int], tuple[bool, list[str]]]) -> int:
    """Runs with a fault at each of these commands; how many of them were sent at all."""
    with ThreadPoolExecutor(6) as pool:  # after a fault the driver waits half a second before it looks again
        outcomes = list(pool.map(run, commands))
    assert [wrong for _, those in outcomes for wrong in those] == []
    assert not outcomes[-1][0], "more commands are sent: break them all"
    return sum(reached for reached, _ in outcomes)


def share(most: int, place: Place, how: str, nightly: bool) -> range:
    """All commands for `nightly`, else every fourth: each command breaks off in one of the runs."""
    return range(most) if nightly else range(RUNS.index((place.kind, how)), most, len(RUNS))


@pytest.mark.gate(row=17, memkit_only=True)
@pytest.mark.parametrize(("place", "how"), RUNS, indirect=["place"])
def test_each_command_of_a_turn_with_memories(
    how: str, place: Place, wires: Any, system: Any, nightly: bool, figure: Any
) -> None:
    """Whichever command breaks off: an acknowledged turn is derived, a repeated one is, and neither of them twice."""
    app, calm = App(system, place), Undisturbed(system, place)
    for turns in (TURNS, TURNS + 1):
        calm.recalled(turns)

    def run(n: int) -> tuple[bool, list[str]]:
        wire, user, wrong = wires(), f"u{n}-", []
        broken = App(system, wire.place)
        broken.turn(f"warm{n}-", 0)
        for turn in range(TURNS):
            broken.turn(user, turn)
        with broken_at(wire, n, how) as sent:
            try:
                broken.turn(user, TURNS)
                acknowledged = True
            except Exception:  # any error: it is repeated
                acknowledged = False
        if early := ahead(app, user, rows(place)):
            wrong = [f"{user}: derived, but not in the transcript after a fault at {sent[n:][:1]}: {early}"]
        if acknowledged and app.recalled(user) != calm.recalled(TURNS + 1):
            wrong += [f"{user}: acknowledged, but not derived after a fault at {sent[n:][:1]}"]
        return len(sent) > n, wrong + after_fault(app, calm, user, TURNS, index=False)

    reached = at_each(share(OF_A_TURN, place, how, nightly), run)
    figure(f"{place.kind}: commands of a turn with memories broken, {how}", reached, at_least=2)


@pytest.mark.gate(row=17, memkit_only=True)
@pytest.mark.parametrize(("place", "how"), RUNS, indirect=["place"])
def test_each_command_of_a_purge(how: str, place: Place, wires: Any, system: Any, nightly: bool, figure: Any) -> None:
    """Whichever command of a purge breaks off, when it succeeds nothing of the user is left, and others are whole."""
    app = App(system, place)
    app.turn("other-", 0, CANARY)
    others = app.recalled("other-")

    def run(n: int) -> tuple[bool, list[str]]:
        wire, user = wires(), f"u{n}-"
        broken = App(system, wire.place)
        for turn in range(TURNS + 1):
            broken.turn(user, turn, f"{CANARY}{user}")
        broken.add_book(user, 0, f"{CANARY}{user}")
        with broken_at(wire, n, how) as sent:
            for _ in range(3):
                try:
                    purge_user(user, *broken.parts)
                    break
                except Exception as error:
                    failure = error
            else:
                raise AssertionError("three tries were not enough") from failure
        left = [row for those in rows(place).values() for row in those if f"{CANARY}{user}" in row]
        return len(sent) > n, [f"fault at {n} of {len(sent)}: {row}" for row in left]

    reached = at_each(share(OF_A_PURGE, place, how, nightly), run)
    assert app.recalled("other-") == others
    figure(f"{place.kind}: commands of a purge broken, {how}", reached, at_least=3)


@pytest.mark.gate(row=17, memkit_only=True)
@pytest.mark.parametrize("when", ["told first", "told last"])
@pytest.mark.parametrize("place", ["standalone"], indirect=True)
def test_the_server_goes_while_memories_are_told(when: str, place: Place, wire: Any, system: Any) -> None:
    """The turn is stored and answered; what the memories could not store of it is derived by the next look."""

    def cut(name: str) -> None:
        raise CutError

    def go() -> None:
        wire.on_command = cut

    broken = App(system, wire.place, timeout=0.5, save_timeout=0.5)
    broken.at[when] = go
    assert broken.turn("u1-", 0) == f"re: {question(0)}"
    wire.on_command = lambda name: None
    app, calm = App(system, place), Undisturbed(system, place)
    assert after_fault(app, calm, "u1-", 0, index=False) == []


@pytest.mark.gate(row=17, memkit_only=True)
@pytest.mark.parametrize("place", ["replica_set"], indirect=True)
def test_the_primary_is_killed_while_memories_are_told(place: Place, replica_set: Any, system: Any) -> None:
    """Between the save of the history and those of the memories: the election is waited for, and all is derived."""
    down: list[int] = []

    def kill() -> None:
        down.append(replica_set.primary_index())
        replica_set.kill(down[0])

    app = App(system, place)
    app.at["told first"] = kill
    calm = Undisturbed(system, place)
    expected = calm.recalled(1)
    try:
        app.turn("u1-", 0)
        assert app.recalled("u1-") == expected
    finally:
        for index in down:
            replica_set.restart(index)
        replica_set.wait_ready()
    assert after_fault(app, calm, "u1-", 0, index=False) == []
