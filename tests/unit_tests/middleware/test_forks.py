"""Threads that go on from an older checkpoint: the branch taken is appended, and is what the model sees."""

from __future__ import annotations

from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, rows
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import MessageHistoryMiddleware


def at(checkpoint: Any) -> Any:
    """The config of a checkpoint, which names the thread alone, with whose it is."""
    return {"configurable": {**CONFIG["configurable"], **checkpoint["configurable"]}}


def test_forked(histories: Any, history: Any, run: Any) -> None:
    """A thread that goes on from an older checkpoint: its branch is appended, and the model sees that branch alone."""
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    for i in range(3):
        run(agent, asking(f"q{i}"), CONFIG)
    past = next(s for s in agent.get_state_history(CONFIG) if len(s.values["messages"]) == 2 and not s.next)
    run(agent, asking("other"), at(past.config))
    assert model.shown == ["q0", "ok 1", "other"]
    run(agent, asking("and then"), CONFIG)
    assert model.shown == ["q0", "ok 1", "other", "ok 4", "and then"]
    assert rows(history) == [
        ["q0", "ok 1"],
        ["q1", "ok 2"],
        ["q2", "ok 3"],
        ["other", "ok 4"],
        ["and then", "ok 5"],
    ]


@pytest.mark.parametrize("node", ["model", "MessageHistoryMiddleware.before_agent"])
def test_replayed(histories: Any, history: Any, run: Any, node: str) -> None:
    """A finished turn that is run again, from its beginning or its middle, is recorded as a branch of its own."""
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    for i in range(3):
        run(agent, asking(f"q{i}"), CONFIG)
    past = next(s for s in agent.get_state_history(CONFIG) if s.next == (node,) and len(s.values["messages"]) == 3)
    run(agent, None, at(past.config))
    assert model.shown == ["q0", "ok 1", "q1"]
    assert rows(history)[3:] == [["q1", "ok 4"]]
    run(agent, asking("and then"), CONFIG)
    assert model.shown == ["q0", "ok 1", "q1", "ok 4", "and then"]


def test_edited_state(histories: Any, history: Any, run: Any) -> None:
    """A question that is changed by `update_state` at an older checkpoint is stored as it was asked then."""
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    for i in range(2):
        run(agent, asking(f"q{i}"), CONFIG)
    past = next(s for s in agent.get_state_history(CONFIG) if s.next == ("model",))
    question = past.values["messages"][-1]
    fork = agent.update_state(past.config, {"messages": [HumanMessage("q1 better", id=question.id)]})
    run(agent, None, at(fork))
    assert model.shown == ["q0", "ok 1", "q1 better"]
    assert rows(history) == [["q0", "ok 1"], ["q1", "ok 2"], ["q1 better", "ok 3"]]
