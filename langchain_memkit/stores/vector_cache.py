"""A cache of the last users' records in process, revalidated against the store at each use.

One query returns a user's version (numbers that every write changes, whoever writes), the session in which the user
talks, and the records added since the last query. If the version is unchanged, or these records explain the change, the
cache is current. Otherwise all stamps are listed and the missing rows fetched.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, Protocol

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import AsStep, cpu_bound
from langchain_memkit.base import Now
from langchain_memkit.ranking.index import Index, IndexRecord, digest_of
from langchain_memkit.stores.vector_rows import (
    UNREADABLE,
    CachedText,
    DocumentRow,
    IndexRow,
    Mark,
    NewRecord,
    Vector,
    WriteResult,
    entries_of,
    readable_documents,
    restem,
)

__all__ = ["VectorIndexCache"]

logger = logging.getLogger("langchain_memkit")

BATCH = 1000  # rows fetched at once
MANY = 1000  # digests of removed texts that may be kept
TEXT_BYTES = 2000  # overhead of a cached record, besides its text
COPIES = 4  # of the text, once it was shown
NO_TEXTS: Mapping[str, CachedText] = MappingProxyType({})
GROWTH = 1.2  # times its size at the last estimate: then the size of an index is estimated again


class ReadUpTo(NamedTuple):
    """The state of a cached user: version, the highest stamp read, and higher stamps of this process's own writes."""

    mark: Mark
    stamp: int
    own: tuple[int, ...]


class SessionState(NamedTuple):
    """A session as it is stored.

    Attributes:
        generation: A random id, drawn when the session began.
        state: A number that changes when records of the session are stored. None: the stamp of its last record serves.
    """

    generation: str
    state: int | None = None


class UserChanges(NamedTuple):
    """A store's answer about a user; its fields are read in this order.

    Attributes:
        session: The session asked for; None if there is none, or if its last record has to be read from the store.
        mark: The user's version; None if the store cannot tell.
        cells: Records with higher stamps than those cached.
    """

    session: SessionState | None
    mark: Mark | None
    cells: Sequence[IndexRow] = ()


class IndexSource(Protocol):
    """The reading half of a `VectorBackend`; all methods but `change` are flows that raise `HistoryReadError`."""

    @abstractmethod
    async def news(self, user_id: str, session_id: str | None, since: ReadUpTo | None) -> UserChanges:
        """Read a user's version, a session, and the records added since, in one look at the database.

        Args:
            user_id: The user; an empty string for unowned documents.
            session_id: The session to read; None for none.
            since: What the cache has read; None returns no records.

        Returns:
            Session, version and records, read in this order: a change that comes in between must show in the version.
        """

    @abstractmethod
    def change(self, cells: Sequence[IndexRow], replaced: Sequence[int]) -> Mark:
        """Compute by how much a user's version changes if records are added. No I/O.

        Args:
            cells: The records, as `news` returned them.
            replaced: The stamps of records that they replace.

        Returns:
            The difference of the versions, number by number.
        """

    @abstractmethod
    async def stamps(self, user_id: str) -> list[int]:
        """List the stamps of all records of a user that are neither expired nor of a forgotten session.

        Args:
            user_id: The user.

        Returns:
            The stamps, in any order.
        """

    @abstractmethod
    async def cells(self, user_id: str, stamps: Sequence[int]) -> list[IndexRow]:
        """Read the columns that ranking needs.

        Args:
            user_id: The user.
            stamps: The records' stamps.

        Returns:
            A row for each record that still exists, in any order; values may be damaged.
        """

    @abstractmethod
    async def stored(self, user_id: str, stamps: Sequence[int]) -> list[DocumentRow]:
        """Read the columns that a document needs; otherwise like `cells`.

        Args:
            user_id: The user.
            stamps: The records' stamps.

        Returns:
            A row for each record that still exists, in any order; values may be damaged.
        """


