"""Token budgets, and the sizes of messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig

from langchain_memkit.base import CONTEXT, HistoryMessages, TokenCounter, TokenCounterLike, TurnContext, Window
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.counting import count_tokens, count_tool_tokens, counter_name, resolve_counter
from langchain_memkit.messages.cuts import find_cut, is_summary
from langchain_memkit.messages.notes import is_note

__all__ = ["Budget", "Sizes", "as_messages", "checked_size", "new_input"]

LOOKED_AT = 500


def checked_size(value: Any, name: str, least: int) -> int:
    """Return `value` if it is a whole number of at least `least`.

    Raises:
        ConfigurationError: It is not; the message names the argument.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        msg = f"{name} must be a whole number from {least}; got {value!r:.50}"
        raise ConfigurationError(msg)
    return value


def as_messages(value: Any) -> list[BaseMessage]:
    """Convert what `trim_messages` takes to messages: a list LangChain can convert, or a prompt value.

    Of a list over 500 items only the first and the last are checked; the users of the list convert any others late.

    Raises:
        TypeError: It is not a list or tuple.
    """
    if hasattr(value, "to_messages"):
        value = value.to_messages()
    if not isinstance(value, (list, tuple)):
        msg = f"a preprocessor takes a list of messages, not {type(value).__name__}"
        raise TypeError(msg)
    given = value if isinstance(value, list) else list(value)
    # Checking each of 50,000 messages would cost more than trimming them. The messages that are kept are checked later.
    looked_at = given if len(given) <= LOOKED_AT else (given[0], given[-1])
    return given if all(isinstance(m, BaseMessage) for m in looked_at) else convert_to_messages(given)


class Sizes:
    """Token counts of messages by index: the stored counts if the same counter made them, else counted now."""

    def __init__(self, messages: Sequence[BaseMessage], counter: TokenCounter) -> None:
        self._messages = messages
        self._counter = counter
        name = counter_name(counter)
        trusted = isinstance(messages, HistoryMessages) and messages.counter == name and "<" not in name
        self._stored = messages if trusted and isinstance(messages, HistoryMessages) else None

    def __call__(self, i: int) -> int:
        """Return the token count of message `i`."""
        if self._stored is not None and self._stored.knows(i):
            return self._stored.tokens[i]
        message: Any = self._messages[i]
        if not isinstance(message, BaseMessage):  # `as_messages` does not check long lists
            message = convert_to_messages([message])[0]
        return count_tokens([message], self._counter)[0]


@dataclass(frozen=True, slots=True)
class Budget:
    """Token budget of a model's input.

    Attributes:
        max_tokens: The whole budget, as `counter` counts; in messages if that is `len`.
        taken: Tokens reserved for the answer and the schemas of tools.
        counter: The resolved token counter.
    """

    max_tokens: int
    taken: int
    counter: TokenCounter

    @classmethod
    def of(cls, max_tokens: int, counter: TokenCounterLike, reserve_tokens: int, tools: Sequence[Any] | None) -> Budget:
        """Validate the arguments of a preprocessor.

        Raises:
            ConfigurationError: A number is malformed, or nothing of `max_tokens` is left for messages.
        """
        resolved = resolve_counter(counter)
        taken = checked_size(reserve_tokens, "reserve_tokens", 0) + count_tool_tokens(tools or (), resolved)
        if checked_size(max_tokens, "max_tokens", 1) <= taken:
            msg = f"max_tokens={max_tokens} leaves nothing: reserve_tokens and the schemas of tools take {taken}"
            raise ConfigurationError(msg)
        return cls(max_tokens, taken, resolved)

    @property
    def counts_messages(self) -> bool:
        """Return whether the budget counts messages instead of tokens (`token_counter=len`)."""
        return self.counter is len

    def room(self, config: RunnableConfig | None, value: Any = ()) -> int:
        """Return the tokens left for `value`, a preprocessor's input; negative if the new input alone is too long.

        Args:
            config: The run's config; in a turn it tells of the new input and of notes, which share the budget.
            value: The messages that a preprocessor is given.
        """
        context = turn_context(config)
        if context is None:
            return self.max_tokens - self.taken
        context.used = True
        if self.counts_messages:  # "the last two messages" means two of the history: the new input does not count
            return int((self.max_tokens - self.taken) * context.scale)
        # Notes from memories share the budget. Those that are part of `value` are counted with it.
        beside = [note for note in context.notes if not any(note is m for m in value)]
        asked = sum(count_tokens([*beside, *new_input(config, value)], self.counter))
        return int((self.max_tokens - self.taken) * context.scale) - asked

    def fit_run(self, own: list[BaseMessage], beside: Sequence[BaseMessage], scale: float) -> list[BaseMessage]:
        """Trim the messages of an agent's run: if a long loop outgrows the budget, drop its oldest tool groups, whole.

        Args:
            own: The run's messages, beginning with its input.
            beside: Further messages in the same prompt.
            scale: Share of the budget that may be used.

        Returns:
            The input, and the newest groups that fit; all messages if the budget counts messages.
        """
        lead = next((i for i, m in enumerate(own) if isinstance(m, AIMessage)), len(own))
        if self.counts_messages or lead == len(own):
            return own
        size = Sizes(own, self.counter)
        room = int((self.max_tokens - self.taken) * scale)
        room -= sum(size(i) for i in range(lead)) + sum(count_tokens(beside, self.counter))
        start, task, _ = find_cut(own, size, room, lead=lead)
        return [*own[:lead], *(own[task : task + 1] if task is not None else ()), *own[start:]]

    def window(self, config: RunnableConfig | None) -> Window:
        """Return the part of the history to read: the newest rows that fill the budget."""
        room = max(self.room(config), 0)
        if self.counts_messages:
            return Window(max_messages=room)
        return Window(max_tokens=room, counter=self.counter)


def new_input(config: RunnableConfig | None, value: Any = ()) -> list[BaseMessage]:
    """Return the turn's new input if it will follow `value`, that is if `value` is (part of) the turn's history.

    Anything else is a prompt, the state of a running agent, or an unrelated list. Nothing follows it, and its own
    newest question and tool results are what must be kept.
    """
    context = turn_context(config)
    if context is None or hasattr(value, "to_messages"):
        return []
    last = next((m for m in reversed(value) if not (isinstance(m, SystemMessage) or _is_ours(m))), None)
    if last is None:
        return list(context.asked)
    name = getattr(last, "id", None)
    is_past = any(m is last or (name is not None and m.id == name) for m in reversed(context.past))
    return list(context.asked) if is_past else []


def _is_ours(message: Any) -> bool:
    return is_summary(message) or is_note(message)


def turn_context(config: RunnableConfig | None) -> TurnContext | None:
    """Return the turn's context from the config; None if the preprocessor is piped by hand."""
    context = ((config or {}).get("configurable") or {}).get(CONTEXT)
    return context if isinstance(context, TurnContext) else None
