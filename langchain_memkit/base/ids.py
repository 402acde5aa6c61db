"""What an id may be: checked before any I/O."""

from __future__ import annotations

import re
from urllib.parse import quote

__all__ = ["check_id", "check_text", "user_prefix"]

MAX_ID_BYTES = 512
WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/@\s]*:[^/\s]*@")


def check_id(value: object, name: str) -> str:
    """Returns `value` if it can serve as an id, and raises before any I/O otherwise.

    Strings only: a dict that reaches a filter would become a query operator, and `1` and `"1"` would be two sessions.

    Args:
        value: What the caller passed.
        name: The argument's name, for the error.

    Returns:
        The same value, now known to be 1 to 512 bytes of UTF-8 without NUL.

    Raises:
        TypeError: It is not a `str`.
        ValueError: It is empty, too long, holds NUL or a lone surrogate, or is a connection string with a password: ids
            are shown, and the arguments are in the wrong order.

    Example:
        >>> check_id("s1", "session_id")
        's1'
        >>> check_id({"$ne": None}, "session_id")
        Traceback (most recent call last):
        ...
        TypeError: session_id must be a str, not dict. If yours are numbers or UUIDs, pass str(...).
    """
    text = check_text(value, name, MAX_ID_BYTES)
    if "://" in text and WITH_PASSWORD.match(text):
        msg = f"{name} is a connection string with a password: are the arguments in the right order?"
        raise ValueError(msg)
    return text


def check_text(value: object, name: str, most: int, least: int = 1) -> str:
    """`check_id` for text of another size: keys, for one.

    Args:
        value: What the caller passed.
        name: The argument's name, for the error.
        most: The greatest size, in bytes of UTF-8.
        least: The smallest size, in bytes of UTF-8.

    Returns:
        The same value, now known to be plain text of that size without NUL.

    Raises:
        TypeError: It is not a `str`.
        ValueError: It is too short or too long, or holds NUL or a lone surrogate.

    Example:
        >>> check_text("", "prefix", most=4096, least=0)
        ''
    """
    if not isinstance(value, str):
        msg = f"{name} must be a str, not {type(value).__name__}. If yours are numbers or UUIDs, pass str(...)."
        raise TypeError(msg)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        msg = f"{name} holds a lone surrogate, which is not valid text."
        raise ValueError(msg) from None
    if not least <= size <= most or "\x00" in value:
        msg = f"{name} must be {least} to {most} bytes of UTF-8 without NUL; got {size} bytes."
        raise ValueError(msg)
    return value if type(value) is str else str.__str__(value)


def user_prefix(user_id: str) -> str:
    """What every key of a user begins with in a key-value store; `purge(user_id)` deletes all that lies under it.

    The id is percent-quoted, so that no user's prefix begins another's, whatever the ids are made of.

    Args:
        user_id: Whose; an empty string for what belongs to nobody.

    Returns:
        The quoted id and a slash: put the rest of the key behind it.

    Raises:
        TypeError: It is not a `str`.
        ValueError: It is no valid id.

    Example:
        >>> user_prefix("a/b") + "profile", user_prefix("")
        ('a%2Fb/profile', '/')
    """
    return quote(check_text(user_id, "user_id", MAX_ID_BYTES, least=0), safe="") + "/"
