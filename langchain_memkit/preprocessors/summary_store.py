"""Summaries of a conversation: where they are kept, what they cover."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote
from uuid import uuid4

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._sync import Flow, Step, dry_run
from langchain_memkit.base import HistoryMessages, Now, Position, TokenCounter, Window, check_id, user_prefix
from langchain_memkit.errors import logger
from langchain_memkit.messages.results import without_bulk
from langchain_memkit.messages.tokens import count_tokens
from langchain_memkit.messages.trimming import RESULTS, leading_system_count
from langchain_memkit.preprocessors.budget import token_sizes
from langchain_memkit.preprocessors.prompt import summary_message
from langchain_memkit.stores.history import TurnStore
from langchain_memkit.stores.history_rows import SessionScope, StoredSummary
from langchain_memkit.stores.in_memory import DictStore, delete_keys, list_keys, read_values, write_values

T = TypeVar("T")

VERSION = 1
UNFINISHED = "unfinished/"  # begin of the keys, after that of the conversation, of records that have not caught up
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
    """A summary of a conversation up to a point: from the beginning, or (`begin`, `left_out`) from a later point."""

    text: str
    covered: int  # messages up to that point, as far as they were counted; those that it leaves out as well
    digest: str  # identifies the point: hash of the position, or of all covered messages
    position: Position | None  # of the last covered message in a memkit history; None for other lists
    tokens: int
    model: str  # name of the model that wrote it
    created_at: datetime
    expires_at: datetime | None = None  # with the first of the turns that it covers
    # Number of messages added to the previous summary, their first and last id, the key of that summary (`previous`).
    sources: dict[str, object] = field(default_factory=dict)
    lead: tuple[str, ...] = ()  # texts of the leading system messages, which stay in front of the summary
    # Of a summary that leaves out messages, since a turn makes one call at most: the first message from which on it
    # leaves out none, if messages have positions; and how many were left out, as far as they were counted.
    begin: Position | None = None
    left_out: int = 0
    key: str = field(default="", compare=False)  # in the store, not part of it; empty if it could not be stored

    @property
    def is_whole(self) -> bool:
        """Whether it leaves out no messages."""
        return self.begin is None and not self.left_out

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for a store."""
        return {name: getattr(self, name) for name in PLAIN} | {
            "v": VERSION,
            "position": self.position._asdict() if self.position else None,
            "begin": self.begin._asdict() if self.begin else None,
            "leftOut": self.left_out,
            "createdAt": self.created_at.isoformat(),
            "expiresAt": self.expires_at.isoformat() if self.expires_at else None,
            "lead": list(self.lead),
        }

    @classmethod
    def from_dict(cls, data: Any, key: str = "") -> SummaryRecord | None:
        """Restore a record; None if it is damaged or of another version."""
        with suppress(AttributeError, KeyError, TypeError, ValueError, OverflowError):
            at, begin = (Position.read(data.get(name)) for name in ("position", "begin"))
            is_sound = (at is not None) == (data["position"] is not None)
            if is_sound and data["v"] == VERSION and isinstance(data["text"], str):
                plain: dict[str, Any] = {name: kind(data[name]) for name, kind in PLAIN.items()}
                # Records of memkit 0.2 leave out nothing.
                plain |= {"begin": begin, "left_out": int(data.get("leftOut", 0))}
                created_at = datetime.fromisoformat(data["createdAt"])
                expires_at = datetime.fromisoformat(data["expiresAt"]) if data["expiresAt"] else None
                lead = tuple(map(str, data["lead"]))
                return cls(**plain, position=at, created_at=created_at, expires_at=expires_at, lead=lead, key=key)
        return None


def covered_end(key: str) -> str:
    """Return the last part of a key, which sorts by the number of covered messages."""
    return key.rpartition("/")[2]


