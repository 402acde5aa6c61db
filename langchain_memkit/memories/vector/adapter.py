"""Any LangChain vector store as the store of a vector memory."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from math import isfinite
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import VectorStore

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import Flow, Step, adrive, drive, drive_in_thread
from langchain_memkit.base import GetSessionHistory, SessionInfo
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, MemkitError
from langchain_memkit.memories.vector.adapter_dialects import (
    FilterBuilder,
    Wanted,
    dialect_of,
    from_store,
    matches_metadata,
    to_store,
)
from langchain_memkit.memories.vector.adapter_index import Transcripts
from langchain_memkit.memories.vector.rounds import Splitter
from langchain_memkit.ranking.index import Index, StoredSession, index_record_of

__all__ = ["Flows", "SearchScores", "StoreClient", "VectorStoreAdapter", "index_of", "sessions_of"]

T = TypeVar("T")

BATCH = 500  # documents added or deleted per call
PAGE = 1000  # documents requested by the first search where a store cannot list its documents
MOST = 1_000_000  # documents: a search for this many that is still incomplete is an error
ANYTHING = "memory"  # the query of a search for everything: some embedders refuse an empty text
LATELY = 10_000  # documents cached for stores without `get_by_ids`

_locks: WeakKeyDictionary[VectorStore, ForkSafeLock] = WeakKeyDictionary()


class StoreClient:
    """Operations on a third-party vector store, as flows.

    Args:
        store: The store.
        filter_builder: See `VectorStoreAdapter`.

    Raises:
        ConfigurationError: The store's filter syntax is unknown, or the store cannot delete.
    """

    def __init__(self, store: VectorStore, filter_builder: FilterBuilder | None) -> None:
        self.store = store
        self.name = type(store).__name__
        self._dialect = dialect_of(store, filter_builder)
        if _lacks(store, "delete") and _lacks(store, "adelete"):
            raise self._cannot_delete()
        # One lock per store object, not per memory: several memories may share a store that is not thread-safe.
        self._lock = _locks.setdefault(store, ForkSafeLock()) if self._dialect.serial else None
        # A store that cannot look up ids: remember the documents that passed through this process instead.
        self._lately = LRUCache[str, Document](LATELY) if _lacks(store, "get_by_ids") else None

    def run(self, flow: Flow[T]) -> T:
        """Run a flow of store operations, holding the store's lock if it is not thread-safe."""
        if self._lock is None:
            return drive(flow)
        with self._lock:
            return drive(flow)

    async def arun(self, flow: Flow[T]) -> T:
        """Run `run` asynchronously; for a store that is not thread-safe, in a worker thread."""
        if self._lock is not None:
            return await drive_in_thread(flow, self.run)
        return await adrive(flow)

    async def get(self, ids: Sequence[str]) -> list[Document]:
        """Read the documents with these ids, in this order; missing ones are left out."""
        if not ids:
            return []
        store = self.store
        if self._lately is not None:
            return [document for document in map(self._lately.get, ids) if document is not None]
        step = Step(partial(store.get_by_ids, list(ids)), partial(store.aget_by_ids, list(ids)))
        by_id = {document.id: document for document in map(from_store, await self._read(step))}
        return [by_id[name] for name in dict.fromkeys(ids) if name in by_id]

    async def put(self, documents: Iterable[Document]) -> list[str]:
        """Add documents, which the store embeds, replacing those with the same ids; return the ids that were written.

        A document that is stored already is never added again: FAISS appends the vector before it notices that the id
        is taken, and returns wrong documents from then on.
        """
        wanted = {document.id: document for document in documents if document.id}
        known = {document.id: document for document in await self.get(list(wanted))}
        new = [d for name, d in wanted.items() if name not in known or not _same(known[name], d)]
        await self._delete([d.id for d in new if d.id in known])
        store = self.store
        for i in range(0, len(new), BATCH):
            some = [to_store(document) for document in new[i : i + BATCH]]
            ids = [document.id for document in some]
            step = Step(partial(store.add_documents, some, ids=ids), partial(store.aadd_documents, some, ids=ids))
            await self._write(step, "stored")
        self._keep(new)
        return [document.id for document in new if document.id]

    async def remove(self, ids: Iterable[str]) -> int:
        """Delete documents and return how many there were (of a store without `get_by_ids`: how many were asked for).

        Missing ones are ignored.

        Raises:
            HistoryWriteError: The store failed, or still returns a document that it was told to delete.
        """
        names = list(dict.fromkeys(ids))
        if self._lately is None:
            names = [document.id or "" for document in await self.get(names)]
        await self._delete(names)
        left = await self.get(names)
        if left:
            raise self._still_there()
        return len(names)

    async def page(self, wanted: Wanted, k: int) -> tuple[list[Document], bool]:
        """Read up to `k` documents with this metadata, or all if the store can list; also return whether it is all."""
        listing, store = self._dialect.listing, self.store
        if listing is not None:
            work = partial(listing, store, wanted)
            found = await self._read(Step(work, partial(run_in_executor, None, work)))
            return self._own(found, wanted), True
        filters = self._dialect.filters(store, wanted)
        found = await self._read(
            Step(
                partial(store.similarity_search, ANYTHING, k=k, **filters),
                partial(store.asimilarity_search, ANYTHING, k=k, **filters),
            )
        )
        return self._own(found, wanted), len(found) < k

    async def everything(self, wanted: Wanted) -> list[Document]:
        """Read all documents with this metadata, with growing searches if the store cannot list.

        Raises:
            HistoryReadError: The store does not filter and holds too many documents to search them all.
        """
        k, whole = PAGE, False
        found: list[Document] = []
        while not whole:
            found, whole = await self.page(wanted, k)
            if not whole and k >= MOST:
                raise HistoryReadError(self._too_many())
            k *= 4
        return found

    async def remove_all(self, wanted: Wanted) -> int:
        """Delete all documents with this metadata, searching again until none comes back; return how many.

        Raises:
            HistoryWriteError: The store failed, or still returns a document that it was told to delete.
        """
        gone: set[str] = set()
        k, whole = PAGE, False
        while True:
            found, whole = await self.page(wanted, k)
            ids = {document.id for document in found if document.id}
            if ids & gone:
                raise self._still_there()
            gone |= ids
            await self._delete(sorted(ids))
            if not ids and whole:
                break
            if not ids:  # only other users' documents came back: the store ignores the filter, so search wider
                if k >= MOST:
                    raise HistoryWriteError(self._too_many(), maybe_stored=True)
                k *= 4
        if await self.get(sorted(gone)):
            raise self._still_there()
        return len(gone)

    async def search(self, query: str, k: int, wanted: Wanted) -> list[tuple[Document, float]]:
        """Search for the most similar documents with this metadata.

        Returns:
            Documents, best first, with similarities scaled from 1 for the best to 0 for the last. Cosine similarity,
            cosine distance and squared distance of unit vectors are linear functions of each other, so after scaling
            they agree and it does not matter which of them the store returns.
        """
        filters, store = self._dialect.filters(self.store, wanted), self.store
        text = query.encode("utf-8", "replace").decode()
        scored = Step(
            partial(store.similarity_search_with_score, text, k=k, **filters),
            partial(store.asimilarity_search_with_score, text, k=k, **filters),
        )
        plain = Step(
            partial(store.similarity_search, text, k=k, **filters),
            partial(store.asimilarity_search, text, k=k, **filters),
        )
        try:
            pairs = await self._read(scored)
        except NotImplementedError:
            found = await self._read(plain)
            pairs = [(document, float(len(found) - i)) for i, document in enumerate(found)]
        documents = [from_store(document) for document, _ in pairs]
        scores = _scaled([float(score) for _, score in pairs])
        hits = [(d, s) for d, s in zip(documents, scores, strict=True) if d.id and matches_metadata(d, wanted)]
        self._keep(document for document, _ in hits)
        return hits

    def _own(self, found: Iterable[Document], wanted: Wanted) -> list[Document]:
        documents = [d for d in map(from_store, found) if d.id and matches_metadata(d, wanted)]
        self._keep(documents)
        return documents

    def _keep(self, documents: Iterable[Document]) -> None:
        if self._lately is not None:
            for document in documents:
                if document.id:
                    self._lately.put(document.id, document)

    async def _delete(self, ids: Sequence[str | None]) -> None:
        store = self.store
        for i in range(0, len(ids), BATCH):  # never with an empty list: to some stores that means everything
            some = [name for name in ids[i : i + BATCH] if name]
            step = Step(partial(store.delete, ids=some), partial(store.adelete, ids=some))
            try:
                done = await self._write(step, "deleted")
            except NotImplementedError as error:
                raise self._cannot_delete() from error
            if done is False:
                raise self._still_there()
            if self._lately is not None:
                for name in some:
                    self._lately.pop(name)

    async def _read(self, step: Step[T]) -> T:
        try:
            return await step
        except (MemkitError, NotImplementedError):
            raise
        except Exception as error:
            msg = f"{self.name} cannot be read: {type(error).__name__}"
            raise HistoryReadError(msg) from error

    async def _write(self, step: Step[T], what: str) -> T:
        try:
            return await step
        except (MemkitError, NotImplementedError):
            raise
        except Exception as error:
            msg = f"memories were perhaps not {what} in {self.name}: {type(error).__name__}; calling again is safe"
            raise HistoryWriteError(msg, maybe_stored=True) from error

    def _cannot_delete(self) -> ConfigurationError:
        return ConfigurationError(f"{self.name} cannot delete, and a memory must be able to forget: use another store")

    def _still_there(self) -> HistoryWriteError:
        msg = f"{self.name} still holds what it was told to delete; call again, and if it stays look into the store"
        return HistoryWriteError(msg, maybe_stored=True)

    def _too_many(self) -> str:
        return (
            f"{self.name} does not filter and holds over {MOST:,} documents, so it is unknown which are a user's: "
            "give filter_builder=, or use a store that filters"
        )


