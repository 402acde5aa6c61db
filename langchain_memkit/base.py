"""The words of the package: a turn, a view of a history, and the few aliases that everything else is made of.

*Memory is a list of messages.* A history keeps turns; a view is what was read of it; a preprocessor takes messages and
returns messages. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable
from urllib.parse import quote

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable

__all__ = [
    "CONTEXT",
    "GetSessionHistory",
    "HistoryMessages",
    "HistoryView",
    "Now",
    "Position",
    "Preprocessor",
    "Purgeable",
    "SessionInfo",
    "TokenCounter",
    "TokenCounterLike",
    "Turn",
    "TurnContext",
    "Window",
    "apurge_user",
    "check_id",
    "check_text",
    "purge_user",
    "user_prefix",
    "utc_now",
]

Preprocessor: TypeAlias = Runnable[list[BaseMessage], list[BaseMessage]]
"""Messages in, messages out: `trim_messages(...)` of LangChain is one already."""

GetSessionHistory: TypeAlias = Callable[..., Any]
"""`get_session_history(session_id, user_id=None)`: returns a LangChain chat history, or is a coroutine that does."""

TokenCounter: TypeAlias = Callable[[Sequence[BaseMessage]], int]
"""Messages in, tokens out."""

TokenCounterLike: TypeAlias = TokenCounter | Callable[[BaseMessage], int] | BaseLanguageModel[Any] | str | None
"""What a `token_counter` argument takes; `messages.counting.resolve_counter` says what each of them means."""

Now: TypeAlias = Callable[[], datetime]
"""A clock: returns the present as an aware datetime in UTC."""

MAX_ID_BYTES = 512


def utc_now() -> datetime:
    """The present, aware, in UTC: the default clock."""
    return datetime.now(UTC)


def check_id(value: object, name: str) -> str:
    """Returns `value` if it can serve as an id, and raises before any I/O otherwise.

    Strings only: a dict that reaches a filter would become a query operator, and `1` and `"1"` would be two sessions.

    Args:
        value: What the caller passed.
        name: The argument's name, for the error.

    Returns:
        The same value, now known to be 1 to 512 bytes of UTF-8 without NUL.

    Raises:
        TypeError: It is not a `str`.
        ValueError: It is empty, too long, or holds NUL or a lone surrogate.

    Example:
        >>> check_id("s1", "session_id")
        's1'
        >>> check_id({"$ne": None}, "session_id")
        Traceback (most recent call last):
        ...
        TypeError: session_id must be a str, not dict. If yours are numbers or UUIDs, pass str(...).
    """
    return check_text(value, name, MAX_ID_BYTES)


def check_text(value: object, name: str, most: int, least: int = 1) -> str:
    """`check_id` for text of another size: keys, for one.

    Args:
        value: What the caller passed.
        name: The argument's name, for the error.
        most: The greatest size, in bytes of UTF-8.
        least: The smallest size, in bytes of UTF-8.

    Returns:
        The same value, now known to be plain text of that size without NUL.

    Raises:
        TypeError: It is not a `str`.
        ValueError: It is too short or too long, or holds NUL or a lone surrogate.

    Example:
        >>> check_text("", "prefix", most=4096, least=0)
        ''
    """
    if not isinstance(value, str):
        msg = f"{name} must be a str, not {type(value).__name__}. If yours are numbers or UUIDs, pass str(...)."
        raise TypeError(msg)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        msg = f"{name} holds a lone surrogate, which is not valid text."
        raise ValueError(msg) from None
    if not least <= size <= most or "\x00" in value:
        msg = f"{name} must be {least} to {most} bytes of UTF-8 without NUL; got {size} bytes."
        raise ValueError(msg)
    return value if type(value) is str else str.__str__(value)


def user_prefix(user_id: str) -> str:
    """What every key of a user begins with in a key-value store; `purge(user_id)` deletes all that lies under it.

    The id is percent-quoted, so that no user's prefix begins another's, whatever the ids are made of.

    Args:
        user_id: Whose; an empty string for what belongs to nobody.

    Returns:
        The quoted id and a slash: put the rest of the key behind it.

    Raises:
        TypeError: It is not a `str`.
        ValueError: It is no valid id.

    Example:
        >>> user_prefix("a/b") + "profile", user_prefix("")
        ('a%2Fb/profile', '/')
    """
    return quote(check_text(user_id, "user_id", MAX_ID_BYTES, least=0), safe="") + "/"


@dataclass(frozen=True, slots=True)
class Turn:
    """One stored row: what one `append_turn` or `add_messages` call wrote, at once.

    Attributes:
        seq: Position in the session, without gaps; 0 for rows that another package wrote before ours.
        epoch: Changes when the session is cleared; compare for equality only.
        op: The turn's id in the store: calling twice with the same one stores once.
        created_at: When it was stored, aware, UTC.
        messages: Its messages in order. Damaged ones are left out.
        tokens: Tokens of each message, as counted when it was stored.
        problems: What could not be read of this row, a line each; empty for a sound row.
        expires_at: When it goes of itself; None for never.
    """

    seq: int
    epoch: int
    op: str
    created_at: datetime | None
    messages: list[BaseMessage]
    tokens: list[int]
    problems: list[str] = field(default_factory=list)
    expires_at: datetime | None = None


class Position(NamedTuple):
    """A message of a session, as the place up to which something is known: a summary covers everything up to it.

    Attributes:
        epoch: Of the session.
        seq: Of its turn; 0 in rows of other packages, which have no positions.
        op: The turn's id in the store.
        message_id: The message in the turn; None where it has no id.
    """

    epoch: int
    seq: int
    op: str
    message_id: str | None


@dataclass(frozen=True, slots=True)
class Window:
    """What of a history a preprocessor needs, so that no more than that is read.

    Attributes:
        after: Only what comes after this position, all of it; the limits do not count then.
        max_messages: The newest turns that hold at least so many messages; None for no limit.
        max_tokens: The newest turns that hold at least so many tokens; None for no limit.
        counter: What these are counted with; None for the default.
        summary: What is known of everything up to `after`; handed back with the messages.
    """

    after: Position | None = None
    max_messages: int | None = None
    max_tokens: int | None = None
    counter: TokenCounter | None = None
    summary: Any = None


CONTEXT = "memkit_context"
"""The key of `config["configurable"]` under which a `TurnContext` travels."""


@dataclass(slots=True)
class TurnContext:
    """What a turn tells the preprocessors in it.

    Attributes:
        asked: The new input, which shares the budget with the history.
        past: The history as it was read: after this, and after nothing else, comes the new input.
        scale: Share of every budget that may be used: less than 1 after the model said that it was too much.
        used: Set by preprocessors: whether a smaller scale would change anything.
    """

    asked: Sequence[BaseMessage] = ()
    past: Sequence[BaseMessage] = ()
    scale: float = 1.0
    used: bool = False


class HistoryMessages(list[BaseMessage]):
    """Messages as our histories give them: a list that also knows what was stored about each message.

    Changing the list makes that knowledge void, not wrong.

    Attributes:
        tokens: Tokens of each message, as counted when stored.
        counter: Name of the counter that counted them.
        turns: The turn of each message.
        epoch: Of the session.
        window: The window that was asked for, if one was; its `after` is None if what was read begins elsewhere.
    """

    def __init__(
        self,
        messages: Sequence[BaseMessage],
        tokens: Sequence[int],
        counter: str,
        turns: Sequence[Turn],
        epoch: int,
        window: Window | None = None,
    ) -> None:
        super().__init__(messages)
        self.tokens = tokens
        self.counter = counter
        self.turns = turns
        self.epoch = epoch
        self.window = window
        self._read = tuple(messages)

    def knows(self, i: int) -> bool:
        """Whether message `i` is the one that was read, so that what is known of it holds."""
        return len(self) == len(self._read) and self[i] is self._read[i]

    def position(self, i: int) -> Position:
        """Where message `i` stands."""
        turn = self.turns[i]
        return Position(turn.epoch if turn.seq else self.epoch, turn.seq, turn.op, self._read[i].id)


class HistoryView(NamedTuple):
    """Messages of a session as read at one moment, with the position that a turn built on them is saved against.

    Attributes:
        messages: Oldest first.
        seq: Position of the session's last turn; 0 when there is none.
        epoch: The session's epoch; 0 when the session holds nothing. `append_turn(..., epoch=view.epoch)` refuses
            the turn if the session was cleared or purged in the meantime.
        read_at: When it was read, by the history's clock.
        problems: What could not be read, a line each.
    """

    messages: list[BaseMessage]
    seq: int = 0
    epoch: int = 0
    read_at: datetime | None = None
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One line of `list_sessions`.

    Attributes:
        session_id: The conversation.
        turns: Rows stored for it (rows of other packages included).
        created_at: Time of its first row, aware, UTC, if known.
        updated_at: Time of its last row, aware, UTC, if known.
    """

    session_id: str
    turns: int
    created_at: datetime | None
    updated_at: datetime | None


@runtime_checkable
class Purgeable(Protocol):
    """Anything that can forget a user: the factories of our histories, and later memories and stores."""

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Deletes all content of the user and returns counts."""
        ...

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Async twin of `purge`."""
        ...


def purge_user(user_id: str, *parts: Purgeable) -> list[Mapping[str, int]]:
    """Forgets a user in every part of an app: histories first, then what was derived from them.

    Args:
        user_id: Whose content goes.
        *parts: The factories, stores and memories in use, in any order.

    Returns:
        What each part deleted, in the order of `parts`.

    Raises:
        TypeError: `user_id` is no string.
        ValueError: `user_id` is no valid id.
        HistoryWriteError: A part failed; calling again continues.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> histories("s1", "u1").add_user_message("hello")
        >>> purge_user("u1", histories)
        [{'sessions': 1, 'turns': 1}]
    """
    check_id(user_id, "user_id")
    return [part.purge(user_id) for part in parts]


async def apurge_user(user_id: str, *parts: Purgeable) -> list[Mapping[str, int]]:
    """Async twin of `purge_user`."""
    check_id(user_id, "user_id")
    return [await part.apurge(user_id) for part in parts]
