"""The storage model on SQLite: every operation is one transaction, run on a borrowed connection."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from langchain_memkit._flow import Flow, drive
from langchain_memkit.backends._history.rows import (
    Batch,
    Origin,
    Page,
    Scope,
)
from langchain_memkit.backends.sqlite.database import explained
from langchain_memkit.backends.sqlite.operations import Operations
from langchain_memkit.base import SessionInfo, Turn
from langchain_memkit.errors import (
    HistoryReadError,
    HistoryWriteError,
    MessageTooLargeError,
)

T = TypeVar("T")


class SQLiteTurnStore(Operations):
    """The storage model on SQLite. Each operation is one transaction, run on a borrowed connection."""

    layout = "turns"

    @property
    def place(self) -> Any:
        """Equal for stores on the same file."""
        return self._database if self._database.in_memory else self._database.path

    def run(self, flow: Flow[T]) -> T:
        """Runs a flow on one connection."""

        def step(operation: Callable[[sqlite3.Connection], Any]) -> Any:
            with self._database.connection() as connection:
                return operation(connection)

        return drive(flow, step)

    async def arun(self, flow: Flow[T]) -> T:
        """The same in a worker thread: SQLite has no other way to be async. Cancelling does not stop the thread."""
        return await asyncio.to_thread(self.run, flow)

    def close(self) -> None:
        """Closes the idle connections."""
        self._database.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await asyncio.to_thread(self._database.close)

    # -- flows: one step each, because a transaction does not need to be retried

    def setup(self) -> Flow[None]:
        """Opens the file, which creates the tables."""
        yield from self._read(lambda connection: None)

    def page_back(
        self, scope: Scope, older: tuple[int, int] | None, limit: int, enough: int | None, floor: int = 0
    ) -> Flow[Page]:
        """Turns before `older` = (seq, base), newest first."""
        return (yield from self._read(partial(self._page_back, scope, older, limit, enough, floor)))

    def page_forward(self, scope: Scope, after: int | None, limit: int) -> Flow[tuple[list[Turn], int | None]]:
        """Turns after a position, oldest first, and the position to go on from."""
        return (yield from self._read(partial(self._page_forward, scope, after, limit)))

    def stored_ids(self, scope: Scope, ids: Sequence[str]) -> Flow[set[str]]:
        """Which of the ids belong to live messages of the session."""
        return (yield from self._read(partial(self._stored_ids, scope, ids)))

    def sessions(self, user_id: str) -> Flow[list[SessionInfo]]:
        """The user's sessions, most recently used first."""
        return (yield from self._read(partial(self._sessions, user_id)))

    def owners(self) -> Flow[list[str]]:
        """Every user with turns."""

        def distinct(connection: sqlite3.Connection) -> list[str]:
            rows = connection.execute("SELECT DISTINCT user_id FROM turns WHERE kind = 'turn' ORDER BY 1")
            return [row[0] for row in rows]

        return (yield from self._read(distinct))

    def append(self, scope: Scope, batch: Batch, expected_seq: int | None, origin: Origin) -> Flow[int]:
        """Stores a batch in one transaction; returns the position of its last row."""
        work = partial(self._append, scope, batch, expected_seq, origin)
        return (yield from self._write(work, batch))

    def flag(self, scope: Scope, turn: int | str, *, deleted: bool) -> Flow[bool]:
        """Sets or removes the soft-delete mark of a turn."""
        return (yield from self._write(partial(self._flag, scope, turn, deleted)))

    def clear(self, scope: Scope) -> Flow[None]:
        """Marker in, everything older out."""
        yield from self._write(lambda connection: self._void(connection, scope))
        yield self._erase

    def purge(self, user_id: str) -> Flow[dict[str, int]]:
        """Marker into every session of the user, everything else out."""
        counts = yield from self._write(partial(self._purge, user_id))
        yield self._erase
        return counts

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> Flow[T]:
        try:
            return (yield work)  # type: ignore[no-any-return]  # results of operations are untyped
        except sqlite3.Error as error:
            msg = f"cannot read {self._database.path}: {explained(error)}"
            raise HistoryReadError(msg) from error

    def _write(self, work: Callable[[sqlite3.Connection], T], batch: Batch | None = None) -> Flow[T]:
        def transaction(connection: sqlite3.Connection) -> T:
            try:
                # inside, because Ctrl-C may arrive between the lock and the next line
                connection.execute("BEGIN IMMEDIATE")
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result

        context = batch.error_context if batch else {}
        try:
            return (yield transaction)  # type: ignore[no-any-return]  # results of operations are untyped
        except (sqlite3.DataError, OverflowError) as error:
            msg = f"a turn is larger than SQLite stores in one row: {error}"
            raise MessageTooLargeError(msg, **context) from error
        except sqlite3.Error as error:
            msg = f"cannot write {self._database.path}: {explained(error)}. Nothing was stored."
            raise HistoryWriteError(msg, **context) from error
