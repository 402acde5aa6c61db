"""Together with LangChain's own middleware: whatever these do to the state is what is stored."""

from __future__ import annotations

import gc
import itertools
from typing import Annotated, Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows, send, texts
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
)
from langchain.agents.middleware.context_editing import ClearToolUsesEdit
from langchain.tools import InjectedToolCallId, tool
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import BaseModel

from langchain_memkit import MessageHistoryMiddleware


def summarizing(keep: int = 2, trigger: int = 4) -> Any:
    """LangChain's, with a model that says where a summary stands."""
    return SummarizationMiddleware(
        Scripted(script=["SUMMARY"] * 50), trigger=("messages", trigger), keep=("messages", keep)
    )


ORDERS = list(itertools.permutations(range(5)))[::17]


@pytest.mark.parametrize("order", ORDERS, ids=lambda o: "".join(map(str, o)))
def test_all_of_them(histories: Any, history: Any, checkpointer: Any, run: Any, order: Any) -> None:
    """In any order: redacted text, every message of every turn, each once; the answer of an approved call."""
    stack = [
        MessageHistoryMiddleware(histories),
        PIIMiddleware("email", apply_to_output=True, apply_to_tool_results=True),
        summarizing(keep=3, trigger=5),
        ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=0, placeholder="CLEARED")]),
        *([HumanInTheLoopMiddleware(interrupt_on={"send": True})] if checkpointer else []),
    ]
    model = Scripted(
        script=[
            calling(("look_up", {"word": "x@y.org"})),
            "it is z@y.org",
            calling(("send", {"to": "all"})),
            "sent",
            "bye",
        ]
    )
    stack = [stack[i] for i in order if i < len(stack)]
    agent = create_agent(model, [look_up, send], middleware=stack, checkpointer=checkpointer)
    run(agent, asking("who is a@b.org"), CONFIG)
    output = run(agent, asking("send it"), CONFIG)
    if checkpointer:
        assert output["__interrupt__"]
        run(agent, Command(resume={"decisions": [{"type": "approve"}]}), CONFIG)
    run(agent, asking("bye"), CONFIG)
    assert rows(history) == [
        [
            "who is [REDACTED_EMAIL]",
            "look_up",
            "[REDACTED_EMAIL] is a word",
            "it is [REDACTED_EMAIL]",
        ],
        ["send it", "send", "sent to all", "sent"],
        ["bye", "bye"],
    ]
    assert "@" not in str([text for call in model.calls for m in call for text in [m.text]])
    assert len({m.id for m in history.messages}) == len(history.messages)


