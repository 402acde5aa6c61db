"""Processes do at random what apps do, are killed and stopped; the history of every session is checked."""
# ruff: noqa: D102  # each faulty class says what its one method does

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gatekit.checker import EXPIRY, Journal, Verdict, check, read_journals
from gatekit.races import SAID, left_on_server
from gatekit.storm import TTL, Storm, Worker
from gatekit.systems import Place

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.base import Turn
from langchain_memkit.errors import HistoryWriteError, StaleTurnError

ENOUGH = 200_000  # bytes of journals, some 1,000 operations
NIGHTLY = 1200.0  # seconds for each kind of store
WORKERS = 3
KILLS = 3  # and as many that stop in the middle of an append


def show(name: str, verdict: Verdict, counts: dict[str, int]) -> None:
    """The counts of a run."""
    print(
        f"{name}: {verdict.operations} operations, {verdict.acknowledged} appends acknowledged, {verdict.unknown} "
        f"unknown, {verdict.refused} refused, {verdict.retried} turns sent again, {verdict.erases} erases, "
        f"{verdict.reads} reads of {verdict.turns_seen} turns checked; {counts}; wrong: {dict(verdict.kinds)}"
    )
    print("\n".join(verdict.wrong[:30]))


def rows(file: str) -> set[str]:
    """What was said and lies in a row of a file."""
    with closing(sqlite3.connect(file)) as connection:
        lines = [line.encode("utf-8", "replace") for line in connection.iterdump()]
    return {said.decode() for line in lines for said in SAID.findall(line)}


