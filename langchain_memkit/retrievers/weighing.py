"""Weighted searches, in which the conversation weighs less than the question: by terms, or by a sum of vectors.

They bypass a retriever's own search, so they are used only if that is the library's, not overridden: a subclass may do
more, such as hiding documents that a user must not see, and is called in its own way.
"""

from __future__ import annotations

import heapq
import inspect
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import run_in_executor
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from langchain_memkit.retrievers.contextualize import (
    CHARACTERS,
    LEAST_WEIGHT,
    STRONG,
    TURNS,
    Strength,
    Turn,
    added_terms,
    expanded,
    vector_blend,
)

__all__ = ["BY_VECTOR", "keeps_own_search", "weighing"]

BY_VECTOR = {  # search_type -> method that searches by text, method that searches by vector
    "similarity": ("similarity_search", "similarity_search_by_vector"),
    "mmr": ("max_marginal_relevance_search", "max_marginal_relevance_search_by_vector"),
}
SEARCHES = ("invoke", "ainvoke", "_get_relevant_documents", "_aget_relevant_documents")


class Weighing(BaseRetriever):
    """Retriever around a weighted search that callback handlers see under the name of the retriever it replaces."""

    search: Callable[[str], Any]
    asearch: Callable[[str], Awaitable[Any]]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return list(self.search(query))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        return list(await self.asearch(query))


def weighing(
    retriever: Any, turns: Sequence[Turn], strength: Strength, k: int | None, options: Mapping[str, Any]
) -> Weighing | None:
    """Build the weighted search of a retriever; None if it supports none.

    Args:
        retriever: The retriever, unwrapped.
        turns: The turns before the question, oldest first.
        strength: How strongly the conversation is added.
        k: How many documents are wanted.
        options: Arguments for this search, in addition to the retriever's own.
    """
    told: dict[str, Any] = {"name": getattr(retriever, "name", None) or type(retriever).__name__}
    told |= {key: getattr(retriever, key, None) for key in ("tags", "metadata")}
    if (by_vector := _search_by_vector(retriever, options)) is not None:
        search, asearch = _by_vector(retriever, by_vector, turns, strength, options)
        return Weighing(search=search, asearch=asearch, **told)
    if k is not None and not options and _takes_terms(retriever):

        def by_terms(question: str) -> list[Document]:
            return _by_terms(retriever, question, turns, strength, k)

        async def aby_terms(question: str) -> list[Document]:
            return await run_in_executor(None, by_terms, question)

        return Weighing(search=by_terms, asearch=aby_terms, **told)
    return None


def keeps_own_search(retriever: Any, home: type) -> bool:
    """Return whether a retriever's search methods come from the class `home` or a parent of it, not overridden."""
    return isinstance(retriever, home) and all(issubclass(home, _origin(type(retriever), name)) for name in SEARCHES)


def _origin(kind: type, name: str) -> type:
    """Return the class in the MRO that defines a method."""
    return next((parent for parent in kind.__mro__ if name in vars(parent)), object)


# -- by terms


def _takes_terms(retriever: Any) -> bool:
    """Return whether a retriever is langchain-community's `BM25Retriever`, or built like it."""
    parts = (getattr(getattr(retriever, "vectorizer", None), "get_scores", None), getattr(retriever, "docs", None))
    homes = (kind for kind in type(retriever).__mro__ if "vectorizer" in inspect.get_annotations(kind))
    home = next(homes, None)
    return (
        callable(parts[0])
        and isinstance(parts[1], (list, tuple))
        and callable(getattr(retriever, "preprocess_func", None))
        and home is not None
        and keeps_own_search(retriever, home)
    )


