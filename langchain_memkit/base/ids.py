"""What an id may be, checked before any I/O; and a config with ids."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any
from urllib.parse import quote

from langchain_core.runnables import RunnableConfig

from langchain_memkit.errors import ConfigurationError

__all__ = ["check_id", "check_text", "session", "user_prefix"]

IDS = ("session_id", "user_id", "turn_id", "thread_id")
MAX_ID_BYTES = 512
DATABASE = re.compile(r"(sqlite|mongodb|postgres|postgresql|mysql|mariadb|redis)(\+\w+)?://")
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
        ValueError: It is empty, too long, holds NUL or a lone surrogate, or is a connection string: ids are shown,
            and the arguments are in the wrong order. Another address without a password is an id.

    Example:
        >>> check_id("s1", "session_id")
        's1'
        >>> check_id({"$ne": None}, "session_id")
        Traceback (most recent call last):
        ...
        TypeError: session_id must be a str, not dict. If yours are numbers or UUIDs, pass str(...).
    """
    text = check_text(value, name, MAX_ID_BYTES)
    if "://" in text and (WITH_PASSWORD.match(text) or DATABASE.match(text)):
        msg = f"{name} is a connection string: are the arguments in the right order?"
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


def session(session_id: str, *, user_id: str | None = None, turn_id: str | None = None, **more: Any) -> RunnableConfig:
    """Return the config that names a conversation: the second argument of a chain's or an agent's `invoke`.

    The same as `{"configurable": {"session_id": "s1"}}`, with the ids checked at once and a type that type checkers
    know. A LangGraph checkpointer wants a `thread_id` as well: `session("s1", thread_id="t1")`.

    Args:
        session_id: The conversation.
        user_id: Whose it is; None for apps that do not tell users apart.
        turn_id: Stores a call that is repeated once: an id of the request, say. None: every call is a turn of its own.
        **more: Further keys of `config["configurable"]`; `callbacks`, `tags`, `metadata` and the other keys of a
            `RunnableConfig` stand where they belong.

    Returns:
        A new config, yours to change.

    Raises:
        TypeError: An id is no string.
        ValueError: An id is empty or malformed.
        ConfigurationError: A key is nearly one of those that name a conversation: `userid`, say.

    Example:
        >>> session("s1", user_id="u1")
        {'configurable': {'session_id': 's1', 'user_id': 'u1'}}
        >>> session("s1", thread_id="t1", tags=["web"])
        {'tags': ['web'], 'configurable': {'session_id': 's1', 'thread_id': 't1'}}
    """
    for name in more:
        _check_key(name)
    ids = {"session_id": session_id, "user_id": user_id, "turn_id": turn_id}
    checked = {name: check_id(value, name) for name, value in ids.items() if name == "session_id" or value is not None}
    own = {name: more.pop(name) for name in sorted(more.keys() & RunnableConfig.__annotations__.keys())}
    configurable = {**own.pop("configurable", {}), **checked, **more}
    config: RunnableConfig = {**own, "configurable": configurable}  # type: ignore[typeddict-item]  # keys of its own
    return config


def _check_key(name: str) -> None:
    """Refuses a misspelt id: as a key of its own it would be ignored, and all users would share a conversation."""
    known = {key.replace("_", ""): key for key in IDS}
    if name in known.values() or name in RunnableConfig.__annotations__:
        return
    plain = name.replace("_", "").lower()
    near = [key for key in known if key == f"{plain}id"] or get_close_matches(plain, known, n=1, cutoff=0.82)
    if near:
        msg = (
            f"session() has no {name!r}; did you mean {known[near[0]]!r}? A key of your own with this name goes into "
            f"configurable={{{name!r}: ...}}"
        )
        raise ConfigurationError(msg)
