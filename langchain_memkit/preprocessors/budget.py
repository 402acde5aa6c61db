"""How much a model may be given, and how large what there is to give."""

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
    """Return a whole number that makes sense, or an error that names the argument."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        msg = f"{name} must be a whole number from {least}; got {value!r:.50}"
        raise ConfigurationError(msg)
    return value


def as_messages(value: Any) -> list[BaseMessage]:
    """Return what `trim_messages` takes: messages, what LangChain converts to messages, or a prompt's value."""
    if hasattr(value, "to_messages"):
        value = value.to_messages()
    if not isinstance(value, (list, tuple)):
        msg = f"a preprocessor takes a list of messages, not {type(value).__name__}"
        raise TypeError(msg)
    given = value if isinstance(value, list) else list(value)
    # looking at each of 50,000 messages would cost more than trimming them; what is kept is looked at then
    looked_at = given if len(given) <= LOOKED_AT else (given[0], given[-1])
    return given if all(isinstance(m, BaseMessage) for m in looked_at) else convert_to_messages(given)


class Sizes:
    """Tokens of the message at a position: those stored with it, else counted."""

    def __init__(self, messages: Sequence[BaseMessage], counter: TokenCounter) -> None:
        self._messages = messages
        self._counter = counter
        name = counter_name(counter)
        trusted = isinstance(messages, HistoryMessages) and messages.counter == name and "<" not in name
        self._stored = messages if trusted and isinstance(messages, HistoryMessages) else None

    def __call__(self, i: int) -> int:
        """Return tokens of message `i`."""
        if self._stored is not None and self._stored.knows(i):
            return self._stored.tokens[i]
        message: Any = self._messages[i]
        if not isinstance(message, BaseMessage):  # see `as_messages`: seen, if late
            message = convert_to_messages([message])[0]
        return count_tokens([message], self._counter)[0]


@dataclass(frozen=True, slots=True)
class Budget:
    """Tokens that a model may be given, less what is spoken for.

    Attributes:
        max_tokens: In all, as `counter` counts; messages if it is `len`.
        taken: By the answer and by the schemas of tools.
        counter: A resolved counter.
    """

    max_tokens: int
    taken: int
    counter: TokenCounter

    @classmethod
    def of(cls, max_tokens: int, counter: TokenCounterLike, reserve_tokens: int, tools: Sequence[Any] | None) -> Budget:
        """Check the arguments of a preprocessor."""
        resolved = resolve_counter(counter)
        taken = checked_size(reserve_tokens, "reserve_tokens", 0) + count_tool_tokens(tools or (), resolved)
        if checked_size(max_tokens, "max_tokens", 1) <= taken:
            msg = f"max_tokens={max_tokens} leaves nothing: reserve_tokens and the schemas of tools take {taken}"
            raise ConfigurationError(msg)
        return cls(max_tokens, taken, resolved)

    @property
    def counts_messages(self) -> bool:
        """Whether a token is a message."""
        return self.counter is len

    def room(self, config: RunnableConfig | None, value: Any = ()) -> int:
        """Return tokens for `value`, which is what a preprocessor is given; less than 0 if the new input takes everything."""
        context = turn_context(config)
        if context is None:
            return self.max_tokens - self.taken
        context.used = True
        if self.counts_messages:  # "the last two messages" of a history are two, whatever comes after
            return int((self.max_tokens - self.taken) * context.scale)
        beside = [note for note in context.notes if not any(note is m for m in value)]
        asked = sum(count_tokens([*beside, *new_input(config, value)], self.counter))
        return int((self.max_tokens - self.taken) * context.scale) - asked

    def fit_run(self, own: list[BaseMessage], beside: Sequence[BaseMessage], scale: float) -> list[BaseMessage]:
        """Cut the messages of an agent's run: if a long loop outgrows the budget, the oldest whole tool groups go.

        Args:
            own: The run's messages, which begin with its input.
            beside: What else is shown with them.
            scale: Share of the budget that may be used.

        Returns:
            The input, and the newest groups that fit; everything where the budget counts messages.
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
        """Return the newest rows that fill the budget."""
        room = max(self.room(config), 0)
        if self.counts_messages:
            return Window(max_messages=room)
        return Window(max_tokens=room, counter=self.counter)


def new_input(config: RunnableConfig | None, value: Any = ()) -> list[BaseMessage]:
    """Return the turn's new input, if it is yet to follow `value`: that is so where `value` is (a part of) the past.

    What ends otherwise is a prompt, or the messages of an agent under way, or of somebody else's: nothing follows, and
    its own newest question and results are what has to be kept.
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
    """Return what the factory says about the turn; None where a preprocessor is piped by hand."""
    context = ((config or {}).get("configurable") or {}).get(CONTEXT)
    return context if isinstance(context, TurnContext) else None
