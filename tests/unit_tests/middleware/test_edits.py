"""An agent's turn that replaces others: without a checkpointer as in a chain; with one, LangGraph's forks are named."""

from __future__ import annotations

from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import MessageHistoryMiddleware
from langchain_memkit.errors import ConfigurationError


def at(replaces: int) -> Any:
    """The config of a turn that replaces others."""
    return {"configurable": {**CONFIG["configurable"], "replaces": replaces}}


def test_regenerate_and_edit(histories: Any, history: Any, run: Any) -> None:
    """The model sees what came before, tools work, and the new turn takes the place of the old one."""
    model = Scripted(script=["A", "B", calling(("look_up", {"word": "c"})), "C", "D"])
    agent = create_agent(model, [look_up], middleware=[MessageHistoryMiddleware(histories)])
    run(agent, asking("a"), CONFIG)
    run(agent, asking("b"), CONFIG)
    again = history.regenerate()
    run(agent, {"messages": again.messages}, at(again.replaces))
    assert model.shown == ["a", "A", "b", "", "c is a word"]
    assert rows(history) == [["a", "A"], ["b", "look_up", "c is a word", "C"]]
    run(agent, asking("d"), at(1))
    assert model.shown == ["d"]
    assert rows(history) == [["d", "D"]]


def test_resent_conversation(histories: Any, history: Any, run: Any) -> None:
    """A client that sends all it shows, with the edited question under its old id, has it answered anew."""
    model = Scripted(script=["A", "B", "C"])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)])
    run(agent, asking("a"), CONFIG)
    run(agent, asking("b"), CONFIG)
    stored = history.messages
    edited = HumanMessage("c", id=stored[2].id)
    run(agent, {"messages": [*stored[:2], edited]}, at(2))
    assert model.shown == ["a", "A", "c"]
    assert rows(history) == [["a", "A"], ["c", "C"]]


def test_model_fails(histories: Any, history: Any, run: Any) -> None:
    """The old answer is still there, also where the question would be kept."""
    model = Scripted(script=["A", RuntimeError("no")])
    middleware = MessageHistoryMiddleware(histories, on_model_error="save_input")
    agent = create_agent(model, [], middleware=[middleware])
    run(agent, asking("a"), CONFIG)
    with pytest.raises(RuntimeError):
        run(agent, asking("b"), at(1))
    assert rows(history) == [["a", "A"]]


def test_with_a_checkpointer(histories: Any, history: Any, run: Any) -> None:
    """The thread's state is LangGraph's, so `replaces` is refused before the model is called; nothing is changed."""
    model = Scripted(script=["A", "B"])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    run(agent, asking("a"), CONFIG)
    run(agent, asking("b"), CONFIG)
    with pytest.raises(ConfigurationError, match="get_state_history"):
        run(agent, asking("c"), at(2))
    assert len(model.calls) == 2
    assert rows(history) == [["a", "A"], ["b", "B"]]


def test_edit_by_hand_beside_a_checkpointer(histories: Any, history: Any, run: Any) -> None:
    """The model sees the transcript as it was edited, not what the state still holds."""
    model = Scripted(script=["A", "B", "C"])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    run(agent, asking("a"), CONFIG)
    run(agent, asking("b"), CONFIG)
    history.edit(2, [HumanMessage("by hand")])
    run(agent, asking("c"), CONFIG)
    assert model.shown == ["a", "A", "by hand", "c"]
    assert rows(history) == [["a", "A"], ["by hand"], ["c", "C"]]
