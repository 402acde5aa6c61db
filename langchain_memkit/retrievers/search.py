"""Searches for a question: with the conversation weighted where the retriever can do so, else by text."""

from __future__ import annotations

import heapq
import inspect
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from langchain_memkit._sync import Flow, Step, adrive, cpu_bound, drive, gather
from langchain_memkit.errors import logger
from langchain_memkit.retrievers.expansion import CHARACTERS, STRONG, TURNS, added_terms, answer_weights, expanded
from langchain_memkit.retrievers.history import Past, document_key, is_among
from langchain_memkit.retrievers.rewriter import StandaloneQuestion

AnyRetriever: TypeAlias = Runnable[str, Any]  # any runnable from text to documents
Options: TypeAlias = Mapping[str, object]  # keyword arguments of a search

RANK = 60  # of reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009)
BY_VECTOR = {  # search_type -> method that searches by text, method that searches by vector
    "similarity": ("similarity_search", "similarity_search_by_vector"),
    "mmr": ("max_marginal_relevance_search", "max_marginal_relevance_search_by_vector"),
}


async def search_documents(
    inner: AnyRetriever, found: StandaloneQuestion, past: Past, k: int | None, options: Options, config: RunnableConfig
) -> list[Document]:
    """Search with an inner retriever, and return `k` documents, best first; None for as many as it returns."""

    def invoked(retriever: AnyRetriever, text: str, **arguments: Any) -> Step[Any]:
        call = partial(retriever.invoke, text, config, **arguments)
        return Step(call, partial(retriever.ainvoke, text, config, **arguments))

    wanted = k if k is not None else default_k(inner)
    # Fetch as many documents more as may be left out, so that enough remain. Without `k` and without documents to
    # leave out, the retriever decides how many it returns.
    requested = None if wanted is None or not (k or past.skipped) else wanted + len(past.skipped)
    by_weight, is_longer = found.by == "weighted", found.searched_for != found.question
    # In a string, added terms weigh as much as the question. To limit the harm, fuse with the results of the original
    # question.
    careful = is_longer and past.strength is not STRONG
    results: list[Any] = []
    if by_weight and (weighted := weighted_search(inner, past, requested or wanted, options)) is not None:
        results = await gather([invoked(weighted, found.original)])
        # A store that cannot search by vector may fail only when it is called: fall back to the search by text.
        if isinstance(results[0], (NotImplementedError, AttributeError, TypeError, ValueError)):
            logger.warning("not searched by weight, but by text: %s", type(results[0]).__name__)
            results, careful = [], is_longer
    if not results:
        sized, arguments = with_k(inner, requested)
        texts = [found.searched_for, found.original] if careful else [found.searched_for]
        results = await gather([invoked(sized, text, **{**options, **arguments}) for text in texts])
    rankings = [_documents(result) for result in results]
    if k is None and not past.skipped and len(rankings) == 1:
        return rankings[0]
    most = wanted if wanted is not None else max(len(ranking) for ranking in rankings)
    merged = reciprocal_rank_fusion(*rankings) if len(rankings) > 1 else rankings[0]
    return [document for document in merged if not is_among(document, past.skipped)][:most]


def _documents(found: object) -> list[Document]:
    """Return the result of a search as documents, or raise its error."""
    if isinstance(found, BaseException):
        raise found
    documents: list[Any] = list(found) if isinstance(found, Iterable) else [found]
    if others := {type(each).__name__ for each in documents if not isinstance(each, Document)}:
        raise TypeError(f"a retriever must return documents, not {' or '.join(sorted(others))}")
    return documents


