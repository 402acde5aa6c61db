"""Lossless conversion between messages and plain data; values that would not come back equal are refused.

Of a message's metadata they are left out instead (`storable`): a turn that was paid for is not lost over an artifact.

A stored message is a dict that is readable in a database shell: `{"role": "human", "content": "hi", "id": "..."}` plus
every field that differs from its default. Values stay JSON; values that JSON lacks (tuples, bytes, int keys, ...) are
tagged with `_memkit`. Decoding builds only the classes listed here: stored data never names code to run.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import date, datetime
from typing import Any, NamedTuple, TypeAlias

from langchain_core import messages as core
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage
from pydantic import ValidationError

from langchain_memkit.errors import MessageDecodeError, MessageEncodeError

FORMAT_VERSION = 1
TAG = "_memkit"
MAX_DEPTH = 60  # BSON stops at 100 levels, and a tagged value takes two

KINDS = ("Human", "AI", "System", "Tool", "Function", "Chat")
CLASSES: list[type[BaseMessage]] = [core.RemoveMessage]
CLASSES += [getattr(core, f"{kind}Message{form}") for form in ("", "Chunk") for kind in KINDS]
MESSAGE_TYPES = {cls.model_fields["type"].default: cls for cls in CLASSES}
"""Message classes that can be stored and read back, by their `type`."""

STORED_TYPES = {cls: name for name, cls in MESSAGE_TYPES.items()}
# `role` holds the class, as in the chat APIs, so a ChatMessage's own role gets another name.
OWN_ROLE = "chat_role"
METADATA = ("additional_kwargs", "response_metadata", "usage_metadata", "artifact")
"""Fields of which a value that cannot be stored exactly is left out; that of any other field is refused."""
LEFT_OUT = "memkit_left_out"
"""Key in `response_metadata` under which a stored message names what was left out of it, by its path."""
MOST_NAMED = 20  # paths
NOTHING = object()

Encoded: TypeAlias = dict[str, Any]
"""Plain data: str, int, float, bool, None, lists and dicts with keys of text."""


def _defaults(cls: type[BaseMessage]) -> Encoded:
    optional = {name: field for name, field in cls.model_fields.items() if not field.is_required()}
    return {name: field.get_default(call_default_factory=True) for name, field in optional.items()}


DEFAULTS = {cls: _defaults(cls) for cls in STORED_TYPES}


def encode_messages(messages: Sequence[BaseMessage]) -> list[Encoded]:
    """Encode a batch; an error names the first value that cannot be stored as `messages[i].field`."""
    return [encode_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def encode_message(message: BaseMessage, path: str = "message") -> Encoded:
    """Encode one message as plain data: `role`, `content` and the fields that are not at their default.

    Raises:
        MessageEncodeError: The class is not langchain-core's own, or a value would not come back equal; the error names
            the value by its `path`.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> encode_message(HumanMessage("My name is Nemo.", id="1"))
        {'role': 'human', 'content': 'My name is Nemo.', 'id': '1'}
    """
    cls = type(message)
    role = STORED_TYPES.get(cls)
    if role is None:
        raise MessageEncodeError(path, f"is a {cls.__module__}.{cls.__qualname__}, not a message of langchain-core")
    defaults = DEFAULTS[cls]
    encoded: Encoded = {"role": role}
    for name, value in message.__dict__.items():
        # `==` is called on equal types only: arrays return arrays.
        is_default = name in defaults and type(value) is type(defaults[name]) and bool(value == defaults[name])
        if name != "type" and not is_default:
            encoded[OWN_ROLE if name == "role" else name] = encode_value(value, f"{path}.{name}")
    if extra := message.__pydantic_extra__:
        encoded["extra"] = encode_value(dict(extra), f"{path}.extra")
    # Most messages are a text and an id, so only the others pay for a trial decoding.
    if encoded.keys() <= {"role", "content", "id"} and all(type(value) is str for value in encoded.values()):
        return encoded
    # A message that would come back different is refused now rather than found later.
    try:
        back = decode_message(encoded)
    except MessageDecodeError as error:
        raise MessageEncodeError(path, f"would be unreadable once stored ({error})") from error
    if back != message:
        wrong = [name for name, value in message.__dict__.items() if back.__dict__.get(name) != value]
        raise MessageEncodeError(f"{path}.{wrong[0] if wrong else 'extra'}", "would not come back equal")
    return encoded


class Storable(NamedTuple):
    """Messages as they can be stored, and what that leaves out of them.

    Attributes:
        messages: The messages; those of which nothing is left out are the same objects.
        encoded: Each of them, encoded.
        left_out: The path of each value that is left out, as `messages[i].artifact['df']`.
    """

    messages: list[BaseMessage]
    encoded: list[Any]
    left_out: list[str]


def storable(
    messages: Sequence[BaseMessage],
    encode: Callable[[BaseMessage, str], Any] = encode_message,
    is_exact: Callable[[Any, int], bool] | None = None,
) -> Storable:
    """Encode a batch, and leave out of its metadata what would not come back equal, leaf by leaf.

    A key of a dict is left out with its value; in a list or tuple None stands in the place of a value, so that the
    others keep theirs. Of a Document the text stays. `response_metadata["memkit_left_out"]` names what is gone.

    Args:
        messages: The messages.
        encode: Encodes one, given its path; raises `MessageEncodeError` if it would not come back equal.
        is_exact: Tells whether a value comes back equal, at a level within a field; by default as `encode_value` does.

    Raises:
        MessageEncodeError: The class of a message, or a value that is no metadata, cannot be stored.

    Example:
        >>> from langchain_core.messages import ToolMessage
        >>> found = storable([ToolMessage("ok", tool_call_id="1", artifact={"rows": 2, "frame": object()})])
        >>> found.messages[0].artifact, found.messages[0].response_metadata
        ({'rows': 2}, {'memkit_left_out': ["artifact['frame']"]})
    """
    found = Storable([], [], [])
    for i, message in enumerate(messages):
        path, kept, lost = f"messages[{i}]", message, list[str]()
        try:
            encoded = encode(message, path)
        except Exception:  # noqa: BLE001  # a value's own methods may raise anything
            kept, encoded, lost = _without_odd(message, path, encode, is_exact or comes_back_equal)
        found.messages.append(kept)
        found.encoded.append(encoded)
        found.left_out.extend(f"{path}.{value}" for value in lost)
    return found


def comes_back_equal(value: Any, depth: int = 0) -> bool:
    """Return whether a value, at a level within a field, would come back equal if it were stored."""
    if isinstance(value, float):
        return not math.isnan(value)  # without an error for each of many
    if value is None or type(value) in (str, int, bool):
        return True
    try:
        return bool(decode_value(encode_value(value, "", depth)) == value)
    except Exception:  # noqa: BLE001  # a value's own methods may raise anything
        return False


def _without_odd(
    message: BaseMessage, path: str, encode: Callable[[BaseMessage, str], Any], is_exact: Callable[[Any, int], bool]
) -> tuple[BaseMessage, Any, list[str]]:
    """Return a message without the metadata that cannot be stored, encoded, with the paths of what is left out."""
    lost: list[str] = []
    given = {name: value for name in METADATA if (value := getattr(message, name, None)) is not None}
    fields = {name: _kept_field(value, name, is_exact, lost) for name, value in given.items()}
    more = message.__pydantic_extra__ or {}
    extra = {name: _kept_field(value, name, is_exact, lost) for name, value in more.items()}
    kept = _with_metadata(message, fields, extra, lost)
    try:
        return kept, encode(kept, path), lost
    except MessageEncodeError:
        # each value for itself could be stored, but they make no valid message: none of them is kept
        lost = [name for name, value in fields.items() if value] + [*extra]
        kept = _with_metadata(message, dict.fromkeys(given, NOTHING), {}, lost)
        return kept, encode(kept, path), lost


def _with_metadata(message: BaseMessage, fields: Encoded, extra: Encoded, lost: Sequence[str]) -> BaseMessage:
    """Return a copy with these values, defaults in the place of `NOTHING`, and the mark of what is left out."""
    defaults = _defaults(type(message))
    found = {name: defaults[name] if value is NOTHING else value for name, value in fields.items()}
    known = found.get("response_metadata")
    metadata = known if isinstance(known, dict) else {}
    before = metadata.get(LEFT_OUT)
    named = [*(before if isinstance(before, list) else ()), *(path[:200] for path in lost)]
    if len(named) > MOST_NAMED:
        named = [*named[:MOST_NAMED], f"{len(named) - MOST_NAMED:,} more"]
    if lost:
        found["response_metadata"] = {**metadata, LEFT_OUT: named}
    copied = message.model_copy(update=found)
    if message.__pydantic_extra__ is not None:
        stays = {name: value for name, value in extra.items() if value is not NOTHING}
        object.__setattr__(copied, "__pydantic_extra__", stays)
    return copied


def _kept_field(value: Any, path: str, is_exact: Callable[[Any, int], bool], lost: list[str]) -> Any:
    """Return what can be stored of a field, or `NOTHING`; the paths of what cannot are added to `lost`."""
    if is_exact(value, 0):
        return value
    before = len(lost)
    found = _kept(value, path, is_exact, lost)
    if found is NOTHING or is_exact(found, 0):
        return found
    lost[before:] = [path]
    return NOTHING


def _kept(
    value: Any, path: str, is_exact: Callable[[Any, int], bool], lost: list[str], above: tuple[int, ...] = ()
) -> Any:
    """Return what can be stored of a value within a field, looking at each leaf once; as `_kept_field` otherwise."""

    def within(item: Any, part: str) -> Any:
        return _kept(item, f"{path}{part}", is_exact, lost, (*above, id(value)))

    is_endless = id(value) in above or len(above) > MAX_DEPTH
    if isinstance(value, dict) and not is_endless:
        named = [(key, item) for key, item in value.items() if type(key) is str or is_exact({key: None}, len(above))]
        lost += [f"{path}.keys()"] if len(named) < len(value) else []
        items = [(key, within(item, f"[{key!r:.50}]")) for key, item in named]
        return {key: item for key, item in items if item is not NOTHING}
    empty: Any = () if isinstance(value, tuple) else []
    if isinstance(value, (list, tuple)) and not is_endless and is_exact(empty, len(above)):
        listed = [within(item, f"[{i}]") for i, item in enumerate(value)]
        placed = [None if item is NOTHING else item for item in listed]
        return tuple(placed) if isinstance(value, tuple) else placed
    if type(value) is Document and not is_endless:
        metadata = within(value.metadata, ".metadata")
        return Document(value.page_content, id=value.id, metadata={} if metadata is NOTHING else metadata)
    if is_exact(value, len(above)):
        return value
    lost.append(path)
    return NOTHING


def is_name(value: object) -> bool:
    """Return whether a stored value may be quoted in an error: the name of a type or class, not a user's text."""
    return type(value) is str and len(value) <= 100 and all(part.isidentifier() for part in value.split("."))


