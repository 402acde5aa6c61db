"""What a turn costs on MongoDB, as the profiler of a real server counts it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient, monitoring

from langchain_memkit import (
    EntityMemory,
    MessageHistoryMiddleware,
    MongoDBChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
)
from langchain_memkit._sync import drive
from langchain_memkit.testing import FakeChatModel

CONFIG: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
NOBODYS: Any = {"configurable": {"session_id": "s1"}}


class Profile:
    """Counts the commands on one collection of a server."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def count(self, work: Callable[[], Any], collection: str = "message_store") -> Counter[str]:
        """The reads and writes that this work sends to a collection, by name."""
        self._database.command("profile", 2)
        try:
            work()
        finally:
            self._database.command("profile", 0)
        entries = self._database["system.profile"].find({"ns": f"{self._database.name}.{collection}"})
        sent = [next(iter(entry["command"])) if entry["op"] == "command" else entry["op"] for entry in entries]
        self._database["system.profile"].drop()
        names = {"query": "find"}
        return Counter(names.get(name, name) for name in sent if name != "listIndexes")


class Listener(monitoring.CommandListener):
    """Hears the commands of one client."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Note one, but for those that no turn waits for."""
        if event.command_name not in ("hello", "ping", "endSessions", "listIndexes"):
            self.sent.append(event.command_name)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Do nothing."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Do nothing."""


def no_names(text: str) -> list[Any]:
    """An extractor that finds nothing: the app's own names are found without one."""
    return []


@pytest.fixture
def profile(standalone: Any, database: str) -> Iterator[Profile]:
    """The profiler of the test's own database."""
    with MongoClient(standalone.uri) as client:
        yield Profile(client[database])


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Callable[[Any, list[Any], Any], None]:
    """`run(runnable, inputs, config)`: one turn after the other."""

    def go(runnable: Any, inputs: list[Any], config: Any) -> None:
        if request.param == "sync":
            for value in inputs:
                runnable.invoke(value, config)
        else:
            asyncio.run(together(runnable, inputs, config))

    async def together(runnable: Any, inputs: list[Any], config: Any) -> None:
        for value in inputs:
            await runnable.ainvoke(value, config)

    return go


def agent_of(histories: Any) -> Any:
    """An agent without a checkpointer, as an app that keeps its transcript here has it."""
    return create_agent(FakeChatModel(), middleware=[MessageHistoryMiddleware(histories)])


QUESTIONS = [f"question {n}" for n in range(10)]
WITH_IDS = [[HumanMessage(f"question {n}", id=f"id {n}")] for n in range(10)]
STATES = [{"messages": [HumanMessage(text)]} for text in QUESTIONS]


@pytest.mark.parametrize("preprocessor", [None, "trim"])
def test_turns_of_a_chain(standalone: Any, database: str, profile: Profile, run: Any, preprocessor: str | None) -> None:
    """In a session that is going on each turn is one find and one insert, with and without a preprocessor."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    trim = create_trim_preprocessor(max_tokens=400) if preprocessor else None
    chain = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=trim)
    run(chain, ["hello"], CONFIG)
    assert profile.count(lambda: run(chain, QUESTIONS, CONFIG)) == {"find": 10, "insert": 10}
    assert profile.count(lambda: run(chain, WITH_IDS, CONFIG)) == {"find": 20, "insert": 10}
    assert [turn.seq for turn in histories("s1", "u1").iter_turns()] == list(range(1, 22))


def test_turns_with_summaries(standalone: Any, database: str, profile: Profile, run: Any) -> None:
    """The summary comes with the history, in one find. One that is due takes a look and two writes more, and a look."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    asked: list[object] = []

    def summarizer(prompt: object) -> str:
        asked.append(prompt)
        return "They talk of numbers."

    budget: Any = {"max_tokens": 4_000, "trigger": ("messages", 30), "keep": ("messages", 4)}
    preprocessor = create_history_preprocessor(summarizer, **budget)
    chain = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=preprocessor)
    run(chain, ["hello"], CONFIG)
    assert profile.count(lambda: run(chain, QUESTIONS, CONFIG)) == {"find": 10, "insert": 10}
    run(chain, QUESTIONS[:3], CONFIG)
    assert not asked
    due = profile.count(lambda: run(chain, ["and now?"], CONFIG) or run(chain, ["and now?"], CONFIG))
    assert len(asked) == 1
    assert due == {"find": 2 + 2, "insert": 2, "update": 2}
    assert profile.count(lambda: run(chain, QUESTIONS, CONFIG)) == {"find": 10, "insert": 10}
    assert len(asked) == 1