def _lacks(store: VectorStore, name: str) -> bool:
    return getattr(type(store), name) is getattr(VectorStore, name)


def _same(stored: Document, document: Document) -> bool:
    """Return whether a document equals the stored one in text, open flag and epoch.

    Date and importance are ignored: a retry computes them again and must not count as a change.
    """
    marks = [[bool(d.metadata.get("open")), d.metadata.get("epoch", 0)] for d in (stored, document)]
    return stored.page_content == document.page_content and marks[0] == marks[1]


def _scaled(scores: Sequence[float]) -> list[float]:
    """Scale scores, given best first, to 1 for the best and 0 for the last, be they similarities or distances."""
    known = [score for score in scores if isfinite(score)]
    if not known or known[0] == known[-1]:
        return [float(isfinite(score)) for score in scores]
    best, last = known[0], known[-1]
    return [min(1.0, max(0.0, (score - last) / (best - last))) if isfinite(score) else 0.0 for score in scores]


UNDATED = datetime.min.replace(tzinfo=UTC)

_moments = itertools.count(1)  # logical clock of this process: orders saves and forgets


class SearchScores(dict[str, float]):
    """Search result: similarity by record id, scaled from 1 for the most similar to 0 for the last one found.

    Attributes:
        documents: The records, best first.
    """

    def __init__(self, hits: Iterable[tuple[Document, float]] = ()) -> None:
        found = [(document, score) for document, score in hits if document.id]
        super().__init__({document.id: score for document, score in found if document.id})
        self.documents = [document for document, _ in found]


