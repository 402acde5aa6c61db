"""Keys and values on their way into a store and back. Pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from langchain_core.documents import Document

from langchain_memkit.base import check_text, value_or_kind
from langchain_memkit.errors import MessageEncodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_value, encode_value

logger = logging.getLogger("langchain_memkit")

MAX_KEY_BYTES = 4096  # two ids of 512 bytes fit: quoting makes up to 3 bytes of each
PAGE = 1000
STORED_TYPES = (dict, bytes, Document)
UNREADABLE = (KeyError, TypeError, ValueError, RecursionError)  # what decoding damaged data raises


class Stored(NamedTuple):
    """What a backend holds under a key, as it was read: perhaps damaged."""

    value: Any
    version: Any


class KeyRange(NamedTuple):
    """The keys from `begin` up to, not including, `end`; None for no end."""

    begin: str
    end: str | None


def check_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys, if they can serve as keys; raises before any I/O otherwise."""
    if isinstance(keys, str):  # its letters would be taken for keys
        msg = "keys must be a list of str, not a str"
        raise TypeError(msg)
    return [check_text(key, "key", MAX_KEY_BYTES) for key in keys]


def check_prefix(prefix: str | None) -> str:
    """Return the prefix, if keys can begin with it; raises before any I/O otherwise."""
    return "" if prefix is None else check_text(prefix, "prefix", MAX_KEY_BYTES, least=0)


def encode_pairs(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return values as plain data under their keys, the last one of each; raises before any I/O if one cannot be stored."""
    values: dict[str, Any] = {}
    for key, value in pairs:
        name = check_text(key, "key", MAX_KEY_BYTES)
        values[name] = _encode(value, f"values[{name!r}]")
    return values


def _encode(value: Any, path: str) -> Any:
    if not isinstance(value, STORED_TYPES):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise MessageEncodeError(path, f"is a {kind}, and a store takes dicts, bytes and Documents")
    encoded, problem = encode_value(value, path), ""
    back: Any = None
    try:
        back = decode_value(encoded)
    except UNREADABLE as error:
        problem = f"would be unreadable once stored ({type(error).__name__})"
    if problem:  # out here, since the other error may quote the value
        raise MessageEncodeError(path, problem)
    if back != value:  # a moment that the clocks showed twice, for one, differs from itself in another time zone
        wrong = [k for k in value if k not in back or back[k] != value[k]] if isinstance(value, dict) else []
        raise MessageEncodeError(f"{path}[{wrong[0]!r}]" if wrong else path, "would not come back equal")
    return encoded


def decode(key: str, stored: Stored) -> Any:
    """Return the value that was stored; None, after a line in the log, if it is damaged."""
    if stored.version != FORMAT_VERSION:
        problem = f"format {value_or_kind(stored.version)}, this version reads {FORMAT_VERSION}; is memkit older here?"
    else:
        try:
            value = decode_value(stored.value)
        except UNREADABLE as error:
            problem = f"a value cannot be read ({type(error).__name__})"
        else:
            if isinstance(value, STORED_TYPES):
                return value
            problem = f"a {type(value).__name__} instead of a dict, bytes or a Document"
    logger.warning("key %.200r is unreadable and left as it is: %s", key, problem)
    return None


def range_of(prefix: str) -> KeyRange:
    """Return the keys that begin with `prefix`: up to the first text that does not, in the order of code points."""
    for i in reversed(range(len(prefix))):
        following = ord(prefix[i]) + 1
        if following <= 0x10FFFF:
            # surrogates are no characters: U+E000 comes after U+D7FF
            return KeyRange(prefix, prefix[:i] + chr(0xE000 if following == 0xD800 else following))
    return KeyRange(prefix, None)


def rest_of(keys: KeyRange, page: list[str]) -> KeyRange | None:
    """Return what comes after a page; None at the end. No key holds NUL, so `last + NUL` is the first text after `last`."""
    if len(page) < PAGE or page[-1] < keys.begin:  # a damaged key may compare unlike what is shown of it
        return None
    return keys._replace(begin=page[-1] + "\x00")
