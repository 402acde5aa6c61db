"""The systems of benchmarks/followups.py: what a way of searching is asked, and memkit around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from benchmarks.followups_data import Question
from benchmarks.followups_engines import STOP, Engine, Index, stemmed, words
from benchmarks.followups_score import DEPTH
from benchmarks.recall_embedders import Shared
from langchain_memkit.retrievers import CondenseQuestionRetriever
from langchain_memkit.retrievers.expansion import CHARACTERS, STRONG, TURNS, expanded

__all__ = [
    "ANY_RETRIEVER",
    "AUTO",
    "HUMAN",
    "PREVIOUS",
    "RARE",
    "RAW",
    "WEIGHTED",
    "Key",
    "Memkit",
    "Rewrites",
    "Rewritten",
    "System",
    "Text",
    "Write",
    "key",
    "memkit_systems",
    "prepare",
    "texts_of",
]

RAW, PREVIOUS, RARE, HUMAN = "raw question", "previous q + a + q", "rare terms", "human rewrite"
WEIGHTED, AUTO = "memkit weighted", "memkit auto"
AS_TEXT, ANY_RETRIEVER = "memkit text", "memkit, any retriever"


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
    """`CondenseQuestionRetriever` around the engine."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self._by_mask = {
            masked: CondenseQuestionRetriever(
                retriever=engine.retriever, skip_answered=masked, k=DEPTH, cache_size=0, **options
            )
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
    masked: CondenseQuestionRetriever(
        retriever=lambda _: [], mode="weighted", gate=None, skip_answered=masked, cache_size=0
    )
    for masked in (True, False)
}


def condensed(question: Question, masked: bool) -> str:
    """What memkit makes of a question for a retriever that takes text only."""
    return _CONDENSERS[masked].condense_question(question.turn.asked, question.messages).question


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
    """Without a model: always with weights, only where the gate says so, and around a retriever that takes text."""
    return {
        WEIGHTED: Memkit(engine, mode="weighted", gate=None),
        AUTO: Memkit(engine),
        ANY_RETRIEVER: Memkit(Engine(engine.name, Closed(engine=engine)), mode="weighted", gate=None),
    }


# -- what a model made of the questions

Key = tuple[str, int]


@dataclass
class Rewrites:
    """What became of the questions in one of the two ways.

    Attributes:
        texts: What is searched for; None: the call failed, and nothing is. A question that is not there was not
            rewritten, so memkit's weights take its place.
        calls: Of the model, for a question.
        ms: For a question.
        weighted: Share that the weights took the place of.
        failed: Share of calls that raised an error that reached the user.
    """

    texts: dict[Key, str | None] = field(default_factory=dict)
    calls: float = 0.0
    ms: float = 0.0
    weighted: float = 0.0
    failed: float = 0.0


class Rewritten:
    """Searches for what the model made of a question."""

    def __init__(self, texts: Mapping[Key, str | None], engine: Engine) -> None:
        self._texts = texts
        self._plain = Text(lambda question, masked: self._texts[key(question)] or "", engine)
        self._weighted = Memkit(engine, mode="weighted", gate=None)

    def find(self, question: Question, masked: bool) -> list[str]:
        if key(question) not in self._texts:
            return self._weighted.find(question, masked)
        return self._plain.find(question, masked) if self._texts[key(question)] is not None else []


def key(question: Question) -> Key:
    """What names a question in its set."""
    return question.conversation, len(question.past)


# -- vectors


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
