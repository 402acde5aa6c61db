"""The vocabulary of the package: a memory, a turn, a view of a history, and the aliases that everything else uses.

*Memory is a list of messages.* A history keeps turns; a view is what was read of it; a preprocessor takes messages and
returns messages; a memory loads messages. Nothing here does I/O. The end of the file checks what callers pass in.
"""

from __future__ import annotations

import inspect
import os
import re
from abc import ABC, abstractmethod
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from difflib import get_close_matches
from functools import wraps
from numbers import Real
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable
from urllib.parse import quote

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableConfig, run_in_executor

from langchain_memkit.errors import ConfigurationError, MemkitError, did_you_mean, logger

# -- memories: they load messages for a prompt, and save finished turns


@runtime_checkable
class Purgeable(Protocol):
    """Anything that can delete a user: memkit's stores, and its factories of histories and memories."""

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Delete all content of the user, and return counts."""
        ...

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Run `purge` asynchronously."""
        ...


def purge_user(user_id: str, *parts: Purgeable) -> list[Mapping[str, int]]:
    """Delete a user from every part of an app: histories, and the stores and memories derived from them.

    Args:
        user_id: The user whose content is deleted.
        *parts: The factories, stores and memories in use, in any order; they are purged in this order.

    Returns:
        The counts of what each part deleted, in the order of `parts`.

    Raises:
        TypeError: `user_id` is not a string.
        ConfigurationError: `user_id` is not a valid id, there are no parts, or one of them cannot delete a user;
            nothing was deleted.
        HistoryWriteError: A part failed; calling again continues.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> histories("s1", "u1").add_user_message("hello")
        >>> purge_user("u1", histories)
        [{'sessions': 1, 'turns': 1}]
    """
    _check(user_id, parts)
    return [part.purge(user_id) for part in parts]


async def apurge_user(user_id: str, *parts: Purgeable) -> list[Mapping[str, int]]:
    """Run `purge_user` asynchronously."""
    _check(user_id, parts)
    return [await part.apurge(user_id) for part in parts]


def _check(user_id: str, parts: Sequence[object]) -> None:
    """Validate the user and the parts, before anything is deleted."""
    if isinstance(user_id, Purgeable):
        what = f"not the {type(user_id).__name__}"
        msg = f"the user comes first: purge_user(user_id, histories, ...), {what}. Nothing was deleted."
        raise ConfigurationError(msg)
    check_id(user_id, "user_id")
    if not parts:
        msg = "purge_user takes the user and the factories, stores and memories in use; without them nothing is deleted"
        raise ConfigurationError(msg)
    for i, part in enumerate(parts):
        if not isinstance(part, Purgeable):
            msg = f"parts[{i}], a {type(part).__name__}, has no purge(user_id) to forget a user. Nothing was deleted."
            raise ConfigurationError(msg)


class Query(str):
    """The input of a turn as text, passed to `Memory.load`, which also knows what else the model will see.

    Attributes:
        past: The history as it was read for this turn, oldest first.
        seen: The part of the history that the model is certain to see, so that it need not be recalled; empty where a
            preprocessor may still leave some of it out.
        epoch: The epoch of the session; 0 if unknown. Data derived in another epoch belongs to an erased conversation.
        trial: Whether this is a dry run, which must not store anything.
        remarks: A list to which a memory may append a line for each thing that it left out, and why: `explain_turn`
            shows them. None unless they are wanted.
        timezone: The zone in which the user's days are meant; None if the app has named none, which stands for UTC.

    Example:
        >>> query = Query("Who wrote it?")
        >>> query.upper(), query.past, query.seen
        ('WHO WROTE IT?', (), ())
    """

    __slots__ = ("epoch", "past", "remarks", "seen", "timezone", "trial")

    past: Sequence[BaseMessage]
    seen: Sequence[BaseMessage]
    epoch: int
    trial: bool
    remarks: list[str] | None
    timezone: tzinfo | None

    def __new__(
        cls,
        text: str,
        past: Sequence[BaseMessage] = (),
        epoch: int = 0,
        seen: Sequence[BaseMessage] | None = None,
        *,
        trial: bool = False,
        remarks: list[str] | None = None,
        timezone: tzinfo | None = None,
    ) -> Query:
        """Create a query from a text; `seen` defaults to all of the past."""
        query = super().__new__(cls, text)
        query.past = past
        query.seen = past if seen is None else seen
        query.epoch = epoch
        query.trial = trial
        query.remarks = remarks
        query.timezone = timezone
        return query


