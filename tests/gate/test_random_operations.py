"""Processes do at random what apps do, are killed and stopped; the history of every session is checked.

More of it: `MEMKIT_STORM_OPERATIONS=10000 pytest -s tests/gate/test_random_operations.py -k storm`.
"""
# ruff: noqa: D102  # each faulty class says what its one method does

from __future__ import annotations

import itertools
import os
import re
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
from gatekit import orders
from gatekit.checker import EXPIRY, Journal, Operation, Verdict, check, read_journals
from gatekit.storm import EDITED, PLAIN, TTL, Storm, Worker
from gatekit.systems import Place

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.base import Turn
from langchain_memkit.errors import HistoryWriteError, StaleTurnError
from langchain_memkit.stores.changes import ChangedRow, Changes

SAID = re.compile("said-[a-z0-9]+-[a-z0-9]+")
OPERATIONS = 1000
BYTES = 300  # of the journals, for each operation
NIGHTLY = 1200.0  # seconds for each kind of store
WORKERS = 3
KILLS = 3  # and as many that stop in the middle of an append


def show(name: str, verdict: Verdict, counts: dict[str, int]) -> None:
    """The counts of a run."""
    print(
        f"{name}: {verdict.operations} operations, {verdict.acknowledged} appends acknowledged, {verdict.unknown} "
        f"unknown, {verdict.refused} refused, {verdict.retried} turns sent again, {verdict.erases} erases, "
        f"{verdict.reads} reads of {verdict.turns_seen} turns checked, {verdict.looks} of them by a memory; "
        f"{verdict.families} families of sessions that "
        f"were edited or copied; done {dict(verdict.done)}; {counts}; wrong: {dict(verdict.kinds)}"
    )
    print("\n".join(verdict.wrong[:30]))


def rows(file: str) -> dict[tuple[str, str], set[str]]:
    """What was said and lies in rows of a file, by user and session; under no session what lies in any row."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    with closing(sqlite3.connect(file)) as connection:
        for user, session, content in connection.execute("SELECT user_id, session_id, messages FROM turns"):
            found[user, session] |= set(SAID.findall(str(content)))
        found["", ""] = {said for line in connection.iterdump() for said in SAID.findall(line)}
    return found


def documents(collection: Any) -> dict[tuple[str, str], set[str]]:
    """What was said and lies in documents of a collection, by user and session."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for document in collection.find():
        found[document["user_id"], document["session_id"]] |= set(SAID.findall(repr(document)))
    return found


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
    wanted = int(os.environ.get("MEMKIT_STORM_OPERATIONS", OPERATIONS))

    def enough() -> bool:
        if nightly and wanted == OPERATIONS:
            return time.monotonic() > end
        stepped = server is None or storm.counts["stepped down"] > 0
        enough_kills = min(storm.counts["killed"], storm.counts["stopped in an append"]) >= KILLS
        return storm.written > wanted * BYTES and enough_kills and stepped

    storm.run(WORKERS, enough)
    if server is not None:
        server.wait_ready()
    storm.look_at_all()
    stored = rows(place.uri) if place.kind == "sqlite" else documents(request.getfixturevalue("collection"))
    verdict = check(read_journals(folder.iterdir()), stored)
    show(place.kind, verdict, storm.counts)
    figure(f"{place.kind}: operations", verdict.operations, at_least=100)
    figure(f"{place.kind}: appends acknowledged", verdict.acknowledged, at_least=50)
    figure(f"{place.kind}: reads checked", verdict.reads, at_least=50)
    figure(f"{place.kind}: what a memory recalls, checked", verdict.looks, at_least=20)
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

    def other(self, session_id: str) -> Any:
        """Another session of the user."""
        return self._for_session(session_id, self.user_id)


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


class EditsNothing(Sound):
    """Appends what is to replace another turn."""

    def edit(self, seq: int, messages: Any, *, turn_id: str | None = None) -> int:
        return super().append_turn(messages, turn_id=turn_id)


class EditsOneTurn(Sound):
    """Hides the turn that is replaced, and not what came after it."""

    def edit(self, seq: int, messages: Any, *, turn_id: str | None = None) -> int:
        self.delete_turn(seq)
        return super().append_turn(messages, turn_id=turn_id)


class EditsAgain(Sound):
    """Replaces a turn once more when the edit is sent again."""

    def edit(self, seq: int, messages: Any, *, turn_id: str | None = None) -> int:
        shown = [turn.seq for turn in self.iter_turns()]
        return super().edit(seq, messages) if seq in shown else super().append_turn(messages)


