"""Sentences: where they end, and where they do not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from langchain_memkit.messages.text import sentence_spans


def sentences(text: str) -> list[str]:
    """Sentences as text."""
    return [text[start:end] for start, end in sentence_spans(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \n\t ", []),
        ("no punctuation at all", ["no punctuation at all"]),
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ("What?! Never... Well.", ["What?!", "Never...", "Well."]),
        ("\"Stop!\" she said. (He did.) Then 'no.' More", ['"Stop!"', "she said.", "(He did.)", "Then 'no.'", "More"]),
        ("“Yes.” «Non.» Fin", ["“Yes.”", "«Non.»", "Fin"]),
        (
            "Mr. Smith met Dr. No. 7, e.g. Mrs. Jones etc. there.",
            ["Mr. Smith met Dr. No. 7, e.g. Mrs. Jones etc. there."],
        ),
        ("J. R. R. Tolkien wrote it. U.S. ships", ["J. R. R. Tolkien wrote it.", "U.S.", "ships"]),
        ("It costs 3.50 at www.example.org today. Yes.", ["It costs 3.50 at www.example.org today.", "Yes."]),
        ("First line\nSecond line\n\n  third. fourth", ["First line", "Second line", "third.", "fourth"]),
        ("a long line that was\nwrapped. Next\n\nlast", ["a long line that was\nwrapped.", "Next", "last"]),
        ("他是演员。你呢？好！ 「走吧。」她说", ["他是演员。", "你呢？", "好！", "「走吧。」", "她说"]),
        ("Ask Mr.\nSmith", ["Ask Mr.", "Smith"]),
        (" . ! ? ", [".", "!", "?"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    """Ends, quotes, abbreviations, initials, numbers, lines, scripts without spaces."""
    assert sentences(text) == expected


@settings(max_examples=300)
@given(st.text(st.sampled_from('ab M. !?…"」。！\n\tMr.é'), max_size=60) | st.text(max_size=60))
def test_nothing_is_lost(text: str) -> None:
    """Sentences come in order, are not empty, and hold all that is not white space."""
    spans = sentence_spans(text)
    assert all(start < end and text[start:end] == text[start:end].strip() for start, end in spans)
    assert [place for span in spans for place in span] == sorted(place for span in spans for place in span)
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


def test_a_long_text_takes_no_long_time() -> None:
    """A hundred thousand stops, spaces and quotes are read in one pass."""
    for part in (". ", " ", ".", '."', "a.b.", "\n", "M. "):
        assert len(sentence_spans(part * 100_000)) <= 100_000
