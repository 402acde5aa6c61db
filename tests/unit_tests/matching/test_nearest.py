"""The names that a text is most likely to mean."""

from __future__ import annotations

import pytest

from langchain_memkit.matching import fuzzy as module
from langchain_memkit.matching.fuzzy import closest_names

BOOKS = ["Travelling at Night", "It", "The Skeleton Songs", "?", "The Locksmith's Dream"]


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("that skeletn songs book", 1, ["The Skeleton Songs"]),
        ("is it the LOCKSMITH'S dream?", 1, ["The Locksmith's Dream"]),
        ("skeletons that travel at night", 2, ["Travelling at Night", "The Skeleton Songs"]),
        ("", 2, ["Travelling at Night", "The Locksmith's Dream"]),
        ("anything", 9, BOOKS),
        ("anything", 0, []),
    ],
)
def test_nearest(text: str, most: int, expected: list[str]) -> None:
    """The most alike, in the order in which they were given; all if there are not more than wanted."""
    assert closest_names(text, BOOKS, most) == expected


def test_the_beginning_of_a_long_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing costs the product of both lengths; a sign that folds to 18 characters makes the text no longer."""
    read: list[int] = []

    def counted(name: str, text: str) -> float:
        read.append(len(text))
        return 0.0

    monkeypatch.setattr(module, "partial_ratio", counted)
    for text in ("night " * 10_000, "\ufdfa" * 10_000):
        closest_names(text, ["Night", "The Skeleton Songs"], 1)
    assert read == [4000] * 4
