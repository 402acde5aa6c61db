"""Trimming: keep the newest whole turns that fit the budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal, TypeAlias

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.callbacks.manager import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.messages import BaseMessage, HumanMessage, convert_to_messages
from langchain_core.runnables import Runnable, RunnableConfig

from langchain_memkit.base import TokenCounter, TokenCounterLike, Window
from langchain_memkit.errors import ConfigurationError, ContextTooLargeError
from langchain_memkit.messages.tokens import approximate_tokens, count_tokens
from langchain_memkit.messages.trimming import (
    RESULTS,
    STATUS,
    MessageType,
    find_cut_point,
    leading_system_count,
    message_types,
    trailing_results,
    whole_tool_groups,
)
from langchain_memkit.preprocessors.budget import (
    EVENT,
    Budget,
    ContextReport,
    TokenSizes,
    as_messages,
    has_listeners,
    new_input,
)

__all__ = ["OnOverflow", "Trimmer", "create_trim_preprocessor"]

OnOverflow: TypeAlias = Literal["keep", "truncate_tool_results", "raise"]
MARK = "\n[... {} characters cut off ...]"
MARKED = re.compile(r"\n\[\.\.\. (\d+) characters cut off \.\.\.\]$")


@dataclass(frozen=True, slots=True)
class Trimmer:
    """Rules of trimming, without the budget."""

    counter: TokenCounter
    include_system: bool = True
    start_on: Sequence[MessageType] | None = None
    on_overflow: OnOverflow = "keep"

    @classmethod
    def of(cls, counter: TokenCounter, *, on_overflow: OnOverflow, **rules: Any) -> Trimmer:
        """Validate `on_overflow` and create the rules."""
        if on_overflow not in ("keep", "truncate_tool_results", "raise"):
            msg = f"on_overflow must be 'keep', 'truncate_tool_results' or 'raise', not {on_overflow!r:.50}"
            raise ConfigurationError(msg)
        return cls(counter, on_overflow=on_overflow, **rules)

    def trim(
        self, messages: Sequence[BaseMessage], room: int, follows: Sequence[BaseMessage] = ()
    ) -> list[BaseMessage]:
        """Return the newest messages within `room` tokens; `create_trim_preprocessor` describes what is kept.

        Args:
            messages: Messages, oldest first.
            room: Token budget.
            follows: Messages that will come after these: a new question (then none of `messages` must be kept) or tool
                results (then their calls must be kept).
        """
        asked = any(isinstance(m, HumanMessage) for m in follows)
        answers = list(takewhile(lambda m: isinstance(m, RESULTS), follows))
        if not answers:
            return self._trim(messages, room, asked=asked)
        # Trim together with the tool results, which keeps their calls, then take the results off again.
        kept = self._trim([*messages, *answers], room + sum(count_tokens(answers, self.counter)), asked=asked)
        end, given = trailing_results(kept, 0), {getattr(m, "tool_call_id", id(m)) for m in answers}
        return [*kept[:end], *(m for m in kept[end:] if getattr(m, "tool_call_id", id(m)) not in given)]

    def _trim(self, messages: Sequence[BaseMessage], room: int, *, asked: bool) -> list[BaseMessage]:
        size = TokenSizes(messages, self.counter)
        lead = leading_system_count(messages) if self.include_system else 0
        fixed = sum(size(i) for i in range(lead))
        start, task, fits = find_cut_point(messages, size, room - fixed, lead=lead, start_on=self.start_on)
        if asked and start >= len(messages):
            task = None  # a new question follows: drop an old one of whose answer nothing fits
        kept = [*messages[:lead], *(messages[task : task + 1] if task is not None else ()), *messages[start:]]
        looked_at = [*messages[: lead + 1], *messages[start if task is None else task :]]
        # `as_messages` checks only the ends of a long list: convert it now if a message that is kept is none.
        if not all(isinstance(m, BaseMessage) for m in looked_at):
            return self._trim(convert_to_messages(messages), room, asked=asked)
        whole = whole_tool_groups(kept)
        if self.start_on is not None and len(whole) < len(kept):  # the message to start on may have been dropped
            return self._trim(whole, room, asked=asked)
        return whole if fits else self._overflow(whole, lead, room, asked=asked)

    def _overflow(self, kept: list[BaseMessage], lead: int, room: int, *, asked: bool) -> list[BaseMessage]:
        """Handle messages that must be kept but do not fit, as `on_overflow` says.

        Raises:
            ContextTooLargeError: They do not fit, and `on_overflow` is `"raise"`.
        """
        if self.on_overflow == "truncate_tool_results":
            kept = truncate_results(kept, room, self.counter)
        total = sum(count_tokens(kept, self.counter))
        if total > room and asked:
            kept = kept[:lead]
            total = sum(count_tokens(kept, self.counter))
        if total > room and self.on_overflow == "raise":
            msg = (
                "what has to be kept (system lines, the newest question, results it waits for) is too large: "
                f"{total} tokens of the history, and room for {max(room, 0)}"
            )
            raise ContextTooLargeError(msg)
        return kept


def truncate_results(messages: list[BaseMessage], room: int, counter: TokenCounter) -> list[BaseMessage]:
    """Shorten the trailing tool results until everything fits, the longest most, and mark them as cut off."""
    first = trailing_results(messages, 0)
    counts = count_tokens(messages, counter)
    left = room - sum(counts[:first])
    kept = list(messages)
    order = sorted(range(first, len(messages)), key=lambda i: counts[i])
    for n, i in enumerate(order):  # shortest first: what they leave of their share goes to the longer ones
        share = left // (len(order) - n)
        if counts[i] > share:
            kept[i] = _shortened(messages[i], share, counter)
            counts[i] = count_tokens([kept[i]], counter)[0]
        left -= counts[i]
    return kept


def _shortened(message: BaseMessage, share: int, counter: TokenCounter) -> BaseMessage:
    """Cut a message to the longest beginning within `share` tokens, marked; unchanged if no cut makes it smaller."""
    text, gone = str(message.text), 0
    # A message that was cut before gets one mark for all that is missing, not a second one.
    if message.response_metadata.get(STATUS) == "truncated" and (mark := MARKED.search(text)):
        text, gone = text[: mark.start()], int(mark[1])

    def cut(length: int) -> BaseMessage:
        note = {**message.response_metadata, STATUS: "truncated"}
        content = text[:length] + MARK.format(gone + len(text) - length)
        return message.model_copy(update={"content": content, "response_metadata": note})

    fits, too_long = 0, len(text)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        if count_tokens([cut(middle)], counter)[0] <= share:
            fits = middle
        else:
            too_long = middle
    shortest = cut(fits)
    return shortest if count_tokens([shortest], counter) < count_tokens([message], counter) else message


class TrimPreprocessor(Runnable[Any, list[BaseMessage]]):
    """Runnable that trims messages; created by `create_trim_preprocessor`."""

    def __init__(self, budget: Budget, trimmer: Trimmer) -> None:
        self.name = "trim"
        self._budget = budget
        self._trimmer = trimmer

    @property
    def token_counter(self) -> TokenCounter:
        """The token counter."""
        return self._budget.counter

    @property
    def budget(self) -> Budget:
        """The token budget."""
        return self._budget

    def window(self, config: RunnableConfig | None = None) -> Window:
        """Return the part of the history to read: the newest rows that fill the budget."""
        return self._budget.window(config)

    async def awindow(self, config: RunnableConfig | None = None) -> Window:
        """Run `window` asynchronously."""
        return self._budget.window(config)

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> list[BaseMessage]:
        """Trim a list of messages, oldest first; the list itself is not changed."""

        def run(value: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig) -> list[BaseMessage]:
            report = self._run(value, config)
            if has_listeners(config):
                dispatch_custom_event(EVENT, report.event(), config=config)
            return list(report.kept)

        return self._call_with_config(run, input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> list[BaseMessage]:
        """Run `invoke` asynchronously; a custom token counter runs in a thread, since it may do I/O."""
        if not (self._budget.counts_messages or self._budget.counter is approximate_tokens):
            return await super().ainvoke(input, config, **kwargs)

        async def run(
            value: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
        ) -> list[BaseMessage]:
            report = self._run(value, config)
            if has_listeners(config):
                await adispatch_custom_event(EVENT, report.event(), config=config)
            return list(report.kept)

        return await self._acall_with_config(run, input, config)

    def _run(self, value: Any, config: RunnableConfig) -> ContextReport:
        messages, room = as_messages(value), self._budget.room(config, value)
        kept = self._trimmer.trim(messages, room, new_input(config, value))
        budget = self._budget
        return ContextReport(
            preprocessor="trim",
            max_tokens=budget.max_tokens,
            room=room,
            given=messages,
            kept=kept,
            counter=budget.counter,
            reserved=budget.taken,
        )


def create_trim_preprocessor(
    max_tokens: int,
    *,
    token_counter: TokenCounterLike = None,
    strategy: Literal["last"] = "last",
    reserve_tokens: int = 0,
    tools: Sequence[Any] | None = None,
    include_system: bool = True,
    start_on: MessageType | Sequence[MessageType] | None = None,
    on_overflow: OnOverflow = "keep",
) -> TrimPreprocessor:
    """Create a preprocessor that keeps the newest messages within a token budget.

    Messages are cut only between turns. If the newest turn alone is too long, as the loop of an agent may be, its
    question and its newest whole tool groups are kept. No tool call is left without its result, and no result without
    its call. Pipe it before a prompt, or give it to `create_runnable_with_message_history(preprocessor=...)`, where the
    new input shares the budget and no more of the history is read than fits.

    It works from the newest message back and stops when the budget is used up, so its cost depends on what it keeps,
    not on the length of the list. Token counts stored in memkit histories are used if the same `token_counter` made
    them.

    Args:
        max_tokens: Token budget of the model's input, as `token_counter` counts.
        token_counter: None or `"approximate"` (four characters a token), the name of an OpenAI encoding or model for
            exact counts (`"o200k_base"`, extra `tokens`), a model, a function of messages, or `len` to count messages.
        strategy: Only `"last"`, as in `trim_messages`.
        reserve_tokens: Tokens kept free for the answer.
        tools: Tools whose schemas the model is given; they count against the budget.
        include_system: Keep leading system messages (and summaries). Later ones are kept if they are among the newest
            messages.
        start_on: Message types that the kept messages may begin with, after system messages, as in `trim_messages`;
            default: the beginning of a turn.
        on_overflow: What to do if the messages that must be kept (system messages, the newest human message, and tool
            results that the model has not seen yet) do not fit: `"keep"` returns them all the same,
            `"truncate_tool_results"` shortens these results and marks them, `"raise"` raises.

    Returns:
        A runnable from messages to messages, in order; messages are the same objects unless they had to be shortened.

    Raises:
        ConfigurationError: An argument is malformed.
        ContextTooLargeError: Raised by the runnable, with `on_overflow="raise"`.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> trimmer = create_trim_preprocessor(max_tokens=2, token_counter=len)
        >>> talk = [HumanMessage("I'm Nemo."), AIMessage("Hello!"), HumanMessage("How are you?"), AIMessage("Fine!")]
        >>> [m.content for m in trimmer.invoke(talk)]
        ['How are you?', 'Fine!']
    """
    if strategy != "last":
        msg = f"strategy must be 'last', not {strategy!r}: a memory keeps what is newest"  # type: ignore[unreachable]  # callers without types
        raise ConfigurationError(msg)
    budget = Budget.of(max_tokens, token_counter, reserve_tokens, tools)
    kinds = message_types(start_on, "start_on")
    rules = Trimmer.of(budget.counter, on_overflow=on_overflow, include_system=bool(include_system), start_on=kinds)
    return TrimPreprocessor(budget, rules)
