"""Preference memory: how a user wants to be answered, in their own words, in every conversation."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import quote
from uuid import uuid4

from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage

from langchain_memkit import base
from langchain_memkit._sync import Step, adrive, call_user_function, cpu_bound, drive
from langchain_memkit._timezones import TimezoneLike, check_timezone, in_timezone, timezone_of_query
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories import rebuildable
from langchain_memkit.memories.rebuildable import UNDATED, Segment, clean, read_row, write_row
from langchain_memkit.messages.notes import PREFERENCES, STATED, Record, note_message, records_of
from langchain_memkit.messages.tokens import count_tokens, resolve_counter
from langchain_memkit.messages.trimming import is_user_message
from langchain_memkit.stores import in_memory
from langchain_memkit.stores.in_memory import DictStore, delete_keys, list_keys

__all__ = ["Preference", "PreferenceMemory", "PreferenceMemoryFactory"]

logger = logging.getLogger("langchain_memkit")

MAX_LINE = 300  # characters of a line
MAX_LINES = 200  # of a user; the oldest go first

Finder: TypeAlias = Callable[[str], Iterable[str] | Awaitable[Iterable[str]]]
"""A function from the text of a user's message to the lines to keep, plain or async."""


class Preference(NamedTuple):
    """A line of a user, word for word, with its source.

    Attributes:
        text: The sentence.
        session_id: The conversation in which it was said or added.
        message_id: Id of the message that holds it; empty if it was added with `add`.
        at: When it was said; aware, as `preferences` lists it in the time zone of the memory, by default UTC.
        given: Whether the message came with that id, so that a history can be asked for it.
        epoch: Epoch of the session; 0 if unknown.
        expires_at: When its turn expires; None for never.
    """

    text: str
    session_id: str
    message_id: str
    at: datetime
    given: bool = False
    epoch: int = 0
    expires_at: datetime | None = None


Rows = dict[str, Preference]  # by store key


def current(rows: Collection[Preference], now: datetime) -> list[Preference]:
    """Return the lines that have not expired, oldest first; of equal ones the newest."""
    held: dict[str, Preference] = {}
    for row in sorted(rows, key=lambda row: (row.at, row.message_id)):
        if row.expires_at is None or row.expires_at > now:
            held.pop(plain(row.text), None)  # said again, it is the newest
            held[plain(row.text)] = row
    return list(held.values())


def plain(text: str) -> str:
    """Return a line as it is compared with others: without case, spacing and the marks that end a sentence."""
    return " ".join(text.casefold().split()).rstrip(".!")


