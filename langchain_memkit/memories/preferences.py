"""Preference memory: how a user wants to be answered, in their own words, in every conversation."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from typing import Any, NamedTuple, TypeAlias

from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage

from langchain_memkit import base
from langchain_memkit._sync import Step, adrive, call_user_function, cpu_bound, drive
from langchain_memkit._timezones import TimezoneLike, TimezoneOfUser, check_timezone, in_timezone, timezone_of_query
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.derived_log import UNDATED, DerivedLog, HeldTurns, Said, as_text, pack, unpack
from langchain_memkit.memories.over_histories import (
    FactoryOverHistories,
    MemoryOverHistories,
    check_histories,
    check_writable,
    clean,
)
from langchain_memkit.messages.notes import PREFERENCES, STATED, Record, note_message, records_of
from langchain_memkit.messages.tokens import count_tokens, resolve_counter
from langchain_memkit.messages.trimming import is_user_message
from langchain_memkit.stores.changes import ChangedRow, Place
from langchain_memkit.stores.history import HistoryFactory

__all__ = ["Preference", "PreferenceMemory", "PreferenceMemoryFactory"]

logger = logging.getLogger("langchain_memkit")

MAX_LINE = 300  # characters of a line
MAX_LINES = 200  # of a user that are looked at, the newest
LINES = "preferences"
"""The name of the index in a turn's row, and in that of a decision."""
LINE_BYTES = 1000  # of a line in process
SLOW = 20  # old turns of which a slow function is asked in one look

Finder: TypeAlias = Callable[[str], Iterable[str] | Awaitable[Iterable[str]]]
"""A function from the text of a user's message to the lines to keep, plain or async."""


class Preference(NamedTuple):
    """A line of a user, word for word, with its source.

    Attributes:
        text: The sentence.
        session_id: The conversation in which it was said or added.
        message_id: Id of the message that holds it; empty if it was added with `add`.
        at: When it was said; aware, as `preferences` lists it in the time zone of the memory, by default UTC.
    """

    text: str
    session_id: str
    message_id: str
    at: datetime


def current(lines: Iterable[Preference]) -> list[Preference]:
    """Return the lines, oldest first, at most 200; of equal ones the newest."""
    held: dict[str, Preference] = {}
    for line in sorted(lines, key=lambda line: (line.at, line.message_id)):
        held.pop(plain(line.text), None)  # said again, it is the newest
        held[plain(line.text)] = line
    return [*held.values()][-MAX_LINES:]


def plain(text: str) -> str:
    """Return a line as it is compared with others: without case, spacing and the marks that end a sentence."""
    return " ".join(text.casefold().split()).rstrip(".!")


def digest(text: str) -> str:
    """Return what tells a line from others without telling it."""
    return hashlib.sha256(plain(text).encode("utf-8", "surrogatepass")).hexdigest()[:32]


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


Lines: TypeAlias = list[list[str]]
"""What a turn tells: the id of a message, and the lines that are found in it."""


