"""Names of people, places and things: normalize them, compare spellings, and tell names from common words. Pure.

Nothing here guesses who is meant: spellings that hardly differ are one name, similar names are "maybe the same", and
only a person can decide more.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from functools import lru_cache
from importlib.resources import files
from typing import Literal, TypeAlias

from rapidfuzz import fuzz

from langchain_memkit.matching.normalize import fold_text

PERSON = "PERSON"
# spaCy's labels of types that are not kept
DROPPED = {"CARDINAL", "DATE", "LANGUAGE", "LAW", "MONEY", "ORDINAL", "PERCENT", "QUANTITY", "TIME"}
OTHER_WORDS = {"PER": PERSON, "ORGANIZATION": "ORG", "ORGANISATION": "ORG", "LOCATION": "LOC", "FACILITY": "FAC"}
PLACES = {"GPE", "LOC", "FAC"}

LEAST_MERGED = 5  # letters; shorter names are never merged: Ana and Anna are two people
NEAR = 85  # by rapidfuzz's `ratio`, not `WRatio`, in which Sam and Samir score 90
MOST = 80  # characters of a name

POSSESSIVE = re.compile(r"(?<=\w)(?:['\u2019\u2018\u02bc`\u00b4\uff07][sS](?!\w)|(?<=[sS])['\u2019\u02bc](?!\w))")
NUMBER = re.compile(r"\d+(?:st|nd|rd|th|s|k|m|am|pm|h|min|km|kg|mph|x|d)?")
AMOUNT = re.compile(r"\s+(?P<sign>[^\w\s]\s?)?\d[\d.,]*(?:\s?(?P<unit>%|[a-z]+|[A-Z]{3}\b))?")


WORDS = tomllib.loads(files("langchain_memkit.matching").joinpath("words.toml").read_text("utf-8"))
LISTS = {name: frozenset(words.split()) for name, words in WORDS.items()}
ARTICLES, CALLS = LISTS["articles"], LISTS["calls"]
LEADING = ARTICLES | CALLS | LISTS["titles"]
JUNK = LEADING | LISTS["dates"] | LISTS["numbers"] | LISTS["stops"]
ORDINARY = JUNK | LISTS["ordinary"]

Relation: TypeAlias = Literal["same", "near"]
"""`"same"`: the same letters; `"near"`: maybe the same."""

Links: TypeAlias = dict[str, dict[str, Relation]]
"""How similar name keys are to each other, by both keys; pairs that are not similar are left out."""


@lru_cache(maxsize=8192)
def display_form(text: str) -> str:
    """Return a name as it is displayed: on one line, without 's or quotes after it, or a "Hey" or "the" before it.

    Example:
        >>> display_form(' "LangChain" '), display_form("Dr.  Smith,"), display_form("Hey Melanie!")
        ('LangChain', 'Dr. Smith', 'Melanie')
        >>> display_form("Harrison's"), display_form("Joe's Diner")
        ('Harrison', "Joe's Diner")
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * MOST]).split())
    # within a name it stays: "Joe's Diner"
    ends = (found.start() for found in POSSESSIVE.finditer(line) if not any(map(str.isalnum, line[found.end() :])))
    bare = line[: next(ends, len(line))]
    first = next((i for i, c in enumerate(bare) if c.isalnum()), len(bare))
    last = next((i for i in range(len(bare), first, -1) if _ends(bare[i - 1])), first)
    words = bare[first:last][:MOST].split()
    while len(words) > 1 and (words[0] in ARTICLES or words[0].rstrip(",!").casefold() in CALLS):
        del words[0]
    return " ".join(words)


def _ends(char: str) -> bool:
    return char.isalnum() or unicodedata.category(char)[0] == "M"


