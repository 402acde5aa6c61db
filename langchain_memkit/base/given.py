"""What was given in place of what was asked for, in the words of an error."""

from __future__ import annotations

import os
import re
from typing import TypeVar

from langchain_memkit.errors import ConfigurationError

__all__ = ["file_given", "kind_given"]

ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")  # of two letters or more: C:/ is a drive
P = TypeVar("P", bound="str | os.PathLike[str]")


def file_given(path: P) -> P:
    """The path, unless it is a connection string: as the name of a file it would stand in errors, password and all.

    Args:
        path: What the caller passed.

    Raises:
        ConfigurationError: It is an address.

    Example:
        >>> file_given("chat.db")
        'chat.db'
        >>> file_given("mongodb://nemo:secret@host/")
        Traceback (most recent call last):
        ...
        langchain_memkit.errors.ConfigurationError: a file was expected, not an address that begins with 'mongodb:'
    """
    if address := ADDRESS.match(str(path)):
        msg = f"a file was expected, not an address that begins with '{address[1]}:'"
        raise ConfigurationError(msg)
    return path


def kind_given(value: object, wanted: type) -> str:
    """What a value is: its type; of a class itself that it is one, since parentheses are easily forgotten.

    Args:
        value: What the caller passed.
        wanted: What it should be an instance of.

    Example:
        >>> kind_given(3, Exception), kind_given(OSError, Exception), kind_given(int, Exception)
        ('int', 'the class OSError: call it', 'the class int')
    """
    if not isinstance(value, type):
        # LangGraph's stores have the same class names as langchain-core's
        langgraph = "; it is one of LangGraph's, so wrap it: LangGraphKeyValueStore(store)"
        return type(value).__name__ + (langgraph if hasattr(value, "list_namespaces") else "")
    return f"the class {value.__name__}" + (": call it" if issubclass(value, wanted) else "")
