"""The verbs of our chat histories, written once for both call styles and for every store."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Literal, Self

from langchain_core.messages import BaseMessage
from langchain_core.runnables import run_in_executor

from langchain_memkit._compat import BaseChatMessageHistory
from langchain_memkit._histories import overrides
from langchain_memkit.backends._history.reading import ReadingFlows, check_limit, check_texts
from langchain_memkit.backends._history.rows import Origin, Scope, TurnStore, check_list, check_seen, prepare
from langchain_memkit.base import Head, HistoryView, TokenCounter, Turn, Window, check_id
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.counting import approximate_tokens

INLINE = 50  # messages that an event loop encodes itself
MAX_NESTED = 8  # calls of `add_messages` inside one another: an `add_message` that prunes needs two

_nested: ContextVar[int] = ContextVar("nested add_messages", default=0)


class TurnHistory(ReadingFlows, BaseChatMessageHistory):
    """Verbs shared by `SQLiteChatMessageHistory` and `MongoDBChatMessageHistory`; see there."""

    _fixed: ClassVar[Mapping[str, str]] = {
        "session_id": "make a history of that session, with the constructor or the factory: histories('session')",
        "user_id": "make a history of that user, with the constructor or the factory: histories('session', 'user')",
    }
    """What cannot be set, and what to do instead."""

    def __init__(
        self,
        store: TurnStore,
        session_id: str,
        user_id: str | None,
        *,
        history_size: int | None,
        token_counter: TokenCounter,
        on_corrupt: Literal["report", "raise"],
    ) -> None:
        if on_corrupt not in ("report", "raise"):
            msg = f"on_corrupt must be 'report' or 'raise', not {on_corrupt!r}"
            raise ConfigurationError(msg)
        self._bind(session_id, user_id)
        self.history_size = check_limit(history_size, "history_size")
        self.token_counter = token_counter
        self._on_corrupt = on_corrupt
        self._store = store

    def _bind(self, session_id: str, user_id: str | None) -> None:
        owner = "" if user_id is None else check_id(user_id, "user_id")
        self._scope = Scope(owner, check_id(session_id, "session_id"))

    def _for_session(self, session_id: str, user_id: str | None) -> Self:
        """The same history for another session: what a factory hands out."""
        other = copy.copy(self)
        other._bind(session_id, user_id)
        return other

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuses what would be shown and not used: a history is bound to its session."""
        way_out = self._fixed.get(name)
        if way_out is None:
            super().__setattr__(name, value)
        elif "_store" in vars(self) and value != getattr(self, name):  # before, our constructor is still to come
            msg = f"{name} of a {type(self).__name__} cannot be changed: {way_out}"
            raise AttributeError(msg)

    @property
    def session_id(self) -> str:
        """The conversation."""
        return self._scope.session_id

    @property
    def user_id(self) -> str | None:
        """Whose it is; None for nobody's."""
        return self._scope.user_id or None

    @property
    def ttl(self) -> float | None:
        """Seconds after which a stored turn goes; None if it stays."""
        return self._store.ttl

    def __repr__(self) -> str:
        """Names the session, never the server."""
        return f"{type(self).__name__}(session_id={self.session_id!r}, user_id={self.user_id!r})"

    # -- reading

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]  # core declares an attribute
        """The conversation, oldest first: all of it, or the newest `history_size` messages cut at a turn."""
        return self.view(max_messages=self.history_size).messages

    async def aget_messages(self) -> list[BaseMessage]:
        """Async twin of `messages`, which it calls in a thread where a subclass overrides that alone."""
        if overrides(self, "messages", without=["aget_messages"]):
            return await run_in_executor(None, lambda: self.messages)
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
            >>> from langchain_core.messages import AIMessage, HumanMessage
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

    def view(
        self, *, max_messages: int | None = None, max_tokens: int | None = None, window: Window | None = None
    ) -> HistoryView:
        """`tail` together with the position it was read at: what a turn loads, and is later saved against.

        Args:
            max_messages: As in `tail`.
            max_tokens: As in `tail`.
            window: What a preprocessor asked for, instead of limits: whole rows, for it to cut.

        Returns:
            Messages (a `HistoryMessages`), the session's `seq` and `epoch`, and a line for what could not be read.

        Raises:
            HistoryReadError: The store cannot be reached or read.
        """
        return self._store.run(self._view(max_messages, max_tokens, window))

    async def aview(
        self, *, max_messages: int | None = None, max_tokens: int | None = None, window: Window | None = None
    ) -> HistoryView:
        """Async twin of `view`."""
        return await self._store.arun(self._view(max_messages, max_tokens, window))

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
        after: Any | None = check_limit(after_seq, "after_seq")
        while True:
            turns, after = self._store.run(self._page_forward(after, before_seq))
            yield from turns
            if after is None:
                return

    async def aiter_turns(self, *, after_seq: int | None = None, before_seq: int | None = None) -> AsyncIterator[Turn]:
        """Async twin of `iter_turns`."""
        after: Any | None = check_limit(after_seq, "after_seq")
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
        """Which of these message ids the session holds: one indexed query; ids that are no text are a TypeError."""
        check_texts(ids)
        return self._store.run(self._store.stored_ids(self._scope, ids)) if ids else set()

    async def astored_ids(self, ids: Sequence[str]) -> set[str]:
        """Async twin of `stored_ids`."""
        check_texts(ids)
        return await self._store.arun(self._store.stored_ids(self._scope, ids)) if ids else set()

    def last_questions(self, n: int = 3) -> list[str]:
        """The user's last questions, newest first: what a follow-up question is understood from.

        Args:
            n: At most so many.

        Returns:
            The text of the last `n` messages of the user's, newest first; what an agent's harness put in is not theirs.

        Raises:
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> history = SQLiteChatMessageHistory(":memory:", "s1")
            >>> history.add_user_message("What is memkit?")
            >>> history.last_questions()
            ['What is memkit?']
        """
        return self._store.run(self._last_questions(n))

    async def alast_questions(self, n: int = 3) -> list[str]:
        """Async twin of `last_questions`."""
        return await self._store.arun(self._last_questions(n))

    # -- writing

    def add_message(self, message: BaseMessage) -> None:
        """Append one message, as a turn of its own; through `add_messages` where a subclass overrides that alone."""
        if overrides(self, "add_messages") and not overrides(self, "add_message"):
            self.add_messages([message])
        else:
            self.append_turn([message])

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append a batch as one atomic turn: `append_turn` without its options.

        Where a subclass overrides `add_message` alone, each message goes through that, as in LangChain's class.

        Raises:
            ConfigurationError: A subclass's `add_message` calls `add_messages`, which calls it.
        """
        if not overrides(self, "add_message", without=["add_messages"]):
            self.append_turn(messages)
            return
        if _nested.get() >= MAX_NESTED:
            msg = (
                f"{type(self).__name__}.add_message calls add_messages, which calls add_message: call "
                "super().add_message(message) there, or override add_messages instead"
            )
            raise ConfigurationError(msg)
        token = _nested.set(_nested.get() + 1)
        try:
            for message in messages:
                self.add_message(message)
        finally:
            _nested.reset(token)

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Async twin of `add_messages`, which it calls in a thread where a subclass overrides sync methods alone."""
        if any(overrides(self, verb, without=["aadd_messages"]) for verb in ("add_message", "add_messages")):
            await run_in_executor(None, self.add_messages, messages)
        else:
            await self.aappend_turn(messages)

    def append_turn(
        self,
        messages: Sequence[BaseMessage],
        *,
        turn_id: str | None = None,
        expected_seq: int | None = None,
        epoch: int | None = None,
        since: datetime | None = None,
        head: Head | None = None,
    ) -> int:
        """Stores one turn, whole or not at all, once.

        Args:
            messages: The turn, oldest first. Messages without an id are stored with one; yours are not changed. More
                than 100 messages (or 4 MB) holding several turns are an import: stored in order as several rows, and
                continued, not doubled, by a second call with the same ids.
            turn_id: Calling again with the same id stores nothing new. Default: derived from the messages' ids.
            expected_seq: Store only if this is the position of the last turn (`view().seq`).
            epoch: Store only if the session was not cleared since (`view().epoch`).
            since: When that was (`view().read_at`), so that a session that only expired meanwhile is begun anew.
            head: Where the session stood then (`view().head`), so that this need not be looked up again. If others have
                written since, it is.

        Returns:
            The position of the turn; for an empty batch 0, and nothing is stored.

        Raises:
            MessageEncodeError: A value would not come back equal; nothing was stored.
            MessageTooLargeError: The turn does not fit into one document.
            StaleTurnError: The session was cleared after `epoch` was read.
            HistoryConflictError: `expected_seq` is not the last position.
            IdempotencyConflictError: The same `turn_id` is stored with other content.
            HistoryWriteError: The store failed; `maybe_stored` says whether the outcome is unknown.
            TypeError: An argument is not what `view()` gives; nothing was stored.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> from langchain_core.messages import AIMessage, HumanMessage
            >>> history = SQLiteChatMessageHistory(":memory:", "s1")
            >>> turn = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]
            >>> history.append_turn(turn, turn_id="t1"), history.append_turn(turn, turn_id="t1")
            (1, 1)
        """
        check_seen(expected_seq=expected_seq, epoch=epoch, since=since, head=head)
        batch = prepare(messages, turn_id, self.token_counter)
        if not batch.given:
            return 0
        return self._store.run(self._store.append(self._scope, batch, expected_seq, Origin(epoch, since, head)))

    async def aappend_turn(
        self,
        messages: Sequence[BaseMessage],
        *,
        turn_id: str | None = None,
        expected_seq: int | None = None,
        epoch: int | None = None,
        since: datetime | None = None,
        head: Head | None = None,
    ) -> int:
        """Async twin of `append_turn`."""
        check_list(messages)
        check_seen(expected_seq=expected_seq, epoch=epoch, since=since, head=head)
        work = partial(prepare, messages, turn_id, self.token_counter)
        # encoding much, or counting with a counter that may do I/O, would hold up the event loop
        slow = len(messages) > INLINE or self.token_counter is not approximate_tokens
        batch = await asyncio.to_thread(work) if slow else work()
        if not batch.given:
            return 0
        return await self._store.arun(self._store.append(self._scope, batch, expected_seq, Origin(epoch, since, head)))

    def delete_turn(self, turn: int | str) -> bool:
        """Hides one turn (soft delete: it stays stored until cleared).

        Args:
            turn: Its position (`Turn.seq`), or its `Turn.op`, which turns without a position have as well.

        Returns:
            Whether there was such a turn.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> history = SQLiteChatMessageHistory(":memory:", "s1")
            >>> history.add_user_message("What is memkit?")
            >>> history.delete_turn(1), history.messages
            (True, [])
        """
        return self._store.run(self._store.flag(self._scope, turn, deleted=True))

    async def adelete_turn(self, turn: int | str) -> bool:
        """Async twin of `delete_turn`."""
        return await self._store.arun(self._store.flag(self._scope, turn, deleted=True))

    def restore_turn(self, turn: int | str) -> bool:
        """Shows a turn again that `delete_turn` hid; returns whether there was one."""
        return self._store.run(self._store.flag(self._scope, turn, deleted=False))

    async def arestore_turn(self, turn: int | str) -> bool:
        """Async twin of `restore_turn`."""
        return await self._store.arun(self._store.flag(self._scope, turn, deleted=False))

    def clear(self) -> None:
        """Deletes this session's turns for good; turns that began before are refused when they want to be stored.

        Raises:
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        self._store.run(self._store.clear(self._scope))

    async def aclear(self) -> None:
        """Async twin of `clear`, which it calls in a thread where a subclass overrides that alone."""
        if overrides(self, "clear", without=["aclear"]):
            await run_in_executor(None, self.clear)
            return
        await self._store.arun(self._store.clear(self._scope))
