"""Sources of conversations: memkit's own stores here, those of other packages in `foreign`."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from langchain_memkit._histories import is_native, read_messages
from langchain_memkit._sync import run_step
from langchain_memkit.base import TokenCounter, Turn, describe_type, utc_now
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.trimming import MAX_BATCH_MESSAGES, turn_starts
from langchain_memkit.stores.changes import UserLog
from langchain_memkit.stores.history import HistoryFactory, TurnHistory, TurnStore

P = ParamSpec("P")
T = TypeVar("T")
AnyFactory: TypeAlias = HistoryFactory[Any]
"""A factory of any of memkit's histories."""
ROW = "row:"
"""Prefix of the turn id of a single message from another package's store; neighbouring ones form one turn."""
DECIDED = ("entities", "preferences")
"""The indexes that hold decisions."""
PAGE = 1000  # rows that are read at once


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
    if not rows or (rows[-1].op == turn.op and turn.seq == 0):
        return rows  # memkit wrote them as one turn
    if turn.seq or len(turn.messages) != 1 or not (turn.op.startswith(ROW) and rows[-1].op.startswith(ROW)):
        return []
    message = turn.messages[0]
    if len(rows) >= MAX_BATCH_MESSAGES and not isinstance(message, ToolMessage):
        return []
    if not isinstance(message, HumanMessage):
        return rows
    return rows[turn_starts([*(row.messages[0] for row in rows), message])[-1] :]


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

    session_id: object
    user_id: str
    turns: Callable[[], Iterator[Turn]]
    counter: TokenCounter | None = None
    by_id: bool = False


class Decision(NamedTuple):
    """What an app or a user decided, as memories keep it beside the turns: two names are one, a line is removed.

    Attributes:
        user_id: The user.
        name: The index that it belongs to.
        op: Its name, under which it is stored once.
        created_at: When it was made.
        data: What was decided.
    """

    user_id: str
    name: str
    op: str
    created_at: datetime | None
    data: bytes


@dataclass(frozen=True)
class ConversationSource:
    """Conversations that `migrate` can read.

    Attributes:
        conversations: Iterates over them.
        size: Returns the number of rows, for the progress bar; None if it is unknown.
        copies: The prefix of the keys of turns that may have been made of the target's own. Then nothing is moved.
        drop: Deletes a conversation that has arrived as a whole; None where the source is not to be changed.
        decisions: Iterates over the decisions, user by user, each in the order in which they were made.
    """

    conversations: Callable[[], Generator[Conversation, None, None]]
    size: Callable[[], int | None] = lambda: None
    copies: str = ""
    drop: Callable[[Conversation], None] | None = None
    decisions: Callable[[], Iterator[Decision]] = lambda: iter(())


AnySource: TypeAlias = AnyFactory | ConversationSource
"""What `migrate` reads: a factory of any of memkit's histories, or a source."""


def history_source(factory: AnyFactory, user_id: str | None = None, *, native_only: bool = False) -> ConversationSource:
    """Return a source over memkit's histories, hidden turns included; a subclass is read through its `messages`."""
    store = factory.turn_store
    owners = store.run(store.owners()) if user_id is None else [user_id]
    sessions = [(owner, found) for owner in owners for found in store.run(store.sessions(owner, hidden=True))]

    def turns(history: TurnHistory) -> Iterator[Turn]:
        if is_native(history):
            turns = history.iter_turns(after_seq=0 if native_only else None, hidden=True)
            yield from (turn for turn in turns if not turn.is_replaced)
            return
        place = f"{history.user_id!r} {history.session_id!r}"
        for i, message in enumerate(run_step(read_messages(history))):
            name = ("history", place, message.id or f"{i} {message.type} {message.content!r}")
            yield message_turn(message.model_copy(), name, None, "")

    def conversations() -> Generator[Conversation, None, None]:
        for owner, found in sessions:
            try:
                history = factory(found.session_id, owner or None)
                read, counter = partial(turns, history), history.token_counter
            except (ConfigurationError, ValueError) as error:  # an id of another package that is invalid here
                read, counter = partial(iter, [unreadable(str(error))]), None
            yield Conversation(found.session_id, owner, read, counter)

    def decisions() -> Iterator[Decision]:
        for owner in filter(None, owners if store.keeps_index else ()):
            yield from _decisions_of(store, owner)

    size = partial(sum, [found.turns for _, found in sessions])
    return ConversationSource(conversations, size, decisions=decisions)


def _decisions_of(store: TurnStore, user_id: str) -> Iterator[Decision]:
    """Yield the decisions of a user that hold."""
    log = UserLog()
    since, has_more = None, True
    while has_more:
        page = store.run(store.changes(user_id, since, DECIDED, PAGE))
        log.apply((row for row in page.rows if not row.session_id), utc_now())
        since, has_more = page.mark, page.has_more
    for row in log.decisions():
        for name, data in row.index.items():
            yield Decision(user_id, name, row.op, row.created_at, data)


def unreadable(text: str) -> Turn:
    """Return a turn without messages that reports what could not be read."""
    return Turn(seq=0, epoch=0, op="", created_at=None, messages=[], tokens=[], problems=[text])


def message_turn(
    message: BaseMessage, name: tuple[str, str, str], when: datetime | None, where: str, lost: Iterable[str] = ()
) -> Turn:
    """Make a turn of one message, with the problems that it has.

    Its key, and its id if it has none, are a hash of the kind of source, the position and the content, so that they are
    the same in every run.
    """
    digest = hashlib.sha256("\x00".join(name).encode("utf-8", "surrogatepass")).hexdigest()[:32]
    if not message.id:
        message.id = f"{name[0]}-{digest}"
    op, problems = f"{ROW}{name[0]}:{digest}", [f"{where}, {line}" for line in lost]
    return Turn(seq=0, epoch=0, op=op, created_at=when, messages=[message], tokens=[], problems=problems)


def checked(factory: object, name: str = "factory", other: str = "") -> AnyFactory:
    """Return the argument if it is a factory of memkit's histories; raise a ConfigurationError if not."""
    if not isinstance(factory, HistoryFactory):
        found = describe_type(factory, HistoryFactory)
        raise ConfigurationError(f"{name} must be a factory of our histories, X.factory(...){other}, not {found}")
    return factory


def opened(source: object, *, native_only: bool = False, user_id: str | None = None) -> ConversationSource:
    """Return the argument as a source; from a factory only conversations of `user_id`, an empty string for no owner."""
    if isinstance(source, ConversationSource):
        return source
    other = ", or from langchain_sql_source, langchain_file_source, langchain_memory_source, langgraph_source or "
    other += "vector_records_source"
    return history_source(checked(source, "source", other), user_id, native_only=native_only)


def in_thread(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Return the async twin of a function, which runs it in a worker thread."""

    @wraps(function)
    async def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(function, *args, **kwargs)

    twin.__name__ = twin.__qualname__ = f"a{function.__name__}"
    twin.__doc__ = f"Run `{function.__name__}` in a worker thread."
    return twin


def utc_date(value: object, *, aware: bool = False) -> datetime | None:
    """Parse a date into UTC; None if it is missing or out of range, or naive where it must be aware."""
    with suppress(ValueError, OverflowError):
        found = datetime.fromisoformat(str(value))
        if found.tzinfo is not None:
            return found.astimezone(UTC)
        return None if aware else found.replace(tzinfo=UTC)
    return None