class SavedTurn(list[BaseMessage]):
    """The messages of a turn as they were stored, ids included: a list that also knows the turn.

    Attributes:
        turn_id: The turn's id: a second save with the same one is a retry.
        epoch: The epoch of the session; 0 if unknown.
        expires_at: When the stored turn expires; None for never.
        store: The turn store of the history that has stored it; None if it is none of memkit's.
        seq: Its position in that history; None if it is not known.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> turn = SavedTurn([HumanMessage("hi", id="1")], turn_id="t1")
        >>> len(turn), turn.turn_id, turn.epoch
        (1, 't1', 0)
    """

    def __init__(
        self,
        messages: Iterable[BaseMessage],
        turn_id: str | None = None,
        epoch: int = 0,
        expires_at: datetime | None = None,
        store: object = None,
        seq: int | None = None,
    ) -> None:
        super().__init__(messages)
        self.turn_id = turn_id
        self.epoch = epoch
        self.expires_at = expires_at
        self.store = store
        self.seq = seq


class GoneMessages(list[str]):
    """Ids of messages that their history no longer shows: a list that also knows its turn store."""

    def __init__(self, ids: Iterable[str], store: object) -> None:
        super().__init__(ids)
        self.store = store


class Memory(ABC):
    """A memory of an app besides the history, bound to one session and its user.

    Subclass it with `load`, `save` and `clear`; their async twins run these in a thread unless you override them. Pass
    a memory, or a function `(session_id, user_id)` that creates one, to
    `create_runnable_with_message_history(memories=[...])`, or pipe it: `RunnableLambda(memory.load, memory.aload)`.

    Attributes:
        session_id: The conversation; None if it serves all.
        user_id: The user; None if it serves all.
        read_only: `save` and `clear` leave it as it is.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> class Motto(Memory):
        ...     read_only = True
        ...
        ...     def load(self, query=""):
        ...         return [HumanMessage("Our motto: be brief.")]
        ...
        ...     def save(self, messages):
        ...         pass
        ...
        ...     def clear(self):
        ...         pass
        >>> Motto().load("What is our motto?")[0].content
        'Our motto: be brief.'
    """

    session_id: str | None = None
    user_id: str | None = None
    read_only: bool = False

    @abstractmethod
    def load(self, query: str = "") -> list[BaseMessage]:
        """Return the messages that the model should see for a query, oldest first.

        Args:
            query: The new input as text; within a turn a `Query`, which knows the history as well.

        Returns:
            New objects, which the caller may change; `[]` if there is nothing to say.
        """

    @abstractmethod
    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Record one finished turn, unedited. Saving the same turn again must change nothing.

        Args:
            messages: Oldest first, with ids where the history gives them; within a turn a `SavedTurn`.
        """

    @abstractmethod
    def clear(self) -> None:
        """Forget what came from this session, but nothing that came from the user's other sessions."""

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Run `load` asynchronously."""
        return await run_in_executor(None, self.load, query)

    async def asave(self, messages: Sequence[BaseMessage]) -> None:
        """Run `save` asynchronously."""
        await run_in_executor(None, self.save, messages)

    async def aclear(self) -> None:
        """Run `clear` asynchronously."""
        await run_in_executor(None, self.clear)

    def check_history(self, history: Any) -> None:  # noqa: B027  # most memories take any history
        """Refuse a history that this memory cannot work with; called once before a turn. The default takes any.

        Raises:
            ConfigurationError: It cannot; the message says what to do.
        """

    def index_turn(self, history: Any, messages: Sequence[BaseMessage]) -> Mapping[str, bytes]:
        """Derive what a history is to store in the row of a turn, so that this memory finds it there.

        Args:
            history: The history that stores the turn.
            messages: The turn as it is stored.

        Returns:
            The data by name, for `append_turn(index=)`; the default has none.
        """
        return {}

    async def aindex_turn(self, history: Any, messages: Sequence[BaseMessage]) -> Mapping[str, bytes]:
        """Run `index_turn` asynchronously; the default calls it, since most memories have no index."""
        return self.index_turn(history, messages)


MemoryFactory: TypeAlias = Callable[..., Memory]
"""`memory(session_id, user_id=None)`: called with the configured ids, like `get_session_history`."""


class Mention(NamedTuple):
    """A name found in a text.

    Attributes:
        text: The name as it is written there.
        label: Its kind, as a spaCy label: `"PERSON"`, `"ORG"`, `"GPE"`, ...
        start: Its first character, as an index.
        end: Its end, as an index, exclusive: `source[start:end] == text`.

    Example:
        >>> mention = Mention("Harrison", "PERSON", 0, 8)
        >>> "Harrison likes tea."[mention.start : mention.end]
        'Harrison'
    """

    text: str
    label: str
    start: int
    end: int


EntityExtractor: TypeAlias = Callable[[str], Any]
"""Text in, names out, plain or async: an iterable of `Mention`s, of tuples like it, or of dicts with its keys (as
GLiNER returns); places may be left out. With a method `batch(texts)` that returns one such list for each text, many
texts are read at once."""


# -- turns and views of a history, and the context that a running turn gives to its preprocessors

Messages: TypeAlias = Sequence[BaseMessage]
"""Messages, oldest first."""

Preprocessor: TypeAlias = Runnable[list[BaseMessage], list[BaseMessage]]
"""A runnable from messages to messages; LangChain's `trim_messages(...)` is one."""

