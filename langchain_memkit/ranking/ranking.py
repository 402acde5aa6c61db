"""Features of the ranking, each an array with one number per record. Pure."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from importlib.resources import files
from itertools import chain, starmap
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.ranking.bm25 import BM25Matches, Doubles, Flags, IndexSnapshot, bm25_match, idf
from langchain_memkit.ranking.dates import date_proximity, parse_date_ranges
from langchain_memkit.ranking.index import Index
from langchain_memkit.ranking.records import IndexRecord
from langchain_memkit.ranking.relevance import is_about_user, relevance_to
from langchain_memkit.ranking.speakers import AddressedSpeakers, addressed_speakers
from langchain_memkit.ranking.tokenize import language_of, tokenize

FACTS = tomllib.loads(files("langchain_memkit.ranking").joinpath("facts.toml").read_text("utf-8"))
ASKED, TOLD = (
    {kind: frozenset(tokenize(" ".join(words[name] for name in names))) for kind, words in FACTS["kinds"].items()}
    for names in (["asked"], ["asked", "told"])
)
COMMON = Counter(chain.from_iterable(TOLD.values()))  # in how many kinds of facts a word is told
TITLES = r"(?<!\bMr\.)(?<!\bDr\.)(?<!\bMs\.)(?<!\bSt\.)(?<!\bMrs\.)"
# A sentence that takes back the one before stays behind it: "We lived in Rome. Not any more."
GAP = r"[\"')\]]*\s+(?!\s|(?:but|not|no longer|never mind|actually|scratch that|wait)\b)"
SENTENCE = re.compile(rf"(?<=[.!?]){TITLES}{GAP}|,\s+(?=(?:{FACTS['task']})\b[^.!?]{{,200}}\?)", re.IGNORECASE)
BEGIN = rf"^\W*(?:(?:so|and|but|then|ok|please|kindly) )*(?:{FACTS['task']})\b"
TASK = re.compile(rf"{BEGIN}|\?[\s\"')\]]*$|^\W*[\w']+(?: [\w']+)?$", re.IGNORECASE)  # or what stood before a question
MATERIAL = re.compile(rf"({BEGIN}[^.!?\n]{{0,200}}:).*", re.IGNORECASE | re.DOTALL)  # "Translate this: I am a nurse."
SHORT = 8  # words of an answer that only acknowledges what was said
NUMBER = re.compile(r"\d\S*")
LONG = 100  # characters of what a record states; of more only the best sentence is quoted
# Questions about the past, and those that ask for all there is, or how many: what is newer replaces nothing.
ALL = re.compile(
    r"\bhow many\b|^\W*list\b|\b(?:which|what) (?:\w+ )?\w+[^s\W]s (?:have|had|did|do|are|can|can't|must|am|i|we)\b"
    r"|\b(?:did|had|was|were|used? to|before|ever)\b|\bha(?:ve|s) (?:i|we|my \w+)\b(?! got\b)",
    re.IGNORECASE,
)


def min_max_scale(values: Doubles, most: int | None = None, known: Flags | None = None) -> Doubles:
    """Scale a feature from 0 (lowest value) to 1 (highest value); all 0 if all values are equal.

    Args:
        values: One value per record.
        most: Rank, counted from the top, of the value that counts as the lowest; smaller values get 0.
        known: Flags of the records that have a value; the others get 0 and do not count for the scale.
    """
    compared = values if known is None else values[known]
    low, high = float(compared.min(initial=np.inf)), float(compared.max(initial=-np.inf))
    if most is not None and most < len(compared):
        low = float(np.partition(compared, len(compared) - most)[len(compared) - most])
    if not high > low:
        return np.zeros(len(values))
    found: Doubles = np.clip((values - low) / (high - low), 0, 1)
    return found if known is None else found * known


def neighbour_bonus(view: IndexSnapshot, scores: Doubles, share: float) -> Doubles:
    """Compute the neighbour bonus: `share` x score of adjacent records of a session, `share`^2 of those two away.

    Records of one round pass on two thirds of `share`, up to six away: a sentence of a long answer rarely repeats what
    the answer is about.
    """
    ordered = scores[view.order]
    got = np.zeros(len(ordered))
    for distance, (near, of_round) in enumerate(view.nearby, 1):
        part = np.where(of_round, share * 2 / 3, near * share**distance)
        got[distance:] += part * ordered[:-distance]
        got[:-distance] += part * ordered[distance:]
    found = np.empty(len(ordered))
    found[view.order] = got
    return found


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


COMPARED = 50  # least rank that scales to 0: with fewer candidates, the last one would score as no match
PARTS = ("relevance", "lexical", "neighbours", "session", "speaker", "date", "recency", "importance")
TIMED = PARTS.index("date")  # the first part that depends on times, or that an app asks for


@dataclass(frozen=True, slots=True)
class Ranking:
    """Weights of the ranking. The defaults are the measured recipe.

    Every feature is scaled from 0 (lowest) to 1 (highest) over the candidates of the question before it is weighted; a
    feature that is equal for all adds nothing. The constants are round and lie on plateaus: changing any of them by a
    third moves recall by about a hundredth at most.

    Args:
        relevance: Weight of the cosine similarity of question and record.
        lexical: Weight of BM25, multiplied by the share of the question's words that the record contains.
        neighbours: Share of the two scores above that a record passes on to the records before and after it in its
            session; the share's square goes to the next ones, two thirds of it to the other records of its round.
        session: Weight of BM25 of the whole session.
        speaker: Share of the scores above, from 0 to 1, that a record loses if the question asks about a person ("Ann",
            "I", "you said") who says nothing in it.
        date: Weight of the closeness to the days that the question names.
        recency: Weight of `decay_rate ** hours` since the last access; over months of conversation, any of it costs
            recall.
        importance: Weight of the rated importance, 1 to 10; unrated records count as the mean.
        decay_rate: Decay per hour, above 0 and at most 1.
        candidates: How many of the best, by words and by vectors, are compared; also the most records returned.
        over_all: Scale features over all records instead of the candidates.

    Raises:
        ConfigurationError: A weight is negative or not a number, or the decay rate or candidates are out of range.

    """

    relevance: float = 0.75
    lexical: float = 1.0
    neighbours: float = 0.3
    session: float = 0.3
    speaker: float = 0.6
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
        if self.speaker > 1 or not 0 < self.decay_rate <= 1 or self.candidates < 1 or self.candidates % 1:
            msg = "speaker must be at most 1, decay_rate over 0 and at most 1, and candidates a whole number over 0"
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
        return cls(1.0, 0.0, 0.0, 0.0, 0.0, 0.0, recency=1.0, importance=1.0, over_all=True)


@dataclass(slots=True)
class Question:
    """A question with its vector and context."""

    text: str
    vector: npt.ArrayLike | None
    now: datetime  # the time of asking, aware, in the zone in which days are meant
    similar: Mapping[str, float] | None = None  # by record id, from a third-party store, instead of the vector
    accessed: Mapping[str, datetime] = field(default_factory=dict)  # last access by record id


class Ranked(NamedTuple):
    """A ranked record."""

    entry: IndexRecord
    score: float  # higher is better; comparable within one question only
    parts: Mapping[str, float]  # the summands of the score, by name of the weight
    # Ascending indices of `entry.said`, at least one: the messages to show. If the question asks about somebody,
    # messages of others that share no word with it are left out.
    shown: tuple[int, ...] = ()
    relation: float = 0.0  # how related the question is to the record (`relevance_to`); comparable between questions


class RankedRecords(NamedTuple):
    """Result of `best_first`."""

    records: Iterator[Ranked]  # best first, created lazily; at most `Ranking.candidates`
    total: int  # number of records that were compared
    relation: float  # the highest `relation` of any record that may be returned


def best_first(
    index: Index, question: Question, ranking: Ranking, keep: Callable[[IndexRecord], bool] | None = None
) -> RankedRecords:
    """Rank the records of a user for a question, lazily, since most callers read the first few records only.

    Lexical and dense scores are fused by weights, after each was scaled from 0 to 1 for this question. A record also
    takes part of its neighbours' scores, since the answer to a question often stands next to what resembles it.

    Args:
        index: The records of one user. It may change while the result is read: the scores are those of the call.
        question: The question.
        ranking: The weights.
        keep: Predicate: whether a record may be returned. Word statistics and neighbours include all records.

    Returns:
        Records in index order if equal, without expired ones. Records without a vector (small talk, a round without its
        answer) are included only if they contain a word of the question; if it has no vector, all are included.
    """
    with index.lock:
        view = index.view
        if not view.entries:
            return RankedRecords(iter(()), 0, 0.0)
        words = tokenize(question.text)
        asked, names = addressed_speakers(question.text, words, view.speakers)
        # A speaker's name selects whose messages count. It is no search word: people say others' names, not their own.
        content = [word for word in tokenize(question.text, known=index.postings) if word not in names]
        found = bm25_match(view, index.postings, content or words, asked)
        near, known = _similarity(index, view, question)
        trust = 1.0 if question.vector is None else index.vector_trust
        parts = _parts(view, question, replace(ranking, relevance=trust * ranking.relevance), found, near, known)
        scores = parts.sum(axis=0)
        # With similarities, candidates are the records that have one or share a word; without, all records.
        likely = known | (found.share > 0) if question.vector is not None or question.similar is not None else ~known
        cosines = near if question.vector is not None and ranking.relevance else None
        related = relevance_to(index, question.text, question.now, AddressedSpeakers(asked, names), found, cosines)
    # Messages of others are hidden only if the question names a speaker, not if it just says "I" or "you".
    worth = found.worth.tobytes() if asked and names else b"\1" * len(found.worth)

    def ranked(i: int, place: int) -> Ranked:
        entry, row = view.entries[i], parts[:, place].tolist()
        shown = _shown(int(view.first[i]), len(entry.said), worth)
        return Ranked(entry, sum(row), dict(zip(PARTS, row, strict=True)), shown, float(related[i]))

    most = next(_best(view, np.where(likely, related, -np.inf), question.now, 1, keep), None)
    if most is None:
        return RankedRecords(iter(()), 0, 0.0)
    best = _best(view, np.where(likely, scores, -np.inf), question.now, ranking.candidates, keep)
    pairs: Iterable[tuple[int, int]] = ((i, i) for i in best)
    if _asks_for_now(question.text) and not parts[TIMED:].any():
        order = [*best]
        said, times = [_stated(view.entries[i]) for i in order], np.nan_to_num(view.times, nan=-np.inf)
        pairs = zip(newest_first(order, said, times), order, strict=True)
    return RankedRecords(starmap(ranked, pairs), int(np.count_nonzero(likely)), float(related[most]))


def _similarity(index: Index, view: IndexSnapshot, question: Question) -> tuple[Doubles, Flags]:
    """Return the similarity of each record to the question, and flags of the records whose similarity is known."""
    similar = question.similar
    if similar is not None:
        found = np.array([similar.get(entry.id, np.nan) for entry in view.entries])
        return np.nan_to_num(found), ~np.isnan(found)
    if question.vector is not None:
        return index.dense(question.vector).astype(np.float64), index.embedded
    return np.zeros(len(view.entries)), np.zeros(len(view.entries), bool)


def _parts(
    view: IndexSnapshot, question: Question, ranking: Ranking, found: BM25Matches, near: Doubles, known: Flags
) -> Doubles:
    """Compute the weighted features: one row for each of `PARTS`, one column for each record."""
    most = None if ranking.over_all else max(ranking.candidates, COMPARED)
    parts = np.zeros((len(PARTS), len(view.entries)))
    dense, lexical, neighbours, session, speaker, date, recent, important = parts
    dense += ranking.relevance * min_max_scale(near, most, known)
    lexical += ranking.lexical * min_max_scale(found.whole * found.share, most)
    if ranking.neighbours:
        neighbours += neighbour_bonus(view, dense + lexical, ranking.neighbours)
    session += ranking.session * min_max_scale(found.session)
    if found.theirs.any():
        speaker -= ranking.speaker * parts.sum(axis=0) * ~found.theirs
    named = parse_date_ranges(question.text, question.now.date()) if ranking.date else []
    if named:
        close = date_proximity(named, view.times, question.now.tzinfo or UTC)
        date += ranking.date * (close - close.min())
    if ranking.recency:
        recent += ranking.recency * min_max_scale(recency(view, question.accessed, question.now, ranking.decay_rate))
    if ranking.importance:
        important += ranking.importance * min_max_scale(importance(view.entries))
    return parts


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


def _asks_for_now(question: str) -> bool:
    """Return whether a question is about the user, and neither about the past, nor for all there is, nor a number."""
    other = ALL.search(question) or NUMBER.search(question)
    return not other and is_about_user(question) and language_of(question) == "english"


def newest_first(order: Sequence[int], said: Sequence[str], times: Doubles) -> list[int]:
    """Put the newest first of records that differ in a number at most, on their places: "I weigh 80 kg", "... 78 kg".

    Args:
        order: Indices of records, best first.
        said: What each of these records says; an empty text keeps its place.
        times: When each was said, by index.
    """
    newest, places = [*order], dict[str, list[int]]()
    for place, text in enumerate(said):
        places.setdefault(NUMBER.sub("", text), []).append(place)
    places.pop("", None)
    for same in places.values():
        found = sorted((order[place] for place in same), key=times.__getitem__, reverse=True)
        for place, i in zip(same, found, strict=True):
            newest[place] = i
    return newest


def _stated(entry: IndexRecord) -> str:
    """Return the words of a record that states a number, without an assistant's short answer, which acknowledges it."""
    said = [part for part in entry.said if part.role != "ai" or part.name or len(part.stems) > SHORT]
    words = " ".join([word for part in said for word in (part.name, *part.stems)])
    return words if NUMBER.search(words) else ""


