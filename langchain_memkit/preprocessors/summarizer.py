"""The calls of the model: a summary of the summary so far and what came after it, chunk by chunk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs

from langchain_memkit._histories import has_native
from langchain_memkit._sync import Step, cpu_bound, internal_call, model_call
from langchain_memkit.base import Now, Position, TokenCounter, describe_error
from langchain_memkit.errors import StaleTurnError
from langchain_memkit.messages.counting import approximate_tokens, count_tokens
from langchain_memkit.preprocessors.budget import Budget
from langchain_memkit.preprocessors.conversation import Conversation
from langchain_memkit.preprocessors.prompt import Chunk, SummaryPrompt, chunks_of
from langchain_memkit.preprocessors.records import Known, SummaryRecord, SummaryStore
from langchain_memkit.preprocessors.rules import Rules

__all__ = ["Compaction", "Summarizer"]

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")

LEAST_CHUNK = 1_000  # tokens: whatever the budget, a model takes as much
MESSAGE_CHUNK = 4_000  # tokens, where the budget counts messages


class Compaction(NamedTuple):
    """What came of summarizing: the conversation after it, and what went wrong, a line each."""

    talk: Conversation
    problems: list[str]


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

    def counting(self, function: Callable[[], T]) -> Step[T]:
        """Work that counts tokens; on an event loop a counter of the caller's runs in a thread, since it may do I/O."""
        cheap = self.budget.counts_messages or self.budget.counter is approximate_tokens
        return cpu_bound(function, long=not cheap)

    async def compact(
        self, talk: Conversation, sizes: Sequence[int], length: int, config: RunnableConfig
    ) -> Compaction:
        """Summarizes the first messages of the body. Errors are logged and returned: what was done until then counts.

        Args:
            talk: As it was read.
            sizes: Tokens of each message of the body.
            length: How many of them to summarize.
            config: Of the turn.
        """
        known, text, done = talk.known, talk.summary, 0
        problems: list[str] = []
        try:
            chunks = await self.counting(lambda: self._chunks(talk.body[:length], sizes))
            points = talk.points([chunk.end for chunk in chunks if chunk.end is not None])
            for chunk in chunks:
                text = await self._ask(text, chunk.messages, config)
                if chunk.end is None:
                    continue
                tokens = await self.counting(partial(self.tokens, [HumanMessage(text)]))
                record = self._record(talk, known, text, tokens, (done, chunk.end), points[chunk.end])
                known = await self._keep(talk, record, known, config, problems)
                done = chunk.end
        except Exception as error:  # noqa: BLE001  # whatever a model raises must not cost the turn
            logger.warning("no summary was written, the next turn tries again: %s", describe_error(error))
            problems.append(f"no summary: {type(error).__name__}")
        return Compaction(talk.advanced(known, done), problems)

    def _chunks(self, messages: Sequence[BaseMessage], sizes: Sequence[int]) -> list[Chunk]:
        counter: TokenCounter = self.budget.counter
        if self.budget.counts_messages:
            counter, capacity = approximate_tokens, MESSAGE_CHUNK
            sizes = count_tokens(messages, counter)
        else:
            spoken_for = self.budget.taken + 3 * self.rules.summary_tokens
            capacity = max(self.budget.max_tokens - spoken_for, LEAST_CHUNK)
        return list(chunks_of(messages, sizes, capacity, lambda message: count_tokens([message], counter)[0]))

    async def _ask(self, summary: str, messages: Sequence[BaseMessage], config: RunnableConfig) -> str:
        """One call of the model: the summary so far and what comes next."""
        prompt = self.prompt.build(summary, messages, self.rules.words)
        call = merge_configs(config, internal_call("summarize", "summary"))
        answer = await model_call(self.llm, prompt, call, self.timeout)
        if not isinstance(answer, (str, BaseMessage)):
            msg = f"the model must return a message or text, not {type(answer).__name__}"
            raise TypeError(msg)
        text = str(answer.text if isinstance(answer, BaseMessage) else answer).strip()
        if not text:
            msg = "the model returned nothing"
            raise ValueError(msg)
        if self.budget.counts_messages:
            return text
        return await self.counting(lambda: self._shortened(text))

    def _shortened(self, text: str) -> str:
        """At most twice what was asked for: a summary that grows at every turn would leave no room."""
        most = 2 * self.rules.summary_tokens
        tokens = self.tokens([HumanMessage(text)])
        if tokens <= most:
            return text
        logger.warning(
            "a summary of %d tokens was cut to about %d; is the model told how long it may be?", tokens, most
        )
        return text[: len(text) * most // tokens] + " [...]"

    def _record(
        self,
        talk: Conversation,
        known: Known | None,
        text: str,
        tokens: int,
        part: tuple[int, int],
        point: tuple[Position | None, str],
    ) -> SummaryRecord:
        """What is to be stored about the summary of `known` and a part of the body."""
        begin, end = part
        return SummaryRecord(
            text,
            talk.reach + end,
            digest=point[1],
            position=point[0],
            tokens=tokens,
            model=self.model_name,
            created_at=self.now(),
            expires_at=talk.expiry(known, begin, end),
            sources={"messages": end - begin, "first_id": talk.body[begin].id, "last_id": talk.body[end - 1].id},
            lead=tuple(str(m.text) for m in talk.lead),
        )

    async def _keep(
        self,
        talk: Conversation,
        record: SummaryRecord,
        known: Known | None,
        config: RunnableConfig,
        problems: list[str],
    ) -> Known:
        """Stores a summary, unless the session was cleared meanwhile."""
        try:
            added = await self.store.add(talk.place, record, known)
        except Exception as error:  # noqa: BLE001  # any store; the summary serves this turn all the same
            logger.warning("a summary was not stored, the next turn writes it again: %s", type(error).__name__)
            problems.append(f"summary not stored: {type(error).__name__}")
            if known is None:
                return "", record
            sources = {**record.sources, "previous": known[1].sources.get("previous")}
            return known[0], replace(record, sources=sources)
        if record.position is not None and record.position.epoch:
            await self._check_again(talk, record.position.epoch, config)
        return added

    async def _check_again(self, talk: Conversation, epoch: int, config: RunnableConfig) -> None:
        """A session that was cleared while its summary was written leaves nothing behind."""
        history: Any = (config.get("configurable") or {}).get("message_history")
        if not has_native(history, "view"):
            return
        view = await Step(lambda: history.view(max_messages=0), lambda: history.aview(max_messages=0))
        if view.epoch != epoch:
            await self.store.delete_all(f"{talk.place.prefix}{epoch}/")
            msg = "the session was cleared meanwhile"
            raise StaleTurnError(msg)
