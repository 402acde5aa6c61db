"""Chat histories, read and written in both call styles: those of other packages through LangChain's verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import run_in_executor

from langchain_memkit._flow import Step

__all__ = ["add_messages", "clear_messages", "epoch_at", "is_native", "read_messages", "stored_ids"]


def is_native(history: Any) -> bool:
    """Return whether a history is used through our own methods, not through LangChain's verbs."""
    return hasattr(history, "append_turn") and hasattr(history, "view")


def read_messages(history: Any) -> Step:
    """The whole conversation, oldest first."""
    return _step(history, lambda: history.messages, "aget_messages")


def add_messages(history: Any, messages: Sequence[BaseMessage]) -> Step:
    """Appends messages."""
    return _step(history, lambda: history.add_messages(messages), "aadd_messages", messages)


def clear_messages(history: Any) -> Step:
    """Empties the session."""
    return _step(history, lambda: history.clear(), "aclear")


def stored_ids(history: Any, ids: Sequence[str]) -> Step:
    """Which of these messages one of our histories has: one indexed query."""
    return Step(lambda: history.stored_ids(ids), lambda: history.astored_ids(ids))


def epoch_at(history: Any, seq: int) -> Step:
    """The epoch of the turn at this position of one of our histories; None if it was erased."""

    async def asynchronous() -> int | None:
        return next(iter([turn.epoch async for turn in history.aiter_turns(**at)]), None)

    at = {"after_seq": seq - 1, "before_seq": seq + 1}
    return Step(lambda: next((turn.epoch for turn in history.iter_turns(**at)), None), asynchronous)


def _step(history: Any, sync: Callable[[], Any], twin: str, *args: Any) -> Step:
    async def asynchronous() -> Any:
        # langchain-community's SQLChatMessageHistory over a plain engine has async verbs that only raise
        if not hasattr(history, twin) or not getattr(history, "async_mode", True):
            return await run_in_executor(None, sync)
        return await getattr(history, twin)(*args)

    return Step(sync, asynchronous)
