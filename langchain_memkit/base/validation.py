"""Checks of ids and constructor arguments, with errors that say what was given."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from numbers import Real
from typing import Any, TypeVar
from urllib.parse import quote

from langchain_core.runnables import RunnableConfig

from langchain_memkit.errors import ConfigurationError, MemkitError

__all__ = [
    "check_arguments",
    "check_id",
    "check_path",
    "check_seconds",
    "check_text",
    "describe_error",
    "describe_type",
    "describe_value",
    "did_you_mean",
    "safe_repr",
    "session",
    "user_prefix",
]

ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")  # two letters or more before the colon: C:/ is a drive
LONGEST = 9e9  # seconds, 285 years: a thread can wait this long, and the date still exists
P = TypeVar("P", bound="str | os.PathLike[str]")


def describe_error(error: BaseException) -> str:
    """Describe an error by its type, and by its text if it is memkit's own: other texts may quote private data.

    Args:
        error: The error; it is usually the `__cause__` of the one that describes it.

    Example:
        >>> describe_error(OSError("secret")), describe_error(MemkitError("the file is gone"))
        ('OSError', 'MemkitError: the file is gone')
    """
    return type(error).__name__ + (f": {error}" if isinstance(error, MemkitError) else "")


def describe_value(value: Any) -> str:
    """Describe a value for an error message: numbers as they are, anything else by type, since it may be private.

    Args:
        value: The value that was passed or stored.

    Example:
        >>> describe_value(3), describe_value("My name is Nemo."), describe_value(None)
        ('3', 'a str', 'None')
    """
    if value is None or type(value) in (bool, float) or (type(value) is int and abs(value) < 10**20):
        return str(value)
    return f"a {type(value).__name__}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: a similar known one, or nothing.

    Args:
        name: The name as it was written.
        known: The names that exist.

    Example:
        >>> did_you_mean("bevor_save", ["before_save", "memories"]), did_you_mean("x", ["memories"])
        ("; did you mean 'before_save'?", '')
    """
    lower = {other.lower(): other for other in known}
    # "session" for "session_id": too short for a close match, but its first word
    begun = [other for other in lower if len(name) > 2 and other.startswith(f"{name.lower()}_")]
    found = get_close_matches(name.lower(), lower, n=1, cutoff=0.7) or begun
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def check_arguments(given: Iterable[str], *takers: Callable[..., Any]) -> None:
    """Check the names of arguments that are passed on as `**options`, before anything is created from them.

    Args:
        given: The names.
        *takers: The functions or classes that take them; keyword-only arguments of any of them are accepted. A class
            with `**kwargs`, such as an app's own subclass, may accept more than it names, and is not checked.

    Raises:
        ConfigurationError: There is no such argument.

    Example:
        >>> check_arguments(["revers"], sorted)
        Traceback (most recent call last):
        ...
        langchain_memkit.errors.ConfigurationError: no such argument: revers; did you mean 'reverse'?
    """
    known: list[str] = []
    others: list[str] = []
    for taker in takers:
        parameters = inspect.signature(taker).parameters.values()
        if isinstance(taker, type) and any(p.kind is p.VAR_KEYWORD for p in parameters):
            return
        known += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        others += [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if unknown := sorted(set(given) - set(known)):
        msg = f"no such argument: {', '.join(unknown)}{did_you_mean(unknown[0], [*known, *others])}"
        raise ConfigurationError(msg)


def check_path(path: P) -> P:
    """Return a path, unless it is a connection string.

    As a file name, a connection string would appear in error messages, password included.

    Args:
        path: The path that the caller passed.

    Raises:
        ConfigurationError: It is an address.

    Example:
        >>> check_path("chat.db")
        'chat.db'
        >>> check_path("mongodb://nemo:secret@host/")  # doctest: +NORMALIZE_WHITESPACE
        Traceback (most recent call last):
        ...
        langchain_memkit.errors.ConfigurationError: a file was expected, not an address that begins with 'mongodb:'; the
        classes for a server begin with MongoDB
    """
    if address := ADDRESS.match(str(path)):
        way_out = "; the classes for a server begin with MongoDB" if address[1].startswith("mongodb") else ""
        if address[1].startswith("sqlite"):
            way_out = f"; give the path alone, {str(path).partition('://')[2].removeprefix('/') or 'chat.db'!r:.80}"
        msg = f"a file was expected, not an address that begins with '{address[1]}:'{way_out}"
        raise ConfigurationError(msg)
    return path


def describe_type(value: object, wanted: type) -> str:
    """Describe the type of a wrong argument; a class itself is named as such, since parentheses are easily forgotten.

    Args:
        value: The value that the caller passed.
        wanted: The type it should be an instance of.

    Example:
        >>> describe_type(3, Exception), describe_type(OSError, Exception), describe_type(int, Exception)
        ('int', 'the class OSError: call it', 'the class int')
    """
    if not isinstance(value, type):
        # LangGraph's stores share the class names of langchain-core's
        langgraph = "; it is one of LangGraph's, so wrap it: LangGraphKeyValueStore(store)"
        return type(value).__name__ + (langgraph if hasattr(value, "list_namespaces") else "")
    return f"the class {value.__name__}" + (": call it" if issubclass(value, wanted) else "")


def check_seconds(value: Any, name: str, *, none: str = "", most: float = LONGEST) -> None:
    """Validate a duration that the caller passed.

    Args:
        value: Seconds.
        name: The name of the argument.
        none: What None means, for the error message; empty if None is not allowed.
        most: The greatest value.

    Raises:
        ConfigurationError: It is not a number above 0, or it is above `most`.

    Example:
        >>> check_seconds(0.5, "timeout")
        >>> check_seconds("1d", "ttl", none="to keep turns")
        Traceback (most recent call last):
        ...
        langchain_memkit.errors.ConfigurationError: ttl must be seconds above 0, or None to keep turns; got '1d'
    """
    if value is None and none:
        return
    seconds = float(value) if not isinstance(value, bool) and isinstance(value, Real) else 0.0
    if not 0 < seconds <= most:
        limit = f" and at most {most:.0e}" if seconds > most else ""
        msg = f"{name} must be seconds above 0{limit}{f', or None {none}' if none else ''}; got {value!r:.50}"
        raise ConfigurationError(msg)


def safe_repr(value: Any) -> str:
    """Return a value for a `repr`: memkit's own objects by their repr, others by name, since they may show secrets.

    Example:
        >>> safe_repr(sorted), safe_repr(object())
        ('sorted', 'object')
    """
    if type(value).__module__.partition(".")[0] == "langchain_memkit":
        return repr(value)
    return str(getattr(value, "__name__", type(value).__name__))


IDS = ("session_id", "user_id", "turn_id", "thread_id")
MAX_ID_BYTES = 512
DATABASE = re.compile(r"(sqlite|mongodb|postgres|postgresql|mysql|mariadb|redis)(\+\w+)?://")
WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/@\s]*:[^/\s]*@")


