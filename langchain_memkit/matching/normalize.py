"""Text as it is compared: folded, with the borders of its words."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from langchain_memkit._unicode import few_marks

__all__ = ["FoldedText", "WordBoundaries", "fold", "fold_text", "is_wide"]

ZERO_WIDTH_SPACE = "\u200b"  # a format character that ends a word; the others stand within words
WORD = re.compile(r"\S+")
LONG = 40  # characters: longer combining sequences are not cached
FEW = 20  # lookups in a text; for more of them building the whole map is cheaper
ASCII = str.maketrans({i: chr(i).lower() if chr(i).isalnum() else " " for i in range(128)})


class FoldedText:
    """A normalized text with a map to the original.

    Attributes:
        text: Letters, digits and their combining marks; words are separated by one space.
    """

    __slots__ = ("_asked", "_chars", "_maps", "_words", "text")

    def __init__(self, text: str, maps: tuple[list[int], list[int]] | None = None, chars: str = "") -> None:
        self.text = text
        self._maps = maps
        self._chars = chars  # ASCII only: as long as the original, with a space for each character that is left out
        self._words: list[int] | None = None
        self._asked = 0

    @property
    def maps(self) -> tuple[list[int], list[int]]:
        """Return, for each character of `text`, where the part of the original that it came from begins and ends."""
        if self._maps is None:
            self._maps = _mapped(self._chars, [*range(len(self._chars))], [*range(1, len(self._chars) + 1)])[1]
        return self._maps

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the place in the original that `text[start:end]` came from; the range must not be empty.

        Example:
            >>> fold("Hello, Straße!").span(6, 13)
            (7, 13)
        """
        # Most texts hold few names: their places are computed one by one, and the map is built only if many are asked
        # for.
        self._asked += 1
        if self._maps is None and self._asked < FEW and self.text[start] != " " != self.text[end - 1]:
            return self._place(start), self._place(end - 1) + 1
        return self.maps[0][start], self.maps[1][end - 1]

    def _place(self, i: int) -> int:
        """Return the place of one letter of an ASCII text, without building the whole map."""
        if self._words is None:
            self._words = [match.start() for match in WORD.finditer(self._chars)]
        # Words are the same in both texts, only the gaps differ: find the word by counting spaces, then add the offset
        # in it.
        return self._words[self.text.count(" ", 0, i)] + i - self.text.rfind(" ", 0, i) - 1


def fold_text(text: str) -> str:
    """Return the text of `fold(text)`; faster, without the map.

    Example:
        >>> fold_text("Harrison's  O'Brien-Straße!")
        'harrison s o brien strasse'
    """
    if text.isascii():
        return " ".join(text.translate(ASCII).split())
    bare = "".join(c for c in text if not _unseen(c))
    plain = "".join(map(_plain, _normal(bare)))
    return " ".join(filter(None, map(_based, plain.split())))


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
    return FoldedText(*_mapped("".join(pieces), begins, finishes))


def _mapped(chars: str, starts: list[int], ends: list[int]) -> tuple[str, tuple[list[int], list[int]]]:
    """Collapse white space to one space between words, and build the maps of the result."""
    words: list[str] = []
    begins: list[int] = []
    finishes: list[int] = []
    for match in WORD.finditer(chars):
        word = _based(match.group())
        if not word:
            continue
        first, last = match.end() - len(word), match.end()
        if words:  # the space maps to all that lies between two words; both words may come from one character: "¼"
            between = sorted((finishes[-1], starts[first]))
            begins.append(between[0])
            finishes.append(between[1])
        words.append(word)
        begins += starts[first:last]
        finishes += ends[first:last]
    return " ".join(words), (begins, finishes)


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
NEAREST_FIRST = (0, -1, 1, -2, 2)  # characters by which typos may move a boundary, the nearest first


def is_wide(char: str) -> bool:
    """Return whether a character belongs to a script without spaces between words.

    Example:
        >>> is_wide("日"), is_wide("a")
        (True, False)
    """
    return char > "\u0dff" and WIDE.match(char) is not None


class WordBoundaries:
    """Word boundaries of one normalized text.

    Attributes:
        starts: Positions at which words begin.
        ends: Positions at which words end.

    Example:
        >>> borders = WordBoundaries("the skeleton songs")
        >>> 4 in borders.starts, borders.starts_near(5), borders.ends_near(11)
        (True, (4,), (12,))
    """

    def __init__(self, text: str) -> None:
        words = [match.span() for match in SPACED_WORD.finditer(text)]
        self.starts = {start for start, _ in words}
        self.ends = {end for _, end in words}
        self._near_starts: dict[int, tuple[int, ...]] = {}
        self._near_ends: dict[int, tuple[int, ...]] = {}

    def starts_near(self, place: int) -> tuple[int, ...]:
        """Return the word beginnings at most two characters from a place, the nearest first."""
        if place not in self._near_starts:
            self._near_starts[place] = tuple(place + i for i in NEAREST_FIRST if place + i in self.starts)
        return self._near_starts[place]

    def ends_near(self, place: int) -> tuple[int, ...]:
        """Return the word ends at most two characters from a place, the nearest first."""
        if place not in self._near_ends:
            self._near_ends[place] = tuple(place + i for i in NEAREST_FIRST if place + i in self.ends)
        return self._near_ends[place]
