"""Incremental summarizing: when, how much, and the model that merges the previous summary with what came after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import merge_configs

from langchain_memkit._histories import has_native
from langchain_memkit._sync import Step, internal_call, model_call
from langchain_memkit.base import Now, TokenCounter, check_size, describe_error, same_conversation
from langchain_memkit.errors import ConfigurationError, StaleTurnError, logger
from langchain_memkit.messages.results import without_bulk
from langchain_memkit.messages.text import answer_text
from langchain_memkit.messages.tokens import approximate_tokens, count_tokens
from langchain_memkit.messages.trimming import find_cut_point, turn_starts
from langchain_memkit.preprocessors.budget import Budget
from langchain_memkit.preprocessors.prompt import Chunk, Measure, SummaryPrompt, chunks_of, newest_chunk
from langchain_memkit.preprocessors.summary_store import (
    Summaries,
    SummarizedConversation,
    SummaryKey,
    SummaryRecord,
    SummaryStore,
)

Threshold: TypeAlias = tuple[Literal["tokens", "messages"], int]
"""`("tokens", 4000)` or `("messages", 50)`."""

TRIGGER_SHARE = 0.75  # of the budget; the rest is room for the summary and for messages while one is written
KEEP_SHARE = 0.4  # of the trigger, so that it takes a while until the next summary is due
SUMMARY_SHARE = 0.1  # of the budget
LEAST_SUMMARY = 200  # tokens, but at most a quarter of the budget
WORDS_PER_TOKEN = 0.7
LEAST_CHUNK = 1_000  # tokens: smallest chunk; every model takes as much, whatever the budget
MESSAGE_CHUNK = 4_000  # tokens of a chunk if the budget counts messages
LOOKS_AT = 4  # budgets, of what no summary covers, that a turn looks at


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


class OneChunk(NamedTuple):
    """What a turn has the model read, and whether messages before that are left out."""

    chunk: Chunk
    is_far: bool


@dataclass(frozen=True)
class Summarizer:
    """A model that summarizes, with its rules; `create_history_preprocessor` documents the fields."""

    llm: Runnable[Any, Any]
    budget: Budget
    rules: SummaryTrigger
    prompt: SummaryPrompt
    timeout: float | None
    now: Now

    @property
    def reach(self) -> int:
        """Most of what no summary covers that a turn looks at: four budgets, in tokens, or in messages if these count.

        What lies before that is left out of the summary, until `summarize()` catches up.
        """
        if self.budget.counts_messages:
            return LOOKS_AT * self.budget.max_tokens
        return LOOKS_AT * max(self.budget.max_tokens, LEAST_CHUNK)

    @property
    def capacity(self) -> int:
        """Tokens of the messages that one call of the model takes."""
        if self.budget.counts_messages:
            return MESSAGE_CHUNK
        # A call holds the previous summary, which may be twice the target length, the chunk, and the new summary.
        spoken_for = self.budget.reserved + 3 * self.rules.summary_tokens
        return max(self.budget.max_tokens - spoken_for, LEAST_CHUNK)

    async def compact(
        self,
        summaries: Summaries,
        talk: SummarizedConversation,
        sizes: Sequence[int],
        length: int,
        notes: list[str],
        config: RunnableConfig,
    ) -> SummarizedConversation:
        """Summarize of the first `length` messages of the body what one call takes, and return the conversation then.

        That is the oldest of them, so that later calls go on from there. Where older ones are missing, or too many, it
        is the newest: what comes before is left out. Errors are logged and noted, not raised.
        """
        try:
            chunk = await self.budget.counting(lambda: self._one_chunk(talk, sizes, length))
            record = await self.read(talk, [chunk.chunk], config, leaves_out=chunk.is_far)
            kept = await self._keep(summaries, talk, record, chunk.chunk, notes, config)
            return talk.advanced(kept, chunk.chunk.end or 0, chunk.chunk.begin)
        except Exception as error:  # noqa: BLE001  # whatever a model raises must not cost the turn
            logger.warning("no summary was written, the next turn tries again: %s", describe_error(error))
            notes.append(f"no summary: {type(error).__name__}")
        return talk

    def _one_chunk(self, talk: SummarizedConversation, sizes: Sequence[int], length: int) -> OneChunk:
        messages, sizes, count = self._measured(talk.body[:length], sizes[:length])
        capacity = self.capacity
        most = LOOKS_AT * MESSAGE_CHUNK if self.budget.counts_messages else self.reach
        # No message takes more than a call, since it is cut.
        is_far = not talk.complete or sum(min(size, capacity) for size in sizes) > most
        if is_far:
            return OneChunk(newest_chunk(messages, sizes, capacity, count), is_far=True)
        first = next(chunks_of(messages, sizes, capacity, count, cut=True))
        end = first.end or 0
        # It ends with a turn, if it holds the end of one: an answer without its question would be shown.
        starts = [start for start in turn_starts(messages) if 0 < start <= end]
        if end < len(messages) and starts and starts[-1] < end:
            end = starts[-1]
            first = next(chunks_of(messages[:end], sizes[:end], capacity, count, cut=True))
        return OneChunk(first, is_far=False)

    def whole_chunks(self, messages: Sequence[BaseMessage], sizes: Sequence[int]) -> list[Chunk]:
        """Return the first chunks of some messages, up to one after which another call may go on; nothing is cut."""
        messages, sizes, count = self._measured(messages, sizes)
        found: list[Chunk] = []
        for chunk in chunks_of(messages, sizes, self.capacity, count):
            found.append(chunk)
            if chunk.end is not None:
                break
        return found

    def _measured(
        self, messages: Sequence[BaseMessage], sizes: Sequence[int]
    ) -> tuple[Sequence[BaseMessage], Sequence[int], Measure]:
        """Return messages as the model is to read them, without bulk, and their sizes as chunks are measured."""
        counter: TokenCounter = self.budget.counter
        read = [without_bulk(message) for message in messages]
        if self.budget.counts_messages:
            counter = approximate_tokens
            sizes = count_tokens(read, counter)
        else:
            pairs = zip(messages, read, sizes, strict=False)
            sizes = [size if a is b else count_tokens([b], counter)[0] for a, b, size in pairs]
        messages = read
        return messages, sizes, lambda message: count_tokens([message], counter)[0]

    async def read(
        self,
        talk: SummarizedConversation,
        chunks: Sequence[Chunk],
        config: RunnableConfig,
        *,
        leaves_out: bool = False,
    ) -> SummaryRecord:
        """Have the model read chunks that follow each other, and return the record of all up to the last one's end."""
        text = talk.known.text if talk.known else ""
        for chunk in chunks:
            text = await self._ask(text, chunk.messages, config)
        begin, end = chunks[0].begin, chunks[-1].end or 0
        points = talk.points([begin + 1, end])
        position, digest = points[end]
        known = talk.known
        record = SummaryRecord(
            text=text,
            covered=talk.reach + end,
            digest=digest,
            position=position,
            tokens=await self.budget.counting(partial(self.budget.tokens, [HumanMessage(text)])),
            model=self._model_name(),
            created_at=self.now(),
            expires_at=talk.expiry(end),
            sources={"messages": end - begin, "first_id": talk.body[begin].id, "last_id": talk.body[end - 1].id},
            lead=tuple(str(m.text) for m in talk.lead),
            begin=known.begin if known else None,
            left_out=known.left_out if known else 0,
        )
        if not leaves_out:
            return record
        return replace(record, begin=points[begin + 1][0], left_out=record.left_out + begin)

    def _model_name(self) -> str:
        names = [getattr(self.llm, name, None) for name in ("model_name", "model")]
        return next((name for name in names if isinstance(name, str) and name), type(self.llm).__name__)

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
        self,
        summaries: Summaries,
        talk: SummarizedConversation,
        record: SummaryRecord,
        chunk: Chunk,
        notes: list[str],
        config: RunnableConfig,
    ) -> SummaryRecord:
        """Store a summary, or note that it could not be: it serves this turn all the same."""
        turns = talk.turns(chunk.begin, chunk.end or 0)
        try:
            added = await summaries.add(talk.place, record, talk.known, turns=turns)
        except Exception as error:  # noqa: BLE001  # any store
            logger.warning("a summary was not stored, the next turn writes it again: %s", type(error).__name__)
            notes.append(f"summary not stored: {type(error).__name__}")
            return record
        if added is None:
            notes.append("summary not stored: the conversation, or its summary, was changed meanwhile")
            return record
        await check_after(summaries, talk.place, added, config)
        return added


async def check_after(summaries: Summaries, place: SummaryKey, record: SummaryRecord, config: RunnableConfig) -> None:
    """Raise, and delete the summary, if its session was cleared before it was stored.

    A store of its own cannot tell; so look after the write, and no clear since the conversation was read is missed.
    """
    history: Any = (config.get("configurable") or {}).get("message_history")
    position = record.position
    is_apart = isinstance(summaries, SummaryStore)
    if not is_apart or position is None or not position.epoch or not has_native(history, "view"):
        return
    view = await Step(lambda: history.view(max_messages=0), lambda: history.aview(max_messages=0))
    if not view.epoch or not same_conversation(view.epoch, position.epoch):
        await summaries.drop(place)
        raise StaleTurnError("the session was cleared meanwhile")
