"""`memories(session_id, user_id)` as an object: one store, many memories."""

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
    """What `VectorMemory.factory` makes: memories that share a store.

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
        """The user's sessions of which something is remembered, the last used first; `turns` counts records."""
        return drive(self._list_sessions(check_id(user_id, "user_id")))

    def rebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Brings all records of a user in line with the transcripts: so everything of a user is imported.

        Args:
            histories: A factory of ours, or what else takes ids and has `list_sessions(user_id)`.
            user_id: Whose.
            progress: Shows a bar if `rich` is installed.

        Returns:
            `{"messages": n, "added": n, "removed": n}`; a second time nothing is added or removed. Records of sessions
            that are not there any more are removed.
        """
        return drive(self._rebuild(histories, check_id(user_id, "user_id"), progress))

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Deletes all that is remembered of a user for good: a part of `purge_user`.

        Returns:
            `{"records": n}`: how many were deleted.
        """
        return drive(self._purge(check_id(user_id, "user_id")))

    def close(self) -> None:
        """Does nothing: the store is yours."""

    async def aclose(self) -> None:
        """Does nothing: the store is yours."""

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
