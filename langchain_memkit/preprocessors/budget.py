"""The token budget of a prompt: its parts, what was left out, the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig

from langchain_memkit._histories import read_messages
from langchain_memkit._sync import Step
from langchain_memkit.base import (
    CONTEXT,
    HistoryMessages,
    HistoryView,
    Preprocessor,
    TokenCounter,
    TokenCounterLike,
    TurnContext,
    Window,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.notes import is_note
from langchain_memkit.messages.tokens import count_tokens, count_tool_tokens, counter_name, resolve_counter
from langchain_memkit.messages.trimming import cut_tail, find_cut_point, is_summary

__all__ = ["Budget", "ContextReport", "TokenSizes", "as_messages", "checked_size", "has_listeners", "new_input"]


def asks_for_window(preprocessor: Preprocessor | None) -> bool:
    """Return whether a preprocessor (or the first of a sequence) has `window`, to say how much history it needs."""
    return hasattr(getattr(preprocessor, "first", preprocessor), "window")


async def load(history: Any, preprocessor: Preprocessor | None, config: RunnableConfig, *, native: bool) -> HistoryView:
    """Read the history of a turn.

    Args:
        history: Any chat history.
        preprocessor: The preprocessor that will be applied; if it (or the first of a sequence) has `window`, that
            decides how much is read.
        config: Config of the turn.
        native: Whether it is a memkit history, which can be read in part.
    """
    if not native:
        return HistoryView(list(await read_messages(history)))
    size: int | None = getattr(history, "history_size", None)
    first: Any = getattr(preprocessor, "first", preprocessor)
    if not asks_for_window(preprocessor):
        return await Step(lambda: history.view(max_messages=size), lambda: history.aview(max_messages=size))
    window: Window = await Step(lambda: first.window(config), lambda: first.awindow(config))
    bounded = window.max_messages is not None or window.max_tokens is not None
    # Apply `history_size` to bounded windows only. An unbounded one asks for everything after a summary: cut to the
    # newest messages, it would leave a gap between the summary and them.
    if size is not None and bounded:
        window = replace(window, max_messages=min(size, size if window.max_messages is None else window.max_messages))
    view: HistoryView = await Step(lambda: history.view(window=window), lambda: history.aview(window=window))
    return _newest_of(view, size) if size is not None and bounded else view


def _newest_of(view: HistoryView, size: int) -> HistoryView:
    """Cut a view to `history_size` messages: windows are read in whole rows, so they may hold more."""
    read: Any = view.messages
    if len(read) <= size:
        return view
    begin = len(read) - len(cut_tail(read, read.tokens, max_messages=size))
    kept = HistoryMessages(read[begin:], read.tokens[begin:], read.counter, read.turns[begin:], read.epoch, read.window)
    return view._replace(messages=kept)


EVENT = "memkit_context"


@dataclass(slots=True)
class ContextReport:
    """Outcome of one preprocessor in one turn.

    Attributes:
        preprocessor: Its name.
        max_tokens: Its budget, in tokens.
        room: Tokens of the budget that were left for the history.
        given: The messages that it was given.
        kept: The messages that it returned.
        counter: The token counter.
        reserved: Tokens reserved for the answer and the schemas of tools.
        summarized: Number of messages that the summary covers, including those of earlier turns.
        covered: The messages of `given` that the summary covers.
        notes: Problems, one line each.
    """

    preprocessor: str
    max_tokens: int
    room: int
    given: Sequence[BaseMessage]
    kept: Sequence[BaseMessage]
    counter: TokenCounter
    reserved: int = 0
    summarized: int = 0
    covered: Sequence[BaseMessage] = ()
    notes: list[str] = field(default_factory=list)

    def event(self) -> dict[str, Any]:
        """Return the payload of the event `memkit_context`: plain data without message content."""
        kept_ids = {id(m) for m in (*self.kept, *self.covered)}
        whole = {id(m) for m in self.given}
        # Messages are compared by identity, since ids may occur twice; only shortened copies are recognized by id.
        known = {m.id for m in self.kept if m.id and id(m) not in whole}
        tokens = {"system": 0, "summary": 0, "history": 0}
        for message, count in zip(self.kept, count_tokens(self.kept, self.counter), strict=True):
            tokens[part_of(message)] = tokens.get(part_of(message), 0) + count
        ids = [getattr(m, "id", None) for m in self.given if id(m) not in kept_ids]  # getattr: perhaps a tuple
        dropped = [i for i in ids if i not in known]
        return {
            "preprocessor": self.preprocessor,
            "max_tokens": self.max_tokens,
            "room": self.room,
            "reserved": self.reserved,
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


def has_listeners(config: RunnableConfig) -> bool:
    """Return whether there are callback handlers: building the event costs more than trimming."""
    callbacks = config.get("callbacks")
    return bool(getattr(callbacks, "handlers", callbacks))


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


class TokenSizes:
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
        size = TokenSizes(own, self.counter)
        room = int((self.max_tokens - self.taken) * scale)
        room -= sum(size(i) for i in range(lead)) + sum(count_tokens(beside, self.counter))
        start, task, _ = find_cut_point(own, size, room, lead=lead)
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
