"""Factory of vector memories: one shared store, one memory per session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_memkit._sync import Step, drive
from langchain_memkit.base import GetSessionHistory, SessionInfo, check_id
from langchain_memkit.memories.derived import DerivedMemoryFactory
from langchain_memkit.memories.vector.core import Core
from langchain_memkit.memories.vector.rebuild import rebuild

if TYPE_CHECKING:
    from langchain_memkit.memories.vector.memory import VectorMemory  # noqa: F401  # named in a string below

__all__ = ["VectorMemoryFactory"]


class VectorMemoryFactory(DerivedMemoryFactory["VectorMemory"]):
    """Callable that creates vector memories over one shared store; made by `VectorMemory.factory`.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> from langchain_memkit import SQLiteVectorStore, VectorMemory, WordLlamaEmbeddings
        >>> with VectorMemory.factory(SQLiteVectorStore(":memory:", WordLlamaEmbeddings())) as memories:
        ...     memories("s1", "u1").save([HumanMessage("I work in Oslo.")])
        ...     [session.session_id for session in memories.list_sessions("u1")], memories.purge("u1")
        (['s1'], {'records': 1})
    """

    _core: Core

    def list_sessions(self, user_id: str) -> list[SessionInfo]:
        """List the user's sessions that have records, most recently used first; `turns` counts records."""
        return drive(self._list_sessions(check_id(user_id, "user_id")))

    def rebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Synchronize all records of a user with the transcripts, for example to import a user's conversations.

        Args:
            histories: A memkit history factory, or any callable that takes the ids and has `list_sessions(user_id)`.
            user_id: The user.
            progress: Show a progress bar if `rich` is installed.

        Returns:
            `{"messages": n, "added": n, "removed": n}`; a second call adds and removes nothing. Records of sessions
            that no longer exist are removed.
        """
        return drive(self._rebuild(histories, check_id(user_id, "user_id"), progress))

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Permanently delete all records of a user. Pass the factory to `purge_user` to include it there.

        Returns:
            `{"records": n}`: the number of deleted records.
        """
        return drive(self._purge(check_id(user_id, "user_id")))

    def close(self) -> None:
        """Do nothing: the caller owns the store and closes it."""

    async def aclose(self) -> None:
        """Do nothing: the caller owns the store and closes it."""

    # -- flows

    async def _list_sessions(self, user_id: str) -> list[SessionInfo]:
        store = self._core.store
        found: list[SessionInfo] = await Step(lambda: store.sessions(user_id), lambda: store.asessions(user_id))
        return found

    async def _rebuild_sessions(self, user_id: str, sessions: Mapping[str, Any], progress: bool) -> Mapping[str, int]:
        return await rebuild(self._core, user_id, sessions, progress=progress)

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        store = self._core.store
        count = await Step(lambda: store.forget(user_id), lambda: store.aforget(user_id))
        return {"records": count}
