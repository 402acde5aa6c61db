"""Which records hold the words of a question, and how much these weigh. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_memkit.scoring.bm25 import idf, saturated
from langchain_memkit.scoring.postings import Numbers, Postings
from langchain_memkit.scoring.view import View

__all__ = ["Matches", "match"]

Doubles: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]

WORDS = 64  # of a question: of more, the rarest
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
    whole, share, told = np.zeros(count), np.zeros(count), np.zeros(count)
    sessions, hit, everything = np.zeros(groups), np.zeros(len(view.row), bool), 0.0
    held, most = np.zeros(count), max(count, FEWEST)
    theirs = _of(asked, view.spoken)
    mean_session = float(view.session_lengths.sum()) / max(view.session_count, 1) or 1.0
    for times, messages in _found(postings, stems):
        rows = view.row[messages]
        if view.removed and len(rows) and rows.min() < 0:
            messages, rows = messages[rows >= 0], rows[rows >= 0]
        within = np.bincount(rows, minlength=count)
        found = within.nonzero()[0]
        rare = idf(len(found), count)
        everything += rare
        if not len(found):
            continue
        hit[messages] = True
        lengths = view.lengths[found]
        whole[found] += times * rare * saturated(within[found], lengths, view.mean_length)
        share[found] += rare
        held[found] += idf(len(found), most) / idf(1, most)
        if asked:
            within = np.bincount(rows[theirs[messages]], minlength=count)[found]
            told[found] += times * rare * saturated(within, lengths, view.mean_length)
        if groups:
            numbers = view.session[rows]
            within = np.bincount(numbers[numbers >= 0], minlength=groups)
            found = within.nonzero()[0]
            rare = idf(len(found), view.session_count)
            sessions[found] += times * rare * saturated(within[found], view.session_lengths[found], mean_session)
    spread = np.append(sessions, 0.0)[view.session]  # the last one is that of records without a session
    return Matches(whole, share / everything if everything else share, told, spread, hit | theirs, held)


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
