"""LangChain's verbs of a vector store, written once for both call styles and for every backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.vectorstores import VectorStore

from langchain_memkit._sync import adrive, cpu_bound, drive
from langchain_memkit.backends._vectors.embedding import question_vector
from langchain_memkit.backends._vectors.forgetting import Forgetting
from langchain_memkit.backends._vectors.rows import Row, Shown, Vector, plain_row, shown_of
from langchain_memkit.backends._vectors.scope import (
    Filter,
    Scope,
    check_k,
    diverse,
    documents_of,
    pages_of,
    scope_given,
)
from langchain_memkit.base import check_id


class RecordVectorStore(Forgetting, VectorStore):
    """Verbs shared by `SQLiteVectorStore` and `MongoDBVectorStore`; see there."""

    @property
    def embeddings(self) -> Embeddings:
        """The embedding model."""
        return self._embedder.embedding

    # -- adding

    def add_documents(self, documents: list[Document], **kwargs: Any) -> list[str]:
        """Embeds and stores documents, in place of those with the same ids.

        Args:
            documents: Any; `user_id` in the metadata says whose one is. Without it, it belongs to nobody, and no
                user's search finds it.
            **kwargs: `ids`, a list of str or None: before the documents' own. Without either an id is drawn.
                `batch_size`, how many are embedded and stored at a time; None for all at once. What a later part runs
                into does not undo an earlier one.

        Returns:
            The ids, in the order of `documents`.

        Raises:
            TypeError: An id is no string, or an argument is unknown.
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
        """Async twin of `add_documents`."""
        return await adrive(self._add(documents, **kwargs))

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
        rows: list[Row] = await cpu_bound(lambda: [plain_row(d, n) for d, n in zip(documents, names, strict=True)])
        size = batch_size or max(len(rows), 1)
        for begin in range(0, len(rows), size):
            part = rows[begin : begin + size]
            texts = [d.page_content for d in documents[begin : begin + size]]
            vectors: list[Vector | None] = await self._embedder.documents(texts)
            for user in dict.fromkeys(row.user_id for row in part):
                mine = [i for i, row in enumerate(part) if row.user_id == user]
                await self._store(user, [part[i] for i in mine], [vectors[i] for i in mine])
        return names

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
        """A store with these texts in it.

        Args:
            texts: What to store.
            embedding: The embedding model.
            metadatas: One for each text, or None.
            ids: One for each text, or None.
            **kwargs: Arguments of the class.

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
        """Async twin of `from_texts`."""
        store = cls(embedding=embedding, **kwargs)
        await store.aadd_texts(texts, metadatas, ids=ids)
        return store

    # -- searching

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
            k: How many at most.
            pre_filter: Conditions on the metadata in MongoDB's query language, as langchain-mongodb takes them:
                `{"user_id": "u1", "page": {"$gte": 2}}`. Of operators, `$eq`, `$ne`, `$gt`, `$gte`, `$lt`, `$lte`,
                `$in`, `$nin`, `$exists`, `$not`, `$and`, `$or` and `$nor`. They are compared in this process, with
                what was stored, and `user_id` must name one user.
            include_scores: Puts the score into each document's metadata as `score`.
            **kwargs: `filter`, instead of `pre_filter`: a dict that the metadata must be equal to, `{"user_id": ...,
                "session_id": ...}` and other keys. Without a `user_id` in either only documents of nobody are found.
                `include_embeddings=True` puts the vector, scaled to length 1, into the metadata as `embedding`.

        Returns:
            Nearest first. Records without a vector are not among them.

        Raises:
            TypeError: A `user_id` or `session_id` is no string, or an argument is unknown.
            ValueError: An id in the filter is malformed, or `k` is below 0.
            ConfigurationError: The store was filled with another model, or `pre_filter` holds what is not supported.
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
        """Async twin of `similarity_search`."""
        flow = self._documents(query, k, include_scores, pre_filter=pre_filter, **kwargs)
        return [document for document, _ in await adrive(flow)]

    def similarity_search_with_score(
        self, query: str, k: int = 4, pre_filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """As `similarity_search`, with the cosine of each, from -1 to 1."""
        return drive(self._documents(query, k, pre_filter=pre_filter, **kwargs))

    async def asimilarity_search_with_score(
        self, query: str, k: int = 4, pre_filter: Filter | None = None, **kwargs: Any
    ) -> list[tuple[Document, float]]:
        """Async twin of `similarity_search_with_score`."""
        return await adrive(self._documents(query, k, pre_filter=pre_filter, **kwargs))

    def similarity_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        filter: Filter | None = None,  # noqa: A002  # LangChain's name
        **kwargs: Any,
    ) -> list[Document]:
        """As `similarity_search`, for a vector."""
        return [shown.document for shown, _ in drive(self._near(embedding, k, filter=filter, **kwargs))]

    async def asimilarity_search_by_vector(
        self,
        embedding: list[float],
        k: int = 4,
        filter: Filter | None = None,  # noqa: A002  # LangChain's name
        **kwargs: Any,
    ) -> list[Document]:
        """Async twin of `similarity_search_by_vector`."""
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
        """Documents near to a text and unlike each other.

        Maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998): each next one has the greatest
        `lambda_mult * similarity to the text - (1 - lambda_mult) * greatest similarity to one chosen before`.

        Args:
            query: The text.
            k: How many at most.
            fetch_k: Among how many nearest ones is chosen.
            lambda_mult: From 0, as diverse as possible, to 1, nearest first.
            pre_filter: As in `similarity_search`.
            **kwargs: `filter`, as in `similarity_search`.

        Returns:
            In the order in which they were chosen.
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
        """Async twin of `max_marginal_relevance_search`."""
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
        """As `max_marginal_relevance_search`, for a vector."""
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
        """Async twin of `max_marginal_relevance_search_by_vector`."""
        near = await adrive(self._near(embedding, max(k, fetch_k), filter=filter, **kwargs))
        return diverse(near, k, lambda_mult)

    def _select_relevance_score_fn(self) -> Callable[[float], float]:
        """The cosine, from 0 to 1; what points away counts as 0."""
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

    async def _search(self, query: str, k: int, **kwargs: Any) -> list[tuple[Shown, float]]:
        scope = scope_given(kwargs)
        if check_k(k) == 0:
            return []
        return await self._nearest(await self._embedder.query(query), k, scope)

    async def _near(self, embedding: Sequence[float], k: int, **kwargs: Any) -> list[tuple[Shown, float]]:
        scope = scope_given(kwargs)
        if check_k(k) == 0:
            return []
        return await self._nearest(question_vector(embedding, self._embedder.dims), k, scope)

    async def _nearest(self, vector: Vector, k: int, scope: Scope) -> list[tuple[Shown, float]]:
        """Every vector of the user is compared."""
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
        best: list[tuple[Shown, float]] = []
        for page in pages_of(ids, k):
            stored = await self._step(
                lambda page=page: self._backend.by_ids(scope.user_id, [name for name, _ in page], vectors=True)  # type: ignore[misc]  # bound now
            )
            there = {row.id for row in stored}
            self._shelf.miss(scope.user_id, [name for name, _ in page if name not in there])
            shown = {s.document.id: s for s in shown_of(stored, self._now()) if s.vector is not None and scope.takes(s)}
            best += [(shown[name], score) for name, score in page if name in shown]
            if len(best) >= k:
                break
        return best[:k]
