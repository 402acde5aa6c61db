"""What entity and vector memory share: both are derived from transcripts and can be rebuilt."""

from __future__ import annotations

import asyncio
import copy
import inspect
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, Self, TypeVar

from langchain_core.messages import BaseMessage

from langchain_memkit._histories import has_native, read_messages, stored_ids
from langchain_memkit._sync import ClosingMixin, Step, adrive, drive
from langchain_memkit.base import GetSessionHistory, Memory, SessionInfo, check_id, safe_repr
from langchain_memkit.errors import ConfigurationError

__all__ = [
    "DerivedMemory",
    "DerivedMemoryFactory",
    "Segment",
    "check_writable",
    "erased_messages",
    "history_of",
    "read_transcript",
    "segment_of",
    "segments_of",
]

UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
"""Date of messages whose date is unknown."""


class Segment(NamedTuple):
    """Messages that were stored together, e.g. one turn.

    Attributes:
        messages: The messages, oldest first.
        at: When they were stored; None if unknown.
        epoch: Epoch of the session; 0 if unknown.
        expires_at: When they expire; None for never.
        native: Whether they are a row of our own, whose message ids can be looked up.
    """

    messages: Sequence[BaseMessage]
    at: datetime | None
    epoch: int = 0
    expires_at: datetime | None = None
    native: bool = False


def history_of(get_session_history: GetSessionHistory, session_id: str, user_id: str) -> Step[Any]:
    """Make a step that returns the history of a session.

    A callable that cannot take `user_id` is refused: dropping the id would mix the users' conversations.
    """

    def sync() -> Any:
        parameters = inspect.signature(get_session_history).parameters
        if "user_id" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            msg = "get_session_history must take user_id: this memory is of one user"
            raise ConfigurationError(msg)
        history = get_session_history(session_id, user_id=user_id)
        if inspect.isawaitable(history):
            # A coroutine that nobody awaits would warn when it is collected; the error below says what to do.
            if inspect.iscoroutine(history):
                history.close()
            msg = "get_session_history is async, so use the async verbs"
            raise ConfigurationError(msg)
        return history

    async def asynchronous() -> Any:
        if inspect.iscoroutinefunction(get_session_history):
            return await get_session_history(session_id, user_id=user_id)
        return await asyncio.to_thread(sync)

    return Step(sync, asynchronous)


def segments_of(history: Any) -> Step[list[Segment]]:
    """Make a step that reads a whole history, oldest first."""

    async def aturns() -> list[Segment]:
        return [segment_of(turn) async for turn in history.aiter_turns()]

    messages = read_messages(history)

    async def amessages() -> list[Segment]:
        return [Segment(await messages.asynchronous(), None)]

    if has_native(history, "iter_turns"):
        return Step(lambda: [segment_of(turn) for turn in history.iter_turns()], aturns)
    return Step(lambda: [Segment(messages.sync(), None)], amessages)


async def read_transcript(
    history: Any, get_session_history: GetSessionHistory | None, session_id: str, user_id: str
) -> Sequence[Segment]:
    """Return the whole history, oldest first; without `history` that of `get_session_history`.

    Raises:
        ConfigurationError: There is neither, or the callable cannot take `user_id`.
    """
    if history is None:
        if get_session_history is None:
            msg = "rebuild() needs the session's history, or a memory with get_session_history"
            raise ConfigurationError(msg)
        history = await history_of(get_session_history, session_id, user_id)
    return await segments_of(history)


def segment_of(turn: Any) -> Segment:
    """Convert a turn of one of our histories."""
    # rows of other packages have no position (`seq` is 0), and their message ids cannot be looked up
    return Segment(turn.messages, turn.created_at, turn.epoch, turn.expires_at, bool(turn.seq))


async def erased_messages(
    get_session_history: GetSessionHistory | None, user_id: str, wanted: Mapping[str, Collection[str]]
) -> set[tuple[str, str]]:
    """Return the (session, message id) of messages that are no longer in their histories: one query per session.

    A history of another package is read as a whole.

    Args:
        get_session_history: Makes the histories; None to return an empty set.
        user_id: The user.
        wanted: Message ids by session.
    """
    erased: set[tuple[str, str]] = set()
    if get_session_history is None:
        return erased
    for session, ids in wanted.items():
        history = await history_of(get_session_history, session, user_id)
        if has_native(history, "stored_ids"):
            found = await stored_ids(history, sorted(ids))
        else:
            found = {message.id for message in await read_messages(history) if message.id}
        erased |= {(session, message) for message in set(ids) - found}
    return erased


M = TypeVar("M", bound="DerivedMemory")


def check_writable(core: Any) -> None:
    """Raise `ConfigurationError` if the memory is read-only."""
    if core.read_only:
        msg = "this memory is read-only"
        raise ConfigurationError(msg)


