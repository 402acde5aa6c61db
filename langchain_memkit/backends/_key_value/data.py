"""Validation and conversion of keys and values. No I/O."""

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
UNREADABLE = (KeyError, TypeError, ValueError, RecursionError)  # raised when damaged data is decoded


class Stored(NamedTuple):
    """A value as a backend read it, with its format version; it may be damaged."""

    value: Any
    version: Any


class KeyRange(NamedTuple):
    """The keys from `begin` up to, not including, `end`; None for no end."""

    begin: str
    end: str | None


def check_keys(keys: Iterable[str]) -> list[str]:
    """Validate keys and return them as a list. Raise before any I/O if one is invalid."""
    if isinstance(keys, str):  # its letters would be taken for keys
        msg = "keys must be a list of str, not a str"
        raise TypeError(msg)
    return [check_text(key, "key", MAX_KEY_BYTES) for key in keys]


def check_prefix(prefix: str | None) -> str:
    """Validate a prefix of keys; None becomes an empty string. Raise before any I/O if it is invalid."""
    return "" if prefix is None else check_text(prefix, "prefix", MAX_KEY_BYTES, least=0)


def encode_pairs(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Encode values as plain data by key; of a repeated key the last one counts.

    Raises:
        TypeError: A key is not a string.
        ValueError: A key is empty or malformed.
        MessageEncodeError: A value cannot be stored, or would not come back equal.
    """
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
        # decoded and compared before it is stored: a value that changes on the way must be refused now, not found on
        # reading
        back = decode_value(encoded)
    except UNREADABLE as error:
        problem = f"would be unreadable once stored ({type(error).__name__})"
    if problem:  # out here, since the other error may quote the value
        raise MessageEncodeError(path, problem)
    # For one, a datetime in the hour that clocks repeat in autumn differs from itself in another time zone.
    if back != value:
        wrong = [k for k in value if k not in back or back[k] != value[k]] if isinstance(value, dict) else []
        raise MessageEncodeError(f"{path}[{wrong[0]!r}]" if wrong else path, "would not come back equal")
    return encoded


def decode(key: str, stored: Stored) -> Any:
    """Decode a stored value; None if it is damaged, which is logged."""
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
    """Return the range of the keys that begin with `prefix`: up to the next text after them, by code points."""
    for i in reversed(range(len(prefix))):
        following = ord(prefix[i]) + 1
        if following <= 0x10FFFF:
            # surrogates are not characters: U+E000 follows U+D7FF
            return KeyRange(prefix, prefix[:i] + chr(0xE000 if following == 0xD800 else following))
    return KeyRange(prefix, None)


def rest_of(keys: KeyRange, page: list[str]) -> KeyRange | None:
    """Return the range after a page; None at the end.

    Keys hold no NUL, so `last + NUL` is the first text after `last`.
    """
    # A damaged key may sort differently from its decoded text; without this check the listing would go in circles.
    if len(page) < PAGE or page[-1] < keys.begin:
        return None
    return keys._replace(begin=page[-1] + "\x00")
