"""Whom a sentence is about: parts of names, two of one name, numbers, pronouns, questions, and all of it in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.entity import EntityMemory
from testkit.entity_cases import entity_cases, finder, problems, shown, told

PEOPLE = finder({"Anna Keller": "PERSON", "Bob": "PERSON", "Priya": "PERSON", "Siemens": "ORG"})
TWO = finder({"Priya Raman": "PERSON", "Priya Sharma": "PERSON", "Priya": "PERSON"})


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`call(memory, "about", ...)` in both styles."""

    def run(target: Any, verb: str, *args: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(*args)
        return asyncio.run(getattr(target, f"a{verb}")(*args))

    return run


def entities(memory: EntityMemory) -> dict[str, list[str]]:
    """The sentences of each entity."""
    return {entity.name: [fact.text for fact in entity.facts] for entity in memory.entities()}


# case -> what is not known
MISSED = {
    "sentence_start-9": "that Grace, an ordinary word at the beginning of a sentence, is Grace Adeyemi",
    "apart-6": "that New York has nothing to do with York",
    "apart-10": "that Morgan Stanley has nothing to do with little Stanley",
}


@pytest.mark.parametrize("name", list(entity_cases()))
def test_with_an_extractor_that_makes_no_mistakes(name: str) -> None:
    """All cases but those that are listed hold, where the extractor finds each name of the case with its type."""
    case = entity_cases()[name]
    assert bool(problems(case, finder(case["names"]))) == (name in MISSED)


def test_a_hundred_cases_of_every_kind() -> None:
    """The file holds ten cases of each of ten kinds."""
    kinds = [name.partition("-")[0] for name in entity_cases()]
    assert (len(kinds), {kinds.count(kind) for kind in kinds}) == (100, {10})


# -- parts of names


def test_a_first_name_belongs_to_the_full_one() -> None:
    """My boss is Anna Keller; what is then said of Anna is hers."""
    memory = told(PEOPLE, "My boss is Anna Keller.", "Anna likes tea.", "I met keller in Rome.")
    assert entities(memory) == {"Anna Keller": ["My boss is Anna Keller.", "Anna likes tea.", "I met keller in Rome."]}


def test_a_name_with_a_possessive_in_it() -> None:
    """Joe's Diner is found again, by another apostrophe, too, and is shown as it was written."""
    memory = told(finder({"Joe's Diner": "FAC"}), "We ate at Joe's Diner.", "joe\u2019s diner was full")
    assert entities(memory) == {"Joe's Diner": ["We ate at Joe's Diner.", "joe\u2019s diner was full"]}


def test_a_name_in_lower_case_is_found() -> None:
    """By a question, and in a message."""
    memory = told(PEOPLE, "I share a flat with Priya.", "then i cooked for priya")
    assert shown(memory, "what does priya do") == ["I share a flat with Priya.", "then i cooked for priya"]


def test_a_name_that_may_be_a_word_is_found_in_lower_case_only_where_nothing_is_capitalized() -> None:
    """An extractor takes a word at the beginning of a sentence for a name at times."""
    memory = told(finder({"Dance": "PERSON"}), "Dance is life.", "I love to dance.", "they dance every night")
    assert entities(memory) == {"Dance": ["Dance is life.", "they dance every night"]}


def test_a_part_of_a_thing_is_no_name() -> None:
    """A golden coin has nothing to do with a bridge; an entity of that name is shown beside it, and is another."""
    memory = told(finder({"Golden Gate Bridge": "FAC", "Acme Robotics": "ORG", "Acme": "ORG"}),
                  "I saw the Golden Gate Bridge.", "I found a golden coin.", "We sold Acme Robotics.",
                  "I liked Acme.")  # fmt: skip
    assert entities(memory) == {
        "Acme": ["I liked Acme."],
        "Acme Robotics": ["We sold Acme Robotics."],
        "Golden Gate Bridge": ["I saw the Golden Gate Bridge."],
    }
    for question in ("Where is Acme?", "Where is Acme Robotics?"):
        assert sorted(shown(memory, question)) == ["I liked Acme.", "We sold Acme Robotics."]


def test_a_place_is_no_person() -> None:
    """Paris Hilton does not draw in what is said of Paris."""
    memory = told(finder({"Paris Hilton": "PERSON", "Paris": "GPE"}), "I saw Paris Hilton.", "We flew to Paris.")
    assert entities(memory) == {"Paris": ["We flew to Paris."], "Paris Hilton": ["I saw Paris Hilton."]}


def test_a_name_that_is_known_later() -> None:
    """What was said of Anna before her last name was known is hers; one more Anna does not change that."""
    memory = told(finder({"Anna Keller": "PERSON", "Anna Berg": "PERSON", "Anna": "PERSON"}),
                  "I like Anna.", "Her name is Anna Keller.", "There is an Anna Berg, too.", "I saw Anna.")  # fmt: skip
    assert entities(memory)["Anna Keller"] == ["I like Anna.", "Her name is Anna Keller."]
    assert shown(memory, "Who is Anna Berg?") == ["There is an Anna Berg, too."]
    assert len(shown(memory, "Who is Anna?")) == 4


# -- two of one name


def test_two_of_one_first_name_are_both_shown() -> None:
    """For the first name; for a full name only that one."""
    memory = told(TWO, "Priya Raman is my dentist.", "Priya Sharma sings.")
    assert shown(memory, "what about priya") == ["Priya Sharma sings.", "Priya Raman is my dentist."][::-1]
    assert shown(memory, "Who is Priya Sharma?") == ["Priya Sharma sings."]
    assert [fact.text for fact in memory.about("Priya")] == ["Priya Raman is my dentist.", "Priya Sharma sings."]


def test_who_may_be_several_is_not_forgotten() -> None:
    """The error names them, and nothing is deleted; a full name forgets that one."""
    memory = told(TWO, "Priya Raman is my dentist.", "Priya Sharma sings.")
    with pytest.raises(ConfigurationError, match="may be any of Priya Raman, Priya Sharma: give one of these names"):
        memory.forget("priya")
    assert memory.forget("Priya Raman") == 1
    assert memory.forget("Priya") == 1
    assert memory.entities() == []


# -- numbers


def test_a_number_is_no_part_of_a_name() -> None:
    """Bob owes Priya 40 euros, whatever an extractor makes of that."""
    memory = told(finder({"Bob": "PERSON", "Priya 40": "PERSON"}), "Bob owes Priya 40 euros.", "I saw Priya today.")
    assert set(entities(memory)) == {"Bob", "Priya"}
    assert shown(memory, "What do you know about Priya?") == ["Bob owes Priya 40 euros.", "I saw Priya today."]


# -- pronouns and questions


def test_what_goes_on_with_a_pronoun_is_of_whom_was_named() -> None:
    """Bob is my neighbour; where he works is a fact of his, with the place of the pronoun."""
    text = "Bob is my neighbour. He works at Siemens."
    memory = told(PEOPLE, text)
    assert "He works at Siemens." in shown(memory, "Where does Bob work?")
    places = [text[fact.start : fact.end] for fact in memory.about("Bob")]
    assert places == ["Bob", "He"]
    assert [entity.aliases for entity in memory.entities()] == [(), ()]


def test_a_pronoun_reaches_no_further_than_its_message() -> None:
    """Whom a new message means by it is not guessed."""
    memory = told(PEOPLE, "Bob is my neighbour.", "He works a lot.")
    assert entities(memory) == {"Bob": ["Bob is my neighbour."]}


def test_questions_are_no_facts() -> None:
    """Nor is one without a question mark; whom it names is who the next sentence goes on with."""
    memory = told(PEOPLE, "Does Bob snore?", "does bob snore", "Have you met Bob? He snores.")
    assert entities(memory) == {"Bob": ["He snores."]}


# -- everything about somebody


def test_about_is_everything_in_the_order_of_time(call: Callable[..., Any]) -> None:
    """In all sessions, by any of the names, each sentence once; questions and others are left out."""
    days = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    clock = [days[0]]
    make = EntityMemory.factory(SQLiteChatMessageHistory.factory(":memory:", now=lambda: clock[0]), PEOPLE)
    lines = [("s2", "Bob met Anna Keller."), ("s1", "Anna is Anna Keller to you. She is from Bern."),
             ("s1", "Where is Anna?"), ("s2", "anna likes tea")]  # fmt: skip
    for day, (session, text) in zip(days, lines, strict=True):
        clock[0] = day
        call(make(session, "u1"), "save", [HumanMessage(text)])
    facts = call(make("s3", "u1"), "about", "Keller")
    assert [fact.text for fact in facts] == [
        "Bob met Anna Keller.", "Anna is Anna Keller to you.", "She is from Bern.", "anna likes tea",
    ]  # fmt: skip
    assert [fact.session_id for fact in facts] == ["s2", "s1", "s1", "s2"]
    assert sorted(fact.created_at for fact in facts) == [fact.created_at for fact in facts]
    assert call(make("s3", "u1"), "about", "Anna Keeler") == []
    assert call(make("s3", "u1"), "about", "Anna Kelller") == facts
    assert call(make("s3", "u1"), "about", "...") == []


def test_about_shows_nothing_of_erased_messages(call: Callable[..., Any]) -> None:
    """A fact whose turn was deleted is gone there, too."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    make = EntityMemory.factory(histories, PEOPLE)
    for n, text in enumerate(["Bob swims.", "Bob sleeps."]):
        history = histories("s1", "u1")
        history.append_turn([HumanMessage(text, id=str(n))])
        make("s1", "u1").save(history.messages[-1:])
    histories("s1", "u1").delete_turn(1)
    assert [fact.text for fact in call(make("s2", "u1"), "about", "bob")] == ["Bob sleeps."]
