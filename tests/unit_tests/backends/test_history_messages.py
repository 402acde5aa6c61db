"""The list that `history.messages` returns: a list for all who read it; who changes it is told what to call."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages, trim_messages
from langchain_core.messages.base import message_to_dict
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langgraph.graph.message import add_messages
from pydantic import BaseModel, ConfigDict

from langchain_memkit import SQLiteChatMessageHistory, base, create_trim_preprocessor
from langchain_memkit.testing import FakeChatModel

MORE = HumanMessage("What is my name?", id="h2")

CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "append": (lambda m: m.append(MORE), "add_message"),
    "extend": (lambda m: m.extend([MORE]), "add_messages"),
    "__iadd__": (lambda m: m.__iadd__([MORE]), "add_messages"),
    "insert": (lambda m: m.insert(0, MORE), "edit"),
    "pop": (lambda m: m.pop(0), "delete_turn"),
    "remove": (lambda m: m.remove(m[0]), "delete_turn"),
    "__delitem__": (lambda m: m.__delitem__(slice(1)), "delete_turn"),
    "__setitem__": (lambda m: m.__setitem__(0, MORE), "edit"),
    "clear": (lambda m: m.clear(), "clear"),
}


@pytest.fixture(autouse=True)
def _untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test is a process that was told nothing."""
    monkeypatch.setattr(base, "_changed", set())


@pytest.fixture
def history() -> Any:
    """A session of one turn."""
    history = SQLiteChatMessageHistory(":memory:", "s1")
    history.add_messages([HumanMessage("My name is Nemo.", id="h1"), AIMessage("Noted.", id="a1")])
    return history


@pytest.fixture(params=["messages", "aget_messages"])
def read(request: pytest.FixtureRequest, history: Any) -> Callable[[], Any]:
    """Both ways to the list."""
    return (lambda: history.messages) if request.param == "messages" else lambda: asyncio.run(history.aget_messages())


@pytest.mark.parametrize("method", CHANGES)
def test_a_change_is_told_once_and_made(
    method: str, history: Any, read: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The list changes as any list does; what is stored does not, and the log names the verb that would."""
    change, verb = CHANGES[method]
    for _ in range(2):
        mine, plain = read(), list(read())
        change(mine)
        change(plain)
        assert mine == plain
    assert len(history.messages) == 2
    [said] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert said.startswith(f"{method} changed the list that `history.messages` had returned")
    assert f"history.{verb}(" in said
    assert "Nemo" not in said


def test_a_working_list_is_a_prompt(history: Any, read: Callable[[], Any]) -> None:
    """Code that puts the question behind the past, and stores the turn itself, works as over LangChain's histories."""
    messages, model = read(), FakeChatModel()
    messages.append(MORE)
    answer = model.invoke(messages)
    assert answer.text == "You told me: My name is Nemo."
    history.add_messages([MORE, answer])
    assert [m.text for m in history.messages][2:] == [MORE.text, answer.text]


class Holder(BaseModel):
    """An app's own model of a conversation."""

    model_config = ConfigDict(strict=True)
    messages: list[BaseMessage]


READS: dict[str, Callable[[Any], object]] = {
    "isinstance": lambda m: isinstance(m, list) and m,
    "equals": lambda m: m == list(m) and list(m) == m and m,
    "plus": lambda m: (m + [MORE])[:2],  # noqa: RUF005  # as others write it
    "behind": lambda m: ([MORE] + m)[1:],  # noqa: RUF005
    "slice": lambda m: m[-5:],
    "unpacked": lambda m: [*m],
    "sorted": lambda m: sorted(m, key=lambda message: message.type, reverse=True),
    "reversed": lambda m: [*reversed(m)][::-1],
    "copy()": lambda m: m.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "pydantic": lambda m: Holder(messages=m).messages,
    "core": convert_to_messages,
    "prompt": lambda m: ChatPromptTemplate([MessagesPlaceholder("past")]).invoke({"past": m}).to_messages(),
    "trimmed": lambda m: trim_messages(m, max_tokens=9, token_counter=len),
    "trimmed by memkit": lambda m: create_trim_preprocessor(max_tokens=1000).invoke(m),
    "reducer": lambda m: add_messages(m, []),
}


@pytest.mark.parametrize("way", READS)
def test_reading_is_as_of_any_list(way: str, read: Callable[[], Any], caplog: pytest.LogCaptureFixture) -> None:
    """Nobody who reads, copies or passes it on is told anything, nor who changes the copy."""
    with caplog.at_level(logging.DEBUG, "langchain_memkit"):
        found: Any = READS[way](read())
        if way.startswith("copy") or way == "pickle":
            assert type(found) is list
            found.append(found.pop())
    assert [(m.id, m.text) for m in found] == [("h1", "My name is Nemo."), ("a1", "Noted.")]
    assert caplog.messages == []


def test_as_json(read: Callable[[], Any]) -> None:
    """It is dumped as a list."""
    dumped = json.dumps(read(), default=message_to_dict)
    assert [m["data"]["content"] for m in json.loads(dumped)] == ["My name is Nemo.", "Noted."]


def test_messages_cannot_be_set(history: Any) -> None:
    """The error names what to call; `+=` ends there as well."""
    way_out = r"messages of a SQLiteChatMessageHistory cannot be set: add_messages.* edit\(.*clear\(\)"
    with pytest.raises(AttributeError, match=way_out):
        history.messages = []
    with pytest.raises(AttributeError, match=way_out):
        history.messages += [MORE]
    assert len(history.messages) == 2


def test_views_are_not_copies(history: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What a preprocessor is given may be changed by it: nobody takes it for the history."""
    for given in (history.view().messages, history.tail()):
        given.append(MORE)
        given.pop(0)
    assert caplog.messages == []