GetSessionHistory: TypeAlias = Callable[..., Any]
"""`get_session_history(session_id, user_id=None)`: returns a LangChain chat history, or is a coroutine that does."""

TokenCounter: TypeAlias = Callable[[Sequence[BaseMessage]], int]
"""A function from messages to their number of tokens."""

TokenCounterLike: TypeAlias = TokenCounter | Callable[[BaseMessage], int] | BaseLanguageModel[Any] | str | None
"""Values that a `token_counter` argument accepts; see `messages.tokens.resolve_counter`."""

Now: TypeAlias = Callable[[], datetime]
"""A clock: a function that returns the current time as an aware datetime in UTC."""


def utc_now() -> datetime:
    """Return the present as an aware datetime in UTC: the default clock."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class Turn:
    """One stored row: the messages that one `append_turn` or `add_messages` call wrote at once.

    Attributes:
        seq: Position in the session, without gaps; 0 for rows that another package wrote before ours.
        epoch: Changes when the session is cleared; compare for equality only.
        op: The turn's id in the store: two calls with the same one store once.
        created_at: When it was stored, aware, UTC.
        messages: Its messages in order. Damaged ones are left out.
        tokens: Tokens of each message, as counted when it was stored.
        problems: A line for each part of the row that could not be read; empty for a sound row.
        expires_at: When it expires; None for never.
        is_deleted: Whether `delete_turn` hid it: only exports and migrations see such turns.
        replaces: The position from which on it replaces what was stored before it; None for a turn that only follows.
        is_replaced: Whether a later turn replaces it; only `iter_turns(hidden=True)` returns such turns.
        trace: What its models were given, if that is stored; `explain_stored_turn` reads it.
    """

    seq: int
    epoch: int
    op: str
    created_at: datetime | None
    messages: list[BaseMessage]
    tokens: list[int]
    problems: list[str] = field(default_factory=list)
    expires_at: datetime | None = None
    is_deleted: bool = False
    replaces: int | None = None
    is_replaced: bool = False
    trace: Mapping[str, Any] | None = None


class RepeatedQuestion(NamedTuple):
    """A question to answer again, as `history.regenerate()` returns it.

    Attributes:
        messages: The new input of the call: the messages of the turn before its first answer, without ids.
        replaces: The position of the turn, for `config["configurable"]["replaces"]`.
    """

    messages: list[BaseMessage]
    replaces: int


EDITS = 20
"""The last bits of an epoch that count the edits of a session; the others are drawn at random."""


def same_conversation(epoch: Any, other: Any) -> bool:
    """Return whether two epochs are of one conversation: they differ by edits at most, or one is unknown (0)."""
    if not (isinstance(epoch, int) and isinstance(other, int)):  # of a damaged record
        return False
    return not (epoch and other) or epoch >> EDITS == other >> EDITS


class Position(NamedTuple):
    """A message of a session, as the end of what is known: a summary covers everything up to a position.

    Attributes:
        epoch: The epoch of the session.
        seq: The position of its turn; 0 in rows of other packages, which have none.
        op: The turn's id in the store.
        message_id: The message in the turn; None if it has no id.
    """

    epoch: int
    seq: int
    op: str
    message_id: str | None

    @classmethod
    def read(cls, data: object) -> Position | None:
        """Restore what `_asdict` gave; None if it is damaged."""
        if not isinstance(data, Mapping) or data.keys() != set(cls._fields):
            return None
        numbers, texts = (data["epoch"], data["seq"]), (data["op"], data["message_id"] or "")
        if not (all(isinstance(n, int) for n in numbers) and all(isinstance(text, str) for text in texts)):
            return None
        # plain numbers, not bson's Int64
        return cls(int(data["epoch"]), int(data["seq"]), data["op"], data["message_id"])


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a history that a preprocessor needs, so that no more than that is read.

    Attributes:
        after: Read everything after this position, and nothing else; the limits apply only if `summarizes`.
        max_messages: Read the newest turns that together hold at least this many messages; None for no limit.
        max_tokens: Read the newest turns that together hold at least this many tokens; None for no limit.
        counter: Counts these tokens; None for the default.
        summary: A summary of what comes before `after`; handed back with the messages.
        summarizes: Whether a summary is made of what is read: within the limits, but some turns at least, however long
            they are; and the `history_size` of the history does not apply, which would leave a gap.
        reads_summary: Whether the history is to read the summary that lies beside it in the same step (a
            `StoredSummary`), and to hand it back as `summary`, with its position as `after`. If turns were replaced
            since it was written, so that it must not be shown, `after` stays None.
    """

    after: Position | None = None
    max_messages: int | None = None
    max_tokens: int | None = None
    counter: TokenCounter | None = None
    summary: Any = None
    summarizes: bool = False
    reads_summary: bool = False


