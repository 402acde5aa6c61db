"""Threads: taken up in another process, forked, replayed, run at the same time; and whose they are."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

from langchain_memkit import MessageHistoryMiddleware, SQLiteChatMessageHistory
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, StaleTurnError

PROCESS = """
import sys
sys.path.append({here!r})
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, SummarizationMiddleware
from langchain_memkit import MessageHistoryMiddleware, SQLiteChatMessageHistory
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

first = sys.argv[1] == "first"
script = [calling(("look_up", {{"word": "a"}})), calling(("look_up", {{"word": "b"}}))] if first else ["done", "bye"]
with SqliteSaver.from_conn_string("threads.db") as saver, SQLiteChatMessageHistory.factory("chat.db") as histories:
    agent = create_agent(
        Scripted(script=script),
        [look_up],
        checkpointer=saver,
        middleware=[
            MessageHistoryMiddleware(histories),
            SummarizationMiddleware(Scripted(script=["SUMMARY"] * 9), trigger=("messages", 3), keep=("messages", 2)),
            HumanInTheLoopMiddleware(interrupt_on={{"look_up": {{"allowed_decisions": ["approve"]}}}}),
        ],
    )
    approve = Command(resume={{"decisions": [{{"type": "approve"}}]}})
    if first:
        agent.invoke(asking("q"), CONFIG)
    agent.invoke(approve, CONFIG)
    if not first:
        agent.invoke(asking("bye"), CONFIG)
    print(rows(histories("s1", "u1")))
"""


def test_resumed_in_another_process(tmp_path: Path) -> None:
    """A run that two processes share, and of which a summary took a part before the first one ended, is one turn."""
    printed = []
    for which in ("first", "second"):
        code = PROCESS.format(here=str(Path(__file__).resolve().parent))
        done = subprocess.run(
            [sys.executable, "-c", code, which], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        printed.append(done.stdout.strip())
    assert printed[0] == "[]"
    turn = ["q", "look_up", "a is a word", "look_up", "b is a word", "done"]
    assert printed[1] == str([turn, ["bye", "bye"]])


def approving(histories: Any, model: Any, **options: Any) -> Any:
    """An agent whose calls a person approves."""
    return create_agent(
        model,
        [look_up],
        middleware=[
            MessageHistoryMiddleware(histories, **options),
            HumanInTheLoopMiddleware(interrupt_on={"look_up": True}),
        ],
        checkpointer=InMemorySaver(),
    )


APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


def test_cleared_while_it_waits(histories: Any, history: Any, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A session that is cleared while a run waits for a person stays empty, and that is reported."""
    agent = approving(histories, Scripted(script=["a", calling(("look_up", {"word": "a"})), "done", "b"]))
    run(agent, asking("q1"), CONFIG)
    run(agent, asking("secret"), CONFIG)
    history.clear()
    run(agent, APPROVE, CONFIG)
    assert rows(history) == []
    assert "turn not stored" in caplog.text
    run(agent, asking("q2"), CONFIG)
    assert rows(history) == [["q2", "b"]]


def test_cleared_while_it_waits_raises(histories: Any, history: Any, run: Any) -> None:
    """With on_dropped_turn="raise" it raises, with the state's answer."""
    script = ["a", calling(("look_up", {"word": "a"})), "done"]
    agent = approving(histories, Scripted(script=script), on_dropped_turn="raise")
    run(agent, asking("q1"), CONFIG)
    run(agent, asking("secret"), CONFIG)
    history.clear()
    with pytest.raises(StaleTurnError) as raised:
        run(agent, APPROVE, CONFIG)
    assert raised.value.output["messages"][-1].text == "done"


def test_other_turns_while_it_waits(histories: Any, history: Any, run: Any) -> None:
    """What was said elsewhere while a run waited is shown when it goes on, and stands before it in the transcript."""
    model = Scripted(script=[calling(("look_up", {"word": "a"})), "done"])
    agent = approving(histories, model)
    run(agent, asking("q1"), CONFIG)
    history.add_messages([HumanMessage("elsewhere")])
    run(agent, APPROVE, CONFIG)
    assert model.shown == ["elsewhere", "q1", "", "a is a word"]
    assert [row[0] for row in rows(history)] == ["elsewhere", "q1"]


def test_tool_that_asks(histories: Any, history: Any, run: Any) -> None:
    """A tool that interrupts the run itself, beside another one: one turn, with what the person said."""

    def ask(question: str) -> str:
        """Asks a person."""
        return f"they say {interrupt(question)}"

    model = Scripted(script=[calling(("look_up", {"word": "a"}), ("ask", {"question": "?"})), "done"])
    agent = create_agent(
        model, [look_up, ask], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver()
    )
    assert run(agent, asking("q"), CONFIG)["__interrupt__"]
    assert rows(history) == []
    run(agent, Command(resume="yes"), CONFIG)
    assert rows(history) == [["q", "look_up+ask", "a is a word", "they say yes", "done"]]


def test_taken_up_reads_once(histories: Any, history: Any, run: Any) -> None:
    """A run that goes on with several tools at once reads the conversation once, when the model needs it."""
    reads: list[str] = []

    def counted(session_id: str, user_id: str) -> Any:
        reads.append(session_id)
        return histories(session_id, user_id)

    words = [("look_up", {"word": str(i)}) for i in range(4)]
    agent = approving(counted, Scripted(script=[calling(*words), "done"]))
    run(agent, asking("q"), CONFIG)
    run(agent, Command(resume={"decisions": [{"type": "approve"}] * 4}), CONFIG)
    assert len(reads) == 2
    assert [len(row) for row in rows(history)] == [7]


