"""Whether a question stands alone, told without a model."""

from __future__ import annotations

import pytest

from langchain_memkit.retrievers import stands_alone

TALK = [("Who is the president of France?", "Emmanuel Macron.")]


@pytest.mark.parametrize(
    "question",
    [
        "How old is he?",
        "What about Germany?",
        "Why?",
        "And the second one?",
        "Who was before that?",
        "More please",
        "Is the other better?",
        "What is the salary?",
        "Thanks! Where was she born?",
        "Which restaurants there have a Michelin star?",
        "Who won the Tour de France that year?",
        "",
    ],
)
def test_what_points_back_does_not(question: str) -> None:
    """Pronouns, pointers, too few words: in doubt it needs the conversation."""
    alone, reason = stands_alone(question, TALK)
    assert not alone
    assert reason


@pytest.mark.parametrize(
    "question",
    [
        "And Germany?",
        "But in Germany?",
        "Or Brazil?",
        "Then Brazil?",
        "In Germany?",
        "OK, and Italy?",
        "Thanks! And in Brazil?",
        "The president of Germany?",
        "And what does Germany do?",
        "Is Germany also a republic?",
        "Germany too?",
        "Is there anything similar in Paris?",
        "Are there any in Paris?",
        "How many in Germany?",
        "Which city in Germany?",
        "Why Germany?",
        "Does Germany?",
        "Is Germany bigger?",
        "What is Germany's?",
        "What's the biggest in Germany?",
        "How does Germany compare?",
        "Who was before Macron?",
        "Did the president visit Germany?",
        "I mean Germany.",
        "What is the weather like in June?",
        "what album was released june 2010",
        "Animations and Pixar.",
        "Who is Ada Lovelace?",
        "who was Devin Moore?",
        "Who is Miles O'Brien?",
        "Who is \u00c9lodie Durand?",
        "What did Prince Bernhard do in the war years?",
        "Did the band tour in Japan?",
        "What did Merkel say during the incident?",
        "Was Germany awarded any prizes?",
    ],
)
def test_a_name_alone_is_not_enough(question: str) -> None:
    """It goes on from what was said, is not a whole sentence, or asks the last question of another name."""
    alone, reason = stands_alone(question, TALK)
    assert not alone, reason
    assert reason


@pytest.mark.parametrize(
    "question",
    [
        "Wie alt ist der Mann in Berlin geworden?",
        "Is Berlijn groter dan Amsterdam?",
        "Was kostet das in Berlin?",
        "Was macht Angela Merkel so im Sommer?",
        "Quelle est la capitale de la France ?",
    ],
)
def test_other_languages_do_not(question: str) -> None:
    """The words that point back are English ones: the gate says that it does not know."""
    assert stands_alone(question, TALK) == (False, "the gate reads English only, and does not know")


@pytest.mark.parametrize(
    "question",
    [
        "Where was Barack Obama born?",
        "Who wrote Hamlet?",
        "Who was King Charles III married to?",
        "How far is Saint Petersburg from Moscow?",
        "Where was Martin Luther King Jr. born?",
        "Who is the president in Germany?",
        "How do plants turn sunlight into sugar?",
        "In what year did World War II end?",
        "What is Python and why is it popular?",
        "Tell me more about Mary Shelley.",
        "Is there anything similar to Netflix?",
        "Thank you very much!",
        "Ok, now who wrote Hamlet?",
        "And do roasted coffee beans lose caffeine while boiling?",
        "How do I reset my password?",
        "What does error 42 mean?",
        "Who came third at the Geonosis Challenge?",
        "What is ketosis?",
    ],
)
def test_what_has_a_name_or_says_enough_does(question: str) -> None:
    """A name, a number that names something, enough words, a pronoun whose noun is there, only thanks."""
    assert stands_alone(question, TALK)[0], stands_alone(question, TALK)


@pytest.mark.parametrize(
    "question",
    [
        "What is the speed of light in a vacuum?",
        "What are the side effects of ibuprofen?",
        "What is the difference between a virus and a bacterium?",
        "What is the refund policy for damaged items?",
        "How do I reset the password of my account?",
        "how do i reset the password of my google account",
        "What is the fastest way to lose weight?",
        "Which bands were popular in London in the 1970s?",
    ],
)
def test_a_the_that_says_of_what_is_no_pointer(question: str) -> None:
    """The sentence itself tells which one is meant."""
    assert stands_alone(question, TALK)[0], stands_alone(question, TALK)


@pytest.mark.parametrize(
    "question",
    ["Can dogs eat chocolate safely without getting sick?", "Does Vitamin C prevent colds?", "Did John Burns win?"],
)
def test_few_small_words_are_english_too(question: str) -> None:
    """The first word tells, where articles and prepositions are missing."""
    assert stands_alone(question, TALK)[0], stands_alone(question, TALK)


@pytest.mark.parametrize(
    "question",
    [
        "how old is macron",
        "Where was Macron born and raised?",
        "Who lives on the Coast?",
        "What are the EU rules?",
        "What is a typical day like?",
        "What is the newest version and what is better about it?",
        "What are the positives?",
        "What are the positives and negatives of the surgery?",
        "Is my surgery covered by health insurance companies?",
        "How can I pay for my surgery without health insurance?",
        "Who was third?",
    ],
)
def test_bare_names_and_definite_nouns_do_not(question: str) -> None:
    """They may be short for what was said: "the Coast" for the Ivory Coast, "Macron" for the man who was named."""
    talk = [*TALK, ("Should I have a surgery in Ivory Coast?", "Emmanuel Macron advises surgery on the Ivory Coast.")]
    alone, reason = stands_alone(question, talk)
    assert not alone, reason


def test_the_history_tells_which_names_may_be_short() -> None:
    """A first name says enough, unless somebody is talked of; a whole name always does, and a title is no name."""
    assert stands_alone("Did Adele win?", TALK)[0]
    assert not stands_alone("Did Adele win?", [("Where did she sing?", "In London.")])[0]
    assert stands_alone("Did Adele Adkins win?", [("Where did she sing?", "In London.")])[0]
    title = [("What can I eat?", "Here is a list: Good Foods. Most foods are good, but avoid grapes.")]
    assert not stands_alone("Which foods to avoid?", title)[0]


def test_without_history_everything_does() -> None:
    """There is nothing that it could point back to."""
    assert stands_alone("How old is he?", []) == (True, "nothing was said before")


@pytest.mark.parametrize(
    "text",
    [
        "\x00\ud800",
        "?" * 9000,
        "((((" * 2000,
        "that " * 3000,
        "and why " * 2000,
        "the " * 3000,
        "between " * 2000,
        "the album " * 900,
        "Ok. " * 3000,
        "the 1970s",
        "the",
        "'s",
    ],
)
def test_any_text_is_judged_quickly(text: str) -> None:
    """Broken and long texts are judged, as question and as history."""
    assert isinstance(stands_alone(text, [(text, text)])[0], bool)
