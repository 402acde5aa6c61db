"""Turns and views of a history, and the context that a running turn gives to its preprocessors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable

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


@dataclass(frozen=True, slots=True)
class Window:
    """The part of a history that a preprocessor needs, so that no more than that is read.

    Attributes:
        after: Read everything after this position, and nothing else; the limits do not apply then.
        max_messages: Read the newest turns that together hold at least this many messages; None for no limit.
        max_tokens: Read the newest turns that together hold at least this many tokens; None for no limit.
        counter: Counts these tokens; None for the default.
        summary: A summary of everything up to `after`; handed back with the messages.
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
    """The context that a turn gives to its preprocessors.

    Attributes:
        asked: The new input, which shares the budget with the history.
        past: The history as it was read; the new input follows it directly.
        notes: The notes that memories recalled, which are placed beside the new input and share the budget as well.
        scale: Fraction of every budget that may be used: below 1 after the model said that the prompt was too long.
        used: Set by preprocessors: whether a smaller scale would change anything.
    """

    asked: Sequence[BaseMessage] = ()
    past: Sequence[BaseMessage] = ()
    notes: Sequence[BaseMessage] = ()
    scale: float = 1.0
    used: bool = False


class HistoryMessages(list[BaseMessage]):
    """The messages that our histories return: a list that also knows what was stored about each message.

    After a change of the list that knowledge no longer applies, but it is never wrong: see `knows`.

    Attributes:
        tokens: Tokens of each message, as counted when stored.
        counter: Name of the counter that counted them.
        turns: The turn of each message.
        epoch: The epoch of the session.
        window: The window that was asked for, if any; its `after` is None if the messages begin elsewhere.
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
        """Return whether message `i` is the one that was read, so that the stored facts apply to it."""
        # identity, not equality: an equal message may be another one, at another position
        return len(self) == len(self._read) and self[i] is self._read[i]

    def selected(self, places: Sequence[int]) -> HistoryMessages:
        """Return the messages at these positions as a list of the same kind."""
        tokens, turns = [self.tokens[i] for i in places], [self.turns[i] for i in places]
        return HistoryMessages([self[i] for i in places], tokens, self.counter, turns, self.epoch, self.window)

    def position(self, i: int) -> Position:
        """Return the position of message `i`."""
        turn = self.turns[i]
        return Position(turn.epoch if turn.seq else self.epoch, turn.seq, turn.op, self._read[i].id)


class SessionHead(NamedTuple):
    """The end of a session.

    Attributes:
        seq: The last position; 0 for a session that holds nothing.
        epoch: The epoch of its last row.
        base: Position of the last clear; 0 if there was none. Everything older is void.
        last: The kind of the last row: a turn that stays, a turn that expires, or the tombstone of a clear.
    """

    seq: int
    epoch: int
    base: int
    last: Literal["turn", "expiring turn", "marker"] = "turn"


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
    """

    messages: list[BaseMessage]
    seq: int = 0
    epoch: int = 0
    read_at: datetime | None = None
    problems: tuple[str, ...] = ()
    head: SessionHead | None = None


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session in the result of `list_sessions`.

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
