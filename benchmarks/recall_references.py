"""Two references of benchmarks/recall.py, with a record for each message, and what a system is there.

A system takes a conversation as an app would give it, message by message or round by round, and is asked for records,
best first. A record is its text as it enters a prompt, and the ids of the messages in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Protocol

import bm25s  # type: ignore[import-untyped]  # it has none
import numpy as np
import Stemmer  # type: ignore[import-not-found]  # compiled, without stubs
from langchain_core.embeddings import Embeddings

from benchmarks.recall_data import Dialogue, Turn

__all__ = ["Found", "Fused", "System", "Words"]


class Found(NamedTuple):
    """A record, as it was found."""

    ids: tuple[str, ...]
    text: str


class System(Protocol):
    """Holds one conversation."""

    def save(self, dialogue: Dialogue) -> None:
        """Takes all of it, in order."""

    def search(self, question: str, k: int) -> list[Found]:
        """The `k` best records."""

    def close(self) -> None:
        """Lets go what it has opened."""


class Words:
    """BM25 over stems without stop words (bm25s), built at once when all is there."""

    def __init__(self, embeddings: Embeddings | None, folder: Path) -> None:
        self.stemmer = Stemmer.Stemmer("english")
        self.turns: tuple[Turn, ...] = ()

    def tokens(self, texts: list[str]) -> Any:
        return bm25s.tokenize(
            texts, stopwords="english_plus", stemmer=self.stemmer, return_ids=False, show_progress=False
        )

    def save(self, dialogue: Dialogue) -> None:
        self.turns = dialogue.turns
        self.index = bm25s.BM25()
        self.index.index(self.tokens([turn.line for turn in self.turns]), show_progress=False)

    def scores(self, question: str) -> Any:
        (tokens,) = self.tokens([question])
        return self.index.get_scores(tokens)

    def search(self, question: str, k: int) -> list[Found]:
        return self.records(self.scores(question), k)

    def records(self, scores: Any, k: int) -> list[Found]:
        best = np.argsort(-scores, kind="stable")[:k]
        return [Found((self.turns[i].id,), self.turns[i].line) for i in best]

    def close(self) -> None:
        pass


class Fused(Words):
    """Ranks of BM25 and of cosines, the first hundred of each, fused: the sum of 1 / (60 + rank)."""

    def __init__(self, embeddings: Embeddings, folder: Path) -> None:
        super().__init__(None, folder)
        self.embeddings = embeddings

    def save(self, dialogue: Dialogue) -> None:
        super().save(dialogue)
        self.vectors = np.array(self.embeddings.embed_documents([turn.line for turn in self.turns]))

    def search(self, question: str, k: int) -> list[Found]:
        fused = np.zeros(len(self.turns))
        for scores in (self.scores(question), self.vectors @ np.array(self.embeddings.embed_query(question))):
            best = np.argsort(-scores, kind="stable")[:100]
            fused[best] += 1 / (60 + np.arange(1, len(best) + 1))
        return self.records(fused, k)
