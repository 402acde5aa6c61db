"""Incremental summarizing: when, how much, and the model that merges the previous summary with what came after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs

from langchain_memkit._histories import has_native
from langchain_memkit._sync import Step, internal_call, model_call
from langchain_memkit.base import Now, TokenCounter, check_size, describe_error, same_conversation
from langchain_memkit.errors import ConfigurationError, StaleTurnError, logger
from langchain_memkit.messages.text import answer_text
from langchain_memkit.messages.tokens import approximate_tokens, count_tokens
from langchain_memkit.messages.trimming import find_cut_point
from langchain_memkit.preprocessors.budget import Budget
from langchain_memkit.preprocessors.prompt import Chunk, SummaryPrompt, chunks_of
from langchain_memkit.preprocessors.summary_store import SummarizedConversation, SummaryRecord, SummaryStore

Threshold: TypeAlias = tuple[Literal["tokens", "messages"], int]
"""`("tokens", 4000)` or `("messages", 50)`."""

TRIGGER_SHARE = 0.75  # of the budget; the rest is room for the summary and for messages while one is written
KEEP_SHARE = 0.4  # of the trigger, so that it takes a while until the next summary is due
SUMMARY_SHARE = 0.1  # of the budget
LEAST_SUMMARY = 200  # tokens, but at most a quarter of the budget
WORDS_PER_TOKEN = 0.7
LEAST_CHUNK = 1_000  # tokens: smallest chunk; every model takes as much, whatever the budget
MESSAGE_CHUNK = 4_000  # tokens of a chunk if the budget counts messages


@dataclass(frozen=True, slots=True)
class SummaryTrigger:
    """Validated `trigger` and `keep`, with the target length of a summary in tokens and words."""

    trigger: Threshold
    keep: Threshold
    summary_tokens: int
    words: int

    @classmethod
    def of(cls, budget: Budget, trigger: Threshold | None, keep: Threshold | None) -> SummaryTrigger:
        """Fill in defaults and validate the arguments, also against each other."""
        usable = budget.max_tokens - budget.reserved
        most = max(1, int(usable * TRIGGER_SHARE))
        trigger = _checked(("tokens", most) if trigger is None else trigger, "trigger", 1)
        usual = int(KEEP_SHARE * (trigger[1] if trigger[0] == "tokens" else most))
        keep = _checked(("tokens", usual) if keep is None else keep, "keep", 0)
        if keep[0] == trigger[0] and keep[1] >= trigger[1]:
            msg = f"keep={keep} is not less than trigger={trigger}: that would call the model at every turn"
            raise ConfigurationError(msg)
        summary = 0 if budget.counts_messages else max(min(LEAST_SUMMARY, usable // 4), int(usable * SUMMARY_SHARE))
        return cls(trigger, keep, summary, 300 if budget.counts_messages else int(summary * WORDS_PER_TOKEN))

    def reached(self, sizes: Sequence[int]) -> bool:
        """Return whether the uncovered messages, of these token counts, reach the trigger."""
        unit, amount = self.trigger
        return (sum(sizes) if unit == "tokens" else len(sizes)) >= amount

    def split(self, body: Sequence[BaseMessage], sizes: Sequence[int], room: int, *, asked: bool) -> int:
        """Return how many messages to summarize, so that the rest is about `keep`, begins at a valid cut, and fits.

        `room` is left next to the summary. Unless a new question follows (`asked`), a human message at the end of the
        body is the question, which is never summarized.
        """
        # Upper bounds of what is kept, low enough that the next summary is some turns away.
        limits: list[Threshold] = [self.keep, ("tokens", max(room, 0))]
        unit, amount = self.trigger
        if not self.reached(sizes):  # summarized only because the view does not fit
            limits.append(("tokens", max(int(room * KEEP_SHARE), 0)))
        if unit != self.keep[0]:
            limits.append((unit, int(amount * KEEP_SHARE)))
        # Cut once for each limit; the cut that keeps least satisfies all of them.
        ones = [1] * len(body)
        cut = max(find_cut_point(body, (sizes if u == "tokens" else ones).__getitem__, n).start for u, n in limits)
        # The newest turn begins with a human message that does not follow another one.
        asks = [isinstance(m, HumanMessage) for m in body]
        newest = next((i for i in reversed(range(len(body))) if asks[i] and not (i and asks[i - 1])), 0)
        is_open = not (isinstance(body[-1], AIMessage) and not body[-1].tool_calls)
        if cut > newest and (is_open or self.keep[1]) and sum(sizes[newest:]) <= room:
            return newest  # a turn is kept whole if it can be
        if asks[-1] and not asked:
            return min(cut, len(body) - 1)
        # If the rest does not fit even so, it is tool results of an old turn. Summarize them too, or trimming would
        # drop them unread.
        return len(body) if asked and sum(sizes[cut:]) > max(room, 0) else cut


def _checked(value: object, name: str, least: int) -> Threshold:
    if not (isinstance(value, (tuple, list)) and len(value) == 2 and value[0] in ("tokens", "messages")):
        raise ConfigurationError(f"{name} must be ('tokens', n) or ('messages', n), not {value!r:.60}")
    return (value[0], check_size(value[1], f"{name}[1]", least))


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

    async def compact(
        self, talk: SummarizedConversation, sizes: Sequence[int], length: int, notes: list[str], config: RunnableConfig
    ) -> tuple[SummarizedConversation, bool]:
        """Summarize the first `length` messages of the body; return the conversation after it, and whether all is done.

        Errors are logged and noted, not raised; chunks that were summarized before an error are kept.
        """
        text, done, is_done = talk.known.text if talk.known else "", 0, False
        names = [getattr(self.llm, name, None) for name in ("model_name", "model")]
        model = next((name for name in names if isinstance(name, str) and name), type(self.llm).__name__)
        try:
            chunks = await self.budget.counting(lambda: self._chunks(talk.body[:length], sizes))
            points = talk.points([chunk.end for chunk in chunks if chunk.end is not None])
            # Store a summary after every chunk (unless it ends within a tool group, where no turn could go on from
            # it), so that a failure loses the work of one chunk only.
            for chunk in chunks:
                text = await self._ask(text, chunk.messages, config)
                if (end := chunk.end) is None:
                    continue
                position, digest = points[end]
                added, done = end - done, end
                tokens = await self.budget.counting(partial(self.budget.tokens, [HumanMessage(text)]))
                covered, now, expires_at = talk.reach + added, self.now(), talk.expiry(added)
                first, last = talk.body[0].id, talk.body[added - 1].id
                sources: dict[str, object] = {"messages": added, "first_id": first, "last_id": last}
                lead = tuple(str(m.text) for m in talk.lead)
                record = SummaryRecord(text, covered, digest, position, tokens, model, now, expires_at, sources, lead)
                talk = talk.advanced(await self._keep(talk, record, notes, config), added)
            is_done = True
        except Exception as error:  # noqa: BLE001  # whatever a model raises must not cost the turn
            logger.warning("no summary was written, the next turn tries again: %s", describe_error(error))
            notes.append(f"no summary: {type(error).__name__}")
        return talk, is_done

    def _chunks(self, messages: Sequence[BaseMessage], sizes: Sequence[int]) -> list[Chunk]:
        counter: TokenCounter = self.budget.counter
        if self.budget.counts_messages:
            counter, capacity = approximate_tokens, MESSAGE_CHUNK
            sizes = count_tokens(messages, counter)
        else:
            # A call holds the previous summary, which may be twice the target length, the chunk, and the new summary.
            spoken_for = self.budget.reserved + 3 * self.rules.summary_tokens
            capacity = max(self.budget.max_tokens - spoken_for, LEAST_CHUNK)
        return list(chunks_of(messages, sizes, capacity, lambda message: count_tokens([message], counter)[0]))

    async def _ask(self, summary: str, messages: Sequence[BaseMessage], config: RunnableConfig) -> str:
        """Call the model once with the previous summary and the next messages, and return the new summary."""
        prompt = self.prompt.build(summary, messages, self.rules.words)
        call = merge_configs(config, internal_call("summarize", "summary"))
        text = answer_text(await model_call(self.llm, prompt, call, self.timeout))
        if not text:
            raise ValueError("the model returned nothing")
        if self.budget.counts_messages:
            return text
        # Cut it to about twice the requested length: a summary that grew at every turn would leave no room.
        most = 2 * self.rules.summary_tokens
        size = await self.budget.counting(partial(self.budget.tokens, [HumanMessage(text)]))
        if size <= most:
            return text
        logger.warning("a summary of %d tokens was cut to about %d; is the model told how long it may be?", size, most)
        return text[: len(text) * most // size] + " [...]"

    async def _keep(
        self, talk: SummarizedConversation, record: SummaryRecord, notes: list[str], config: RunnableConfig
    ) -> SummaryRecord:
        """Store a summary, or note that it could not be; delete it and raise if the session was cleared meanwhile."""
        try:
            added = await self.store.add(talk.place, record, talk.known)
        except Exception as error:  # noqa: BLE001  # any store; the summary serves this turn all the same
            logger.warning("a summary was not stored, the next turn writes it again: %s", type(error).__name__)
            notes.append(f"summary not stored: {type(error).__name__}")
            if (known := talk.known) is None:
                return record
            # The record is not in the store, so the next one must not name it as its predecessor: hand on the key of
            # the last stored record.
            sources = {**record.sources, "previous": known.sources.get("previous")}
            return replace(record, sources=sources, key=known.key)
        # Check after the write, so that no clear between the reading of the conversation and the write goes unnoticed.
        history: Any = (config.get("configurable") or {}).get("message_history")
        if record.position is not None and record.position.epoch and has_native(history, "view"):
            view = await Step(lambda: history.view(max_messages=0), lambda: history.aview(max_messages=0))
            if not view.epoch or not same_conversation(view.epoch, record.position.epoch):
                await self.store.delete_all(f"{talk.place.prefix}{record.position.epoch}/")
                raise StaleTurnError("the session was cleared meanwhile")
        return added
