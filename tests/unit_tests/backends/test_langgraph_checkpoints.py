"""Checkpoints are data: what LangGraph wrote is read without importing or calling anything by name."""

from __future__ import annotations

import json
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import ormsgpack
import pytest
from langchain_core.load import dumpd
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from langchain_memkit.backends.langgraph_checkpoints import Foreign, decode_checkpoint, decode_message_of_graph
from langchain_memkit.errors import MessageDecodeError
from langchain_memkit.testing.langchain_histories import one_of_each

PICKLED = b"cos\nsystem\n(S'touch canary'\ntR."


def stored(value: Any) -> Any:
    """What LangGraph's own serializer writes, decoded by us."""
    return decode_checkpoint(*JsonPlusSerializer().dumps_typed(value))


def extension(*parts: Any, code: int = 2) -> Any:
    """An object as LangGraph's msgpack has it: (module, name, arguments, ...)."""
    return ormsgpack.Ext(code, ormsgpack.packb(list(parts), option=ormsgpack.OPT_NON_STR_KEYS))


@pytest.mark.parametrize("message", one_of_each(), ids=lambda m: type(m).__name__)
def test_every_message_type(message: BaseMessage) -> None:
    """What LangGraph wrote of any message of langchain-core is read back as LangGraph itself reads it."""
    want = JsonPlusSerializer().loads_typed(JsonPlusSerializer().dumps_typed(message))
    got, lost = decode_message_of_graph(stored([message])[0])
    assert (type(got), got, lost) == (type(message), want, [])


def test_dates_and_sets() -> None:
    """The values that are built beside messages."""
    values = [datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2), {1, 2}, frozenset({3})]
    message, lost = decode_message_of_graph(stored([ToolMessage("x", tool_call_id="1", artifact=values)])[0])
    assert (message.artifact, lost) == (values, [])  # type: ignore[attr-defined]  # a tool message


@pytest.mark.parametrize("value", [UUID(int=1), Decimal("1.5"), Path("x")], ids=lambda v: type(v).__name__)
def test_unknown_objects_leave_their_field_out(value: Any) -> None:
    """An object of another class costs its field, not the message, and is named."""
    found = stored([ToolMessage("a", tool_call_id="1", artifact={"deep": [value]})])[0]
    message, lost = decode_message_of_graph(found)
    assert message == ToolMessage("a", tool_call_id="1")
    assert lost == [f"artifact: held {type(value).__module__}.{type(value).__name__}, left out"]


def test_unknown_objects_in_the_content() -> None:
    """A message whose content holds one is refused: the rest of it would say something else."""
    data = {"content": [{"type": "text", "text": Foreign("os.system", "touch canary")}]}
    with pytest.raises(MessageDecodeError, match=r"os\.system"):
        decode_message_of_graph(Foreign("langchain_core.messages.human.HumanMessage", data))


def test_json_of_older_versions() -> None:
    """What LangGraph wrote before msgpack, and langchain's own form, are read by the same list."""
    old = {"lc": 2, "type": "constructor", "id": ["langchain_core", "messages", "human", "HumanMessage"],
           "kwargs": {"content": "q", "type": "human", "id": "1"}}  # fmt: skip
    for form in (old, dumpd(HumanMessage("q", id="1"))):
        (found,) = decode_checkpoint("json", json.dumps({"m": [form]}).encode())["m"]
        assert decode_message_of_graph(found) == (HumanMessage("q", id="1"), [])


