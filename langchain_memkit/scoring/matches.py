"""Which records hold the words of a question, and how much these weigh. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_memkit.scoring.bm25 import idf, saturated
from langchain_memkit.scoring.postings import Numbers, Postings
from langchain_memkit.scoring.view import View

__all__ = ["Matches", "match"]

Doubles: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

WORDS = 64  # of a question: of more, the rarest
CELLS = 2**18  # pairs of a word and a record that are counted at once: 2 MB
FEWEST = 50  # records: among fewer, what is rare is told as among so many


class Matches(NamedTuple):
    """What the words of a question find.

    Attributes:
        whole: BM25 of each record.
        share: For each record, how much of the question it holds, from 0 to 1; rare words are more of it.
        told: BM25 of each record, counting what the asked speakers say in it.
        session: BM25 of each record's session as one text.
        worth: For each message, whether it holds a word of the question or is by an asked speaker.
        held: How much of the question each record holds: the sum of its words, by how rare they are; 1 is a word that
            no other record holds.
    """

    whole: Doubles
    share: Doubles
    told: Doubles
    session: Doubles
    worth: Flags
    held: Doubles


def match(view: View, postings: Postings, stems: Sequence[str], asked: Collection[int] = ()) -> Matches:
    """Compares the words of a question with every record that holds any of them.

    Args:
        view: The records.
        postings: Their words.
        stems: The words of the question; a word that is there twice counts twice.
        asked: The numbers of the speakers whom it asks about.

    Returns:
        Arrays in the order of the records; `worth` in that of the postings.
    """
    count, groups = len(view.entries), len(view.session_lengths)
    whole, share, told, held = np.zeros((4, count))
    sessions, hit, everything = np.zeros(groups), np.zeros(len(view.row), bool), 0.0
    theirs = _of(asked, view.spoken)
    mean_session = float(view.session_lengths.sum()) / max(view.session_count, 1) or 1.0
    found, most = _found(postings, stems), max(count, FEWEST)
    size = max(1, CELLS // max(count, groups, 1))
    for some in (found[i : i + size] for i in range(0, len(found), size)):
        asked_for = np.array([times for times, _ in some])
        messages = np.concatenate([where for _, where in some])
        words = np.repeat(np.arange(len(some)), [len(where) for _, where in some])
        rows = view.row[messages]
        if view.removed:
            live = rows >= 0
            messages, words, rows = messages[live], words[live], rows[live]
        hit[messages] = True
        number, row, times = _counted(words, rows, len(some), count)
        rare = np.array([idf(n, count) for n in number])
        everything = sum(rare.tolist(), everything)
        whole += _summed(asked_for * rare, number, row, times, view.lengths, view.mean_length)
        share += np.bincount(row, np.repeat(rare, number), count)
        held += np.bincount(row, np.repeat([idf(n, most) for n in number], number), count)
        if asked:
            by = theirs[messages]
            number, row, times = _counted(words[by], rows[by], len(some), count)
            told += _summed(asked_for * rare, number, row, times, view.lengths, view.mean_length)
        if groups:
            group = view.session[rows]
            within = group >= 0
            number, row, times = _counted(words[within], group[within], len(some), groups)
            rare = np.array([idf(n, view.session_count) for n in number])
            sessions += _summed(asked_for * rare, number, row, times, view.session_lengths, mean_session)
    spread = np.append(sessions, 0.0)[view.session]  # the last one is that of records without a session
    share = share / everything if everything else share
    return Matches(whole, share, told, spread, hit | theirs, held / idf(1, most))


def _counted(words: Numbers, rows: Numbers, many: int, count: int) -> tuple[list[int], Numbers, Numbers]:
    """Of so many words the number of records that hold each; these records, word by word; and how often they do."""
    table = np.bincount(words * count + rows, minlength=many * count)
    number = np.count_nonzero(table.reshape(many, count), axis=1)
    cells = table.nonzero()[0]
    return number.tolist(), cells - np.repeat(np.arange(many) * count, number), table[cells]


def _summed(
    weights: Doubles, number: list[int], rows: Numbers, times: Numbers, lengths: Doubles, mean_length: float
) -> npt.NDArray[Any]:
    """BM25 of each text, from what `_counted` returns of its words."""
    found = np.repeat(weights, number) * saturated(times, lengths[rows], mean_length)
    return np.bincount(rows, found, len(lengths))


def _of(asked: Collection[int], spoken: Numbers) -> Flags:
    """Which messages are by the asked speakers."""
    table = np.zeros(int(spoken.max(initial=0)) + 1, bool)
    table[list(asked)] = True
    return table[spoken]


def _found(postings: Postings, stems: Sequence[str]) -> list[tuple[int, Numbers]]:
    """The words with what holds them, once each; of many words the rarest that are there at all."""
    counted = [(times, postings.messages(stem)) for stem, times in Counter(stems).items()]
    if len(counted) > WORDS:
        counted = sorted((pair for pair in counted if len(pair[1])), key=lambda pair: len(pair[1]))[:WORDS]
    return counted
