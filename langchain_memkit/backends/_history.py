"""The verbs of our chat histories, written once for both call styles and for every store.

Not an interface to build on: a backend of your own implements LangChain's chat history and runs
`langchain_memkit.testing.ChatMessageHistoryContract`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

from langchain_core.messages import BaseMessage

from langchain_memkit._compat import BaseChatMessageHistory
from langchain_memkit._flow import Flow
from langchain_memkit.base import HistoryView, SessionInfo, TokenCounter, Turn, check_id
from langchain_memkit.errors import (
    ConfigurationError,
    IdempotencyConflictError,
    MessageDecodeError,
    MessageEncodeError,
)
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_message, encode_messages
from langchain_memkit.messages.turns import (
    batch_op,
    count_tokens,
    counter_name,
    cut_tail,
    same_messages,
    split_batch,
    with_ids,
)

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")
H = TypeVar("H", bound="TurnHistory")

FORWARD_PAGE = 200
BACKWARD_PAGE = 64
MAX_PAGE = 2000


class Scope(NamedTuple):
    """Whose conversation: `user_id` is an empty string for the unowned space, which no caller can name."""

    user_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class Row:
    """One document to be stored: encoded messages with their tokens."""

    op: str
    messages: list[dict[str, Any]]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """What one call stores: usually one row, several for a long import."""

    given: list[BaseMessage]
    identified: list[BaseMessage]
    rows: list[Row]
    turn_id: str | None

    @property
    def error_context(self) -> dict[str, Any]:
        """What a `HistoryWriteError` about this batch carries."""
        return {"messages": self.identified, "turn_id": self.turn_id}


class Head(NamedTuple):
    """Where a session stands. `base` is the position of the last clear (0: never cleared); older rows are void."""

    seq: int
    epoch: int
    base: int


EMPTY = Head(0, 0, 0)


def admits(head: Head | None, epoch: int | None, purged: int) -> bool:
    """Whether a turn that loaded `epoch` may still be stored.

    Args:
        head: The session now; None if it holds nothing.
        epoch: What the turn saw when it began: the session's epoch, or `purged` of that moment for an empty session;
            None for callers that did not load first.
        purged: Changes whenever the user is purged; 0 if that never happened.
    """
    if epoch is None or (head is not None and head.epoch == epoch):
        return True
    return (head is None or head.base == 0) and epoch == purged


def new_epoch() -> int:
    """A random 63-bit value, never 0."""
    return secrets.randbits(63) or 1


def read_turn(row: Mapping[str, Any], counter: TokenCounter | None) -> Turn:
    """A stored row as a `Turn`; what is damaged or newer than this version becomes a line in `problems`."""
    seq = row.get("seq")
    where = f"turn {seq!r:.20}"
    created_at = row.get("createdAt")
    turn = Turn(
        seq if isinstance(seq, int) else 0,
        row["epoch"] if isinstance(row.get("epoch"), int) else 0,
        str(row.get("op")),
        created_at if isinstance(created_at, datetime) else None,
        [],
        [],
    )
    version, stored = row.get("v"), row.get("messages")
    if version != FORMAT_VERSION:
        turn.problems.append(f"{where}: format {version!r:.20}, this version reads {FORMAT_VERSION}; is memkit older here?")
    elif not isinstance(stored, list):
        turn.problems.append(f"{where}: no list of messages")
    else:
        tokens = row.get("tokens")
        trusted = row.get("token_counter") == counter_name(counter) and _are_counts(tokens, len(stored))
        for i, data in enumerate(stored):
            try:
                message = decode_message(data)
            except MessageDecodeError as error:
                turn.problems.append(f"{where} message {i}: {error}")
                continue
            turn.messages.append(message)
            turn.tokens.append(tokens[i] if trusted and tokens else count_tokens([message], counter)[0])
    return turn


def _are_counts(tokens: Any, size: int) -> bool:
    return isinstance(tokens, list) and len(tokens) == size and all(isinstance(n, int) and n >= 0 for n in tokens)


def stored_or_conflict(batch: Batch, index: int, stored: Turn) -> int:
    """The position of a row that a retry found stored already, if it says the same.

    Raises:
        IdempotencyConflictError: It says something else.
    """
    begin = sum(len(row.messages) for row in batch.rows[:index])
    given = batch.given[begin : begin + len(batch.rows[index].messages)]
    if not same_messages(stored.messages, given):
        msg = (
            f"turn {batch.rows[index].op!r} is stored already at position {stored.seq}, with other messages. "
            "Use a new turn_id (or new message ids) for a new turn."
        )
        raise IdempotencyConflictError(msg, stored=stored.messages, **batch.error_context)
    return stored.seq


class Page(NamedTuple):
    """Turns newest first, the session's `seq` and `epoch` as seen by this read, and where to go on.

    For a session that holds nothing, `epoch` is what `admits` calls `purged`.
    """

    turns: list[Turn]
    seq: int
    epoch: int
    older: Any | None


class TurnStore(Protocol):
    """What a backend implements for `TurnHistory` and `HistoryFactory`; all but the runners return flows."""

    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...
    def append(self, scope: Scope, batch: Batch, expected_seq: int | None, epoch: int | None) -> Flow[int]: ...
    def page_back(self, scope: Scope, older: Any | None, limit: int) -> Flow[Page]: ...
    def page_forward(self, scope: Scope, after: Any | None, limit: int) -> Flow[tuple[list[Turn], Any | None]]: ...
    def stored_ids(self, scope: Scope, ids: Sequence[str]) -> Flow[set[str]]: ...
    def flag(self, scope: Scope, seq: int, *, deleted: bool) -> Flow[bool]: ...
    def clear(self, scope: Scope) -> Flow[None]: ...
    def sessions(self, user_id: str) -> Flow[list[SessionInfo]]: ...
    def purge(self, user_id: str) -> Flow[dict[str, int]]: ...
    def setup(self) -> Flow[None]: ...
    def close(self) -> None: ...
    async def aclose(self) -> None: ...


def prepare(messages: Iterable[BaseMessage], turn_id: str | None, counter: TokenCounter | None) -> Batch:
    """Checks, identifies, encodes, counts and, if it is a long import, splits a batch. No I/O."""
    given = list(messages)
    for i, message in enumerate(given):
        if not isinstance(message, BaseMessage):
            raise MessageEncodeError(f"messages[{i}]", f"is a {type(message).__qualname__}, not a message")
    identified = with_ids(given)
    encoded = encode_messages(identified)
    tokens = count_tokens(identified, counter)
    op = batch_op(identified, None if turn_id is None else check_id(turn_id, "turn_id"))
    sizes = [len(str(data).encode("utf-8", "replace")) for data in encoded]
    ranges = split_batch(identified, sizes)
    names = [op] if len(ranges) == 1 else [f"{op}#{i:06d}" for i in range(len(ranges))]
    rows = [Row(name, encoded[a:b], tokens[a:b]) for name, (a, b) in zip(names, ranges, strict=True)]
    return Batch(given, identified, rows, turn_id)


class TurnHistory(BaseChatMessageHistory):
    """Verbs shared by `SQLiteChatMessageHistory` and `MongoDBChatMessageHistory`; see there."""

    def __init__(
        self,
        store: TurnStore,
        session_id: str,
        user_id: str | None,
        *,
        history_size: int | None,
        token_counter: TokenCounter | None,
        on_corrupt: Literal["report", "raise"],
    ) -> None:
        if on_corrupt not in ("report", "raise"):
            msg = f"on_corrupt must be 'report' or 'raise', not {on_corrupt!r}"
            raise ConfigurationError(msg)
        self.session_id = check_id(session_id, "session_id")
        self.user_id = None if user_id is None else check_id(user_id, "user_id")
        self.history_size = _limit(history_size, "history_size")
        self.token_counter = token_counter
        self._on_corrupt = on_corrupt
        self._store = store
        self._scope = Scope(self.user_id or "", self.session_id)

    def __repr__(self) -> str:
        """Names the session, never the server."""
        return f"{type(self).__name__}(session_id={self.session_id!r}, user_id={self.user_id!r})"

    # -- reading

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # core declares an attribute
        """The conversation, oldest first: all of it, or the newest `history_size` messages cut at a turn."""
        return self.view(max_messages=self.history_size).messages

    async def aget_messages(self) -> list[BaseMessage]:
        """Async twin of `messages`."""
        return (await self.aview(max_messages=self.history_size)).messages

    def tail(self, *, max_messages: int | None = None, max_tokens: int | None = None) -> list[BaseMessage]:
        """The newest messages within both limits, oldest first, beginning at a turn.

        Costs what it returns: rows are read backwards, and token counts were stored with the messages.

        Args:
            max_messages: At most this many messages; None for no limit.
            max_tokens: At most this many tokens, as counted when stored; None for no limit.

        Returns:
            Whole turns, oldest first. If the newest turn alone is over a limit, its newest whole tool groups that fit.

        Raises:
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> history = SQLiteChatMessageHistory(":memory:", "s1")
            >>> for text in ("one", "two"):
            ...     history.add_messages([HumanMessage(text), AIMessage(text.upper())])
            >>> [m.content for m in history.tail(max_messages=3)]
            ['two', 'TWO']
        """
        return self.view(max_messages=max_messages, max_tokens=max_tokens).messages

    async def atail(self, *, max_messages: int | None = None, max_tokens: int | None = None) -> list[BaseMessage]:
        """Async twin of `tail`."""
        return (await self.aview(max_messages=max_messages, max_tokens=max_tokens)).messages

    def view(self, *, max_messages: int | None = None, max_tokens: int | None = None) -> HistoryView:
        """`tail` together with the position it was read at: what a turn loads, and is later saved against.

        Args:
            max_messages: As in `tail`.
            max_tokens: As in `tail`.

        Returns:
            Messages, the session's `seq` and `epoch`, and a line for everything that could not be read.

        Raises:
            HistoryReadError: The store cannot be reached or read.
        """
        return self._store.run(self._view(max_messages, max_tokens))

    async def aview(self, *, max_messages: int | None = None, max_tokens: int | None = None) -> HistoryView:
        """Async twin of `view`."""
        return await self._store.arun(self._view(max_messages, max_tokens))

    def iter_turns(self, *, after_seq: int | None = None, before_seq: int | None = None) -> Iterator[Turn]:
        """Every stored turn, oldest first, a page at a time, so that any length fits in memory.

        Args:
            after_seq: Only turns after this position; None for all, rows of langchain-mongodb included.
            before_seq: Only turns before this position; None for no end.

        Returns:
            An iterator of `Turn`; damaged messages are left out and reported.

        Raises:
            HistoryReadError: The store cannot be reached or read.
        """
        after: Any | None = after_seq
        while True:
            turns, after = self._store.run(self._page_forward(after, before_seq))
            yield from turns
            if after is None:
                return

    async def aiter_turns(
        self, *, after_seq: int | None = None, before_seq: int | None = None
    ) -> AsyncIterator[Turn]:
        """Async twin of `iter_turns`."""
        after: Any | None = after_seq
        while True:
            turns, after = await self._store.arun(self._page_forward(after, before_seq))
            for turn in turns:
                yield turn
            if after is None:
                return

    def iter_messages(self, *, after_seq: int | None = None, before_seq: int | None = None) -> Iterator[BaseMessage]:
        """Every message, oldest first, without holding the conversation in memory; arguments as in `iter_turns`."""
        for turn in self.iter_turns(after_seq=after_seq, before_seq=before_seq):
            yield from turn.messages

    async def aiter_messages(
        self, *, after_seq: int | None = None, before_seq: int | None = None
    ) -> AsyncIterator[BaseMessage]:
        """Async twin of `iter_messages`."""
        async for turn in self.aiter_turns(after_seq=after_seq, before_seq=before_seq):
            for message in turn.messages:
                yield message

    def stored_ids(self, ids: Sequence[str]) -> set[str]:
        """Which of these message ids the session holds: one indexed query."""
        return self._store.run(self._store.stored_ids(self._scope, ids)) if ids else set()

    async def astored_ids(self, ids: Sequence[str]) -> set[str]:
        """Async twin of `stored_ids`."""
        return await self._store.arun(self._store.stored_ids(self._scope, ids)) if ids else set()

    # -- writing

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Appends a batch as one atomic turn; `append_turn` without its options."""
        self.append_turn(messages)

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Async twin of `add_messages`."""
        await self.aappend_turn(messages)

    def append_turn(
        self,
        messages: Sequence[BaseMessage],
        *,
        turn_id: str | None = None,
        expected_seq: int | None = None,
        epoch: int | None = None,
    ) -> int:
        """Stores one turn, whole or not at all, once.

        Args:
            messages: The turn, oldest first. Messages without an id are stored with one; yours are not changed. More
                than 100 messages (or 4 MB) holding several turns are an import: stored in order as several rows, and
                continued, not doubled, by a second call with the same ids.
            turn_id: Calling again with the same id stores nothing new. Default: derived from the messages' ids.
            expected_seq: Store only if this is the position of the last turn (`view().seq`).
            epoch: Store only if the session was not cleared since (`view().epoch`).

        Returns:
            The position of the turn; for an empty batch 0, and nothing is stored.

        Raises:
            MessageEncodeError: A value would not come back equal; nothing was stored.
            MessageTooLargeError: The turn does not fit into one document.
            StaleTurnError: The session was cleared after `epoch` was read.
            HistoryConflictError: `expected_seq` is not the last position.
            IdempotencyConflictError: The same `turn_id` is stored with other content.
            HistoryWriteError: The store failed; `maybe_stored` says whether the outcome is unknown.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> history = SQLiteChatMessageHistory(":memory:", "s1")
            >>> turn = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]
            >>> history.append_turn(turn, turn_id="t1"), history.append_turn(turn, turn_id="t1")
            (1, 1)
        """
        batch = prepare(messages, turn_id, self.token_counter)
        return self._store.run(self._store.append(self._scope, batch, expected_seq, epoch)) if batch.given else 0

    async def aappend_turn(
        self,
        messages: Sequence[BaseMessage],
        *,
        turn_id: str | None = None,
        expected_seq: int | None = None,
        epoch: int | None = None,
    ) -> int:
        """Async twin of `append_turn`."""
        batch = prepare(messages, turn_id, self.token_counter)
        if not batch.given:
            return 0
        return await self._store.arun(self._store.append(self._scope, batch, expected_seq, epoch))

    def delete_turn(self, seq: int) -> bool:
        """Hides one turn (soft delete: it stays stored until cleared); returns whether there was one."""
        return self._store.run(self._store.flag(self._scope, seq, deleted=True))

    async def adelete_turn(self, seq: int) -> bool:
        """Async twin of `delete_turn`."""
        return await self._store.arun(self._store.flag(self._scope, seq, deleted=True))

    def restore_turn(self, seq: int) -> bool:
        """Shows a turn again that `delete_turn` hid; returns whether there was one."""
        return self._store.run(self._store.flag(self._scope, seq, deleted=False))

    async def arestore_turn(self, seq: int) -> bool:
        """Async twin of `restore_turn`."""
        return await self._store.arun(self._store.flag(self._scope, seq, deleted=False))

    def clear(self) -> None:
        """Deletes this session's turns for good; turns that began before are refused when they want to be stored.

        Raises:
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        self._store.run(self._store.clear(self._scope))

    async def aclear(self) -> None:
        """Async twin of `clear`."""
        await self._store.arun(self._store.clear(self._scope))

    # -- flows

    def _view(self, max_messages: int | None, max_tokens: int | None) -> Flow[HistoryView]:
        max_messages, max_tokens = _limit(max_messages, "max_messages"), _limit(max_tokens, "max_tokens")
        # a turn is rarely less than two messages, so half the limit is usually one page and all of it
        limit = BACKWARD_PAGE if max_messages is None else max_messages // 2 + 2
        turns: list[Turn] = []
        head: Page | None = None
        older: Any | None = None
        while True:
            page = yield from self._store.page_back(self._scope, older, min(limit, MAX_PAGE))
            head, older, limit = head or page, page.older, limit * 2
            turns += page.turns
            count = sum(len(t.messages) for t in turns)
            if (
                older is None
                or (max_messages is not None and count > max_messages)
                or (max_tokens is not None and sum(sum(t.tokens) for t in turns) > max_tokens)
            ):
                break
        turns.reverse()
        problems = self._report(turns)
        messages = [m for t in turns for m in t.messages]
        tokens = [n for t in turns for n in t.tokens]
        kept = cut_tail(messages, tokens, max_messages=max_messages, max_tokens=max_tokens)
        return HistoryView(kept, head.seq, head.epoch, tuple(problems))

    def _page_forward(self, after: Any | None, before_seq: int | None) -> Flow[tuple[list[Turn], Any | None]]:
        turns, after = yield from self._store.page_forward(self._scope, after, FORWARD_PAGE)
        if before_seq is not None:
            within = [turn for turn in turns if turn.seq < before_seq]
            turns, after = within, after if len(within) == len(turns) else None
        self._report(turns)
        return turns, after

    def _report(self, turns: Iterable[Turn]) -> list[str]:
        problems = [problem for turn in turns for problem in turn.problems]
        if problems and self._on_corrupt == "raise":
            msg = f"{len(problems)} unreadable in session {self.session_id!r}: {problems[0]}"
            raise MessageDecodeError(msg)
        if problems:
            shown = "; ".join(problems[:3])
            logger.warning("%d unreadable in session %r, left out: %s", len(problems), self.session_id, shown)
        return problems