@lru_cache(maxsize=8192)
def name_key(text: str, *, given: bool = False) -> str | None:
    """Return the key that spellings of a name share: no case, 's, quotes, punctuation, leading article or title.

    Args:
        text: The name as it was written.
        given: A person declared it a name, so that it may be a word that otherwise is none: June, Will.

    Returns:
        The key; None for text that is no name: dates, weekdays, months, numbers, "last week", pronouns, mere
        punctuation, and text of more than 80 characters.

    Example:
        >>> name_key("Harrison's"), name_key("the “LangChain”"), name_key("Dr. Smith")
        ('harrison', 'langchain', 'smith')
        >>> [name_key(text) for text in ("last week", "May", "24 hours", "she", "...")]
        [None, None, None, None, None]
        >>> name_key("May", given=True)
        'may'
    """
    if len(text) > 2 * MOST:
        return None
    words = fold_text(POSSESSIVE.sub(" ", unicodedata.normalize("NFKC", text))).split()
    while len(words) > 1 and words[0] in LEADING:
        del words[0]
    key = " ".join(words)
    if len(key) > MOST or not any(c.isalpha() for c in key):
        return None
    return key if given or not all(word in JUNK or NUMBER.fullmatch(word) for word in words) else None


def parts_of(name: str) -> list[str]:
    """Return the words with which a name begins or ends, of which each is short for it.

    Example:
        >>> parts_of("Mei Lin Chen")
        ['Mei', 'Mei Lin', 'Lin Chen', 'Chen']
    """
    words = name.split()
    cuts = range(1, len(words))
    return [" ".join(words[:cut]) for cut in cuts] + [" ".join(words[cut:]) for cut in cuts]


def without_amount(text: str, start: int, end: int, kind: str) -> int:
    """Return where a name in a text ends, without an amount that was taken for a part of it.

    A number is one after the name of a person, with a sign like $ or %, or before what it counts.

    Args:
        text: The whole text.
        start: Where the name begins, in characters.
        end: Where it ends, as an extractor has it.
        kind: Its type.

    Example:
        >>> text = "Acme paid Priya 40 euros for Windows 11 and Route 66."
        >>> [text[start : without_amount(text, start, end, "ORG")] for start, end in [(10, 18), (29, 39), (44, 52)]]
        ['Priya', 'Windows 11', 'Route 66']
    """
    amount = AMOUNT.search(text, start, end + MOST)
    if amount is None or amount.start() >= end:
        return end
    counts = kind == PERSON or amount["sign"] or (amount["unit"] and amount["unit"] not in LISTS["stops"] | CALLS)
    return amount.start() if counts else end


def kind_of(label: str) -> str | None:
    """Convert an extractor's label to spaCy's labels; None for types that are dropped."""
    plain = label.strip().upper()
    return None if plain in DROPPED else OTHER_WORDS.get(plain, plain)


def is_common_word(key: str) -> bool:
    """Return whether a name is a common English word too, so that a text may mean the word and not the name."""
    return all(word in ORDINARY for word in key.split())


def relation(a: str, b: str) -> Relation | None:
    """Return how similar two name keys are; symmetric.

    Returns:
        One of these, the first that applies:

        - `"same"`: at least five letters, different only in spaces and at most one doubled letter. Harrison and
          Harison; Hansen and Hanssen too.
        - `"near"`: `ratio` of 85 or more, or the words of one are part of the other.
        - None: anything else.

    Example:
        >>> relation("harrison", "harison"), relation("langchain", "lang chain")
        ('same', 'same')
        >>> relation("openai platform", "openai platforms"), relation("johnson", "johnston")
        ('near', 'near')
        >>> relation("priya", "priya raman"), relation("sam", "samir")
        ('near', None)
    """
    if a[:1] != b[:1]:
        return "near" if _within(a, b) else None
    letters = a.replace(" ", ""), b.replace(" ", "")
    if min(map(len, letters)) >= LEAST_MERGED and _one_doubled(*sorted(letters, key=len)):
        return "same"
    return "near" if fuzz.ratio(a, b, score_cutoff=NEAR) or _within(a, b) else None


def _one_doubled(short: str, long: str) -> bool:
    """Return whether the words are equal, or the longer one only has one letter twice that the shorter one has once."""
    if short == long:
        return True
    if len(long) - len(short) != 1:
        return False
    i = next((i for i, (x, y) in enumerate(zip(short, long, strict=False)) if x != y), len(short))
    return long[i] == long[i - 1] and long[i].isalpha() and short[i:] == long[i + 1 :]


def _within(a: str, b: str) -> bool:
    return f" {a} " in f" {b} " or f" {b} " in f" {a} "
