"""What tests of the middleware share: a model that follows a script, a tool or two, and short ways to look."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import Field

CONFIG: Any = {"configurable": {"session_id": "s1", "thread_id": "s1", "user_id": "u1"}}


class Scripted(BaseChatModel):
    """Answers with the next line of its script: text, a message, an error to raise, or a function of the messages.

    After the script's end it answers "ok 1", "ok 2", and so on.
    """

    script: list[Any] = Field(default_factory=list)
    calls: list[list[BaseMessage]] = Field(default_factory=list)
    delay: float = 0.0
    on_word: Callable[[int], None] | None = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """Tools change nothing: the script says when they are called."""
        return self

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        self.calls.append(list(messages))
        line = self.script.pop(0) if self.script else f"ok {len(self.calls)}"
        line = line(messages) if callable(line) else line
        if isinstance(line, BaseException):
            raise line
        return line if isinstance(line, AIMessage) else AIMessage(line)

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    def _chunks(self, messages: list[BaseMessage]) -> Iterator[ChatGenerationChunk]:
        answer = self._answer(messages)
        calls: Any = [
            {**c, "args": re.sub("'", '"', str(c["args"])), "index": i} for i, c in enumerate(answer.tool_calls)
        ]
        if calls:
            calls = [{k: v for k, v in c.items() if k != "type"} for c in calls]
            yield ChatGenerationChunk(message=AIMessageChunk(answer.content, tool_call_chunks=calls))
            return
        for i, word in enumerate(re.findall(r"\S+\s*", answer.text)):
            if self.on_word:
                self.on_word(i)
            yield ChatGenerationChunk(message=AIMessageChunk(word))

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in self._chunks(messages):
            time.sleep(self.delay)
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._chunks(messages):
            await asyncio.sleep(self.delay)
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    @property
    def shown(self) -> list[str]:
        """The texts of the last call."""
        return texts(self.calls[-1])


def calling(*calls: tuple[str, dict[str, Any]], text: str = "") -> AIMessage:
    """An answer that calls tools; ids are unlike in each."""
    made: Any = [{"name": name, "args": args, "id": f"{name}-{args}"} for name, args in calls]
    return AIMessage(text, tool_calls=made)


def look_up(word: str) -> str:
    """Looks a word up."""
    return f"{word} is a word"


def send(to: str) -> str:
    """Sends."""
    return f"sent to {to}"


def texts(messages: list[BaseMessage]) -> list[str]:
    """The text of each message."""
    return [message.text for message in messages]


def asking(text: str) -> dict[str, Any]:
    """An agent's input."""
    return {"messages": [("user", text)]}


def rows(history: Any) -> list[list[str]]:
    """The texts of each stored turn; of calls the names."""
    return [[line(m) for m in turn.messages] for turn in history.iter_turns()]


def line(message: BaseMessage) -> str:
    """A message in a word."""
    calls = getattr(message, "tool_calls", None)
    return "+".join(call["name"] for call in calls) if calls else message.text
