"""Any LangChain vector store as the store of a vector memory."""

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
    """Gives `VectorMemory` what it needs, over any LangChain `VectorStore`: Chroma, FAISS, MongoDB Atlas, pgvector.

    The store embeds and finds by meaning; by words the transcripts are searched, in process, or where there are none
    what the store found. Every search carries the user's filter, and each hit's user is looked at again, so that a
    store that ignores filters shows nobody what is another's. Records keep plain fields (`user_id`, `session_id`,
    `round_id`, `created_at`, ...) that the store's own tools show, and one field of JSON. Give the memory a collection
    of its own: documents of your app that have the same `user_id` are found, and forgotten, with the records.

    What is less than with our own stores: a store embeds an unfinished round when it is saved and again when it goes
    on; greetings are embedded as well; when records were recalled is known to this process only; a save under way in
    another process is not refused when its session is forgotten (its transcript, if there is one, hides what is left);
    what has expired is not found, but stays until it is forgotten.

    Args:
        store: The store. It must be able to delete. One that cannot look up ids (`get_by_ids`) must replace what has
            the same id, and of it only that is recalled which its search finds.
        filter_builder: From metadata (`{"user_id": ...}`, at times with `"session_id"`) to the keyword arguments of
            `similarity_search` that find only what has it. Known are Chroma, FAISS, `InMemoryVectorStore`, MongoDB
            Atlas (its index must have both as filter fields) and `PGVector`.
        get_session_history: Where the transcripts are. A factory of ours lists a user's sessions and tells which
            changed; another callable is asked for the sessions that were seen in this process, at every question.
        splitter: Cuts long rounds as the memory does; the same one, so that records have the same ids.
        ttl: The memory's, so that what was read from transcripts expires as well.
        cache_bytes: What the words of the users' transcripts may take; who asked longest ago is read again.

    Raises:
        ConfigurationError: How the store filters is not known, or it cannot delete.

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
        """Names the store's class: it may hold credentials."""
        return f"ForeignStore({self._access.name})"

    @property
    def embeddings(self) -> Embeddings | None:
        """What the store embeds with, if it says so."""
        return self._access.store.embeddings

    # -- embedding: the store's own business

    def embed(self, texts: Sequence[str]) -> list[None]:
        """Nothing for each text: the store embeds what it is given."""
        return [None for _ in texts]

    async def aembed(self, texts: Sequence[str]) -> list[None]:
        """Async twin of `embed`."""
        return self.embed(texts)

    def embed_query(self, text: str) -> None:
        """Nothing: `similar` asks the store."""

    async def aembed_query(self, text: str) -> None:
        """Async twin of `embed_query`."""

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
        """Which of these records the store holds, and the moment: a save that a `forget` overtakes adds nothing."""
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
        """Async twin of `begin`."""
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
        """Adds records, which the store embeds; what it holds already is not added again.

        Args:
            user_id: Whose.
            session_id: The conversation.
            generation: Of `begin`; empty if there was none.
            documents: With ids; in place of those with the same ids.
            vectors: Not used.
            delete: Ids of records to delete.
            expected: Not used: such a store cannot compare.

        Returns:
            False if the session was forgotten by this process since `begin`: nothing is left then.

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
        """Async twin of `write`."""
        return await self._access.arun(self._flows.write(user_id, session_id, generation, documents, delete))

    def similar(self, user_id: str, query: str, k: int) -> Similar:
        """The user's records that are most similar, by id, with similarities from 1 to 0; at most `k`."""
        return self._access.run(self._flows.search(user_id, query, k))

    async def asimilar(self, user_id: str, query: str, k: int) -> Similar:
        """Async twin of `similar`."""
        return await self._access.arun(self._flows.search(user_id, query, k))

    def index(self, user_id: str, similar: Similar | None = None) -> Index:
        """The user's records by their words, without vectors.

        Args:
            user_id: Whose.
            similar: What was found for a question: then the index is that of the transcripts, or without transcripts
                one of what was found. None: of all that the store holds of the user, which takes as long as that is.
        """
        if similar is None:
            return index_of(self._access.run(self._flows.everything(user_id)))
        return drive(self._flows.words(user_id, similar))

    async def aindex(self, user_id: str, similar: Similar | None = None) -> Index:
        """Async twin of `index`."""
        if similar is None:
            return await asyncio.to_thread(index_of, await self._access.arun(self._flows.everything(user_id)))
        return await adrive(self._flows.words(user_id, similar))

    def touch(self, user_id: str, ids: Iterable[str], at: datetime) -> None:
        """Remembers in this process that records were recalled."""
        self._flows.touch(user_id, ids, at)

    async def atouch(self, user_id: str, ids: Iterable[str], at: datetime) -> None:
        """Async twin of `touch`."""
        self.touch(user_id, ids, at)

    def accesses(self, user_id: str) -> dict[str, datetime]:
        """When records were last recalled, by id, as far as this process knows."""
        return self._flows.accesses(user_id)

    async def aaccesses(self, user_id: str) -> dict[str, datetime]:
        """Async twin of `accesses`."""
        return self.accesses(user_id)

    # -- the records

    def get_by_ids(self, ids: Sequence[str]) -> list[Document]:
        """The records with these ids that the store holds, in this order."""
        return self._access.run(self._access.get(ids))

    async def aget_by_ids(self, ids: Sequence[str]) -> list[Document]:
        """Async twin of `get_by_ids`."""
        return await self._access.arun(self._access.get(ids))

    def delete(self, ids: Sequence[str]) -> None:
        """Deletes records; ids that are not there are passed over.

        Raises:
            HistoryWriteError: The store failed, or still holds them.
        """
        self._access.run(self._access.remove(ids))

    async def adelete(self, ids: Sequence[str]) -> None:
        """Async twin of `delete`."""
        await self._access.arun(self._access.remove(ids))

    def forget(self, user_id: str, session_id: str | None = None) -> int:
        """Deletes all records of a session, or of a user, and looks again until the store finds none.

        Returns:
            How many were deleted.

        Raises:
            HistoryWriteError: The store failed, or still holds them; calling again finishes the work.
        """
        return self._access.run(self._flows.forget(user_id, session_id))

    async def aforget(self, user_id: str, session_id: str | None = None) -> int:
        """Async twin of `forget`."""
        return await self._access.arun(self._flows.forget(user_id, session_id))

    def evict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Deletes what is too much: the oldest that this process never recalled, then what it recalled longest ago.

        What is to be kept, which was just written, stays.

        Returns:
            How many were deleted.
        """
        return self._access.run(self._flows.evict(user_id, max_records, keep))

    async def aevict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Async twin of `evict`."""
        return await self._access.arun(self._flows.evict(user_id, max_records, keep))

    def sessions(self, user_id: str) -> list[SessionInfo]:
        """The sessions of which the store holds records, the last used first; `turns` counts records."""
        return sessions_of(self._access.run(self._flows.everything(user_id)))

    async def asessions(self, user_id: str) -> list[SessionInfo]:
        """Async twin of `sessions`."""
        return sessions_of(await self._access.arun(self._flows.everything(user_id)))


def _begun(moment: str, found: Iterable[Document]) -> Begun:
    return Begun(moment, None, {}, {document.id: document for document in found if document.id})
