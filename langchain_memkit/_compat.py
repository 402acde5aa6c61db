"""The only place that touches what langchain-core 2.0 removes.

`BaseChatMessageHistory` (deprecated in core 1.6.4) and `RunnableWithMessageHistory` (1.3.3) are used as base classes
while they exist, so that `isinstance` checks in existing apps keep working; without them the stand-ins below carry the
same verbs. Nothing here calls a method of the retired chain class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, get_buffer_string
from langchain_core.runnables.base import RunnableBindingBase

__all__ = ["BaseChatMessageHistory", "ContextOverflowError", "CoreRunnableWithMessageHistory"]

if TYPE_CHECKING:
    CoreRunnableWithMessageHistory = RunnableBindingBase[Any, Any]
else:
    try:
        from langchain_core.runnables.history import RunnableWithMessageHistory as CoreRunnableWithMessageHistory
    except ImportError:
        CoreRunnableWithMessageHistory = RunnableBindingBase[Any, Any]

try:
    from langchain_core.chat_history import BaseChatMessageHistory
except ImportError:

    class BaseChatMessageHistory:  # type: ignore[no-redef]  # stands in where core has none
        """The verbs of a LangChain chat history that follow from `add_messages`."""

        def add_message(self, message: BaseMessage) -> None:
            """Append one message."""
            self.add_messages([message])  # type: ignore[attr-defined]  # every history of ours has it

        def add_user_message(self, message: HumanMessage | str) -> None:
            """Append what the user said."""
            self.add_message(HumanMessage(message) if isinstance(message, str) else message)

        def add_ai_message(self, message: AIMessage | str) -> None:
            """Append what the model said."""
            self.add_message(AIMessage(message) if isinstance(message, str) else message)

        def __str__(self) -> str:
            """The conversation as lines of text."""
            return get_buffer_string(self.messages)  # type: ignore[attr-defined]  # every history of ours has it
