"""What was given in place of what was asked for, in the words of an error."""

from __future__ import annotations

__all__ = ["kind_given"]


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
