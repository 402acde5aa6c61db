"""The records of the last users in process, brought in line with the store at each use.

A store tells with one query the mark of a user, numbers that change with each write, whoever writes; the session in
which the user talks; and the records that were added since the last time. If the mark is the one at which the records
were read, or these explain how it changed, that is all. Else all stamps are listed and the missing rows fetched.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._sync import AsStep, cpu_bound
from langchain_memkit.backends._vectors.rows import (
    UNREADABLE,
    Cells,
    Mark,
    Row,
    Stored,
    Text,
    Vector,
    Written,
    again,
    entries_of,
    shown_of,
)
from langchain_memkit.base import Now
from langchain_memkit.scoring.index import Entry, Index, digest_of

__all__ = ["Shelf"]

logger = logging.getLogger("langchain_memkit")

BATCH = 1000  # rows fetched at once
MANY = 1000  # digests of texts that are gone
TEXT_BYTES = 2000  # of what is held of a record to show it, besides its text
NO_TEXTS: Mapping[str, Text] = MappingProxyType({})
GROWTH = 1.2  # of an index before its size is estimated anew


class Since(NamedTuple):
    """What is held of a user: the mark, the highest stamp that was read, and higher ones of our own writes."""

    mark: Mark
    stamp: int
    own: tuple[int, ...]


class Session(NamedTuple):
    """A session as it is stored.

    Attributes:
        generation: Drawn when it began.
        state: A number that changes when records of it are stored; None: the stamp of its last record.
    """

    generation: str
    state: int | None = None


class News(NamedTuple):
    """What a store tells of a user, read in this order.

    Attributes:
        session: The one that was asked for; None if there is none, or its last record has to be read.
        mark: The user's; None where there is nothing that could tell.
        cells: Records with higher stamps than were known.
    """

    session: Session | None
    mark: Mark | None
    cells: Sequence[Cells] = ()


class Source(Protocol):
    """What is read; all are flows."""

    async def news(self, user_id: str, session_id: str | None, since: Since | None) -> News: ...
    def change(self, cells: Sequence[Cells], replaced: Sequence[int]) -> Mark: ...  # of the mark, by adding records
    async def stamps(self, user_id: str) -> list[int]: ...
    async def cells(self, user_id: str, stamps: Sequence[int]) -> list[Cells]: ...
    async def stored(self, user_id: str, stamps: Sequence[int]) -> list[Stored]: ...


class Held:
    """A user's records in process."""

    def __init__(self) -> None:
        self.index = Index()
        self.texts: dict[str, Text] = {}  # by id
        self.digests: dict[str, str] = {}  # ids of records by the digest of their text
        self.stamp = 0  # the highest one when the mark was read
        self.own: list[int] = []  # stamps of our own writes since
        self.left_out: set[int] = set()  # stamps of rows that are damaged or expired
        self.next_expiry: datetime | None = None
        self.nbytes = 0
        self.mark: Mark | None = None  # of the store when it was all that there is
        self.changes = 0  # so far: two who read at the same time notice each other
        self._estimated = 0

    def known(self) -> set[int]:
        """Stamps of the rows that need not be read."""
        with self.index.lock:
            return self.index.stamps() | self.left_out

    def add(self, entries: Sequence[tuple[Entry, Vector | None]], rows: Iterable[Cells] = ()) -> None:
        """Adds entries, in place of those with the same ids.

        Args:
            entries: With their vectors.
            rows: What they were made of, by which they are shown; others are read when they are.
        """
        with self.index.lock:
            self.changes += len(entries)
            shown = {row.stamp: row for row in rows}
            for entry, _ in entries:
                self.texts.pop(entry.id, None)
                if row := shown.get(entry.stamp):
                    self.texts[entry.id] = Text(row.text, row.metadata)
                    self.digests[row.digest] = entry.id
            for entry, vector in entries:
                self.index.add(entry, vector)
                if entry.expires_at is not None and (self.next_expiry is None or entry.expires_at < self.next_expiry):
                    self.next_expiry = entry.expires_at

    def vector_of(self, digest: str) -> Vector | None:
        """Return the vector of a text; None if no record that is held has this text."""
        name = self.digests.get(digest, "")
        document = self.texts[name].document(name) if name in self.texts else None
        # the record may have got another text under the same id since: a round whose answer came later
        return self.index.vector_of(name) if document and digest_of(document.page_content) == digest else None

    def settle(self, mark: Mark | None, gone: Collection[int], changes: int) -> None:
        """Removes what is not stored any more; keeps the mark, unless somebody else changed something meanwhile.

        Args:
            mark: Of the store, asked for before anything was read.
            gone: Stamps of what is not stored any more.
            changes: As many as there should be.
        """
        with self.index.lock:
            self.mark = mark if self.changes == changes else None
            self.stamp, self.own = max(self.known() - set(gone), default=0), []
            if gone:
                self.changes += 1
                self._remove([entry.id for entry in self.index.entries if entry.stamp in gone])
                self.left_out.difference_update(gone)

    def since(self) -> Since | None:
        """What is held; None if it has to be listed anew."""
        with self.index.lock:
            return None if self.mark is None else Since(self.mark, self.stamp, tuple(self.own))

    def catch_up(self, since: Since, news: News, change: Callable[[Sequence[Cells], Sequence[int]], Mark]) -> bool:
        """Takes in what is new, if that is all that has changed; whether nothing has to be listed.

        Args:
            since: What was held when it was asked for.
            news: What the store said.
            change: Of the source.
        """
        with self.index.lock:
            if self.mark != since.mark:  # somebody else was as quick
                return self.mark == news.mark
            if self.mark != news.mark:
                found, damaged, stale = entries_of(news.cells, self.index.dims)
                replaced = [old.stamp for entry, _ in found if (old := self.index.get(entry.id)) is not None]
                moved = change(news.cells, replaced)
                if stale or news.mark != tuple(old + new for old, new in zip(since.mark, moved, strict=True)):
                    return False
                self.add(found, news.cells)
                self.left_out |= damaged
                self.mark = news.mark
                self.own += [row.stamp for row in news.cells]
            self.stamp = max([self.stamp, *self.own])
            self.own = []
            return True

    def _remove(self, ids: Collection[str]) -> None:
        self.index.remove(ids)
        for name in ids:
            self.texts.pop(name, None)
        if len(self.digests) > 2 * len(self.index) + MANY:
            self.digests = {digest: name for digest, name in self.digests.items() if name in self.index}

    def wrote(self, rows: Sequence[Row], removed: Collection[str], written: Written) -> None:
        """Takes over what was written, and by how much the mark has changed."""
        entries = [row.stamped(stamp) for row, stamp in zip(rows, written.stamps, strict=True)]
        cells = [
            Cells(stamp, None, None, None, row.text, row.metadata, row.digest, None)
            for row, stamp in zip(rows, written.stamps, strict=True)
        ]
        change = written.change
        with self.index.lock:
            self.add(entries, cells)
            self.own += written.stamps
            self.changes += 1
            self._remove(removed)
            if self.mark is not None:
                self.mark = tuple(old + new for old, new in zip(self.mark, change, strict=True))

    def expire(self, now: datetime) -> None:
        """Leaves out what has expired."""
        if self.next_expiry is None or now < self.next_expiry:
            return
        with self.index.lock:
            dated = [entry for entry in self.index.entries if entry.expires_at is not None]
            gone = [entry for entry in dated if entry.expires_at is not None and entry.expires_at <= now]
            self._remove([entry.id for entry in gone])
            self.left_out.update(entry.stamp for entry in gone)
            left = [entry.expires_at for entry in dated if entry.expires_at is not None and entry.expires_at > now]
            self.next_expiry = min(left, default=None)

    def estimate(self) -> None:
        """Estimates its size, if it has grown."""
        with self.index.lock:
            if not self._estimated * 0.5 <= len(self.index) <= self._estimated * GROWTH:
                self._estimated = len(self.index)
                shown = sum(TEXT_BYTES + len(str(each.text)) for each in self.texts.values())
                self.nbytes = self.index.nbytes + 64 * len(self.left_out) + shown


