"""The records of users, as a vector memory holds them in process: derived from the turns of their histories.

At each look only rows that changed are read. What a turn lacks of its index, since an older version or another writer
stored it, is made then, the newest turns first, and kept in the row.
"""

from __future__ import annotations

import gc
import math
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeAlias, TypeVar

from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import Flow, Step, call_user_function, cpu_bound, dry_run
from langchain_memkit.base import Now, describe_error, describe_type, describe_value
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, logger
from langchain_memkit.memories.derived_log import Said
from langchain_memkit.memories.vector import turn_index
from langchain_memkit.memories.vector.importance import plain_importance
from langchain_memkit.memories.vector.rounds import Splitter
from langchain_memkit.memories.vector.turn_index import Sketch, Stored, TurnIndex, TurnRecord, Vector
from langchain_memkit.ranking.index import Index, IndexRecord, unit_vectors
from langchain_memkit.stores.changes import ChangedRow, Place, UserLog
from langchain_memkit.stores.history import HistoryFactory
from langchain_memkit.stores.looks import catch_up

T = TypeVar("T")
TextOf: TypeAlias = Callable[[str], tuple[TurnRecord, dict[Any, Any]] | None]
"""Looks up a record by id, with what was made of it to show it; None if it was erased."""

VECTORS = "vectors"
"""The name of the index in a turn's row."""
RECALLED = "recalled"
"""The name of the index that holds when a turn was last recalled."""
PROBE = "The quick brown fox jumps over the lazy dog."
"""The text by whose vector a model is recognized."""
UNDATED = datetime.min.replace(tzinfo=UTC)
MANY = 50  # rows that are held without a thread
AGAIN = 5  # looks, where turns go while it is looked at them
SHORT = 2000  # characters that are split and stemmed without one
TEXT_BYTES = 3000  # of a record in process, besides its index


@dataclass(slots=True)
class HeldRow:
    """What a process holds of a row.

    Attributes:
        row: The row, with the index that the records were made of.
        ids: The ids of its records.
        kept: Whether this process has stored an index for it.
    """

    row: ChangedRow
    ids: list[str] = field(default_factory=list)
    kept: bool = False

    @property
    def data(self) -> bytes | None:
        """The index as it is stored; None if there is none."""
        return self.row.index.get(VECTORS)


@dataclass
class UserRecords:
    """The records of one user: the log of what is shown, and what was made of it. Hold `index.lock` to use it."""

    log: UserLog = field(default_factory=UserLog)
    index: Index = field(default_factory=Index)
    rows: dict[Place, HeldRow] = field(default_factory=dict)
    stored: dict[str, Stored] = field(default_factory=dict)  # by id
    lacking: set[Place] = field(default_factory=set)  # rows without an index, or with one without vectors
    unrated: set[Place] = field(default_factory=set)  # rows whose importance is to be rated
    recalled: dict[Place, datetime] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)  # of records by their text
    vectorless: bool = False  # whether vectors were left out, since it was not known of which model they are

    @property
    def nbytes(self) -> int:
        """The memory that they take, about."""
        return self.index.nbytes + TEXT_BYTES * len(self.stored)

    def put(self, row: ChangedRow, index: TurnIndex, ttl: timedelta | None) -> HeldRow:
        """Hold the records of a row, in place of those that there were."""
        held = self.rows.setdefault(row.place, HeldRow(row))
        self._drop_records(held)
        held.row = row
        found = turn_index.stored_records(index, row, ttl)
        held.ids = [one.entry.id for one in found]
        for one in found:
            self.index.add(one.entry, one.record.vector)
            self.stored[one.entry.id] = one
            self.ids[one.record.text] = one.entry.id
        return held

    def drop(self, place: Place) -> None:
        """Forget a row."""
        held = self.rows.pop(place, None)
        self.recalled.pop(place, None)
        self.lacking.discard(place)
        self.unrated.discard(place)
        if held is not None:
            self._drop_records(held)

    def newest(self, places: Collection[Place], most: int) -> list[HeldRow]:
        """Return the newest rows at some places."""
        rows = [self.rows[place] for place in places]
        return sorted(rows, key=lambda held: held.row.created_at or UNDATED, reverse=True)[:most]

    def surplus(self, most: int | None) -> frozenset[str]:
        """Return the ids of the records above a number: those neither said nor recalled for the longest time."""
        spare = 0 if most is None else len(self.index) - most
        if spare <= 0:
            return frozenset()

        def last_use(entry: IndexRecord) -> datetime:
            recalled = self.recalled.get(self.stored[entry.id].place)
            return max(entry.at or UNDATED, recalled or UNDATED)

        return frozenset(entry.id for entry in sorted(self.index.entries, key=last_use)[:spare])

    def vector_of(self, text: str) -> Vector | None:
        """Return the vector of an equal text of this user; None if there is none."""
        one = self.stored.get(self.ids.get(text, ""))
        return one.record.vector if one else None

    def _drop_records(self, held: HeldRow) -> None:
        if not held.ids:
            return
        self.index.remove(held.ids)
        for name in held.ids:
            self.stored.pop(name, None)
        held.ids = []
        if len(self.ids) > 2 * len(self.stored) + MANY:
            self.ids = {text: name for text, name in self.ids.items() if name in self.stored}


