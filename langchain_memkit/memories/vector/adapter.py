"""Any LangChain vector store as the store of a vector memory."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial, wraps
from math import isfinite
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeAlias, TypeVar

from langchain_core.documents import Document
from langchain_core.vectorstores import VectorStore

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._lru import LRUCache
from langchain_memkit._sync import Flow, Step, cpu_bound, drive
from langchain_memkit.base import SessionInfo
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, MemkitError
from langchain_memkit.memories.rebuildable import UNDATED, session_infos
from langchain_memkit.memories.vector.rounds import lines_of_document
from langchain_memkit.ranking.index import Index, IndexRecord, StoredSession, index_record_of
from langchain_memkit.stores.backend import UNREADABLE
from langchain_memkit.stores.vector_records import TextLookup
from langchain_memkit.stores.vector_rows import NOTHING, Vector, problem_of, without_surrogates

T = TypeVar("T")
P = ParamSpec("P")
Store: TypeAlias = Any  # a class of another package
Wanted: TypeAlias = Mapping[str, str]
FilterBuilder: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, Any]]

BATCH = 500  # documents added or deleted per call
PAGE = 1000  # documents requested by the first search where a store cannot list its documents
ANYTHING = "memory"  # the query of a search for everything: some embedders refuse an empty text
LATELY = 10_000  # users whose recalls, and sessions whose deletion, are remembered
PACKED = "memkit"  # the metadata field that holds all non-plain values, as JSON
EXACT = 2**53  # larger integers go into the JSON: some stores keep every number as a float
# methods that a store must have, in one of both styles: LangChain's base class only raises NotImplementedError
NEEDED = [(name, f"a{name}") for name in ("delete", "get_by_ids", "similarity_search_with_score")]

_moments = itertools.count(1)  # logical clock of this process: orders saves and forgets
# Locks of stores that are not thread-safe. Several memories may share a store, so it is the store that selects the
# lock; that two stores now and then share one does no harm.
_LOCKS = [ForkSafeLock() for _ in range(61)]


# -- what differs from store to store


class Dialect(NamedTuple):
    """How one class of vector store is asked."""

    # keyword arguments of `similarity_search` that restrict it to documents with the wanted metadata
    filters: Callable[[Store, Wanted], Mapping[str, Any]]
    # all documents with the wanted metadata (or more), without a search; None if the store offers no way
    listing: Callable[[Store, Wanted], list[Document]] | None = None
    serial: bool = False  # calls must not overlap: the store is not thread-safe


def matches_metadata(document: Document, wanted: Wanted) -> bool:
    """Return whether a document has this metadata; checked on every result, in case the store ignores filters."""
    return all(document.metadata.get(name) == value for name, value in wanted.items())


def _operators(wanted: Wanted) -> dict[str, Any]:
    """Build the filter with `$eq` and `$and` operators, as Chroma, MongoDB and others take it."""
    conditions = [{name: {"$eq": value}} for name, value in wanted.items()]
    return conditions[0] if len(conditions) == 1 else {"$and": conditions}


def _chroma_listing(store: Store, wanted: Wanted) -> list[Document]:
    found = store.get(where=_operators(wanted), include=["metadatas", "documents"])
    rows = zip(found["ids"], found["documents"], found["metadatas"], strict=True)
    return [Document(id=name, page_content=text or "", metadata=metadata or {}) for name, text, metadata in rows]


def _faiss_listing(store: Store, wanted: Wanted) -> list[Document]:
    found = ((name, store.docstore.search(name)) for name in list(store.index_to_docstore_id.values()))
    return [Document(d.page_content, id=n, metadata=d.metadata) for n, d in found if isinstance(d, Document)]


def _memory_listing(store: Store, wanted: Wanted) -> list[Document]:
    rows = list(store.store.values())
    return [Document(id=row["id"], page_content=row["text"], metadata=row["metadata"]) for row in rows]


def _atlas_listing(store: Store, wanted: Wanted) -> list[Document]:
    # Read the collection, not the search index: the index lags behind, and a deletion must not miss documents.
    text, vector = store._text_key, store._embedding_key
    rows = store.collection.find(_operators(wanted), {vector: 0} if vector else None)
    return [Document(id=str(row.pop("_id")), page_content=str(row.pop(text, "")), metadata=row) for row in rows]


DIALECTS: Mapping[str, Dialect] = {
    "Chroma": Dialect(lambda _, wanted: {"filter": _operators(wanted)}, _chroma_listing),
    # FAISS filters after fetching, by default only 20 documents of all users: fetch everything.
    "FAISS": Dialect(
        lambda store, wanted: {"filter": dict(wanted), "fetch_k": max(1, store.index.ntotal)},
        _faiss_listing,
        serial=True,
    ),
    "InMemoryVectorStore": Dialect(
        lambda _, wanted: {"filter": partial(matches_metadata, wanted=wanted)}, _memory_listing
    ),
    "MongoDBAtlasVectorSearch": Dialect(lambda _, wanted: {"pre_filter": _operators(wanted)}, _atlas_listing),
    "PGVector": Dialect(lambda _, wanted: {"filter": _operators(wanted)}),
}


def dialect_of(store: VectorStore, filter_builder: FilterBuilder | None) -> Dialect:
    """Find the dialect of a store by the name of its class or of a parent class in a `langchain_*` package."""
    names = [cls.__name__ for cls in type(store).__mro__ if cls.__module__.startswith("langchain_")]
    known = next((DIALECTS[name] for name in names if name in DIALECTS), None)
    if filter_builder is not None:
        build, other = filter_builder, known or Dialect(lambda _, wanted: wanted)
        return other._replace(filters=lambda _, wanted: build(dict(wanted)))
    if known is None:
        raise ConfigurationError(
            f"how {type(store).__name__} filters is not known, and users must not find each other's memories: give "
            "filter_builder=, a function from {'user_id': ...}, at times with 'session_id', to the keyword arguments "
            "of its similarity_search, e.g. lambda wanted: {'filter': wanted}"
        )
    return known


# -- documents as another store keeps them


def to_store(document: Document) -> Document:
    """Convert a document to a form that every store accepts; `from_store` is the inverse.

    Plain metadata values stay fields, so that the store's own tools show them; all others go into one field of JSON.
    """

    def is_plain(value: object) -> bool:
        return isinstance(value, (str, bool, float)) or (isinstance(value, int) and abs(value) < EXACT)

    plain = {name: value for name, value in document.metadata.items() if is_plain(value)}
    rest = {name: value for name, value in document.metadata.items() if name not in plain and value is not None}
    # The JSON includes the id, since some stores do not return ids from a search.
    text = json.dumps({"id": document.id, **rest}, ensure_ascii=False, separators=(",", ":"))
    return Document(id=document.id, page_content=document.page_content, metadata={**plain, PACKED: text})


def from_store(document: Document) -> Document:
    """Restore a packed document. What is no record, since others may write to the store too, becomes a plain text."""
    try:
        rest = dict(json.loads(document.metadata.get(PACKED) or "{}"))
    except (TypeError, ValueError, RecursionError):
        rest = {}
    packed_id = rest.pop("id", None)
    name = document.id or packed_id
    known = {**rest, **{key: value for key, value in document.metadata.items() if key not in (PACKED, "_id")}}
    for key in ("position", "chunk", "epoch"):
        if isinstance(known.get(key), float) and known[key].is_integer():  # some stores have no whole numbers
            known[key] = int(known[key])
    found = Document(id=name if isinstance(name, str) else None, page_content=document.page_content, metadata=known)
    if not _is_record(found):
        found.metadata = {key: known[key] for key in ("user_id", "session_id") if isinstance(known.get(key), str)}
    return found


def _is_record(document: Document) -> bool:
    """Return whether metadata can be that of a record, so that nothing which reads it fails."""
    try:
        lines, entry = lines_of_document(document), _entry(document)
        problem = problem_of(entry)
    except UNREADABLE:
        return False
    texts = (*entry.messages, *(part for line in lines for part in (line.role, line.name)))
    return not problem and all(isinstance(text, str) for text in texts)


def _entry(document: Document) -> IndexRecord:
    """Build an index entry without words, for its session and date."""
    return index_record_of(document, stems=[()] * max(len(document.metadata.get("said") or ()), 1))


def index_of(documents: Iterable[Document]) -> Index:
    """Build an index of documents, without vectors."""
    index = Index()
    for document in documents:
        index.add(index_record_of(document), None)
    return index


def _is_same(stored: Document, document: Document) -> bool:
    """Return whether a document equals the stored one in text, open flag and epoch.

    Date and importance are ignored: a retry computes them again and must not count as a change.
    """
    marks = [(d.page_content, bool(d.metadata.get("open")), d.metadata.get("epoch", 0)) for d in (stored, document)]
    return marks[0] == marks[1]


def _scaled(scores: Sequence[float]) -> list[float]:
    """Scale scores, given best first, to 1 for the best and 0 for the last, be they similarities or distances."""
    known = [score for score in scores if isfinite(score)]
    if not known or known[0] == known[-1]:
        return [float(isfinite(score)) for score in scores]
    best, last = known[0], known[-1]
    return [min(1.0, max(0.0, (score - last) / (best - last))) if isfinite(score) else 0.0 for score in scores]


# -- the adapter


def exclusive(method: Callable[Concatenate[VectorStoreAdapter, P], Flow[T]]) -> Callable[..., Flow[T]]:
    """Run a method, where the store is not thread-safe, with the store's lock held, and in a thread."""

    @wraps(method)
    async def run(self: VectorStoreAdapter, *args: P.args, **options: P.kwargs) -> T:
        lock = self.lock
        if lock is None:
            return await method(self, *args, **options)

        def locked() -> T:
            with lock:
                return drive(method(self, *args, **options))

        return await cpu_bound(locked)

    return run


