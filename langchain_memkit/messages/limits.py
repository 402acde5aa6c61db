"""Limits on how much of a text memories read, so that the cost of any text is bounded. Pure but for the log."""

from __future__ import annotations

import logging
import re
from functools import cache

__all__ = ["MESSAGE", "QUESTION", "WORDS", "beginning", "few_words"]

logger = logging.getLogger("langchain_memkit")

MESSAGE = 100_000  # characters of a message in which memories look for names, and which they embed
QUESTION = 20_000  # characters of a question that memories look at
WORDS = 10_000  # words and signs of a text in which memories look for names: spaCy reads 15,000 a second
WORD = re.compile(r"[^\W_]{1,16}|\S")  # for most texts no more than spaCy's tokens


def beginning(text: str, most: int, what: str) -> str:
    """Return the beginning of a text; the log says once for each kind that the rest is left out.

    Args:
        text: Any text.
        most: Maximum number of characters.
        what: Kind of text and its reader, for the log: "a question to the entity memory".

    Example:
        >>> beginning("Harrison likes tea.", 8, "a name in an example")
        'Harrison'
    """
    if len(text) <= most:
        return text
    _say_once(what, f"{most:,} characters")
    return text[:most]


def few_words(text: str, what: str) -> str:
    """Return the first 10,000 words and signs of a text; a cut is logged as in `beginning`.

    Example:
        >>> len(few_words("a " * 15_000, "a text in an example"))
        19999
    """
    if len(text) <= WORDS:
        return text
    for number, word in enumerate(WORD.finditer(text), 1):
        if number == WORDS:
            if text[word.end() :].strip():
                _say_once(what, f"{WORDS:,} words and signs")
                return text[: word.end()]
            break
    return text


@cache
def _say_once(what: str, most: str) -> None:
    logger.warning("%s is longer than %s: what comes after them is not read (said once)", what, most)
