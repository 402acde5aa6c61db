"""100,000 messages moved in, out and between stores: `make bench`.

Method. Ten conversations, two messages a turn, are put into every kind of source once, untimed: our SQLite file, our
MongoDB collection, rows as langchain-mongodb writes them, the table of langchain-community's SQL history, an export of
ours, and a thread each in the file of LangGraph's SqliteSaver. Then each move runs into a target of its own that is
new, in turns with its floor, and is checked: as many messages as were there, none skipped, the last one in its place.

The floor is the drivers alone: the same rows read, and rows like ours written, 500 turns to a transaction or command,
with our indexes and our write concern (SQLite `synchronous=FULL`, MongoDB w=majority and the journal). It parses JSON
where the source is JSON; it makes no message objects, counts no tokens, checks nothing and could not be run twice.

Bar: every move takes at most 60 seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from pymongo import MongoClient
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Case, alternate
from benchmarks.moving_floor import Copies
from benchmarks.moving_sources import Sources
from benchmarks.report import environment, ratio, write
from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.migrate import (
    MigrationReport,
    export_history,
    import_history,
    langchain_sql_source,
    langgraph_source,
    migrate,
)
from langchain_memkit.testing import local_mongodb

RESULTS = Path(__file__).parent / "results" / "moving.json"
BAR = "<= 60"
console = Console(markup=False, highlight=False, emoji=False)


def say(text: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')}  {text}", style="dim")


@dataclass(frozen=True)
class Move:
    """One move: what memkit does into a target, how that is read back, and the floor."""

    name: str
    run: Callable[[Any], MigrationReport]
    target: Callable[[], Any]
    floor: Callable[[], int]


class Bench:
    """The sources, and new targets."""

    def __init__(self, folder: Path, uri: str, sources: Sources) -> None:
        self.folder = folder
        self.uri = uri
        self.sources = sources
        self.copies = Copies(folder, uri, sources)

    def sqlite(self) -> Any:
        """A new file."""
        return SQLiteChatMessageHistory.factory(self.folder / f"{uuid4().hex}.db")

    def mongodb(self, **options: Any) -> Any:
        """A new collection."""
        factory = MongoDBChatMessageHistory.factory(self.uri, "targets", uuid4().hex, **options)
        factory.setup()  # the floor's indexes are there as well when it begins
        return factory

    def moves(self) -> list[Move]:
        """Everything that is measured."""
        sources, copies = self.sources, self.copies
        return [
            Move("export", lambda path: export_history(sources.sqlite, path, progress=False), self.path, copies.export),
            Move(
                "import",
                lambda t: import_history(t, sources.lines, progress=False),
                self.sqlite,
                copies.lines_to_sqlite,
            ),
            Move(
                "SQLite to SQLite",
                lambda t: migrate(sources.sqlite, t, progress=False),
                self.sqlite,
                copies.sqlite_to_sqlite,
            ),
            Move(
                "SQLite to MongoDB",
                lambda t: migrate(sources.sqlite, t, progress=False),
                self.mongodb,
                copies.sqlite_to_mongodb,
            ),
            Move(
                "langchain-mongodb's rows to turns",
                lambda t: migrate(sources.rows, t, progress=False),
                self.mongodb,
                copies.rows,
            ),
            Move(
                "turns to langchain-mongodb's rows",
                lambda t: migrate(sources.turns, t, progress=False),
                lambda: self.mongodb(layout="langchain"),
                copies.back,
            ),
            Move(
                "langchain-community's SQL to SQLite",
                lambda t: migrate(langchain_sql_source(sources.sql), t, progress=False),
                self.sqlite,
                copies.sql_to_sqlite,
            ),
            Move(
                "LangGraph's checkpoints to SQLite",
                lambda t: migrate(langgraph_source(sources.checkpoints), t, progress=False),
                self.sqlite,
                copies.checkpoints_to_sqlite,
            ),
        ]

    def path(self) -> Path:
        """A new file name."""
        return self.folder / f"{uuid4().hex}.jsonl"

    def cases(self, move: Move) -> list[Case]:
        """A move and its floor."""
        target: list[Any] = []

        def run() -> None:
            report = move.run(target[-1])
            if (report.messages, report.skipped) != (self.sources.messages, []):
                raise AssertionError(f"{move.name}: {report}")

        def check() -> None:
            if isinstance(target[-1], Path):
                found = sum(1 for _ in target[-1].open()) - 2
                complete = found == self.sources.messages // 2
                target[-1].unlink()
            else:
                last = [m.text for m in target[-1](self.sources.sessions[-1]).tail(max_messages=2)]
                complete = last == self.sources.last
                target[-1].close()
            if not complete:
                raise AssertionError(f"{move.name}: not all of it is there")

        def floor() -> None:
            if (copied := move.floor()) != self.sources.messages:
                raise AssertionError(f"{move.name}: the floor copied {copied}")

        row = {"measurement": "move", "move": move.name, "messages": self.sources.messages}
        return [
            Case({**row, "system": "memkit"}, run, prepare=lambda: target.append(move.target()), finish=check),
            Case({**row, "system": "floor"}, floor, prepare=self.copies.new_target),
        ]


def measure(messages: int) -> dict[str, Any]:
    """Rows and ratios."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, local_mongodb() as server:
        say(f"filling every source with {messages:,} messages")
        bench = Bench(Path(folder), server.uri, Sources(Path(folder), server.uri, messages))
        for move in bench.moves():
            say(move.name)
            rows += alternate(bench.cases(move), 3, budget=300)
        with MongoClient[dict[str, Any]](server.uri) as client:
            mongod = client.server_info()["version"]
    took = {(row["move"], row["system"]): row["median_ms"] / 1000 for row in rows}
    ratios = []
    for name in dict.fromkeys(row["move"] for row in rows):
        ratios.append(ratio("seconds", took[name, "memkit"], bar=BAR, move=name))
        ratios.append(ratio("time, memkit / floor", took[name, "memkit"] / took[name, "floor"], move=name))
    return {"mongod": mongod, "rows": rows, "ratios": sorted(ratios, key=lambda r: "bar" not in r)}