class Summaries(ABC):
    """Where summaries are kept. Each is the latest one of its conversation, or one that has not caught up yet."""

    @abstractmethod
    async def latest(self, place: SummaryKey, *, unfinished: bool = False) -> SummaryRecord | None:
        """Return the record that reaches furthest in a memkit history, or None."""

    @abstractmethod
    async def add(
        self,
        place: SummaryKey,
        record: SummaryRecord,
        previous: SummaryRecord | None,
        *,
        turns: Sequence[int] = (),
        unfinished: bool = False,
        moved: SummaryRecord | None = None,
    ) -> SummaryRecord | None:
        """Store a record in place of the previous one, and return it as stored, with its key.

        `turns` are the positions of the turns that it adds to the previous one, and `moved` is the unfinished record
        that it was. None means that the conversation was changed meanwhile, or another record has taken its place.
        """

    @abstractmethod
    async def drop(self, place: SummaryKey, record: SummaryRecord | StoredSummary | None = None) -> int:
        """Delete a record that must not be shown any more; without one, all of this conversation."""

    async def refresh(self, talk: SummarizedConversation) -> SummarizedConversation:
        """Apply a summary that was stored since the conversation was read, so that nothing is summarized twice."""
        try:
            known = await self._since(talk)
        except Exception as error:  # noqa: BLE001  # any store; at worst something is summarized twice
            logger.warning("summaries cannot be read again: %s", type(error).__name__)
            return talk
        length = talk.length_of(known) if known else 0
        return talk.advanced(known, length) if length else talk

    async def _since(self, talk: SummarizedConversation) -> SummaryRecord | None:
        return await self.latest(talk.place)


class SummariesBesideHistory(Summaries):
    """Summaries in the database of a memkit history."""

    def __init__(self, history: Any) -> None:
        self._store: TurnStore = history.turn_store
        self._scope = SessionScope(history.user_id or "", history.session_id)

    async def latest(self, place: SummaryKey, *, unfinished: bool = False) -> SummaryRecord | None:
        """Return the record of the session, or None."""
        stored = await self._step(lambda: self._store.summary(self._scope, unfinished=unfinished))
        if stored is None:
            return None
        record = record_of(stored)
        if record is None:  # damaged, or of another version: no other one could take its place
            await self.drop(place, stored)
        return record

    async def add(
        self,
        place: SummaryKey,
        record: SummaryRecord,
        previous: SummaryRecord | None,
        *,
        turns: Sequence[int] = (),
        unfinished: bool = False,
        moved: SummaryRecord | None = None,
    ) -> SummaryRecord | None:
        """Store a record, unless something came between."""
        position = record.position
        if position is None:
            return None
        record = replace(record, key=uuid4().hex)
        if dry_run.get():
            return record
        summary = StoredSummary(record.key, position, record.to_dict(), record.expires_at)
        options: dict[str, Any] = {
            "previous": previous.key if previous else None,
            "turns": [seq for seq in dict.fromkeys(turns) if seq],
            "unfinished": unfinished,
            "moved": moved.key if moved else None,
        }
        is_stored = await self._step(lambda: self._store.put_summary(self._scope, summary, **options))
        return record if is_stored else None

    async def drop(self, place: SummaryKey, record: SummaryRecord | StoredSummary | None = None) -> int:
        """Delete a record, or all of the session."""
        if dry_run.get():
            return 0
        ids = None
        if record is not None:
            ids = [record.id if isinstance(record, StoredSummary) else record.key]
        return await self._step(lambda: self._store.drop_summaries(self._scope, ids))

    def _step(self, make_flow: Callable[[], Flow[T]]) -> Step[T]:
        return Step(lambda: self._store.run(make_flow()), lambda: self._store.arun(make_flow()))


def record_of(stored: StoredSummary) -> SummaryRecord | None:
    """Return the record in a stored summary; None if it is damaged, or of another version."""
    record = SummaryRecord.from_dict(stored.value, stored.id)
    return record and replace(record, position=stored.position, expires_at=stored.expires_at)


