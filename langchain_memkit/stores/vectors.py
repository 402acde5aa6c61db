"""Vector stores over any store of rows: exact search, records of users, LangChain's interface."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from operator import ge, gt, le, lt
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from langchain_memkit._sync import ClosingMixin, Flow, Step, adrive, cpu_bound, drive
from langchain_memkit.base import Now, SessionInfo, check_arguments, check_id
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from langchain_memkit.ranking.index import Index, StoredSession
from langchain_memkit.stores.vector_cache import IndexSource, ReadSession, VectorIndexCache
from langchain_memkit.stores.vector_rows import (
    NOBODY,
    DocumentRow,
    Embedder,
    NewRecord,
    ProbeStore,
    StoredDocument,
    Vector,
    WriteResult,
    check_ids,
    checked,
    plain_row,
    question_vector,
    readable_documents,
    record_row,
)

T = TypeVar("T")


class SessionSnapshot(NamedTuple):
    """A backend's answer to `begin`, the read that precedes a write to a session.

    Attributes:
        generation: The session's generation; a session that is forgotten and begun again gets another one.
        last: The session's last record, as a list of at most one; may be empty where it does not matter for the write.
        vectors: The stored vectors of the requested texts, by digest.
        records: The requested records of the session.
        position: The position of the last record; 0 if there is none.
    """

    generation: str
    last: Sequence[DocumentRow]
    vectors: Mapping[str, bytes]
    records: Sequence[DocumentRow]
    position: Any


class VectorBackend(IndexSource, ProbeStore, Protocol):
    """The interface below a vector store, `RecordVectorStore(backend, ...)`, for which a backend only keeps rows.

    All methods but the runners, the closers and `change` are flows (see `StoreBackend`); a subclass may take `run`,
    `arun`, `setup`, `close` and `aclose` from that class. `langchain_memkit.testing.VectorStoreContract` tests it. The
    invariants:

    * A record carries a *stamp*, the number of its write. Stamps rise, and none is given twice.
    * A user's records have a *version* (a tuple of numbers, `Mark`), which every write and deletion changes, whoever
      makes it, and which `news` returns: a cache whose version is the stored one is current.
    * A session has a *generation*, a random id that is drawn when it begins and dropped when it is forgotten. A write
      of another generation is refused, so that what was forgotten does not come back.
    * An id belongs to one session of a user; every call takes the user, and never shows or changes another's records.
    * Every write may be made again unchanged.

    Reading flows raise `HistoryReadError`, writing ones `HistoryWriteError`, with the driver's error as the cause.
    """

    @abstractmethod
    def run(self, flow: Flow[T]) -> T:
        """Run a flow in sync code, as `StoreBackend.run` does."""

    @abstractmethod
    async def arun(self, flow: Flow[T]) -> T:
        """Run a flow on an event loop, as `StoreBackend.arun` does."""

    @abstractmethod
    async def setup(self) -> None:
        """Create tables or indexes. Safe to repeat."""

    @abstractmethod
    async def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str],
        ids: Sequence[str],
        messages: Collection[str] | None,
    ) -> SessionSnapshot:
        """Read what a write to a session depends on, and draw the generation of a session that begins.

        Args:
            user_id: The user.
            session_id: The session.
            digests: Digests of texts whose stored vectors are wanted.
            ids: Ids of records that are wanted, as far as they are the session's.
            messages: Ids of messages; the last record is needed only if it holds one of them. None: it is needed.

        Returns:
            The session as it is now.
        """

    @abstractmethod
    async def write(
        self,
        user_id: str,
        rows: Sequence[NewRecord],
        delete: Sequence[str],
        place: tuple[str, str] | None,
        expected: Mapping[str, str],
        state: int | None,
    ) -> WriteResult | None:
        """Store rows in place of those with the same ids, and delete others.

        Args:
            user_id: The user.
            rows: The rows; they get new stamps.
            delete: Ids of records to delete.
            place: Session id and generation; None for plain documents.
            expected: Digests by id of records that must be unchanged.
            state: The session's state (`SessionState`), which must be unchanged; None: not checked.

        Returns:
            The stamps, in the order of the rows, and the change of the version; None, with nothing stored, if the
            session has another generation.

        Raises:
            HistoryConflictError: A record or the session has changed, or an id belongs to another session.
            HistoryWriteError: The database failed; calling again is safe.
        """

    @abstractmethod
    async def by_ids(self, user_id: str, ids: Sequence[str], *, vectors: bool) -> list[DocumentRow]:
        """Read records by id.

        Args:
            user_id: The user.
            ids: The ids.
            vectors: Whether the vectors are wanted.

        Returns:
            A row for each record that exists, in any order.
        """

    @abstractmethod
    async def owned(self, ids: Sequence[str]) -> bool:
        """Return whether any user, that is anybody but nobody, has a record with one of these ids."""

    @abstractmethod
    async def delete(self, user_id: str, ids: Sequence[str]) -> None:
        """Delete records by id; those that do not exist are ignored.

        Args:
            user_id: The user.
            ids: The ids.
        """

    @abstractmethod
    async def forget(self, user_id: str, session_id: str | None) -> int:
        """Delete a session's records and its generation, which goes first: writes under way are then refused.

        Args:
            user_id: The user.
            session_id: The session; None for all of the user.

        Returns:
            How many records were deleted.
        """

    @abstractmethod
    async def evict(self, user_id: str, max_records: int, keep: Sequence[str]) -> int:
        """Delete records above a limit: first the oldest of those never recalled, then those recalled the longest ago.

        Args:
            user_id: The user.
            max_records: How many may stay.
            keep: Ids of records that stay in any case.

        Returns:
            How many records were deleted.
        """

    @abstractmethod
    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Store when records were recalled, unless a later time is stored. The version of the user does not change.

        Args:
            user_id: The user.
            ids: The records.
            at: The time.
        """

    @abstractmethod
    async def accesses(self, user_id: str) -> dict[str, datetime]:
        """Read when records were last recalled.

        Args:
            user_id: The user.

        Returns:
            The times by id, without records that never were.
        """

    @abstractmethod
    async def sessions(self, user_id: str) -> list[SessionInfo]:
        """List the sessions of a user that hold records.

        Args:
            user_id: The user.

        Returns:
            The sessions, most recently used first; each round counts as a turn.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the connections that this backend opened."""

    @abstractmethod
    async def aclose(self) -> None:
        """Run `close` asynchronously."""


Filter: TypeAlias = Mapping[str, Any]
Matches: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""A function from a document's metadata to whether it matches the filter."""


