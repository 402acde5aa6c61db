"""Rules of summarizing: when to do it, and how much to keep unsummarized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.trimming import find_cut_point
from langchain_memkit.preprocessors.budget import Budget, checked_size

__all__ = ["SummaryTrigger", "Threshold"]

Threshold: TypeAlias = tuple[Literal["tokens", "messages"], int]
"""`("tokens", 4000)` or `("messages", 50)`."""

TRIGGER_SHARE = 0.75  # of the budget; the rest is room for the summary and for messages while one is written
KEEP_SHARE = 0.4  # of the trigger, so that it takes a while until the next summary is due
SUMMARY_SHARE = 0.1  # of the budget
LEAST_SUMMARY = 200  # tokens, but at most a quarter of the budget
WORDS_PER_TOKEN = 0.7


@dataclass(frozen=True, slots=True)
class SummaryTrigger:
    """Validated `trigger` and `keep`, with the target length of a summary in tokens and words."""

    trigger: Threshold
    keep: Threshold
    summary_tokens: int
    words: int

    @classmethod
    def of(cls, budget: Budget, trigger: Threshold | None, keep: Threshold | None) -> SummaryTrigger:
        """Fill in defaults and validate the arguments against each other.

        Raises:
            ConfigurationError: An argument is malformed, or `keep` is not less than `trigger`, which would call the
                model at every turn.
        """
        usable = budget.max_tokens - budget.taken
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

        Args:
            body: The messages that no summary covers, oldest first; not empty.
            sizes: Token count of each.
            room: Tokens left next to the summary.
            asked: Whether a new question follows; if not, a human message at the end of `body` is the question and is
                never summarized.
        """
        # Cut once for each limit; the cut that keeps least satisfies all of them.
        starts = []
        for unit, amount in self._limits(sizes, room):
            size = sizes.__getitem__ if unit == "tokens" else _one
            starts.append(find_cut_point(body, size, amount).start)
        cut = max(starts)
        newest = next((i for i in reversed(range(len(body))) if _begins(body, i)), 0)
        is_open = not (isinstance(body[-1], AIMessage) and not body[-1].tool_calls)
        if cut > newest and (is_open or self.keep[1]) and sum(sizes[newest:]) <= room:
            return newest  # a turn is kept whole if it can be
        if isinstance(body[-1], HumanMessage) and not asked:
            return min(cut, len(body) - 1)
        if asked and sum(sizes[cut:]) > max(room, 0):
            # The rest does not fit even so: tool results of an old turn. Summarize them too, or trimming would drop
            # them unread.
            return len(body)
        return cut

    def _limits(self, sizes: Sequence[int], room: int) -> list[Threshold]:
        """Return all upper bounds of what is kept; they are low enough that the next summary is some turns away."""
        limits = [self.keep, ("tokens", max(room, 0))]
        unit, amount = self.trigger
        if not self.reached(sizes):  # summarized only because the view does not fit
            limits.append(("tokens", max(int(room * KEEP_SHARE), 0)))
        if unit != self.keep[0]:
            limits.append((unit, int(amount * KEEP_SHARE)))
        return limits


def _one(_: int) -> int:
    return 1


def _begins(body: Sequence[BaseMessage], i: int) -> bool:
    """Return whether a turn begins at index `i`: a human message that does not follow another one."""
    if not isinstance(body[i], HumanMessage):
        return False
    return i == 0 or not isinstance(body[i - 1], HumanMessage)


def _checked(value: Any, name: str, least: int) -> Threshold:
    if not (isinstance(value, (tuple, list)) and len(value) == 2 and value[0] in ("tokens", "messages")):
        msg = f"{name} must be ('tokens', n) or ('messages', n), not {value!r:.60}"
        raise ConfigurationError(msg)
    return (value[0], checked_size(value[1], f"{name}[1]", least))
