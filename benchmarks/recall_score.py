"""What a search found of the evidence, and how sure a difference of two systems is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.recall_data import Question
from benchmarks.recall_references import Found

__all__ = ["DEPTH", "METRICS", "NOTE", "NOTE_TOKENS", "Answer", "difference", "means", "score"]

RANKS = (5, 10, 20)
BUDGETS = (512, 1_024, 2_048)
DEPTH = 60  # records that a system is asked for: enough for the largest budget
METRICS = (*(f"recall@{k}" for k in RANKS), *(f"recall within {n:,}" for n in BUDGETS), "MRR", "tokens of 10")
NOTE, NOTE_TOKENS = "in the note", 1_024  # of memkit only: what `load` puts before a model
RESAMPLES = 10_000

Scores = dict[str, float]


@dataclass(frozen=True)
class Answer:
    """What a system made of a question."""

    dialogue: str
    category: int
    scores: Scores


def score(found: Sequence[Found], question: Question, count: Callable[[str], int]) -> Scores:
    """The share of the evidence in the first records, and in those that fit; and where the first of it stands.

    Args:
        found: Records, best first.
        question: With its evidence.
        count: Tokens of a text.

    Returns:
        A value for each of `METRICS`. Records are packed in their order; the first that does not fit ends it.
    """
    shares: list[float] = []
    sizes: list[int] = []
    seen: set[str] = set()
    first = 0
    for rank, record in enumerate(found, 1):
        hit = question.evidence.intersection(record.ids if question.quote in record.text else ())
        first = first or (rank if hit else 0)
        seen |= hit
        shares.append(len(seen) / len(question.evidence))
        sizes.append((sizes[-1] if sizes else 0) + count(record.text))

    def at(records: int) -> float:
        return shares[min(records, len(shares)) - 1] if shares and records else 0.0

    return {
        **{f"recall@{k}": at(k) for k in RANKS},
        **{f"recall within {budget:,}": at(sum(size <= budget for size in sizes)) for budget in BUDGETS},
        "MRR": 1 / first if first else 0.0,
        "tokens of 10": float(sizes[min(10, len(sizes)) - 1]) if sizes else 0.0,
    }


def means(answers: Iterable[Answer]) -> dict[str, float]:
    """The mean of each metric over questions."""
    scores = [answer.scores for answer in answers]
    return {metric: float(np.mean([one[metric] for one in scores])) for metric in scores[0]}


def difference(ours: Sequence[Answer], theirs: Sequence[Answer], metric: str) -> dict[str, Any]:
    """By how much one system is ahead of another on the same questions.

    Returns:
        The mean difference and its 95% interval: 2.5% and 97.5% of 10,000 resamples of the questions of each
        conversation, with a fixed seed. It says how much the questions leave to chance; other conversations may differ
        by more.
    """
    gaps = np.array([a.scores[metric] - b.scores[metric] for a, b in zip(ours, theirs, strict=True)])
    names = np.array([answer.dialogue for answer in ours])
    chance = np.random.default_rng(5)
    sums = np.zeros(RESAMPLES)
    for name in dict.fromkeys(names.tolist()):
        part = gaps[names == name]
        sums += chance.choice(part, (RESAMPLES, len(part))).sum(1)
    low, high = np.quantile(sums / len(gaps), (0.025, 0.975))
    return {"value": float(gaps.mean()), "low": float(low), "high": float(high)}
