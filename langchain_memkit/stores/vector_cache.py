"""A cache of the last users' records in process, revalidated against the store at each use.

One query returns a user's version (numbers that every write changes, whoever writes), the session in which the user
talks, and the records added since the last query. If the version is unchanged, or these records explain the change, the
cache is current. Otherwise all stamps are listed and the missing rows fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import AsStep, cpu_bound
from langchain_memkit.base import Now
from langchain_memkit.errors import logger
from langchain_memkit.ranking.index import Index, IndexRecord, StoredSession, digest_of
from langchain_memkit.stores import vector_rows
from langchain_memkit.stores.vector_rows import CachedText, Mark, NewRecord, ReadUpTo, UserChanges, WriteResult

BATCH = 1000  # rows fetched at once
MANY = 1000  # digests of removed texts that may be kept
TEXT_BYTES = 2000  # overhead of a cached record, besides its text
COPIES = 4  # of the text, once it was shown
GROWTH = 1.2  # times its size at the last estimate: then the size of an index is estimated again


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

    def add(self, records: Sequence[vector_rows.CachedRecord]) -> None:
        """Add records, replacing those with the same ids."""
        with self.index.lock:
            self.changes += len(records)
            for entry, vector, text, digest in records:
                self.index.add(entry, vector)
                self.texts[entry.id] = text
                self.digests[digest] = entry.id
                if entry.expires_at is not None and (self.next_expiry is None or entry.expires_at < self.next_expiry):
                    self.next_expiry = entry.expires_at

    def vector_of(self, digest: str) -> vector_rows.Vector | None:
        """Return the vector of a text; None if no record that is held has this text."""
        name = self.digests.get(digest, "")
        document = self.texts[name].document(name) if name in self.texts else None
        # the record may have got another text under the same id since: a round whose answer came later
        return self.index.vector_of(name) if document and digest_of(document.page_content) == digest else None

    def settle(self, mark: Mark | None, gone: Collection[int], changes: int) -> None:
        """Remove what is no longer stored, and record the version that was read before the rows were.

        `changes`: the number of changes if nobody else has changed the cache meanwhile.
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
            self._estimate()

    def since(self) -> ReadUpTo | None:
        """Return the cached state to ask the store for news with; None if all stamps have to be listed."""
        with self.index.lock:
            return None if self.mark is None else ReadUpTo(self.mark, self.stamp, tuple(self.own))

    def catch_up(self, since: ReadUpTo, news: UserChanges, source: vector_rows.VectorBackend) -> bool:
        """Apply the news, asked with `since`; False if they do not explain the new version: list all stamps then."""
        with self.index.lock:
            # Another thread has updated the cache since the question was asked: these news are current only if it
            # arrived at the same version.
            if self.mark != since.mark:
                return self.mark == news.mark
            if self.mark != news.mark:
                found, damaged = vector_rows.records_of(news.cells, self.index.dims)
                replaced = [old.stamp for record in found if (old := self.index.get(record.entry.id)) is not None]
                # Versions are sums: if adding exactly these records (in place of the old ones with their ids) leads
                # from the cached version to the store's, nothing else has changed. Any other deletion or replacement
                # leaves a difference.
                moved = source.change(news.cells, replaced)
                if news.mark != tuple(old + new for old, new in zip(since.mark, moved, strict=True)):
                    return False
                self.add(found)
                self.left_out |= damaged
                self.mark = news.mark
                self.own += [row.stamp for row in news.cells]
            # The news hold everything up to this version, so the process's own writes need not be excluded next time.
            self.stamp, self.own = max([self.stamp, *self.own]), []
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
        records = [row.stamped(stamp) for row, stamp in zip(rows, written.stamps, strict=True)]
        with self.index.lock:
            self.add(records)
            self.own += written.stamps
            self.changes += 1
            self._remove(removed)
            # Add the write's own change instead of reading the store's version: if others wrote in between, the
            # cached version then differs from the store's by exactly their changes, and the next read finds those.
            if self.mark is not None:
                self.mark = tuple(old + new for old, new in zip(self.mark, written.change, strict=True))
            self._estimate()

    def expire(self, now: datetime) -> None:
        """Drop records that have expired."""
        if self.next_expiry is None or now < self.next_expiry:
            return
        with self.index.lock:
            dated = [(entry.expires_at, entry) for entry in self.index.entries if entry.expires_at is not None]
            gone = [entry for at, entry in dated if at <= now]
            self._remove([entry.id for entry in gone])
            self.left_out.update(entry.stamp for entry in gone)
            self.next_expiry = min((at for at, _ in dated if at > now), default=None)

    def _estimate(self) -> None:
        """Estimate the size in bytes again, if the number of records has changed much."""
        if not self._estimated * 0.5 <= len(self.index) <= self._estimated * GROWTH:
            self._estimated = len(self.index)
            shown = sum(TEXT_BYTES + COPIES * len(str(each.text)) for each in self.texts.values())
            self.nbytes = self.index.nbytes + 64 * len(self.left_out) + shown