def test_turns_of_an_agent(standalone: Any, database: str, profile: Profile, run: Any) -> None:
    """Each run of an agent is two finds, at the same time, and one insert."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    agent = agent_of(histories)
    run(agent, [{"messages": "hello"}], CONFIG)
    assert profile.count(lambda: run(agent, STATES, CONFIG)) == {"find": 20, "insert": 10}
    assert [len(turn.messages) for turn in histories("s1", "u1").iter_turns()] == [2] * 11


def test_turns_of_nobody(standalone: Any, database: str, profile: Profile, run: Any) -> None:
    """A session without a user may have rows of langchain-mongodb below, until ours fill the window."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database, history_size=4)
    chain = create_runnable_with_message_history(FakeChatModel(), histories)
    run(chain, QUESTIONS, NOBODYS)
    assert profile.count(lambda: run(chain, QUESTIONS, NOBODYS)) == {"find": 10, "insert": 10}


def test_turns_that_expire(standalone: Any, database: str, profile: Profile, run: Any) -> None:
    """With a ttl positions free themselves, so the save looks where the session stands: one find more."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database, ttl=3600)
    chain = create_runnable_with_message_history(FakeChatModel(), histories)
    run(chain, ["hello"], CONFIG)
    assert profile.count(lambda: run(chain, QUESTIONS, CONFIG)) == {"find": 20, "insert": 10}


def test_first_turns(standalone: Any, database: str, profile: Profile, run: Any) -> None:
    """The first turn of a session is at most four finds and two writes; the first after a clear, one and two."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    chain = create_runnable_with_message_history(FakeChatModel(), histories)
    run(chain, ["hello"], NOBODYS)
    assert profile.count(lambda: run(chain, ["hello"], CONFIG)) == {"find": 4, "update": 1, "insert": 1}
    histories("s1", "u1").clear()
    assert profile.count(lambda: run(chain, ["hello"], CONFIG)) == {"find": 1, "update": 1, "insert": 1}
    assert profile.count(lambda: run(chain, ["hello"], CONFIG)) == {"find": 1, "insert": 1}


def recalling(standalone: Any, database: str, model: Any) -> tuple[Any, Any]:
    """A chain with a vector memory over its own histories, and the memories."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    memories = VectorMemory.factory(histories, WordLlamaEmbeddings())
    return create_runnable_with_message_history(model, histories, memories=[memories]), memories


def records_of(memories: Any) -> int:
    """How many records a memory holds of the user."""
    return len(drive(memories._core.log.look("u1")).index)


def test_turns_with_a_vector_memory(standalone: Any, database: str, profile: Profile, run: Any) -> None:
    """In a session that is going on a turn is one read more, of what changed; the turn is written with its index."""
    chain, memories = recalling(standalone, database, FakeChatModel())
    run(chain, ["Where is the parrot?", "Who feeds the parrot?"], CONFIG)
    assert profile.count(lambda: run(chain, QUESTIONS, CONFIG)) == {"find": 20, "insert": 10}
    assert profile.count(lambda: records_of(memories)) == {"find": 1}
    assert records_of(memories) == 12


def test_turns_with_a_vector_memory_of_two_processes(
    standalone: Any, database: str, profile: Profile, run: Any
) -> None:
    """What another process adds to other sessions of the user comes with the same read."""
    models = [FakeChatModel(), FakeChatModel()]
    made = [recalling(standalone, database, model) for model in models]
    configs: list[Any] = [{"configurable": {"session_id": f"s{n}", "user_id": "u1"}} for n in range(2)]

    def in_turns(words: list[str]) -> None:
        for word in words:
            for (chain, _), config in zip(made, configs, strict=True):
                run(chain, [f"The {word} of session {config['configurable']['session_id']} is here."], config)

    in_turns(["parrot", "lantern"])
    found = profile.count(lambda: in_turns(["bicycle", "saddle", "candle"]))
    run(made[1][0], ["Where is the candle?"], configs[1])
    shown = models[1].calls[-1][-2].text
    assert "The candle of session s0 is here." in shown
    assert [records_of(memories) for _, memories in made] == [11, 11]
    assert found == {"find": 12, "insert": 6}


def test_first_turns_with_a_vector_memory(standalone: Any, database: str, profile: Profile, run: Any) -> None:
    """The first turn of a session is a read more, and two that any memory needs; a greeting is one more at most."""
    chain, _ = recalling(standalone, database, FakeChatModel())
    run(chain, ["Where is the parrot?", "Who feeds the parrot?"], CONFIG)
    other: Any = {"configurable": {"session_id": "s2", "user_id": "u1"}}
    first = profile.count(lambda: run(chain, ["Who feeds the cat?"], other))
    assert first == {"find": 4 + 3, "update": 1, "insert": 1}
    # it is read beside the history, before it is known that nothing is recalled, unless all threads are busy
    greeting = profile.count(lambda: run(chain, ["Hello!"], other))
    assert greeting in ({"find": 2, "insert": 1}, {"find": 1, "insert": 1})


def test_others_have_written_meanwhile(standalone: Any, database: str, profile: Profile) -> None:
    """A turn that others overtook looks again, once, and goes behind theirs."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    history = histories("s1", "u1")
    history.add_user_message("first")
    view = history.view()
    history.add_user_message("in between")
    late = [HumanMessage("late"), AIMessage("noted")]
    sent = profile.count(lambda: history.append_turn(late, epoch=view.epoch, since=view.read_at, head=view.head))
    assert [message.text for message in history.messages] == ["first", "in between", "late", "noted"]
    assert sent["insert"] == 2
    assert sent["find"] <= 3  # whether it is stored already, and where the session stands


