"""A search for a question that was made to stand alone, in the way that suits the retriever."""

from __future__ import annotations

import heapq
import inspect
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, run_in_executor
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.vectorstores import VectorStore, VectorStoreRetriever

from langchain_memkit._flow import Flow, Step, together
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
from langchain_memkit.retrievers.past import document_key, is_among
from langchain_memkit.retrievers.question import StandaloneQuestion

__all__ = ["Search", "fused"]

RANK = 60  # of reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009)
BY_VECTOR = {  # search_type -> the search by text, and the one by vector
    "similarity": ("similarity_search", "similarity_search_by_vector"),
    "mmr": ("max_marginal_relevance_search", "max_marginal_relevance_search_by_vector"),
}


def fused(*rankings: Sequence[Document]) -> list[Document]:
    """Documents of several rankings by the sum of 1 / (60 + place), each once; of equals the earlier ranking's first.

    Example:
        >>> tea, coffee, milk = Document("Tea"), Document("Coffee"), Document("Milk")
        >>> [document.page_content for document in fused([tea, coffee], [coffee, milk])]
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
    """One search.

    Attributes:
        retriever: Any runnable from text to documents.
        k: How many documents; None for as many as the retriever gives.
        options: Further arguments of its `invoke`.
        config: Of the run.
        skipped: Keys of documents that are left out.
        fuse: Whether results for the original question are added.
        strength: Of the weighted terms.
    """

    retriever: Runnable[str, Any]
    k: int | None
    options: Mapping[str, Any]
    config: RunnableConfig
    skipped: frozenset[str] = frozenset()
    fuse: bool = False
    strength: Strength = STRONG

    def run(self, found: StandaloneQuestion, turns: Sequence[Turn]) -> Flow[list[Document]]:
        """The documents, best first."""
        wanted = self.k if self.k is not None else usual_k(self.retriever)
        asked = None if wanted is None or not (self.k or self.skipped) else wanted + len(self.skipped)
        weighted = self._weighted(found.original, turns, wanted, asked) if found.by == "weighted" else None
        searches = [weighted or self._plain(found.question, asked)]
        # a string cannot weigh what was added less than what was asked
        careful = found.by == "weighted" and weighted is None and self.strength is not STRONG
        if (self.fuse or careful) and found.question != found.original:
            searches.append(self._plain(found.original, asked))
        results = yield together(searches)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        rankings = [_documents(result) for result in results]
        if self.k is None and not self.skipped and len(rankings) == 1:
            return rankings[0]
        most = wanted if wanted is not None else max(len(ranking) for ranking in rankings)
        merged = fused(*rankings) if len(rankings) > 1 else rankings[0]
        return [document for document in merged if not is_among(document, self.skipped)][:most]

    def _plain(self, text: str, k: int | None) -> Step:
        retriever, options = sized(self.retriever, k)
        call = {**self.options, **options}
        return Step(
            partial(retriever.invoke, text, self.config, **call), partial(retriever.ainvoke, text, self.config, **call)
        )

    def _weighted(self, question: str, turns: Sequence[Turn], wanted: int | None, k: int | None) -> Step | None:
        """The search in which what was said before weighs less than the question; None if the retriever takes none."""
        inner: Any = unbound(self.retriever)
        k = k or wanted
        if (by_vector := _search_by_vector(inner, self.options)) is not None:
            options = {**self.options, **sized(inner, k)[1]}
            return _by_vector(inner, by_vector, question, turns, self.strength, options)
        if k is not None and not self.options and _takes_terms(inner):
            search = partial(_by_terms, inner, question, turns, self.strength, k)
            return Step(search, partial(run_in_executor, None, search))
        return None


def _documents(found: Any) -> list[Document]:
    documents = list(found)
    for document in documents:
        if not isinstance(document, Document):
            msg = f"a retriever must return documents, not {type(document).__name__}"
            raise TypeError(msg)
    return documents


# ---------------------------------------------------------------------------------------------------- how many


def unbound(retriever: Runnable[str, Any]) -> Runnable[str, Any]:
    """The retriever itself, where it is only bound to a config."""
    while isinstance(retriever, RunnableBindingBase) and not retriever.kwargs:
        retriever = retriever.bound
    return retriever


def usual_k(retriever: Runnable[str, Any]) -> int | None:
    """How many documents a retriever returns, if it says."""
    inner: Any = unbound(retriever)
    if isinstance(inner, VectorStoreRetriever):
        k = inner.search_kwargs.get("k")
        if k is None and _is_plain(inner):
            search = getattr(inner.vectorstore, BY_VECTOR.get(inner.search_type, BY_VECTOR["similarity"])[0])
            known = inspect.signature(search).parameters.get("k")
            k = known.default if known is not None else None
    else:
        k = getattr(inner, "k", None) if isinstance(inner, BaseRetriever) else None
    return k if isinstance(k, int) else None


def _is_plain(retriever: VectorStoreRetriever) -> bool:
    """Whether it searches as LangChain's own class does."""
    return type(retriever)._get_relevant_documents is VectorStoreRetriever._get_relevant_documents


