"""Together with an app's own middleware: runs that it ends, and states that it trims, edits or empties."""

from __future__ import annotations

from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows, send
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    PIIDetectionError,
    PIIMiddleware,
    hook_config,
)
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command

from langchain_memkit import MessageHistoryMiddleware
from langchain_memkit.errors import ConfigurationError


class Guard(AgentMiddleware[Any, Any, Any]):
    """Ends a run before or after the model; both styles are one."""

    def __init__(self, when: str) -> None:
        super().__init__()
        self.when = when

    def _do(self, when: str, state: Any) -> Any:
        if when != self.when or "bad" not in state["messages"][0].text:
            return None
        if when == "after_model":
            return {"messages": [RemoveMessage(state["messages"][-1].id), AIMessage("removed")]}
        return {"messages": [AIMessage("refused")], "jump_to": "end"}

    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: Any, runtime: Any) -> Any:
        """Before the run."""
        return self._do("before_agent", state)

    @hook_config(can_jump_to=["end"])
    def before_model(self, state: Any, runtime: Any) -> Any:
        """Before a call."""
        return self._do("before_model", state)

    def after_model(self, state: Any, runtime: Any) -> Any:
        """After a call."""
        return self._do("after_model", state)


@pytest.mark.parametrize("first", [True, False], ids=["guard first", "history first"])
@pytest.mark.parametrize("when", ["before_agent", "before_model", "after_model"])
def test_guards(histories: Any, history: Any, checkpointer: Any, run: Any, when: str, first: bool) -> None:
    """A run that another middleware ends is a turn with what it said; what it took out is not stored."""
    stack = [Guard(when), MessageHistoryMiddleware(histories)]
    agent = create_agent(Scripted(), [], middleware=stack if first else stack[::-1], checkpointer=checkpointer)
    for _ in range(2):
        run(agent, asking("bad"), CONFIG)
    said = "removed" if when == "after_model" else "refused"
    assert rows(history) == [["bad", said], ["bad", said]]


class Trimming(AgentMiddleware[Any, Any, Any]):
    """LangChain's recipe for a state that stays short: the first message and the newest."""

    def before_model(self, state: Any, runtime: Any) -> Any:
        """Before each call."""
        first, *rest = state["messages"]
        if len(rest) < 4:
            return None
        return {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES), first, *rest[-2:]]}


def test_trimmed_state(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """What an app trims from its state in the middle of a run is stored with the turn, in its place."""
    calls = [calling(("look_up", {"word": str(i)})) for i in range(4)]
    agent = create_agent(
        Scripted(script=[*calls, "done"]),
        [look_up],
        middleware=[MessageHistoryMiddleware(histories), Trimming()],
        checkpointer=checkpointer,
    )
    output = run(agent, asking("q"), CONFIG)
    assert len(output["messages"]) < 6
    if checkpointer:
        assert not agent.get_state(CONFIG).values["memkit_seen"]
    assert rows(history) == [["q", *(t for i in range(4) for t in ("look_up", f"{i} is a word")), "done"]]


def test_trimmed_and_failed(histories: Any, history: Any, run: Any) -> None:
    """What a failed run was seen to say is not taken for a part of the next one, which another process may end."""
    calls = [calling(("look_up", {"word": str(i)})) for i in range(3)]
    wait = HumanInTheLoopMiddleware(interrupt_on={"send": True})
    agent = create_agent(
        Scripted(script=[*calls, OSError("down"), calling(("send", {"to": "all"})), "done"]),
        [look_up, send],
        middleware=[MessageHistoryMiddleware(histories), Trimming(), wait],
        checkpointer=InMemorySaver(),
    )
    with pytest.raises(OSError, match="down"):
        run(agent, asking("q"), CONFIG)
    assert agent.get_state(CONFIG).values["memkit_seen"]
    run(agent, asking("go"), CONFIG)
    assert not agent.get_state(CONFIG).values["memkit_seen"]
    run(agent, Command(resume={"decisions": [{"type": "approve"}]}), CONFIG)
    assert rows(history)[-1] == ["go", "send", "sent to all", "done"]


class Replacing(AgentMiddleware[Any, Any, Any]):
    """Puts another question in the place of the user's."""

    def before_model(self, state: Any, runtime: Any) -> Any:
        """Before each call."""
        last = state["messages"][-1]
        return {"messages": [RemoveMessage(last.id), HumanMessage("clean")]} if last.text == "dirty" else None


def test_replaced_question(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """A question that was taken out for another one is not stored."""
    agent = create_agent(
        Scripted(), [], middleware=[MessageHistoryMiddleware(histories), Replacing()], checkpointer=checkpointer
    )
    for _ in range(2):
        run(agent, asking("dirty"), CONFIG)
    assert rows(history) == [["clean", "ok 1"], ["clean", "ok 2"]]


class Signing(AgentMiddleware[Any, Any, Any]):
    """Changes the answer when the run ends."""

    def after_agent(self, state: Any, runtime: Any) -> Any:
        """After the run."""
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"{last.text}, yours", id=last.id)]}


