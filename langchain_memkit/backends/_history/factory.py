"""`get_session_history` as an object: one store, many histories."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from langchain_memkit._histories import overrides
from langchain_memkit._sync import ClosingMixin
from langchain_memkit.backends._history.verbs import TurnHistory
from langchain_memkit.base import SessionInfo, check_arguments, check_id
from langchain_memkit.errors import ConfigurationError

H = TypeVar("H", bound="TurnHistory")

FUNCTION = "Give a function in place of the factory: lambda session_id, user_id=None: YourHistory(...)"


def check_options(kind: type[TurnHistory], options: Mapping[str, Any]) -> None:
    """Check the names of what a `factory` hands on to the constructor.

    Raises:
        ConfigurationError: There is no such argument, or it is one of the ids, which each history has its own of.
    """
    for name in ("session_id", "user_id"):
        if name in options:
            msg = (
                f"factory() takes no {name}, since it makes the histories of all sessions and users: give it where a "
                "history is made, histories('s1', user_id='u1'), or in the config of a call"
            )
            raise ConfigurationError(msg)
    parameters = inspect.signature(kind).parameters.values()
    # the constructor of a subclass may take more before the `*`
    check_arguments(options.keys() - {p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}, kind)


class HistoryFactory(ClosingMixin, Generic[H]):
    """A `get_session_history` that shares one connection: give it to `create_runnable_with_message_history`.

    Made by `SQLiteChatMessageHistory.factory(...)` and `MongoDBChatMessageHistory.factory(...)`. A context manager,
    sync and async; `close` ends what this factory opened.

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

    def __repr__(self) -> str:
        """Names the file, or hosts and collection; no credentials."""
        return f"{type(self).__name__}({self._store!r})"

    @property
    def does_no_io(self) -> bool:
        """Whether its call need not be made in a thread: it runs no constructor of somebody else's."""
        return self._make is None

    def __call__(self, session_id: str, user_id: str | None = None) -> H:
        """The history of one session; no I/O.

        Args:
            session_id: The conversation.
            user_id: Whose it is; None for apps that do not tell users apart.

        Raises:
            TypeError: An id is no string.
            ValueError: An id is empty or malformed.
            ConfigurationError: The constructor of your subclass does not take these ids.
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
            msg = f"the constructor of {name} made a history of another session or user. {FUNCTION}"
            raise ConfigurationError(msg)
        if getattr(self._store, "in_memory", False):  # each constructor call opens a database of its own
            history._store = self._store
        return history

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
        """Async twin of `list_sessions`, a list as well: `for session in await histories.alist_sessions(user_id)`."""
        return await self._store.arun(self._store.sessions(_owner(user_id)))

    def purge(self, user_id: str) -> dict[str, int]:
        """Deletes everything of a user for good, and refuses turns that are still under way.

        A subclass's `clear` is called for each session that the store lists; what it keeps elsewhere beside those is
        its own to delete.

        Args:
            user_id: Whose; required.

        Returns:
            `{"sessions": n, "turns": m}`: how many were deleted.

        Raises:
            HistoryWriteError: The store failed; calling again finishes the work.
        """
        owner = check_id(user_id, "user_id")
        sessions = self.list_sessions(owner) if self._clears_more else []
        for session in sessions:
            self(session.session_id, owner).clear()
        return _with(sessions, self._store.run(self._store.purge(owner)))

    async def apurge(self, user_id: str) -> dict[str, int]:
        """Async twin of `purge`."""
        owner = check_id(user_id, "user_id")
        sessions = await self.alist_sessions(owner) if self._clears_more else []
        for session in sessions:
            await self(session.session_id, owner).aclear()
        return _with(sessions, await self._store.arun(self._store.purge(owner)))

    @property
    def _clears_more(self) -> bool:
        """Whether a subclass has a `clear` of its own."""
        return overrides(self._first, "clear") or overrides(self._first, "aclear")

    def close(self) -> None:
        """Closes the connections that this factory opened; a client you passed in stays open."""
        self._store.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._store.aclose()


def _with(sessions: list[SessionInfo], counts: dict[str, int]) -> dict[str, int]:
    """What was deleted, with what a subclass's `clear` had deleted before."""
    cleared = {"sessions": len(sessions), "turns": sum(session.turns for session in sessions)}
    return {name: max(count, cleared.get(name, 0)) for name, count in counts.items()}


def _owner(user_id: str | None) -> str:
    return "" if user_id is None else check_id(user_id, "user_id")
