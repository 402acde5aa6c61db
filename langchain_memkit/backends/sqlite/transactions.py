"""Running flows on a SQLite file: each step is a function of a borrowed connection, and each write one transaction."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from langchain_memkit._sync import Flow, Operation, drive, drive_in_thread
from langchain_memkit.backends.sqlite.database import FAILURES, TABLES, Database, explained
from langchain_memkit.errors import HistoryReadError, HistoryWriteError, MessageTooLargeError

logger = logging.getLogger("langchain_memkit")

WRITTEN_ANEW = 8 * 2**20  # bytes: how large a file may be to be written anew after a deletion, in some 0.05 s

T = TypeVar("T")


@dataclass(slots=True)
class WithConnection(Operation[T]):
    """Do `work(connection)` on a borrowed connection."""

    work: Callable[[sqlite3.Connection], T]


class Transactions:
    """Runners and steps. Transactions do not need to be retried, because SQLite waits for other writers itself."""

    _database: Database

    def __repr__(self) -> str:
        """Names the file."""
        return f"{type(self).__name__}({self._database.path!r})"

    @property
    def place(self) -> Any:
        """Equal for stores on the same file, by whatever name or link."""
        if self._database.in_memory:
            return self._database
        return self._database.identity() or os.path.realpath(self._database.path)

    @property
    def in_memory(self) -> bool:
        """Whether there is no file."""
        return self._database.in_memory

    def run(self, flow: Flow[T]) -> T:
        """Runs a flow, each step on a borrowed connection."""

        def perform(operation: WithConnection[Any]) -> Any:
            with self._database.connection() as connection:
                return operation.work(connection)

        return drive(flow, perform)

    async def arun(self, flow: Flow[T]) -> T:
        """The same in a worker thread: SQLite has no other way to be async. Cancelling does not stop the thread."""
        return await drive_in_thread(flow, self.run)

    def close(self) -> None:
        """Closes the idle connections."""
        self._database.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await asyncio.to_thread(self._database.close)

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await WithConnection(work)
        except FAILURES as error:
            msg = f"cannot read {self._database.path}: {explained(error)}"
            raise HistoryReadError(msg) from error

    async def _write(self, work: Callable[[sqlite3.Connection], T], *, deleting: bool = False, **context: Any) -> T:
        """One transaction.

        Args:
            work: What is done in it.
            deleting: Where the disk is full, empty the write-ahead log and try again: SQLite needs room to delete, and
                what the log gives back is often all that there is.
            **context: Goes into the error.
        """
        committing = False

        def written(connection: sqlite3.Connection) -> T:
            try:
                return transaction(connection)
            except sqlite3.OperationalError as error:
                if not deleting or _kind_of(error) not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                    raise
                with suppress(sqlite3.Error):
                    _truncated(connection)
                return transaction(connection)

        def transaction(connection: sqlite3.Connection) -> T:
            nonlocal committing
            try:
                # inside, because Ctrl-C may arrive between the lock and the next line
                connection.execute("BEGIN IMMEDIATE")
                result = work(connection)
                committing = True
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result

        try:
            return await WithConnection(written)
        except MessageTooLargeError as error:  # seen where the caller is not known
            raise MessageTooLargeError(str(error), **context) from None
        except (sqlite3.DataError, OverflowError) as error:
            msg = f"larger than SQLite stores in one row: {error}. Nothing was stored."
            raise MessageTooLargeError(msg, **context) from error
        except FAILURES as error:
            # the log may hold all of it, and yet the disk did not confirm it: then it is there after a restart
            unknown = committing and getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_FSYNC"
            again = "retry with the same turn_id" if "turn_id" in context else "call again"
            state = f"It may be stored: {again}" if unknown else "Nothing was stored"
            msg = f"cannot write {self._database.path}: {explained(error)}. {state}."
            raise HistoryWriteError(msg, maybe_stored=unknown, **context) from error

    async def _erase(self, *, moved: bool = False) -> None:
        """Empties the write-ahead log, which still holds deleted text; who reads may delay that to the next time.

        Args:
            moved: Whether copies of rows are to go as well. `secure_delete` overwrites a row where it stands; if
                SQLite had moved it before, as it does when rows beside it change, the page that it came from keeps a
                copy (after 8 of 120 purges of key-values, 1 of 240 of turns). Writing a small file anew leaves none;
                a file with tables of others is left as it is, since that would give their rows other rowids.
        """

        def scrub(connection: sqlite3.Connection) -> None:
            try:
                connection.execute("PRAGMA busy_timeout = 200")
                # the log first: while somebody reads it cannot be emptied, and a file written anew would stay in it
                if _truncated(connection) and moved and _small_and_ours(connection):
                    connection.execute("PRAGMA temp_store = MEMORY")  # no file beside ours
                    connection.execute("VACUUM")
                    _truncated(connection)
            finally:
                connection.execute("PRAGMA temp_store = DEFAULT")
                connection.execute(f"PRAGMA busy_timeout = {int(self._database.timeout * 1000)}")

        if self._database.in_memory:
            return
        try:
            await WithConnection(scrub)
        except FAILURES as error:
            msg = "deleted, but the text may stay in %s or its -wal until the next clear or purge: %s"
            logger.warning(msg, self._database.path, explained(error))


def _kind_of(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the rest says where in SQLite


def _truncated(connection: sqlite3.Connection) -> bool:
    """Empties the write-ahead log, unless somebody reads or writes just then."""
    busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _small_and_ours(connection: sqlite3.Connection) -> bool:
    """Whether the file may be written anew: soon done, and no other tables in it."""
    (pages,), (size,) = (connection.execute(f"PRAGMA page_{of}").fetchone() for of in ("count", "size"))
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return bool(pages * size <= WRITTEN_ANEW and {name for (name,) in tables.fetchall()} <= TABLES)
