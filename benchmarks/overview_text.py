"""What the parts of the overview share: rows looked up, figures and tables in Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from benchmarks.report import Row, number

__all__ = [
    "DEPLOYMENTS",
    "Results",
    "bars",
    "duration",
    "every",
    "forms",
    "one",
    "share",
    "span",
    "table",
    "where_and_with",
    "wrapped",
]

Results = Mapping[str, dict[str, Any]]
"""The committed results by name: those of the benchmarks, and `gate memkit` and `gate peer`."""

DEPLOYMENTS = {"sqlite": "SQLite file", "standalone": "MongoDB, standalone", "replica_set": "MongoDB, three nodes"}
WIDTH = 120


def every(rows: Iterable[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def one(rows: Iterable[Row], **wanted: Any) -> Row:
    """The one row that has these values."""
    (row,) = every(rows, **wanted)
    return row


def duration(ms: float) -> str:
    """Three digits, in the unit that reads best."""
    return f"{number(ms)} ms" if ms < 1_000 else f"{number(ms / 1_000)} s"


def share(value: float) -> str:
    """A share of one, as the field writes it: .872. Results have four digits, so halves are met, and go up."""
    return str(Decimal(str(value)).quantize(Decimal(".001"), ROUND_HALF_UP)).replace("0.", ".")


def span(values: Iterable[float]) -> str:
    """The least and the most, or the one value of all."""
    found = [number(value) for value in sorted(values)]
    return found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"


def forms(values: Iterable[str]) -> str:
    """Different values, each once, in their order."""
    return "; ".join(dict.fromkeys(values))


def wrapped(text: str) -> str:
    """A paragraph on lines of up to 120 characters."""
    words = " ".join(text.split())
    return textwrap.fill(words, WIDTH, break_long_words=False, break_on_hyphens=False)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "|" + "|".join(f" {cell.replace('|', '/')} " if cell else " " for cell in cells) + "|"

    return "\n".join([line(head), "|---" * len(head) + "|", *map(line, rows)])


def where_and_with(about: Mapping[str, Any]) -> tuple[str, str]:
    """The machine and the versions of a result; the gate says the same in other words."""
    machine = about["machine"]
    if not isinstance(machine, str):
        machine = f"{machine['cores']} cores, {machine['os'].split()[-1]}, Python {machine['python']}"
    return machine, ", ".join(f"{name} {value}" for name, value in about["versions"].items())


def bars(ratios: Sequence[Row]) -> str:
    """How many of the bars that a benchmark sets itself hold."""
    judged = [row for row in ratios if "bar" in row]
    held = sum(row["holds"] for row in judged)
    return f"Bars: {held} of {len(judged)} hold."