class ReadSession(NamedTuple):
    """A snapshot of a session at the start of a turn: the cached user, the session, and its last record."""

    held: CachedUser
    session: vector_rows.SessionState
    last: IndexRecord | None

    def begun(self, digests: Collection[str], ids: Collection[str]) -> StoredSession | None:
        """Build the answer of `begin` from the cache, without I/O; None if it no longer holds enough for it."""
        held, (generation, state), last = self
        with held.index.lock:
            known = [name for name in ids if name in held.index]
            wanted = known if last is None else [*known, last.id]
            # Another thread has removed a record meanwhile: the store has to be asked.
            if any(name not in held.texts for name in wanted):
                return None
            vectors = {digest: vector for digest in digests if (vector := held.vector_of(digest)) is not None}
            shown = {name: held.texts[name].document(name) for name in wanted}
        records = {name: document for name in known if (document := shown[name]) is not None}
        if last is None:
            return StoredSession(generation, None, vectors, records, 0, state or 0)
        state = last.stamp if state is None else state
        return StoredSession(generation, shown[last.id], vectors, records, last.position, state)


class VectorIndexCache:
    """A least-recently-used cache of users' records, limited in bytes; the last user stays cached, however large."""

    def __init__(self, source: vector_rows.VectorBackend, step: AsStep, cache_bytes: int, now: Now) -> None:
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
        if held is None or since is None or not held.catch_up(since, news, source):
            held = held or CachedUser()
            # The version was read before the stamps. A write in between is then in the list but not in the version,
            # so the next read merely checks again; the other way round it would be missed for good.
            changes, known = held.changes, held.known()
            listed: list[int] = await self._step(lambda: source.stamps(user_id))
            missing = [stamp for stamp in listed if stamp not in known]
            for i in range(0, len(missing), BATCH):
                changes += await self._fetch(held, user_id, missing[i : i + BATCH])
            await cpu_bound(lambda: held.settle(news.mark, known.difference(listed), changes))
            self._keep(user_id, held)
        held.expire(self._now())
        if news.session is None or session_id is None:
            return held.index, None
        with held.index.lock:
            last = held.index.last(session_id)
        return held.index, ReadSession(held, news.session, last) if last is None or last.id in held.texts else None

    async def _fetch(self, held: CachedUser, user_id: str, stamps: Sequence[int]) -> int:
        """Read records into the cache and return how many were added."""
        rows: list[vector_rows.IndexRow] = await self._step(lambda: self._source.cells(user_id, stamps))

        def take() -> int:
            found, damaged = vector_rows.records_of(rows, held.index.dims)
            held.add(found)
            held.left_out |= damaged
            if damaged:
                logger.warning("%d records of a user are unreadable and left as they are", len(damaged))
            return len(found)

        return await cpu_bound(take)

    def _find(self, user_id: str) -> CachedUser | None:
        with self._lock:
            return self._users.get(user_id)

    def _keep(self, user_id: str, held: CachedUser) -> None:
        """Cache a user's records, then evict the least recently used users above the limit; this one stays."""
        with self._lock:
            self._users.put(user_id, held)

    def texts(self, user_id: str) -> Mapping[str, CachedText]:
        """Return the cached texts of a user by id."""
        held = self._find(user_id)
        return {} if held is None else held.texts

    def wrote(self, user_id: str, rows: Sequence[NewRecord], removed: Collection[str], written: WriteResult) -> None:
        """Apply this process's own write to the cached user, so that it need not be read back."""
        if (held := self._find(user_id)) is not None:
            held.wrote(rows, removed, written)
            self._keep(user_id, held)

    def miss(self, user_id: str, ids: Collection[str]) -> None:
        """Invalidate the cached version if one of these ids is cached: its record was deleted by hand, past memkit."""
        if (held := self._find(user_id)) is not None and any(name in held.index for name in ids):
            held.mark = None

    def forget(self, user_id: str) -> None:
        """Drop a user from the cache."""
        with self._lock:
            self._users.pop(user_id)

    def clear(self) -> None:
        """Empty the cache."""
        with self._lock:
            self._users.clear()
