"""Sources of conversations: memkit's own stores here, those of other packages in `foreign`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage

from langchain_memkit._histories import is_native
from langchain_memkit.base import TokenCounter, Turn, describe_type
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.trimming import MAX_BATCH_MESSAGES
from langchain_memkit.stores.history import HistoryFactory

ROW = "row:"
"""Prefix of the turn id of a single message from another package's store; neighbouring ones form one turn."""


def whole_turns(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Group rows of one message each, as other packages store them, into turns; other turns are passed on unchanged."""
    rows: list[Turn] = []
    for turn in turns:
        keep = _rows_of_next_turn(rows, turn)
        if len(keep) < len(rows):
            yield _joined(rows[: len(rows) - len(keep)])
            rows = keep
        # Rows of other packages have no position; question and answer documents are turns already.
        if turn.seq == 0 and len(turn.messages) == 1 and not turn.op.startswith("qa:"):
            rows.append(turn)
        else:
            yield turn
    if rows:
        yield _joined(rows)


def _rows_of_next_turn(rows: list[Turn], turn: Turn) -> list[Turn]:
    """Return which collected rows belong to the same turn as this row.

    All of them while their turn continues; the system messages directly before a question; none if a turn begins.
    """
    if not rows:
        return rows
    if rows[-1].op == turn.op and turn.seq == 0:
        return rows  # memkit wrote them as one turn
    if turn.seq or len(turn.messages) != 1 or not (turn.op.startswith(ROW) and rows[-1].op.startswith(ROW)):
        return []
    if len(rows) >= MAX_BATCH_MESSAGES and not isinstance(turn.messages[0], ToolMessage):
        return []
    if not isinstance(turn.messages[0], HumanMessage):
        return rows
    system = len(rows)
    while system > 0 and isinstance(rows[system - 1].messages[0], SystemMessage):
        system -= 1
    # A human message right after another one (and system messages between) continues the same turn.
    asks_on = system > 0 and isinstance(rows[system - 1].messages[0], HumanMessage)
    return rows if asks_on or system == 0 else rows[system:]


def _joined(rows: list[Turn]) -> Turn:
    messages = [m for row in rows for m in row.messages]
    return replace(rows[0], messages=messages, tokens=[n for row in rows for n in row.tokens], problems=[])


@dataclass(frozen=True, slots=True)
class Conversation:
    """One conversation of a source; read it before the next one is requested.

    Attributes:
        session_id: The session's id in the source, which may be invalid in the target.
        user_id: The owner; an empty string for none.
        turns: Reads the turns, oldest first.
        counter: The counter of the turns' token counts; turns without counts are counted when they are stored.
        by_id: Whether the target is searched for the messages' own ids, whatever turn they belong to.
    """

    session_id: Any
    user_id: str
    turns: Callable[[], Iterator[Turn]]
    counter: TokenCounter | None = None
    by_id: bool = False


class ConversationSource(Protocol):
    """The interface that `migrate` reads from."""

    def size(self) -> int | None:
        """Return the number of rows, for the progress bar; None if it is unknown."""

    def conversations(self) -> Iterator[Conversation]:
        """Iterate over the conversations."""


class HistorySource:
    """Source over a factory of memkit's histories, hidden turns included; a subclass is read through its `messages`."""

    def __init__(self, factory: HistoryFactory[Any], user_id: str | None = None, *, native_only: bool = False) -> None:
        self._factory = factory
        self._native_only = native_only
        self._counter = _counter_of(factory)
        store = factory.turn_store
        owners = store.run(store.owners()) if user_id is None else [user_id]
        self._sessions = [(owner, found) for owner in owners for found in store.run(store.sessions(owner, hidden=True))]

    def size(self) -> int:
        """Return the number of stored rows."""
        return sum(found.turns for _, found in self._sessions)

    def conversations(self) -> Iterator[Conversation]:
        """Iterate over the sessions of every user."""
        for owner, found in self._sessions:
            try:
                turns = partial(self._turns, self._factory(found.session_id, owner or None))
            except (ConfigurationError, ValueError) as error:  # an id of another package that is invalid here
                turns = partial(iter, [unreadable(str(error))])
            yield Conversation(found.session_id, owner, turns, self._counter)

    def _turns(self, history: Any) -> Iterator[Turn]:
        if not is_native(history):
            place = f"{history.user_id!r} {history.session_id!r}"
            for i, message in enumerate(history.messages):
                name = ("history", place, message.id or f"{i} {message.type} {message.content!r}")
                yield message_turn(message.model_copy(), name, None, "")
            return
        yield from history.iter_turns(after_seq=0 if self._native_only else None, hidden=True)


def unreadable(text: str) -> Turn:
    """Return a turn without messages that reports what could not be read."""
    return Turn(seq=0, epoch=0, op="", created_at=None, messages=[], tokens=[], problems=[text])


def message_turn(
    message: BaseMessage, name: tuple[str, str, str], when: datetime | None, where: str, lost: Iterable[str] = ()
) -> Turn:
    """Make a turn of one message.

    Its key, and its id if it has none, are a hash of its position and content, so that they are the same in every run.

    Args:
        message: The message; it is given an id if it has none.
        name: The kind of source, the position and the content.
        when: When it was written; None if unknown.
        where: The position, for the report.
        lost: Problems of the message, for the report.
    """
    digest = hashlib.sha256("\x00".join(name).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if not message.id:
        message.id = f"{name[0]}-{digest}"
    return Turn(
        seq=0,
        epoch=0,
        op=f"{ROW}{name[0]}:{digest}",
        created_at=when,
        messages=[message],
        tokens=[],
        problems=[f"{where}, {line}" for line in lost],
    )


def checked(factory: HistoryFactory[Any], name: str = "factory") -> HistoryFactory[Any]:
    """Validate that the argument is a factory of memkit's histories.

    Raises:
        ConfigurationError: It is something else.
    """
    if not isinstance(factory, HistoryFactory):
        msg = f"{name} must be a factory of our histories, X.factory(...), not {describe_type(factory, HistoryFactory)}"  # type: ignore[unreachable]  # callers without types
        raise ConfigurationError(msg)
    return factory


def _counter_of(factory: HistoryFactory[Any]) -> TokenCounter | None:
    """Return the token counter of a factory's histories; some layouts need a user, others refuse one."""
    try:
        history = factory("-", "-")
    except ConfigurationError:
        history = factory("-")
    counter: TokenCounter | None = history.token_counter
    return counter


def opened(
    source: HistoryFactory[Any] | ConversationSource, *, native_only: bool = False, user_id: str | None = None
) -> ConversationSource:
    """Return the argument as a source; from a factory only conversations of `user_id`, an empty string for no owner.

    Raises:
        ConfigurationError: It is neither a factory of memkit nor the result of a function for sources.
    """
    if isinstance(source, HistoryFactory):
        return HistorySource(source, user_id, native_only=native_only)
    if not callable(getattr(source, "conversations", None)):
        msg = (
            "source must be a factory of histories, or what langchain_sql_source, langchain_file_source, "
            f"langchain_memory_source or langgraph_source returned; got {describe_type(source, type(None))}"
        )
        raise ConfigurationError(msg)
    return source
