"""`get_session_history` as an object: one store, many histories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from langchain_memkit._flow import Closing
from langchain_memkit.backends._history.rows import TurnStore
from langchain_memkit.backends._history.verbs import TurnHistory
from langchain_memkit.base import SessionInfo, check_id

H = TypeVar("H", bound="TurnHistory")


class HistoryFactory(Closing, Generic[H]):
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
        """Async twin of `list_sessions`, a list as well: `for session in await histories.alist_sessions(user_id)`."""
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


def _owner(user_id: str | None) -> str:
    return "" if user_id is None else check_id(user_id, "user_id")
