"""Chat histories, read and written in both call styles: those of other packages through LangChain's verbs."""

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
"""LangChain's methods of a chat history."""

_reported: set[str] = set()


def is_native(history: Any) -> bool:
    """Return whether a history is used through `append_turn` and `view`, not through LangChain's methods.

    It is, if it has the two, and neither a subclass nor the object itself overrides one of LangChain's methods: what
    they do would be passed over.
    """
    return has_native(history, "append_turn", "view")


def has_native(history: Any, *methods: str) -> bool:
    """Return whether a history has methods of ours that may be used in place of LangChain's."""
    if not all(hasattr(history, method) for method in methods):
        return False
    if not hasattr(history, "append_turn"):
        return True  # a history of another package with a method or two of ours: its own class is all there is
    changed = [verb for verb in VERBS if overrides(history, verb)]
    if changed:
        _report(history, changed)
    return not changed


def overrides(history: Any, verb: str, *, without: Sequence[str] = ()) -> bool:
    """Return whether a method is overridden, by a subclass of the class that has `append_turn` or on the object.

    Args:
        history: Any chat history.
        verb: The method.
        without: Only if it is overridden somewhere where none of these is.
    """
    return any(verb in names and not any(other in names for other in without) for names in _overriding(history))


def _overriding(history: Any) -> list[Mapping[str, Any]]:
    """What the object and its classes define, the nearest first, down to where `append_turn` is defined at first."""
    spaces = [getattr(history, "__dict__", {}), *(vars(kind) for kind in type(history).__mro__)]
    native = [i for i, names in enumerate(spaces) if "append_turn" in names]
    return spaces[: native[-1]] if native else spaces  # a wrapper may have it from `__getattr__`


def _report(history: Any, changed: Sequence[str]) -> None:
    """Says once for a class what its overrides cost, and what to use in their place."""
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
    """The whole conversation, oldest first."""
    return _step(history, lambda: history.messages, "aget_messages")


def add_messages(history: Any, messages: Sequence[BaseMessage]) -> Step[None]:
    """Appends messages."""
    return _step(history, lambda: history.add_messages(messages), "aadd_messages", messages)


def append_turn(history: Any, messages: Sequence[BaseMessage], *, head: Any, **given: Any) -> Step[int]:
    """Append a turn to one of our histories.

    A method of somebody's own that takes no `head` is not given one: it only saves a look at the session.
    """

    def arguments(method: Callable[..., Any]) -> dict[str, Any]:
        function = getattr(method, "__func__", method)
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
    """Empties the session."""
    return _step(history, lambda: history.clear(), "aclear")


def stored_ids(history: Any, ids: Sequence[str]) -> Step[set[str]]:
    """Which of these messages one of our histories has: one indexed query."""
    return Step(lambda: history.stored_ids(ids), lambda: history.astored_ids(ids))


def epoch_at(history: Any, seq: int) -> Step[int | None]:
    """The epoch of the turn at this position of one of our histories; None if it was erased."""

    async def asynchronous() -> int | None:
        return next(iter([turn.epoch async for turn in history.aiter_turns(**at)]), None)

    at = {"after_seq": seq - 1, "before_seq": seq + 1}
    return Step(lambda: next((turn.epoch for turn in history.iter_turns(**at)), None), asynchronous)


def seq_of(history: Any, op: str, after_seq: int) -> Step[int | None]:
    """Return the position of a turn of one of our histories, looked for behind another one; None if it is not there."""

    async def asynchronous() -> int | None:
        async for turn in history.aiter_turns(after_seq=after_seq):
            if turn.op == op:
                return int(turn.seq)
        return None

    turns = partial(history.iter_turns, after_seq=after_seq)
    return Step(lambda: next((turn.seq for turn in turns() if turn.op == op), None), asynchronous)


def _step(history: Any, sync: Callable[[], T], twin: str, *args: Any) -> Step[T]:
    async def asynchronous() -> T:
        # langchain-community's SQLChatMessageHistory over a plain engine has async verbs that only raise
        if not hasattr(history, twin) or not getattr(history, "async_mode", True):
            return await run_in_executor(None, sync)
        result: T = await getattr(history, twin)(*args)
        return result

    return Step(sync, asynchronous)
