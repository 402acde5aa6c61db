"""A run of an agent is one turn: what is stored of it, and what the model is shown."""

from __future__ import annotations

from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows, texts
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import MessageHistoryMiddleware, create_runnable_with_message_history, create_trim_preprocessor
from langchain_memkit.testing import FakeChatModel


class Plain:
    """LangChain's verbs and nothing else."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def aget_messages(self) -> list[Any]:
        """The same."""
        return self.messages

    def add_messages(self, messages: Any) -> None:
        """Appends."""
        self.messages += messages

    async def aadd_messages(self, messages: Any) -> None:
        """Appends."""
        self.messages += messages


def test_remembers(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """The second run knows the first; each is one row, whole messages with ids, and nothing of ours in the output."""
    agent = create_agent(
        FakeChatModel(), [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer
    )
    run(agent, asking("My name is Nemo."), CONFIG)
    output = run(agent, asking("What is my name?"), CONFIG)
    assert output["messages"][-1].text == "You told me: My name is Nemo."
    assert output.keys() == {"messages"}
    assert rows(history) == [
        ["My name is Nemo.", "Noted."],
        ["What is my name?", "You told me: My name is Nemo."],
    ]
    assert all(m.id for m in history.messages)


def test_tools(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """Calls, results and answer are one row with the question; parallel calls too."""
    model = Scripted(script=[calling(("look_up", {"word": "a"}), ("look_up", {"word": "b"})), "Both are words."])
    agent = create_agent(model, [look_up], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    run(agent, asking("What are a and b?"), CONFIG)
    assert rows(history) == [["What are a and b?", "look_up+look_up", "a is a word", "b is a word", "Both are words."]]
    assert model.shown == ["What are a and b?", "", "a is a word", "b is a word"]
    run(agent, asking("Sure?"), CONFIG)
    assert model.shown[-2:] == ["Both are words.", "Sure?"]
    assert len(model.shown) == 6


def test_alternates_with_a_chain(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """A chain and an agent go on with each other's turns; one transcript, nothing in it twice."""
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    chain = create_runnable_with_message_history(model, histories)
    for i in range(6):
        door = agent if i % 2 else chain
        run(door, asking(f"q{i}") if i % 2 else f"q{i}", CONFIG)
        assert model.shown == [text for k in range(i) for text in (f"q{k}", f"ok {k + 1}")] + [f"q{i}"]
    assert rows(history) == [[f"q{i}", f"ok {i + 1}"] for i in range(6)]
    assert len({m.id for m in history.messages}) == 12


def test_state_keeps_everything(histories: Any, run: Any) -> None:
    """A preprocessor changes what the model sees; the state and the transcript keep every message."""
    model = Scripted()
    agent = create_agent(
        model,
        [],
        middleware=[MessageHistoryMiddleware(histories, preprocessor=create_trim_preprocessor(2, token_counter=len))],
        checkpointer=InMemorySaver(),
    )
    for i in range(5):
        output = run(agent, asking(f"q{i}"), CONFIG)
    assert model.shown == ["q3", "ok 4", "q4"]
    assert len(output["messages"]) == 10


def test_adopts_once(histories: Any, history: Any, run: Any) -> None:
    """A thread that is older than the middleware moves in with its first run, a row a turn, and only then."""
    saver, model = InMemorySaver(), Scripted()
    before = create_agent(model, [look_up], checkpointer=saver)
    run(before, asking("q1"), CONFIG)
    model.script = [calling(("look_up", {"word": "a"})), "done"]
    run(before, asking("q2"), CONFIG)
    after = create_agent(model, [look_up], middleware=[MessageHistoryMiddleware(histories)], checkpointer=saver)
    for _ in range(2):
        run(after, asking("q3"), CONFIG)
    assert rows(history)[:3] == [["q1", "ok 1"], ["q2", "look_up", "a is a word", "done"], ["q3", "ok 4"]]
    assert len(rows(history)) == 4
    assert model.shown[:2] == ["q1", "ok 1"]
    assert len(model.shown) == 9


def test_cleared_thread_stays_cleared(histories: Any, history: Any, run: Any) -> None:
    """What the state still holds of a cleared session is neither shown nor stored again."""
    model = Scripted(script=["a", OSError("down"), "c", "d"])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    run(agent, asking("secret 1"), CONFIG)
    with pytest.raises(OSError, match="down"):
        run(agent, asking("secret 2"), CONFIG)
    history.clear()
    run(agent, asking("hello"), CONFIG)
    assert model.shown == ["hello"]
    run(agent, asking("again"), CONFIG)
    assert rows(history) == [["hello", "c"], ["again", "d"]]


def test_cleared_before_anything_was_stored(histories: Any, history: Any, run: Any) -> None:
    """The question of a first run that failed does not come back either, once the session is cleared."""
    model = Scripted(script=[OSError("down"), "a"])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    with pytest.raises(OSError, match="down"):
        run(agent, asking("secret"), CONFIG)
    history.clear()
    run(agent, asking("hello"), CONFIG)
    assert model.shown == ["hello"]
    assert rows(history) == [["hello", "a"]]


def test_resent_input(histories: Any, history: Any, run: Any) -> None:
    """A client that sends the whole conversation each time, with ids, stores each message once."""
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)])
    sent: list[Any] = []
    for i in range(3):
        sent = run(agent, {"messages": [*sent, HumanMessage(f"q{i}", id=f"h{i}")]}, CONFIG)["messages"]
    assert rows(history) == [["q0", "ok 1"], ["q1", "ok 2"], ["q2", "ok 3"]]
    assert model.shown == ["q0", "ok 1", "q1", "ok 2", "q2"]