def _limit(value: int | None, name: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        msg = f"{name} must be a whole number from 0, or None for no limit; got {value!r:.50}"
        raise ConfigurationError(msg)
    return value


class HistoryFactory(Generic[H]):
    """A `get_session_history` that shares one connection: give it to `create_runnable_with_message_history`.

    Made by `SQLiteChatMessageHistory.factory(...)` and `MongoDBChatMessageHistory.factory(...)`. A context manager, sync
    and async; `close` ends what this factory opened.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> with SQLiteChatMessageHistory.factory(":memory:") as histories:
        ...     histories("s1", user_id="u1").add_user_message("hello")
        ...     [session.session_id for session in histories.list_sessions("u1")]
        ['s1']
    """

    def __init__(self, store: TurnStore, make: Callable[[str, str | None], H]) -> None:
        self._store = store
        self._make = make

    def __call__(self, session_id: str, user_id: str | None = None) -> H:
        """The history of one session; no I/O.

        Args:
            session_id: The conversation.
            user_id: Whose it is; None for apps that do not tell users apart.

        Raises:
            TypeError: An id is no string.
            ValueError: An id is empty or malformed.
        """
        return self._make(session_id, user_id)

    def setup(self) -> None:
        """Creates tables or indexes now, whatever the size of the collection. Safe to repeat."""
        self._store.run(self._store.setup())

    async def asetup(self) -> None:
        """Async twin of `setup`."""
        await self._store.arun(self._store.setup())

    def list_sessions(self, user_id: str | None = None) -> list[SessionInfo]:
        """The user's sessions that hold turns, most recently used first.

        Args:
            user_id: Whose; None lists the sessions that belong to nobody.
        """
        return self._store.run(self._store.sessions(_owner(user_id)))

    async def alist_sessions(self, user_id: str | None = None) -> list[SessionInfo]:
        """Async twin of `list_sessions`."""
        return await self._store.arun(self._store.sessions(_owner(user_id)))

    def purge(self, user_id: str) -> dict[str, int]:
        """Deletes everything of a user for good, and refuses turns that are still under way.

        Args:
            user_id: Whose; required.

        Returns:
            `{"sessions": n, "turns": m}`: how many were deleted.

        Raises:
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return self._store.run(self._store.purge(check_id(user_id, "user_id")))

    async def apurge(self, user_id: str) -> dict[str, int]:
        """Async twin of `purge`."""
        return await self._store.arun(self._store.purge(check_id(user_id, "user_id")))

    def close(self) -> None:
        """Closes the connections that this factory opened; a client you passed in stays open."""
        self._store.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._store.aclose()

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        await self.aclose()


def _owner(user_id: str | None) -> str:
    return "" if user_id is None else check_id(user_id, "user_id")
