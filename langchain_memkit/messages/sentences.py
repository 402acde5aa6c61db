"""Sentence segmentation. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

__all__ = ["sentence_spans"]

ABBREVIATIONS = frozenset({"dr", "e.g", "etc", "i.e", "mr", "mrs", "ms", "no", "prof", "st", "vs"})
# A line break; an end in Chinese or Japanese; an end with closing quotes or brackets, before white space.
END = re.compile(
    r"""\n\s*
    | [\u3002\uff01\uff1f]+[\u201d\u2019\u300d\u300f\u300b\uff09]*\s*
    | (?<![.!?\u2026])[.!?\u2026]+["'\u201d\u2019\u00bb)\]]*(?:\s+|$)""",
    re.VERBOSE,
)
LAST_WORD = re.compile(r"(?:\w+\.)*\w+$")


@lru_cache(maxsize=4)  # a search for names in a text, and then for their sentences, calls it twice
def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Split a text into sentences.

    A sentence ends at `.`, `!`, `?` or `…`, with the quotes that close it, before white space; at their equivalents in
    Chinese and Japanese; and at the end of a line, unless the next one continues with a lower-case letter, as in
    wrapped text. "Mr.", "e.g." and single capital initials do not end a sentence.

    Args:
        text: Any text; without punctuation, each line is one sentence.

    Returns:
        Start and end of each, in order, without surrounding white space; `[]` if there is nothing but white space.

    Example:
        >>> text = 'Mr. J. Smith said "Hello!" He left.'
        >>> [text[start:end] for start, end in sentence_spans(text)]
        ['Mr. J. Smith said "Hello!"', 'He left.']
    """
    spans: list[tuple[int, int]] = []
    start = 0
    for end in (*_ends(text), len(text)):
        part = text[start:end]
        if bare := part.strip():
            first = start + len(part) - len(part.lstrip())
            spans.append((first, first + len(bare)))
        start = end
    return spans


def _ends(text: str) -> Iterator[int]:
    for match in END.finditer(text):
        mark = match.group()
        if mark[0] == "." and "\n" not in mark and _goes_on(text, match):
            continue
        if mark[0] == "\n" and mark.count("\n") == 1 and text[match.end() : match.end() + 1].islower():
            continue
        yield match.end()


def _goes_on(text: str, match: re.Match[str]) -> bool:
    """Return whether the full stop belongs to an abbreviation or an initial."""
    if match.group().strip() != ".":
        return False
    word = LAST_WORD.search(text, max(0, match.start() - 40), match.start())
    last = word.group() if word else ""
    return last.lower() in ABBREVIATIONS or (len(last) == 1 and last.isupper())