def decode_message(data: object) -> BaseMessage:
    """Decode a message that `encode_message` encoded, from data that may be damaged."""
    if not isinstance(data, Mapping):
        raise MessageDecodeError(f"a message should be a document, not {type(data).__name__}")
    try:
        fields = {str(k): decode_value(v) for k, v in data.items() if k not in ("role", "extra")}
        if OWN_ROLE in fields:
            fields["role"] = fields.pop(OWN_ROLE)
        extra = decode_value(data.get("extra", {}))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        msg = f"a value cannot be read ({type(error).__name__})"
    else:
        return _build(data.get("role"), fields, extra)
    # Outside the handler, since the original error quotes the stored value and would become the context.
    raise MessageDecodeError(msg)


def decode_legacy_message(data: object) -> BaseMessage:
    """Decode a message in LangChain's own dict form, `{"type": "human", "data": {...}}`, with the same allowlist.

    This is how langchain-mongodb and most histories of langchain-community store messages.
    """
    if not (isinstance(data, Mapping) and isinstance(data.get("data"), Mapping)):
        raise MessageDecodeError("expected {'type': ..., 'data': {...}}")
    fields = {str(k): v for k, v in data["data"].items() if k != "type"}
    cls = MESSAGE_TYPES.get(data["type"]) if type(data.get("type")) is str else None
    names = fields if cls is None else cls.model_fields  # read once, since each access computes it
    known = {k: v for k, v in fields.items() if k in names}
    # Older versions of core wrote fields that no longer exist (`example`), and null in fields that are lists today.
    known = {k: v for k, v in known.items() if v is not None or k in ("name", "id", "artifact", "usage_metadata")}
    extra = {k: v for k, v in fields.items() if k not in known and k != "example" and v is not None}
    # Numbers become text, as in langchain-core.
    if isinstance(name := known.get("id"), (int, float)) and not isinstance(name, bool):
        known["id"] = str(name)
    elif name is not None and (type(name) is not str or not _is_utf8(name)):
        msg = f"its id is no text but a {type(name).__name__}" if type(name) is not str else "its id is no UTF-8"
        raise MessageDecodeError(msg)
    if odd := _odd_text(fields):
        raise MessageDecodeError(f"it holds a {odd} where text belongs")
    return _build(data.get("type"), known, extra)