class Flows:
    """Operations behind `VectorStoreAdapter`; run those that use the store with `access.run`.

    Args:
        access: Client of the store.
        transcripts: Lexical index of the transcripts; None without `get_session_history`.
    """

    def __init__(self, access: StoreClient, transcripts: Transcripts | None) -> None:
        self._access = access
        self._transcripts = transcripts
        self._guard = ForkSafeLock()
        self._accesses = LRUCache[str, dict[str, datetime]](LATELY)
        self._sessions = LRUCache[str, set[str]](LATELY)
        self._forgotten = LRUCache[tuple[str, str | None], int](LATELY)

    def begin(self, user_id: str, session_id: str) -> str:
        """Register the session and return a logical timestamp."""
        with self._guard:
            self._sessions.get_or_put(user_id, set()).add(session_id)
        return str(next(_moments))

    async def write(
        self, user_id: str, session_id: str, moment: str, documents: Sequence[Document], delete: Sequence[str]
    ) -> bool:
        """Add and delete records; undo the additions and return False if the session was forgotten since `moment`."""
        await self._access.remove(delete)
        added = await self._access.put(documents)
        # Such a store cannot refuse a write, so compare afterwards: `forget` advances the clock before it deletes, so a
        # record that it could have missed is always noticed, and removed, here.
        if moment and self._forgotten_since(user_id, session_id) > int(moment):
            await self._access.remove(added)
            return False
        return True

    async def search(self, user_id: str, query: str, k: int) -> SearchScores:
        """Search the user's records by similarity."""
        return SearchScores(await self._access.search(query, k, {"user_id": user_id}))

    async def everything(self, user_id: str) -> list[Document]:
        """Read all records of a user."""
        return await self._access.everything({"user_id": user_id})

    async def words(self, user_id: str, similar: SearchScores) -> Index:
        """Return the lexical index of the user's transcripts; without transcripts, an index of the search result."""
        if self._transcripts is None:
            return index_of(similar.documents)
        named = {str(document.metadata.get("session_id") or "") for document in similar.documents} - {""}
        with self._guard:
            known = self._sessions.get_or_put(user_id, set())
            known |= named
            also = sorted(known)
        index = await self._transcripts.index(user_id, also)
        self._transcripts.rate(user_id, _importance(similar.documents))
        return index

    async def forget(self, user_id: str, session_id: str | None) -> int:
        """Delete all records of a session or user, and this process's state about them; return how many records."""
        with self._guard:  # before the deletion: a save in progress checks this after its write, see `write`
            self._forgotten.put((user_id, session_id), next(_moments))
        wanted = {"user_id": user_id} | ({"session_id": session_id} if session_id is not None else {})
        count = await self._access.remove_all(wanted)
        if self._transcripts is not None:
            self._transcripts.forget(user_id, session_id)
        with self._guard:
            if session_id is None:
                self._accesses.pop(user_id)
                self._sessions.pop(user_id)
            elif (sessions := self._sessions.get(user_id)) is not None:
                sessions.discard(session_id)
        return count

    async def evict(self, user_id: str, max_records: int, keep: Collection[str]) -> int:
        """Delete the records over `max_records`, least recently recalled first; return how many.

        Raises:
            HistoryWriteError: The store failed, or cannot be searched for all records of the user.
        """
        try:
            documents = await self.everything(user_id)
        except HistoryReadError as error:
            msg = f"the turn is stored, but no records over max_records were deleted: {error}"
            raise HistoryWriteError(msg, maybe_stored=True) from error
        accessed = self.accesses(user_id)

        def order(document: Document) -> tuple[bool, datetime, datetime]:
            last = accessed.get(document.id or "")
            return last is not None, last or UNDATED, _created(document) or UNDATED

        others = sorted((document for document in documents if document.id not in keep), key=order)
        surplus = others[: max(0, len(documents) - max_records)]
        return await self._access.remove(document.id or "" for document in surplus)

    def touch(self, user_id: str, ids: Iterable[str], at: datetime) -> None:
        """Record the recall time of records, in this process only."""
        with self._guard:
            self._accesses.get_or_put(user_id, {}).update(dict.fromkeys(ids, at))

    def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return the last recall of each record that this process recalled, by id."""
        with self._guard:
            return dict(self._accesses.get(user_id) or {})

    def _forgotten_since(self, user_id: str, session_id: str) -> int:
        with self._guard:
            return max(self._forgotten.get((user_id, name)) or 0 for name in (session_id, None))


def index_of(documents: Iterable[Document]) -> Index:
    """Build an index of documents, without vectors."""
    index = Index()
    for document in documents:
        index.add(index_record_of(document), None)
    return index


def sessions_of(documents: Iterable[Document]) -> list[SessionInfo]:
    """Group records by session: one `SessionInfo` each, most recently used first."""
    dates: dict[str, list[datetime | None]] = {}
    for document in documents:
        if name := document.metadata.get("session_id"):
            dates.setdefault(name, []).append(_created(document))
    found = []
    for name, all_dates in dates.items():
        known = [date for date in all_dates if date]
        found.append(SessionInfo(name, len(all_dates), min(known, default=None), max(known, default=None)))
    return sorted(found, key=lambda info: info.updated_at or UNDATED, reverse=True)


def _created(document: Document) -> datetime | None:
    known = document.metadata.get("created_at")  # checked when it was read
    return datetime.fromisoformat(known) if known else None


def _importance(documents: Iterable[Document]) -> Mapping[tuple[str, str], float]:
    known = ((d.metadata.get("session_id"), d.id, d.metadata.get("importance")) for d in documents)
    return {(session, name): value for session, name, value in known if session and name and value is not None}


class VectorStoreAdapter:
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
        >>> store = VectorStoreAdapter(InMemoryVectorStore(DeterministicFakeEmbedding(size=8)))
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
        self._access = StoreClient(store, filter_builder)

        def expiry(at: datetime, of_turn: datetime | None) -> datetime | None:
            return min((end for end in (of_turn, at + ttl if ttl else None) if end), default=None)

        transcripts = None
        if get_session_history is not None:
            transcripts = Transcripts(get_session_history, splitter or Splitter(), expiry, cache_bytes)
        self._flows = Flows(self._access, transcripts)

    def __repr__(self) -> str:
        """Name only the store's class: its own repr may contain credentials."""
        return f"VectorStoreAdapter({self._access.name})"

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
    ) -> StoredSession:
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
    ) -> StoredSession:
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

    def similar(self, user_id: str, query: str, k: int) -> SearchScores:
        """Search for the user's `k` most similar records; similarities by id, scaled from 1 to 0."""
        return self._access.run(self._flows.search(user_id, query, k))

    async def asimilar(self, user_id: str, query: str, k: int) -> SearchScores:
        """Run `similar` asynchronously."""
        return await self._access.arun(self._flows.search(user_id, query, k))

    def index(self, user_id: str, similar: SearchScores | None = None) -> Index:
        """Return a lexical index of the user's records, without vectors.

        Args:
            user_id: The user.
            similar: Search result for a question: the index covers the transcripts or, without transcripts, the search
                result. None: the index covers all records of the user, which reads them all from the store.
        """
        if similar is None:
            return index_of(self._access.run(self._flows.everything(user_id)))
        return drive(self._flows.words(user_id, similar))

    async def aindex(self, user_id: str, similar: SearchScores | None = None) -> Index:
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


def _begun(moment: str, found: Iterable[Document]) -> StoredSession:
    return StoredSession(moment, None, {}, {document.id: document for document in found if document.id})
