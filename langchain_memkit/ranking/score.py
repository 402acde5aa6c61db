"""The score: how related a record is to a question. Pure.

The score is a sum of what the record has to do with the question, times one factor for who says it:

    score = (lexical + relevance + neighbours + session + name) x (1 + speaker) + date + recency + importance

Each summand is a function below. The unit is a word that no other record has: a question of one such word, and a record
that holds it, have a lexical score of 1. So scores are comparable between questions, and one number, the floor of
`VectorMemory`, says which records are related at all. docs/recall.md has what each part is worth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date, datetime
from typing import NamedTuple

import numpy as np

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.ranking.bm25 import Doubles, Flags, IndexSnapshot, Postings, WordMatches, match_words
from langchain_memkit.ranking.dates import date_proximity
from langchain_memkit.ranking.index import Index, UsualSimilarity
from langchain_memkit.ranking.question import Question, speakers_asked
from langchain_memkit.ranking.records import IndexRecord

PARTS = ("relevance", "lexical", "neighbours", "session", "name", "speaker", "date", "recency", "importance")


@dataclass(frozen=True, slots=True)
class Ranking:
    """Weights of the score. The defaults are the measured recipe.

    The weights are round and lie on plateaus: changing any of them by a quarter moves recall by about a hundredth.

    Args:
        relevance: Weight of the cosine similarity of question and record: 0 for one that is usual between this user's
            own records, 1 for one that is four standard deviations above that.
        lexical: Weight of BM25: the square root of the question's words that the record holds, in units of a word that
            no other record has, times the share of the question that they are.
        neighbours: Share of the two scores above that a record passes on to the records before and after it in its
            session; the share's square goes to the next ones.
        session: Weight of BM25 of the whole session.
        name: Points of a record by a speaker whom the question names, or that holds another name of the question.
        speaker: Share of the scores above that a record gains in which whoever is asked about states something. A
            question that names nobody asks about the user.
        others: What a word of the question counts if somebody else says it, from 0 to 1.
        date: Weight of the closeness to the days that the question names.
        recency: Weight of `decay_rate ** hours` since the last access; over months of conversation, any of it costs
            recall.
        importance: Weight of the rated importance, from 1 to 10, which counts as 0.1 to 1; unrated records count as the
            mean.
        decay_rate: Decay per hour, above 0 and at most 1.
        candidates: How many of the best records are returned at most.
        over_all: Scale relevance, recency and importance from 0 (lowest of all records) to 1 (highest), as Generative
            Agents do. Such a score is comparable within one question only.

    Raises:
        ConfigurationError: A weight is negative or not a number, or the decay rate, others or candidates are out of
            range.

    Example:
        >>> Ranking(neighbours=0, importance=0.2).importance
        0.2
    """

    relevance: float = 1.0
    lexical: float = 1.0
    neighbours: float = 0.3
    session: float = 0.1
    name: float = 0.5
    speaker: float = 0.7
    others: float = 0.25
    date: float = 1.0
    recency: float = 0.0
    importance: float = 0.0
    decay_rate: float = 0.995
    candidates: int = 200
    over_all: bool = False

    def __post_init__(self) -> None:
        for name in (part.name for part in fields(self) if part.name != "over_all"):
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value < float("inf"):
                msg = f"{name} must be a number from 0 up, not {value!r}"
                raise ConfigurationError(msg)
        if self.others > 1:
            msg = f"others must be from 0 to 1, not {self.others!r}"
            raise ConfigurationError(msg)
        if not 0 < self.decay_rate <= 1:
            msg = f"decay_rate must be over 0 and at most 1, not {self.decay_rate!r}"
            raise ConfigurationError(msg)
        if self.candidates < 1 or self.candidates % 1:
            msg = f"candidates must be a whole number over 0, not {self.candidates!r}"
            raise ConfigurationError(msg)

    @classmethod
    def generative_agents(cls) -> Ranking:
        """Return the ranking of Generative Agents: recency, importance and relevance, weighted equally.

        Each is scaled from 0 to 1 over all records. Source: Park et al., "Generative Agents: Interactive Simulacra of
        Human Behavior", UIST 2023. Made for agents that live in one scene for some days: over months of conversation,
        recency hides most of what is asked for.

        Example:
            >>> Ranking.generative_agents().recency
            1.0
        """
        return cls(
            relevance=1.0,
            recency=1.0,
            importance=1.0,
            lexical=0.0,
            neighbours=0.0,
            session=0.0,
            name=0.0,
            speaker=0.0,
            date=0.0,
            over_all=True,
        )


class Ranked(NamedTuple):
    """A ranked record."""

    entry: IndexRecord
    score: float  # higher is better
    parts: Mapping[str, float]  # the summands of the score, by name of the weight
    own: float  # the score without what it has of its neighbours
    states: bool  # whether somebody whom the question asks about states something in it
    shown: tuple[int, ...]  # ascending indices of `entry.said`, at least one: the messages to show


class Voices(NamedTuple):
    """For each record, whether an asked speaker says something in it, and whether one of them states something."""

    says: Flags
    states: Flags


class RankedRecords(NamedTuple):
    """Result of `best_first`."""

    records: Iterator[Ranked]  # best first, created lazily; at most `Ranking.candidates`
    total: int  # number of records that were compared


def best_first(
    index: Index, question: Question, ranking: Ranking, keep: Callable[[IndexRecord], bool] | None = None
) -> RankedRecords:
    """Rank the records of a user for a question, lazily, since most callers read the first few records only.

    Args:
        index: The records of one user. It may change while the result is read: the scores are those of the call.
        question: The question.
        ranking: The weights.
        keep: Predicate: whether a record may be returned. Word statistics and neighbours include all records.

    Returns:
        Records in index order if equal, without expired ones. Records without a vector (small talk, a round without its
        answer) are included only if they contain a word of the question; if it has no vector, all are included. If the
        question names a speaker, messages of others that share no word with it are not to be shown.
    """
    with index.lock:
        view = index.view
        if not view.entries:
            return RankedRecords(iter(()), 0)
        asked = speakers_asked(question, view.speakers)
        # A speaker's name selects whose messages count. It is no search word: people say others' names, not their own.
        words = question.words_among(index.postings)
        content = [word for word in words if word not in asked.names]
        by_asked = said_by(view, index.postings, asked.numbers)
        weights = np.where(by_asked, 1.0, ranking.others) if asked.numbers else None
        found = match_words(view, index.postings, content or words, weights)
        near, known = _similarity(index, view, question)
        trust = 1.0 if question.vector is None else index.vector_trust
        trusted = replace(ranking, relevance=trust * ranking.relevance)
        named = holding(view, index.postings, question.capitals - asked.names)
        voices = voices_in(view, by_asked)
        parts = score_parts(view, question, bool(asked.names), trusted, found, near, known, named, voices, index.usual)
        scores = parts.sum(axis=0)
        likely = np.ones(len(scores), bool) if question.vector is None else known | (found.found > 0)
    worth = (found.messages | by_asked).tolist() if asked.names else []

    def ranked(i: int) -> Ranked:
        entry, row = view.entries[i], parts[:, i].tolist()
        part = dict(zip(PARTS, row, strict=True))
        first, size = int(view.first[i]), len(entry.said)
        shown = tuple(j for j in range(size) if asked.names and worth[first + j]) or tuple(range(size))
        states = bool(voices.states[i])
        borrowed = part["neighbours"] * (1 + ranking.speaker * states)
        return Ranked(entry, sum(row), part, sum(row) - borrowed, states, shown)

    best = _best(view, np.where(likely, scores, -np.inf), question.now, ranking.candidates, keep)
    return RankedRecords(map(ranked, best), int(np.count_nonzero(likely)))


def score_parts(
    view: IndexSnapshot,
    question: Question,
    names_speaker: bool,
    ranking: Ranking,
    found: WordMatches,
    near: Doubles,
    known: Flags,
    named: Flags,
    voices: Voices,
    usual: UsualSimilarity,
) -> Doubles:
    """Compute the weighted parts of the score: one row for each of `PARTS`, one column for each record."""
    relevance = min_max(near, known) if ranking.over_all else nearness(near, known, usual)
    parts = np.zeros((len(PARTS), len(view.entries)))
    part = dict(zip(PARTS, parts, strict=True))
    part["relevance"] += ranking.relevance * relevance
    part["lexical"] += ranking.lexical * shared_words(found)
    part["neighbours"] += from_neighbours(view, part["relevance"] + part["lexical"], ranking.neighbours)
    part["session"] += ranking.session * by_share(found.session, found.asked)
    part["name"] += ranking.name * (named | (voices.says & names_speaker))
    before = parts[: PARTS.index("speaker")].sum(axis=0)
    part["speaker"] += ranking.speaker * voices.states * before
    if question.dates:
        part["date"] += ranking.date * of_days(view, question, before + part["speaker"])
    if ranking.recency:
        recent = recency(view, question.accessed, question.now, ranking.decay_rate)
        part["recency"] += ranking.recency * (min_max(recent) if ranking.over_all else recent)
    if ranking.importance:
        rated = importance(view.entries)
        part["importance"] += ranking.importance * (min_max(rated) if ranking.over_all else rated / 10)
    return parts


def shared_words(found: WordMatches) -> Doubles:
    """Score the words that question and record share: how many rare ones they are, and which share of the question.

    It is the geometric mean of both, so that neither one common word of a short question, nor one rare word of a long
    one, is much.
    """
    return by_share(found.found, found.asked)


def by_share(found: Doubles, asked: float) -> Doubles:
    """Return `sqrt(found * found / asked)`: of words in units of a rare word, with what the question's are worth."""
    return found / np.sqrt(asked) if asked else np.zeros(len(found))


