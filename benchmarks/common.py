"""What the benchmarks share: timing in turns, derived figures, tables for people, JSON for machines."""

from __future__ import annotations

import argparse
import gc
import json
import operator
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
TEXTS = Path(__file__).parent / "texts"
PACKAGES = ("langchain-memkit", "langchain-core")
COMPARE = {">=": operator.ge, "<=": operator.le, "<": operator.lt}
MIN_RUNS = 3
Row = dict[str, Any]

console = Console(markup=False, highlight=False, emoji=False)
console.width = max(console.width, 180)  # of a file or a pipe, too


def say(text: str) -> None:
    """Tells what is going on."""
    console.print(f"{time.strftime('%H:%M:%S')}  {text}", style="dim")


# -- time


def nothing() -> None:
    """What most cases do around their timed part."""


def for_each(call: Callable[..., object], arguments: Iterable[tuple[Any, ...]]) -> None:
    """A run of many calls."""
    for some in arguments:
        call(*some)


@dataclass
class Case:
    """One thing to be timed: which row of the result it is, and how it runs."""

    row: Row
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

    def result(self) -> Row:
        """The row with its figures."""
        return {**self.row, **spread(self.times), "runs": len(self.times)}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Median, minimum and maximum in milliseconds."""
    figures = {"median_ms": statistics.median(seconds), "min_ms": min(seconds), "max_ms": max(seconds)}
    return {name: float(f"{1000 * value:.4g}") for name, value in figures.items()}


def alternate(cases: Sequence[Case], runs: int, budget: float) -> list[Row]:
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


# -- rows and ratios


def every(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def one(rows: Iterable[Row], **wanted: Any) -> Row:
    """The one row that has these values."""
    (row,) = every(rows, **wanted)
    return row


def median(rows: Iterable[Row], **wanted: Any) -> float:
    """The median of the one row that has these values."""
    return float(one(rows, **wanted)["median_ms"])


def ratio(name: str, value: float, bar: str | None = None, **where: Any) -> Row:
    """A derived figure, with its bar (`>= 100`, `<= 2`, `< 1`) if it has one."""
    result: Row = {"ratio": name, **where, "value": float(f"{value:.3g}")}
    if bar:
        sign, limit = bar.split()
        result |= {"bar": bar, "holds": COMPARE[sign](value, float(limit))}
    return result


def unbarred(ratios: Iterable[Row]) -> list[Row]:
    """The figures of a run that is too small, or of data that is not good enough, for a judgement."""
    return [{key: value for key, value in row.items() if key not in ("bar", "holds")} for row in ratios]


# -- the result


def environment(*, quick: bool, packages: Sequence[str] = ()) -> dict[str, Any]:
    """When, where and with what it runs; the caller adds what the servers say."""
    return {
        "quick": quick,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "os": f"{platform.system()} {platform.machine()}",
        },
        "versions": {name: version(name) for name in (*PACKAGES, *packages)},
    }


def arguments(description: str) -> argparse.ArgumentParser:
    """What every benchmark may be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it works")
    parser.add_argument("--output", "--out", type=Path, help="JSON file (default: of a full run benchmarks/results)")
    return parser


def finish(
    name: str, output: Path | None, about: Mapping[str, Any], rows: list[Row], ratios: list[Row], *, full: bool
) -> None:
    """Shows a result, those figures first that have a bar, and writes it, if there is a place for it."""
    result = {**about, "ratios": sorted(ratios, key=lambda row: "bar" not in row), "rows": rows}
    show(result)
    path = output or (RESULTS / f"{name}.json" if full else None)
    if path is not None:
        parts = {key: value for key, value in result.items() if key not in ("ratios", "rows")}
        text = json.dumps(parts, indent=2).removesuffix("\n}")
        for key in ("ratios", "rows"):  # a row per line, so that two runs can be compared
            lines = ",\n    ".join(json.dumps(row) for row in result[key])
            text += f',\n  "{key}": [\n    {lines}\n  ]'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n}\n")
        print(f"written: {os.path.relpath(path)}")


def show(result: Mapping[str, Any]) -> None:
    """Everything that the JSON holds, for reading: a table for each measurement, and those of the derived figures."""
    for key, value in result.items():
        if key not in ("ratios", "rows"):
            console.print(f"{key}: {json.dumps(value)}", soft_wrap=True)
    for name in dict.fromkeys(row["measurement"] for row in result["rows"]):
        console.print(table(name, [row for row in result["rows"] if row["measurement"] == name]))
    for title, barred in (("figures with a bar", True), ("others; in peer / memkit above 1 memkit is better", False)):
        if chosen := [row for row in result["ratios"] if ("bar" in row) is barred]:
            console.print(table(title, chosen))


def table(title: str, rows: Sequence[Row]) -> Table:
    """A line for each row, a column for each of its figures; times in one column, as median (minimum-maximum)."""
    keys = dict.fromkeys(key for row in rows for key in row)
    shown = [key for key in keys if key not in ("measurement", "min_ms", "max_ms")]
    made = Table(*(key.replace("_", " ") for key in shown), title=title)
    for row in rows:
        cells = [cell(row.get(key)) for key in shown]
        if "min_ms" in row:
            cells[shown.index("median_ms")] += f" ({number(row['min_ms'])}-{number(row['max_ms'])})"
        made.add_row(*cells)
    return made


def cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    return number(value) if isinstance(value, float) else str(value)


def number(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
