"""Report of what a preprocessor did with its messages, for the event `memkit_context`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit.base import TokenCounter
from langchain_memkit.messages.counting import count_tokens
from langchain_memkit.messages.cuts import is_summary
from langchain_memkit.messages.notes import is_note

__all__ = ["ContextReport", "has_listeners"]

EVENT = "memkit_context"


@dataclass(slots=True)
class ContextReport:
    """Outcome of one preprocessor in one turn.

    Attributes:
        preprocessor: Its name.
        max_tokens: Its budget, in tokens.
        room: Tokens of the budget that were left for the history.
        given: The messages that it was given.
        kept: The messages that it returned.
        counter: The token counter.
        reserved: Tokens reserved for the answer and the schemas of tools.
        summarized: Number of messages that the summary covers, including those of earlier turns.
        covered: The messages of `given` that the summary covers.
        notes: Problems, one line each.
    """

    preprocessor: str
    max_tokens: int
    room: int
    given: Sequence[BaseMessage]
    kept: Sequence[BaseMessage]
    counter: TokenCounter
    reserved: int = 0
    summarized: int = 0
    covered: Sequence[BaseMessage] = ()
    notes: list[str] = field(default_factory=list)

    def event(self) -> dict[str, Any]:
        """Return the payload of the event `memkit_context`: plain data without message content."""
        kept_ids = {id(m) for m in (*self.kept, *self.covered)}
        whole = {id(m) for m in self.given}
        # Messages are compared by identity, since ids may occur twice; only shortened copies are recognized by id.
        known = {m.id for m in self.kept if m.id and id(m) not in whole}
        tokens = {"system": 0, "summary": 0, "history": 0}
        for message, count in zip(self.kept, count_tokens(self.kept, self.counter), strict=True):
            tokens[part_of(message)] = tokens.get(part_of(message), 0) + count
        ids = [getattr(m, "id", None) for m in self.given if id(m) not in kept_ids]  # getattr: perhaps a tuple
        dropped = [i for i in ids if i not in known]
        return {
            "preprocessor": self.preprocessor,
            "max_tokens": self.max_tokens,
            "room": self.room,
            "reserved": self.reserved,
            "tokens": tokens,
            "kept": len(self.kept),
            "dropped": len(dropped),
            "summarized": self.summarized,
            "kept_ids": [m.id for m in self.kept],
            "dropped_ids": dropped,
            "summarized_ids": [m.id for m in self.covered],
            "notes": list(self.notes),
        }


def part_of(message: BaseMessage) -> str:
    """Return the part of the budget that a message counts for: system, summary, notes or history."""
    if is_summary(message):
        return "summary"
    if is_note(message):
        return "notes"
    return "system" if isinstance(message, SystemMessage) else "history"


def has_listeners(config: RunnableConfig) -> bool:
    """Return whether there are callback handlers: building the event costs more than trimming."""
    callbacks = config.get("callbacks")
    return bool(getattr(callbacks, "handlers", callbacks))