def _note(places: set[Place], place: Place, belongs: bool) -> None:
    if belongs:
        places.add(place)
    else:
        places.discard(place)


@contextmanager
def without_collector(many: bool) -> Iterator[None]:
    """Keep the garbage collector from running, if many objects are made of which none is garbage.

    It would run again and again, which takes as long as making them.
    """
    was_on = many and gc.isenabled()
    if was_on:
        gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class TurnLog:
    """The records of all users over histories; see the module.

    Args:
        histories: A factory of histories whose store keeps an index.
        embedding: The embedding model.
        splitter: Splits long texts.
        importance: Rates a text from 1 to 10; None: nothing is rated.
        ttl: How long a record is recalled; None for as long as its turn is shown.
        max_records: How many records of a user are recalled at most; None for all.
        read_only: Whether nothing is stored.
        now: The clock.
        cache_bytes: How much memory the records of all users may take. The last user's stay, however many.
        lazy: How many turns are indexed at most in one look.
        pause: Seconds for which a failed embedding model is not asked again for turns that lack vectors.
    """

    name = VECTORS

    def __init__(
        self,
        histories: HistoryFactory[Any],
        embedding: Embeddings,
        *,
        splitter: Splitter,
        importance: Any = None,
        ttl: timedelta | None = None,
        max_records: int | None = None,
        read_only: bool = False,
        now: Now,
        cache_bytes: int,
        lazy: int = 1000,
        pause: float = 60.0,
    ) -> None:
        if not isinstance(embedding, Embeddings):
            msg = f"embedding must be a LangChain Embeddings object, not {describe_type(embedding, Embeddings)}"  # type: ignore[unreachable]  # a class is easily taken for an object
            raise ConfigurationError(msg)
        self.histories = histories
        self.embedding = embedding
        self.store = histories.turn_store
        self._embeds_at_once = bool(getattr(embedding, "is_local", False))
        self._rates_at_once = importance is plain_importance or bool(getattr(importance, "is_local", False))
        self.rates_later = importance is not None and not self._rates_at_once
        self.is_whole_at_once = self._embeds_at_once and not self.rates_later
        """Whether a turn is stored with all that is derived from it: no server has to be asked."""
        self.read_only = read_only
        self._splitter = splitter
        self._importance = importance
        self._ttl = ttl
        self._max_records = max_records
        self._now = now
        self._lazy = lazy
        self._pause = pause
        self._sketch: Sketch = ()
        self._failed_at = -pause
        self._users = LRUCache[str, UserRecords](cache_bytes, lambda held: held.nbytes)
        self._lock = ForkSafeLock(self._users.clear)

    def __repr__(self) -> str:
        return repr(self.histories)

    @property
    def is_remote(self) -> bool:
        """Whether reads wait for a server."""
        return self.store.is_remote

    # -- what recalling asks for

    async def texts(self, user_id: str, ids: Sequence[str]) -> TextOf:
        """Return a lookup of records by id: the record, and what was made of it to show it."""
        held = self._held(user_id)
        if any(name not in held.stored for name in ids):  # erased, or held no more, since there were too many users
            held = await self.look(user_id)

        def text(name: str) -> tuple[TurnRecord, dict[Any, Any]] | None:
            one = held.stored.get(name)
            return None if one is None else (one.record, one.notes)

        return text

    async def embed_query(self, text: str) -> Vector:
        """Embed a question."""
        model = self.embedding
        vector = await Step(lambda: model.embed_query(text), lambda: model.aembed_query(text))
        try:
            (found,) = unit_vectors([vector], int(self._sketch[0]) if self._sketch else None)
        except ConfigurationError:
            found = None
        if found is None:
            raise HistoryReadError(f"{type(model).__name__} gave no usable vector for the question")
        return found

    def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return when records were last recalled, by id."""
        held = self._held(user_id)
        with held.index.lock:
            found = [(at, held.rows[place].ids) for place, at in held.recalled.items() if place in held.rows]
        return {name: at for at, names in found for name in names}

    def surplus(self, user_id: str) -> frozenset[str]:
        """Return the ids of the records of a user that are above `max_records`."""
        held = self._held(user_id)
        with held.index.lock:
            return held.surplus(self._max_records)

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Store when records were recalled, in the rows of their turns."""
        held = self._held(user_id)
        data = struct.pack(">d", at.timestamp())
        with held.index.lock:
            places = sorted({held.stored[name].place for name in ids if name in held.stored})
            held.recalled |= dict.fromkeys(places, at)
            made = [(place, held.rows[place].row.op, data) for place in places]
        await self._keep(user_id, RECALLED, made)

    # -- deriving

    async def derive(self, user_id: str, messages: Sequence[BaseMessage]) -> bytes:
        """Make the index of a turn that is to be stored: what a server has to be asked for is not in it yet."""
        size = sum(len(str(message.content)) for message in messages)
        index = await cpu_bound(lambda: turn_index.derive(messages, self._splitter), long=size > SHORT)
        if self._embeds_at_once:
            await self._try_to_embed(user_id, [index])
        if self._rates_at_once:
            await self._rate(index.records)
        return turn_index.encode(index)

    async def derive_later(self, user_id: str, turn: Said, op: str) -> None:
        """Embed a turn that was just stored without vectors, and keep them in its row; the next look holds them."""
        place, messages = turn
        index = turn_index.decode(await self.derive(user_id, messages))
        if index is not None and await self._try_to_embed(user_id, [index]):
            await self._keep(user_id, VECTORS, [(place, op, turn_index.encode(index))])

    async def look(
        self, user_id: str, *, most: int | None = None, rates: int = 0, held: UserRecords | None = None
    ) -> UserRecords:
        """Look at what changed in a user's turns, and make what they lack.

        Args:
            user_id: The user.
            most: How many turns are indexed at most; None for `lazy`.
            rates: How many turns are rated at most, which takes a call of a model each.
            held: What is held of the user, as an earlier look returned it, however little memory there is.

        Returns:
            The user's records.
        """
        held = held or self._held(user_id)
        names = [VECTORS, RECALLED]
        await self._step(lambda: catch_up(self.store, user_id, held.log, names, self._now()))
        if not self._sketch and (held.log.unread or held.vectorless):
            await self._recognize()
            if self._sketch and held.vectorless:  # the vectors that were left out are wanted now
                self.forget(user_id)
                return await self.look(user_id, most=most, rates=rates)
        try:
            await cpu_bound(partial(self._take, held), long=held.log.unread > MANY)
        except BaseException:
            self.forget(user_id)  # what it was told of is not held: the next look begins anew
            raise
        for _ in range(AGAIN):
            if not await self._complete(user_id, held, self._lazy if most is None else most):
                break
            # Turns went while this one looked: what went with them is not shown alone, and what came for them is.
            await self._step(lambda: catch_up(self.store, user_id, held.log, names, self._now()))
            await cpu_bound(partial(self._take, held), long=held.log.unread > MANY)
        await self._rate_later(user_id, held, rates)
        with self._lock:
            self._users.put(user_id, held)
        return held

    async def renew(self, held: UserRecords) -> None:
        """Take all turns that are held of a user for turns without an index; vectors of equal texts are kept."""
        with held.index.lock:
            for place, one in held.rows.items():
                index = {name: data for name, data in one.row.index.items() if name != VECTORS}
                one.row = replace(one.row, index=index)
                one.kept = False
                held.lacking.add(place)

    def forget(self, user_id: str) -> None:
        """Drop what is held of a user."""
        with self._lock:
            self._users.pop(user_id)

    def close(self) -> None:
        """Drop what is held of all users."""
        with self._lock:
            self._users.clear()

    def _held(self, user_id: str) -> UserRecords:
        with self._lock:
            return self._users.get_or_put(user_id, UserRecords())

    def _take(self, held: UserRecords) -> None:
        """Hold the records of what came, and drop those of what went."""
        with held.index.lock, without_collector(held.log.unread > MANY):
            found = held.log.news()
            come = {row.place for row in found.come}
            for place in found.gone:
                if place not in come:
                    held.drop(place)
            for row in sorted(found.come, key=lambda row: row.created_at or UNDATED):
                self._take_row(held, row)

    def _take_row(self, held: UserRecords, row: ChangedRow) -> None:
        data, known = row.index.get(VECTORS), held.rows.get(row.place)
        is_same = known is not None and data is not None and known.data == data
        if known is not None and is_same and (known.row.expires_at, known.row.epoch) == (row.expires_at, row.epoch):
            known.row = row
            self._note_recall(held, row)
            return
        index = turn_index.decode(data)
        if index is None:
            held.drop(row.place)
            self._note_recall(held, row)
            held.rows[row.place] = HeldRow(row)
            held.lacking.add(row.place)
            _note(held.unrated, row.place, self._importance is not None)
            return
        is_ours = turn_index.same_model(index.sketch, self._sketch)
        if index.sketch and not is_ours:
            for record in index.records:
                record.vector = None
            held.vectorless = held.vectorless or not self._sketch
        held.put(row, index, self._ttl)
        self._note_recall(held, row)
        is_rated = self._importance is None or all(record.importance is not None for record in index.records)
        _note(held.lacking, row.place, not index.is_embedded)
        _note(held.unrated, row.place, not is_rated)

    def _note_recall(self, held: UserRecords, row: ChangedRow) -> None:
        with suppress(KeyError, struct.error, OverflowError, OSError, ValueError):  # damaged, or never recalled
            held.recalled[row.place] = datetime.fromtimestamp(struct.unpack(">d", row.index[RECALLED])[0], UTC)

    # -- making what is lacking

    async def _complete(self, user_id: str, held: UserRecords, most: int, batch: int = 128) -> bool:
        """Index the newest turns that lack it; return whether any of them was erased meanwhile."""
        erased: set[Place] = set()
        with held.index.lock:
            newest = held.newest(held.lacking, most)
        is_paused = time.monotonic() - self._failed_at < self._pause
        if is_paused and all(one.ids for one in newest):
            return False
        for begin in range(0, len(newest), batch):
            rows = [one.row for one in newest[begin : begin + batch]]
            made, unsure = await self._made(user_id, rows)
            is_embedded = await self._try_to_embed(user_id, [index for _, index in made])
            with held.index.lock:
                fresh = [one for row, index in made if (one := self._hold(held, row, index, whole=is_embedded))]
                found = {row.place for row, _ in made}
                erased |= {row.place for row in rows} - found
                for place in erased:
                    held.drop(place)
            await self._keep(user_id, VECTORS, [each for each in fresh if each[0] not in unsure], whole=is_embedded)
        return bool(erased)

    def _hold(
        self, held: UserRecords, row: ChangedRow, index: TurnIndex, *, whole: bool, again: bool = False
    ) -> tuple[Place, str, bytes] | None:
        """Hold what was made of a row; return what is to be stored, if it differs from what is."""
        known = held.rows.get(row.place)
        is_same = known is not None and (known.row.op, known.row.revision) == (row.op, row.revision)
        if known is None or not is_same or known.data != row.index.get(VECTORS):
            return None  # it went, or changed, meanwhile: then it is made of what it is now
        data = turn_index.encode(index)
        made = held.put(replace(row, index={**row.index, VECTORS: data}), index, self._ttl)
        _note(held.lacking, row.place, not whole)
        # Vectors of a row are stored once: another process may use another model, and does so as well.
        is_new = data != row.index.get(VECTORS) and (again or not made.kept)
        return (row.place, row.op, data) if is_new else None

    async def _made(
        self, user_id: str, rows: Sequence[ChangedRow]
    ) -> tuple[list[tuple[ChangedRow, TurnIndex]], set[Place]]:
        """Return the indexes of rows, without vectors where they had none, and which rows could not be read whole."""
        made: dict[Place, TurnIndex] = {}
        unsure: set[Place] = set()
        for row in rows:
            index = turn_index.decode(row.index.get(VECTORS))
            if index is not None:
                made[row.place] = index
        absent = [row.place for row in rows if row.place not in made]
        turns = await self._step(lambda: self.store.turns_at(user_id, absent)) if absent else []
        for session_id, turn in turns:
            if turn.problems:  # damaged, or of a newer version: somebody may read it whole one day
                unsure.add((session_id, turn.seq))
            work = partial(turn_index.derive, turn.messages, self._splitter)
            index = await cpu_bound(work, long=len(turn.messages) > 10)
            if self._rates_at_once:
                await self._rate(index.records)
            made[session_id, turn.seq] = index
        return [(row, made[row.place]) for row in rows if row.place in made], unsure

    async def _rate_later(self, user_id: str, held: UserRecords, most: int) -> None:
        """Rate the newest turns that are not rated, and store that."""
        with held.index.lock:
            newest = held.newest(held.unrated, most)
        fresh: list[tuple[Place, str, bytes]] = []
        for one in newest:
            row, index = one.row, turn_index.decode(one.data)
            held.unrated.discard(row.place)  # tried once in this process
            if index is None:
                continue
            await self._rate(index.records)
            with held.index.lock:
                made = self._hold(held, row, index, whole=row.place not in held.lacking, again=True)
            fresh += [made] if made else []
            if len(fresh) == MANY:  # in parts, so that what breaks off has kept most
                await self._keep(user_id, VECTORS, fresh)
                fresh = []
        await self._keep(user_id, VECTORS, fresh)

    async def _try_to_embed(self, user_id: str, made: Sequence[TurnIndex]) -> bool:
        """Embed what is not embedded; return False if the model failed, which is not asked again for a while."""
        if time.monotonic() - self._failed_at < self._pause:
            return False
        try:
            await self._embed(user_id, made)
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # embedders raise anything
            self._failed_at = time.monotonic()
            why = describe_error(error)
            logger.warning("turns were not embedded, only their words are looked for: %s", why)
            return False
        return True

    async def _embed(self, user_id: str, made: Sequence[TurnIndex]) -> None:
        held = self._held(user_id)
        if not self._sketch:
            await self._look_at_model()
        lacking: list[TurnRecord] = []
        for index in made:
            is_ours = turn_index.same_model(index.sketch, self._sketch)
            for record in index.records:
                if not is_ours:
                    record.vector = held.vector_of(record.text)
                if record.is_worth and record.vector is None:
                    lacking.append(record)
            index.sketch = self._sketch
        texts = list(dict.fromkeys(record.text for record in lacking))
        vectors = dict(zip(texts, await self._vectors(texts), strict=True)) if texts else {}
        for record in lacking:
            record.vector = vectors[record.text]
            record.is_worth = record.vector is not None

    async def _recognize(self) -> None:
        """Learn which model this is; if it does not answer, only words are held until it does."""
        if time.monotonic() - self._failed_at < self._pause:
            return
        try:
            await self._look_at_model()
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # embedders raise anything
            self._failed_at = time.monotonic()
            logger.warning("the embedding model does not answer: %s", describe_error(error))

    async def _look_at_model(self) -> None:
        """Have the model embed the text by which it is recognized.

        Raises:
            ConfigurationError: It gave no vector that can be compared with others.
        """
        model = self.embedding
        found = await Step(lambda: model.embed_documents([PROBE]), lambda: model.aembed_documents([PROBE]))
        (probe,) = unit_vectors(found, None) if len(found) == 1 else (None,)
        if probe is None:
            name = type(model).__name__
            raise ConfigurationError(f"{name} gave no vector, or one of all zeros, for a plain English sentence")
        self._sketch = turn_index.sketch_of(probe)

    async def _vectors(self, texts: list[str]) -> list[Vector | None]:
        """Embed texts; None for one of which the model gave no usable vector, which is logged."""
        model, dims = self.embedding, int(self._sketch[0])
        given = await Step(lambda: model.embed_documents(texts), lambda: model.aembed_documents(texts))
        if len(given) != len(texts):
            raise ValueError(f"{len(given)} vectors for {len(texts)} texts")
        found: list[Vector | None] = []
        for vector in given:
            try:
                found += unit_vectors([vector], dims)
            except ConfigurationError as error:
                logger.warning("a text is found by its words alone: %s", error)
                found.append(None)
        return found

    async def _rate(self, records: Sequence[TurnRecord]) -> None:
        """Rate records; one that is not rated counts as the mean, which is logged."""
        rated = [record for record in records if record.importance is None]
        texts = [record.text for record in rated]
        batch = getattr(self._importance, "batch", None)
        values: list[Any] = []
        try:
            if batch is not None:
                values = await Step(lambda: batch(texts), lambda: self._importance.abatch(texts))
            for text in texts if batch is None else ():  # an error keeps the ratings before it
                value = await call_user_function(self._importance, text, name="importance")
                values.append(value)
        except Exception as error:  # noqa: BLE001  # an app's function raises anything
            logger.warning("a turn was not rated: %s", describe_error(error))
        for record, value in zip(rated, values, strict=False):
            if isinstance(value, (int, float)) and math.isfinite(value):
                record.importance = float(value)
            else:
                got = describe_value(value)
                logger.warning("importance must return a number from 1 to 10; got %s: a record is not rated", got)

    async def _keep(
        self, user_id: str, name: str, made: list[tuple[Place, str, bytes]], *, whole: bool = False
    ) -> None:
        """Store what was derived from turns, and note of which rows that was all; a failure is logged."""
        if self.read_only or dry_run.get() or not made:
            return
        try:
            await self._step(lambda: self.store.keep_index(user_id, name, made))
        except HistoryWriteError as error:
            logger.warning("what was derived from %d turns is not stored, but made again: %s", len(made), error)
            return
        held = self._held(user_id)
        with held.index.lock:
            for place, _, _ in made if whole else ():
                if place in held.rows:
                    held.rows[place].kept = True

    def _step(self, make_flow: Callable[[], Flow[T]]) -> Step[T]:
        async def asynchronous() -> T:
            return await self.store.arun(make_flow())

        return Step(lambda: self.store.run(make_flow()), asynchronous)
