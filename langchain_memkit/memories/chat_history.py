"""A chat history as a memory: its newest messages, through a preprocessor."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.base import coerce_to_runnable

from langchain_memkit._histories import add_messages, clear_messages, is_native
from langchain_memkit._sync import ClosingMixin, Step, adrive, drive
from langchain_memkit.base import (
    CONTEXT,
    GetSessionHistory,
    Memory,
    Preprocessor,
    SessionInfo,
    TurnContext,
    check_id,
    shown,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.preprocessors.loading import load

__all__ = ["ChatHistoryMemory", "ChatHistoryMemoryFactory"]


class ChatHistoryMemory(Memory):
    """A session's dialogue, cut or summarized by a preprocessor.

    Args:
        history: Any LangChain chat history; of ours no more is read than the preprocessor asks for.
        preprocessor: `create_history_preprocessor(...)`, `create_trim_preprocessor(...)`, `trim_messages(...)`; None
            for the whole history.
        read_only: `save` and `clear` leave the history as it is.

    Example:
        >>> from langchain_core.messages import AIMessage
        >>> from langchain_memkit import SQLiteChatMessageHistory, create_trim_preprocessor
        >>> memory = ChatHistoryMemory(
        ...     SQLiteChatMessageHistory(":memory:", "s1"), create_trim_preprocessor(max_tokens=2, token_counter=len)
        ... )
        >>> memory.save([HumanMessage("I'm Nemo."), AIMessage("Hello!")])
        >>> memory.save([HumanMessage("How are you?"), AIMessage("Fine!")])
        >>> [message.text for message in memory.load()]
        ['How are you?', 'Fine!']
    """

    def __init__(
        self,
        history: Any,
        preprocessor: Preprocessor | Callable[[list[BaseMessage]], list[BaseMessage]] | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        if not (hasattr(history, "add_messages") and hasattr(history, "clear")):
            msg = f"history must be a LangChain chat history, not {type(history).__name__}"
            raise ConfigurationError(msg)
        self.history = history
        self.preprocessor = None if preprocessor is None else coerce_to_runnable(preprocessor)
        self.session_id = getattr(history, "session_id", None)
        self.user_id = getattr(history, "user_id", None)
        self.read_only = read_only
        self._native = is_native(history)
        self._at: dict[str, int | datetime | None] = {}

    def __repr__(self) -> str:
        """Names the session."""
        return f"ChatHistoryMemory(session_id={self.session_id!r}, user_id={self.user_id!r})"

    @classmethod
    def factory(
        cls,
        get_session_history: GetSessionHistory,
        preprocessor: Preprocessor | Callable[[list[BaseMessage]], list[BaseMessage]] | None = None,
        *,
        read_only: bool = False,
    ) -> ChatHistoryMemoryFactory:
        """Makes memories over what `get_session_history(session_id, user_id=None)` returns.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> memories = ChatHistoryMemory.factory(SQLiteChatMessageHistory.factory(":memory:"))
            >>> memories("s1").load()
            []
        """
        return ChatHistoryMemoryFactory(get_session_history, preprocessor, read_only=read_only)

    def load(self, query: str = "") -> list[BaseMessage]:
        """The dialogue as the preprocessor leaves it, oldest first.

        Args:
            query: The new input, which shares the preprocessor's budget; it is not part of what is returned.

        Raises:
            HistoryReadError: The history could not be read.
        """
        return drive(self._load(query))

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Async twin of `load`."""
        return await adrive(self._load(query))

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Appends one turn to the history, atomically where it is one of ours.

        Raises:
            HistoryWriteError: It was not stored; `StaleTurnError` if the session was cleared since `load`.
        """
        drive(self._save(messages))

    async def asave(self, messages: Sequence[BaseMessage]) -> None:
        """Async twin of `save`."""
        await adrive(self._save(messages))

    def clear(self) -> None:
        """Clears the session, and what the preprocessor keeps of it."""
        drive(self._clear())

    async def aclear(self) -> None:
        """Async twin of `clear`."""
        await adrive(self._clear())

    async def _load(self, query: str) -> list[BaseMessage]:
        context = TurnContext([HumanMessage(str(query))] if query else [])
        config: RunnableConfig = {"configurable": {"message_history": self.history, CONTEXT: context}}
        view = await load(self.history, self.preprocessor, config, native=self._native)
        self._at = {"epoch": view.epoch, "since": view.read_at}
        context.past = view.messages
        if (chain := self.preprocessor) is None:
            return list(view.messages)
        return await Step(partial(chain.invoke, view.messages, config), partial(chain.ainvoke, view.messages, config))

    async def _save(self, messages: Sequence[BaseMessage]) -> None:
        if self.read_only or not messages:
            return
        turn, history = list(messages), self.history
        if self._native:
            options: dict[str, Any] = {"turn_id": getattr(messages, "turn_id", None), **self._at}
            await Step(partial(history.append_turn, turn, **options), partial(history.aappend_turn, turn, **options))
            self._at = {}  # the turn that began with `load` is over
        else:
            await add_messages(history, turn)

    async def _clear(self) -> None:
        if self.read_only:
            return
        await clear_messages(self.history)
        self._at = {}
        chain: Any = self.preprocessor
        if hasattr(chain, "aclear") and self.session_id:
            ids = (self.session_id, self.user_id)
            await Step(partial(chain.clear, *ids), partial(chain.aclear, *ids))


class ChatHistoryMemoryFactory(ClosingMixin):
    """What `ChatHistoryMemory.factory` makes: called with the ids, and otherwise what the histories' factory is."""

    def __init__(self, get_session_history: GetSessionHistory, preprocessor: Any, *, read_only: bool) -> None:
        if inspect.iscoroutinefunction(get_session_history):
            msg = "ChatHistoryMemory.factory needs a get_session_history that is not async"
            raise ConfigurationError(msg)
        self._histories: Any = get_session_history
        self._takes_user = "user_id" in inspect.signature(get_session_history).parameters
        self._preprocessor = preprocessor
        self._read_only = read_only

    def __repr__(self) -> str:
        """Names the histories."""
        return f"ChatHistoryMemoryFactory({shown(self._histories)})"

    def __call__(self, session_id: str, user_id: str | None = None) -> ChatHistoryMemory:
        """The memory of one session; no I/O.

        Raises:
            ConfigurationError: There is a `user_id`, and `get_session_history` cannot take one.
        """
        args = [check_id(session_id, "session_id")]
        if user_id is not None and not self._takes_user:
            msg = "get_session_history takes no user_id, so users would share conversations"
            raise ConfigurationError(msg)
        owner = {} if user_id is None else {"user_id": check_id(user_id, "user_id")}
        return ChatHistoryMemory(self._histories(*args, **owner), self._preprocessor, read_only=self._read_only)

    def setup(self) -> None:
        """Sets up the histories' store, if their factory can."""
        if hasattr(self._histories, "setup"):
            self._histories.setup()

    async def asetup(self) -> None:
        """Async twin of `setup`."""
        if hasattr(self._histories, "asetup"):
            await self._histories.asetup()

    def list_sessions(self, user_id: str | None = None) -> list[SessionInfo]:
        """The user's sessions, the last used first, if the histories' factory knows."""
        return self._histories.list_sessions(user_id)  # type: ignore[no-any-return]  # any factory

    async def alist_sessions(self, user_id: str | None = None) -> list[SessionInfo]:
        """Async twin of `list_sessions`, a list as well: `for session in await histories.alist_sessions(user_id)`."""
        return await self._histories.alist_sessions(user_id)  # type: ignore[no-any-return]  # any factory

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Forgets a user, if the histories' factory can: a part of `purge_user`."""
        return self._histories.purge(user_id)  # type: ignore[no-any-return]  # any factory

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Async twin of `purge`."""
        return await self._histories.apurge(user_id)  # type: ignore[no-any-return]  # any factory

    def close(self) -> None:
        """Does nothing: the histories' factory is yours."""

    async def aclose(self) -> None:
        """Does nothing: the histories' factory is yours."""
