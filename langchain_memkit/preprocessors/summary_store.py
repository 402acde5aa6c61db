"""Summaries of a conversation: where they are kept, what they cover."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._sync import dry_run
from langchain_memkit.base import HistoryMessages, Now, Position, TokenCounter, check_id, user_prefix
from langchain_memkit.errors import logger
from langchain_memkit.messages.trimming import leading_system_count
from langchain_memkit.preprocessors.budget import token_sizes
from langchain_memkit.preprocessors.prompt import summary_message
from langchain_memkit.stores.in_memory import DictStore, delete_keys, list_keys, read_values, write_values

VERSION = 1
LOOKED_AT = 32  # records read by a lookup: the furthest ones may be damaged, or of a newer version
MOST = 8  # records kept per session: two are in use, others are left by concurrent writers and edited lists


class SummaryKey(NamedTuple):
    """Owner of summary records: a session or, without a session id, a conversation identified by its beginning."""

    user_id: str  # empty for none
    session_id: str  # empty for none
    root: str = ""  # hash of the conversation's first message and a slash, where there is no session id

    @classmethod
    def of(cls, config: RunnableConfig | None) -> SummaryKey:
        """Take the ids of the turn's history, else those of the config; a malformed one is refused, never ignored."""
        configurable = (config or {}).get("configurable") or {}
        history = configurable.get("message_history")
        named = configurable.get("session_id", configurable.get("thread_id"))
        session_id = getattr(history, "session_id", None) or named
        user_id = getattr(history, "user_id", None) or configurable.get("user_id")
        ids = {"user_id": user_id, "session_id": session_id}
        return cls(*("" if given is None else check_id(given, name) for name, given in ids.items()))

    @property
    def prefix(self) -> str:
        """Prefix of all keys."""
        return f"{user_prefix(self.user_id)}summary/{quote(self.session_id, safe='')}/{self.root}"


# Fields of a record that are stored as they are, with their types.
PLAIN: dict[str, type] = {"text": str, "covered": int, "digest": str, "tokens": int, "model": str, "sources": dict}


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A summary of a conversation up to a point."""

    text: str
    covered: int  # messages that it covers, from the beginning
    digest: str  # identifies the point: hash of the position, or of all covered messages
    position: Position | None  # of the last covered message in a memkit history; None for other lists
    tokens: int
    model: str  # name of the model that wrote it
    created_at: datetime
    expires_at: datetime | None = None  # with the first of the turns that it covers
    # Number of messages added to the previous summary, their first and last id, the key of that summary (`previous`).
    sources: dict[str, object] = field(default_factory=dict)
    lead: tuple[str, ...] = ()  # texts of the leading system messages, which stay in front of the summary
    key: str = field(default="", compare=False)  # in the store, not part of it; empty if it could not be stored

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for a key-value store."""
        return {name: getattr(self, name) for name in PLAIN} | {
            "v": VERSION,
            "position": self.position._asdict() if self.position else None,
            "createdAt": self.created_at.isoformat(),
            "expiresAt": self.expires_at.isoformat() if self.expires_at else None,
            "lead": list(self.lead),
        }

    @classmethod
    def from_dict(cls, data: Any, key: str = "") -> SummaryRecord | None:
        """Restore a record; None if it is damaged or of another version."""
        with suppress(KeyError, TypeError, ValueError, OverflowError):
            at = Position(**data["position"]) if data["position"] is not None else None
            is_sound = at is None or (type(at.epoch) is type(at.seq) is int and isinstance(at.op, str))
            if is_sound and data["v"] == VERSION and isinstance(data["text"], str):
                plain: dict[str, Any] = {name: kind(data[name]) for name, kind in PLAIN.items()}
                created_at = datetime.fromisoformat(data["createdAt"])
                expires_at = datetime.fromisoformat(data["expiresAt"]) if data["expiresAt"] else None
                lead = tuple(map(str, data["lead"]))
                return cls(**plain, position=at, created_at=created_at, expires_at=expires_at, lead=lead, key=key)
        return None


def covered_end(key: str) -> str:
    """Return the last part of a key, which sorts by the number of covered messages."""
    return key.rpartition("/")[2]


