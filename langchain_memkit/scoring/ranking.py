"""The order in which records answer a question. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.scoring.dates import closeness, windows
from langchain_memkit.scoring.features import importance, passed_on, recency, spread
from langchain_memkit.scoring.index import Entry, Index
from langchain_memkit.scoring.matches import Matches, match
from langchain_memkit.scoring.relation import relation
from langchain_memkit.scoring.speakers import Asked, asked_of
from langchain_memkit.scoring.view import View
from langchain_memkit.scoring.words import stems

__all__ = ["PARTS", "Question", "Ranked", "Ranking", "best_first", "rank"]

Doubles: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

COMPARED = 50  # records, at least: of fewer the last one would count as no match
DAY = 86_400  # seconds
PARTS = ("relevance", "lexical", "speaker", "neighbours", "session", "date", "recency", "importance")


@dataclass(frozen=True, slots=True)
class Ranking:
    """What makes a record answer a question, as weights. The defaults are the measured recipe.

    Every feature is brought to 0 (the least) to 1 (the most) over the candidates of the question before it is weighed;
    one that is the same for all adds nothing. The constants are round and lie on plateaus: a third more or
    less of any of them moves recall by about a hundredth at most.

    Args:
        relevance: Of the cosine between the vectors of question and record.
        lexical: Of BM25, times the share of the question's words that the record holds.
        speaker: Of BM25 of what the person says whom the question asks about ("Ann", "I", "you said").
        neighbours: The share of the three weights above that a record passes on to the one before and the one after it
            in its session; its square goes to those two further.
        session: Of BM25 of the whole session.
        date: Of how close it was said to the days that the question names.
        recency: Of `decay_rate ** hours` since the last access; over months of conversation any of it costs recall.
        importance: Of the rated importance, 1 to 10; what nobody rated counts as the mean.
        decay_rate: Per hour, over 0 and at most 1.
        candidates: How many of the best, by words and by vectors, are compared; at most so many records are returned.
        over_all: Whether features are brought to 0 to 1 over all records in place of the candidates.

    Raises:
        ConfigurationError: A weight is negative or no number, or the decay rate or the candidates are out of range.

    Example:
        >>> Ranking.generative_agents().recency, Ranking().recency
        (1.0, 0.0)
    """

    relevance: float = 0.75
    lexical: float = 1.0
    speaker: float = 0.5
    neighbours: float = 0.3
    session: float = 0.3
    date: float = 1.0
    recency: float = 0.0
    importance: float = 0.0
    decay_rate: float = 0.995
    candidates: int = 200
    over_all: bool = False

    def __post_init__(self) -> None:
        for name in (part.name for part in fields(self) if part.name != "over_all"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                msg = f"{name} must be a number from 0 up, not {value!r}"
                raise ConfigurationError(msg)
        if not 0 < self.decay_rate <= 1 or self.candidates < 1 or self.candidates % 1:
            msg = "decay_rate must be over 0 and at most 1, and candidates a whole number over 0"
            raise ConfigurationError(msg)

    @classmethod
    def generative_agents(cls) -> Ranking:
        """Recency, importance and relevance, each from 0 to 1 over all records, with weight 1, and nothing else.

        Recency is 0.995 to the power of the hours since the last access. Source: Park et al., "Generative Agents:
        Interactive Simulacra of Human Behavior", UIST 2023. For agents that live in one scene for some days: over
        months of conversation, recency hides most of what is asked for.

        Example:
            >>> Ranking.generative_agents().recency
            1.0
        """
        return cls(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, recency=1.0, importance=1.0, over_all=True)


@dataclass(slots=True)
class Question:
    """What is asked, and when.

    Attributes:
        text: The question.
        vector: Its vector, `None` without one.
        now: The time of asking, aware.
        similar: Similarities by record id that a foreign store found, in place of the vector.
        accessed: Last access by record id; else the time when it was said counts.
    """

    text: str
    vector: npt.ArrayLike | None
    now: datetime
    similar: Mapping[str, float] | None = None
    accessed: Mapping[str, datetime] = field(default_factory=dict)


class Ranked(NamedTuple):
    """A record that was found.

    Attributes:
        entry: The record.
        score: The higher, the better; to be compared within one question only.
        parts: What it is the sum of, by the names of the weights.
        shown: Which of the record's messages are worth their tokens: where the question asks about somebody, what
            others say without any word of the question is not. Numbers of `entry.said`, in order, at least one.
        relation: How much the question has to do with it, see `relation`; comparable between questions.
    """

    entry: Entry
    score: float
    parts: Mapping[str, float]
    shown: tuple[int, ...] = ()
    relation: float = 0.0


class Best(NamedTuple):
    """The records that answer a question best.

    Attributes:
        records: Best first; each is made when it is looked at.
        total: How many records were compared; at most `Ranking.candidates` of them come.
        relation: The highest `relation` of any record that may be returned.
    """

    records: Iterator[Ranked]
    total: int
    relation: float


def rank(
    index: Index,
    question: Question,
    ranking: Ranking = Ranking(),  # frozen
    keep: Callable[[Entry], bool] | None = None,
) -> list[Ranked]:
    """The records that answer a question best.

    Words and vectors are fused by weights after each was brought to 0 to 1 for this question, and a record takes part
    of the scores of those beside it, since what answers a question often stands next to what resembles it.

    Args:
        index: The records of one user; its lock is held meanwhile.
        question: What is asked.
        ranking: Weights.
        keep: Whether a record may be returned. Statistics of words and neighbours are those of all records.

    Returns:
        At most `ranking.candidates` records, best first; none of them has expired. Equal ones come in index order.
        Records that are not embedded (small talk, a round without its answer) are there only if they hold a word of the
        question; without vectors all are there.

    Raises:
        ConfigurationError: The question's vector has other dimensions than those in the index.
    """
    return list(best_first(index, question, ranking, keep).records)


def best_first(index: Index, question: Question, ranking: Ranking, keep: Callable[[Entry], bool] | None = None) -> Best:
    """As `rank`, one by one: most who ask look at the first few only. The index may change meanwhile."""
    with index.lock:
        view = index.view
        if not view.entries:
            return Best(iter(()), 0, 0.0)
        words = stems(question.text)
        asked, names = asked_of(question.text, words, view.speakers)
        content = [word for word in words if word not in names]  # people call the others by name, not themselves
        found = match(view, index.postings, content or words, asked)
        near, known = _similarity(index, view, question)
        parts = _parts(view, question, ranking, found, near, known)
        scores = parts.sum(axis=0)
        likely = known | (found.share > 0) if question.vector is not None or question.similar is not None else ~known
        cosines = near if question.vector is not None and ranking.relevance else None
        related = relation(index, question.text, question.now, Asked(asked, names), found, cosines)
    worth = found.worth.tobytes() if asked and names else b"\1" * len(found.worth)

    def ranked(i: int) -> Ranked:
        entry, row = view.entries[i], parts[:, i].tolist()
        return Ranked(
            entry,
            sum(row),
            dict(zip(PARTS, row, strict=True)),
            _shown(int(view.first[i]), len(entry.said), worth),
            float(related[i]),
        )

    most = next(_best(view, np.where(likely, related, -np.inf), question.now, 1, keep), None)
    if most is None:
        return Best(iter(()), 0, 0.0)
    best = _best(view, np.where(likely, scores, -np.inf), question.now, ranking.candidates, keep)
    return Best(map(ranked, best), int(np.count_nonzero(likely)), float(related[most]))


def _similarity(index: Index, view: View, question: Question) -> tuple[Doubles, Flags]:
    """How near the records are to the question, and of which that is known."""
    similar = question.similar
    if similar is not None:
        found = np.array([similar.get(entry.id, np.nan) for entry in view.entries])
        return np.nan_to_num(found), ~np.isnan(found)
    if question.vector is not None:
        return index.dense(question.vector).astype(np.float64), index.embedded
    return np.zeros(len(view.entries)), np.zeros(len(view.entries), bool)


def _parts(view: View, question: Question, ranking: Ranking, found: Matches, near: Doubles, known: Flags) -> Doubles:
    """A line for each of `PARTS`, a column for each record."""
    most = None if ranking.over_all else max(ranking.candidates, COMPARED)
    parts = np.zeros((len(PARTS), len(view.entries)))
    dense, lexical, speaker, neighbours, session, date, recent, important = parts
    dense += ranking.relevance * spread(near, most, known)
    lexical += ranking.lexical * spread(found.whole * found.share, most)
    speaker += ranking.speaker * spread(found.told, most)
    if ranking.neighbours:
        neighbours += passed_on(view, dense + lexical + speaker, ranking.neighbours)
    session += ranking.session * spread(found.session)
    named = windows(question.text, question.now.astimezone(UTC).date()) if ranking.date else []
    if named:
        close = closeness(named, np.floor(view.times / DAY))
        date += ranking.date * (close - close.min())
    if ranking.recency:
        recent += ranking.recency * spread(recency(view, question.accessed, question.now, ranking.decay_rate))
    if ranking.importance:
        important += ranking.importance * spread(importance(view.entries))
    return parts


def _best(view: View, scores: Doubles, now: datetime, most: int, keep: Callable[[Entry], bool] | None) -> Iterator[int]:
    """The records with the highest scores of those that may be returned."""
    kept = 0
    order: Sequence[int] = ()
    for tried in (2 * most, len(scores)):
        done, order = len(order), _top(scores, tried)
        for i in order[done:]:
            if scores[i] == -np.inf:
                return
            entry = view.entries[i]
            if (entry.expires_at is None or entry.expires_at > now) and (keep is None or keep(entry)):
                kept += 1
                yield i
            if kept == most:
                return


def _top(scores: Doubles, most: int) -> list[int]:
    """The numbers of the highest scores, best first; of equal ones the first."""
    if most >= len(scores):
        return [*np.argsort(-scores, kind="stable").tolist()]
    least = np.partition(scores, len(scores) - most)[len(scores) - most]
    best = np.flatnonzero(scores >= least)
    return [*best[np.argsort(-scores[best], kind="stable")][:most].tolist()]


def _shown(first: int, size: int, worth: bytes) -> tuple[int, ...]:
    """What is worth showing of a record whose messages begin at `first`; all if nothing is."""
    flags = worth[first : first + size]
    return tuple(j for j in range(size) if flags[j]) if 1 in flags and 0 in flags else tuple(range(size))