def nearness(near: Doubles, known: Flags, usual: UsualSimilarity, span: float = 4.0) -> Doubles:
    """Scale cosines: 0 where they are usual between the user's own records, 1 from `span` deviations above that on."""
    apart = (near - usual.mean) / (span * usual.deviation)
    return np.clip(apart, 0, 1) * known


def from_neighbours(view: IndexSnapshot, scores: Doubles, share: float) -> Doubles:
    """Return what each record gets of its neighbours in its session: `share` of the next, `share`^2 of those two away.

    The answer to a question often stands next to what resembles it.
    """
    ordered = scores[view.order]
    got = np.zeros(len(ordered))
    for distance, near in enumerate(view.nearby, 1):
        part = near * share**distance
        got[distance:] += part * ordered[:-distance]
        got[:-distance] += part * ordered[distance:]
    found = np.empty(len(ordered))
    found[view.order] = got
    return found


def of_days(view: IndexSnapshot, question: Question, scores: Doubles) -> Doubles:
    """Score how close each record is to the days that the question names: 1 on one of them, 0 from a week away.

    A past day may be all that is known of a record. "Today" and "before March" say little about any one record, so they
    count no more than what the record scores without them.
    """
    zone, today = question.now.tzinfo or UTC, question.now.date()
    past = [when for when in question.dates if date.min < when.first and when.last < today]
    others = [when for when in question.dates if when not in past]
    found = date_proximity(past, view.times, zone)
    return np.maximum(found, date_proximity(others, view.times, zone) * np.clip(scores, 0, 1))


