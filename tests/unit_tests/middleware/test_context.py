"""What the model is shown: preprocessors in the loop of an agent, budgets, and a context that was too much."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, trim_messages
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from langchain_memkit import (
    MessageHistoryMiddleware,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
)
from langchain_memkit.errors import ConfigurationError, MessageEncodeError
from langchain_memkit.messages.trimming import is_summary
from langchain_memkit.middleware.run import RunHandle


def test_summarizes(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """Older turns become a summary, written once, that stays in the calls of a loop; the transcript has everything."""
    summarizer = Scripted(script=["They spoke."] * 9)
    chain = create_history_preprocessor(summarizer, max_tokens=2000, trigger=("messages", 6), keep=("messages", 2))
    model = Scripted(script=[*"abcd", calling(("look_up", {"word": "x"})), "done"])
    agent = create_agent(
        model,
        [look_up],
        middleware=[MessageHistoryMiddleware(histories, preprocessor=chain)],
        checkpointer=checkpointer,
    )
    for i in range(5):
        output = run(agent, asking(f"q{i}"), CONFIG)
    first, second = model.calls[-2:]
    assert is_summary(first[0])
    assert [m.text for m in first[1:]] == ["q2", "c", "q3", "d", "q4"]
    assert second[: len(first)] == first
    assert len(summarizer.calls) == 1
    assert len(rows(history)) == 5
    assert len(output["messages"]) == (12 if checkpointer else 4)


async def test_models_of_the_context_are_not_streamed(histories: Any) -> None:
    """A stream of messages holds what the agent says, not what a preprocessor of the app's asks a model."""
    other = Scripted(script=["SUMMARY of it"] * 9)

    def summarize(messages: Any, config: RunnableConfig) -> Any:
        other.invoke(messages or "nothing", config)
        return messages

    async def asummarize(messages: Any, config: RunnableConfig) -> Any:
        await other.ainvoke(messages or "nothing", config)
        return messages

    chain = RunnableLambda(summarize, asummarize)
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories, preprocessor=chain)])
    said = ""
    for i in range(2):
        async for chunk, _ in agent.astream(asking(f"q{i}"), CONFIG, stream_mode="messages"):
            said += chunk.text
        for chunk, _ in agent.stream(asking(f"q{i}"), CONFIG, stream_mode="messages"):
            said += chunk.text
    assert len(other.calls) == 4
    assert said == "ok 1ok 2ok 3ok 4"


def test_preprocessor_of_langchain(histories: Any, run: Any) -> None:
    """`trim_messages` is a preprocessor: it is given the past, and the run's own messages stay."""
    model = Scripted(script=["a", "b", calling(("look_up", {"word": "x"})), "done"])
    trim = trim_messages(max_tokens=2, token_counter=len, strategy="last", start_on="human")
    agent = create_agent(model, [look_up], middleware=[MessageHistoryMiddleware(histories, preprocessor=trim)])
    for i in range(3):
        run(agent, asking(f"q{i}"), CONFIG)
    assert model.shown == ["q1", "b", "q2", "", "x is a word"]


