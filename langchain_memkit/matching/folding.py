"""Text without case and punctuation, with the way back to where each character came from. Pure."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

__all__ = ["Folded", "fold", "fold_text"]

ZERO_WIDTH_SPACE = "\u200b"  # a format character that ends a word; the others stand within words
WORD = re.compile(r"\S+")
ASCII = str.maketrans({i: chr(i).lower() if chr(i).isalnum() else " " for i in range(128)})


class Folded(NamedTuple):
    """A folded text.

    Attributes:
        text: Letters, digits and their marks, words with one space between them.
        starts: For each character of `text`, where in the original that begins which it came from.
        ends: The same for where it ends.
    """

    text: str
    starts: list[int]
    ends: list[int]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where `text[start:end]`, which must not be empty, stands in the original.

        Example:
            >>> fold("Hello, Straße!").span(6, 13)
            (7, 13)
        """
        return self.starts[start], self.ends[end - 1]


def fold_text(text: str) -> str:
    """The text of `fold(text)`, faster.

    Example:
        >>> fold_text("Harrison's  O'Brien-Straße!")
        'harrison s o brien strasse'
    """
    if text.isascii():
        return " ".join(text.translate(ASCII).split())
    bare = "".join(c for c in text if not _unseen(c))
    plain = "".join(map(_plain, _normal(bare)))
    return " ".join(filter(None, map(_based, plain.split())))


@lru_cache(maxsize=2)  # several finders look at one text in turn
def fold(text: str) -> Folded:
    """Makes spellings comparable: NFKC, case folded, all that is neither letter nor digit a space.

    Marks that make one character with a letter stay with it; format characters within words (soft hyphens) go.

    Args:
        text: Any text.

    Returns:
        The folded text, with a map back: NFKC and folding change lengths ("ß" to "ss", "ﬁ" to "fi").

    Example:
        >>> folded = fold("The SKELETON-songs?")
        >>> folded.text, folded.span(4, 12)
        ('the skeleton songs', (4, 12))
    """
    if text.isascii():
        chars, starts, ends = text.translate(ASCII), range(len(text)), range(1, len(text) + 1)
        return _joined(chars, list(starts), list(ends))
    pieces: list[str] = []
    begins: list[int] = []
    finishes: list[int] = []
    borders = [i for i, c in enumerate(text) if not i or not _continues(c)]
    for start, end in zip(borders, [*borders[1:], len(text)], strict=True):
        piece = _cluster(text[start:end])
        pieces.append(piece)
        begins += [start] * len(piece)
        finishes += [end] * len(piece)
    return _joined("".join(pieces), begins, finishes)


def _joined(chars: str, starts: list[int], ends: list[int]) -> Folded:
    """One space between words, none at the ends."""
    words: list[str] = []
    begins: list[int] = []
    finishes: list[int] = []
    for match in WORD.finditer(chars):
        word = _based(match.group())
        if not word:
            continue
        first, last = match.end() - len(word), match.end()
        if words:  # the space stands for all that lies between two words; both may come of one "¼"
            between = sorted((finishes[-1], starts[first]))
            begins.append(between[0])
            finishes.append(between[1])
        words.append(word)
        begins += starts[first:last]
        finishes += ends[first:last]
    return Folded(" ".join(words), begins, finishes)


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


@lru_cache(maxsize=4096)
def _cluster(text: str) -> str:
    """A character with its marks, folded by itself; the same comes of it within a text."""
    return "".join(map(_plain, _normal("".join(c for c in text if not _unseen(c)))))


@lru_cache(maxsize=4096)
def _continues(char: str) -> bool:
    """Whether a character may melt with the one before it."""
    first = unicodedata.normalize("NFKD", char)[0]
    return unicodedata.category(first)[0] == "M" or "\u1160" <= first <= "\u11ff" or _unseen(char)


@lru_cache(maxsize=4096)
def _plain(char: str) -> str:
    return char if char.isalnum() or unicodedata.category(char)[0] == "M" else " "


@lru_cache(maxsize=4096)
def _unseen(char: str) -> bool:
    return unicodedata.category(char) == "Cf" and char != ZERO_WIDTH_SPACE


def _based(word: str) -> str:
    """A word without marks that have no letter before them."""
    if word.isascii():
        return word
    first = next((i for i, c in enumerate(word) if c.isalnum()), len(word))
    return word[first:]
