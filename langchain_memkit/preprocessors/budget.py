"""The token budget of a prompt: its size, what of it is left for the history, and the report of a preprocessor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import RunnableConfig

from langchain_memkit import base
from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit.base import CONTEXT, HistoryMessages, TokenCounter, TokenCounterLike, TurnContext, Window
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.notes import is_note
from langchain_memkit.messages.tokens import (
    approximate_tokens,
    count_tokens,
    count_tool_tokens,
    counter_name,
    resolve_counter,
)
from langchain_memkit.messages.trimming import Size, find_cut_point, is_summary

T = TypeVar("T")

EVENT = "memkit_context"


def as_messages(value: object) -> list[BaseMessage]:
    """Convert what `trim_messages` takes to messages: a list LangChain can convert, or a prompt value.

    A list over 500 items is taken to hold messages throughout if it begins and ends with one: checking each of 50,000
    would cost more than trimming them.
    """
    if isinstance(value, PromptValue):
        value = value.to_messages()
    if not isinstance(value, (list, tuple)):
        msg = f"a preprocessor takes a list of messages, not {type(value).__name__}"
        raise TypeError(msg)
    given = value if isinstance(value, list) else list(value)
    looked_at = given if len(given) <= 500 else (given[0], given[-1])
    return given if all(isinstance(m, BaseMessage) for m in looked_at) else convert_to_messages(given)


def token_sizes(messages: Sequence[BaseMessage], counter: TokenCounter) -> Size:
    """Return the token counts of messages by index: the stored counts if the same counter made them, else new ones."""
    name = counter_name(counter)
    if not (isinstance(messages, HistoryMessages) and messages.counter == name and "<" not in name):
        return lambda i: count_tokens([messages[i]], counter)[0]
    stored = messages
    return lambda i: stored.tokens[i] if stored.knows(i) else count_tokens([stored[i]], counter)[0]


@dataclass(frozen=True, slots=True)
class Budget:
    """Token budget of a model's input."""

    max_tokens: int  # the whole budget, as `counter` counts; in messages if that is `len`
    reserved: int  # tokens reserved for the answer and the schemas of tools
    counter: TokenCounter

    @classmethod
    def of(cls, max_tokens: int, counter: TokenCounterLike, reserve_tokens: int, tools: Sequence[Any] | None) -> Budget:
        """Validate the arguments of a preprocessor."""
        resolved = resolve_counter(counter)
        reserved = base.check_size(reserve_tokens, "reserve_tokens", 0) + count_tool_tokens(tools or (), resolved)
        if base.check_size(max_tokens, "max_tokens", 1) <= reserved:
            msg = f"max_tokens={max_tokens} leaves nothing: reserve_tokens and the schemas of tools take {reserved}"
            raise ConfigurationError(msg)
        return cls(max_tokens, reserved, resolved)

    @property
    def counts_messages(self) -> bool:
        """Return whether the budget counts messages instead of tokens (`token_counter=len`)."""
        return self.counter is len

    def tokens(self, messages: Sequence[BaseMessage]) -> int:
        """Return the total token count of some messages."""
        return sum(count_tokens(messages, self.counter))

    def counting(self, function: Callable[[], T]) -> Step[T]:
        """Make a step of a function that counts tokens; async, a custom counter runs in a thread: it may do I/O."""
        return cpu_bound(function, long=not (self.counts_messages or self.counter is approximate_tokens))

    def room(self, config: RunnableConfig | None, given: Sequence[BaseMessage], follows: Sequence[BaseMessage]) -> int:
        """Return the tokens left for what a preprocessor is given, beside notes and the new input that follows it.

        They are negative if these alone are too long.
        """
        context = turn_context(config)
        if context is None:
            return self.max_tokens - self.reserved
        context.used = True
        room = int((self.max_tokens - self.reserved) * context.scale)
        if self.counts_messages:  # "the last two messages" means two of the history: the new input does not count
            return room
        # Notes from memories share the budget. Those that are among the given messages are counted with them.
        beside = [note for note in context.notes if not any(note is m for m in given)]
        return room - self.tokens([*beside, *follows])

    def fit_run(self, own: list[BaseMessage], beside: Sequence[BaseMessage], scale: float) -> list[BaseMessage]:
        """Trim an agent's run to `scale` of the budget: drop the oldest tool groups of its loop, not its input."""
        lead = next((i for i, m in enumerate(own) if isinstance(m, AIMessage)), len(own))
        if self.counts_messages or lead == len(own):
            return own
        size = token_sizes(own, self.counter)
        room = int((self.max_tokens - self.reserved) * scale) - sum(map(size, range(lead))) - self.tokens(beside)
        start, task, _ = find_cut_point(own, size, room, lead=lead)
        return [*own[:lead], *(own[task : task + 1] if task is not None else ()), *own[start:]]

    def window(self, config: RunnableConfig | None) -> Window:
        """Return the part of the history to read: the newest rows that fill the budget."""
        room = max(self.room(config, (), new_input(config, ())), 0)
        if self.counts_messages:
            return Window(max_messages=room)
        return Window(max_tokens=room, counter=self.counter)


