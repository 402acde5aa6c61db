"""Fakes for tests and demos: a chat model that knows only what it is given, and a clock that stands still."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

__all__ = ["FakeChatModel", "FrozenClock"]

STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a an and are as at be been but by can could did do does for from had
        has have he her his how i in is it its me my of on or our she
        so tell that the their them they this to us was we were what when where which who
        whom whose why will with would you your about again please know remember said say told
        """,
    )
)


class FakeChatModel(BaseChatModel):
    """A chat model without a model: it answers from the messages that it is given, and from nothing else.

    A question is answered with the earlier human message that shares most words with it, so a conversation that was
    not remembered shows at once. Anything else is answered with "Noted.".

    Args:
        delay: Seconds to wait before every word of a stream.
        error: Raised instead of answering, if set.
        error_after: Words to stream before `error` is raised.

    Attributes:
        calls: What it was given, call by call.

    Example:
        >>> model = FakeChatModel()
        >>> model.invoke([HumanMessage("My name is Nemo."), HumanMessage("What is my name?")]).content
        'You told me: My name is Nemo.'
        >>> model.invoke("What is my name?").content
        'You have not told me that.'
    """

    delay: float = 0.0
    error: Exception | None = None
    error_after: int = 0
    calls: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "memkit-fake"

    def _answer(self, messages: list[BaseMessage]) -> str:
        self.calls.append(list(messages))
        said = [m.text for m in messages if isinstance(m, HumanMessage)]
        if not said or not said[-1].rstrip().endswith("?"):
            return "Noted."
        question = _words(said[-1])
        facts = [text for text in said[:-1] if not text.rstrip().endswith("?")]
        # the newest of the best: a correction counts more than what it corrects
        best = max(enumerate(facts), key=lambda f: (len(question & _words(f[1])), f[0]), default=(0, ""))[1]
        return f"You told me: {best}" if question & _words(best) else "You have not told me that."

    def _pieces(self, messages: list[BaseMessage]) -> Iterator[str]:
        for i, word in enumerate(re.findall(r"\S+\s*", self._answer(messages))):
            if self.error is not None and i >= self.error_after:
                break
            yield word
        if self.error is not None:
            raise self.error

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        answer = self._answer(messages)
        if self.error is not None:
            raise self.error
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answer))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for word in self._pieces(messages):
            time.sleep(self.delay)
            if run_manager:
                run_manager.on_llm_new_token(word)
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for word in self._pieces(messages):
            await asyncio.sleep(self.delay)
            if run_manager:
                await run_manager.on_llm_new_token(word)
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))


def _words(text: str) -> set[str]:
    words = set(re.findall(r"[^\W_]+", text.lower()))
    return {word.removesuffix("s") if len(word) > 3 else word for word in words - STOP_WORDS}


class FrozenClock:
    """A clock that moves only when told to: pass it as `now=`.

    Args:
        start: Where it stands, aware; default the first of January 2026, UTC.

    Example:
        >>> clock = FrozenClock()
        >>> clock().isoformat()
        '2026-01-01T00:00:00+00:00'
        >>> clock.tick(90)
        >>> clock().isoformat()
        '2026-01-01T00:01:30+00:00'
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._time = start or datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        """The present."""
        return self._time

    def tick(self, seconds: float) -> None:
        """Moves the clock."""
        self._time += timedelta(seconds=seconds)
