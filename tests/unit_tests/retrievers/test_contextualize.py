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


def words(question: str, *talk: tuple[str, str | None]) -> set[str]:
    """The words that a conversation adds to a question."""
    return {term.word for term in added_terms(question, talk)}


@pytest.mark.parametrize(
    "opener", ["Noted.", "Great question!", "Sure! Happy to help.", "Thanks for asking!", "\u597d\u7684\u3002"]
)
def test_what_an_answer_opens_with_is_no_topic(opener: str) -> None:
    """In any language; a name, a number, and an answer of one word are none of it."""
    asked = "Who founded the company?"
    plain = words("When?", (asked, "Falcon was founded by Ada Smith."))
    assert {"Falcon", "founded", "company", "Ada", "Smith"} == plain
    assert words("When?", (asked, f"{opener} Falcon was founded by Ada Smith.")) == plain
    assert "Smith" in words("When?", (asked, "Ada Smith. She did it alone."))
    assert "1998" in words("By whom?", ("When was it founded?", "In 1998. It took a year."))
    assert "Paris" in words("How old is it?", ("What is the capital of France?", "Paris."))


@pytest.mark.parametrize("thanks", ["Thanks!", "ok", "Noted.", "Great, got it", "Thanks, that was really helpful!"])
def test_thanks_are_no_topic_and_no_turn(thanks: str) -> None:
    """As a message of its own with its answer, and before a question: nothing is added, nothing weighs less."""
    reply = "You're welcome! Let me know if you have any other questions."
    plain = added_terms("When?", TALK)
    assert added_terms("When?", [*TALK, (thanks, reply), (thanks, reply)]) == plain
    last, answer = TALK[-1]
    assert added_terms("When?", [*TALK[:-1], (f"{thanks.strip('!.')}. {last}", answer)]) == plain


def test_a_statement_tells_a_topic() -> None:
    """By its names, and by what the answer takes up; without an answer all of it does. "Noted." is no answer."""
    statement = "My company is Falcon and I sell dark chocolate."
    assert words("When?", (statement, "Noted.")) == {"Falcon"}
    assert words("When?", (statement, "The chocolate of Falcon is known.")) == {"Falcon", "chocolate", "known"}
    assert {"company", "sell", "dark", "chocolate"} < words("When?", (statement, None))
    assert words("When?", ("dark chocolate", "Dark chocolate is healthy.")) == {"dark", "chocolate", "healthy"}


def test_an_answer_says_most_often_what_it_is_about() -> None:
    """Of the words without a name five are taken."""
    answer = (
        "A tiny harvester sleeps underground; such a mole digs where other mammals rarely go, and the mole is blind."
    )
    assert "mole" in words("Why?", ("Which animal is it?", answer))


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
