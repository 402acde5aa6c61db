"""What benchmarks/recall.py derives from its measurements, and its tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from benchmarks.recall_score import METRICS, NOTE, Answer, difference, means
from benchmarks.recall_systems import MEMKIT
from benchmarks.report import Row, judged, number, ratio

__all__ = ["console", "figures", "say", "show"]

BARRED = ("recall@10", "recall within 1,024", "MRR")
NO_VECTORS = "none"

console = Console(markup=False, highlight=False, emoji=False)
console.width = max(console.width, 148)  # of a file or a pipe, too

Measured = Sequence[tuple[Row, list[Answer]]]


def say(text: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')}  {text}", style="dim")


# -- memkit beside the best other


def figures(measured: Measured, *, barred: bool) -> list[Row]:
    """By how much memkit is ahead of the best of all others; with bars if the data is worth it."""
    found: list[Row] = []
    for row, ours in measured:
        if row["system"] == MEMKIT:
            embedder = row["embedder"]
            others = [
                (other["system"], answers)
                for other, answers in measured
                if other["embedder"] in (embedder, NO_VECTORS) and other["system"] != MEMKIT
            ]
            found += _ahead({"data": row["data"], "embedder": embedder}, ours, others)
    if barred:
        return found
    return [{key: value for key, value in row.items() if key not in ("bar", "holds")} for row in found]


def _ahead(place: Row, ours: Sequence[Answer], others: Sequence[tuple[str, list[Answer]]]) -> Iterator[Row]:
    """In all, and in how many conversations it is not; without vectors it is no default, and has no bar."""
    yield ratio("share of the evidence in the note of 1,024 tokens", means(ours)[NOTE], **place)
    barred = place["embedder"] != NO_VECTORS
    for metric in BARRED:
        name, theirs = max(others, key=lambda other: means(other[1])[metric])
        gap = {key: round(value, 4) for key, value in difference(ours, theirs, metric).items()}
        shown = {"of": name, "difference": gap["value"], "high": gap["high"]}
        yield ratio(f"{metric}, memkit - best other, low end", gap["low"], ">= 0" if barred else None, **place, **shown)
        behind = 0
        for dialogue in dict.fromkeys(answer.dialogue for answer in ours):
            mine, *theirs_here = (
                means(answer for answer in answers if answer.dialogue == dialogue)[metric]
                for answers in (ours, *(answers for _, answers in others))
            )
            behind += mine < max(theirs_here)
        yield ratio(f"{metric}, conversations in which any other is ahead", behind, "<= 0" if barred else None, **place)


# -- tables


def show(result: dict[str, Any]) -> None:
    """Everything that the JSON holds, for reading; conversations in short."""
    rows: list[Row] = result["rows"]
    console.print("\n" + ", ".join(f"{name} {value}" for name, value in result["versions"].items()), soft_wrap=True)
    console.print(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    for data in result.get("data", ()):
        sizes = f"{data['conversations']} conversations, {data['messages']:,} messages, {data['questions']:,} questions"
        console.print(f"data: {data['name']}, {sizes}")
        console.print(overall(rows, data["name"]))
        console.print(parts(rows, data["name"]))
    timed = [row for row in rows if "median_ms" in row]
    if timed:
        console.print(times(timed))
    for row in rows:
        if row["measurement"] == "million":
            console.print(", ".join(f"{key} {value}" for key, value in row.items()), soft_wrap=True)
    for title, barred in (("Figures with a bar", True), ("Others", False)):
        chosen = [row for row in result["ratios"] if ("bar" in row) is barred]
        made = Table("figure", "of", "value", "bar", title=title)
        for row in chosen:
            keys = ("data", "embedder", "where", "of", "backend", "deployment")
            interval = f" ({row['difference']:+.3f}, up to {row['high']:+.3f})" if "difference" in row else ""
            where = ", ".join(str(row[key]) for key in keys if key in row)
            made.add_row(row["ratio"], where, judged(row) + interval, row.get("bar", ""))
        if chosen:
            console.print(made)


def overall(rows: Sequence[Row], data: str) -> Table:
    """A line per embedder and system."""
    short = [metric.replace("recall@", "R@").replace("recall within", "R in") for metric in METRICS]
    fixed = (Column("vectors", no_wrap=True), Column("system", no_wrap=True))
    made = Table(*fixed, *short, "ms to add", "ms to ask (p95)", title="All questions; R: recall")
    taken = {(row["embedder"], row["system"]): row for row in rows if _is(row, "time", data)}
    for row in rows:
        if _is(row, "recall", data) and row["where"] == "all":
            spent = taken[row["embedder"], row["system"]]
            asked = f"{number(spent['query_ms'])} ({number(spent['query_p95_ms'])})"
            found = [f"{row[metric]:,.0f}" if "tokens" in metric else f"{row[metric]:.3f}" for metric in METRICS]
            made.add_row(row["embedder"], row["system"], *found, number(spent["add_ms"]), asked)
    return made


def parts(rows: Sequence[Row], data: str) -> Table:
    """By category and conversation: recall within 1,024 tokens."""
    chosen = [row for row in rows if _is(row, "recall", data) and row["where"] != "all"]
    places = sorted(dict.fromkeys(row["where"] for row in chosen))
    made = Table("vectors", "system", *places, title="recall within 1,024 tokens, by category and conversation")
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for row in chosen:
        value = f"{row['recall within 1,024']:.3f}"
        lines.setdefault((row["embedder"], row["system"]), {})[row["where"]] = value
    for key, cells in lines.items():
        made.add_row(*key, *(cells.get(place, "") for place in places))
    return made


def times(rows: Sequence[Row]) -> Table:
    """A line per case of the speed part."""
    made = Table("of", "deployment", "system", "rounds", "ms: median (min-max)", "p95", "runs", title="Speed")
    for row in rows:
        spread = "{} ({}-{})".format(*(number(row[key]) for key in ("median_ms", "min_ms", "max_ms")))
        cells = (f"{row['rounds']:,}", spread, number(row["p95_ms"]), str(row["runs"]))
        made.add_row(row["measurement"], row["deployment"], row["system"], *cells)
    return made


def _is(row: Row, measurement: str, data: str) -> bool:
    return bool(row["measurement"] == measurement and row["data"] == data)
