"""Incremental summarizing: the model merges the previous summary with what came after it, chunk by chunk."""

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
from langchain_memkit.messages.tokens import approximate_tokens, count_tokens
from langchain_memkit.preprocessors.budget import Budget
from langchain_memkit.preprocessors.prompt import Chunk, SummaryPrompt, chunks_of
from langchain_memkit.preprocessors.summary_store import Known, SummarizedConversation, SummaryRecord, SummaryStore
from langchain_memkit.preprocessors.trigger import SummaryTrigger

__all__ = ["Compaction", "Summarizer"]

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")

LEAST_CHUNK = 1_000  # tokens: smallest chunk; every model takes as much, whatever the budget
MESSAGE_CHUNK = 4_000  # tokens of a chunk if the budget counts messages


class Compaction(NamedTuple):
    """Result of summarizing: the conversation after it, and the problems, one line each."""

    talk: SummarizedConversation
    problems: list[str]


@dataclass(frozen=True)
class Summarizer:
    """A model that summarizes, with its rules and store; `create_history_preprocessor` documents the fields."""

    llm: Runnable[Any, Any]
    budget: Budget
    rules: SummaryTrigger
    prompt: SummaryPrompt
    store: SummaryStore
    timeout: float | None
    now: Now

    @property
    def model_name(self) -> str:
        """Name of the model, or of its class if it has none."""
        names = [getattr(self.llm, name, None) for name in ("model_name", "model")]
        return next((name for name in names if isinstance(name, str) and name), type(self.llm).__name__)

    def tokens(self, messages: Sequence[BaseMessage]) -> int:
        """Return the total token count of some messages."""
        return sum(count_tokens(messages, self.budget.counter))

    def counting(self, function: Callable[[], T]) -> Step[T]:
        """Make a step of a function that counts tokens; async, a custom counter runs in a thread: it may do I/O."""
        cheap = self.budget.counts_messages or self.budget.counter is approximate_tokens
        return cpu_bound(function, long=not cheap)

    async def compact(
        self, talk: SummarizedConversation, sizes: Sequence[int], length: int, config: RunnableConfig
    ) -> Compaction:
        """Summarize the first messages of the body.

        Errors are logged and returned, not raised; chunks that were summarized before an error are kept.

        Args:
            talk: The conversation.
            sizes: Token count of each message of the body.
            length: How many of the messages to summarize.
            config: Config of the turn.
        """
        known, text, done = talk.known, talk.summary, 0
        problems: list[str] = []
        try:
            chunks = await self.counting(lambda: self._chunks(talk.body[:length], sizes))
            points = talk.points([chunk.end for chunk in chunks if chunk.end is not None])
            # Store a summary after every chunk (unless it ends within a tool group, where no turn could go on from
            # it), so that a failure loses the work of one chunk only.
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
            # A call holds the previous summary, which may be twice the target length, the chunk, and the new summary.
            spoken_for = self.budget.taken + 3 * self.rules.summary_tokens
            capacity = max(self.budget.max_tokens - spoken_for, LEAST_CHUNK)
        return list(chunks_of(messages, sizes, capacity, lambda message: count_tokens([message], counter)[0]))

    async def _ask(self, summary: str, messages: Sequence[BaseMessage], config: RunnableConfig) -> str:
        """Call the model once with the previous summary and the next messages, and return the new summary.

        Raises:
            TypeError: The model returned neither a message nor text.
            ValueError: The model returned no text.
        """
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
        """Cut a summary to about twice the requested length: one that grew at every turn would leave no room."""
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
        talk: SummarizedConversation,
        known: Known | None,
        text: str,
        tokens: int,
        part: tuple[int, int],
        point: tuple[Position | None, str],
    ) -> SummaryRecord:
        """Build the record of a summary.

        Args:
            talk: The conversation.
            known: The record of the previous summary, with its key.
            text: The new summary.
            tokens: Its token count.
            part: Begin and end of the part of the body that was added to the previous summary.
            point: Position and digest of the end, from `Conversation.points`.
        """
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
        talk: SummarizedConversation,
        record: SummaryRecord,
        known: Known | None,
        config: RunnableConfig,
        problems: list[str],
    ) -> Known:
        """Store a summary, and delete it again if the session was cleared meanwhile.

        If the store fails, the summary still serves this turn, which a line in `problems` reports.

        Raises:
            StaleTurnError: The session was cleared meanwhile.
        """
        try:
            added = await self.store.add(talk.place, record, known)
        except Exception as error:  # noqa: BLE001  # any store; the summary serves this turn all the same
            logger.warning("a summary was not stored, the next turn writes it again: %s", type(error).__name__)
            problems.append(f"summary not stored: {type(error).__name__}")
            # The record is not in the store, so the next one must not name it as its predecessor: hand on the key of
            # the last stored record.
            if known is None:
                return "", record
            sources = {**record.sources, "previous": known[1].sources.get("previous")}
            return known[0], replace(record, sources=sources)
        # Check after the write, so that no clear between the reading of the conversation and the write goes unnoticed.
        if record.position is not None and record.position.epoch:
            await self._check_again(talk, record.position.epoch, config)
        return added

    async def _check_again(self, talk: SummarizedConversation, epoch: int, config: RunnableConfig) -> None:
        """Delete the summaries of an epoch and raise if the session was cleared while they were written."""
        history: Any = (config.get("configurable") or {}).get("message_history")
        if not has_native(history, "view"):
            return
        view = await Step(lambda: history.view(max_messages=0), lambda: history.aview(max_messages=0))
        if view.epoch != epoch:
            await self.store.delete_all(f"{talk.place.prefix}{epoch}/")
            msg = "the session was cleared meanwhile"
            raise StaleTurnError(msg)
