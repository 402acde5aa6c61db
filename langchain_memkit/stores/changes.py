"""What changed in the turns of a user since somebody last looked, and what they show now. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from threading import RLock
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_memkit.stores.history_rows import Edit, ReplacedTurns

Place: TypeAlias = tuple[str, int]
"""A session, and a position in it."""

RowKind: TypeAlias = Literal["turn", "undo", "decision", "tombstone", "erased"]


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A row of a user as it is now, without its messages.

    Attributes:
        session_id: The session; empty for decisions of the user, and for the tombstone that a purge inserts.
        seq: The position.
        op: The name by which a retry finds the row.
        kind: A turn; a row that takes an edit back; a decision of the user; the tombstone of a clear or purge; or what
            is left of a turn that was erased, for stores that keep its position.
        epoch: The epoch of the session.
        base: The position of the last tombstone as of this row: up to it all is void.
        is_deleted: Whether the turn is hidden.
        replaces: The position from which on this row replaces others.
        created_at: When it was stored.
        expires_at: When it expires; None if it stays.
        index: What was derived from the turn, by name.
        revision: What differs whenever anything of the row has changed, its text included.
    """

    session_id: str
    seq: int
    op: str
    kind: RowKind
    epoch: int
    base: int
    is_deleted: bool = False
    replaces: int | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    index: dict[str, bytes] = field(default_factory=dict)
    revision: Any = None

    @property
    def place(self) -> Place:
        """Session and position."""
        return self.session_id, self.seq


class Changes(NamedTuple):
    """A page of the rows that changed, as `TurnStore.changes` returns it.

    Attributes:
        rows: The rows, in the order in which they changed; each as it is now.
        mark: Where to go on; what it is depends on the store.
        has_more: Whether more rows follow at once.
        anew: Whether the rows are all that there are, since the mark that was asked with is of other data: of a file
            that was replaced, say.
    """

    rows: list[ChangedRow]
    mark: Any
    has_more: bool
    anew: bool = False


class Difference(NamedTuple):
    """What a look has found.

    Attributes:
        gone: The places of turns that are not shown any more, or are shown with another index.
        come: The turns that are shown now and were not before, or not with this index.
    """

    gone: list[Place]
    come: list[ChangedRow]

    def followed_by(self, later: Difference) -> Difference:
        """Return both as one."""
        if not (self.gone or self.come):
            return later
        come = {row.place: row for row in self.come}
        for place in later.gone:
            come.pop(place, None)
        come |= {row.place: row for row in later.come}
        return Difference(sorted({*self.gone, *later.gone}), [*come.values()])


@dataclass(slots=True)
class _Session:
    """The rows of a session, and those of them that it shows, by position."""

    rows: dict[int, ChangedRow] = field(default_factory=dict)
    shown: dict[int, ChangedRow] = field(default_factory=dict)
    end: int = 0  # the highest position that came

    def is_next(self, row: ChangedRow) -> bool:
        """Return whether a row is a turn after all others that changes none of them, as most are."""
        is_plain = row.kind == "turn" and not row.is_deleted and row.replaces is None
        if not is_plain or row.base >= row.seq or (self.rows and row.seq != self.end + 1):
            return False
        last = self.rows.get(self.end)
        return not self.rows or (last is not None and last.base == row.base)

    def read(self) -> dict[int, ChangedRow]:
        """Return the turns that are shown: the rule of `page_back`."""
        newest_first = sorted(self.rows, reverse=True)
        base = self.base
        valid = [self.rows[seq] for seq in newest_first if seq > base]
        replaced = ReplacedTurns(Edit(row.seq, row.replaces, row.kind == "undo") for row in valid)
        shown = [row for row in valid if row.kind == "turn" and not row.is_deleted and row.seq not in replaced]
        return {row.seq: row for row in shown}

    @property
    def base(self) -> int:
        """The position up to which all is void, as the newest row says."""
        return self.rows[max(self.rows)].base if self.rows else 0

    def void(self) -> list[int]:
        """Return the positions of rows that a tombstone has voided for good."""
        base = self.base
        is_erased = base in self.rows and self.rows[base].kind == "tombstone"
        return [seq for seq in self.rows if seq < base] if is_erased else []


