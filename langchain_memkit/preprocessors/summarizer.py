"""The calls of the model: a summary of the summary so far and what came after it, chunk by chunk."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs

from langchain_memkit._flow import Flow, Step
from langchain_memkit.base import Now
from langchain_memkit.messages.counting import approximate_tokens, count_tokens
from langchain_memkit.preprocessors.budget import Budget
from langchain_memkit.preprocessors.conversation import Conversation, Known
from langchain_memkit.preprocessors.prompt import SummaryPrompt, chunks_of
from langchain_memkit.preprocessors.records import SummaryRecord, SummaryStore
from langchain_memkit.preprocessors.rules import Rules

__all__ = ["Summarizer"]

logger = logging.getLogger("langchain_memkit")

LEAST_CHUNK = 1_000  # tokens: whatever the budget, a model takes as much
MESSAGE_CHUNK = 4_000  # tokens, where the budget counts messages
CALL: RunnableConfig = {"run_name": "summarize", "tags": ["nostream"], "metadata": {"memkit": "summary"}}


@dataclass(frozen=True)
class Summarizer:
    """A model that summarizes, and where its summaries are stored; see `create_history_preprocessor`."""

    llm: Runnable[Any, Any]
    budget: Budget
    rules: Rules
    prompt: SummaryPrompt
    store: SummaryStore
    timeout: float | None
    now: Now

    @property
    def model_name(self) -> str:
        """Who writes."""
        names = [getattr(self.llm, name, None) for name in ("model_name", "model")]
        return next((name for name in names if isinstance(name, str) and name), type(self.llm).__name__)

    def tokens(self, messages: Sequence[BaseMessage]) -> int:
        """Tokens in sum."""
        return sum(count_tokens(messages, self.budget.counter))

    def compact(
        self, talk: Conversation, sizes: Sequence[int], length: int, config: RunnableConfig
    ) -> Flow[tuple[Known | None, int]]:
        """Summarizes the first messages of the body; returns the summary and how many it covers."""
        known, text, covered = talk.known, talk.summary, 0
        if self.budget.counts_messages:
            sizes, capacity = count_tokens(talk.body[:length], approximate_tokens), MESSAGE_CHUNK
        else:
            spoken_for = self.budget.taken + 3 * self.rules.summary_tokens
            capacity = max(self.budget.max_tokens - spoken_for, LEAST_CHUNK)
        for chunk in chunks_of(talk.body[:length], sizes.__getitem__, capacity):
            text = yield from self._ask(text, chunk.messages, config)
            if chunk.end is not None:
                known = yield from self._record(talk, known, text, covered, chunk.end, config)
                covered = chunk.end
        return known, covered

    def _ask(self, summary: str, messages: Sequence[BaseMessage], config: RunnableConfig) -> Flow[str]:
        """One call of the model: the summary so far and what comes next."""
        prompt = self.prompt.build(summary, messages, self.rules.words)
        call = merge_configs(config, CALL)

        async def acall() -> Any:
            return await asyncio.wait_for(self.llm.ainvoke(prompt, call), self.timeout)

        answer = yield Step(lambda: _within(self.timeout, lambda: self.llm.invoke(prompt, call)), acall)
        text = str(answer.text if isinstance(answer, BaseMessage) else answer).strip()
        if not text:
            msg = "the model returned nothing"
            raise ValueError(msg)
        most = 2 * self.rules.summary_tokens
        tokens = self.tokens([HumanMessage(text)])
        if tokens > most and not self.budget.counts_messages:
            logger.warning(
                "a summary of %d tokens was cut to about %d; is the model told how long it may be?", tokens, most
            )
            text = text[: len(text) * most // tokens] + " [...]"
        return text

    def _record(
        self, talk: Conversation, known: Known | None, text: str, begin: int, end: int, config: RunnableConfig
    ) -> Flow[Known | None]:
        """Stores what the summary covers now, unless the session was cleared meanwhile."""
        position, digest = talk.point(end)
        base = talk.known[1].covered if talk.known else 0
        ids = [talk.body[begin].id, talk.body[end - 1].id]
        record = SummaryRecord(
            text,
            base + end,
            digest,
            position,
            self.tokens([HumanMessage(text)]),
            self.model_name,
            self.now(),
            talk.expiry(end),
            {"messages": end - begin, "first_id": ids[0], "last_id": ids[1]},
            tuple(str(m.text) for m in talk.lead),
        )
        try:
            key = yield from self.store.add(talk.place, record, known)
            if position is not None and position.seq:
                yield from self._check_again(key, position.epoch, config)
        except Exception as error:  # noqa: BLE001  # any store; the summary serves this turn all the same
            logger.warning("a summary was not stored, the next turn writes it again: %s", type(error).__name__)
            key = ""
        return key, record

    def _check_again(self, key: str, epoch: int, config: RunnableConfig) -> Flow[None]:
        """A session that was cleared while its summary was written leaves nothing behind."""
        history: Any = (config.get("configurable") or {}).get("message_history")
        if not hasattr(history, "view"):
            return
        view = yield Step(lambda: history.view(max_messages=0), lambda: history.aview(max_messages=0))
        if view.epoch != epoch:
            yield from self.store.delete([key])


def _within(seconds: float | None, function: Callable[[], Any]) -> Any:
    """Calls a function, and gives up on it after a time: the thread that runs it is left behind."""
    if seconds is None:
        return function()
    box: SimpleQueue[tuple[bool, Any]] = SimpleQueue()

    def run() -> None:
        try:
            box.put((True, function()))
        except BaseException as error:  # noqa: BLE001  # handed to the caller
            box.put((False, error))

    threading.Thread(target=copy_context().run, args=(run,), daemon=True, name="memkit-summary").start()
    try:
        good, result = box.get(timeout=seconds)
    except Empty:
        msg = f"the model took longer than {seconds:g} s"
        raise TimeoutError(msg) from None
    if not good:
        raise result
    return result
