"""A process is killed while it writes a turn with memories, or purges a user."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from gatekit.derived import SESSION, App, Undisturbed, after_fault, ahead, found_in, indexes_of, rows
from gatekit.nursery import Nursery, purge, write
from gatekit.systems import Place

from langchain_memkit import purge_user

KILLS = {"replica_set": 10, "standalone": 6, "sqlite": 10}
PURGES = {"replica_set": 8, "standalone": 6, "sqlite": 8}
CANARY = "canary-"


@pytest.fixture(scope="module")
def nursery(forks: Any, system: Any) -> Iterator[Nursery]:
    """Kills processes."""
    with Nursery(forks, system) as nursery:
        yield nursery


def at_random(nursery: Nursery, job: Any, place: Place, users: list[str], longest: float) -> list[int]:
    """Runs a job for each user in a process that is killed at a moment of chance; how far each had come."""
    chance = random.Random(0)
    return nursery.run([(job, place, user, chance.uniform(0, longest)) for user in users])


@pytest.mark.gate(row=17, memkit_only=True)
def test_killed_while_deriving(place: Place, system: Any, nursery: Nursery, nightly: bool, figure: Any) -> None:
    """After SIGKILLs nothing derived is ahead of its transcript; a retry or an index makes it as it should be."""
    app, calm = App(system, place), Undisturbed(system, place)
    calm.recalled(1)
    users = [f"u{k}-" for k in range(KILLS[place.kind] * (5 if nightly else 1))]
    done = at_random(nursery, write, place, users, 0.15)
    stored = rows(place)
    early = {user: marks for user in users if (marks := ahead(app, user, stored))}
    missing = {
        user: n for user, n in zip(users, done, strict=True) if len(app.books(SESSION, user).titles()) not in (n, n + 1)
    }
    wrong = []
    for k, (user, n) in enumerate(zip(users, done, strict=True)):
        wrong += after_fault(app, calm, user, n, index=k % 2 == 0)
    assert missing == {}, "acknowledged entries are not there"
    assert early == {}, "derived, but not in the transcript"
    assert wrong == []
    figure(f"{place.kind}: derived data ahead of its transcript after {len(users)} kills", len(early), at_most=0)
    figure(f"{place.kind}: recalled otherwise after retry or index", len(wrong), at_most=0)


@pytest.mark.gate(row=17, memkit_only=True)
def test_killed_while_purging(place: Place, system: Any, nursery: Nursery, nightly: bool, figure: Any) -> None:
    """A purge that was killed and is repeated leaves nothing of the user in any part, and nobody else is harmed."""
    app = App(system, place)
    users = [f"u{k}-" for k in range(PURGES[place.kind] * (5 if nightly else 1))]
    for user in [*users, "other-"]:
        for n in range(3):
            app.turn(user, n, f"{CANARY}{user}")
        app.add_book(user, 0, f"{CANARY}{user}")
    others = app.recalled("other-"), app.log("other-"), app.books(SESSION, "other-").titles()
    indexes = [indexes_of(place, user) for user in ("other-", *users)] if place.kind == "sqlite" else []
    assert {len(those) for those in indexes} <= {3}
    at_random(nursery, purge, place, users, 0.03)
    for user in users:
        purge_user(user, *app.parts)
    left = [row for those in rows(place).values() for row in those if f"{CANARY}u" in row]
    figure(f"{place.kind}: rows left after a purge was killed and repeated", len(left), at_most=0)
    if place.kind == "sqlite":
        assert found_in(place, f"{CANARY}u") == []
        assert found_in(place, f"{CANARY}other-") != []
        assert all(found_in(place, each) for each in indexes[0])
        assert [each for those in indexes[1:] for each in those if found_in(place, each)] == []
    assert (app.recalled("other-"), app.log("other-"), app.books(SESSION, "other-").titles()) == others