CONTEXT = "memkit_context"
"""The key of `config["configurable"]` under which a `TurnContext` travels."""


@dataclass(slots=True)
class TurnContext:
    """The context that a turn gives to its preprocessors.

    Attributes:
        asked: The new input, which shares the budget with the history.
        past: The history as it was read; the new input follows it directly.
        notes: The notes that memories recalled, which are placed beside the new input and share the budget as well;
            while the preprocessor runs, all that they would like to show.
        scale: Fraction of every budget that may be used: below 1 after the model said that the prompt was too long.
        timezone: The zone in which the user's days are quoted; None stands for UTC.
        used: Set by preprocessors: whether a smaller scale would change anything.
        reports: What each preprocessor did, by its name, for the trace of the turn.
        beside: What else the model is given: system prompt, what the chain's prompt adds, documents.
        schemas: The schemas of the tools that it is given, as JSON; None if they are not known.
        excess: Tokens that a call of the same chain or agent held beyond what was known of it.
        in_run: Whether preprocessors are given an agent's run so far (`asked`) together with the past.
        settled: Whether the prompt was composed before, for an earlier call of the same turn: nothing is summarized
            any more.
        reader: Name of the agent's tool that reads a shortened tool result back; None if it has none.
        shorteners: The shortened tool results of an agent's run by preprocessor, so that each is made once.
        compose_beside: Composes the past again, beside messages that a step of the chain adds to the call (the
            documents of a RAG chain); a flow, or None where no preprocessor of memkit keeps a budget.
    """

    asked: Sequence[BaseMessage] = ()
    past: Sequence[BaseMessage] = ()
    notes: Sequence[BaseMessage] = ()
    scale: float = 1.0
    timezone: tzinfo | None = None
    used: bool = False
    reports: dict[str, Any] = field(default_factory=dict)
    beside: Sequence[BaseMessage] = ()
    schemas: str | None = None
    excess: int = 0
    in_run: bool = False
    settled: bool = False
    reader: str | None = None
    shorteners: dict[str, Any] = field(default_factory=dict)
    compose_beside: Callable[[Sequence[BaseMessage]], Awaitable[list[BaseMessage]]] | None = None


class HistoryMessages(list[BaseMessage]):
    """The messages that our histories return: a list that also knows what was stored about each message.

    After a change of the list that knowledge no longer applies, but it is never wrong: see `knows`.

    Attributes:
        tokens: Tokens of each message, as counted when stored.
        counter: Name of the counter that counted them.
        turns: The turn of each message.
        epoch: The epoch of the session.
        window: The window that was asked for, if any; its `after` is None if the messages begin elsewhere.
        unread: Number of older turns that are neither in the list nor in the window's summary; None if it is unknown.
    """

    def __init__(
        self,
        messages: Sequence[BaseMessage],
        tokens: Sequence[int],
        counter: str,
        turns: Sequence[Turn],
        epoch: int,
        window: Window | None = None,
        unread: int | None = 0,
    ) -> None:
        super().__init__(messages)
        self.tokens = tokens
        self.counter = counter
        self.turns = turns
        self.epoch = epoch
        self.window = window
        self.unread = unread
        self._read = tuple(messages)

    def knows(self, i: int) -> bool:
        """Return whether message `i` is the one that was read, so that the stored facts apply to it."""
        # identity, not equality: an equal message may be another one, at another position
        return len(self) == len(self._read) and self[i] is self._read[i]

    def selected(self, places: Sequence[int]) -> HistoryMessages:
        """Return the messages at these positions as a list of the same kind."""
        tokens, turns = [self.tokens[i] for i in places], [self.turns[i] for i in places]
        known = self.counter, turns, self.epoch, self.window, self.unread
        return HistoryMessages([self[i] for i in places], tokens, *known)

    def cut(self, begin: int) -> HistoryMessages:
        """Return the messages from a position on; the turns before them count as unread."""
        rest = self.selected(range(begin, len(self)))
        gone = {turn.op for turn in self.turns[:begin]} - {turn.op for turn in rest.turns}
        rest.unread = None if self.unread is None else self.unread + len(gone)
        return rest

    def position(self, i: int) -> Position:
        """Return the position of message `i`."""
        turn = self.turns[i]
        return Position(turn.epoch if turn.seq else self.epoch, turn.seq, turn.op, self._read[i].id)


