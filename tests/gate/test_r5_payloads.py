"""R5: whatever a message holds comes back equal, or is refused when it is written."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from gatekit.systems import Place
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from langchain_memkit.errors import MessageEncodeError
from langchain_memkit.testing.properties import messages

CALL = {"name": "search", "args": {"q": "x", "n": 3}, "id": "c1", "type": "tool_call"}


class Note(HumanMessage):
    """A message class of an app's own."""

    mood: str = "calm"


class Strange:
    """An object that nothing can store."""


def extra(value: Any) -> HumanMessage:
    """A message with something in its metadata."""
    return HumanMessage("x", additional_kwargs={"value": value})


EQUAL: dict[str, BaseMessage] = {
    "NUL": HumanMessage("a\x00b"),
    "emoji": HumanMessage("\U0001f419\u200d\U0001f525 e\u0301"),
    "lone surrogate": HumanMessage("cut \ud83d off"),
    "100k characters": HumanMessage("lorem " * 17_000),
    "8 MB of accents": HumanMessage("\u00e9" * 4_000_000),
    "10^400": extra(10**400),
    "int keys": extra({1: "one", 2: {"3": 3}}),
    "set": extra({"a", "b"}),
    "tuple": extra((1, ("two", None))),
    "bytes": extra(b"\x00\xff"),
    "datetime": extra(datetime(2026, 1, 1, 12, 30, 1, 123456, tzinfo=UTC)),
    "operator keys": extra({"$ne": 1, "a.b": 2, "_memkit": "x", "": 0, "lc": 1}),
    "list content": HumanMessage(["a", {"type": "image_url", "image_url": {"url": "data:,"}}]),
    "system": SystemMessage("Be brief."),
    "tool calls": AIMessage("", tool_calls=[CALL], response_metadata={"model": "m"}),
    "invalid tool calls": AIMessage(
        "", invalid_tool_calls=[{"name": "f", "args": "{", "id": "1", "error": "cut", "type": "invalid_tool_call"}]
    ),
    "usage": AIMessage("x", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    "artifact": ToolMessage("ok", tool_call_id="c1", artifact=[Document("d", metadata={"n": 1}), {"k": (1, 2)}]),
    "function": FunctionMessage(name="f", content="x"),
    "chat": ChatMessage(role="critic", content="x"),
    "chunk": AIMessageChunk(content="x", tool_call_chunks=[{"name": "f", "args": "{}", "id": "1", "index": 0}]),
}
REFUSED: dict[str, tuple[BaseMessage, str]] = {
    "NaN": (extra(float("nan")), "additional_kwargs['value']"),
    "own class": (Note("x"), "messages[0]"),
    "object": (extra({"deep": [Strange()]}), "additional_kwargs['value']['deep'][0]"),
}


def read(history: Any) -> list[BaseMessage]:
    """The session; that it cannot be read is a failure of data, not of the test."""
    try:
        return list(history.messages)
    except Exception as error:
        raise AssertionError(f"accepted, and now the session is unreadable: {error!r:.120}") from error


def same(got: BaseMessage, want: BaseMessage) -> bool:
    """Equal, the id apart where none was given."""
    return type(got) is type(want) and got == (want if want.id else want.model_copy(update={"id": got.id}))


@pytest.mark.gate("R5")
@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_comes_back_equal(name: str, place: Place, system: Any) -> None:
    """The message is stored, equal when read, and its neighbours too."""
    history = system.history(place, "s1")
    try:
        history.add_messages([HumanMessage("before"), EQUAL[name]])
    except Exception as error:
        raise AssertionError(f"refused: {error!r:.120}") from error
    history.add_messages([HumanMessage("after")])
    before, got, after = read(history)
    assert (before.text, after.text) == ("before", "after")
    assert same(got, EQUAL[name])


@pytest.mark.gate("R5")
@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_refused_when_written(name: str, place: Place, system: Any) -> None:
    """What could not come back equal is refused with its path, and nothing of its batch is stored."""
    message, path = REFUSED[name]
    history = system.history(place, "s1")
    with pytest.raises(Exception) as raised:  # noqa: PT011  # which one is asked below, where it is promised
        history.add_messages([message, HumanMessage("after")])
    assert read(history) == []
    if system.name == "memkit":
        assert isinstance(raised.value, MessageEncodeError)
        assert path in raised.value.path


@pytest.mark.gate("R5", limit=120)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_random_messages(place: Place, system: Any, figure: Any) -> None:
    """Random batches, 500 on a server: each comes back equal, or is refused with nothing stored."""
    phases = [Phase.generate] if system.name == "peer" else [Phase.explicit, Phase.generate, Phase.shrink]
    accepted, examples = 0, 500 if place.kind != "sqlite" else 200
    histories = system.sharing(place)

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=phases,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(messages, min_size=1, max_size=3))
    def check(batch: list[BaseMessage]) -> None:
        nonlocal accepted
        history = histories(str(uuid4()))
        try:
            history.add_messages(batch)
        except Exception:
            assert read(history) == []
            return
        accepted += 1
        stored = read(history)
        assert len(stored) == len(batch)
        assert all(same(got, want) for got, want in zip(stored, batch, strict=True))

    check()
    figure(f"{place.kind}: random batches equal, of {examples}", accepted, at_least=examples // 2)
