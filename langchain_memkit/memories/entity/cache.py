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
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from langchain_core.stores import BaseStore

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit.base import Now
from langchain_memkit.memories.entity.registry import EntityRegistry, Limits
from langchain_memkit.memories.entity.rows import EntityKeys, FactRow, ResolutionRule, read_row

__all__ = ["EntityCache"]

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")

USERS = 64  # registries kept in memory; the least recently used goes first
VERSIONS = 32  # version rows of a user: from here on the next change deletes the older ones
BATCH = 1000  # keys per read


class EntityCache:
    """Cache of registries over a store, shared by threads and by all memories of a factory.

    Args:
        store: Any key-value store.
        vocabulary: Names that the app gave, with their types.
        limits: How many facts are kept.
        now: Returns the current time.
        read_only: Write nothing, and delete no dead rows.
    """

    def __init__(
        self,
        store: BaseStore[str, dict[str, Any]],
        vocabulary: Mapping[str, str],
        limits: Limits,
        now: Now,
        *,
        read_only: bool,
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

    def stored(self, prefix: str) -> Step[list[str]]:
        """Return the keys under a prefix, sorted."""

        async def collect() -> list[str]:
            return sorted([key async for key in self.store.ayield_keys(prefix=prefix)])

        return Step(lambda: sorted(self.store.yield_keys(prefix=prefix)), collect)

    def fetch(self, keys: Sequence[str]) -> Step[list[dict[str, Any] | None]]:
        """Read the values of keys; None for each that is not there."""
        return Step(lambda: self.store.mget(keys), lambda: self.store.amget(keys))

    def put(self, pairs: Sequence[tuple[str, dict[str, Any]]]) -> Step[None]:
        """Store pairs of key and value, in this order."""
        return Step(lambda: self.store.mset(pairs), lambda: self.store.amset(pairs))

    async def put_if_exists(self, key: str, pairs: Sequence[tuple[str, dict[str, Any]]], gone: Sequence[str]) -> bool:
        """Store pairs and delete the keys `gone`, if there is a value under `key` throughout; return whether there was.

        A store with `mset_if_exists` does this atomically. With any other store the pairs are written first, then `key`
        is looked up, and the pairs are deleted again if it is gone.
        """
        store: Any = self.store
        if self.checks_writes:
            write = store.mset_if_exists, store.amset_if_exists
            return bool(await Step(*(partial(verb, key, pairs, gone) for verb in write)))
        # Write before looking: a clear that deletes `key` after the look finds the pairs in the store and deletes them
        # too.
        await self.put(pairs)
        exists = (await self.fetch([key]))[0] is not None
        await self.delete(gone if exists else [name for name, _ in pairs])
        return exists

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete keys, each once."""
        if names := list(dict.fromkeys(keys)):
            await Step(lambda: self.store.mdelete(names), lambda: self.store.amdelete(names))

    def held(self, work: Callable[[], T]) -> Step[T]:
        """Call `work` under the lock.

        On an event loop a lock that is taken is waited for in a thread, since its holder may be reading a long text.
        """

        def sync() -> T:
            with self.lock:
                return work()

        async def asynchronous() -> T:
            # Usually the lock is free: a thread is used only if it is not.
            if not self.lock.enter_now():
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
        versions = frozenset(await self.stored(keys.versions))
        book: EntityRegistry | None
        book, current = await self.held(lambda: self._book(user_id, versions))
        if book is not None and current:
            return book
        listed = await self.stored(keys.prefix)
        # List the generations again, after the facts. A generation is stored before its facts, so each fact listed
        # above either has its generation in this second listing or is dead; with one listing a live fact could look
        # dead.
        sessions = await self.stored(f"{keys.prefix}session/")
        parts = {key: keys.parts(key) for key in [*listed, *sessions]}
        stored = [key for key in listed if parts[key][0] in ("description", "fact", "rule")]
        known: dict[str, Any] = {} if book is None else await self.held(lambda: _known(book))
        missing = [key for key in stored if key not in known]
        # Rows that are known are not read again: after a turn of another process only its new rows are fetched.
        rows = {key: known[key] for key in stored if key in known}
        unreadable: set[str] = set()
        for i in range(0, len(missing), BATCH):
            values = await self.fetch(missing[i : i + BATCH])
            for key, value in zip(missing[i : i + BATCH], values, strict=True):
                rows[key] = read_row(parts[key][0], value) if value is not None else None
                if value is None or rows[key] is not None:
                    continue
                unreadable.add(key)
                if book is None or key not in book.unreadable:  # warn once
                    logger.warning("an entity row of a user is unreadable and left as it is: key ...%.80r", key[-64:])
        found: tuple[EntityRegistry, list[str]] = await cpu_bound(
            lambda: self._put(user_id, versions, parts, rows, unreadable)
        )
        if not self.read_only:
            await self.delete(found[1])
        return found[0]

    def _book(self, user_id: str, versions: frozenset[str]) -> tuple[EntityRegistry | None, bool]:
        """Return the cached registry of a user, if any, and whether it has these versions."""
        book = self._books.get(user_id)
        return book, book is not None and book.versions == versions

    def _put(
        self,
        user_id: str,
        versions: frozenset[str],
        parts: Mapping[str, Sequence[str]],
        rows: Mapping[str, Any],
        unreadable: set[str],
    ) -> tuple[EntityRegistry, list[str]]:
        """Update the cached registry with what was read.

        Returns:
            The registry, and the store keys of dead facts and stale descriptions, which can be deleted.
        """
        with self.lock:
            book = self._books.get(user_id)
            if book is None:
                book = EntityRegistry(EntityKeys(user_id), self.vocabulary)
                self._books.put(user_id, book)
            generations: dict[str, set[str]] = {}
            for part in parts.values():
                if part[0] == "session" and len(part) == 3:
                    generations.setdefault(part[1], set()).add(part[2])
            facts, dead = _sorted_out(parts, rows, generations)
            # The versions are those listed before the rows: a change during the read leaves a difference, so the next
            # read repeats it.
            book.generations, book.versions, book.unreadable = generations, versions, unreadable
            book.remove([key for key in book.facts if key not in facts])
            for key, row in facts.items():
                book.add(key, row)
            book.change_rules({key: row for key, row in rows.items() if isinstance(row, ResolutionRule)})
            book.descriptions = {k: row for k, row in rows.items() if parts[k][0] == "description" and row is not None}
            return book, dead + book.drop_descriptions()

    def forget(self, user_id: str) -> None:
        """Drop a user's registry from the cache, so that the next read loads it again."""
        with self.lock:
            self._books.pop(user_id)

    def forget_all(self) -> None:
        """Empty the cache."""
        with self.lock:
            self._books.clear()

    # -- writing

    async def generation(self, book: EntityRegistry, session_id: str) -> str:
        """Return the generation under which facts of a session are stored; draw one at its first save.

        The generation row is stored before names are extracted from the messages. A clear that happens in the meantime
        thus finds and deletes it, and what is stored afterwards is dead.
        """
        # There may be several, if two processes saved the session's first turn at once: all of them are live, any will
        # do.
        known = await self.held(lambda: min(book.generations.get(session_id, ()), default=None))
        if known is not None:
            return str(known)
        drawn = uuid4().hex
        await self.put([(book.keys.generation(session_id, drawn), {})])
        await self.held(lambda: book.generations.setdefault(session_id, set()).add(drawn))
        return drawn

    async def next_generation(self, book: EntityRegistry, session_id: str, generation: str) -> str | None:
        """Draw a further generation of a session; None if `generation` is gone, since the session was cleared."""
        drawn, keys = uuid4().hex, book.keys
        row = (keys.generation(session_id, drawn), dict[str, Any]())
        if not await self.put_if_exists(keys.generation(session_id, generation), [row], []):
            return None
        await self.held(lambda: book.generations.setdefault(session_id, set()).add(drawn))
        return drawn

    async def write(
        self,
        user_id: str,
        book: EntityRegistry,
        place: tuple[str, str],
        added: Iterable[FactRow],
        removed: Iterable[str] = (),
    ) -> bool:
        """Add facts of a session and delete others, including the oldest of those over the limits.

        Args:
            user_id: Whose facts.
            book: The user's registry.
            place: Session and generation.
            added: New facts.
            removed: Store keys of facts to delete.

        Returns:
            Whether the session existed until the end; if it was cleared in the meantime, nothing was added.
        """
        pairs = {book.keys.fact(*place, row): row for row in added}
        gone = list(removed)

        def plan() -> tuple[list[str], dict[str, FactRow], frozenset[str]]:
            """Apply the change to the registry; return keys to delete, rows to store and old version rows.

            The new rows stay in the registry; `_bring_in_line` adds them again once stored, in case a read in between
            dropped them.
            """
            with self.lock:
                for key, row in pairs.items():
                    book.add(key, row)
                book.remove(gone)
                surplus = set(book.surplus(self.limits, self.now()))
                mine = {key: row for key, row in pairs.items() if key not in surplus}
                out = sorted(surplus - pairs.keys())
                book.remove(surplus)
                return gone + out + book.drop_descriptions(), mine, _old_versions(book)

        out, rows, old = await cpu_bound(plan)
        # Nothing changes, so nothing is written: a version row would invalidate the caches of other processes.
        if not out and not rows:
            return True
        version = book.keys.version()
        pairs_of_rows = [(key, row.to_dict()) for key, row in rows.items()]
        try:
            if rows:
                owner = book.keys.generation(*place)
                alive = await self.put_if_exists(owner, [*pairs_of_rows, (version, {})], [*out, *old])
                if alive:
                    await self.held(lambda: _bring_in_line(book, version, old, rows, out))
            else:
                await self.delete(out)
                await self.change(book, [], {}, out)
                alive = True
        except BaseException:  # also if cancelled: the registry holds rows that may not be stored, so read it again
            self.forget(user_id)
            raise
        if not alive:
            self.forget(user_id)
            await self._unversion(user_id)
        return alive

    async def change(
        self,
        book: EntityRegistry,
        pairs: Sequence[tuple[str, dict[str, Any]]],
        rows: Mapping[str, FactRow] | None = None,
        removed: Iterable[str] = (),
    ) -> None:
        """Store pairs together with a new version row.

        Args:
            book: The user's registry.
            pairs: Keys and values.
            rows: Facts that were stored: the registry is updated with them and stays valid. None: it is read again
                later.
            removed: Store keys of facts that were deleted.
        """
        version = book.keys.version()
        await self.put([*pairs, (version, {})])
        old = await self.held(lambda: _old_versions(book))
        if rows is not None:
            await self.held(lambda: _bring_in_line(book, version, old, rows, removed))
        await self.delete(old)

    async def _unversion(self, user_id: str) -> None:
        """Delete the version rows of a user who has no other rows, so that nothing is left after a concurrent purge."""
        keys = EntityKeys(user_id)
        left = await self.stored(keys.prefix)
        if all(keys.parts(key)[0] == "version" for key in left):
            await self.delete(left)


def _old_versions(book: EntityRegistry) -> frozenset[str]:
    """Return the version rows to delete with the next change: none, until there are too many."""
    return book.versions if len(book.versions) >= VERSIONS else frozenset()


def _bring_in_line(
    book: EntityRegistry, version: str, old: frozenset[str], rows: Mapping[str, FactRow], removed: Iterable[str]
) -> None:
    """Apply a stored change to the registry and add its version, unless the registry has since learned of a clear."""
    # A read that ran meanwhile may have found the session cleared. Its facts are dead then and must not enter the
    # cache.
    if all(key.split("/")[-2] in book.generations.get(rows[key].session, ()) for key in rows):
        for key, row in rows.items():
            book.add(key, row)
        book.remove(removed)
        # This change deletes the rows `old`. If the registry no longer has them all, a read that ran meanwhile has
        # replaced its versions, and it is unknown which changes it holds: the empty set makes the next read start over.
        book.versions = (book.versions - old) | {version} if old <= book.versions else frozenset()


def _known(book: EntityRegistry) -> dict[str, Any]:
    """Return the rows that need not be read again: facts and rules never change under their key.

    A description is replaced under its key, and an unreadable row may be repaired under it.
    """
    return {**book.facts, **book.rules}


def _sorted_out(
    parts: Mapping[str, Sequence[str]], rows: Mapping[str, Any], generations: Mapping[str, set[str]]
) -> tuple[dict[str, FactRow], list[str]]:
    """Return the live facts by store key, and the store keys of dead facts, whose generation is gone."""
    facts: dict[str, FactRow] = {}
    dead: list[str] = []
    for key, part in parts.items():
        if part[0] != "fact" or len(part) != 4:
            continue
        if part[2] not in generations.get(part[1], ()):
            dead.append(key)
        elif (row := rows.get(key)) is not None and row.session == part[1]:
            facts[key] = row
    return facts, dead
