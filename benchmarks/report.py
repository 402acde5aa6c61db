"""The result: derived ratios, tables for people, JSON for machines."""

from __future__ import annotations

import json
import operator
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

PACKAGES = ("langchain-memkit", "langchain-core", "langchain-mongodb", "pymongo")
COMPARE = {">=": operator.ge, "<=": operator.le, "<": operator.lt}
Row = dict[str, Any]


def environment(*, quick: bool) -> dict[str, Any]:
    """When, where and with what it runs; the caller adds what the servers say."""
    return {
        "quick": quick,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "os": f"{platform.system()} {platform.machine()}",
        },
        "versions": {name: version(name) for name in PACKAGES},
        "write_concerns": {},
    }


def write(result: dict[str, Any], path: Path | None) -> None:
    """Writes a result, if there is a place for it, and says where: a row per line, so that two runs can be compared."""
    if path is None:
        return
    parts = {key: value for key, value in result.items() if key not in ("ratios", "rows")}
    text = json.dumps(parts, indent=2).removesuffix("\n}")
    for key in ("ratios", "rows"):
        lines = ",\n    ".join(json.dumps(row) for row in result[key])
        text += f',\n  "{key}": [\n    {lines}\n  ]'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n}\n")
    print(f"written: {os.path.relpath(path)}")


# -- ratios


def median(rows: list[Row], **wanted: Any) -> float:
    """The median of the one row that has these values."""
    (row,) = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return float(row["median_ms"])


def ratio(name: str, value: float, bar: str | None = None, **where: Any) -> Row:
    """A derived figure, with its bar (`>= 100`, `<= 2`, `< 1`) if it has one."""
    result: Row = {"ratio": name, **where, "value": float(f"{value:.3g}")}
    if bar:
        sign, limit = bar.split()
        result |= {"bar": bar, "holds": COMPARE[sign](value, float(limit))}
    return result


def ratios(rows: list[Row], *, quick: bool) -> list[Row]:
    """All ratios, those with a bar first; above 1 in `peer / memkit` means that memkit is faster."""
    deployments = dict.fromkeys(row["deployment"] for row in rows)
    found = [*turn_ratios(rows, list(deployments))]
    for deployment in deployments:
        if deployment != "sqlite":
            found += peer_ratios(rows, deployment)
    if quick:  # too small for a judgement
        found = [{key: value for key, value in row.items() if key not in ("bar", "holds")} for row in found]
    return sorted(found, key=lambda r: ("bar" not in r, r["ratio"]))


def turn_ratios(rows: list[Row], deployments: list[str]) -> Iterator[Row]:
    """How a turn grows with what is stored, and what it costs beside bare pymongo and the chain alone."""
    sizes = sorted({row["stored"] for row in rows if row["measurement"] == "turn" and "stored" in row})
    for deployment in deployments:
        where = {"measurement": "turn", "deployment": deployment}
        for shape in ("pairs", "import"):
            at = {size: median(rows, **where, system="memkit", shape=shape, stored=size) for size in sizes}
            place = {"deployment": deployment, "shape": shape}
            for size in sizes[:2]:
                place_of = {**place, "stored": sizes[-1]}
                yield ratio(f"turn({sizes[-1]:,}) / turn({size:,})", at[sizes[-1]] / at[size], "<= 1.3", **place_of)
            for size in sizes if deployment != "sqlite" else ():
                floor = median(rows, **where, system="floor", stored=size) + median(rows, **where, system="chain")
                yield ratio("turn / (floor + chain alone)", at[size] / floor, "<= 2", **place, stored=size)


