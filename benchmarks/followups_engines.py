"""The two ways in which benchmarks/followups.py searches: by words and by vectors."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import bm25s  # type: ignore[import-untyped]  # it has none
import numpy as np
import Stemmer  # type: ignore[import-not-found]  # compiled, without stubs
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import ConfigDict

from benchmarks.followups_score import DEPTH
from benchmarks.recall_embedders import Shared

__all__ = ["BM25", "STOP", "Engine", "Index", "engine_of_vectors", "engine_of_words", "stemmed", "words"]

BM25 = "BM25"
STOP = frozenset(
    re.findall(
        r"\S+",
        """a an the and or but if then so of to in on at by for with from as is are was were be been being am do does
        did done have has had having i you he she it we they me him her us them my your his its our their this
        that these those what which who whom whose when where why how not no nor can could will would shall should
        may might must just about into over under again there here than too very s t d ll m re ve o y 's""",
    )
)
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?")
_STEMMER = Stemmer.Stemmer("english")


def words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def stemmed(text: str) -> list[str]:
    found: list[str] = _STEMMER.stemWords([word.removesuffix("'s") for word in words(text) if word not in STOP])
    return found


class Index:
    """What langchain-community's `BM25Retriever` calls a vectorizer."""

    def __init__(self, texts: Iterable[str]) -> None:
        documents = [stemmed(text) or ["_"] for text in texts]
        self.count = len(documents)
        self.within = Counter(stem for document in documents for stem in set(document))
        self._bm25 = bm25s.BM25(k1=0.9, b=0.4)
        self._bm25.index(documents, show_progress=False)

    def get_scores(self, stems: Sequence[str]) -> Any:
        known = [stem for stem in stems if stem in self.within]
        return self._bm25.get_scores(known) if known else np.zeros(self.count, np.float32)

    def idf(self, word: str) -> float:
        """How rare a word is; 0 for a stop word."""
        stem = stemmed(word)
        return math.log((self.count + 1) / (self.within[stem[0]] + 0.5)) if stem else 0.0


class Words(BaseRetriever):
    """Looks like `BM25Retriever`, whose own BM25 is another (rank_bm25, words as they are)."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    vectorizer: Index
    docs: list[Document]
    preprocess_func: Callable[[str], list[str]] = stemmed
    k: int = DEPTH

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        scores = self.vectorizer.get_scores(self.preprocess_func(query))
        return [self.docs[i] for i in np.argsort(-scores, kind="stable")[: k or self.k]]


@dataclass(frozen=True)
class Engine:
    """A way of searching.

    Attributes:
        name: Of it.
        retriever: Takes `k` in `invoke`.
        embeddings: Makes its vectors; None: it has none.
    """

    name: str
    retriever: BaseRetriever
    embeddings: Shared | None = None


def engine_of_words(documents: list[Document]) -> Engine:
    return Engine(BM25, Words(vectorizer=Index(document.page_content for document in documents), docs=documents))


def engine_of_vectors(name: str, embeddings: Shared, documents: list[Document]) -> Engine:
    store = InMemoryVectorStore(embeddings)
    store.add_documents(documents)
    for row in store.store.values():  # a list of floats is made an array again in every search
        row["vector"] = np.array(row["vector"], np.float32)
    return Engine(name, store.as_retriever(search_kwargs={"k": DEPTH}), embeddings)
