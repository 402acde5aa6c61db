"""Factory of entity memories that share one store: `entities(session_id, user_id)`."""

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
    """Callable that makes the `EntityMemory` of a session; all of them share a store and a cache.

    Returned by `EntityMemory.factory`. The cache holds what was read of the last 64 users.

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
        """Return the user's sessions that have facts, the last used first; `turns` counts facts (sentences)."""
        return drive(self._list_sessions(check_id(user_id, "user_id")))

    def rebuild(self, histories: GetSessionHistory, user_id: str, progress: bool = True) -> Mapping[str, int]:
        """Rebuild all facts of a user from the transcripts.

        Args:
            histories: A history factory of this package, or any callable that takes the ids and has
                `list_sessions(user_id)`.
            user_id: Whose facts.
            progress: Show a progress bar if `rich` is installed.

        Returns:
            `{"messages": n, "added": n, "removed": n}`; a second run adds and removes nothing. Facts of sessions that
            no longer exist are removed.
        """
        return drive(self._rebuild(histories, check_id(user_id, "user_id"), progress))

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Delete everything that is stored of a user for good; part of `purge_user`.

        Returns:
            `{"facts": n}`: how many facts were deleted; the user's rules, descriptions and other rows are deleted as
            well.
        """
        return drive(self._purge(check_id(user_id, "user_id")))

    def close(self) -> None:
        """Empty the cache; a store that you passed in stays open."""
        self._core.shelf.forget_all()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        self._core.shelf.forget_all()

    # -- flows

    async def _list_sessions(self, user_id: str) -> list[SessionInfo]:
        return await list_sessions(self._core, user_id)

    async def _rebuild_sessions(self, user_id: str, sessions: Mapping[str, Any], progress: bool) -> Mapping[str, int]:
        return await rebuild(self._core, user_id, sessions, progress=progress)

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        return await purge(self._core, user_id)
