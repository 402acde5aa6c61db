"""`ForeignStore`: adapter from any LangChain vector store to the store of a vector memory."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from langchain_memkit._sync import adrive, drive
from langchain_memkit.base import GetSessionHistory, SessionInfo
from langchain_memkit.memories.vector.foreign.access import Access
from langchain_memkit.memories.vector.foreign.dialects import FilterBuilder
from langchain_memkit.memories.vector.foreign.flows import Flows, Similar, index_of, sessions_of
from langchain_memkit.memories.vector.foreign.transcripts import Transcripts
from langchain_memkit.memories.vector.rounds import Splitter
from langchain_memkit.scoring.index import Begun, Index

__all__ = ["ForeignStore", "Similar"]


class ForeignStore:
    """Adapts any LangChain `VectorStore` (Chroma, FAISS, MongoDB Atlas, pgvector, ...) to the needs of `VectorMemory`.

    The store embeds and searches by similarity. The lexical search runs in process, over the transcripts or, without
    them, over the store's search results. Every search carries the user's filter, and the user of each hit is checked
    again, so that a store that ignores filters never shows one user's records to another. Records keep plain metadata
    fields (`user_id`, `session_id`, `round_id`, `created_at`, ...) that the store's own tools show, and one field of
    JSON. Give the memory a collection of its own: documents of your app with the same `user_id` would be found, and
    forgotten, with the records.

    Limits compared with memkit's own stores: an unfinished round is embedded when it is saved and again when it is
    continued; greetings are embedded too; recall times are known to this process only; a save in progress in another
    process is not refused when its session is forgotten (the transcript, if there is one, hides what is left); expired
    records are not found, but stay in the store until they are forgotten.

    Args:
        store: The vector store. It must be able to delete. If it cannot look up ids (`get_by_ids`), adding a document
            must replace the one with the same id, and only records that its search finds are recalled.
        filter_builder: Function from metadata (`{"user_id": ...}`, sometimes with `"session_id"`) to the keyword
            arguments of `similarity_search` that restrict it to documents with that metadata. Built in for Chroma,
            FAISS, `InMemoryVectorStore`, MongoDB Atlas (its index must have both as filter fields) and `PGVector`.
        get_session_history: Source of the transcripts. A memkit factory lists a user's sessions and tells which have
            changed; with any other callable, the sessions seen in this process are read at every question.
        splitter: Splits long rounds; must be the memory's, so that records have the same ids.
        ttl: The memory's `ttl`, so that records read from transcripts expire as well.
        cache_bytes: Memory limit of the lexical indexes, in bytes; the least recently used are dropped and read again.

    Raises:
        ConfigurationError: The store's filter syntax is unknown, or the store cannot delete.

    Example:
        >>> from langchain_core.embeddings import DeterministicFakeEmbedding
        >>> from langchain_core.vectorstores import InMemoryVectorStore
        >>> store = ForeignStore(InMemoryVectorStore(DeterministicFakeEmbedding(size=8)))
        >>> tea = Document("human: I like tea.", id="r1", metadata={"user_id": "u1", "session_id": "s1"})
        >>> store.write("u1", "s1", "", [tea], [None])
        True
        >>> store.similar("u1", "tea", 5), store.similar("u2", "tea", 5)
        ({'r1': 1.0}, {})
    """

    def __init__(
        self,
        store: VectorStore,
        *,
        filter_builder: FilterBuilder | None = None,
        get_session_history: GetSessionHistory | None = None,
        splitter: Splitter | None = None,
        ttl: timedelta | None = None,
        cache_bytes: int = 64_000_000,
    ) -> None:
        self._access = Access(store, filter_builder)

        def expiry(at: datetime, of_turn: datetime | None) -> datetime | None:
            return min((end for end in (of_turn, at + ttl if ttl else None) if end), default=None)

        transcripts = None
        if get_session_history is not None:
            transcripts = Transcripts(get_session_history, splitter or Splitter(), expiry, cache_bytes)
        self._flows = Flows(self._access, transcripts)

    def __repr__(self) -> str:
        """Name only the store's class: its own repr may contain credentials."""
        return f"ForeignStore({self._access.name})"

    @property
    def embeddings(self) -> Embeddings | None:
        """The store's embedding model, if it exposes one."""
        return self._access.store.embeddings

    # -- embedding: the store's own business

    def embed(self, texts: Sequence[str]) -> list[None]:
        """Return None for each text: the store embeds documents itself."""
        return [None for _ in texts]

    async def aembed(self, texts: Sequence[str]) -> list[None]:
        """Run `embed` asynchronously."""
        return self.embed(texts)

    def embed_query(self, text: str) -> None:
        """Return None: the store embeds queries itself, see `similar`."""

    async def aembed_query(self, text: str) -> None:
        """Run `embed_query` asynchronously."""

    # -- a turn

    def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str] = (),
        ids: Sequence[str] = (),
        messages: Collection[str] | None = None,
        since: str | None = None,
    ) -> Begun:
        """Start a save: read the records with these ids, and take a logical timestamp.

        The timestamp becomes the `generation` of `write`, which refuses the save if the session was forgotten since.

        Args:
            user_id: The user.
            session_id: The conversation.
            digests: Not used: the store embeds by itself.
            ids: Ids of the records that may be written.
            messages: Not used.
            since: The timestamp of the first attempt of the same save, to keep in place of a new one.
        """
        moment = since or self._flows.begin(user_id, session_id)
        return _begun(moment, self._access.run(self._access.get(ids)) if ids else [])

    async def abegin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str] = (),
        ids: Sequence[str] = (),
        messages: Collection[str] | None = None,
        since: str | None = None,
    ) -> Begun:
        """Run `begin` asynchronously."""
        moment = since or self._flows.begin(user_id, session_id)
        return _begun(moment, await self._access.arun(self._access.get(ids)) if ids else [])

    def write(
        self,
        user_id: str,
        session_id: str,
        generation: str,
        documents: Sequence[Document],
        vectors: Sequence[Any],
        delete: Sequence[str] = (),
        expected: Mapping[str, str] | None = None,
    ) -> bool:
        """Add records, which the store embeds; records that it holds already are not added again.

        Args:
            user_id: The user.
            session_id: The conversation.
            generation: The timestamp of `begin`; empty without one.
            documents: Records with ids; they replace those with the same ids.
            vectors: Not used.
            delete: Ids of records to delete.
            expected: Not used: such a store has no compare-and-set.

        Returns:
            False if this process forgot the session since `begin`; the added records are removed again then.

        Raises:
            HistoryWriteError: The store failed; calling again is safe.
        """
        return self._access.run(self._flows.write(user_id, session_id, generation, documents, delete))

    async def awrite(
        self,
        user_id: str,
        session_id: str,
        generation: str,
        documents: Sequence[Document],
        vectors: Sequence[Any],
        delete: Sequence[str] = (),
        expected: Mapping[str, str] | None = None,
    ) -> bool:
        """Run `write` asynchronously."""
        return await self._access.arun(self._flows.write(user_id, session_id, generation, documents, delete))

    def similar(self, user_id: str, query: str, k: int) -> Similar:
        """Search for the user's `k` most similar records; similarities by id, scaled from 1 to 0."""
        return self._access.run(self._flows.search(user_id, query, k))

    async def asimilar(self, user_id: str, query: str, k: int) -> Similar:
        """Run `similar` asynchronously."""
        return await self._access.arun(self._flows.search(user_id, query, k))

    def index(self, user_id: str, similar: Similar | None = None) -> Index:
        """Return a lexical index of the user's records, without vectors.

        Args:
            user_id: The user.
            similar: Search result for a question: the index covers the transcripts or, without transcripts, the search
                result. None: the index covers all records of the user, which reads them all from the store.
        """
        if similar is None:
            return index_of(self._access.run(self._flows.everything(user_id)))
        return drive(self._flows.words(user_id, similar))

    async def aindex(self, user_id: str, similar: Similar | None = None) -> Index:
        """Run `index` asynchronously."""
        if similar is None:
            return await asyncio.to_thread(index_of, await self._access.arun(self._flows.everything(user_id)))
        return await adrive(self._flows.words(user_id, similar))

    def touch(self, user_id: str, ids: Iterable[str], at: datetime) -> None:
        """Record the recall time of records, in this process only."""
        self._flows.touch(user_id, ids, at)

    async def atouch(self, user_id: str, ids: Iterable[str], at: datetime) -> None:
        """Run `touch` asynchronously."""
        self.touch(user_id, ids, at)

    def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return the last recall of each record that this process recalled, by id."""
        return self._flows.accesses(user_id)

    async def aaccesses(self, user_id: str) -> dict[str, datetime]:
        """Run `accesses` asynchronously."""
        return self.accesses(user_id)

    # -- the records

    def get_by_ids(self, ids: Sequence[str]) -> list[Document]:
        """Read the records with these ids, in this order; missing ones are left out."""
        return self._access.run(self._access.get(ids))

    async def aget_by_ids(self, ids: Sequence[str]) -> list[Document]:
        """Run `get_by_ids` asynchronously."""
        return await self._access.arun(self._access.get(ids))

    def delete(self, ids: Sequence[str]) -> None:
        """Delete records; missing ids are ignored.

        Raises:
            HistoryWriteError: The store failed, or still holds them.
        """
        self._access.run(self._access.remove(ids))

    async def adelete(self, ids: Sequence[str]) -> None:
        """Run `delete` asynchronously."""
        await self._access.arun(self._access.remove(ids))

    def forget(self, user_id: str, session_id: str | None = None) -> int:
        """Delete all records of a session, or of a user, searching again until the store finds none.

        Args:
            user_id: The user.
            session_id: The session; None for all sessions of the user.

        Returns:
            The number of deleted records.

        Raises:
            HistoryWriteError: The store failed, or still holds some; calling again finishes the work.
        """
        return self._access.run(self._flows.forget(user_id, session_id))

    async def aforget(self, user_id: str, session_id: str | None = None) -> int:
        """Run `forget` asynchronously."""
        return await self._access.arun(self._flows.forget(user_id, session_id))

    def evict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Delete the user's records over `max_records`.

        Records that this process never recalled go first, oldest first; then those recalled longest ago.

        Args:
            user_id: The user.
            max_records: How many records may stay.
            keep: Ids that are never deleted, such as those just written.

        Returns:
            The number of deleted records.
        """
        return self._access.run(self._flows.evict(user_id, max_records, keep))

    async def aevict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Run `evict` asynchronously."""
        return await self._access.arun(self._flows.evict(user_id, max_records, keep))

    def sessions(self, user_id: str) -> list[SessionInfo]:
        """List the sessions with records in the store, most recently used first; `turns` counts records."""
        return sessions_of(self._access.run(self._flows.everything(user_id)))

    async def asessions(self, user_id: str) -> list[SessionInfo]:
        """Run `sessions` asynchronously."""
        return sessions_of(await self._access.arun(self._flows.everything(user_id)))


def _begun(moment: str, found: Iterable[Document]) -> Begun:
    return Begun(moment, None, {}, {document.id: document for document in found if document.id})
