"""The records of users, as a vector memory holds them in process: derived from the turns of their histories.

At each look only rows that changed are read. What a turn lacks of its index, since an older version or another writer
stored it, is made then, the newest turns first, and kept in the row.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import Flow, Step, call_user_function, cpu_bound
from langchain_memkit.base import Now, describe_error, describe_type, describe_value
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, logger
from langchain_memkit.memories.vector import turn_index
from langchain_memkit.memories.vector.importance import plain_importance
from langchain_memkit.memories.vector.rounds import Splitter
from langchain_memkit.memories.vector.turn_index import Sketch, Stored, TurnIndex, TurnRecord, Vector
from langchain_memkit.ranking.index import Index, IndexRecord, digest_of, unit_vectors
from langchain_memkit.stores.changes import ChangedRow, Place, UserLog
from langchain_memkit.stores.history import HistoryFactory
from langchain_memkit.stores.looks import catch_up

T = TypeVar("T")

VECTORS = "vectors"
"""The name of the index in a turn's row."""
RECALLED = "recalled"
"""The name of the index that holds when a turn was last recalled."""
PROBE = "The quick brown fox jumps over the lazy dog."
"""The text by whose vector a model is recognized."""
CACHE_BYTES = 96 * 2**20
MANY = 50  # rows that are held without a thread
SHORT = 2000  # characters that are split and stemmed without one
TEXT_BYTES = 3000  # of a record in process, besides its index


@dataclass
class UserRecords:
    """The records of one user: the log of what is shown, and what was made of it."""

    log: UserLog = field(default_factory=UserLog)
    index: Index = field(default_factory=Index)
    stored: dict[str, Stored] = field(default_factory=dict)  # by id
    ids: dict[Place, list[str]] = field(default_factory=dict)
    known: dict[Place, bytes | None] = field(default_factory=dict)  # the index that the records were made of
    recalled: dict[Place, datetime] = field(default_factory=dict)
    lacking: dict[Place, ChangedRow] = field(default_factory=dict)  # rows that have no index, or one without vectors
    digests: dict[str, str] = field(default_factory=dict)  # ids of records by the digest of their text
    kept: set[Place] = field(default_factory=set)  # rows whose index this process has stored
    sketch: Sketch = ()  # of the model of the vectors that are held

    @property
    def nbytes(self) -> int:
        """The memory that they take, about."""
        return self.index.nbytes + TEXT_BYTES * len(self.stored)

    def put(self, row: ChangedRow, index: TurnIndex, ttl: timedelta | None) -> None:
        """Hold the records of a row, in place of those that there were."""
        self.drop(row.place)
        found = turn_index.stored_records(index, row, ttl)
        self.ids[row.place] = [one.entry.id for one in found]
        for one in found:
            self.index.add(one.entry, one.vector)
            self.stored[one.entry.id] = one
            self.digests[digest_of(one.document.page_content)] = one.entry.id

    def drop(self, place: Place) -> None:
        """Forget the records of a row."""
        names = self.ids.pop(place, [])
        self.index.remove(names)
        for name in names:
            self.stored.pop(name, None)

    def evict(self, most: int | None) -> None:
        """Drop the records above a number, first those that were never recalled, the oldest first."""
        undated = datetime.min.replace(tzinfo=UTC)
        spare = 0 if most is None else len(self.index) - most
        if spare <= 0:
            return
        places = {name: place for place, names in self.ids.items() for name in names}

        def rank(entry: IndexRecord) -> tuple[bool, datetime]:
            at = self.recalled.get(places[entry.id])
            return at is not None, at or entry.at or undated

        gone = [entry.id for entry in sorted(self.index.entries, key=rank)[:spare]]
        self.index.remove(gone)
        for name in gone:
            self.stored.pop(name, None)

    def vector_of(self, text: str) -> Vector | None:
        """Return the vector of an equal text of this user; None if there is none."""
        one = self.stored.get(self.digests.get(digest_of(text), ""))
        return one.vector if one and one.document.page_content == text else None