HOSTILE = {
    "constructor": extension("os", "system", "touch canary", code=0),
    "arguments": extension("subprocess", "call", [["touch", "canary"]], code=1),
    "keywords": extension("subprocess", "Popen", {"args": ["touch", "canary"]}, code=2),
    "method": extension("builtins", "eval", "open('canary', 'w')", "__call__", code=3),
    "pydantic": extension("langchain_core.messages.human", "os", {"content": "x"}, code=5),
    "another class of that module": extension("langchain_core.messages.human", "BaseMessage", {"content": "x"}, code=5),
    "a module that begins alike": extension("langchain_core.messagesX", "HumanMessage", {"content": "x"}, code=5),
    "a class of that name": extension("evil.module", "HumanMessage", {"content": "x"}, code=5),
    "no triple": extension("os", code=5),
    "no list": ormsgpack.Ext(5, ormsgpack.packb({"os": "system"})),
    "numpy": extension("<f8", [1], "C", b"12345678", code=6),
    "unknown code": extension("os", "system", "touch canary", code=99),
    "plain": {"role": {"$ne": 1}, "content": "x"},
    "nothing": None,
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE.keys())
def test_nothing_is_run(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CVE-2025-64439: objects that would run code when built are named in an error; nothing is imported or opened."""
    monkeypatch.chdir(tmp_path)
    blob = ormsgpack.packb({"channel_values": {"messages": [value]}}, option=ormsgpack.OPT_NON_STR_KEYS)
    seen: list[str] = []
    watching = True

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if watching and event in ("import", "exec", "open", "os.system", "subprocess.Popen", "pickle.find_class"):
            seen.append(event)

    sys.addaudithook(watch)
    try:
        (found,) = decode_checkpoint("msgpack", blob)["channel_values"]["messages"]
        with pytest.raises(MessageDecodeError, match="not a message"):
            decode_message_of_graph(found)
    finally:
        watching = False
    assert seen == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("pickle", PICKLED, "never read"),
        ("msgpack+aes", b"x", "cannot be read here"),
        (None, b"", "cannot be read here"),
        ({"$ne": 1}, b"", "cannot be read here"),
        ("msgpack", b"\xc1", "damaged"),
        ("msgpack", b"", "damaged"),
        ("msgpack", None, "damaged"),
        ("msgpack", "text", "damaged"),
        ("json", b"{", "damaged"),
        ("json", b"[" * 100_000, "damaged"),
    ],
)
@pytest.mark.usefixtures("no_collection")
def test_damage_is_said(kind: Any, data: Any, said: str) -> None:
    """Other kinds of serialization and damaged bytes are errors of ours."""
    with pytest.raises(MessageDecodeError, match=said):
        decode_checkpoint(kind, data)


def test_cut_anywhere() -> None:
    """A checkpoint cut at any byte is damaged, never half a conversation."""
    kind, blob = JsonPlusSerializer().dumps_typed({"channel_values": {"messages": one_of_each()}})
    for size in range(0, len(blob), 13):
        with pytest.raises(MessageDecodeError, match="damaged"):
            decode_checkpoint(kind, blob[:size])


def test_nested_without_end() -> None:
    """Objects in objects end at a depth instead of the process."""
    value: Any = extension("os", "system", "x", code=0)
    for _ in range(200):
        value = ormsgpack.Ext(5, ormsgpack.packb(["m", "n", value]))
    with pytest.raises(MessageDecodeError, match="damaged"):
        decode_checkpoint("msgpack", ormsgpack.packb(value))


@pytest.mark.parametrize("levels", [61, 500, 900])
def test_values_nested_too_deeply(levels: int) -> None:
    """A field that is nested deeper than could be stored is left out; in the content it is an error of ours."""
    value = json.loads("[" * levels + "]" * levels)
    fields = {"content": "hi", "additional_kwargs": {"a": value}}
    name = "langchain_core.messages.human.HumanMessage"
    message, lost = decode_message_of_graph(Foreign(name, fields))
    assert (message.content, message.additional_kwargs) == ("hi", {})
    assert lost == ["additional_kwargs: held more than 60 levels, left out"]
    with pytest.raises(MessageDecodeError, match="more than 60 levels"):
        decode_message_of_graph(Foreign(name, {"content": [{"a": value}]}))


@pytest.mark.parametrize("wrong", [b"x", {"a": 1}, True, "\ud800"])
def test_ids_that_are_none(wrong: Any) -> None:
    """An id that is no text is an error of ours."""
    with pytest.raises(MessageDecodeError, match="its id is no"):
        decode_message_of_graph(Foreign("langchain_core.messages.human.HumanMessage", {"content": "x", "id": wrong}))


def test_ids_that_are_numbers() -> None:
    """A number becomes text, as langchain-core itself reads it."""
    fields = {"content": "x", "id": 5}
    assert decode_message_of_graph(Foreign("langchain_core.messages.human.HumanMessage", fields))[0].id == "5"
