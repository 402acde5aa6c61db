"""An agent and a chain on one conversation, on real servers; what that takes up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import messages_to_dict
from langgraph.checkpoint.memory import InMemorySaver
from pymongo import MongoClient

from langchain_memkit import (
    MessageHistoryMiddleware,
    MongoDBChatMessageHistory,
    SQLiteChatMessageHistory,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
)
from langchain_memkit.testing import FakeChatModel
from testkit.styles import Styles


@contextmanager
def opened(request: pytest.FixtureRequest, backend: str, tmp_path: Path) -> Iterator[Any]:
    """A factory on SQLite or on one of the servers."""
    if backend == "sqlite":
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
            yield histories
        return
    server, database = request.getfixturevalue(backend), request.getfixturevalue("database")
    with MongoDBChatMessageHistory.factory(server.uri, database) as histories:
        yield histories
        asyncio.run(histories.aclose())


@pytest.fixture(params=["sqlite", "standalone", "replica_set"])
def histories(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A factory on each store."""
    with opened(request, request.param, tmp_path) as factory:
        yield factory


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_alternating(histories: Any, style: str, checkpointed: bool) -> None:
    """20 turns, a chain's and an agent's in turn: one transcript, the same from both sides, nothing twice or half."""
    model, run = Scripted(), Styles(style)
    agent = create_agent(
        model,
        [look_up],
        middleware=[MessageHistoryMiddleware(histories)],
        checkpointer=InMemorySaver() if checkpointed else None,
    )
    chain = create_runnable_with_message_history(model, histories)
    said: list[str] = []
    for i in range(20):
        if i % 2:
            model.script = [calling(("look_up", {"word": str(i)}))]
            run(agent, asking(f"q{i}"), CONFIG)
            turn = [f"q{i}", "", f"{i} is a word", f"ok {len(model.calls)}"]
        else:
            run(chain, f"q{i}", CONFIG)
            turn = [f"q{i}", f"ok {len(model.calls)}"]
        # what the model was shown in the last call of the turn: all that was said, from either side
        assert model.shown == [*said, *turn[:-1]]
        said += turn
    history = histories("s1", "u1")
    messages = history.messages
    assert [m.text for m in messages] == said
    assert [len(turn.messages) for turn in history.iter_turns()] == [2, 4] * 10
    assert len({m.id for m in messages}) == len(messages)
    calls = [call["id"] for m in messages for call in getattr(m, "tool_calls", [])]
    assert calls == [m.tool_call_id for m in messages if m.type == "tool"]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_at_the_same_time(histories: Any, checkpointed: bool) -> None:
    """Four runs at once on one thread: none is lost, each is stored once."""
    agent = create_agent(
        Scripted(delay=0.005),
        [],
        middleware=[MessageHistoryMiddleware(histories)],
        checkpointer=InMemorySaver() if checkpointed else None,
    )

    async def all_at_once() -> None:
        await asyncio.gather(*(agent.ainvoke(asking(f"q{i}"), CONFIG) for i in range(4)))

    asyncio.run(all_at_once())
    agent.invoke(asking("last"), CONFIG)
    stored = rows(histories("s1", "u1"))
    assert sorted(row[0] for row in stored[:4]) == ["q0", "q1", "q2", "q3"]
    assert [len(row) for row in stored] == [2] * 5
    assert stored[4][0] == "last"


def test_snippet(standalone: Any, database: str) -> None:
    """The third snippet of the design, with its names."""
    uri, model, tools = f"{standalone.uri}", FakeChatModel(), []  # type: ignore[var-annotated]  # as in the snippet
    histories = MongoDBChatMessageHistory.factory(uri, database)
    agent = create_agent(
        model,
        tools,
        middleware=[
            MessageHistoryMiddleware(histories, preprocessor=create_history_preprocessor(model, max_tokens=8000))
        ],
    )
    agent.invoke({"messages": [("user", "hi")]}, {"configurable": {"session_id": "s1", "user_id": "u1"}})
    assert rows(histories("s1", "u1")) == [["hi", "Noted."]]
    histories.close()


