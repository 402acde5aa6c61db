"""`entities(session_id, user_id)` as an object: one store, many memories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from langchain_memkit._sync import drive
from langchain_memkit.base import GetSessionHistory, SessionInfo, check_id
from langchain_memkit.memories.derived import DerivedMemoryFactory
from langchain_memkit.memories.entity.core import Core
from langchain_memkit.memories.entity.flows import list_sessions, purge
from langchain_memkit.memories.entity.rebuild import rebuild

if TYPE_CHECKING:
    from langchain_memkit.memories.entity.memory import EntityMemory  # noqa: F401  # named in a string below

__all__ = ["EntityMemoryFactory"]


class EntityMemoryFactory(DerivedMemoryFactory["EntityMemory"]):
    """What `EntityMemory.factory` makes: memories that share a store, and what was read of it for the last 64 users.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> from langchain_memkit.memories.entity import EntityMemory
        >>> with EntityMemory.factory(lambda text: [], names=["LangChain"]) as entities:
        ...     entities("s1", "u1").save([HumanMessage("I use LangChain.")])
        ...     [session.session_id for session in entities.list_sessions("u1")], entities.purge("u1")
        (['s1'], {'facts': 1})
    """

    _core: Core

    def list_sessions(self, user_id: str) -> list[SessionInfo]:
        """The user's sessions of which something is remembered, the last used first; `turns` counts sentences."""
        return drive(self._list_sessions(check_id(user_id, "user_id")))

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
        return drive(self._rebuild(histories, check_id(user_id, "user_id"), progress))

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Deletes all that is remembered of a user for good: a part of `purge_user`.

        Returns:
            `{"facts": n}`: how many sentences were deleted; what else was stored of the user is gone as well.
        """
        return drive(self._purge(check_id(user_id, "user_id")))

    def close(self) -> None:
        """Forgets what was read; a store that you passed in stays open."""
        self._core.shelf.forget_all()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        self._core.shelf.forget_all()

    # -- flows

    async def _list_sessions(self, user_id: str) -> list[SessionInfo]:
        return await list_sessions(self._core, user_id)

    async def _rebuild_sessions(self, user_id: str, sessions: Mapping[str, Any], progress: bool) -> Mapping[str, int]:
        return await rebuild(self._core, user_id, sessions, progress=progress)

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        return await purge(self._core, user_id)
