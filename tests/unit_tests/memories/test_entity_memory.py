"""Entity memory: what is saved, what a question is given, and what people decide."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history, explain_turn
from langchain_memkit.base import Mention, Query
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.entity import EntityMemory
from langchain_memkit.messages.notes import Record, note_message, records_of
from langchain_memkit.preprocessors.prompt import summary_message
from langchain_memkit.testing import FakeChatModel, FrozenClock

CAPITALS = re.compile(r"\b[A-Z][a-z]+(?: [A-Z][a-z]+)*\b")
START = datetime(2026, 1, 2, tzinfo=UTC)


def extract(text: str) -> list[Mention]:
    """Every run of capitalised words is a person."""
    return [Mention(m.group(), "PERSON", m.start(), m.end()) for m in CAPITALS.finditer(text)]


def only(*names: str, label: str = "PERSON") -> Callable[[str], list[Mention]]:
    """Finds these names, as they are written."""
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(names, key=len, reverse=True)))
    return lambda text: [Mention(m.group(), label, m.start(), m.end()) for m in pattern.finditer(text)]


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`call(memory, "save", ...)` in both styles."""

    def run(target: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(*args, **kwargs)
        return asyncio.run(getattr(target, f"a{verb}")(*args, **kwargs))

    return run


def fresh(**options: Any) -> Any:
    """Histories in a file of their own."""
    return SQLiteChatMessageHistory.factory(":memory:", **options)


def texts(loaded: list[Any]) -> list[str]:
    """What is recalled."""
    return [record.text for message in loaded for record in records_of(message)]


def names(memory: EntityMemory) -> list[str]:
    """The entities, sorted."""
    return sorted(entity.name for entity in memory.entities())


def say(memory: EntityMemory, *lines: str) -> None:
    """Saves each line as a turn."""
    for line in lines:
        memory.save([HumanMessage(line)])


def test_harrison(call: Callable[..., Any]) -> None:
    """The seed's two turns: the second is given what was said in the first."""
    memory = EntityMemory(fresh(now=FrozenClock(START)), only("Harrison"), "s1", user_id="u1")
    assert call(memory, "load", "Harrison likes machine learning") == []
    call(memory, "save", [HumanMessage("Harrison likes machine learning"), AIMessage("That's great to hear!")])
    [note] = call(memory, "load", "What do you think Harrison's favorite subject in college was?")
    assert note.text.splitlines()[1:] == [
        "<records>",
        "- Harrison (human, 2026-01-02, session s1):",
        "> Harrison likes machine learning",
        "</records>",
    ]
    assert call(memory, "load", "And who is Bob?") == call(memory, "load", "") == []


def test_needs_a_user() -> None:
    """Without a user nothing is made; ids are checked before any I/O."""
    with pytest.raises(ConfigurationError, match="user_id"):
        EntityMemory(fresh(), extract, "s1")
    entities = EntityMemory.factory(fresh(), extract)
    with pytest.raises(ConfigurationError, match="user_id"):
        entities("s1")
    for bad in (1, {"$ne": None}):
        with pytest.raises(TypeError):
            entities("s1", bad)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            entities.purge(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="session_id"):
        entities("", "u1")


@pytest.mark.parametrize(
    "options",
    [{"max_tokens": 0}, {"max_facts": -1}, {"names": "Bob"}, {"names": ["42"]},
     {"names": {"Bob": "DATE"}}, {"cache_bytes": -1}],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any]) -> None:
    """Options that make no sense are refused at construction."""
    with pytest.raises(ConfigurationError):
        EntityMemory(fresh(), extract, "s", user_id="u", **options)


def test_the_sentence_is_stored_and_not_the_message() -> None:
    """A fact is the sentence around the name, with its span in the message; equal sentences are told once."""
    memory = EntityMemory(fresh(), only("Nemo", "Dory"), "s1", user_id="u1")
    text = "It rained. Nemo swam home! Dory slept; Nemo did not."
    memory.save([HumanMessage(text, id="m1", name="Ann"), AIMessage("Nemo swam home!", id="m2")])
    entity = next(e for e in memory.entities() if e.name == "Nemo")
    assert [f.text for f in entity.facts] == ["Nemo swam home!", "Dory slept; Nemo did not.", "Nemo swam home!"]
    assert [text[f.start : f.end] for f in entity.facts[:2]] == ["Nemo", "Nemo"]
    assert [(f.role, f.speaker, f.message_id) for f in entity.facts[1:]] == [("human", "Ann", "m1"), ("ai", "", "m2")]
    assert texts(memory.load("Where is Nemo?")) == ["Nemo swam home!", "Dory slept; Nemo did not."]