class LosesEdits(Sound):
    """Says that it has replaced a turn, and has not."""

    def edit(self, seq: int, messages: Any, *, turn_id: str | None = None) -> int:
        return seq + 1 if self.sometimes() else super().edit(seq, messages, turn_id=turn_id)


class UndoesNothing(Sound):
    """Says that it has taken an edit back, and has not."""

    def undo_edit(self) -> bool:
        return any(turn.replaces for turn in self.iter_turns()) or super().undo_edit()


class UndoesByHiding(Sound):
    """Hides the edit, and does not show again what it replaced."""

    def undo_edit(self) -> bool:
        edits = [turn.seq for turn in self.iter_turns() if turn.replaces]
        return self.delete_turn(edits[-1]) if edits else super().undo_edit()


class RestoresNothing(Sound):
    """Says that it shows a turn again, and does not."""

    def restore_turn(self, turn: int | str) -> bool:
        return turn in [each.seq for each in self.iter_turns(hidden=True)]


class ForksNothing(Sound):
    """Says that it has copied, and has not."""

    def fork(self, session_id: str, *, at: int | None = None) -> Any:
        return self.other(session_id)


class ForksByTurns(Sound):
    """Copies one turn after the other, and breaks off."""

    def fork(self, session_id: str, *, at: int | None = None) -> Any:
        turns = list(self.iter_turns())
        copy = self.other(session_id)
        if copy.messages or len(turns) < 2:
            return super().fork(session_id, at=at)
        copy.append_turn(turns[0].messages)
        raise HistoryWriteError("the disk is full", maybe_stored=True)


class ForksWhatIsHidden(Sound):
    """Copies what is stored, whether it is shown or not."""

    def fork(self, session_id: str, *, at: int | None = None) -> Any:
        copy = self.other(session_id)
        hidden = list(self.iter_turns(hidden=True))
        if at is not None or list(copy.iter_turns(hidden=True)):
            return super().fork(session_id, at=at)
        for turn in hidden:
            copy.append_turn(turn.messages)
        return copy


class ForksWhatWasErased(Sound):
    """Copies what the session showed before it was cleared."""

    before: ClassVar[dict[Any, list[Turn]]] = {}

    def clear(self) -> None:
        self.before[self.user_id, self.session_id] = list(self.iter_turns())
        super().clear()

    def fork(self, session_id: str, *, at: int | None = None) -> Any:
        copy = super().fork(session_id, at=at)
        for turn in self.before.pop((self.user_id, self.session_id), []):
            copy.append_turn(turn.messages)
        return copy


class ForksTooMuch(Sound):
    """Leaves in a copy what nobody sees there."""

    def fork(self, session_id: str, *, at: int | None = None) -> Any:
        copy = super().fork(session_id, at=at)
        for turn in self.iter_turns(hidden=True):
            if turn.op not in [each.op for each in self.iter_turns()]:
                copy.delete_turn(copy.append_turn(turn.messages))
        return copy


class ForksOver(Sound):
    """Copies into a session that holds turns, in place of them."""

    def fork(self, session_id: str, *, at: int | None = None) -> Any:
        copy = self.other(session_id)
        if self.messages and copy.messages:
            copy.clear()
        return super().fork(session_id, at=at)