class SummaryStore(Summaries):
    """Summaries in any LangChain key-value store."""

    def __init__(self, store: DictStore, now: Now) -> None:
        self._store = store
        self._now = now

    async def latest(self, place: SummaryKey, *, unfinished: bool = False) -> SummaryRecord | None:
        """Return the record that reaches furthest in a memkit history, or None."""
        if unfinished:
            return await self._first(await list_keys(self._store, f"{place.prefix}{UNFINISHED}"), {})
        others = (f"{place.prefix}list/", f"{place.prefix}{UNFINISHED}")
        keys = await list_keys(self._store, place.prefix)
        return await self._first([key for key in keys if not key.startswith(others)], {})

    async def matching(
        self, place: SummaryKey, messages: Sequence[BaseMessage], *, whole: bool = False
    ) -> SummaryRecord | None:
        """Return the record that covers the longest prefix of a list of messages, or None.

        With `whole`, only one that leaves out none of them.
        """
        keys = await list_keys(self._store, f"{place.prefix}list/")  # of other lists, without positions
        reach = {key: int(n) for key in keys if (n := covered_end(key).partition("-")[0]).isdecimal()}
        digests = prefix_hashes(messages, reach.values())
        # The key holds the digest's beginning, so records of other conversations that begin alike are never read.
        fitting = [key for key, n in reach.items() if n in digests and covered_end(key).endswith(digests[n][:24])]
        return await self._first(fitting, digests, whole=whole)

    async def _first(self, keys: list[str], digests: dict[int, str], *, whole: bool = False) -> SummaryRecord | None:
        """Return the valid record among these keys that reaches furthest, and delete the expired ones."""
        found = await self._read(sorted(keys, key=covered_end, reverse=True)[:LOOKED_AT])
        now = self._now()
        expired = {record.key for record in found if record.expires_at and record.expires_at <= now}
        await self._delete(list(expired))
        for record in found:
            is_same = record.position or digests.get(record.covered) == record.digest
            if is_same and record.key not in expired and (record.is_whole or not whole):
                return record
        return None

    async def _since(self, talk: SummarizedConversation) -> SummaryRecord | None:
        if talk.native:
            return await self.latest(talk.place)
        return await self.matching(talk.place, [*talk.covered, *talk.body])

    async def add(
        self,
        place: SummaryKey,
        record: SummaryRecord,
        previous: SummaryRecord | None,
        *,
        turns: Sequence[int] = (),
        unfinished: bool = False,
        moved: SummaryRecord | None = None,
    ) -> SummaryRecord | None:
        """Store a record, delete the one before the previous, and return the record as stored, with its key.

        The previous record, from which this one was made, stays for turns that have read it already.
        """
        kind = str(record.position.epoch) if record.position else "list"
        begin = f"{place.prefix}{UNFINISHED if unfinished else ''}{kind}"
        key = f"{begin}/{record.covered:012d}-{record.digest[:24]}"
        sources = dict(record.sources)
        if previous is not None and previous.key != key:
            sources["previous"] = previous.key
        record = replace(record, sources=sources, key=key)
        if dry_run.get():
            return record
        await write_values(self._store, [(key, record.to_dict())])
        gone = [str(previous.sources.get("previous") or "")] if previous else []
        gone += [moved.key, str(moved.sources.get("previous") or "")] if moved else []
        await self._delete([name for name in gone if name not in ("", key)])
        # Concurrent writers and edited lists leave records behind. Without a session id, conversations that begin
        # alike share the prefix: a limit would delete others' records.
        if place.session_id and len(keys := await list_keys(self._store, place.prefix)) > MOST:
            by_age = sorted((old.created_at, old.key) for old in await self._read(keys))
            await self._delete([key for _, key in by_age[:-MOST]])
        return record

    async def drop(self, place: SummaryKey, record: SummaryRecord | StoredSummary | None = None) -> int:
        """Delete all records of a conversation: one that must not be shown belongs to another one."""
        return 0 if dry_run.get() else await self.delete_all(place.prefix)

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


async def read_native(summaries: Summaries, messages: HistoryMessages, place: SummaryKey) -> SummarizedConversation:
    """Split what was read of a memkit history at the end of its summary, which was read with it."""
    window = messages.window or Window()
    given = window.summary
    known = record_of(given) if isinstance(given, StoredSummary) else given
    complete = messages.unread == 0
    if window.after is not None and known is not None:
        system: list[BaseMessage] = [SystemMessage(text) for text in known.lead]
        return SummarizedConversation(place, system, known, messages, [], messages, native=True, complete=complete)
    # A summary that was read, but not taken, is of turns that were cleared, replaced or have expired since.
    if given is not None:
        await summaries.drop(place, given)
    if window.after is not None:  # it cannot be read, nor can what it covers be told
        return SummarizedConversation(place, [], None, messages, [], messages, native=True, complete=False)
    # A record keeps the lead as plain text, which comes back as system messages: so only these may be in it.
    begins = (i for i, m in enumerate(messages) if not isinstance(m, SystemMessage))
    lead = next(begins, len(messages)) if complete else 0
    return SummarizedConversation(
        place, messages[:lead], None, messages[lead:], [], messages, native=True, complete=complete
    )