class SearchScope(NamedTuple):
    """The scope of a search: one user, perhaps one session, and a test of the metadata (None: no test)."""

    user_id: str
    session_id: str | None
    matches: Matches | None

    def takes(self, shown: StoredDocument) -> bool:
        """Return whether a document is in scope."""
        return (
            shown.user_id == self.user_id
            and (self.session_id is None or shown.session_id == self.session_id)
            and (self.matches is None or self.matches(shown.document.metadata))
        )


def pages_of(ids: Sequence[tuple[str, float]], k: int) -> Iterator[Sequence[tuple[str, float]]]:
    """Yield the best `k`, then larger and larger pages of the rest, for a filter that few documents match."""
    begin, size = 0, k
    while begin < len(ids):
        yield ids[begin : begin + size]
        begin, size = begin + size, min(2 * size, 1000)


def check_scope(options: Mapping[str, Any]) -> SearchScope:
    """Parse the keyword arguments of a search into a scope.

    Raises:
        TypeError: A search takes no such argument.
    """
    try:
        check_arguments(options, scope_of)
    except ConfigurationError as error:
        raise TypeError(str(error)) from None  # as any method says it of an argument that it does not have
    return scope_of(**options)


def scope_of(
    *,
    filter: Filter | None = None,  # noqa: A002  # LangChain's name
    pre_filter: Filter | None = None,
    post_filter_pipeline: Any = None,
    oversampling_factor: int | None = None,  # an exact search looks at every candidate
) -> SearchScope:
    """Build the scope of a search. Raise before any I/O if an argument is not supported.

    Args:
        filter: Values that the metadata must be equal to.
        pre_filter: Conditions on the metadata, in MongoDB's query language: see `conditions_of`.
        post_filter_pipeline: Refused unless empty.
        oversampling_factor: Accepted for compatibility with langchain-mongodb, and ignored.
    """
    if post_filter_pipeline:
        msg = (
            "post_filter_pipeline is run by the server of Atlas Vector Search, and this store searches without it. "
            "Use pre_filter=, or filter the documents that are returned"
        )
        raise ConfigurationError(msg)
    if pre_filter and filter:
        msg = "give either filter or pre_filter: pre_filter can say all that filter says"
        raise ConfigurationError(msg)
    if pre_filter is not None and not filter:
        return _scope_of_conditions(pre_filter)
    if filter is None:
        return SearchScope(NOBODY, None, None)
    if not isinstance(filter, Mapping):
        msg = f"filter must be a dict of what the metadata is equal to, not {type(filter).__name__}"  # type: ignore[unreachable]  # callers without types
        raise TypeError(msg)
    for name, value in filter.items():
        inner = value if isinstance(value, Mapping) else ()
        if not isinstance(name, str) or any(isinstance(key, str) and key.startswith("$") for key in (name, *inner)):  # type: ignore[redundant-expr]  # callers without types
            msg = "filter knows equality only: no operators. Use pre_filter= for these"
            raise TypeError(msg)
    user = check_id(filter["user_id"], "user_id") if "user_id" in filter else NOBODY
    session = check_id(filter["session_id"], "session_id") if "session_id" in filter else None
    others = {k: v for k, v in filter.items() if k not in ("user_id", "session_id")}

    def equal(known: Mapping[str, Any]) -> bool:
        return all(name in known and known[name] == value for name, value in others.items())

    return SearchScope(user, session, equal if others else None)


# -- pre_filter

COMPARED: dict[str, Callable[[Any, Any], bool]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}
OPERATORS = ("$eq", "$ne", *COMPARED, "$in", "$nin", "$exists", "$not")
JOINED = {"$and": all, "$or": any, "$nor": lambda found: not any(found)}
PLAIN = (str, int, float, bool, bytes, date, datetime, type(None))
MAX_DEPTH = 20


def _scope_of_conditions(pre_filter: Filter) -> SearchScope:
    """Build a scope from a `pre_filter`. Like every search it must name one user, or none for unowned documents."""
    if not isinstance(pre_filter, Mapping):
        _refuse(f"must be a dict of conditions, not {type(pre_filter).__name__}")
    rest: list[Filter] = []
    users: dict[str, None] = {}
    # Collect the conditions on `user_id`, at the top and inside `$and`: all of them must name the same user. Anywhere
    # else (in `$or`, say) it could not restrict the search to one user, and is refused.
    waiting = [pre_filter]
    while waiting:
        query = waiting.pop()
        rest.append({k: v for k, v in query.items() if k not in ("user_id", "$and")})
        if "user_id" in query:
            wanted = query["user_id"]
            wanted = wanted["$eq"] if isinstance(wanted, Mapping) and wanted.keys() == {"$eq"} else wanted
            if isinstance(wanted, Mapping):
                _refuse("finds the documents of one user: give user_id a str, or leave it out for those of nobody")
            users[check_id(wanted, "user_id")] = None
        if "$and" in query:
            waiting += _queries("$and", query["$and"])
    if len(users) > 1:
        _refuse("finds the documents of one user, and names several")
    found = [conditions_of(query) for query in rest if query]
    return SearchScope(
        next(iter(users), NOBODY), None, (lambda known: all(fits(known) for fits in found)) if found else None
    )


def conditions_of(query: Filter, depth: int = 0) -> Matches:
    """Compile a query in MongoDB's language into a function of metadata. Values stay data and reach no server.

    Comparisons are those of MongoDB: a list matches if one of its elements does, numbers are compared with numbers and
    texts with texts, a dot leads into a nested dict, and None also matches a missing field.

    Args:
        query: Fields with a value, or with `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`, `$in`, `$nin`, `$exists` and
            `$not`; `$and`, `$or` and `$nor` with lists of such queries.
        depth: How deep it is nested in another query.

    Raises:
        ConfigurationError: It holds another operator, or a value that no metadata has.

    Example:
        >>> fits = conditions_of({"page": {"$gte": 2}, "tags": "new"})
        >>> fits({"page": 3, "tags": ["new", "long"]}), fits({"page": "3", "tags": "new"})
        (True, False)
    """
    parts: list[Matches] = []
    for name, value in query.items():
        if name in JOINED:
            inner = [conditions_of(each, depth + 1) for each in _queries(name, value, depth)]
            parts.append(lambda known, join=JOINED[name], inner=inner: join(fits(known) for fits in inner))  # type: ignore[misc]  # bound now
        elif not isinstance(name, str) or name.startswith("$"):  # type: ignore[redundant-expr]  # callers without types
            _refuse(f"knows no {name!r:.40}: it takes {', '.join((*OPERATORS, *JOINED))}")
        elif name == "user_id":
            _refuse("finds the documents of one user: user_id belongs at its top, or into its $and")
        else:
            fits = _condition(value, depth)
            parts.append(lambda known, name=name, fits=fits: fits(list(_values(known, name))))  # type: ignore[misc]  # bound now
    return lambda known: all(part(known) for part in parts)