class TellsOtherwise(Sound):
    """Tells a memory otherwise what changed."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        told = self._store.changes

        async def changes(*args: Any) -> Changes:
            found = await told(*args)
            return found._replace(rows=[row for row in found.rows if self.tells(row)])

        self._store.changes = changes  # type: ignore[method-assign]

    def tells(self, row: ChangedRow) -> bool:
        """Whether the memory is told of a row."""
        raise NotImplementedError


class TellsOfNoClear(TellsOtherwise):
    """Leaves tombstones out."""

    def tells(self, row: ChangedRow) -> bool:
        return row.kind != "tombstone"


class TellsOfSomeTurns(TellsOtherwise):
    """Leaves every fifth row out."""

    def tells(self, row: ChangedRow) -> bool:
        return not self.sometimes()


class Wrapped:
    """A factory with a fault."""

    def __init__(self, histories: Any) -> None:
        self.histories = histories

    def __call__(self, session_id: str, user_id: str | None = None) -> Any:
        """A history."""
        return self.histories(session_id, user_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.histories, name)


class PurgesNoCopies(Wrapped):
    """Purges all sessions but the copies."""

    def purge(self, user_id: str) -> dict[str, int]:
        for info in self.histories.list_sessions(user_id, hidden=True):
            if not info.session_id.startswith("copy"):
                self.histories(info.session_id, user_id).clear()
        return {"sessions": 1, "turns": 1}


class TitlesNothing(Wrapped):
    """Says that it has stored a title, and has not."""

    def update_session(self, session_id: str, user_id: str | None = None, **details: Any) -> None:
        pass


class KeepsTitles(Wrapped):
    """Shows titles of sessions that were erased."""

    def __init__(self, histories: Any) -> None:
        super().__init__(histories)
        self.titles: dict[Any, str] = {}

    def update_session(self, session_id: str, user_id: str | None = None, *, title: str) -> None:
        self.histories.update_session(session_id, user_id, title=title)
        self.titles[session_id, user_id] = title

    def list_sessions(self, user_id: str | None = None) -> Any:
        listed = self.histories.list_sessions(user_id)
        return [
            info if "-t" in info.title else replace(info, title=self.titles.get((info.session_id, user_id), ""))
            for info in listed
        ]


class LeavesTitles(Wrapped):
    """Stores titles where no erase finds them."""

    def update_session(self, session_id: str, user_id: str | None = None, *, title: str) -> None:
        self.histories.update_session(session_id, user_id, title=title)
        self.histories(f"titles of {session_id}", user_id).add_user_message(title)


class TitlesOnce(Wrapped):
    """Keeps the first title of a session."""

    def update_session(self, session_id: str, user_id: str | None = None, *, title: str) -> None:
        [*found] = [info for info in self.histories.list_sessions(user_id) if info.session_id == session_id]
        if not (found and "-t" in found[0].title):
            self.histories.update_session(session_id, user_id, title=title)


class PurgesNothing(Wrapped):
    """Says that it has purged, and has not."""

    def purge(self, user_id: str) -> dict[str, int]:
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
    EditsNothing: "hidden, and shown",
    EditsOneTurn: "hidden, and shown",
    EditsAgain: "doubled",
    LosesEdits: "hidden, and shown",
    UndoesNothing: "hidden, and shown",
    UndoesByHiding: "lost",
    RestoresNothing: "lost",
    ForksNothing: "lost",
    ForksByTurns: "erased, and shown",
    ForksWhatIsHidden: "erased, and shown",
    ForksWhatWasErased: "erased, and shown",
    ForksTooMuch: "content left",
    ForksOver: "fork unexplained",
    PurgesNoCopies: "erased, and shown",
    TellsOfNoClear: "erased, and shown",
    TellsOfSomeTurns: "lost",
    TitlesNothing: "a title lost",
    KeepsTitles: "a title erased, and shown",
    LeavesTitles: "a title left",
    TitlesOnce: "an older title shown",
    HidesNothing: "deleted, and shown",
    Swaps: "inverted",
    Stale: "lost",
    Skips: "a gap",
    Moves: "moved",
    Invents: "from nowhere",
}


EVERY = [*PLAIN, *EDITED, *((user, f"copy{n}") for user in ("u4", "") for n in (1, 2, 3))]


def judged(tmp_path: Path, histories: Any, expiring: Any, rounds: int, wanted: str = "") -> Verdict:
    """What the checker says of rounds of 80 operations of two workers, until it has found what is wanted.

    After four rounds other workers begin, in other sessions, so that no check has much to read.
    """
    verdict = Verdict()
    for n in range(0, rounds, 4):
        files = [tmp_path / f"w{k}x{n}.jsonl" for k in (1, 2)]
        with ExitStack() as stack:
            journals = [stack.enter_context(closing(Journal(file, file.stem))) for file in files]
            place = Place("sqlite", str(tmp_path / "chat.db"))
            workers = [Worker(place, histories, expiring, each, each.name, n + k) for k, each in enumerate(journals)]
            for worker in workers:
                worker.generation = partial(int, n)
            for _ in range(4):
                for worker in workers * 40:
                    worker.do()
                for user, session in EVERY:
                    workers[0].do("read turns", where=(user and f"{user}-{n}", f"{session}-{n}"))
                verdict = check(read_journals(files), rows(place.uri))
                if wanted in verdict.kinds:
                    return verdict
    return verdict


@pytest.mark.gate(row=24, memkit_only=True)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_checker_sees_each_fault(fault: Any, tmp_path: Path) -> None:
    """A store with one fault is found out, by the name of the fault; a sound one is sound."""
    file = tmp_path / "chat.db"
    faulty: Any = fault(Sound.factory(file)) if issubclass(fault, Wrapped) else fault.factory(file)
    found = judged(tmp_path, faulty, Sound.factory(file, ttl=TTL["sqlite"]), 20, FAULTS[fault])
    assert FAULTS[fault] in found.kinds, dict(found.kinds)


@pytest.mark.gate(row=24, memkit_only=True)
def test_the_checker_accuses_nobody(tmp_path: Path) -> None:
    """A sound store, with the same operations, is sound."""
    file = tmp_path / "chat.db"
    found = judged(tmp_path, Sound.factory(file), Sound.factory(file, ttl=TTL["sqlite"]), 4)
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


def of_user(name: str, kind: str, began: float, ended: float, session: str = "", **more: Any) -> Operation:
    """An operation of one user."""
    return Operation(name, kind, "u4", session, began=began, ended=ended, **more)


@pytest.mark.gate(row=24, memkit_only=True)
@pytest.mark.parametrize(
    ("forked_into", "stored_at", "shown", "wrong"),
    [
        ("copy", 14, [], []),  # between the two tombstones of the purge
        ("copy", 14, ["new"], []),  # after the second
        ("else", 14, [], ["lost"]),  # where no fork was the purge has one
        ("copy", 21, [], ["lost"]),  # the purge is over
        ("copy", 14, ["old"], ["erased, and shown"]),
        ("copy", 14, ["said"], ["erased, and shown"]),
    ],
)
def test_the_checker_knows_both_moments_of_a_purge(
    forked_into: str, stored_at: float, shown: list[str], wrong: list[str]
) -> None:
    """A session that a fork has marked may be erased twice while a purge runs, and neither elsewhere nor later."""
    conflict = "HistoryConflictError" if forked_into == "copy" else ""
    source = "source" if forked_into == "copy" else "copy"
    operations = [
        of_user("1", "append", 0, 1, "source", tokens=["said"]),
        of_user("2", "append", 1, 2, "copy", tokens=["old"]),
        of_user("3", "fork", 2, 3, source, into=forked_into, error=conflict, maybe_stored=False),
        of_user("4", "purge", 10, 20),
        # It is told of the first tombstone, so what follows comes after that.
        of_user("5", "append", 11, 13, "copy", tokens=["late"], guarded=True, loaded=12, error="StaleTurnError"),
        of_user("6", "append", stored_at, stored_at + 1, "copy", tokens=["new"], expected=3),
        of_user("7", "read", 30, 31, "copy", seen=[(token, 0) for token in shown]),
    ]
    assert list(check(operations).kinds) == wrong


@pytest.mark.gate(row=24, memkit_only=True)
@pytest.mark.parametrize(("told", "wrong"), [("HistoryConflictError", []), ("", ["fork unexplained"])])
def test_the_checker_sees_a_fork_that_copied_more(told: str, wrong: list[str]) -> None:
    """Of two forks at once into one session, that of a part must not succeed where the copy of all is shown."""
    operations = [
        of_user("1", "append", 0, 1, "source", tokens=["said"]),
        of_user("2", "append", 1, 2, "source", tokens=["more"]),
        of_user("3", "fork", 3, 6, "source", into="copy"),
        of_user("4", "fork", 4, 7, "source", into="copy", turn="said", error=told, maybe_stored=False),
        of_user("5", "read", 5, 6, "copy", seen=[("said", 0), ("more", 0)]),
    ]
    assert list(check(operations).kinds) == wrong


@pytest.mark.gate(row=24, memkit_only=True)
@pytest.mark.parametrize(("began", "seq", "wrong"), [(0, 3, []), (0, 30, []), (12, 2, ["inverted"])])
def test_the_checker_uses_positions(began: float, seq: int, wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a slow append came is known by its position, beside many that were killed; a wrong one is seen."""
    said = [f"said {n}" for n in range(2, 43)]
    said.insert(seq - 2, "slow")
    times = {token: (10.0 + n, 10.5 + n) for n, token in enumerate(said)} | {"slow": (began, 90.0)}
    operations = [of_user("0", "append", 0, 1, "edited", tokens=["first"], seq=1)]
    operations += [of_user(f"k{n}", "append", 1, 2, "edited", tokens=[f"killed {n}"]) for n in range(0 if wrong else 8)]
    for killed in operations[1:]:
        killed.ended = None
    for n, token in enumerate(said, start=2):
        operations.append(of_user(token, "append", *times[token], "edited", tokens=[token], seq=n))
    operations.append(of_user("e", "edit", 91, 92, "edited", tokens=["new"], turn="first", seq=44, known=90.5))
    operations.append(of_user("u", "undo", 93, 94, "edited", answer=True))
    seen = [(token, n) for n, token in enumerate(["first", *said], start=1)]
    operations.append(of_user("r", "read", 95, 96, "edited", seen=seen))
    monkeypatch.setattr(orders, "MOST", 40_000)
    assert list(check(operations).kinds) == wrong