def test_retried(histories: Any, history: Any, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The same `turn_id` again, with ids that the graph drew anew, is stored once and reported."""
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories)])
    config = {"configurable": {**CONFIG["configurable"], "turn_id": "t1"}}
    run(agent, asking("q"), config)
    run(agent, asking("q"), config)
    assert rows(history) == [["q", "ok 1"]]
    assert "turn not stored" in caplog.text


def test_tool_results_from_outside(histories: Any, history: Any, run: Any) -> None:
    """Results that a client sends for the call of an earlier turn are shown after it, and are a row of their own."""
    model = Scripted()
    call = calling(("elsewhere", {}), text="wait")
    history.add_messages([HumanMessage("q"), call])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)])
    run(agent, {"messages": [ToolMessage("result", tool_call_id=call.tool_calls[0]["id"])]}, CONFIG)
    assert model.shown == ["q", "wait", "result"]
    assert rows(history) == [["q", "elsewhere"], ["result", "ok 1"]]


def test_tool_results_in_place_of_tools(histories: Any, history: Any, run: Any) -> None:
    """A run that stops before its tools, whose results then come as input, is one turn."""
    model = Scripted(script=[calling(("look_up", {"word": "a"})), "done"])
    agent = create_agent(
        model,
        [look_up],
        middleware=[MessageHistoryMiddleware(histories)],
        checkpointer=InMemorySaver(),
        interrupt_before=["tools"],
    )
    call = run(agent, asking("q"), CONFIG)["messages"][-1].tool_calls[0]["id"]
    assert rows(history) == []
    run(agent, {"messages": [ToolMessage("result", tool_call_id=call)]}, CONFIG)
    assert rows(history) == [["q", "look_up", "result", "done"]]


def test_failed_run(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """A run whose model raises stores nothing. A checkpointed state keeps its question: the next turn has both."""
    model = Scripted(script=[OSError("down"), "a"])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    with pytest.raises(OSError, match="down"):
        run(agent, asking("q1"), CONFIG)
    assert rows(history) == []
    run(agent, asking("q2"), CONFIG)
    assert rows(history) == ([["q1", "q2", "a"]] if checkpointer else [["q2", "a"]])
    assert model.shown == (["q1", "q2"] if checkpointer else ["q2"])


def test_failed_run_again(histories: Any, history: Any, run: Any) -> None:
    """A failed run that is taken up again is stored as one turn."""
    model = Scripted(script=[OSError("down"), "a"])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    with pytest.raises(OSError, match="down"):
        run(agent, asking("q1"), CONFIG)
    run(agent, None, CONFIG)
    assert rows(history) == [["q1", "a"]]


@pytest.mark.parametrize("broken", ["model", "tool"])
def test_save_input(histories: Any, history: Any, checkpointer: Any, run: Any, broken: str) -> None:
    """With on_model_error="save_input" the question of a failed run is kept, and not stored again by the next."""

    def explode() -> str:
        """Fails."""
        raise OSError("down")

    model = Scripted(script=[OSError("down") if broken == "model" else calling(("explode", {})), "a"])
    history_of = MessageHistoryMiddleware(histories, on_model_error="save_input")
    agent = create_agent(model, [explode], middleware=[history_of], checkpointer=checkpointer)
    with pytest.raises(OSError, match="down"):
        run(agent, asking("q1"), CONFIG)
    assert rows(history) == [["q1"]]
    if broken == "model":
        run(agent, asking("q2"), CONFIG)
        assert rows(history) == [["q1"], ["q2", "a"]]
        assert model.shown == ["q1", "q2"]


def test_history_of_others(run: Any, checkpointer: Any) -> None:
    """A history of another package works; what a thread holds is not stored twice."""
    store = Plain()
    model = Scripted()
    agent = create_agent(
        model, [], middleware=[MessageHistoryMiddleware(lambda session_id: store)], checkpointer=checkpointer
    )
    config = {"configurable": {"session_id": "s1", "thread_id": "s1"}}
    for i in range(3):
        run(agent, asking(f"q{i}"), config)
    assert texts(store.messages) == ["q0", "ok 1", "q1", "ok 2", "q2", "ok 3"]
    assert model.shown == ["q0", "ok 1", "q1", "ok 2", "q2"]


@pytest.mark.parametrize(
    "form", [{"role": "user", "content": "q0"}, ("human", "q0"), "q0"], ids=["dict", "tuple", "str"]
)
def test_history_of_others_in_another_form(form: Any, run: Any) -> None:
    """What it keeps as dicts, tuples or texts is shown as langchain-core converts it."""
    store, model = Plain(), Scripted()
    store.messages = [form]
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(lambda session_id: store)])
    run(agent, asking("q1"), {"configurable": {"session_id": "s1"}})
    assert model.shown == ["q0", "q1"]
    assert store.messages[0] is form
    assert texts(store.messages[1:]) == ["q1", "ok 1"]


def test_streams(histories: Any, history: Any, checkpointer: Any, stream: Any) -> None:
    """A stream that is read to its end is stored like a call; a stream of updates can be made into JSON."""
    import json

    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    updates = stream(agent, asking("q1"), CONFIG)
    assert json.dumps(updates, default=lambda m: m.text)
    assert rows(history) == [["q1", "ok 1"]]
    assert isinstance(history.messages[-1], AIMessage)


def test_retry_with_a_turn_id(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """The same question under the same `turn_id` is stored once, with its first answer, as by a chain."""
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    config: Any = {"configurable": {**CONFIG["configurable"], "turn_id": "t1"}}
    for _ in range(2):
        run(agent, {"messages": [HumanMessage("q", id="the question")]}, config)
    assert rows(history) == [["q", "ok 1"]]