async def read_list(
    summaries: SummaryStore, messages: list[BaseMessage], place: SummaryKey, *, whole: bool = False
) -> SummarizedConversation:
    """Find the stored summary that covers most of a list of messages, and split them at its end."""
    lead = leading_system_count(messages)
    body = messages[lead:]
    # Without a session id, the hash of its first message identifies the conversation.
    if not place.session_id and body:
        place = place._replace(root=prefix_hashes(body, [1])[1][:24] + "/")
    known = await summaries.matching(place, body, whole=whole)
    n = known.covered if known else 0
    return SummarizedConversation(place, messages[:lead], known, body[n:], body[:n], messages)


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
        """Number of messages up to the end of the summary, as far as they were counted."""
        return self.known.covered if self.known else 0

    @property
    def summarized(self) -> int:
        """Number of messages that the summary covers."""
        return self.known.covered - self.known.left_out if self.known else 0

    def head(self, *, lags: bool = False) -> list[BaseMessage]:
        """Return the messages to show before the body: the system messages and the summary.

        If the body has no user message, because the summary covers the beginning of the newest turn, the newest covered
        one follows: else the model would not see its task. `lags` says that not all of the body will be shown.
        """
        head = list(self.lead)
        if self.known:
            leaves_out = lags or not (self.complete and self.known.is_whole)
            head.append(summary_message(self.known.text, self.known.digest, leaves_out=leaves_out))
        if self.body and not any(isinstance(m, HumanMessage) for m in self.body):
            head += [m for m in self.covered if isinstance(m, HumanMessage)][-1:]
        return head

    def advanced(self, known: SummaryRecord | None, length: int, left_out: int = 0) -> SummarizedConversation:
        """Return a copy in which the first `length` messages of the body lie before the end of the summary `known`.

        It covers them, but for the first `left_out` ones.
        """
        covered = [*self.covered, *self.body[left_out:length]]
        # What it leaves out, the summary itself says from now on.
        return replace(self, known=known, covered=covered, body=self.body[length:], complete=True)

    def length_of(self, known: SummaryRecord) -> int:
        """Return how many messages of the body a summary covers that was stored meanwhile; 0 if it ends elsewhere."""
        if self.native and isinstance(self.source, HistoryMessages):
            offset = len(self.source) - len(self.body)
            places = range(len(self.body), 0, -1)
            return next((n for n in places if self.source.position(offset + n - 1) == known.position), 0)
        n = known.covered - self.reach
        # Accept it only if it ends within the body at the very same point: another digest is another conversation.
        return n if 0 < n <= len(self.body) and self.points([n])[n][1] == known.digest else 0

    def turns(self, begin: int, end: int) -> list[int]:
        """Return the positions of the turns of some messages of the body; none if they have no positions."""
        if not (self.native and isinstance(self.source, HistoryMessages)):
            return []
        offset = len(self.source) - len(self.body)
        return [turn.seq for turn in self.source.turns[offset + begin : offset + end]]

    def sizes(self, counter: TokenCounter) -> list[int]:
        """Return the token count of each message of the body, long tool results as the model is to read them.

        Those of a turn that is not over count in full.
        """
        size, offset = token_sizes(self.source, counter), len(self.source) - len(self.body)
        is_open = bool(self.body) and isinstance(self.body[-1], RESULTS)
        questions = [i for i, message in enumerate(self.body) if isinstance(message, HumanMessage)]
        over = (questions or [0])[-1] if is_open else len(self.body)
        found: list[int] = []
        for i, message in enumerate(self.body):
            read = without_bulk(message) if i < over else message
            found.append(size(offset + i) if read is message else count_tokens([read], counter)[0])
        return found

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
