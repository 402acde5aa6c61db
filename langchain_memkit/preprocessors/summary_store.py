"""Summaries of a conversation: what they cover, where they are kept."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langchain_core.stores import BaseStore

from langchain_memkit._sync import Step
from langchain_memkit.base import HistoryMessages, Now, Position, TokenCounter, Window, check_id, user_prefix
from langchain_memkit.messages.trimming import leading_system_count
from langchain_memkit.preprocessors.budget import TokenSizes
from langchain_memkit.preprocessors.prompt import summary_message

__all__ = [
    "Known",
    "SummarizedConversation",
    "SummaryKey",
    "SummaryRecord",
    "SummaryStore",
    "prefix_hashes",
    "read_conversation",
    "refresh",
    "summary_key_of",
]

logger = logging.getLogger("langchain_memkit")


def summary_key_of(config: RunnableConfig | None) -> SummaryKey:
    """Return the ids of the conversation: those of the turn's history, else those of the config.

    Raises:
        TypeError: An id is not a string. Treating it as absent would mix users.
        ValueError: An id is malformed.
    """
    configurable = (config or {}).get("configurable") or {}
    history = configurable.get("message_history")
    session_id = getattr(history, "session_id", None) or configurable.get("session_id", configurable.get("thread_id"))
    user_id = getattr(history, "user_id", None) or configurable.get("user_id")
    return SummaryKey(
        "" if user_id is None else check_id(user_id, "user_id"),
        "" if session_id is None else check_id(session_id, "session_id"),
    )


@dataclass(frozen=True, slots=True)
class SummarizedConversation:
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

    place: SummaryKey
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

    def advanced(self, known: Known | None, length: int) -> SummarizedConversation:
        """Return a copy in which the first `length` messages of the body are covered by the summary `known`."""
        covered = [*self.covered, *self.body[:length]]
        return replace(self, known=known, covered=covered, body=self.body[length:])

    def sizes(self, counter: TokenCounter) -> list[int]:
        """Return the token count of each message of the body."""
        size, offset = TokenSizes(self.source, counter), len(self.source) - len(self.body)
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
        digests = prefix_hashes([*self.covered, *self.body], [before + n for n in lengths])
        return {n: (None, digests[before + n]) for n in lengths}

    def expiry(self, known: Known | None, begin: int, end: int) -> datetime | None:
        """Return when a summary of `known` and `body[begin:end]` expires: with the first of the turns it covers."""
        dates = [known[1].expires_at] if known else []
        if self.native and isinstance(self.source, HistoryMessages):
            offset = len(self.source) - len(self.body)
            dates += [turn.expires_at for turn in self.source.turns[offset + begin : offset + end]]
        return min((date for date in dates if date), default=None)


async def read_conversation(
    messages: list[BaseMessage], place: SummaryKey, store: SummaryStore
) -> SummarizedConversation:
    """Find the stored summary that covers most of the messages, and split them at its end."""
    if isinstance(messages, HistoryMessages) and messages.window is not None and place.session_id:
        return await _read_native(messages, messages.window, place, store)
    if not all(isinstance(m, BaseMessage) for m in messages):
        messages = convert_to_messages(messages)
    lead = leading_system_count(messages)
    body = messages[lead:]
    if not place.session_id and body:  # without an id, the hash of its first message identifies the conversation
        place = place._replace(root=prefix_hashes(body, [1])[1][:24] + "/")
    known = await store.matching(place, body)
    n = known[1].covered if known else 0
    return SummarizedConversation(place, messages[:lead], known, body[n:], body[:n], messages)


async def _read_native(
    messages: HistoryMessages, window: Window, place: SummaryKey, store: SummaryStore
) -> SummarizedConversation:
    if window.after is not None:
        known: Known = window.summary
        system: list[BaseMessage] = [SystemMessage(text) for text in known[1].lead]
        return SummarizedConversation(place, system, known, messages, [], messages, native=True)
    # The window asked for the messages after a summary, but the history returned all: the session was cleared, or
    # expired, since. Its summaries belong to another epoch and must not be used again.
    if window.summary is not None:
        await store.delete_all(place.prefix)
    # A record keeps the lead as plain text, which comes back as system messages: so only these may be in it.
    lead = next((i for i, m in enumerate(messages) if not isinstance(m, SystemMessage)), len(messages))
    complete = window.max_messages is None and window.max_tokens is None
    return SummarizedConversation(
        place, messages[:lead], None, messages[lead:], [], messages, native=True, complete=complete
    )


async def refresh(talk: SummarizedConversation, store: SummaryStore) -> SummarizedConversation:
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


VERSION = 1
LOOKED_AT = 32  # records read by a lookup: the furthest ones may be damaged, or of a newer version
MOST = 8  # records kept per session: two are in use, others are left by concurrent writers and edited lists


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A summary of a conversation up to a point.

    Attributes:
        text: The summary.
        covered: Number of messages that it covers, from the beginning.
        digest: Identifies the point: hash of the position, or of all covered messages.
        position: Position of the last covered message in a memkit history; None for other lists.
        tokens: Token count of the text.
        model: Name of the model that wrote it.
        created_at: When it was written.
        expires_at: When it expires: with the first of the turns that it covers; None for never.
        sources: What it was made from: the number of messages added to the previous summary (`messages`), their first
            and last id (`first_id`, `last_id`), and the key of that summary (`previous`).
        lead: Texts of the leading system messages, which stay in front of the summary.
    """

    text: str
    covered: int
    digest: str
    position: Position | None
    tokens: int
    model: str
    created_at: datetime
    expires_at: datetime | None = None
    sources: dict[str, Any] = field(default_factory=dict)
    lead: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for a key-value store."""
        return {
            "v": VERSION,
            "text": self.text,
            "covered": self.covered,
            "digest": self.digest,
            "position": self.position._asdict() if self.position else None,
            "tokens": self.tokens,
            "model": self.model,
            "createdAt": self.created_at.isoformat(),
            "expiresAt": self.expires_at.isoformat() if self.expires_at else None,
            "sources": self.sources,
            "lead": list(self.lead),
        }

    @classmethod
    def from_dict(cls, data: Any) -> SummaryRecord | None:
        """Restore a record; None if it is damaged or of another version."""
        try:
            if data["v"] != VERSION or not isinstance(data["text"], str):
                return None
            return cls(
                text=data["text"],
                covered=int(data["covered"]),
                digest=str(data["digest"]),
                position=_position(data["position"]),
                tokens=int(data["tokens"]),
                model=str(data["model"]),
                created_at=_moment(data["createdAt"]),
                expires_at=_moment(data["expiresAt"]) if data["expiresAt"] else None,
                sources=dict(data["sources"]),
                lead=tuple(map(str, data["lead"])),
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


Known: TypeAlias = tuple[str, SummaryRecord]
"""A record with its key."""


def _position(data: Any) -> Position | None:
    if data is None:
        return None
    found = Position(**data)
    if not (type(found.epoch) is type(found.seq) is int and isinstance(found.op, str)):
        msg = "no position"
        raise TypeError(msg)
    return found


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


class SummaryKey(NamedTuple):
    """Owner of summary records: a session or, without a session id, a conversation identified by its beginning.

    Attributes:
        user_id: The user; empty for none.
        session_id: The session; empty for none.
        root: Hash of the conversation's first message and a slash, where there is no session id; else empty.
    """

    user_id: str
    session_id: str
    root: str = ""

    @property
    def prefix(self) -> str:
        """Prefix of all keys."""
        return f"{user_prefix(self.user_id)}summary/{quote(self.session_id, safe='')}/{self.root}"

    @property
    def list_prefix(self) -> str:
        """Prefix of the keys of records without a position, which belong to lists that are not memkit histories."""
        return f"{self.prefix}list/"


def key_of(place: SummaryKey, record: SummaryRecord) -> str:
    """Build the key of a record: epoch (or `list`), number of covered messages (by which keys sort), digest."""
    kind = str(record.position.epoch) if record.position else "list"
    return f"{place.prefix}{kind}/{record.covered:012d}-{record.digest[:24]}"


def covered_end(key: str) -> str:
    """Return the last part of a key, which sorts by the number of covered messages."""
    return key.rpartition("/")[2]


class SummaryStore:
    """Summaries in any LangChain key-value store."""

    def __init__(self, store: BaseStore[str, dict[str, Any]], now: Now) -> None:
        self._store = store
        self._now = now

    async def latest(self, place: SummaryKey) -> Known | None:
        """Return the record that reaches furthest in a memkit history, or None."""
        keys = [key for key in await self._keys(place.prefix) if not key.startswith(place.list_prefix)]
        return await self._first(sorted(keys, key=covered_end, reverse=True)[:LOOKED_AT], {})

    async def matching(self, place: SummaryKey, messages: Sequence[BaseMessage]) -> Known | None:
        """Return the record that covers the longest prefix of a list of messages, or None."""
        keys = await self._keys(place.list_prefix)
        reach = {key: int(n) for key in keys if (n := covered_end(key).partition("-")[0]).isdecimal()}
        digests = prefix_hashes(messages, reach.values())
        # The key holds the digest's beginning, so records of other conversations that begin alike are never read.
        fitting = [key for key, n in reach.items() if n in digests and covered_end(key).endswith(digests[n][:24])]
        return await self._first(sorted(fitting, key=covered_end, reverse=True)[:LOOKED_AT], digests)

    async def _first(self, keys: Sequence[str], digests: dict[int, str]) -> Known | None:
        """Return the first valid record among these keys, and delete the expired ones."""
        if not keys:
            return None
        values = await Step(lambda: self._store.mget(keys), lambda: self._store.amget(keys))
        read = [(key, SummaryRecord.from_dict(value)) for key, value in zip(keys, values, strict=True)]
        found = [(key, record) for key, record in read if record is not None]
        now = self._now()
        expired = [key for key, record in found if record.expires_at and record.expires_at <= now]
        await self.delete(expired)
        for key, record in found:
            if key not in expired and (record.position or digests.get(record.covered) == record.digest):
                return key, record
        return None

    async def add(self, place: SummaryKey, record: SummaryRecord, previous: Known | None) -> Known:
        """Store a record and delete the one before the previous.

        The previous record, from which this one was made, stays for turns that have read it already.

        Args:
            place: User and session.
            record: The new record.
            previous: The record that it was made from, with its key.

        Returns:
            The record as stored, with its key.
        """
        key = key_of(place, record)
        if previous is not None and previous[0] != key:
            record = replace(record, sources={**record.sources, "previous": previous[0]})
        pair = [(key, record.to_dict())]
        await Step(lambda: self._store.mset(pair), lambda: self._store.amset(pair))
        if previous is not None and (old := previous[1].sources.get("previous")) and old != key:
            await self.delete([str(old)])
        # Without a session id, conversations that begin alike share the prefix: a limit would delete others' records.
        if place.session_id:
            await self._tidy(place.prefix)
        return key, record

    async def _tidy(self, prefix: str) -> None:
        """Delete the oldest records over `MOST`, which concurrent writers and edited lists leave behind."""
        keys = await self._keys(prefix)
        if len(keys) <= MOST:
            return
        values = await Step(lambda: self._store.mget(keys), lambda: self._store.amget(keys))
        found = [(key, SummaryRecord.from_dict(value)) for key, value in zip(keys, values, strict=True)]
        mine = sorted((record.created_at, key) for key, record in found if record is not None)
        await self.delete([key for _, key in mine[:-MOST]])

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete the records with these keys."""
        if keys:
            await Step(lambda: self._store.mdelete(keys), lambda: self._store.amdelete(keys))

    async def delete_all(self, prefix: str) -> int:
        """Delete all records under a key prefix; return how many."""
        keys = await self._keys(prefix)
        await self.delete(keys)
        return len(keys)

    async def _keys(self, prefix: str) -> list[str]:
        async def collect() -> list[str]:
            return [key async for key in self._store.ayield_keys(prefix=prefix)]

        return await Step(lambda: list(self._store.yield_keys(prefix=prefix)), collect)


