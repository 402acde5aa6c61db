"""A search for a question that was made to stand alone, in the way that suits the retriever."""

from __future__ import annotations

import inspect
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.vectorstores import VectorStoreRetriever

from langchain_memkit._sync import Step, gather
from langchain_memkit.retrievers.contextualize import STRONG, Strength, Turn
from langchain_memkit.retrievers.past import document_key, is_among
from langchain_memkit.retrievers.question import StandaloneQuestion
from langchain_memkit.retrievers.weighing import BY_VECTOR, keeps_own_search, weighing

__all__ = ["Search", "fused"]

logger = logging.getLogger("langchain_memkit")

UNFIT = (NotImplementedError, AttributeError, TypeError, ValueError)  # from a search by vector that is none
RANK = 60  # of reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009)


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

    async def run(self, found: StandaloneQuestion, turns: Sequence[Turn]) -> list[Document]:
        """The documents, best first."""
        wanted = self.k if self.k is not None else usual_k(self.retriever)
        asked = None if wanted is None or not (self.k or self.skipped) else wanted + len(self.skipped)
        weighted = self._weighted(found.original, turns, wanted, asked) if found.by == "weighted" else None
        searches = [weighted or self._plain(found.question, asked)]
        # a string cannot weigh what was added less than what was asked
        careful = found.by == "weighted" and weighted is None and self.strength is not STRONG
        if (self.fuse or careful) and found.question != found.original:
            searches.append(self._plain(found.original, asked))
        results = await gather(searches)
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
        merged = fused(*rankings) if len(rankings) > 1 else rankings[0]
        return [document for document in merged if not is_among(document, self.skipped)][:most]

    def _plain(self, text: str, k: int | None) -> Step[Any]:
        retriever, options = sized(self.retriever, k)
        call = {**self.options, **options}
        return Step(
            partial(retriever.invoke, text, self.config, **call), partial(retriever.ainvoke, text, self.config, **call)
        )

    def _weighted(self, question: str, turns: Sequence[Turn], wanted: int | None, k: int | None) -> Step[Any] | None:
        """The search in which what was said before weighs less than the question; None if the retriever takes none."""
        inner: Any = unbound(self.retriever)
        k = k or wanted
        options = {**self.options, **sized(inner, k)[1]}
        shortcut = weighing(inner, turns, self.strength, k, options)
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
        if k is None and keeps_own_search(inner, VectorStoreRetriever):
            search = getattr(inner.vectorstore, BY_VECTOR.get(inner.search_type, BY_VECTOR["similarity"])[0])
            known = inspect.signature(search).parameters.get("k")
            k = known.default if known is not None else None
    else:
        k = getattr(inner, "k", None) if isinstance(inner, BaseRetriever) else None
    return k if isinstance(k, int) else None


def _instead(retriever: Runnable[str, Any], other: Runnable[str, Any]) -> Runnable[str, Any]:
    """Another one in a retriever's place, bound to the same config."""
    if isinstance(retriever, RunnableBindingBase) and not retriever.kwargs:
        return retriever.model_copy(update={"bound": _instead(retriever.bound, other)})
    return other


def sized(retriever: Runnable[str, Any], k: int | None) -> tuple[Runnable[str, Any], dict[str, Any]]:
    """The retriever and the arguments with which it returns `k` documents, if it can."""
    inner: Any = unbound(retriever)
    if k is None or not isinstance(inner, BaseRetriever):
        return retriever, {}
    if isinstance(inner, VectorStoreRetriever):
        candidates = {"fetch_k": max(k, inner.search_kwargs.get("fetch_k", 20))} if inner.search_type == "mmr" else {}
        return retriever, {"k": k, **candidates}
    if "k" in type(inner).model_fields:
        return _instead(retriever, inner.model_copy(update={"k": k})), {}
    return retriever, {}