EndKind: TypeAlias = Literal["turn", "expiring turn", "marker", "copy"]
_changed: set[str] = set()  # the methods of `MessagesCopy` that were logged, each once per process


def _told(method: str, instead: str) -> Any:
    """Return a method of `list` that changes the list as ever, and says at its first call what changes the history."""
    change = getattr(list, method)

    @wraps(change)
    def told(self: list[BaseMessage], *args: Any, **kwargs: Any) -> Any:
        if method not in _changed:
            _changed.add(method)
            logger.warning(
                "%s changed the list that `history.messages` had returned, a copy: nothing stored was changed. %s. For "
                "a list of your own take list(history.messages), of which this is not said",
                method,
                instead,
            )
        return change(self, *args, **kwargs)

    return told


class MessagesCopy(HistoryMessages):
    """What `history.messages` returns: changing it changes no history, and is logged, once for each method.

    It is no error, since a list to which the new question is appended is a good prompt. Copies of it are plain lists.
    """

    append = _told("append", "history.add_message(message) stores one")
    extend = _told("extend", "history.add_messages(messages) stores them")
    __iadd__ = _told("__iadd__", "history.add_messages(messages) stores them")
    clear = _told("clear", "history.clear() erases the session")
    pop = _told("pop", "history.delete_turn(seq) hides a turn, history.clear() erases the session")
    remove = _told("remove", "history.delete_turn(seq) hides a turn, history.clear() erases the session")
    __delitem__ = _told("__delitem__", "history.delete_turn(seq) hides a turn, history.clear() erases the session")
    insert = _told("insert", "history.edit(seq, messages) replaces the turns from a position on")
    __setitem__ = _told("__setitem__", "history.edit(seq, messages) replaces the turns from a position on")

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Copy and pickle it as a plain list."""
        return list, (list(self),)


class SessionHead(NamedTuple):
    """The end of a session.

    Attributes:
        seq: The last position; 0 for a session that holds nothing.
        epoch: The epoch of its last row.
        base: Position of the last clear; 0 if there was none. Everything older is void.
        last: The kind of the last row: a turn that stays, a turn that expires, the tombstone of a clear, or a turn of a
            copy that is not shown yet.
    """

    seq: int
    epoch: int
    base: int
    last: EndKind = "turn"


class HistoryView(NamedTuple):
    """Messages of a session as read at one moment, with the position against which a turn built on them is saved.

    Attributes:
        messages: Oldest first.
        seq: Position of the session's last turn; 0 if there is none.
        epoch: The session's epoch; 0 if the session holds nothing (after a recent purge of the user, the purge's).
            `append_turn(..., epoch=view.epoch)` refuses the turn if the session was cleared or purged in the meantime.
        read_at: When it was read, by the history's clock.
        problems: A line for each part that could not be read.
        head: The end of the session, for `append_turn(..., head=view.head)`; None if the append has to look it up.
        replaces: Of a view before a turn that is to be replaced: what `append_turn(..., replaces=view.replaces)` takes.
            If that turn replaced others itself, it is their position.
    """

    messages: list[BaseMessage]
    seq: int = 0
    epoch: int = 0
    read_at: datetime | None = None
    problems: tuple[str, ...] = ()
    head: SessionHead | None = None
    replaces: int | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session in the result of `list_sessions`.

    Attributes:
        session_id: The conversation.
        turns: Rows stored for it (rows of other packages included).
        created_at: Time of its first row, aware, UTC, if known.
        updated_at: Time of its last row, aware, UTC, if known.
        title: The title that was stored, else the beginning of the first question that is shown, on one line.
        metadata: What `update_session` stored with it.
        preview: The beginning of the last message that is shown, on one line.

    Title, metadata and preview are filled in by the histories' `list_sessions`; other lists leave them empty.
    """

    session_id: str
    turns: int
    created_at: datetime | None
    updated_at: datetime | None
    title: str = ""
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)
    preview: str = ""

    @property
    def cursor(self) -> str:
        """What `list_sessions(before=...)` takes to go on after this session: a text that a URL takes as it is."""
        return str(ListPosition(self.updated_at, self.session_id))


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """One message in the result of `search_messages`.

    Attributes:
        session_id: The conversation.
        seq: Position of its turn.
        index: Its place in the turn, from 0.
        created_at: When the turn was stored, aware, UTC.
        message: The message.
        excerpt: What was found, with some words before and after it, on one line.
    """

    session_id: str
    seq: int
    index: int
    created_at: datetime | None
    message: BaseMessage
    excerpt: str

    @property
    def cursor(self) -> str:
        """What `search_messages(before=...)` takes to go on after this message: a text, as `SessionInfo.cursor`."""
        return str(ListPosition(self.created_at, self.session_id, self.seq, self.index))


