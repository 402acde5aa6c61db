"""Searches for one or several questions, fused by weights."""

from __future__ import annotations

import heapq
import inspect
import logging
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, run_in_executor
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from langchain_memkit._sync import Step, gather
from langchain_memkit.retrievers.expansion import (
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
from langchain_memkit.retrievers.history import document_key, is_among
from langchain_memkit.retrievers.rewriter import StandaloneQuestion

__all__ = ["BY_VECTOR", "Search", "keeps_own_search", "reciprocal_rank_fusion", "weighted_search_of"]

BY_VECTOR = {  # search_type -> method that searches by text, method that searches by vector
    "similarity": ("similarity_search", "similarity_search_by_vector"),
    "mmr": ("max_marginal_relevance_search", "max_marginal_relevance_search_by_vector"),
}
SEARCHES = ("invoke", "ainvoke", "_get_relevant_documents", "_aget_relevant_documents")


class WeightedSearch(BaseRetriever):
    """Retriever around a weighted search that callback handlers see under the name of the retriever it replaces."""

    search: Callable[[str], Any]
    asearch: Callable[[str], Awaitable[Any]]

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        return list(self.search(query))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        return list(await self.asearch(query))


def weighted_search_of(
    retriever: Any, turns: Sequence[Turn], strength: Strength, k: int | None, options: Mapping[str, Any]
) -> WeightedSearch | None:
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
        return WeightedSearch(search=search, asearch=asearch, **told)
    if k is not None and not options and _takes_terms(retriever):

        def by_terms(question: str) -> list[Document]:
            return _by_terms(retriever, question, turns, strength, k)

        async def aby_terms(question: str) -> list[Document]:
            return await run_in_executor(None, by_terms, question)

        return WeightedSearch(search=by_terms, asearch=aby_terms, **told)
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


logger = logging.getLogger("langchain_memkit")

UNFIT = (NotImplementedError, AttributeError, TypeError, ValueError)  # raised by stores that cannot search by vector
RANK = 60  # of reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009)


def reciprocal_rank_fusion(*rankings: Sequence[Document]) -> list[Document]:
    """Merge rankings by reciprocal rank fusion: order documents by the sum of 1 / (60 + rank), each once.

    Of documents with equal sums, the one of the earlier ranking comes first.

    Example:
        >>> tea, coffee, milk = Document("Tea"), Document("Coffee"), Document("Milk")
        >>> [document.page_content for document in reciprocal_rank_fusion([tea, coffee], [coffee, milk])]
        ['Coffee', 'Tea', 'Milk']
    """
    scores: defaultdict[str, float] = defaultdict(float)
    first: dict[str, Document] = {}
    for ranking in rankings:
        unique: dict[str, Document] = {}
        for document in ranking:
            unique.setdefault(document_key(document), document)
        for place, (key, document) in enumerate(unique.items(), 1):
            scores[key] += 1 / (RANK + place)
            first.setdefault(key, document)
    return [first[key] for key in sorted(scores, key=lambda key: -scores[key])]


@dataclass(frozen=True)
class Search:
    """One search with an inner retriever.

    Attributes:
        retriever: Any runnable from text to documents.
        k: How many documents to return; None for as many as the retriever returns.
        options: Further arguments of its `invoke`.
        config: Config of the run.
        skipped: Keys of documents to leave out.
        fuse: Whether to add results for the original question.
        strength: How strongly the conversation is added if terms are weighted.
    """

    retriever: Runnable[str, Any]
    k: int | None
    options: Mapping[str, Any]
    config: RunnableConfig
    skipped: frozenset[str] = frozenset()
    fuse: bool = False
    strength: Strength = STRONG

    async def run(self, found: StandaloneQuestion, turns: Sequence[Turn]) -> list[Document]:
        """Search, and return the documents, best first."""
        wanted = self.k if self.k is not None else default_k(self.retriever)
        # Fetch as many documents more as may be left out, so that enough remain. Without `k` and without documents to
        # leave out, the retriever decides how many it returns.
        asked = None if wanted is None or not (self.k or self.skipped) else wanted + len(self.skipped)
        weighted = self._weighted(found.original, turns, wanted, asked) if found.by == "weighted" else None
        searches = [weighted or self._plain(found.question, asked)]
        # In a string, added terms weigh as much as the question. To limit the harm, fuse with the results of the
        # original question.
        careful = found.by == "weighted" and weighted is None and self.strength is not STRONG
        if (self.fuse or careful) and found.question != found.original:
            searches.append(self._plain(found.original, asked))
        results = await gather(searches)
        # A store may fail only when it is called: fall back to the search by text.
        if weighted and isinstance(results[0], UNFIT):
            logger.warning("not searched by weight, but by text: %s", type(results[0]).__name__)
            weighted = None
            searches = [self._plain(text, asked) for text in (found.question, found.original)]
            results = await gather(searches)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        rankings = [_documents(result) for result in results]
        if self.k is None and not self.skipped and len(rankings) == 1:
            return rankings[0]
        most = wanted if wanted is not None else max(len(ranking) for ranking in rankings)
        merged = reciprocal_rank_fusion(*rankings) if len(rankings) > 1 else rankings[0]
        return [document for document in merged if not is_among(document, self.skipped)][:most]

    def _plain(self, text: str, k: int | None) -> Step[Any]:
        retriever, options = with_k(self.retriever, k)
        call = {**self.options, **options}
        return Step(
            partial(retriever.invoke, text, self.config, **call), partial(retriever.ainvoke, text, self.config, **call)
        )

    def _weighted(self, question: str, turns: Sequence[Turn], wanted: int | None, k: int | None) -> Step[Any] | None:
        """Return a search in which the conversation weighs less than the question; None if the retriever has none."""
        inner: Any = unwrap(self.retriever)
        k = k or wanted
        options = {**self.options, **with_k(inner, k)[1]}
        shortcut = weighted_search_of(inner, turns, self.strength, k, options)
        if shortcut is None:
            return None
        retriever = _instead(self.retriever, shortcut)
        return Step(partial(retriever.invoke, question, self.config), partial(retriever.ainvoke, question, self.config))


def _documents(found: Any) -> list[Document]:
    documents = list(found) if isinstance(found, Iterable) else [found]
    for document in documents:
        if not isinstance(document, Document):
            msg = f"a retriever must return documents, not {type(document).__name__}"
            raise TypeError(msg)
    return documents


# -- how many


def unwrap(retriever: Runnable[str, Any]) -> Runnable[str, Any]:
    """Unwrap a retriever from bindings that only set a config."""
    while isinstance(retriever, RunnableBindingBase) and not retriever.kwargs:
        retriever = retriever.bound
    return retriever


def default_k(retriever: Runnable[str, Any]) -> int | None:
    """Return the number of documents that a retriever returns by default; None if it does not say."""
    inner: Any = unwrap(retriever)
    if isinstance(inner, VectorStoreRetriever):
        k = inner.search_kwargs.get("k")
        if k is None and keeps_own_search(inner, VectorStoreRetriever):
            search = getattr(inner.vectorstore, BY_VECTOR.get(inner.search_type, BY_VECTOR["similarity"])[0])
            known = inspect.signature(search).parameters.get("k")
            k = known.default if known is not None else None
    else:
        k = getattr(inner, "k", None) if isinstance(inner, BaseRetriever) else None
    return k if isinstance(k, int) else None


def _instead(retriever: Runnable[str, Any], other: Runnable[str, Any]) -> Runnable[str, Any]:
    """Return `other`, bound to the same config as the retriever that it replaces."""
    if isinstance(retriever, RunnableBindingBase) and not retriever.kwargs:
        return retriever.model_copy(update={"bound": _instead(retriever.bound, other)})
    return other


def with_k(retriever: Runnable[str, Any], k: int | None) -> tuple[Runnable[str, Any], dict[str, Any]]:
    """Return the retriever and the arguments that make it return `k` documents, unchanged if it cannot be told."""
    inner: Any = unwrap(retriever)
    if k is None or not isinstance(inner, BaseRetriever):
        return retriever, {}
    if isinstance(inner, VectorStoreRetriever):
        candidates = {"fetch_k": max(k, inner.search_kwargs.get("fetch_k", 20))} if inner.search_type == "mmr" else {}
        return retriever, {"k": k, **candidates}
    if "k" in type(inner).model_fields:
        return _instead(retriever, inner.model_copy(update={"k": k})), {}
    return retriever, {}
