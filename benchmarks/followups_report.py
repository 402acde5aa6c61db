"""The tables of benchmarks/followups.py."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.followups_score import METRICS, Result
from benchmarks.followups_systems import WEIGHTED
from benchmarks.report import Row, judged, number

__all__ = ["console", "row_of", "say", "show"]

console = Console(markup=False, highlight=False, emoji=False)
console.width = max(console.width, 160)  # of a file or a pipe, too


def say(text: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')}  {text}", style="dim")


def row_of(result: Result) -> Row:
    """A result's figures."""
    figures = {name: round(float(result.of(name).mean()), 4) for name in METRICS}
    spent = {"calls": round(result.calls, 4), "ms": float(f"{result.ms:.3g}")}
    place = {"measurement": "retrieval", **result.place._asdict(), "system": result.system}
    return {**place, "questions": len(result.questions), **figures, **spent}


def show(result: dict[str, Any]) -> None:
    """Everything that the JSON holds, for reading; differences in short."""
    rows: list[Row] = result["rows"]
    console.print("\n" + ", ".join(f"{name} {value}" for name, value in result["versions"].items()), soft_wrap=True)
    console.print(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    for data in result["data"]:
        sizes = ", ".join(f"{value:,} {name}" for name, value in data.items() if name != "name")
        console.print(f"data: {data['name']}, {sizes}")
    for name in dict.fromkeys(row["data"] for row in rows if row["measurement"] == "retrieval"):
        console.print(found([row for row in rows if row["measurement"] == "retrieval" and row["data"] == name], name))
    console.print(gate([row for row in rows if row["measurement"] == "gate"]))
    differences = [row for row in rows if row["measurement"] == "difference" and row["system"] == WEIGHTED]
    console.print(gaps([row for row in differences if row["masked"] and not row["more"]]))
    for title, barred in (("Figures with a bar", True), ("Others", False)):
        chosen = [row for row in result["ratios"] if ("bar" in row) is barred]
        if chosen:
            console.print(bars(chosen, title))


def found(rows: Sequence[Row], name: str) -> Table:
    """A line per engine and system; a column per condition."""
    conditions = dict.fromkeys((row["masked"], row["more"]) for row in rows)
    heads = [f"{'masked' if masked else 'unmasked'}{f', {more:,} more' if more else ''}" for masked, more in conditions]
    title = f"{name}, {rows[0]['questions']:,} questions: {' / '.join(METRICS)}"
    fixed = (Column("engine", no_wrap=True), Column("system", no_wrap=True))
    made = Table(*fixed, *heads, "calls", "ms", title=title)
    lines: dict[tuple[str, str], dict[tuple[bool, int], Row]] = {}
    for row in rows:
        lines.setdefault((row["engine"], row["system"]), {})[row["masked"], row["more"]] = row
    for key, cells in lines.items():
        shown = [" / ".join(f"{cells[where][metric]:.3f}" for metric in METRICS) for where in conditions]
        first = next(iter(cells.values()))
        made.add_row(*key, *shown, f"{first['calls']:.2f}", number(first["ms"]))
    return made


def gate(rows: Sequence[Row]) -> Table:
    """A line per set and engine."""
    heads = ("turns", "passed", "equal: passed", "passed that lose nothing", "their recall@10: asked", "expanded")
    made = Table("data", "engine", *heads, title="The gate; equal: a person left the question as it was")
    for row in rows:
        passed = f"{row['passed']} ({row['calls_saved']:.1%})"
        equal = f"{row['equal_passed']} of {row['equal']}"
        share = f" ({row['good'] / row['judged']:.1%})" if row["judged"] else ""
        good = f"{row['good']} of {row['judged']}{share}"
        keys = ("recall@10 asked", "recall@10 expanded")
        recall = (f"{row[key]:.3f}" if key in row else "" for key in keys)
        made.add_row(row["data"], row["engine"], str(row["turns"]), passed, equal, good, *recall)
    return made


def gaps(rows: Sequence[Row]) -> Table:
    """Masked, without distractors: memkit less each other, with 95% intervals."""
    metrics = METRICS[1:]
    made = Table("data", "engine", "system", "less", *metrics, title="Differences, masked (95% interval)")
    lines: dict[tuple[str, ...], dict[str, str]] = {}
    for row in rows:
        place = (row["data"], row["engine"], row["system"], row["other"])
        lines.setdefault(place, {})[row["metric"]] = f"{row['value']:+.3f} ({row['low']:+.3f} to {row['high']:+.3f})"
    for where, cells in lines.items():
        made.add_row(*where, *(cells[metric] for metric in metrics))
    return made


def bars(rows: Sequence[Row], title: str) -> Table:
    """A line per ratio."""
    made = Table("figure", "of", "value", "bar", title=title)
    for row in rows:
        interval = f" ({row['difference']:+.3f}: {row['low']:+.3f} to {row['high']:+.3f})" if "low" in row else ""
        where = "; ".join(row[key] for key in ("data", "of") if key in row)
        made.add_row(row["ratio"], where, judged(row) + interval, row.get("bar", ""))
    return made
