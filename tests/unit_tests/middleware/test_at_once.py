"""Several runs at once on one thread: none is lost, and each question and answer is stored once.

Nothing tells a run that is under way from one that has failed, so each finds the other's question unanswered in the
state. Who stores first has it, the other one the rest.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, rows
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import MessageHistoryMiddleware, SQLiteChatMessageHistory


@tool
def look_up(word: str) -> str:
    """What a word means."""
    return f"{word} is a word"


class Looking(Scripted):
    """Calls a tool for each question, and repeats what it returned."""

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage(messages[-1].text)
        word = messages[-1].text
        return AIMessage("", tool_calls=[{"name": "look_up", "args": {"word": word}, "id": f"call-{word}"}])


def assert_whole(stored: list[BaseMessage], n: int) -> None:
    """Every question and every answer is there, once."""
    assert sorted(m.text for m in stored if m.type == "human") == [f"q{i}" for i in range(n)]
    answers = [m.id for m in stored if m.type == "ai"]
    assert len({*answers}) == len(answers) == n


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
    assert_whole([m for turn in [*history.iter_turns()][:4] for m in turn.messages], 4)
    assert [row[0] for row in rows(history)[4:]] == ["last"]


def test_overtaken(histories: Any, history: Any) -> None:
    """A run that begins and ends while another one on its thread waits for the model finds its question unanswered."""
    asked, answer = threading.Event(), threading.Event()

    def slow(messages: Any) -> str:
        asked.set()
        assert answer.wait(60)
        return "slow"

    model = Scripted(script=[slow, "quick"])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(agent.invoke, asking("q0"), CONFIG)
        assert asked.wait(60)
        agent.invoke(asking("q1"), CONFIG)
        answer.set()
        first.result()
    assert model.shown == ["q0", "q1"]
    assert rows(history) == [["q0", "q1", "quick"], ["slow"]]


def test_overtaking_run_that_ends_later(histories: Any, history: Any) -> None:
    """A run that found another one's question in the state leaves it to that one, if that one has ended by then."""
    asked, answer = [threading.Event(), threading.Event()], [threading.Event(), threading.Event()]

    def slow(n: int) -> Any:
        def say(messages: Any) -> str:
            asked[n].set()
            assert answer[n].wait(60)
            return f"a{n}"

        return say

    model = Scripted(script=[slow(0), slow(1)])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    with ThreadPoolExecutor(2) as pool:
        runs = []
        for n in range(2):
            runs.append(pool.submit(agent.invoke, asking(f"q{n}"), CONFIG))
            assert asked[n].wait(60)
        for n in range(2):
            answer[n].set()
            runs[n].result()
    assert model.shown == ["q0", "q1"]
    assert rows(history) == [["q0", "a0"], ["q1", "a1"]]


# langchain hides this warning with `warnings.catch_warnings`, which threads take from each other
@pytest.mark.filterwarnings("ignore:Direct attribute assignment to ModelRequest")
def test_one_after_the_other_and_yet_at_the_same_time(histories: Any) -> None:
    """A question that stands unanswered in the state, because its own run is not done yet, is not lost."""
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    for thread in map(str, range(25)):
        config = {"configurable": {"thread_id": thread, "user_id": "u1"}}
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: agent.invoke(asking(f"q{i}"), config), range(4)))  # noqa: B023  # it ends here
        stored = histories(thread, user_id="u1").messages
        assert_whole(stored, 4)


def test_own_question_first_seen_by_another_run(histories: Any, history: Any) -> None:
    """A run whose question another one found in the state before it began still has it, and stores it."""
    for thread in map(str, range(10)):
        config = {"configurable": {"thread_id": thread, "user_id": "u1"}}
        model = Scripted(delay=0.005)
        agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())

        async def at_any_time(agent: Any = agent, config: Any = config) -> None:
            async def one(i: int) -> None:
                await asyncio.sleep(0.003 * i)
                await agent.ainvoke(asking(f"q{i}"), config)

            await asyncio.gather(*(one(i) for i in range(6)))

        asyncio.run(at_any_time())
        stored = histories(thread, user_id="u1").messages
        assert_whole(stored, 6)


