"""Lexical match of a question with all records: BM25 and coverage. Pure."""

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

WORDS = 64  # words of a question that are used; of more, the rarest
CELLS = 2**18  # pairs of a word and a record that are counted at once: 2 MB
FEWEST = 50  # records; in a smaller index, `held` rates the rarity of words as if there were so many


class Matches(NamedTuple):
    """Lexical scores of all records for one question.

    Attributes:
        whole: BM25 of each record.
        share: Share of the question's words that each record contains, weighted by `idf`, from 0 to 1.
        told: BM25 of each record, counting only the messages of the speakers that the question asks about.
        session: BM25 of each record's session, taken as one text.
        worth: For each message, whether it contains a word of the question or is by an asked speaker.
        held: Sum of the `idf` of the question's words that each record contains; the unit is a word that no other
            record contains.
    """

    whole: Doubles
    share: Doubles
    told: Doubles
    session: Doubles
    worth: Flags
    held: Doubles


def match(view: View, postings: Postings, stems: Sequence[str], asked: Collection[int] = ()) -> Matches:
    """Score every record by the words that it shares with a question.

    Args:
        view: Snapshot of the index.
        postings: Its inverted index of words.
        stems: The words of the question; a repeated word counts repeatedly.
        asked: Numbers of the speakers that the question asks about.

    Returns:
        Arrays in the order of the records; `worth` in the order of the messages in `postings`.
    """
    count, groups = len(view.entries), len(view.session_lengths)
    whole, share, told, held = np.zeros((4, count))
    sessions, hit, everything = np.zeros(groups), np.zeros(len(view.row), bool), 0.0
    theirs = _of(asked, view.spoken)
    mean_session = float(view.session_lengths.sum()) / max(view.session_count, 1) or 1.0
    found, most = _found(postings, stems), max(count, FEWEST)
    # All words are counted at once with `bincount` over a table of words x records, in chunks of words so that the
    # table stays small whatever the size of the index.
    size = max(1, CELLS // max(count, groups, 1))
    for some in (found[i : i + size] for i in range(0, len(found), size)):
        asked_for = np.array([times for _, times in some])
        messages, sizes = postings.of([word for word, _ in some])
        words = np.repeat(np.arange(len(some)), sizes)
        rows = view.row[messages]
        if view.removed:  # postings keep the messages of removed records until the index is compacted
            live = rows >= 0
            messages, words, rows = messages[live], words[live], rows[live]
        hit[messages] = True
        number, row, times = _counted(words, rows, len(some), count)
        rare = idf(number, count)
        everything += float(rare.sum())
        whole += _summed(asked_for * rare, number, row, times, view.lengths, view.mean_length)
        share += np.bincount(row, np.repeat(rare, number), count)
        held += np.bincount(row, np.repeat(idf(number, most), number), count)
        if asked:
            by = theirs[messages]
            number, row, times = _counted(words[by], rows[by], len(some), count)
            told += _summed(asked_for * rare, number, row, times, view.lengths, view.mean_length)
        if groups:
            group = view.session[rows]
            within = group >= 0
            if not within.all():
                words, group = words[within], group[within]
            number, row, times = _counted(words, group, len(some), groups)
            rare = idf(number, view.session_count)
            sessions += _summed(asked_for * rare, number, row, times, view.session_lengths, mean_session)
    spread = np.append(sessions, 0.0)[view.session]  # the last one is that of records without a session
    share = share / everything if everything else share
    return Matches(whole, share, told, spread, hit | theirs, held / idf(1, most))


def _counted(words: Numbers, rows: Numbers, many: int, count: int) -> tuple[Numbers, Numbers, Numbers]:
    """Count the occurrences of words in records.

    Args:
        words: The word of each occurrence, as a number below `many`.
        rows: The record of each occurrence, as a number below `count`.
        many: Number of words.
        count: Number of records.

    Returns:
        The number of records with each word; these records, word by word; and the number of occurrences in each.
    """
    table = np.bincount(words * count + rows, minlength=many * count)
    cells = table.nonzero()[0]
    starts = np.arange(many + 1) * count
    number = np.diff(np.searchsorted(cells, starts))
    return number, cells - np.repeat(starts[:-1], number), table[cells]


def _summed(
    weights: Doubles, number: Numbers, rows: Numbers, times: Numbers, lengths: Doubles, mean_length: float
) -> npt.NDArray[Any]:
    """Sum the BM25 of each text from the counts that `_counted` returns, with a weight for each word."""
    found = np.repeat(weights, number) * saturated(times, lengths[rows], mean_length)
    return np.bincount(rows, found, len(lengths))


def _of(asked: Collection[int], spoken: Numbers) -> Flags:
    """Return flags of the messages by the asked speakers."""
    table = np.zeros(int(spoken.max(initial=0)) + 1, bool)
    table[list(asked)] = True
    return table[spoken]


def _found(postings: Postings, stems: Sequence[str]) -> list[tuple[str, int]]:
    """Return each distinct word with its count in the question; only the rarest known ones of too many words."""
    counted = [*Counter(stems).items()]
    if len(counted) > WORDS:
        _, number = postings.of([word for word, _ in counted])
        there = sorted((n, i) for i, n in enumerate(number) if n)
        counted = [counted[i] for _, i in there[:WORDS]]
    return counted