def reciprocal_rank_fusion(*rankings: Sequence[Document]) -> list[Document]:
    """Merge rankings by reciprocal rank fusion: order documents by the sum of 1 / (60 + rank), each once.

    Of documents with equal sums, the one of the earlier ranking comes first.
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


class WeightedSearch(BaseRetriever):
    """Retriever around a weighted search that callback handlers see under the name of the retriever it replaces."""

    search: Callable[[str], Flow[list[Document]]]

    def _get_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
        return drive(self.search(query))

    async def _aget_relevant_documents(self, query: str, *, run_manager: object) -> list[Document]:
        return await adrive(self.search(query))


def weighted_search(retriever: AnyRetriever, past: Past, k: int | None, options: Options) -> AnyRetriever | None:
    """Return a retriever in whose search the conversation weighs less than the question; None if it supports none."""
    inner: Any = unwrap(retriever)
    options = {**options, **with_k(inner, k)[1]}
    if (by_vector := _search_by_vector(inner, options)) is not None:
        search: Callable[[str], Flow[list[Document]]] = partial(_by_vector, inner, by_vector, past, options)
    elif k is not None and not options and _takes_terms(inner):
        search = partial(_by_terms, inner, past, k)
    else:
        return None
    name = inner.name or type(inner).__name__
    return _instead(retriever, WeightedSearch(search=search, name=name, tags=inner.tags, metadata=inner.metadata))


def keeps_own_search(retriever: Any, home: type) -> bool:
    """Return whether a retriever's search methods come from the class `home` or a parent of it, not overridden."""
    names = ("invoke", "ainvoke", "_get_relevant_documents", "_aget_relevant_documents")
    return isinstance(retriever, home) and all(issubclass(home, _origin(type(retriever), name)) for name in names)


def _origin(kind: type, name: str) -> type:
    """Return the class in the MRO that defines a method."""
    return next((parent for parent in kind.__mro__ if name in vars(parent)), object)


def _takes_terms(retriever: Any) -> bool:
    """Return whether a retriever is langchain-community's `BM25Retriever`, or built like it."""
    parts = {"vectorizer", "docs", "preprocess_func"}
    home = next((kind for kind in type(retriever).__mro__ if parts <= {*inspect.get_annotations(kind)}), None)
    own = home is not None and isinstance(retriever, BaseRetriever) and keeps_own_search(retriever, home)
    return own and hasattr(retriever.vectorizer, "get_scores")


async def _by_terms(bm25: Any, past: Past, k: int, question: str) -> list[Document]:
    """Search by the BM25 score of the question plus the weighted scores of the added terms: BM25 is additive.

    Where nothing is left out, the sum of the added terms is capped at the most that any of them gives. All documents on
    the topic then gain alike, and the question's own words order them; without a cap the documents that hold the most
    added terms come first, which are those that answered before.
    """

    def scores_of(text: str) -> list[float]:
        tokens = bm25.preprocess_func(text)
        return [*map(float, bm25.vectorizer.get_scores(tokens))] if tokens else [0.0] * len(bm25.docs)

    def scored() -> list[float]:
        scores, added, cap = scores_of(question), Counter[int](), 0.0
        for term in added_terms(question, past.turns):
            found = {i: term.weight * score for i, score in enumerate(scores_of(term.word)) if score}
            cap = max([cap, *found.values()])
            added.update(found)
        return [score + (added[i] if past.strength is STRONG else min(added[i], cap)) for i, score in enumerate(scores)]

    scores = await cpu_bound(scored)
    return [bm25.docs[i] for i in heapq.nlargest(k, range(len(scores)), key=scores.__getitem__)]


def _search_by_vector(retriever: Any, options: Options) -> str | None:
    """Return the store method that searches by vector as the retriever does by text, by name; None without one."""
    if not keeps_own_search(retriever, VectorStoreRetriever) or retriever.search_type not in BY_VECTOR:
        return None
    has_vectors = False
    with suppress(AttributeError, NotImplementedError, ValueError):
        has_vectors = retriever.vectorstore.embeddings is not None
    kind, (by_text, by_vector) = type(retriever.vectorstore), BY_VECTOR[retriever.search_type]
    origin = _origin(kind, by_vector)
    texts = [name for search in (by_text, f"{by_text}_with_score") for name in (search, f"a{search}")]
    if not has_vectors or origin is VectorStore or not all(issubclass(origin, _origin(kind, name)) for name in texts):
        return None  # it has none, or a subclass does more by text than by vector
    # The method must name every argument: it may silently drop others, perhaps a filter.
    named = inspect.signature(getattr(kind, by_vector)).parameters
    return by_vector if {*retriever.search_kwargs, *options} <= {*named} else None


