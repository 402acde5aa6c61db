"""Unicode's normal forms in linear time."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_memkit._unicode import MARKS, few_marks
from langchain_memkit.matching import normalize as folding
from langchain_memkit.matching.normalize import fold, fold_text
from langchain_memkit.ranking import tokenize as words
from langchain_memkit.ranking.tokenize import tokenize

TEXTS = ["", "plain", "cafe\u0301", "\u0e01\u0e33\u0e49", "\u05e9\u05c1\u05dc", "e" + "\u0301" * MARKS, "\u65e5" * 500]


class Watched:
    """`unicodedata` that knows the longest run of marks which it had to sort."""

    def __init__(self) -> None:
        self.longest = 0

    def normalize(self, form: str, text: str) -> str:
        """Counts and goes on."""
        run = 0
        for char in text:
            run = run + 1 if unicodedata.combining(char) else 0
            self.longest = max(self.longest, run)
        return unicodedata.normalize(form, text)  # type: ignore[arg-type]  # as it comes

    def __getattr__(self, name: str) -> object:
        return getattr(unicodedata, name)


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_people_stays_as_it_is(text: str) -> None:
    """No language puts more than a few marks on a letter."""
    assert few_marks(text) == text


@given(st.text(alphabet="a\u65e5 \u0301\u0323\u200d\ufe0f", max_size=200))
def test_at_most_thirty_marks_stay_on_a_letter(text: str) -> None:
    """The first ones, in their order; letters all stay."""
    kept = few_marks(text)
    run = 0
    for char in kept:
        run = run + 1 if unicodedata.combining(char) else 0
        assert run <= MARKS
    assert [c for c in kept if not unicodedata.combining(c)] == [c for c in text if not unicodedata.combining(c)]


@pytest.mark.parametrize("text", ["\u0301\u0323" * 5000, "a" + "\u0301\u0323" * 5000, "\u65e5" + "\u0323\u0301" * 5000])
def test_nothing_sorts_thousands_of_marks(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python sorts them in the square of the time: names and words are compared without most of them."""
    watched = Watched()
    monkeypatch.setattr(folding, "unicodedata", watched)
    monkeypatch.setattr(words, "unicodedata", watched)
    fold.cache_clear()
    assert fold(text).text == fold_text(text)
    tokenize(text)
    assert 0 < watched.longest <= MARKS + 1