@pytest.mark.parametrize("is_local", [True, False])
def test_turns_with_entities(standalone: Any, database: str, profile: Profile, run: Any, is_local: bool) -> None:
    """A quick extractor costs a look before the answer; a slow one also its facts after it."""

    def extract(text: str) -> list[Any]:
        return no_names(text)

    extract.is_local = is_local  # type: ignore[attr-defined]
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    entities = EntityMemory.factory(histories, extract, names=["Bob"])
    chain = create_runnable_with_message_history(FakeChatModel(), histories, memories=[entities])
    run(chain, ["Bob sings."], CONFIG)
    found = profile.count(lambda: run(chain, [f"Bob sings song {n}." for n in range(10)], CONFIG))
    quick = {"find": 20, "insert": 10}
    assert found == (quick if is_local else {"find": 20, "insert": 10, "update": 10})
    assert len(entities("s1", "u1").entities()[0].facts) == 11


class OnAServer(DeterministicFakeEmbedding):
    """A model that has to be asked."""

    is_local: bool = False


@pytest.mark.parametrize("is_local", [True, False])
def test_turns_with_two_memories(standalone: Any, database: str, profile: Profile, run: Any, is_local: bool) -> None:
    """Each memory looks before the answer, and stores after the turn what was not stored with it."""

    def extract(text: str) -> list[Any]:
        return no_names(text)

    extract.is_local = is_local  # type: ignore[attr-defined]
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    entities = EntityMemory.factory(histories, extract, names=["Bob"])
    recall = VectorMemory.factory(histories, OnAServer(size=8, is_local=is_local))
    chain = create_runnable_with_message_history(FakeChatModel(), histories, memories=[entities, recall])
    run(chain, ["Bob sings."], CONFIG)
    sent = profile.count(lambda: run(chain, [f"Bob sings song {n}." for n in range(10)], CONFIG))
    assert sent == {"find": 30, "insert": 10} | ({} if is_local else {"update": 20})
    assert len(entities("s1", "u1").entities()[0].facts) == 11
    assert len(recall("s1", "u1").search("song", k=20)) == 11


def test_a_decision(standalone: Any, database: str, profile: Profile) -> None:
    """It is a look and an insert, and the next look finds it."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    memory = EntityMemory.factory(histories, no_names, names=["Bob"])("s1", "u1")
    memory.save([HumanMessage("Bob sings.")])
    memory.entities()
    assert profile.count(lambda: memory.rename("Bob", "Robert")) == {"find": 2, "insert": 1}
    assert [entity.name for entity in memory.entities()] == ["Robert"]


def test_turns_that_replace_others(standalone: Any, database: str, profile: Profile, run: Any) -> None:
    """An answer given anew is a find, an insert, and a deletion of a summary; reading jumps over what was replaced."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database, history_size=6)
    history, chain = histories("s1", "u1"), create_runnable_with_message_history(FakeChatModel(), histories)
    run(chain, QUESTIONS, CONFIG)
    assert profile.count(lambda: run(chain, ["again"], CONFIG | at(10))) == {"find": 1, "insert": 1, "remove": 1}
    by_hand = [HumanMessage("by hand")]
    assert profile.count(lambda: history.edit(9, by_hand)) == {"find": 5, "insert": 1, "remove": 1}
    for n in range(300):
        history.append_turn([HumanMessage(f"long {n}")])
    run(chain, ["short"], CONFIG | at(3))
    assert profile.count(lambda: history.messages) == {"find": 2}
    assert [m.text for m in history.messages][::2] == ["question 0", "question 1", "short"]
    assert profile.count(lambda: run(chain, QUESTIONS, CONFIG)) == {"find": 12, "insert": 10}  # two jumps
    assert profile.count(lambda: run(chain, WITH_IDS, CONFIG)) == {"find": 20, "insert": 10}


def test_forward_reading_of_what_was_never_edited(standalone: Any, database: str, profile: Profile) -> None:
    """A session without edits costs no query for them, nor one for a clear that might erase them meanwhile."""
    history = MongoDBChatMessageHistory.factory(standalone.uri, database)("s1", "u1")
    history.append_turn([HumanMessage("a")])
    assert profile.count(lambda: list(history.iter_turns())) == {"find": 2}
    history.edit(1, [HumanMessage("b")])
    assert profile.count(lambda: list(history.iter_turns())) == {"find": 4}


def at(replaces: int) -> Any:
    """The config of a turn that replaces others."""
    return {"configurable": {**CONFIG["configurable"], "replaces": replaces}}
