"""The systems of benchmarks/followups.py: two ways to search, what they are asked, and memkit around them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import bm25s  # type: ignore[import-untyped]  # it has none
import numpy as np
import Stemmer  # type: ignore[import-not-found]  # compiled, without stubs
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from pydantic import ConfigDict

from benchmarks.embedders import Shared
from benchmarks.followups_data import Question
from langchain_memkit.retrievers import CondenseQuestionRetriever
from langchain_memkit.retrievers.expansion import CHARACTERS, STRONG, TURNS, expanded

BM25 = "BM25"
RAW, PREVIOUS, RARE, HUMAN = "raw question", "previous q + a + q", "rare terms", "human rewrite"
WEIGHTED = "memkit weighted"
AS_TEXT, ANY_RETRIEVER = "memkit text", "memkit, any retriever"
DEPTH = 10  # documents that a system is asked for; further down none counts
Key = tuple[str, int]
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


# -- what an engine is asked


class System(Protocol):
    """Searches with one engine."""

    def find(self, question: Question, masked: bool) -> list[str]:
        """Ids of the documents, best first; masked: without those that answered earlier turns."""


Write = Callable[[Question, bool], str]


class Text:
    """Searches for a text that is made of the question; leaves out afterwards what is masked."""

    def __init__(self, write: Write, engine: Engine) -> None:
        self._write, self._retriever = write, engine.retriever

    def find(self, question: Question, masked: bool) -> list[str]:
        hidden = question.answered if masked else frozenset()
        text = self._write(question, masked)
        found = self._retriever.invoke(text, k=DEPTH + len(hidden))
        return [str(document.id) for document in found if document.id not in hidden][:DEPTH]


class Memkit:
    """`CondenseQuestionRetriever` around the engine, without a model."""

    def __init__(self, engine: Engine) -> None:
        self._by_mask = {
            masked: CondenseQuestionRetriever(retriever=engine.retriever, skip_answered=masked, k=DEPTH)
            for masked in (True, False)
        }

    def find(self, question: Question, masked: bool) -> list[str]:
        asked = {"input": question.turn.asked, "chat_history": question.messages}
        return [str(document.id) for document in self._by_mask[masked].invoke(asked)]


class Closed(BaseRetriever):
    """An engine of which nothing can be told but that it takes text."""

    engine: Any
    k: int = DEPTH

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        found: list[Document] = self.engine.retriever.invoke(query, k=self.k)
        return found


_CONDENSERS = {
    masked: CondenseQuestionRetriever(retriever=lambda _: [], skip_answered=masked) for masked in (True, False)
}


def condensed(question: Question, masked: bool) -> str:
    """What memkit makes of a question for a retriever that takes text only."""
    return _CONDENSERS[masked].condense_question(question.turn.asked, question.messages).searched_for


def previous(question: Question, masked: bool) -> str:
    """The turn before, with its answer, and the question."""
    last, _ = question.past[-1]
    return " ".join(filter(None, (last.asked, last.answer, question.turn.asked)))


def rare(index: Index) -> Write:
    """The question, and words that are rare in the documents, so that they may tell what the talk is about."""
    topic, recent, recent_turns, beginning = 4.5, 3.0, 2, 40

    def write(question: Question, masked: bool) -> str:
        asked = [turn.asked for turn, _ in question.past]
        answer = question.past[-1][0].answer or ""
        candidates = [
            *((word, topic) for text in asked for word in words(text)),
            *((word, topic) for word in words(" ".join(answer.split()[:beginning]))),
            *((word, recent) for text in asked[-recent_turns:] for word in words(text)),
        ]
        known = set(stemmed(question.turn.asked))
        added = []
        for word, least in candidates:
            if word not in STOP and len(word) > 2 and index.idf(word) >= least:
                stem = stemmed(word)[0]
                if stem not in known:
                    known.add(stem)
                    added.append(word)
        return " ".join([question.turn.asked, *added])

    return write


def texts_of(index: Index) -> dict[str, Write]:
    """Systems that need the engine only to search for a text."""
    return {
        RAW: lambda question, masked: question.turn.asked,
        PREVIOUS: previous,
        RARE: rare(index),
        AS_TEXT: condensed,
        HUMAN: lambda question, masked: question.turn.rewrite,
    }


def memkit_systems(engine: Engine) -> dict[str, System]:
    """Without a model, and around a retriever that takes text."""
    return {
        WEIGHTED: Memkit(engine),
        ANY_RETRIEVER: Memkit(Engine(engine.name, Closed(engine=engine))),
    }


class Rewritten:
    """Searches for what the model made of a question."""

    def __init__(self, texts: Mapping[Key, str | None], engine: Engine) -> None:
        self._texts = texts
        self._plain = Text(lambda question, masked: self._texts[key(question)] or "", engine)
        self._weighted = Memkit(engine)

    def find(self, question: Question, masked: bool) -> list[str]:
        if key(question) not in self._texts:
            return self._weighted.find(question, masked)
        return self._plain.find(question, masked) if self._texts[key(question)] is not None else []


def key(question: Question) -> Key:
    """What names a question in its set."""
    return question.conversation, len(question.past)


def prepare(
    embeddings: Shared, documents: Sequence[Document], questions: Sequence[Question], texts: Iterable[Write]
) -> None:
    """Makes the vectors of what the systems will ask for in batches, which is quicker."""
    embeddings.embed_documents([document.page_content for document in documents])
    embeddings.embed_documents([write(one, masked) for write in texts for masked in (True, False) for one in questions])
    turns = [[(turn.asked, turn.answer) for turn, _ in one.past] for one in questions]
    embeddings.embed_documents(
        [expanded(one.turn.asked, past[-TURNS:], STRONG) for one, past in zip(questions, turns, strict=True)]
    )
    answers = {answer[:CHARACTERS] for past in turns for _, answer in past if answer}
    embeddings.embed_documents(sorted(answers))
