"""What the conversation adds to a question: terms, a blend of vectors, a string."""

from __future__ import annotations

import pytest

from langchain_memkit.retrievers.expansion import CAREFUL, STRONG, TERMS, added_terms, answer_weights, expanded

TALK = [
    ("Who directed Alien?", "Ridley Scott directed the film Alien in 1979."),
    ("Who plays Ripley?", "Sigourney Weaver plays Ellen Ripley."),
]


def test_without_history_nothing_is_added() -> None:
    """A first question is only itself."""
    assert expanded("How old is he?", []) == "How old is he?"
    assert added_terms("How old is he?", []) == []
    assert answer_weights([]) == []


def test_near_turns_and_names_weigh_more() -> None:
    """The last turn's words before older ones, names before words, nothing above the question's own."""
    terms = {term.stem: term for term in added_terms("How old is she?", TALK)}
    assert terms["weaver"].weight > terms["scott"].weight > terms["film"].weight
    assert terms["sigourney"].word == "Sigourney"
    assert max(term.weight for term in terms.values()) <= 1.0


def test_careful_adds_less_and_keeps_the_question_in_front() -> None:
    """Three terms after the question twice, against twelve after it once."""
    careful, strong = (expanded("How old is she?", TALK, strength) for strength in (CAREFUL, STRONG))
    assert careful.startswith("How old is she? How old is she? ")
    assert len(careful.split()) == 8 + 3
    assert strong.count("How old is she?") == 1
    assert len(strong.split()) > 4 + 3
    assert len(added_terms("How old is she?", [("word " + " ".join(map(str, range(99))), None)])) == TERMS


def test_blend_halves_the_answers() -> None:
    """The newest answer weighs twice the one before; careful takes none; a missing answer weighs nothing."""
    weights = answer_weights([*TALK, ("And then?", None)])
    assert weights[1] == 2 * weights[0] > 0
    assert weights[2] == 0
    assert set(answer_weights(TALK, CAREFUL)) == {0.0}


@pytest.mark.parametrize("text", ["", "\x00\ud800", "?" * 9000, "ALL IN CAPITALS " * 20, "東京タワー", "a" * 100_000])
def test_any_text_will_do(text: str) -> None:
    """Empty, broken, long and foreign texts as question and as history."""
    assert expanded(text, [(text, text)]).startswith(text)
    assert expanded(text, TALK).startswith(text)
    assert isinstance(added_terms("Why?", [(text, text), (text, None)]), list)
