"""What is summarized and what is not, in a history of ours and in any other list."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig

from langchain_memkit.base import HistoryMessages, Position, TokenCounter, Window, check_id
from langchain_memkit.messages.cuts import lead_length
from langchain_memkit.preprocessors.budget import Sizes
from langchain_memkit.preprocessors.prompt import summary_message
from langchain_memkit.preprocessors.records import Known, Place, SummaryStore, chain_digests

__all__ = ["Conversation", "catch_up", "place_of", "read_conversation"]

logger = logging.getLogger("langchain_memkit")


def place_of(config: RunnableConfig | None) -> Place:
    """Whose conversation: the ids of the history that the turn has, else those of the config.

    Raises:
        TypeError: An id is no string: taken for none, it would mix users.
        ValueError: An id is malformed.
    """
    configurable = (config or {}).get("configurable") or {}
    history = configurable.get("message_history")
    session_id = getattr(history, "session_id", None) or configurable.get("session_id", configurable.get("thread_id"))
    user_id = getattr(history, "user_id", None) or configurable.get("user_id")
    return Place(
        "" if user_id is None else check_id(user_id, "user_id"),
        "" if session_id is None else check_id(session_id, "session_id"),
    )


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

    @property
    def reach(self) -> int:
        """How many messages the summary stands for."""
        return self.known[1].covered if self.known else 0

    def head(self) -> list[BaseMessage]:
        """What stands before the body: system lines, the summary, and the task of a turn whose beginning is covered."""
        summary = [summary_message(self.known[1].text, self.known[1].digest)] if self.known else []
        task: list[BaseMessage] = []
        if self.body and not any(isinstance(m, HumanMessage) for m in self.body):
            newest = (m for m in reversed(self.covered) if isinstance(m, HumanMessage))
            task = [m for m in [next(newest, None)] if m is not None]
        return [*self.lead, *summary, *task]

    def advanced(self, known: Known | None, length: int) -> Conversation:
        """The same after the first `length` messages of the body were summarized."""
        covered = [*self.covered, *self.body[:length]]
        return replace(self, known=known, covered=covered, body=self.body[length:])

    def sizes(self, counter: TokenCounter) -> list[int]:
        """Tokens of each message of the body."""
        size, offset = Sizes(self.source, counter), len(self.source) - len(self.body)
        return [size(offset + i) for i in range(len(self.body))]

    def points(self, lengths: Sequence[int]) -> dict[int, tuple[Position | None, str]]:
        """Names the points after the first so many messages of the body."""
        if self.native and isinstance(self.source, HistoryMessages):
            offset = len(self.source) - len(self.body) - 1
            positions = {n: self.source.position(offset + n) for n in lengths}
            return {n: (p, hashlib.sha256(repr(tuple(p)).encode()).hexdigest()) for n, p in positions.items()}
        before = len(self.covered)
        digests = chain_digests([*self.covered, *self.body], [before + n for n in lengths])
        return {n: (None, digests[before + n]) for n in lengths}

    def expiry(self, known: Known | None, begin: int, end: int) -> datetime | None:
        """When the first of what a summary made of `known` and these messages of the body stands for expires."""
        dates = [known[1].expires_at] if known else []
        if self.native and isinstance(self.source, HistoryMessages):
            offset = len(self.source) - len(self.body)
            dates += [turn.expires_at for turn in self.source.turns[offset + begin : offset + end]]
        return min((date for date in dates if date), default=None)


async def read_conversation(messages: list[BaseMessage], place: Place, store: SummaryStore) -> Conversation:
    """What of the messages a stored summary covers."""
    if isinstance(messages, HistoryMessages) and messages.window is not None and place.session_id:
        return await _read_native(messages, messages.window, place, store)
    if not all(isinstance(m, BaseMessage) for m in messages):
        messages = convert_to_messages(messages)
    lead = lead_length(messages)
    body = messages[lead:]
    if not place.session_id and body:  # known only by how it begins
        place = place._replace(root=chain_digests(body, [1])[1][:24] + "/")
    known = await store.matching(place, body)
    n = known[1].covered if known else 0
    return Conversation(place, messages[:lead], known, body[n:], body[:n], messages)


async def _read_native(messages: HistoryMessages, window: Window, place: Place, store: SummaryStore) -> Conversation:
    if window.after is not None:
        known: Known = window.summary
        system: list[BaseMessage] = [SystemMessage(text) for text in known[1].lead]
        return Conversation(place, system, known, messages, [], messages, native=True)
    if window.summary is not None:  # cleared or expired since: what belongs to another epoch is of no use to anybody
        await store.delete_all(place.prefix)
    # a record keeps the lead as text, so it is system lines alone: nothing else may come back as one
    lead = next((i for i, m in enumerate(messages) if not isinstance(m, SystemMessage)), len(messages))
    complete = window.max_messages is None and window.max_tokens is None
    return Conversation(place, messages[:lead], None, messages[lead:], [], messages, native=True, complete=complete)


async def catch_up(talk: Conversation, store: SummaryStore) -> Conversation:
    """With what others have summarized since the conversation was read, or that would be summarized twice."""
    said = [*talk.covered, *talk.body]
    try:
        known = await (store.latest(talk.place) if talk.native else store.matching(talk.place, said))
    except Exception as error:  # noqa: BLE001  # any store; at worst something is summarized twice
        logger.warning("summaries cannot be read again: %s", type(error).__name__)
        return talk
    n = known[1].covered - talk.reach if known else 0
    if known and 0 < n <= len(talk.body) and talk.points([n])[n][1] == known[1].digest:
        return talk.advanced(known, n)
    return talk
