"""Entity memory over histories: facts lie in the turns' rows, whoever stored them, and go with them."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda

from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history, purge_user, session
from langchain_memkit.base import Mention
from langchain_memkit.memories.derived_log import pack, unpack
from langchain_memkit.memories.entity import EntityMemory
from langchain_memkit.memories.entity.entity_log import ENTITIES
from langchain_memkit.testing import FakeChatModel

NAMES = re.compile(r"\b(?:Nemo|Dory|Bob|Robert|Priya Raman|Priya)\b")


class Extractor:
    """Finds a few names, as they are written, and notes what it read."""

    def __init__(self, *, is_local: bool = False) -> None:
        self.is_local = is_local
        self.read: list[str] = []
        self.fails = False

    def __call__(self, text: str) -> list[Mention]:
        """Find them."""
        if self.fails:
            raise OSError("the model is down")
        self.read.append(text)
        return [Mention(m.group(), "PERSON", m.start(), m.end()) for m in NAMES.finditer(text)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a file."""
    return tmp_path / "chat.db"


@pytest.fixture
def histories(path: Path) -> Iterator[Any]:
    """Histories in the file."""
    with SQLiteChatMessageHistory.factory(path) as opened:
        yield opened


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`call(memory, "save", ...)` in both styles."""

    def run(target: Any, verb: str, *args: Any, **kwargs: Any) -> Any:
        if request.param == "sync":
            return getattr(target, verb)(*args, **kwargs)
        return asyncio.run(getattr(target, f"a{verb}")(*args, **kwargs))

    return run


def known(memory: EntityMemory) -> dict[str, list[str]]:
    """The sentences of each entity."""
    return {entity.name: [fact.text for fact in entity.facts] for entity in memory.entities()}


def shown(memory: Any) -> list[Any]:
    """The rows of the turns that are held of the only user."""
    memory.entities()
    (held,) = memory._core.log._users.values()
    return list(held.log.shown())


@pytest.mark.parametrize("is_local", [False, True])
def test_turns_of_a_chain(histories: Any, call: Callable[..., Any], is_local: bool) -> None:
    """Each message is read once, before the turn is stored or after it; the turn is stored once, with its facts."""
    extract = Extractor(is_local=is_local)
    entities = EntityMemory.factory(histories, extract)
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[entities])
    for text in ("Nemo swims.", "Dory sleeps."):
        call(chat, "invoke", text, session("s1", user_id="u1"))
    assert known(entities("s2", "u1")) == {"Nemo": ["Nemo swims."], "Dory": ["Dory sleeps."]}
    assert [text for text in extract.read if text.startswith(("Nemo", "Dory"))].count("Nemo swims.") == 1
    assert len(list(histories("s1", "u1").iter_turns())) == 2
    assert entities("s1", "u1").index(progress=False) == 0


def test_old_turns(histories: Any, call: Callable[..., Any]) -> None:
    """What was stored before is read at the first look, a name that was told first is found in what came later."""
    extract = Extractor()
    for i, text in enumerate(["I met Priya Raman.", "then i cooked for priya", "Bob sings."]):
        histories(f"s{i}", "u1").add_messages([HumanMessage(text), AIMessage("I see.")])
    memory = EntityMemory.factory(histories, extract)("new", "u1")
    assert [fact.text for fact in call(memory, "about", "Priya")] == ["I met Priya Raman.", "then i cooked for priya"]
    read = len(extract.read)
    assert known(EntityMemory.factory(histories, extract)("other", "u1")) == {
        "Priya Raman": ["I met Priya Raman.", "then i cooked for priya"],
        "Bob": ["Bob sings."],
    }
    assert len(extract.read) == read  # another process reads what this one has stored


def test_many_old_turns(histories: Any) -> None:
    """A look reads the newest 1,000 turns; `index` reads all, and says how many those were."""
    store = histories("s1", "u1")
    for i in range(1010):
        store.append_turn([HumanMessage(f"Nemo counted {i}")])
    memory = EntityMemory.factory(histories, Extractor(), max_facts=5000)("s1", "u1")
    assert len(memory.about("Nemo")) == 1000
    assert memory.index(progress=False) == 10
    assert [fact.text for fact in memory.about("Nemo")][:2] == ["Nemo counted 0", "Nemo counted 1"]


def test_a_quick_extractor_that_fails(histories: Any, call: Callable[..., Any], caplog: Any) -> None:
    """A turn that is stored in the memory's own history is stored without its facts, which the next look reads."""
    extract = Extractor(is_local=True)
    extract.fails = True
    memory = EntityMemory(histories, extract, "s1", user_id="u1")
    call(memory, "save", [HumanMessage("Nemo swims.")])
    assert len(histories("s1", "u1").messages) == 1
    assert "EntityMemory did not index a turn" in caplog.text
    assert "Nemo" not in caplog.text
    extract.fails = False
    assert known(memory) == {"Nemo": ["Nemo swims."]}


