"""What a model repeats of its records is taken out of its answer."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_memkit.messages.text import without_records

PIECES = ("<records>", "</records>", "<recor", "ds>", "tea", "\n", " ", "<", "</")


class Searched(str):
    """A text that counts how many of its characters are searched."""

    __slots__ = ("searched",)
    searched: int

    def find(self, *given: object) -> int:
        """Counts from the place where a search begins to where it ends."""
        found = super().find(*given)  # type: ignore[arg-type]  # as they come
        start = given[1] if len(given) > 1 else 0
        assert isinstance(start, int)
        self.searched += (len(self) if found < 0 else found) - start
        return found


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_frames_become_blanks(text: str) -> None:
    """As the pattern says it, which takes the square of the time on frames without an end."""
    pattern = re.compile(r"<records>.*?</records>", re.DOTALL)
    assert without_records(text) == pattern.sub(lambda frame: " " * len(frame.group()), text)


@pytest.mark.parametrize("unit", ["<records>", "</records>", "<records></records>", "<records>a</records", "<recor"])
def test_each_character_is_searched_twice_at_most(unit: str) -> None:
    """Frames that end nowhere, or begin nowhere, cost no more than others."""
    text = Searched(unit * 2000)
    text.searched = 0
    without_records(text)
    assert text.searched <= 2 * len(text)
