"""Names and words found in text although they are spelt a little differently."""

from __future__ import annotations

import heapq
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import takewhile
from typing import Literal, NamedTuple, TypeAlias

from ahocorasick_rs import AhoCorasick
from rapidfuzz.distance.OSA import distance
from rapidfuzz.fuzz import partial_ratio, ratio

from langchain_memkit.matching.normalize import FoldedText, fold, fold_text, is_wide, nearby, word_boundaries

LEAST = 6  # characters: shorter names are not found with typos
LONGEST = 200  # characters: longer names are not found with typos, since comparing takes quadratic time
THREE_PIECES = 12  # characters: names from here on are cut in three, so that two typos leave one piece intact
MOST_PER_WORD = 8  # names compared per word of a text, by the rarest pieces first; bounds the time
MOST_COMPARED = 10_000  # names compared per text, however long it is; bounds the time

Place: TypeAlias = tuple[int, int]


class FuzzyIndex:
    """Finds normalized names of 6 to 200 characters with typos in a normalized text.

    Names are cut in two or three pieces, all of which are searched in one pass: a typo leaves a piece intact, and only
    the names whose pieces occur are compared. Names that share all intact pieces with several hundred others ("The
    Complete Guide to ...", with the typo in what differs) may be missed.

    Args:
        names: Normalized names, each once.
        min_score: Similarity that a place must have, 0 to 100: `rapidfuzz.fuzz.ratio`, rounded.
    """

    def __init__(self, names: Sequence[str], min_score: float) -> None:
        self._names = names
        self._known = frozenset(names)
        self._least = min_score - 0.5  # scores are rounded: one wrong letter of eight scores 87.5, which passes for 88
        owners: dict[str, list[Place]] = {}
        for number, name in enumerate(names):
            if LEAST <= len(name) <= LONGEST:
                for piece, offset in _pieces(name):
                    owners.setdefault(piece, []).append((number, offset))
        self._owners = list(owners.values())
        self._automaton = AhoCorasick(list(owners), store_patterns=False)

    def find(self, text: str) -> dict[Place, tuple[float, list[int]]]:
        """Return for each similar place of a text the score and numbers of its most similar names; may overlap."""
        starts, ends = word_boundaries(text)
        # Typos in front of a piece shift the name's ends, so word boundaries up to two characters away are tried as
        # well; many names are proposed at one place.
        starts_near = cache(lambda place: nearby(place, starts))
        ends_near = cache(lambda place: nearby(place, ends))
        found: dict[Place, tuple[float, list[int]]] = {}
        for number, first in dict.fromkeys(self._proposals(text)):
            name = self._names[number]
            best: tuple[float, Place] | None = None
            for start in starts_near(first):
                for end in ends_near(first + len(name)):
                    score = ratio(text[start:end], name, score_cutoff=self._least)
                    if score > (best[0] if best else 0) and self._is_meant(text[start:end], name):
                        best = score, (start, end)
            if best is None:
                continue
            score, place = int(best[0] + 0.5), best[1]
            known, numbers = found.get(place, (0, []))
            if score > known:
                found[place] = score, [number]
            elif score == known and number not in numbers:
                numbers.append(number)
        return found

    def _proposals(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield numbers of names with where they would begin, by the rarest pieces first, up to the limit."""
        hits = self._automaton.find_matches_as_indexes(f" {text} ", overlapping=True)
        left = min(MOST_PER_WORD * (text.count(" ") + 10), MOST_COMPARED)
        for piece, place, _ in sorted(hits, key=lambda hit: len(self._owners[hit[0]])):
            left -= len(self._owners[piece])
            if left < 0:
                return
            yield from ((number, place - offset) for number, offset in self._owners[piece])

    def _is_meant(self, window: str, name: str) -> bool:
        """Return whether a place similar to a name may mean that name, rather than another name or other words.

        A word may have one typo per four letters, the name one per six characters, and each at least one. If the
        numbers of words differ, a space was typed or left out, and one typo is allowed besides.
        """
        if window in self._known or [c for c in window if c.isdigit()] != [c for c in name if c.isdigit()]:
            return False
        words, others = window.split(), name.split()
        if len(words) != len(others):
            typos = distance(window.replace(" ", ""), name.replace(" ", "")) <= 1
        else:
            pairs = zip(words, others, strict=True)
            few = distance(window, name) <= max(1, len(name) // 6)
            typos = few and all(distance(word, other) <= max(1, len(other) // 4) for word, other in pairs)
        article, _, rest = name.partition(" ")
        if not typos or not rest or article not in ("a", "an", "the") or words[0] != article:
            return typos
        # compare without the article, which makes short words look more similar: "the cattle", "The Castle"
        return len(rest) >= LEAST and ratio(window[len(article) + 1 :], rest) >= self._least


def _pieces(name: str) -> list[tuple[str, int]]:
    """Cut a name in pieces; each comes with where it begins in the name, in a text that has a space put in front.

    A space where a piece touches an end of the name anchors it at a word boundary, in scripts that have spaces. Between
    two halves one character is left out: two swapped letters then damage one of them.
    """
    padded = f"{'' if is_wide(name[0]) else ' '}{name}{'' if is_wide(name[-1]) else ' '}"
    size, shift = len(padded), int(is_wide(name[0]))
    if len(name) >= THREE_PIECES:
        cuts = [(0, size // 3), (size // 3, 2 * size // 3), (2 * size // 3, size)]
    else:
        cuts = [(0, size // 2), (size // 2 + (size > 10), size)]
    return [(padded[start:end], start + shift) for start, end in cuts]


READ = 4000  # characters of the text are compared
SHORT_NAME = 6  # characters: shorter names are similar to something in any text, so their score is lowered


def closest_names(text: str, names: Sequence[str], most: int) -> list[str]:
    """Return the `most` names most similar to some part of a text, in the given order; longer names win ties.

    Every name is compared by `rapidfuzz.fuzz.partial_ratio`: a hundred thousand take about a second. The first 4,000
    characters of the text are read.

    Example:
        >>> closest_names("who wrote the skeletn songs?", ["Night", "The Skeleton Songs", "The Locksmith's Dream"], 1)
        ['The Skeleton Songs']
    """
    if len(names) <= most:
        return list(names)
    folded = fold_text(text[:READ])[:READ]  # one character may normalize to 18

    def closeness(number: int) -> tuple[float, int]:
        plain = fold_text(names[number])
        score = partial_ratio(plain, folded) * min(1, len(plain) / SHORT_NAME) if plain else 0
        return score, len(plain)

    # of equal names the first is taken
    return [names[number] for number in sorted(heapq.nlargest(most, range(len(names)), key=closeness))]


SHORT = 4  # characters: shorter names are found only as they are written ("It", "US")
MOST = 20_000  # matches per text that are examined; bounds the time where names contain names


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
        self._similar = FuzzyIndex(self._folded, min_score) if min_score is not None else None

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
        plain = _pick(sorted(self._plain(text, folded), key=_order), len(text))
        fuzzy = sorted(self._fuzzy(folded), key=_order)
        places = sorted((group[0].start, group[0].end) for group in plain)
        larger = [group for group in fuzzy if _is_larger(group[0], places)]
        chosen = _pick([*larger, *plain, *fuzzy], len(text))
        return sorted((found for group in chosen for found in group), key=lambda found: found.start)

    def _plain(self, text: str, folded: FoldedText) -> Iterator[list[NameMatch]]:
        """Yield the matches without typos, grouped by place."""
        if self._symbols:
            for match in self._symbols.finditer(text):
                yield [NameMatch(self._keys[match.group()], *match.span(), 100, "exact")]
        matches = self._automaton.find_matches_as_indexes(folded.text, overlapping=True)
        starts, ends = word_boundaries(folded.text if matches else "")
        for number, start, end in matches[:MOST]:
            # The automaton also matches inside words: keep what begins and ends at word boundaries.
            if start in starts and end in ends and (found := self._spelled(text, folded, number, start, end)):
                yield found

    def _fuzzy(self, folded: FoldedText) -> Iterator[list[NameMatch]]:
        """Yield the matches with typos, grouped by place."""
        for place, (score, numbers) in (self._similar.find(folded.text) if self._similar else {}).items():
            span = folded.span(*place)
            surfaces = [surface for number in numbers for surface in self._surfaces[number]]
            yield [NameMatch(key, *span, score, "fuzzy") for key in self._keys_of(surfaces)]

    def _spelled(self, text: str, folded: FoldedText, number: int, start: int, end: int) -> list[NameMatch]:
        """Return the names that normalize to the text at a place: the one spelled exactly so, else all."""
        first, last = folded.span(start, end)
        exact = [s for s in self._surfaces[number] if _lead(s) <= first and text.startswith(s, first - _lead(s))]
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


def _order(group: list[NameMatch]) -> tuple[bool, float, int, str, int]:
    found = group[0]
    return found.kind == "fuzzy", -found.score, found.start - found.end, found.kind, found.start  # "exact" < "folded"


def _pick(groups: Iterable[list[NameMatch]], size: int) -> list[list[NameMatch]]:
    """Return the groups that overlap with none that comes before them, in a text of this size."""
    # One byte per character: `find(1, start, end)` tells in C whether a place overlaps with what was taken before.
    taken, chosen = bytearray(size), list[list[NameMatch]]()
    for group in groups:
        start, end = group[0].start, group[0].end
        if taken.find(1, start, end) < 0:
            taken[start:end] = b"\x01" * (end - start)
            chosen.append(group)
    return chosen


def _is_larger(found: NameMatch, places: Sequence[Place]) -> bool:
    """Return whether a match contains all of these places that it overlaps with, and is twice as long as each."""
    after = places[bisect_right(places, found.start, key=lambda place: place[1]) :]
    inside = takewhile(lambda place: place[0] < found.end, after)
    return all(found.start <= a and b <= found.end and 2 * (b - a) <= found.end - found.start for a, b in inside)