def check_id(value: object, name: str) -> str:
    """Validate an id and return it; raise before any I/O if it is not valid.

    Strings only: a dict that reaches a filter would become a query operator, and `1` and `"1"` would be two sessions.

    Args:
        value: The value that the caller passed.
        name: The argument's name, for the error.

    Returns:
        The same value, now known to be 1 to 512 bytes of UTF-8 without NUL.

    Raises:
        TypeError: It is not a `str`.
        ValueError: It is empty, too long, holds NUL or a lone surrogate, or is a connection string: ids are shown, and
            the arguments are probably in the wrong order. Any other address without a password is accepted.

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
    """Validate text of a given size, such as a key, and return it; `check_id` for other sizes.

    Args:
        value: The value that the caller passed.
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
    """Return the prefix of all keys of a user in a key-value store; `purge(user_id)` deletes every key under it.

    The id is percent-quoted, so that no user's prefix is the start of another's, whatever the ids contain.

    Args:
        user_id: The user; an empty string for unowned data.

    Returns:
        The quoted id and a slash: append the rest of the key.

    Raises:
        TypeError: It is not a `str`.
        ValueError: It is not a valid id.

    Example:
        >>> user_prefix("a/b") + "profile", user_prefix("")
        ('a%2Fb/profile', '/')
    """
    return quote(check_text(user_id, "user_id", MAX_ID_BYTES, least=0), safe="") + "/"


def session(session_id: str, *, user_id: str | None = None, turn_id: str | None = None, **more: Any) -> RunnableConfig:
    """Return the config that names a conversation: the second argument of a chain's or an agent's `invoke`.

    It equals `{"configurable": {"session_id": "s1"}}`, with the ids validated at once and a type that type checkers
    know. A LangGraph checkpointer needs a `thread_id` as well: `session("s1", thread_id="t1")`.

    Args:
        session_id: The conversation.
        user_id: The owner; None for apps that do not tell users apart.
        turn_id: The idempotency key, e.g. the id of the request: a repeated call is stored once. None: every call is a
            turn of its own.
        **more: Further keys of `config["configurable"]`; `callbacks`, `tags`, `metadata` and the other keys of a
            `RunnableConfig` go to the top level.

    Returns:
        A new config, yours to change.

    Raises:
        TypeError: An id is not a string.
        ValueError: An id is empty or malformed.
        ConfigurationError: A key is almost the name of an id: `userid`, say.

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
    """Refuse a misspelt id: as a key of its own it would be ignored, and all users would share a conversation."""
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
