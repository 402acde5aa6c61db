"""A turn in a store of a million turns costs what it costs in one of a thousand."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gatekit.million import LENGTH, LONG, TURN, At, fill_collection, fill_file, short
from gatekit.systems import Place, config, echo

from langchain_memkit import create_trim_preprocessor

MANY, FEW = 1_000_000, 1_000  # turns
PAIRS = 200
LAST, TOKENS = 20, 200
SESSIONS = 40  # short ones that are measured, in turn
SLOWER = 1.3  # times
FILLING = 120  # seconds
LONGEST = 160  # ms, as in a session of 100,000 messages
EXAMINED = {"turn": 65, f"last {LAST}": LAST + 1, f"{TOKENS} tokens": 65}  # by tokens a page of 64 turns is read


class Store:
    """Histories that hold so many turns, and a chain over them."""

    def __init__(self, system: Any, place: Place, folder: Path, turns: int, grown: bool) -> None:
        self.turns = turns
        if place.kind == "sqlite":
            there = replace(place, uri=str(folder / f"{turns}.db"))
            self.histories = system.histories(there)
            self.histories("template").add_messages(TURN)
            fill_file(there.uri, turns)
        else:
            self.histories = system.histories(place, collection_name=f"turns_{turns}")
            self.histories("template").add_messages(TURN)
            collection = self.histories("template").collection
            if not grown:
                collection.drop_indexes()
            fill_collection(collection, turns)
            self.histories.setup()
        trim = create_trim_preprocessor(max_tokens=TOKENS)
        self.chain = system.chain(echo, self.histories, preprocessor=trim)
        assert [listed.turns for listed in self.histories.list_sessions(LONG.user_id)] == [turns // 2]

    def place(self, kind: str, i: int) -> At:
        """The long session, or one of the short ones that are measured, which lie far apart."""
        return LONG if kind == "long" else short(i % SESSIONS * (self.turns // 2 // LENGTH // SESSIONS))

    def run(self, what: str, at: At) -> None:
        """A turn, or one of the two reads."""
        if what == "turn":
            self.chain.invoke("What do I do?", config(at.session_id, at.user_id))
            return
        history = self.histories(at.session_id, at.user_id)
        asked = {"max_messages": LAST} if what.startswith("last") else {"max_tokens": TOKENS}
        assert len(history.tail(**asked)) >= LENGTH


def medians(stores: list[Store], what: str, kind: str) -> list[float]:
    """Ms for each store; they take turns, and who begins alternates."""
    times: dict[int, list[float]] = {store.turns: [] for store in stores}
    for i in range(PAIRS):
        for store in stores if i % 2 == 0 else stores[::-1]:
            started = time.perf_counter()
            store.run(what, store.place(kind, i))
            times[store.turns].append(time.perf_counter() - started)
    return [statistics.median(took) * 1000 for took in times.values()]


def examined(database: Any, action: Callable[[], None]) -> int:
    """The most keys or documents that the server looked at for one command, by its own profiler."""
    database["system.profile"].drop()
    database.command("profile", 2)
    action()
    database.command("profile", 0)
    entries = list(database["system.profile"].find({"ns": {"$not": {"$regex": "profile"}}}))
    assert entries, "nothing was profiled"
    return max(entry.get(name, 0) for entry in entries for name in ("keysExamined", "docsExamined"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is gone afterwards: pytest would keep the files of its last runs, 600 MB each."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.gate(row=19, memkit_only=True, limit=240)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_a_million_turns(
    place: Place, system: Any, folder: Path, figure: Any, nightly: bool, request: pytest.FixtureRequest
) -> None:
    """In a session of half a million turns, and in short ones among 50,000, a turn and both reads cost the same.

    The million is filled without indexes, which `setup` builds then, as for an app that moves in; every night with
    them, as they grow in use.
    """
    started = time.perf_counter()
    stores = [Store(system, place, folder, turns, grown=nightly) for turns in (FEW, MANY)]
    figure(f"{place.kind}: filling", time.perf_counter() - started, at_most=FILLING, unit=" s")
    for kind in ("long", "short"):
        for what in EXAMINED:
            few, many = medians(stores, what, kind)
            figure(f"{place.kind}: {what}, {kind} session, among {MANY}", many, at_most=LONGEST, unit=" ms")
            figure(f"{place.kind}: {what}, {kind} session, {MANY}/{FEW}", many / few, at_most=SLOWER)
            if place.kind != "sqlite":
                database = request.getfixturevalue("collection").database
                most = examined(database, lambda: stores[1].run(what, stores[1].place(kind, 0)))  # noqa: B023  # runs now
                figure(f"{place.kind}: keys or documents examined, {what}", most, at_most=EXAMINED[what])
    for store in stores:
        store.histories.close()
