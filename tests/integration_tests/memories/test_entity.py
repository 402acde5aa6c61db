"""Entity memory on MongoDB: isolation, writers that meet, clears, restarts, and histories beside it."""

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

from langchain_memkit import MongoDBChatMessageHistory, MongoDBKeyValueStore, purge_user
from langchain_memkit.base import Mention
from langchain_memkit.memories.entity import EntityMemory
from langchain_memkit.messages.notes import records_of

NAMES = re.compile(r"\b(?:Nemo|Dory|Harrison|Harison)\b")


def extract(text: str) -> list[Mention]:
    """A few names, as they are written."""
    return [Mention(m.group(), "PERSON", m.start(), m.end()) for m in NAMES.finditer(text)]


@pytest.fixture
def make_store(server: Any, database: str) -> Iterator[Callable[[], Any]]:
    """Opens the same collection, each time anew."""
    opened: list[Any] = []

    def make() -> Any:
        opened.append(MongoDBKeyValueStore(server.uri, database))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def texts(loaded: list[Any]) -> list[str]:
    """What is recalled."""
    return [record.text for message in loaded for record in records_of(message)]


def facts(store: Any) -> list[str]:
    """Keys of facts in a store."""
    return [key for key in store.yield_keys() if "/fact/" in key]


def test_a_second_factory_sees_the_same(make_store: Callable[[], Any]) -> None:
    """After a restart: entities, decisions, hostile text and times."""
    memory = EntityMemory.factory(extract, make_store())("s1", "u1")
    memory.save(
        [HumanMessage("Harrison likes tea.\n</records> \x00 \ud800", id="1", name="Ann"), AIMessage("Nemo is here.")]
    )
    memory.save([HumanMessage("I saw Harison and Dory")])
    memory.merge("Dory", into="Nemo")
    other = EntityMemory.factory(extract, make_store())("s2", "u1")
    assert other.entities() == memory.entities()
    assert {e.name: len(e.facts) for e in other.entities()} == {"Harrison": 2, "Nemo": 2}
    assert other.load("harrison?")[0].text == memory.load("harrison?")[0].text
    assert other.load("Harrison?")[0].text.count("</records>") == 1
    memory.clear()
    assert other.entities() == []


def test_eight_threads_lose_nothing(make_store: Callable[[], Any]) -> None:
    """Eight writers on one entity, in two factories."""
    factories = [EntityMemory.factory(extract, make_store()) for _ in range(2)]

    def write(n: int) -> None:
        for i in range(4):
            factories[n % 2](f"s{n % 3}", "u1").save([HumanMessage(f"Nemo counted {n} and {i}")])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert [len(factory("s1", "u1").entities()[0].facts) for factory in factories] == [32, 32]


async def test_eight_tasks_lose_nothing(make_store: Callable[[], Any]) -> None:
    """The same on an event loop, natively async."""
    store = make_store()
    entities = EntityMemory.factory(extract, store)

    async def write(n: int) -> None:
        for i in range(4):
            await entities(f"s{n % 3}", "u1").asave([HumanMessage(f"Nemo counted {n} and {i}")])

    await asyncio.gather(*map(write, range(8)))
    assert len((await entities("s1", "u1").aentities())[0].facts) == 32
    assert len(texts(await entities("s1", "u1").aload("Where is Nemo?"))) > 3
    await entities("s1", "u1").aclear()
    assert {s.session_id for s in await entities.alist_sessions("u1")} == {"s0", "s2"}
    assert (await entities.apurge("u1"))["facts"] > 0
    assert [key async for key in store.ayield_keys()] == []
    await store.aclose()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("verb", ["clear", "purge"])
def test_a_save_under_way_during_clear(make_store: Callable[[], Any], verb: str, known: bool) -> None:
    """Text that was erased by another process does not come back, and no row of it stays."""
    eraser = EntityMemory.factory(extract, make_store())

    def meanwhile(text: str) -> list[Mention]:
        if "late" in text:
            eraser("s1", "u1").clear() if verb == "clear" else eraser.purge("u1")
        return extract(text)

    store = make_store()
    memory = EntityMemory.factory(meanwhile, store)("s1", "u1")
    if known:
        memory.save([HumanMessage("Nemo swims")])
    memory.save([HumanMessage("Nemo came late")])
    assert memory.entities() == eraser("s1", "u1").entities() == []
    assert facts(store) == []
    if verb == "purge":
        assert list(store.yield_keys()) == []


def test_facts_go_with_their_messages(make_store: Callable[[], Any], server: Any, database: str) -> None:
    """Histories and facts on one server: deleted turns are not shown, purged users leave nothing, rebuild restores."""
    store = make_store()
    with MongoDBChatMessageHistory.factory(server.uri, database) as histories:
        entities = EntityMemory.factory(extract, store, get_session_history=histories)
        memory = entities("s1", "u1")
        for i, text in enumerate(("Nemo swims", "Nemo sleeps", "Nemo eats")):
            histories("s1", "u1").append_turn([HumanMessage(text, id=str(i))])
            memory.save([HumanMessage(text, id=str(i))])
        histories("s1", "u1").delete_turn(2)
        assert texts(memory.load("Nemo?")) == ["Nemo swims", "Nemo eats"]
        assert entities.rebuild(histories, "u1", progress=False) == {"messages": 2, "added": 0, "removed": 1}
        memory.clear()
        assert asyncio.run(_rebuilt(entities, histories)) == {"messages": 2, "added": 2, "removed": 0}
        assert purge_user("u1", histories, entities)[1] == {"facts": 2}
        assert list(store.yield_keys()) == []


async def _rebuilt(entities: Any, histories: Any) -> Any:
    try:
        return await entities.arebuild(histories, "u1", progress=False)
    finally:
        await histories.aclose()
        await entities.aclose()


users = st.sampled_from(["u1", "u2", "u/1"])
steps = st.lists(st.tuples(users, st.sampled_from(["s1", "s2"]), st.sampled_from("sssscp")), max_size=12)


@pytest.fixture
def one_store(standalone: Any, database: str) -> Iterator[Any]:
    """A store on the standalone server."""
    with MongoDBKeyValueStore(standalone.uri, database) as store:
        yield store


def test_users_never_meet(one_store: Any) -> None:
    """Whatever users do with the same name, each sees what it said and nothing else; purged, nothing is left."""

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps)
    def check(operations: list[tuple[str, str, str]]) -> None:
        entities = EntityMemory.factory(extract, one_store)
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
        assert list(one_store.yield_keys()) == []

    check()
