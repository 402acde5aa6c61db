"""The entities of users, as an entity memory holds them in process: derived from the turns of their histories.

At each look only rows that changed are read. What a turn lacks of its facts, since reading names takes long or another
writer stored it, is made then, the newest turns first, and kept in the row.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import Flow, Step, call_user_function, cpu_bound, dry_run
from langchain_memkit.base import EntityExtractor, Now, describe_error
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, logger
from langchain_memkit.memories.entity import rows as stored
from langchain_memkit.memories.entity.mentions import facts_of, message_facts, read_mentions
from langchain_memkit.memories.entity.registry import EntityRegistry
from langchain_memkit.memories.entity.rows import DescriptionRow, FactRow, ResolutionRule, fact_id
from langchain_memkit.memories.entity.statements import NameSpan
from langchain_memkit.stores.changes import ChangedRow, Place, UserLog
from langchain_memkit.stores.history import HistoryFactory, TurnStore
from langchain_memkit.stores.looks import catch_up

T = TypeVar("T")

ENTITIES = "entities"
"""The name of the index in a turn's row, and in that of a decision."""
DESCRIBED = "described"
"""The name of the index that holds what a model said of entities after a turn."""
UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
MANY = 1000  # facts; a larger registry is searched and changed in a thread
ROWS = 50  # that are taken in without a thread
SHORT = 2000  # characters: finding the names of shorter texts is not worth a thread
TURNS = 64  # that are given to the extractor at once
AGAIN = 5  # looks, where turns go while it is looked at them
FACT_BYTES = 1500  # of a fact in process


@dataclass
class UserEntities:
    """What a process holds of one user: the log of what is shown, and the entities in it. Hold `lock` to use it."""

    book: EntityRegistry
    log: UserLog = field(default_factory=UserLog)
    rows: dict[Place, tuple[ChangedRow, list[str]]] = field(default_factory=dict)  # with the keys of its facts
    lacking: set[Place] = field(default_factory=set)  # rows without facts
    decided: list[str] = field(default_factory=list)  # the ops of the decisions that are taken in
    forgotten: dict[str, datetime] = field(default_factory=dict)  # names, and until when what was said is not quoted

    @property
    def nbytes(self) -> int:
        """The memory that it takes, about."""
        return FACT_BYTES * len(self.book.facts)

    def put(self, row: ChangedRow, facts: Iterable[FactRow]) -> None:
        """Hold the facts of a row, in place of those that there were."""
        self.drop(row.place)
        keys = []
        for fact in facts:
            until = self.forgotten.get(fact.key)
            if until is None or fact.at > until:
                key = f"{row.session_id}/{row.seq}/{fact_id(fact)}"
                self.book.add(key, fact)
                keys.append(key)
        self.rows[row.place] = row, keys
        made = stored.decode_descriptions(row.index.get(DESCRIBED), row, UNDATED)
        if made:
            self.book.descriptions[row.place] = made

    def drop(self, place: Place) -> None:
        """Forget a row."""
        _, keys = self.rows.pop(place, (None, ()))
        self.book.remove(keys)
        self.book.descriptions.pop(place, None)
        self.lacking.discard(place)

    def drop_all(self, places: Iterable[Place]) -> None:
        """Forget rows."""
        for place in places:
            self.drop(place)

    def newest(self, most: int) -> list[ChangedRow]:
        """Return the newest rows that lack their facts."""
        rows = [self.rows[place][0] for place in self.lacking]
        return sorted(rows, key=lambda row: row.created_at or UNDATED, reverse=True)[:most]

    def decide(self) -> None:
        """Take in the decisions of the user."""
        rows = self.log.decisions()
        ops = [row.op for row in rows]
        if ops == self.decided:
            return
        self.decided = ops
        rules: list[ResolutionRule] = []
        forgotten: dict[str, datetime] = {}
        for row in rows:
            rule = stored.decode_rule(row.index.get(ENTITIES))
            if rule is None:
                continue
            if rule.kind == "forget":
                forgotten[rule.key] = row.created_at or UNDATED
                rules = [each for each in rules if rule.key not in (each.key, each.other_key)]
            else:
                rules.append(rule)
        self.book.change_rules(rules)
        if forgotten != self.forgotten:
            self.forgotten = forgotten
            until = {key: fact for key, fact in self.book.facts.items() if fact.key in forgotten}
            self.book.remove([key for key, fact in until.items() if fact.at <= forgotten[fact.key]])