def _condition(value: Any, depth: int) -> Callable[[list[Any]], bool]:
    """Compile the condition on one field into a test of its values: several, if the path leads through a list."""
    if not isinstance(value, Mapping) or not any(isinstance(key, str) and key.startswith("$") for key in value):
        return _operator("$eq", value, depth)
    parts = [_operator(name, wanted, depth) for name, wanted in value.items()]
    return lambda values: all(part(values) for part in parts)


def _operator(name: Any, wanted: Any, depth: int) -> Callable[[list[Any]], bool]:
    if name not in OPERATORS:
        _refuse(f"knows no {name!r:.40}: it takes {', '.join((*OPERATORS, *JOINED))}")
    if depth > MAX_DEPTH:
        _refuse(f"is nested deeper than {MAX_DEPTH} levels")
    if name == "$not":
        if not isinstance(wanted, Mapping) or not any(str(key).startswith("$") for key in wanted):
            _refuse("needs a dict of operators after $not")
        fits = _condition(wanted, depth + 1)
        return lambda values: not fits(values)
    _check_plain(wanted)
    if name == "$exists":
        return lambda values: bool(values) == bool(wanted)
    if name in COMPARED:
        compare = COMPARED[name]
        return lambda values: any(
            _kind(v) == _kind(wanted) and compare(_comparable(v), _comparable(wanted)) for v in _with_elements(values)
        )
    if name in ("$in", "$nin") and not isinstance(wanted, (list, tuple)):
        _refuse(f"needs a list after {name}")
    options = wanted if name in ("$in", "$nin") else [wanted]

    def equal(values: list[Any]) -> bool:
        found = _with_elements(values) or [None]
        return any(_kind(v) == _kind(o) and _comparable(v) == _comparable(o) for v in found for o in options)

    return equal if name in ("$eq", "$in") else lambda values: not equal(values)


def _values(known: Any, path: str) -> Iterator[Any]:
    """Yield the values at a dotted path; none if it does not exist."""
    if path in known:
        yield known[path]
        return
    head, dot, rest = path.partition(".")
    if dot and head in known:
        inner = known[head]
        for item in inner if isinstance(inner, (list, tuple)) else [inner]:
            if isinstance(item, Mapping):
                yield from _values(item, rest)


def _with_elements(values: list[Any]) -> list[Any]:
    """Return the values, together with the elements of those that are lists."""
    return [*values, *(item for v in values if isinstance(v, (list, tuple, set, frozenset)) for item in v)]


