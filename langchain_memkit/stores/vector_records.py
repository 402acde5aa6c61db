"""The records of users in a vector store, as flows, and the interfaces below and above them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from langchain_memkit._sync import Flow, Step, cpu_bound
from langchain_memkit.base import Now, SessionInfo, check_id, check_size
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from langchain_memkit.ranking.index import Index, StoredSession, unit_vectors
from langchain_memkit.stores import vector_rows
from langchain_memkit.stores.vector_cache import ReadSession, VectorIndexCache
from langchain_memkit.stores.vector_rows import NOBODY, NOTHING, RecordWrite, Vector, check_ids, readable_documents

T = TypeVar("T")

FEW = 50  # records that are added to an index without a thread
SHORT = 2000  # characters that are processed without a thread
TextLookup: TypeAlias = Callable[[str], tuple[Document, dict[tuple[int, ...], Any]] | None]
"""A function from a record's id to the record, with a dict in which a memory keeps what it made of it to show it."""


class VectorMemoryStore(Protocol):
    """The store of a `VectorMemory`, as flows: `VectorRecords`, or an adapter of any LangChain vector store.

    Raises:
        TypeError, ValueError: An id is not a string, empty or malformed, or a limit is none; before any I/O.
        HistoryReadError: The store cannot be reached or read.
        HistoryWriteError: The store failed; calling again is safe. `maybe_stored` says whether the outcome is unknown.
    """

    async def index(self, user_id: str) -> Index:
        """Return an index of a user's records, as they are now, without damaged and expired ones; hold its lock."""

    async def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str] = (),
        ids: Sequence[str] = (),
        messages: Collection[str] | None = None,
        since: str | None = None,
    ) -> StoredSession:
        """Read what a write to a session depends on.

        Args:
            user_id: The user.
            session_id: The conversation.
            digests: Digests of the texts that are to be embedded, as `digest_of` makes them.
            ids: Ids of records of this session that are to be written.
            messages: Ids of the messages that are to be written, if they begin a new round: then the last record may be
                left out, if it is complete and holds none of these messages or texts. None: it is always read.
            since: The generation that the first try of the same turn was given, where this is a later try; it is
                returned in place of the current one.

        Returns:
            The session's generation (drawn now if it has none), its last record, the stored vectors of this user's
            texts with these digests, and the session's records with these ids.
        """

    async def embed(self, texts: Sequence[str]) -> list[Vector | None]:
        """Embed texts that are to be stored, as float32 vectors of length 1.

        None for a text without a vector: one whose words the model does not know, or of a store that embeds itself.

        Raises:
            ConfigurationError: The store was filled with another model, or the model gave no vectors.
        """

    async def write(
        self,
        user_id: str,
        session_id: str,
        generation: str,
        documents: Sequence[Document],
        vectors: Sequence[Vector | None],
        delete: Collection[str] = (),
        expected: Mapping[str, str] = NOTHING,
        state: int | None = None,
    ) -> bool:
        """Store records of a session, replacing those with the same ids, and delete others.

        Args:
            user_id: The user.
            session_id: The conversation.
            generation: The session's generation, as `begin` returned it.
            documents: Records, with their ids, and their user and session in the metadata.
            vectors: One for each, as `embed` or `begin` returned it; None: not embedded.
            delete: Ids of records of this user to delete.
            expected: Digests by id of records of this session that must still have these texts, so that no answer is
                lost where two writers continue the same record.
            state: `StoredSession.state` when the session was read: records are added only if nobody else added any
                since (compare-and-set). None: they are added in any case.

        Returns:
            True; False if the session was forgotten since it began, and nothing was stored.

        Raises:
            ConfigurationError: A vector is invalid, or of another model.
            MessageEncodeError: A value in the metadata would not come back equal. Nothing was stored.
            HistoryConflictError: An expected record is gone or has another text, somebody else added records
                since, or an id belongs to another session. Nothing was stored.
        """

    async def texts(self, user_id: str, ids: Sequence[str]) -> TextLookup:
        """Return a lookup of records by id."""

    async def get_by_ids(self, user_id: str | None, ids: Sequence[str]) -> list[Document]:
        """Read records of a user by id, in this order; missing ones are left out."""

    async def delete(self, user_id: str | None, ids: Sequence[str]) -> None:
        """Delete records of a user by id; missing ones are ignored."""

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Store the time, aware, at which records were recalled, unless a later one is stored."""

    async def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return the times at which records were last recalled, by id."""

    async def evict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Delete the records above a limit, first those never recalled, but none of `keep`; return how many."""

    async def sessions(self, user_id: str) -> list[SessionInfo]:
        """List the sessions of a user that hold records, most recently used first."""

    async def forget(self, user_id: str, session_id: str | None = None) -> int:
        """Delete a session of a user, or all of the user; return how many records."""


class VectorRecords:
    """A `VectorMemoryStore` over a backend, which keeps the rows, with a cache of the users' indexes."""

    def __init__(self, backend: vector_rows.VectorBackend, embedding: Embeddings, cache_bytes: int, now: Now) -> None:
        self.embedder = vector_rows.Embedder(embedding, backend, self.step)
        self._backend = backend
        self._now = now
        self.cache = VectorIndexCache(backend, self.step, cache_bytes, now)

    def step(self, make_flow: Callable[[], Flow[T]]) -> Step[T]:
        """Return a flow of the backend as a step."""

        async def asynchronous() -> T:
            return await self._backend.arun(make_flow())

        return Step(lambda: self._backend.run(make_flow()), asynchronous)

    async def index(self, user_id: str) -> Index:
        """See `VectorMemoryStore`; usually takes one read."""
        return (await self.read(check_id(user_id, "user_id")))[0]

    async def read(self, user_id: str, session_id: str | None = None) -> tuple[Index, ReadSession | None]:
        """Return the user's index, and the session's snapshot if a write can start from it."""
        return await self.cache.read(user_id, session_id)

    async def embed(self, texts: Sequence[str]) -> list[Vector | None]:
        """Embed texts that are to be stored."""
        return await self.embedder.documents(texts)

    async def embed_query(self, text: str) -> Vector:
        """Embed a question."""
        return await self.embedder.query(text)

    async def get_by_ids(self, user_id: str | None, ids: Sequence[str]) -> list[Document]:
        """Read records by id; without a user those of nobody."""
        user, names = _whose(user_id), check_ids(ids)
        stored = await self._stored(user, names, "") if names else []
        found = {shown.document.id: shown.document for shown in readable_documents(stored, self._now())}
        # If the cached index holds a record that is not stored any more, somebody removed it behind memkit's back:
        # the cached version proves nothing then, and the next read lists everything.
        self.cache.miss(user, [name for name in names if name not in found])
        return [found[name] for name in names if name in found]

    async def _stored(self, user_id: str, ids: list[str], state: str) -> list[vector_rows.DocumentRow]:
        """Read records by id. Raise if no user was named and an id belongs to a user's record."""
        backend = self._backend
        stored = await self.step(lambda: backend.by_ids(user_id, ids, vectors=False))
        there = {row.id for row in stored}
        missing = [name for name in ids if name not in there]
        if user_id == NOBODY and missing and await self.step(lambda: backend.owned(missing)):
            problem = "an id belongs to a document of a user: say whose, with user_id=; an id is unique for its user"
            raise ConfigurationError(problem + state)
        return stored

    async def texts(self, user_id: str, ids: Sequence[str]) -> TextLookup:
        """Return a lookup of records by id, as of the last read of the index; uncached ones are read."""
        held = self.cache.texts(user_id)
        found: dict[str, Document] = {}
        if missing := [name for name in ids if name not in held]:
            found = {document.id or "": document for document in await self.get_by_ids(user_id, missing)}

        def text(name: str) -> tuple[Document, dict[tuple[int, ...], Any]] | None:
            cached = held.get(name)
            document = found.get(name) if cached is None else cached.document(name)
            return None if document is None else (document, {} if cached is None else cached.notes)

        return text

    async def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str] = (),
        ids: Sequence[str] = (),
        messages: Collection[str] | None = None,
        since: str | None = None,
    ) -> StoredSession:
        """Read what a write to a session depends on."""
        place = check_id(user_id, "user_id"), check_id(session_id, "session_id")
        wanted = vector_rows.WantedRecords(check_ids(digests), check_ids(ids), messages)
        found = await self.step(lambda: self._backend.begin(*place, wanted))
        now = self._now()
        last = [shown.document for shown in readable_documents(found.last, now)]
        records = {shown.document.id or "": shown.document for shown in readable_documents(found.records, now)}
        whole = {digest: vector for digest, vector in found.vectors.items() if vector and len(vector) % 4 == 0}
        vectors = {digest: np.frombuffer(vector, "<f4") for digest, vector in whole.items()}
        position = found.position if isinstance(found.position, int) else 0  # it may be damaged
        # A retry belongs to the session that its first try saw: with a fresh generation it would bring back text that
        # was forgotten in between.
        return StoredSession(since or found.generation, last[0] if last else None, vectors, records, position)

    async def write(
        self,
        user_id: str,
        session_id: str,
        generation: str,
        documents: Sequence[Document],
        vectors: Sequence[Any],
        delete: Collection[str] = (),
        expected: Mapping[str, str] = NOTHING,
        state: int | None = None,
    ) -> bool:
        """Store records of a session and delete others."""
        user, session = check_id(user_id, "user_id"), check_id(session_id, "session_id")
        place, gone = (session, check_id(generation, "generation")), check_ids(delete)
        check_ids([*expected, *expected.values()])
        if len(documents) != len(vectors):
            raise ValueError(f"there are {len(documents)} documents and {len(vectors)} vectors")
        long = sum(len(document.page_content) for document in documents) > SHORT
        rows = await cpu_bound(lambda: [vector_rows.record_row(d, user, session) for d in documents], long=long)
        return await self.store(user, RecordWrite(rows, gone, place, expected, state), vectors)

    async def store(self, user_id: str, given: RecordWrite, vectors: Sequence[Any]) -> bool:
        """Store rows of a user with their vectors, each id once, delete others, and update the cache."""
        rows = given.rows
        if embedded := [i for i, vector in enumerate(vectors) if vector is not None]:
            dims = await self.embedder.known()
            for i, vector in zip(embedded, unit_vectors([vectors[i] for i in embedded], dims), strict=True):
                rows[i].vector = None if vector is None else vector.tobytes()
        distinct = {row.entry.id: row for row in rows}
        removed = [name for name in given.delete if name not in distinct]
        if not distinct and not removed and given.place is None:
            return True
        new = given._replace(rows=list(distinct.values()), delete=removed)
        written: vector_rows.WriteResult | None = await self.step(lambda: self._backend.write(user_id, new))
        if written is None:
            return False
        long = len(rows) > FEW or sum(len(str(row.text)) for row in rows) > SHORT
        await cpu_bound(partial(self.cache.wrote, user_id, new.rows, removed, written), long=long)
        return True

    async def delete(self, user_id: str | None, ids: Sequence[str]) -> None:
        """Delete records by id; without a user those of nobody."""
        user, names = _whose(user_id), check_ids(ids)
        if not names:
            return
        if user == NOBODY:
            try:
                await self._stored(user, names, ". Nothing was deleted")
            except HistoryReadError as error:
                raise HistoryWriteError(f"{error}. Nothing was deleted.") from error
        await self.step(lambda: self._backend.delete(user, names))

    async def forget(self, user_id: str, session_id: str | None = None) -> int:
        """Delete a session of a user, or all of the user."""
        user, session = check_id(user_id, "user_id"), None if session_id is None else check_id(session_id, "session_id")
        self.cache.forget(user)
        count = await self.step(lambda: self._backend.forget(user, session))
        # A read that began before the deletion may put what it read back into the cache: the entry is dropped again.
        self.cache.forget(user)
        return count

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Store the time at which records were recalled, unless a later one is stored."""
        user, names = check_id(user_id, "user_id"), check_ids(ids)
        if at.tzinfo is None:
            raise ValueError("at must be aware, e.g. datetime.now(UTC)")
        if names:
            await self.step(lambda: self._backend.touch(user, names, at))

    async def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return the times at which records were last recalled, by id."""
        return await self.step(lambda: self._backend.accesses(check_id(user_id, "user_id")))

    async def evict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Delete the records above a limit, first those never recalled."""
        user, most, kept = check_id(user_id, "user_id"), check_size(max_records, "max_records", 0), check_ids(keep)
        return await self.step(lambda: self._backend.evict(user, most, kept))

    async def sessions(self, user_id: str) -> list[SessionInfo]:
        """List the sessions of a user that hold records."""
        return await self.step(lambda: self._backend.sessions(check_id(user_id, "user_id")))


def _whose(user_id: str | None) -> str:
    """Return the user id under which records are stored; those without a user stand under a name of their own."""
    return NOBODY if user_id is None else check_id(user_id, "user_id")
