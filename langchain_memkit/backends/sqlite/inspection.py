"""Look into SQLite files without changing them: the health of memkit's, the rows of other packages'."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeAlias

from langchain_memkit.backends.sqlite.database import FAILURES, MIGRATIONS, OLD_RECORDS, explain_error, file_uri
from langchain_memkit.backends.sqlite.history import checksum_of
from langchain_memkit.base import check_path
from langchain_memkit.errors import ConfigurationError, HistoryReadError
from langchain_memkit.stores.old_records import OldRecord

MOST_PROBLEMS = 10
SECONDS = 5.0  # to wait for another process
FOREIGN_SECONDS = 30.0  # to wait for another package
COUNTED = {"turns": "WHERE messages <> '[]'", "key_values": "", "vectors": ""}  # a tombstone has no messages
CHANGED = "SELECT COUNT(*) FROM turns WHERE checksum <> memkit_checksum(CAST(messages AS BLOB))"
SCHEMA = "SELECT type, name FROM sqlite_master"
Older: TypeAlias = Callable[[str], Iterator[tuple[object, object, list[tuple[object, object]]] | None]]
"""Reads the checkpoints before one: type, checkpoint, and type and value of each write to a channel that followed."""
AT = "thread_id = ? AND checkpoint_ns = '' AND checkpoint_id = ?"
CHECKPOINT = f"SELECT type, checkpoint, metadata, parent_checkpoint_id FROM checkpoints WHERE {AT}"


class FileFacts(NamedTuple):
    """The findings of `inspect_file`."""

    counts: dict[str, int]  # rows of turns, key_values and vectors
    version: int
    known_version: int
    problems: list[str]
    modes: dict[str, int]  # the permissions of the file and its write-ahead log, by name


def library_version() -> str:
    """Return the version of the SQLite library."""
    return sqlite3.sqlite_version


def is_sqlite(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a SQLite database; an empty file counts as one without tables."""
    with Path(path).open("rb") as file:
        return file.read(16) in (b"SQLite format 3\x00", b"")


def tables_of(path: str | os.PathLike[str]) -> frozenset[str]:
    """Return the names of the tables in a file."""
    with _reading(path) as connection:
        return frozenset(row[1] for row in connection.execute(SCHEMA) if row[0] == "table")


def inspect_file(path: str | os.PathLike[str]) -> FileFacts:
    """Inspect a file that exists: content, format, integrity (reads all of it), permissions."""
    name = os.fspath(path)
    with _reading(name) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        present = {row[1] for row in connection.execute(SCHEMA)}
        rows = connection.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})").fetchall()
        problems = [str(row[0]) for row in rows if row[0] != "ok"]
        # Older formats have no checksums: the trigger came with their column.
        if not problems and "turns_edited" in present:
            connection.create_function("memkit_checksum", 1, checksum_of, deterministic=True)
            (changed,) = connection.execute(CHANGED).fetchone()
            problems += [f"{changed} turns are damaged: their messages do not fit their checksums"] if changed else []
        counted = {} if problems else {table: rows for table, rows in COUNTED.items() if table in present}
        queries = {table: f"SELECT COUNT(*) FROM {table} {rows}" for table, rows in counted.items()}
        counts = {table: connection.execute(query).fetchone()[0] for table, query in queries.items()}
    modes = {file: stat.S_IMODE(Path(file).stat().st_mode) for file in (name, f"{name}-wal") if Path(file).exists()}
    return FileFacts(counts, version, len(MIGRATIONS), problems, modes)


def count_old_records(path: str | os.PathLike[str], user_id: str) -> int:
    """Return the number of a user's records in a file's table of vectors, if it is one of memkit's."""
    with _reading(path) as connection:
        if not connection.execute(OLD_RECORDS).fetchone()[0]:
            return 0
        (count,) = connection.execute("SELECT COUNT(*) FROM vectors WHERE user_id = ?", (user_id,)).fetchone()
    return int(count)


def old_records(path: str | os.PathLike[str]) -> Generator[OldRecord, None, None]:
    """Yield the records in a file's table of vectors, session by session, in order."""
    columns = ("user_id", "session_id", "round_id", "created_at", "expires_at", "text", "metadata", "position")
    query = f"SELECT {', '.join(columns)} FROM vectors ORDER BY user_id, session_id, position"
    with _reading_table(Path(path), "vectors", columns) as connection:
        for user_id, session_id, round_id, created_at, expires_at, *said, _ in connection.execute(query):
            at = None if created_at is None else datetime.fromtimestamp(created_at, UTC)
            ends = None if expires_at is None else datetime.fromtimestamp(expires_at, UTC)
            yield OldRecord(user_id, session_id, round_id, at, ends, *said)


