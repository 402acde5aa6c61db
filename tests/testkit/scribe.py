"""A chat model that summarizes, and numbered messages by which a test sees what it was given."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field


class Scribe(BaseChatModel):
    """Chat model that answers with the facts (`FACT` and a word) in its prompt, and a number of filler words.

    Attributes:
        words: Number of filler words in each summary.
        fail_on: Numbers of the calls that raise, from 1.
        say: A fixed answer, if set.
        delay: Seconds for one call.
        awake: Ends the delay of sync calls.
        gate: Called in each call, before it answers.
        prompts: The prompts of all calls.
        styles: `"sync"` or `"async"` for each call.
    """

    words: int = 0
    fail_on: Sequence[int] = ()
    say: str | None = None
    delay: float = 0.0
    awake: threading.Event = Field(default_factory=threading.Event)
    gate: Callable[[], object] | None = None
    prompts: list[str] = Field(default_factory=list)
    styles: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "memkit-scribe"

    @property
    def seen(self) -> list[int]:
        """Numbers of all messages that it was to summarize, call by call."""
        return [mark for prompt in self.prompts for mark in marks(prompt.split("<messages>")[-1])]

    def _answer(self, messages: list[BaseMessage], style: str) -> ChatResult:
        prompt = "\n".join(message.text for message in messages)
        self.prompts.append(prompt)
        self.styles.append(style)
        if self.gate:
            self.gate()
        if len(self.prompts) in self.fail_on:
            raise ConnectionError("the model is away")
        facts = sorted(set(re.findall(r"FACT \w+", prompt)))
        text = f"Summary {len(self.prompts)}. {' '.join(facts)} {'blah ' * self.words}"
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text if self.say is None else self.say))])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.awake.wait(self.delay)
        return self._answer(messages, "sync")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        await asyncio.sleep(self.delay)
        if self.gate:  # which may block
            return await asyncio.to_thread(self._answer, messages, "async")
        return self._answer(messages, "async")


def marked(i: int, text: str = "") -> str:
    """Return text that carries a number."""
    return f"[#{i}] {text}".strip()


def marks(text: str) -> list[int]:
    """Return the numbers in a text."""
    return [int(mark) for mark in re.findall(r"\[#(\d+)\]", text)]


def talk(n: int, words: int = 10, first: int = 0) -> list[BaseMessage]:
    """Make `n` messages, questions and answers in turn, each with its number; the very first one holds `FACT Nemo`."""
    kinds = (HumanMessage, AIMessage)
    fact = ["FACT Nemo "] + [""] * (first + n)
    return [kinds[i % 2](marked(i, fact[i] + "word " * words)) for i in range(first, first + n)]
