"""Is there an order of operations that explains what was seen? A search, for any model of what an operation does."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S", bound=Hashable)

MOST = 3_000_000  # states that a search looks at, in half a gigabyte


@dataclass(frozen=True)
class Step:
    """Something that happened at one moment between `began` and `ended`.

    Attributes:
        what: For the model.
        is_certain: Whether it is known to have happened; else it happened once, at any time after its begin, or never.
        only_looks: Whether it never changes the state. Then it is taken as soon as it can happen: what can come after
            it can come so, too, and no order with it later explains more.
    """

    what: Any
    began: float
    ended: float
    is_certain: bool = True
    only_looks: bool = False


@dataclass
class Explanation(Generic[S]):
    """How far a search came.

    Attributes:
        is_found: Whether there is such an order.
        is_decided: Whether all orders were tried that may be one.
        state: Of the model, at the end; if there is none: before the step that nothing explains, in the longest order.
        stuck_at: That step; None if an order was found, or if all steps are explained and the end is not.
    """

    is_found: bool
    is_decided: bool
    state: S
    stuck_at: Step | None = None


def explain(
    steps: Sequence[Step],
    start: S,
    after: Callable[[S, Step], Iterable[S]],
    is_end: Callable[[S], bool] = lambda state: True,
) -> Explanation[S]:
    """Looks for an order of the steps, each at a moment of its own, in which the model comes from the start to an end.

    Args:
        steps: Of which all that are certain must be in the order, and any of the others may be.
        start: Of the model.
        after: What a state may be after a step; nothing, if the step cannot happen there.
        is_end: Whether it may end so.
    """
    order = sorted(steps, key=lambda step: step.began)
    latest = [step.ended if step.is_certain else math.inf for step in order]
    certain = sum(1 << i for i, step in enumerate(order) if step.is_certain)
    waiting = [(start, (1 << len(order)) - 1)]  # a state, and the steps that are left: a bit for each
    seen: set[Any] = set(waiting)
    shortest, furthest = math.inf, waiting[0]
    while waiting and len(seen) < MOST:
        state, left = waiting.pop()
        must = left & certain
        if not must and is_end(state):
            return Explanation(True, True, state)
        if must.bit_count() < shortest:
            shortest, furthest = must.bit_count(), (state, left)
        able = _able(order, latest, left)
        looks = (i for i in able if order[i].only_looks and order[i].is_certain)
        first = next((i for i in looks if any(after(state, order[i]))), None)
        # What is tried first is pushed last: what ended first, of those what began first, and what is not certain only
        # if nothing else helps.
        for i in sorted(able, key=lambda i: (latest[i], i), reverse=True) if first is None else [first]:
            for following in ((state, left & ~(1 << i)) for state in after(state, order[i])):
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
    state, left = furthest
    stuck_at = min(_bits(left & certain), key=lambda i: latest[i], default=None)
    return Explanation(False, not waiting, state, None if stuck_at is None else order[stuck_at])


def _bits(number: int) -> Iterator[int]:
    """The places of the bits that are set, the lowest first."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def _able(order: Sequence[Step], latest: Sequence[float], left: int) -> list[int]:
    """Those of the steps that are left, in the order of their begins, before which no other one must come."""
    found: list[int] = []
    first_end = math.inf
    for i in _bits(left):
        if order[i].began > first_end:
            break
        found.append(i)
        first_end = min(first_end, latest[i])
    return found
