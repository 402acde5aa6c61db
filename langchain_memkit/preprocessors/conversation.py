"""Conversations split into a summarized and an unsummarized part, in memkit histories and in any other list."""

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
    """Return the ids of the conversation: those of the turn's history, else those of the config.

    Raises:
        TypeError: An id is not a string. Treating it as absent would mix users.
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
    """Snapshot of a conversation in one turn, split at the end of its summary.

    Attributes:
        place: User and session.
        lead: Leading system messages, which are never summarized.
        known: The latest summary with its key; None if there is none.
        body: The messages that the summary does not cover, oldest first.
        covered: The messages that it covers, as far as they were given.
        source: The list that ends with `body`.
        native: Whether each message has a position in a memkit history.
        complete: Whether `body` holds all messages that are not covered.
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
        """Text of the latest summary, empty without one."""
        return self.known[1].text if self.known else ""

    @property
    def reach(self) -> int:
        """Number of messages that the summary covers."""
        return self.known[1].covered if self.known else 0

    def head(self) -> list[BaseMessage]:
        """Return the messages to show before the body: the system messages and the summary.

        If the body has no user message, because the summary covers the beginning of the newest turn, the newest covered
        one follows: else the model would not see its task.
        """
        summary = [summary_message(self.known[1].text, self.known[1].digest)] if self.known else []
        task: list[BaseMessage] = []
        if self.body and not any(isinstance(m, HumanMessage) for m in self.body):
            newest = (m for m in reversed(self.covered) if isinstance(m, HumanMessage))
            task = [m for m in [next(newest, None)] if m is not None]
        return [*self.lead, *summary, *task]

    def advanced(self, known: Known | None, length: int) -> Conversation:
        """Return a copy in which the first `length` messages of the body are covered by the summary `known`."""
        covered = [*self.covered, *self.body[:length]]
        return replace(self, known=known, covered=covered, body=self.body[length:])

    def sizes(self, counter: TokenCounter) -> list[int]:
        """Return the token count of each message of the body."""
        size, offset = Sizes(self.source, counter), len(self.source) - len(self.body)
        return [size(offset + i) for i in range(len(self.body))]

    def points(self, lengths: Sequence[int]) -> dict[int, tuple[Position | None, str]]:
        """Name the points after the first n messages of the body, for each n in `lengths`.

        Returns:
            For each n the position in a memkit history, or None, and a digest: of the position or, in any other list,
            of all messages up to there.
        """
        if self.native and isinstance(self.source, HistoryMessages):
            offset = len(self.source) - len(self.body) - 1
            positions = {n: self.source.position(offset + n) for n in lengths}
            return {n: (p, hashlib.sha256(repr(tuple(p)).encode()).hexdigest()) for n, p in positions.items()}
        before = len(self.covered)
        digests = chain_digests([*self.covered, *self.body], [before + n for n in lengths])
        return {n: (None, digests[before + n]) for n in lengths}

    def expiry(self, known: Known | None, begin: int, end: int) -> datetime | None:
        """Return when a summary of `known` and `body[begin:end]` expires: with the first of the turns it covers."""
        dates = [known[1].expires_at] if known else []
        if self.native and isinstance(self.source, HistoryMessages):
            offset = len(self.source) - len(self.body)
            dates += [turn.expires_at for turn in self.source.turns[offset + begin : offset + end]]
        return min((date for date in dates if date), default=None)


async def read_conversation(messages: list[BaseMessage], place: Place, store: SummaryStore) -> Conversation:
    """Find the stored summary that covers most of the messages, and split them at its end."""
    if isinstance(messages, HistoryMessages) and messages.window is not None and place.session_id:
        return await _read_native(messages, messages.window, place, store)
    if not all(isinstance(m, BaseMessage) for m in messages):
        messages = convert_to_messages(messages)
    lead = lead_length(messages)
    body = messages[lead:]
    if not place.session_id and body:  # without an id, the hash of its first message identifies the conversation
        place = place._replace(root=chain_digests(body, [1])[1][:24] + "/")
    known = await store.matching(place, body)
    n = known[1].covered if known else 0
    return Conversation(place, messages[:lead], known, body[n:], body[:n], messages)


async def _read_native(messages: HistoryMessages, window: Window, place: Place, store: SummaryStore) -> Conversation:
    if window.after is not None:
        known: Known = window.summary
        system: list[BaseMessage] = [SystemMessage(text) for text in known[1].lead]
        return Conversation(place, system, known, messages, [], messages, native=True)
    # The window asked for the messages after a summary, but the history returned all: the session was cleared, or
    # expired, since. Its summaries belong to another epoch and must not be used again.
    if window.summary is not None:
        await store.delete_all(place.prefix)
    # A record keeps the lead as plain text, which comes back as system messages: so only these may be in it.
    lead = next((i for i, m in enumerate(messages) if not isinstance(m, SystemMessage)), len(messages))
    complete = window.max_messages is None and window.max_tokens is None
    return Conversation(place, messages[:lead], None, messages[lead:], [], messages, native=True, complete=complete)


async def catch_up(talk: Conversation, store: SummaryStore) -> Conversation:
    """Apply a summary that was stored since the conversation was read, so that nothing is summarized twice."""
    said = [*talk.covered, *talk.body]
    try:
        known = await (store.latest(talk.place) if talk.native else store.matching(talk.place, said))
    except Exception as error:  # noqa: BLE001  # any store; at worst something is summarized twice
        logger.warning("summaries cannot be read again: %s", type(error).__name__)
        return talk
    n = known[1].covered - talk.reach if known else 0
    # Accept it only if it ends within the body at the very same point: another digest is another conversation.
    if known and 0 < n <= len(talk.body) and talk.points([n])[n][1] == known[1].digest:
        return talk.advanced(known, n)
    return talk
