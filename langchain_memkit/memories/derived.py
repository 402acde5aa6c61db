"""What entity and vector memory share: both are of one user, derived from transcripts, and can be made anew."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from langchain_core.messages import BaseMessage

from langchain_memkit._sync import ClosingMixin, Step, adrive, drive
from langchain_memkit.base import GetSessionHistory, Memory, SessionInfo, check_id, shown
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.transcripts import history_of

__all__ = ["DerivedMemory", "DerivedMemoryFactory", "check_writable"]

M = TypeVar("M", bound="DerivedMemory")


def check_writable(core: Any) -> None:
    """Raises if the options of a memory say that it is read-only."""
    if core.read_only:
        msg = "this memory is read-only"
        raise ConfigurationError(msg)


class DerivedMemory(Memory):
    """A memory of one session and its user. A subclass has the sync verbs, in its own words, and the flows behind all.

    Attributes:
        _core: Its options, which all memories of a factory share.
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
        """The same for another session: what a factory hands out."""
        other = copy.copy(self)
        other._fetched = None
        other._bind(session_id, user_id)
        return other

    def __repr__(self) -> str:
        """Names the session, never what is remembered."""
        return f"{type(self).__name__}(session_id={self.session_id!r}, user_id={self.user_id!r})"

    @property
    def is_remote(self) -> bool:
        """Whether its reads wait for a server: a sync turn makes them in a thread, beside the read of the history."""
        return bool(getattr(self._core.store, "is_remote", False))

    def prefetch(self) -> None:
        """Read what the next `load` needs whatever it is asked: a turn does it while the history is read.

        What fails is raised by that `load`.
        """
        drive(self._prefetched())

    async def aprefetch(self) -> None:
        """Async twin of `prefetch`."""
        await adrive(self._prefetched())

    async def _prefetched(self) -> None:
        try:
            self._fetched = await self._prefetch()
        except Exception as error:  # noqa: BLE001  # whatever a store raises
            self._fetched = error

    def _take_fetched(self) -> Any:
        """What was read for this load; None if nothing was."""
        fetched, self._fetched = self._fetched, None
        if isinstance(fetched, Exception):
            raise fetched
        return fetched

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Async twin of `load`."""
        return await adrive(self._load(query))

    async def asave(self, messages: Sequence[BaseMessage]) -> None:
        """Async twin of `save`."""
        await adrive(self._save(messages))

    async def aclear(self) -> None:
        """Async twin of `clear`."""
        await adrive(self._clear())

    async def aforget_messages(self, ids: Collection[str]) -> int:
        """Async twin of `forget_messages`."""
        return await adrive(self._forget_messages(ids))

    async def arebuild(self, history: Any = None, progress: bool = True) -> Mapping[str, int]:
        """Async twin of `rebuild`."""
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
    """Memories that share a store. A subclass has the sync verbs, in its own words, and the flows behind all.

    Args:
        memory: Of any session and user: what is handed out is the same for others.
    """

    does_no_io = True
    """Its call need not be made in a thread."""

    def __init__(self, memory: M) -> None:
        self._memory = memory
        self._core = memory._core

    def __repr__(self) -> str:
        """Names the store."""
        return f"{type(self).__name__}({shown(self._core.store)})"

    def __call__(self, session_id: str, user_id: str | None = None) -> M:
        """The memory of one session; no I/O.

        Args:
            session_id: The conversation.
            user_id: Whose it is; required.

        Raises:
            ConfigurationError: There is no `user_id`.
            TypeError: An id is no string.
            ValueError: An id is empty or malformed.
        """
        return self._memory._for_session(session_id, user_id)

    def setup(self) -> None:
        """Sets up the store, if it has to be."""
        drive(self._setup())

    async def asetup(self) -> None:
        """Async twin of `setup`."""
        await adrive(self._setup())

    async def alist_sessions(self, user_id: str) -> list[SessionInfo]:
        """Async twin of `list_sessions`, a list as well: `for session in await histories.alist_sessions(user_id)`."""
        return await adrive(self._list_sessions(check_id(user_id, "user_id")))

    async def arebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Async twin of `rebuild`."""
        return await adrive(self._rebuild(histories, check_id(user_id, "user_id"), progress))

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Async twin of `purge`."""
        return await adrive(self._purge(check_id(user_id, "user_id")))

    async def _setup(self) -> None:
        store: Any = self._core.store
        if hasattr(store, "setup"):
            await Step(lambda: store.setup(), lambda: store.asetup())

    async def _rebuild(self, histories: Any, user_id: str, progress: bool) -> Mapping[str, int]:
        known = await self._list_sessions(user_id)  # first: a session that begins meanwhile is left alone
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
