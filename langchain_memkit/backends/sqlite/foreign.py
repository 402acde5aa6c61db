"""Read-only access to SQLite files of other packages: read row by row, in order, and never changed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from langchain_memkit.backends.sqlite.database import FAILURES, FileAccess, explain_error, file_access, uri_of
from langchain_memkit.base import check_path
from langchain_memkit.errors import ConfigurationError, HistoryReadError

__all__ = ["CheckpointFile", "MessageTable"]

OlderCheckpoint: TypeAlias = tuple[Any, Any, list[tuple[Any, Any]]]
"""Type, checkpoint, and type and value of each write that followed it."""
Older: TypeAlias = Callable[[str], Iterator[OlderCheckpoint | None]]


class _File:
    """A table in a file, with the columns that are needed."""

    def __init__(self, path: str | os.PathLike[str], table: str, columns: tuple[str, ...]) -> None:
        self.path = Path(check_path(path))
        self.table = table
        self.columns = columns

    def __repr__(self) -> str:
        """Show the file and the table."""
        return f"{type(self).__name__}({str(self.path)!r}, {self.table!r})"

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open a read-only connection to the file, and check that it has the table."""
        if not self.path.is_file():
            msg = f"there is no file {self.path}"
            raise ConfigurationError(msg)
        try:
            name = str(self.path.resolve())
            access = file_access(name)
            address = uri_of(name, FileAccess.READ if access is FileAccess.WRITE else access)
            connection = sqlite3.connect(address, uri=True, timeout=30)
            try:
                connection.text_factory = lambda raw: raw.decode("utf-8", "replace")  # one damaged cell hides no row
                self._check(connection)
                yield connection
            finally:
                connection.close()
        except FAILURES as error:
            msg = f"cannot read {self.path}: {explain_error(error)}"
            raise HistoryReadError(msg) from error

    def _check(self, connection: sqlite3.Connection) -> None:
        # SQLite takes an unknown name in quotes for a text, without an error, so the names are checked first
        there = [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (self.table,))]
        if not there:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view') ORDER BY 1")
            names = ", ".join(repr(row[0]) for row in tables) or "none"
            msg = f"{self.path} has no table {self.table!r}; its tables: {names}"
            raise ConfigurationError(msg)
        if missing := [name for name in self.columns if name not in there]:
            msg = f"table {self.table!r} of {self.path} has no column {missing[0]!r}; its columns: {', '.join(there)}"
            raise ConfigurationError(msg)


class MessageTable(_File):
    """A table with one message per row, as langchain-community's `SQLChatMessageHistory` writes it.

    Args:
        path: The file.
        table: The table's name.
        session_column: The column of the session id.
    """

    def __init__(self, path: str | os.PathLike[str], table: str, session_column: str) -> None:
        super().__init__(path, table, ("id", session_column, "message"))

    def count(self) -> int:
        """Return the number of rows."""
        with self._opened() as connection:
            return int(connection.execute(f"SELECT COUNT(*) FROM {_quoted(self.table)}").fetchone()[0])

    def rows(self) -> Generator[tuple[Any, Any, Any], None, None]:
        """Yield session id, row id and message of every row, session by session, in order of the row ids."""
        row_id, session, message = (_quoted(name) for name in self.columns)
        query = f"SELECT {session}, {row_id}, {message} FROM {_quoted(self.table)} ORDER BY {session}, {row_id}"
        with self._opened() as connection:
            yield from connection.execute(query)


class CheckpointFile(_File):
    """A file that LangGraph's `SqliteSaver` wrote.

    Args:
        path: The file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        columns = (
            "thread_id",
            "checkpoint_ns",
            "checkpoint_id",
            "parent_checkpoint_id",
            "type",
            "checkpoint",
            "metadata",
        )
        super().__init__(path, "checkpoints", columns)

    def count(self) -> int:
        """Return the number of threads."""
        with self._opened() as connection:
            query = "SELECT COUNT(DISTINCT thread_id) FROM checkpoints WHERE checkpoint_ns = ''"
            return int(connection.execute(query).fetchone()[0])

    def rows(self) -> Generator[tuple[Any, Any, Any, Any, Older], None, None]:
        """Yield the latest checkpoint of each thread's root namespace.

        Yields:
            Thread id, type, checkpoint, metadata, and a function that reads the older checkpoints with the writes to
            one channel.
        """
        # LangGraph's checkpoint ids sort by time
        newest = "SELECT thread_id, MAX(checkpoint_id) FROM checkpoints WHERE checkpoint_ns = '' GROUP BY thread_id"
        with self._opened() as connection:
            for thread_id, checkpoint_id in connection.execute(newest).fetchall():
                for kind, blob, metadata, parent in connection.execute(
                    CHECKPOINT, (thread_id, checkpoint_id)
                ).fetchall():
                    yield thread_id, kind, blob, metadata, partial(_older, connection, thread_id, parent)


CHECKPOINT = (
    "SELECT type, checkpoint, metadata, parent_checkpoint_id FROM checkpoints"
    " WHERE thread_id = ? AND checkpoint_ns = '' AND checkpoint_id = ?"
)


def _older(
    connection: sqlite3.Connection, thread_id: Any, parent: Any, channel: str
) -> Iterator[OlderCheckpoint | None]:
    """Yield the checkpoints before one, newest first, with the writes to a channel; None if one is missing."""
    columns = [row[0] for row in connection.execute("SELECT name FROM pragma_table_info('writes')")]
    order = ", ".join(name for name in ("task_path", "task_id", "idx") if name in columns)
    query = (
        "SELECT type, value FROM writes WHERE thread_id = ? AND checkpoint_ns = '' AND checkpoint_id = ?"
        f" AND channel = ? ORDER BY {order}"
    )
    # a damaged file may have a cycle of parents
    seen: set[Any] = set()
    while parent and parent not in seen:
        seen.add(parent)
        found = connection.execute(CHECKPOINT, (thread_id, parent)).fetchone()
        if found is None or not columns:
            yield None
            return
        yield found[0], found[1], connection.execute(query, (thread_id, parent, channel)).fetchall()
        parent = found[3]


def _quoted(name: str) -> str:
    """Quote a name for SQL, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'