async def _by_vector(
    retriever: VectorStoreRetriever, name: str, past: Past, options: Options, question: str
) -> list[Document]:
    """Search by vector: the query is the weighted sum of the question and the conversation."""
    store: Any = retriever.vectorstore
    model, turns = store.embeddings, past.turns[-TURNS:]
    weights = [past.strength.question_vector, 1.0]
    vectors = [  # one by one: not every model takes concurrent calls
        await Step(partial(model.embed_query, text), partial(model.aembed_query, text))
        for text in (question, expanded(question, turns, STRONG))
    ]
    shares = answer_weights(turns, past.strength)
    if texts := [answer[:CHARACTERS] for share, (_, answer) in zip(shares, turns, strict=True) if share and answer]:
        vectors += await Step(partial(model.embed_documents, texts), partial(model.aembed_documents, texts))
        weights += filter(None, shares)
    query, arguments = _blended(weights, vectors), {**retriever.search_kwargs, **options}
    search, asearch = getattr(store, name), getattr(store, f"a{name}")
    return list(await Step(partial(search, query, **arguments), partial(asearch, query, **arguments)))


def _blended(weights: Sequence[float], vectors: Sequence[Any]) -> list[float]:
    """Return the weighted sum of normalized vectors, scaled to the length of the first vector."""
    parts = [[float(x) for x in vector] for vector in vectors]
    lengths = [math.hypot(*part) for part in parts]
    shares = [w / length if length else 0.0 for w, length in zip(weights, lengths, strict=True)]
    total = [sum(s * x for s, x in zip(shares, column, strict=True)) for column in zip(*parts, strict=True)]
    length = math.hypot(*total)
    return [lengths[0] / length * x for x in total] if length and lengths[0] else parts[0]


def default_k(retriever: AnyRetriever) -> int | None:
    """Return the number of documents that a retriever returns by default; None if it does not say."""
    inner = unwrap(retriever)
    k = getattr(inner, "k", None) if isinstance(inner, BaseRetriever) else None
    if isinstance(inner, VectorStoreRetriever):
        k = inner.search_kwargs.get("k")
        if k is None and keeps_own_search(inner, VectorStoreRetriever):
            search = getattr(inner.vectorstore, BY_VECTOR.get(inner.search_type, BY_VECTOR["similarity"])[0])
            k = getattr(inspect.signature(search).parameters.get("k"), "default", None)
    return k if isinstance(k, int) else None


def with_k(retriever: AnyRetriever, k: int | None) -> tuple[AnyRetriever, dict[str, int]]:
    """Return the retriever and the arguments that make it return `k` documents, unchanged if it cannot be told."""
    inner: Any = unwrap(retriever)
    if k is None or not isinstance(inner, BaseRetriever):
        return retriever, {}
    if isinstance(inner, VectorStoreRetriever):
        candidates = {"fetch_k": max(k, inner.search_kwargs.get("fetch_k", 20))} if inner.search_type == "mmr" else {}
        return retriever, {"k": k, **candidates}
    sized = _instead(retriever, inner.model_copy(update={"k": k})) if "k" in type(inner).model_fields else retriever
    return sized, {}


def unwrap(retriever: AnyRetriever) -> AnyRetriever:
    """Unwrap a retriever from bindings that only set a config."""
    while isinstance(retriever, RunnableBindingBase) and not retriever.kwargs:
        retriever = retriever.bound
    return retriever


def _instead(retriever: AnyRetriever, other: AnyRetriever) -> AnyRetriever:
    """Return `other`, bound to the same config as the retriever that it replaces."""
    if isinstance(retriever, RunnableBindingBase) and not retriever.kwargs:
        return retriever.model_copy(update={"bound": _instead(retriever.bound, other)})
    return other