def test_summarized_away(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """What a summary removes from the state in the middle of a run is stored with the turn, in its place."""
    calls = [calling(("look_up", {"word": str(i)})) for i in range(4)]
    model = Scripted(script=[*calls, "done"])
    agent = create_agent(
        model,
        [look_up],
        middleware=[summarizing(), MessageHistoryMiddleware(histories)],
        checkpointer=checkpointer,
    )
    output = run(agent, asking("q"), CONFIG)
    assert rows(history) == [["q", *(t for i in range(4) for t in ("look_up", f"{i} is a word")), "done"]]
    assert len(output["messages"]) < 5
    assert model.shown[0].startswith("Here is a summary")
    assert "q" not in model.shown


def test_cut_of_a_summary_counts(histories: Any, history: Any, run: Any) -> None:
    """With its summary in the state the model sees that, what it left, what others said since, and the new input."""
    model = Scripted()
    agent = create_agent(
        model, [], middleware=[summarizing(), MessageHistoryMiddleware(histories)], checkpointer=InMemorySaver()
    )
    for i in range(3):
        output = run(agent, asking(f"q{i}"), CONFIG)
    summary, *rest = model.shown
    assert summary.startswith("Here is a summary")
    assert rest == ["ok 2", "q2"]
    history.add_messages([AIMessage("by the way")])
    run(agent, asking("q3"), CONFIG)
    assert model.shown[1:] == ["ok 3", "by the way", "q3"]
    assert len(output["messages"]) == 4
    assert rows(history)[:3] == [["q0", "ok 1"], ["q1", "ok 2"], ["q2", "ok 3"]]


def test_summary_that_keeps_nothing(histories: Any, history: Any, run: Any) -> None:
    """Where a summary keeps the new question alone, the model sees besides what others said since the last run."""
    model = Scripted()
    agent = create_agent(
        model,
        [],
        middleware=[summarizing(keep=1), MessageHistoryMiddleware(histories)],
        checkpointer=InMemorySaver(),
    )
    for i in range(2):
        run(agent, asking(f"q{i}"), CONFIG)
    history.add_messages([HumanMessage("elsewhere")])
    run(agent, asking("q2"), CONFIG)
    assert model.shown[0].startswith("Here is a summary")
    assert model.shown[1:] == ["elsewhere", "q2"]


def test_edited_call(histories: Any, history: Any, run: Any) -> None:
    """A call that a person edited is stored as it was made, a refused one with the refusal."""
    model = Scripted(script=[calling(("send", {"to": "all"})), "sent", calling(("send", {"to": "me"})), "not sent"])
    agent = create_agent(
        model,
        [send],
        middleware=[MessageHistoryMiddleware(histories), HumanInTheLoopMiddleware(interrupt_on={"send": True})],
        checkpointer=InMemorySaver(),
    )
    run(agent, asking("send"), CONFIG)
    edit = {"type": "edit", "edited_action": {"name": "send", "args": {"to": "nobody"}}}
    run(agent, Command(resume={"decisions": [edit]}), CONFIG)
    run(agent, asking("again"), CONFIG)
    run(agent, Command(resume={"decisions": [{"type": "reject", "message": "no"}]}), CONFIG)
    (first, second) = rows(history)
    assert [*first[:2], first[2].splitlines()[-1], first[3]] == ["send", "send", "sent to nobody", "sent"]
    assert [*second[:2], second[2].split()[-1], second[3]] == ["again", "send", "no", "not sent"]
    assert history.messages == agent.get_state(CONFIG).values["messages"]


class Busy(InMemorySaver):
    """In a process that makes much: what is alive while a run breaks off is no longer young when it is over."""

    def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        """As its parent; Python collects just when the run waits for a person."""
        super().put_writes(config, writes, task_id, task_path)
        if any(channel == "__interrupt__" for channel, _ in writes):
            gc.collect()


@pytest.mark.parametrize("saver", [InMemorySaver, Busy])
def test_interrupted_and_left(histories: Any, history: Any, run: Any, saver: Any) -> None:
    """An interrupted run whose user goes on at once is stored first, as a turn of its own."""
    model = Scripted(script=[calling(("send", {"to": "all"}), text="may I?"), "fine"])
    agent = create_agent(
        model,
        [send],
        middleware=[MessageHistoryMiddleware(histories), HumanInTheLoopMiddleware(interrupt_on={"send": True})],
        checkpointer=saver(),
    )
    run(agent, asking("send"), CONFIG)
    run(agent, asking("never mind"), CONFIG)
    assert rows(history) == [["send", "may I?"], ["never mind", "fine"]]
    assert model.shown == ["send", "may I?", "never mind"]
    assert not any(m.tool_calls for m in model.calls[-1] if isinstance(m, AIMessage))


def test_budget(histories: Any, history: Any, run: Any) -> None:
    """A loop that outgrows the budget keeps its question, its calls and the newest result; older results are short."""
    words = [f"{i} " + "long " * 200 for i in range(6)]
    calls: list[Any] = [AIMessage("", tool_calls=[calling_page(i)]) for i in range(6)]
    model = Scripted(script=["hello", *calls, "done"])

    def page(n: int) -> str:
        """Returns a page."""
        return words[n]

    agent = create_agent(model, [page], middleware=[MessageHistoryMiddleware(histories, max_tokens=900)])
    run(agent, asking("before"), CONFIG)
    run(agent, asking("the question"), CONFIG)
    assert model.shown[0] == "the question"
    assert len(model.shown) == 13
    assert model.shown[-1].startswith("5 long")
    assert model.shown[2].startswith('[Shortened: 1,002 characters that began "0 long')
    assert [len(row) for row in rows(history)] == [2, 14]
    assert history.messages[4].text == words[0]


def calling_page(n: int) -> Any:
    """A call of the tool `page`."""
    return {"name": "page", "args": {"n": n}, "id": f"page-{n}", "type": "tool_call"}


def test_subagent(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """An agent inside a tool, without the middleware, leaves nothing but its result."""
    inner_model = Scripted(script=["inner answer"] * 3)
    inner = create_agent(inner_model, [])

    def delegate(task: str) -> str:
        """Gives a task away."""
        return inner.invoke(asking(task))["messages"][-1].text

    model = Scripted(script=[calling(("delegate", {"task": "t"})), "done"])
    agent = create_agent(model, [delegate], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer)
    run(agent, asking("q"), CONFIG)
    assert rows(history) == [["q", "delegate", "inner answer", "done"]]
    assert texts(inner_model.calls[0]) == ["t"]


def test_command_from_a_tool(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """What a tool writes into the state by a `Command` is stored."""

    @tool
    def update(tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Updates."""
        return Command(update={"messages": [ToolMessage("updated", tool_call_id=tool_call_id)]})

    agent = create_agent(
        Scripted(script=[calling(("update", {})), "done"]),
        [update],
        middleware=[MessageHistoryMiddleware(histories)],
        checkpointer=checkpointer,
    )
    run(agent, asking("q"), CONFIG)
    assert rows(history) == [["q", "update", "updated", "done"]]


def test_structured_output(histories: Any, history: Any, checkpointer: Any, run: Any) -> None:
    """With `response_format` the call that carries the answer is stored, and the answer is returned."""

    class Weather(BaseModel):
        """Weather."""

        sunny: bool

    agent = create_agent(
        Scripted(script=[calling(("Weather", {"sunny": True}))]),
        [],
        response_format=Weather,
        middleware=[MessageHistoryMiddleware(histories)],
        checkpointer=checkpointer,
    )
    output = run(agent, asking("q"), CONFIG)
    assert output["structured_response"] == Weather(sunny=True)
    ((question, call, result),) = rows(history)
    assert (question, call) == ("q", "Weather")
    assert "sunny=True" in result


def test_summarized_and_failed(histories: Any, history: Any, run: Any) -> None:
    """What a summary removed in the step whose model failed is stored before the next question."""
    calls = [calling(("look_up", {"word": str(i)})) for i in range(2)]
    agent = create_agent(
        Scripted(script=[*calls, OSError("down"), "done"]),
        [look_up],
        middleware=[MessageHistoryMiddleware(histories), summarizing(trigger=5)],
        checkpointer=InMemorySaver(),
    )
    with pytest.raises(OSError, match="down"):
        run(agent, asking("q1"), CONFIG)
    run(agent, asking("q2"), CONFIG)
    assert rows(history) == [["q1", "look_up", "0 is a word", "look_up", "1 is a word"], ["q2", "done"]]


class Reminding(AgentMiddleware[Any, Any, Any]):
    """Leaves the oldest message out and puts another one behind: as many as there were."""

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        """Around a call."""
        return handler(request.override(messages=[*request.messages[1:], HumanMessage("remember")]))


def test_question_stays_in_an_edited_request(histories: Any) -> None:
    """A request with as many messages as the state, and other ones, holds the question, and not what it left out."""
    model = Scripted()
    middleware = [Reminding(), MessageHistoryMiddleware(histories)]
    agent = create_agent(model, [], middleware=middleware, checkpointer=InMemorySaver())
    for i in range(2):
        agent.invoke(asking(f"q{i}"), CONFIG)
    assert model.shown == ["ok 1", "q1", "remember"]
