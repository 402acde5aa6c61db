"""Stores the rows of all users, and caches the registries of the users seen last.

Cache invalidation: every change adds a row with a random name under `version/`, and a registry remembers the set of
version rows that existed when it was read. Listing these few keys therefore tells whether the cached registry is still
valid; a change of our own adds its row to both sets. A single row with the newest version would not do: two writers who
both read the old version would each overwrite it with its own, and the one that wrote last would never notice the
other's change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar
from uuid import uuid4

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import Step
from langchain_memkit.base import Now
from langchain_memkit.memories.entity.registry import EntityRegistry, Limits
from langchain_memkit.memories.entity.rows import DescriptionRow, EntityKeys, EntityRow, FactRow, ResolutionRule, row_of
from langchain_memkit.memories.rebuildable import write_row
from langchain_memkit.stores import in_memory

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")

USERS = 64  # registries kept in memory; the least recently used goes first
VERSIONS = 32  # version rows of a user: from here on the next change deletes the older ones
BATCH = 1000  # keys per read
MANY = 1000  # facts; a larger registry is searched and changed in a thread


class EntityCache:
    """Cache of registries over a store, shared by threads and by all memories of a factory."""

    def __init__(
        self, store: in_memory.DictStore, vocabulary: Mapping[str, str], limits: Limits, now: Now, *, read_only: bool
    ) -> None:
        self.store = store
        self.vocabulary = vocabulary
        self.limits = limits
        self.now = now
        self.read_only = read_only
        self.checks_writes = hasattr(store, "mset_if_exists")
        self._books = LRUCache[str, EntityRegistry](USERS)
        # Held for work on a registry, never while waiting for the store. A forked child finds the lock open and the
        # cache empty: the thread that held the lock, and might have half changed a registry, is not there.
        self.lock = ForkSafeLock(self._books.clear)

    # -- the store, in both call styles

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete keys, each once."""
        if names := list(dict.fromkeys(keys)):
            await in_memory.delete_keys(self.store, names)

    def held(self, work: Callable[[], T], *, long: bool = False) -> Step[T]:
        """Call `work` under the lock; on an event loop in a thread if it is `long`.

        A lock that is taken is waited for in a thread as well, since its holder may be reading a long text.
        """

        def sync() -> T:
            with self.lock:
                return work()

        async def asynchronous() -> T:
            # Usually the lock is free: a thread is used only if it is not.
            if long or not self.lock.enter_now():
                return await asyncio.to_thread(sync)
            try:
                return work()
            finally:
                self.lock.__exit__(None, None, None)

        return Step(sync, asynchronous)

    # -- reading

    async def read(self, user_id: str) -> EntityRegistry:
        """Return the current registry of a user: the cached one if no version row was added since, else read again.

        Facts and rules never change under their key, so a stale registry fetches only rows with keys that it does not
        know.
        """
        keys = EntityKeys(user_id)
        versions = frozenset(await in_memory.list_keys(self.store, keys.versions))
        book = await self.held(lambda: self._books.get(user_id))
        if book is not None and book.versions == versions:
            return book
        stale = book or EntityRegistry(keys, self.vocabulary)
        listed = await in_memory.list_keys(self.store, keys.prefix)
        # List the generations again, after the facts. A generation is stored before its facts, so each fact listed
        # above either has its generation in this second listing or is dead; with one listing a live fact could look
        # dead.
        generations = await in_memory.list_keys(self.store, keys.of("session", ""))
        parts = {key: keys.parts(key) for key in [*listed, *generations]}
        # A description is replaced under its key, and an unreadable row may be repaired under it: these are read again.
        known: dict[str, EntityRow] = await self.held(lambda: {**stale.facts, **stale.rules})
        rows = {key: known.get(key) for key in listed if parts[key][0] in ("description", "fact", "rule")}
        missing = [key for key, row in rows.items() if row is None]
        unreadable: set[str] = set()
        for i in range(0, len(missing), BATCH):
            batch = missing[i : i + BATCH]
            for key, value in zip(batch, await in_memory.read_values(self.store, batch), strict=True):
                rows[key] = None if value is None else row_of(parts[key][0], value)
                if value is not None and rows[key] is None:
                    unreadable.add(key)
        for key in sorted(unreadable - stale.unreadable):  # warn once
            logger.warning("an entity row of a user is unreadable and left as it is: key ...%.80r", key[-64:])

        def update() -> tuple[EntityRegistry, list[str]]:
            """Update the cached registry; return it, with the store keys of dead facts and stale descriptions."""
            book = self._books.get_or_put(user_id, stale)
            book.generations = {}
            for kind, *ids in parts.values():
                if kind == "session" and len(ids) == 2:
                    book.generations.setdefault(ids[0], set()).add(ids[1])
            facts: dict[str, FactRow] = {}
            dead: list[str] = []
            for key, (kind, *ids) in parts.items():
                if kind == "fact" and len(ids) == 3:
                    row = rows[key]
                    if ids[1] not in book.generations.get(ids[0], ()):
                        dead.append(key)
                    elif isinstance(row, FactRow) and row.session == ids[0]:
                        facts[key] = row
            # The versions are those listed before the rows: a change during the read leaves a difference, so the
            # next read repeats it.
            book.versions, book.unreadable = versions, unreadable
            book.remove([key for key in book.facts if key not in facts])
            for key, fact in facts.items():
                book.add(key, fact)
            book.change_rules({key: row for key, row in rows.items() if isinstance(row, ResolutionRule)})
            book.descriptions = {key: row for key, row in rows.items() if isinstance(row, DescriptionRow)}
            return book, dead + book.drop_descriptions()

        current, garbage = await self.held(update, long=True)
        if not self.read_only:
            await self.delete(garbage)
        return current

    def forget(self, user_id: str | None = None) -> None:
        """Drop a user's registry from the cache, or all of them, so that the next read loads it again."""
        with self.lock:
            if user_id is None:
                self._books.clear()
            else:
                self._books.pop(user_id)

    # -- writing

    async def new_generation(self, book: EntityRegistry, session_id: str, owner: str | None = None) -> str | None:
        """Draw a generation under which facts of a session are stored.

        Its row is stored before names are extracted from the messages. A clear that happens in the meantime thus finds
        and deletes it, and what is stored afterwards is dead. If two processes that save the session's first turn at
        once each draw one, both are live. With `owner`, a generation of the session, that one must exist: the result is
        None if it is gone, since the session was cleared.
        """
        drawn = uuid4().hex
        row: tuple[str, in_memory.StoredDict] = (book.keys.of("session", session_id, drawn), {})
        if owner is None:
            await in_memory.write_values(self.store, [row])
        elif not await in_memory.write_if_exists(self.store, book.keys.of("session", session_id, owner), [row], []):
            return None
        await self.held(lambda: book.generations.setdefault(session_id, set()).add(drawn))
        return drawn

    async def write(
        self, user_id: str, book: EntityRegistry, generation: str, added: Iterable[FactRow], removed: Iterable[str] = ()
    ) -> bool:
        """Add facts of a session and delete others, including the oldest of those over the limits.

        Returns:
            Whether the session existed until the end; if it was cleared in the meantime, nothing was added.
        """
        new = {book.keys.fact(generation, row): row for row in added}
        gone = list(removed)

        def plan() -> tuple[dict[str, FactRow], list[str], frozenset[str]]:
            """Apply the change to the registry; return rows to store, keys to delete and old version rows."""
            for key, row in new.items():
                book.add(key, row)
            book.remove(gone)
            surplus = set(book.surplus(self.limits, self.now()))
            book.remove(surplus)
            rows = {key: row for key, row in new.items() if key not in surplus}
            return rows, [*gone, *sorted(surplus - new.keys()), *book.drop_descriptions()], _old_versions(book)

        rows, out, old = await self.held(plan, long=len(book.facts) + len(new) > MANY)
        # Nothing changes, so nothing is written: a version row would invalidate the caches of other processes.
        if not out and not rows:
            return True
        try:
            if not rows:
                await self.delete(out)
                await self.change(book, [])
                return True
            version = book.keys.version()
            owner = book.keys.of("session", next(iter(rows.values())).session, generation)
            pairs = [*((key, write_row(row)) for key, row in rows.items()), (version, {})]
            alive = await in_memory.write_if_exists(self.store, owner, pairs, [*out, *old])
        except BaseException:  # also if cancelled: the registry holds rows that may not be stored, so read it again
            self.forget(user_id)
            raise
        if alive:
            await self.held(lambda: _bring_in_line(book, version, old, rows, out))
        else:
            self.forget(user_id)
        return alive

    async def change(self, book: EntityRegistry, pairs: Sequence[tuple[str, in_memory.StoredDict]]) -> None:
        """Store pairs together with a new version row, so that every registry of the user is read again."""
        await in_memory.write_values(self.store, [*pairs, (book.keys.version(), {})])
        await self.delete(await self.held(lambda: _old_versions(book)))


def _old_versions(book: EntityRegistry) -> frozenset[str]:
    """Return the version rows to delete with the next change: none, until there are too many."""
    return book.versions if len(book.versions) >= VERSIONS else frozenset()


def _bring_in_line(
    book: EntityRegistry, version: str, old: frozenset[str], rows: Mapping[str, FactRow], removed: Iterable[str]
) -> None:
    """Add the version of a stored change to the registry, and its rows once more: a read in between dropped them."""
    # A read that ran meanwhile may have found the session cleared. Its facts are dead then and must not enter the
    # cache.
    if all(key.split("/")[-2] in book.generations.get(rows[key].session, ()) for key in rows):
        for key, row in rows.items():
            book.add(key, row)
        book.remove(removed)
        # This change deletes the rows `old`. If the registry no longer has them all, a read that ran meanwhile has
        # replaced its versions, and it is unknown which changes it holds: the empty set makes the next read start over.
        book.versions = (book.versions - old) | {version} if old <= book.versions else frozenset()