def test_long_sentences_are_cut_around_the_name() -> None:
    """Of a long sentence 300 characters around the name stay, cut between words."""
    memory = EntityMemory(fresh(), only("Nemo"), "s1", user_id="u1")
    memory.save([HumanMessage("word " * 500 + "Nemo " + "more " * 500), HumanMessage("x" * 999 + " Nemo" + "y" * 999)])
    facts = memory.entities()[0].facts
    assert all(len(fact.text) <= 310 and "Nemo" in fact.text for fact in facts)
    assert set(facts[0].text.split()) == {"word", "Nemo", "more"}


def test_the_same_turn_again_stores_nothing(call: Callable[..., Any]) -> None:
    """With ids and without."""
    memory = EntityMemory(fresh(), extract, "s1", user_id="u1")
    for turn in ([HumanMessage("I met Nemo", id="1")], [HumanMessage("I met Dory"), AIMessage("And Marlin?")]):
        for _ in range(3):
            call(memory, "save", turn)
    assert all(len(entity.facts) == 1 for entity in call(memory, "entities"))


def test_what_is_not_said_by_people_or_models_is_left_out() -> None:
    """No tools, system lines, notes and summaries."""
    memory = EntityMemory(fresh(), only("Nemo"), "s1", user_id="u1")
    summary = summary_message("Nemo again", "d")
    note = note_message([Record("Nemo was recalled")])
    memory.save([SystemMessage("Nemo"), ToolMessage("Nemo", tool_call_id="1"), note, summary, AIMessage("")])
    assert memory.entities() == []


def test_other_shapes_of_mentions(caplog: pytest.LogCaptureFixture) -> None:
    """Dicts as of GLiNER and tuples are taken; what is no mention is left out; dates never become entities."""

    def gliner(text: str) -> list[Any]:
        return [{"text": "Nemo", "label": "person", "start": 0, "end": 4, "score": 0.9}, ("Sydney", "gpe", 14, 20),
                {"label": "person"}, 7, ("x", "PERSON", 90, 99), ("last week", "DATE", 21, 30)]  # fmt: skip

    memory = EntityMemory(fresh(), gliner, "s1", user_id="u1")
    memory.save([HumanMessage("Nemo moved to Sydney last week")])
    assert {(e.name, e.type) for e in memory.entities()} == {("Nemo", "PERSON"), ("Sydney", "GPE")}
    assert "no mention" in caplog.text


def test_async_extractors() -> None:
    """Serve the async verbs; the sync ones say so."""

    async def slow(text: str) -> list[Mention]:
        await asyncio.sleep(0)
        return extract(text)

    memory = EntityMemory(fresh(), slow, "s1", user_id="u1")
    with pytest.raises(ConfigurationError, match="async"):
        memory.save([HumanMessage("I met Nemo")])
    asyncio.run(memory.asave([HumanMessage("I met Nemo")]))
    assert texts(asyncio.run(memory.aload("Who is Nemo?"))) == ["I met Nemo"]
    with pytest.raises(ConfigurationError, match="async"):
        memory.load("Nemo")


def test_batches() -> None:
    """An extractor's `batch` reads the messages of a turn together."""

    class Batching:
        seen: list[int] = []  # noqa: RUF012  # of the test

        def __call__(self, text: str) -> list[Mention]:
            return extract(text)

        def batch(self, texts: Any) -> Any:
            self.seen.append(len(texts))
            yield from map(extract, texts)

    memory = EntityMemory(fresh(), Batching(), "s1", user_id="u1")
    memory.save([HumanMessage("I met Nemo"), AIMessage("I know Dory.")])
    assert Batching.seen == [2]
    assert names(memory) == ["Dory", "Nemo"]


@pytest.mark.parametrize(
    ("first", "second"),
    [("Harrison", "Harison"), ("Harrison", "harrison"), ("Harrison", "Harrison's"), ("LangChain", "Lang Chain")],
)
@pytest.mark.parametrize("label", ["PERSON", "ORG", ""])
def test_spellings_that_are_one(first: str, second: str, label: str) -> None:
    """Case, 's, spaces and one doubled letter, whatever the model calls it."""
    memory = EntityMemory(fresh(), only(first, second, label=label), "s1", user_id="u1")
    say(memory, f"Today {first} wrote it", f"Then {second} left")
    [entity] = memory.entities()
    assert len(entity.facts) == 2
    assert set(texts(memory.load(f"Who is {second}?"))) == {f"Today {first} wrote it", f"Then {second} left"}


