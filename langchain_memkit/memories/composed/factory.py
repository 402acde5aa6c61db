"""`memories(session_id, user_id)` as an object: one factory out of several."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from langchain_core.runnables import Runnable, RunnablePassthrough

from langchain_memkit._sync import ClosingMixin, adrive, drive
from langchain_memkit.base import Memory, SessionInfo, check_id
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.composed.sources import Source
from langchain_memkit.memories.retriever import RetrieverMemory
from langchain_memkit.memories.telling import name_of, on_all

if TYPE_CHECKING:
    from langchain_memkit.memories.composed.memory import ComposedMemory

__all__ = ["ComposedMemoryFactory"]

UNKNOWN = datetime.min.replace(tzinfo=UTC)


class ComposedMemoryFactory(ClosingMixin):
    """What `ComposedMemory.factory` makes; give it to `create_runnable_with_message_history(memories=[...])`.

    Its verbs ask the factories that it is made of, the primary's first.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> from langchain_memkit import ChatHistoryMemory, EntityMemory, SQLiteChatMessageHistory
        >>> from langchain_memkit.memories.composed import ComposedMemory
        >>> dialogues = ChatHistoryMemory.factory(SQLiteChatMessageHistory.factory(":memory:"))
        >>> entities = EntityMemory.factory(lambda text: [], names=["LangChain"])
        >>> with ComposedMemory.factory(dialogues, entities) as memories:
        ...     memories("s1", "u1").save([HumanMessage("I use LangChain.")])
        ...     [session.session_id for session in memories.list_sessions("u1")], memories.purge("u1")
        (['s1'], {'sessions': 1, 'turns': 1, 'facts': 1})
    """

    def __init__(self, sources: Sequence[Source], compose: Callable[..., ComposedMemory]) -> None:
        self._sources = sources
        self._compose = compose
        self._makers = [s.memory for s in sources if not isinstance(s.memory, (Memory, Runnable))]
        for maker in self._makers:
            if not callable(maker) or isinstance(maker, type) or inspect.iscoroutinefunction(maker):
                msg = (
                    "ComposedMemory.factory takes functions (session_id, user_id), not async, that make a Memory, such "
                    f"as X.factory(...) returns; got {name_of(maker)}"
                )
                raise ConfigurationError(msg)
        compose(RetrieverMemory(RunnablePassthrough()))  # so that wrong options are known now

    def __repr__(self) -> str:
        return f"ComposedMemoryFactory({', '.join(name_of(source.memory) for source in self._sources)})"

    def __call__(self, session_id: str, user_id: str | None = None) -> ComposedMemory:
        """The memory of one session; no I/O.

        Args:
            session_id: The conversation.
            user_id: Whose it is; required where one of the memories needs it.

        Raises:
            ConfigurationError: A memory needs a `user_id` and there is none, or there is one and a function cannot
                take it.
            TypeError: An id is no string.
            ValueError: An id is empty or malformed.
        """
        check_id(session_id, "session_id")
        owner = {} if user_id is None else {"user_id": check_id(user_id, "user_id")}
        primary, *secondary = [self._made(source, session_id, owner) for source in self._sources]
        return self._compose(primary.memory, *secondary)

    def _made(self, source: Source, session_id: str, owner: dict[str, str]) -> Source:
        maker = source.memory
        if isinstance(maker, (Memory, Runnable)):  # shared by all sessions
            return source
        parameters = inspect.signature(maker).parameters
        if owner and "user_id" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            msg = f"{name_of(maker)} takes no user_id, so users would share memories"
            raise ConfigurationError(msg)
        return replace(source, memory=maker(session_id, **owner))

    def setup(self) -> None:
        """Sets up the stores that have to be."""
        drive(self._setup())

    async def asetup(self) -> None:
        """Async twin of `setup`."""
        await adrive(self._setup())

    async def _setup(self) -> None:
        able = [maker for maker in self._makers if hasattr(maker, "setup")]
        await on_all(able, "setup")

    def list_sessions(self, user_id: str) -> list[SessionInfo]:
        """The user's sessions in any of the memories, the last used first.

        Raises:
            ConfigurationError: None of the factories can list sessions.
        """
        return drive(self._list_sessions(check_id(user_id, "user_id")))

    async def alist_sessions(self, user_id: str) -> list[SessionInfo]:
        """Async twin of `list_sessions`, a list as well: `for session in await histories.alist_sessions(user_id)`."""
        return await adrive(self._list_sessions(check_id(user_id, "user_id")))

    async def _list_sessions(self, user_id: str) -> list[SessionInfo]:
        able = [maker for maker in self._makers if hasattr(maker, "list_sessions")]
        if not able:
            msg = "none of the factories has list_sessions; that of the histories has"
            raise ConfigurationError(msg)
        lists = await on_all(able, "list_sessions", user_id)
        found = {info.session_id: info for infos in reversed(lists) for info in infos}
        return sorted(found.values(), key=lambda info: info.updated_at or UNKNOWN, reverse=True)

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Forgets a user in every memory: a part of `purge_user`.

        Returns:
            What was deleted, by kind: `{"sessions": 2, "turns": 9, "facts": 7}`.

        Raises:
            ConfigurationError: A function that makes memories has no `purge`; nothing was deleted.
            HistoryWriteError: A store failed; the others were tried, and calling again finishes the work.
        """
        return drive(self._purge(check_id(user_id, "user_id")))

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Async twin of `purge`."""
        return await adrive(self._purge(check_id(user_id, "user_id")))

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        unable = [name_of(maker) for maker in self._makers if not hasattr(maker, "purge")]
        if unable:
            msg = f"{unable[0]} has no purge(user_id), so the user would not be forgotten; nothing was deleted"
            raise ConfigurationError(msg)
        counts = await on_all(self._makers, "purge", user_id)
        total: Counter[str] = Counter()
        for count in counts:
            total.update(count)
        return dict(total)

    def close(self) -> None:
        """Closes each of the factories, which end what they began."""
        drive(self._close())

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await adrive(self._close())

    async def _close(self) -> None:
        able = [maker for maker in self._makers if hasattr(maker, "close")]
        await on_all(able, "close")
