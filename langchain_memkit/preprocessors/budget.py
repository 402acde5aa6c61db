"""The token budget of a prompt: its size, what of it is left for the history, and the report of a preprocessor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage, SystemMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import RunnableConfig

from langchain_memkit import base
from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit.base import HistoryMessages, Messages, TokenCounter, TokenCounterLike, TurnContext, Window
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages import tokens, trimming
from langchain_memkit.messages.notes import fitting_records, is_note, note_message, records_of
from langchain_memkit.messages.trimming import Size, is_summary

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
    """Token budget of one call of a model: of all that it is given, and of the answer."""

    max_tokens: int  # the whole budget, as `counter` counts; in messages if that is `len`
    reserve_tokens: int  # for the answer, and for what nobody can know
    tool_tokens: int  # the schemas of tools that were named beforehand
    counter: TokenCounter

    @classmethod
    def of(cls, max_tokens: int, counter: TokenCounterLike, reserve_tokens: int, tools: Sequence[Any] | None) -> Budget:
        """Validate the arguments of a preprocessor."""
        counted = tokens.resolve_counter(counter)
        tool_tokens = tokens.count_tool_tokens(tools or (), counted)
        base.check_size(reserve_tokens, "reserve_tokens", 0)
        made = cls(base.check_size(max_tokens, "max_tokens", 1), reserve_tokens, tool_tokens, counted)
        if max_tokens <= made.reserved:
            taken = f"reserve_tokens and the schemas of tools take {made.reserved}"
            raise ConfigurationError(f"max_tokens={max_tokens} leaves nothing: {taken}")
        return made

    @property
    def reserved(self) -> int:
        """Return the tokens that are reserved whatever a call holds."""
        return self.reserve_tokens + self.tool_tokens

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

    def beside(self, context: TurnContext) -> int:
        """Return the tokens of what the model is given beside history, notes and input, as far as it is known.

        That is the system prompt and what else a prompt adds, documents, the schemas of tools, and what an earlier
        call held beyond that.
        """
        if self.counts_messages:  # "the last two messages" means two of the history
            return 0
        if context.schemas is None:
            schemas = self.tool_tokens
        else:
            schemas = tokens.count_schema_tokens(context.schemas, self.counter)
        return schemas + self.tokens(context.beside) + context.excess

    def usable(self, context: TurnContext) -> int:
        """Return the tokens for history, notes and input; negative if the rest of the call is too long by itself."""
        if self.counts_messages:
            return int((self.max_tokens - self.reserved) * context.scale)
        return int((self.max_tokens - self.reserve_tokens - self.beside(context)) * context.scale)

    def room(
        self,
        config: RunnableConfig | None,
        given: Messages,
        follows: Messages,
        notes: Messages = (),
        *,
        in_loop: bool = False,
    ) -> tuple[int, int]:
        """Return the tokens left for what a preprocessor is given, beside notes and the new input that follows it.

        They are negative if these alone are too long. The second number tells how many tokens more there are for what
        must be kept: those that were set aside for notes, the turn's and the given `notes`. `in_loop` says that an
        agent has begun to call tools.
        """
        context = turn_context(config)
        context.used = True
        room = self.usable(context)
        if self.counts_messages:
            return room, 0
        room -= self.tokens(follows)
        beside = list({note.id: note for note in (*context.notes, *notes)}.values())
        spare = self.room_for_notes(beside, room, given, in_loop=in_loop)
        return room - spare, spare

    def room_for_notes(self, notes: Messages, room: int, dialogue: Messages, *, in_loop: bool) -> int:
        """Return how many of the tokens that the new input leaves are set aside for notes.

        The dialogue keeps half of what its system messages and summary leave, or its newest turn if that is longer and
        fits. In an agent's loop the calls of tools are part of the dialogue, and no older turn must stay beside them.
        """
        if not notes:
            return 0
        lead = trimming.leading_system_count(dialogue)
        free = max(room - self.tokens(dialogue[:lead]), 0)
        starts = [] if in_loop else trimming.turn_starts(dialogue[lead:])
        newest = self.tokens(dialogue[lead + starts[-1] :]) if starts else 0
        least = max(free // 2, newest if newest <= free else 0)
        return min(self.tokens(notes), free - least)

    def fit_note(
        self, note: BaseMessage | None, shown: Messages, context: TurnContext, lines: list[str]
    ) -> BaseMessage | None:
        """Return a note with those of its records that fit beside the `shown` messages; None if it has none.

        `lines` receives a line that tells how many were left out.
        """
        if note is None or self.counts_messages:
            return note
        left = self.usable(context) - self.tokens(shown)
        if self.tokens([note]) <= left:
            return note
        records = records_of(note)
        kept = fitting_records(records, lambda some: self.tokens([note_message(some)]) <= left)
        number = len(records) - len(kept)
        lines.append(f"{number:,} of {len(records):,} recalled records do not fit into the budget and are left out")
        return note_message(kept) if kept else None

    def claim(self, sizes: Sequence[int], room: int, *, steps: int = 5) -> int:
        """Return how many tokens of `room` an agent's run claims before the past gets any.

        They grow in steps of a fifth of the room, so that the past is cut at most five times while a run grows, and
        what a provider has cached of the prompt stays valid in between.
        """
        step = max(room // steps, 1)
        claimed = -(-sum(sizes) // step) * step
        return min(claimed, max(room, 0))

    def window(self, config: RunnableConfig | None) -> Window:
        """Return the part of the history to read: the newest rows that fill the budget."""
        room = max(self.room(config, (), new_input(config, ()))[0], 0)
        return Window(max_messages=room) if self.counts_messages else Window(max_tokens=room, counter=self.counter)


def budgets_of(preprocessor: object) -> list[Budget]:
    """Return the budgets of a preprocessor: of each step of a sequence that has one, none for a foreign one."""
    steps = getattr(preprocessor, "steps", [preprocessor])
    return [step.budget for step in steps if isinstance(getattr(step, "budget", None), Budget)]


def parts_of_run(messages: Messages, own: Messages) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Split messages in two: what came before an agent's run, and the run, which begins at the first of its `own`."""
    ids = {message.id for message in own if message.id}
    same = {id(message) for message in own}
    start = next((i for i, m in enumerate(messages) if m.id in ids or id(m) in same), len(messages))
    return list(messages[:start]), list(messages[start:])


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
    reserved: int  # tokens for the answer, and for tools that were only named beforehand
    beside: int  # tokens of what else the model is given, as far as that is known
    claimed: int  # tokens that an agent's run claims
    over: int = 0  # tokens that what must be shown is over the budget
    shortened: int = 0  # tool results that are shown in fewer tokens
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
            "reserved": self.reserved,
            "beside": self.beside,
            "tokens": parts,
            "kept": len(self.kept),
            "dropped": len(dropped),
            "over": self.over,
            "shortened": self.shortened,
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