def read_lines(found: Any) -> list[str]:
    """Return the lines that an app's function found, each once, without those that are empty or too long.

    Example:
        >>> read_lines(["Call me Al. ", "", "Call me Al."])
        ['Call me Al.']
    """
    if isinstance(found, str) or not isinstance(found, Iterable):
        raise ConfigurationError(f"find must return a list of lines, not {type(found).__name__}")
    lines = list(found)
    if not all(isinstance(line, str) for line in lines):
        raise ConfigurationError("find must return lines that are texts")
    kept = dict.fromkeys(clean(line).strip() for line in lines)
    if any(len(line) > MAX_LINE for line in kept):
        logger.warning("find returned a line of more than %s characters, which is not kept", MAX_LINE)
    return [line for line in kept if 0 < len(line) <= MAX_LINE]


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the similarity of two vectors, from -1 to 1; 0 if one of them is 0."""
    product = sum(a * b for a, b in zip(one, other, strict=True))
    return product / (math.hypot(*one) * math.hypot(*other) or 1)


def record_of(row: Preference, zone: tzinfo) -> Record:
    """Return a line as it is quoted in a note, with its date in a time zone."""
    source, message = f"session {row.session_id}", row.message_id or None
    return Record(row.text, STATED, "human", source, in_timezone(row.at, zone), message, memory=PREFERENCES)


def key_of(user_id: str, kind: str = "", session_id: str = "", name: str = "") -> str:
    """Return a store key: a `"line"` by session and hash, a `"session"` by generation; a prefix if parts are empty."""
    parts = [part for part in ("preferences", kind, quote(session_id, safe="")) if part]
    return f"{base.user_prefix(user_id)}{'/'.join(parts)}/{name}"


def row_key(user_id: str, row: Preference) -> str:
    """Return the store key of a line: the same for the same sentence of a message, so that it is stored once."""
    digest = hashlib.sha256(f"{row.epoch}\n{row.message_id}\n{row.text}".encode()).hexdigest()
    return key_of(user_id, "line", row.session_id, digest[:32])


class PreferenceCore(NamedTuple):
    """What the memories of a factory share."""

    store: DictStore
    read_only: bool
    now: base.Now


class PreferenceMemory(rebuildable.DerivedMemory):
    """Memory of how a user wants to be answered: their standing instructions and preferences, in all sessions.

    Each is a line, such as "Always answer in metric units". It is shown in every turn, word for
    word, with its source, as the user's wish and no command to break rules. Lines come from your
    app (`add`), from an agent (its tool `remember_preference`, by
    `MessageHistoryMiddleware(tools=True)`), or from a function of yours that reads what the user
    says (`find=`). Without that function nothing is found in messages.

    Args:
        session_id: The conversation from which lines come.
        user_id: The user; required, since the lines hold in all sessions of one user.
        store: Any `BaseStore` of dicts: `SQLiteKeyValueStore`, `MongoDBKeyValueStore`; None keeps
            all in this process.
        find: A function, plain or async, that is called with the text of each message of the user
            when a turn is saved, and returns the lines to keep, of at most 300 characters each.
            What it finds counts in all conversations, so it must find nothing in pasted text.
            `find_english_preferences` is one. None finds nothing.
        max_tokens: Limit of what `load` returns, in tokens as `token_counter` counts. If the lines
            do not fit, those nearest to the question are shown with an `embedding`, else the newest.
        embedding: Any LangChain `Embeddings`, for the case that the lines do not fit. Each such
            turn embeds the question and the lines, at most 200; LangChain's `CacheBackedEmbeddings`
            keeps the vectors of lines. If it fails, the newest lines are shown.
        get_session_history: Makes the histories. A line is shown only while its message stands there: one query for
            each session that lines come from.
        read_only: `save` and `clear` do nothing; other changes raise a `ConfigurationError`.
        token_counter: Counts tokens, as in `create_trim_preprocessor`.
        timezone: The zone in which days are quoted: a name ("Australia/Sydney"), a tzinfo, or a function of the user
            id, plain or async, that returns either. None: that of the chain, else UTC.
        now: Returns the current time, aware; replace it in tests.

    Raises:
        ConfigurationError: `user_id` is missing, or an argument is malformed.
        TypeError, ValueError: An id is not a string, empty or malformed.

    Example:
        >>> from datetime import UTC, datetime
        >>> memory = PreferenceMemory("s1", user_id="u1", now=lambda: datetime(2026, 1, 2, tzinfo=UTC))
        >>> memory.add("Always answer in metric units.")
        >>> print(memory.load("How tall is Galdhøpiggen?")[0].text.partition("later one counts. ")[2])
        Dates are in UTC.
        <records>
        - stated preference (human, 2026-01-02, session s1):
        > Always answer in metric units.
        </records>

        With a function that finds lines in what the user says:

        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> from langchain_memkit import find_english_preferences
        >>> memory = PreferenceMemory("s1", user_id="u1", find=find_english_preferences)
        >>> memory.save([HumanMessage("How far is Oslo? Always answer in metric units."), AIMessage("417 km.")])
        >>> [line.text for line in memory.preferences()]
        ['Always answer in metric units.']
    """

    _core: PreferenceCore
    _seen: frozenset[str] = frozenset()  # generations of the session when the current turn was loaded

    def __init__(
        self,
        session_id: str,
        *,
        user_id: str | None = None,
        store: DictStore | None = None,
        find: Finder | None = None,
        max_tokens: int = 300,
        embedding: Embeddings | None = None,
        get_session_history: base.GetSessionHistory | None = None,
        read_only: bool = False,
        token_counter: base.TokenCounterLike = None,
        timezone: TimezoneLike = None,
        now: base.Now = base.utc_now,
    ) -> None:
        self._bind(session_id, user_id)
        self.read_only = read_only
        self._core = PreferenceCore(in_memory.store_or_memory(store), read_only, now)
        self._budget = base.check_size(max_tokens, "max_tokens", 1), resolve_counter(token_counter)
        self._histories = get_session_history
        self._timezone = check_timezone(timezone)
        if find is not None and not callable(find):
            raise ConfigurationError(f"find must be a function from a text to lines, not {type(find).__name__}")
        self._find = find
        if embedding is not None and not isinstance(embedding, Embeddings):
            raise ConfigurationError(f"embedding must be a LangChain Embeddings, not {type(embedding).__name__}")
        self._embedding = embedding

    @classmethod
    def factory(cls, store: DictStore | None = None, **options: Any) -> PreferenceMemoryFactory:
        """Make a factory: `preferences(session_id, user_id)` returns memories that share one store.

        Args:
            store: Any `BaseStore` of dicts, as in the class.
            **options: Options of the class, except the ids.

        Example:
            >>> preferences = PreferenceMemory.factory()
            >>> preferences("s1", "u1").add("Always answer in metric units")
            >>> [line.text for line in preferences("s2", "u1").preferences()]
            ['Always answer in metric units']
        """
        base.check_arguments(options, cls)
        return PreferenceMemoryFactory(cls("-", user_id="-", store=store, **options))

    def preferences(self) -> list[Preference]:
        """List the lines of the user that hold, of all sessions, oldest first.

        Raises:
            HistoryReadError: The store, or a history, cannot be reached or read.
        """
        return drive(self._preferences())

    async def apreferences(self) -> list[Preference]:
        """Run `preferences` asynchronously."""
        return await adrive(self._preferences())

    def add(self, text: str) -> None:
        """Add a line, such as from a page of settings; it takes the place of an equal one.

        It belongs to this session: `clear` deletes it with the session, `rebuild` leaves it.

        Args:
            text: One sentence, up to 300 characters.

        Raises:
            TypeError, ValueError: The text is not a string, empty, too long or no valid Unicode.
            ConfigurationError: The memory is read-only.
            HistoryWriteError: The store failed; calling again is safe.
        """
        drive(self._add(text))

    async def aadd(self, text: str) -> None:
        """Run `add` asynchronously."""
        await adrive(self._add(text))

    def remove(self, text: str) -> int:
        """Delete a line of the user, in whichever session it was said.

        `rebuild` with `find=` finds it again while its message stands in the transcript.

        Args:
            text: The whole line, as `preferences` lists it.

        Returns:
            How often it was stored.

        Raises:
            ConfigurationError: The memory is read-only.
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self._remove(text))

    async def aremove(self, text: str) -> int:
        """Run `remove` asynchronously."""
        return await adrive(self._remove(text))

    # -- flows

    async def _read(self, user_id: str, session_id: str = "") -> tuple[Rows, frozenset[str]]:
        """Return the rows of a user, and the generations of a session: keys, of which its first line draws one."""
        listed = await list_keys(self._core.store, key_of(user_id))
        keys = [key for key in listed if key.startswith(key_of(user_id, "line"))]
        values = await in_memory.read_values(self._core.store, keys) if keys else []
        rows = {key: row for key, value in zip(keys, values, strict=True) if (row := read_row(Preference, value))}
        return rows, frozenset(key for key in listed if key.startswith(key_of(user_id, "session", session_id)))

    async def _holding(self, rows: Collection[Preference], epoch: int = 0) -> list[Preference]:
        """Return the lines that hold, without those of erased messages and of other epochs of this session."""
        known = [row for row in rows if row.session_id != self._session or base.same_conversation(row.epoch, epoch)]
        asked = [(row.session_id, row.message_id) for row in known if row.given]
        gone = await rebuildable.erased_messages(self._histories, self._user, asked)
        return current([row for row in known if (row.session_id, row.message_id) not in gone], self._core.now())

    async def _preferences(self) -> list[Preference]:
        held = await self._holding((await self._read(self._user))[0].values())
        zone = await timezone_of_query(self._timezone, self._user, "")
        return [row._replace(at=in_timezone(row.at, zone)) for row in held]

    async def _prefetch(self) -> tuple[Rows, frozenset[str]]:
        return await self._read(self._user, self._session)

    async def _load(self, query: str) -> list[BaseMessage]:
        core = self._core
        rows, self._seen = self._take_fetched() or await self._prefetch()
        expired = [key for key, row in rows.items() if row.expires_at and row.expires_at <= core.now()]
        if expired and not core.read_only and not getattr(query, "trial", False):
            await delete_keys(core.store, expired)
        held = await self._holding(rows.values(), getattr(query, "epoch", 0))
        seen = {(self._session, message.id) for message in getattr(query, "seen", ()) if message.id}
        unseen = [row for row in held if (row.session_id, row.message_id) not in seen]
        zone = await timezone_of_query(self._timezone, self._user, query)
        newest = unseen[::-1]
        note = await cpu_bound(lambda: self._note(newest, zone), long=len(unseen) > 9)
        shown = len(records_of(note[0])) if note else 0
        if shown == len(unseen) or self._embedding is None or not query.strip():
            return note
        nearest = await self._nearest(self._embedding, newest, query)
        return await cpu_bound(lambda: self._note(nearest, zone))

    def _note(self, rows: list[Preference], zone: tzinfo) -> list[BaseMessage]:
        """Return one note with the lines that fit, of which the first are tried first, in the order of their dates."""
        counter, most = self._budget[1], self._budget[0]
        chosen: list[Preference] = []
        notes: list[BaseMessage] = []
        for row in rows:
            tried = sorted([*chosen, row], key=lambda line: line.at)
            note = note_message([record_of(line, zone) for line in tried])
            if count_tokens([note], counter)[0] <= most:
                chosen, notes = tried, [note]
        return notes

    async def _nearest(self, model: Embeddings, rows: list[Preference], query: str) -> list[Preference]:
        """Return the lines in the order of their nearness to the question; as they are if they cannot be embedded."""
        asked, texts = clean(query), [row.text for row in rows]
        try:
            question = await Step(lambda: model.embed_query(asked), lambda: model.aembed_query(asked))
            vectors = await Step(lambda: model.embed_documents(texts), lambda: model.aembed_documents(texts))
            near = [_cosine(question, vector) for vector in vectors]
            order = sorted(range(len(rows)), key=lambda i: near[i], reverse=True)
        except Exception as error:  # noqa: BLE001  # embedders raise anything; the newest lines are better than none
            logger.warning("the newest preferences are shown, they were not embedded: %s", base.describe_error(error))
            return rows
        return [rows[i] for i in order]

    async def _save(self, messages: Sequence[BaseMessage]) -> None:
        if self._core.read_only:
            return
        found = await self._found(self._session, Segment.of_turn(messages, self._core.now()))
        self.save_was_checked = not found
        if not found:
            return
        known, alive = await self._prefetch()
        live = alive & self._seen if self._seen else alive
        # If none of the generations that the load found is left, the session was cleared after the turn began.
        if (self._seen and not live) or not await self._write(self._user, known, found, [], min(live, default="")):
            self._seen = frozenset()
            logger.warning("a turn was left out of the preference memory: its session was cleared after it began")

    async def _write(
        self, user_id: str, known: Rows, found: Sequence[Preference], gone: Sequence[str], generation: str
    ) -> bool:
        """Add the lines of a session that are not known, and delete others; return whether the session still exists."""
        store = self._core.store
        new = {key: row for row in found if (key := row_key(user_id, row)) not in known}
        if new and not generation:
            generation = key_of(user_id, "session", found[0].session_id, uuid4().hex)
            await in_memory.write_values(store, [(generation, {})])
        surplus = {key for key, _ in sorted([*known.items(), *new.items()], key=lambda pair: pair[1].at)[:-MAX_LINES]}
        pairs = [(key, write_row(row)) for key, row in new.items() if key not in surplus]
        out = list((surplus & known.keys()).union(gone) - new.keys())
        if pairs:
            return await in_memory.write_if_exists(store, generation, pairs, out)
        await delete_keys(store, out)
        return True

    async def _found(self, session_id: str, segment: Segment) -> list[Preference]:
        """Return the lines that the app's function finds in what the user says in these messages, in order."""
        found: list[Preference] = []
        if self._find is None:
            return found
        for message in filter(is_user_message, segment.messages):
            text = clean(str(message.text))
            known = clean(message.id or "text-" + hashlib.sha256(text.encode()).hexdigest()[:24])
            given = bool(message.id) and segment.has_ids
            for line in read_lines(await call_user_function(self._find, text, name="find")):
                at = (segment.at or UNDATED) + timedelta(microseconds=len(found))  # which keeps the order
                found.append(Preference(line, session_id, known, at, given, segment.epoch, segment.expires_at))
        return found

    async def _add(self, text: str) -> None:
        rebuildable.check_writable(self._core)
        row = Preference(base.check_text(text, "text", MAX_LINE), self._session, "", self._core.now())
        known, alive = await self._prefetch()
        known.pop(row_key(self._user, row), None)  # said again, it is the newest
        await self._write(self._user, known, [row], [], min(alive, default=""))

    async def _delete(self, doomed: Callable[[Preference], bool]) -> int:
        rebuildable.check_writable(self._core)
        keys = [key for key, row in (await self._read(self._user))[0].items() if doomed(row)]
        await delete_keys(self._core.store, keys)
        return len(keys)

    async def _remove(self, text: str) -> int:
        return await self._delete(lambda row: plain(row.text) == plain(text))

    async def _delete_messages(self, ids: Collection[str]) -> int:
        names = set(map(clean, ids))
        return await self._delete(lambda row: row.session_id == self._session and row.message_id in names)

    async def _clear(self) -> None:
        if not self._core.read_only:
            self._seen = frozenset()
            await self._wipe(self._user, self._session)

    async def _wipe(self, user_id: str, session_id: str = "") -> int:
        """Delete a session, or all of a user: the generations first, so that a save meanwhile stores nothing."""
        prefixes = [key_of(user_id, kind, session_id) for kind in ("session", "line")]
        return (await rebuildable.wipe(self._core.store, *prefixes))[1]

    async def _rebuild_sessions(self, user_id: str, sessions: Mapping[str, Any], progress: bool) -> Mapping[str, int]:
        rebuildable.check_writable(self._core)
        counts = Counter(messages=0, added=0, removed=0)
        # Only lines that are stored now may be removed: one stored from now on may come from a turn that is saved after
        # its transcript was read below.
        before, _ = await self._read(user_id)
        for session, history in sessions.items():
            segments = await rebuildable.read_transcript(history, self._histories, session, user_id)
            found: list[Preference] = []
            for segment in segments:
                found += await self._found(session, segment)
            wanted = {row_key(user_id, row) for row in found}
            said = {key for key, row in before.items() if row.session_id == session and row.message_id}
            known, alive = await self._read(user_id, session)
            await self._write(user_id, known, found, list(said - wanted), min(alive, default=""))
            added = wanted & (await self._read(user_id))[0].keys() - known.keys()
            counts.update(messages=sum(len(s.messages) for s in segments), added=len(added), removed=len(said - wanted))
        return dict(counts)


class PreferenceMemoryFactory(rebuildable.DerivedMemoryFactory["PreferenceMemory"]):
    """Callable that makes the `PreferenceMemory` of a session; all of them share a store.

    Returned by `PreferenceMemory.factory`.
    """

    async def _list_sessions(self, user_id: str) -> list[base.SessionInfo]:
        rows, _ = await self._memory._read(user_id)
        return rebuildable.session_infos((row.session_id, row.at) for row in rows.values())

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        return {"preferences": await self._memory._wipe(user_id)}
