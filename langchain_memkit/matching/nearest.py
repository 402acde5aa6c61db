"""Select the names that a text most likely means from a long list. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from rapidfuzz.fuzz import partial_ratio

from langchain_memkit.matching.folding import fold_text

__all__ = ["nearest"]

READ = 4000  # characters of the text are compared
SHORT = 6  # characters: shorter names are similar to something in any text, so their score is lowered


def nearest(text: str, names: Sequence[str], most: int) -> list[str]:
    """Return the names most similar to some part of a text, by `rapidfuzz.fuzz.partial_ratio`; longer names win ties.

    Every name is compared: a hundred thousand take about a second.

    Args:
        text: Any text; its first 4,000 characters are read.
        names: Any names, each once.
        most: Maximum number of names to return.

    Returns:
        The names in the given order.

    Example:
        >>> nearest("who wrote the skeletn songs?", ["Night", "The Skeleton Songs", "The Locksmith's Dream"], 1)
        ['The Skeleton Songs']
    """
    if len(names) <= most:
        return list(names)
    folded = fold_text(text[:READ])[:READ]  # one character may normalize to 18
    scored: list[tuple[float, int, int]] = []
    for number, name in enumerate(names):
        plain = fold_text(name)
        score = partial_ratio(plain, folded) * min(1, len(plain) / SHORT) if plain else 0
        # `-number` makes the order complete: of equal names the first is taken.
        scored.append((score, len(plain), -number))
    return [names[-number] for _, _, number in sorted(heapq.nlargest(most, scored), key=lambda s: -s[2])]
