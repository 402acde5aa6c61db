"""Fakes for tests and demos: a chat model that knows only its prompt, and a clock that stands still."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

from langchain_memkit.messages.tokens import approximate_tokens

__all__ = ["FakeChatModel", "FrozenClock"]

_STOP_WORDS = """
    a an and are as at be been but by can could did do does for from had has have he her his how i in is it its me
    my of on or our she so tell that the their them they this to us was we were what when where which who whom whose
    why will with would you your about again please know remember said say told d ll m re s t ve"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
# "I'm Nemo." and "hi! I'm bob" state a name, "I'm tired." does not.
NAMED = re.compile(
    r"\b(?i:i['\u2019]m|i am|call me)\s+[A-Z]|(?i:^\W*(?:hi|hey|hello)\b.*\bi(?:['\u2019]m| am)\s+\w+\W*$)"
)
WHO = re.compile(r"\bwho am i\b", re.IGNORECASE)
QUOTED = re.compile(r"^> (?:human: )?(?!ai: )(.+)$", re.MULTILINE)  # what a note quotes, but for a model's answers


class FakeChatModel(BaseChatModel):
    """Chat model without a model: it answers from the messages in its prompt, and from nothing else.

    A question is answered with the earlier human message, or the line of a note of memories, that shares most words
    with it, which shows at once if a conversation was not remembered. Anything else is answered with "Noted.", also a
    request for a summary: pass a function for that. It calls tools as `responses` say.

    Args:
        responses: The answers to its first calls, in order: texts, or AI messages, which may call tools. Afterwards it
            answers as above.
        delay: Seconds to wait before every word of a stream.
        error: Error to raise instead of answering, if set.
        error_after: Number of words to stream before `error` is raised.

    Attributes:
        calls: The prompts of all calls.

    Example:
        >>> model = FakeChatModel()
        >>> model.invoke([HumanMessage("My name is Nemo."), HumanMessage("What is my name?")]).content
        'You told me: My name is Nemo.'
        >>> model.invoke("What is my name?").content
        'You have not told me that.'
        >>> calls = [{"name": "add", "args": {"a": 1, "b": 2}, "id": "1"}]
        >>> model = FakeChatModel(responses=[AIMessage("", tool_calls=calls), "It is 3."])
        >>> model.bind_tools([lambda a, b: a + b]).invoke("How much is 1 and 2?").tool_calls[0]["args"]
        {'a': 1, 'b': 2}
        >>> model.invoke("How much is 1 and 2?").content
        'It is 3.'
    """

    responses: Sequence[str | AIMessage] = ()
    delay: float = 0.0
    error: Exception | None = None
    error_after: int = 0
    calls: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "memkit-fake"

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: object
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Bind tools as an agent does; they are called only where `responses` say so."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def get_num_tokens(self, text: str) -> int:
        """Estimate the tokens of a text without a tokenizer."""
        if self.custom_get_token_ids is not None:  # like core's models
            return super().get_num_tokens(text)
        return approximate_tokens([HumanMessage(text)])

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[object] | None = None) -> int:
        """Estimate the tokens of messages, or count with `custom_get_token_ids`; tools are not counted."""
        if self.custom_get_token_ids is not None:
            return super().get_num_tokens_from_messages(messages)
        return approximate_tokens(messages)

    def _message(self, messages: list[BaseMessage]) -> AIMessage:
        if len(self.calls) >= len(self.responses):
            return AIMessage(self._answer(messages))
        answer = self.responses[len(self.calls)]
        self.calls.append(list(messages))
        return AIMessage(answer) if isinstance(answer, str) else answer.model_copy()

    def _answer(self, messages: list[BaseMessage]) -> str:
        self.calls.append(list(messages))
        said = [m.text for m in messages if isinstance(m, HumanMessage)]
        if not said or not said[-1].rstrip().endswith("?"):
            return "Noted."
        question = _words(said[-1]) | ({"name"} if WHO.search(said[-1]) else set())
        lines = [line for text in said[:-1] for line in QUOTED.findall(text) or [text]]
        facts = [line for line in lines if not line.rstrip().endswith("?")]
        # Of equal matches the newest wins, since it may be a correction.
        best = max(enumerate(facts), key=lambda f: (len(question & _told(f[1])), f[0]), default=(0, ""))[1]
        return f"You told me: {best}" if question & _told(best) else "You have not told me that."

    def _pieces(self, messages: list[BaseMessage]) -> Iterator[AIMessageChunk]:
        message = self._message(messages)
        for i, word in enumerate(re.findall(r"\S+\s*", message.text)):
            if self.error is not None and i >= self.error_after:
                break
            yield AIMessageChunk(content=word, id=message.id)
        if self.error is not None:
            raise self.error
        parts = [
            tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=i)
            for i, call in enumerate(message.tool_calls)
        ]
        if parts:
            yield AIMessageChunk(content="", id=message.id, tool_call_chunks=parts)

    def _generate(self, messages: list[BaseMessage], *args: object, **kwargs: object) -> ChatResult:
        answer = self._message(messages)
        if self.error is not None:
            raise self.error
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _stream(self, messages: list[BaseMessage], *args: object, **kwargs: object) -> Iterator[ChatGenerationChunk]:
        for chunk in self._pieces(messages):
            time.sleep(self.delay)
            yield ChatGenerationChunk(message=chunk)

    async def _astream(
        self, messages: list[BaseMessage], *args: object, **kwargs: object
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._pieces(messages):
            await asyncio.sleep(self.delay)
            yield ChatGenerationChunk(message=chunk)


def _words(text: str) -> set[str]:
    words = set(re.findall(r"[^\W_]+", text.lower()))
    return {word.removesuffix("s") if len(word) > 3 else word for word in words - STOP_WORDS}


def _told(text: str) -> set[str]:
    """Return the words that a fact is about, "name" included if its speaker introduces himself."""
    return _words(text) | ({"name"} if NAMED.search(text) else set())


class FrozenClock:
    """Clock that moves only when told to: pass it as `now=`.

    Args:
        start: Initial time, aware; the default is 1 January 2026, UTC.

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
        """Return the current time of the clock."""
        return self._time

    def tick(self, seconds: float) -> None:
        """Move the clock by a number of seconds."""
        self._time += timedelta(seconds=seconds)
