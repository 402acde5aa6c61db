"""What an app takes out of its state, or corrects there, the model does not see again; the transcript keeps it."""

from __future__ import annotations

import operator
from typing import Annotated, Any, Required

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows, send, texts
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware, SummarizationMiddleware
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command

from langchain_memkit import (
    MessageHistoryMiddleware,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    purge_user,
)
from testkit.trimming_apps import RECIPES, OwnSummary, Trimmed

TURNS = 20
APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


@pytest.fixture(params=["first", "last"])
def place(request: pytest.FixtureRequest) -> str:
    """Where our middleware stands in the list."""
    return str(request.param)


@pytest.fixture
def history_of(histories: Any) -> Any:
    """Our middleware."""
    return MessageHistoryMiddleware(histories)


def beside(middleware: Any, others: list[Any], place: str) -> list[Any]:
    """A list of middleware with ours first or last."""
    return [middleware, *others] if place == "first" else [*others, middleware]


def saved(middleware: list[Any], model: Any, tools: Any = (), **options: Any) -> Any:
    """An agent whose state is kept."""
    return create_agent(model, [*tools], middleware=middleware, checkpointer=InMemorySaver(), **options)


def as_node(middleware: list[Any], model: Any, tools: Any = ()) -> Any:
    """An agent that is a node of the app's graph, which keeps the state."""
    agent = create_agent(model, [*tools], middleware=middleware)
    graph: Any = StateGraph(MessagesState)
    graph.add_node("agent", agent)
    return graph.add_edge(START, "agent").compile(checkpointer=InMemorySaver())


def talk(run: Any, agent: Any, questions: Any) -> None:
    """Asks one after another."""
    for question in questions:
        run(agent, asking(question), CONFIG)


# -- the recipes of the guides: what the model sees is what it sees without us


@pytest.mark.parametrize("made", [saved, as_node])
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(history_of: Any, history: Any, run: Any, recipe: str, place: str, made: Any) -> None:
    """In twenty turns each call of the model gets what it gets without us; the transcript holds all, once."""
    control, model = Scripted(), Scripted()
    questions = [f"q{i}" for i in range(TURNS)]
    talk(run, made([RECIPES[recipe]()], control), questions)
    talk(run, made(beside(history_of, [RECIPES[recipe]()], place), model), questions)
    assert [texts(call) for call in model.calls] == [texts(call) for call in control.calls]
    stored = [[text for text in row if not text.startswith("summary up to")] for row in rows(history)]
    assert stored == [[f"q{i}", f"ok {i + 1}"] for i in range(TURNS)]
    if recipe != "own summary, by a user":  # it is one more message of a user
        assert len(history.messages) == 2 * TURNS


@pytest.mark.parametrize("recipe", ["trim_messages", "own summary", "request trimmed"])
def test_recipe_with_the_same_words(history_of: Any, history: Any, run: Any, recipe: str, place: str) -> None:
    """A user who says the same each time: what is shown is the newest of it."""
    control, model = Scripted(), Scripted()
    talk(run, saved([RECIPES[recipe]()], control), ["hi"] * 8)
    talk(run, saved(beside(history_of, [RECIPES[recipe]()], place), model), ["hi"] * 8)
    assert [texts(call) for call in model.calls] == [texts(call) for call in control.calls]
    assert rows(history) == [["hi", f"ok {i + 1}"] for i in range(8)]


@pytest.mark.parametrize("recipe", ["trim_messages", "own summary"])
def test_recipe_with_tools(history_of: Any, history: Any, run: Any, recipe: str, place: str) -> None:
    """With calls of tools between: each turn is stored whole, and the model sees what it sees without us."""

    def script() -> list[Any]:
        return [line for i in range(6) for line in (calling(("look_up", {"word": str(i)})), f"done {i}")]

    control, model = Scripted(script=script()), Scripted(script=script())
    questions = [f"q{i}" for i in range(6)]
    talk(run, saved([RECIPES[recipe]()], control, [look_up]), questions)
    talk(run, saved(beside(history_of, [RECIPES[recipe]()], place), model, [look_up]), questions)
    shown = [texts(call) for call in model.calls]
    if recipe == "trim_messages":
        assert shown == [texts(call) for call in control.calls]
    else:  # results whose calls the summary took: providers refuse them
        orphans = [
            [m.text for i, m in enumerate(call) if not (m.type == "tool" and not getattr(call[i - 1], "tool_calls", 0))]
            for call in control.calls
        ]
        assert shown == orphans
    assert rows(history) == [[f"q{i}", "look_up", f"{i} is a word", f"done {i}"] for i in range(6)]