@pytest.mark.parametrize("style", ["threads", "tasks"])
def test_tools_at_the_same_time(histories: Any, style: str) -> None:
    """Each run's answer, calls and results are stored once, whatever other runs have found of it in the state."""
    agent = create_agent(
        Looking(), [look_up], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver()
    )
    config = {"configurable": {"thread_id": "t", "user_id": "u1"}}
    if style == "tasks":

        async def all_at_once() -> None:
            await asyncio.gather(*(agent.ainvoke(asking(f"q{i}"), config) for i in range(6)))

        asyncio.run(all_at_once())
    else:
        with ThreadPoolExecutor(6) as pool:
            list(pool.map(lambda i: agent.invoke(asking(f"q{i}"), config), range(6)))
    stored = histories("t", user_id="u1").messages
    assert sorted(m.text for m in stored if m.type == "human") == [f"q{i}" for i in range(6)]
    spoken = [m.id for m in stored if m.type in ("ai", "tool") and not str(m.id).endswith("-calls")]
    assert len({*spoken}) == len(spoken) == 18


class Dawdling(AgentMiddleware[Any, Any, Any]):
    """Keeps the first run between its model and its end."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def after_model(self, state: Any, runtime: Any) -> None:
        """After a call."""
        if state["messages"][-1].text == "ok 1":
            self.begun.set()
            assert self.go_on.wait(60)


def test_run_between_two_steps(histories: Any, history: Any) -> None:
    """What it said may be stored by the next run, and is not stored again when it goes on."""
    slow = Dawdling()
    agent = create_agent(
        Scripted(), [], middleware=[MessageHistoryMiddleware(histories), slow], checkpointer=InMemorySaver()
    )
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(agent.invoke, asking("q0"), CONFIG)
        assert slow.begun.wait(60)
        agent.invoke(asking("q1"), CONFIG)
        slow.go_on.set()
        first.result()
    assert_whole(history.messages, 2)


class TwoStops(AgentMiddleware[Any, Any, Any]):
    """Stops the run that answers "second": after its model, and again before it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.answered, self.checkpointed = threading.Event(), threading.Event()
        self.go_on, self.end = threading.Event(), threading.Event()

    def after_model(self, state: Any, runtime: Any) -> None:
        """After a call."""
        if state["messages"][-1].text == "second":
            self.answered.set()
            assert self.go_on.wait(60)

    def after_agent(self, state: Any, runtime: Any) -> None:
        """After the last call, before the turn is stored."""
        if state["messages"][-1].text == "second":
            self.checkpointed.set()
            assert self.end.wait(60)


def test_rest_of_a_run_that_stores_it_meanwhile(tmp_path: Path) -> None:
    """A run that adds what another one has not stored yet meets that one's whole turn, which holds more."""
    stops, first_asked, first_may_answer = TwoStops(), threading.Event(), threading.Event()

    def first(messages: Any) -> str:
        first_asked.set()
        assert first_may_answer.wait(60)
        return "first"

    pending: list[Any] = []

    class Overtaken(SQLiteChatMessageHistory):
        """Lets the second run end just before the third one stores what it found of it in the state."""

        def append_turn(self, messages: Any, **options: Any) -> int:
            if [m.text for m in messages] == ["q1", "second"]:
                stops.end.set()
                pending[-1].result()
            return super().append_turn(messages, **options)

    with Overtaken.factory(tmp_path / "chat.db") as overtaken:
        agent = create_agent(
            Scripted(script=[first, "second"]),
            [],
            middleware=[MessageHistoryMiddleware(overtaken), stops],
            checkpointer=InMemorySaver(),
        )
        with ThreadPoolExecutor(2) as pool:
            pending.append(pool.submit(agent.invoke, asking("q0"), CONFIG))
            assert first_asked.wait(60)
            # Its checkpoints are written before its next step, so that the third run finds what it said.
            pending.append(pool.submit(agent.invoke, asking("q1"), CONFIG, durability="sync"))
            assert stops.answered.wait(60)
            first_may_answer.set()
            pending[0].result()
            stops.go_on.set()
            assert stops.checkpointed.wait(60)
            agent.invoke(asking("q2"), CONFIG)
            pending[1].result()
        assert rows(overtaken("s1", "u1")) == [["q0", "first"], ["q0", "q1", "second"], ["q2", "ok 3"]]