def _odd_text(value: object, depth: int = 0) -> str | None:
    """Return the name of a `str` subclass in the value, such as BSON's unhashable `Code`; None if there is none."""
    if isinstance(value, str):
        return None if type(value) is str else type(value).__name__
    if depth > MAX_DEPTH or not isinstance(value, (Mapping, list, tuple)):
        return None
    items = (*value, *value.values()) if isinstance(value, Mapping) else value
    return next((odd for item in items if (odd := _odd_text(item, depth + 1))), None)


def _build(role: object, fields: Encoded, extra: object) -> BaseMessage:
    cls = MESSAGE_TYPES.get(role) if type(role) is str else None
    if cls is None:
        raise MessageDecodeError(f"unknown message type{f' {role!r}' if is_name(role) else ''}")
    if not isinstance(extra, dict) or any(not isinstance(k, str) or k in cls.model_fields for k in extra):
        raise MessageDecodeError(f"unexpected extra fields in a {role} message")
    message, problem = None, ""
    try:
        # Validated, so that a damaged row cannot become a message that breaks later.
        message = cls(**fields, **extra)
    except Exception as error:  # noqa: BLE001  # validators may raise anything
        where = [".".join(map(str, e["loc"])) for e in error.errors()] if isinstance(error, ValidationError) else []
        problem = f"{type(error).__name__} {', '.join(where[:3])}"
    # Outside the handler, since the original error quotes the stored value and would become the context.
    if message is None:
        raise MessageDecodeError(f"not a valid {role} message ({problem})")
    # Validators derive fields from others (tool calls from additional_kwargs), but the stored values take precedence,
    # since the message must come back exactly.
    for name, default in DEFAULTS[cls].items():
        if name not in fields and message.__dict__[name] != default:
            message.__dict__[name] = copy(default)
    message.__dict__.update(fields)
    return message