class CachedUser:
    """The cached records of one user: an index, the texts, and the version of the store that they match."""

    def __init__(self) -> None:
        self.index = Index()
        self.texts: dict[str, CachedText] = {}  # by id
        self.digests: dict[str, str] = {}  # ids of records by the digest of their text; may name removed ones
        self.stamp = 0  # the highest one that was stored when the version was read
        self.own: list[int] = []  # stamps of this process's writes since then
        self.left_out: set[int] = set()  # stamps of rows that are damaged or expired
        self.next_expiry: datetime | None = None
        self.nbytes = 0
        self.mark: Mark | None = None  # the store's version that the cache matches; None: list all stamps next time
        self.changes = 0  # number of changes so far: concurrent readers notice each other by it
        self._estimated = 0

    def known(self) -> set[int]:
        """Return the stamps of rows that need not be read."""
        with self.index.lock:
            return self.index.stamps() | self.left_out

    def add(self, entries: Sequence[tuple[IndexRecord, Vector | None]], rows: Iterable[IndexRow] = ()) -> None:
        """Add entries to the index, replacing those with the same ids.

        Args:
            entries: Entries with their vectors.
            rows: The rows they were made of, whose texts are cached; the texts of other entries are read when needed.
        """
        with self.index.lock:
            self.changes += len(entries)
            shown = {row.stamp: row for row in rows}
            for entry, _ in entries:
                self.texts.pop(entry.id, None)
                if row := shown.get(entry.stamp):
                    self.texts[entry.id] = CachedText(row.text, row.metadata)
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
        """Remove what is no longer stored, and record the version that the cache matches now.

        Args:
            mark: The store's version, read before the rows were.
            gone: Stamps of records that are no longer stored.
            changes: The number of changes if nobody else has changed the cache meanwhile.
        """
        with self.index.lock:
            # Otherwise a concurrent reader or writer has changed the cache, and this version does not describe it:
            # the next read lists all stamps.
            self.mark = mark if self.changes == changes else None
            self.stamp, self.own = max(self.known() - set(gone), default=0), []
            if gone:
                self.changes += 1
                self._remove([entry.id for entry in self.index.entries if entry.stamp in gone])
                self.left_out.difference_update(gone)

    def since(self) -> ReadUpTo | None:
        """Return the cached state to ask the store for news with; None if all stamps have to be listed."""
        with self.index.lock:
            return None if self.mark is None else ReadUpTo(self.mark, self.stamp, tuple(self.own))

    def catch_up(
        self, since: ReadUpTo, news: UserChanges, change: Callable[[Sequence[IndexRow], Sequence[int]], Mark]
    ) -> bool:
        """Apply the news to the cache; False if they do not explain the new version, so that stamps have to be listed.

        Args:
            since: The cached state that the store was asked with.
            news: The store's answer.
            change: The source's function for the change of the version.
        """
        with self.index.lock:
            # Another thread has updated the cache since the question was asked: these news are current only if it
            # arrived at the same version.
            if self.mark != since.mark:
                return self.mark == news.mark
            if self.mark != news.mark:
                found, damaged, stale = entries_of(news.cells, self.index.dims)
                replaced = [old.stamp for entry, _ in found if (old := self.index.get(entry.id)) is not None]
                # Versions are sums: if adding exactly these records (in place of the old ones with their ids) leads
                # from the cached version to the store's, nothing else has changed. Any other deletion or replacement
                # leaves a difference.
                moved = change(news.cells, replaced)
                if stale or news.mark != tuple(old + new for old, new in zip(since.mark, moved, strict=True)):
                    return False
                self.add(found, news.cells)
                self.left_out |= damaged
                self.mark = news.mark
                self.own += [row.stamp for row in news.cells]
            # The news hold everything up to this version, so the process's own writes need not be excluded next time.
            self.stamp = max([self.stamp, *self.own])
            self.own = []
            return True

    def _remove(self, ids: Collection[str]) -> None:
        self.index.remove(ids)
        for name in ids:
            self.texts.pop(name, None)
        # Digests of removed records are dropped only when there are many: until then their ids are not found in the
        # index.
        if len(self.digests) > 2 * len(self.index) + MANY:
            self.digests = {digest: name for digest, name in self.digests.items() if name in self.index}

    def wrote(self, rows: Sequence[NewRecord], removed: Collection[str], written: WriteResult) -> None:
        """Apply this process's own write to the cache, so that it need not be read back."""
        entries = [row.stamped(stamp) for row, stamp in zip(rows, written.stamps, strict=True)]
        cells = [
            IndexRow(stamp, None, None, None, row.text, row.metadata, row.digest, None)
            for row, stamp in zip(rows, written.stamps, strict=True)
        ]
        change = written.change
        with self.index.lock:
            self.add(entries, cells)
            self.own += written.stamps
            self.changes += 1
            self._remove(removed)
            # Add the write's own change instead of reading the store's version: if others wrote in between, the
            # cached version then differs from the store's by exactly their changes, and the next read finds those.
            if self.mark is not None:
                self.mark = tuple(old + new for old, new in zip(self.mark, change, strict=True))

    def expire(self, now: datetime) -> None:
        """Drop records that have expired."""
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
        """Estimate the size in bytes again, if the number of records has changed much."""
        with self.index.lock:
            if not self._estimated * 0.5 <= len(self.index) <= self._estimated * GROWTH:
                self._estimated = len(self.index)
                shown = sum(TEXT_BYTES + COPIES * len(str(each.text)) for each in self.texts.values())
                self.nbytes = self.index.nbytes + 64 * len(self.left_out) + shown


