"""The committed record of the gate, and the table that docs/reliability.md shows: what `--gate-record` writes.

Both systems are measured by the same tests; the table is made of the two records and of nothing else, so that anyone
who runs `make gate-record` can compare.
"""

from __future__ import annotations

import html
import json
import os
import platform
import re
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gatekit.report import BOUNDS, OURS

ROOT = Path(__file__).resolve().parents[3]
RECORDS = ROOT / "tests" / "gate" / "results"
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- the gate's record: make gate-record -->", "<!-- end of the record -->"
PACKAGES = ("langchain-memkit", "langchain-core", "langchain-mongodb", "pymongo")

TITLES = {
    "R1": "The primary is killed while 8 threads write, in four settings",
    "R2": "4 processes with 2 threads each write to one session",
    "R3": "The writing process is killed; each command of a turn fails; disk full, locked, damaged files",
    "R4": "5 ways to call a chain, 5 ways a save fails: a typed error, the answer kept",
    "R5": "Payloads: equal on return, or refused with the path",
    "R6": "Corrupt documents in the middle of a session",
    "R7": "Hostile ids at every door",
    "R8": "Two users with one session id; what is purged is gone",
    "R9": "Stored constructors and secrets are data: nothing imported, run or opened",
    "R10": "The server is down",
    "R11": "A session of 100,000 messages",
    "R12": "Stopped, cancelled, hung up: before, during and after the model and during the save",
    "R13": "Cleared while others write",
    "R14": "500 histories kept, 30 forks under load",
    "R15": "Rows of langchain-mongodb and Q/A documents, written across a failover, read and moved",
    "R16": "100,000 messages moved in and out again",
    "R17": "What memories derive, under the same faults",
    "R18": "200 sessions at once; turns of 50 beside those of the bare driver and the peer, in one process",
    "R19": "A million turns in one collection",
    "R20": "Published advisories, replayed",
    "R21": "Memory poisoning: 112 hostile texts through every memory",
    "R22": "Texts made to be slow, of 20 and 100 kB, through a chain with all memories",
    "R23": "A writer is stopped at each step, or dies there, while the other side clears, purges and appends",
    "R24": "Random operations of several processes that are killed and stopped: the history of each checked",
    "R25": "The first question in a new process, of a user with 1,000 and with 10,000 rounds",
}

TELLING = {  # which figures of a row are shown one by one; all of them stand in the record
    "R1": "longest turn",
    "R2": "turns$",
    "R10": "construct|lag",
    "R11": "last 20$|add$|memory$",
    "R16": "there and back",
    "R18": "connections|memory|lag|chain|peer|p50|p99",
    "R19": "1000000/1000",
    "R22": "still|turn$",
    "R23": "races$",
    "R24": "operations|acknowledged|reads|killed",
    "R25": "first recall",
}


def surroundings(server: str) -> dict[str, Any]:
    """Where and with what the gate ran."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
        "versions": {name: version(name) for name in PACKAGES} | {"mongod": server},
    }


def write(system: str, content: dict[str, Any]) -> None:
    """Writes the record of one system, and the page if there are both.

    Raises:
        ValueError: Not all rows were run.
    """
    if missing := [name for name in BOUNDS if name not in content["rows"] and (system == "memkit" or name not in OURS)]:
        msg = f"nothing is recorded: {', '.join(missing)} did not run"
        raise ValueError(msg)
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{system}.json").write_text(json.dumps(content, indent=1) + "\n")
    if all((RECORDS / f"{name}.json").exists() for name in ("memkit", "peer")):
        PAGE.write_text(page(PAGE.read_text()))


def page(text: str) -> str:
    """The page with the table of the committed records in its place."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    memkit, peer = (json.loads((RECORDS / f"{name}.json").read_text()) for name in ("memkit", "peer"))
    return f"{before}{BEGIN}\n{table(memkit, peer)}\n{END}{after}"


def table(memkit: dict[str, Any], peer: dict[str, Any]) -> str:
    """The table "test | peer | memkit" in Markdown, with where and with what it was measured above it."""
    versions = ", ".join(f"{name} {number}" for name, number in memkit["versions"].items())
    lines = [f"Measured on {memkit['date']}: {memkit['machine']}; {versions}.", "", "| | test | peer | memkit |"]
    lines.append("|---|---|---|---|")
    for name, title in TITLES.items():
        theirs = "has no such thing" if name in OURS else _peer_cell(peer["rows"][name])
        row = memkit["rows"].get(name)  # a row that is new has no record before the next `make gate-record`
        ours = _memkit_cell(row, TELLING.get(name)) if row else "new, not recorded yet"
        lines.append(f"| {name} | {title} | {theirs} | {ours} |")
    return "\n".join(lines)


def _memkit_cell(row: dict[str, Any], telling: str | None) -> str:
    """How many hold, how often harm was counted (never), and the figures that tell how well."""
    total = row["passed"] + row["failed"]
    harm = [f for f in row["figures"] if f["bound"] == "<= 0"]
    lines = [f"{row['passed']} of {total} hold, {row['seconds']:.0f} s"]
    if harm:
        worst = max(harm, key=lambda f: float(f["badness"]))
        seen = "all 0" if not worst["badness"] else f"worst {worst['measured']}"
        lines.append(f"{len(harm)} counts of harm: {seen}")
    shown = [f for f in row["figures"] if f not in harm and telling and re.search(telling, f["name"])]
    return _cell([*lines, *(f["measured"] for f in shown)])


def _peer_cell(row: dict[str, Any]) -> str:
    """How many fail, and what was measured beyond its bound."""
    total = row["passed"] + row["failed"]
    missed = [f"{f['measured']} ({f['bound']})" for f in row["figures"] if not f["passed"]]
    return _cell([f"{row['failed']} of {total} fail", *missed[:4]])


def _cell(lines: list[str]) -> str:
    """Lines as a cell of a table, in which a message is text."""
    plain = (" ".join(line.split()).translate(str.maketrans({"|": "/", "`": "'", "\\": "/"})) for line in lines)
    return "<br>".join(html.escape(line, quote=False) for line in plain)


def scrubbed(text: str) -> str:
    """A message without what differs from run to run: folders, ports, random names."""
    folders = (str(ROOT), tempfile.gettempdir(), "/dev/shm")  # only looked for
    for folder in folders:
        text = text.replace(folder, "...")
    return re.sub(r"\b[0-9a-f]{12,32}\b", "...", re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1", text))