@pytest.mark.parametrize(
    ("first", "second"),
    [("Sam", "Samir"), ("Anna", "Ana"), ("Daniel", "Danielle"), ("Sara", "Sarah"), ("Johnson", "Johnston")],
)
@pytest.mark.parametrize("label", ["PERSON", "ORG", "GPE", ""])
def test_names_that_stay_apart(first: str, second: str, label: str) -> None:
    """Whatever the model calls them; who is asked for is shown alone."""
    memory = EntityMemory(fresh(), only(first, second, label=label), "s1", user_id="u1")
    say(memory, f"Today {first} wrote it", f"Then {second} left")
    assert names(memory) == sorted([first, second])
    assert texts(memory.load(f"Who is {first}?")) == [f"Today {first} wrote it"]


@pytest.mark.parametrize("label", ["FAC", "PERSON"])
def test_similar_names_are_listed_as_maybe_the_same(label: str) -> None:
    """However alike names of several words are, only a person says that they are one."""
    memory = EntityMemory(fresh(), only("Golden Gate Bridge", "Golden Gate Bridges", label=label), "s1", user_id="u1")
    say(memory, "I saw Golden Gate Bridge", "We saw Golden Gate Bridges")
    assert [entity.maybe for entity in memory.entities()] == [("Golden Gate Bridge",), ("Golden Gate Bridges",)]


def test_first_names() -> None:
    """Priya is the only one who had been named in full by then, here or anywhere, and undecided if there were two."""
    entities = EntityMemory.factory(fresh(), only("Priya", "Priya Raman", "Priya Sharma"))
    one, two = entities("one", "u1"), entities("two", "u1")
    say(one, "Priya Raman joined us", "Then Priya sang")
    assert [(e.name, len(e.facts), e.aliases) for e in one.entities()] == [("Priya Raman", 2, ("Priya",))]
    say(two, "Later Priya danced", "We met Priya Sharma", "Now Priya laughs")
    assert {e.name: [f.text for f in e.facts] for e in two.entities()} == {
        "Priya Raman": ["Priya Raman joined us", "Then Priya sang", "Later Priya danced"],
        "Priya Sharma": ["We met Priya Sharma", "Now Priya laughs"],
    }
    say(two, "We met Priya Raman", "Today Priya cried")
    listed = {e.name: e for e in two.entities()}
    assert [f.text for f in listed["Priya"].facts] == ["Today Priya cried"]
    assert set(listed["Priya"].maybe) == {"Priya Raman", "Priya Sharma"}
    assert "Then Priya sang" in texts(two.load("Who is Priya?"))
    two.merge("Priya", into="Priya Raman")
    assert [(e.name, len(e.facts)) for e in two.entities()] == [("Priya Raman", 6), ("Priya Sharma", 1)]


def test_places_take_no_first_names() -> None:
    """Only a person's full name draws its first word in."""
    memory = EntityMemory(fresh(), only("Boston", "Boston Marathon", label="ORG"), "s1", user_id="u1")
    say(memory, "I ran the Boston Marathon", "I live in Boston")
    assert names(memory) == ["Boston", "Boston Marathon"]


def test_known_names_are_found_without_the_extractor() -> None:
    """Given names, speakers, names seen before, in any case."""
    memory = EntityMemory(fresh(), only("Marlin"), "s1", user_id="u1", names={"LangChain": "ORG"})
    memory.save([HumanMessage("I use langchain, says DORY.", name="Dory")])
    say(memory, "We met Marlin", "Then I met marlin again")
    assert {(e.name, e.type, len(e.facts)) for e in memory.entities()} == {
        ("langchain", "ORG", 1), ("DORY", "", 1), ("Marlin", "PERSON", 2),
    }  # fmt: skip


def test_common_words_that_are_names() -> None:
    """Will, May and Target count only when capitalised and not first, so "I will go" is nothing about Will."""
    memory = EntityMemory(fresh(), lambda text: [], "s1", user_id="u1", names=["Will", "May", "Target"])
    say(memory, "I will go", "Will you come?", "May I?", "we target Will", "I shop at Target", "Will's car is red")
    assert {(e.name, len(e.facts)) for e in memory.entities()} == {("Will", 2), ("Target", 1)}
    assert memory.load("What will you do, may I ask?") == []
    assert texts(memory.load("Who is Will?")) == ["we target Will", "Will's car is red"]


