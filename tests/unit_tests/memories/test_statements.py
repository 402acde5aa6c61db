"""Which sentences tell something, and of whom."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_memkit.memories.entity.statements import NameSpan, statements

KINDS = {"Bob": "PERSON", "Alice": "PERSON", "Oslo": "GPE", "Siemens": "ORG", "Zed": "", "Klaus": "ORG", "Hana": "GPE"}


def read(text: str) -> dict[str, list[str]]:
    """Of each sentence that tells something, whom it is about."""
    found = re.finditer(r"\b(?:" + "|".join(KINDS) + r")\b", text)
    spots = [NameSpan(m.group().lower(), m.group(), KINDS[m.group()], *m.span()) for m in found]
    return {text[start:end]: sorted(spot.surface for spot in about) for start, end, about in statements(text, spots)}


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ("Bob is here. He is tall. His dog barks. I saw him.", ["Bob"] * 4),
        ("Bob is here. It rains. He is wet.", ["Bob", "-", "Bob"]),
        ("Bob is here. I am tired. He is wet.", ["Bob", "-", "-"]),
        ("Bob is here. Alice is there. She waits.", ["Bob", "Alice", "Alice"]),
        ("Bob is here. He likes Alice. She waits.", ["Bob", "Alice Bob", "Alice"]),
        ("Bob is here. Alice likes her job.", ["Bob", "Alice"]),
        ("Bob and Alice are here. They sing. She is loud.", ["Alice Bob", "Alice Bob", "Alice"]),
        (
            "Bob works at Siemens. They pay well. It is large. He is glad.",
            ["Bob Siemens", "Bob Siemens", "Siemens", "Bob"],
        ),
        ("Alice lives in Oslo. It is cold. She freezes. They all do.", ["Alice Oslo", "Oslo", "Alice", "Alice"]),
        ("My aunt lives in Oslo. She is a nurse.", ["Oslo", "-"]),
        ("My uncle is Klaus. He snores.", ["Klaus", "Klaus"]),
        ("My boss is Hana. She works at Siemens. She likes it.", ["Hana", "Hana Siemens", "Hana Siemens"]),
        ("I know Zed. He sings.", ["Zed", "Zed"]),
        ("We went to Zed. It was full.", ["Zed", "Zed"]),
        ("He sings. Bob does not.", ["-", "Bob"]),
    ],
)
def test_pronouns(text: str, about: list[str]) -> None:
    """A pronoun means the last name that it may stand for, until a sentence without pronouns."""
    sentences = re.findall(r"[^.]+\.", text)
    wanted = {said.strip(): whom.split() for said, whom in zip(sentences, about, strict=True) if whom != "-"}
    assert read(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "Is Bob tall?",
        "Bob is tall?",
        'He said: "Is Bob tall?"',
        "Bob\uff1f",
        "who is Bob",
        "what does Bob do",
        "where's Bob.",
        "What is Bob doing.",
        "how old is Bob",
        "does Bob sing",
        "Did your friend see Bob",
        "isn't Bob tall",
        "could you call Bob.",
        "tell me about Bob.",
        "Please tell me where Bob lives",
        "Have you met Bob",
    ],
)
def test_questions(text: str) -> None:
    """By a mark, or by how they begin."""
    assert read(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        "Bob is tall.",
        "Bob, who is tall, sings.",
        "What Bob likes is tea.",
        "When Bob sings, I leave.",
        "How nice of Bob!",
        "What a day with Bob!",
        "had lunch with Bob",
        "Do call Bob.",
        "Zed is my dentist",
        "Tell Bob that I am here.",
        "I wonder. Bob sings.",
    ],
)
def test_statements(text: str) -> None:
    """What begins like a question and ends like a statement, orders, and what begins with a name."""
    assert len(read(text)) == 1


@given(st.text("aB?.! \n'_", max_size=40), st.text("aB?.! \n'_", max_size=40))
def test_any_text(before: str, after: str) -> None:
    """Whatever stands around a name, a statement that names it holds it."""
    assert all("Bob" in said for said in read(f"{before} Bob {after}"))


@pytest.mark.parametrize(
    "text", ["what " + "." * 90_000 + "a Bob", "Bob " + "?" * 90_000 + "a", "Bob. " + "he " * 9_000]
)
def test_hostile_text_takes_little_time(text: str) -> None:
    """No mark and no pronoun makes anything quadratic."""
    assert len(read(text)) <= 2
