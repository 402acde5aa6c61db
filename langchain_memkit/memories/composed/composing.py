"""Merge a dialogue and the records that memories recalled into one list of messages within a token budget. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from langchain_core.messages import BaseMessage, SystemMessage

from langchain_memkit.base import TokenCounter, TokenCounterLike
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.counting import count_tokens, resolve_counter
from langchain_memkit.messages.cuts import lead_length, whole_tool_groups
from langchain_memkit.messages.notes import Record, Template, framed, note_message, with_records
from langchain_memkit.messages.turns import group_starts, turn_starts
from langchain_memkit.messages.unsaid import unsaid
from langchain_memkit.preprocessors.budget import checked_size

__all__ = ["Composer", "Found", "Place"]

Place: TypeAlias = Literal["before_input", "system"]


class Found(NamedTuple):
    """Records that one source recalled, and how many tokens of them may be shown (None: no limit)."""

    records: Sequence[Record]
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Composer:
    """Merges messages and records into one list; `ComposedMemory` documents the options."""

    max_tokens: int | None
    position: Place
    template: Template
    counter: TokenCounter

    @classmethod
    def of(cls, max_tokens: Any, position: Any, template: Any, token_counter: TokenCounterLike) -> Composer:
        """Validate the options."""
        if max_tokens is not None:
            checked_size(max_tokens, "max_tokens", 1)
        if position not in ("before_input", "system"):
            msg = f"position must be 'before_input' or 'system', not {position!r:.50}"
            raise ConfigurationError(msg)
        if template is not None and not callable(template):
            msg = f"template must be a function from records to text, not {type(template).__name__}"
            raise ConfigurationError(msg)
        return cls(max_tokens, position, template or framed, resolve_counter(token_counter))

    def kept(self, dialogue: list[BaseMessage]) -> list[BaseMessage]:
        """Return the messages that are shown in any case: all, or with a budget the lead and the newest turn.

        The lead is made of the system messages and summaries before the first turn.
        """
        starts = _turns(dialogue)
        if self.max_tokens is None or not starts:
            return dialogue
        return [*dialogue[: starts[0]], *dialogue[starts[-1] :]]

    def compose(self, dialogue: list[BaseMessage], found: Sequence[Found]) -> list[BaseMessage]:
        """Return the dialogue and all records that fit, without duplicates.

        Args:
            dialogue: Messages, oldest first, without records.
            found: Records by source, the most important source first.
        """
        shown = self.kept(dialogue)
        room = None if self.max_tokens is None else self.max_tokens - sum(count_tokens(shown, self.counter))
        records: list[Record] = []
        for source in found:
            new = unsaid(source.records, shown, records)
            records += self._fitting(new, shown, records, room, source.max_tokens)
        # Older turns get what the records leave of the budget: records answer the question, older turns may not.
        older = [] if room is None else self._older_turns(dialogue, room - self._added(shown, records))
        lead = lead_length(shown)
        # Deduplicate again: an older turn that still fitted, or a larger record of a later source, may contain a
        # record.
        return self.place([*shown[:lead], *older, *shown[lead:]], unsaid(records, older))

    def place(self, messages: list[BaseMessage], records: Sequence[Record]) -> list[BaseMessage]:
        """Insert the records into the messages at the configured position."""
        if not records:
            return list(messages)
        if self.position == "before_input":
            end = len(messages) - _waiting(messages)
            return [*messages[:end], note_message(records, self.template), *messages[end:]]
        first = messages[0] if messages and isinstance(messages[0], SystemMessage) else None
        return [with_records(first, records, self.template), *messages[first is not None :]]

    def _added(self, messages: list[BaseMessage], records: Sequence[Record]) -> int:
        """Return how many tokens the records add to the messages."""
        changed = messages[:1] if self.position == "system" and messages[:1] else []
        placed, before = (count_tokens(m, self.counter) for m in (self.place(changed, records), changed))
        return sum(placed) - sum(before)

    def _fitting(
        self, new: list[Record], shown: list[BaseMessage], told: list[Record], room: int | None, most: int | None
    ) -> list[Record]:
        """Return the records of one source that still fit, chosen by rank, in their order; none is shortened.

        Args:
            new: The source's records, without duplicates.
            shown: Messages that are shown in any case.
            told: Records of more important sources.
            room: Tokens left in the whole budget; None for no limit.
            most: Tokens that this source may use; None for no limit.
        """
        if room is None and most is None:
            return new
        taken: list[int] = []
        for i in sorted(range(len(new)), key=lambda i: i if (rank := new[i].rank) is None else rank):
            # Count the whole note each time: the template's frame makes the costs of records not additive.
            own = [new[j] for j in sorted([*taken, i])]
            if (most is None or self._added(shown, own) <= most) and (
                room is None or self._added(shown, [*told, *own]) <= room
            ):
                taken.append(i)
        return [new[i] for i in sorted(taken)]

    def _older_turns(self, dialogue: list[BaseMessage], room: int) -> list[BaseMessage]:
        """Return as many whole turns before the newest one as fit, without a gap."""
        starts = _turns(dialogue)
        first = last = starts[-1] if starts else 0
        for start in reversed(starts[:-1]):
            room -= sum(count_tokens(dialogue[start:first], self.counter))
            if room < 0:
                break
            first = start
        return dialogue[first:last]


def _turns(dialogue: list[BaseMessage]) -> list[int]:
    """Return the positions at which turns begin, after the leading system messages and summaries."""
    lead = lead_length(dialogue)
    return [lead + start for start in turn_starts(dialogue[lead:])]


def _waiting(messages: list[BaseMessage]) -> int:
    """Return how many messages at the end are tool calls whose results are still to come.

    Nothing may be inserted between a tool call and its results.
    """
    group = messages[group_starts(messages)[-1] :] if messages else []
    return len(group) if whole_tool_groups(group) != group else 0
