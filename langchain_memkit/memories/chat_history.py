"""`ChatHistoryMemory`: a chat history as a memory, trimmed or summarized by a preprocessor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeAlias

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.base import coerce_to_runnable

from langchain_memkit._histories import add_messages, clear_messages, is_native, load_history
from langchain_memkit._sync import Step, adrive, drive
from langchain_memkit.base import CONTEXT, GetSessionHistory, Memory, Preprocessor, TurnContext, safe_repr
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.fanout import ForwardingFactory, bound_maker

PreprocessorLike: TypeAlias = Preprocessor | Callable[[list[BaseMessage]], list[BaseMessage]] | None
"""A preprocessor, or a function in its place; None for none."""


class ChatHistoryMemory(Memory):
    """The dialogue of a session, trimmed or summarized by a preprocessor.

    Args:
        history: Any LangChain chat history; of our histories only as much is read as the preprocessor asks for.
        preprocessor: `create_history_preprocessor(...)`, `create_trim_preprocessor(...)`, `trim_messages(...)`; None
            to load the whole history.
        read_only: `save` and `clear` do nothing.

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

    def __init__(self, history: Any, preprocessor: PreprocessorLike = None, *, read_only: bool = False) -> None:
        if not (hasattr(history, "add_messages") and hasattr(history, "clear")):
            raise ConfigurationError(f"history must be a LangChain chat history, not {type(history).__name__}")
        self.history = history
        self.preprocessor = None if preprocessor is None else coerce_to_runnable(preprocessor)
        self.session_id = getattr(history, "session_id", None)
        self.user_id = getattr(history, "user_id", None)
        self.read_only = read_only
        self._native = is_native(history)
        self._at: dict[str, int | datetime | None] = {}

    def __repr__(self) -> str:
        """Show the ids, never the messages."""
        return f"ChatHistoryMemory(session_id={self.session_id!r}, user_id={self.user_id!r})"

    @classmethod
    def factory(
        cls, get_session_history: GetSessionHistory, preprocessor: PreprocessorLike = None, *, read_only: bool = False
    ) -> ChatHistoryMemoryFactory:
        """Make a factory of memories over what `get_session_history(session_id, user_id=None)` returns.

        Example:
            >>> from langchain_memkit import SQLiteChatMessageHistory
            >>> memories = ChatHistoryMemory.factory(SQLiteChatMessageHistory.factory(":memory:"))
            >>> memories("s1").load()
            []
        """
        return ChatHistoryMemoryFactory(get_session_history, preprocessor, read_only=read_only)

    def load(self, query: str = "") -> list[BaseMessage]:
        """Return the dialogue as the preprocessor leaves it, oldest first.

        The position and epoch that were read are kept for the next `save`.

        Args:
            query: The new input, which counts against the preprocessor's budget but is not returned.

        Raises:
            HistoryReadError: The history could not be read.
        """
        return drive(self._load(query))

    async def aload(self, query: str = "") -> list[BaseMessage]:
        """Run `load` asynchronously."""
        return await adrive(self._load(query))

    def save(self, messages: Sequence[BaseMessage]) -> None:
        """Append one turn to the history; in our histories as one atomic write.

        Raises:
            HistoryWriteError: The turn was not stored; `StaleTurnError` if the session was cleared since `load`.
        """
        drive(self._save(messages))

    async def asave(self, messages: Sequence[BaseMessage]) -> None:
        """Run `save` asynchronously."""
        await adrive(self._save(messages))

    def clear(self) -> None:
        """Clear the session, and what the preprocessor stored of it (summaries)."""
        drive(self._clear())

    async def aclear(self) -> None:
        """Run `clear` asynchronously."""
        await adrive(self._clear())

    async def _load(self, query: str) -> list[BaseMessage]:
        # Preprocessors find the history and the new input in the config, as in a chain.
        context = TurnContext([HumanMessage(str(query))] if query else [])
        config: RunnableConfig = {"configurable": {"message_history": self.history, CONTEXT: context}}
        view = await load_history(self.history, self.preprocessor, config, native=self._native)
        # The turn begins here: its save hands this epoch back, and is refused if the session was cleared in between.
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
        # Summaries are text of the session too, so they go with it.
        if hasattr(chain, "aclear") and self.session_id:
            ids = (self.session_id, self.user_id)
            await Step(partial(chain.clear, *ids), partial(chain.aclear, *ids))


class ChatHistoryMemoryFactory(ForwardingFactory):
    """Callable that makes the `ChatHistoryMemory` of a session.

    Returned by `ChatHistoryMemory.factory`. `setup`, `list_sessions` and `purge` are forwarded to the histories'
    factory.
    """

    def __init__(self, get_session_history: GetSessionHistory, preprocessor: Any, *, read_only: bool) -> None:
        self._makers = [get_session_history]
        self._preprocessor = preprocessor
        self._read_only = read_only

    def __repr__(self) -> str:
        """Show the histories' factory."""
        return f"ChatHistoryMemoryFactory({safe_repr(self._makers[0])})"

    def __call__(self, session_id: str, user_id: str | None = None) -> ChatHistoryMemory:
        """Return the memory of a session; no I/O.

        Raises:
            ConfigurationError: There is a `user_id`, but `get_session_history` cannot take one; or it is async.
        """
        history = bound_maker(self._makers[0], session_id, user_id)()
        return ChatHistoryMemory(history, self._preprocessor, read_only=self._read_only)

    def close(self) -> None:
        """Do nothing: the histories' factory belongs to the caller."""

    async def aclose(self) -> None:
        """Do nothing: the histories' factory belongs to the caller."""