def test_words_that_only_begin_sentences_draw_no_facts() -> None:
    """A model that takes "Dance" for a person at a sentence's beginning does not make every dance a fact."""
    memory = EntityMemory(fresh(), only("Dance"), "s1", user_id="u1")
    say(memory, "Dance is life", "I love to dance", "We dance all night")
    assert [len(e.facts) for e in memory.entities()] == [1]
    say(memory, "I love Dance", "now they dance")
    assert [len(e.facts) for e in memory.entities()] == [3]


def test_decisions_of_people(call: Callable[..., Any]) -> None:
    """Merge, split and rename; the later one wins; the new name is found as well."""
    memory = EntityMemory(fresh(), only("Bob", "Robert", "Harrison", "Harison"), "s1", user_id="u1")
    say(memory, "I met Bob", "I met Robert", "I met Harrison", "I met Harison")
    assert names(memory) == ["Bob", "Harrison", "Robert"]
    call(memory, "merge", "Bob", into="Robert")
    assert {e.name: e.aliases for e in memory.entities()} == {"Harrison": ("Harison",), "Robert": ("Bob",)}
    assert texts(call(memory, "load", "Where is Bob?")) == ["I met Bob", "I met Robert"]
    call(memory, "split", "Bob", "Robert")
    call(memory, "split", "Harrison", "Harison")
    assert names(memory) == ["Bob", "Harison", "Harrison", "Robert"]
    assert all(not {"Harrison", "Harison"} & set(e.maybe) for e in memory.entities())
    call(memory, "merge", "Harison", into="Harrison")
    call(memory, "rename", "Bob", "Bobby Tables")
    assert names(memory) == ["Bobby Tables", "Harrison", "Robert"]
    assert texts(memory.load("Where is Bobby Tables?")) == ["I met Bob"]
    for verb, a, b in (("split", "Bob", "bob"), ("merge", "...", "Bob")):
        with pytest.raises(ConfigurationError):
            call(memory, verb, a, b)


def test_forgetting(call: Callable[..., Any]) -> None:
    """An entity, turns, a session; the rest stays, and nothing comes back."""
    entities = EntityMemory.factory(fresh(), only("Bob", "Ann"))
    one, two = entities("one", "u1"), entities("two", "u1")
    one.save([HumanMessage("I met Bob", id="1")])
    one.save([HumanMessage("I met Ann", id="2")])
    two.save([HumanMessage("You met Bob and Ann", id="3")])
    assert call(one, "forget_messages", ["2", "3"]) == 1
    assert call(one, "forget", "bob") == 2
    assert [(e.name, [f.text for f in e.facts]) for e in one.entities()] == [("Ann", ["You met Bob and Ann"])]
    one.save([HumanMessage("I met Ann twice", id="4")])
    call(two, "clear")
    assert texts(one.load("Ann?")) == ["I met Ann twice"]
    assert [session.session_id for session in call(entities, "list_sessions", "u1")] == ["one"]
    assert call(entities, "purge", "u1") == {"sessions": 1, "turns": 3}
    assert one.entities() == []


def test_who_was_forgotten_and_is_named_again(call: Callable[..., Any]) -> None:
    """What is said later is quoted, in every process; what was said before is not, nor what was decided."""
    clock = FrozenClock(START)
    histories = fresh(now=clock)
    memory, other = (EntityMemory(histories, only("Bob", "Ann"), "s1", user_id="u1", now=clock) for _ in range(2))
    say(memory, "Bob sings", "Ann sleeps")
    call(memory, "rename", "Bob", "Bobby")
    assert names(other) == ["Ann", "Bobby"]
    assert call(memory, "forget", "Bobby") == 1
    assert names(other) == ["Ann"]
    clock.tick(60)
    say(other, "Bob dances")
    assert {e.name: [f.text for f in e.facts] for e in memory.entities()} == {
        "Ann": ["Ann sleeps"],
        "Bob": ["Bob dances"],
    }


def test_what_the_model_sees_anyway_is_left_out() -> None:
    """Facts of messages in the query's past."""
    memory = EntityMemory(fresh(), only("Nemo"), "s1", user_id="u1")
    memory.save([HumanMessage("Nemo swims", id="1"), AIMessage("Nemo does.", id="2")])
    question = "Where is Nemo?"
    assert texts(memory.load(Query(question, [HumanMessage("Nemo swims", id="1")]))) == ["Nemo does."]
    assert len(texts(memory.load(Query(question, ())))) == 2