def _kind(value: Any) -> Any:
    """Return the class of values that a value compares with: True does not equal 1, and no text equals a number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    kinds: tuple[Any, ...] = (bool, str, bytes, datetime, date, Mapping, (list, tuple))
    return next((kind for kind in kinds if isinstance(value, kind)), type(value))


def _comparable(value: Any) -> Any:
    """Normalize a value for comparing: a naive datetime is taken as UTC, as in MongoDB; a tuple becomes a list."""
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return list(value) if isinstance(value, tuple) else value


def _queries(name: str, value: Any, depth: int = 0) -> list[Filter]:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(each, Mapping) for each in value):
        _refuse(f"needs a list of dicts after {name}")
    if depth > MAX_DEPTH:
        _refuse(f"is nested deeper than {MAX_DEPTH} levels")
    return list(value)


def _check_plain(value: Any, depth: int = 0) -> None:
    """Raise unless metadata can hold this value: a pattern or an ObjectId would silently match nothing."""
    if isinstance(value, (list, tuple)) and depth < MAX_DEPTH:
        for item in value:
            _check_plain(item, depth + 1)
    elif isinstance(value, Mapping) and depth < MAX_DEPTH:
        for key, item in value.items():
            if not isinstance(key, str) or key.startswith("$"):
                _refuse(f"compares with a value that holds the key {key!r:.40}: no operators inside of values")
            _check_plain(item, depth + 1)
    elif not isinstance(value, PLAIN):
        _refuse(f"compares with a {type(value).__name__}, which no metadata holds")


def _refuse(problem: str) -> NoReturn:
    msg = f"pre_filter {problem}"
    raise ConfigurationError(msg)


def check_k(k: int) -> int:
    """Validate the number of documents wanted, and return it."""
    if not isinstance(k, int) or k < 0:  # type: ignore[redundant-expr]  # callers without types
        msg = f"k must be a whole number from 0; got {k!r:.50}"
        raise ValueError(msg)
    return k


def documents_of(
    found: Sequence[tuple[StoredDocument, float]], include_scores: bool, include_embeddings: bool
) -> list[tuple[Document, float]]:
    """Return the documents found; scores and vectors go into their metadata, where langchain-mongodb puts them."""
    for shown, score in found:
        if include_scores:
            shown.document.metadata["score"] = score
        if include_embeddings and shown.vector is not None:
            shown.document.metadata["embedding"] = shown.vector.tolist()
    return [(shown.document, score) for shown, score in found]


def diverse(found: Sequence[tuple[StoredDocument, float]], k: int, lambda_mult: float) -> list[Document]:
    """Select `k` of the documents found by maximal marginal relevance."""
    if not found or k < 1:
        return []
    vectors = np.array([shown.vector for shown, _ in found])
    near = np.array([score for _, score in found])
    chosen: list[int] = []
    worst = np.full(len(found), -np.inf)  # the greatest similarity to one that is chosen
    while len(chosen) < min(k, len(found)):
        scores = lambda_mult * near - ((1 - lambda_mult) * worst if chosen else 0)
        scores[chosen] = -np.inf
        chosen.append(int(np.argmax(scores)))
        worst = np.maximum(worst, vectors @ vectors[chosen[-1]])
    return [found[i][0].document for i in chosen]


CACHE_BYTES = 96 * 2**20


def whose(user_id: str | None) -> str:
    """Return the user id under which records are stored; those without a user stand under a name of their own."""
    return NOBODY if user_id is None else check_id(user_id, "user_id")


FEW = 50  # records that are added to an index without a thread
SHORT = 2000  # characters that are processed without a thread
NOTHING: Mapping[str, str] = MappingProxyType({})


def _place(user_id: str, session_id: str) -> tuple[str, str]:
    return check_id(user_id, "user_id"), check_id(session_id, "session_id")


def _digests(expected: Mapping[str, str]) -> dict[str, str]:
    return dict(zip(check_ids(expected), (check_id(digest, "digest") for digest in expected.values()), strict=True))


def _aware(at: datetime) -> datetime:
    if at.tzinfo is None:
        msg = "at must be aware, e.g. datetime.now(UTC)"
        raise ValueError(msg)
    return at


def _wanted(ids: Sequence[str] | None, kwargs: Mapping[str, Any]) -> list[str]:
    if ids is None or kwargs:
        msg = "delete needs a list of ids and nothing else; forget(user_id) deletes all of a user"
        raise TypeError(msg)
    return check_ids(ids)


def _most(max_records: int) -> int:
    if not isinstance(max_records, int) or max_records < 0:  # type: ignore[redundant-expr]  # callers without types
        msg = f"max_records must be a whole number from 0; got {max_records!r:.50}"
        raise ValueError(msg)
    return max_records


class RecordVectorStore(ClosingMixin, VectorStore):
    """Base of `SQLiteVectorStore` and `MongoDBVectorStore`, which document its use."""

    def __init__(self, backend: VectorBackend, embedding: Embeddings, cache_bytes: int, now: Now) -> None:
        if not isinstance(cache_bytes, int) or cache_bytes < 0:  # type: ignore[redundant-expr]  # callers without types
            msg = f"cache_bytes must be a whole number of bytes from 0; got {cache_bytes!r:.50}"
            raise ConfigurationError(msg)
        self._backend = backend
        self._now = now
        self._embedder = Embedder(embedding, backend, self._step)
        self._shelf = VectorIndexCache(backend, self._step, cache_bytes, now)

    @classmethod
    def from_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Create a store and add texts to it.

        Args:
            texts: The texts to store.
            embedding: The embedding model.
            metadatas: One for each text, or None.
            ids: One for each text, or None.
            **kwargs: Further arguments of the class.

        Returns:
            The store.
        """
        store = cls(embedding=embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls,
        texts: list[str],
        embedding: Embeddings,
        metadatas: list[dict[str, Any]] | None = None,
        *,
        ids: list[str] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run `from_texts` asynchronously."""
        store = cls(embedding=embedding, **kwargs)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    @property
    def embeddings(self) -> Embeddings:
        """The embedding model."""
        return self._embedder.embedding

    def setup(self) -> None:
        """Open the file, or build the indexes of the collection, however large it is.

        Raises:
            HistoryReadError: The store cannot be reached.
        """
        self._backend.run(self._backend.setup())

    async def asetup(self) -> None:
        """Run `setup` asynchronously."""
        await self._backend.arun(self._backend.setup())

    def close(self) -> None:
        """Close the connections that this store opened, and empty the cache."""
        self._shelf.clear()
        self._backend.close()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        self._shelf.clear()
        await self._backend.aclose()

    # -- LangChain's interface

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Embed documents and store them, replacing those with the same ids.

        Args:
            documents: Documents of any kind; `user_id` in the metadata names the owner. Without it a document is
                unowned, and no user's search finds it.
            **kwargs: `ids`, a list of str or None, which take precedence over the documents' own; a random id is drawn
                where there is neither. `batch_size`, how many are embedded and stored at a time; None for all at once.
                An error in a later batch does not undo an earlier one.

        Returns:
            The ids, in the order of `documents`.

        Raises:
            TypeError: An id is not a string, or an argument is unknown.
            ValueError: An id is empty or malformed, `batch_size` is below 1, or there are not as many ids as documents.
            ConfigurationError: The store was filled with another model, or the model gave no usable vector.
            MessageEncodeError: A value in the metadata would not come back equal. Nothing was stored.
            HistoryConflictError: An id belongs to another session of the user.
            HistoryWriteError: The store failed; calling again with the same ids is safe.

        Example:
            >>> from langchain_core.documents import Document
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> store.add_documents([Document("Nemo is a fish.", id="1", metadata={"user_id": "u1"})])
            ['1']
            >>> [document.page_content for document in store.similarity_search("Nemo", filter={"user_id": "u1"})]
            ['Nemo is a fish.']
            >>> store.similarity_search("Nemo")
            []
        """
        return drive(self._add(documents, **kwargs))

    async def aadd_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Run `add_documents` asynchronously."""
        return await adrive(self._add(documents, **kwargs))

    def get_by_ids(self, ids: Sequence[str], /, *, user_id: str | None = None) -> list[Document]:
        """Return documents by id, of one user or unowned ones: an id is unique within its user only.

        Args:
            ids: Ids, in any order.
            user_id: The user. None: documents without a `user_id` in their metadata.

        Returns:
            The documents found, in the order of `ids`; damaged ones are left out, which is logged.

        Raises:
            TypeError: An id is not a string.
            ValueError: An id is empty or malformed.
            ConfigurationError: No `user_id` is given, and an id belongs to a document of a user.
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> store.add_texts(["one", "two"], ids=["1", "2"])
            ['1', '2']
            >>> [document.page_content for document in store.get_by_ids(["2", "none", "1"])]
            ['two', 'one']
            >>> ids = store.add_texts(["mine"], [{"user_id": "u1"}], ids=["1"])
            >>> [document.page_content for document in store.get_by_ids(["1"], user_id="u1")]
            ['mine']
        """
        return drive(self._get_by_ids(check_ids(ids), whose(user_id)))

    async def aget_by_ids(self, ids: Sequence[str], /, *, user_id: str | None = None) -> list[Document]:
        """Run `get_by_ids` asynchronously."""
        return await adrive(self._get_by_ids(check_ids(ids), whose(user_id)))

    def delete(self, ids: list[str] | None = None, *, user_id: str | None = None, **kwargs: Any) -> bool:
        """Delete documents of one user, or unowned ones, by id for good. Ids that are not stored are ignored.

        Args:
            ids: The documents' ids. Required: leaving out an argument must not delete everything of everybody;
                `forget(user_id)` deletes all of a user.
            user_id: The user. None: documents without a `user_id` in their metadata.
            **kwargs: Not supported: any name is refused.

        Returns:
            True.

        Raises:
            TypeError: An id is not a string, `ids` is None, or an argument is unknown.
            ValueError: An id is empty or malformed.
            ConfigurationError: No `user_id` is given, and an id belongs to a document of a user. Nothing was deleted.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> ids = store.add_texts(["mine", "hers"], [{"user_id": "u1"}, {"user_id": "u2"}], ids=["1", "1"])
            >>> store.delete(["1"], user_id="u1")
            True
            >>> [document.page_content for document in store.get_by_ids(["1"], user_id="u2")]
            ['hers']
        """
        user = whose(user_id)
        return drive(self._delete(_wanted(ids, kwargs), user))

    async def adelete(self, ids: list[str] | None = None, *, user_id: str | None = None, **kwargs: Any) -> bool:
        """Run `delete` asynchronously."""
        user = whose(user_id)
        return await adrive(self._delete(_wanted(ids, kwargs), user))

    def similarity_search(
        self,
        query: str,
        k: int = 4,
        pre_filter: Filter | None = None,
        *,
        include_scores: bool = False,
        **kwargs: Any,
    ) -> list[Document]:
        """Return the documents nearest to a text.

        Args:
            query: The text.
            k: The greatest number of documents returned.
            pre_filter: Conditions on the metadata in MongoDB's query language, as langchain-mongodb takes them:
                `{"user_id": "u1", "page": {"$gte": 2}}`. The operators are `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`,
                `$in`, `$nin`, `$exists`, `$not`, `$and`, `$or` and `$nor`. They are evaluated in this process, on the
                stored metadata, and `user_id` must name one user.
            include_scores: Puts the score into each document's metadata as `score`.
            **kwargs: `filter`, instead of `pre_filter`: a dict that the metadata must be equal to, `{"user_id": ...,
                "session_id": ...}` and other keys. Without a `user_id` in either, only unowned documents are found.
                `include_embeddings=True` puts the vector, scaled to length 1, into the metadata as `embedding`.

        Returns:
            Nearest first. Records without a vector are not found.

        Raises:
            TypeError: A `user_id` or `session_id` is not a string, or an argument is unknown.
            ValueError: An id in the filter is malformed, or `k` is below 0.
            ConfigurationError: The store was filled with another model, or `pre_filter` holds something unsupported.
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> ids = store.add_texts(["one", "two", "three"], [{"page": 1}, {"page": 2}, {"page": 3}])
            >>> found = store.similarity_search("one", pre_filter={"page": {"$gte": 2}})
            >>> sorted(document.page_content for document in found)
            ['three', 'two']
        """
        flow = self._documents(query, k, include_scores, pre_filter=pre_filter, **kwargs)
        return [document for document, _ in drive(flow)]

    async def asimilarity_search(
        self,
        query: str,
        k: int = 4,
        pre_filter: Filter | None = None,
        *,
        include_scores: bool = False,
        **kwargs: Any,
    ) -> list[Document]:
        """Run `similarity_search` asynchronously."""
        flow = self._documents(query, k, include_scores, pre_filter=pre_filter, **kwargs)
        return [document for document, _ in await adrive(flow)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, pre_filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the documents nearest to a text with their cosines, from -1 to 1; see `similarity_search`."""
        return drive(self._documents(query, k, pre_filter=pre_filter, **kwargs))

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, pre_filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Run `similarity_search_with_score` asynchronously."""
        return await adrive(self._documents(query, k, pre_filter=pre_filter, **kwargs))

    def similarity_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        filter: Filter | None = None,  # noqa: A002  # LangChain's name
        **kwargs: Any,
    ) -> list[Document]:
        """Return the documents nearest to a vector; further arguments as in `similarity_search`."""
        return [shown.document for shown, _ in drive(self._near(embedding, k, filter=filter, **kwargs))]

    async def asimilarity_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        filter: Filter | None = None,  # noqa: A002  # LangChain's name
        **kwargs: Any,
    ) -> list[Document]:
        """Run `similarity_search_by_vector` asynchronously."""
        found = await adrive(self._near(embedding, k, filter=filter, **kwargs))
        return [shown.document for shown, _ in found]

    def max_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        pre_filter: Filter | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Return documents that are near to a text and unlike each other.

        Maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998): each next one has the greatest
        `lambda_mult * similarity to the text - (1 - lambda_mult) * greatest similarity to one chosen before`.

        Args:
            query: The text.
            k: The greatest number of documents returned.
            fetch_k: The number of nearest documents to choose from.
            lambda_mult: From 0, as diverse as possible, to 1, nearest first.
            pre_filter: Conditions on the metadata, as in `similarity_search`.
            **kwargs: `filter`, as in `similarity_search`.

        Returns:
            The documents in the order in which they were chosen.
        """
        flow = self._search(query, max(k, fetch_k), pre_filter=pre_filter, **kwargs)
        return diverse(drive(flow), k, lambda_mult)

    async def amax_marginal_relevance_search(
        self,
        query: str,
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        pre_filter: Filter | None = None,
        **kwargs: Any,
    ) -> list[Document]:
        """Run `max_marginal_relevance_search` asynchronously."""
        flow = self._search(query, max(k, fetch_k), pre_filter=pre_filter, **kwargs)
        return diverse(await adrive(flow), k, lambda_mult)

    def max_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,  # noqa: A002  # LangChain's name
        **kwargs: Any,
    ) -> list[Document]:
        """Return documents that are near to a vector and unlike each other; see `max_marginal_relevance_search`."""
        near = drive(self._near(embedding, max(k, fetch_k), filter=filter, **kwargs))
        return diverse(near, k, lambda_mult)

    async def amax_marginal_relevance_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        fetch_k: int = 20,
        lambda_mult: float = 0.5,
        filter: Filter | None = None,  # noqa: A002  # LangChain's name
        **kwargs: Any,
    ) -> list[Document]:
        """Run `max_marginal_relevance_search_by_vector` asynchronously."""
        near = await adrive(self._near(embedding, max(k, fetch_k), filter=filter, **kwargs))
        return diverse(near, k, lambda_mult)

    # -- the records of users, for vector memory

    def index(self, user_id: str) -> Index:
        """Return an index of all records of a user, as they are now, including changes by other processes.

        Indexes are cached in process. One cheap query tells whether anything changed since the last call; if so, only
        the changes are read. The most recently used users stay cached, up to `cache_bytes` in total; a single larger
        one stays until another user is asked for.

        Args:
            user_id: The user.

        Returns:
            The index, without records that are damaged (which is logged) or have expired. Hold its lock while using it.

        Raises:
            TypeError: `user_id` is not a string.
            ValueError: `user_id` is not a valid id.
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> store.add_texts(["The parrot is called Kiwi."], [{"user_id": "u1"}], ids=["1"])
            ['1']
            >>> [entry.said[0].stems for entry in store.index("u1").entries], len(store.index("u2"))
            ([('parrot', 'call', 'kiwi')], 0)
        """
        return drive(self._shelf.read(check_id(user_id, "user_id")))[0]

    async def aindex(self, user_id: str) -> Index:
        """Run `index` asynchronously."""
        return (await adrive(self._shelf.read(check_id(user_id, "user_id"))))[0]

    def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str] = (),
        ids: Sequence[str] = (),
        messages: Collection[str] | None = None,
        since: str | None = None,
    ) -> StoredSession:
        """Read what a write to a session depends on, before its records are written.

        Args:
            user_id: The user.
            session_id: The conversation.
            digests: Digests of the texts that are to be embedded, as `digest_of` makes them.
            ids: Ids of records of this session that are to be written.
            messages: Ids of the messages that are to be written, if they begin a new round: then the last record may be
                left out, if it is complete and holds none of these messages or texts. None: it is always read.
            since: The generation that the first try of the same turn was given, where this is a later try: it is
                returned in place of the current one, so that `write` refuses the turn if the session was forgotten in
                between.

        Returns:
            The session's generation (drawn now if it has none), its last record, the stored vectors of this user's
            texts with these digests, and the session's records with these ids.

        Raises:
            TypeError: An id or digest is not a string.
            ValueError: An id is empty or malformed.
            HistoryReadError: The store cannot be reached or read.
            HistoryWriteError: A new session could not be stored.
        """
        place = _place(user_id, session_id)
        return drive(self._begin(*place, check_ids(digests), check_ids(ids), messages, since))

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
        place = _place(user_id, session_id)
        return await adrive(self._begin(*place, check_ids(digests), check_ids(ids), messages, since))

    def write(
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
        """Store records of a session, replacing those with the same ids, and delete others.

        Args:
            user_id: The user.
            session_id: The conversation.
            generation: The session's generation, as `begin` returned it.
            documents: Records, with their ids, and their user and session in the metadata.
            vectors: One for each, as `embed` or `begin` returned it; None: not embedded.
            delete: Ids of records of this user to delete.
            expected: Digests by id, as `digest_of` makes them, of records of this session that must still have these
                texts: so that no answer is lost where two writers continue the same record.
            state: The session's state when it was read (`Begun.state`): records are added only if nobody else added any
                since (compare-and-set). None: they are added in any case.

        Returns:
            True; False if the session was forgotten since it began, and nothing was stored.

        Raises:
            TypeError: An id is not a string.
            ValueError: An id is malformed, or a document is of another session.
            ConfigurationError: A vector is invalid, or of another model.
            MessageEncodeError: A value in the metadata would not come back equal. Nothing was stored.
            HistoryConflictError: An expected record is gone or has another text, somebody else added records
                since, or an id belongs to another session. Nothing was stored.
            HistoryWriteError: The store failed; `maybe_stored` says whether the outcome is unknown. Calling again is
                safe.

        Example:
            >>> from langchain_core.documents import Document
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> begun = store.begin("u1", "s1")
            >>> said = Document("human: hello", id="r1", metadata={"user_id": "u1", "session_id": "s1"})
            >>> store.write("u1", "s1", begun.generation, [said], store.embed([said.page_content]))
            True
            >>> [session.session_id for session in store.sessions("u1")], store.forget("u1", "s1")
            (['s1'], 1)
            >>> store.write("u1", "s1", begun.generation, [said], [None])
            False
        """
        place = _place(user_id, session_id)
        work = self._write(*place, generation, documents, vectors, check_ids(delete), _digests(expected), state)
        return drive(work)

    async def awrite(
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
        """Run `write` asynchronously."""
        place = _place(user_id, session_id)
        work = self._write(*place, generation, documents, vectors, check_ids(delete), _digests(expected), state)
        return await adrive(work)

    def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Store the time at which records were recalled; a time earlier than the stored one changes nothing.

        Args:
            user_id: The user.
            ids: Ids of the records; those not stored, or of another user, are ignored.
            at: The time, an aware datetime.

        Raises:
            TypeError: An id is not a string.
            ValueError: An id is malformed, or `at` is naive.
            HistoryWriteError: The store failed.
        """
        if names := check_ids(ids):
            self._backend.run(self._backend.touch(check_id(user_id, "user_id"), names, _aware(at)))

    async def atouch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Run `touch` asynchronously."""
        if names := check_ids(ids):
            await self._backend.arun(self._backend.touch(check_id(user_id, "user_id"), names, _aware(at)))

    def evict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Delete the records above a limit: first those never recalled, oldest first, then the least recently recalled.

        Args:
            user_id: The user.
            max_records: The number of records that may stay.
            keep: Ids of records that stay in any case, e.g. those that were just written.

        Returns:
            The number of records deleted.

        Raises:
            TypeError: An id is not a string.
            ValueError: An id is malformed, or `max_records` is below 0.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> ids = store.add_texts(["one", "two"], [{"user_id": "u1"}] * 2, ids=["1", "2"])
            >>> store.evict("u1", 1), [entry.id for entry in store.index("u1").entries]
            (1, ['2'])
        """
        arguments = check_id(user_id, "user_id"), _most(max_records), check_ids(keep)
        return self._backend.run(self._backend.evict(*arguments))

    async def aevict(self, user_id: str, max_records: int, keep: Collection[str] = ()) -> int:
        """Run `evict` asynchronously."""
        arguments = check_id(user_id, "user_id"), _most(max_records), check_ids(keep)
        return await self._backend.arun(self._backend.evict(*arguments))

    def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return the times at which records were last recalled.

        Args:
            user_id: The user.

        Returns:
            Aware datetimes in UTC by record id, without records that were never recalled.

        Raises:
            TypeError: `user_id` is not a string.
            ValueError: `user_id` is not a valid id.
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from datetime import UTC, datetime
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> ids = store.add_texts(["one", "two"], [{"user_id": "u1"}] * 2, ids=["1", "2"])
            >>> store.touch("u1", ["2"], datetime(2026, 1, 2, tzinfo=UTC))
            >>> store.accesses("u1")
            {'2': datetime.datetime(2026, 1, 2, 0, 0, tzinfo=datetime.timezone.utc)}
        """
        return self._backend.run(self._backend.accesses(check_id(user_id, "user_id")))

    async def aaccesses(self, user_id: str) -> dict[str, datetime]:
        """Run `accesses` asynchronously."""
        return await self._backend.arun(self._backend.accesses(check_id(user_id, "user_id")))

    def sessions(self, user_id: str) -> list[SessionInfo]:
        """Return the sessions for which records of a user are stored.

        Args:
            user_id: The user.

        Returns:
            Most recently used first; `turns` is the number of rounds.

        Raises:
            TypeError: `user_id` is not a string.
            ValueError: `user_id` is not a valid id.
            HistoryReadError: The store cannot be reached or read.
        """
        return self._backend.run(self._backend.sessions(check_id(user_id, "user_id")))

    async def asessions(self, user_id: str) -> list[SessionInfo]:
        """Run `sessions` asynchronously."""
        return await self._backend.arun(self._backend.sessions(check_id(user_id, "user_id")))

    def forget(self, user_id: str, session_id: str | None = None) -> int:
        """Delete a session of a user, or everything of the user, for good. A save that is under way stores nothing.

        Args:
            user_id: The user.
            session_id: The conversation; None for everything of the user.

        Returns:
            The number of records deleted.

        Raises:
            TypeError: An id is not a string.
            ValueError: An id is empty or malformed.
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self._forget(check_id(user_id, "user_id"), session_id))

    async def aforget(self, user_id: str, session_id: str | None = None) -> int:
        """Run `forget` asynchronously."""
        return await adrive(self._forget(check_id(user_id, "user_id"), session_id))

    def purge(self, user_id: str) -> dict[str, int]:
        """Delete everything of a user for good. This makes the store a part that `purge_user` accepts.

        Args:
            user_id: The user.

        Returns:
            `{"records": n}`: the number of records deleted.

        Raises:
            TypeError: `user_id` is not a string.
            ValueError: `user_id` is not a valid id.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> ids = store.add_texts(["one", "two"], [{"user_id": "u1"}, {"user_id": "u2"}])
            >>> store.purge("u1"), store.purge("u1")
            ({'records': 1}, {'records': 0})
        """
        return {"records": self.forget(user_id)}

    async def apurge(self, user_id: str) -> dict[str, int]:
        """Run `purge` asynchronously."""
        return {"records": await self.aforget(user_id)}

    def embed(self, texts: Sequence[str]) -> list[Vector | None]:
        """Embed texts that are to be stored.

        The first call in a process also embeds a fixed text, whose vector is kept in the store, so that vectors of two
        models are never mixed.

        Args:
            texts: The texts to store.

        Returns:
            A float32 vector of length 1 for each. None where the model gave all zeros, because it knows none of the
            words: such a text is stored without a vector.

        Raises:
            ConfigurationError: The store was filled with another model, or the model returned something that is no
                vector.
            HistoryReadError: The store cannot be reached or read.
            HistoryWriteError: The store failed.

        Example:
            >>> from langchain_core.embeddings import DeterministicFakeEmbedding
            >>> from langchain_memkit import SQLiteVectorStore
            >>> store = SQLiteVectorStore(":memory:", DeterministicFakeEmbedding(size=8))
            >>> [vector.shape for vector in store.embed(["one", "two"])]
            [(8,), (8,)]
        """
        return drive(self._embedder.documents(texts))

    async def aembed(self, texts: Sequence[str]) -> list[Vector | None]:
        """Run `embed` asynchronously."""
        return await adrive(self._embedder.documents(texts))

    def embed_query(self, text: str) -> Vector:
        """Embed a question. The model is checked as in `embed`, once something is stored.

        Args:
            text: The question.

        Returns:
            Its vector, float32, of length 1.

        Raises:
            ConfigurationError: The store was filled with another model.
            HistoryReadError: The model gave no usable vector for this question, or the store cannot be reached or read.
        """
        return drive(self._embedder.query(text))

    async def aembed_query(self, text: str) -> Vector:
        """Run `embed_query` asynchronously."""
        return await adrive(self._embedder.query(text))

    # -- flows

    def _step(self, make_flow: Callable[[], Flow[T]]) -> Step[T]:
        async def asynchronous() -> T:
            return await self._backend.arun(make_flow())

        return Step(lambda: self._backend.run(make_flow()), asynchronous)

    async def _get_by_ids(self, ids: list[str], user_id: str) -> list[Document]:
        stored = await self._stored(ids, user_id, "") if ids else []
        found = {shown.document.id: shown.document for shown in readable_documents(stored, self._now())}
        # If the cached index holds a record that is not stored any more, somebody removed it behind memkit's back:
        # the cached version proves nothing then, and the next read lists everything.
        self._shelf.miss(user_id, [name for name in ids if name not in found])
        return [found[name] for name in ids if name in found]

    async def _stored(self, ids: list[str], user_id: str, state: str) -> list[DocumentRow]:
        """Read records by id. Raise if no user was named and an id belongs to a user's record."""
        backend = self._backend
        stored: list[DocumentRow] = await self._step(lambda: backend.by_ids(user_id, ids, vectors=False))
        there = {row.id for row in stored}
        missing = [name for name in ids if name not in there]
        if user_id == NOBODY and missing and await self._step(lambda: backend.owned(missing)):
            msg = (
                f"an id belongs to a document of a user: say whose, with user_id=; an id is unique for its user{state}"
            )
            raise ConfigurationError(msg)
        return stored

    async def _look(self, user_id: str, session_id: str | None) -> tuple[Index, ReadSession | None]:
        """Return the user's index, and the session's snapshot if a write can start from it. Usually takes one read."""
        return await self._shelf.read(user_id, session_id)

    async def _texts(self, user_id: str, ids: Sequence[str]) -> Callable[[str], tuple[Document, Any] | None]:
        """Return a lookup of the user's records by id, as of the last read of the index; uncached ones are read.

        Each comes with a dict that lives as long as the record is cached: a memory keeps there what it made of it.
        """
        held = self._shelf.texts(user_id)
        missing = [name for name in ids if name not in held]
        found: dict[str, Document] = {}
        if missing:
            found = {document.id or "": document for document in await self._get_by_ids(missing, user_id)}

        def text(name: str) -> tuple[Document, Any] | None:
            stored = held.get(name)
            document = found.get(name) if stored is None else stored.document(name)
            return None if document is None else (document, {} if stored is None else stored.notes)

        return text

    async def _begin(
        self,
        user_id: str,
        session_id: str,
        digests: list[str],
        ids: list[str],
        messages: Collection[str] | None,
        since: str | None,
    ) -> StoredSession:
        backend = self._backend
        found: SessionSnapshot = await self._step(lambda: backend.begin(user_id, session_id, digests, ids, messages))
        if since is not None:
            # A retry belongs to the session that its first try saw: with a fresh generation it would bring back text
            # that was forgotten in between.
            found = found._replace(generation=since)
        now = self._now()
        last = [shown.document for shown in readable_documents(found.last, now)]
        records = {shown.document.id or "": shown.document for shown in readable_documents(found.records, now)}
        vectors = {
            digest: np.frombuffer(vector, "<f4")
            for digest, vector in found.vectors.items()
            if vector and len(vector) % 4 == 0
        }
        position = found.position if isinstance(found.position, int) else 0  # it may be damaged
        return StoredSession(found.generation, last[0] if last else None, vectors, records, position)

    def _begun(self, looked: ReadSession, digests: Collection[str], ids: Collection[str]) -> StoredSession | None:
        """Build the answer of `begin` from a snapshot, without I/O; None if the cache no longer holds enough for it."""
        held, (generation, state), last = looked
        with held.index.lock:
            texts, known = held.texts, [name for name in ids if name in held.index]
            wanted = known if last is None else [*known, last.id]
            vectors = {digest: held.vector_of(digest) for digest in digests}
            # The index knows these records, but their texts were not read: the store has to be asked.
            if any(name not in texts for name in wanted):
                return None
            shown = {name: texts[name].document(name) for name in wanted}
        records = {name: document for name in known if (document := shown[name]) is not None}
        here = last.stamp if last is not None else 0
        return StoredSession(
            generation,
            None if last is None else shown[last.id],
            {digest: vector for digest, vector in vectors.items() if vector is not None},
            records,
            0 if last is None else last.position,
            here if state is None else state,
        )

    async def _write(
        self,
        user_id: str,
        session_id: str,
        generation: str,
        documents: Sequence[Document],
        vectors: Sequence[Any],
        delete: list[str],
        expected: dict[str, str],
        state: int | None,
    ) -> bool:
        check_id(generation, "generation")
        if len(documents) != len(vectors):
            msg = f"there are {len(documents)} documents and {len(vectors)} vectors"
            raise ValueError(msg)
        long = sum(len(document.page_content) for document in documents) > SHORT
        rows: list[NewRecord] = await cpu_bound(
            lambda: [record_row(d, user_id, session_id) for d in documents], long=long
        )
        return await self._store(user_id, rows, vectors, delete, (session_id, generation), expected, state)

    async def _store(
        self,
        user_id: str,
        rows: Sequence[NewRecord],
        vectors: Sequence[Any],
        delete: Sequence[str] = (),
        place: tuple[str, str] | None = None,
        expected: Mapping[str, str] = NOTHING,
        state: int | None = None,
    ) -> bool:
        """Store rows of a user with their vectors, each id once, delete others, and update the cache."""
        embedded = [i for i, vector in enumerate(vectors) if vector is not None]
        if embedded:
            dims = await self._embedder.known()
            for i, vector in zip(embedded, checked([vectors[i] for i in embedded], dims), strict=True):
                rows[i].vector = None if vector is None else vector.tobytes()
        distinct = list({row.entry.id: row for row in rows}.values())
        removed = [name for name in delete if name not in {row.entry.id for row in distinct}]
        if not distinct and not removed and place is None:
            return True
        written: WriteResult | None = await self._step(
            lambda: self._backend.write(user_id, distinct, removed, place, expected, state)
        )
        if written is None:
            return False
        long = len(rows) > FEW or sum(len(row.text) for row in rows) > SHORT
        await cpu_bound(partial(self._shelf.wrote, user_id, distinct, removed, written), long=long)
        return True

    async def _delete(self, ids: list[str], user_id: str) -> bool:
        if ids and user_id == NOBODY:
            try:
                await self._stored(ids, user_id, ". Nothing was deleted")
            except HistoryReadError as error:
                msg = f"{error}. Nothing was deleted."
                raise HistoryWriteError(msg) from error
        if ids:
            await self._step(lambda: self._backend.delete(user_id, ids))
        return True

    async def _forget(self, user_id: str, session_id: str | None) -> int:
        session = None if session_id is None else check_id(session_id, "session_id")
        self._shelf.forget(user_id)
        count: int = await self._step(lambda: self._backend.forget(user_id, session))
        # A read that began before the deletion may put what it read back into the cache, so the entry is dropped
        # again.
        self._shelf.forget(user_id)
        return count

    async def _add(
        self, documents: Sequence[Document], ids: Sequence[str | None] | None = None, batch_size: int | None = None
    ) -> list[str]:
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):  # type: ignore[redundant-expr]  # callers without types
            msg = f"batch_size must be a whole number from 1, or None for all at once; got {batch_size!r:.50}"
            raise ValueError(msg)
        given = [document.id for document in documents] if ids is None else list(ids)
        if isinstance(ids, str) or len(given) != len(documents):
            msg = f"there are {len(documents)} documents and {len(given)} ids"
            raise TypeError(msg) if isinstance(ids, str) else ValueError(msg)
        both = zip(given, documents, strict=True)
        names = [str(uuid4()) if (n := name or d.id) is None else check_id(n, "id") for name, d in both]
        # All documents are validated before the first one is embedded or stored.
        rows: list[NewRecord] = await cpu_bound(
            lambda: [plain_row(d, n) for d, n in zip(documents, names, strict=True)]
        )
        size = batch_size or max(len(rows), 1)
        for begin in range(0, len(rows), size):
            part = rows[begin : begin + size]
            texts = [d.page_content for d in documents[begin : begin + size]]
            vectors: list[Vector | None] = await self._embedder.documents(texts)
            # one write per user, since the version that caches are checked against is a user's
            for user in dict.fromkeys(row.user_id for row in part):
                mine = [i for i, row in enumerate(part) if row.user_id == user]
                await self._store(user, [part[i] for i in mine], [vectors[i] for i in mine])
        return names

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """Return the function that clips a cosine to 0 to 1: opposite directions count as 0."""
        return lambda score: min(max(score, 0.0), 1.0)

    async def _documents(
        self,
        query: str,
        k: int,
        include_scores: bool = False,
        include_embeddings: bool = False,
        **kwargs: Any,
    ) -> list[tuple[Document, float]]:
        found = await self._search(query, k, **kwargs)
        return documents_of(found, include_scores, include_embeddings)

    async def _search(self, query: str, k: int, **kwargs: Any) -> list[tuple[StoredDocument, float]]:
        scope = check_scope(kwargs)
        if check_k(k) == 0:
            return []
        return await self._nearest(await self._embedder.query(query), k, scope)

    async def _near(self, embedding: Sequence[float], k: int, **kwargs: Any) -> list[tuple[StoredDocument, float]]:
        scope = check_scope(kwargs)
        if check_k(k) == 0:
            return []
        return await self._nearest(question_vector(embedding, self._embedder.dims), k, scope)

    async def _nearest(self, vector: Vector, k: int, scope: SearchScope) -> list[tuple[StoredDocument, float]]:
        """Search exactly, comparing all vectors of the user."""
        index, _ = await self._shelf.read(scope.user_id)

        def ranked() -> list[tuple[str, float]]:
            with index.lock:
                scores, entries, embedded = index.dense(vector), index.entries, index.embedded
            order = np.argsort(-scores, kind="stable")
            return [
                (entries[i].id, min(float(scores[i]), 1.0))
                for i in order[embedded[order]].tolist()
                if scope.session_id is None or entries[i].session == scope.session_id
            ]

        ids: list[tuple[str, float]] = await cpu_bound(ranked)
        best: list[tuple[StoredDocument, float]] = []
        # The cached index ranks, the store returns the documents: what is shown is what is stored now, and a record
        # that somebody deleted by hand invalidates the cache.
        for page in pages_of(ids, k):
            stored = await self._step(
                lambda page=page: self._backend.by_ids(scope.user_id, [name for name, _ in page], vectors=True)  # type: ignore[misc]  # bound now
            )
            there = {row.id for row in stored}
            self._shelf.miss(scope.user_id, [name for name, _ in page if name not in there])
            shown = {
                s.document.id: s
                for s in readable_documents(stored, self._now())
                if s.vector is not None and scope.takes(s)
            }
            best += [(shown[name], score) for name, score in page if name in shown]
            if len(best) >= k:
                break
        return best[:k]
