"""Type aliases of the public interfaces, and the default clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable

__all__ = ["GetSessionHistory", "Now", "Preprocessor", "TokenCounter", "TokenCounterLike", "utc_now"]

Preprocessor: TypeAlias = Runnable[list[BaseMessage], list[BaseMessage]]
"""Messages in, messages out: `trim_messages(...)` of LangChain is one already."""

GetSessionHistory: TypeAlias = Callable[..., Any]
"""`get_session_history(session_id, user_id=None)`: returns a LangChain chat history, or is a coroutine that does."""

TokenCounter: TypeAlias = Callable[[Sequence[BaseMessage]], int]
"""Messages in, tokens out."""

TokenCounterLike: TypeAlias = TokenCounter | Callable[[BaseMessage], int] | BaseLanguageModel[Any] | str | None
"""What a `token_counter` argument takes; `messages.counting.resolve_counter` says what each of them means."""

Now: TypeAlias = Callable[[], datetime]
"""A clock: returns the present as an aware datetime in UTC."""


def utc_now() -> datetime:
    """Return the present as an aware datetime in UTC: the default clock."""
    return datetime.now(UTC)