def _by_terms(bm25: Any, question: str, turns: Sequence[Turn], strength: Strength, k: int) -> list[Document]:
    """Search by the BM25 score of the question plus the weighted scores of the added terms: BM25 is additive."""
    words: defaultdict[float, list[str]] = defaultdict(list)
    for term in added_terms(question, turns, strength):
        words[term.weight] += bm25.preprocess_func(term.word)
    scores = [float(score) for score in bm25.vectorizer.get_scores(bm25.preprocess_func(question))]
    for weight, tokens in words.items():
        if tokens:
            scores = [a + weight * float(b) for a, b in zip(scores, bm25.vectorizer.get_scores(tokens), strict=True)]
    return [bm25.docs[i] for i in heapq.nlargest(k, range(len(scores)), key=scores.__getitem__)]


# -- by vector


def _search_by_vector(retriever: Any, options: Mapping[str, Any]) -> str | None:
    """Return the store method that searches by vector as the retriever does by text, by name; None without one."""
    if not keeps_own_search(retriever, VectorStoreRetriever):
        return None
    names = BY_VECTOR.get(retriever.search_type)
    if names is None or not _has_vectors(retriever.vectorstore):
        return None
    kind, (by_text, by_vector) = type(retriever.vectorstore), names
    origin = _origin(kind, by_vector)
    texts = [name for search in (by_text, f"{by_text}_with_score") for name in (search, f"a{search}")]
    if origin is VectorStore or not all(issubclass(origin, _origin(kind, name)) for name in texts):
        return None  # it has none, or a subclass does more by text than by vector
    # The method must name every argument: it may silently drop others, perhaps a filter.
    named = inspect.signature(getattr(kind, by_vector)).parameters
    return by_vector if {*retriever.search_kwargs, *options} <= {*named} else None


def _has_vectors(store: VectorStore) -> bool:
    try:
        return store.embeddings is not None
    except (AttributeError, NotImplementedError, ValueError):
        return False


def _by_vector(
    retriever: VectorStoreRetriever,
    name: str,
    turns: Sequence[Turn],
    strength: Strength,
    options: Mapping[str, Any],
) -> tuple[Callable[[str], Any], Callable[[str], Awaitable[Any]]]:
    """Build the search by vector, sync and async: the query is the weighted sum of question and conversation."""
    store: Any = retriever.vectorstore
    model = store.embeddings
    turns = turns[-TURNS:]
    blend = vector_blend(turns, strength)
    answers = [
        (weight, answer[:CHARACTERS])
        for weight, (_, answer) in zip(blend.answers, turns, strict=True)
        if answer and weight >= LEAST_WEIGHT
    ]
    texts = [text for _, text in answers]
    weights = [blend.question, blend.expanded, *(weight for weight, _ in answers)]
    arguments = {**retriever.search_kwargs, **options}

    def search(question: str) -> Any:
        vectors = [model.embed_query(text) for text in (question, expanded(question, turns, STRONG))]
        vectors += model.embed_documents(texts) if texts else []
        return getattr(store, name)(_blended(weights, vectors), **arguments)

    async def asearch(question: str) -> Any:  # one by one: not every embedding model takes concurrent calls
        vectors = [await model.aembed_query(text) for text in (question, expanded(question, turns, STRONG))]
        vectors += await model.aembed_documents(texts) if texts else []
        return await getattr(store, f"a{name}")(_blended(weights, vectors), **arguments)

    return search, asearch


def _blended(weights: Sequence[float], vectors: Sequence[Any]) -> list[float]:
    """Return the weighted sum of normalized vectors, scaled to the length of the first vector."""
    parts = [[float(x) for x in vector] for vector in vectors]
    lengths = [math.hypot(*part) for part in parts]
    shares = [w / length if length > 0 else 0.0 for w, length in zip(weights, lengths, strict=True)]
    total = [sum(s * x for s, x in zip(shares, column, strict=True)) for column in zip(*parts, strict=True)]
    length = math.hypot(*total)
    scale = lengths[0] / length if length > 0 and lengths[0] > 0 else 0.0
    return [scale * x for x in total] if scale else parts[0]