@pytest.mark.parametrize("is_local", [False, True])
def test_a_process_that_was_asked_nothing_yet(histories: Any, call: Callable[..., Any], is_local: bool) -> None:
    """It looks at the names that are known before it reads its first turn, which is read once."""
    first = EntityMemory(histories, Extractor(is_local=is_local), "s1", user_id="u1")
    first.save([HumanMessage("Priya Raman sings.")])
    later = EntityMemory(histories, Extractor(is_local=is_local), "s2", user_id="u1")
    call(later, "save", [HumanMessage("Yesterday I met Raman in town.")])
    assert known(first) == {"Priya Raman": ["Priya Raman sings.", "Yesterday I met Raman in town."]}


def test_a_turn_is_told_again_after_its_names_were_forgotten(histories: Any) -> None:
    """There is nothing to describe any more."""
    described: list[Any] = []

    def describe(prompt: Any) -> str:
        described.append(prompt)
        return "1. A fish."

    memory = EntityMemory(histories, Extractor(), "s1", user_id="u1", describe=describe)
    turn = [HumanMessage("Nemo swims.", id="q1")]
    memory.save(turn)
    assert len(described) == 1
    memory.forget("Nemo")
    memory.save(turn)
    assert len(described) == 1
    assert known(memory) == {}


@pytest.mark.parametrize("erase", ["delete", "forget"])
def test_descriptions_go_with_what_they_rest_on(histories: Any, path: Path, erase: str) -> None:
    """The next look erases what a model said of an entity of which a sentence was erased; others stay.

    What lies in the hidden turn itself comes back with it, should it be shown again.
    """
    answers = iter(["1. Swims.", "1. Sleeps.", "1. Swims and dives."])
    describe = RunnableLambda(lambda prompt: next(answers))
    memory = EntityMemory(histories, Extractor(), "s1", user_id="u1", describe=describe)
    for number, text in enumerate(["Nemo swims.", "Dory sleeps.", "Nemo dives."]):
        memory.save([HumanMessage(text, id=str(number))])
    if erase == "delete":
        memory.forget_messages(["0"])
    else:
        memory.forget("Nemo")
    EntityMemory(histories, Extractor(), "s2", user_id="u1").entities()
    with closing(sqlite3.connect(path)) as connection:
        (*kept,) = connection.execute("SELECT made FROM turn_indexes WHERE name = 'described' ORDER BY seq")
    assert [len(unpack(made) or ()) for (made,) in kept] == [int(erase == "delete"), 1, 0]


def test_clocks_that_differ(path: Path) -> None:
    """What is forgotten was said before that, also where the clock of who said it goes before."""
    later = datetime.now(UTC) + timedelta(minutes=5)
    with SQLiteChatMessageHistory.factory(path, now=lambda: later) as ahead:
        EntityMemory(ahead, Extractor(), "s1", user_id="u1").save([HumanMessage("Nemo swims. Dory sleeps.")])
    with SQLiteChatMessageHistory.factory(path) as histories:
        memory = EntityMemory(histories, Extractor(), "s1", user_id="u1")
        assert memory.forget("Nemo") == 1
        assert known(memory) == {"Dory": ["Dory sleeps."]}


def test_speakers_are_known_by_what_is_stored(histories: Any) -> None:
    """A speaker's name is found in later turns, in every process alike, until all of their turns are gone."""
    nobody = EntityMemory.factory(histories, lambda text: [])
    nobody("s1", "u1").save([HumanMessage("Hello there.", name="Priya")])
    other = EntityMemory.factory(histories, lambda text: [])
    other("s2", "u1").save([HumanMessage("I met Priya today.")])
    assert known(nobody("s1", "u1")) == known(other("s1", "u1")) == {"Priya": ["I met Priya today."]}
    nobody("s1", "u1").clear()
    other("s2", "u1").save([HumanMessage("Where is Marlin?", name="Marlin")])
    other("s2", "u1").clear()
    for memories in (nobody, other):
        memories("s3", "u1").save([HumanMessage(f"Priya and Marlin called {id(memories)}.")])
    assert known(nobody("s1", "u1")) == known(other("s1", "u1")) == {}


