"""Decode LangGraph's checkpoints as data: msgpack (and the JSON of older versions) in, plain values and messages out.

LangGraph stores the module, class and arguments of an object, and its own reader imports and calls them
(CVE-2025-64439). Here nothing is imported or called by name: an allowlist builds messages of langchain-core, dates and
sets, and everything else stays a `Foreign`, which only names what it was.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import date, datetime
from itertools import chain, count
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage, convert_to_messages

from langchain_memkit.errors import MessageDecodeError, required_extra
from langchain_memkit.messages.codec import MESSAGE_TYPES, decode_legacy_message, is_name

with required_extra("langgraph", "reading LangGraph's checkpoints"):
    import ormsgpack

NUMPY, SNAPSHOT = 6, 7  # codes of LangGraph's msgpack; up to 5 stand for (module, name, arguments, ...)
OVERWRITE, REMOVE_ALL = "__overwrite__", "__remove_all__"  # LangGraph's names for replacing and for emptying a list
MAX_DEPTH = 50  # levels of objects within objects
MAX_LEVELS = 60  # levels within a field of a message: a deeper one could not be stored
TYPES = {cls.__name__: kind for kind, cls in MESSAGE_TYPES.items()}
MESSAGE_MODULES = ("langchain_core.messages.", "langchain.schema.messages.")


class Foreign(NamedTuple):
    """A stored object of a class that is not built here."""

    name: str  # module and class, joined by a full stop
    data: Any  # the arguments of its constructor, as plain values and `Foreign`


def decode_checkpoint(kind: object, data: Any) -> Any:
    """Decode one column of a checkpoint to plain values and `Foreign`, without running any code that it names.

    The `kind` is the encoding: `"msgpack"`, `"json"`, or `"null"` for None.

    Raises:
        MessageDecodeError: The encoding is another one (encrypted, pickled), or the data is damaged.

    Example:
        >>> import ormsgpack
        >>> decode_checkpoint("msgpack", ormsgpack.packb({"channel_values": {"messages": []}}))
        {'channel_values': {'messages': []}}
    """
    if kind == "null":
        return None
    if kind not in ("msgpack", "json"):
        what = "is pickled: it could run code, so it is never read" if kind == "pickle" else "cannot be read here"
        raise MessageDecodeError(f"its checkpoint of type {_name(kind)} {what}")
    try:
        if kind == "json":
            return json.loads(bytes(data) if not isinstance(data, str) else data, object_hook=_of_json)
        return _unpack(bytes(data), 0)
    except (TypeError, ValueError, RecursionError) as error:  # ormsgpack's errors are ValueErrors
        msg = f"its checkpoint is damaged ({type(error).__name__})"
    raise MessageDecodeError(msg)


def _unpack(data: bytes, depth: int) -> object:
    if depth > MAX_DEPTH:
        raise ValueError("nested too deeply")

    def hook(code: int, inner: bytes) -> object:
        if code == NUMPY:
            return Foreign("numpy.ndarray", None)
        value = _unpack(inner, depth + 1)
        if code == SNAPSHOT:
            return value
        if isinstance(value, list) and len(value) >= 3:
            return Foreign(f"{value[0]}.{value[1]}", value[2])
        return Foreign(f"extension {code}", None)

    return ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)


def _of_json(value: dict[str, Any]) -> object:
    """Convert an object in the JSON form of older versions, `{"lc", "type", "id", "kwargs"}`, to a `Foreign`."""
    if value.get("type") == "constructor" and isinstance(value.get("id"), list) and "lc" in value:
        arguments = value.get("kwargs") or value.get("args")
        if isinstance(arguments, list) and len(arguments) == 1:
            arguments = arguments[0]
        return Foreign(".".join(map(str, value["id"])), arguments)
    return value


def decode_message_of_graph(value: object) -> tuple[BaseMessage, list[str]]:
    """Decode a message of a graph's state, as `decode_checkpoint` returned it, or what LangChain accepts as a message.

    Returns:
        The message, and a line for each field that was left out because it held an object of an unknown class.

    Raises:
        MessageDecodeError: It is not a message of langchain-core, or its content holds an object of an unknown class.
    """
    if not isinstance(value, Foreign):  # a text, a pair of role and text, or a dict
        with suppress(_UnknownError, LookupError, TypeError, ValueError, NotImplementedError):
            [message] = convert_to_messages([_plain(value, 0)])
            if type(message) in MESSAGE_TYPES.values():
                return message, []
        raise MessageDecodeError(f"a {type(value).__name__} is not a message of langchain-core")
    module, _, name = value.name.rpartition(".")
    known = f"{module}.".startswith(MESSAGE_MODULES) and name in TYPES
    if not known or not isinstance(value.data, Mapping):
        raise MessageDecodeError(f"{_name(value.name)} is not a message of langchain-core")
    fields: dict[str, object] = {}
    lost: list[str] = []
    for key, field in value.data.items():
        try:
            fields[str(key)] = _plain(field, 0)
        except _UnknownError as error:
            if key == "content":
                raise MessageDecodeError(f"its content holds {error}, which is not read") from None
            lost.append(f"{key}: held {error}, left out")
    return decode_legacy_message({"type": TYPES[name], "data": fields}), lost


def replayed(seed: object, writes: Iterable[object]) -> list[object]:
    """Replay the writes to a `DeltaChannel` of messages on the list of an earlier checkpoint.

    The channel's reducer is code, which is not run. As in those of LangGraph and deepagents, a message replaces the one
    with its id, `RemoveMessage` removes one or all, and everything else is appended. `seed` is the list that the
    checkpoint holds (None for an empty one), `writes` are the later writes, in order.

    Example:
        >>> replayed(
        ...     ["hello"], [[{"role": "ai", "content": "hi", "id": "1"}], [{"role": "ai", "content": "hey", "id": "1"}]]
        ... )
        ['hello', {'role': 'ai', 'content': 'hey', 'id': '1'}]
    """
    said: dict[object, object] = {}
    places = count()
    for write in chain([seed], writes):
        overwritten, items = _overwrite(write)
        if overwritten:
            said.clear()
        for item in items if isinstance(items, list) else [items] if items else []:
            is_removal = isinstance(item, Foreign) and item.name.rpartition(".")[2] == "RemoveMessage"
            data = item.data if isinstance(item, Foreign) else item
            found = data.get("id") if isinstance(data, Mapping) else None
            known = found if isinstance(found, str) else None
            if not is_removal:
                said[known or ("", next(places))] = item
            elif known == REMOVE_ALL:
                said.clear()
            else:
                said.pop(known, None)
    return list(said.values())


def _overwrite(write: object) -> tuple[bool, object]:
    """Return whether a write replaces the whole list, and its items; reads all three forms that LangGraph uses."""
    if isinstance(write, Foreign) and write.name == "langgraph.types.Overwrite" and isinstance(write.data, Mapping):
        return True, write.data.get("value")
    if isinstance(write, Mapping) and set(write) == {OVERWRITE}:
        return True, write[OVERWRITE]
    if isinstance(write, Mapping) and write.get("type") == OVERWRITE:
        return True, write.get("value")
    return False, write


BUILDERS: dict[str, Callable[[Any], object]] = {
    "datetime.datetime": datetime.fromisoformat,
    "datetime.date": lambda value: date(*value),
    "builtins.set": set,
    "builtins.frozenset": frozenset,
}
"""Functions that build the values of checkpoints other than messages, by type."""


class _UnknownError(Exception):
    """A value holds something that is not read, which the text of the error names."""


def _name(value: object) -> str:
    """Return a class name from a checkpoint for use in errors; a placeholder if it cannot be a name."""
    return str(value) if is_name(value) else "something without a name"


def _plain(value: object, depth: int) -> Any:
    """Convert a value, at a level within a field, to plain values; build the objects on the allowlist."""
    if depth > MAX_LEVELS:
        raise _UnknownError(f"more than {MAX_LEVELS} levels")
    if isinstance(value, Foreign):
        data = _plain(value.data, depth + 1)
        with suppress(KeyError, TypeError, ValueError, AttributeError):
            return BUILDERS[value.name](data)
        raise _UnknownError(_name(value.name))
    if isinstance(value, dict):
        return {key: _plain(item, depth + 1) for key, item in value.items()}
    return [_plain(item, depth + 1) for item in value] if isinstance(value, (list, tuple)) else value