def sized(retriever: Runnable[str, Any], k: int | None) -> tuple[Runnable[str, Any], dict[str, Any]]:
    """The retriever and the arguments with which it returns `k` documents, if it can."""
    inner: Any = unbound(retriever)
    if k is None or not isinstance(inner, BaseRetriever):
        return retriever, {}
    if isinstance(inner, VectorStoreRetriever):
        candidates = {"fetch_k": max(k, inner.search_kwargs.get("fetch_k", 20))} if inner.search_type == "mmr" else {}
        return retriever, {"k": k, **candidates}
    if "k" in type(inner).model_fields:
        return inner.model_copy(update={"k": k}), {}
    return retriever, {}


# ------------------------------------------------------------------------------------------------------- by terms


def _takes_terms(retriever: Any) -> bool:
    """Whether it is a `BM25Retriever` of langchain-community's, or like one."""
    parts = (getattr(getattr(retriever, "vectorizer", None), "get_scores", None), getattr(retriever, "docs", None))
    return (
        callable(parts[0])
        and isinstance(parts[1], (list, tuple))
        and callable(getattr(retriever, "preprocess_func", None))
    )


def _by_terms(bm25: Any, question: str, turns: Sequence[Turn], strength: Strength, k: int) -> list[Document]:
    """The scores of the question and, by weight, those of the terms: the sum is a weighted query's."""
    words: defaultdict[float, list[str]] = defaultdict(list)
    for term in added_terms(question, turns, strength):
        words[term.weight] += bm25.preprocess_func(term.word)
    scores = [float(score) for score in bm25.vectorizer.get_scores(bm25.preprocess_func(question))]
    for weight, tokens in words.items():
        if tokens:
            scores = [a + weight * float(b) for a, b in zip(scores, bm25.vectorizer.get_scores(tokens), strict=True)]
    return [bm25.docs[i] for i in heapq.nlargest(k, range(len(scores)), key=scores.__getitem__)]


# ------------------------------------------------------------------------------------------------------ by vector


def _search_by_vector(retriever: Any, options: Mapping[str, Any]) -> str | None:
    """The name of the store's search by vector that does what the retriever does by text; None if there is none."""
    if not isinstance(retriever, VectorStoreRetriever) or not _is_plain(retriever):
        return None
    names = BY_VECTOR.get(retriever.search_type)
    store = retriever.vectorstore
    if names is None or store.embeddings is None or getattr(type(store), names[1]) is getattr(VectorStore, names[1]):
        return None
    # an argument that the search by text names and the one by vector does not may be dropped: perhaps a filter
    by_text, by_vector = (inspect.signature(getattr(type(store), name)).parameters for name in names)
    given = {*retriever.search_kwargs, *options}
    return None if any(name in by_text and name not in by_vector for name in given) else names[1]


def _by_vector(
    retriever: VectorStoreRetriever,
    name: str,
    question: str,
    turns: Sequence[Turn],
    strength: Strength,
    options: Mapping[str, Any],
) -> Step:
    """The question's vector, with what was said before added to it."""
    store: Any = retriever.vectorstore
    model = store.embeddings
    turns = turns[-TURNS:]
    blend = vector_blend(turns, strength)
    longer = expanded(question, turns, STRONG)
    answers = [
        (weight, answer[:CHARACTERS])
        for weight, (_, answer) in zip(blend.answers, turns, strict=True)
        if answer and weight >= LEAST_WEIGHT
    ]
    texts = [text for _, text in answers]
    weights = [blend.question, blend.expanded, *(weight for weight, _ in answers)]
    arguments = {**retriever.search_kwargs, **options}

    def search() -> Any:
        vectors = [model.embed_query(question), model.embed_query(longer)]
        vectors += model.embed_documents(texts) if texts else []
        return getattr(store, name)(_blended(weights, vectors), **arguments)

    async def asearch() -> Any:  # one after the other: not every embedding model takes two texts at once
        vectors = [await model.aembed_query(question), await model.aembed_query(longer)]
        vectors += await model.aembed_documents(texts) if texts else []
        return await getattr(store, f"a{name}")(_blended(weights, vectors), **arguments)

    return Step(search, asearch)


def _blended(weights: Sequence[float], vectors: Sequence[Any]) -> list[float]:
    """The sum of vectors, each brought to length 1 and weighted; as long as the first one was."""
    parts = [[float(x) for x in vector] for vector in vectors]
    lengths = [math.hypot(*part) for part in parts]
    shares = [w / length if length > 0 else 0.0 for w, length in zip(weights, lengths, strict=True)]
    total = [sum(s * x for s, x in zip(shares, column, strict=True)) for column in zip(*parts, strict=True)]
    length = math.hypot(*total)
    scale = lengths[0] / length if length > 0 and lengths[0] > 0 else 0.0
    return [scale * x for x in total] if scale else parts[0]
