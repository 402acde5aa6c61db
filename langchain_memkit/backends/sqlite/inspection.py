"""Inspection of a SQLite file: its tables and its health, without changing its content."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from langchain_memkit.backends.sqlite.database import FAILURES, MIGRATIONS, explain_error, file_access, uri_of
from langchain_memkit.backends.sqlite.history import checksum_of
from langchain_memkit.errors import HistoryReadError, HistoryWriteError

__all__ = [
    "FileFacts",
    "SchemaFault",
    "build_missing",
    "count_records",
    "inspect_file",
    "is_foreign",
    "is_sqlite",
    "library_version",
    "tables_of",
]

MAGIC = b"SQLite format 3\x00"
MOST_PROBLEMS = 10
CHANGED = "SELECT COUNT(*) FROM turns WHERE checksum <> memkit_checksum(CAST(messages AS BLOB))"
SCHEMA = "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL"


class SchemaFault(NamedTuple):
    """A table, index or trigger that is missing or differs from the expected one."""

    name: str
    state: str  # "missing" or "wrong"
    sql: str


class FileFacts(NamedTuple):
    """The findings of `inspect_file`; sizes are in bytes."""

    tables: frozenset[str]
    version: int
    known_version: int
    journal_mode: str
    problems: list[str]
    faults: list[SchemaFault]
    size: int
    unused: int
    log_size: int
    disk_free: int
    modes: dict[str, int]  # the permissions of the file and its write-ahead log, by name


def library_version() -> str:
    """Return the version of the SQLite library."""
    return sqlite3.sqlite_version


def is_sqlite(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a SQLite database; an empty file counts as one without tables."""
    with Path(path).open("rb") as file:
        head = file.read(len(MAGIC))
    return head in (MAGIC, b"")


def tables_of(path: str | os.PathLike[str], timeout: float = 5.0) -> frozenset[str]:
    """Return the names of the tables in a file.

    Raises:
        HistoryReadError: It cannot be read.
    """
    with _reading(path, timeout) as connection:
        return frozenset(row[1] for row in connection.execute(SCHEMA) if row[0] == "table")


def is_foreign(path: str | os.PathLike[str], timeout: float = 5.0) -> bool:
    """Return whether a file has tables, none of which has the name of one of memkit's.

    Raises:
        HistoryReadError: It cannot be read.
    """
    tables = tables_of(path, timeout)
    return bool(tables) and tables.isdisjoint(name for kind, name in _expected(len(MIGRATIONS)) if kind == "table")


def inspect_file(path: str | os.PathLike[str], timeout: float = 5.0) -> FileFacts:
    """Inspect a file: format, integrity (reads all of it), missing parts, disk space.

    Args:
        path: The file; it must exist.
        timeout: Seconds to wait for another process.

    Raises:
        HistoryReadError: It cannot be read.
    """
    name = os.fspath(path)
    log = Path(f"{name}-wal")
    log_size = log.stat().st_size if log.exists() else 0  # before opening: reading may checkpoint the log
    with _reading(name, timeout) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (journal_mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        present = {(row[0], row[1]): row[2] for row in connection.execute(SCHEMA)}
        rows = connection.execute(f"PRAGMA integrity_check({MOST_PROBLEMS})").fetchall()
        problems = [str(row[0]) for row in rows if row[0] != "ok"]
        # Older formats have no checksums: the trigger came with their column.
        if not problems and ("trigger", "turns_edited") in present:
            connection.create_function("memkit_checksum", 1, checksum_of, deterministic=True)
            (changed,) = connection.execute(CHANGED).fetchone()
            problems += [f"{changed} turns are damaged: their messages do not fit their checksums"] if changed else []
        (unused,) = connection.execute("PRAGMA freelist_count").fetchone()
        (page,) = connection.execute("PRAGMA page_size").fetchone()
    return FileFacts(
        tables=frozenset(name for kind, name in present if kind == "table"),
        version=version,
        known_version=len(MIGRATIONS),
        journal_mode=journal_mode,
        problems=problems,
        faults=list(_faults(present, version)),
        size=Path(name).stat().st_size,
        unused=unused * page,
        log_size=log_size,
        modes={str(file): stat.S_IMODE(file.stat().st_mode) for file in (Path(name), log) if file.exists()},
        disk_free=shutil.disk_usage(Path(name).resolve().parent).free,
    )


def build_missing(path: str | os.PathLike[str], faults: list[SchemaFault], timeout: float = 30.0) -> None:
    """Create the missing indexes and triggers, in one transaction; never tables.

    Args:
        path: The file.
        faults: The findings of `inspect_file`.
        timeout: Seconds to wait for another process.

    Raises:
        HistoryWriteError: It cannot be done; nothing was changed.
    """
    try:
        with closing(sqlite3.connect(os.fspath(path), timeout=timeout, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            for fault in faults:
                if fault.state == "missing":
                    connection.execute(fault.sql)
            connection.execute("COMMIT")
    except FAILURES as error:
        msg = f"cannot write {path}: {explain_error(error)}. Nothing was changed."
        raise HistoryWriteError(msg) from error


def count_records(path: str | os.PathLike[str], user_id: str, timeout: float = 5.0) -> int:
    """Return the number of a user's vector records, without an embedding model.

    Raises:
        HistoryReadError: It cannot be read.
    """
    with _reading(path, timeout) as connection:
        (count,) = connection.execute("SELECT COUNT(*) FROM vectors WHERE user_id = ?", (user_id,)).fetchone()
    return int(count)


@contextmanager
def _reading(path: str | os.PathLike[str], timeout: float) -> Iterator[sqlite3.Connection]:
    """Open a connection that creates no file and no table, and migrates nothing."""
    name = os.path.abspath(path)
    # With write access it is opened for writing: a read-only connection leaves the -wal and -shm files behind
    address = uri_of(name, file_access(name))
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=timeout)) as connection:
            yield connection
    except FAILURES as error:
        msg = f"cannot read {name}: {explain_error(error)}"
        raise HistoryReadError(msg) from error


def _faults(present: dict[tuple[str, str], str], version: int) -> Iterator[SchemaFault]:
    """Yield the parts that a file of this version should have, but are missing or different."""
    for key, sql in _expected(version).items():
        if key not in present:
            yield SchemaFault(key[1], "missing", sql)
        elif _plain(present[key]) != _plain(sql):
            yield SchemaFault(key[1], "wrong", sql)


def _expected(version: int) -> dict[tuple[str, str], str]:
    """Return the schema of a file of this version, as (type, name): SQL."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for script in MIGRATIONS[:version]:
            connection.executescript(script)
        return {(row[0], row[1]): row[2] for row in connection.execute(SCHEMA)}


def _plain(sql: str) -> str:
    return " ".join(sql.split())
