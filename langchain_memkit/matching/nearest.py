"""The names of many that a text is most likely to mean. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rapidfuzz.fuzz import partial_ratio

from langchain_memkit.matching.folding import fold_text

__all__ = ["nearest"]

READ = 4000  # characters of a text
SHORT = 6  # characters: a name that is shorter is like something in any text


def nearest(text: str, names: Sequence[str], most: int) -> list[str]:
    """Return those names that are most like some part of a text, by `rapidfuzz.fuzz.partial_ratio`; longer ones first.

    It compares every name: a hundred thousand take about a second.

    Args:
        text: Any text; its first 4,000 characters are read.
        names: Any names, each once.
        most: How many to return at most.

    Returns:
        The names in the order in which they were given.

    Example:
        >>> nearest("who wrote the skeletn songs?", ["Night", "The Skeleton Songs", "The Locksmith's Dream"], 1)
        ['The Skeleton Songs']
    """
    if len(names) <= most:
        return list(names)
    folded = fold_text(text[:READ])[:READ]  # one sign may fold to 18
    scored: list[tuple[float, int, int]] = []
    for number, name in enumerate(names):
        plain = fold_text(name)
        score = partial_ratio(plain, folded) * min(1, len(plain) / SHORT) if plain else 0
        scored.append((score, len(plain), -number))
    return [names[-number] for _, _, number in sorted(heapq.nlargest(most, scored), key=lambda s: -s[2])]
