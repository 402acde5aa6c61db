"""LangChain's vector store over a `VectorBackend`: exact search, and the records of users for vector memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from langchain_memkit._sync import ClosingMixin, adrive, cpu_bound, drive
from langchain_memkit.base import Now, check_id, check_size
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.ranking.index import unit_vectors
from langchain_memkit.stores import vector_rows
from langchain_memkit.stores.vector_filters import Filter, SearchScope, scope_of
from langchain_memkit.stores.vector_records import VectorMemoryStore, VectorRecords
from langchain_memkit.stores.vector_rows import RecordWrite, SessionSnapshot, StoredDocument, Vector, VectorBackend

__all__ = ["RecordVectorStore", "SessionSnapshot", "VectorBackend", "VectorMemoryStore"]

CACHE_BYTES = 96 * 2**20
Dicts: TypeAlias = list[dict[str, Any]] | None
Ids: TypeAlias = list[str] | None
Hits: TypeAlias = list[tuple[StoredDocument, float]]


class RecordVectorStore(ClosingMixin, VectorStore):
    """Base of `SQLiteVectorStore` and `MongoDBVectorStore`, which document its use.

    Attributes:
        records: The records of users as a `VectorMemory` reads and writes them: a `VectorMemoryStore`, of flows.
    """

    def __init__(self, backend: VectorBackend, embedding: Embeddings, cache_bytes: int, now: Now) -> None:
        check_size(cache_bytes, "cache_bytes", 0)
        self.records = VectorRecords(backend, embedding, cache_bytes, now)
        self._backend = backend
        self._embedder = self.records.embedder
        self._step = self.records.step
        self._now = now

    def __repr__(self) -> str:
        """Show what the backend's `str` shows: the file, or hosts and collection; no credentials."""
        return f"{type(self).__name__}({self._backend})"

    @classmethod
    def from_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: Dicts = None, *, ids: Ids = None, **kwargs: Any
    ) -> Self:
        """Create a store and add texts to it.

        Args:
            texts: The texts to store, for which there are as many `metadatas` and `ids`, or None.
            embedding: The embedding model.
            metadatas: As for `add_texts`.
            ids: As for `add_texts`.
            **kwargs: Further arguments of the class.
        """
        store = cls(embedding=embedding, **kwargs)
        store.add_texts(texts, metadatas, ids=ids)
        return store

    @classmethod
    async def afrom_texts(
        cls, texts: list[str], embedding: Embeddings, metadatas: Dicts = None, *, ids: Ids = None, **kwargs: Any
    ) -> Self:
        """Run `from_texts` asynchronously."""
        store = cls(embedding=embedding, **kwargs)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    @property
    def embeddings(self) -> Embeddings:
        """The embedding model."""
        return self._embedder.embedding

    def setup(self) -> None:
        """Open the file, or build the indexes of the collection, however large it is."""
        self._backend.run(self._backend.setup())

    async def asetup(self) -> None:
        """Run `setup` asynchronously."""
        await self._backend.arun(self._backend.setup())

    def close(self) -> None:
        """Close the connections that this store opened, and empty the cache."""
        self.records.cache.clear()
        self._backend.close()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        self.records.cache.clear()
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
            TypeError, ValueError: An id is not a string, empty or malformed.
            ConfigurationError: No `user_id` is given, and an id belongs to a document of a user.
        """
        return drive(self.records.get_by_ids(user_id, ids))

    async def aget_by_ids(self, ids: Sequence[str], /, *, user_id: str | None = None) -> list[Document]:
        """Run `get_by_ids` asynchronously."""
        return await adrive(self.records.get_by_ids(user_id, ids))

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
        drive(self.records.delete(*_wanted(ids, user_id, kwargs)))
        return True

    async def adelete(self, ids: list[str] | None = None, *, user_id: str | None = None, **kwargs: Any) -> bool:
        """Run `delete` asynchronously."""
        await adrive(self.records.delete(*_wanted(ids, user_id, kwargs)))
        return True

    def similarity_search(
        self, query: str, k: int = 4, pre_filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """Return the documents nearest to a text.

        Args:
            query: The text.
            k: The greatest number of documents returned.
            pre_filter: Conditions on the metadata in MongoDB's query language, as langchain-mongodb takes them:
                `{"user_id": "u1", "page": {"$gte": 2}}`. The operators are `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`,
                `$in`, `$nin`, `$and` and `$or`, on names without dots. They are evaluated in this process, on what is
                stored, and `user_id` must name one user.
            **kwargs: `filter`, instead of `pre_filter`: a dict that the metadata must be equal to, `{"user_id": ...,
                "session_id": ...}` and other keys. Without a `user_id` in either, only unowned documents are found.
                `include_scores=True` puts the score into each document's metadata as `score`,
                `include_embeddings=True` the vector, scaled to length 1, as `embedding`.

        Returns:
            Nearest first. Records without a vector are not found.

        Raises:
            TypeError: A `user_id` or `session_id` is not a string, or an argument is unknown.
            ValueError: An id in the filter is malformed, or `k` is below 0.
            ConfigurationError: The store was filled with another model, or `pre_filter` holds something unsupported.
            HistoryReadError: The store cannot be reached or read.
        """
        return [document for document, _ in drive(self._search(query, None, k, pre_filter=pre_filter, **kwargs))]

    async def asimilarity_search(
        self, query: str, k: int = 4, pre_filter: Filter | None = None, **kwargs: Any
    ) -> list[Document]:
        """Run `similarity_search` asynchronously."""
        return [document for document, _ in await adrive(self._search(query, None, k, pre_filter=pre_filter, **kwargs))]

    def similarity_search_with_score(
        self, query: str, k: int = 4, pre_filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Return the documents nearest to a text with their cosines, from -1 to 1; see `similarity_search`."""
        return drive(self._search(query, None, k, pre_filter=pre_filter, **kwargs))

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, pre_filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Run `similarity_search_with_score` asynchronously."""
        return await adrive(self._search(query, None, k, pre_filter=pre_filter, **kwargs))

    def similarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """Return the documents nearest to a vector; `**kwargs` and `pre_filter=` as in `similarity_search`."""
        return [document for document, _ in drive(self._search(None, embedding, k, **kwargs))]

    async def asimilarity_search_by_vector(self, embedding: list[float], k: int = 4, **kwargs: Any) -> list[Document]:
        """Run `similarity_search_by_vector` asynchronously."""
        return [document for document, _ in await adrive(self._search(None, embedding, k, **kwargs))]

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
        return drive(self._diverse(query, None, k, fetch_k, lambda_mult, pre_filter=pre_filter, **kwargs))

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
        return await adrive(self._diverse(query, None, k, fetch_k, lambda_mult, pre_filter=pre_filter, **kwargs))

    def max_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Return documents that are near to a vector and unlike each other; see `max_marginal_relevance_search`."""
        return drive(self._diverse(None, embedding, k, fetch_k, lambda_mult, **kwargs))

    async def amax_marginal_relevance_search_by_vector(
        self, embedding: list[float], k: int = 4, fetch_k: int = 20, lambda_mult: float = 0.5, **kwargs: Any
    ) -> list[Document]:
        """Run `max_marginal_relevance_search_by_vector` asynchronously."""
        return await adrive(self._diverse(None, embedding, k, fetch_k, lambda_mult, **kwargs))

    # -- the records of users

    def forget(self, user_id: str, session_id: str | None = None) -> int:
        """Delete a session of a user, or everything of the user, for good. A save that is under way stores nothing.

        Args:
            user_id: The user.
            session_id: The conversation; None for everything of the user.

        Returns:
            The number of records deleted.

        Raises:
            TypeError, ValueError: An id is not a string, empty or malformed.
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self.records.forget(user_id, session_id))

    async def aforget(self, user_id: str, session_id: str | None = None) -> int:
        """Run `forget` asynchronously."""
        return await adrive(self.records.forget(user_id, session_id))

    def purge(self, user_id: str) -> dict[str, int]:
        """Delete everything of a user for good. This makes the store a part that `purge_user` accepts.

        Args:
            user_id: The user.

        Returns:
            `{"records": n}`: the number of records deleted.

        Raises:
            TypeError, ValueError, HistoryWriteError: As `forget`.
        """
        return {"records": self.forget(user_id)}

    async def apurge(self, user_id: str) -> dict[str, int]:
        """Run `purge` asynchronously."""
        return {"records": await self.aforget(user_id)}

    # -- flows

    async def _add(
        self, documents: Sequence[Document], ids: Sequence[str | None] | None = None, batch_size: int | None = None
    ) -> list[str]:
        given = [document.id for document in documents] if ids is None else list(ids)
        if isinstance(ids, str) or len(given) != len(documents):
            msg = f"there are {len(documents)} documents and {len(given)} ids"
            raise TypeError(msg) if isinstance(ids, str) else ValueError(msg)
        size = max(len(given), 1) if batch_size is None else check_size(batch_size, "batch_size", 1)
        both = list(zip(given, documents, strict=True))
        names = [str(uuid4()) if (n := name or d.id) is None else check_id(n, "id") for name, d in both]
        # All documents are validated before the first one is embedded or stored.
        rows = await cpu_bound(lambda: [vector_rows.plain_row(d, n) for d, n in zip(documents, names, strict=True)])
        for begin in range(0, len(rows), size):
            part = rows[begin : begin + size]
            vectors = await self._embedder.documents([d.page_content for d in documents[begin : begin + size]])
            # one write per user, since the version that caches are checked against is a user's
            for user in dict.fromkeys(row.user_id for row in part):
                mine = [i for i, row in enumerate(part) if row.user_id == user]
                await self.records.store(user, RecordWrite([part[i] for i in mine]), [vectors[i] for i in mine])
        return names

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """Return the function that clips a cosine to 0 to 1: opposite directions count as 0."""
        return lambda score: min(max(score, 0.0), 1.0)

    async def _search(self, query: str | None, vector: Any, k: int, **options: Any) -> list[tuple[Document, float]]:
        """Search by a text, or by a vector; scores and vectors go where langchain-mongodb puts them."""
        with_scores, with_vectors = (options.pop(f"include_{what}", False) for what in ("scores", "embeddings"))
        found = await self._found(query, vector, k, scope_of(**options))
        for shown, score in found:
            if with_scores:
                shown.document.metadata["score"] = score
            if with_vectors and shown.vector is not None:
                shown.document.metadata["embedding"] = shown.vector.tolist()
        return [(shown.document, score) for shown, score in found]

    async def _diverse(
        self, query: str | None, vector: Any, k: int, fetch_k: int, lambda_mult: float, **options: Any
    ) -> list[Document]:
        """Select `k` of the nearest documents by maximal marginal relevance (langchain-core's function is private)."""
        found = await self._found(query, vector, max(k, fetch_k), scope_of(**options))
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

    async def _found(self, query: str | None, vector: Any, k: int, scope: SearchScope) -> Hits:
        if not check_size(k, "k", 0):
            return []
        if query is not None:
            return await self._nearest(await self._embedder.query(query), k, scope)
        (unit,) = unit_vectors([vector], self._embedder.dims)
        if unit is None:
            msg = "the vector to search by is all zeros, so it has no direction: nothing is near to it"
            raise ConfigurationError(msg)
        return await self._nearest(unit, k, scope)

    async def _nearest(self, vector: Vector, k: int, scope: SearchScope) -> Hits:
        """Search exactly, comparing all vectors of the user."""
        index, _ = await self.records.read(scope.user_id)

        def ranked() -> list[tuple[str, float]]:
            with index.lock:
                scores, entries, embedded = index.dense(vector), index.entries, index.embedded
            order = np.argsort(-scores, kind="stable")
            here = order[embedded[order]].tolist()
            if scope.session_id is not None:
                here = [i for i in here if entries[i].session == scope.session_id]
            return [(entries[i].id, min(float(scores[i]), 1.0)) for i in here]

        found, best = await cpu_bound(ranked), Hits()
        begin, size = 0, k
        # The cached index ranks, the store returns the documents: what is shown is what is stored now, and a record
        # that somebody deleted by hand invalidates the cache. Pages grow, for a filter that few documents match.
        while begin < len(found) and len(best) < k:
            page = dict(found[begin : begin + size])
            stored = await self._step(lambda names=[*page]: self._backend.by_ids(scope.user_id, names, vectors=True))  # type: ignore[misc]  # bound now
            self.records.cache.miss(scope.user_id, page.keys() - {row.id for row in stored})
            readable = vector_rows.readable_documents(stored, self._now())
            shown = {s.document.id: s for s in readable if s.vector is not None}
            best += [(shown[name], score) for name, score in page.items() if name in shown and scope.takes(shown[name])]
            begin, size = begin + size, min(2 * size, 1000)
        return best[:k]


def _wanted(ids: list[str] | None, user_id: str | None, kwargs: Mapping[str, object]) -> tuple[str | None, list[str]]:
    if user_id is not None:  # first, so that a malformed one is told whatever else is wrong
        check_id(user_id, "user_id")
    if ids is None or kwargs:
        raise TypeError("delete needs a list of ids and nothing else; forget(user_id) deletes all of a user")
    return user_id, ids