def drop_old_records(path: str | os.PathLike[str], user_id: str, session_id: str) -> None:
    """Delete the records of a session."""
    with _reading(path, seconds=FOREIGN_SECONDS) as connection, connection:
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("DELETE FROM vectors WHERE user_id = ? AND session_id = ?", (user_id, session_id))


@contextmanager
def _reading(path: str | os.PathLike[str], mode: str = "rw", seconds: float = SECONDS) -> Iterator[sqlite3.Connection]:
    """Open a connection that creates no file and no table, and migrates nothing; errors are `HistoryReadError`."""
    # With write access it is opened for writing: a read-only connection leaves the -wal and -shm files behind
    name = os.path.abspath(path)
    try:
        with closing(sqlite3.connect(file_uri(name, mode), uri=True, timeout=seconds)) as connection:
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")  # one damaged cell hides no row
            yield connection
    except FAILURES as error:
        raise HistoryReadError(f"cannot read {path}: {explain_error(error, path)}") from error


# -- files of other packages, read row by row, in order


@contextmanager
def _reading_table(path: Path, table: str, columns: Sequence[str]) -> Iterator[sqlite3.Connection]:
    """Open a read-only connection to a file, and check that it has a table with these columns."""
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")
    with _reading(path.resolve(), "ro", FOREIGN_SECONDS) as connection:
        # SQLite takes an unknown name in quotes for a text, without an error, so the names are checked first.
        there = _columns_of(connection, table)
        if not there:
            tables = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            names = ", ".join(sorted(repr(row[0]) for row in tables)) or "none"
            raise ConfigurationError(f"{path} has no table {table!r}; its tables: {names}")
        if missing := [name for name in columns if name not in there]:
            msg = f"table {table!r} of {path} has no column {missing[0]!r}; its columns: {', '.join(there)}"
            raise ConfigurationError(msg)
        yield connection


class MessageTable:
    """A table with one message per row, as langchain-community's `SQLChatMessageHistory` writes it."""

    def __init__(self, path: str | os.PathLike[str], table: str, session_column: str) -> None:
        self._columns = ("id", session_column, "message")
        self._table = table
        self._opened = partial(_reading_table, Path(check_path(path)), table, self._columns)

    def count(self) -> int:
        """Return the number of rows."""
        with self._opened() as connection:
            return int(connection.execute(f"SELECT COUNT(*) FROM {_quoted(self._table)}").fetchone()[0])

    def rows(self) -> Generator[tuple[object, object, object], None, None]:
        """Yield session id, row id and message of every row, session by session, in order of the row ids."""
        row_id, session, message = map(_quoted, self._columns)
        query = f"SELECT {session}, {row_id}, {message} FROM {_quoted(self._table)} ORDER BY {session}, {row_id}"
        with self._opened() as connection:
            yield from connection.execute(query)


def checkpoints_in(path: Path) -> Generator[tuple[object, object, object, object, Older], None, None]:
    """Yield thread id, type, checkpoint, metadata and `Older` of the latest checkpoint of each root namespace.

    The file is one that LangGraph's `SqliteSaver` wrote.
    """
    columns = "thread_id checkpoint_ns checkpoint_id parent_checkpoint_id type checkpoint metadata"
    # LangGraph's checkpoint ids sort by time
    newest = "SELECT thread_id, MAX(checkpoint_id) FROM checkpoints WHERE checkpoint_ns = '' GROUP BY thread_id"
    with _reading_table(path, "checkpoints", columns.split()) as connection:
        for key in connection.execute(newest).fetchall():
            for kind, blob, metadata, parent in connection.execute(CHECKPOINT, key).fetchall():
                yield key[0], kind, blob, metadata, partial(_older, connection, key[0], parent)


def _older(
    connection: sqlite3.Connection, thread_id: object, parent: object, channel: str
) -> Iterator[tuple[object, object, list[tuple[object, object]]] | None]:
    """Yield the checkpoints before one, newest first, with the writes to a channel; None if one is missing."""
    columns = _columns_of(connection, "writes")
    order = ", ".join(name for name in ("task_path", "task_id", "idx") if name in columns)
    query = f"SELECT type, value FROM writes WHERE {AT} AND channel = ? ORDER BY {order}"
    seen: set[object] = set()  # a damaged chain of parents must not loop
    while parent and parent not in seen:
        seen.add(parent)
        found = connection.execute(CHECKPOINT, (thread_id, parent)).fetchone()
        if found is None or not columns:
            yield None
            return
        yield found[0], found[1], connection.execute(query, (thread_id, parent, channel)).fetchall()
        parent = found[3]


def _columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def _quoted(name: str) -> str:
    """Quote a name for SQL, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'
