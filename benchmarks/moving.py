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

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from pymongo import MongoClient

from benchmarks.common import Case, Row, alternate, arguments, environment, finish, ratio, say
from benchmarks.moving_floor import Copies, Sources
from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.migrate import (
    MigrationReport,
    export_history,
    import_history,
    langchain_sql_source,
    langgraph_source,
    migrate,
)
from tools.local_mongodb import local_mongodb

BAR = "<= 60"
PACKAGES = ("pymongo", "langchain-community", "langgraph-checkpoint-sqlite", "SQLAlchemy")


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
        sources, copies, sqlite = self.sources, self.copies, self.sqlite

        def move(name: str, source: Any, target: Callable[[], Any], floor: Callable[[], int]) -> Move:
            return Move(name, lambda t: migrate(source(), t, progress=False), target, floor)

        return [
            Move("export", lambda path: export_history(sources.sqlite, path, progress=False), self.path, copies.export),
            Move("import", lambda t: import_history(t, sources.lines, progress=False), sqlite, copies.lines_to_sqlite),
            move("SQLite to SQLite", lambda: sources.sqlite, sqlite, copies.sqlite_to_sqlite),
            move("SQLite to MongoDB", lambda: sources.sqlite, self.mongodb, copies.sqlite_to_mongodb),
            move("langchain-mongodb's rows to turns", lambda: sources.rows, self.mongodb, copies.rows),
            move("turns to langchain-mongodb's rows", lambda: sources.turns, self.rows, copies.back),
            move(
                "langchain-community's SQL to SQLite",
                lambda: langchain_sql_source(sources.sql),
                sqlite,
                copies.sql_to_sqlite,
            ),
            move(
                "LangGraph's checkpoints to SQLite",
                lambda: langgraph_source(sources.checkpoints),
                sqlite,
                copies.checkpoints_to_sqlite,
            ),
        ]

    def rows(self) -> Any:
        """A new collection of langchain-mongodb's rows."""
        return self.mongodb(layout="langchain")

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


def main() -> None:
    """Runs it."""
    options = arguments("100,000 messages moved in, out and between stores.").parse_args()
    messages = 400 if options.quick else 100_000
    about = environment(quick=options.quick, packages=PACKAGES)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder, local_mongodb() as server:
        say(f"filling every source with {messages:,} messages")
        bench = Bench(Path(folder), server.uri, Sources(Path(folder), server.uri, messages))
        for move in bench.moves():
            say(move.name)
            rows += alternate(bench.cases(move), 3, budget=300)
        with MongoClient[Row](server.uri) as client:
            about["versions"]["mongod"] = client.server_info()["version"]
    took = {(row["move"], row["system"]): row["median_ms"] / 1000 for row in rows}
    ratios = []
    for name in dict.fromkeys(row["move"] for row in rows):
        ratios.append(ratio("seconds", took[name, "memkit"], bar=BAR, move=name))
        ratios.append(ratio("time, memkit / floor", took[name, "memkit"] / took[name, "floor"], move=name))
    finish("moving", options.output, about, rows, ratios, full=not options.quick)


if __name__ == "__main__":
    main()
