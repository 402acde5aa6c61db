"""What memories over histories share: what they need of a turn lies in the turn's row, and goes with it."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Generic, Protocol, Self, TypeVar

from langchain_core.messages import BaseMessage

from langchain_memkit import base
from langchain_memkit._histories import keeps_index, stored_ids, turns_between
from langchain_memkit._progress import progress_bar
from langchain_memkit._sync import ClosingMixin, Step, adrive, drive
from langchain_memkit.base import Memory, SessionInfo, check_id, safe_repr
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryReadError,
    HistoryWriteError,
    IdempotencyConflictError,
    StaleTurnError,
    logger,
)
from langchain_memkit.memories.derived_log import Said
from langchain_memkit.messages.notes import is_note
from langchain_memkit.messages.trimming import batch_op, same_messages
from langchain_memkit.stores.changes import Place, UserLog
from langchain_memkit.stores.history import HistoryFactory, TurnStore

M = TypeVar("M", bound="MemoryOverHistories")

BATCH = 1000  # turns that are indexed in one look


class Held(Protocol):
    """What a process holds of the turns of a user."""

    log: UserLog
    lacking: set[Place]


class IndexedTurns(Protocol):
    """The turns of all users, with what a memory derives from them; all memories of a factory share it."""

    name: str
    """The name of the index in a turn's row."""
    read_only: bool
    is_whole_at_once: bool
    """Whether a turn is stored with all that is derived from it: no server, and nothing slow, has to be asked."""

    @property
    def histories(self) -> HistoryFactory[Any]:
        """The factory of the histories."""

    @property
    def store(self) -> TurnStore:
        """Where they keep their turns."""

    async def derive(self, user_id: str, messages: Sequence[BaseMessage]) -> bytes | None:
        """Make the index of a turn that is to be stored, as far as that is quick; None if it follows later."""

    async def look(self, user_id: str, *, most: int | None = None, held: Any = None) -> Any:
        """Look at what changed, make what at most so many turns lack, and return what is `Held`."""

    async def derive_later(self, user_id: str, turn: Said, op: str) -> None:
        """Derive from a turn that was just stored what was not stored with it, and keep it in its row."""

    async def renew(self, held: Any) -> None:
        """Take all turns that are held of a user for turns that lack their index."""

    def forget(self, user_id: str) -> None:
        """Drop what is held of a user."""

    def close(self) -> None:
        """Drop what is held of all users."""