def show(result: dict[str, Any]) -> None:
    """A table of it."""
    table = Table(title="Seconds, median (min-max)")
    for name in ("move", "messages", "memkit", "the drivers alone", "times"):
        table.add_column(name)
    cells: dict[str, dict[str, str]] = {}
    for row in result["rows"]:
        figures = [row[name] / 1000 for name in ("median_ms", "min_ms", "max_ms")]
        cells.setdefault(row["move"], {})[row["system"]] = f"{figures[0]:.2f} ({figures[1]:.2f}-{figures[2]:.2f})"
    times = {r["move"]: r["value"] for r in result["ratios"] if r["ratio"].startswith("time")}
    for move, cell in cells.items():
        table.add_row(move, f"{result['rows'][0]['messages']:,}", cell["memkit"], cell["floor"], str(times[move]))
    console.print(table)


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description="100,000 messages moved in, out and between stores.")
    parser.add_argument("--quick", action="store_true", help="400 messages; nothing is written by default")
    parser.add_argument("--output", type=Path, help=f"JSON file; default of a full run: {RESULTS.name}")
    options = parser.parse_args()
    place = environment(quick=options.quick)
    del place["write_concerns"]  # the same everywhere: see above
    place["versions"] |= {
        name: version(name) for name in ("langchain-community", "langgraph-checkpoint-sqlite", "SQLAlchemy")
    }
    result = {**place, **measure(400 if options.quick else 100_000)}
    place["versions"]["mongod"] = result.pop("mongod")
    show(result)
    write(result, options.output or (None if options.quick else RESULTS))


if __name__ == "__main__":
    main()
