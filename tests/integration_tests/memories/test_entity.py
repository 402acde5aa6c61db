"""Entity memory over histories on MongoDB: isolation, writers that meet, clears and restarts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import MongoDBChatMessageHistory, purge_user
from langchain_memkit.base import Mention
from langchain_memkit.memories.entity import EntityMemory
from langchain_memkit.messages.notes import records_of

NAMES = re.compile(r"\b(?:Nemo|Dory|Harrison|Harison)\b")


def extract(text: str) -> list[Mention]:
    """A few names, as they are written."""
    return [Mention(m.group(), "PERSON", m.start(), m.end()) for m in NAMES.finditer(text)]


@pytest.fixture
def make_histories(server: Any, database: str) -> Iterator[Callable[[], Any]]:
    """Opens histories in the same collection, each time anew."""
    opened: list[Any] = []

    def make() -> Any:
        opened.append(MongoDBChatMessageHistory.factory(server.uri, database))
        return opened[-1]

    yield make
    for histories in opened:
        histories.close()


def texts(loaded: list[Any]) -> list[str]:
    """What is recalled."""
    return [record.text for message in loaded for record in records_of(message)]


def test_a_second_factory_sees_the_same(make_histories: Callable[[], Any]) -> None:
    """After a restart: entities, decisions, hostile text and times."""
    memory = EntityMemory.factory(make_histories(), extract)("s1", "u1")
    memory.save(
        [HumanMessage("Harrison likes tea.\n</records> \x00 \ud800", id="1", name="Ann"), AIMessage("Nemo is here.")]
    )
    memory.save([HumanMessage("I saw Harison and Dory")])
    memory.merge("Dory", into="Nemo")
    other = EntityMemory.factory(make_histories(), extract)("s2", "u1")
    assert other.entities() == memory.entities()
    assert {e.name: len(e.facts) for e in other.entities()} == {"Harrison": 2, "Nemo": 2}
    assert other.load("harrison?")[0].text == memory.load("harrison?")[0].text
    assert other.load("Harrison?")[0].text.count("</records>") == 1
    memory.clear()
    assert other.entities() == []


def test_eight_threads_lose_nothing(make_histories: Callable[[], Any]) -> None:
    """Eight writers on one entity, in two factories."""
    factories = [EntityMemory.factory(make_histories(), extract) for _ in range(2)]

    def write(n: int) -> None:
        for i in range(4):
            factories[n % 2](f"s{n % 3}", "u1").save([HumanMessage(f"Nemo counted {n} and {i}")])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert [len(factory("s1", "u1").entities()[0].facts) for factory in factories] == [32, 32]


async def test_eight_tasks_lose_nothing(make_histories: Callable[[], Any]) -> None:
    """The same on an event loop, natively async."""
    histories = make_histories()
    entities = EntityMemory.factory(histories, extract)

    async def write(n: int) -> None:
        for i in range(4):
            await entities(f"s{n % 3}", "u1").asave([HumanMessage(f"Nemo counted {n} and {i}")])

    await asyncio.gather(*map(write, range(8)))
    assert len((await entities("s1", "u1").aentities())[0].facts) == 32
    assert len(texts(await entities("s1", "u1").aload("Where is Nemo?"))) > 3
    await entities("s1", "u1").aclear()
    assert {s.session_id for s in await entities.alist_sessions("u1")} == {"s0", "s2"}
    assert (await entities.apurge("u1"))["turns"] > 0
    assert await entities("s1", "u1").aentities() == []
    await histories.aclose()


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("verb", ["clear", "purge"])
def test_a_save_under_way_during_clear(
    make_histories: Callable[[], Any], verb: str, known: bool, is_local: bool
) -> None:
    """Text that was erased by another process does not come back, whether names are read before the append or after."""
    eraser = EntityMemory.factory(make_histories(), extract)

    def meanwhile(text: str) -> list[Mention]:
        if "late" in text:
            eraser("s1", "u1").clear() if verb == "clear" else eraser.purge("u1")
        return extract(text)

    meanwhile.is_local = is_local  # type: ignore[attr-defined]
    histories = make_histories()
    memory = EntityMemory.factory(histories, meanwhile)("s1", "u1")
    if known:
        memory.save([HumanMessage("Nemo swims")])
    memory.save([HumanMessage("Nemo came late")])
    assert memory.entities() == eraser("s1", "u1").entities() == []
    assert histories("s1", "u1").messages == []


def test_facts_go_with_their_messages(make_histories: Callable[[], Any]) -> None:
    """Deleted turns are not shown, and a purged user leaves neither facts nor decisions."""
    histories = make_histories()
    memory = EntityMemory.factory(histories, extract)("s1", "u1")
    for i, text in enumerate(("Nemo swims", "Nemo sleeps", "Nemo eats")):
        histories("s1", "u1").append_turn([HumanMessage(text, id=str(i))])
    histories("s1", "u1").delete_turn(2)
    assert texts(memory.load("Nemo?")) == ["Nemo swims", "Nemo eats"]
    memory.rename("Nemo", "Captain")
    assert purge_user("u1", histories) == [{"sessions": 1, "turns": 3}]
    assert memory.entities() == []
    kept = list(histories("s1", "u1").collection.find({"user_id": "u1"}))
    assert all("index" not in document and "messages" not in document for document in kept)
    memory.load("Nemo?")
    memory.save([HumanMessage("Nemo is new")])
    assert [entity.name for entity in memory.entities()] == ["Nemo"]


users = st.sampled_from(["u1", "u2", "u/1"])
steps = st.lists(st.tuples(users, st.sampled_from(["s1", "s2"]), st.sampled_from("sssscp")), max_size=12)


@pytest.fixture
def histories(standalone: Any, database: str) -> Iterator[Any]:
    """Histories on the standalone server."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database) as opened:
        yield opened


def test_users_never_meet(histories: Any) -> None:
    """Whatever users do with the same name, each sees what it said and nothing else; purged, nothing is left."""

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps)
    def check(operations: list[tuple[str, str, str]]) -> None:
        entities = EntityMemory.factory(histories, extract)
        said: dict[str, set[tuple[str, str]]] = {"u1": set(), "u2": set(), "u/1": set()}
        for i, (user, session, verb) in enumerate(operations):
            text = f"Nemo is {user}'s, {i}"
            if verb == "s":
                entities(session, user).save([HumanMessage(text)])
                said[user].add((session, text))
            elif verb == "c":
                entities(session, user).clear()
                said[user] = {pair for pair in said[user] if pair[0] != session}
            else:
                entities.purge(user)
                said[user] = set()
        for user, expected in said.items():
            found = {(f.session_id, f.text) for e in entities("s1", user).entities() for f in e.facts}
            assert found == expected
            assert set(texts(entities("s1", user).load("Nemo?"))) <= {text for _, text in expected}
            entities.purge(user)
            assert entities("s1", user).entities() == []

    check()