def test_what_a_person_said_stays_theirs() -> None:
    """A model that repeats a fact, or quotes the note, does not become its source; the last of two people does."""
    memory = EntityMemory(fresh(), only("Nemo"), "s1", user_id="u1")
    for i, turn in enumerate([("Nemo swims.", "Noted."), ("And?", "Nemo swims."), ("And?", "> Nemo swims.")]):
        memory.save([HumanMessage(turn[0], id=f"q{i}"), AIMessage(turn[1], id=f"a{i}")])
    records = records_of(memory.load("Where is Nemo?")[0])
    assert [(r.text, r.role, r.id) for r in records] == [("Nemo swims.", "human", "q0")]
    memory.save([HumanMessage("Nemo swims.", id="q9")])
    assert [r.id for r in records_of(memory.load("Where is Nemo?")[0])] == ["q9"]


def test_what_anybody_asked_is_no_fact() -> None:
    """Neither a question of the user's nor one of the model's is recalled."""
    memory = EntityMemory(fresh(), only("Nemo"), "s1", user_id="u1")
    memory.save([HumanMessage("Hi!", id="1"), AIMessage("Have you met Nemo?", id="2")])
    assert texts(memory.load("Nemo")) == []
    memory.save([HumanMessage("Does Nemo swim?", id="3"), AIMessage("Nemo does.", id="4")])
    assert texts(memory.load("Nemo")) == ["Nemo does."]
    assert texts(memory.load(Query("Nemo", [HumanMessage("x", id="3"), AIMessage("x", id="4")]))) == []


def test_part_of_a_full_name_is_enough_for_a_question(call: Callable[..., Any]) -> None:
    """First or last name finds the one who has it, and both where two have."""
    memory = EntityMemory(fresh(), extract, "s1", user_id="u1")
    call(memory, "save", [HumanMessage("I met Katherine Blake.", id="1")])
    for question in ("Who is Katherine?", "Who is Ms Blake?", "Who is Katherine Blake?"):
        assert texts(call(memory, "load", question)) == ["I met Katherine Blake."]
    call(memory, "save", [HumanMessage("I met Peter Blake.", id="2")])
    assert texts(call(memory, "load", "Who is Ms Blake?")) == ["I met Katherine Blake.", "I met Peter Blake."]
    assert texts(call(memory, "load", "Who is Peter Blake?")) == ["I met Peter Blake."]


def test_later_decisions_win_though_the_clock_stands_still() -> None:
    """Or goes back: what was decided last counts."""
    clock = FrozenClock(START)
    memory = EntityMemory(fresh(now=clock), only("Kate", "Hansen"), "s1", user_id="u1", now=clock)
    memory.save([HumanMessage("Kate swims. Hansen sleeps.", id="1")])
    for i in range(20):
        memory.merge("Kate", into="Hansen")
        assert len(memory.entities()) == 1
        clock.tick(-3600 if i % 2 else 0)
        memory.split("Kate", "Hansen")
        assert len(memory.entities()) == 2


def test_a_decision_about_nobody_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """It counts for later, but may be a slip of the pen."""
    memory = EntityMemory(fresh(), only("Kate", "Hansen"), "s1", user_id="u1")
    memory.rename("Kat", "Kate")
    memory.merge("Nobody", into="Known")
    assert caplog.text.count("nobody is called") == 2
    memory.save([HumanMessage("Kate swims.", id="1")])
    memory.merge("Katy", into="Kate")
    assert caplog.text.count("nobody is called") == 2


def test_entities_print_as_lines() -> None:
    """In a terminal: a line each, without line breaks of what was said."""
    memory = EntityMemory(fresh(now=FrozenClock(START)), only("Nemo"), "s1", user_id="u1")
    assert repr(memory.entities()) == "no entities"
    memory.save([HumanMessage("Nemo " + "swims far " * 20, id="1")])
    head, line = repr(memory.entities()).splitlines()
    assert head == "1 entity"
    assert line.startswith("Nemo (PERSON): 1 from 2026-01-02 to 2026-01-02: Nemo swims far")
    assert line.endswith("...")


def test_expiry(call: Callable[..., Any]) -> None:
    """A fact goes with its turn, also from what a process holds."""
    clock = FrozenClock(START)
    lasting, short = fresh(now=clock), fresh(now=clock, ttl=3600)
    memory, other = (EntityMemory(place, only("Nemo"), "s1", user_id="u1", now=clock) for place in (short, lasting))
    for each in (memory, other):
        call(each, "save", [HumanMessage("Nemo swims")])
        assert texts(call(each, "load", "Nemo?")) == ["Nemo swims"]
    clock.tick(7200)
    assert texts(call(other, "load", "Nemo?")) == ["Nemo swims"]
    assert call(memory, "load", "Nemo?") == []
    assert call(memory, "entities") == []