@dataclass
class UserPreferences(HeldTurns):
    """The lines of one user: those of turns by their place, and those that the app added or removed."""

    lines: dict[Place, list[Preference]] = field(default_factory=dict)
    added: list[tuple[ChangedRow, Preference]] = field(default_factory=list)  # each with its decision
    removed: dict[str, datetime] = field(default_factory=dict)  # hashes of lines, and when

    @property
    def nbytes(self) -> int:
        """Return the memory that it takes, about."""
        return super().nbytes + LINE_BYTES * (len(self.added) + sum(map(len, self.lines.values())))

    def put(self, row: ChangedRow) -> bool:
        """Hold the lines of a row."""
        messages = unpack(row.index.get(LINES))
        if messages is None:
            return False
        at, found = row.created_at or UNDATED, list[Preference]()
        try:
            for line in messages:
                if not isinstance(line, list):
                    return False
                message, *texts = line
                for text in texts:
                    when = at + timedelta(microseconds=len(found))  # which keeps the order
                    found.append(Preference(as_text(text), row.session_id, as_text(message), when))
        except (TypeError, ValueError):
            return False
        if found:
            self.lines[row.place] = found
        return True

    def drop(self, place: Place) -> None:
        """Forget the lines of a row."""
        self.lines.pop(place, None)

    def decide(self, rows: Sequence[ChangedRow]) -> None:
        """Take in what the app added and removed."""
        self.added, self.removed = [], {}
        for row in rows:
            decision = unpack(row.index.get(LINES))
            if decision is None or len(decision) != 3 or not all(isinstance(each, str) for each in decision):
                continue
            verb, text, session_id = decision
            at = row.created_at or UNDATED
            if verb == "add":
                self.added.append((row, Preference(text, session_id, "", at)))
                self.removed.pop(digest(text), None)
            elif verb == "remove":  # the hash of a line, since its text is not to be kept
                self.added = [each for each in self.added if digest(each[1].text) != text]
                self.removed[text] = at

    def all(self) -> list[Preference]:
        """Return all lines that were not removed since, in no order."""
        said = (line for lines in self.lines.values() for line in lines)
        added = (line for _, line in self.added)
        return [*added, *(line for line in said if not self._is_removed(line))]

    def decisions(self, text: str) -> list[ChangedRow]:
        """Return the decisions that added a line."""
        return [row for row, line in self.added if plain(line.text) == plain(text)]

    def _is_removed(self, line: Preference) -> bool:
        until = self.removed.get(digest(line.text)) if self.removed else None
        return until is not None and line.at <= until


class PreferenceLog(DerivedLog[UserPreferences]):
    """The lines of all users over histories."""

    name = LINES

    def __init__(self, histories: HistoryFactory[Any], find: Finder | None, **options: Any) -> None:
        is_quick = find is None or bool(getattr(find, "is_local", False))
        # What is slow is asked for few old turns before an answer; `index` asks for all.
        super().__init__(histories, lazy=1000 if is_quick else SLOW, **options)
        self.find = find
        self.is_whole_at_once = is_quick

    def new_user(self) -> UserPreferences:
        """Return what is held of a user of whom nothing was read yet."""
        return UserPreferences()

    async def look(
        self, user_id: str, *, most: int | None = None, held: UserPreferences | None = None
    ) -> UserPreferences:
        """Look at what changed; without a function that finds lines, there is nothing to read of turns."""
        return await super().look(user_id, most=0 if self.find is None else most, held=held)

    async def derive(self, user_id: str, messages: Sequence[BaseMessage]) -> bytes | None:
        """Find the lines of a turn that is to be stored; None if that is slow, or there is no function for it."""
        if self.find is None or not self.is_whole_at_once:
            return None
        return pack(await self._found(messages))

    async def read(self, turns: Sequence[Said]) -> list[Lines]:
        """Find the lines of turns."""
        return [await self._found(messages) for _, messages in turns]

    def encode(self, held: UserPreferences, read: Lines) -> bytes:
        """Encode the lines of a turn."""
        return pack(read)

    async def _found(self, messages: Sequence[BaseMessage]) -> Lines:
        """Return the lines that the app's function finds in what the user says in these messages, in order."""
        found: Lines = []
        if self.find is None:
            return found
        for message in filter(is_user_message, messages):
            lines = read_lines(await call_user_function(self.find, clean(str(message.text)), name="find"))
            if lines:
                found.append([clean(message.id or ""), *lines])
        return found


@dataclass(frozen=True)
class PreferenceConfig:
    """Options of a `PreferenceMemory`, whose docstring describes each of them, and what it reads."""

    log: PreferenceLog
    max_tokens: int
    embedding: Embeddings | None
    counter: base.TokenCounter
    timezone: tzinfo | TimezoneOfUser | None
    read_only: bool
    now: base.Now

    @property
    def store(self) -> HistoryFactory[Any]:
        """What a factory sets up, and shows of itself."""
        return self.log.histories


