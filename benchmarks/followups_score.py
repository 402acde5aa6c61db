"""Where documents were found, what that is worth, and how sure a difference is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from benchmarks.followups_data import Question

__all__ = ["DEPTH", "METRICS", "Place", "Result", "difference", "metric", "part", "rank"]

DEPTH = 10  # documents that a system is asked for; further down none counts
RESAMPLES = 10_000
METRICS = ("recall@5", "recall@10", "MRR@10")
Array = np.ndarray[Any, Any]


class Place(NamedTuple):
    """Where a system was measured."""

    data: str
    engine: str
    more: int  # distractors
    masked: bool


@dataclass(frozen=True)
class Result:
    """What a system found.

    Attributes:
        place: Where.
        system: Which.
        questions: What was asked.
        ranks: Of the document that was looked for, from 1; 0: it is not among the first 10.
        ms: Milliseconds of a question, without embedding.
        calls: Of the model, for a question.
    """

    place: Place
    system: str
    questions: tuple[Question, ...]
    ranks: Array
    ms: float
    calls: float = 0.0

    def of(self, name: str) -> Array:
        """Its value of a metric, for every question."""
        return metric(self.ranks, name)


def rank(found: Sequence[str], gold: str | None) -> int:
    """The place of a document, from 1; 0 if it was not found."""
    return found.index(gold) + 1 if gold is not None and gold in found else 0


def metric(ranks: Array, name: str) -> Array:
    """A value for every question."""
    if name == "MRR@10":
        return np.asarray(np.where(ranks > 0, 1 / np.maximum(ranks, 1), 0.0))
    return np.asarray((ranks > 0) & (ranks <= int(name.partition("@")[2])), float)


def part(result: Result, name: str, conversations: Iterable[str]) -> Result:
    """The same of some conversations only."""
    names = set(conversations)
    keep = [i for i, question in enumerate(result.questions) if question.conversation in names]
    questions = tuple(result.questions[i] for i in keep)
    return replace(result, place=result.place._replace(data=name), questions=questions, ranks=result.ranks[keep])


def difference(ours: Sequence[Result], theirs: Sequence[Result], name: str) -> dict[str, float]:
    """By how much one system is ahead of another on the same questions, in the mean over places.

    Returns:
        The mean difference and its 95% interval: 2.5% and 97.5% of 10,000 resamples of the conversations of each data
        set, with a fixed seed. A conversation stays whole, in all places of its set, since its questions are alike.
    """
    gaps: dict[str, list[Array]] = {}
    names: dict[str, list[str]] = {}
    for a, b in zip(ours, theirs, strict=True):
        assert a.place == b.place
        gaps.setdefault(a.place.data, []).append(a.of(name) - b.of(name))
        names[a.place.data] = [question.conversation for question in a.questions]
    total, sums = 0.0, np.zeros(RESAMPLES)
    for number, (data, some) in enumerate(gaps.items()):
        gap = np.sum(some, 0)  # over the engines
        _, place = np.unique(names[data], return_inverse=True)
        by_conversation, sizes = np.bincount(place, gap), np.bincount(place)
        drawn = _resamples(len(sizes), number)
        total += float(gap.mean())
        sums += (drawn @ by_conversation) / (drawn @ sizes)
    low, high = np.quantile(sums / len(ours), (0.025, 0.975))
    return {"value": total / len(ours), "low": float(low), "high": float(high)}


@cache
def _resamples(conversations: int, number: int) -> Array:
    """How often each conversation is drawn, in every resample; of another set in another way."""
    shares = np.full(conversations, 1 / conversations)
    return np.random.default_rng((5, number)).multinomial(conversations, shares, RESAMPLES)