@pytest.mark.parametrize("backend", ["sqlite", "standalone"])
def test_storage(request: pytest.FixtureRequest, tmp_path: Path, backend: str) -> None:
    """After 100 runs with tools the store takes at most three times the messages' JSON, indexes and all."""
    script = [line for i in range(100) for line in (calling(("look_up", {"word": f"word {i}"})), f"The answer {i}.")]
    with opened(request, backend, tmp_path) as histories:
        agent = create_agent(Scripted(script=script), [look_up], middleware=[MessageHistoryMiddleware(histories)])
        for i in range(100):
            agent.invoke(asking(f"What is word {i}, and what does it mean?"), CONFIG)
        messages = histories("s1", "u1").messages
    assert len(messages) == 400
    content = len(json.dumps(messages_to_dict(messages)).encode())
    if backend == "sqlite":
        taken = (tmp_path / "chat.db").stat().st_size
    else:
        with MongoClient(request.getfixturevalue(backend).uri) as client:
            stats = client[request.getfixturevalue("database")].command("collStats", "message_store")
            taken = stats["size"]
    print(f"{backend}: {taken} bytes for {content} of JSON, ratio {taken / content:.2f}")
    assert taken <= 3 * content


def test_state_keeps_what_a_summary_does_not(histories: Any) -> None:
    """After compaction the agent's state holds every message; with SummarizationMiddleware it does not."""
    saver = InMemorySaver()
    ours = MessageHistoryMiddleware(histories, preprocessor=create_trim_preprocessor(4, token_counter=len))
    theirs = SummarizationMiddleware(Scripted(script=["SUMMARY"] * 99), trigger=("messages", 6), keep=("messages", 4))
    kept, shown = {}, {}
    for name, middleware in (("ours", ours), ("theirs", theirs)):
        model = Scripted()
        agent = create_agent(model, [], middleware=[middleware], checkpointer=saver)
        config = {"configurable": {"thread_id": name, "user_id": "u1"}}
        for i in range(20):
            agent.invoke(asking(f"q{i}"), config)
        kept[name] = len(agent.get_state(config).values["messages"])
        shown[name] = len(model.shown)
    assert kept["ours"] == 40
    assert kept["theirs"] < 10
    assert max(shown.values()) <= 6


@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
@pytest.mark.parametrize("layout", ["langchain", "qa"])
def test_layouts_of_others(request: pytest.FixtureRequest, layout: str, style: str) -> None:
    """An agent on rows that have no positions: its turns are stored as a chain's are."""
    server, database = request.getfixturevalue("standalone"), request.getfixturevalue("database")
    with MongoDBChatMessageHistory.factory(server.uri, database, layout=layout) as histories:
        model, run = Scripted(), Styles(style)
        agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
        config = {"configurable": {"thread_id": "t1"}} if layout == "langchain" else CONFIG
        for i in range(3):
            run(agent, asking(f"q{i}"), config)
        ids = ("t1", None) if layout == "langchain" else ("s1", "u1")
        stored = [message.text for message in histories(*ids).messages]
        assert stored == ["q0", "ok 1", "q1", "ok 2", "q2", "ok 3"]
        asyncio.run(histories.aclose())


@pytest.mark.parametrize("asynchronous", [False, True])
def test_at_once(histories: Any, asynchronous: bool) -> None:
    """Of runs at once on one thread each question and answer is stored once, on each store."""
    for thread in map(str, range(4)):
        config: Any = {"configurable": {"thread_id": thread, "user_id": "u1"}}
        agent = create_agent(
            Scripted(delay=0.005), [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver()
        )

        async def all_at_once(agent: Any = agent, config: Any = config) -> None:
            await asyncio.gather(*(agent.ainvoke(asking(f"q{i}"), config) for i in range(4)))
            await histories.aclose()

        if asynchronous:
            asyncio.run(all_at_once())
        else:
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda i: agent.invoke(asking(f"q{i}"), config), range(4)))  # noqa: B023  # it ends here
        stored = histories(thread, "u1").messages
        assert sorted(m.text for m in stored if m.type == "human") == ["q0", "q1", "q2", "q3"]
        assert len({m.id for m in stored if m.type == "ai"}) == 4
        assert len(stored) == 8