def peer_ratios(rows: list[Row], deployment: str) -> Iterator[Row]:
    """The peer's time by memkit's."""
    place = {"deployment": deployment}
    peers = sorted({row["system"] for row in rows if row["deployment"] == deployment and "peer" in row["system"]})
    for row in [row for row in rows if row["deployment"] == deployment and row["system"] in peers]:
        same = {key: row[key] for key in ("measurement", "deployment", "messages", "stored", "shape") if key in row}
        if row["measurement"] == "kept_histories":
            (ours,) = [r for r in rows if r["system"] == "memkit" and all(r.get(k) == v for k, v in same.items())]
            for what in ("connections", "threads"):
                each = [r[what] / r["histories"] for r in (row, ours)]
                yield ratio(f"{what} of a kept history, peer / memkit", each[0] / each[1], **place)
            continue
        bar = ">= 100" if (row["measurement"], deployment) == ("append_one_call", "replica_set") else None
        value = row["median_ms"] / median(rows, **same, system="memkit")
        detail = {key: row[key] for key in ("messages", "stored") if key in row}
        yield ratio(f"{row['measurement']}, {row['system']} / memkit", value, bar, **place, **detail)


# -- tables


def show(result: dict[str, Any], console: Console) -> None:
    """Everything that the JSON holds, for reading."""
    rows = result["rows"]
    console.print("\n" + ", ".join(f"{name} {value}" for name, value in result["versions"].items()))
    console.print(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    for deployment, systems in result["write_concerns"].items():
        for system, concern in systems.items():
            console.print(f"  {deployment}, {system}: {json.dumps(concern)}", soft_wrap=True)
    for measurement, title in (
        ("append_one_call", "One call, all messages (ms)"),
        ("append_pairs", "Two messages a call (ms per call)"),
    ):
        chosen = [row for row in rows if row["measurement"] == measurement]
        console.print(table(title, chosen, "messages"))
    for measurement, title in (
        ("turn", "A chain turn that sees the last 20, by messages stored (ms)"),
        ("read_last_20", "Reading the last 20, by messages stored (ms)"),
    ):
        console.print(table(title, [row for row in rows if row["measurement"] == measurement], "stored"))
    kept = Table("deployment", "system", "histories", "connections", "threads", title="Kept histories, each used once")
    for row in rows:
        if row["measurement"] == "kept_histories":
            values = (row["histories"], row["connections"], row["threads"])
            note = f" ({row['stopped_by']})" if "stopped_by" in row else ""
            kept.add_row(row["deployment"], row["system"] + note, *(f"{value:,}" for value in values))
    console.print(kept)
    for title, barred in (("Ratios with a bar", True), ("Peer / memkit: above 1, memkit is faster", False)):
        chosen = [row for row in result["ratios"] if ("bar" in row) is barred]
        if chosen:
            console.print(ratio_table(title, chosen))


def table(title: str, rows: list[Row], across: str) -> Table:
    """A line per deployment, system and shape; a column per size; cells are median (min-max)."""
    sizes = sorted({row[across] for row in rows if across in row})
    made = Table("deployment", "system", "rows", *(f"{size:,}" for size in sizes), title=title)
    lines: dict[tuple[str, str, str], dict[int, str]] = {}
    for row in rows:
        key = (row["deployment"], row["system"], row.get("shape", "") if row["system"] == "memkit" else "")
        cell = f"{number(row['median_ms'])} ({number(row['min_ms'])}-{number(row['max_ms'])})"
        lines.setdefault(key, {})[row.get(across, sizes[0])] = cell
    for key, cells in lines.items():
        made.add_row(*key, *(cells.get(size, "") for size in sizes))
    return made


def ratio_table(title: str, rows: list[Row]) -> Table:
    """A line per ratio, deployment and shape; a column per number of stored messages, where that matters."""
    sizes = sorted({row.get("stored", 0) for row in rows})
    lines: dict[tuple[str, str, str], dict[int, Row]] = {}
    for row in rows:
        key = (row["ratio"], row["deployment"], row.get("shape", ""))
        lines.setdefault(key, {})[row.get("stored", 0)] = row
    made = Table("ratio", "deployment", "rows", *(f"{size:,}" if size else "" for size in sizes), "bar", title=title)
    for key, cells in lines.items():
        shown = [judged(cells[size]) if size in cells else "" for size in sizes]
        made.add_row(*key, *shown, next(iter(cells.values())).get("bar", ""))
    return made


def judged(row: Row) -> str:
    """The value, and whether it keeps its bar."""
    verdict = {True: " ok", False: " MISSED"}.get(row.get("holds", ""), "")
    return f"{number(row['value'])}{verdict}"


def number(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
