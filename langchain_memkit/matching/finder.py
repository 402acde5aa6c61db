"""Find names in a text: exact, in other spellings, and with typos. Pure."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from ahocorasick_rs import AhoCorasick

from langchain_memkit.matching.borders import Borders
from langchain_memkit.matching.folding import Folded, fold, fold_text
from langchain_memkit.matching.pieces import PieceIndex

__all__ = ["Found", "KeyFinder"]

SHORT = 4  # characters: shorter names are found only as they are written ("It", "US")
MOST = 20_000  # matches per text that are examined; bounds the time where names contain names
RANKS = {"exact": 0, "folded": 1, "fuzzy": 2}


class Found(NamedTuple):
    """A name found in a text.

    Attributes:
        key: The key that the name stands for.
        start: Where it begins, in characters of the text.
        end: Where it ends.
        score: Similarity, 0 to 100; 100 unless it is fuzzy.
        kind: `"exact"`: character for character. `"folded"`: in other case, punctuation or spacing. `"fuzzy"`: with
            typos.
    """

    key: str
    start: int
    end: int
    score: float
    kind: Literal["exact", "folded", "fuzzy"]


class KeyFinder:
    """Finds names in a text in one pass, so the time does not grow with the number of names. Thread-safe.

    Args:
        names: Surface forms with the key that each stands for; several may stand for one key.
        min_score: Similarity that a place with typos must have to a name of 6 to 200 letters, 0 to 100, by
            `rapidfuzz.fuzz.ratio`; None allows no typos. Whatever the score, names with other digits are other names,
            and a word with more than one typo per four letters is another word.

    Example:
        >>> finder = KeyFinder({"The Skeleton Songs": "skeleton", "US": "usa"}, min_score=88)
        >>> finder.find("Is THE SKELETON SONGS known to us?")
        [Found(key='skeleton', start=3, end=21, score=100, kind='folded')]
        >>> finder.find("the skeletn songs, in the US")
        [Found(key='skeleton', start=0, end=17, score=97, kind='fuzzy'),
         Found(key='usa', start=26, end=28, score=100, kind='exact')]
    """

    def __init__(self, names: Mapping[str, str], *, min_score: float | None = None) -> None:
        forms: dict[str, list[str]] = {}
        for surface in names:
            forms.setdefault(fold_text(surface), []).append(surface)
        symbols = sorted(filter(None, forms.pop("", [])), key=len, reverse=True)
        self._keys = dict(names)
        self._symbols = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, symbols))})(?!\w)") if symbols else None
        self._folded = list(forms)
        self._surfaces = [tuple(surfaces) for surfaces in forms.values()]
        self._automaton = AhoCorasick(self._folded, store_patterns=False)
        self._pieces = PieceIndex(self._folded, min_score) if min_score is not None else None

    def find(self, text: str) -> list[Found]:
        """Find the names in a text.

        Overlapping names compete, and one wins: a match without typos before one with typos, then the higher score,
        then the longer name, then exact before folded, then the one that comes first. Names that cannot be told apart
        at a place are all returned. A fuzzy match wins over all matches within it if it is at least twice as long as
        each: "Traveling at Night" is not "Night".

        Args:
            text: Any text.

        Returns:
            The matches in order of place; `[]` for none.
        """
        folded = fold(text)
        plain = list(self._plain(text, folded))
        fuzzy = self._fuzzy(folded)
        if not (plain or fuzzy):
            return []
        # One byte per character: `find(1, start, end)` tells in C whether a place overlaps with what was marked before.
        hidden = bytearray(len(text))
        for (_, start, end, *_), *_ in _larger(fuzzy, plain, len(text)):
            hidden[start:end] = b"\x01" * (end - start)
        plain = [group for group in plain if hidden.find(1, group[0].start, group[0].end) < 0]
        taken, chosen = bytearray(len(text)), list[Found]()
        for group in sorted([*plain, *fuzzy], key=_order):
            start, end = group[0].start, group[0].end
            if taken.find(1, start, end) < 0:
                taken[start:end] = b"\x01" * (end - start)
                chosen += group
        return sorted(chosen, key=lambda found: found.start)

    def _plain(self, text: str, folded: Folded) -> Iterator[list[Found]]:
        """Yield the matches without typos, grouped by place."""
        if self._symbols:
            for match in self._symbols.finditer(text):
                yield [Found(self._keys[match.group()], *match.span(), 100, "exact")]
        matches = self._automaton.find_matches_as_indexes(folded.text, overlapping=True)
        borders = Borders(folded.text if matches else "")
        for number, start, end in matches[:MOST]:
            # The automaton also matches inside words: keep what begins and ends at word boundaries.
            if start in borders.starts and end in borders.ends:
                found = self._spelled(text, folded, number, start, end)
                if found:
                    yield found

    def _fuzzy(self, folded: Folded) -> list[list[Found]]:
        """Return the matches with typos, grouped by place."""
        places: dict[tuple[int, int], list[Found]] = {}
        for near in self._pieces.find(folded.text) if self._pieces else ():
            span = folded.span(near.start, near.end)
            keys = self._keys_of(self._surfaces[near.name])
            places.setdefault(span, []).extend(Found(key, *span, near.score, "fuzzy") for key in keys)
        return list(places.values())

    def _spelled(self, text: str, folded: Folded, number: int, start: int, end: int) -> list[Found]:
        """Return the names that normalize to the text at a place: the one spelled exactly so, else all."""
        first, last = folded.span(start, end)
        exact: list[str] = []
        for surface in self._surfaces[number]:
            begin = first - _lead(surface)
            if begin >= 0 and text.startswith(surface, begin):
                exact.append(surface)
        if exact:  # prefer the longest: "C++" over "C"
            surface = max(exact, key=len)
            begin = first - _lead(surface)
            return [Found(self._keys[surface], begin, begin + len(surface), 100, "exact")]
        if len(self._folded[number]) < SHORT:
            return []
        return [Found(key, first, last, 100, "folded") for key in self._keys_of(self._surfaces[number])]

    def _keys_of(self, surfaces: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(self._keys[surface] for surface in surfaces))


@lru_cache(maxsize=4096)
def _lead(surface: str) -> int:
    """Return how many characters of a surface form come before its normalized part."""
    return fold.__wrapped__(surface).span(0, 1)[0]


def _order(group: list[Found]) -> tuple[bool, float, int, int, int]:
    found = group[0]
    return found.kind == "fuzzy", -found.score, found.start - found.end, RANKS[found.kind], found.start


def _larger(fuzzy: Iterable[list[Found]], plain: Iterable[list[Found]], size: int) -> list[list[Found]]:
    """Return fuzzy matches that contain all plain matches they overlap and are twice as long as each."""
    longest, within = array("I", bytes(4 * size)), bytearray(size + 1)  # at each character; whether one goes on there
    for length, start in sorted((group[0].end - group[0].start, group[0].start) for group in plain):
        longest[start : start + length] = array("I", [length]) * length
        within[start + 1 : start + length] = b"\x01" * (length - 1)
    # A plain match that crosses an end of the fuzzy one (`within`) is not contained in it.
    spans = ((group, group[0].start, group[0].end) for group in fuzzy)
    return [
        group
        for group, start, end in spans
        if not (within[start] or within[end]) and 2 * max(longest[start:end]) <= end - start
    ]
