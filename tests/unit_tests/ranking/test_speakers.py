"""Whom a question asks about."""

from __future__ import annotations

import pytest

from langchain_memkit.ranking.question import AskedSpeakers, read_question, speakers_asked
from testkit.ranking import NOW

TWO = {0: ("human", "Caroline"), 1: ("ai", "Melanie"), 2: ("tool", "search")}
CHAT = {0: ("human", ""), 1: ("ai", "")}


def of(text: str, speakers: dict[int, tuple[str, str]]) -> AskedSpeakers:
    """Whom a question asks about."""
    return speakers_asked(read_question(text, NOW), speakers)


def asked(text: str, speakers: dict[int, tuple[str, str]]) -> list[int]:
    """Their numbers."""
    return sorted(of(text, speakers).numbers)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What did Caroline paint?", [0]),
        ("When was MELANIE'S trip?", [1]),
        ("What do Caroline and Melanie have in common?", []),
        ("Who won?", [0]),
        ("What did the search find?", [0]),
        ("What did you suggest?", [1]),
    ],
)
def test_by_name(text: str, expected: list[int]) -> None:
    """A name asks about who bears it, no name about the user; all names about nobody, and tools are not asked about."""
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
        ("Can you recommend a book?", [0]),
        ("Where is the sea?", [0]),
    ],
)
def test_by_role(text: str, expected: list[int]) -> None:
    """What "you said" is the model's; all else is asked of the user, whether it says "I" or not."""
    assert asked(text, CHAT) == expected


def test_parts_of_names() -> None:
    """A part of a name is enough where it is written as names are; of a handle all of it must be there."""
    known = {0: ("human", "Ann Lee"), 1: ("ai", "math_expert"), 2: ("human", "nemo")}
    assert asked("Where does Lee live?", known) == [0]
    assert asked("How was the math test?", known) == [0, 2]  # the users
    assert asked("What did the math expert find?", known) == [1]
    assert asked("Where is nemo?", known) == [2]


def test_names_of_roles_name_nobody() -> None:
    """A model that is called "assistant" is not meant by the word."""
    found = of("Who is the new assistant?", {0: ("ai", "assistant"), 1: ("human", "User")})
    assert found == (frozenset({1}), frozenset())


def test_names_are_told_apart_from_the_rest() -> None:
    """The words of the question that are names, asked about or not."""
    assert of("What do Caroline and Melanie paint?", TWO).names == {"carolin", "melani"}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("How long have Mel and her husband been married?", {"mel"}),
        ("What is Caro's hobby?", {"caro"}),
        ("Mel's birthday?", {"mel"}),
        ("What do Caro and Mel paint?", {"caro", "mel"}),
        ("What is the best car?", set()),
        ("Car insurance?", set()),
        ("WHAT CAR IS BEST?", set()),
        ("What is Me?", set()),
        ("What did Melinda and Carol paint?", set()),
    ],
)
def test_nicknames(text: str, names: set[str]) -> None:
    """A capitalized word with which a speaker's name begins is that name, if it is not most of it, as "Carol" is."""
    assert of(text, TWO).names == names
    meant = {"mel": 1, "caro": 0}
    named = [meant[name] for name in names] or [0]  # the user, where nobody is named
    assert asked(text, TWO) == ([] if len(named) == 2 else named)


def test_nicknames_are_names() -> None:
    """They are no words to search for, and nobody's where they may be of two."""
    assert of("Where does Mel live?", TWO).names == {"mel"}
    twins = {0: ("human", "Melanie"), 1: ("ai", "Melissa Carolina"), 2: ("human", "melvin_9")}
    assert of("Where does Mel live?", twins).names == frozenset()
    assert asked("Where does Caro live?", twins) == [1]
    assert of("Where does Melvi live?", twins).names == frozenset()
    assert of("Where does Mel live?", {0: ("human", "Mel"), 1: ("ai", "Melanie")}).names == {"mel"}


def test_someone_alone() -> None:
    """Who alone speaks is asked about, too: the score is the same before anybody has answered, and after."""
    assert asked("Where do I live?", {0: ("human", "")}) == [0]
    assert asked("Where does Ann live?", {0: ("human", "Ann")}) == [0]
    assert asked("Where do I live?", {0: ("tool", "search")}) == []


def test_names_are_read_in_the_language_of_the_question() -> None:
    """German stems "Andreas" otherwise than English does."""
    known = {0: ("human", "Andreas"), 1: ("ai", "")}
    assert asked("Wo wohnt der Bruder von Andreas?", known) == asked("Where does Andreas live?", known) == [0]
    assert of("Wo wohnt der Bruder von Andreas?", known).names == {"andreas"}
