"""What may be seen of a session, given all that was done to it: the invariants that the gate's row R24 checks.

Each process writes down when each of its operations began and how it ended; a line that is missing means that the
process was killed, and that nobody knows. Times are those of one machine's monotonic clock, which all its processes
share. They say which operations were over before another began; operations at the same time may be in any order.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from gatekit.model import Family, families

NEVER_STORED = ("StaleTurnError", "HistoryConflictError", "IdempotencyConflictError")
TYPED = (*NEVER_STORED, "HistoryWriteError", "HistoryReadError")
EXPIRY = 2.0  # seconds before and after the end of a turn's time in which it may be there or not


@dataclass
class Operation:
    """One operation of one process.

    Attributes:
        kind: "append", "edit", "undo", "fork", "clear", "purge", "delete", "restore", "read", "title" (one is stored)
            or "titles" (those of a user are listed).
        user: Whose session; an empty string for nobody's.
        tokens: What an append or an edit says, or a delete hides: one for each turn; the title.
        guarded: Whether an append is refused if the session was erased since it was loaded.
        began: When.
        loaded: When a guarded append had loaded the session; None if it did not come so far.
        ended: When; None if the process was killed before.
        error: The type of the error that it ended with; empty if it succeeded.
        maybe_stored: What the error says.
        seq: The position of what was appended.
        expected: The position that the append asked for.
        seen: Of a read: what each turn says and where it stands (0: the read did not ask), in order.
        half: Of a read: questions and answers that do not stand together.
        turn: What the turn says that an edit replaces; of a fork: the last one of the copy, empty for all.
        known: When the position was read that an edit, a delete or a restore names.
        into: The new session of a fork.
        answer: Of an undo: whether there was an edit.
        titles: Of a list of titles: each session that has one, with it.
        look: Of a read: whether a memory tells what it would recall.
    """

    id: str
    kind: str
    user: str
    session: str
    tokens: Sequence[str] = ()
    guarded: bool = False
    began: float = 0.0
    loaded: float | None = None
    ended: float | None = None
    error: str = ""
    text: str = ""
    maybe_stored: bool | None = None
    seq: int = 0
    expected: int | None = None
    ttl: float | None = None
    seen: Sequence[tuple[str, int]] = ()
    half: Sequence[str] = ()
    turn: str = ""
    known: float = math.inf
    into: str = ""
    answer: bool | None = None
    titles: Mapping[str, str] = field(default_factory=dict)
    look: bool = False

    @property
    def done(self) -> bool:
        """Whether it is known to have succeeded."""
        return self.ended is not None and not self.error

    @property
    def latest(self) -> float:
        """Until when it may have changed something."""
        return math.inf if self.ended is None or self.maybe_stored else self.ended

    @property
    def bound(self) -> float:
        """From when on an erase that begins takes what it stored along, or keeps it from being stored."""
        if self.error in NEVER_STORED or (self.error and self.maybe_stored is False):
            return -math.inf
        if self.guarded and (not self.done or self.loaded is not None):
            return -math.inf if self.loaded is None else self.loaded  # not loaded: it never came to its append
        return self.latest


class Journal:
    """Where a process writes down what it does; `read_journals` reads it again, whatever became of the process."""

    def __init__(self, file: Path, name: str) -> None:
        self._out = file.open("a", buffering=1)
        self.name, self._count = name, 0

    def begin(self, **fields: Any) -> str:
        """Notes an operation that begins; returns its id."""
        self._count += 1
        name = f"{self.name}-{self._count}"
        self.note(name, **fields)
        return name

    def note(self, name: str, **fields: Any) -> None:
        """Notes more of an operation."""
        self._out.write(json.dumps({"id": name, **fields}) + "\n")

    def close(self) -> None:
        """Ends it."""
        self._out.close()


def read_journals(files: Iterable[Path]) -> list[Operation]:
    """All operations, each put together from its lines."""
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        for line in file.read_text().splitlines():
            try:
                fields = json.loads(line)
            except ValueError:  # the last line of a process that was killed
                continue
            found.setdefault(fields["id"], {}).update(fields)
    return sorted((Operation(**fields) for fields in found.values()), key=lambda operation: operation.began)


@dataclass
class Verdict:
    """What was found, and how much was looked at."""

    wrong: list[str] = field(default_factory=list)
    operations: int = 0
    acknowledged: int = 0
    unknown: int = 0
    erases: int = 0
    reads: int = 0
    turns_seen: int = 0
    refused: int = 0
    retried: int = 0
    families: int = 0
    looks: int = 0
    done: Counter[str] = field(default_factory=Counter)

    @property
    def kinds(self) -> Counter[str]:
        """How often each thing was wrong."""
        return Counter(each.partition(":")[0] for each in self.wrong)


def check(operations: Sequence[Operation], stored: Mapping[tuple[str, str], set[str]] | None = None) -> Verdict:
    """Everything that was seen and must not have been, or the reverse.

    Args:
        operations: All of them, the oldest first; the last read of each session came after all else.
        stored: What lies in the store in the end, seen or not, by user and session; None if nobody looked.
    """
    left = set().union(*(stored or {}).values())
    verdict = Verdict(operations=len(operations))
    sessions: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    purges: dict[str, list[Operation]] = defaultdict(list)
    for each in operations:
        if each.kind == "purge":
            purges[each.user].append(each)
        elif each.kind not in ("title", "titles"):
            sessions[each.user, each.session].append(each)
        if each.error and each.error not in TYPED:
            verdict.wrong.append(f"no error of memkit's: {each.id} {each.error}: {each.text}")
    for family in families(operations):
        _check_family(family, stored, verdict)
        for name in family.names:
            sessions.pop((family.user, name), None)
    for (user, _), those in sessions.items():
        session = _Session(those, purges[user], verdict)
        session.check()
        session.check_left(left)
    _check_titles(operations, left, verdict)
    verdict.acknowledged = sum(each.kind == "append" and each.done for each in operations)
    verdict.unknown = sum(each.kind == "append" and each.latest == math.inf for each in operations)
    verdict.erases = sum(each.kind in ("clear", "purge", "delete") and each.done for each in operations)
    verdict.refused = sum(each.error == "StaleTurnError" for each in operations)
    verdict.looks = sum(each.look and each.done for each in operations)
    verdict.done = Counter(each.kind for each in operations if each.done)
    return verdict


def _check_family(family: Family, stored: Mapping[tuple[str, str], set[str]] | None, verdict: Verdict) -> None:
    """What the model says of sessions that were edited or copied into each other."""
    reads = [each for each in family.operations if each.kind == "read" and each.done]
    verdict.families += 1
    verdict.reads += len(reads)
    verdict.turns_seen += sum(len(read.seen) for read in reads)
    lie = None if stored is None else {name: stored.get((family.user, name), set()) for name in family.names}
    for what, where, details in family.check(lie):
        verdict.wrong.append(f"{what}: {details} ({where.id}, {where.user}/{where.session})")


def _check_titles(operations: Sequence[Operation], stored: set[str], verdict: Verdict) -> None:
    """Whether each list shows the newest title of a session, and none that was erased; and whether one lies there."""
    erases: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    titles: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    lists: dict[str, list[Operation]] = defaultdict(list)
    for each in operations:
        if each.kind == "title":
            titles[each.user, each.session].append(each)
        elif each.kind == "clear":
            erases[each.user, each.session].append(each)
        elif each.kind == "titles" and each.done:
            lists[each.user].append(each)
    purges = [each for each in operations if each.kind == "purge"]
    for (user, session), those in titles.items():
        gone = [*erases[user, session], *(each for each in purges if each.user == user)]
        for found in lists[user]:
            if session in found.titles:
                for what in _wrong_title(found, found.titles[session], those, gone):
                    verdict.wrong.append(f"{what}: {found.titles[session]} ({found.id}, {user}/{session})")
        erased = max((each.began for each in gone if each.done), default=-math.inf)
        for title in those:
            if title.tokens[0] in stored and title.latest < math.inf and title.bound < erased:
                verdict.wrong.append(f"a title left: {title.tokens[0]} ({title.id}, {user}/{session})")


def _wrong_title(found: Operation, shown: str, those: Sequence[Operation], gone: Sequence[Operation]) -> Iterator[str]:
    """What is wrong with the title that a list shows of a session; an empty string if it has none."""
    assert found.ended is not None
    erased = max((e.began for e in gone if e.done and (e.ended or 0) < found.began), default=-math.inf)
    may_erase = max((e.latest for e in gone if e.began < found.ended), default=-math.inf)
    over = [each for each in those if each.done and (each.ended or 0) < found.began and each.began > may_erase]
    which = next((each for each in those if each.tokens[0] == shown), None)
    if which is None and any(each.ttl is None for each in over):
        yield "a title lost"
    if which is not None:
        if which.began > found.ended:
            yield "a title from nowhere"
        # A title that a clear overtakes is stored, erased and then refused: a list in between may show it.
        overtaken = any(each.latest > which.began and each.began < which.latest for each in gone)
        if which.error in NEVER_STORED and not overtaken:
            yield "a title refused, and shown"
        elif which.bound < erased:
            yield "a title erased, and shown"
        if any(which.latest < each.began for each in over):
            yield "an older title shown"


class _Session:
    """The operations of one session."""

    def __init__(self, operations: Sequence[Operation], purges: Sequence[Operation], verdict: Verdict) -> None:
        self.verdict = verdict
        self.appends: dict[str, list[Operation]] = defaultdict(list)
        for each in operations:
            if each.kind == "append":
                for token in each.tokens:
                    self.appends[token].append(each)
        self.reads = [each for each in operations if each.kind == "read" and each.done]
        self.erases = [*purges, *(each for each in operations if each.kind == "clear")]
        self.deletes: dict[str, list[Operation]] = defaultdict(list)
        for each in operations:
            if each.kind == "delete":
                self.deletes[each.tokens[0]].append(each)
        self.ttl = next((each.ttl for each in operations if each.ttl), None)
        self.began = {token: min(each.began for each in those) for token, those in self.appends.items()}
        self.latest = {token: max(each.latest for each in those) for token, those in self.appends.items()}
        self.bound = {token: max(each.bound for each in those) for token, those in self.appends.items()}
        verdict.retried += sum(len(those) > 1 for those in self.appends.values())

    def wrong(self, what: str, where: Operation, *about: Any) -> None:
        """Notes it."""
        text = " ".join(map(str, (*about, f"({where.id}, {where.user}/{where.session})")))
        self.verdict.wrong.append(f"{what}: {text}")

    def check(self) -> None:
        """All that is to be said of it."""
        self._check_answers()
        positions: dict[str, int] = {}
        seen: dict[str, Operation] = {}
        for read in self.reads:
            self.verdict.reads += 1
            self.verdict.turns_seen += len(read.seen)
            tokens = [token for token, _ in read.seen]
            for token, count in Counter(tokens).items():
                if count > 1:
                    self.wrong("doubled", read, token)
            for text in read.half:
                self.wrong("half", read, text)
            self._check_each(read, tokens)
            self._check_order(read, tokens)
            self._check_lost(read, set(tokens))
            self._check_gone(read, set(tokens), seen)
            seen.update(dict.fromkeys(tokens, read))
            self._check_positions(read, positions)

    def check_left(self, stored: set[str]) -> None:
        """Whether anything lies there that nobody sees, and that was not only hidden."""
        if self.reads and self.ttl is None:
            shown = {token for token, _ in self.reads[-1].seen}
            for token in sorted((stored & self.appends.keys()) - shown - self.deletes.keys()):
                self.wrong("content left", self.reads[-1], token)

    def _check_answers(self) -> None:
        """What an operation was told, without any read."""
        taken: dict[int, str] = {}
        for token, those in self.appends.items():
            for each in those:
                if each.done and each.seq and self.ttl is None:
                    if taken.setdefault(each.seq, token) != token:
                        self.wrong("a position taken twice", each, taken[each.seq], token, each.seq)
                    if each.expected is not None and len(those) == 1 and each.seq <= each.expected:
                        self.wrong("not where it was expected", each, each.seq, each.expected)
                if each.error == "StaleTurnError" and self.ttl is None:
                    during = [e for e in self.erases if e.latest >= each.began and e.began <= (each.ended or math.inf)]
                    if not during:
                        self.wrong("refused, and nothing was erased", each, token)

    def _check_each(self, read: Operation, tokens: Sequence[str]) -> None:
        """Whether what was seen may be there."""
        erased = max((e.began for e in self.erases if e.done and (e.ended or 0) < read.began), default=-math.inf)
        for token in tokens:
            those = self.appends.get(token, [])
            if not any(each.began < (read.ended or 0) for each in those):
                self.wrong("from nowhere", read, token)
                continue
            if all(each.error and each.maybe_stored is False for each in those):
                self.wrong("said that it was not stored, and shown", read, token)
            if self.bound[token] < erased:
                self.wrong("erased, and shown", read, token)
            hidden = (e for e in self.deletes.get(token, ()) if e.done and (e.ended or 0) < read.began)
            if any(self.bound[token] < e.began for e in hidden):
                self.wrong("deleted, and shown", read, token)
            if self.ttl and self.latest[token] + self.ttl + EXPIRY < read.began:
                self.wrong("expired, and shown", read, token)

    def _check_order(self, read: Operation, tokens: Sequence[str]) -> None:
        """Whether what was appended after another was over stands after it."""
        newest, which = -math.inf, ""
        for token in tokens:
            if self.latest.get(token, math.inf) < newest:
                self.wrong("inverted", read, which, "before", token)
            if self.began.get(token, -math.inf) > newest:
                newest, which = self.began[token], token

    def _check_lost(self, read: Operation, tokens: set[str]) -> None:
        """Whether what was acknowledged, and not erased since, is there."""
        erased = max((e.latest for e in self.erases if e.began < (read.ended or 0)), default=-math.inf)
        for token, those in self.appends.items():
            if token in tokens or self.deletes.get(token):
                continue
            for each in those:
                over = each.done and (each.ended or 0) < read.began and each.began > erased
                if over and not (self.ttl and each.began + self.ttl - EXPIRY < (read.ended or 0)):
                    self.wrong("lost", read, token)
                    break

    def _check_gone(self, read: Operation, tokens: set[str], seen: dict[str, Operation]) -> None:
        """Whether what an earlier read showed, acknowledged or not, is there, if nothing was erased since."""
        erased = max((e.latest for e in self.erases if e.began < (read.ended or 0)), default=-math.inf)
        if self.ttl is None:
            for token in seen.keys() - tokens - self.deletes.keys():
                if seen[token].began > erased and (seen[token].ended or 0) < read.began:
                    self.wrong("shown, and gone", read, token)

    def _check_positions(self, read: Operation, positions: dict[str, int]) -> None:
        """Whether positions go up without gaps, and stay what they are."""
        seqs = [seq for _, seq in read.seen if seq]
        if any(a > b for a, b in pairwise(seqs)):
            self.wrong("positions out of order", read, seqs)
        rows = sorted(set(seqs))
        if rows and self.ttl is None and not self.deletes and rows[-1] - rows[0] + 1 != len(rows):
            self.wrong("a gap", read, rows)
        for token, seq in read.seen:
            if seq and len(self.appends.get(token, ())) == 1 and positions.setdefault(token, seq) != seq:
                self.wrong("moved", read, token, positions[token], seq)