class MemoryOverHistories(Memory):
    """Base class of a memory of one session and its user whose index lies in the rows of turns.

    `clear` clears the session in the histories, `forget_messages` hides turns there, and `purge` of the factory purges
    the user there. A subclass has the flows behind these methods; `_core` holds what all memories of a factory share.
    """

    derives_by = "..."
    """What derives the index from a turn, for errors."""

    save_was_checked: bool = False
    """Whether the last save would have stored nothing if the session had been cleared since the load before it."""

    _core: Any
    _began: tuple[int, datetime] | None = None  # epoch of the session in its own history, and when, at the load
    _fetched: object = None
    _session: str
    _user: str

    def _bind(self, session_id: str, user_id: str | None) -> None:
        self.session_id = self._session = check_id(session_id, "session_id")
        if user_id is None:
            raise ConfigurationError(
                f"{type(self).__name__} needs a user_id: what it remembers is of all sessions of one user. "
                "In a chain it comes from the config: chain.invoke(..., session('s1', user_id='u1'))"
            )
        self.user_id = self._user = check_id(user_id, "user_id")

    def _for_session(self, session_id: str, user_id: str | None) -> Self:
        """Return a copy of this memory, of which nothing was loaded yet, bound to another session and user."""
        other = copy.copy(self)  # shallow: the core with its cache is shared
        other._bind(session_id, user_id)
        return other

    def __repr__(self) -> str:
        """Show the ids, never what is remembered."""
        return f"{type(self).__name__}(session_id={self.session_id!r}, user_id={self.user_id!r})"

    def prefetch(self) -> None:
        """Read what the next `load` needs for any query; a turn calls it while the history is read.

        An error is kept and raised by that `load`.
        """
        drive(self._prefetched())

    async def aprefetch(self) -> None:
        """Run `prefetch` asynchronously."""
        await adrive(self._prefetched())

    async def _prefetched(self) -> None:
        try:
            self._fetched = await self._prefetch()
        except Exception as error:  # noqa: BLE001  # whatever a store raises is raised by the load that follows
            self._fetched = error

    def _take_fetched(self) -> Any:
        """Return what `prefetch` read, once, or raise its error; None if nothing was prefetched."""
        fetched, self._fetched = self._fetched, None
        if isinstance(fetched, Exception):
            raise fetched
        return fetched

    def load(self, query: str = "") -> list[BaseMessage]:
        """Return what is remembered that answers the new input, as much as fits into `max_tokens`.

        Args:
            query: The new input. In a turn it is a `Query`, and messages that the model sees anyway are not repeated.

        Returns:
            A list of one note with quoted records; `[]` if nothing is related to the input, or nothing is stored.

        Raises:
            ConfigurationError: The extractor is async.
            HistoryReadError: The store, or a history, cannot be reached or read.
        """
        return drive(self._load(query))

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Run `load` asynchronously."""
        return await adrive(self._load(query))

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Keep a finished turn; saving the same turn again stores nothing.

        A turn that the chain has stored in these histories is there already. Any other is stored in the memory's own
        history; it is left out, with a warning in the log, if its session was cleared after `load`.

        Args:
            messages: One turn or a whole conversation, oldest first. Notes from memories and summaries are left out.

        Raises:
            ConfigurationError: The extractor is async.
            HistoryWriteError: The store failed; calling again is safe.
        """
        drive(self._save(messages))

    async def asave(self, messages: Sequence[BaseMessage]) -> None:
        """Run `save` asynchronously."""
        await adrive(self._save(messages))

    def clear(self) -> None:
        """Clear the session in the histories for good; a save that runs at the same time adds nothing."""
        drive(self._clear())

    async def aclear(self) -> None:
        """Run `clear` asynchronously."""
        await adrive(self._clear())

    def forget_messages(self, ids: Collection[str]) -> int:
        """Hide the turns of this session that hold any of these messages.

        Args:
            ids: Ids of the messages.

        Returns:
            How many turns were hidden.

        Raises:
            TypeError: `ids` is a string.
            ConfigurationError: The memory is read-only.
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        return drive(self._forget_messages(ids))

    async def aforget_messages(self, ids: Collection[str]) -> int:
        """Run `forget_messages` asynchronously."""
        return await adrive(self._forget_messages(ids))

    async def _forget_messages(self, ids: Collection[str]) -> int:
        check_writable(self)
        if isinstance(ids, str):
            raise TypeError("ids must be a list of str, not a str")
        return await self._delete_messages(ids)

    @abstractmethod
    async def _prefetch(self) -> Any: ...

    @abstractmethod
    async def _load(self, query: str) -> list[BaseMessage]: ...

    @property
    def _log(self) -> IndexedTurns:
        log: IndexedTurns = self._core.log
        return log

    @property
    def is_remote(self) -> bool:
        """Return whether reads wait for a server.

        A sync turn then reads in a thread, at the same time as it reads the history.
        """
        return self._log.store.is_remote

    def check_history(self, history: Any) -> None:
        """Raise `ConfigurationError` if a history changes what it stores, in the place where this memory reads."""
        if self._recalls(history) and not keeps_index(history):
            raise ConfigurationError(
                f"{type(history).__name__} changes what it stores, and this memory reads it there as it is stored: "
                f"give the memory histories of its own, as in {own(type(self))}"
            )

    def index_turn(self, history: Any, messages: Sequence[BaseMessage]) -> Mapping[str, bytes]:
        """Derive what a history is to store with a turn; nothing if that history is not what this memory recalls.

        Args:
            history: The history that stores the turn.
            messages: The turn as it is stored.

        Returns:
            The data by name, for `append_turn(index=)`.
        """
        return drive(self._index_turn(history, messages))

    async def aindex_turn(self, history: Any, messages: Sequence[BaseMessage]) -> Mapping[str, bytes]:
        """Run `index_turn` asynchronously."""
        return await adrive(self._index_turn(history, messages))

    def index(self, progress: bool = True, *, anew: bool = False) -> int:
        """Index all turns of the user that have no index yet, for example after an import.

        A question does that as well, but for the newest 1,000 turns at a time.

        Args:
            progress: Show a progress bar if `rich` is installed.
            anew: Also index those again that have an index, after you changed how turns are read (for example with
                other `names=`).

        Returns:
            How many turns were indexed.

        Raises:
            HistoryReadError: The histories cannot be reached or read.
        """
        return drive(self._index_all(progress, anew=anew))

    async def aindex(self, progress: bool = True, *, anew: bool = False) -> int:
        """Run `index` asynchronously."""
        return await adrive(self._index_all(progress, anew=anew))

    async def _index_turn(self, history: Any, messages: Sequence[BaseMessage]) -> Mapping[str, bytes]:
        if self.read_only or not self._recalls(history):
            return {}
        return await self._derived(messages)

    async def _derived(self, messages: Sequence[BaseMessage]) -> dict[str, bytes]:
        made = await self._log.derive(self._user, messages)
        return {} if made is None else {self._log.name: made}

    async def _derived_if_possible(self, messages: Sequence[BaseMessage]) -> dict[str, bytes]:
        """Derive what is stored with a turn; after a failure it is made later, since no turn is lost over it."""
        try:
            return await self._derived(messages)
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001  # the functions of apps raise anything
            name = type(self).__name__
            logger.warning("%s did not index a turn, and does it later: %s", name, base.describe_error(error))
            return {}

    def _recalls(self, history: Any) -> bool:
        """Return whether a history keeps its turns where this memory looks for them."""
        store = getattr(history, "turn_store", None)
        is_same = store is not None and self._log.store.is_same(store)
        return is_same and getattr(history, "user_id", None) == self._user

    async def _index_all(self, progress: bool, *, anew: bool) -> int:
        held = await self._log.look(self._user, most=0)
        if anew:
            await self._log.renew(held)
        count = left = len(held.lacking)
        with progress_bar(progress, "indexing", count) as advance:
            while left:
                # What is held stays the same, even if other users take its room in the cache meanwhile.
                held = await self._log.look(self._user, most=BATCH, held=held)
                done = left - len(held.lacking)
                if done <= 0:
                    break
                advance(done)
                left -= done
        return count - left

    async def _look(self) -> Any:
        """Look at what changed, and note the present: what is erased from now on is not to come back with a save."""
        held = await self._log.look(self._user)
        self._began = held.log.epoch_of(self._session), self._core.now()
        return held

    async def _save(self, messages: Sequence[BaseMessage]) -> None:
        if self.read_only or not messages:
            return
        store = getattr(messages, "store", None)
        self.save_was_checked = store is not None and self._log.store.is_same(store)
        if self.save_was_checked:  # the turn is stored there already
            await self._complete_later(messages)
            return
        history = self._log.histories(self._session, self._user)
        given = [message for message in messages if not is_note(message)]
        if not given:
            self._began = None
            return
        count = len(given)
        try:
            view = await Step(lambda: history.view(max_messages=count), lambda: history.aview(max_messages=count))
            unsaved = await self._unsaved(history, given, view.messages)
        except HistoryReadError as error:
            raise HistoryWriteError(f"the turn is not stored, since what is stored cannot be read: {error}") from error
        if not unsaved:
            self._began = None
            return
        # What is erased from now on is not to come back; if there was a load, from then on.
        epoch, since = self._began or (view.epoch, view.read_at)
        turn_id = getattr(messages, "turn_id", None)
        options: Any = {"turn_id": turn_id, "epoch": epoch, "since": since}
        options["index"] = await self._derived_if_possible(unsaved)
        try:
            await Step(
                lambda: history.append_turn(unsaved, **options), lambda: history.aappend_turn(unsaved, **options)
            )
        except (StaleTurnError, IdempotencyConflictError) as error:
            self._began = None
            logger.warning("%s does not keep a turn: %s", type(self).__name__, error)
            return
        self._began = None  # not after another error: a retry is of the same turn
        await self._complete_later(unsaved)

    async def _unsaved(self, history: Any, given: list[BaseMessage], last: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return those of the messages that its own history does not have yet, as their ids or the last texts tell."""
        if same_messages(last, given):
            return []
        ids = [message.id for message in given if message.id]
        known = await stored_ids(history, ids) if ids else set[str]()
        places = [i for i, message in enumerate(given) if message.id in known]
        end = places[-1] + 1 if places else 0
        # Of a turn that is there in part, a message without an id is there if one after it is.
        return [message for message in given[:end] if message.id and message.id not in known] + given[end:]

    async def _complete_later(self, turn: Sequence[BaseMessage]) -> None:
        """Make what was not stored with a turn, since that was not quick."""
        if self._log.is_whole_at_once:
            return
        seq = getattr(turn, "seq", None)
        if seq is None:  # it is not known which row that is
            await self._log.look(self._user)
            return
        op = batch_op(turn, getattr(turn, "turn_id", None))
        await self._log.derive_later(self._user, ((self._session, seq), turn), op)

    async def _delete_messages(self, ids: Collection[str]) -> int:
        """Hide the turns of this session that hold any of these messages."""
        store = getattr(ids, "store", None)
        if store is not None and self._log.store.is_same(store):  # the history does not show them any more
            return 0
        wanted = set(ids)
        history = self._log.histories(self._session, self._user)
        try:
            turns = await turns_between(history, None)
        except HistoryReadError as error:
            raise HistoryWriteError(f"no turn is hidden, since they cannot be read: {error}") from error
        found = [turn.seq for turn in turns if not wanted.isdisjoint(message.id for message in turn.messages)]
        for seq in found:
            await Step(partial(history.delete_turn, seq), partial(history.adelete_turn, seq))
        return len(found)

    async def _clear(self) -> None:
        self._began = None
        if self.read_only:
            return
        history = self._log.histories(self._session, self._user)
        await Step(history.clear, history.aclear)


