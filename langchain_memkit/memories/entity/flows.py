"""What the verbs of an entity memory do, written once for both call styles."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from langchain_core.messages import BaseMessage

from langchain_memkit._sync import cpu_bound
from langchain_memkit.base import SessionInfo
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.matching.names import display_form, name_key
from langchain_memkit.memories.derived import DerivedMemory, check_writable
from langchain_memkit.memories.entity.book import Book
from langchain_memkit.memories.entity.core import Core
from langchain_memkit.memories.entity.listing import EntityList
from langchain_memkit.memories.entity.mentions import Source, Spot, clean, facts_of, find_names, sources_of
from langchain_memkit.memories.entity.portraits import list_entities
from langchain_memkit.memories.entity.recall import candidates, choose, compose
from langchain_memkit.memories.entity.rows import FactRow, Keys, Rule
from langchain_memkit.messages.limits import QUESTION, beginning, few_words

__all__ = ["EntityFlows", "list_sessions", "purge"]

logger = logging.getLogger("langchain_memkit")

ASKED = "a question to the entity memory"


class EntityFlows(DerivedMemory):
    """The flows of `EntityMemory`."""

    _core: Core
    _seen: frozenset[str] = frozenset()
    _loaded: tuple[datetime, Book] | None = None  # when the turn under way began, and the book as it was then

    def _bind(self, session_id: str, user_id: str | None) -> None:
        super()._bind(session_id, user_id)
        self._seen, self._loaded = frozenset(), None

    async def _read(self) -> Book:
        return await self._core.shelf.read(self._user)

    # -- a turn

    async def _prefetch(self) -> tuple[datetime, Book]:
        at = self._core.now()
        return at, await self._read()

    async def _load(self, query: str) -> list[BaseMessage]:
        core = self._core
        await core.style  # now, and not when a turn is answered and to be saved
        at: datetime
        book: Book
        at, book = self._take_fetched() or await self._prefetch()
        seen, expired = await core.shelf.held(
            lambda: (book.generations.get(self._session, ()), book.expired(core.now()))
        )
        self._seen = frozenset(seen)
        if expired and not core.read_only:
            await self._remove(book, expired, [])
            book = await self._read()
        self._loaded = at, book
        if not query.strip() or not book.facts:
            return []
        asked = few_words(beginning(str(query), QUESTION, ASKED), ASKED)
        mentions = (await core.extract([asked]))[0]

        def look() -> Any:
            with core.shelf.lock:
                return candidates(book, query, asked, mentions, self._session, core.now())

        topics = await cpu_bound(look)
        budget = core.max_tokens, core.counter
        chosen = await cpu_bound(lambda: choose(topics, *budget))
        gone = await core.gone(self._user, [row for topic, rows in chosen for row in (*rows, *topic.behind)])
        if gone:  # what is chosen in their place has to be looked up as well
            gone |= await core.gone(self._user, [row for topic in topics for row in (*topic.rows, *topic.behind)])
            for topic in topics:
                topic.leave_out(gone)
            chosen = await cpu_bound(lambda: choose(topics, *budget))
        return await cpu_bound(lambda: compose(chosen, *budget))

    async def _save(self, messages: Sequence[BaseMessage]) -> None:
        core, shelf = self._core, self._core.shelf
        epoch: int = getattr(messages, "epoch", 0)
        loaded, self._loaded = self._loaded, None
        # The time is taken before the book is read. Two that store one turn at once would otherwise date its facts by
        # the later of them, after those of turns which the other has had since.
        at, book = loaded or (core.now(), None)
        sources = sources_of(messages, at, epoch, getattr(messages, "expires_at", None))
        self.save_was_checked = True
        if core.read_only or not sources:
            return
        # a session that the load found is looked for in the write itself: nothing need be read before
        self.save_was_checked = shelf.checks_writes and book is not None and bool(self._seen)
        if book is None or not self.save_was_checked:
            book = await self._read()
        known = book
        alive = await shelf.held(lambda: self._seen & known.generations.get(self._session, set()))
        if self._seen and not alive:
            self._seen = frozenset()
            logger.warning("a turn was left out of the entity memory: its session was cleared after it began")
            return
        generation = min(alive) if alive else await shelf.generation(book, self._session)
        found = await core.extract([source.text for source in sources])
        rows, dead = await cpu_bound(lambda: self._facts(book, sources, found, epoch))
        stored = await shelf.write(self._user, book, (self._session, generation), rows, dead)
        if not stored:
            self._seen = frozenset()
            logger.warning("a turn was left out of the entity memory: its session was cleared meanwhile")
        elif core.describer is not None and rows:
            await core.describer.describe(book, [row.key for row in rows])

    def _facts(
        self, book: Book, sources: Sequence[Source], found: Sequence[Sequence[Spot]], epoch: int
    ) -> tuple[list[FactRow], list[str]]:
        """New facts, and keys of facts that belong to a conversation which was erased."""
        with self._core.shelf.lock:
            for source in sources:
                if source.speaker:
                    book.hear(source.speaker)
            rows: dict[str, FactRow] = {}
            for source, spots in zip(sources, found, strict=True):
                for row in facts_of(self._session, source, find_names(source.text, spots, book)):
                    if not book.holds(row):
                        rows.setdefault(book.keys.fact(self._session, "", row), row)
            dead = book.of_session(self._session) if epoch else []
            return list(rows.values()), [key for key in dead if book.facts[key].epoch not in (0, epoch)]

    async def _clear(self) -> None:
        if self._core.read_only:
            return
        shelf, keys = self._core.shelf, Keys(self._user)
        self._seen = frozenset()
        generations = await shelf.stored(keys.sessions(self._session))
        await shelf.delete(generations)  # first: what is stored from now on is dead
        facts = await shelf.stored(keys.facts(self._session))
        await shelf.delete(facts)
        if generations or facts:
            await shelf.change(Book(keys, {}), [])
            await self._read()  # descriptions that rest on these facts go

    # -- people look, and decide

    async def _entities(self) -> EntityList:
        core = self._core
        book = await self._read()
        with core.shelf.lock:
            rows = list(book.facts.values())
        gone = await core.gone(self._user, rows)

        def look() -> EntityList:
            with core.shelf.lock:
                return list_entities(book, core.shelf.limits, core.now(), gone)

        return await cpu_bound(look)

    async def _decide(self, kind: str, name: str, other: str) -> None:
        check_writable(self._core)
        shelf = self._core.shelf
        for text in (name, other):
            if not isinstance(text, str):
                msg = f"a name must be a str, not {type(text).__name__}"  # type: ignore[unreachable]  # callers without types
                raise TypeError(msg)
            if name_key(text, given=True) is None:
                msg = f"{text!r:.100} is no name"
                raise ConfigurationError(msg)
        book = await self._read()
        with shelf.lock:
            keys = [book.key_of(text) or str(name_key(text, given=True)) for text in (name, other)]
            known = [any(root in book.groups.parts for root in book.roots(key)) for key in keys]
            last = max(book.rules, default="")
        if not (known[0] or (kind != "rename" and known[1])):  # a slip of the pen, or an alias known beforehand
            logger.warning("%s: nobody is called %.100r so far; it counts for what is said from now on", kind, name)
        if kind == "split" and keys[0] == keys[1]:
            msg = f"{name!r:.100} and {other!r:.100} are one name, which cannot be split"
            raise ConfigurationError(msg)
        rule = Rule(kind, clean(display_form(name)), clean(display_form(other)), *keys)
        await shelf.change(book, [(book.keys.rule(self._core.now(), last), rule.to_dict())])
        book = await self._read()
        await shelf.write(self._user, book, ("", ""), [])  # two that became one may be too much

    async def _forget(self, name: str) -> int:
        check_writable(self._core)
        shelf = self._core.shelf
        book = await self._read()
        with shelf.lock:
            roots = book.roots(book.key_of(name) or "")
            roots = [root for root in roots[:1] if root in book.groups.parts] or roots
            facts = [key for root in roots for part in book.groups.parts.get(root, ()) for key in book.part(*part)]
            root_of = book.groups.root
            rules = [k for k, rule in book.rules.items() if {root_of[rule.key], root_of[rule.other_key]} & set(roots)]
        return await self._remove(book, facts, rules)

    async def _delete_messages(self, ids: Collection[str]) -> int:
        names = {clean(name) for name in ids}
        book = await self._read()
        with self._core.shelf.lock:
            facts = [key for key in book.of_session(self._session) if book.facts[key].message in names]
        return await self._remove(book, facts, [])

    async def _remove(self, book: Book, facts: Sequence[str], others: Sequence[str]) -> int:
        if facts or others:
            await self._core.shelf.delete([*facts, *others])
            await self._core.shelf.change(book, [])
            await self._read()  # descriptions that rest on these facts go
        return len(facts)


async def purge(core: Core, user_id: str) -> Mapping[str, int]:
    """Deletes all that is stored of a user; what saves under way still write is dead, and goes."""
    shelf, keys = core.shelf, Keys(user_id)
    await shelf.delete(await shelf.stored(f"{keys.prefix}session/"))
    stored = await shelf.stored(keys.prefix)
    await shelf.delete(stored)
    shelf.forget(user_id)
    return {"facts": sum(keys.parts(key)[0] == "fact" for key in stored)}


async def list_sessions(core: Core, user_id: str) -> list[SessionInfo]:
    """Sessions with facts, the last used first."""
    book = await core.shelf.read(user_id)
    times: dict[str, list[Any]] = {}
    with core.shelf.lock:
        for row in book.facts.values():
            times.setdefault(row.session, []).append(row.at)
    found = [SessionInfo(session, len(at), min(at), max(at)) for session, at in times.items()]
    return sorted(found, key=lambda info: (info.updated_at, info.session_id), reverse=True)