class SummaryStore:
    """Summaries in any LangChain key-value store."""

    def __init__(self, store: DictStore, now: Now) -> None:
        self._store = store
        self._now = now

    async def latest(self, place: SummaryKey) -> SummaryRecord | None:
        """Return the record that reaches furthest in a memkit history, or None."""
        keys = [key for key in await list_keys(self._store, place.prefix) if not key.startswith(f"{place.prefix}list/")]
        return await self._first(keys, {})

    async def matching(self, place: SummaryKey, messages: Sequence[BaseMessage]) -> SummaryRecord | None:
        """Return the record that covers the longest prefix of a list of messages, or None."""
        keys = await list_keys(self._store, f"{place.prefix}list/")  # of other lists, without positions
        reach = {key: int(n) for key in keys if (n := covered_end(key).partition("-")[0]).isdecimal()}
        digests = prefix_hashes(messages, reach.values())
        # The key holds the digest's beginning, so records of other conversations that begin alike are never read.
        fitting = [key for key, n in reach.items() if n in digests and covered_end(key).endswith(digests[n][:24])]
        return await self._first(fitting, digests)

    async def _first(self, keys: list[str], digests: dict[int, str]) -> SummaryRecord | None:
        """Return the valid record among these keys that reaches furthest, and delete the expired ones."""
        found = await self._read(sorted(keys, key=covered_end, reverse=True)[:LOOKED_AT])
        now = self._now()
        expired = {record.key for record in found if record.expires_at and record.expires_at <= now}
        await self._delete(list(expired))
        fitting = (r for r in found if r.key not in expired and (r.position or digests.get(r.covered) == r.digest))
        return next(fitting, None)

    async def read(self, messages: list[BaseMessage], place: SummaryKey) -> SummarizedConversation:
        """Find the stored summary that covers most of the messages, and split them at its end."""
        window = messages.window if isinstance(messages, HistoryMessages) and place.session_id else None
        if window is None:
            lead = leading_system_count(messages)
            body = messages[lead:]
            # Without a session id, the hash of its first message identifies the conversation.
            if not place.session_id and body:
                place = place._replace(root=prefix_hashes(body, [1])[1][:24] + "/")
            known = await self.matching(place, body)
            n = known.covered if known else 0
            return SummarizedConversation(place, messages[:lead], known, body[n:], body[:n], messages)
        if window.after is not None:
            known = window.summary
            system: list[BaseMessage] = [SystemMessage(text) for text in window.summary.lead]
            return SummarizedConversation(place, system, known, messages, [], messages, native=True)
        # The window asked for the messages after a summary, but the history returned all: the session was cleared, or
        # expired, since. Its summaries belong to another epoch and must not be used again.
        if window.summary is not None:
            await self.delete_all(place.prefix)
        # A record keeps the lead as plain text, which comes back as system messages: so only these may be in it.
        lead = next((i for i, m in enumerate(messages) if not isinstance(m, SystemMessage)), len(messages))
        all_of_it = window.max_messages is None and window.max_tokens is None
        head, body = messages[:lead], messages[lead:]
        return SummarizedConversation(place, head, None, body, [], messages, native=True, complete=all_of_it)

    async def refresh(self, talk: SummarizedConversation) -> SummarizedConversation:
        """Apply a summary that was stored since the conversation was read, so that nothing is summarized twice."""
        try:
            said = [*talk.covered, *talk.body]
            known = await (self.latest(talk.place) if talk.native else self.matching(talk.place, said))
        except Exception as error:  # noqa: BLE001  # any store; at worst something is summarized twice
            logger.warning("summaries cannot be read again: %s", type(error).__name__)
            return talk
        n = known.covered - talk.reach if known else 0
        # Accept it only if it ends within the body at the very same point: another digest is another conversation.
        if known and 0 < n <= len(talk.body) and talk.points([n])[n][1] == known.digest:
            return talk.advanced(known, n)
        return talk

    async def add(self, place: SummaryKey, record: SummaryRecord, previous: SummaryRecord | None) -> SummaryRecord:
        """Store a record, delete the one before the previous, and return the record as stored, with its key.

        The previous record, from which this one was made, stays for turns that have read it already.
        """
        kind = str(record.position.epoch) if record.position else "list"
        key = f"{place.prefix}{kind}/{record.covered:012d}-{record.digest[:24]}"
        sources = dict(record.sources)
        if previous is not None and previous.key != key:
            sources["previous"] = previous.key
        record = replace(record, sources=sources, key=key)
        if dry_run.get():
            return record
        await write_values(self._store, [(key, record.to_dict())])
        if previous is not None and (old := previous.sources.get("previous")) and old != key:
            await self._delete([str(old)])
        # Concurrent writers and edited lists leave records behind. Without a session id, conversations that begin
        # alike share the prefix: a limit would delete others' records.
        if place.session_id and len(keys := await list_keys(self._store, place.prefix)) > MOST:
            by_age = sorted((old.created_at, old.key) for old in await self._read(keys))
            await self._delete([key for _, key in by_age[:-MOST]])
        return record

    async def delete_all(self, prefix: str) -> int:
        """Delete all records under a key prefix; return how many."""
        keys = await list_keys(self._store, prefix)
        await self._delete(keys)
        return len(keys)

    async def _read(self, keys: list[str]) -> list[SummaryRecord]:
        """Return the sound records among these keys."""
        if not keys:
            return []
        values = await read_values(self._store, keys)
        found = [SummaryRecord.from_dict(value, key) for key, value in zip(keys, values, strict=True)]
        return [record for record in found if record is not None]

    async def _delete(self, keys: list[str]) -> None:
        if keys:
            await delete_keys(self._store, keys)


