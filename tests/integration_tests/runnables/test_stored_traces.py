"""`trace=True`: what the models of a turn were given is stored in the turn's own write, without text twice."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from pymongo import MongoClient

from langchain_memkit import (
    KeyValueMemory,
    MessageHistoryMiddleware,
    MongoDBChatMessageHistory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    explain_last_turn,
    explain_stored_turn,
)
from langchain_memkit.backends.mongodb.turns import MongoTurnStore
from langchain_memkit.explain import aexplain_stored_turn
from langchain_memkit.testing import FakeChatModel

S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}


def prompt_of(system: str) -> Any:
    """A prompt with these words of the app's."""
    return ChatPromptTemplate.from_messages(
        [("system", system), ("placeholder", "{chat_history}"), ("human", "{input}")]
    )


PROMPT = prompt_of("You are kind.")
BOOKS = KeyValueMemory({"The Skeleton Songs": "Poems by Arabella Dusk."})
USAGE: Any = {"input_tokens": 20, "output_tokens": 3, "total_tokens": 23}


@tool
def tide() -> str:
    """Tell when the tide is high."""
    return "At noon."


def write_trace(request: pytest.FixtureRequest, trace: Any) -> None:
    """Write the trace of the turn t1 behind memkit's back, as it is."""
    if request.node.callspec.params["histories"] == "sqlite":
        text = trace if trace == "cut" else json.dumps(trace)
        with closing(sqlite3.connect(request.getfixturevalue("tmp_path") / "chat.db")) as connection, connection:
            connection.execute("UPDATE turns SET trace = ? WHERE op = 'turn:t1'", (text,))
        return
    uri, database = request.getfixturevalue("standalone").uri, request.getfixturevalue("database")
    with MongoClient[Any](uri) as client:
        client[database]["message_store"].update_one({"op": "turn:t1"}, {"$set": {"trace": trace}})


