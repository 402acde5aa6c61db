"""The users' books: read when something changed, and written without overwriting anyone.

Under `version/` stands one row for each of the last changes, named by chance. A book was read when the same rows stood
there, so one look at these few keys tells whether it is still true; a change of our own adds its row to both. (One row
with the newest change would not do: of two writers who both read the old one, each would take its own for the only
one.)
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from langchain_core.stores import BaseStore

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit.base import Now
from langchain_memkit.memories.entity.book import Book, Limits
from langchain_memkit.memories.entity.rows import FactRow, Keys, Rule, read_row

__all__ = ["Shelf"]

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")

USERS = 64
VERSIONS = 32  # rows: more are removed by the next change
BATCH = 1000


class Shelf:
    """Books of the last users, shared by all memories of a factory and by threads.

    Args:
        store: Any key-value store.
        vocabulary: Names that the app gave, with their kinds.
        limits: How much is kept.
        now: A clock.
        read_only: Nothing is written, and nothing tidied up.
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
        self._books: OrderedDict[str, Book] = OrderedDict()
        self.lock = ForkSafeLock(self._books.clear)  # held for work on a book, never while waiting for the store

    # -- the store, in both call styles

    def stored(self, prefix: str) -> Step[list[str]]:
        """Keys under a prefix, sorted."""

        async def collect() -> list[str]:
            return sorted([key async for key in self.store.ayield_keys(prefix=prefix)])

        return Step(lambda: sorted(self.store.yield_keys(prefix=prefix)), collect)

    def fetch(self, keys: Sequence[str]) -> Step[list[dict[str, Any] | None]]:
        """Values of keys."""
        return Step(lambda: self.store.mget(keys), lambda: self.store.amget(keys))

    def put(self, pairs: Sequence[tuple[str, dict[str, Any]]]) -> Step[None]:
        """Stores pairs, in this order."""
        return Step(lambda: self.store.mset(pairs), lambda: self.store.amset(pairs))

    async def put_if_exists(self, key: str, pairs: Sequence[tuple[str, dict[str, Any]]], gone: Sequence[str]) -> bool:
        """Stores pairs and removes keys, if there is something under `key` from begin to end: whether there was."""
        store: Any = self.store
        if self.checks_writes:
            write = store.mset_if_exists, store.amset_if_exists
            return bool(await Step(*(partial(verb, key, pairs, gone) for verb in write)))
        await self.put(pairs)
        exists = (await self.fetch([key]))[0] is not None
        await self.delete(gone if exists else [name for name, _ in pairs])
        return exists

    async def delete(self, keys: Iterable[str]) -> None:
        """Removes keys."""
        if names := list(dict.fromkeys(keys)):
            await Step(lambda: self.store.mdelete(names), lambda: self.store.amdelete(names))

    def held(self, work: Callable[[], T]) -> Step[T]:
        """Work on books, under the lock. Who holds it may be reading a long text: an event loop waits in a thread."""

        def sync() -> T:
            with self.lock:
                return work()

        async def asynchronous() -> T:
            if not self.lock.enter_now():
                return await asyncio.to_thread(sync)
            try:
                return work()
            finally:
                self.lock.__exit__(None, None, None)

        return Step(sync, asynchronous)

    # -- reading

    async def read(self, user_id: str) -> Book:
        """The book of a user as it is now."""
        keys = Keys(user_id)
        versions = frozenset(await self.stored(keys.versions))
        book: Book | None
        book, current = await self.held(lambda: self._book(user_id, versions))
        if book is not None and current:
            return book
        listed = await self.stored(keys.prefix)
        # once more: a generation is stored before its facts, so a fact that was listed before them has one or is dead
        sessions = await self.stored(f"{keys.prefix}session/")
        parts = {key: keys.parts(key) for key in [*listed, *sessions]}
        stored = [key for key in listed if parts[key][0] in ("description", "fact", "rule")]
        known: dict[str, Any] = {} if book is None else await self.held(lambda: _known(book))
        missing = [key for key in stored if key not in known]
        rows = {key: known[key] for key in stored if key in known}
        unreadable: set[str] = set(book.unreadable) if book is not None else set()
        for i in range(0, len(missing), BATCH):
            values = await self.fetch(missing[i : i + BATCH])
            for key, value in zip(missing[i : i + BATCH], values, strict=True):
                rows[key] = read_row(parts[key][0], value) if value is not None else None
                if value is not None and rows[key] is None and key not in unreadable:
                    unreadable.add(key)
                    logger.warning("an entity row of a user is unreadable and left as it is: key ...%.80r", key[-64:])
        found: tuple[Book, list[str]] = await cpu_bound(lambda: self._put(user_id, versions, parts, rows, unreadable))
        if not self.read_only:
            await self.delete(found[1])
        return found[0]

    def _book(self, user_id: str, versions: frozenset[str]) -> tuple[Book | None, bool]:
        """The book that was read last, and whether it is as the store is."""
        book = self._books.get(user_id)
        if book is None:
            return None, False
        self._books.move_to_end(user_id)
        return book, book.versions == versions

    def _put(
        self,
        user_id: str,
        versions: frozenset[str],
        parts: Mapping[str, Sequence[str]],
        rows: Mapping[str, Any],
        unreadable: set[str],
    ) -> tuple[Book, list[str]]:
        """Brings the book in line with what was read; returns it with what can never be shown again."""
        with self.lock:
            book = self._books.get(user_id)
            if book is None:
                book = self._books[user_id] = Book(Keys(user_id), self.vocabulary)
                while len(self._books) > USERS:
                    self._books.popitem(last=False)
            generations: dict[str, set[str]] = {}
            for part in parts.values():
                if part[0] == "session" and len(part) == 3:
                    generations.setdefault(part[1], set()).add(part[2])
            facts, dead = _sorted_out(parts, rows, generations)
            book.generations, book.versions, book.unreadable = generations, versions, unreadable
            book.remove([key for key in book.facts if key not in facts])
            for key, row in facts.items():
                book.add(key, row)
            book.change_rules({key: row for key, row in rows.items() if isinstance(row, Rule)})
            book.descriptions = {k: row for k, row in rows.items() if parts[k][0] == "description" and row is not None}
            return book, dead + book.drop_descriptions()

    def forget(self, user_id: str) -> None:
        """Drops a book, so that it is read anew."""
        with self.lock:
            self._books.pop(user_id, None)

    def forget_all(self) -> None:
        """Drops every book."""
        with self.lock:
            self._books.clear()

    # -- writing

    async def generation(self, book: Book, session_id: str) -> str:
        """The generation that facts of a session are stored under; the first save draws one.

        It is stored by itself before anything is read from the messages, so that a clear which happens meanwhile finds
        it, and what is stored afterwards is dead.
        """
        known = await self.held(lambda: min(book.generations.get(session_id, ()), default=None))
        if known is not None:
            return str(known)
        drawn = uuid4().hex
        await self.put([(book.keys.generation(session_id, drawn), {})])
        await self.held(lambda: book.generations.setdefault(session_id, set()).add(drawn))
        return drawn

    async def write(
        self, user_id: str, book: Book, place: tuple[str, str], added: Iterable[FactRow], removed: Iterable[str] = ()
    ) -> bool:
        """Adds facts of a session and removes others, with the oldest of what is too many.

        Args:
            user_id: Whose.
            book: As it was read.
            place: Session and generation.
            added: New facts.
            removed: Keys of facts that go.

        Returns:
            Whether the session was there until the end; if it was cleared meanwhile, nothing was added.
        """
        pairs = {book.keys.fact(*place, row): row for row in added}
        gone = list(removed)

        def plan() -> tuple[list[str], dict[str, FactRow], frozenset[str]]:
            """The rows stand in the book while it is seen what is too much; they are put there again once stored."""
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
        except BaseException:  # the book holds what may not be stored
            self.forget(user_id)
            raise
        if not alive:
            self.forget(user_id)
            await self._unversion(user_id)
        return alive

    async def change(
        self,
        book: Book,
        pairs: Sequence[tuple[str, dict[str, Any]]],
        rows: Mapping[str, FactRow] | None = None,
        removed: Iterable[str] = (),
    ) -> None:
        """Stores pairs, and that something changed; with `rows`, the book is brought in line, else read anew later."""
        version = book.keys.version()
        await self.put([*pairs, (version, {})])
        old = await self.held(lambda: _old_versions(book))
        if rows is not None:
            await self.held(lambda: _bring_in_line(book, version, old, rows, removed))
        await self.delete(old)

    async def _unversion(self, user_id: str) -> None:
        """After a purge that came in between not even the sign of a change stays."""
        keys = Keys(user_id)
        left = await self.stored(keys.prefix)
        if all(keys.parts(key)[0] == "version" for key in left):
            await self.delete(left)


def _old_versions(book: Book) -> frozenset[str]:
    """The signs of changes that go with the next one."""
    return book.versions if len(book.versions) >= VERSIONS else frozenset()


def _bring_in_line(
    book: Book, version: str, old: frozenset[str], rows: Mapping[str, FactRow], removed: Iterable[str]
) -> None:
    """Makes a change in the book that is stored under a version, unless the book has learnt of a clear meanwhile."""
    if all(key.split("/")[-2] in book.generations.get(rows[key].session, ()) for key in rows):
        for key, row in rows.items():
            book.add(key, row)
        book.remove(removed)
        # of a change that went with this one the book may know no more, after a read that began before it: read anew
        book.versions = (book.versions - old) | {version} if old <= book.versions else frozenset()


def _known(book: Book) -> dict[str, Any]:
    return {**book.facts, **book.rules, **book.descriptions, **dict.fromkeys(book.unreadable)}


def _sorted_out(
    parts: Mapping[str, Sequence[str]], rows: Mapping[str, Any], generations: Mapping[str, set[str]]
) -> tuple[dict[str, FactRow], list[str]]:
    """Live facts, and keys of facts whose session was cleared."""
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
