"""Chat message histories over any store of turns: the interface of such a store, histories, their factory."""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
import re
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Generic, Literal, Self, TypeAlias, TypedDict, TypeVar
from uuid import uuid4

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, run_in_executor

from langchain_memkit import base, errors
from langchain_memkit._compat import BaseChatMessageHistory
from langchain_memkit._histories import is_native, overrides
from langchain_memkit._sync import ClosingMixin, Flow, Step, adrive, drive, internal_call, model_call
from langchain_memkit.base import ListPosition, SessionInfo, TokenCounter, Turn, Window, check_id, check_size
from langchain_memkit.errors import ConfigurationError, HistoryConflictError, StaleTurnError
from langchain_memkit.messages.codec import Storable, storable
from langchain_memkit.messages.text import answer_text
from langchain_memkit.messages.tokens import approximate_tokens, count_tokens, counter_name
from langchain_memkit.messages.trimming import batch_op, cut_tail, is_user_message
from langchain_memkit.stores import history_rows, sessions
from langchain_memkit.stores.backend import StoreBackend
from langchain_memkit.stores.changes import Changes, Place
from langchain_memkit.stores.history_rows import (
    Batch,
    Page,
    PageLimit,
    ReadVersion,
    SessionScope,
    StoredSummary,
    TurnPage,
)
from langchain_memkit.stores.sessions import FoundPage, SessionQuery

logger = logging.getLogger("langchain_memkit")

Metadata: TypeAlias = Mapping[str, Any]  # of a session: JSON's types

FORWARD_PAGE = 200
BACKWARD_PAGE = 64
SUMMARIZED_TURNS = 4  # that are read at least of what no summary covers, however long they are
SUMMARY_PAGE = 32  # turns read with a summary: more than a usual budget holds after one
MAX_PAGE = 2000
FIRST_TURNS = 4  # of a session, of which its title is made
MAX_SEQ = 2**63 - 1
INDEX_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
INLINE = 50  # messages that are encoded on the event loop, without a thread

UNOWNED = (
    "session %r of user %r is empty, but there is a conversation of the same session_id that was stored without a "
    "user_id, which no user is shown. langchain_memkit.migrate.migrate(histories, histories, user_id=...) copies "
    "all such conversations to one user; without user_id they are read as before"
)
_reported: set[tuple[str, str]] = set()  # conversations without a user, as (session id, one of the turns)


