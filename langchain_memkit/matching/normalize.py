"""Text as it is compared: folded, with the borders of its words."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from functools import lru_cache

from langchain_memkit._unicode import few_marks

ZERO_WIDTH_SPACE = "\u200b"  # a format character that ends a word; the others stand within words
WORD = re.compile(r"\S+")
LONG = 40  # characters: longer combining sequences are not cached
ASCII = str.maketrans({i: chr(i).lower() if chr(i).isalnum() else " " for i in range(128)})


class FoldedText:
    """A normalized text with a map to the original.

    Args:
        text: Letters, digits and their combining marks; words are separated by one space.
        maps: For each character of `text`, where the part of the original that it came from begins and ends.
        chars: In place of these maps, for ASCII: the text as long as the original, with spaces for what is left out.
    """

    __slots__ = ("_chars", "_maps", "_words", "text")

    def __init__(self, text: str, maps: tuple[list[int], list[int]] | None = None, chars: str = "") -> None:
        self.text = text
        self._maps = maps
        self._chars = chars
        self._words: tuple[list[int], list[int]] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the place in the original that `text[start:end]` came from; the range must not be empty.

        Example:
            >>> fold("Hello, Straße!").span(6, 13)
            (7, 13)
        """
        if self._maps is not None:
            return self._maps[0][start], self._maps[1][end - 1]
        # Words are the same in both texts, only the gaps differ: find the word, then add the offset in it.
        if self._words is None:
            self._words = [m.start() for m in WORD.finditer(self.text)], [m.start() for m in WORD.finditer(self._chars)]
        here, there = self._words
        first, last = bisect_right(here, start) - 1, bisect_right(here, end - 1) - 1
        return there[first] + start - here[first], there[last] + end - here[last]


def fold_text(text: str) -> str:
    """Return the text of `fold(text)`; faster, without the map."""
    if text.isascii():
        return " ".join(text.translate(ASCII).split())
    return " ".join(filter(None, map(_based, _cluster.__wrapped__(text).split())))


@lru_cache(maxsize=2)  # several finders search the same text in turn
def fold(text: str) -> FoldedText:
    """Normalize a text so that spellings compare equal: NFKC, case folded, a space for all but letters and digits.

    Combining marks stay with their letter; format characters within words (soft hyphens) are removed.

    Args:
        text: Any text.

    Returns:
        The normalized text with a map to the original, since NFKC and case folding change lengths ("ß" to "ss", "ﬁ" to
        "fi").

    Example:
        >>> folded = fold("The SKELETON-songs?")
        >>> folded.text, folded.span(4, 12)
        ('the skeleton songs', (4, 12))
    """
    if text.isascii():
        chars = text.translate(ASCII)
        return FoldedText(" ".join(chars.split()), chars=chars)
    pieces: list[str] = []
    begins: list[int] = []
    finishes: list[int] = []
    borders = [i for i, c in enumerate(text) if not i or not _continues(c)]
    # Normalize each base character together with its marks: they may become one character, so all of their normalized
    # characters map to the whole cluster.
    for start, end in zip(borders, [*borders[1:], len(text)], strict=True):
        cluster = _cluster if end - start <= LONG else _cluster.__wrapped__
        piece = cluster(text[start:end])
        pieces.append(piece)
        begins += [start] * len(piece)
        finishes += [end] * len(piece)
    # Collapse white space to one space between words, in the maps as well.
    words: list[str] = []
    first_of: list[int] = []
    last_of: list[int] = []
    for match in WORD.finditer("".join(pieces)):
        word = _based(match.group())
        if not word:
            continue
        first, last = match.end() - len(word), match.end()
        if words:  # the space maps to all that lies between two words; both words may come from one character: "¼"
            between = sorted((last_of[-1], begins[first]))
            first_of.append(between[0])
            last_of.append(between[1])
        words.append(word)
        first_of += begins[first:last]
        last_of += finishes[first:last]
    return FoldedText(" ".join(words), (first_of, last_of))


def _normal(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", few_marks(text)).casefold())


@lru_cache(maxsize=4096)
def _cluster(text: str) -> str:
    """Normalize a character with its marks; within a text it normalizes to the same."""
    return "".join(map(_plain, _normal("".join(c for c in text if not _unseen(c)))))


@lru_cache(maxsize=4096)
def _continues(char: str) -> bool:
    """Return whether a character may combine with the one before it."""
    first = unicodedata.normalize("NFKD", char)[0]
    return unicodedata.category(first)[0] == "M" or "\u1160" <= first <= "\u11ff" or _unseen(char)


@lru_cache(maxsize=4096)
def _plain(char: str) -> str:
    return char if char.isalnum() or unicodedata.category(char)[0] == "M" else " "


@lru_cache(maxsize=4096)
def _unseen(char: str) -> bool:
    return unicodedata.category(char) == "Cf" and char != ZERO_WIDTH_SPACE


def _based(word: str) -> str:
    """Return a word without leading marks, which have no letter to combine with."""
    if word.isascii():
        return word
    first = next((i for i, c in enumerate(word) if c.isalnum()), len(word))
    return word[first:]


# scripts without spaces between words: any of their characters may begin or end a name
WIDE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
SPACED_WORD = re.compile(rf"{WIDE.pattern}|[^ ]+?(?={WIDE.pattern}| |$)")


def is_wide(char: str) -> bool:
    """Return whether a character belongs to a script without spaces between words."""
    return char > "\u0dff" and WIDE.match(char) is not None


def word_boundaries(text: str) -> tuple[set[int], set[int]]:
    """Return the positions at which the words of a normalized text begin, and those at which they end.

    Example:
        >>> starts, ends = word_boundaries("the skeleton songs")
        >>> 4 in starts, nearby(5, starts), nearby(11, ends)
        (True, [4], [12])
    """
    words = [match.span() for match in SPACED_WORD.finditer(text)]
    return {start for start, _ in words}, {end for _, end in words}


def nearby(place: int, boundaries: set[int]) -> list[int]:
    """Return the boundaries at most two characters from a place, the nearest first."""
    return [place + i for i in (0, -1, 1, -2, 2) if place + i in boundaries]