class PreferenceMemory(MemoryOverHistories):
    """Memory of how a user wants to be answered: their standing instructions and preferences, in all sessions.

    Each is a line, such as "Always answer in metric units". It is shown in every turn, word for
    word, with its source, as the user's wish and no command to break rules. Lines come from your
    app (`add`), from an agent (its tool `remember_preference`, by
    `MessageHistoryMiddleware(tools=True)`), or from a function of yours that reads what the user
    says (`find=`). Without that function nothing is found in messages.

    Args:
        histories: The factory of histories that the chain has, `SQLiteChatMessageHistory.factory(path)` or
            `MongoDBChatMessageHistory.factory(uri)`. Where the chain's history is of another package, one of its own.
        session_id: The conversation.
        user_id: The user; required, since the lines hold in all sessions of one user.
        find: A function, plain or async, that is called with the text of each message of the user, and returns the
            lines to keep, of at most 300 characters each. What it finds counts in all conversations, so it must find
            nothing in pasted text. `find_english_preferences` is one. None finds nothing. What is quick says so by
            `is_local = True`: then the lines are stored with the turn; else right after it.
        max_tokens: Limit of what `load` returns, in tokens as `token_counter` counts. If the lines
            do not fit, those nearest to the question are shown with an `embedding`, else the newest.
        embedding: Any LangChain `Embeddings`, for the case that the lines do not fit. Each such
            turn embeds the question and the lines, at most 200; LangChain's `CacheBackedEmbeddings`
            keeps the vectors of lines. If it fails, the newest lines are shown.
        read_only: Store nothing, neither turns nor what is derived from them; `add` and `remove` raise a
            `ConfigurationError`.
        cache_bytes: How much memory the lines of all users may take in this process, by default 96 MiB.
        token_counter: Counts tokens, as in `create_trim_preprocessor`.
        timezone: The zone in which days are quoted: a name ("Australia/Sydney"), a tzinfo, or a function of the user
            id, plain or async, that returns either. None: that of the chain, else UTC.
        now: Returns the current time, aware; replace it in tests.

    Raises:
        ConfigurationError: `user_id` is missing, or an argument is malformed.
        TypeError, ValueError: An id is not a string, empty or malformed.

    Example:
        >>> from datetime import UTC, datetime
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> histories = SQLiteChatMessageHistory.factory(":memory:", now=lambda: datetime(2026, 1, 2, tzinfo=UTC))
        >>> memory = PreferenceMemory(histories, "s1", user_id="u1")
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
        >>> memory = PreferenceMemory(histories, "s1", user_id="u2", find=find_english_preferences)
        >>> memory.save([HumanMessage("How far is Oslo? Always answer in metric units."), AIMessage("417 km.")])
        >>> [line.text for line in memory.preferences()]
        ['Always answer in metric units.']
    """

    derives_by = "find=..."

    _core: PreferenceConfig

    def __init__(
        self,
        histories: HistoryFactory[Any],
        session_id: str,
        *,
        user_id: str | None = None,
        find: Finder | None = None,
        max_tokens: int = 300,
        embedding: Embeddings | None = None,
        read_only: bool = False,
        cache_bytes: int = 96 * 2**20,
        token_counter: base.TokenCounterLike = None,
        timezone: TimezoneLike = None,
        now: base.Now = base.utc_now,
    ) -> None:
        self._bind(session_id, user_id)
        self.read_only = read_only
        base.check_size(max_tokens, "max_tokens", 1)
        base.check_size(cache_bytes, "cache_bytes", 0)
        check_histories(histories, PreferenceMemory)
        if find is not None and not callable(find):
            raise ConfigurationError(f"find must be a function from a text to lines, not {type(find).__name__}")
        if embedding is not None and not isinstance(embedding, Embeddings):
            raise ConfigurationError(f"embedding must be a LangChain Embeddings, not {type(embedding).__name__}")
        self._core = PreferenceConfig(
            log=PreferenceLog(histories, find, read_only=read_only, now=now, cache_bytes=cache_bytes),
            max_tokens=max_tokens,
            embedding=embedding,
            counter=resolve_counter(token_counter),
            timezone=check_timezone(timezone),
            read_only=read_only,
            now=now,
        )

    @classmethod
    def factory(cls, histories: HistoryFactory[Any], **options: Any) -> PreferenceMemoryFactory:
        """Make a factory: `preferences(session_id, user_id)` returns memories that share what they hold.

        Args:
            histories: The factory of histories, as in the class.
            **options: Options of the class, except the ids.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> preferences = PreferenceMemory.factory(SQLiteChatMessageHistory.factory(":memory:"))
            >>> preferences("s1", "u1").add("Always answer in metric units")
            >>> [line.text for line in preferences("s2", "u1").preferences()]
            ['Always answer in metric units']
        """
        base.check_arguments(options, cls)
        return PreferenceMemoryFactory(cls(histories, "-", user_id="-", **options))

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

        It stays until it is removed, or the user is purged; a clear of the session leaves it.

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
        """Show a line of the user no more, in whichever session it was said or added; said again, it is shown again.

        Args:
            text: The whole line, as `preferences` lists it.

        Returns:
            How often it was said or added.

        Raises:
            ConfigurationError: The memory is read-only.
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self._remove(text))

    async def aremove(self, text: str) -> int:
        """Run `remove` asynchronously."""
        return await adrive(self._remove(text))

    # -- flows

    async def _preferences(self) -> list[Preference]:
        held = await self._core.log.look(self._user)
        lines = current(await self._core.log.held(held.all))
        zone = await timezone_of_query(self._core.timezone, self._user, "")
        return [line._replace(at=in_timezone(line.at, zone)) for line in lines]

    async def _prefetch(self) -> UserPreferences:
        held: UserPreferences = await self._look()
        return held

    async def _load(self, query: str) -> list[BaseMessage]:
        core = self._core
        held = self._take_fetched() or await self._prefetch()
        lines = current(await core.log.held(held.all))
        seen = {(self._session, message.id) for message in getattr(query, "seen", ()) if message.id}
        newest = [line for line in lines[::-1] if (line.session_id, line.message_id) not in seen]
        zone = await timezone_of_query(core.timezone, self._user, query)
        note = await cpu_bound(lambda: self._note(newest, zone), long=len(newest) > 9)
        shown = len(records_of(note[0])) if note else 0
        if shown == len(newest) or core.embedding is None or not query.strip():
            return note
        nearest = await self._nearest(core.embedding, newest, query)
        return await cpu_bound(lambda: self._note(nearest, zone))

    def _note(self, rows: list[Preference], zone: tzinfo) -> list[BaseMessage]:
        """Return one note with the lines that fit, of which the first are tried first, in the order of their dates."""
        counter, most = self._core.counter, self._core.max_tokens
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
        if self._core.log.find is not None:  # else there is nothing to keep of a turn
            await super()._save(messages)

    async def _add(self, text: str) -> None:
        check_writable(self)
        line = base.check_text(text, "text", MAX_LINE)
        log = self._core.log
        held = await log.look(self._user)
        newest = current(await log.held(held.all))[-1:]
        if [each.text for each in newest] == [line]:  # an app may add the same line at each start
            return
        before = await log.held(lambda: held.decisions(line))
        await log.decide(self._user, pack(["add", line, self._session]))
        await log.blank(self._user, before)

    async def _remove(self, text: str) -> int:
        check_writable(self)
        log = self._core.log
        held = await log.look(self._user)
        found = [line for line in await log.held(held.all) if plain(line.text) == plain(text)]
        if not found:
            return 0
        before = await log.held(lambda: held.decisions(text))
        last = max(line.at for line in found)
        await log.decide(self._user, pack(["remove", digest(text), self._session]), last)
        await log.blank(self._user, before)
        return len(found)


class PreferenceMemoryFactory(FactoryOverHistories["PreferenceMemory"]):
    """Callable that makes the `PreferenceMemory` of a session; all of them share what they hold.

    Returned by `PreferenceMemory.factory`.
    """

    _core: PreferenceConfig
