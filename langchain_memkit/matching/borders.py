"""Word boundaries in a normalized text. Pure."""

from __future__ import annotations

import re

__all__ = ["Borders", "is_wide"]

# scripts without spaces between words: any of their characters may begin or end a name
WIDE = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
WORD = re.compile(rf"{WIDE.pattern}|[^ ]+?(?={WIDE.pattern}| |$)")
NEAREST_FIRST = (0, -1, 1, -2, 2)  # characters by which typos may move a boundary, the nearest first


def is_wide(char: str) -> bool:
    """Return whether a character belongs to a script without spaces between words.

    Example:
        >>> is_wide("日"), is_wide("a")
        (True, False)
    """
    return char > "\u0dff" and WIDE.match(char) is not None


class Borders:
    """Word boundaries of one normalized text.

    Attributes:
        starts: Positions at which words begin.
        ends: Positions at which words end.

    Example:
        >>> borders = Borders("the skeleton songs")
        >>> 4 in borders.starts, borders.starts_near(5), borders.ends_near(11)
        (True, (4,), (12,))
    """

    def __init__(self, text: str) -> None:
        words = [match.span() for match in WORD.finditer(text)]
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
