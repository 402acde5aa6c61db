"""Rows and figures of a run: gathered from the reports of the tests, printed as one table, written as JSON."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BOUNDS = {  # seconds for all tests of a row
    "R1": 60,
    "R2": 20,
    "R3": 75,  # of which 40 s for edits
    "R4": 15,
    "R5": 15,
    "R6": 5,
    "R7": 5,
    "R8": 20,
    "R9": 3,
    "R10": 10,
    "R11": 15,
    "R12": 15,
    "R13": 10,
    "R14": 15,
    "R15": 10,
    "R16": 90,  # of which 60 s, a bound of its own, for 100,000 messages there and back
    "R17": 60,
    "R18": 200,
    "R19": 150,
    "R20": 10,
    "R21": 20,
    "R22": 90,
    "R23": 90,  # of which 30 s for forks
    "R24": 90,  # of which 40 s for the checker itself
    "R25": 90,
}
NIGHTLY = {"R23": 4800, "R24": 4200}  # seconds in the long form: all races, and an hour of what is random
OURS = {"R9", *(f"R{n}" for n in range(15, 26))}  # rows about what only memkit has


@dataclass
class Row:
    """What the tests of one row came to."""

    seconds: float = 0.0
    passed: int = 0
    failed: int = 0
    figures: list[dict[str, Any]] = field(default_factory=list)
    asserted: list[tuple[str, str]] = field(default_factory=list)  # failed by an assertion: test, why
    broken: list[tuple[str, str]] = field(default_factory=list)  # failed otherwise

    def worst(self) -> list[dict[str, Any]]:
        """One figure of each name, the worst."""
        names = dict.fromkeys(f["name"] for f in self.figures)
        return [max((f for f in self.figures if f["name"] == name), key=lambda f: f["badness"]) for name in names]


class GateReport:
    """Gathers rows; knows when a run of a system is a success."""

    def __init__(self, system: str, *, nightly: bool = False) -> None:
        self.system = system
        self.bounds = BOUNDS | (NIGHTLY if nightly else {})
        self.rows: dict[str, Row] = {}

    def add(self, report: Any) -> None:
        """Takes in the report of one phase of one test."""
        properties = dict(report.user_properties)
        if "gate_row" not in properties:
            return
        row = self.rows.setdefault(properties["gate_row"], Row())
        if report.when == "call":
            row.seconds += report.duration
            row.figures += [value for name, value in report.user_properties if name == "gate_figure"]
            row.passed += report.passed
        if report.failed:
            row.failed += 1
            kind, why = properties.get("gate_failure", ("error", "?"))
            where = row.asserted if kind == "assertion" and report.when == "call" else row.broken
            where.append((report.nodeid.partition("::")[2], why))

    def lines(self) -> list[tuple[str, str, str, bool]]:
        """The table: row, measured, bound, pass."""
        table = []
        for name in sorted(self.rows, key=lambda n: int(n[1:])):
            row = self.rows[name]
            table.append((name, f"{row.passed} of {row.passed + row.failed} tests", "all", not row.failed))
            table += [(name, f["measured"], f["bound"], f["passed"]) for f in row.worst()]
            table.append((name, f"{row.seconds:.1f} s", f"{self.bounds[name]} s", row.seconds <= self.bounds[name]))
        return table

    def unbeaten(self) -> list[str]:
        """Rows that the peer passes, or fails in other ways than by an assertion: they prove nothing new."""
        return [name for name in BOUNDS if name not in OURS and not self.rows.get(name, Row()).asserted]

    def slow(self) -> list[str]:
        """Rows over their time; MEMKIT_GATE_PATIENCE multiplies it, for machines that others load at the same time."""
        patience = float(os.environ.get("MEMKIT_GATE_PATIENCE", "1"))
        return [name for name, row in self.rows.items() if row.seconds > self.bounds[name] * patience]

    def show(self, write: Any) -> None:
        """Prints the table, and for the peer why each row failed."""
        if self.system == "memkit":
            write(f"{'row':<4} {'measured':<58} {'bound':<14} pass")
            for name, measured, bound, passed in self.lines():
                write(f"{name:<4} {measured:<58} {bound:<14} {'yes' if passed else 'NO'}")
            return
        write(f"{'row':<4} {'failed by assertion':<20} why (the first)")
        for name in sorted(self.rows, key=lambda n: int(n[1:])):
            row = self.rows[name]
            why = f"{row.asserted[0][0]}: {row.asserted[0][1]}" if row.asserted else "-"
            write(f"{name:<4} {f'{len(row.asserted)} of {row.passed + row.failed}':<20} {why}")
            for test, error in row.broken:
                write(f"{'':<4} {'failed otherwise':<20} {test}: {error}")
        if rows := self.unbeaten():
            write(f"The peer was not beaten by an assertion in: {', '.join(rows)}")

    def save(self, folder: Path) -> None:
        """Writes the same as JSON."""
        folder.mkdir(exist_ok=True)
        (folder / f"{self.system}.json").write_text(json.dumps(self.content(), indent=2) + "\n")

    def content(self) -> dict[str, Any]:
        """All rows, in their order, as plain data."""
        rows = {
            name: {
                "seconds": round(row.seconds, 2),
                "bound_seconds": self.bounds[name],
                "passed": row.passed,
                "failed": row.failed,
                "figures": row.worst(),
                "failed_by_assertion": row.asserted,
                "failed_otherwise": row.broken,
            }
            for name, row in sorted(self.rows.items(), key=lambda item: int(item[0][1:]))
        }
        return {"system": self.system, "rows": rows}
