"""What is summarized and what is not, in a history of ours and in any other list."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from langchain_core.messages import BaseMessage, SystemMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._flow import Flow
from langchain_memkit.base import HistoryMessages, Position, TokenCounter, Window
from langchain_memkit.messages.cuts import lead_length
from langchain_memkit.preprocessors.budget import Sizes
from langchain_memkit.preprocessors.records import Place, SummaryRecord, SummaryStore, chain_digests

__all__ = ["Conversation", "place_of", "read_conversation"]

Known: TypeAlias = tuple[str, SummaryRecord]
"""A record with its key."""


def place_of(config: RunnableConfig | None) -> Place:
    """Whose conversation: the ids of the history that the turn has, else those of the config."""
    configurable = (config or {}).get("configurable") or {}
    history = configurable.get("message_history")
    session_id = getattr(history, "session_id", None) or configurable.get("session_id", configurable.get("thread_id"))
    user_id = getattr(history, "user_id", None) or configurable.get("user_id")
    return Place(user_id if isinstance(user_id, str) else "", session_id if isinstance(session_id, str) else "")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A conversation as one turn finds it.

    Attributes:
        place: Whose.
        lead: System lines in front, never summarized.
        known: The summary so far, with its key.
        body: What it does not cover, oldest first.
        covered: What it covers, as far as that was given.
        source: The list that `body` is the end of.
        native: Whether each message has a position in a history of ours.
        complete: Whether `body` is all that is not covered.
    """

    place: Place
    lead: list[BaseMessage]
    known: Known | None
    body: Sequence[BaseMessage]
    covered: Sequence[BaseMessage]
    source: Sequence[BaseMessage]
    native: bool = False
    complete: bool = True

    @property
    def summary(self) -> str:
        """The text of the summary so far."""
        return self.known[1].text if self.known else ""

    def sizes(self, counter: TokenCounter) -> list[int]:
        """Tokens of each message of the body."""
        size, offset = Sizes(self.source, counter), len(self.source) - len(self.body)
        return [size(offset + i) for i in range(len(self.body))]

    def point(self, length: int) -> tuple[Position | None, str]:
        """Names the point after the first `length` messages of the body."""
        if self.native and isinstance(self.source, HistoryMessages):
            position = self.source.position(len(self.source) - len(self.body) + length - 1)
            return position, hashlib.sha256(repr(tuple(position)).encode("utf-8", "surrogatepass")).hexdigest()
        n = len(self.covered) + length
        return None, chain_digests([*self.covered, *self.body[:length]], [n])[n]

    def expiry(self, length: int) -> datetime | None:
        """When the first of what is covered then expires."""
        dates = [self.known[1].expires_at] if self.known else []
        if self.native and isinstance(self.source, HistoryMessages):
            offset = len(self.source) - len(self.body)
            dates += [turn.expires_at for turn in self.source.turns[offset : offset + length]]
        return min((date for date in dates if date), default=None)


def read_conversation(messages: list[BaseMessage], config: RunnableConfig, store: SummaryStore) -> Flow[Conversation]:
    """What of the messages a stored summary covers."""
    place = place_of(config)
    if isinstance(messages, HistoryMessages) and messages.window is not None:
        return (yield from _read_native(messages, messages.window, place, store))
    lead = lead_length(messages)
    body = messages[lead:]
    if not place.session_id and body:  # known only by how it begins
        place = place._replace(root=chain_digests(body, [1])[1][:24] + "/")
    found = yield from store.find(place, "list")
    digests = chain_digests(body, [record.covered for _, record in found])
    known = next(((k, r) for k, r in found if digests.get(r.covered) == r.digest), None)
    n = known[1].covered if known else 0
    return Conversation(place, messages[:lead], known, body[n:], body[:n], messages)


def _read_native(messages: HistoryMessages, window: Window, place: Place, store: SummaryStore) -> Flow[Conversation]:
    if window.after is not None:
        known: Known = window.summary
        system: list[BaseMessage] = [SystemMessage(text) for text in known[1].lead]
        return Conversation(place, system, known, messages, [], messages, native=True)
    if window.summary is not None:  # cleared or expired since: what belongs to another epoch is of no use to anybody
        yield from store.delete_all(place.prefix, but=f"{place.prefix}list/")
    lead = lead_length(messages)
    complete = window.max_messages is None and window.max_tokens is None
    return Conversation(place, messages[:lead], None, messages[lead:], [], messages, native=True, complete=complete)