def holding(view: IndexSnapshot, postings: Postings, names: Iterable[str]) -> Flags:
    """Return for each record whether it holds any of these words."""
    messages, _ = postings.of([*names])
    rows = view.row[messages]
    return np.bincount(rows[rows >= 0], minlength=len(view.entries)) > 0


def said_by(view: IndexSnapshot, postings: Postings, speakers: Collection[int]) -> Flags:
    """Return for each message whether one of these speakers says it."""
    asked = np.zeros(len(postings.speakers), bool)
    asked[[*speakers]] = True
    found: Flags = asked[view.spoken]
    return found


def voices_in(view: IndexSnapshot, by_asked: Flags) -> Voices:
    """Return who speaks in each record; `by_asked` flags the messages of those whom the question asks about."""
    count = len(view.entries)
    theirs = by_asked & (view.row >= 0)
    says = np.bincount(view.row[theirs], minlength=count) > 0
    states = np.bincount(view.row[theirs & view.states], minlength=count) > 0
    return Voices(says, states)


def recency(view: IndexSnapshot, accessed: Mapping[str, datetime], now: datetime, decay_rate: float) -> Doubles:
    """Compute `decay_rate ** hours` since the last access, or since it was said if never accessed; 0 if unknown."""
    last = view.times.copy()
    if accessed:
        for i, entry in enumerate(view.entries):
            if when := accessed.get(entry.id):
                last[i] = when.timestamp()
    hours = np.maximum(now.timestamp() - last, 0) / 3600
    return np.nan_to_num(decay_rate**hours)


def importance(entries: Sequence[IndexRecord]) -> Doubles:
    """Return the importance of each record; unrated ones get the mean of the others, or 0 if none is rated."""
    found = np.array([np.nan if entry.importance is None else entry.importance for entry in entries])
    rated = found[~np.isnan(found)]
    return np.where(np.isnan(found), rated.mean() if len(rated) else 0.0, found)


def min_max(values: Doubles, known: Flags | None = None) -> Doubles:
    """Scale values from 0 (lowest) to 1 (highest), all 0 if they are equal; what is not `known` gets 0."""
    compared = values if known is None else values[known]
    low, high = float(compared.min(initial=np.inf)), float(compared.max(initial=-np.inf))
    if not high > low:
        return np.zeros(len(values))
    found: Doubles = np.clip((values - low) / (high - low), 0, 1)
    return found if known is None else found * known


def _similarity(index: Index, view: IndexSnapshot, question: Question) -> tuple[Doubles, Flags]:
    """Return the similarity of each record to the question, and flags of the records whose similarity is known."""
    if question.vector is not None:
        return index.dense(question.vector).astype(np.float64), index.embedded
    return np.zeros(len(view.entries)), np.zeros(len(view.entries), bool)


def _best(
    view: IndexSnapshot, scores: Doubles, now: datetime, most: int, keep: Callable[[IndexRecord], bool] | None
) -> Iterator[int]:
    """Yield the `most` records with the highest scores among those that are not expired and pass `keep`.

    A score of -inf excludes a record.
    """
    kept = 0
    order: Sequence[int] = ()
    # Sort only the top first, which is usually enough; sort all only if `keep` and expiry reject too many of those.
    for tried in (2 * most, len(scores)):
        # The indices of the highest scores, best first, ties in index order; those of the first round come again.
        first = np.arange(len(scores))
        if tried < len(scores):
            first = np.flatnonzero(scores >= np.partition(scores, len(scores) - tried)[len(scores) - tried])
        done, order = len(order), first[np.argsort(-scores[first], kind="stable")][:tried].tolist()
        for i in order[done:]:
            if scores[i] == -np.inf:
                return
            entry = view.entries[i]
            if (entry.expires_at is None or entry.expires_at > now) and (keep is None or keep(entry)):
                kept += 1
                yield i
            if kept == most:
                return