class TurnLog:
    """The records of all users over histories; see the module.

    Args:
        histories: A factory of histories whose store keeps an index.
        embedding: The embedding model.
        splitter: Splits long texts.
        importance: Rates a text from 1 to 10; None: nothing is rated.
        ttl: How long a record is recalled; None for as long as its turn is shown.
        read_only: Whether nothing is stored.
        now: The clock.
        cache_bytes: How much memory the records of all users may take. The last user's stay, however many.
        lazy: How many turns are indexed at most in one look.
        pause: Seconds for which a failed embedding model is not asked again for turns that lack vectors.
    """

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
        cache_bytes: int = CACHE_BYTES,
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
        self.is_whole_at_once = self._embeds_at_once and (self._rates_at_once or importance is None)
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
    def records(self) -> TurnLog:
        """Return this object, where recalling looks for records."""
        return self

    @property
    def is_remote(self) -> bool:
        """Whether reads wait for a server."""
        return self.store.is_remote

    # -- what recalling asks for

    async def read(self, user_id: str, session_id: str | None = None, *, trial: bool = False) -> tuple[Index, None]:
        """Look at what changed, and return the user's index."""
        return (await self.look(user_id, keeps=not (trial or self.read_only))).index, None

    async def texts(self, user_id: str, ids: Sequence[str]) -> Callable[[str], Any]:
        """Return a lookup of records by id: the document, and what was made of it."""
        held = self._held(user_id)
        if any(name not in held.stored for name in ids):  # erased, or held no more, since there were too many users
            held = await self.look(user_id, keeps=False)

        def text(name: str) -> tuple[Any, dict[Any, Any]] | None:
            one = held.stored.get(name)
            return None if one is None else (one.document, one.notes)

        return text

    async def get_by_ids(self, user_id: str, ids: Sequence[str]) -> list[Any]:
        """Return the documents of records, in this order."""
        held = self._held(user_id)
        return [held.stored[name].document for name in ids if name in held.stored]

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

    async def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return when records were last recalled, by id."""
        held = self._held(user_id)
        return {name: at for place, at in held.recalled.items() for name in held.ids.get(place, ())}

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Store when records were recalled, in the rows of their turns."""
        held = self._held(user_id)
        places = {held.stored[name].place for name in ids if name in held.stored}
        held.recalled |= dict.fromkeys(places, at)
        data = struct.pack(">d", at.timestamp())
        rows = [row for place in sorted(places) if (row := held.log.row_at(place))]
        await self._keep(user_id, RECALLED, [(row.place, row.op, data) for row in rows])

    # -- deriving

    async def derive(self, user_id: str, messages: Sequence[BaseMessage]) -> bytes:
        """Make the index of a turn that is to be stored: what a server has to be asked for is not in it yet."""
        size = sum(len(str(message.content)) for message in messages)
        index = await cpu_bound(lambda: turn_index.derive(messages, self._splitter), long=size > SHORT)
        if self._embeds_at_once:
            await self._embed(user_id, [index])
        if self._rates_at_once:
            await self._rate(index.records)
        return turn_index.encode(index)

    async def look(self, user_id: str, *, keeps: bool = True, most: int | None = None) -> UserRecords:
        """Look at what changed in a user's turns, and make what they lack.

        Args:
            user_id: The user.
            keeps: Whether what is made is stored.
            most: How many turns are indexed at most; None for `lazy`.

        Returns:
            The user's records.
        """
        held = self._held(user_id)
        names = [VECTORS, RECALLED]
        await self._step(lambda: catch_up(self.store, user_id, held.log, names, self._now()))
        if not self._sketch and held.log.unread:
            await self._recognize()
        await cpu_bound(partial(self._take, held), long=held.log.unread > MANY)
        is_paused = time.monotonic() - self._failed_at < self._pause
        if held.lacking and not (is_paused and held.lacking.keys() <= held.ids.keys()):
            await self._complete(user_id, held, keeps=keeps, most=self._lazy if most is None else most)
        with self._lock:
            self._users.put(user_id, held)
        return held

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
        undated = datetime.min.replace(tzinfo=UTC)
        with held.index.lock:
            found = held.log.news()
            come = {row.place for row in found.come}
            for place in found.gone:
                if place not in come:
                    held.lacking.pop(place, None)
                    held.drop(place)
                    held.known.pop(place, None)
            for row in sorted(found.come, key=lambda row: row.created_at or undated):
                self._take_row(held, row)
            held.evict(self._max_records)

    def _take_row(self, held: UserRecords, row: ChangedRow) -> None:
        if recalled := row.index.get(RECALLED):
            held.recalled[row.place] = datetime.fromtimestamp(struct.unpack(">d", recalled)[0], UTC)
        data = row.index.get(VECTORS)
        if data is not None and held.known.get(row.place) == data and row.place in held.ids:
            return
        index = turn_index.decode(data)
        held.known[row.place] = data
        if index is None:
            held.drop(row.place)
            held.lacking[row.place] = row
            return
        held.sketch = held.sketch or self._sketch or index.sketch
        if index.sketch and not turn_index.same_model(index.sketch, self._sketch or held.sketch):
            for record in index.records:
                record.vector = None
        held.put(row, index, self._ttl)
        held.lacking.pop(row.place, None)
        is_rated = self._importance is None or all(record.importance is not None for record in index.records)
        if not (index.is_embedded and is_rated):
            held.lacking[row.place] = row

    # -- making what is lacking

    async def _complete(self, user_id: str, held: UserRecords, *, keeps: bool, most: int, batch: int = 128) -> None:
        """Index the newest turns that lack it."""
        undated = datetime.min.replace(tzinfo=UTC)
        newest = sorted(held.lacking.values(), key=lambda row: row.created_at or undated, reverse=True)[:most]
        for begin in range(0, len(newest), batch):
            rows = newest[begin : begin + batch]
            made = await self._made(user_id, rows)
            await self._try_to_rate(record for _, index in made for record in index.records)
            is_embedded = await self._try_to_embed(user_id, [index for _, index in made])
            fresh: list[tuple[Place, str, bytes]] = []
            with held.index.lock:
                there = {row.place for row, _ in made} & held.lacking.keys()  # what was erased meanwhile is not held
                for row, index in made:
                    data = turn_index.encode(index)
                    if row.place not in there:
                        continue
                    held.put(row, index, self._ttl)
                    if data != row.index.get(VECTORS) and row.place not in held.kept:
                        fresh.append((row.place, row.op, data))
                    held.lacking[row.place] = replace(row, index={**row.index, VECTORS: data})
                for row in rows:
                    if is_embedded or row.place not in there:
                        held.lacking.pop(row.place, None)
                held.evict(self._max_records)
            if keeps and fresh:
                held.known |= {place: data for place, _, data in fresh}
                if is_embedded:  # each row once: another process may use another model
                    held.kept.update(place for place, _, _ in fresh)
                await self._keep(user_id, VECTORS, fresh)
            if not is_embedded:
                return

    async def _made(self, user_id: str, rows: Sequence[ChangedRow]) -> list[tuple[ChangedRow, TurnIndex]]:
        """Return the indexes of rows, without vectors where they had none."""
        made: dict[Place, TurnIndex] = {}
        for row in rows:
            index = turn_index.decode(row.index.get(VECTORS))
            if index is not None:
                made[row.place] = index
        absent = [row.place for row in rows if row.place not in made]
        turns = await self._step(lambda: self.store.turns_at(user_id, absent)) if absent else []
        for session_id, turn in turns:
            work = partial(turn_index.derive, turn.messages, self._splitter)
            made[session_id, turn.seq] = await cpu_bound(work, long=len(turn.messages) > 10)
        return [(row, made[row.place]) for row in rows if row.place in made]

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
        """Learn which model this is; if it fails, the vectors that are stored are taken for its own."""
        try:
            await self._look_at_model()
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # embedders raise anything
            logger.warning("the embedding model does not answer: %s", describe_error(error))

    async def _look_at_model(self) -> None:
        (probe,) = await self._vectors([PROBE])
        if probe is None:
            name = type(self.embedding).__name__
            raise ConfigurationError(f"{name} gave a vector of all zeros for a plain English sentence")
        self._sketch = turn_index.sketch_of(probe)

    async def _vectors(self, texts: list[str]) -> list[Vector | None]:
        model = self.embedding
        vectors = await Step(lambda: model.embed_documents(texts), lambda: model.aembed_documents(texts))
        if len(vectors) != len(texts):
            raise ConfigurationError(f"the embedding model returned {len(vectors)} vectors for {len(texts)} texts")
        return unit_vectors(vectors, int(self._sketch[0]) if self._sketch else None)

    async def _try_to_rate(self, records: Iterable[TurnRecord]) -> None:
        """Rate what is not rated; what fails stays unrated in this process."""
        if self._importance is None:
            return
        try:
            await self._rate(records)
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # an app's function raises anything
            logger.warning("turns were not rated: %s", describe_error(error))

    async def _rate(self, records: Iterable[TurnRecord]) -> None:
        rated = [record for record in records if record.importance is None]
        if not rated:
            return
        texts = [record.text for record in rated]
        batch = getattr(self._importance, "batch", None)
        if batch is not None:
            values = await Step(lambda: batch(texts), lambda: self._importance.abatch(texts))
        else:
            values = [await call_user_function(self._importance, text, name="importance") for text in texts]
        for record, value in zip(rated, values, strict=True):
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                msg = f"importance must return a number from 1 to 10; got {describe_value(value)}"
                raise ConfigurationError(msg)
            record.importance = float(value)

    async def _keep(self, user_id: str, name: str, made: list[tuple[Place, str, bytes]]) -> None:
        if self.read_only or not made:
            return
        try:
            await self._step(lambda: self.store.keep_index(user_id, name, made))
        except HistoryWriteError as error:
            logger.warning("what was derived from %d turns is not stored, but made again: %s", len(made), error)

    def _step(self, make_flow: Callable[[], Flow[T]]) -> Step[T]:
        async def asynchronous() -> T:
            return await self.store.arun(make_flow())

        return Step(lambda: self.store.run(make_flow()), asynchronous)
