"""Fuzzy index: find names with typos in a text. Pure.

This is a pigeonhole index: a name with few typos has at least one piece without any. Each name is cut into pieces, all
pieces of all names are in one Aho-Corasick automaton, and each piece found in a text proposes its name at its place;
`rapidfuzz` then compares the two. Pieces that very many names share ("the complete guide to ") would propose too many:
the rest of such a name is cut again until two of its pieces are rare.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain
from typing import NamedTuple, TypeAlias

from ahocorasick_rs import AhoCorasick
from rapidfuzz.distance.OSA import distance
from rapidfuzz.fuzz import ratio

from langchain_memkit.matching.borders import Borders, is_wide

__all__ = ["Near", "PieceIndex"]

LEAST = 6  # characters: shorter names are not found with typos
THREE_PIECES = 12  # characters: names from here on are cut in three, so that two typos leave one piece intact
LEAST_PIECE = 2  # characters of a piece
WITH_GAP = 9  # characters: parts from here on leave one character out between their halves
COMMON = 200  # names: a piece that more names share is not indexed if the name has two rarer ones
MOST_COMMON = 500  # names: the same limit if the name has only one rarer piece
MOST_PER_WORD = 25  # names proposed per word of a text, by the rarest pieces first; bounds the time
MOST = 10_000  # names proposed per text, however long it is; bounds the time
LONGEST = 200  # characters: longer names are not found with typos, since comparing takes quadratic time

Part: TypeAlias = tuple[int, int]


class Near(NamedTuple):
    """A place in a normalized text that is similar to a name.

    Attributes:
        name: Number of the name.
        start: Where the place begins.
        end: Where it ends.
        score: Similarity, 0 to 100.
    """

    name: int
    start: int
    end: int
    score: float


class PieceIndex:
    """Index that finds normalized names of 6 to 200 characters with typos in a normalized text.

    Args:
        names: Normalized names, each once.
        min_score: Similarity that a place must have, 0 to 100: `rapidfuzz.fuzz.ratio`, rounded.
    """

    def __init__(self, names: Sequence[str], min_score: float) -> None:
        self._names = names
        self._min_score = min_score
        self._known = frozenset(names)
        found: dict[str, list[int]] = {}
        for number, parts in _choose_parts(names).items():
            for part in parts:
                piece = _piece(names[number], part)
                anchored = part[0] == 0 and piece[0] == " "
                shift = 0 if anchored else part[0] + 1  # from a match back to the name; the text gets a space in front
                found.setdefault(piece, []).append(number << 32 | shift)
        # Flat arrays take a tenth of the memory of one list per piece: the owners of piece `i` are
        # `owners[firsts[i]:firsts[i + 1]]`, each a name's number and the piece's offset in one integer.
        self._firsts = array("Q", accumulate(map(len, found.values()), initial=0))
        self._owners = array("Q", chain.from_iterable(found.values()))
        self._automaton = AhoCorasick(list(found), store_patterns=False)

    def find(self, text: str) -> Iterator[Near]:
        """Yield every place with the names most similar to it; places may overlap.

        Args:
            text: A normalized text.
        """
        borders, names = Borders(text), self._names
        least = self._min_score - 0.5  # scores are rounded: one wrong letter of eight scores 87.5, which passes for 88
        compared: dict[Near, None] = {}
        for number, first, last in self._proposals(text):
            nears: list[Near] = []
            # Typos in front of the piece shift the name's ends, so word boundaries up to two characters away are tried
            # as well.
            for start in borders.starts_near(first):
                for end in borders.ends_near(last):
                    score = ratio(text[start:end], names[number], score_cutoff=least)
                    if score and self._is_meant(text[start:end], names[number]):
                        nears.append(Near(number, start, end, int(score + 0.5)))
            if nears:
                compared[max(nears, key=lambda near: near.score)] = None
        best: dict[Part, list[Near]] = {}
        for near in sorted(compared, key=lambda near: -near.score):
            others = best.setdefault((near.start, near.end), [])
            if not others or others[0].score == near.score:
                others.append(near)
        for nears in best.values():
            yield from nears

    def _is_meant(self, window: str, name: str) -> bool:
        """Return whether a place similar to a name may mean that name, rather than another name or other words."""
        if window in self._known or _digits(window) != _digits(name) or not _only_typos(window, name):
            return False
        rest, article = _bare(name), name.partition(" ")[0] + " "
        if rest is name or not window.startswith(article):
            return True
        # compare without the article, which makes short words look more similar: "the cattle", "The Castle"
        return len(rest) >= LEAST and ratio(window[len(article) :], rest) >= self._min_score - 0.5

    def _proposals(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield numbers of names with where they would begin and end, by the rarest pieces first, up to the limit."""
        firsts, owners = self._firsts, self._owners
        hits = [
            (firsts[piece + 1] - firsts[piece], firsts[piece], place)
            for piece, place, _ in self._automaton.find_matches_as_indexes(f" {text} ", overlapping=True)
        ]
        left = min(MOST_PER_WORD * (text.count(" ") + 10), MOST)
        for count, first, place in sorted(hits):
            left -= count
            if left < 0:
                return
            for owner in owners[first : first + count]:
                number, shift = owner >> 32, owner & 0xFFFFFFFF
                yield number, place - shift, place - shift + len(self._names[number])


