"""Markers of what was forgotten in a collection of vectors: whose they are, and what they say about a moment."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from langchain_memkit.backends.mongodb.vector_markers import KEPT, forgotten_since, marker_filter, markers_filter

MS = 1_000_000  # nanoseconds


def test_a_marker_names_nobody() -> None:
    """Each session and user has a marker of its own, and nothing in it is an id; two of them concern a session."""
    places: list[tuple[str, str | None]] = [*product(("nemo", "dory"), ("s1", "s2", None)), ("nemos1", None)]
    filters = [marker_filter(*place) for place in places]
    names = [str(query["_id"]) for query in filters]
    assert len(set(names)) == len(names)
    assert not any(word in name for name in names for word in ("nemo", "dory", "s1", "s2", "None"))
    both = markers_filter("nemo", "s1")
    assert both["_id"] == {"$in": [marker_filter("nemo", name)["_id"]["$eq"] for name in ("s1", None)]}
    assert all({"user_id", "session_id"} <= query.keys() for query in (*filters, both))


@pytest.mark.parametrize(
    ("ages", "wanted"),
    [
        ([10], True),
        ([11], None),  # the clock ticks in milliseconds
        ([13], None),
        ([14], False),
        ([500], False),
        ([500, 3], True),  # the last time counts
        ([500, 12], None),
        ([-40], True),  # the server's clock was put back
        ([], False),
    ],
)
def test_before_or_after(ages: list[int], wanted: bool | None) -> None:
    """Asked from 11 to 12 ms after a moment, it is before it if it is older than that, after it if it is younger."""
    began = 5 * MS
    markers: list[dict[str, Any]] = [{"age": age} for age in ages]
    assert forgotten_since(began, began + 11 * MS, began + 12 * MS, markers) is wanted


def test_what_no_marker_tells() -> None:
    """Without one nothing was forgotten; after an hour it may be gone."""
    assert forgotten_since(0, 1, (KEPT - 1) * MS, []) is False
    assert forgotten_since(0, 1, KEPT * MS, []) is True