def encode_value(value: object, path: str, depth: int = 0) -> Any:
    """Encode any supported value as plain data."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _encode_str(value)
    if depth > MAX_DEPTH:
        raise MessageEncodeError(path[:200], f"is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**63 else _tagged("int", hex(value))
    if isinstance(value, float):
        if math.isnan(value):
            raise MessageEncodeError(path, "is NaN, which is not equal to itself and so cannot come back equal")
        return float(value)
    if isinstance(value, list):
        return [encode_value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    return _encode_dict(value, path, depth) if isinstance(value, dict) else _encode_special(value, path, depth)


def _tagged(kind: str, value: object) -> Encoded:
    return {TAG: kind, "value": value}


def _encode_str(value: str) -> str | Encoded:
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates, as when a streaming model splits an emoji
        return _tagged("str", base64.b64encode(value.encode("utf-8", "surrogatepass")).decode())
    return value if type(value) is str else str.__str__(value)


def _encode_dict(value: Mapping[object, object], path: str, depth: int) -> Encoded:
    if all(map(_is_plain_key, value)):
        return {str.__str__(k): encode_value(v, f"{path}[{k!r}]", depth + 1) for k, v in value.items()}
    pairs = [
        [encode_value(k, f"{path}.keys()", depth + 2), encode_value(v, f"{path}[{k!r:.50}]", depth + 2)]
        for k, v in value.items()
    ]
    return _tagged("dict", pairs)


def _is_plain_key(key: object) -> bool:
    """Return False for keys that MongoDB reads as operators or paths, or that look like the tag: they go into pairs."""
    return isinstance(key, str) and not ("." in key or "\x00" in key or key[:1] == "$" or key == TAG) and _is_utf8(key)


def _is_utf8(key: str) -> bool:
    return type(_encode_str(key)) is str


def _encode_special(value: object, path: str, depth: int) -> Encoded:
    if isinstance(value, tuple):
        return _tagged("tuple", encode_value(list(value), path, depth + 1))
    if isinstance(value, (set, frozenset)):
        items = sorted(value, key=repr)  # a stable order, so that equal sets are stored alike
        return _tagged("frozenset" if isinstance(value, frozenset) else "set", encode_value(items, path, depth + 1))
    if type(value) is bytes:
        return _tagged("bytes", base64.b64encode(value).decode())
    if isinstance(value, date) and type(value) in (datetime, date):
        return _tagged(type(value).__name__, value.isoformat())
    if type(value) is Document:
        fields = {"page_content": value.page_content, "metadata": value.metadata, "id": value.id}
        return _tagged("document", encode_value(fields, path, depth + 1))
    raise MessageEncodeError(path, f"is a {type(value).__module__}.{type(value).__qualname__}, which is not stored")


DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(value, 16),
    "str": lambda value: base64.b64decode(value, validate=True).decode("utf-8", "surrogatepass"),
    "dict": lambda value: {decode_value(k): decode_value(v) for k, v in value},
    "tuple": lambda value: tuple(decode_value(value)),
    "set": lambda value: set(decode_value(value)),
    "frozenset": lambda value: frozenset(decode_value(value)),
    "bytes": lambda value: base64.b64decode(value, validate=True),
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "document": lambda value: Document(**decode_value(value)),
}


def decode_value(value: Any) -> Any:
    """Decode a value that `encode_value` encoded."""
    kind = type(value)
    if kind in (str, bool, float, int) or value is None:
        return value
    if isinstance(value, list):
        return [decode_value(item) for item in value]
    if isinstance(value, Mapping):
        if TAG in value:
            return DECODERS[value[TAG]](value["value"])
        return {key: decode_value(item) for key, item in value.items()}
    if isinstance(value, int):  # a driver's own int class
        return int(value)
    raise TypeError(f"{kind.__name__} is not a stored type")
