"""A deep agent whose app shortens its state: what the model sees is what it sees without us, and all is stored once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, RemoveMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from pydantic import Field

from langchain_memkit import MessageHistoryMiddleware, SQLiteChatMessageHistory
from testkit.styles import Styles
from testkit.trimming_apps import RECIPES

CONFIG: Any = {"configurable": {"session_id": "s1", "thread_id": "s1", "user_id": "u1"}}
APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


class Model(BaseChatModel):
    """Answers "a1", "a2" and so on, or what its script says next."""

    script: list[AIMessage] = Field(default_factory=list)
    calls: list[list[str]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """The script says when tools are called."""
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.calls.append([m.text for m in messages])
        said = self.script.pop(0) if self.script else AIMessage(f"a{len(self.calls)}")
        return ChatResult(generations=[ChatGeneration(message=said)])


def look() -> str:
    """Looks."""
    return "seen"


@pytest.fixture(params=["invoke", "ainvoke"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(agent, value, config)` in both styles."""
    return Styles(request.param)


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Any]:
    """A factory on one file."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
        yield factory


INPUTS = ("pairs", "no ids", "ids")
numbers = itertools.count()


def asked(text: str, given: str) -> Any:
    """A question, as it is given."""
    if given == "pairs":
        return {"messages": [("user", text)]}
    return {"messages": [HumanMessage(text, id=f"id-{next(numbers)}" if given == "ids" else None)]}


def deep_agent(model: Any, middleware: list[Any], **options: Any) -> Any:
    """A deep agent with a saver."""
    return create_deep_agent(model, [look], middleware=middleware, checkpointer=InMemorySaver(), **options)


def stored(histories: Any) -> list[str]:
    """What is stored, but for a summary that was a user's message."""
    return [m.text for m in histories("s1", "u1").messages if not m.text.startswith("summary up to")]


CASES = [(recipe, given) for recipe in RECIPES for given in INPUTS if given == "ids" or recipe != "old ones deleted"]


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize(("recipe", "given"), CASES)  # `RemoveMessage` needs ids
def test_recipe(histories: Any, run: Any, recipe: str, place: str, given: str) -> None:
    """In eight turns each call of the model gets what it gets without us; sixteen messages are stored."""
    ours = MessageHistoryMiddleware(histories)
    control, model = Model(), Model()
    stack = [ours, RECIPES[recipe]()] if place == "first" else [RECIPES[recipe](), ours]
    for its_model, middleware in ((control, [RECIPES[recipe]()]), (model, stack)):
        agent = deep_agent(its_model, middleware)
        for i in range(8):
            run(agent, asked(f"q{i}", given), CONFIG)
    assert model.calls == control.calls
    assert stored(histories) == [text for i in range(8) for text in (f"q{i}", f"a{i + 1}")]


@pytest.mark.parametrize("given", INPUTS)
@pytest.mark.parametrize("recipe", ["trim_messages", "own summary", "request trimmed"])
def test_pauses(histories: Any, run: Any, recipe: str, given: str) -> None:
    """Each third turn waits for a person, and other objects resume it: ids may be new, nothing is stored twice."""
    calls = [{"name": "look", "args": {}, "id": f"call-{i}"} for i in range(8)]
    control, model, saver = Model(), Model(), InMemorySaver()
    alone = deep_agent(control, [RECIPES[recipe]()], interrupt_on={"look": True})

    def with_ours() -> Any:
        stack = [MessageHistoryMiddleware(histories), RECIPES[recipe]()]
        return create_deep_agent(model, [look], middleware=stack, checkpointer=saver, interrupt_on={"look": True})

    expected = []
    for i in range(8):
        waits = i % 3 == 1
        for its_model in (control, model) if waits else ():
            its_model.script = [AIMessage("", tool_calls=[dict(calls[i])])]
        value = asked(f"q{i}", given)
        run(alone, value, CONFIG)
        run(with_ours(), value, CONFIG)
        if waits:
            run(alone, APPROVE, CONFIG)
            run(with_ours(), APPROVE, CONFIG)
        expected += [f"q{i}", *(["", "seen"] if waits else []), f"a{len(control.calls)}"]
    assert model.calls == control.calls
    assert stored(histories) == expected


@pytest.mark.parametrize("given", INPUTS)
def test_update_state(histories: Any, run: Any, given: str) -> None:
    """An answer that `update_state` corrects is shown as corrected, one that it removes is not shown."""
    model = Model()
    agent = deep_agent(model, [MessageHistoryMiddleware(histories)])
    for i in range(3):
        run(agent, asked(f"q{i}", given), CONFIG)
    first, second, third = (m for m in agent.get_state(CONFIG).values["messages"] if m.type == "ai")
    agent.update_state(CONFIG, {"messages": [AIMessage("better", id=first.id), RemoveMessage(second.id)]})
    agent.update_state(CONFIG, {"messages": [RemoveMessage(third.id)]})
    run(agent, asked("q3", given), CONFIG)
    assert model.calls[-1][1:] == ["q0", "better", "q1", "q2", "q3"]
    assert stored(histories) == ["q0", "a1", "q1", "a2", "q2", "a3", "q3", "a4"]


def test_redacted(histories: Any, run: Any) -> None:
    """A question that `before_save` changed and that has no id of its own is shown in the state's words, once."""

    def redact(messages: list[Any]) -> list[Any]:
        return [m.model_copy(update={"content": m.text.replace("4111", "[card]")}) for m in messages]

    model = Model()
    agent = deep_agent(model, [MessageHistoryMiddleware(histories, before_save=redact)])
    for text in ("my 4111", "4111 again", "then"):
        run(agent, asked(text, "pairs"), CONFIG)
    assert model.calls[-1][1:] == ["my 4111", "a1", "4111 again", "a2", "then"]
    assert stored(histories) == ["my [card]", "a1", "[card] again", "a2", "then", "a3"]