def test_indexing_anew_with_little_room(histories: Any) -> None:
    """Each turn is read again, although other users take the room of this one meanwhile."""
    first = EntityMemory.factory(histories, lambda text: [], cache_bytes=0)
    for number in range(2500):
        histories("s1", "u1").add_messages([HumanMessage(f"Nemo swims {number}.")])
    assert first("s1", "u1").index(progress=False) == 2500

    def extract(text: str) -> list[Mention]:
        later("s2", "u2").entities()
        return [Mention("Nemo", "PERSON", 0, 4)]

    later = EntityMemory.factory(histories, extract, cache_bytes=0)
    assert later("s1", "u1").index(progress=False, anew=True) == 2500
    (nemo,) = first("s1", "u1").entities()
    assert nemo.name == "Nemo"


def test_users_without_any_names_leave_the_process(histories: Any) -> None:
    """Their turns take memory, too: with little room only the last of many users is held."""
    entities = EntityMemory.factory(histories, Extractor(), cache_bytes=10_000)
    for i in range(30):
        entities("s1", f"u{i}").save([HumanMessage("nobody was named")])
        entities("s1", f"u{i}").load("Who?")
    assert len(list(entities._core.log._users.values())) < 10


def test_names_that_are_given_later(histories: Any, call: Callable[..., Any]) -> None:
    """`index(anew=True)` reads turns again that are indexed already, and stores what it found there."""
    EntityMemory(histories, Extractor(), "s1", user_id="u1").save([HumanMessage("Nemo met Marlin.")])
    later = EntityMemory(histories, Extractor(), "s1", user_id="u1", names=["Marlin"])
    assert set(known(later)) == {"Nemo"}
    assert call(later, "index", progress=False) == 0
    assert call(later, "index", progress=False, anew=True) == 1
    another_process = EntityMemory(histories, Extractor(), "s1", user_id="u1")
    assert set(known(later)) == set(known(another_process)) == {"Nemo", "Marlin"}


def test_an_extractor_that_fails_is_tried_again(histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The turn is stored, the failure is logged without its text, and the next look reads the turn."""
    extract = Extractor()
    entities = EntityMemory.factory(histories, extract)
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[entities])
    extract.fails = True
    entities("s1", "u1").save([HumanMessage("Nemo swims.")])
    assert known(entities("s1", "u1")) == {}
    assert "could not read turns" in caplog.text
    assert "model is down" not in caplog.text
    extract.fails = False
    extract.read.clear()
    assert known(entities("s1", "u1")) == {}
    assert extract.read == []  # it is left alone for a minute
    entities._core.log._failed_at = float("-inf")
    chat.invoke("Dory sleeps.", session("s1", user_id="u1"))
    assert known(entities("s1", "u1")) == {"Nemo": ["Nemo swims."], "Dory": ["Dory sleeps."]}


@pytest.mark.parametrize("damaged", [b"", b"\x00\xff", pack([1]), pack([[0, "human", "", "1", 1, "x"]]), pack([["x"]])])
def test_damaged_facts_are_made_anew(histories: Any, damaged: bytes) -> None:
    """What cannot be read counts as lacking."""
    memory = EntityMemory.factory(histories, Extractor())("s1", "u1")
    memory.save([HumanMessage("Nemo swims.", id="1")])
    (row,) = shown(memory)
    store = histories("s1", "u1").turn_store
    store.run(store.keep_index("u1", ENTITIES, [(row.place, row.op, damaged)]))
    for each in (memory, EntityMemory.factory(histories, Extractor())("s1", "u1")):
        assert known(each) == {"Nemo": ["Nemo swims."]}


def test_a_damaged_decision_is_left_out(histories: Any) -> None:
    """The others hold."""
    memory = EntityMemory.factory(histories, Extractor())("s1", "u1")
    memory.save([HumanMessage("Nemo swims.")])
    store = histories("s1", "u1").turn_store
    for data in (b"\x00", pack(["shout", "a", "b", "a", "b"]), pack([]), pack([["rename"]])):
        store.run(store.decide("u1", ENTITIES, data))
    memory.rename("Nemo", "Captain")
    assert [entity.name for entity in memory.entities()] == ["Captain"]


def test_two_factories_agree(path: Path, histories: Any) -> None:
    """What one wrote the other sees at its next look; decisions outlive a session, and go with the user."""
    with SQLiteChatMessageHistory.factory(path) as again:
        one, two = (EntityMemory.factory(place, Extractor())("s1", "u1") for place in (histories, again))
        for i in range(6):
            (one, two)[i % 2].save([HumanMessage(f"Nemo counted {i}")])
            assert known(one) == known(two)
        assert len(one.entities()[0].facts) == 6
        one.rename("Nemo", "Captain")
        assert [entity.name for entity in two.entities()] == ["Captain"]
        two.clear()
        assert one.entities() == []
        one.save([HumanMessage("Nemo is back")])
        assert [entity.name for entity in two.entities()] == ["Captain"]
        again.purge("u1")
        one.save([HumanMessage("Nemo is new")])
        assert [entity.name for entity in two.entities()] == ["Nemo"]


def test_another_process(path: Path, histories: Any) -> None:
    """A process that was started later knows the same."""
    memory = EntityMemory.factory(histories, Extractor())("s1", "u1")
    memory.save([HumanMessage("Nemo swims. Bob sings.")])
    memory.merge("Bob", into="Robert")
    program = f"""
        from langchain_memkit import EntityMemory, SQLiteChatMessageHistory
        histories = SQLiteChatMessageHistory.factory({str(path)!r})
        print([entity.name for entity in EntityMemory(histories, lambda text: [], "s2", user_id="u1").entities()])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['Nemo', 'Robert']"


def test_threads_lose_nothing(histories: Any) -> None:
    """Eight threads that save at once, in two sessions."""
    entities = EntityMemory.factory(histories, Extractor())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: entities(f"s{i % 2}", "u1").save([HumanMessage(f"Nemo saw {i}")]), range(40)))
    assert len(entities("s9", "u1").about("Nemo")) == 40


