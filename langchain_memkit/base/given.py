"""Validation helpers for arguments, and safe descriptions of values in error messages."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from numbers import Real
from typing import Any, TypeVar

from langchain_memkit.errors import ConfigurationError, MemkitError

__all__ = [
    "check_arguments",
    "describe_error",
    "did_you_mean",
    "file_given",
    "kind_given",
    "seconds_given",
    "shown",
    "value_or_kind",
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


def value_or_kind(value: Any) -> str:
    """Describe a value for an error message: numbers as they are, anything else by type, since it may be private.

    Args:
        value: The value that was passed or stored.

    Example:
        >>> value_or_kind(3), value_or_kind("My name is Nemo."), value_or_kind(None)
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


def file_given(path: P) -> P:
    """Return a path, unless it is a connection string.

    As a file name, a connection string would appear in error messages, password included.

    Args:
        path: The path that the caller passed.

    Raises:
        ConfigurationError: It is an address.

    Example:
        >>> file_given("chat.db")
        'chat.db'
        >>> file_given("mongodb://nemo:secret@host/")  # doctest: +NORMALIZE_WHITESPACE
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


def kind_given(value: object, wanted: type) -> str:
    """Describe the type of a wrong argument; a class itself is named as such, since parentheses are easily forgotten.

    Args:
        value: The value that the caller passed.
        wanted: The type it should be an instance of.

    Example:
        >>> kind_given(3, Exception), kind_given(OSError, Exception), kind_given(int, Exception)
        ('int', 'the class OSError: call it', 'the class int')
    """
    if not isinstance(value, type):
        # LangGraph's stores share the class names of langchain-core's
        langgraph = "; it is one of LangGraph's, so wrap it: LangGraphKeyValueStore(store)"
        return type(value).__name__ + (langgraph if hasattr(value, "list_namespaces") else "")
    return f"the class {value.__name__}" + (": call it" if issubclass(value, wanted) else "")


def seconds_given(value: Any, name: str, *, none: str = "", most: float = LONGEST) -> None:
    """Validate a duration that the caller passed.

    Args:
        value: Seconds.
        name: The name of the argument.
        none: What None means, for the error message; empty if None is not allowed.
        most: The greatest value.

    Raises:
        ConfigurationError: It is not a number above 0, or it is above `most`.

    Example:
        >>> seconds_given(0.5, "timeout")
        >>> seconds_given("1d", "ttl", none="to keep turns")
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


def shown(value: Any) -> str:
    """Return a value for a `repr`: memkit's own objects by their repr, others by name, since they may show secrets.

    Example:
        >>> shown(sorted), shown(object())
        ('sorted', 'object')
    """
    if type(value).__module__.partition(".")[0] == "langchain_memkit":
        return repr(value)
    return str(getattr(value, "__name__", type(value).__name__))
