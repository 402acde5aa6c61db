"""The only module that uses what langchain-core 2.0 removes.

`BaseChatMessageHistory` and `InMemoryChatMessageHistory` (deprecated in core 1.6.4) and `RunnableWithMessageHistory`
(1.3.3) are LangChain's own while they exist, so that `isinstance` checks in existing apps keep working; without them
the classes below carry the same methods. Nothing here calls a method of the retired chain class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, get_buffer_string
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import run_in_executor
from pydantic import BaseModel, Field

__all__ = ["BaseChatMessageHistory", "CoreRunnableWithMessageHistory", "InMemoryChatMessageHistory"]

if TYPE_CHECKING:
    CoreRunnableWithMessageHistory = RunnableBindingBase[Any, Any]
else:
    try:
        from langchain_core.runnables.history import RunnableWithMessageHistory as CoreRunnableWithMessageHistory
    except ImportError:
        CoreRunnableWithMessageHistory = RunnableBindingBase[Any, Any]

try:
    from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
except ImportError:

    class BaseChatMessageHistory(ABC):  # type: ignore[no-redef]  # stands in where core has none
        """A chat history: subclass it with `messages`, `add_messages` (or `add_message`) and `clear`.

        Every other method follows from these three; the async ones run them in a thread, unless overridden.

        Example:
            >>> from langchain_memkit import BaseChatMessageHistory
            >>> class ListHistory(BaseChatMessageHistory):
            ...     def __init__(self):
            ...         self.messages = []
            ...
            ...     def add_messages(self, messages):
            ...         self.messages.extend(messages)
            ...
            ...     def clear(self):
            ...         self.messages = []
            >>> history = ListHistory()
            >>> history.add_user_message("hi")
            >>> print(history)
            Human: hi
        """

        messages: list[BaseMessage]
        """The conversation, oldest first: an attribute or a property."""

        async def aget_messages(self) -> list[BaseMessage]:
            """Read `messages` asynchronously."""
            return await run_in_executor(None, lambda: self.messages)

        def add_user_message(self, message: HumanMessage | str) -> None:
            """Append a message of the user."""
            self.add_message(message if isinstance(message, HumanMessage) else HumanMessage(message))

        def add_ai_message(self, message: AIMessage | str) -> None:
            """Append a message of the model."""
            self.add_message(message if isinstance(message, AIMessage) else AIMessage(message))

        def add_message(self, message: BaseMessage) -> None:
            """Append one message, through `add_messages` if the subclass defines it.

            Raises:
                NotImplementedError: The subclass defines neither `add_message` nor `add_messages`.
            """
            inherited: Any = BaseChatMessageHistory.add_messages
            if type(self).add_messages == inherited:
                msg = f"{type(self).__name__} cannot add messages: define add_messages (or add_message) in it."
                raise NotImplementedError(msg)
            self.add_messages([message])

        def add_messages(self, messages: Sequence[BaseMessage]) -> None:
            """Append several messages, in order."""
            for message in messages:
                self.add_message(message)

        async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
            """Run `add_messages` asynchronously."""
            await run_in_executor(None, self.add_messages, messages)

        @abstractmethod
        def clear(self) -> None:
            """Remove all messages."""

        async def aclear(self) -> None:
            """Run `clear` asynchronously."""
            await run_in_executor(None, self.clear)

        def __str__(self) -> str:
            """Return the conversation as lines of text."""
            return get_buffer_string(self.messages)

    class InMemoryChatMessageHistory(BaseChatMessageHistory, BaseModel):  # type: ignore[no-redef]  # as above
        """A chat history that lasts as long as this object.

        Args:
            messages: The messages it starts with, oldest first.

        Example:
            >>> from langchain_memkit import InMemoryChatMessageHistory
            >>> history = InMemoryChatMessageHistory()
            >>> history.add_ai_message("hello")
            >>> [message.text for message in history.messages]
            ['hello']
        """

        messages: list[BaseMessage] = Field(default_factory=list)
        """The conversation, oldest first."""

        def add_message(self, message: BaseMessage) -> None:
            """Append one message."""
            self.messages.append(message)

        def clear(self) -> None:
            """Remove all messages."""
            self.messages = []