class EntityLog:
    """The entities of all users over histories; see the module.

    Args:
        histories: A factory of histories whose store keeps an index.
        extractor: Finds the names in a text.
        vocabulary: Names that are always found, with their types.
        read_only: Whether nothing is stored.
        now: The clock.
        cache_bytes: How much memory the entities of all users may take. The last user's stay, however many.
        lazy: How many turns are read for names at most in one look.
    """

    name = ENTITIES

    def __init__(
        self,
        histories: HistoryFactory[Any],
        extractor: EntityExtractor,
        vocabulary: Mapping[str, str],
        *,
        read_only: bool,
        now: Now,
        cache_bytes: int,
        lazy: int = 1000,
    ) -> None:
        self.histories = histories
        self.extractor = extractor
        self.vocabulary = vocabulary
        self.read_only = read_only
        self.now = now
        self.is_whole_at_once = bool(getattr(extractor, "is_local", False))
        """Whether the extractor says that it is quick, so that a turn is stored with its facts."""
        self._lazy = lazy
        self._users = LRUCache[str, UserEntities](cache_bytes, lambda held: held.nbytes)
        # Held for work on a registry, never while waiting for the store. A forked child finds the lock open and the
        # cache empty: the thread that held the lock, and might have half changed a registry, is not there.
        self.lock = ForkSafeLock(self._users.clear)

    def __repr__(self) -> str:
        return repr(self.histories)

    @property
    def store(self) -> TurnStore:
        """Where the histories keep their turns."""
        return self.histories.turn_store

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

    async def look(self, user_id: str, *, most: int | None = None) -> UserEntities:
        """Look at what changed in a user's turns, and read the names of those that lack their facts.

        Args:
            user_id: The user.
            most: How many turns are read for names at most; None for `lazy`.

        Returns:
            The user's entities.
        """
        held = await self.held(lambda: self._held(user_id))
        try:
            await self._catch_up(user_id, held)
            for _ in range(AGAIN):
                if not await self._complete(user_id, held, self._lazy if most is None else most):
                    break
                # Turns went while this one looked: what came for them is taken in with that.
                await self._catch_up(user_id, held)
        except BaseException:
            self.forget(user_id)  # what it was told of may not be held: the next look begins anew
            raise
        await self.held(lambda: self._users.put(user_id, held))
        return held

    async def decide(self, user_id: str, rule: ResolutionRule) -> None:
        """Store a decision of a user."""
        await self._step(lambda: self.store.decide(user_id, ENTITIES, stored.encode_rule(rule)))

    async def describe(self, user_id: str, place: Place, made: Sequence[DescriptionRow]) -> None:
        """Store what a model said of entities after a turn, in its row."""
        held = await self.held(lambda: self._held(user_id))
        row, _ = held.rows.get(place, (None, None))
        if row is not None:
            await self._keep(user_id, DESCRIBED, [(place, row.op, stored.encode_descriptions(made))])

    def forget(self, user_id: str) -> None:
        """Drop what is held of a user."""
        with self.lock:
            self._users.pop(user_id)

    def close(self) -> None:
        """Drop what is held of all users."""
        with self.lock:
            self._users.clear()

    # -- what is shown

    def _held(self, user_id: str) -> UserEntities:
        return self._users.get_or_put(user_id, UserEntities(EntityRegistry(self.vocabulary)))

    async def _catch_up(self, user_id: str, held: UserEntities) -> None:
        names = [ENTITIES, DESCRIBED]
        await self._step(lambda: catch_up(self.store, user_id, held.log, names, self.now()))
        await self.held(lambda: self._take(held), long=held.log.unread > ROWS)

    def _take(self, held: UserEntities) -> None:
        """Hold the facts of what came, and drop those of what went."""
        held.decide()
        found = held.log.news()
        come = {row.place for row in found.come}
        for place in found.gone:
            if place not in come:
                held.drop(place)
        for row in sorted(found.come, key=lambda row: row.created_at or UNDATED):
            known, _ = held.rows.get(row.place, (None, None))
            is_same = known is not None and known.op == row.op and known.index == row.index
            if is_same and row.place not in held.lacking:
                continue
            facts = stored.decode_facts(row.index.get(ENTITIES), row, UNDATED)
            held.put(row, facts or ())
            if facts is None:
                held.lacking.add(row.place)

    # -- deriving

    async def derive(self, user_id: str, messages: Sequence[BaseMessage]) -> bytes | None:
        """Make the facts of a turn that is to be stored; None if the extractor is slow, so that it follows."""
        if not self.is_whole_at_once:
            return None
        sources = message_facts("", messages, UNDATED)
        found = await self.extract([source.text for source in sources])
        held = await self.held(lambda: self._held(user_id))
        is_long = len(held.book.facts) > MANY or sum(len(source.text) for source in sources) > SHORT
        facts = await self.held(lambda: _facts(held.book, sources, found), long=is_long)
        return stored.encode_facts(facts)

    async def _complete(self, user_id: str, held: UserEntities, most: int) -> bool:
        """Read the newest turns that lack their facts; return whether any of them was erased meanwhile."""
        newest = await self.held(lambda: held.newest(most))
        # Oldest first, since a name is found again in what is said after it was told.
        oldest_first = newest[::-1]
        erased = False
        for begin in range(0, len(oldest_first), TURNS):
            rows = oldest_first[begin : begin + TURNS]
            places = [row.place for row in rows]
            turns = await self._step(partial(self.store.turns_at, user_id, places))
            read = {(session_id, turn.seq): turn for session_id, turn in turns}
            there = [row for row in rows if row.place in read]
            sources = [message_facts(row.session_id, read[row.place].messages, UNDATED) for row in there]
            try:
                found = iter(await self.extract([source.text for each in sources for source in each]))
            except ConfigurationError:
                raise
            except Exception as error:  # noqa: BLE001  # extractors raise anything
                logger.warning("turns were not read for names, which the next look tries: %s", describe_error(error))
                break
            names = [[next(found) for _ in each] for each in sources]
            fresh = await self.held(partial(self._hold, held, there, sources, names), long=True)
            gone = [row.place for row in rows if row.place not in read]
            await self.held(partial(held.drop_all, gone))
            erased = erased or bool(gone)
            # What is damaged, or of a newer version, is not stored: somebody may read it whole one day.
            await self._keep(user_id, ENTITIES, [each for each in fresh if not read[each[0]].problems])
        return erased

    def _hold(
        self,
        held: UserEntities,
        rows: Sequence[ChangedRow],
        sources: Sequence[list[FactRow]],
        names: Sequence[list[list[NameSpan]]],
    ) -> list[tuple[Place, str, bytes]]:
        """Hold what was read of rows; return what is to be stored."""
        fresh = []
        for row, said, found in zip(rows, sources, names, strict=True):
            known, _ = held.rows.get(row.place, (None, None))
            if known is not row:  # it went, or changed, meanwhile: then it is made of what it is now
                continue
            data = stored.encode_facts(_facts(held.book, said, found))
            whole = replace(row, index={**row.index, ENTITIES: data})
            held.put(whole, stored.decode_facts(data, whole, UNDATED) or ())
            fresh.append((row.place, row.op, data))
        return fresh

    async def extract(self, texts: Sequence[str]) -> list[list[NameSpan]]:
        """Extract the names of each text; several texts go through the extractor's `batch` at once if it has one."""
        extractor: Any = self.extractor

        def read(some: list[str]) -> Any:
            """Consume a generator here, in the thread in which `batch` is called, so that its work happens there."""
            result = extractor.batch(some)
            return result if inspect.isawaitable(result) else list(result)

        found: list[Any] = []
        if callable(getattr(extractor, "batch", None)) and len(texts) > 1:
            found = list(await call_user_function(read, list(texts), name="the extractor"))
        else:
            for text in texts:
                found.append(await call_user_function(extractor, text, name="the extractor"))
        long = sum(map(len, texts)) > SHORT
        return await cpu_bound(lambda: [read_mentions(*pair) for pair in zip(found, texts, strict=True)], long=long)

    async def _keep(self, user_id: str, name: str, made: Sequence[tuple[Place, str, bytes]]) -> None:
        """Store what was derived from turns; a failure is logged."""
        if self.read_only or dry_run.get() or not made:
            return
        try:
            await self._step(lambda: self.store.keep_index(user_id, name, made))
        except HistoryWriteError as error:
            logger.warning("the names of %d turns are not stored, but read again: %s", len(made), error)

    def _step(self, make_flow: Callable[[], Flow[T]]) -> Step[T]:
        async def asynchronous() -> T:
            return await self.store.arun(make_flow())

        return Step(lambda: self.store.run(make_flow()), asynchronous)


def _facts(book: EntityRegistry, sources: Sequence[FactRow], found: Sequence[Sequence[NameSpan]]) -> list[FactRow]:
    """Return the facts of a turn: of each message, in order, the sentences with the names that are found in it."""
    for source in sources:
        book.add_speaker(source.speaker)
    return facts_of(zip(sources, found, strict=True), book)