def test_context_overflow(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """A model that was given too much is given less, once, and so in the rest of the run."""
    model = Scripted()
    trim = create_trim_preprocessor(150)
    agent = create_agent(
        model, [look_up], middleware=[MessageHistoryMiddleware(histories, preprocessor=trim)], checkpointer=checkpointer
    )
    for i in range(4):
        run(agent, asking(f"question number {i} " + "x" * 40), CONFIG)
    model.script = [ContextOverflowError("too much"), calling(("look_up", {"word": "y"})), "done"]
    run(agent, asking("short?"), CONFIG)
    too_much, less, again = model.calls[-3:]
    assert len(too_much) > len(less) > 1
    assert {m.id for m in again[:-2]} <= {m.id for m in less}
    assert [m.text for m in again[-3:]] == ["short?", "", "y is a word"]
    assert rows(history)[-1] == ["short?", "look_up", "y is a word", "done"]
    model.script = [ContextOverflowError("too much")] * 2
    with pytest.raises(ContextOverflowError):
        run(agent, asking("still?"), CONFIG)


def test_wrong_arguments_are_no_failure(histories: Any, history: Any, run: Any) -> None:
    """A call whose arguments do not fit is told to the model; with "save_input" the turn is stored once, whole."""
    model = Scripted(script=[calling(("look_up", {"sentence": "x"})), "sorry"])
    history_of = MessageHistoryMiddleware(histories, on_model_error="save_input")
    agent = create_agent(model, [look_up], middleware=[history_of])
    run(agent, asking("q"), CONFIG)
    ((*_, answer),) = rows(history)
    assert answer == "sorry"
    assert len(rows(history)[0]) == 4


def test_before_save(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """Redaction of an app's own changes what is stored, and neither the state nor the answer."""

    def redact(messages: Any) -> Any:
        for message in messages:
            message.content = message.text.replace("ok", "**")
        return messages

    agent = create_agent(
        Scripted(), [], middleware=[MessageHistoryMiddleware(histories, before_save=redact)], checkpointer=checkpointer
    )
    output = run(agent, asking("q"), CONFIG)
    assert output["messages"][-1].text == "ok 1"
    assert rows(history) == [["q", "** 1"]]


def test_what_cannot_be_stored(histories: Any, history: Any, run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A message that would not come back equal is refused with its path; with "log" the answer is returned."""
    message = HumanMessage([{"type": "text", "text": "q", "file": object()}])
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories)])
    with pytest.raises(MessageEncodeError, match="file"):
        run(agent, {"messages": [message]}, CONFIG)
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories, on_save_error="log")])
    assert run(agent, {"messages": [message]}, CONFIG)["messages"][-1].text == "ok 1"
    assert rows(history) == []
    assert "turn not stored" in caplog.text


def test_two_doors_over_one_conversation(histories: Any, run: Any) -> None:
    """An agent inside of a chain over the same conversation would store each turn twice, so it says so."""
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories)])
    chain = create_runnable_with_message_history(agent, histories, input_messages_key="messages")
    with pytest.raises(ConfigurationError, match="stored twice"):
        run(chain, {"messages": [HumanMessage("q")]}, CONFIG)


def test_waits_twice(histories: Any, history: Any, run: Any) -> None:
    """A run that waits for a person twice sees, each time it goes on, what was said elsewhere meanwhile."""
    script = [calling(("look_up", {"word": "a"})), calling(("look_up", {"word": "b"})), "done"]
    model = Scripted(script=script)
    history_of = MessageHistoryMiddleware(histories)
    agent = create_agent(
        model,
        [look_up],
        middleware=[history_of, HumanInTheLoopMiddleware(interrupt_on={"look_up": True})],
        checkpointer=InMemorySaver(),
    )
    approve: Any = Command(resume={"decisions": [{"type": "approve"}]})
    run(agent, asking("q"), CONFIG)
    for i in range(2):
        history.add_messages([HumanMessage(f"elsewhere {i}")])
        run(agent, approve, CONFIG)
        assert model.shown[: i + 2] == [*(f"elsewhere {k}" for k in range(i + 1)), "q"]
    assert rows(history)[2] == ["q", "look_up", "a is a word", "look_up", "b is a word", "done"]
    assert not history_of._calls


class Copying(AgentMiddleware[Any, Any, Any]):
    """Copies the state it is given, and turns it into JSON."""

    def before_model(self, state: Any, runtime: Any) -> None:
        """Before each call."""
        copied = copy.deepcopy(dict(state))
        assert isinstance(copied["memkit_run"], RunHandle)
        assert pickle.loads(pickle.dumps(state["memkit_run"])) == {}
        json.dumps([state["memkit_run"], state["memkit_turn"]])


def test_state_may_be_copied(histories: Any, history: Any, run: Any) -> None:
    """What we keep in the state hinders nobody who copies or prints it."""
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories), Copying()])
    run(agent, asking("q"), CONFIG)
    assert rows(history) == [["q", "ok 1"]]
