"""Users never meet in what is derived from their sessions either; what is purged is gone from every part."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from gatekit.derived import SESSION, App, rows
from gatekit.nursery import clear
from gatekit.servers import server
from gatekit.systems import Place
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient

from langchain_memkit import purge_user
from langchain_memkit.testing import FrozenClock

VERBS = ["turn", "turn", "turn", "book", "read", "clear", "purge"]
OPERATIONS = st.lists(st.tuples(st.sampled_from([0, 1]), st.sampled_from(VERBS)), min_size=14, max_size=14)
HOUR = timedelta(hours=1)


def canaries_in(things: Any) -> set[str]:
    """The canaries in anything that has a text."""
    return set(re.findall(r"canary-[\w-]+", repr(things)))


class Person:
    """A user, and what every part should know of them."""

    def __init__(self, app: App, user: str) -> None:
        self.app = app
        self.user = user
        self.turns: set[str] = set()
        self.books: set[str] = set()

    def do(self, verb: str, n: int) -> None:
        """One operation."""
        canary = f"canary-{self.user}-{n}"
        if verb == "turn":
            self.app.turn(self.user, n, canary)
            shown = canaries_in(self.app.shown[threading.get_ident()]) - {canary}
            assert self.turns <= shown <= self.turns | self.books, "the model was shown otherwise"
            self.turns.add(canary)
        elif verb == "book":
            self.app.add_book(self.user, n, canary)
            self.books.add(canary)
        elif verb == "clear":
            clear(self.app, self.user)
            self.turns = set()
        elif verb == "purge":
            purge_user(self.user, *self.app.parts)
            self.turns, self.books = set(), set()

    def check(self) -> None:
        """Everything that can be read of this user is theirs, and is all of it."""
        app, user = self.app, self.user
        asked = "What did Nemo, Dory and Coral say? " + " ".join(app.books(SESSION, user).titles())
        assert canaries_in(app.histories(SESSION, user).messages) == self.turns
        entities, vectors = app.entities("s2", user), app.vectors("s2", user)
        assert canaries_in([entity.facts for entity in entities.entities()]) == self.turns
        assert canaries_in(entities.load(asked)) == self.turns
        assert canaries_in(vectors.load(asked)) == self.turns
        assert canaries_in(app.books("s2", user).load(asked)) == self.books


@pytest.mark.gate(row=8, memkit_only=True)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_nothing_crosses_in_any_part(place: Place, system: Any, nightly: bool) -> None:
    """Random operations of two users with one session id on all parts at once: each sees their own, and all of it."""
    app = App(system, place)

    @settings(
        max_examples=10 if nightly else 2,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(OPERATIONS)
    def check(operations: list[tuple[int, str]]) -> None:
        run = uuid4().hex[:6]
        people = [Person(app, f"{run}-{name}") for name in ("ann", "bob")]
        for n, (i, verb) in enumerate(operations):
            people[i].do(verb, n)
            if verb in ("read", "clear", "purge"):
                people[1 - i].check()
        for person in people:
            person.check()
        people[0].do("purge", 0)
        people[0].check()
        people[1].check()
        left = str(rows(place))
        assert f"canary-{people[0].user}" not in left
        assert all(canary in left for canary in people[1].turns | people[1].books)

    check()


@pytest.fixture
def impatient(tmp_path: Path, system: Any) -> Iterator[Place]:
    """A server that looks every second for what has expired."""
    with server(tmp_path, "--setParameter", "ttlMonitorSleepSecs=1") as host:
        yield Place("standalone", f"mongodb://{host}", "gate", (host,))
        system.leave(host)


@pytest.mark.gate(row=8, memkit_only=True)
def test_markers_of_every_part_go(impatient: Place, system: Any) -> None:
    """What a purge of all parts leaves holds ids and numbers only, and the server removes it when its time is over.

    That is two hours for the markers of turns, which have the server's time.
    """
    app = App(system, impatient, now=FrozenClock(datetime.now(UTC) - HOUR + timedelta(seconds=0.2)))
    for n in range(3):
        app.turn("ann", n, "canary-ann")
    app.add_book("ann", 0, "canary-ann")
    purge_user("ann", *app.parts)
    assert "canary" not in str(rows(impatient))
    with MongoClient(impatient.uri) as client:
        turns = client["gate"]["message_store"]
        left = list(turns.find())
        assert left
        for row in left:
            assert timedelta(0) < row["expiresAt"] - datetime.now(UTC).replace(tzinfo=None) <= 2 * HOUR
            turns.update_one({"_id": row["_id"]}, {"$set": {"expiresAt": row["expiresAt"] - 2 * HOUR}})
        deadline = time.monotonic() + 8
        while turns.count_documents({}) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [len(those) for those in rows(impatient).values()] == [0, 0]


@pytest.mark.gate(row=8, memkit_only=True)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_markers_of_every_part_in_a_file_go(place: Place, system: Any) -> None:
    """The same in a file, at the next write after two hours."""
    clock = FrozenClock()
    app = App(system, place, now=clock)
    for n in range(3):
        app.turn("somebody", n, "canary-")
    purge_user("somebody", *app.parts)
    assert "canary-" not in str(rows(place))
    assert "somebody" in str(rows(place))
    clock.tick(7201)
    app.turn("another", 0)
    assert "somebody" not in str(rows(place))
