"""Whatever a message holds comes back equal, or is refused when it is written; of metadata, it is left out."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
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
from testkit.properties import messages

EXAMPLES = 500
AT_ONCE = 8  # batches on their way to a store, which waits for its disk and the other nodes

CALL = {"name": "search", "args": {"q": "x", "n": 3}, "id": "c1", "type": "tool_call"}


class Note(HumanMessage):
    """A message class of an app's own."""

    mood: str = "calm"


class Strange:
    """An object that nothing can store."""


def extra(value: Any) -> HumanMessage:
    """A message with something in its metadata."""
    return HumanMessage("x", additional_kwargs={"value": value})


def marked(message: BaseMessage, path: str) -> BaseMessage:
    """A message from which memkit has left something out."""
    return message.model_copy(update={"response_metadata": {"memkit_left_out": [path]}})


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
    "own class": (Note("x"), "messages[0]"),
    "NaN": (HumanMessage([{"type": "x", "n": float("nan")}]), "content[0]['n']"),
    "object": (AIMessage("", tool_calls=[{**CALL, "args": {"deep": [Strange()]}}]), "args']['deep'][0]"),
}
LEFT_OUT: dict[str, tuple[BaseMessage, BaseMessage]] = {
    "NaN": (extra([1, float("nan")]), marked(extra([1, None]), "additional_kwargs['value'][1]")),
    "object": (
        extra({"deep": [Strange(), 2]}),
        marked(extra({"deep": [None, 2]}), "additional_kwargs['value']['deep'][0]"),
    ),
    "artifact": (
        ToolMessage("ok", tool_call_id="c1", artifact=np.arange(9)),
        marked(ToolMessage("ok", tool_call_id="c1"), "artifact"),
    ),
    "documents": (
        ToolMessage("ok", tool_call_id="c1", artifact=[Document("d", metadata={"score": np.float32(0.5), "n": 1})]),
        marked(
            ToolMessage("ok", tool_call_id="c1", artifact=[Document("d", metadata={"n": 1})]),
            "artifact[0].metadata['score']",
        ),
    ),
}
"""Messages with what no store keeps, and what comes back."""


def read(history: Any) -> list[BaseMessage]:
    """The session; that it cannot be read is a failure of data, not of the test."""
    try:
        return list(history.messages)
    except Exception as error:
        raise AssertionError(f"accepted, and now the session is unreadable: {error!r:.120}") from error


def same(got: BaseMessage, want: BaseMessage) -> bool:
    """Equal, the id apart where none was given."""
    return type(got) is type(want) and got == (want if want.id else want.model_copy(update={"id": got.id}))


def keep(history: Any, message: BaseMessage) -> str:
    """Stores a message between two others and reads all three; says what is wrong."""
    try:
        history.add_messages([HumanMessage("before"), message])
    except Exception as error:
        return f"refused: {error!r:.120}"
    history.add_messages([HumanMessage("after")])
    try:
        before, got, after = history.messages
    except Exception as error:
        return f"accepted, and now the session is unreadable: {error!r:.120}"
    if (before.text, after.text) != ("before", "after"):
        return "its neighbours differ"
    return "" if same(got, message) else f"came back as {got!r:.120}"


@pytest.mark.gate(row=5)
def test_comes_back_equal(place: Place, system: Any, figure: Any) -> None:
    """Each message is stored, equal when read, and its neighbours too."""
    histories = system.sharing(place)
    outcomes = {name: keep(histories(name), message) for name, message in EQUAL.items()}
    assert {name: wrong for name, wrong in outcomes.items() if wrong} == {}
    figure(f"{place.kind}: kinds of payload equal", len(outcomes), at_least=20)


@pytest.mark.gate(row=5)
@pytest.mark.parametrize("name", REFUSED)
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


@pytest.mark.gate(row=5)
@pytest.mark.parametrize("name", LEFT_OUT)
def test_left_out_of_metadata(name: str, place: Place, system: Any) -> None:
    """What could not come back equal is left out of metadata and named in the message: a turn is not lost over it."""
    message, kept = (each.model_copy(update={"id": "1"}) for each in LEFT_OUT[name])
    history, after = system.history(place, "s1"), HumanMessage("after", id="2")
    refused = ""
    for _ in range(2):  # a retry is the same turn
        try:
            history.add_messages([message, after])
        except Exception as error:
            refused = f"{error!r:.120}"
    assert not refused
    assert read(history) == [kept, after]


@functools.cache
def random_batches(count: int) -> list[list[BaseMessage]]:
    """What Hypothesis thinks of, the same for every store, and in every run that asks for the usual count."""
    batches: list[list[BaseMessage]] = []

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=count == EXAMPLES,
        phases=[Phase.generate],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(messages, min_size=1, max_size=3))
    def collect(batch: list[BaseMessage]) -> None:
        batches.append(batch)

    collect()
    return batches


def accepted(history: Any, batch: list[BaseMessage]) -> bool:
    """Whether the batch was stored, and then comes back equal; a refused one leaves nothing."""
    try:
        history.add_messages(batch)
    except Exception:
        assert read(history) == []
        return False
    stored = read(history)
    assert len(stored) == len(batch), batch
    for got, want in zip(stored, batch, strict=True):
        assert same(got, want), f"{want!r} came back as {got!r}"
    return True


@pytest.mark.gate(row=5, limit=240)
def test_random_messages(place: Place, system: Any, nightly: bool, figure: Any) -> None:
    """500 random batches on each store (1,000 at night): each comes back equal, or is refused with nothing stored."""
    count = 2 * EXAMPLES if nightly else EXAMPLES
    histories, batches = system.sharing(place), random_batches(count)
    assert len(batches) == count
    histories("warm").add_messages([HumanMessage("warm")])
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda k: accepted(histories(f"s{k}"), batches[k]), range(count)))
    figure(f"{place.kind}: random batches equal, of {count}", sum(outcomes), at_least=count // 2)
