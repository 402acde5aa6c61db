"""Checks of ids and constructor arguments, with errors that say what was given."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from numbers import Real
from typing import Any, TypeVar
from urllib.parse import quote

from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import RunnableConfig

from langchain_memkit.errors import ConfigurationError, MemkitError

ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")  # two letters or more before the colon: C:/ is a drive
LONGEST = 9e9  # seconds, 285 years: a thread can wait this long, and the date still exists
P = TypeVar("P", bound="str | os.PathLike[str]")


def describe_error(error: BaseException) -> str:
    """Describe an error by its type, and by its text if it is memkit's own: other texts may quote private data."""
    return type(error).__name__ + (f": {error}" if isinstance(error, MemkitError) else "")


def describe_value(value: object) -> str:
    """Describe a value for an error message: numbers as they are, anything else by type, since it may be private."""
    if value is None or type(value) in (bool, float) or (type(value) is int and abs(value) < 10**20):
        return str(value)
    return f"a {type(value).__name__}"


def describe_type(value: object, wanted: type) -> str:
    """Describe the type of a wrong argument; a class is named as such: parentheses are easily forgotten."""
    if not isinstance(value, type):
        # LangGraph's stores share the class names of langchain-core's
        langgraph = "; it is one of LangGraph's, so wrap it: LangGraphKeyValueStore(store)"
        return type(value).__name__ + (langgraph if hasattr(value, "list_namespaces") else "")
    return f"the class {value.__name__}" + (": call it" if issubclass(value, wanted) else "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message about an unknown name: a similar known one, or nothing."""
    lower = {other.lower(): other for other in known}
    # "session" for "session_id": too short for a close match, but its first word
    begun = [other for other in lower if len(name) > 2 and other.startswith(f"{name.lower()}_")]
    found = get_close_matches(name.lower(), lower, n=1, cutoff=0.7) or begun
    return f"; did you mean {lower[found[0]]!r}?" if found else ""


def check_size(value: object, name: str, least: int) -> int:
    """Return `value` if it is a whole number of at least `least`, else raise `ConfigurationError`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        msg = f"{name} must be a whole number from {least}; got {value!r:.50}"
        raise ConfigurationError(msg)
    return value


def safe_repr(value: object) -> str:
    """Return a value for a `repr`: memkit's own objects by their repr, others by name, since they may show secrets."""
    if type(value).__module__.partition(".")[0] == "langchain_memkit":
        return repr(value)
    return str(getattr(value, "__name__", type(value).__name__))


def check_arguments(given: Iterable[str], *takers: Callable[..., object]) -> None:
    """Raise a ConfigurationError unless names passed on as `**options` are keyword-only arguments of one of `takers`.

    A class with `**kwargs`, such as an app's own subclass, may accept more than it names, and is not checked.

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


def check_one_of(value: object, name: str, known: Sequence[str], *, function: bool = False) -> None:
    """Raise a ConfigurationError unless a value is one of several modes, or a function where one is allowed."""
    if not (value in known or (function and callable(value))):
        or_callable = " or a callable" if function else ""
        msg = f"{name} must be {' or '.join(map(repr, known))}{or_callable}, not {value!r:.50}"
        raise ConfigurationError(msg)


def check_prompt(prompt: object, known: set[str], fits: Callable[[set[str]], object], needs: str) -> set[str]:
    """Return the variables that a `prompt` argument takes: none for None or an instruction, which is text without any.

    An instruction holds none of the `known` variables; `fits` says whether those of a template do, `needs` which ones.
    """
    if isinstance(prompt, BasePromptTemplate):
        takes = {*prompt.input_variables, *prompt.optional_variables}
        if not fits(takes):
            msg = f"prompt must take {needs}; it takes {sorted(takes)}"
            raise ConfigurationError(msg)
        return takes
    is_text = isinstance(prompt, str) and prompt.strip() and not any(f"{{{name}}}" in prompt for name in known)
    if not (prompt is None or is_text):
        msg = f"prompt must be text without variables, or a ChatPromptTemplate: {prompt!r:.60} is no instruction"
        raise ConfigurationError(msg)
    return set()


def check_path(path: P) -> P:
    """Return a path, unless it is a connection string, which error messages would show with its password."""
    if address := ADDRESS.match(str(path)):
        way_out = "; the classes for a server begin with MongoDB" if address[1].startswith("mongodb") else ""
        if address[1].startswith("sqlite"):
            way_out = f"; give the path alone, {str(path).partition('://')[2].removeprefix('/') or 'chat.db'!r:.80}"
        msg = f"a file was expected, not an address that begins with '{address[1]}:'{way_out}"
        raise ConfigurationError(msg)
    return path


def check_seconds(value: object, name: str, *, none: str = "", most: float = LONGEST) -> None:
    """Validate a duration in seconds; `none` says what None means, and is empty if None is not allowed.

    Example:
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


# -- ids

IDS = ("session_id", "user_id", "turn_id", "thread_id")
MAX_ID_BYTES = 512
DATABASE = re.compile(r"(sqlite|mongodb|postgres|postgresql|mysql|mariadb|redis)(\+\w+)?://")
WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/@\s]*:[^/\s]*@")


def check_id(value: object, name: str) -> str:
    """Return an id if it is 1 to 512 bytes of UTF-8 without NUL; raise before any I/O if it is not.

    Strings only: a dict that reaches a filter would become a query operator, and `1` and `"1"` would be two sessions.

    Raises:
        TypeError: It is not a `str`.
        ValueError: It is empty, too long, holds NUL or a lone surrogate, or is a connection string: ids are shown, and
            the arguments are probably in the wrong order. Any other address without a password is accepted.

    Example:
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
    """Return text, such as a key, if it is `least` to `most` bytes of UTF-8 without NUL or a lone surrogate."""
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

    The id is percent-quoted, so that no user's prefix is the start of another's, whatever the ids contain; an empty
    string stands for unowned data. What is no valid id is a TypeError or ValueError.

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
    known = {key.replace("_", ""): key for key in IDS}
    for name in more.keys() - RunnableConfig.__annotations__.keys() - set(IDS):
        # As a key of its own a misspelt id would be ignored, and all users would share a conversation.
        plain = name.replace("_", "").lower()
        near = [key for key in known if key == f"{plain}id"] or get_close_matches(plain, known, n=1, cutoff=0.82)
        if near:
            msg = (
                f"session() has no {name!r}; did you mean {known[near[0]]!r}? A key of your own with this name goes "
                f"into configurable={{{name!r}: ...}}"
            )
            raise ConfigurationError(msg)
    ids = {"session_id": session_id, "user_id": user_id, "turn_id": turn_id}
    checked = {name: check_id(value, name) for name, value in ids.items() if name == "session_id" or value is not None}
    own = {name: more.pop(name) for name in sorted(more.keys() & RunnableConfig.__annotations__.keys())}
    configurable = {**own.pop("configurable", {}), **checked, **more}
    config: RunnableConfig = {**own, "configurable": configurable}  # type: ignore[typeddict-item]  # keys of its own
    return config