class TurnStore(StoreBackend, ABC):
    """The interface below a chat history: subclass it to keep histories in a database of your own.

    `TurnHistory` and `HistoryFactory` are built on it and do the rest: encoding, limits, windows, ids, both call
    styles. Every method here but the properties, `storable` and `check_edits` is a flow (see `StoreBackend`), takes its
    session in each call and may be called by many threads, tasks and processes at once. docs/backends.md writes one in
    full, and `langchain_memkit.testing` tests it. Four invariants hold in every method:

    * **Atomic**: readers see the whole of a row or nothing of it. A row is one turn.
    * **Ordered**: the positions of a session (`seq`) are 1, 2, 3, ... without gaps, each taken once. A position is what
      a unique index, a lock or a transaction grants, never a clock or a counter that was reserved before.
    * **Stored once**: a session holds each `op` once. A call whose outcome is unknown may be made again unchanged.
    * **Erased for good**: a clear or a purge inserts a tombstone with a new epoch, and a turn that began before is
      refused (`may_append`). The rules are in docs/epochs.md.

    A store whose rows may replace others (`TurnRow.replaces`: edits) overrides `edits` and `fork` as well, and leaves
    what `ReplacedTurns` names out of all that it reads, rows without messages too. Of any other store the history
    refuses edits.

    Ids are checked before they arrive, and are data: they must reach no query language as code.

    Attributes:
        layout: The name of the storage format; `"turns"` if rows are turns with positions and epochs.

    Raises:
        HistoryReadError: A method that reads cannot reach or read the database. The text holds no credentials, and the
            driver's error is its cause, as below.
        HistoryWriteError: A method that writes failed. Calling it again is safe, and finishes the work.
    """

    layout: str = "turns"

    @property
    def place(self) -> object:
        """What is equal for stores on the same data, by which a migration notices it; by default this object alone."""
        return self

    def is_same(self, other: object) -> bool:
        """Return whether another store surely keeps its turns in the same place; no I/O. By default only itself."""
        return other is self

    @property
    def ttl(self) -> float | None:
        """Seconds after which a stored turn expires; None, the default, if it stays."""
        return None

    @property
    def patience(self) -> float:
        """Seconds for which an edit, an undo or an append tries again while others are faster; 30 by default."""
        return 30.0

    @property
    def in_memory(self) -> bool:
        """Whether this object alone holds the data, so that all histories of a factory must share it."""
        return False

    @abstractmethod
    async def append(self, scope: SessionScope, batch: Batch, expected_seq: int | None, origin: ReadVersion) -> int:
        """Store the rows of a batch after the last position.

        A retry finds its rows by their `op`: those that are stored with the same messages are not stored again, and
        count as success before anything else is checked. A store with transactions or a lock decides all of that with
        `plan_append`; one without inserts at the next position and tries again when it is taken. The first turn of a
        session draws its epoch (`new_epoch`), each later row repeats epoch and base of the one before it.

        Args:
            scope: The session.
            batch: The rows, in order. One row is stored whole or not at all; several, of a long import, may be stored
                in part if the call fails.
            expected_seq: The position that the session must be at; None for any.
            origin: What the turn saw when it began.

        Returns:
            The position of the last row; 0 where rows have no positions.

        Raises:
            StaleTurnError: The session was cleared, or the user purged, since the turn began (`may_append`).
            HistoryConflictError: The session is not at `expected_seq`.
            IdempotencyConflictError: An op is stored with other messages (`stored_or_conflict`).
            MessageTooLargeError: A row is larger than the database takes; nothing was stored.
            HistoryWriteError: The database failed; `maybe_stored` must be true unless certainly nothing was stored.
        """

    async def decide(
        self, user_id: str, name: str, data: bytes, *, at: datetime | None = None, op: str | None = None
    ) -> None:
        """Store a decision of a user, which no turn tells: two names are of one person, say.

        It is a row without messages under an empty session id, which no caller can pass, so that it is in no list of
        turns or sessions. `UserLog.decisions` returns it. It stays until the user is purged.

        Args:
            user_id: The user.
            name: The index that it belongs to.
            data: What was decided.
            at: When; None for now.
            op: The name of the decision: one of that name is stored once. None for a new one.

        Raises:
            HistoryWriteError: The database failed.
        """
        row = history_rows.TurnRow(op or f"decision:{uuid4()}", [], [], created_at=at, index={name: data})
        await self.append(SessionScope(user_id, ""), Batch([], [], [row], None), None, ReadVersion())

    @abstractmethod
    async def page_back(self, scope: SessionScope, older: Any, limit: int, enough: PageLimit, floor: int = 0) -> Page:
        """Read a page of turns, newest first, and the state of the session, in one look at the database.

        Neither tombstones nor expired, hidden, replaced or erased turns are returned. Damaged rows are, with a line in
        `problems` (`read_turn`): they raise nothing and hide no others. Rows that replace others come before those in
        this order, so a page knows what they hide, and `older` jumps over it.

        Args:
            scope: The session.
            older: What the page before returned as `older`; None for the newest page.
            limit: The greatest number of rows to read; the cost must not grow with the session.
            enough: When the page may end before that (`until_limit`).
            floor: The lowest position of interest.

        Returns:
            The page; the first one has the session's `seq` and `epoch`. For a session that holds nothing, `seq` is 0
            and `epoch` that of the user's last purge, 0 if there is none.
        """

    @abstractmethod
    async def page_forward(self, scope: SessionScope, after: Any, limit: int, *, hidden: bool = False) -> TurnPage:
        """Read a page of turns, oldest first; which turns are returned is said at `page_back`.

        Args:
            scope: The session.
            after: A position, or what the page before returned; None for the beginning.
            limit: The greatest number of rows to read.
            hidden: Whether soft-deleted and replaced turns are returned as well, with `is_deleted` and `is_replaced`.

        Returns:
            The turns, and where to continue; None at the end. A page may be empty before the end.
        """

    @abstractmethod
    async def stored_ids(self, scope: SessionScope, ids: Sequence[str]) -> set[str]:
        """Find which message ids the session holds, with an index rather than by reading the session.

        Args:
            scope: The session.
            ids: The ids; at least one.

        Returns:
            Those that belong to a turn that is shown: neither hidden, replaced, expired nor erased.
        """

    @abstractmethod
    async def flag(self, scope: SessionScope, turn: int | str, *, deleted: bool) -> bool:
        """Hide a turn (a soft delete), or show it again. Its row and its position stay.

        Args:
            scope: The session.
            turn: The turn's position, or its op.
            deleted: Whether it is hidden from now on.

        Returns:
            Whether there is such a turn. Tombstones are none.
        """

    @abstractmethod
    async def clear(self, scope: SessionScope) -> None:
        """Erase a session: insert a tombstone at its end, then delete the content of everything before it.

        From the tombstone on, which takes the next position like a turn and carries a new epoch (`tombstone`), no
        reader sees what is older and no turn that began before is stored; it holds ids and numbers only, and must be
        kept for `MARKER_TTL`. Where other writers may be under way, it goes first.

        Args:
            scope: The session, which may hold nothing: the tombstone is inserted all the same.
        """

    @abstractmethod
    async def purge(self, user_id: str) -> dict[str, int]:
        """Erase everything of a user, sessions included that begin while it runs.

        The tombstone of the user goes first, under the empty session id, which no caller can pass: it refuses turns of
        sessions that hold nothing yet (`purged` of `may_append`). Then every session is cleared.

        Args:
            user_id: The user; not empty.

        Returns:
            `{"sessions": n, "turns": m}`: how many were deleted.
        """

    @abstractmethod
    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]:
        """List the sessions of a user that hold turns which are shown.

        Args:
            user_id: The user; an empty string for the unowned sessions.
            hidden: Whether soft-deleted turns count as well.

        Returns:
            The sessions, most recently used first.
        """

    async def session_page(self, asked: SessionQuery) -> list[SessionInfo]:
        """List a page of the sessions of a user, with titles and previews.

        By default all are read and a page is cut out of them, whose titles are read from their turns. Override it if
        users have many sessions, or `update_session` is kept: `page_by_time` does the rest for an index by time.

        Args:
            asked: Which sessions.

        Returns:
            The sessions, most recently used first; by default without titles if there is no limit.
        """
        page = sessions.page_of(await self.sessions(asked.user_id, hidden=asked.hidden), asked)
        for i, info in enumerate(page if asked.limit is not None else ()):
            scope = SessionScope(asked.user_id, info.session_id)
            last = (await self.page_back(scope, None, FIRST_TURNS, PageLimit(0))).turns
            page[i] = sessions.describe_session(info, await self.first_turns(scope), next(iter(last), None))
        return page

    async def first_turns(self, scope: SessionScope) -> list[Turn]:
        """Read the first turns of a session that are shown, oldest first; none if there are none."""
        after: object = None
        while True:
            turns, after = await self.page_forward(scope, after, FIRST_TURNS)
            if turns or after is None:
                return turns

    async def update_session(
        self, scope: SessionScope, title: str | None, metadata: str | None, epoch: int | None = None
    ) -> bool:
        """Store title and metadata of a session, to be gone with its turns. By default this is refused.

        Args:
            scope: The session.
            title: The title; empty for none, None to leave it as it is.
            metadata: JSON of a dict; None to leave it as it is.
            epoch: The epoch of the turns that the title was made of; None for any.

        Returns:
            Whether the session holds turns, of that epoch and to the end; if not, nothing is stored.

        Raises:
            ConfigurationError: The store keeps neither.
        """
        raise self._lacks("keeps no titles and metadata", "update_session")

    async def find_turns(self, user_id: str, words: Sequence[str], after: ListPosition | None, limit: int) -> FoundPage:
        """Read a page of the user's turns that may hold all words, newest first. By default this is refused.

        Args:
            user_id: The user; an empty string for the unowned sessions.
            words: Words without signs. Turns without them may be returned as well.
            after: Where to begin: after this message, or after its turn if it is the turn's first one; None for the
                newest turn.
            limit: The greatest number of turns.

        Returns:
            The turns that are shown, each with its session, and where to continue; None at the end.

        Raises:
            ConfigurationError: The store has no such search.
        """
        raise self._lacks("cannot be searched", "find_turns")

    def _lacks(self, what: str, method: str) -> ConfigurationError:
        return ConfigurationError(
            f"these histories (layout={self.layout!r} of {type(self).__name__}) {what}: copy them to a store with "
            f"layout='turns', by langchain_memkit.migrate.migrate; a store of your own overrides {method}"
        )

    @abstractmethod
    async def owners(self) -> list[str]:
        """List everybody who has turns or decisions, for a migration of the whole store.

        Returns:
            The user ids, sorted; an empty string stands for the unowned sessions.
        """

    async def has_users(self) -> bool:
        """Return whether anybody has turns, unowned sessions aside; a backend may find that out more cheaply."""
        return any(await self.owners())

    async def edits(self, scope: SessionScope) -> list[history_rows.Edit]:
        """List the rows of a session that replace others, with an index; see the class.

        Args:
            scope: The session.

        Returns:
            The rows that are neither expired nor erased, newest first; soft-deleted and replaced ones as well.
        """
        raise self._lacks("can be neither edited nor forked", "edits and fork")

    async def fork(self, scope: SessionScope, session_id: str, at: int | None) -> bool:
        """Copy the turns that are shown into another session of the same user.

        They get the next positions there, an epoch of their own, and keep their ops. Calling it again after a crash
        finishes the work. Nobody sees a part of it; an append to the new session waits for it, or is told
        (`HistoryWriteError`).

        Args:
            scope: The session to copy.
            session_id: The new session.
            at: The position of the last turn to copy; None for all.

        Returns:
            Whether the new session holds these turns now; false, and nothing was changed, if it holds others.

        Raises:
            HistoryConflictError: No turn is shown at the position `at`.
            StaleTurnError: A session was cleared, or the user purged, meanwhile; nothing is left of the copy.
        """
        raise self._lacks("can be neither edited nor forked", "edits and fork")

    @property
    def keeps_summaries(self) -> bool:
        """Whether a preprocessor may store its summaries here, beside the conversation; False by default.

        A store that says so overrides the four methods that follow. `clear` and `purge` delete its summaries; `flag`,
        and a row that replaces others, those that cover the position which they change.
        """
        return False

    async def page_with_summary(
        self, scope: SessionScope, limit: int, enough: PageLimit
    ) -> tuple[Page, StoredSummary | None]:
        """Read the newest page of a session together with its summary, in one step.

        Args:
            scope: The session.
            limit: The greatest number of rows to read.
            enough: When the page may end before that.

        Returns:
            The page, as `page_back` returns it, perhaps without turns before that at which the summary ends; and the
            summary, None if there is none.
        """
        raise self._lacks("keeps no summaries", "page_with_summary")

    async def summary(self, scope: SessionScope, *, unfinished: bool = False) -> StoredSummary | None:
        """Read a summary of a session.

        Args:
            scope: The session.
            unfinished: Whether to read that of `summarize()`, which is not shown until it has caught up.
        """
        raise self._lacks("keeps no summaries", "summary")

    async def put_summary(
        self,
        scope: SessionScope,
        summary: StoredSummary,
        *,
        previous: str | None,
        turns: Sequence[int],
        unfinished: bool = False,
        moved: str | None = None,
    ) -> bool:
        """Store a summary in place of the one that it was made from, if all that it tells of is still shown.

        Args:
            scope: The session.
            summary: The summary.
            previous: The `id` of the summary that it takes the place of; None if there was none.
            turns: The positions of the turns that it adds to that one; without those that have no position (0).
            unfinished: As in `summary`.
            moved: The `id` of the unfinished summary that it was until now, which is deleted.

        Returns:
            Whether it is stored: not if another summary has taken that place, one of the turns is not shown any more,
            or the one to be moved is not there.
        """
        raise self._lacks("keeps no summaries", "put_summary")

    async def drop_summaries(self, scope: SessionScope, ids: Sequence[str] | None = None) -> int:
        """Delete summaries of a session.

        Args:
            scope: The session.
            ids: Their ids; None for all.

        Returns:
            How many there were.
        """
        raise self._lacks("keeps no summaries", "drop_summaries")

    @property
    def keeps_index(self) -> bool:
        """Whether rows keep what was derived from them, and tell when they changed; False by default.

        A store that says so stores `TurnRow.index` in the same step as the row, deletes it with the row, copies it with
        a fork, and overrides the three methods that follow. Memories of such histories need no store of their own.
        """
        return False

    async def changes(self, user_id: str, since: Any, names: Sequence[str], limit: int, slack: float = 0) -> Changes:
        """Read the rows of a user that changed since a mark, in all sessions, in the order in which they changed.

        A row changes when it is stored, hidden, shown again, given an index, copied or erased. Tombstones are rows as
        well, that of a purge under an empty session id. Damaged rows are left out.

        Args:
            user_id: The user; not empty.
            since: The mark that the page before returned; None for the beginning.
            names: The names of indexes to return with the rows.
            limit: The greatest number of rows of a page, as far as the store can end one there.
            slack: Seconds before the mark from which on rows are read again, for a store whose order is not that in
                which its writes became visible.

        Returns:
            The rows, each once and as it is now, and the mark from which the next look goes on.
        """
        raise self._lacks("keeps no index of turns", "changes")

    async def turns_at(self, user_id: str, places: Sequence[Place]) -> list[tuple[str, Turn]]:
        """Read turns of a user by session and position.

        Args:
            user_id: The user; not empty.
            places: The places.

        Returns:
            The turns that are stored there, each with its session, in any order; not whether they are shown.
        """
        raise self._lacks("keeps no index of turns", "turns_at")

    async def keep_index(self, user_id: str, name: str, made: Sequence[tuple[Place, str, bytes]]) -> None:
        """Store what was derived from turns that are stored already, or what takes the place of decisions.

        Args:
            user_id: The user; not empty.
            name: The name of the index: letters, digits and `_`.
            made: For each turn or decision its place, its op, and the data. Of what was erased meanwhile, so that the
                place is empty or holds another op, nothing is stored.
        """
        raise self._lacks("keeps no index of turns", "keep_index")

    def storable(self, messages: Sequence[BaseMessage]) -> Storable:
        """Encode messages, without metadata that the store could not bring back equal; no I/O.

        Args:
            messages: The messages of a batch, each with an id.

        Raises:
            MessageEncodeError: Anything else would not come back equal.
        """
        return storable(messages)

    def check_edits(self) -> None:
        """Raise `ConfigurationError` unless turns of this store may be replaced."""
        if self.layout != "turns" or type(self).edits is TurnStore.edits:
            raise self._lacks("can be neither edited nor forked", "edits and fork")

    async def unowned(self, session_id: str) -> str | None:
        """Find a turn of this session id that was stored without a user, which its user is told of once.

        Args:
            session_id: The session.

        Returns:
            What identifies the turn, its op by default; None if there is none.
        """
        return next((turn.op for turn in await self.first_turns(SessionScope("", session_id))), None)


