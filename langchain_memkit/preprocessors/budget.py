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
from langchain_memkit.base import HistoryMessages, Messages, TokenCounter, TokenCounterLike, TurnContext, Window
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages import tokens, trimming
from langchain_memkit.messages.notes import fitting_records, is_note, note_message, records_of
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
        raise TypeError(f"a preprocessor takes a list of messages, not {type(value).__name__}")
    given = value if isinstance(value, list) else list(value)
    looked_at = given if len(given) <= 500 else (given[0], given[-1])
    return given if all(isinstance(m, BaseMessage) for m in looked_at) else convert_to_messages(given)


def token_sizes(messages: Messages, counter: TokenCounter) -> Size:
    """Return the token counts of messages by index: the stored counts if the same counter made them, else new ones."""
    name = tokens.counter_name(counter)
    if not (isinstance(messages, HistoryMessages) and messages.counter == name and "<" not in name):
        return lambda i: tokens.count_tokens([messages[i]], counter)[0]
    stored = messages
    return lambda i: stored.tokens[i] if stored.knows(i) else tokens.count_tokens([stored[i]], counter)[0]


@dataclass(frozen=True, slots=True)
class Budget:
    """Token budget of a model's input."""

    max_tokens: int  # the whole budget, as `counter` counts; in messages if that is `len`
    reserved: int  # tokens reserved for the answer and the schemas of tools
    counter: TokenCounter

    @classmethod
    def of(cls, max_tokens: int, counter: TokenCounterLike, reserve_tokens: int, tools: Sequence[Any] | None) -> Budget:
        """Validate the arguments of a preprocessor."""
        counted = tokens.resolve_counter(counter)
        reserved = base.check_size(reserve_tokens, "reserve_tokens", 0) + tokens.count_tool_tokens(tools or (), counted)
        if base.check_size(max_tokens, "max_tokens", 1) <= reserved:
            msg = f"max_tokens={max_tokens} leaves nothing: reserve_tokens and the schemas of tools take {reserved}"
            raise ConfigurationError(msg)
        return cls(max_tokens, reserved, counted)

    @property
    def counts_messages(self) -> bool:
        """Return whether the budget counts messages instead of tokens (`token_counter=len`)."""
        return self.counter is len

    def tokens(self, messages: Messages) -> int:
        """Return the total token count of some messages."""
        return sum(tokens.count_tokens(messages, self.counter))

    def counting(self, function: Callable[[], T]) -> Step[T]:
        """Make a step of a function that counts tokens; async, a custom counter runs in a thread: it may do I/O."""
        return cpu_bound(function, long=not (self.counts_messages or self.counter is tokens.approximate_tokens))

    def usable(self, scale: float = 1.0) -> int:
        """Return the tokens for everything but the answer and the schemas of tools; `scale` is the share to use."""
        return int((self.max_tokens - self.reserved) * scale)

    def room(
        self, config: RunnableConfig | None, given: Messages, follows: Messages, notes: Messages = ()
    ) -> tuple[int, int]:
        """Return the tokens left for what a preprocessor is given, beside notes and the new input that follows it.

        They are negative if these alone are too long. The second number tells how many tokens more there are for what
        must be kept: those that were set aside for notes (the turn's, and the given `notes`), and those of a run's
        tool calls whose results the model has seen.
        """
        context = turn_context(config)
        context.used = True
        room = self.usable(context.scale)
        if self.counts_messages:  # "the last two messages" means two of the history: the new input does not count
            return room, 0
        lead = input_length(follows)
        last = max([lead, *trimming.group_starts(follows)[-1:]])
        room -= self.tokens(follows[:lead])
        beside = list({note.id: note for note in (*context.notes, *notes)}.values())
        spare = self.room_for_notes(beside, room, given, in_run=lead < len(follows)) + self.tokens(follows[lead:last])
        return room - spare - self.tokens(follows[last:]), spare

    def room_for_notes(self, notes: Messages, room: int, dialogue: Messages, *, in_run: bool) -> int:
        """Return how many of the tokens that the new input leaves are set aside for notes.

        The dialogue keeps half of what its system messages and summary leave, or its newest turn if that is longer and
        fits. In an agent's run the calls of tools are part of the dialogue, and no older turn must stay beside them.
        """
        if not notes:
            return 0
        lead = trimming.leading_system_count(dialogue)
        free = max(room - self.tokens(dialogue[:lead]), 0)
        starts = [] if in_run else trimming.turn_starts(dialogue[lead:])
        newest = self.tokens(dialogue[lead + starts[-1] :]) if starts else 0
        return min(self.tokens(notes), free - max(free // 2, newest if newest <= free else 0))

    def fit_note(self, note: BaseMessage | None, shown: Messages, scale: float, lines: list[str]) -> BaseMessage | None:
        """Return a note with those of its records that fit beside the `shown` messages; None if it has none.

        `lines` receives a line that tells how many were left out.
        """
        if note is None or self.counts_messages:
            return note
        left = self.usable(scale) - self.tokens(shown)
        if self.tokens([note]) <= left:
            return note
        records = records_of(note)
        kept = fitting_records(records, lambda some: self.tokens([note_message(some)]) <= left)
        number = len(records) - len(kept)
        lines.append(f"{number:,} of {len(records):,} recalled records do not fit into the budget and are left out")
        return note_message(kept) if kept else None

    def fit_run(self, own: list[BaseMessage], past: Messages, notes: Messages, scale: float) -> list[BaseMessage]:
        """Trim an agent's run to `scale` of the budget: drop the oldest tool groups of its loop, not its input."""
        lead = input_length(own)
        if self.counts_messages or lead == len(own):
            return own
        size = token_sizes(own, self.counter)
        room = self.usable(scale) - sum(map(size, range(lead)))
        room -= self.room_for_notes(notes, room, past, in_run=True) + self.tokens(past)
        start, task, _ = find_cut_point(own, size, room, lead=lead)
        return [*own[:lead], *(own[task : task + 1] if task is not None else ()), *own[start:]]

    def window(self, config: RunnableConfig | None) -> Window:
        """Return the part of the history to read: the newest rows that fill the budget."""
        room = max(self.room(config, (), new_input(config, ()))[0], 0)
        return Window(max_messages=room) if self.counts_messages else Window(max_tokens=room, counter=self.counter)


def budgets_of(preprocessor: object) -> list[Budget]:
    """Return the budgets of a preprocessor: of each step of a sequence that has one, none for a foreign one."""
    steps = getattr(preprocessor, "steps", [preprocessor])
    return [step.budget for step in steps if isinstance(getattr(step, "budget", None), Budget)]


def input_length(messages: Messages) -> int:
    """Return the number of messages before the first answer: a run's input, which its loop of tool calls follows."""
    return next((i for i, m in enumerate(messages) if isinstance(m, AIMessage)), len(messages))


def new_input(config: RunnableConfig | None, given: Messages) -> list[BaseMessage]:
    """Return the turn's new input if it will follow `given`, that is if these are (part of) the turn's history.

    Anything else is the state of a running agent, or an unrelated list. Nothing follows it, and its own newest question
    and tool results are what must be kept.
    """
    context = turn_context(config)
    dialogue = (m for m in reversed(given) if not (isinstance(m, SystemMessage) or is_summary(m) or is_note(m)))
    last = next(dialogue, None)
    is_past = last is None or any(m is last or (last.id and m.id == last.id) for m in reversed(context.past))
    return list(context.asked) if is_past else []


def turn_context(config: RunnableConfig | None) -> TurnContext:
    """Return the turn's context from the config; an empty one if the preprocessor is piped by hand."""
    context = ((config or {}).get("configurable") or {}).get(base.CONTEXT)
    return context if isinstance(context, TurnContext) else TurnContext()


@dataclass(slots=True)
class ContextReport:
    """Outcome of one preprocessor in one turn."""

    preprocessor: str  # its name
    budget: Budget
    room: int  # tokens of the budget that were left for the history
    given: list[BaseMessage]
    recalled: Messages  # notes that stood among the given messages
    spare: int  # tokens more that there are for what must be kept
    kept: Messages = ()  # the messages that it returned
    summarized: int = 0  # messages that the summary covers, including those of earlier turns
    covered: Messages = ()  # those of `given` that the summary covers
    notes: list[str] = field(default_factory=list)  # problems, one line each

    def event(self) -> dict[str, Any]:
        """Return the payload of the event `memkit_context`: plain data without message content."""
        kept_ids = {id(m) for m in (*self.kept, *self.covered)}
        whole = {id(m) for m in self.given}
        # Messages are compared by identity, since ids may occur twice; only shortened copies are recognized by id.
        known = {m.id for m in self.kept if m.id and id(m) not in whole}
        parts = {"system": 0, "summary": 0, "history": 0}
        for message, count in zip(self.kept, tokens.count_tokens(self.kept, self.budget.counter), strict=True):
            parts[part_of(message)] = parts.get(part_of(message), 0) + count
        dropped = [m.id for m in self.given if id(m) not in kept_ids and m.id not in known]
        return {
            "preprocessor": self.preprocessor,
            "max_tokens": self.budget.max_tokens,
            "room": self.room,
            "reserved": self.budget.reserved,
            "tokens": parts,
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
