"""What the speed part of benchmarks/recall.py stores and asks: words in random order, with random vectors."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count

import numpy as np
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from benchmarks.conversations import vocabulary

__all__ = ["BEGIN", "Lookup", "Round", "question", "rounds"]

ASKED, ANSWERED, QUESTION = 20, 30, 10  # words, about as many as in LoCoMo
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)

Round = tuple[datetime, list[BaseMessage]]


class Lookup(Embeddings):
    """Stands for an embedder where all but embedding is timed: a random direction for each text, always the same.

    A text takes 0.05 ms, which is in the figures.
    """

    def __init__(self, width: int = 384) -> None:
        self.width = width

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        vector = np.random.default_rng(seed).standard_normal(self.width, np.float32)
        made: list[float] = (vector / np.linalg.norm(vector)).tolist()
        return made


def rounds(seed: str) -> Iterator[Round]:
    """A question and its answer with the hour in which they were said, without end; words as often as in English."""
    chance = random.Random(seed)
    for number in count():
        asked, answered = (" ".join(chance.choices(vocabulary(), k=words)) for words in (ASKED, ANSWERED))
        said: list[BaseMessage] = [
            HumanMessage(asked, id=f"{seed}-{number}-q"),
            AIMessage(answered, id=f"{seed}-{number}-a"),
        ]
        yield BEGIN + number * HOUR, said


def question(chance: random.Random) -> str:
    """Words as often as in English: half of them are stop words, and some of the others stand in many rounds."""
    return " ".join(chance.choices(vocabulary(), k=QUESTION))
