"""A turn whose messages hold what no store keeps is stored all the same, by chains and agents, in every call style."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain.agents import create_agent
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import (
    EntityMemory,
    MessageHistoryMiddleware,
    PreferenceMemory,
    SQLiteChatMessageHistory,
    VectorMemory,
    create_runnable_with_message_history,
)
from langchain_memkit.testing import FakeChatModel
from testkit.styles import Styles

CONFIG: Any = {"configurable": {"session_id": "s1", "user_id": "u1", "turn_id": "t1", "thread_id": "s1"}}


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Any]:
    """A factory on one file."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
        yield factory


@pytest.fixture(params=["invoke", "ainvoke", "stream", "astream"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(chain, value, config)` in all styles."""
    return Styles(request.param)


@tool(response_format="content_and_artifact")
def measure() -> tuple[str, Any]:
    """Measure the tide."""
    return "It is high.", {"levels": np.arange(4), "unit": "m"}


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is logged of values that were left out."""
    return [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]


def memories(histories: Any) -> list[Any]:
    """One of each that stores what was said."""
    return [
        EntityMemory.factory(histories, lambda text: []),
        PreferenceMemory.factory(histories, find=lambda text: [text]),
        VectorMemory.factory(histories, DeterministicFakeEmbedding(size=8)),
    ]


@pytest.mark.parametrize("trace", [False, True])
def test_a_chain(histories: Any, run: Styles, trace: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Question and answer are stored, what is odd of them is told once; a retry in another process stores nothing."""
    for _ in range(2):
        caplog.clear()
        asked: list[BaseMessage] = [HumanMessage("How high?", additional_kwargs={"n": np.arange(2)})]
        answer = AIMessage("High.", response_metadata={"cost": np.float32(1), "model_name": "m"})
        chain = create_runnable_with_message_history(
            RunnableLambda(lambda _, answer=answer: answer), histories, memories=memories(histories), trace=trace
        )
        run(chain, asked, CONFIG)
        assert len(told(caplog)) == 1
        assert "2 in additional_kwargs, response_metadata" in told(caplog)[0]
    question, stored = histories("s1", "u1").messages
    assert (question.text, stored.text, stored.response_metadata["model_name"]) == ("How high?", "High.", "m")


@pytest.mark.parametrize("saver", [None, InMemorySaver])
def test_an_agent(histories: Any, run: Styles, saver: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A tool's artifact of arrays: the caller has it, the transcript what can be stored; later turns go on."""
    call = AIMessage("", tool_calls=[{"name": "measure", "args": {}, "id": "c1"}])
    model = FakeChatModel(responses=[call, "It is high.", "It was high."])
    middleware = [MessageHistoryMiddleware(histories, trace=True)]
    agent = create_agent(model, [measure], middleware=middleware, checkpointer=saver and saver())
    run(agent, {"messages": [HumanMessage("How high?")]}, CONFIG)
    assert told(caplog) == ["metadata that cannot be stored is left out of a turn: 1 in artifact"]
    later: Any = {"configurable": {**CONFIG["configurable"], "turn_id": "t2"}}
    run(agent, {"messages": [HumanMessage("And before?")]}, later)
    texts = [(m.type, m.text) for m in histories("s1", "u1").messages]
    first = [("human", "How high?"), ("ai", ""), ("tool", "It is high."), ("ai", "It is high.")]
    assert texts == [*first, ("human", "And before?"), ("ai", "It was high.")]
    looked = histories("s1", "u1").messages[2]
    assert looked.artifact == {"unit": "m"}
    assert looked.response_metadata == {"memkit_left_out": ["artifact['levels']"]}


def test_a_repeated_run(histories: Any) -> None:
    """A run under the id of a stored turn is that turn, although its arrays cannot be compared."""
    for _ in range(2):
        call = AIMessage("", tool_calls=[{"name": "measure", "args": {}, "id": "c1"}])
        agent = create_agent(
            FakeChatModel(responses=[call, "It is high."]), [measure], middleware=[MessageHistoryMiddleware(histories)]
        )
        asked = HumanMessage("How high?", id="q", additional_kwargs={"n": np.arange(3)})
        agent.invoke({"messages": [asked]}, CONFIG)
    assert [m.type for m in histories("s1", "u1").messages] == ["human", "ai", "tool", "ai"]
