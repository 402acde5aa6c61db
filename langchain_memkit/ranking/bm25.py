"""BM25 over the records of one user: word lists, statistics, matches. Pure."""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_memkit.ranking.records import Utterance
from langchain_memkit.ranking.tokenize import ASKS

if TYPE_CHECKING:
    from langchain_memkit.ranking.records import IndexRecord

Doubles: TypeAlias = npt.NDArray[np.float64]

# Recall is the same for k1 from .8 to 2 and b from .3 to .75; a small b suits short rounds.
K1 = 1.2
B = 0.5


def idf(found: npt.ArrayLike, count: int) -> Doubles:
    """Return the inverse document frequency of words: `log(1 + (count - found + 0.5) / (found + 0.5))`.

    Robertson's formula with a 1 in the logarithm, as in Lucene, so that it is never negative: "Which BM25 do you
    mean?", Kamphuis et al., ECIR 2020.
    """
    number = np.asarray(found, np.float64)
    rare: Doubles = np.log(1 + (count - number + 0.5) / (number + 0.5))
    return rare


def saturated(times: Doubles, lengths: Doubles, mean_length: float) -> Doubles:
    """Return BM25's saturated term frequency: `times / (times + k1 * (1 - b + b * length / mean length))`.

    BM25 is this times `idf`, summed over the words of a question (Robertson and Zaragoza, "The Probabilistic Relevance
    Framework: BM25 and Beyond", 2009), with k1 = 1.2 and b = 0.5.
    """
    return times / (times + K1 * (1 - B + B * lengths / mean_length))


Numbers: TypeAlias = npt.NDArray[np.int64]
Speaker: TypeAlias = tuple[str, str]
"""A role and a name."""

NONE = np.zeros(0, np.int64)
EMPTY = array("q")


class Postings:
    """Inverted index: for each word the messages that contain it, once per occurrence.

    Append-only: adding a record costs its own words, and messages of removed records stay, to be skipped by readers,
    until the index is rebuilt.
    """

    __slots__ = ("_messages", "asks", "first", "lengths", "slots", "speakers", "spoken", "words")

    def __init__(self) -> None:
        self.slots = array("q")  # for each message, the slot of its record
        self.first = array("q")  # for each slot, the number of its first message
        self.lengths = array("q")  # for each message, its number of words
        self.asks = array("b")  # for each message, whether it only asks and states nothing
        self.spoken = array("q")  # for each message, the number of its speaker
        self.speakers: dict[Speaker, int] = {}
        self.words = 0  # in total
        self._messages: defaultdict[str, array[int]] = defaultdict(partial(array, "q"))

    def __len__(self) -> int:
        """Return the number of distinct words."""
        return len(self._messages)

    def __contains__(self, stem: object) -> bool:
        """Return whether any message has had this word."""
        return stem in self._messages

    def add(self, slot: int, said: Sequence[Utterance]) -> None:
        """Add the messages of the record in the next slot."""
        known = self._messages
        self.first.append(len(self.slots))
        for role, name, marked in said:
            asks = marked[-1:] == (ASKS,)
            stems = marked[:-1] if asks else marked
            message = len(self.slots)
            self.asks.append(asks)
            self.slots.append(slot)
            self.lengths.append(len(stems))
            self.spoken.append(self.speakers.setdefault((role, name), len(self.speakers)))
            self.words += len(stems)
            for stem in stems:
                known[stem].append(message)

    def of(self, stems: Sequence[str]) -> tuple[Numbers, list[int]]:
        """Return the messages with each of some words, one word after the other, and how many there are of each.

        A message with several occurrences of a word is repeated.
        """
        found = [self._messages.get(stem, EMPTY) for stem in stems]
        number = [len(messages) for messages in found]
        return (np.frombuffer(b"".join(found), np.int64) if any(number) else NONE), number


Flags: TypeAlias = npt.NDArray[np.bool_]


ROOM = 1000  # positions between the rounds of a session, into which an earlier round can still grow
REACH = 2  # records of a session before and after one that share its score


