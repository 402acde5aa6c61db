"""Several runs at once on one thread: none is lost, and each message is stored once."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, rows
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import MessageHistoryMiddleware


@pytest.mark.parametrize("asynchronous", [False, True])
def test_at_the_same_time(histories: Any, history: Any, asynchronous: bool) -> None:
    """Of runs at the same time on one thread none is lost, and each is stored once."""
    agent = create_agent(
        Scripted(delay=0.01), [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver()
    )
    if asynchronous:

        async def all_at_once() -> None:
            await asyncio.gather(*(agent.ainvoke(asking(f"q{i}"), CONFIG) for i in range(4)))

        asyncio.run(all_at_once())
    else:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: agent.invoke(asking(f"q{i}"), CONFIG), range(4)))
    agent.invoke(asking("last"), CONFIG)
    assert sorted(row[0] for row in rows(history)[:4]) == ["q0", "q1", "q2", "q3"]
    assert [row[0] for row in rows(history)[4:]] == ["last"]


def test_overtaken(histories: Any, history: Any) -> None:
    """A run that begins and ends while another one on its thread waits for the model leaves that one its question."""
    asked, answer = threading.Event(), threading.Event()

    def slow(messages: Any) -> str:
        asked.set()
        assert answer.wait(10)
        return "slow"

    model = Scripted(script=[slow, "quick"])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(agent.invoke, asking("q0"), CONFIG)
        assert asked.wait(10)
        agent.invoke(asking("q1"), CONFIG)
        answer.set()
        first.result()
    assert model.shown == ["q1"]
    assert rows(history) == [["q1", "quick"], ["q0", "slow"]]


def test_one_after_the_other_and_yet_at_the_same_time(histories: Any) -> None:
    """A question that stands unanswered in the state, because its own run is not done yet, is stored once."""
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    for thread in map(str, range(25)):
        config = {"configurable": {"thread_id": thread, "user_id": "u1"}}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: agent.invoke(asking(f"q{i}"), config), range(4)))  # noqa: B023  # it ends here
        stored = histories(thread, user_id="u1").messages
        assert sorted(m.text for m in stored if m.type == "human") == ["q0", "q1", "q2", "q3"]
        assert len(stored) == 8
