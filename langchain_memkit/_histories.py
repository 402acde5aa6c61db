"""Access to any chat history as steps: memkit's own, and other packages' through LangChain's methods."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage
from langchain_core.runnables import run_in_executor

from langchain_memkit._sync import Step

__all__ = [
    "add_messages",
    "append_turn",
    "clear_messages",
    "epoch_at",
    "has_native",
    "is_native",
    "overrides",
    "read_messages",
    "seq_of",
    "stored_ids",
]

T = TypeVar("T")

logger = logging.getLogger("langchain_memkit")

VERBS = ("messages", "aget_messages", "add_message", "add_messages", "aadd_messages", "clear", "aclear")
"""Names of the methods of a LangChain chat history."""

_reported: set[str] = set()


def is_native(history: Any) -> bool:
    """Return whether a history is used through `append_turn` and `view` instead of LangChain's methods.

    That is so if it has the two, and neither a subclass nor the object itself overrides one of LangChain's methods: the
    override would be bypassed.
    """
    return has_native(history, "append_turn", "view")


def has_native(history: Any, *methods: str) -> bool:
    """Return whether a history has these memkit methods, and they may be used in place of LangChain's."""
    if not all(hasattr(history, method) for method in methods):
        return False
    if not hasattr(history, "append_turn"):
        # another package's history that has some of memkit's methods: there is no memkit class whose methods it
        # overrides
        return True
    changed = [verb for verb in VERBS if overrides(history, verb)]
    if changed:
        _report(history, changed)
    return not changed


def overrides(history: Any, verb: str, *, without: Sequence[str] = ()) -> bool:
    """Return whether a method is overridden, on the object or by a subclass of the class that defines `append_turn`.

    Args:
        history: Any chat history.
        verb: The method.
        without: Count only overrides in classes that define none of these methods.
    """
    return any(verb in names and not any(other in names for other in without) for names in _overriding(history))


def _overriding(history: Any) -> list[Mapping[str, Any]]:
    """Return the namespaces of object and classes, nearest first, above the class that first defined `append_turn`."""
    spaces = [getattr(history, "__dict__", {}), *(vars(kind) for kind in type(history).__mro__)]
    native = [i for i, names in enumerate(spaces) if "append_turn" in names]
    # none of them may define it: a wrapper can have it from `__getattr__`
    return spaces[: native[-1]] if native else spaces


def _report(history: Any, changed: Sequence[str]) -> None:
    """Warn once per class about the cost of its overrides, and name the alternatives."""
    name = f"{type(history).__module__}.{type(history).__qualname__}"
    if name in _reported:
        return
    _reported.add(name)
    costs = ["every turn reads all of `messages`"]
    if "add_message" in changed:
        costs.append("every message is stored as a turn of its own")
    logger.warning(
        "%s overrides %s, so it is used through LangChain's methods, without turn_id, retried saves and the check for "
        "a clear meanwhile (%s); before_save= (what is stored) and preprocessor= (what the model is shown) avoid that, "
        "see docs/subclasses.md",
        name,
        ", ".join(changed),
        ", ".join(costs),
    )


def read_messages(history: Any) -> Step[Sequence[BaseMessage]]:
    """Read the whole conversation, oldest first."""
    return _step(history, lambda: history.messages, "aget_messages")


def add_messages(history: Any, messages: Sequence[BaseMessage]) -> Step[None]:
    """Append messages."""
    return _step(history, lambda: history.add_messages(messages), "aadd_messages", messages)


def append_turn(history: Any, messages: Sequence[BaseMessage], *, head: Any, **given: Any) -> Step[int]:
    """Append a turn to one of memkit's histories.

    `head` is passed only to methods that accept it, since a subclass's override may not; it merely saves a query.
    """

    def arguments(method: Callable[..., Any]) -> dict[str, Any]:
        function = getattr(method, "__func__", method)
        # a callable that cannot be hashed is inspected each time instead of cached
        known = _takes_head if isinstance(function, Hashable) else _takes_head.__wrapped__
        return {**given, "head": head} if head is not None and known(function) else given

    return Step(
        lambda: history.append_turn(messages, **arguments(history.append_turn)),
        lambda: history.aappend_turn(messages, **arguments(history.aappend_turn)),
    )


@lru_cache(maxsize=64)
def _takes_head(method: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(method).parameters
    except (TypeError, ValueError):
        return False
    return "head" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def clear_messages(history: Any) -> Step[None]:
    """Clear the session."""
    return _step(history, lambda: history.clear(), "aclear")


def stored_ids(history: Any, ids: Sequence[str]) -> Step[set[str]]:
    """Return those of the message ids that one of memkit's histories holds, with one indexed query."""
    return Step(lambda: history.stored_ids(ids), lambda: history.astored_ids(ids))


def epoch_at(history: Any, seq: int) -> Step[int | None]:
    """Return the epoch of the turn at a position in one of memkit's histories; None if the turn was erased."""

    async def asynchronous() -> int | None:
        return next(iter([turn.epoch async for turn in history.aiter_turns(**at)]), None)

    at = {"after_seq": seq - 1, "before_seq": seq + 1}
    return Step(lambda: next((turn.epoch for turn in history.iter_turns(**at)), None), asynchronous)


def seq_of(history: Any, op: str, after_seq: int) -> Step[int | None]:
    """Search one of memkit's histories after a position for a turn by its op, and return its position or None."""

    async def asynchronous() -> int | None:
        async for turn in history.aiter_turns(after_seq=after_seq):
            if turn.op == op:
                return int(turn.seq)
        return None

    turns = partial(history.iter_turns, after_seq=after_seq)
    return Step(lambda: next((turn.seq for turn in turns() if turn.op == op), None), asynchronous)


def _step(history: Any, sync: Callable[[], T], twin: str, *args: Any) -> Step[T]:
    async def asynchronous() -> T:
        # the async methods of langchain-community's SQLChatMessageHistory over a sync engine only raise
        if not hasattr(history, twin) or not getattr(history, "async_mode", True):
            return await run_in_executor(None, sync)
        result: T = await getattr(history, twin)(*args)
        return result

    return Step(sync, asynchronous)