def test_node_of_a_graph(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """An agent that is a node of an app's graph is given all of its messages each time, and stores what is new."""
    model = Scripted(script=["a", calling(("look_up", {"word": "x"})), "b"])
    approve = HumanInTheLoopMiddleware(interrupt_on={"look_up": bool(checkpointer)})
    agent = create_agent(model, [look_up], middleware=[MessageHistoryMiddleware(histories), approve])
    graph = StateGraph(MessagesState).add_node("agent", agent).add_edge(START, "agent").add_edge("agent", END)
    app = graph.compile(checkpointer=checkpointer)
    sent = [] if checkpointer else run(app, asking("q1"), CONFIG)["messages"]
    if checkpointer:
        run(app, asking("q1"), CONFIG)
    run(app, {"messages": [*sent, HumanMessage("q2")]}, CONFIG)
    if checkpointer:
        run(app, APPROVE, CONFIG)
    assert rows(history) == [["q1", "a"], ["q2", "look_up", "x is a word", "b"]]
    assert model.shown == ["q1", "a", "q2", "", "x is a word"]


def test_written_state(histories: Any, history: Any, run: Any) -> None:
    """Messages that an app writes into a thread are adopted by its next run."""
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    run(agent, asking("q1"), CONFIG)
    agent.update_state(CONFIG, {"messages": [("user", "aside"), ("ai", "noted")]})
    run(agent, asking("q2"), CONFIG)
    assert rows(history) == [["q1", "ok 1"], ["aside", "noted"], ["q2", "ok 2"]]


@dataclass
class Context:
    """What an app tells its agent."""

    user_id: str | None = None


@pytest.mark.parametrize("context", [Context("u2"), {"user_id": "u2"}], ids=["object", "mapping"])
def test_user_of_the_context(histories: Any, context: Any, checkpointer: Any) -> None:
    """The runtime context's `user_id` counts more than the config's; the thread's id is the session."""
    agent = create_agent(
        Scripted(script=[calling(("look_up", {"word": "a"})), "done"]),
        [look_up],
        middleware=[MessageHistoryMiddleware(histories)],
        context_schema=type(context),
        checkpointer=checkpointer,
    )
    agent.invoke(asking("q"), {"configurable": {"thread_id": "t1", "user_id": "u1"}}, context=context)
    assert rows(histories("t1", "u2")) == [["q", "look_up", "a is a word", "done"]]
    assert rows(histories("t1", "u1")) == []


def test_ids(histories: Any, run: Any) -> None:
    """Ids are checked before anything is called: missing, no text, or one that would be dropped."""
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)])
    with pytest.raises(ValueError, match="session_id"):
        run(agent, asking("q"), {})
    with pytest.raises(TypeError, match="user_id must be a str"):
        run(agent, asking("q"), {"configurable": {"session_id": "s1", "user_id": 3}})
    single = MessageHistoryMiddleware(lambda session_id: histories(session_id))
    with pytest.raises(ConfigurationError, match="users would share"):
        run(create_agent(model, [], middleware=[single]), asking("q"), CONFIG)
    assert model.calls == []
    with pytest.raises(ConfigurationError, match="on_abort must be"):
        MessageHistoryMiddleware(histories, on_abort="keep")  # type: ignore[arg-type]  # what is refused


def test_save_fails(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """A failed save raises and carries the answer; the run can be taken up, and is then stored once."""
    broken = [True]

    def refuse(messages: Any) -> Any:
        if broken:
            raise ValueError("no")
        return messages

    model = Scripted()
    agent = create_agent(
        model, [], middleware=[MessageHistoryMiddleware(histories, before_save=refuse)], checkpointer=checkpointer
    )
    with pytest.raises(HistoryWriteError) as raised:
        run(agent, asking("q"), CONFIG)
    assert raised.value.output["messages"][-1].text == "ok 1"
    broken.clear()
    if checkpointer:
        run(agent, None, CONFIG)
        assert rows(history) == [["q", "ok 1"]]
        assert len(model.calls) == 1


def test_moves_to_another_session(histories: Any, run: Any) -> None:
    """A thread that is copied under another session takes what it holds along, and finds no run of the first."""
    saver, model = InMemorySaver(), Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=saver)
    for session in ("a", "b"):
        run(agent, asking(f"q in {session}"), {"configurable": {"session_id": session, "thread_id": "t"}})
    assert rows(histories("a")) == [["q in a", "ok 1"]]
    assert rows(histories("b"))[-1] == ["q in b", "ok 2"]


def test_reads_no_more_than_it_needs(tmp_path: Path) -> None:
    """Opening costs one look-up of ids and one read, closing one write, whatever tools are called in between."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
        calls: list[str] = []

        def counted(session_id: str) -> Any:
            history = factory(session_id)
            for name in ("stored_ids", "view", "append_turn"):
                method = getattr(history, name)
                setattr(history, name, lambda *a, n=name, m=method, **k: (calls.append(n), m(*a, **k))[1])
            return history

        script = [calling(("look_up", {"word": "a"})), calling(("look_up", {"word": "b"})), "done"]
        agent = create_agent(Scripted(script=script), [look_up], middleware=[MessageHistoryMiddleware(counted)])
        agent.invoke(asking("q"), {"configurable": {"session_id": "s1"}})
        assert calls == ["stored_ids", "view", "append_turn"]
