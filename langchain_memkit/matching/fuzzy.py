"""Names and words found in text although they are spelt a little differently."""

from __future__ import annotations

import heapq
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Literal, NamedTuple, TypeAlias

from ahocorasick_rs import AhoCorasick
from rapidfuzz.distance.OSA import distance
from rapidfuzz.fuzz import partial_ratio, ratio

from langchain_memkit.matching.normalize import FoldedText, WordBoundaries, fold, fold_text, is_wide

__all__ = ["FuzzyMatch", "KeyFinder", "NameMatch", "QGramIndex", "closest_names"]

LEAST = 6  # characters: shorter names are not found with typos
THREE_PIECES = 12  # characters: names from here on are cut in three, so that two typos leave one piece intact
LEAST_PIECE = 2  # characters of a piece
WITH_GAP = 9  # characters: parts from here on leave one character out between their halves
COMMON = 200  # names: a piece that more names share is not indexed if the name has two rarer ones
MOST_COMMON = 500  # names: the same limit if the name has only one rarer piece
MOST_PER_WORD = 25  # names proposed per word of a text, by the rarest pieces first; bounds the time
MOST_PROPOSED = 10_000  # names proposed per text, however long it is; bounds the time
LONGEST = 200  # characters: longer names are not found with typos, since comparing takes quadratic time

Part: TypeAlias = tuple[int, int]


class FuzzyMatch(NamedTuple):
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


class QGramIndex:
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

    def find(self, text: str) -> Iterator[FuzzyMatch]:
        """Yield every place with the names most similar to it; places may overlap.

        Args:
            text: A normalized text.
        """
        borders, names = WordBoundaries(text), self._names
        least = self._min_score - 0.5  # scores are rounded: one wrong letter of eight scores 87.5, which passes for 88
        compared: dict[FuzzyMatch, None] = {}
        for number, first, last in self._proposals(text):
            nears: list[FuzzyMatch] = []
            # Typos in front of the piece shift the name's ends, so word boundaries up to two characters away are tried
            # as well.
            for start in borders.starts_near(first):
                for end in borders.ends_near(last):
                    score = ratio(text[start:end], names[number], score_cutoff=least)
                    if score and self._is_meant(text[start:end], names[number]):
                        nears.append(FuzzyMatch(number, start, end, int(score + 0.5)))
            if nears:
                compared[max(nears, key=lambda near: near.score)] = None
        best: dict[Part, list[FuzzyMatch]] = {}
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
        left = min(MOST_PER_WORD * (text.count(" ") + 10), MOST_PROPOSED)
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


READ = 4000  # characters of the text are compared
SHORT_NAME = 6  # characters: shorter names are similar to something in any text, so their score is lowered


def closest_names(text: str, names: Sequence[str], most: int) -> list[str]:
    """Return the names most similar to some part of a text, by `rapidfuzz.fuzz.partial_ratio`; longer names win ties.

    Every name is compared: a hundred thousand take about a second.

    Args:
        text: Any text; its first 4,000 characters are read.
        names: Any names, each once.
        most: Maximum number of names to return.

    Returns:
        The names in the given order.

    Example:
        >>> closest_names("who wrote the skeletn songs?", ["Night", "The Skeleton Songs", "The Locksmith's Dream"], 1)
        ['The Skeleton Songs']
    """
    if len(names) <= most:
        return list(names)
    folded = fold_text(text[:READ])[:READ]  # one character may normalize to 18
    scored: list[tuple[float, int, int]] = []
    for number, name in enumerate(names):
        plain = fold_text(name)
        score = partial_ratio(plain, folded) * min(1, len(plain) / SHORT_NAME) if plain else 0
        # `-number` makes the order complete: of equal names the first is taken.
        scored.append((score, len(plain), -number))
    return [names[-number] for _, _, number in sorted(heapq.nlargest(most, scored), key=lambda s: -s[2])]


SHORT = 4  # characters: shorter names are found only as they are written ("It", "US")
MOST = 20_000  # matches per text that are examined; bounds the time where names contain names
RANKS = {"exact": 0, "folded": 1, "fuzzy": 2}


class NameMatch(NamedTuple):
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
        [NameMatch(key='skeleton', start=3, end=21, score=100, kind='folded')]
        >>> finder.find("the skeletn songs, in the US")
        [NameMatch(key='skeleton', start=0, end=17, score=97, kind='fuzzy'),
         NameMatch(key='usa', start=26, end=28, score=100, kind='exact')]
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
        self._pieces = QGramIndex(self._folded, min_score) if min_score is not None else None

    def find(self, text: str) -> list[NameMatch]:
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
        taken, chosen = bytearray(len(text)), list[NameMatch]()
        for group in sorted([*plain, *fuzzy], key=_order):
            start, end = group[0].start, group[0].end
            if taken.find(1, start, end) < 0:
                taken[start:end] = b"\x01" * (end - start)
                chosen += group
        return sorted(chosen, key=lambda found: found.start)

    def _plain(self, text: str, folded: FoldedText) -> Iterator[list[NameMatch]]:
        """Yield the matches without typos, grouped by place."""
        if self._symbols:
            for match in self._symbols.finditer(text):
                yield [NameMatch(self._keys[match.group()], *match.span(), 100, "exact")]
        matches = self._automaton.find_matches_as_indexes(folded.text, overlapping=True)
        borders = WordBoundaries(folded.text if matches else "")
        for number, start, end in matches[:MOST]:
            # The automaton also matches inside words: keep what begins and ends at word boundaries.
            if start in borders.starts and end in borders.ends:
                found = self._spelled(text, folded, number, start, end)
                if found:
                    yield found

    def _fuzzy(self, folded: FoldedText) -> list[list[NameMatch]]:
        """Return the matches with typos, grouped by place."""
        places: dict[tuple[int, int], list[NameMatch]] = {}
        for near in self._pieces.find(folded.text) if self._pieces else ():
            span = folded.span(near.start, near.end)
            keys = self._keys_of(self._surfaces[near.name])
            places.setdefault(span, []).extend(NameMatch(key, *span, near.score, "fuzzy") for key in keys)
        return list(places.values())

    def _spelled(self, text: str, folded: FoldedText, number: int, start: int, end: int) -> list[NameMatch]:
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
            return [NameMatch(self._keys[surface], begin, begin + len(surface), 100, "exact")]
        if len(self._folded[number]) < SHORT:
            return []
        return [NameMatch(key, first, last, 100, "folded") for key in self._keys_of(self._surfaces[number])]

    def _keys_of(self, surfaces: Iterable[str]) -> list[str]:
        return list(dict.fromkeys(self._keys[surface] for surface in surfaces))


@lru_cache(maxsize=4096)
def _lead(surface: str) -> int:
    """Return how many characters of a surface form come before its normalized part."""
    return fold.__wrapped__(surface).span(0, 1)[0]


def _order(group: list[NameMatch]) -> tuple[bool, float, int, int, int]:
    found = group[0]
    return found.kind == "fuzzy", -found.score, found.start - found.end, RANKS[found.kind], found.start


def _larger(fuzzy: Iterable[list[NameMatch]], plain: Iterable[list[NameMatch]], size: int) -> list[list[NameMatch]]:
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