class ListPosition(NamedTuple):
    """A place in a list that is sorted by time, newest first, then by session, then from the last message back."""

    at: datetime | None
    session_id: str
    seq: int = 0
    message: int = 0

    def __str__(self) -> str:
        """Write it as a cursor: letters, digits, `-` and `_`, which a URL takes as they are."""
        text = f"{self.at.isoformat() if self.at else '-'} {self.seq} {self.message} {self.session_id}"
        return urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def read(cls, cursor: object) -> ListPosition | None:
        """Read a cursor that may come from anywhere; None for None."""
        if cursor is None:
            return None
        try:
            given = check_text(cursor, "before", 2 * MAX_ID_BYTES)
            text = urlsafe_b64decode(given + "=" * (-len(given) % 4)).decode()
            at, seq, message, session_id = text.split(" ", 3)
            date = None if at == "-" else datetime.fromisoformat(at)
            place = cls(date, check_id(session_id, "session_id"), int(seq), int(message))
            in_range = 0 <= place.seq <= 2**53 and 0 <= place.message < 2**31
            if (date is None or date.tzinfo) and in_range and str(place) == given:
                return place
        except (TypeError, ValueError):
            pass
        msg = f"before must be the `cursor` of the last item of the page before, not {describe_value(cursor)}"
        raise ConfigurationError(msg)


# -- checks of arguments, with errors that say what was given

ADDRESS = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]+):/")  # two letters or more before the colon: C:/ is a drive
LONGEST = 9e9  # seconds, 285 years: a thread can wait this long, and the date still exists
P = TypeVar("P", bound="str | os.PathLike[str]")


def describe_error(error: BaseException) -> str:
    """Describe an error by its type, and by its text if it is memkit's own: other texts may quote private data."""
    return type(error).__name__ + (f": {error}" if isinstance(error, MemkitError) else "")


def describe_value(value: object) -> str:
    """Describe a value for an error message: numbers as they are, anything else by type, since it may be private."""
    if value is None or type(value) in (bool, float) or (type(value) is int and abs(value) < 10**20):
        return str(value)
    return f"a {type(value).__name__}"


def describe_type(value: object, wanted: type) -> str:
    """Describe the type of a wrong argument; a class is named as such: parentheses are easily forgotten."""
    if not isinstance(value, type):
        # LangGraph's stores share the class names of langchain-core's
        langgraph = "; it is one of LangGraph's, so wrap it: LangGraphKeyValueStore(store)"
        return type(value).__name__ + (langgraph if hasattr(value, "list_namespaces") else "")
    return f"the class {value.__name__}" + (": call it" if issubclass(value, wanted) else "")


def check_size(value: object, name: str, least: int) -> int:
    """Return `value` if it is a whole number of at least `least`, else raise `ConfigurationError`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(f"{name} must be a whole number from {least}; got {value!r:.50}")
    return value


def safe_repr(value: object) -> str:
    """Return a value for a `repr`: memkit's own objects by their repr, others by name, since they may show secrets."""
    if type(value).__module__.partition(".")[0] == "langchain_memkit":
        return repr(value)
    return str(getattr(value, "__name__", type(value).__name__))


