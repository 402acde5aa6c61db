"""Counting tokens: what a token counter may be, and the default that costs next to nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from langchain_core.messages import BaseMessage, RemoveMessage
from langchain_core.messages.utils import count_tokens_approximately

from langchain_memkit.base import TokenCounter

__all__ = ["count_tokens", "counter_name"]

logger = logging.getLogger("langchain_memkit")


def count_tokens(messages: Sequence[BaseMessage], counter: TokenCounter | None) -> list[int]:
    """Tokens of each message by itself; `None` counts with LangChain's `count_tokens_approximately`.

    A counter that fails (some know not every message type, some need a network) must not cost a turn: its message is
    then estimated at four characters a token.
    """
    count = counter or count_tokens_approximately
    counts: list[int] = []
    for message in messages:
        try:
            counts.append(max(0, int(count([message]))))
        except Exception as error:  # noqa: BLE001  # any counter, any error
            if not isinstance(message, RemoveMessage):
                name = counter_name(counter)
                logger.warning("token counter %s failed on a %s message: %s", name, message.type, type(error).__name__)
            counts.append(len(str(message.content)) // 4)
    return counts


def counter_name(counter: TokenCounter | None) -> str:
    """Which counter made the stored numbers, so that another one does not trust them."""
    if counter is None or counter is count_tokens_approximately:
        return "approximate"
    return str(getattr(counter, "__qualname__", type(counter).__qualname__))[:80]
