"""A turn, a view of a history, and what a turn under way tells those who take part in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from langchain_core.messages import BaseMessage

from langchain_memkit.base.aliases import TokenCounter

__all__ = [
    "CONTEXT",
    "Head",
    "HistoryMessages",
    "HistoryView",
    "Position",
    "SessionInfo",
    "Turn",
    "TurnContext",
    "Window",
]


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
        notes: What memories recalled, which stands beside the new input and shares the budget as well.
        scale: Share of every budget that may be used: less than 1 after the model said that it was too much.
        used: Set by preprocessors: whether a smaller scale would change anything.
    """

    asked: Sequence[BaseMessage] = ()
    past: Sequence[BaseMessage] = ()
    notes: Sequence[BaseMessage] = ()
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
        """Return whether message `i` is the one that was read, so that what is known of it holds."""
        return len(self) == len(self._read) and self[i] is self._read[i]

    def position(self, i: int) -> Position:
        """Return where message `i` stands."""
        turn = self.turns[i]
        return Position(turn.epoch if turn.seq else self.epoch, turn.seq, turn.op, self._read[i].id)


class Head(NamedTuple):
    """Where a session stands.

    Attributes:
        seq: The last position; 0 for a session that holds nothing.
        epoch: Of its last row.
        base: Position of the last clear; 0 if there was none. What is older is void.
        last: What the last row is: a turn that stays, a turn that goes of itself, or the marker of a clear.
    """

    seq: int
    epoch: int
    base: int
    last: Literal["turn", "expiring turn", "marker"] = "turn"


class HistoryView(NamedTuple):
    """Messages of a session as read at one moment, with the position that a turn built on them is saved against.

    Attributes:
        messages: Oldest first.
        seq: Position of the session's last turn; 0 when there is none.
        epoch: The session's epoch; 0 when the session holds nothing. `append_turn(..., epoch=view.epoch)` refuses
            the turn if the session was cleared or purged in the meantime.
        read_at: When it was read, by the history's clock.
        problems: What could not be read, a line each.
        head: Where the session stood, for `append_turn(..., head=view.head)`; None if that is to be looked up.
    """

    messages: list[BaseMessage]
    seq: int = 0
    epoch: int = 0
    read_at: datetime | None = None
    problems: tuple[str, ...] = ()
    head: Head | None = None


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