def check_arguments(given: Iterable[str], *takers: Callable[..., object]) -> None:
    """Raise a ConfigurationError unless names passed on as `**options` are keyword-only arguments of one of `takers`.

    A class with `**kwargs`, such as an app's own subclass, may accept more than it names, and is not checked.

    Example:
        >>> check_arguments(["revers"], sorted)
        Traceback (most recent call last):
        ...
        langchain_memkit.errors.ConfigurationError: no such argument: revers; did you mean 'reverse'?
    """
    known: list[str] = []
    others: list[str] = []
    for taker in takers:
        parameters = inspect.signature(taker).parameters.values()
        if isinstance(taker, type) and any(p.kind is p.VAR_KEYWORD for p in parameters):
            return
        known += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        others += [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    if unknown := sorted(set(given) - set(known)):
        raise ConfigurationError(f"no such argument: {', '.join(unknown)}{did_you_mean(unknown[0], [*known, *others])}")


def check_one_of(value: object, name: str, known: Sequence[str], *, function: bool = False) -> None:
    """Raise a ConfigurationError unless a value is one of several modes, or a function where one is allowed."""
    if not (value in known or (function and callable(value))):
        or_callable = " or a callable" if function else ""
        raise ConfigurationError(f"{name} must be {' or '.join(map(repr, known))}{or_callable}, not {value!r:.50}")


def check_prompt(prompt: object, known: set[str], fits: Callable[[set[str]], object], needs: str) -> set[str]:
    """Return the variables that a `prompt` argument takes: none for None or an instruction, which is text without any.

    An instruction holds none of the `known` variables; `fits` says whether those of a template do, `needs` which ones.
    """
    if isinstance(prompt, BasePromptTemplate):
        takes = {*prompt.input_variables, *prompt.optional_variables}
        if not fits(takes):
            raise ConfigurationError(f"prompt must take {needs}; it takes {sorted(takes)}")
        return takes
    is_text = isinstance(prompt, str) and prompt.strip() and not any(f"{{{name}}}" in prompt for name in known)
    if not (prompt is None or is_text):
        msg = f"prompt must be text without variables, or a ChatPromptTemplate: {prompt!r:.60} is no instruction"
        raise ConfigurationError(msg)
    return set()


def check_path(path: P) -> P:
    """Return a path, unless it is a connection string, which error messages would show with its password.

    In a `str`, `~` at the beginning is the user's own folder, as in a shell; a path object is taken as it is.
    """
    if address := ADDRESS.match(str(path)):
        way_out = "; the classes for a server begin with MongoDB" if address[1].startswith("mongodb") else ""
        if address[1].startswith("sqlite"):
            file = str(path).partition("://")[2].removeprefix("/")
            may_be_shown = file and "@" not in file  # before which a password may stand
            way_out = f"; give the path alone, {file if may_be_shown else 'chat.db'!r:.80}"
        raise ConfigurationError(f"a file was expected, not an address that begins with '{address[1]}:'{way_out}")
    return os.path.expanduser(path) if isinstance(path, str) else path  # type: ignore[return-value]  # noqa: PTH111  # of its own type


def hosts_of(address: str) -> str:
    """Return the hosts of a connection string, for messages: no credentials, no options.

    Whatever stands before the last `@` may be a piece of a password. So where nobody has percent-encoded that, no host
    is named, since it would be a guess.

    Example:
        >>> hosts_of("mongodb://nemo:p%40ss@db.example/chat"), hosts_of("mongodb://nemo:p@ss/w@db.example")
        ('db.example', 'the server')
    """
    before, _, rest = address.partition("://")[2].rpartition("@")
    hosts = rest.partition("?")[0].partition("/")[0]
    is_clear = {"@", "/", "?"}.isdisjoint(before) and _has_ports(hosts)
    return (hosts if is_clear else "") or "the server"


def _has_ports(hosts: str) -> bool:
    """Return whether what follows a host is the number of a port, and not a password before a missing `@`."""
    after = [host.rpartition("]")[2].partition(":") for host in hosts.split(",")]
    return all(port.isdigit() for _, colon, port in after if colon)


def check_address(address: str, name: str) -> None:
    """Refuse a connection string whose user name or password is not percent-encoded: its parts would be guessed."""
    before = address.partition("://")[2].rpartition("@")[0]
    if before.count(":") > 1 or not {"@", "/", "?"}.isdisjoint(before):
        raise ConfigurationError(
            f"{name} is not valid: percent-encode user name and password, in which @, :, / and ? cannot stand, with "
            "urllib.parse.quote_plus; elsewhere write %40 for an @"
        )
    if not _has_ports(address.partition("://")[2].rpartition("@")[2].partition("?")[0].partition("/")[0]):
        raise ConfigurationError(f"{name} is not valid: a port is no number; is the @ before the host missing?")


def redact(text: str) -> str:
    """Return the text without anything that may be the user and password of a connection string in it."""
    head, slashes, rest = text.partition("//")
    return f"{head}{slashes}{rest.rpartition('@')[2]}"


def check_seconds(value: object, name: str, *, none: str = "", most: float = LONGEST) -> None:
    """Validate a duration in seconds; `none` says what None means, and is empty if None is not allowed.

    Example:
        >>> check_seconds("1d", "ttl", none="to keep turns")
        Traceback (most recent call last):
        ...
        langchain_memkit.errors.ConfigurationError: ttl must be seconds above 0, or None to keep turns; got '1d'
    """
    if value is None and none:
        return
    seconds = float(value) if not isinstance(value, bool) and isinstance(value, Real) else 0.0
    if not 0 < seconds <= most:
        limit = f" and at most {most:.0e}" if seconds > most else ""
        msg = f"{name} must be seconds above 0{limit}{f', or None {none}' if none else ''}; got {value!r:.50}"
        raise ConfigurationError(msg)


# -- ids

IDS = ("session_id", "user_id", "turn_id", "thread_id")
MAX_ID_BYTES = 512
DATABASE = re.compile(r"(sqlite|mongodb|postgres|postgresql|mysql|mariadb|redis)(\+\w+)?://")
WITH_PASSWORD = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/@\s]*:[^/\s]*@")