class IndexSnapshot:
    """Snapshot of an index as arrays for the ranking, in the order of its entries.

    A slot is a row of the index that holds a record, or held one before it was removed. The columns are given by slot:
    which are alive, which have a vector, sessions (numbers, -1 for none), positions, and times (in seconds since 1970,
    `nan` if unknown).
    """

    def __init__(self, entries: Sequence[IndexRecord], columns: Iterable[array[Any]], postings: Postings) -> None:
        alive, embedded, sessions, positions, times = map(np.array, columns)
        self.entries = entries
        self.slots = np.flatnonzero(alive)  # of each record
        self.embedded = embedded[self.slots].astype(bool)
        rows = np.full(len(alive), -1)
        rows[self.slots] = np.arange(len(self.slots))
        message_slots, lengths = np.array(postings.slots), np.array(postings.lengths)
        # For each message: the index of its record, -1 if that was removed; its speaker; whether it states something.
        self.row = rows[message_slots] if len(message_slots) else message_slots
        self.spoken = np.array(postings.spoken)
        self.states = ~np.array(postings.asks, bool)
        live = self.row >= 0
        self.removed = not live.all()
        told = set(np.bincount(self.spoken[live]).nonzero()[0].tolist())
        self.speakers: dict[int, Speaker] = {n: speaker for speaker, n in postings.speakers.items() if n in told}
        self.first = np.array(postings.first)[self.slots]  # the first message of each record
        self.lengths: Doubles = np.bincount(self.row[live], lengths[live], minlength=len(entries)).astype(np.float64)
        self.mean_length = float(self.lengths.sum()) / max(len(entries), 1) or 1.0
        self.times = times[self.slots]
        self.session = sessions[self.slots]
        grouped = self.session >= 0
        self.session_lengths: Doubles = np.bincount(self.session[grouped], self.lengths[grouped]).astype(np.float64)
        self.session_count = int(np.count_nonzero(np.bincount(self.session[grouped])))
        # The records sorted by session and position; and for each distance whether the record so far behind is of the
        # same session.
        self.order = np.lexsort((positions[self.slots], self.session))
        ordered = self.session[self.order]
        self.nearby: list[Flags] = [(ordered[d:] == ordered[:-d]) & (ordered[d:] >= 0) for d in range(1, REACH + 1)]


WORDS = 64  # words of a question that are used; of more, the rarest
CELLS = 2**18  # pairs of a word and a record that are counted at once: 2 MB
FEWEST = 50  # records; in a smaller index the rarity of words is rated as if there were so many


class WordMatches(NamedTuple):
    """How the words of a question are found in all records, in units of a word that no other record has."""

    found: Doubles  # BM25 of each record; 1 for one such word, said once in a record of average length
    session: Doubles  # BM25 of each record's session, taken as one text
    asked: float  # how much the words of the question are worth together
    messages: Flags  # for each message, whether it has a word of the question


def match_words(
    view: IndexSnapshot, postings: Postings, stems: Sequence[str], weights: Doubles | None = None
) -> WordMatches:
    """Score every record by the words that it shares with a question; a repeated word counts repeatedly.

    Args:
        view: The records.
        postings: Their words.
        stems: The words of the question; of many, the rarest 64 count.
        weights: What a word counts in each message, from 0 to 1; None for 1 in all.
    """
    count, groups = len(view.entries), len(view.session_lengths)
    most, sessions_there = max(count, FEWEST), max(view.session_count, 1)
    whole, sessions, worth = np.zeros(count), np.zeros(groups), 0.0
    hit = np.zeros(len(view.row), bool)
    weights = np.ones(len(view.row)) if weights is None else weights
    mean_session = float(view.session_lengths.sum()) / sessions_there or 1.0
    found = _found(postings, stems)
    # All words are counted at once with `bincount` over a table of words x records, in chunks of words so that the
    # table stays small whatever the size of the index.
    size = max(1, CELLS // max(count, groups, 1))
    for some in (found[i : i + size] for i in range(0, len(found), size)):
        times = np.array([number for _, number in some])
        messages, sizes = postings.of([word for word, _ in some])
        words = np.repeat(np.arange(len(some)), sizes)
        rows = view.row[messages]
        if view.removed:  # postings keep the messages of removed records until the index is compacted
            live = rows >= 0
            messages, words, rows = messages[live], words[live], rows[live]
        hit[messages] = True
        table = _counted(words, rows, len(some), count, weights[messages])
        rare = idf(np.count_nonzero(table, axis=1), most)
        worth += float((times * rare).sum())
        whole += (times * rare) @ saturated(table, view.lengths, view.mean_length)
        if groups:
            group = view.session[rows]
            within = group >= 0
            table = _counted(words[within], group[within], len(some), groups, np.ones(int(within.sum())))
            rare = idf(np.count_nonzero(table, axis=1), sessions_there)
            sessions += (times * rare) @ saturated(table, view.session_lengths, mean_session)
    spread = np.append(sessions, 0.0)[view.session]  # the last one is that of records without a session
    unit = float(idf(1, most))
    of_sessions = (K1 + 1) * spread / float(idf(1, sessions_there))
    return WordMatches((K1 + 1) * whole / unit, of_sessions, worth / unit, hit)


def _counted(words: Numbers, rows: Numbers, many: int, count: int, weights: Doubles) -> Doubles:
    """Return a table of words x records: how often each record has each word, weighted.

    `words` are numbers below `many`, `rows` those of records, below `count`.
    """
    table: Doubles = np.bincount(words * count + rows, weights, many * count).astype(np.float64)
    return table.reshape(many, count)


def _found(postings: Postings, stems: Sequence[str]) -> list[tuple[str, int]]:
    """Return each distinct word with its count in the question; only the rarest known ones of too many words."""
    counted = [*Counter(stems).items()]
    if len(counted) > WORDS:
        _, number = postings.of([word for word, _ in counted])
        there = sorted((n, i) for i, n in enumerate(number) if n)
        counted = [counted[i] for _, i in there[:WORDS]]
    return counted