def _choose_parts(names: Sequence[str]) -> dict[int, list[Part]]:
    """Choose the pieces of each name: the rare ones, and if there is only one, the least common of the others too."""
    chosen: dict[int, list[Part]] = {}
    spare: dict[int, tuple[int, Part]] = {}
    left: dict[int, list[Part]] = {}
    for number, name in enumerate(names):
        if LEAST <= len(name) <= LONGEST:
            whole = (0, len(name))
            left[number] = _thirds(whole) if len(name) >= THREE_PIECES else _halves(whole)
    # Each round counts how many names share each piece, and cuts the only rare piece of a name in two, until two are
    # rare or none can be cut any more. The best of the common pieces is kept in reserve.
    while left:
        counts = Counter(_piece(names[number], part) for number, parts in left.items() for part in parts)
        following: dict[int, list[Part]] = {}
        for number, parts in left.items():
            shared = sorted((counts[_piece(names[number], part)], part) for part in parts)
            rare = [part for count, part in shared if count <= COMMON]
            if len(rare) < len(shared):
                spare[number] = min(shared[len(rare)], spare.get(number, shared[-1]))
            if rare:
                chosen[number] = rare
            if len(rare) == 1 and _can_be_cut(rare[0]):
                following[number] = _halves(rare[0])
        left = following
    for number, (count, part) in spare.items():
        if number not in chosen or (len(chosen[number]) == 1 and count <= MOST_COMMON):
            chosen.setdefault(number, []).append(part)
    return chosen


def _can_be_cut(part: Part) -> bool:
    return part[1] - part[0] >= 2 * LEAST_PIECE


def _thirds(part: Part) -> list[Part]:
    start, end = part
    size = end - start
    return [(start, start + size // 3), (start + size // 3, start + 2 * size // 3), (start + 2 * size // 3, end)]


def _halves(part: Part) -> list[Part]:
    """Cut a part in two; of a long part omit the middle character: two swapped letters then damage one half."""
    start, end = part
    middle = (start + end) // 2
    return [(start, middle), (middle + (end - start >= WITH_GAP), end)]


def _piece(name: str, part: Part) -> str:
    """Return the text of a piece, with a space where it touches an end of the name (in scripts with spaces)."""
    start, end = part
    # The space anchors the piece at a word boundary, so that it is not found in the middle of longer words.
    before = " " if start == 0 and not is_wide(name[0]) else ""
    after = " " if end == len(name) and not is_wide(name[-1]) else ""
    return f"{before}{name[start:end]}{after}"


def _bare(name: str) -> str:
    """Return a name without its leading article."""
    first, _, rest = name.partition(" ")
    return rest if rest and first in ("a", "an", "the") else name


def _digits(text: str) -> list[str]:
    return [c for c in text if c.isdigit()]


def _only_typos(window: str, name: str) -> bool:
    """Return whether a place differs from a name by typos only.

    A word may have one typo per four letters, the name one per six characters, and each at least one. If the numbers of
    words differ, a space was typed or left out, and one typo is allowed besides.
    """
    words, others = window.split(), name.split()
    if len(words) != len(others):  # a space was typed or left out
        return distance(window.replace(" ", ""), name.replace(" ", "")) <= 1
    pairs = zip(words, others, strict=True)
    return distance(window, name) <= max(1, len(name) // 6) and all(
        distance(word, other) <= max(1, len(other) // 4) for word, other in pairs
    )