def same_counter(one: TokenCounter | None, other: TokenCounter | None) -> bool:
    """Return whether two counters give the same counts, so that stored counts may be used."""
    name = counter_name(one)
    # A "<" in a name (`<lambda>`) does not identify a function.
    return one is other or (name == counter_name(other) and "<" not in name)


def _is_at(turn: Turn, position: base.Position) -> bool:
    if position.seq:
        return turn.seq <= position.seq
    return turn.op == position.op and position.message_id in [m.id for m in turn.messages]


def _is_replaced(after: base.Position | None, replaces: int | None) -> bool:
    """Return whether a summary covers a turn that is to be replaced. It stays until that has happened."""
    return after is not None and replaces is not None and after.seq >= replaces


def _as_if_none(asked: Window) -> Window:
    """Return the window as it is where there is no summary."""
    return replace(asked, after=None, reads_summary=False, summary=None)


def _copy_of(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return what was read as a list that tells of changes, which are not stored."""
    if not isinstance(messages, base.HistoryMessages):  # of a subclass's `view`
        return messages
    known = messages.tokens, messages.counter, messages.turns, messages.epoch, messages.window, messages.unread
    return base.MessagesCopy(messages, *known)


def _place_after(turns: list[Turn], position: base.Position) -> int | None:
    """Return how many messages of these turns, oldest first, lie up to a position; None if it is not among them."""
    begin = found = 0
    is_known = position.seq > 0
    for turn in turns:
        ids = [m.id for m in turn.messages]
        if turn.op == position.op and turn.seq == position.seq:
            if position.message_id in ids:
                found = begin + ids.index(position.message_id) + 1
            # Rows that memkit wrote in langchain-mongodb's layout: one message each, with one op for the whole turn.
            elif not is_known:
                found = begin
            is_known = True
        elif turn.seq < position.seq:
            found = begin + len(ids)
        begin += len(ids)
    return found if is_known else None


def _check_index(index: object) -> Mapping[str, bytes]:
    """Validate what was derived from a turn: bytes by name. A name becomes a field in a database."""
    given: Mapping[Any, Any] = index if isinstance(index, Mapping) else {} if index is None else {None: None}
    if not all(isinstance(made, bytes) and INDEX_NAME.fullmatch(str(name)) for name, made in given.items()):
        raise ConfigurationError("index must be a dict of bytes by name; a name has letters, digits and _")
    return given


def _is_full(turns: list[Turn], max_messages: int) -> bool:
    """Return whether these turns, newest first, are enough to cut the newest messages at the start of a turn."""
    count = sum(len(turn.messages) for turn in turns)
    if count != max_messages:
        return count > max_messages
    # Exactly full: the cut falls between rows. No older row is needed if the oldest one begins a turn, as a chain's
    # do.
    return max_messages > 0 and isinstance(turns[-1].messages[0] if turns[-1].messages else None, HumanMessage)


def check_limit(value: object, name: str) -> int | None:
    """Validate a limit or position, and return it. None means no limit."""
    if value is None or (type(value) is int and 0 <= value <= MAX_SEQ):
        return value
    raise ConfigurationError(f"{name} must be a whole number from 0, or None for no limit; got {value!r:.50}")


MAX_NESTED = 8  # depth of `add_messages` calls inside one another: an overridden `add_message` that prunes needs two
_nested: ContextVar[int] = ContextVar("nested add_messages", default=0)


class TurnHistory(BaseChatMessageHistory):
    """A chat history over any `TurnStore`: base of `SQLiteChatMessageHistory` and `MongoDBChatMessageHistory`.

    Use it as it is for a store of your own, or subclass it for a constructor with other arguments.

    Args:
        store: Where the turns are kept.
        session_id: The conversation, 1 to 512 bytes.
        user_id: The owner; None for an unowned session.
        history_size: The greatest number of messages in `messages`, cut at a turn. None returns all.
        token_counter: Counts tokens of messages when they are stored; the store must name the same one with the counts.
            None for the approximate one.
        on_corrupt: `"report"` leaves damaged messages out and logs them, `"raise"` raises `MessageDecodeError`.

    Raises:
        TypeError, ValueError: An id is not a string, empty or malformed, or another argument is wrong.
        HistoryReadError: A method that reads cannot reach or read the store; `HistoryWriteError` of one that writes:
            calling it again is safe, and finishes the work.
    """

    token_counter: TokenCounter | None
    _store: TurnStore
    _scope: SessionScope
    _on_corrupt: Literal["report", "raise"]
    _fixed: ClassVar[Mapping[str, str]] = {
        "session_id": "make a history of that session, with the constructor or the factory: histories('session')",
        "user_id": "make a history of that user, with the constructor or the factory: histories('session', 'user')",
    }
    """Attributes that cannot be set, with what to do instead."""

    def __init__(
        self,
        store: TurnStore,
        session_id: str,
        user_id: str | None = None,
        *,
        history_size: int | None = None,
        token_counter: TokenCounter | None = None,
        on_corrupt: Literal["report", "raise"] = "report",
    ) -> None:
        base.check_one_of(on_corrupt, "on_corrupt", ("report", "raise"))
        self._bind(session_id, user_id)
        self.history_size = check_limit(history_size, "history_size")
        self.token_counter = token_counter or approximate_tokens
        self._on_corrupt = on_corrupt
        self._store = store

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse to change an id: the new value would be shown, but the history stays bound to its session."""
        way_out = self._fixed.get(name)
        if way_out is None:
            super().__setattr__(name, value)
        # Before our own constructor has run, a subclass may set what it likes: `_bind` decides then.
        elif "_store" in vars(self) and value != getattr(self, name):
            raise AttributeError(f"{name} of a {type(self).__name__} cannot be changed: {way_out}")

    def __repr__(self) -> str:
        """Show the session, never the server."""
        return f"{type(self).__name__}(session_id={self.session_id!r}, user_id={self.user_id!r})"

    @property
    def session_id(self) -> str:
        """The id of the conversation."""
        return self._scope.session_id

    @property
    def user_id(self) -> str | None:
        """The id of the owner; None for an unowned session."""
        return self._scope.user_id or None

    @property
    def ttl(self) -> float | None:
        """Seconds after which a stored turn expires; None if it stays."""
        return self._store.ttl

    @property
    def turn_store(self) -> TurnStore:
        """Where the turns are kept, shared by all histories of a factory; for tools that move or inspect turns."""
        return self._store

    @property
    def messages(self) -> list[BaseMessage]:
        """The conversation, oldest first: all of it, or the newest `history_size` messages cut at a turn.

        A new list each time. Changes to it are not stored, which the log says once.
        """
        return _copy_of(self.view(max_messages=self.history_size).messages)

    @messages.setter
    def messages(self, messages: object) -> None:
        what = "add_messages(messages) stores more, edit(seq, messages) replaces turns, clear() erases the session"
        raise AttributeError(f"messages of a {type(self).__name__} cannot be set: {what}")

    async def aget_messages(self) -> list[BaseMessage]:
        """Read `messages` asynchronously; in a thread if a subclass overrides that property alone."""
        if overrides(self, "messages", without=["aget_messages"]):
            return await run_in_executor(None, lambda: self.messages)
        return _copy_of((await self.aview(max_messages=self.history_size)).messages)

    def tail(self, *, max_messages: int | None = None, max_tokens: int | None = None) -> list[BaseMessage]:
        """Return the newest messages within both limits, oldest first, beginning at a turn.

        The cost is proportional to the result: rows are read backwards, and token counts are stored with the messages.

        Args:
            max_messages: The greatest number of messages; None for no limit.
            max_tokens: The greatest number of tokens, as counted when stored; None for no limit.

        Returns:
            Whole turns, oldest first. If the newest turn alone exceeds a limit, those of its newest whole tool groups
            that fit.

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
        """Run `tail` asynchronously."""
        return (await self.aview(max_messages=max_messages, max_tokens=max_tokens)).messages

    def view(
        self,
        *,
        max_messages: int | None = None,
        max_tokens: int | None = None,
        window: Window | None = None,
        replaces: int | None = None,
        turn_id: str | None = None,
    ) -> base.HistoryView:
        """Read a `tail` together with the position it was read at, against which a turn built on it is saved.

        Args:
            max_messages: The greatest number of messages, as in `tail`.
            max_tokens: The greatest number of tokens, as in `tail`.
            window: The window that a preprocessor asks for, in place of the limits: whole turns, which it trims itself.
            replaces: The position of a turn that is to be replaced, with all after it: what comes before it is read.
            turn_id: The id of the turn that is to replace it, which may be stored already, by an earlier try.

        Returns:
            Messages (a `HistoryMessages`), the session's `seq` and `epoch`, and a line for each problem in reading.

        Raises:
            HistoryConflictError: No turn is shown at the position `replaces`.
        """
        return self._store.run(self._view(window, replaces, turn_id, max_messages, max_tokens))

    async def aview(
        self,
        *,
        max_messages: int | None = None,
        max_tokens: int | None = None,
        window: Window | None = None,
        replaces: int | None = None,
        turn_id: str | None = None,
    ) -> base.HistoryView:
        """Run `view` asynchronously."""
        return await self._store.arun(self._view(window, replaces, turn_id, max_messages, max_tokens))

    def iter_turns(
        self, *, after_seq: int | None = None, before_seq: int | None = None, hidden: bool = False
    ) -> Iterator[Turn]:
        """Iterate over the stored turns, oldest first, a page at a time, so that any length fits in memory.

        Args:
            after_seq: Only turns after this position; None for all, rows of langchain-mongodb included.
            before_seq: Only turns before this position; None for no end.
            hidden: Whether turns that `delete_turn` hid, and replaced ones, are included.

        Returns:
            An iterator of `Turn`; damaged messages are left out and reported.
        """
        after: object = check_limit(after_seq, "after_seq")
        while True:
            turns, after = self._store.run(self._page_forward(after, before_seq, hidden))
            yield from turns
            if after is None:
                return

    async def aiter_turns(
        self, *, after_seq: int | None = None, before_seq: int | None = None, hidden: bool = False
    ) -> AsyncIterator[Turn]:
        """Run `iter_turns` asynchronously."""
        after: object = check_limit(after_seq, "after_seq")
        while True:
            turns, after = await self._store.arun(self._page_forward(after, before_seq, hidden))
            for turn in turns:
                yield turn
            if after is None:
                return

    def iter_messages(self, *, after_seq: int | None = None, before_seq: int | None = None) -> Iterator[BaseMessage]:
        """Iterate over all messages, oldest first, without holding them in memory; arguments as in `iter_turns`."""
        for turn in self.iter_turns(after_seq=after_seq, before_seq=before_seq):
            yield from turn.messages

    async def aiter_messages(
        self, *, after_seq: int | None = None, before_seq: int | None = None
    ) -> AsyncIterator[BaseMessage]:
        """Run `iter_messages` asynchronously."""
        async for turn in self.aiter_turns(after_seq=after_seq, before_seq=before_seq):
            for message in turn.messages:
                yield message

    def stored_ids(self, ids: Sequence[str]) -> set[str]:
        """Return those of the message ids, all of them str, that the session holds, with one indexed query."""
        return self._store.run(self._stored_ids(ids))

    async def astored_ids(self, ids: Sequence[str]) -> set[str]:
        """Run `stored_ids` asynchronously."""
        return await self._store.arun(self._stored_ids(ids))

    def last_questions(self, n: int = 3) -> list[str]:
        """Return the user's last questions, newest first, as the context of a follow-up question.

        Args:
            n: The greatest number of questions.

        Returns:
            The texts of the user's last `n` messages, newest first, without messages that an agent's harness put in.
        """
        return self._store.run(self._last_questions(n))

    async def alast_questions(self, n: int = 3) -> list[str]:
        """Run `last_questions` asynchronously."""
        return await self._store.arun(self._last_questions(n))

    def add_message(self, message: BaseMessage) -> None:
        """Append one message as a turn of its own; through `add_messages` if a subclass overrides that alone."""
        if overrides(self, "add_messages") and not overrides(self, "add_message"):
            self.add_messages([message])
        else:
            self.append_turn([message])

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append a batch as one atomic turn: `append_turn` without its options.

        If a subclass overrides `add_message` alone, each message is passed to it, as in LangChain's class; so it must
        call `super().add_message(message)`, not `add_messages`, which would call it again.

        Raises:
            ConfigurationError: An overridden `add_message` calls `add_messages`.
        """
        if not overrides(self, "add_message", without=["add_messages"]):
            self.append_turn(messages)
            return
        # Both verbs may be overridden in terms of each other. Counting the depth turns endless recursion into an error.
        if _nested.get() >= MAX_NESTED:
            raise ConfigurationError(
                f"{type(self).__name__}.add_message calls add_messages, which calls add_message: call "
                "super().add_message(message) there, or override add_messages instead"
            )
        token = _nested.set(_nested.get() + 1)
        try:
            for message in messages:
                self.add_message(message)
        finally:
            _nested.reset(token)

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Run `add_messages` asynchronously; in a thread if a subclass overrides sync methods alone."""
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
        head: base.SessionHead | None = None,
        replaces: int | None = None,
        trace: Mapping[str, Any] | None = None,
        index: Mapping[str, bytes] | None = None,
    ) -> int:
        """Append one turn: all of it or nothing, and only once.

        Args:
            messages: The turn, oldest first. Messages without an id are stored with one; yours are not changed. More
                than 100 messages (or 4 MB) holding several turns are an import: stored in order as several rows, and
                continued, not doubled, by a second call with the same ids.
            turn_id: The idempotency key: a second call with the same id stores nothing new. Default: derived from the
                messages' ids.
            expected_seq: Store only if this is the position of the last turn (`view().seq`).
            epoch: Store only if the session was not cleared since it was read (`view().epoch`).
            since: The time of that read (`view().read_at`): with it, a session that has merely expired since is begun
                again.
            head: The end of the session at that time (`view().head`), which saves a query. If others have written
                since, it is read again.
            replaces: The position from which on this turn replaces all others: `view(replaces=...).replaces`. None to
                replace none. `edit` is simpler.
            trace: What the models of the turn were given, as plain data of JSON's types, to be stored with it. One that
                cannot be stored is left out and logged: it never costs the turn.
            index: What memories have derived from the turn, by the name of the index, to be stored and erased with it.
                It is left out where the turn becomes several rows, and by a store that keeps none.

        Returns:
            The position of the turn; 0 for an empty batch, of which nothing is stored.

        Raises:
            MessageEncodeError: A value would not come back equal; nothing was stored.
            MessageTooLargeError: The turn does not fit into one document.
            StaleTurnError: The session was cleared, or turns of it replaced, after `epoch` was read.
            HistoryConflictError: `expected_seq` is not the last position.
            IdempotencyConflictError: The same `turn_id` is stored with other content.
            HistoryWriteError: The store failed; `maybe_stored` says whether the outcome is unknown.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> from langchain_core.messages import AIMessage, HumanMessage
            >>> history = SQLiteChatMessageHistory(":memory:", "s1")
            >>> turn = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]
            >>> history.append_turn(turn, turn_id="t1"), history.append_turn(turn, turn_id="t1")
            (1, 1)
        """
        batch = self._batch(messages, turn_id, replaces, trace, index)
        return self._store.run(self._append(batch, expected_seq, ReadVersion(epoch, since, head)))

    async def aappend_turn(
        self,
        messages: Sequence[BaseMessage],
        *,
        turn_id: str | None = None,
        expected_seq: int | None = None,
        epoch: int | None = None,
        since: datetime | None = None,
        head: base.SessionHead | None = None,
        replaces: int | None = None,
        trace: Mapping[str, Any] | None = None,
        index: Mapping[str, bytes] | None = None,
    ) -> int:
        """Run `append_turn` asynchronously."""
        batch = await self._abatch(messages, turn_id, replaces, trace, index)
        return await self._store.arun(self._append(batch, expected_seq, ReadVersion(epoch, since, head)))

    def edit(self, seq: int, messages: Sequence[BaseMessage], *, turn_id: str | None = None) -> int:
        """Replace the turn at a position, and all after it, by other messages, in one atomic step.

        What is replaced is kept, like a deleted turn, and `undo_edit` shows it again. A turn that was under way
        meanwhile is refused when it is saved, as after a `clear`. To have a model answer a changed question, give its
        position to the chain instead: `chat.invoke(question, {"configurable": {"session_id": "s1", "replaces": seq}})`.

        Args:
            seq: The position of a turn that is shown (`Turn.seq`).
            messages: One turn, at least one message.
            turn_id: The idempotency key: a second call with the same id changes nothing. Default: derived from the
                position and the messages' ids.

        Returns:
            The position of the new turn, after all others.

        Raises:
            HistoryConflictError: No turn is shown at this position: it was replaced, deleted or cleared meanwhile. Or
                others wrote to the session each time that this call had read it, until its time was over.
            IdempotencyConflictError: The same `turn_id` is stored with other content, or was taken back.
            ConfigurationError: The store, or the layout, cannot replace turns.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> from langchain_core.messages import AIMessage, HumanMessage
            >>> history = SQLiteChatMessageHistory(":memory:", "s1")
            >>> for text in ("one", "two", "three"):
            ...     history.add_messages([HumanMessage(text), AIMessage(text.upper())])
            >>> history.edit(2, [HumanMessage("zwei"), AIMessage("ZWEI")])
            4
            >>> [m.content for m in history.messages]
            ['one', 'ONE', 'zwei', 'ZWEI']
            >>> history.undo_edit(), [m.content for m in history.messages][-2:]
            (True, ['three', 'THREE'])
        """
        return self._store.run(self._edit(self._batch(messages, turn_id, check_size(seq, "seq", 1))))

    async def aedit(self, seq: int, messages: Sequence[BaseMessage], *, turn_id: str | None = None) -> int:
        """Run `edit` asynchronously."""
        batch = await self._abatch(messages, turn_id, check_size(seq, "seq", 1))
        return await self._store.arun(self._edit(batch))

    def undo_edit(self) -> bool:
        """Take the newest edit back, with what was said after it: what it replaced is shown again.

        A second call takes the edit before that one back, so after an error with `maybe_stored` read the session first.

        Returns:
            Whether there was an edit.

        Raises:
            HistoryConflictError: Others wrote to the session each time that this call had read it, until its time was
                over.
            ConfigurationError: The store, or the layout, cannot replace turns.
        """
        return self._store.run(self._undo_edit())

    async def aundo_edit(self) -> bool:
        """Run `undo_edit` asynchronously."""
        return await self._store.arun(self._undo_edit())

    def regenerate(self, seq: int | None = None) -> base.RepeatedQuestion:
        """Return a question of the user, to have it answered again in place of the turn that holds it. Changes nothing.

        Pass what is returned to the chain. The turn that it saves replaces the old one in one step: if the model fails,
        or nobody calls the chain, the old answer is still there.

        Args:
            seq: The position of a turn that is shown; if it holds no question, the one before it that does. None for
                the last question.

        Returns:
            The input of the call, and the position for its config.

        Raises:
            HistoryConflictError: No turn is shown at this position.
            ConfigurationError: There is no question, or the turn holds several, as of an import; or turns of the store
                cannot be replaced.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history
            >>> histories = SQLiteChatMessageHistory.factory(":memory:")
            >>> answers = iter(["It is 5.", "It is 4."])
            >>> chat = create_runnable_with_message_history(lambda _: next(answers), histories)
            >>> _ = chat.invoke("2 + 2?", {"configurable": {"session_id": "s1"}})
            >>> again = histories("s1").regenerate()
            >>> _ = chat.invoke(again.messages, {"configurable": {"session_id": "s1", "replaces": again.replaces}})
            >>> [m.content for m in histories("s1").messages]
            ['2 + 2?', 'It is 4.']
        """
        return self._store.run(self._regenerate(seq))

    async def aregenerate(self, seq: int | None = None) -> base.RepeatedQuestion:
        """Run `regenerate` asynchronously."""
        return await self._store.arun(self._regenerate(seq))

    def fork(self, session_id: str, *, at: int | None = None) -> Self:
        """Copy the conversation, as it is shown, into a new session of the same user.

        Nobody sees a part of the copy, and who appends to the new session meanwhile waits until it is there. Ids and
        dates of the messages stay. Memories over these histories recall them at once.

        Args:
            session_id: The new session, without turns; or that of a call that broke off, which this one finishes.
            at: The position of the last turn to copy; None for all.

        Returns:
            The history of the new session.

        Raises:
            HistoryConflictError: The new session holds other turns, or no turn is shown at this position.
            StaleTurnError: One of both sessions was cleared, or the user purged, meanwhile: nothing was copied.
            ConfigurationError: The store, or the layout, cannot copy turns.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> history = SQLiteChatMessageHistory(":memory:", "s1")
            >>> for text in ("one", "two"):
            ...     history.add_user_message(text)
            >>> [m.content for m in history.fork("s2", at=1).messages]
            ['one']
        """
        other = self._for_session(check_id(session_id, "session_id"), self.user_id)
        self._store.run(self._fork(other, at))
        return other

    async def afork(self, session_id: str, *, at: int | None = None) -> Self:
        """Run `fork` asynchronously."""
        other = self._for_session(check_id(session_id, "session_id"), self.user_id)
        await self._store.arun(self._fork(other, at))
        return other

    def delete_turn(self, turn: int | str) -> bool:
        """Hide one turn (a soft delete: it stays stored until the session is cleared).

        Args:
            turn: Its position (`Turn.seq`), or its `Turn.op`, which turns without a position have as well.

        Returns:
            Whether there is such a turn.
        """
        return self._store.run(self._flag(turn, deleted=True))

    async def adelete_turn(self, turn: int | str) -> bool:
        """Run `delete_turn` asynchronously."""
        return await self._store.arun(self._flag(turn, deleted=True))

    def restore_turn(self, turn: int | str) -> bool:
        """Show a turn again that `delete_turn` hid, and return whether there is such a turn."""
        return self._store.run(self._flag(turn, deleted=False))

    async def arestore_turn(self, turn: int | str) -> bool:
        """Run `restore_turn` asynchronously."""
        return await self._store.arun(self._flag(turn, deleted=False))

    def clear(self) -> None:
        """Delete this session's turns for good. Turns that began before are refused when they are saved."""
        self._store.run(self._store.clear(self._scope))

    async def aclear(self) -> None:
        """Run `clear` asynchronously; in a thread if a subclass overrides that method alone."""
        if overrides(self, "clear", without=["aclear"]):
            await run_in_executor(None, self.clear)
            return
        await self._store.arun(self._store.clear(self._scope))

    # -- flows

    def _batch(
        self,
        messages: Sequence[BaseMessage],
        turn_id: str | None,
        replaces: int | None,
        trace: Any = None,
        index: Mapping[str, bytes] | None = None,
    ) -> Batch:
        if replaces is not None:
            self._store.check_edits()
            if check_size(replaces, "replaces", 1) > history_rows.MOST:
                raise self._not_shown(replaces)
        store = self._store
        batch = history_rows.prepare_batch(messages, turn_id, self.token_counter, replaces, store.storable)
        if not batch.rows:
            return batch
        first, *others = batch.rows
        told = history_rows.encode_trace(trace) if trace else None
        derived = _check_index(index) if store.keeps_index and not others else {}
        return replace(batch, rows=[replace(first, trace=told, index=derived), *others])

    async def _abatch(self, messages: Sequence[BaseMessage], *given: Any) -> Batch:
        work = partial(self._batch, messages, *given)
        # Encoding many messages, or a token counter that may do I/O, would block the event loop.
        is_quick = isinstance(messages, list) and len(messages) <= INLINE and self.token_counter is approximate_tokens
        return work() if is_quick else await asyncio.to_thread(work)

    async def _append(self, batch: Batch, expected_seq: int | None, seen: ReadVersion) -> int:
        if not batch.given:
            return 0
        try:
            return await self._store.append(self._scope, batch, expected_seq, seen)
        except errors.MessageTooLargeError:
            if not any(row.trace or row.index for row in batch.rows):
                raise
        logger.warning("trace and index of a turn are not stored: there is no room beside its messages")
        bare = replace(batch, rows=[replace(row, trace=None, index={}) for row in batch.rows])
        return await self._store.append(self._scope, bare, expected_seq, seen)

    def _not_shown(self, seq: int, **context: Any) -> HistoryConflictError:
        return history_rows.not_shown(self.session_id, seq, **context)

    def _too_busy(self, **context: Any) -> HistoryConflictError:
        msg = (
            f"others wrote to session {self.session_id!r} each time that it was read, for {self._store.patience:g} s: "
            "nothing was changed. Try again when they write less"
        )
        return HistoryConflictError(msg, **context)

    async def _flag(self, turn: int | str, *, deleted: bool) -> bool:
        if isinstance(turn, int) and not 0 < turn <= history_rows.MOST:
            return False  # no database takes every number
        return await self._store.flag(self._scope, turn, deleted=deleted)

    async def _shown(self, seq: int) -> Turn | None:
        if seq > history_rows.MOST:
            return None
        found, _ = await self._store.page_forward(self._scope, seq - 1, 1)
        return next((turn for turn in found if turn.seq == seq), None)

    async def _edit(self, batch: Batch) -> int:
        if not batch.given:
            msg = "an edit needs at least one message; to remove turns from what is shown, use delete_turn"
            raise ConfigurationError(msg)
        store, seq = self._store, batch.rows[0].replaces or 0
        deadline = time.monotonic() + store.patience
        while True:
            page = await store.page_back(self._scope, None, 1, PageLimit())
            shown = await self._shown(seq)
            if not (shown or page.seq):
                raise self._not_shown(seq, **batch.error_context)
            if shown and shown.replaces:  # what it replaced must not be shown again
                batch = replace(batch, rows=[replace(batch.rows[0], replaces=shown.replaces)])
            # What was read holds as long as nobody stores a turn: then all of it is read again. If the turn is not
            # shown, only a retry of an edit that is stored may succeed: no session is at that position.
            origin = ReadVersion(page.epoch, page.read_at, page.head)
            try:
                stored = await store.append(self._scope, batch, page.seq if shown else MAX_SEQ, origin)
            except (HistoryConflictError, StaleTurnError):
                if not shown:
                    raise self._not_shown(seq, **batch.error_context) from None
                if time.monotonic() > deadline:
                    raise self._too_busy(**batch.error_context) from None
                continue
            if shown and stored <= page.seq:
                msg = f"this edit is stored already, at position {stored}, and was taken back: give it another turn_id"
                raise errors.IdempotencyConflictError(msg, stored=batch.identified, **batch.error_context)
            return stored

    async def _undo_edit(self) -> bool:
        self._store.check_edits()
        deadline = time.monotonic() + self._store.patience
        while True:
            page = await self._store.page_back(self._scope, None, 1, PageLimit())
            edits = await self._store.edits(self._scope)
            replaced = history_rows.ReplacedTurns(edits)
            newest = next((edit.seq for edit in edits if not edit.is_undo and edit.seq not in replaced), None)
            if newest is None:
                return False
            batch = Batch([], [], [history_rows.TurnRow(f"undo:{uuid4()}", [], [], replaces=newest)], None)
            origin = ReadVersion(page.epoch, page.read_at, page.head)
            try:
                await self._store.append(self._scope, batch, page.seq, origin)
            except (HistoryConflictError, StaleTurnError):
                if time.monotonic() > deadline:
                    raise self._too_busy() from None
                continue
            return True

    async def _regenerate(self, seq: int | None) -> base.RepeatedQuestion:
        self._store.check_edits()
        if seq is not None and not await self._shown(check_size(seq, "seq", 1)):
            raise self._not_shown(seq)
        older: object = None
        while True:
            page = await self._store.page_back(self._scope, older, BACKWARD_PAGE, PageLimit())
            for turn in page.turns:
                asked = [i for i, m in enumerate(turn.messages) if is_user_message(m)]
                if not asked or (seq is not None and turn.seq > seq):
                    continue
                answer = next((i for i, m in enumerate(turn.messages) if i > asked[0] and m.type == "ai"), None)
                if turn.seq == 0 or (answer is not None and asked[-1] > answer):
                    what = "holds several questions, as of an import" if turn.seq else "has no position"
                    msg = f"the turn {turn.op} of session {self.session_id!r} {what}, so it cannot be regenerated"
                    raise ConfigurationError(msg)
                given = [m.model_copy(update={"id": None}) for m in turn.messages[:answer]]
                return base.RepeatedQuestion(given, turn.seq)
            if (older := page.older) is None:
                raise ConfigurationError(f"session {self.session_id!r} holds no question to answer again")

    async def _fork(self, other: Self, at: int | None) -> None:
        self._store.check_edits()
        if at is not None and not await self._shown(check_size(at, "at", 1)):
            raise self._not_shown(at)
        if not await self._store.fork(self._scope, other.session_id, at):
            what = f"session {other.session_id!r} holds other turns, or others of a fork that broke off"
            msg = f"{what}: fork into a new one, or clear it first"
            raise HistoryConflictError(msg)

    async def _view(
        self, window: Window | None, replaces: int | None, turn_id: str | None, *limits: int | None
    ) -> base.HistoryView:
        if turn_id is not None:
            check_id(turn_id, "turn_id")
        if replaces is not None:
            self._store.check_edits()
        max_messages, max_tokens = map(check_limit, limits or (None, None), ("max_messages", "max_tokens"))
        asked = window or Window(None, max_messages, max_tokens, self.token_counter)
        asked, head, turns, begins = await self._newest(asked, replaces, turn_id, sliced=window is None)
        after = asked.after
        messages = [m for t in turns for m in t.messages]
        tokens = [n for t in turns for n in t.tokens]
        begin: int | None = 0
        if window is None:
            begin = len(messages) - len(cut_tail(messages, tokens, max_messages=max_messages, max_tokens=max_tokens))
        elif after is not None:
            # A preprocessor trims its window itself, so it is cut at `after` only.
            # An edit changes the epoch, but not what came before it: there the turn itself tells.
            holds = after.seq == 0 or after.epoch == head.epoch
            holds = holds or (after.seq, after.epoch, after.op) in [(t.seq, t.epoch, t.op) for t in turns]
            begin = _place_after(turns, after) if holds else None
        # The position is gone: the session was cleared or has expired since the summary was made, or an edit replaced
        # it. A summary of such turns must not be shown, so the window is read as if there were none.
        if begin is None:
            return await self._view(replace(asked, after=None, reads_summary=False), replaces, turn_id)
        problems = self._report(turns)
        # Counts are made anew only for a limit in tokens.
        is_recounted = asked.max_tokens is not None and (after is None or asked.summarizes)
        counted_by = counter_name(asked.counter if is_recounted else self.token_counter)
        origins = [t for t in turns for _ in t.messages]
        unread = self._unread(head, turns, after)
        told = None if window is None else asked
        known = base.HistoryMessages(messages, tokens, counted_by, origins, head.epoch, told, unread)
        if begin:
            known = known.selected(range(begin, len(known))) if after else known.cut(begin)
        return base.HistoryView(known, head.seq, head.epoch, head.read_at, tuple(problems), head.head, begins)

    async def _newest(
        self, asked: Window, replaces: int | None, turn_id: str | None, *, sliced: bool
    ) -> tuple[Window, Page, list[Turn], int | None]:
        """Read a window's turns, oldest first, the first page, and where a turn that replaces others begins to.

        The window is returned with the summary that was read. If `sliced`, pages may end when they hold enough.
        """
        own = None if turn_id is None else batch_op([], turn_id)
        end = replaces or MAX_SEQ
        begins: int | None = None
        after, counter = asked.after, asked.counter
        if _is_replaced(after, replaces):
            return await self._newest(_as_if_none(asked), replaces, turn_id, sliced=sliced)
        # After a position all is read, unless a summary is to be made of it, which takes so much at most.
        is_limited = after is None or asked.summarizes
        max_messages, max_tokens = (asked.max_messages, asked.max_tokens) if is_limited else (None, None)
        # A turn rarely has fewer than two messages, so a page of half as many rows is usually enough. Pages double in
        # size, so a long read takes few queries.
        limit = BACKWARD_PAGE if max_messages is None else max_messages // 2 + 2
        if asked.summarizes:
            limit = SUMMARY_PAGE
        recount = max_tokens is not None and not same_counter(counter, self.token_counter)
        turns: list[Turn] = []
        head: Page | None = None
        older: object = None
        messages = tokens = 0
        while True:
            some = max_messages - messages if sliced and max_messages is not None else None
            left = max_tokens - tokens if max_tokens is not None and not recount else None
            enough = PageLimit(some, left, SUMMARIZED_TURNS if asked.summarizes else 1)
            if asked.reads_summary and head is None:
                page, stored = await self._store.page_with_summary(self._scope, limit, enough)
                asked = replace(asked, summary=stored, after=stored.position if stored else None)
                after = asked.after
                if _is_replaced(after, replaces):
                    return await self._newest(_as_if_none(asked), replaces, turn_id, sliced=sliced)
            else:
                floor = after.seq if after else 0
                page = await self._store.page_back(self._scope, older, min(limit, MAX_PAGE), enough, floor)
            head, older, limit = head or page, page.older, limit * 2
            # An earlier try of the turn that replaces others may be stored, and stands in their place.
            there = (t.replaces or t.seq for t in page.turns if t.seq == end or (t.op == own and t.replaces))
            begins = begins or next(there, None)
            found = [t for t in page.turns if t.seq < end]
            found = [replace(t, tokens=count_tokens(t.messages, counter)) for t in found] if recount else found
            turns += found
            limits = PageLimit(max_messages, max_tokens, enough.turns)
            more_messages, more_tokens = limits.counted(found)
            messages += more_messages
            tokens += more_tokens
            is_enough = max_messages is not None and _is_full(turns, max_messages)
            if asked.summarizes:
                is_enough = max_messages is not None and messages > max_messages
            is_enough = is_enough or (max_tokens is not None and tokens > max_tokens)
            if older is None or is_enough or (after is not None and any(_is_at(turn, after) for turn in found)):
                break
        if replaces and not begins:
            raise self._not_shown(end)
        is_empty = not turns and not head.seq and after is None
        if is_empty and self._scope.user_id and self._store.layout == "turns":
            # An app that begins to pass a `user_id` would take its conversations for lost: it is told so, once of each.
            turn = await self._store.unowned(self.session_id)
            if turn is not None and (self.session_id, turn) not in _reported:
                _reported.add((self.session_id, turn))
                logger.warning(UNOWNED, self.session_id, self.user_id)
        return asked, head._replace(older=older), turns[::-1], begins

    def _unread(self, page: Page, turns: Sequence[Turn], after: base.Position | None) -> int | None:
        """Return how many turns come between a position, or the beginning, and those that were read.

        None if that is not known without reading them.
        """
        if page.older is None or (after is not None and any(_is_at(turn, after) for turn in turns)):
            return 0
        first = turns[0].seq if turns else page.seq + 1
        # Positions tell it, unless they may be those of turns that are gone, or were replaced.
        is_known = first and page.head and not self.ttl and not history_rows.was_edited(page.epoch)
        if not (page.head and is_known):
            return None
        return first - 1 - max(page.head.base, after.seq if after else 0)

    async def _stored_ids(self, ids: Sequence[str]) -> set[str]:
        if not all(isinstance(value, str) for value in ids):  # another type could become an operator in a filter
            raise TypeError(f"message ids must be str, not {', '.join({type(value).__name__ for value in ids})}")
        return await self._store.stored_ids(self._scope, ids) if ids else set()

    async def _last_questions(self, n: int) -> list[str]:
        limit = check_limit(n, "n") or 0
        questions: list[str] = []
        older: object = None
        while len(questions) < limit:
            page = await self._store.page_back(self._scope, older, min(limit, MAX_PAGE), PageLimit())
            questions += [m.text for turn in page.turns for m in reversed(turn.messages) if is_user_message(m)]
            if (older := page.older) is None:
                break
        return questions[:limit]

    async def _page_forward(self, after: object, before: int | None, hidden: bool) -> tuple[list[Turn], object]:
        turns, after = await self._store.page_forward(self._scope, after, FORWARD_PAGE, hidden=hidden)
        if before is not None:
            # a turn past the end on this page: there is no next page
            within = [turn for turn in turns if turn.seq < before]
            turns, after = within, after if len(within) == len(turns) else None
        self._report(turns)
        return turns, after

    def _report(self, turns: Iterable[Turn]) -> list[str]:
        problems = [problem for turn in turns for problem in turn.problems]
        if problems and self._on_corrupt == "raise":
            msg = f"{len(problems)} unreadable in session {self._scope.session_id!r}: {problems[0]}"
            raise errors.MessageDecodeError(msg)
        if problems:
            shown = "; ".join(problems[:3])
            logger.warning("%d unreadable in session %r, left out: %s", len(problems), self._scope.session_id, shown)
        return problems

    def _bind(self, session_id: str, user_id: str | None) -> None:
        self._scope = _scope(session_id, user_id)

    def _for_session(self, session_id: str, user_id: str | None) -> Self:
        """Return a copy of this history bound to another session, for a factory to hand out."""
        other = copy.copy(self)
        other._bind(session_id, user_id)
        return other


