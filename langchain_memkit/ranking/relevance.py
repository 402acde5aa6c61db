"""Absolute relatedness of a question to records, on which the recall floor is based. Pure."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime

import numpy as np

from langchain_memkit.ranking.bm25 import BM25Matches, Doubles
from langchain_memkit.ranking.dates import DAYS, MONTHS, NUMBERS, date_proximity, parse_date_ranges
from langchain_memkit.ranking.index import FEW, Index
from langchain_memkit.ranking.speakers import ME, YOU, AddressedSpeakers
from langchain_memkit.ranking.tokenize import language_of, tokenize

FLOOR = 1.0  # what floor="auto" means
NEARNESS, USUAL = 0.8, 0.65  # points per standard deviation of the cosine; deviations above the mean that score 0
LOWEST = -2.0  # lower bound in deviations: many words in common may outweigh vectors that see no likeness
UNKNOWN, ALONE = -0.35, 1.43  # points without vectors, and for each share of the words over a half if about the user
WHOLE, MOST = 1.0, 0.75  # points for a record with at least this share of the words, where no scale is known
# Points if the question names a speaker, is about the user, holds a name that some record holds, holds a name that no
# record holds, and is a task; and for a record of a past day that the question names.
SPEAKER, ONESELF, ACQUAINTANCE, STRANGER, TASK, DAY = 2.0, 0.8, 1.0, -1.5, -1.5, 1.0
READ = 2000  # characters of a question that are read

OWN = re.compile(r"\b(?:i|me|my|mine|myself|we|our|ours|us|i'm|i've|i'd)\b|[\u6211\u79c1\u50d5\u4ffa]", re.IGNORECASE)
# Phrases with "I", "me" or "we" that are not about the user: "How do I tie a tie?", "Give me a riddle".
ADVICE = re.compile(
    r"\bhow (?:do|can|could|should|would|to) (?:i|we)\b|\b(?:how long|what|where) (?:can|could|should) (?:i|we)\b"
    r"|\bhow long do (?:i|we)\b"
    r"|\b(?:can|could|will|would) you (?:\w+ )?me\b"
    r"|^\W*(?:please |can you |could you )?(?:give|tell|send|show|write|make|teach|set|name) me\b",
    re.IGNORECASE,
)
# What is to be done, not what was said: "Write a haiku", "Convert 75 degrees Fahrenheit".
DO = re.compile(
    r"^\W*(?:please |can you |could you )?(?:calculate|compose|compute|convert|correct|create|define|draw|flip"
    r"|generate|make|proofread|refactor|rewrite|solve|sort|translate|write)\b",
    re.IGNORECASE,
)
TEXT = re.compile(r":[^?]*$")  # the material of a task: "Translate this: I am hungry"
WITHIN = re.compile(r"(?<=[\w,;:]) [\"'(]?([^\W\d_][\w']*)")  # a word that does not begin a sentence
NO_NAMES = frozenset(tokenize(" ".join([*MONTHS, *DAYS, *NUMBERS, "i'm i've i'd i'll ok"])))


def is_about_user(question: str) -> bool:
    """Return whether a question is about the user, or about what was said: "my", "did we", "you told me"."""
    question = question[:READ].replace("\u2019", "'")
    language = language_of(question)
    own = OWN if language == "english" else ME[language]
    return bool(YOU.search(question) or own.search(ADVICE.sub("", TEXT.sub("", question))))


def relevance_to(
    index: Index, question: str, now: datetime, asked: AddressedSpeakers, found: BM25Matches, near: Doubles | None
) -> Doubles:
    """Score how related a question is to each record: the number that `floor` is compared with.

    Ranking scores are relative: some record always comes first. This score is absolute. Its unit is a rare word: a
    question and a record that share a word which no other record has score 1 for it. It is the sum of

    - the words of the question that the record contains, each by its rarity (`idf`, as in at least 50 records);
    - 0.8 for each standard deviation by which the cosine of question and record is above the usual cosine between this
      user's own records of different sessions, less 0.52, but never under -1.6 (see `Index.usual`). So each embedder
      has its own scale, and a name or topic that all records share counts nothing. -0.35 if the question has no
      vector, so that one rare word alone is not enough; if it is about the user besides, 1.43 times the share of its
      words that the record contains, less a half;
    - 1 for a record of a past day that the question names, less for one of the days around it;
    - where the vectors do not tell the records apart, or are fewer than 16: 1 if the record contains at least three
      quarters of the question's words, weighted by rarity; among fewer than 16 records, or if the question is about
      the user, any word;
    - points for the question itself: 2 if it names a speaker; 0.8 if it is about the user or about what the model said
      ("my", "did we", "you told me"; not "how do I ..." or "give me"); for the names in it (a capital within a
      sentence) 1 if any record contains one, -1.5 if there is one that no record contains; and -1.5 for a task with
      none of these and no day ("Write a haiku").

    The weights began as those of a logistic regression and were searched for on LoCoMo's four conversations and on the
    recall set, then rounded: changing one of them by a fifth changes little, except that less for the days, or more
    than 0.4 off without vectors, loses answers. docs/recall.md has all figures.

    The caller holds the lock of the index. `near` is the cosine of each record; None without vectors, or if their scale
    is not known.
    """
    question = question[:READ].replace("\u2019", "'")
    language, about = language_of(question), is_about_user(question)
    # No scale where the embedder does not read the language of the records.
    usual = None if near is not None and index.vector_trust < 1 else index.usual
    numbers = found.held
    if usual is None:
        most = MOST if len(index) >= FEW and not about else 0.0
        numbers = numbers + WHOLE * ((found.share >= most) & (found.share > 0))
    if near is not None and usual is not None:
        apart = np.maximum((near - usual.mean) / usual.deviation - USUAL, LOWEST)
        numbers = numbers + NEARNESS * np.where(index.embedded, apart, LOWEST)
    elif usual is not None:
        numbers = numbers + UNKNOWN + ALONE * about * (found.share - 0.5)
    today = now.date()
    # "Before March" leaves most records of a long memory, so it says little about any of them.
    if past := [when for when in parse_date_ranges(question, today) if date.min < when.first and when.last < today]:
        numbers = numbers + DAY * date_proximity(past, index.view.times, now.tzinfo or UTC)
    told = [name in index.postings for name in _names(question, language, asked)]
    points = SPEAKER * bool(asked.names) + ONESELF * about + ACQUAINTANCE * any(told) + STRANGER * (not all(told))
    if not (asked.names or about or any(told) or past) and DO.search(question):
        points += TASK
    return numbers + points


def _names(question: str, language: str, asked: AddressedSpeakers) -> list[str]:
    """Return the stems of capitalized words within sentences, without speakers, months and days of the week."""
    if language == "german":  # where every noun has a capital
        return []
    capitals = [word for word in WITHIN.findall(question) if word[0].isupper()]
    stems = [stem for word in capitals for stem in tokenize(word, language)]
    return [stem for stem in stems if stem not in NO_NAMES and stem not in asked.names]
