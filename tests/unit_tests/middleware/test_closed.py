"""A stream that is closed between two steps of its run: with a checkpointer the state has it, else nobody is told."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import MessageHistoryMiddleware, create_runnable_with_message_history

SCRIPT = [calling(("look_up", {"word": "a"})), calling(("look_up", {"word": "b"})), "done"]


@pytest.mark.parametrize("mode", ["updates", "values"])
def test_closed_between_steps(histories: Any, history: Any, checkpointer: Any, mode: Any, stream: Any) -> None:
    """With a checkpointer the run can be resumed, and is stored whole then; without one LangGraph tells nobody."""
    agent = create_agent(
        Scripted(script=[*SCRIPT, "fine"]),
        [look_up],
        middleware=[MessageHistoryMiddleware(histories)],
        checkpointer=checkpointer,
    )

    async def in_async() -> None:
        async with aclosing(agent.astream(asking("q"), CONFIG, stream_mode=mode)) as chunks:
            async for chunk in chunks:
                if "b is a word" in str(chunk):
                    break

    if stream.asynchronous:
        asyncio.run(in_async())
    else:
        chunks = agent.stream(asking("q"), CONFIG, stream_mode=mode)
        for chunk in chunks:
            if "b is a word" in str(chunk):
                break
        chunks.close()
    assert rows(history) == []
    if checkpointer:
        agent.invoke(None, CONFIG)
        assert rows(history) == [["q", "look_up", "a is a word", "look_up", "b is a word", "done"]]


def test_closed_between_steps_and_left(histories: Any, history: Any) -> None:
    """The next run stores what the closed one had said, as far as the checkpointer has it."""
    agent = create_agent(
        Scripted(script=[*SCRIPT[:2], "fine"]),
        [look_up],
        middleware=[MessageHistoryMiddleware(histories)],
        checkpointer=InMemorySaver(),
    )
    chunks = agent.stream(asking("q"), CONFIG, stream_mode="values")
    for chunk in chunks:
        if "b is a word" in str(chunk):
            break
    chunks.close()
    agent.invoke(asking("and?"), CONFIG)
    assert rows(history)[0][:3] == ["q", "look_up", "a is a word"]
    assert rows(history)[1] == ["and?", "fine"]


def test_wrapped_in_a_chain(histories: Any, history: Any) -> None:
    """A chain around the agent stores what was yielded: the way to keep a closed stream without a checkpointer."""
    agent = create_agent(Scripted(script=SCRIPT), [look_up])
    chain = create_runnable_with_message_history(agent, histories, input_messages_key="messages")
    chunks = chain.stream({"messages": [HumanMessage("q")]}, CONFIG, stream_mode="values")
    for chunk in chunks:
        if "b is a word" in str(chunk):
            break
    chunks.close()  # type: ignore[attr-defined]  # a generator
    assert [row[:3] for row in rows(history)] == [["q", "look_up", "a is a word"]]
