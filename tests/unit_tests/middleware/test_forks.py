"""Threads that go on from an older checkpoint: the branch taken is appended, and is what the model sees."""

from __future__ import annotations

from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import MessageHistoryMiddleware, SQLiteChatMessageHistory


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


def test_replayed_with_the_same_answer(histories: Any, history: Any, run: Any) -> None:
    """A turn whose model is called again and gives the same message is no branch: stored once, and shown later on."""
    answers = [
        AIMessage("zero", id="a0"),
        AIMessage("one", id="a1"),
        AIMessage("one", id="a1"),
        AIMessage("two", id="a2"),
    ]
    model = Scripted(script=answers)
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    for i in range(2):
        run(agent, asking(f"q{i}"), CONFIG)
    past = next(s for s in agent.get_state_history(CONFIG) if s.next == ("model",) and len(s.values["messages"]) == 3)
    run(agent, None, at(past.config))
    assert rows(history) == [["q0", "zero"], ["q1", "one"]]
    run(agent, asking("and then"), CONFIG)
    assert model.shown == ["q0", "zero", "q1", "one", "and then"]
    assert rows(history)[2:] == [["and then", "two"]]


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


def test_branch_not_taken_is_not_remembered(histories: Any, history: Any) -> None:
    """A tool loop that goes on from its middle after a failure holds nothing of what it said after that."""

    def boom() -> str:
        """Fails at the third call."""
        calls.append(None)
        if len(calls) == 3:
            raise OSError("down")
        return "fine"

    calls: list[None] = []
    model = Scripted(script=[calling(("boom", {"n": str(i)})) for i in range(3)])
    agent: Any = create_agent(
        model, [boom], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver()
    )
    with pytest.raises(OSError, match="down"):
        agent.invoke(asking("q"), CONFIG)
    past = next(s for s in agent.get_state_history(CONFIG) if len(s.values["messages"]) == 3 and s.next == ("model",))
    agent.invoke(None, at(past.config))
    assert rows(history) == [["q", "boom", "fine", "ok 4"]]


def test_edited_fork(histories: Any, history: Any, run: Any) -> None:
    """What `update_state` puts into an older end is stored with the branch, and shown."""
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    for i in range(3):
        run(agent, asking(f"q{i}"), CONFIG)
    end = next(s for s in agent.get_state_history(CONFIG) if len(s.values["messages"]) == 2 and not s.next)
    fork = agent.update_state(end.config, {"messages": [HumanMessage("edited q"), AIMessage("edited a")]})
    run(agent, asking("after"), at(fork))
    assert model.shown == ["q0", "ok 1", "edited q", "edited a", "after"]
    assert rows(history)[3:] == [["edited q", "edited a"], ["after", "ok 4"]]


def test_first_turn_replayed(histories: Any, history: Any, run: Any) -> None:
    """The first turn of a thread, run again, is stored with its question, and later turns are left out of its view."""
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    for i in range(2):
        run(agent, asking(f"q{i}"), CONFIG)
    begin = "MessageHistoryMiddleware.before_agent"
    past = next(s for s in agent.get_state_history(CONFIG) if s.next == (begin,) and len(s.values["messages"]) == 1)
    run(agent, None, at(past.config))
    assert model.shown == ["q0"]
    assert rows(history)[2:] == [["q0", "ok 3"]]


def test_replayed_outside_the_window(tmp_path: Any, run: Any) -> None:
    """A turn that is run again from its middle is stored whole, though what is read of the past does not reach it."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db", history_size=2) as histories:
        model = Scripted(script=[calling(("look_up", {"word": "a"})), "one"])
        agent = create_agent(
            model, [look_up], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver()
        )
        for i in range(3):
            run(agent, asking(f"q{i}"), CONFIG)
        past = next(s for s in agent.get_state_history(CONFIG) if len(s.values["messages"]) == 3)
        run(agent, None, at(past.config))
        assert model.shown == ["q0", "", "a is a word"]
        assert rows(histories("s1", "u1"))[3:] == [["q0", "look_up", "a is a word", "ok 5"]]


def test_replayed_after_a_saved_input(histories: Any, history: Any, run: Any) -> None:
    """A turn whose question is a row of its own, since the model failed at first, is stored as a branch like others."""
    model = Scripted(script=[OSError("down"), "one", "two"])
    history_of = MessageHistoryMiddleware(histories, on_model_error="save_input")
    agent = create_agent(model, [], middleware=[history_of], checkpointer=InMemorySaver())
    with pytest.raises(OSError, match="down"):
        run(agent, asking("q"), CONFIG)
    run(agent, None, CONFIG)
    assert rows(history) == [["q"], ["one"]]
    past = next(s for s in agent.get_state_history(CONFIG) if s.next == ("model",))
    run(agent, None, at(past.config))
    assert rows(history) == [["q"], ["one"], ["q", "two"]]