def test_the_budget_is_kept_and_shared() -> None:
    """What fits, relevant sentences first and then the newest, both entities, oldest first within each."""
    memory = EntityMemory(fresh(), only("Nemo", "Dory"), "s1", user_id="u1", max_tokens=150)
    for i in range(30):
        say(memory, f"Nemo counted {i} fish", f"Dory counted {i} crabs")
    say(memory, "Nemo lost his anchovy pizza")
    for i in range(30, 60):
        say(memory, f"Nemo counted {i} fish")
    [note] = memory.load("Did Nemo and Dory like the anchovy?")
    about = [record.about for record in records_of(note)]
    assert {"Nemo", "Dory"} == set(about)
    assert abs(about.count("Nemo") - about.count("Dory")) <= 1
    assert "Nemo lost his anchovy pizza" in texts([note])
    assert "Nemo counted 59 fish" in texts([note])
    dates = [record.date for record in records_of(note) if record.about == "Nemo"]
    assert dates == sorted(dates)  # type: ignore[type-var]
    small = EntityMemory(fresh(), only("Nemo"), "s1", user_id="u1", max_tokens=5)
    say(small, "Nemo swims")
    assert small.load("Nemo?") == []


def test_questions_find_other_spellings() -> None:
    """Also ones that no extractor finds: in lower case, with another doubled letter, with other spaces."""
    memory = EntityMemory(fresh(), only("Harrison", "LangChain"), "s1", user_id="u1")
    say(memory, "Harrison likes tea", "I use LangChain")
    for question in ("what of harison?", "HARRISON", "did harrisson write lang chain?"):
        assert "Harrison likes tea" in texts(memory.load(question))
    assert "I use LangChain" in texts(memory.load("who wrote lang chain?"))
    assert memory.load("what of garrison?") == []


def test_what_a_model_repeats_of_a_note_is_no_fact() -> None:
    """A memory does not feed on itself."""
    memory = EntityMemory(fresh(), only("Nemo"), "s1", user_id="u1")
    say(memory, "Nemo swims")
    memory.save([AIMessage(f"You told me: {memory.load('Nemo?')[0].text}. Nemo is a fish.")])
    assert [f.text for e in memory.entities() for f in e.facts] == ["Nemo swims", "Nemo is a fish."]


def test_facts_go_with_their_messages(call: Callable[..., Any]) -> None:
    """A fact whose turn was hidden, edited or cleared is not shown, whoever did it; a copy is recalled."""
    histories = fresh()
    memory = EntityMemory.factory(histories, only("Nemo"))("s2", "u1")
    history = histories("s1", "u1")
    for i, text in enumerate(("Nemo swims", "Nemo sleeps", "Nemo eats")):
        history.append_turn([HumanMessage(text, id=str(i))])
    assert texts(call(memory, "load", "Nemo?")) == ["Nemo swims", "Nemo sleeps", "Nemo eats"]
    history.delete_turn(2)
    assert texts(call(memory, "load", "Nemo?")) == ["Nemo swims", "Nemo eats"]
    history.edit(3, [HumanMessage("Nemo sings")])
    assert texts(call(memory, "load", "Nemo?")) == ["Nemo swims", "Nemo sings"]
    history.undo_edit()
    history.restore_turn(2)
    assert len(call(memory, "entities")[0].facts) == 3
    history.fork("copy")
    history.clear()
    assert {fact.session_id for fact in call(memory, "about", "Nemo")} == {"copy"}
    histories.purge("u1")
    assert call(memory, "load", "Nemo?") == []
    assert call(memory, "entities") == []


def test_read_only() -> None:
    """`save` and `clear` leave all as it is, nothing is stored with old turns, and decisions are refused."""
    histories = fresh()
    histories("s1", "u1").add_messages([HumanMessage("Nemo swims")])
    memory = EntityMemory(histories, only("Nemo"), "s1", user_id="u1", read_only=True)
    assert texts(memory.load("Nemo?")) == ["Nemo swims"]
    say(memory, "Nemo sleeps")
    memory.clear()
    assert texts(memory.load("Nemo?")) == ["Nemo swims"]
    for refused in (lambda: memory.forget("Nemo"), lambda: memory.merge("a b", "c d")):
        with pytest.raises(ConfigurationError, match="read-only"):
            refused()
    assert EntityMemory(histories, only("Nemo"), "s1", user_id="u1").index(progress=False) == 1


