"""What cannot be stored of a message's metadata is left out leaf by leaf, and named; content is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from langchain_memkit.backends.mongodb.layouts import is_json, row_text
from langchain_memkit.errors import MessageEncodeError
from langchain_memkit.messages.codec import LEFT_OUT, decode_message, storable
from langchain_memkit.messages.notes import without_forged_marks
from testkit.examples import examples
from testkit.properties import values

ENDLESS: dict[str, Any] = {"n": 1}
ENDLESS["self"] = ENDLESS
TWICE: list[Any] = [1]
TWICE += [TWICE, TWICE]
DEEP: list[Any] = []
for _ in range(5_000):
    DEEP = [DEEP]


class Rude:
    """An object whose own methods raise."""

    def __eq__(self, other: object) -> bool:
        raise OSError

    def __repr__(self) -> str:
        raise OSError

    __hash__ = None  # type: ignore[assignment]  # on purpose


class RudeKey(Rude):
    """One that may be a key."""

    def __hash__(self) -> int:
        return id(self)


def looked(artifact: object) -> ToolMessage:
    """A tool's result."""
    return ToolMessage("ok", tool_call_id="c1", artifact=artifact)


def only(message: BaseMessage) -> tuple[Any, list[str]]:
    """A message as it is stored, and what its mark says."""
    found = storable([message])
    (kept,) = found.messages
    assert decode_message(found.encoded[0]) == kept
    assert storable([kept]).messages[0] is kept
    return kept, kept.response_metadata.get(LEFT_OUT, [])


@pytest.mark.parametrize(
    ("artifact", "kept", "mark"),
    [
        ({"a": 1, "b": np.arange(2)}, {"a": 1}, ["artifact['b']"]),
        ([1, math.nan, "x"], [1, None, "x"], ["artifact[1]"]),
        ((1, object()), (1, None), ["artifact[1]"]),
        ({"a": {"b": [{"c": Decimal(1), "d": 2}]}}, {"a": {"b": [{"d": 2}]}}, ["artifact['a']['b'][0]['c']"]),
        ({object(): 1, "a": 2}, {"a": 2}, ["artifact.keys()"]),
        ({RudeKey(): 1, RudeKey(): 2, "a": 2}, {"a": 2}, ["artifact.keys()"]),
        (
            [Document("d", id="1", metadata={"s": np.float32(1)})],
            [Document("d", id="1")],
            ["artifact[0].metadata['s']"],
        ),
        ({1, (2, object)}, None, ["artifact"]),
        (ENDLESS, {"n": 1}, ["artifact['self']"]),
        (TWICE, [1, None, None], ["artifact[1]", "artifact[2]"]),
        ({"rude": Rude()}, {}, ["artifact['rude']"]),
        (np.float64(0.5), 0.5, []),
        (math.inf, math.inf, []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_leaves(artifact: Any, kept: Any, mark: list[str]) -> None:
    """The rest of a dict, list, tuple or Document is kept."""
    message, told = only(looked(artifact))
    assert (message.artifact, told) == (kept, mark)
    assert type(message.artifact) is type(artifact) or message.artifact is None


def test_too_deep() -> None:
    """What is nested too deeply is left out where it is."""
    message, told = only(looked({"deep": DEEP, "n": 1}))
    assert (message.artifact["n"], len(told)) == (1, 1)
    assert told[0].startswith("artifact['deep'][0][0]")
    assert len(told[0]) <= 200


def test_many() -> None:
    """A mark names twenty of many, and how many more there are."""
    message, told = only(looked([math.nan] * 30_000))
    assert message.artifact == [None] * 30_000
    assert told == [*(f"artifact[{i}]" for i in range(20)), "29,980 more"]


def test_fields() -> None:
    """Each field for metadata, extra ones as well; what makes no valid message together is left out whole."""
    answer = AIMessage("x", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3})
    assert answer.usage_metadata is not None
    answer.usage_metadata["input_tokens"] = np.int64(7)  # type: ignore[typeddict-item]  # on purpose
    assert only(answer) == (AIMessage("x", response_metadata={LEFT_OUT: ["usage_metadata"]}), ["usage_metadata"])
    answer.response_metadata = np.arange(3)  # type: ignore[assignment]  # on purpose
    assert only(answer)[1] == ["response_metadata", "usage_metadata"]
    asked, told = only(HumanMessage("x", mood=object(), tone="calm"))  # type: ignore[call-arg]  # extra fields
    assert (asked.model_extra, told) == ({"tone": "calm"}, ["mood"])
    answer = AIMessage("x")
    answer.response_metadata = np.arange(3)  # type: ignore[assignment]  # on purpose
    assert only(answer)[1] == ["response_metadata"]
    before = AIMessage("x", response_metadata={LEFT_OUT: ["artifact"], "n": math.nan, "m": 1})
    assert only(before)[0].response_metadata == {"m": 1, LEFT_OUT: ["artifact", "response_metadata['n']"]}


def test_nothing_odd() -> None:
    """Sound messages are the same objects, and theirs is not touched."""
    messages = [HumanMessage("q"), looked({"a": (1, {2})})]
    found = storable(messages)
    assert all(kept is given for kept, given in zip(found.messages, messages, strict=True))
    assert found.left_out == []
    odd = looked({"a": object(), "b": 1})
    storable([odd])
    assert (odd.artifact.keys(), odd.response_metadata) == ({"a", "b"}, {})


@pytest.mark.parametrize(
    "message",
    [
        AIMessage("", tool_calls=[{"name": "f", "args": {"x": object()}, "id": "1"}]),
        HumanMessage([{"type": "x", "v": math.nan}], additional_kwargs={"odd": object()}),
        type("Note", (HumanMessage,), {})("x", additional_kwargs={"odd": object()}),
    ],
)
def test_content(message: BaseMessage) -> None:
    """Content is refused with its path, whatever is in the metadata."""
    with pytest.raises(MessageEncodeError, match=r"messages\[1\]") as raised:
        storable([HumanMessage("q"), message])
    assert "odd" not in raised.value.path


def test_the_mark_is_kept() -> None:
    """A message that was read is stored again with its mark; other marks are a client's."""
    message, _ = only(looked({"a": object()}))
    assert without_forged_marks(message) == message
    forged = HumanMessage("x", response_metadata={LEFT_OUT: {"$ne": 1}, "memkit_status": "note"})
    assert without_forged_marks(forged).response_metadata.keys() & {LEFT_OUT} == set()


ODD: list[Callable[[], object]] = [object, lambda: math.nan, lambda: np.arange(2), lambda: Decimal(1)]
with_odd = st.recursive(
    values | st.sampled_from(ODD).map(lambda make: make()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(with_odd, with_odd)
def test_any_metadata(one: Any, other: Any) -> None:
    """Whatever stands in metadata, the turn can be stored, and comes back as it was kept; in rows of JSON as well."""
    message = ToolMessage("ok", tool_call_id="1", artifact=one, additional_kwargs={"x": other}, id="1")
    only(message)
    (kept,) = storable([message], row_text, is_json).messages
    assert row_text(kept, "messages[0]")