@pytest.mark.gate(row=24, memkit_only=True, limit=3600)
def test_histories_under_a_storm(
    place: Place, system: Any, forks: Any, nightly: bool, figure: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Nothing lost, doubled, half, inverted, silent; nothing there that was erased; no position twice, no gap."""
    folder = tmp_path / "journals"
    folder.mkdir()
    server = request.getfixturevalue("replica_set") if place.kind == "replica_set" else None
    storm = Storm(forks, system, place, folder, seed=24 if not nightly else time.time_ns(), server=server)
    storm.own.histories.setup()
    end = time.monotonic() + NIGHTLY

    def enough() -> bool:
        if nightly:
            return time.monotonic() > end
        stepped = server is None or storm.counts["stepped down"] > 0
        enough_kills = min(storm.counts["killed"], storm.counts["stopped in an append"]) >= KILLS
        return storm.written > ENOUGH and enough_kills and stepped

    storm.run(WORKERS, enough)
    if server is not None:
        server.wait_ready()
    storm.look_at_all()
    stored = rows(place.uri) if place.kind == "sqlite" else left_on_server([request.getfixturevalue("collection")])
    verdict = check(read_journals(folder.iterdir()), stored)
    show(place.kind, verdict, storm.counts)
    figure(f"{place.kind}: operations", verdict.operations, at_least=100)
    figure(f"{place.kind}: appends acknowledged", verdict.acknowledged, at_least=50)
    figure(f"{place.kind}: reads checked", verdict.reads, at_least=50)
    figure(f"{place.kind}: processes killed", storm.counts["killed"], at_least=KILLS)
    figure(f"{place.kind}: stopped in an append", storm.counts["stopped in an append"], at_least=KILLS)
    figure(
        f"{place.kind}: lost, doubled, half, inverted, silent, or shown though erased", len(verdict.wrong), at_most=0
    )


class Sound(SQLiteChatMessageHistory):
    """No fault: what the others differ from."""

    calls = itertools.count(1)

    def sometimes(self) -> bool:
        """Every fifth time."""
        return next(self.calls) % 5 == 0


class Drops(Sound):
    """Says that it has stored what it has not."""

    def append_turn(self, messages: Any, **options: Any) -> int:
        return 0 if self.sometimes() else super().append_turn(messages, **options)


class Doubles(Sound):
    """Stores a turn again."""

    def append_turn(self, messages: Any, **options: Any) -> int:
        if self.sometimes():
            super().append_turn(messages)
        return super().append_turn(messages, **options)


class Halves(Sound):
    """Stores the question alone."""

    def append_turn(self, messages: Any, **options: Any) -> int:
        return super().append_turn(messages[: len(messages) // 2] if self.sometimes() else messages, **options)


class ForgetsTurnIds(Sound):
    """Stores a retry as a new turn."""

    def append_turn(self, messages: Any, *, turn_id: str | None = None, **options: Any) -> int:
        return super().append_turn(messages, **options)


class ForgetsEpochs(Sound):
    """Stores a turn whatever was erased since it was loaded."""

    def append_turn(self, messages: Any, *, epoch: Any = None, since: Any = None, **options: Any) -> int:
        return super().append_turn(messages, **options)


class Denies(Sound):
    """Says that nothing was stored, and has stored it."""

    def append_turn(self, messages: Any, **options: Any) -> int:
        seq = super().append_turn(messages, **options)
        if self.sometimes():
            raise HistoryWriteError("the disk is full")
        return seq


class Refuses(Sound):
    """Refuses a turn, though nothing was erased."""

    def append_turn(self, messages: Any, **options: Any) -> int:
        if self.sometimes():
            raise StaleTurnError("cleared")
        return super().append_turn(messages, **options)


class RaisesAnything(Sound):
    """Lets an error of its driver through."""

    def append_turn(self, messages: Any, **options: Any) -> int:
        if self.sometimes():
            raise sqlite3.OperationalError("disk I/O error")
        return super().append_turn(messages, **options)


class Miscounts(Sound):
    """Names the position of another turn."""

    def append_turn(self, messages: Any, **options: Any) -> int:
        return max(super().append_turn(messages, **options) - self.sometimes(), 1)


class TakesBack(Sound):
    """Says that a turn may be stored, shows it, and takes it back."""

    shown: ClassVar[list[tuple[Any, int]]] = []

    def append_turn(self, messages: Any, **options: Any) -> int:
        seq = super().append_turn(messages, **options)
        if len(self.shown) > 3:
            history, taken = self.shown.pop(0)
            history.delete_turn(taken)
        if self.sometimes():
            self.shown.append((self, seq))
            raise HistoryWriteError("timed out", maybe_stored=True)
        return seq


class ClearsNothing(Sound):
    """Says that it has cleared, and has not."""

    def clear(self) -> None:
        pass


class ClearsByHiding(Sound):
    """Leaves what it clears in the store."""

    def clear(self) -> None:
        for turn in super().iter_turns():
            self.delete_turn(turn.seq)


class HidesNothing(Sound):
    """Says that it has hidden a turn, and has not."""

    def delete_turn(self, turn: int | str) -> bool:
        return True


class Reads(Sound):
    """What a faulty reader makes of what is stored."""

    def made(self, turns: list[Turn]) -> list[Turn]:
        """All of them."""
        return turns

    def iter_turns(self, **limits: Any) -> Iterator[Turn]:
        yield from self.made(list(super().iter_turns(**limits)))


class Swaps(Reads):
    """Shows the last two in the wrong order."""

    def made(self, turns: list[Turn]) -> list[Turn]:
        return [*turns[:-2], *reversed(turns[-2:])]


class Stale(Reads):
    """Shows what was there before the last turn."""

    def made(self, turns: list[Turn]) -> list[Turn]:
        return turns[:-1]


class Skips(Reads):
    """Leaves positions out."""

    def made(self, turns: list[Turn]) -> list[Turn]:
        return [replace(turn, seq=turn.seq * 2) for turn in turns]


class Moves(Reads):
    """Shows a turn at another position than before."""

    def made(self, turns: list[Turn]) -> list[Turn]:
        return [replace(turn, seq=turn.seq + 7) for turn in turns] if self.sometimes() else turns


class Invents(Reads):
    """Shows what nobody said."""

    def made(self, turns: list[Turn]) -> list[Turn]:
        for turn in turns[-1:]:
            turn.messages[0].content = "said-99-z"
        return turns


class PurgesNothing:
    """A factory that says that it has purged, and has not."""

    def __init__(self, histories: Any) -> None:
        self.histories = histories

    def __call__(self, session_id: str, user_id: str | None = None) -> Any:
        """A history."""
        return self.histories(session_id, user_id)

    def purge(self, user_id: str) -> dict[str, int]:
        """Nothing."""
        return {"sessions": 0, "turns": 0}


FAULTS = {
    Drops: "lost",
    Doubles: "doubled",
    Halves: "half",
    ForgetsTurnIds: "doubled",
    ForgetsEpochs: "erased, and shown",
    Denies: "said that it was not stored, and shown",
    TakesBack: "shown, and gone",
    Refuses: "refused, and nothing was erased",
    RaisesAnything: "no error of memkit's",
    Miscounts: "a position taken twice",
    ClearsNothing: "erased, and shown",
    ClearsByHiding: "content left",
    PurgesNothing: "erased, and shown",
    HidesNothing: "deleted, and shown",
    Swaps: "inverted",
    Stale: "lost",
    Skips: "a gap",
    Moves: "moved",
    Invents: "from nowhere",
}


def judged(tmp_path: Path, histories: Any, expiring: Any, rounds: int, wanted: str = "") -> Verdict:
    """What the checker says of rounds of 80 operations of two workers, until it has found what is wanted."""
    place = Place("sqlite", str(tmp_path / "chat.db"))
    journals = [Journal(tmp_path / f"{name}.jsonl", name) for name in ("w1", "w2")]
    workers = [Worker(place, histories, expiring, journal, f"w{n}", n) for n, journal in enumerate(journals, 1)]
    where = [("u1", "s1"), ("u1", "s2"), ("", "s1"), ("u3", "soft"), ("u3", "ttl")]
    verdict = Verdict()
    for _ in range(rounds):
        for worker in workers * 40:
            worker.do(where=worker.chance.choice(where))
        for each in where:
            workers[0].do("read turns", where=each)
        verdict = check(read_journals(tmp_path.glob("*.jsonl")), rows(place.uri))
        if wanted in verdict.kinds:
            break
    for journal in journals:
        journal.close()
    return verdict


@pytest.mark.gate(row=24, memkit_only=True)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_checker_sees_each_fault(fault: Any, tmp_path: Path) -> None:
    """A store with one fault is found out, by the name of the fault; a sound one is sound."""
    file = tmp_path / "chat.db"
    faulty: Any = PurgesNothing(Sound.factory(file)) if fault is PurgesNothing else fault.factory(file)
    found = judged(tmp_path, faulty, Sound.factory(file, ttl=TTL["sqlite"]), 20, FAULTS[fault])
    assert FAULTS[fault] in found.kinds, dict(found.kinds)


@pytest.mark.gate(row=24, memkit_only=True)
def test_the_checker_accuses_nobody(tmp_path: Path) -> None:
    """A sound store, with the same operations, is sound."""
    file = tmp_path / "chat.db"
    found = judged(tmp_path, Sound.factory(file), Sound.factory(file, ttl=TTL["sqlite"]), 3)
    assert found.wrong == []
    assert found.acknowledged > 60
    assert found.reads > 60


@pytest.mark.gate(row=24, memkit_only=True)
def test_the_checker_sees_what_never_expires(tmp_path: Path) -> None:
    """A turn that is shown long after its time is over is found out."""
    file = tmp_path / "chat.db"
    journal = Journal(tmp_path / "w1.jsonl", "w1")
    worker = Worker(Place("sqlite", str(file)), Sound.factory(file), Sound.factory(file), journal, "w1", 1)
    worker.ttl = 0.001
    worker.do("append", where=("u3", "ttl"))
    time.sleep(EXPIRY + 0.1)
    worker.do("read", where=("u3", "ttl"))
    journal.close()
    assert list(check(read_journals([tmp_path / "w1.jsonl"])).kinds) == ["expired, and shown"]