def new_input(config: RunnableConfig | None, given: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the turn's new input if it will follow `given`, that is if these are (part of) the turn's history.

    Anything else is the state of a running agent, or an unrelated list. Nothing follows it, and its own newest question
    and tool results are what must be kept.
    """
    context = turn_context(config)
    if context is None:
        return []
    dialogue = (m for m in reversed(given) if not (isinstance(m, SystemMessage) or is_summary(m) or is_note(m)))
    last = next(dialogue, None)
    is_past = last is None or any(m is last or (last.id and m.id == last.id) for m in reversed(context.past))
    return list(context.asked) if is_past else []


def turn_context(config: RunnableConfig | None) -> TurnContext | None:
    """Return the turn's context from the config; None if the preprocessor is piped by hand."""
    context = ((config or {}).get("configurable") or {}).get(CONTEXT)
    return context if isinstance(context, TurnContext) else None


@dataclass(slots=True)
class ContextReport:
    """Outcome of one preprocessor in one turn."""

    preprocessor: str  # its name
    budget: Budget
    room: int  # tokens of the budget that were left for the history
    given: list[BaseMessage]
    kept: Sequence[BaseMessage] = ()  # the messages that it returned
    summarized: int = 0  # messages that the summary covers, including those of earlier turns
    covered: Sequence[BaseMessage] = ()  # those of `given` that the summary covers
    notes: list[str] = field(default_factory=list)  # problems, one line each

    def event(self) -> dict[str, Any]:
        """Return the payload of the event `memkit_context`: plain data without message content."""
        kept_ids = {id(m) for m in (*self.kept, *self.covered)}
        whole = {id(m) for m in self.given}
        # Messages are compared by identity, since ids may occur twice; only shortened copies are recognized by id.
        known = {m.id for m in self.kept if m.id and id(m) not in whole}
        tokens = {"system": 0, "summary": 0, "history": 0}
        for message, count in zip(self.kept, count_tokens(self.kept, self.budget.counter), strict=True):
            tokens[part_of(message)] = tokens.get(part_of(message), 0) + count
        dropped = [m.id for m in self.given if id(m) not in kept_ids and m.id not in known]
        return {
            "preprocessor": self.preprocessor,
            "max_tokens": self.budget.max_tokens,
            "room": self.room,
            "reserved": self.budget.reserved,
            "tokens": tokens,
            "kept": len(self.kept),
            "dropped": len(dropped),
            "summarized": self.summarized,
            "kept_ids": [m.id for m in self.kept],
            "dropped_ids": dropped,
            "summarized_ids": [m.id for m in self.covered],
            "notes": list(self.notes),
        }


def part_of(message: BaseMessage) -> str:
    """Return the part of the budget that a message counts for: system, summary, notes or history."""
    if is_summary(message):
        return "summary"
    if is_note(message):
        return "notes"
    return "system" if isinstance(message, SystemMessage) else "history"
