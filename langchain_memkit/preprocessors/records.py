"""Store of summaries: one immutable record for each point up to which a conversation was summarized.

A record names the point that it reaches: by position and epoch in a memkit history, by the chained hash of all covered
messages in any other list, so that equal keys mean equal text. Readers take the record that reaches furthest.
Concurrent writers therefore need no lock: each of their records is correct.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote

from langchain_core.messages import BaseMessage
from langchain_core.stores import BaseStore

from langchain_memkit._sync import Step
from langchain_memkit.base import Now, Position, user_prefix

__all__ = ["Known", "Place", "SummaryRecord", "SummaryStore", "chain_digests"]

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
                data["text"],
                int(data["covered"]),
                str(data["digest"]),
                _position(data["position"]),
                int(data["tokens"]),
                str(data["model"]),
                _moment(data["createdAt"]),
                _moment(data["expiresAt"]) if data["expiresAt"] else None,
                dict(data["sources"]),
                tuple(map(str, data["lead"])),
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


class Place(NamedTuple):
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


def key_of(place: Place, record: SummaryRecord) -> str:
    """Build the key of a record: epoch (or `list`), number of covered messages (by which keys sort), digest."""
    kind = str(record.position.epoch) if record.position else "list"
    return f"{place.prefix}{kind}/{record.covered:012d}-{record.digest[:24]}"


def reach_of(key: str) -> str:
    """Return the last part of a key, which sorts by the number of covered messages."""
    return key.rpartition("/")[2]


class SummaryStore:
    """Summaries in any LangChain key-value store."""

    def __init__(self, store: BaseStore[str, dict[str, Any]], now: Now) -> None:
        self._store = store
        self._now = now

    async def latest(self, place: Place) -> Known | None:
        """Return the record that reaches furthest in a memkit history, or None."""
        keys = [key for key in await self._keys(place.prefix) if not key.startswith(place.list_prefix)]
        return await self._first(sorted(keys, key=reach_of, reverse=True)[:LOOKED_AT], {})

    async def matching(self, place: Place, messages: Sequence[BaseMessage]) -> Known | None:
        """Return the record that covers the longest prefix of a list of messages, or None."""
        keys = await self._keys(place.list_prefix)
        reach = {key: int(n) for key in keys if (n := reach_of(key).partition("-")[0]).isdecimal()}
        digests = chain_digests(messages, reach.values())
        # The key holds the digest's beginning, so records of other conversations that begin alike are never read.
        fitting = [key for key, n in reach.items() if n in digests and reach_of(key).endswith(digests[n][:24])]
        return await self._first(sorted(fitting, key=reach_of, reverse=True)[:LOOKED_AT], digests)

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

    async def add(self, place: Place, record: SummaryRecord, previous: Known | None) -> Known:
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


def chain_digests(messages: Sequence[BaseMessage], lengths: Iterable[int]) -> dict[int, str]:
    """Hash the first n messages for each n in `lengths`: role, content and tool calls, chained in order.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> talk = [HumanMessage("a"), AIMessage("b")]
        >>> chain_digests(talk, [1])[1] == chain_digests(talk[:1], [1])[1]
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