class ReadSession(NamedTuple):
    """A snapshot of a session at the start of a write: the cached user, the session, and its last record."""

    held: CachedUser
    session: SessionState
    last: IndexRecord | None


class VectorIndexCache:
    """A least-recently-used cache of users' records, limited in bytes.

    Args:
        source: The store.
        step: Turns a flow of the store into a step.
        cache_bytes: The limit in bytes; the user used last stays cached, however large.
        now: A clock.
    """

    def __init__(self, source: IndexSource, step: AsStep, cache_bytes: int, now: Now) -> None:
        self._source = source
        self._step = step
        self._now = now
        self._users = LRUCache[str, CachedUser](cache_bytes, lambda held: held.nbytes)
        # After a fork the child drops all cached users: a thread that exists only in the parent may hold the lock of
        # an index.
        self._lock = ForkSafeLock(self._users.clear)

    async def read(self, user_id: str, session_id: str | None = None) -> tuple[Index, ReadSession | None]:
        """Return a user's current index, and a snapshot of a session if a write can start from cached data."""
        source, held = self._source, self._find(user_id)
        since = held.since() if held is not None else None
        news: UserChanges = await self._step(lambda: source.news(user_id, session_id, since))
        mark = news.mark
        if held is None or since is None or not held.catch_up(since, news, source.change):
            held = held or CachedUser()
            # The version was read before the stamps. A write in between is then in the list but not in the version,
            # so the next read merely checks again; the other way round it would be missed for good.
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
        return held.index, ReadSession(held, news.session, last) if last is None or last.id in held.texts else None

    async def _fetch(self, held: CachedUser, user_id: str, stamps: Sequence[int]) -> int:
        """Read records into the cache and return how many were added."""
        cells: list[IndexRow] = await self._step(lambda: self._source.cells(user_id, stamps))

        def take() -> tuple[int, int, dict[int, tuple[IndexRow, Vector | None]]]:
            found, damaged, stale = entries_of(cells, held.index.dims)
            held.add(found, cells)
            held.left_out |= damaged
            return len(found), len(damaged), stale

        added: int
        added, damaged, stale = await cpu_bound(take)
        if stale:
            # Another version of the stemmer wrote these rows: their words cannot be compared with those of a
            # question. They are stemmed from their texts again, in process only; the stored rows stay as they are.
            stored: list[DocumentRow] = await self._step(lambda: self._source.stored(user_id, list(stale)))

            def stem() -> tuple[int, int]:
                fresh, bad = [], 0
                for shown in readable_documents(stored, self._now()):
                    row, vector = stale[shown.stamp]
                    try:
                        fresh.append((restem(row, shown), vector))
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

    def _settle(self, user_id: str, held: CachedUser, mark: Mark | None, gone: Collection[int], changes: int) -> None:
        held.settle(mark, gone, changes)
        self._keep(user_id, held)

    def _find(self, user_id: str) -> CachedUser | None:
        with self._lock:
            return self._users.get(user_id)

    def _keep(self, user_id: str, held: CachedUser) -> None:
        """Cache a user's records, then evict the least recently used users above the limit; this one stays."""
        held.estimate()
        with self._lock:
            self._users.put(user_id, held)

    def miss(self, user_id: str, ids: Collection[str]) -> None:
        """Invalidate the user's cached version if the cache holds one of these ids, which are not stored any more.

        Somebody deleted these records by hand, past memkit. Not every backend's version changes then.
        """
        with self._lock:
            held = self._users.get(user_id)
        if held is not None and any(name in held.index for name in ids):
            held.mark = None

    def texts(self, user_id: str) -> Mapping[str, CachedText]:
        """Return the cached texts of a user by id."""
        with self._lock:
            held = self._users.get(user_id)
        return held.texts if held is not None else NO_TEXTS

    def forget(self, user_id: str) -> None:
        """Drop a user from the cache."""
        with self._lock:
            self._users.pop(user_id)

    def clear(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._users.clear()

    def wrote(self, user_id: str, rows: Sequence[NewRecord], removed: Collection[str], written: WriteResult) -> None:
        """Apply this process's own write to the cached user, so that it need not be read back."""
        held = self._find(user_id)
        if held is None:
            return
        held.wrote(rows, removed, written)
        self._keep(user_id, held)