class Looked(NamedTuple):
    """A session as a turn of it found it, with what is held of its user."""

    held: Held
    session: Session
    last: Entry | None


class Shelf:
    """What is held of the users, the last used ones first to stay.

    Args:
        source: The store.
        step: Makes a step of a flow of the store.
        cache_bytes: How much is held.
        now: A clock.
    """

    def __init__(self, source: Source, step: AsStep, cache_bytes: int, now: Now) -> None:
        self._source = source
        self._step = step
        self._cache_bytes = cache_bytes
        self._now = now
        self._users: OrderedDict[str, Held] = OrderedDict()
        self._lock = ForkSafeLock(self._users.clear)  # also because a thread that is not in the child may hold an index

    async def read(self, user_id: str, session_id: str | None = None) -> tuple[Index, Looked | None]:
        """The user's records as they are now, and a session of the user, where a turn can go out from what is held."""
        source, held = self._source, self._find(user_id)
        since = held.since() if held is not None else None
        news: News = await self._step(lambda: source.news(user_id, session_id, since))
        mark = news.mark
        if held is None or since is None or not held.catch_up(since, news, source.change):
            held = held or Held()
            changes, known = held.changes, held.known()
            listed: list[int] = await self._step(lambda: source.stamps(user_id))
            missing = [stamp for stamp in listed if stamp not in known]
            for i in range(0, len(missing), BATCH):
                changes += await self._fetch(held, user_id, missing[i : i + BATCH])
            await cpu_bound(partial(self._settle, user_id, held, mark, known.difference(listed), changes))
        held.expire(self._now())
        if news.session is None or session_id is None:
            return held.index, None
        with held.index.lock:
            last = held.index.last(session_id)
        return held.index, Looked(held, news.session, last) if last is None or last.id in held.texts else None

    async def _fetch(self, held: Held, user_id: str, stamps: Sequence[int]) -> int:
        """Reads records; returns how many were added."""
        cells: list[Cells] = await self._step(lambda: self._source.cells(user_id, stamps))

        def take() -> tuple[int, int, dict[int, tuple[Cells, Vector | None]]]:
            found, damaged, stale = entries_of(cells, held.index.dims)
            held.add(found, cells)
            held.left_out |= damaged
            return len(found), len(damaged), stale

        added: int
        added, damaged, stale = await cpu_bound(take)
        if stale:
            stored: list[Stored] = await self._step(lambda: self._source.stored(user_id, list(stale)))

            def stem() -> tuple[int, int]:
                fresh, bad = [], 0
                for shown in shown_of(stored, self._now()):
                    row, vector = stale[shown.stamp]
                    try:
                        fresh.append((again(row, shown), vector))
                    except UNREADABLE:
                        bad += 1
                held.add(fresh)
                held.left_out |= stale.keys() - {entry.stamp for entry, _ in fresh}
                return len(fresh), bad

            more, bad = await cpu_bound(stem)
            added, damaged = added + more, damaged + bad
        if damaged:
            logger.warning("%d records of a user are unreadable and left as they are", damaged)
        return added

    def _settle(self, user_id: str, held: Held, mark: Mark | None, gone: Collection[int], changes: int) -> None:
        held.settle(mark, gone, changes)
        self._keep(user_id, held)

    def _find(self, user_id: str) -> Held | None:
        with self._lock:
            held = self._users.get(user_id)
            if held is not None:
                self._users.move_to_end(user_id)
            return held

    def _keep(self, user_id: str, held: Held) -> None:
        """Holds a user's records, and lets go of those not used for longest; the last one stays, however large."""
        held.estimate()
        with self._lock:
            self._users.pop(user_id, None)
            self._users[user_id] = held
            size = sum(other.nbytes for other in self._users.values())
            while size > self._cache_bytes and len(self._users) > 1:
                size -= self._users.popitem(last=False)[1].nbytes

    def miss(self, user_id: str, ids: Collection[str]) -> None:
        """Doubts what is held of the user if it has these records, which are gone: somebody removed them by hand."""
        with self._lock:
            held = self._users.get(user_id)
        if held is not None and any(name in held.index for name in ids):
            held.mark = None

    def texts(self, user_id: str) -> Mapping[str, Text]:
        """What is held of the user to be shown, by id."""
        with self._lock:
            held = self._users.get(user_id)
        return held.texts if held is not None else NO_TEXTS

    def forget(self, user_id: str) -> None:
        """Lets go of a user."""
        with self._lock:
            self._users.pop(user_id, None)

    def clear(self) -> None:
        """Lets go of everything."""
        with self._lock:
            self._users.clear()

    def wrote(self, user_id: str, rows: Sequence[Row], removed: Collection[str], written: Written) -> None:
        """Puts a write of our own into what is held, so that it need not be read."""
        held = self._find(user_id)
        if held is None:
            return
        held.wrote(rows, removed, written)
        self._keep(user_id, held)
