"""Whether a text asks something."""

from __future__ import annotations

import pytest

from langchain_memkit.retrievers.questions import asks


@pytest.mark.parametrize(
    "text",
    [
        "How old is he?",
        "how old is he",
        "And in which year",
        "Tell me more.",
        "Wie alt ist er?",
        "\u4ed6\u591a\u5927\u4e86\uff1f",
    ],
)
def test_questions_and_orders_ask(text: str) -> None:
    """With a mark of any script, or as English ones begin."""
    assert asks(text)


@pytest.mark.parametrize("text", ["", "Noted.", "Thanks!", "I live in Oslo.", "Emmanuel Macron is 48."])
def test_others_do_not(text: str) -> None:
    """Statements and thanks."""
    assert not asks(text)


@pytest.mark.parametrize("text", ["a" * 100_000, " " * 100_000, "a " * 50_000, "-" * 100_000])
def test_any_text_is_read_in_a_moment(text: str) -> None:
    """No pattern goes back and forth in a long text: it would take minutes."""
    assert not asks(text)
