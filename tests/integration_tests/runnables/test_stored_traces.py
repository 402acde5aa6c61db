"""`trace=True`: what the models of a turn were given is stored in the turn's own write, without text twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate

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
from langchain_memkit.explain import aexplain_stored_turn
from langchain_memkit.testing import FakeChatModel

S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
PROMPT = ChatPromptTemplate.from_messages(
    [("system", "You are kind."), ("placeholder", "{chat_history}"), ("human", "{input}")]
)
BOOKS = KeyValueMemory({"The Skeleton Songs": "Poems by Arabella Dusk."})
USAGE: Any = {"input_tokens": 20, "output_tokens": 3, "total_tokens": 23}


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


def test_not_asked_for(histories: Any) -> None:
    """Without `trace=True` nothing of it is stored."""
    chain(histories, trace=False).invoke({"input": "Hello."}, S1)
    assert explain_stored_turn(histories("s1", "u1")) is None


def test_redacted(histories: Any) -> None:
    """With `before_save` no text at all is kept: what it would have changed is not known."""
    chat = chain(histories, before_save=lambda messages: [m.model_copy(update={"content": "***"}) for m in messages])
    chat.invoke({"input": "My code is 1234."}, S1)
    (turn,) = histories("s1", "u1").iter_turns()
    assert turn.trace["calls"][0]["messages"]
    assert not any(message["text"] for message in turn.trace["calls"][0]["messages"])


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
