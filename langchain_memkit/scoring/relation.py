"""How much a question has to do with a user's records at all, which the order of the records does not say. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_memkit.scoring.dates import CALENDAR, MONTHS, closeness, windows
from langchain_memkit.scoring.index import FEW, Index
from langchain_memkit.scoring.matches import Matches
from langchain_memkit.scoring.speakers import YOU, Asked
from langchain_memkit.scoring.words import stems

__all__ = ["FLOOR", "relation"]

Doubles: TypeAlias = npt.NDArray[np.float64]

FLOOR = 1.0
NEARNESS, USUAL = 0.6, 0.5  # what a standard deviation of cosine counts, and how many of them count nothing
LOWEST = -1.5  # of them: a memory of one topic must not hide what is asked about it in other words
UNKNOWN = -0.35  # without a vector: then the words have to say a little more
WHOLE, MOST = 1.0, 0.75  # for a record that has this share of the question's words
SPEAKER, ONESELF, DAY, ACQUAINTANCE, STRANGER = 1.5, 1.0, 1.0, 1.25, -0.75
READ = 2000  # characters of a question
SECONDS = 86_400  # of a day

OWN = re.compile(r"\b(?:i|me|my|mine|myself|we|our|ours|us|i'm|i've|i'd)\b", re.IGNORECASE)
# What has "I", "me" or "we" in it and is not about the user: "How do I tie a tie?", "Give me a riddle".
ADVICE = re.compile(
    r"\bhow (?:do|can|could|should|would|to) (?:i|we)\b|\b(?:how long|what|where) (?:can|could|should) (?:i|we)\b"
    r"|\bhow long do (?:i|we)\b"
    r"|^\W*(?:please |can you |could you )?(?:give|tell|send|show|write|make|teach|set|name) me\b",
    re.IGNORECASE,
)
TEXT = re.compile(r":[^?]*$")  # what a task is to be done with: "Translate this: I am hungry"
WITHIN = re.compile(r"(?<=[\w,;:]) [\"'(]?([^\W\d_][\w']*)")  # a word that does not begin a sentence
NO_NAMES = frozenset(stems(f"{CALENDAR} {' '.join(MONTHS)} i'm i've i'd i'll ok"))


def relation(index: Index, question: str, now: datetime, asked: Asked, found: Matches, near: Doubles | None) -> Doubles:
    """Return how much a question has to do with each record: the number that `floor` is compared with.

    The scores of a ranking are relative: something always comes first. This is not. Its unit is a rare word: 1 is what
    a question and a record have in common by a word that no other record has. It is the sum of

    - the words of the question that the record has, each by how rare it is (`idf`, at least as in 50 records);
    - 0.6 for each standard deviation by which the cosine of their vectors is above what is usual between this user's
      own records of different sessions, less 0.3, but never under -0.9 (see `Index.usual`). So each embedder has its
      own scale, and a name or topic that all records share counts nothing. 0 while there are fewer than 16 records,
      and where their vectors do not tell them apart; -0.35 without vectors;
    - 1 if the record has three quarters of the question's words and more, rare ones counting more ("Where is the
      candle?"), however often they were said; of fewer than 16 records, any word;
    - what the question says of itself: 1.5 if it names a speaker, 1 if it is about the user or what the model said
      ("my", "did we", "you told me"; not "how do I ..." or "give me"), 1 if it names a past day on which something was
      said; of the names in it (a capital within a sentence), 1.25 if records hold one, -0.75 if there is one that no
      record holds.

    The weights began as those of a logistic regression and were made round by hand, on LoCoMo's four conversations and
    on the recall set. With the floor at 1, these lose at most 1% of their evidence; see docs/recall.md for all figures.

    Args:
        index: The records; its lock is held.
        question: The question.
        now: The time of asking.
        asked: Whom the question asks about.
        found: What its words find.
        near: The cosine of each record; None without vectors, or where their scale is not known.

    Returns:
        One number for each record.
    """
    question = question[:READ].replace("\u2019", "'")
    most = MOST if len(index) >= FEW else 0.0
    numbers = found.held + WHOLE * ((found.share >= most) & (found.share > 0))
    usual = index.usual
    if near is not None and usual is not None:
        apart = np.maximum((near - usual.mean) / usual.deviation - USUAL, LOWEST)
        numbers = numbers + NEARNESS * np.where(index.embedded, apart, LOWEST)
    elif near is None and len(index) >= FEW:
        numbers = numbers + UNKNOWN
    if asked.names:
        numbers = numbers + SPEAKER
    if YOU.search(question) or OWN.search(ADVICE.sub("", TEXT.sub("", question))):
        numbers = numbers + ONESELF
    if _told_then(index, question, now):
        numbers = numbers + DAY
    told = _names(question, asked)
    if any(len(index.postings.messages(name)) for name in told):
        numbers = numbers + ACQUAINTANCE
    if not all(len(index.postings.messages(name)) for name in told):
        numbers = numbers + STRANGER
    return numbers


def _told_then(index: Index, question: str, now: datetime) -> bool:
    """Whether something was said on a past day that the question names."""
    today = now.astimezone(UTC).date()
    past = [window for window in windows(question, today) if window.last < today]
    return bool(past) and bool(closeness(past, np.floor(index.view.times / SECONDS)).any())


def _names(question: str, asked: Asked) -> list[str]:
    """The words with a capital within a sentence, as stems, without speakers, months and days of the week."""
    capitals = [word for word in WITHIN.findall(question) if word[0].isupper()]
    return [stem for word in capitals for stem in stems(word) if stem not in NO_NAMES and stem not in asked.names]