def check_id(value: object, name: str) -> str:
    """Return an id if it is 1 to 512 bytes of UTF-8 without NUL; raise before any I/O if it is not.

    Strings only: a dict that reaches a filter would become a query operator, and `1` and `"1"` would be two sessions.

    Raises:
        TypeError: It is not a `str`.
        ConfigurationError: A `ValueError`: it is empty, too long, holds NUL or a lone surrogate, or is a connection
            string: ids are shown, and the arguments are probably in the wrong order. Any other address without a
            password is accepted.

    Example:
        >>> check_id({"$ne": None}, "session_id")
        Traceback (most recent call last):
        ...
        TypeError: session_id must be a str, not dict. If yours are numbers or UUIDs, pass str(...).
    """
    text = check_text(value, name, MAX_ID_BYTES)
    if "://" in text and (WITH_PASSWORD.match(text) or DATABASE.match(text)):
        raise ConfigurationError(f"{name} is a connection string: are the arguments in the right order?")
    return text


def check_text(value: object, name: str, most: int, least: int = 1) -> str:
    """Return text, such as a key, if it is `least` to `most` bytes of UTF-8 without NUL or a lone surrogate."""
    if not isinstance(value, str):
        msg = f"{name} must be a str, not {type(value).__name__}. If yours are numbers or UUIDs, pass str(...)."
        raise TypeError(msg)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name} holds a lone surrogate, which is not valid text.") from None
    if not least <= size <= most or "\x00" in value:
        raise ConfigurationError(f"{name} must be {least} to {most} bytes of UTF-8 without NUL; got {size} bytes.")
    return value if type(value) is str else str.__str__(value)


def user_prefix(user_id: str) -> str:
    """Return the prefix of all keys of a user in a key-value store; `purge(user_id)` deletes every key under it.

    The id is percent-quoted, so that no user's prefix is the start of another's, whatever the ids contain; an empty
    string stands for unowned data. What is no valid id is a TypeError or ConfigurationError.

    Example:
        >>> user_prefix("a/b") + "profile", user_prefix("")
        ('a%2Fb/profile', '/')
    """
    return quote(check_text(user_id, "user_id", MAX_ID_BYTES, least=0), safe="") + "/"


def session(session_id: str, *, user_id: str | None = None, turn_id: str | None = None, **more: Any) -> RunnableConfig:
    """Return the config that names a conversation: the second argument of a chain's or an agent's `invoke`.

    It equals `{"configurable": {"session_id": "s1"}}`, with the ids validated at once and a type that type checkers
    know. A LangGraph checkpointer needs a `thread_id` as well: `session("s1", thread_id="t1")`.

    Args:
        session_id: The conversation.
        user_id: The owner; None for apps that do not tell users apart.
        turn_id: The idempotency key, e.g. the id of the request: a repeated call is stored once. None: every call is a
            turn of its own.
        **more: Further keys of `config["configurable"]`; `callbacks`, `tags`, `metadata` and the other keys of a
            `RunnableConfig` go to the top level.

    Returns:
        A new config, yours to change.

    Raises:
        TypeError: An id is not a string.
        ConfigurationError: An id is empty or malformed, or a key is almost the name of an id: `userid`, say.

    Example:
        >>> session("s1", user_id="u1")
        {'configurable': {'session_id': 's1', 'user_id': 'u1'}}
        >>> session("s1", thread_id="t1", tags=["web"])
        {'tags': ['web'], 'configurable': {'session_id': 's1', 'thread_id': 't1'}}
    """
    known = {key.replace("_", ""): key for key in IDS}
    for name in more.keys() - RunnableConfig.__annotations__.keys() - set(IDS):
        # As a key of its own a misspelt id would be ignored, and all users would share a conversation.
        plain = name.replace("_", "").lower()
        near = [key for key in known if key == f"{plain}id"] or get_close_matches(plain, known, n=1, cutoff=0.82)
        if near:
            raise ConfigurationError(
                f"session() has no {name!r}; did you mean {known[near[0]]!r}? A key of your own with this name goes "
                f"into configurable={{{name!r}: ...}}"
            )
    ids = {"session_id": session_id, "user_id": user_id, "turn_id": turn_id}
    checked = {name: check_id(value, name) for name, value in ids.items() if name == "session_id" or value is not None}
    own = {name: more.pop(name) for name in sorted(more.keys() & RunnableConfig.__annotations__.keys())}
    configurable = {**own.pop("configurable", {}), **checked, **more}
    config: RunnableConfig = {**own, "configurable": configurable}  # type: ignore[typeddict-item]  # keys of its own
    return config