class DerivedMemory(Memory):
    """Base class of a memory of one session and its user that is derived from transcripts.

    A subclass has the sync methods with their docstrings, and the flows behind both the sync and the async ones.

    Attributes:
        _core: Options and collaborators, shared by all memories of a factory.
    """

    save_was_checked: bool = False
    """Whether the last save would have stored nothing if the session had been cleared since the load before it."""

    _core: Any
    _fetched: Any = None
    _session: str
    _user: str

    def _bind(self, session_id: str, user_id: str | None) -> None:
        self.session_id = self._session = check_id(session_id, "session_id")
        if user_id is None:
            example = {"configurable": {"session_id": "...", "user_id": "..."}}
            msg = (
                f"{type(self).__name__} needs a user_id: what it remembers is of all sessions of one user. "
                f"In a chain it comes from the config; e.g., chain.invoke(..., {example})"
            )
            raise ConfigurationError(msg)
        self.user_id = self._user = check_id(user_id, "user_id")

    def _for_session(self, session_id: str, user_id: str | None) -> Self:
        """Return a copy bound to another session and user."""
        other = copy.copy(self)
        # The copy is shallow: the core with its cache is shared, what was read for one turn is not.
        other._fetched = None
        other._bind(session_id, user_id)
        return other

    def __repr__(self) -> str:
        """Show the ids, never what is remembered."""
        return f"{type(self).__name__}(session_id={self.session_id!r}, user_id={self.user_id!r})"

    @property
    def is_remote(self) -> bool:
        """Return whether reads wait for a server.

        A sync turn then reads in a thread, at the same time as it reads the history.
        """
        return bool(getattr(self._core.store, "is_remote", False))

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

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Run `load` asynchronously."""
        return await adrive(self._load(query))

    async def asave(self, messages: Sequence[BaseMessage]) -> None:
        """Run `save` asynchronously."""
        await adrive(self._save(messages))

    async def aclear(self) -> None:
        """Run `clear` asynchronously."""
        await adrive(self._clear())

    async def aforget_messages(self, ids: Collection[str]) -> int:
        """Run `forget_messages` asynchronously."""
        return await adrive(self._forget_messages(ids))

    async def arebuild(self, history: Any = None, progress: bool = True) -> Mapping[str, int]:
        """Run `rebuild` asynchronously."""
        return await adrive(self._rebuild(history, progress))

    async def _forget_messages(self, ids: Collection[str]) -> int:
        check_writable(self._core)
        if isinstance(ids, str):
            msg = "ids must be a list of str, not a str"
            raise TypeError(msg)
        return await self._delete_messages(ids)

    @abstractmethod
    async def _prefetch(self) -> Any: ...

    @abstractmethod
    async def _load(self, query: str) -> list[BaseMessage]: ...

    @abstractmethod
    async def _save(self, messages: Sequence[BaseMessage]) -> None: ...

    @abstractmethod
    async def _clear(self) -> None: ...

    @abstractmethod
    async def _delete_messages(self, ids: Collection[str]) -> int: ...

    @abstractmethod
    async def _rebuild(self, history: Any, progress: bool) -> Mapping[str, int]: ...


class DerivedMemoryFactory(ClosingMixin, Generic[M]):
    """Base class of the factories of derived memories, which share one store.

    A subclass has `purge` and `close` with their docstrings, and the flows.

    Args:
        memory: Any memory with the right options: the factory returns copies of it, bound to other sessions and users.
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
            TypeError: An id is not a string.
            ValueError: An id is empty or malformed.
        """
        return self._memory._for_session(session_id, user_id)

    def setup(self) -> None:
        """Set up the store, if it has a `setup`."""
        drive(self._setup())

    async def asetup(self) -> None:
        """Run `setup` asynchronously."""
        await adrive(self._setup())

    def list_sessions(self, user_id: str) -> list[SessionInfo]:
        """Return the user's sessions of which something is stored, the last used first.

        `turns` counts what the memory stores: facts of an entity memory, records of a vector memory.
        """
        return drive(self._list_sessions(check_id(user_id, "user_id")))

    async def alist_sessions(self, user_id: str) -> list[SessionInfo]:
        """Run `list_sessions` asynchronously.

        Returns a list, not an async iterator: `for session in await histories.alist_sessions(user_id)`.
        """
        return await adrive(self._list_sessions(check_id(user_id, "user_id")))

    def rebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Rebuild all that is stored of a user from the transcripts, for example to import the user's conversations.

        Args:
            histories: A history factory of this package, or any callable that takes the ids and has
                `list_sessions(user_id)`.
            user_id: The user.
            progress: Show a progress bar if `rich` is installed.

        Returns:
            `{"messages": n, "added": n, "removed": n}`; a second run adds and removes nothing. What came from sessions
            that no longer exist is removed.
        """
        return drive(self._rebuild(histories, check_id(user_id, "user_id"), progress))

    async def arebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Run `rebuild` asynchronously."""
        return await adrive(self._rebuild(histories, check_id(user_id, "user_id"), progress))

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Run `purge` asynchronously."""
        return await adrive(self._purge(check_id(user_id, "user_id")))

    async def _setup(self) -> None:
        store: Any = self._core.store
        if hasattr(store, "setup"):
            await Step(lambda: store.setup(), lambda: store.asetup())

    async def _rebuild(self, histories: Any, user_id: str, progress: bool) -> Mapping[str, int]:
        # List the remembered sessions before the histories: a session that begins in between is then only in the second
        # list, and is not mistaken for one whose transcript is gone.
        known = await self._list_sessions(user_id)
        found = await Step(lambda: histories.list_sessions(user_id), lambda: histories.alist_sessions(user_id))
        names = dict.fromkeys(info.session_id for info in [*found, *known])
        sessions = {}
        for name in names:
            sessions[name] = await history_of(histories, name, user_id)
        return await self._rebuild_sessions(user_id, sessions, progress)

    @abstractmethod
    async def _list_sessions(self, user_id: str) -> list[SessionInfo]: ...

    @abstractmethod
    async def _rebuild_sessions(
        self, user_id: str, sessions: Mapping[str, Any], progress: bool
    ) -> Mapping[str, int]: ...

    @abstractmethod
    async def _purge(self, user_id: str) -> Mapping[str, int]: ...
