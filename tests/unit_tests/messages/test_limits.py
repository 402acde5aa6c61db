"""How much of a text is read."""

from __future__ import annotations

import pytest

from langchain_memkit.messages import text as limits
from langchain_memkit.messages.text import WORDS, limit_words, truncate_with_warning


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Nothing was said before."""
    limits._say_once.cache_clear()
    return caplog


def test_a_beginning_is_told_once_for_each_kind(said: pytest.LogCaptureFixture) -> None:
    """What is short stays as it is; of what is long the log tells the kind and the limit, never the text."""
    assert truncate_with_warning("secret", 6, "a short text") == "secret"
    for text in ("secret words", "secret thing"):
        assert truncate_with_warning(text, 6, "a long text") == "secret"
    assert truncate_with_warning("secret words", 6, "another text") == "secret"
    assert [record.getMessage().partition(" is ")[0] for record in said.records] == ["a long text", "another text"]
    assert "longer than 6 characters" in said.text
    assert "secret" not in said.text


@pytest.mark.parametrize("unit", ["a ", "Ann met Bob. ", "_.", "'s", "\u65e5\u3002", "\U0001f642", "https://a.b/c "])
def test_words_and_signs_are_counted(unit: str, said: pytest.LogCaptureFixture) -> None:
    """No more than 10,000 of them, so many words that are cut apart nowhere, and everything of a text with fewer."""
    text = unit * 12_000
    kept = limit_words(text, len(text), "a text")
    words = len([*limits.WORD.finditer(kept)])
    assert words == WORDS
    assert text.startswith(kept)
    assert limit_words(kept, len(text), "the same") == kept
    assert "the same" not in said.text
    assert "a text is longer than 10,000 words and signs" in said.text
    assert limit_words(text, 6, "a short text") == text[:6]
    assert "a short text is longer than 6 characters" in said.text


def test_prose_of_ten_thousand_words_is_read_whole(said: pytest.LogCaptureFixture) -> None:
    """White space counts for nothing, and a text that ends with the last word is not cut."""
    prose = " ".join(["word"] * WORDS) + " " * 100_000
    assert limit_words(prose, len(prose), "prose") == prose
    assert not said.records