def prefix_hashes(messages: Sequence[BaseMessage], lengths: Iterable[int]) -> dict[int, str]:
    """Hash the first n messages for each n in `lengths`: role, content and tool calls, chained in order.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> talk = [HumanMessage("a"), AIMessage("b")]
        >>> prefix_hashes(talk, [1])[1] == prefix_hashes(talk[:1], [1])[1]
        True
    """
    wanted = {n for n in lengths if 0 <= n <= len(messages)}
    digests: dict[int, str] = {}
    running = hashlib.sha256()
    for n in range(max(wanted, default=0) + 1):
        if n:
            data = _said(messages[n - 1])
            running.update(len(data).to_bytes(8, "big") + data)
        if n in wanted:
            digests[n] = running.hexdigest()
    return digests


def _said(message: BaseMessage) -> bytes:
    role = message.type.removesuffix("MessageChunk").lower()
    calls = [[c["name"], c["args"]] for c in getattr(message, "tool_calls", ())]
    if role in ("human", "ai", "system") and not calls and isinstance(message.content, str):
        return f"{role}:{message.content}".encode("utf-8", "surrogatepass")  # fast path: a fifth of the time of JSON
    said = [role, message.content, calls, getattr(message, "tool_call_id", None)]
    try:
        text = json.dumps(said, ensure_ascii=False, sort_keys=True, default=str)
    except (TypeError, ValueError):  # keys of several types, values that hold themselves
        text = repr(said)
    return text.encode("utf-8", "surrogatepass")