def prefix_hashes(messages: Sequence[BaseMessage], lengths: Iterable[int]) -> dict[int, str]:
    """Hash the first n messages for each n in `lengths`: role, content and tool calls, chained in order."""
    wanted = {n for n in lengths if 0 <= n <= len(messages)}
    running = hashlib.sha256()
    digests = {0: running.hexdigest()}
    for n, message in enumerate(messages[: max(wanted, default=0)], 1):
        data = _said(message)
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


@dataclass(frozen=True, slots=True)
class SummarizedConversation:
    """Snapshot of a conversation in one turn, split at the end of its summary."""

    place: SummaryKey  # user and session
    lead: list[BaseMessage]  # leading system messages, which are never summarized
    known: SummaryRecord | None  # the latest summary
    body: list[BaseMessage]  # the messages that it does not cover, oldest first
    covered: list[BaseMessage]  # the messages that it covers, as far as they were given
    source: Sequence[BaseMessage]  # the list that ends with `body`
    native: bool = False  # whether each message has a position in a memkit history
    complete: bool = True  # whether `body` holds all messages that are not covered

    @property
    def reach(self) -> int:
        """Number of messages that the summary covers."""
        return self.known.covered if self.known else 0

    def head(self) -> list[BaseMessage]:
        """Return the messages to show before the body: the system messages and the summary.

        If the body has no user message, because the summary covers the beginning of the newest turn, the newest covered
        one follows: else the model would not see its task.
        """
        head = [*self.lead, *([summary_message(self.known.text, self.known.digest)] if self.known else [])]
        if self.body and not any(isinstance(m, HumanMessage) for m in self.body):
            head += [m for m in self.covered if isinstance(m, HumanMessage)][-1:]
        return head

    def advanced(self, known: SummaryRecord | None, length: int) -> SummarizedConversation:
        """Return a copy in which the first `length` messages of the body are covered by the summary `known`."""
        return replace(self, known=known, covered=[*self.covered, *self.body[:length]], body=self.body[length:])

    def sizes(self, counter: TokenCounter) -> list[int]:
        """Return the token count of each message of the body."""
        return list(map(token_sizes(self.source, counter), range(len(self.source) - len(self.body), len(self.source))))

    def points(self, lengths: Sequence[int]) -> dict[int, tuple[Position | None, str]]:
        """Name the points after the first n messages of the body: by position, or the digest of all up to there."""
        if self.native and isinstance(self.source, HistoryMessages):
            offset = len(self.source) - len(self.body) - 1
            positions = {n: self.source.position(offset + n) for n in lengths}
            return {n: (p, hashlib.sha256(repr(tuple(p)).encode()).hexdigest()) for n, p in positions.items()}
        before = len(self.covered)
        digests = prefix_hashes([*self.covered, *self.body], [before + n for n in lengths])
        return {n: (None, digests[before + n]) for n in lengths}

    def expiry(self, length: int) -> datetime | None:
        """Return when a summary that covers `body[:length]` as well expires: with the first of the turns it covers."""
        dates = [self.known.expires_at] if self.known else []
        if self.native and isinstance(self.source, HistoryMessages):
            offset = len(self.source) - len(self.body)
            dates += [turn.expires_at for turn in self.source.turns[offset : offset + length]]
        return min((date for date in dates if date), default=None)
