"""Timing: alternating runs of several cases, and what they took."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

MIN_RUNS = 3


def nothing() -> None:
    """What most cases do around their timed part."""


@dataclass
class Case:
    """One thing to be timed: which row of the result it is, and how it runs."""

    row: dict[str, Any]
    run: Callable[[], object]
    prepare: Callable[[], object] = nothing  # before each run, not timed
    finish: Callable[[], object] = nothing  # after each run, not timed: brings the session back to its size
    calls: int = 1  # how many calls one run makes; the result is per call
    least: int = MIN_RUNS  # runs that it makes however long they take
    times: list[float] = field(default_factory=list)

    def once(self) -> float:
        """Runs it; returns seconds per call."""
        self.prepare()
        begin = time.perf_counter()
        self.run()
        spent = time.perf_counter() - begin
        self.finish()
        return spent / self.calls

    def result(self) -> dict[str, Any]:
        """The row with its figures, in milliseconds per call."""
        values = [1000 * seconds for seconds in self.times]
        figures = {"median_ms": statistics.median(values), "min_ms": min(values), "max_ms": max(values)}
        return {**self.row, **{k: float(f"{v:.4g}") for k, v in figures.items()}, "runs": len(values)}


def alternate(cases: Sequence[Case], runs: int, budget: float) -> list[dict[str, Any]]:
    """Runs all cases in turns, so that a slow minute of the machine hits all of them.

    Args:
        cases: What is compared; every second round goes backwards.
        runs: Rounds, at least 3.
        budget: Seconds after which a case takes no part in further rounds, once it has run three times (or `least`).

    Returns:
        A row per case.
    """
    for number in range(max(runs, MIN_RUNS)):
        gc.collect()
        for case in cases if number % 2 == 0 else reversed(cases):
            if number < case.least or sum(case.times) * case.calls < budget:
                case.times.append(case.once())
    return [case.result() for case in cases]