def test_a_turn_that_began_before_a_clear(histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is not stored; the next one is."""
    late = EntityMemory.factory(histories, Extractor())("s1", "u1")
    late.save([HumanMessage("Nemo swims.")])
    late.load("Nemo?")
    histories("s1", "u1").clear()
    late.save([HumanMessage("Nemo sleeps.")])
    assert late.entities() == []
    assert "does not keep a turn" in caplog.text
    late.load("Nemo?")
    late.save([HumanMessage("Nemo eats.")])
    assert known(late) == {"Nemo": ["Nemo eats."]}


@pytest.mark.needs_retired_classes
@pytest.mark.filterwarnings("ignore:The class `InMemoryChatMessageHistory`")
def test_histories_of_another_package(histories: Any) -> None:
    """The memory keeps the turns that it is told of in its own histories, each once."""
    from langchain_core.chat_history import InMemoryChatMessageHistory

    others: dict[str, Any] = {}
    entities = EntityMemory.factory(histories, Extractor())
    chat = create_runnable_with_message_history(
        FakeChatModel(), lambda s, user_id=None: others.setdefault(s, InMemoryChatMessageHistory()), memories=[entities]
    )
    for text in ("Nemo swims.", "Dory sleeps."):
        chat.invoke(text, session("s1", user_id="u1"))
    assert known(entities("s2", "u1")) == {"Nemo": ["Nemo swims."], "Dory": ["Dory sleeps."]}
    assert len(histories("s1", "u1").messages) == 4
    assert purge_user("u1", entities) == [{"sessions": 1, "turns": 2}]
    assert entities("s2", "u1").entities() == []


def test_more_users_than_are_held(histories: Any) -> None:
    """With no room for them only the last user is held, and the others are read again."""
    entities = EntityMemory.factory(histories, Extractor(), cache_bytes=0)
    for user in ("u1", "u2", "u3"):
        entities("s1", user).save([HumanMessage(f"Nemo knows {user}")])
    for user in ("u1", "u2", "u3"):
        assert known(entities("s1", user)) == {"Nemo": [f"Nemo knows {user}"]}
    assert len(entities._core.log._users.values()) == 1


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.sampled_from("xy"), st.sampled_from(["save", "clear", "purge", "load"])),
        max_size=25,
    )
)
def test_users_never_meet(steps: list[tuple[str, str, str]]) -> None:
    """Random operations of two users with equal sessions and names: each knows what was said, and nothing else."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    entities = EntityMemory.factory(histories, Extractor(is_local=True))
    said: dict[tuple[str, str], list[str]] = {}
    for i, (user, name, verb) in enumerate(steps):
        memory = entities(name, user)
        if verb == "save":
            said.setdefault((user, name), []).append(f"Nemo told {user} {i}")
            memory.save([HumanMessage(said[user, name][-1])])
        elif verb == "clear":
            memory.clear()
            said.pop((user, name), None)
        elif verb == "purge":
            entities.purge(user)
            said = {place: texts for place, texts in said.items() if place[0] != user}
        wanted = sorted(text for place, texts in said.items() if place[0] == user for text in texts)
        assert sorted(fact.text for fact in memory.about("Nemo")) == wanted