def _shown(first: int, size: int, worth: bytes) -> tuple[int, ...]:
    """Return the messages to show of a record whose `size` messages begin at `first`; all if none is flagged."""
    flags = worth[first : first + size]
    return tuple(j for j in range(size) if flags[j]) if 1 in flags and 0 in flags else tuple(range(size))


def statements_first(
    question: str, records: Sequence[Ranked], texts: Sequence[str]
) -> Iterator[tuple[int, list[str], float]]:
    """Order records by what they tell about a question, for a note with little room: a change before what it changed.

    The question and the newest answer to it often share no word ("Where do I live?", "We got the keys to a flat"). So
    these count beside the question's words and vector: whether a record states anything, words with which one tells of
    such a fact (facts.toml), and, after the best statement, words in common with it. Questions about the past, or about
    all there is, mostly keep the order in which the records were found. The weights are round and were chosen on 100
    pairs of statements. Reads English.

    Args:
        question: The question.
        records: What was found for it.
        texts: For each record, the words of whoever is asked about.

    Returns:
        Lazily, the index of each record, best first, those that state nothing last; its sentences that are neither
        questions nor tasks, or all if there is nothing else, or the best of them if they have more than 100 characters;
        and from 0 to 2 how much they tell by their words: of the question, and of the kind of fact that is asked for.

    Example:
        >>> from langchain_core.documents import Document
        >>> from langchain_memkit.ranking.records import index_record_of
        >>> texts = ["How do I boil an egg?", "We got the keys to a flat in Perth. Any tips?"]
        >>> entries = [index_record_of(Document(text, id=text)) for text in texts]
        >>> found = [Ranked(entry, 0.0, dict.fromkeys(PARTS, 0.0)) for entry in entries]
        >>> next(statements_first("Where do I live?", found, texts))[:2]
        (1, ['We got the keys to a flat in Perth.'])
    """
    if not records:
        return iter(())
    split = [[part for part in SENTENCE.split(MATERIAL.sub(r"\1", text)) if part] for text in texts]
    stated = [[part for part in parts if not TASK.search(part)] for parts in split]
    sentences = [some or parts for some, parts in zip(stated, split, strict=True)]
    states = np.array([bool(some) for some in stated], float)
    names = {name for found in records for _, name, _ in found.entry.said if name}
    words = set(tokenize(question)).difference(tokenize(" ".join(names)))
    hints: dict[str, float] = {}
    for word in words:
        kinds = [kind for kind, asked in ASKED.items() if word in asked]
        for stem in set().union(*(TOLD[kind] for kind in kinds)) - words:
            hints[stem] = max(hints.get(stem, 0.0), 1 / len(kinds) / COMMON[stem] ** 0.5)
    weights = hints | dict.fromkeys(words, 1.0)
    stems = [frozenset(tokenize(" ".join(parts))) for parts in sentences]
    number = Counter(chain.from_iterable(stems))
    rare: dict[str, float] = dict(zip(number, idf([*number.values()], len(stems)).tolist(), strict=True))
    most = float(idf(1, len(stems)))

    def worth(known: Iterable[str], own: Iterable[str]) -> float:
        return sum(rare.get(stem, 0.0) * weights[stem] for stem in set(known).intersection(own))

    total = sum(rare.get(word, most) for word in words) or 1
    told = np.array([worth(words, own) / total + min(worth(hints, own) / most, 2) / 2 for own in stems])
    score = states + told + 1.5 * np.array([found.parts["relevance"] for found in records])
    times = np.array([found.entry.at.timestamp() if found.entry.at else 0.0 for found in records])
    # Times that the question names, or that an app weights, count as the search counts them.
    whole = bool(ALL.search(question)) or any(found.parts[name] for found in records for name in PARTS[TIMED:])
    if whole or not is_about_user(question):
        score += 2 * min_max_scale(np.array([found.score for found in records]))
    if not whole:
        best = int(score.argmax())
        sizes = np.array([sum(rare[stem] ** 2 for stem in own) ** 0.5 or 1 for own in stems])
        common = np.array([sum(rare[stem] ** 2 for stem in own & stems[best]) for own in stems])
        score += 2 * common / (sizes * sizes[best]) * (times > times[best])

    def quoted(parts: list[str]) -> list[str]:
        return parts if sum(map(len, parts)) <= LONG else [max(parts, key=lambda part: worth(weights, tokenize(part)))]

    order = np.argsort(-score, kind="stable").tolist()
    if _asks_for_now(question) and not whole:
        order = newest_first(order, [" ".join(sentences[i]) if told[i] else "" for i in order], times)
    return ((i, quoted(sentences[i]), float(told[i])) for i in order)