@pytest.fixture(params=["sqlite", "mongodb"])
def histories(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A factory of either store."""
    if request.param == "sqlite":
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
            yield factory
    else:
        uri, database = request.getfixturevalue("standalone").uri, request.getfixturevalue("database")
        with MongoDBChatMessageHistory.factory(uri, database) as factory:
            yield factory


def chain(histories: Any, **options: Any) -> Any:
    """A chain that keeps its traces."""
    model = FakeChatModel(responses=[AIMessage(f"answer {i}", usage_metadata=USAGE) for i in range(9)])
    given: Any = {"preprocessor": create_trim_preprocessor(200), "memories": [BOOKS], "trace": True, **options}
    return create_runnable_with_message_history(PROMPT | model, histories, **given)


async def test_it_comes_back(histories: Any) -> None:
    """The stored trace is that of the process, but for texts that are stored nowhere, and it names every part."""
    chat = chain(histories)
    for question in ("My name is Nemo.", "Who wrote The Skeleton Songs?"):
        await chat.ainvoke({"input": question}, S1)
    traced, stored = explain_last_turn(chat, S1), explain_stored_turn(histories("s1", "u1"))
    assert traced is not None
    assert stored is not None
    assert stored == await aexplain_stored_turn(histories("s1", "u1"), 2)
    assert [(m.part, m.role, m.tokens) for m in stored.messages] == [
        (m.part, m.role, m.tokens) for m in traced.messages
    ]
    texts = [m.text for m in stored.messages]
    assert texts[:3] == ["You are kind.", "My name is Nemo.", "answer 0"]
    assert texts[-1] == "Who wrote The Skeleton Songs?"
    assert [m.part for m in stored.messages if "not stored" in m.text] == ["notes"]
    assert (stored.tokens, stored.turn_id, stored.calls[0].usage) == (traced.tokens, traced.turn_id, USAGE)
    assert [(r.memory, r.about) for r in stored.recalled] == [("KeyValueMemory", "The Skeleton Songs")]
    first = explain_stored_turn(histories("s1", "u1"), 1)
    assert first is not None
    assert [m.part for m in first.messages] == ["system", "input"]
    assert explain_stored_turn(histories("s1", "u1"), 7) is None
    assert "Arabella" not in json.dumps([turn.trace for turn in histories("s1", "u1").iter_turns()])


def test_what_was_not_read(histories: Any) -> None:
    """A stored trace tells how many turns were not read, of a session that was cleared before, too."""
    said: list[Any] = [HumanMessage("It is a long day at sea."), AIMessage("Noted.")]
    for turns in (4, 30):
        histories("s1", "u1").clear()
        for _ in range(turns):
            histories("s1", "u1").add_messages(said)
    chain(histories, preprocessor=create_trim_preprocessor(80)).invoke({"input": "And today?"}, S1)
    stored = explain_stored_turn(histories("s1", "u1"))
    assert stored is not None
    assert stored.kept + stored.dropped + 2 * (stored.unread_turns or 0) == 60


def test_not_asked_for(histories: Any) -> None:
    """Without `trace=True` nothing of it is stored."""
    chain(histories, trace=False).invoke({"input": "Hello."}, S1)
    assert explain_stored_turn(histories("s1", "u1")) is None


def test_redacted(histories: Any) -> None:
    """With `before_save` no text at all is kept, and no name: what it would have changed is not known."""
    notes = KeyValueMemory({"HIV test of Peter": {"text": "Negative.", "source": "letters/peter.md"}})
    chat = chain(
        histories,
        memories=[notes],
        before_save=lambda messages: [m.model_copy(update={"content": "***"}) for m in messages],
    )
    chat.invoke({"input": "My code is blue heron. What about the HIV test of Peter?"}, S1)
    (turn,) = histories("s1", "u1").iter_turns()
    assert turn.trace["calls"][0]["messages"]
    assert not any(message["text"] for message in turn.trace["shown"])
    assert [record["memory"] for record in turn.trace["recalled"]] == ["KeyValueMemory"]
    stored = explain_stored_turn(histories("s1", "u1"))
    assert stored is not None
    assert [(r.about, r.source) for r in stored.recalled] == [("", "")]
    for word in ("heron", "HIV", "Peter", "peter", "kind"):
        assert word not in json.dumps(turn.trace)


def test_each_text_once(histories: Any) -> None:
    """A run of many calls stores the system prompt once, and each message once, and is shown as it was."""
    system = "Be brief. " * 2_000
    calls = [AIMessage("", tool_calls=[{"name": "tide", "args": {}, "id": f"c{n}"}]) for n in range(20)]
    agent = create_agent(
        FakeChatModel(responses=[*calls, "At noon."]),
        [tide],
        system_prompt=system,
        middleware=[MessageHistoryMiddleware(histories, trace=True)],
    )
    agent.invoke({"messages": [("user", "When is high tide?")]}, S1)
    (turn,) = histories("s1", "u1").iter_turns()
    data = json.dumps(turn.trace)
    assert data.count("Be brief.") == 2_000
    assert len(data) < 50_000
    traced, stored = explain_last_turn(agent, S1), explain_stored_turn(histories("s1", "u1"))
    assert traced is not None
    assert stored is not None
    assert [[(m.part, m.text) for m in call.messages] for call in stored.calls] == [
        [(m.part, m.text) for m in call.messages] for call in traced.calls
    ]


def test_surrogates(histories: Any) -> None:
    """Half an emoji in a system prompt and in a model's name costs neither the turn nor the trace."""
    prompt = prompt_of("cut \ud83d off")
    model = FakeChatModel(responses=[AIMessage("ok", response_metadata={"model_name": "m\ud83d"})])
    chat = create_runnable_with_message_history(prompt | model, histories, trace=True)
    chat.invoke({"input": "Hello \ud83d."}, S1)
    stored = explain_stored_turn(histories("s1", "u1"))
    assert stored is not None
    assert [m.text for m in stored.messages] == ["cut \ud83d off", "Hello \ud83d."]
    assert [call.model for call in stored.calls] == ["m\ud83d"]


@pytest.mark.parametrize("size", [2_000_000, 17_000_000])
def test_a_long_trace_is_dropped(histories: Any, size: int, caplog: pytest.LogCaptureFixture) -> None:
    """A trace that is too long is dropped and logged, never the turn."""
    prompt = prompt_of("x" * size)
    model = FakeChatModel(responses=["a secret answer"])
    create_runnable_with_message_history(prompt | model, histories, trace=True).invoke({"input": "Hello."}, S1)
    (turn,) = histories("s1", "u1").iter_turns()
    assert ([m.text for m in turn.messages], turn.trace) == (["Hello.", "a secret answer"], None)
    (told,) = [record.getMessage() for record in caplog.records if "trace" in record.getMessage()]
    assert "is not stored" in told
    assert "secret" not in told


def test_no_room_for_a_trace(histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A turn that fills a document is stored without its trace; SQLite has room for both."""
    prompt = prompt_of("x" * 900_000)
    answer = "y" * 16_000_000
    chat = create_runnable_with_message_history(prompt | FakeChatModel(responses=[answer]), histories, trace=True)
    chat.invoke({"input": "Hello."}, S1)
    (turn,) = histories("s1", "u1").iter_turns()
    assert turn.messages[-1].text == answer
    assert ("no room" in caplog.text) == (turn.trace is None) == isinstance(histories.turn_store, MongoTurnStore)


def test_traces_that_cannot_be_encoded(histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A trace given by an app: of any keys and sizes, or left out and logged."""
    history = histories("s1", "u1")
    odd: Any = [{"a": object()}, {"a": float("nan")}, ["no dict"], {"x": "y" * 1_100_000}]
    for n, trace in enumerate(odd, 1):
        assert history.append_turn([HumanMessage("hi")], trace=trace) == n
        assert caplog.text.count("the trace of a turn is not stored") == n
    good = {"$a.b": 1, "c\x00": "\ud800", "n": 2**70, "": {1: (2, b"3")}}
    history.append_turn([HumanMessage("hi")], trace=good)
    assert [turn.trace for turn in history.iter_turns()] == [None] * len(odd) + [good]
    assert histories.usage("u1") == {}


OLD: Any = {  # as memkit 0.2.0 stored it
    "tokens": {"system": 9, "input": 7}, "max_tokens": None, "dropped": 0, "summarized": 0, "dropped_ids": [],
    "summarized_ids": [], "notes": ["a note"], "counter": "approximate", "searched_for": None, "v": 1, "turn_id": "t1",
    "recalled": [{"memory": "KeyValueMemory", "score": None, "about": "Kiwi", "source": "", "date": None, "text": ""}],
    "ran": [], "seconds": {"load": 0.1},
    "calls": [{
        "purpose": "answer", "model": "m", "tool_tokens": 0, "usage": USAGE, "seconds": 0.1, "error": None,
        "tokens": {"system": 9, "input": 7, "tools": 0},
        "messages": [
            {"part": "system", "role": "system", "text": "You are kind.", "tokens": 9, "id": None},
            {"part": "input", "role": "human", "text": "", "tokens": 7, "id": "q"},
        ],
    }],
}  # fmt: skip


def test_traces_of_0_2_0(histories: Any, request: pytest.FixtureRequest) -> None:
    """What memkit 0.2.0 stored is shown and counted as before."""
    histories("s1", "u1").append_turn([HumanMessage("Hi.", id="q"), AIMessage("Hello!", id="a")], turn_id="t1")
    write_trace(request, OLD)
    stored = explain_stored_turn(histories("s1", "u1"))
    assert stored is not None
    assert [(m.part, m.text) for m in stored.messages] == [("system", "You are kind."), ("input", "Hi.")]
    assert (stored.notes, stored.recalled[0].about, stored.unread_turns) == (["a note"], "Kiwi", 0)
    assert histories.usage("u1") == {"m": {"calls": 1, "input_tokens": 20, "output_tokens": 3}}


DAMAGED: list[Any] = [
    "cut", 7, [], {}, {"v": 2}, {"calls": None}, {"calls": [None, 7]}, {"calls": [{}]}, {"_memkit": "str", "value": 7},
    {**OLD, "calls": [{"usage": "20"}]}, {**OLD, "calls": [{**OLD["calls"][0], "messages": [0, 99]}]},
    {**OLD, "recalled": [{"date": "yesterday"}]}, {**OLD, "calls": [{"usage": {"input_tokens": "x"}, "model": {}}]},
]  # fmt: skip


@pytest.mark.parametrize("damaged", DAMAGED, ids=lambda damaged: repr(damaged)[:40])
def test_a_damaged_trace_costs_itself(histories: Any, request: pytest.FixtureRequest, damaged: Any) -> None:
    """The turn is read, the user's other turns are counted, and `explain_stored_turn` says what is wrong."""
    used = AIMessage("Hello!", id="a", usage_metadata=USAGE)
    histories("s1", "u1").append_turn([HumanMessage("Hi.", id="q"), used], turn_id="t1")
    write_trace(request, damaged)
    histories("s2", "u1").add_messages([HumanMessage("And?"), used.model_copy(update={"id": "b"})])
    assert [m.text for turn in histories("s1", "u1").iter_turns() for m in turn.messages] == ["Hi.", "Hello!"]
    assert histories("s1", "u1").messages[-1].text == "Hello!"
    counted = histories.usage("u1")
    assert counted[""]["input_tokens"] >= 20
    stored = explain_stored_turn(histories("s1", "u1"))
    assert stored is not None
    assert "the trace of turn 1 is damaged" in str(stored)


def test_an_agent(histories: Any) -> None:
    """An agent's run keeps its calls as well."""
    model = FakeChatModel(responses=[AIMessage("Hello!", usage_metadata=USAGE)])
    agent = create_agent(
        model, [], system_prompt="Be brief.", middleware=[MessageHistoryMiddleware(histories, trace=True)]
    )
    agent.invoke({"messages": [("user", "Hi.")]}, S1)
    stored = explain_stored_turn(histories("s1", "u1"))
    assert stored is not None
    assert [(m.part, m.text) for m in stored.messages] == [("system", "Be brief."), ("input", "Hi.")]


def test_it_goes_with_the_turn(histories: Any) -> None:
    """An edit hides it with the turn, a fork copies it, a clear deletes it."""
    chat = chain(histories)
    for question in ("one", "two"):
        chat.invoke({"input": question}, S1)
    history = histories("s1", "u1")
    assert explain_stored_turn(history.fork("s2")) is not None
    history.edit(2, [HumanMessage("zwei"), AIMessage("ZWEI")])
    stored = explain_stored_turn(history)
    assert stored is not None
    assert [m.text for m in stored.messages][-1] == "one"
    history.clear()
    histories("s2", "u1").clear()
    assert explain_stored_turn(history) is None


def test_usage(histories: Any) -> None:
    """Calls are counted by their traces, of turns without one by the answers; of one user, since a time."""
    chat = chain(histories)
    chat.invoke({"input": "one"}, S1)
    chain(histories, trace=False).invoke({"input": "two"}, S1)
    chat.invoke({"input": "three"}, {"configurable": {"session_id": "s2", "user_id": "u1"}})
    chat.invoke({"input": "four"}, {"configurable": {"session_id": "s1", "user_id": "u2"}})
    assert histories.usage("u1") == {"": {"calls": 3, "input_tokens": 60, "output_tokens": 9}}
    assert histories.usage("u2", since=datetime.now(UTC) - timedelta(days=1))[""]["calls"] == 1
    assert histories.usage("u2", since=datetime.now(UTC) + timedelta(days=1)) == {}
    assert histories.usage("nobody") == {}
