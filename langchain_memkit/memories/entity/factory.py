"""`entities(session_id, user_id)` as an object: one store, many memories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_memkit._flow import Closing, Flow, Step, adrive, arun_step, drive, run_step
from langchain_memkit.base import GetSessionHistory, SessionInfo, check_id
from langchain_memkit.memories.entity.flows import list_sessions, purge
from langchain_memkit.memories.entity.rebuild import rebuild
from langchain_memkit.memories.transcripts import history_of

if TYPE_CHECKING:
    from langchain_memkit.memories.entity.memory import EntityMemory

__all__ = ["EntityMemoryFactory"]


class EntityMemoryFactory(Closing):
    """What `EntityMemory.factory` makes: memories that share a store, and what was read of it for the last 64 users.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> from langchain_memkit.memories.entity import EntityMemory
        >>> with EntityMemory.factory(lambda text: [], names=["LangChain"]) as entities:
        ...     entities("s1", "u1").save([HumanMessage("I use LangChain.")])
        ...     [session.session_id for session in entities.list_sessions("u1")], entities.purge("u1")
        (['s1'], {'facts': 1})
    """

    def __init__(self, memory: EntityMemory) -> None:
        self._memory = memory
        self._core = memory._core

    def __repr__(self) -> str:
        return "EntityMemoryFactory()"

    def __call__(self, session_id: str, user_id: str | None = None) -> EntityMemory:
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
        store: Any = self._core.shelf.store
        if hasattr(store, "setup"):
            yield Step(lambda: store.setup(), lambda: store.asetup())

    def list_sessions(self, user_id: str) -> list[SessionInfo]:
        """The user's sessions of which something is remembered, the last used first; `turns` counts sentences."""
        return drive(list_sessions(self._core, check_id(user_id, "user_id")), run_step)

    async def alist_sessions(self, user_id: str) -> list[SessionInfo]:
        """Async twin of `list_sessions`."""
        return await adrive(list_sessions(self._core, check_id(user_id, "user_id")), arun_step)

    def rebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Makes all facts of a user anew from the transcripts.

        Args:
            histories: A factory of ours, or what else takes ids and has `list_sessions(user_id)`.
            user_id: Whose.
            progress: Shows a bar if `rich` is installed.

        Returns:
            `{"messages": n, "added": n, "removed": n}`; a second time nothing is added or removed. Facts of sessions
            that are not there any more are removed.
        """
        return drive(self._rebuild(histories, check_id(user_id, "user_id"), progress), run_step)

    async def arebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Async twin of `rebuild`."""
        return await adrive(self._rebuild(histories, check_id(user_id, "user_id"), progress), arun_step)

    def _rebuild(self, histories: Any, user_id: str, progress: bool) -> Flow[Mapping[str, int]]:
        known = yield from list_sessions(self._core, user_id)  # first: a session that begins meanwhile is left alone
        found = yield Step(lambda: histories.list_sessions(user_id), lambda: histories.alist_sessions(user_id))
        names = dict.fromkeys(info.session_id for info in [*found, *known])
        sessions = {}
        for name in names:
            sessions[name] = yield history_of(histories, name, user_id)
        return (yield from rebuild(self._core, user_id, sessions, progress=progress))

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Deletes all that is remembered of a user for good: a part of `purge_user`.

        Returns:
            `{"facts": n}`: how many sentences were deleted; what else was stored of the user is gone as well.
        """
        return drive(purge(self._core, check_id(user_id, "user_id")), run_step)

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Async twin of `purge`."""
        return await adrive(purge(self._core, check_id(user_id, "user_id")), arun_step)

    def close(self) -> None:
        """Forgets what was read; a store that you passed in stays open."""
        self._core.shelf.forget_all()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        self._core.shelf.forget_all()