class UserLog:
    """The turns that the sessions of a user show, kept up to date by what `TurnStore.changes` returns.

    Example:
        >>> from datetime import UTC
        >>> now = datetime(2026, 1, 2, tzinfo=UTC)
        >>> log = UserLog()
        >>> log.apply([ChangedRow("s1", seq, f"op{seq}", "turn", 8, 0) for seq in (1, 2)], now).come[-1].op
        'op2'
        >>> log.apply([ChangedRow("s1", 3, "clear", "tombstone", 16, 3)], now).gone
        [('s1', 1), ('s1', 2)]
    """

    def __init__(self) -> None:
        self.mark: Any = None
        """Where the next look goes on; None for the beginning."""
        self.looked_at: datetime | None = None
        """When the last look began."""
        self.read_at: datetime | None = None
        """When all rows were last read."""
        self.looks = 0
        """How many looks there were."""
        self.is_settled = False
        """Whether the mark is so old that nothing is expected any more that changed before it."""
        self._marked_at = 0.0
        self.lock = RLock()
        """The lock that readers and writers of the log hold."""
        self._news = Difference([], [])
        self._sessions: dict[str, _Session] = {}
        self._expiring: dict[Place, datetime] = {}
        self._next_expiry: datetime | None = None
        self._missing: set[Place] = set()
        self._empty: set[Place] = set()  # places of which it is known that nothing is stored there

    def __len__(self) -> int:
        """Return the number of turns that are shown."""
        return sum(len(session.shown) for session in self._sessions.values())

    def shown(self) -> list[ChangedRow]:
        """Return the turns that are shown, by session and position."""
        sessions = (session.shown for _, session in sorted(self._sessions.items()))
        return [shown[seq] for shown in sessions for seq in sorted(shown)]

    def decisions(self) -> list[ChangedRow]:
        """Return the decisions of the user that hold, in the order in which they were made."""
        session = self._sessions.get("")
        if session is None:
            return []
        base = session.base
        return [
            session.rows[seq] for seq in sorted(session.rows) if seq > base and session.rows[seq].kind == "decision"
        ]

    @property
    def missing(self) -> frozenset[Place]:
        """Places between others of which no row has come.

        Positions have no gaps, so the row is stored, or was and has expired: `give_up` says that it was.
        """
        return frozenset(self._missing)

    def give_up(self, places: Iterable[Place]) -> None:
        """Note that nothing is stored at some places."""
        self._empty.update(places)
        self._missing -= self._empty

    def take(
        self,
        rows: Iterable[ChangedRow],
        mark: Any,
        looks: int,
        now: datetime,
        *,
        anew: bool,
        began: float,
        slack: float,
    ) -> bool:
        """Take in what a look has read, unless another look came between: what that has read may be newer, or older.

        Args:
            rows: The rows.
            mark: Where the next look goes on.
            looks: How many looks there were when this one began.
            now: The present.
            anew: Whether these are all rows that there are.
            began: When the look began, in seconds of a clock that only goes on.
            slack: Seconds for which rows may come that changed before the mark.

        Returns:
            Whether they were taken in; `news` has then what changed by that.
        """
        with self.lock:
            if self.looks != looks:
                return False
            found = self.restart(rows, now) if anew else self.apply(rows, now)
            self._news = self._news.followed_by(found)
            if anew or mark != self.mark:
                self._marked_at, self.is_settled = began, False
            elif began - self._marked_at >= slack:
                self.is_settled = True
            self.looks, self.mark, self.looked_at = looks + 1, mark, now
            if anew:
                self.read_at = now
            return True

    def fill(self, rows: Iterable[ChangedRow], places: frozenset[Place], now: datetime) -> None:
        """Take in those rows that stand at missing places, and give up the places of which there is none.

        Args:
            rows: Rows that were looked for.
            places: What was missing then; others may have come meanwhile, and are newer.
            now: The present.
        """
        with self.lock:
            sought = places & self._missing
            found = [row for row in rows if row.place in sought]
            self._news = self._news.followed_by(self.apply(found, now))
            self.give_up(sought)

    def epoch_of(self, session_id: str) -> int:
        """Return the epoch that a turn of a session sees; of an empty one that of the user's last purge, or 0."""
        with self.lock:
            for name in (session_id, ""):
                session = self._sessions.get(name)
                if session and session.rows:
                    return session.rows[max(session.rows)].epoch
        return 0

    @property
    def unread(self) -> int:
        """How many turns came or went since the last call of `news`."""
        return len(self._news.gone) + len(self._news.come)

    def news(self) -> Difference:
        """Return what changed since the last call, and begin anew: to be used in the order of the calls."""
        with self.lock:
            found, self._news = self._news, Difference([], [])
            return found

    def restart(self, rows: Iterable[ChangedRow], now: datetime) -> Difference:
        """Take in all rows that there are, in place of those that came before; otherwise as `apply`."""
        before = {row.place: row for row in self.shown()}
        self._sessions, self._expiring, self._next_expiry = {}, {}, None
        self._missing, self._empty = set(), set()
        after = {row.place: row for row in self.apply(rows, now).come}
        gone = [place for place, row in before.items() if after.get(place) != row]
        return Difference(gone, [row for place, row in after.items() if before.get(place) != row])

    def apply(self, rows: Iterable[ChangedRow], now: datetime) -> Difference:
        """Take in rows that changed, and leave out what has expired.

        Args:
            rows: The rows, as they are now.
            now: The present.

        Returns:
            What that changed of what is shown.
        """
        come: dict[Place, ChangedRow] = {}
        changed = self._expire(now)
        for row in rows:
            session = self._sessions.setdefault(row.session_id, _Session())
            if row == session.rows.get(row.seq):
                continue
            has_expired = row.expires_at is not None and row.expires_at <= now
            if has_expired or row.kind == "erased":
                self._drop(row.place)
                changed.add(row.session_id)
                continue
            is_next = row.session_id not in changed and session.is_next(row)
            self._keep(row, session)
            if is_next:  # most rows: nothing else in the session has to be looked at
                session.shown[row.seq] = row
                come[row.place] = row
            else:
                changed.add(row.session_id)
        gone: list[Place] = []
        for session_id in changed:
            left, new = self._read(session_id)
            for place in left:
                come.pop(place, None)
            gone += left
            come |= {row.place: row for row in new}
        return Difference(sorted(gone), [*come.values()])

    def _keep(self, row: ChangedRow, session: _Session) -> None:
        if session.rows:
            between = {(row.session_id, seq) for seq in range(max(session.end, row.base) + 1, row.seq)}
            self._missing |= between - self._empty
        session.rows[row.seq] = row
        session.end = max(session.end, row.seq)
        self._missing.discard(row.place)
        self._expiring.pop(row.place, None)
        if row.expires_at is not None:
            self._expiring[row.place] = row.expires_at
            self._next_expiry = min(row.expires_at, self._next_expiry or row.expires_at)

    def _read(self, session_id: str) -> tuple[list[Place], list[ChangedRow]]:
        """Read anew what a session shows; return the places of turns that have gone, and the turns that came."""
        session = self._sessions[session_id]
        for seq in session.void():
            self._drop((session_id, seq))
        before, session.shown = session.shown, session.read()
        gone = [(session_id, seq) for seq, row in before.items() if session.shown.get(seq) != row]
        come = [row for seq, row in session.shown.items() if before.get(seq) != row]
        if not session.rows:
            del self._sessions[session_id]
        return gone, come

    def _expire(self, now: datetime) -> set[str]:
        """Drop the rows that have expired, and return the sessions that they were in."""
        if self._next_expiry is None or now < self._next_expiry:
            return set()
        found = [place for place, at in self._expiring.items() if at <= now]
        self._next_expiry = min((at for at in self._expiring.values() if at > now), default=None)
        for place in found:
            self._drop(place)
        return {session_id for session_id, _ in found}

    def _drop(self, place: Place) -> None:
        session_id, seq = place
        self._expiring.pop(place, None)
        self._sessions[session_id].rows.pop(seq, None)
        self.give_up([place])
