"""The user's last questions as the only history: what the article's apps keep in mind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks.manager import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_memkit._histories import has_native
from langchain_memkit._sync import Step, adrive, drive
from langchain_memkit.base import Window
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.authors import is_user_message

__all__ = ["LastQuestions"]


class LastQuestions(Runnable[Any, list[BaseMessage]]):
    """A preprocessor that keeps the last questions, oldest first, and reads no more of the history than that takes."""

    def __init__(self, n: int) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:  # type: ignore[redundant-expr]  # callers without types
            msg = f"n_questions must be a whole number from 1, or None for the whole conversation; got {n!r:.50}"
            raise ConfigurationError(msg)
        self.name = "last_questions"
        self._n = n

    def window(self, config: RunnableConfig | None = None) -> Window:
        """As many messages as a question and an answer each."""
        return Window(max_messages=2 * self._n)

    async def awindow(self, config: RunnableConfig | None = None) -> Window:
        """Async twin of `window`."""
        return self.window(config)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> list[BaseMessage]:
        """The questions among the messages; more is read where others, of tools say, took up the room."""

        def run(value: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig) -> list[BaseMessage]:
            return drive(self._questions(value, config))

        return self._call_with_config(run, input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> list[BaseMessage]:
        """Async twin of `invoke`."""

        async def run(
            value: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
        ) -> list[BaseMessage]:
            return await adrive(self._questions(value, config))

        return await self._acall_with_config(run, input, config)

    async def _questions(self, messages: Sequence[BaseMessage], config: RunnableConfig) -> list[BaseMessage]:
        asked = [m for m in messages if is_user_message(m)]
        history: Any = config.get("configurable", {}).get("message_history")
        complete = len(asked) >= self._n or len(messages) < 2 * self._n
        if complete or not has_native(history, "last_questions"):
            return list(asked[-self._n :])
        newest = await Step(lambda: history.last_questions(self._n), lambda: history.alast_questions(self._n))
        return [HumanMessage(text) for text in reversed(newest)]
