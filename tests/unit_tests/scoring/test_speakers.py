"""Whom a question asks about."""

from __future__ import annotations

import pytest

from langchain_memkit.ranking.speakers import addressed_speakers
from langchain_memkit.ranking.tokenize import tokenize

TWO = {0: ("human", "Caroline"), 1: ("ai", "Melanie"), 2: ("tool", "search")}
CHAT = {0: ("human", ""), 1: ("ai", "")}


def asked(text: str, speakers: dict[int, tuple[str, str]]) -> list[int]:
    """The numbers of the asked speakers."""
    return sorted(addressed_speakers(text, tokenize(text), speakers).speakers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What did Caroline paint?", [0]),
        ("When was MELANIE'S trip?", [1]),
        ("What do Caroline and Melanie have in common?", []),
        ("Who won?", []),
        ("What did the search find?", []),
    ],
)
def test_by_name(text: str, expected: list[int]) -> None:
    """A name asks about who bears it; the names of all ask about nobody, and tools are not asked about."""
    assert asked(text, TWO) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Where did I park my car?", [0]),
        ("I\u2019ve a dog, what's its name?", [0]),
        ("What did you suggest for dinner?", [1]),
        ("What was the book you told me about?", [1]),
        ("What was your advice on my car?", [1]),
        ("Can you tell me what my dog is called?", [0]),
        ("What did I tell you?", [0]),
        ("Can you recommend a book?", []),
        ("Where is the sea?", []),
    ],
)
def test_by_role(text: str, expected: list[int]) -> None:
    """The user is "I" and "my", what "you said" is the model's; a request to the model asks about nobody."""
    assert asked(text, CHAT) == expected


def test_parts_of_names() -> None:
    """A part of a name is enough where it is written as names are; of a handle all of it must be there."""
    known = {0: ("human", "Ann Lee"), 1: ("ai", "math_expert"), 2: ("human", "nemo")}
    assert asked("Where does Lee live?", known) == [0]
    assert asked("How was the math test?", known) == []
    assert asked("What did the math expert find?", known) == [1]
    assert asked("Where is nemo?", known) == [2]


def test_names_of_roles_name_nobody() -> None:
    """A model that is called "assistant" is not meant by the word."""
    found = addressed_speakers(
        "Who is the new assistant?",
        tokenize("Who is the new assistant?"),
        {0: ("ai", "assistant"), 1: ("human", "User")},
    )
    assert (found.speakers, found.names) == (frozenset(), frozenset())


def test_names_are_told_apart_from_the_rest() -> None:
    """The words of the question that are names, asked about or not."""
    text = "What do Caroline and Melanie paint?"
    assert addressed_speakers(text, tokenize(text), TWO).names == {"carolin", "melani"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("How long have Mel and her husband been married?", [1]),
        ("What is Caro's hobby?", [0]),
        ("Mel's birthday?", [1]),
        ("What do Caro and Mel paint?", []),
        ("What is the best car?", []),
        ("Car insurance?", []),
        ("WHAT CAR IS BEST?", []),
        ("What is Me?", []),
        ("What did Melinda and Carol paint?", []),
    ],
)
def test_nicknames(text: str, expected: list[int]) -> None:
    """A capitalized word with which a speaker's name begins is that name, if it is not most of it, as "Carol" is."""
    assert asked(text, TWO) == expected


def test_nicknames_are_names() -> None:
    """They are no words to search for, and nobody's where they may be of two."""
    assert addressed_speakers("Where does Mel live?", ["mel", "live"], TWO).names == {"mel"}
    twins = {0: ("human", "Melanie"), 1: ("ai", "Melissa Carolina"), 2: ("human", "melvin_9")}
    assert addressed_speakers("Where does Mel live?", ["mel", "live"], twins) == (frozenset(), frozenset())
    assert asked("Where does Caro live?", twins) == [1]
    assert asked("Where does Melvi live?", twins) == []
    assert asked("Where does Mel live?", {0: ("human", "Mel"), 1: ("ai", "Melanie")}) == [0]


def test_someone_alone() -> None:
    """Where only one person speaks, nobody is set apart."""
    assert asked("Where do I live?", {0: ("human", "")}) == []
