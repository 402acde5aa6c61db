"""`memories(session_id, user_id)` as an object: one store, many memories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_memkit._flow import Closing, Flow, Step, adrive, arun_step, drive, run_step
from langchain_memkit.base import GetSessionHistory, SessionInfo, check_id
from langchain_memkit.memories.transcripts import history_of
from langchain_memkit.memories.vector.rebuild import rebuild

if TYPE_CHECKING:
    from langchain_memkit.memories.vector.memory import VectorMemory

__all__ = ["VectorMemoryFactory"]


class VectorMemoryFactory(Closing):
    """What `VectorMemory.factory` makes: memories that share a store.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> from langchain_memkit import SQLiteVectorStore, VectorMemory, WordLlamaEmbeddings
        >>> with VectorMemory.factory(SQLiteVectorStore(":memory:", WordLlamaEmbeddings())) as memories:
        ...     memories("s1", "u1").save([HumanMessage("I work in Oslo.")])
        ...     [session.session_id for session in memories.list_sessions("u1")], memories.purge("u1")
        (['s1'], {'records': 1})
    """

    def __init__(self, memory: VectorMemory) -> None:
        self._memory = memory
        self._core = memory._core

    def __repr__(self) -> str:
        return "VectorMemoryFactory()"

    def __call__(self, session_id: str, user_id: str | None = None) -> VectorMemory:
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
        drive(self._setup(), run_step)

    async def asetup(self) -> None:
        """Async twin of `setup`."""
        await adrive(self._setup(), arun_step)

    def _setup(self) -> Flow[None]:
        store: Any = self._core.store
        if hasattr(store, "setup"):
            yield Step(lambda: store.setup(), lambda: store.asetup())

    def list_sessions(self, user_id: str) -> list[SessionInfo]:
        """The user's sessions of which something is remembered, the last used first; `turns` counts records."""
        sessions: list[SessionInfo] = self._core.store.sessions(check_id(user_id, "user_id"))
        return sessions

    async def alist_sessions(self, user_id: str) -> list[SessionInfo]:
        """Async twin of `list_sessions`."""
        sessions: list[SessionInfo] = await self._core.store.asessions(check_id(user_id, "user_id"))
        return sessions

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
        return drive(self._rebuild(histories, check_id(user_id, "user_id"), progress), run_step)

    async def arebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Async twin of `rebuild`."""
        return await adrive(self._rebuild(histories, check_id(user_id, "user_id"), progress), arun_step)

    def _rebuild(self, histories: Any, user_id: str, progress: bool) -> Flow[Mapping[str, int]]:
        store = self._core.store  # first: a session that begins meanwhile is left alone
        known = yield Step(lambda: store.sessions(user_id), lambda: store.asessions(user_id))
        found = yield Step(lambda: histories.list_sessions(user_id), lambda: histories.alist_sessions(user_id))
        names = dict.fromkeys(info.session_id for info in [*found, *known])
        sessions = {}
        for name in names:
            sessions[name] = yield history_of(histories, name, user_id)
        return (yield from rebuild(self._core, user_id, sessions, progress=progress))

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Deletes all that is remembered of a user for good: a part of `purge_user`.

        Returns:
            `{"records": n}`: how many were deleted.
        """
        return {"records": self._core.store.forget(check_id(user_id, "user_id"))}

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Async twin of `purge`."""
        return {"records": await self._core.store.aforget(check_id(user_id, "user_id"))}

    def close(self) -> None:
        """Does nothing: the store is yours."""

    async def aclose(self) -> None:
        """Does nothing: the store is yours."""