class HistoryOptions(TypedDict, total=False):
    """The keyword arguments that the histories of every store take."""

    history_size: int | None
    ttl: float | None
    token_counter: base.TokenCounterLike
    on_corrupt: Literal["report", "raise"]
    timeout: float
    now: base.Now


H = TypeVar("H", bound="TurnHistory")
T = TypeVar("T")

FUNCTION = "Give a function in place of the factory: lambda session_id, user_id=None: YourHistory(...)"


def check_options(kind: type[TurnHistory], options: Mapping[str, object]) -> None:
    """Check the names of the options that a `factory` passes on to the constructor; ids differ among histories."""
    for name in ("session_id", "user_id"):
        if name in options:
            raise ConfigurationError(
                f"factory() takes no {name}, since it makes the histories of all sessions and users: give it where a "
                "history is made, histories('s1', user_id='u1'), or in the config of a call"
            )
    parameters = inspect.signature(kind).parameters.values()
    # arguments that a subclass's constructor takes before the `*` are accepted as well
    base.check_arguments(options.keys() - {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}, kind)


class HistoryFactory(ClosingMixin, Generic[H]):
    """A `get_session_history` that shares one connection: pass it to `create_runnable_with_message_history`.

    Created by `SQLiteChatMessageHistory.factory(...)` and `MongoDBChatMessageHistory.factory(...)`, and for a store of
    your own by `HistoryFactory(TurnHistory(store, "-"))`. A context manager, sync and async; `close` closes the
    connections that this factory opened.

    Args:
        first: A history of the session `"-"`, from which those of other sessions are copied.
        make: Called with the ids in place of copying, if a subclass's constructor must run for each history.

    Raises:
        ConfigurationError: `first` is bound to another session.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> with SQLiteChatMessageHistory.factory(":memory:") as histories:
        ...     histories("s1", user_id="u1").add_user_message("hello")
        ...     [session.session_id for session in histories.list_sessions("u1")]
        ['s1']
    """

    def __init__(self, first: H, make: Callable[..., H] | None = None) -> None:
        if first.session_id != "-":
            msg = f"the constructor of {type(first).__name__} takes other arguments than factory() gives it. {FUNCTION}"
            raise ConfigurationError(msg)
        self._first = first
        self._make = make  # a subclass's constructor, whose work may depend on the ids; None to copy `first`
        self._store = first._store
        self._told_of_users = False
        self._clears_more = overrides(first, "clear") or overrides(first, "aclear")

    def __repr__(self) -> str:
        """Show the file, or hosts and collection; no credentials."""
        return f"{type(self).__name__}({self._store!r})"

    @property
    def does_no_io(self) -> bool:
        """Whether a call may be made on the event loop: true unless it runs a subclass's constructor."""
        return self._make is None

    def __call__(self, session_id: str, user_id: str | None = None) -> H:
        """Return the history of one session; no I/O.

        Args:
            session_id: The conversation.
            user_id: The owner; None for apps that do not tell users apart.

        Raises:
            TypeError, ValueError: An id is not a string, empty or malformed.
            ConfigurationError: The constructor of your subclass does not accept these ids, or ignores them.
        """
        if self._make is None:
            return self._first._for_session(session_id, user_id)
        name, owner = type(self._first).__name__, {} if user_id is None else {"user_id": user_id}
        parameters = inspect.signature(self._make).parameters
        if owner and not ("user_id" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())):
            msg = f"the constructor of {name} takes no user_id, so users would share conversations. {FUNCTION}"
            raise ConfigurationError(msg)
        history = self._make(session_id, **owner)
        if (history.session_id, history.user_id) != (session_id, user_id):
            raise ConfigurationError(f"the constructor of {name} made a history of another session or user. {FUNCTION}")
        # The subclass's constructor has opened an in-memory database of its own, in which no other history would find
        # the session: use the factory's.
        if self._store.in_memory:
            history._store = self._store
        return history

    @property
    def turn_store(self) -> TurnStore:
        """Where the turns of all its histories are kept; for tools that move or inspect turns."""
        return self._store

    @property
    def has_overrides(self) -> bool:
        """Whether a subclass overrides one of LangChain's methods, past which turns must not be moved."""
        return not is_native(self._first)

    def setup(self) -> None:
        """Create tables or indexes now, however large the collection is. Safe to repeat."""
        self._store.run(self._store.setup())

    async def asetup(self) -> None:
        """Run `setup` asynchronously."""
        await self._store.arun(self._store.setup())

    def list_sessions(
        self,
        user_id: str | None = None,
        *,
        limit: int | None = None,
        before: str | None = None,
        where: Metadata | None = None,
        hidden: bool = False,
    ) -> list[SessionInfo]:
        """Return the user's sessions that hold turns, most recently used first, with titles: all, or a page of them.

        A page costs the same wherever it stands: as much as the turns of its sessions, which are counted, and the
        turns of other sessions in the same time. With `where`, it costs as much as all sessions that match.

        Args:
            user_id: The user; None lists the unowned sessions. If there are none but those of users, a log line says so
                once.
            limit: The greatest number of sessions, at least 1; None for all.
            before: The `cursor` of the last session of the page before; None begins with the newest.
            where: Only sessions whose metadata has these values: text, numbers, True, False or None.
            hidden: Whether turns that `delete_turn` hid count as well.

        Returns:
            The sessions, at most `limit`; fewer at the end. One that is used while pages are read moves to the front.

        Raises:
            ConfigurationError: An argument is wrong; or a large MongoDB collection lacks the index for pages: the text
                names the call that builds it.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> histories = SQLiteChatMessageHistory.factory(":memory:")
            >>> for name in ("s1", "s2", "s3"):
            ...     histories(name, "u1").add_user_message(f"Hello from {name}.")
            >>> page = histories.list_sessions("u1", limit=2)
            >>> [session.title for session in page]
            ['Hello from s3.', 'Hello from s2.']
            >>> [session.title for session in histories.list_sessions("u1", limit=2, before=page[-1].cursor)]
            ['Hello from s1.']
        """
        return self._store.run(self._page(_asked(user_id, limit, before, where, hidden)))

    async def alist_sessions(
        self,
        user_id: str | None = None,
        *,
        limit: int | None = None,
        before: str | None = None,
        where: Metadata | None = None,
        hidden: bool = False,
    ) -> list[SessionInfo]:
        """Run `list_sessions` asynchronously. It returns a list: `for s in await histories.alist_sessions(user)`."""
        return await self._store.arun(self._page(_asked(user_id, limit, before, where, hidden)))

    async def _page(self, asked: SessionQuery) -> list[SessionInfo]:
        """Read a page; if nobody's sessions were asked for and there are none, look once whether users have some."""
        page = await self._store.session_page(asked)
        is_all = not (asked.user_id or asked.before or asked.where)
        if page or not is_all or self._told_of_users:
            return page
        with suppress(errors.HistoryReadError):  # the list itself was read
            self._told_of_users = await self._store.has_users()
        if self._told_of_users:
            logger.warning(
                "list_sessions() found none, since it lists only sessions without a user, and all of them have one: "
                "call list_sessions(user_id)"
            )
        return page

    def update_session(
        self, session_id: str, user_id: str | None = None, *, title: str | None = None, metadata: Metadata | None = None
    ) -> None:
        """Store a title, metadata or both for a session that holds turns; `clear` and `purge` delete them.

        Where turns have a `ttl`, both expire with the newest turn that there is now.

        Args:
            session_id: The conversation.
            user_id: The owner; None for an unowned session.
            title: The title, at most 1,000 bytes; `""` goes back to the first question, None leaves it as it is.
            metadata: A dict of JSON's types, at most 16,384 bytes, in place of what was stored; None leaves that.

        Raises:
            ConfigurationError: The session holds no turns, or not any more, an argument is wrong, or the layout keeps
                neither; nothing was stored.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> histories = SQLiteChatMessageHistory.factory(":memory:")
            >>> histories("s1", "u1").add_user_message("Where is the reef?")
            >>> histories.update_session("s1", "u1", title="Reefs", metadata={"folder": "travel"})
            >>> [session.title for session in histories.list_sessions("u1", where={"folder": "travel"})]
            ['Reefs']
        """
        self._store.run(self._update(_scope(session_id, user_id), title, metadata))

    async def aupdate_session(
        self, session_id: str, user_id: str | None = None, *, title: str | None = None, metadata: Metadata | None = None
    ) -> None:
        """Run `update_session` asynchronously."""
        await self._store.arun(self._update(_scope(session_id, user_id), title, metadata))

    def generate_title(self, session_id: str, llm: Runnable[Any, Any], user_id: str | None = None) -> str:
        """Have a model write a title of the beginning of a conversation, store it, and return it.

        Args:
            session_id: The conversation, which must hold turns.
            llm: The chat model. It is given the first turns as quoted data.
            user_id: The owner; None for an unowned session.

        Returns:
            The title, at most 80 characters on one line; the beginning of the first question if the answer is empty.

        Raises:
            ConfigurationError: As `update_session`.
        """
        return drive(self._title(session_id, llm, user_id))

    async def agenerate_title(self, session_id: str, llm: Runnable[Any, Any], user_id: str | None = None) -> str:
        """Run `generate_title` asynchronously."""
        return await adrive(self._title(session_id, llm, user_id))

    def search_messages(
        self, user_id: str | None, text: str, *, limit: int = 20, before: str | None = None
    ) -> list[base.FoundMessage]:
        """Find what was said in the user's sessions, by words, the newest first.

        There is no full-text index: the user's turns are looked through, newest first, until enough is found. The cost
        of rare words is that of all that the user has said: over 1,000,000 messages 5.0 s on SQLite and 3.4 s on
        MongoDB, on two cores, and some milliseconds for frequent words.

        Args:
            user_id: The user; None searches the unowned sessions.
            text: The words, at most 1,000 bytes. A message is found if each of them begins a word of it, in upper or
                lower case.
            limit: The greatest number of messages, at least 1.
            before: The `cursor` of the last message of the page before; None begins with the newest.

        Returns:
            The messages that are shown, newest first.

        Raises:
            ConfigurationError: `text` holds no word, another argument is wrong, or the layout has no search.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> histories = SQLiteChatMessageHistory.factory(":memory:")
            >>> histories("s1", "u1").add_user_message("My turtle is called Crush.")
            >>> [(found.session_id, found.excerpt) for found in histories.search_messages("u1", "crush turtles")]
            []
            >>> [(found.session_id, found.excerpt) for found in histories.search_messages("u1", "crush turt")]
            [('s1', 'My turtle is called Crush.')]
        """
        return self._store.run(self._search(user_id, text, limit, before))

    async def asearch_messages(
        self, user_id: str | None, text: str, *, limit: int = 20, before: str | None = None
    ) -> list[base.FoundMessage]:
        """Run `search_messages` asynchronously."""
        return await self._store.arun(self._search(user_id, text, limit, before))

    def usage(self, user_id: str | None = None, *, since: datetime | None = None) -> dict[str, dict[str, int]]:
        """Sum what a user's turns have cost, by model, as the providers counted it.

        Calls that only prepare an answer are counted where turns are stored with `trace=True`; of other turns the
        answers alone tell. Turns that are hidden, replaced or erased do not count. All of the user's turns are read.

        Args:
            user_id: The user; None for the unowned sessions.
            since: Only turns since this time, an aware datetime.

        Returns:
            By the model's name (empty if it is unknown): `calls` and the sums of `input_tokens` and `output_tokens`.

        Raises:
            ConfigurationError: The histories cannot list a user's turns: layouts other than "turns".

        Example:
            >>> from langchain_core.messages import AIMessage, HumanMessage
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> histories = SQLiteChatMessageHistory.factory(":memory:")
            >>> counted = {"input_tokens": 9, "output_tokens": 2, "total_tokens": 11}
            >>> histories("s1", "u1").add_messages([HumanMessage("Hi."), AIMessage("Hello!", usage_metadata=counted)])
            >>> histories.usage("u1")
            {'': {'calls': 1, 'input_tokens': 9, 'output_tokens': 2}}
        """
        return self._store.run(self._usage(_owner(user_id), since))

    async def ausage(self, user_id: str | None = None, *, since: datetime | None = None) -> dict[str, dict[str, int]]:
        """Run `usage` asynchronously."""
        return await self._store.arun(self._usage(_owner(user_id), since))

    def purge(self, user_id: str) -> dict[str, int]:
        """Delete everything of a user for good, and make the store refuse turns that are still under way.

        If a subclass overrides `clear`, it is called first for each session that the store lists. Data that the
        subclass keeps elsewhere, for sessions not in that list, it has to delete itself.

        Args:
            user_id: The user; required.

        Returns:
            `{"sessions": n, "turns": m}`: the numbers deleted.

        Raises:
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self._purge(user_id))

    async def apurge(self, user_id: str) -> dict[str, int]:
        """Run `purge` asynchronously."""
        return await adrive(self._purge(user_id))

    def close(self) -> None:
        """Close the connections that this factory opened; a client you passed in stays open."""
        self._store.close()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        await self._store.aclose()

    # -- flows

    async def _purge(self, user_id: str) -> dict[str, int]:
        owner, listed = check_id(user_id, "user_id"), list[SessionInfo]()
        if self._clears_more:
            listed = await Step(partial(self.list_sessions, owner), partial(self.alist_sessions, owner))
        for session in listed:
            history = self(session.session_id, owner)
            await Step(history.clear, history.aclear)
        # including what the subclass's `clear` has deleted
        cleared = {"sessions": len(listed), "turns": sum(session.turns for session in listed)}
        counts = await self._step(lambda: self._store.purge(owner))
        return {name: max(count, cleared.get(name, 0)) for name, count in counts.items()}

    async def _update(
        self, scope: SessionScope, title: str | None, metadata: Metadata | None = None, epoch: int | None = None
    ) -> None:
        details = sessions.check_title(title), sessions.check_metadata(metadata)
        if not await self._store.update_session(scope, *details, epoch):
            raise self._holds_nothing(scope)

    def _holds_nothing(self, scope: SessionScope) -> ConfigurationError:
        why = "holds no turns, or was cleared meanwhile: title and metadata are stored after its first turn"
        return ConfigurationError(f"session {scope.session_id!r} {why}")

    async def _title(self, session_id: str, llm: Any, user_id: str | None) -> str:
        scope = _scope(session_id, user_id)
        if not isinstance(llm, Runnable):
            raise ConfigurationError(f"llm must be a chat model or another runnable, not a {type(llm).__name__}")
        turns = await self._step(lambda: self._store.first_turns(scope))
        if not turns:
            raise self._holds_nothing(scope)
        epoch = turns[0].epoch
        prompt = sessions.title_prompt(message for turn in turns for message in turn.messages)
        answer = await model_call(llm, prompt, internal_call("memkit_title", "title"), None)
        nothing = SessionInfo(session_id, 0, None, None)
        title = sessions.title_in(answer_text(answer)) or sessions.describe_session(nothing, turns, None).title
        # The model took its time: a title of turns that were cleared meanwhile is not stored.
        await self._step(lambda: self._update(scope, title, epoch=epoch))
        return title

    def _step(self, make_flow: Callable[[], Flow[T]]) -> Step[T]:
        return Step(lambda: self._store.run(make_flow()), lambda: self._store.arun(make_flow()))

    async def _usage(self, owner: str, since: datetime | None) -> dict[str, dict[str, int]]:
        if since is not None and since.tzinfo is None:
            raise ConfigurationError("since must be an aware datetime, as datetime.now(UTC) is: one with a time zone")
        total: dict[str, dict[str, int]] = {}
        after: ListPosition | None = None
        while True:
            turns, after = await self._store.find_turns(owner, [], after, FORWARD_PAGE)
            for _, turn in turns:
                if since and turn.created_at and turn.created_at < since:
                    return total
                for model, usage in sessions.usage_of(turn):
                    counted = total.setdefault(model, {"calls": 0, "input_tokens": 0, "output_tokens": 0})
                    counted["calls"] += 1
                    for name in ("input_tokens", "output_tokens"):
                        counted[name] += usage.get(name) or 0
            if after is None:
                return total

    async def _search(self, user_id: str | None, text: str, limit: int, before: str | None) -> list[base.FoundMessage]:
        owner, words, most = _owner(user_id), sessions.words_of(text), check_size(limit, "limit", 1)
        after = begin = ListPosition.read(before)
        found: list[base.FoundMessage] = []
        while len(found) < most:
            turns, after = await self._store.find_turns(owner, words, after, min(most, MAX_PAGE))
            found += [hit for name, turn in turns for hit in sessions.found_in(name, turn, words, begin)]
            if after is None:
                break
        return found[:most]


def _asked(
    user_id: str | None, limit: int | None, before: str | None, where: Metadata | None, hidden: bool
) -> SessionQuery:
    most, place = limit if limit is None else check_size(limit, "limit", 1), ListPosition.read(before)
    return SessionQuery(_owner(user_id), most, place, sessions.check_where(where), hidden)


def _scope(session_id: str, user_id: str | None) -> SessionScope:
    return SessionScope(_owner(user_id), check_id(session_id, "session_id"))


def _owner(user_id: str | None) -> str:
    return "" if user_id is None else check_id(user_id, "user_id")