def test_first_in_the_list_comes_last(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """First in the list, it stores what others make of the answer when the run ends."""
    agent = create_agent(
        Scripted(), [], middleware=[MessageHistoryMiddleware(histories), Signing()], checkpointer=checkpointer
    )
    run(agent, asking("q"), CONFIG)
    assert rows(history) == [["q", "ok 1, yours"]]


def test_forgets_on_purpose(histories: Any, history: Any, run: Any) -> None:
    """An app that empties the state keeps its transcript, which the model does not see again."""
    model = Scripted()
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    run(agent, asking("q1"), CONFIG)
    agent.update_state(CONFIG, {"messages": [RemoveMessage(REMOVE_ALL_MESSAGES)]})
    run(agent, asking("q2"), CONFIG)
    assert rows(history) == [["q1", "ok 1"], ["q2", "ok 2"]]
    assert model.shown == ["q2"]
    run(agent, asking("q3"), CONFIG)
    assert model.shown == ["q2", "ok 2", "q3"]


def test_refused_answer_is_not_stored(histories: Any, history: Any, run: Any) -> None:
    """What another middleware refuses after the model is nowhere in the transcript, however the run ends."""
    guard = PIIMiddleware("email", strategy="block", apply_to_output=True)
    agent = create_agent(
        Scripted(script=["it is a@b.org"]), [], middleware=[MessageHistoryMiddleware(histories), guard]
    )
    with pytest.raises(PIIDetectionError):
        run(agent, asking("q"), CONFIG)
    assert rows(history) == []


class Second(MessageHistoryMiddleware):
    """Of another name, so that LangChain takes both."""


def test_two_of_them_are_refused(histories: Any, history: Any, run: Any) -> None:
    """Each turn would be stored twice, or by neither."""
    both = [MessageHistoryMiddleware(histories), Second(histories)]
    with pytest.raises(ConfigurationError, match="stored twice"):
        run(create_agent(Scripted(), [], middleware=both), asking("q"), CONFIG)
    assert rows(history) == []


def test_waiting_run_is_resumed_for_whom_it_was_begun(histories: Any, history: Any, run: Any) -> None:
    """With other ids it is refused; a new question of somebody else's never stores what it said."""
    model = Scripted(script=[calling(("send", {"to": "all"})), "fine"])
    agent = create_agent(
        model,
        [send],
        middleware=[MessageHistoryMiddleware(histories), HumanInTheLoopMiddleware(interrupt_on={"send": True})],
        checkpointer=InMemorySaver(),
    )
    run(agent, asking("send"), CONFIG)
    other: Any = {"configurable": {**CONFIG["configurable"], "user_id": "u2"}}
    with pytest.raises(ConfigurationError, match="another user or session"):
        run(agent, Command(resume={"decisions": [{"type": "approve"}]}), other)
    run(agent, asking("hello"), other)
    assert rows(histories("s1", user_id="u2")) == [["hello", "fine"]]
    assert rows(history) == []


def test_save_that_is_only_logged_is_made_up_for(histories: Any, history: Any, run: Any) -> None:
    """The state has the turn: the next run stores it."""
    broken = [True]

    def before_save(messages: list[Any]) -> list[Any]:
        if broken.pop() if broken else False:
            raise ValueError
        return messages

    middleware = MessageHistoryMiddleware(histories, before_save=before_save, on_save_error="log")
    agent = create_agent(Scripted(), [], middleware=[middleware], checkpointer=InMemorySaver())
    run(agent, asking("q1"), CONFIG)
    assert rows(history) == []
    run(agent, asking("q2"), CONFIG)
    assert rows(history) == [["q1", "ok 1"], ["q2", "ok 2"]]


def test_cleared_under_a_larger_graph(histories: Any, history: Any) -> None:
    """There the state does not remember its turns, and must not bring back what was cleared."""
    agent = create_agent(Scripted(), [], middleware=[MessageHistoryMiddleware(histories)])
    graph: Any = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    graph.add_edge(START, "agent")
    whole = graph.compile(checkpointer=InMemorySaver())
    whole.invoke(asking("secret"), CONFIG)
    history.clear()
    whole.invoke(asking("hello"), CONFIG)
    assert rows(history) == [["hello", "ok 2"]]


def test_retry_around_a_checkpointed_agent(histories: Any, history: Any, run: Any) -> None:
    """The question of an attempt that failed is not asked again beside that of the next one."""
    model = Scripted(script=[ConnectionError("429"), ConnectionError("429"), "done"])
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver())
    config: Any = {"configurable": {**CONFIG["configurable"], "turn_id": "t1"}}
    for _ in range(2):
        with pytest.raises(ConnectionError):
            run(agent, asking("q"), config)
    run(agent, asking("q"), config)
    assert model.shown == ["q"]
    assert rows(history) == [["q", "done"]]


def test_another_user_on_the_thread(histories: Any, history: Any, run: Any) -> None:
    """What a waiting run of one user has said is never stored with another user's turns, nor shown to the model."""
    model = Scripted(script=[calling(("send", {"to": "all"}), text="u1's secret"), "hello u2"])
    agent = create_agent(
        model,
        [send],
        middleware=[MessageHistoryMiddleware(histories), HumanInTheLoopMiddleware(interrupt_on={"send": True})],
        checkpointer=InMemorySaver(),
    )
    run(agent, asking("of u1"), CONFIG)
    other: Any = {"configurable": {**CONFIG["configurable"], "user_id": "u2"}}
    run(agent, asking("of u2"), other)
    assert rows(histories("s1", user_id="u2")) == [["of u2", "hello u2"]]
    assert model.shown == ["of u2"]


def test_saves_that_fail_twice_are_made_up_for(histories: Any, history: Any, run: Any) -> None:
    """Where the next run cannot store it either, the one after that does."""
    broken = [True, True]

    def before_save(messages: list[Any]) -> list[Any]:
        if broken.pop() if broken else False:
            raise ValueError
        return messages

    middleware = MessageHistoryMiddleware(histories, before_save=before_save, on_save_error="log")
    agent = create_agent(Scripted(), [], middleware=[middleware], checkpointer=InMemorySaver())
    for i in range(3):
        run(agent, asking(f"q{i}"), CONFIG)
    assert [m.text for m in history.messages] == ["q0", "ok 1", "q1", "ok 2", "q2", "ok 3"]
