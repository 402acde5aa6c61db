"""Summaries as they are stored: one immutable record for each point up to which a conversation was summarized.

A record says up to where it reaches: in a history of ours by position and epoch, in any other list by the chained hash
of the messages, so that equal keys mean equal text. The reader takes the record that reaches furthest, so racing
workers need no lock: either record is true.
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
LOOKED_AT = 32  # records: those of a newer version, or damaged ones, may reach furthest
MOST = 8  # records of a session: two are in use, others are left by racing workers and edited lists


@dataclass(frozen=True, slots=True)
class SummaryRecord:
    """A summary of everything up to a point.

    Attributes:
        text: The summary.
        covered: How many messages it stands for, from the beginning.
        digest: Names the point: hash of the position, or of all covered messages.
        position: The last covered message, in a history of ours.
        tokens: Of the text.
        model: That wrote it.
        created_at: When.
        expires_at: When the first of what it covers expires, and the summary with it.
        sources: How many messages were added to the summary before, their first and last id, and the key of that.
        lead: System lines in front of the conversation, which stay in front.
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
        """Plain data, as a store takes it."""
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
        """The record, or None for what is damaged or of a newer version."""
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
    """Whose records: of a session, or of a conversation known only by how it begins."""

    user_id: str
    session_id: str
    root: str = ""

    @property
    def prefix(self) -> str:
        """What the keys begin with."""
        return f"{user_prefix(self.user_id)}summary/{quote(self.session_id, safe='')}/{self.root}"

    @property
    def list_prefix(self) -> str:
        """What the keys begin with where positions are hashes."""
        return f"{self.prefix}list/"


def key_of(place: Place, record: SummaryRecord) -> str:
    """Epoch (or `list`), how far it reaches, and where: the order of keys is the order of reach."""
    kind = str(record.position.epoch) if record.position else "list"
    return f"{place.prefix}{kind}/{record.covered:012d}-{record.digest[:24]}"


def reach_of(key: str) -> str:
    """The end of a key, which sorts by reach."""
    return key.rpartition("/")[2]


class SummaryStore:
    """Summaries in any key-value store of LangChain's."""

    def __init__(self, store: BaseStore[str, dict[str, Any]], now: Now) -> None:
        self._store = store
        self._now = now

    async def latest(self, place: Place) -> Known | None:
        """Of a history of ours: the record that reaches furthest."""
        keys = [key for key in await self._keys(place.prefix) if not key.startswith(place.list_prefix)]
        return await self._first(sorted(keys, key=reach_of, reverse=True)[:LOOKED_AT], {})

    async def matching(self, place: Place, messages: Sequence[BaseMessage]) -> Known | None:
        """Of any other list: the record that reaches furthest of those that it begins with."""
        keys = await self._keys(place.list_prefix)
        reach = {key: int(n) for key in keys if (n := reach_of(key).partition("-")[0]).isdecimal()}
        digests = chain_digests(messages, reach.values())
        # the key tells whether a record may fit, so that others that begin alike are never read
        fitting = [key for key, n in reach.items() if n in digests and reach_of(key).endswith(digests[n][:24])]
        return await self._first(sorted(fitting, key=reach_of, reverse=True)[:LOOKED_AT], digests)

    async def _first(self, keys: Sequence[str], digests: dict[int, str]) -> Known | None:
        """The first valid record among these; expired ones go."""
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
        """Stores a record. The one that it was made from stays, for a reader who is on it; older ones go."""
        key = key_of(place, record)
        if previous is not None and previous[0] != key:
            record = replace(record, sources={**record.sources, "previous": previous[0]})
        pair = [(key, record.to_dict())]
        await Step(lambda: self._store.mset(pair), lambda: self._store.amset(pair))
        if previous is not None and (old := previous[1].sources.get("previous")) and old != key:
            await self.delete([str(old)])
        if place.session_id:
            await self._tidy(place.prefix)
        return key, record

    async def _tidy(self, prefix: str) -> None:
        """Removes what racing workers and lists that were edited have left behind, the oldest first."""
        keys = await self._keys(prefix)
        if len(keys) <= MOST:
            return
        values = await Step(lambda: self._store.mget(keys), lambda: self._store.amget(keys))
        found = [(key, SummaryRecord.from_dict(value)) for key, value in zip(keys, values, strict=True)]
        mine = sorted((record.created_at, key) for key, record in found if record is not None)
        await self.delete([key for _, key in mine[:-MOST]])

    async def delete(self, keys: Sequence[str]) -> None:
        """Removes records."""
        if keys:
            await Step(lambda: self._store.mdelete(keys), lambda: self._store.amdelete(keys))

    async def delete_all(self, prefix: str) -> int:
        """Removes the records under a prefix; returns how many."""
        keys = await self._keys(prefix)
        await self.delete(keys)
        return len(keys)

    async def _keys(self, prefix: str) -> list[str]:
        async def collect() -> list[str]:
            return [key async for key in self._store.ayield_keys(prefix=prefix)]

        return await Step(lambda: list(self._store.yield_keys(prefix=prefix)), collect)


def chain_digests(messages: Sequence[BaseMessage], lengths: Iterable[int]) -> dict[int, str]:
    """Hashes of the first n messages for each n: role, content and tool calls, each chained to what came before.

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
        return f"{role}:{message.content}".encode("utf-8", "surrogatepass")  # a fifth of the time of what follows
    said = [role, message.content, calls, getattr(message, "tool_call_id", None)]
    try:
        text = json.dumps(said, ensure_ascii=False, sort_keys=True, default=str)
    except (TypeError, ValueError):  # keys of several types, values that hold themselves
        text = repr(said)
    return text.encode("utf-8", "surrogatepass")
