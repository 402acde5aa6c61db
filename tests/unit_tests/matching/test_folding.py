"""Folding: what becomes equal, and the way back."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from langchain_memkit.matching.normalize import fold, fold_text

ODD = (
    "aZé ß ﬁ İ ı ſ Ω ΐ ᾳ \u0345 e\u0301 \u0301 ´ ｶﾞ 각 ᄀ ᅡ ᆨ क्षि ก็ำ ½ ² ① ｗ ’ ' - _ "
    "\u00ad \u200b \u200d \ufeff \ud800 🐠 日本 \n\t"
)
texts = st.text(max_size=40) | st.text(st.sampled_from(ODD), max_size=40)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("?!", ""),
        ("  The  Skeleton-Songs?\n", "the skeleton songs"),
        ("Harrison's", "harrison s"),
        ("O’Brien", "o brien"),
        ("Straße ﬁnden", "strasse finden"),
        ("Cafe\u0301 CAFÉ", "café café"),
        ("skele\u00adton", "skeleton"),
        ("a\u200bb", "a b"),
        ("snake_case", "snake case"),
        ("ＷＩＤＥ １２", "wide 12"),
        ("ｶﾞｷﾞ", "ガギ"),
        ("《红楼梦》", "红楼梦"),
        ("rock´n roll", "rock n roll"),
        ("\u0301a", "a"),
        ("🐠 \ud800", ""),
    ],
)
def test_what_becomes_equal(text: str, expected: str) -> None:
    """Case, punctuation, width and ways to write an accent fall away."""
    assert fold(text).text == fold_text(text) == expected


@settings(max_examples=500)
@given(texts)
@example("ᾳ\u0345")
@example("e\u200d\u0301")
@example(" \u0345")
@example("a ¼ b")
def test_the_way_back(text: str) -> None:
    """Each character has a place; the places are in order, and what lies there folds to what was found there."""
    folded = fold(text)
    assert folded.text == fold_text(text)
    places = [folded.span(i, i + 1) for i in range(len(folded.text))]
    starts, ends = [start for start, _ in places], [end for _, end in places]
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    assert all(start <= end <= len(text) for start, end in zip(starts, ends, strict=True))
    place = 0
    for word in folded.text.split():
        start, end = folded.span(place, place + len(word))
        assert word in fold_text(text[start:end]).split()
        place += len(word) + 1


@settings(max_examples=300)
@given(texts)
def test_folding_again_changes_nothing(text: str) -> None:
    """A folded text is its own fold, and holds neither capitals nor runs of spaces."""
    once = fold_text(text)
    assert fold_text(once) == once
    assert once == " ".join(once.split())


@given(st.text(st.sampled_from("ab ßé"), max_size=12), st.text(st.sampled_from("ab ßé"), max_size=12))
def test_a_part_is_found_where_it_stands(before: str, after: str) -> None:
    """A word between others is traced to its own place."""
    text = f"{before} Straßenﬁsch! {after}"
    folded = fold(text)
    place = f" {folded.text} ".index(" strassenfisch ")
    start, end = folded.span(place, place + len("strassenfisch"))
    assert text[start:end] == "Straßenﬁsch"


def test_many_places_of_one_text() -> None:
    """Every one of them is traced to its own place, however the gaps between words differ."""
    text = "Bob, met  Bob! " * 40
    folded = fold.__wrapped__(text)
    places = [match.start() for match in re.finditer("bob", folded.text)]
    assert [folded.span(i, i + 3) for i in places] == [m.span() for m in re.finditer("Bob", text)]
    assert len(places) == 80