class VectorStoreAdapter:
    """Adapts any LangChain `VectorStore` (Chroma, FAISS, MongoDB Atlas, pgvector, ...) to the needs of `VectorMemory`.

    A `VectorMemoryStore`, of flows. The store embeds and searches by plain similarity; words, speakers, sessions and
    dates only order what it found. Every search carries the user's filter, and the user of each hit is checked again,
    so that a store that ignores filters never shows one user's records to another. Give the memory a collection of its
    own: documents of your app with the same `user_id` would be found, and forgotten, with the records.
    docs/vector-stores.md names the further limits.

    The store must delete, look up ids and search with scores. `filter_builder` is a function from metadata
    (`{"user_id": ...}`, sometimes with `"session_id"`) to the keyword arguments of `similarity_search` that restrict it
    to such documents; it is built in for the stores in `DIALECTS` (MongoDB Atlas needs both as filter fields).

    Raises:
        ConfigurationError: The store's filter syntax is unknown, or the store lacks one of `NEEDED`.
    """

    def __init__(self, store: VectorStore, filter_builder: FilterBuilder | None = None) -> None:
        self.store = store
        self.name = type(store).__name__
        self._dialect = dialect_of(store, filter_builder)
        for names in NEEDED:
            if all(getattr(type(store), name) is getattr(VectorStore, name) for name in names):
                msg = f"{self.name} has no {names[0]}(), which a memory needs: add it in a subclass"
                raise ConfigurationError(msg)
        self.lock = _LOCKS[id(store) % len(_LOCKS)] if self._dialect.serial else None
        self._guard = ForkSafeLock()
        self._accesses = LRUCache[str, dict[str, datetime]](LATELY)
        self._forgotten = LRUCache[tuple[str, str | None], int](LATELY)

    def __repr__(self) -> str:
        """Name only the store's class: its own repr may contain credentials."""
        return f"VectorStoreAdapter({self.name})"

    # -- a turn

    async def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str] = (),
        ids: Sequence[str] = (),
        messages: Collection[str] | None = None,
        since: str | None = None,
    ) -> StoredSession:
        """Read the records with these ids; a logical timestamp serves as the session's generation."""
        moment = since or str(next(_moments))
        records = {document.id: document for document in await self.get_by_ids(user_id, ids) if document.id}
        return StoredSession(moment, None, {}, records)

    async def embed(self, texts: Sequence[str]) -> list[Vector | None]:
        """Return None for each text: the store embeds documents itself."""
        return [None for _ in texts]

    @exclusive
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
        """Add records, which the store embeds, and delete others; `expected` is not checked.

        False if this process forgot the session since `begin`; the added records are removed again then.
        """
        await self._remove(delete)
        added = await self._put(documents)
        # Such a store cannot refuse a write, so compare afterwards: `forget` advances the clock before it deletes, so a
        # record that it could have missed is always noticed, and removed, here.
        with self._guard:
            forgotten = max(self._forgotten.get((user_id, name)) or 0 for name in (session_id, None))
        if generation and forgotten > int(generation):
            await self._remove(added)
            return False
        return True

    @exclusive
    async def similar(self, user_id: str, query: str, k: int) -> list[tuple[Document, float]]:
        """Search for the user's `k` most similar records; return them best first, with similarities scaled to 1 and 0.

        Cosine similarity, cosine distance and squared distance of unit vectors are linear functions of each other, so
        after scaling they agree and it does not matter which of them the store returns.
        """
        wanted, text = {"user_id": user_id}, without_surrogates(query)
        filters = self._dialect.filters(self.store, wanted)
        pairs = await self._call("", "similarity_search_with_score", text, k=k, **filters)
        scores = _scaled([float(score) for _, score in pairs])
        documents = [from_store(document) for document, _ in pairs]
        return [(d, s) for d, s in zip(documents, scores, strict=True) if d.id and matches_metadata(d, wanted)]

    async def texts(self, user_id: str, ids: Sequence[str]) -> TextLookup:
        """Return a lookup of records by id."""
        found = {document.id: document for document in await self.get_by_ids(user_id, ids)}
        return lambda name: (found[name], {}) if name in found else None

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Record the recall time of records, in this process only."""
        with self._guard:
            self._accesses.get_or_put(user_id, {}).update(dict.fromkeys(ids, at))

    async def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return the last recall of each record that this process recalled, by id."""
        with self._guard:
            return dict(self._accesses.get(user_id) or {})

    # -- the records

    @exclusive
    async def index(self, user_id: str) -> Index:
        """Return an index of all records of a user, without vectors, which reads them all from the store."""
        documents = await self._everything({"user_id": user_id})
        return await cpu_bound(lambda: index_of(documents))

    @exclusive
    async def get_by_ids(self, user_id: str | None, ids: Sequence[str]) -> list[Document]:
        """Read the user's records with these ids, in this order; missing ones are left out."""
        wanted = {"user_id": user_id} if user_id else {}
        return [document for document in await self._get(ids) if matches_metadata(document, wanted)]

    @exclusive
    async def delete(self, user_id: str | None, ids: Sequence[str]) -> None:
        """Delete records; missing ids are ignored. It is an error if the store still returns one of them."""
        await self._remove(ids)

    @exclusive
    async def forget(self, user_id: str, session_id: str | None = None) -> int:
        """Delete all records of a session, or of a user, reading again until the store has none."""
        with self._guard:  # before the deletion: a save in progress checks this after its write, see `write`
            self._forgotten.put((user_id, session_id), next(_moments))
        wanted = {"user_id": user_id} | ({"session_id": session_id} if session_id is not None else {})
        gone: set[str] = set()
        while found := await self._everything(wanted, "deleted"):
            ids = {document.id for document in found if document.id}
            if ids & gone:
                raise self._still_there()
            gone |= ids
            await self._delete(sorted(ids))
        if await self._get(sorted(gone), "deleted"):
            raise self._still_there()
        if session_id is None:
            with self._guard:
                self._accesses.pop(user_id)
        return len(gone)

    @exclusive
    async def evict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Delete the records over `max_records`: first those that this process never recalled, oldest first."""
        documents = await self._everything({"user_id": user_id}, "deleted")
        accessed = await self.accesses(user_id)
        others = [entry for entry in map(_entry, documents) if entry.id not in keep]
        others.sort(key=lambda entry: (accessed.get(entry.id, UNDATED), entry.at or UNDATED))
        surplus = [entry.id for entry in others[: max(0, len(documents) - max_records)]]
        return await self._remove(surplus)

    @exclusive
    async def sessions(self, user_id: str) -> list[SessionInfo]:
        """List the sessions with records in the store, most recently used first; `turns` counts records."""
        entries = map(_entry, await self._everything({"user_id": user_id}))
        return session_infos((entry.session, entry.at) for entry in entries if entry.session)

    # -- operations of the store

    async def _get(self, ids: Sequence[str], written: str = "") -> list[Document]:
        if not ids:  # which is an error to some stores, everything to others
            return []
        found = map(from_store, await self._call(written, "get_by_ids", list(ids)))
        by_id = {document.id: document for document in found}
        return [by_id[name] for name in dict.fromkeys(ids) if name in by_id]

    async def _put(self, documents: Iterable[Document]) -> list[str]:
        """Add documents, which the store embeds, replacing those with the same ids; return the ids that were written.

        A document that is stored already is never added again: FAISS appends the vector before it notices that the id
        is taken, and returns wrong documents from then on.
        """
        wanted = {document.id: document for document in documents if document.id}
        known = {document.id: document for document in await self._get(list(wanted))}
        new = [d for name, d in wanted.items() if name not in known or not _is_same(known[name], d)]
        await self._delete([d.id for d in new if d.id in known and d.id])
        for i in range(0, len(new), BATCH):
            some = [to_store(document) for document in new[i : i + BATCH]]
            await self._call("stored", "add_documents", some, ids=[document.id for document in some])
        return [document.id for document in new if document.id]

    async def _remove(self, ids: Iterable[str]) -> int:
        """Delete documents and return how many there were; missing ones are ignored; none may be left."""
        names = [document.id for document in await self._get(list(dict.fromkeys(ids))) if document.id]
        await self._delete(names)
        if await self._get(names):
            raise self._still_there()
        return len(names)

    async def _delete(self, ids: Sequence[str]) -> None:
        for i in range(0, len(ids), BATCH):  # never with an empty list: to some stores that means everything
            if await self._call("deleted", "delete", ids=list(ids[i : i + BATCH])) is False:
                raise self._still_there()

    async def _everything(self, wanted: Wanted, written: str = "") -> list[Document]:
        """Read all documents with this metadata, with growing searches if the store cannot list; see `_call`."""
        listing, k = self._dialect.listing, PAGE
        if listing is not None:
            found = await self._perform(cpu_bound(lambda: listing(self.store, wanted)), written)
        else:
            filters = self._dialect.filters(self.store, wanted)
            while len(found := await self._call(written, "similarity_search", ANYTHING, k=k, **filters)) >= k:
                k *= 4
        return [d for d in map(from_store, found) if d.id and matches_metadata(d, wanted)]

    async def _call(self, written: str, name: str, /, *args: object, **options: object) -> Any:
        """Call a method of the store in the caller's style; `written`: what the write around it does, for the error."""
        methods = (getattr(self.store, each) for each in (name, f"a{name}"))
        return await self._perform(Step(*(partial(method, *args, **options) for method in methods)), written)

    async def _perform(self, step: Step[T], written: str = "") -> T:
        """Perform a step of the store; its errors may quote what is stored or a password, so their text is not told."""
        try:
            return await step
        except MemkitError:
            raise
        except Exception as error:
            kind = type(error).__name__
            kind += ": add that method in a subclass" if isinstance(error, NotImplementedError) else ""
            if not written:
                msg = f"{self.name} cannot be read: {kind}"
                raise HistoryReadError(msg) from error
            msg = f"memories were perhaps not {written} in {self.name}: {kind}; calling again is safe"
            raise HistoryWriteError(msg, maybe_stored=True) from error

    def _still_there(self) -> HistoryWriteError:
        msg = f"{self.name} still holds what it was told to delete; call again, and if it stays look into the store"
        return HistoryWriteError(msg, maybe_stored=True)