class FactoryOverHistories(ClosingMixin, Generic[M]):
    """Base class of the factories of memories over histories: they return copies of a memory, which share its log.

    A subclass has the flows behind these methods.
    """

    does_no_io = True
    """Whether calling the factory does no I/O, so that it needs no worker thread."""

    def __init__(self, memory: M) -> None:
        self._memory = memory
        self._core = memory._core

    def __repr__(self) -> str:
        """Show the store."""
        return f"{type(self).__name__}({safe_repr(self._core.store)})"

    def __call__(self, session_id: str, user_id: str | None = None) -> M:
        """Return the memory of a session; no I/O.

        Args:
            session_id: The conversation.
            user_id: The user; required.

        Raises:
            ConfigurationError: `user_id` is missing.
            TypeError, ValueError: An id is not a string, empty or malformed.
        """
        return self._memory._for_session(session_id, user_id)

    def setup(self) -> None:
        """Set up the store, if it has a `setup`."""
        drive(self._setup())

    async def asetup(self) -> None:
        """Run `setup` asynchronously."""
        await adrive(self._setup())

    def list_sessions(self, user_id: str) -> list[SessionInfo]:
        """Return the user's sessions in the histories, the last used first."""
        return drive(self._list_sessions(check_id(user_id, "user_id")))

    async def alist_sessions(self, user_id: str) -> list[SessionInfo]:
        """Run `list_sessions` asynchronously; it returns a list, not an async iterator."""
        return await adrive(self._list_sessions(check_id(user_id, "user_id")))

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Purge a user in the histories, for good; part of `purge_user`.

        Returns:
            How many sessions and turns were deleted.
        """
        return drive(self._purge(check_id(user_id, "user_id")))

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Run `purge` asynchronously."""
        return await adrive(self._purge(check_id(user_id, "user_id")))

    def close(self) -> None:
        """Drop what is held in process; the histories stay open."""
        self._core.log.close()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        self.close()

    async def _setup(self) -> None:
        store = self._core.store
        if hasattr(store, "setup"):
            await Step(lambda: store.setup(), lambda: store.asetup())

    async def _list_sessions(self, user_id: str) -> list[SessionInfo]:
        histories = self._core.log.histories
        return await Step(lambda: histories.list_sessions(user_id), lambda: histories.alist_sessions(user_id))

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        log = self._core.log
        if log.read_only:
            return {}
        log.forget(user_id)
        found: Mapping[str, int] = await Step(
            lambda: log.histories.purge(user_id), lambda: log.histories.apurge(user_id)
        )
        return found


def clean(text: str) -> str:
    """Replace lone surrogates and NUL characters, which some stores refuse."""
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


def check_writable(memory: Memory) -> None:
    """Raise `ConfigurationError` if the memory is read-only."""
    if memory.read_only:
        raise ConfigurationError("this memory is read-only")


def own(memory: type[MemoryOverHistories]) -> str:
    """Return how to give a memory histories of its own, for an error."""
    return f'{memory.__name__}.factory(SQLiteChatMessageHistory.factory("memory.db"), {memory.derives_by})'


def check_histories(histories: object, memory: type[MemoryOverHistories]) -> None:
    """Raise `ConfigurationError` for what is no factory of histories that keep what is derived from their turns."""
    if not isinstance(histories, HistoryFactory):
        kind = base.describe_type(histories, HistoryFactory)
        raise ConfigurationError(f"histories must be a factory of our histories, as in {own(memory)}, not {kind}")
    if not keeps_index(histories("-")):
        raise ConfigurationError(
            f"{histories!r} keeps nothing that is derived from turns: it is of another layout, or its class "
            f"changes what is stored. Give the memory histories of its own, as in {own(memory)}"
        )