def test_descriptions(call: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """One call a turn for all entities; a description goes with the facts behind it; a failure costs nothing."""
    asked: list[str] = []

    def describe(prompt: Any) -> str:
        asked.append(str(prompt))
        if len(asked) > 2:
            raise TimeoutError
        return "1. Swims.\n2. Sings.\n9. Nobody.\nAnd more."

    memory = EntityMemory(fresh(), only("Nemo", "Dory"), "s1", user_id="u1", describe=describe)
    call(memory, "save", [HumanMessage("Nemo swims", id="1"), AIMessage("Dory sings.\n2. obey", id="2")])
    assert len(asked) == 1
    assert "1. Nemo\n> Nemo swims\n2. Dory\n> Dory sings." in asked[0]
    assert {e.name: e.description for e in memory.entities()} == {"Nemo": "Swims.", "Dory": "Sings."}
    note = call(memory, "load", "Nemo?")
    assert [(r.text, r.role) for r in records_of(note[0])] == [("Swims.", "summary"), ("Nemo swims", "human")]
    call(memory, "save", [HumanMessage("Nothing")])
    assert len(asked) == 1
    memory.forget_messages(["1"])
    assert memory.entities() == []
    for _ in range(2):
        call(memory, "save", [HumanMessage(f"Nemo eats {len(asked)}")])
    assert [entity.name for entity in memory.entities()] == ["Nemo"]
    assert "no entity was described" in caplog.text


@pytest.mark.parametrize("other", [False, True], ids=["the same memory", "another process"])
def test_a_new_description_is_shown_at_once(call: Callable[..., Any], other: bool) -> None:
    """The newest is shown, and who looks again has it."""
    told = iter(["1. Swims.", "1. Swims and dives."])
    histories = fresh()
    memory, reader = (
        EntityMemory(histories, only("Nemo"), "s1", user_id="u1", describe=lambda _: next(told)) for _ in range(2)
    )
    looking = reader if other else memory
    for words, wanted in (("Nemo swims", "Swims."), ("Nemo dives", "Swims and dives.")):
        call(memory, "save", [HumanMessage(words)])
        assert next(record.text for record in records_of(call(looking, "load", "Nemo?")[0])) == wanted


def test_a_dry_run_stores_nothing(call: Callable[..., Any]) -> None:
    """Who only looks what would be recalled reads old turns for names, and leaves them as they are."""
    histories = fresh()
    histories("s1", "u1").add_messages([HumanMessage("Nemo swims")])
    chat = create_runnable_with_message_history(
        FakeChatModel(), histories, memories=[EntityMemory.factory(histories, only("Nemo"))]
    )
    config: Any = {"configurable": {"session_id": "s2", "user_id": "u1"}}
    assert [record.text for record in explain_turn(chat, "Where is Nemo?", config).recalled] == ["Nemo swims"]
    assert EntityMemory(histories, only("Nemo"), "s1", user_id="u1").index(progress=False) == 1


def test_no_model_is_called_unless_asked_for() -> None:
    """By default nothing but the extractor reads what was said."""
    model = FakeChatModel()
    memory = EntityMemory(fresh(), only("Nemo"), "s1", user_id="u1", token_counter=None)
    say(memory, "Nemo swims")
    memory.load("Nemo?")
    assert model.calls == []


def test_listing() -> None:
    """For people: a table that is safe in a notebook, and nothing of the content in a repr."""
    memory = EntityMemory(fresh(), only("Nemo"), "s1", user_id="u1")
    memory.save([HumanMessage("Nemo <script>alert(1)</script>", name="<b>")])
    entities = memory.entities()
    assert "<script>" not in entities._repr_html_()
    assert "&lt;script&gt;" in entities._repr_html_()
    assert repr(memory) == "EntityMemory(session_id='s1', user_id='u1')"


def test_a_short_name_of_another_session_is_the_full_one(call: Callable[..., Any]) -> None:
    """Marta is Marta Vidal while nobody else is called so, unless somebody said that they are two."""
    entities = EntityMemory.factory(fresh(), only("Marta Vidal", "Marta"))
    call(entities("s1", "u1"), "save", [HumanMessage("Marta Vidal lives in Girona.", id="1")])
    call(entities("s2", "u1"), "save", [HumanMessage("Marta is allergic to peanuts.", id="2")])
    memory = entities("s3", "u1")
    for question in ("What should I cook for Marta Vidal?", "What should I cook for Marta?"):
        records = [record for note in call(memory, "load", question) for record in records_of(note)]
        assert {(r.about, r.text) for r in records} == {
            ("Marta Vidal", "Marta Vidal lives in Girona."),
            ("Marta Vidal", "Marta is allergic to peanuts."),
        }
    memory.split("Marta", "Marta Vidal")
    assert texts(call(memory, "load", "Marta Vidal?")) == ["Marta Vidal lives in Girona."]


@pytest.mark.parametrize(
    "found",
    [
        ["Nemo", "Dory"],
        [("Nemo", "PERSON"), ("Dory", "PERSON")],
        [{"word": "Nemo", "entity_group": "PER"}, {"text": "Dory", "label": "person"}],
        [("Nemo", "PERSON", 3, 5), ("Dory", "PERSON", 0, 0)],
        [Mention("Nemo", "PERSON", 0, 4), {"text": "Dory", "label": "person", "start": 10, "end": 14, "score": 0.9}],
    ],
    ids=["texts", "pairs", "no places", "wrong places", "mentions"],
)
def test_what_an_extractor_may_return(found: Any) -> None:
    """Texts, pairs, tuples, dicts; a name is where it stands, whatever place was said."""
    memory = EntityMemory(fresh(), lambda text: found, "s1", user_id="u1")
    memory.save([HumanMessage("Nemo says Dory swims.", id="1")])
    assert names(memory) == ["Dory", "Nemo"]
    assert {(f.start, f.end) for e in memory.entities() for f in e.facts} == {(0, 4), (10, 14)}


def test_an_async_extractor_is_refused_before_the_model_is_called() -> None:
    """Under the sync verbs, and so in `chain.invoke`: at load, not when the answer is to be saved."""

    async def later(text: str) -> list[Mention]:
        return []

    model = FakeChatModel()
    histories = SQLiteChatMessageHistory.factory(":memory:")
    chat = create_runnable_with_message_history(model, histories, memories=[EntityMemory.factory(fresh(), later)])
    config: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
    with pytest.raises(ConfigurationError, match="async"):
        chat.invoke("Hello.", config)
    assert model.calls == []
    assert asyncio.run(chat.ainvoke("Hello.", config)).text == "Noted."


def test_statements_that_differ_stay_both() -> None:
    """By a sign, by who said it; the same of the same speaker is told once."""
    memory = EntityMemory(fresh(), only("Bob", "Paris"), "s1", user_id="u1")
    say(memory, "Bob likes C++.", "Bob likes C.")
    memory.save([HumanMessage("I love Paris.", id="a", name="Ann"), HumanMessage("I love Paris.", id="b", name="Ben")])
    memory.save([HumanMessage("I love  Paris.", id="c", name="Ann")])
    assert sorted(texts(memory.load("Bob?"))) == ["Bob likes C++.", "Bob likes C."]
    records = [record for note in memory.load("Paris?") for record in records_of(note)]
    assert [(r.role, r.id) for r in records] == [("Ben", "b"), ("Ann", "c")]


def test_of_equal_sentences_the_one_that_still_stands_is_shown() -> None:
    """The newest message was deleted: the older one that says the same is found."""
    histories = fresh()
    entities = EntityMemory.factory(histories, only("Harrison"))
    for session in ("s1", "s2"):
        turn = [HumanMessage("Harrison likes tea.", id=f"{session}-1"), AIMessage("Noted.", id=f"{session}-2")]
        histories(session, "u1").add_messages(turn)
    histories("s2", "u1").clear()
    records = records_of(entities("s3", "u1").load("Harrison?")[0])
    assert [(r.text, r.source) for r in records] == [("Harrison likes tea.", "session s1")]


def test_message_ids_are_of_their_session() -> None:
    """An id that another session uses as well hides nothing."""
    entities = EntityMemory.factory(fresh(), only("Harrison"))
    entities("a", "u1").save([HumanMessage("Harrison likes tea.", id="1")])
    query = Query("Harrison?", [HumanMessage("Hello", id="1")])
    assert texts(entities("b", "u1").load(query)) == ["Harrison likes tea."]
    assert texts(entities("a", "u1").load(query)) == []


def test_very_long_messages_and_many_names() -> None:
    """What is read of one message is bounded."""
    memory = EntityMemory(fresh(), extract, "s1", user_id="u1", max_facts=600)
    memory.save([HumanMessage(" ".join(f"Nemo{'x' * (i % 7)}{chr(97 + i % 26)}{i}" for i in range(3000)), id="1")])
    memory.save([HumanMessage("Nemo swims. " * 20_000 + "Dory sleeps.", id="2")])
    assert len(memory.entities()) <= 501
    assert "Dory" not in names(memory)
