"""The turn store on SQLite: every operation is one transaction, run on a borrowed connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from langchain_memkit._flow import Flow
from langchain_memkit.backends._history.rows import (
    Batch,
    Enough,
    Origin,
    Page,
    Scope,
)
from langchain_memkit.backends.sqlite.operations import Operations
from langchain_memkit.backends.sqlite.transactions import Transactions
from langchain_memkit.base import SessionInfo, Turn


class SQLiteTurnStore(Operations, Transactions):
    """The turn store on SQLite, as flows of a step or two each."""

    layout = "turns"

    def setup(self) -> Flow[None]:
        """Open the file, which creates its tables."""
        yield from self._read(lambda connection: None)

    def page_back(
        self, scope: Scope, older: tuple[int, int] | None, limit: int, enough: Enough, floor: int = 0
    ) -> Flow[Page]:
        """Return a page of turns before `older` = (seq, base), newest first, down to position `floor`."""
        return (yield from self._read(partial(self._page_back, scope, older, limit, enough, floor)))

    def page_forward(
        self, scope: Scope, after: int | None, limit: int, *, hidden: bool = False
    ) -> Flow[tuple[list[Turn], int | None]]:
        """Return a page of turns after a position, oldest first, and the position to continue from (None: the end).

        Args:
            scope: The session.
            after: The position; None for all.
            limit: The greatest number of rows.
            hidden: Include soft-deleted turns.
        """
        return (yield from self._read(partial(self._page_forward, scope, after, limit, hidden)))

    def unowned(self, session_id: str) -> Flow[str | None]:
        """Return the op of a turn of this session that was stored without a user; None if there is none."""
        return (yield from self._read(partial(self._unowned, session_id)))

    def stored_ids(self, scope: Scope, ids: Sequence[str]) -> Flow[set[str]]:
        """Return those of the ids that belong to live messages of the session."""
        return (yield from self._read(partial(self._stored_ids, scope, ids)))

    def sessions(self, user_id: str, *, hidden: bool = False) -> Flow[list[SessionInfo]]:
        """Return the user's sessions, most recently used first; `hidden` counts soft-deleted turns as well."""
        return (yield from self._read(partial(self._sessions, user_id, hidden)))

    def owners(self) -> Flow[list[str]]:
        """Return every user id that has turns."""

        def distinct(connection: sqlite3.Connection) -> list[str]:
            rows = connection.execute("SELECT DISTINCT user_id FROM turns WHERE kind = 'turn' ORDER BY 1")
            return [row[0] for row in rows]

        return (yield from self._read(distinct))

    def append(self, scope: Scope, batch: Batch, expected_seq: int | None, origin: Origin) -> Flow[int]:
        """Store a batch in one transaction, and return the position of its last row."""
        work = partial(self._append, scope, batch, expected_seq, origin)
        return (yield from self._write(work, **batch.error_context))

    def flag(self, scope: Scope, turn: int | str, *, deleted: bool) -> Flow[bool]:
        """Set or remove the soft-delete flag of a turn, and return whether there is such a turn."""
        return (yield from self._write(partial(self._flag, scope, turn, deleted)))

    def clear(self, scope: Scope) -> Flow[None]:
        """Insert a tombstone into the session and delete everything older."""
        yield from self._write(lambda connection: self._void(connection, scope), deleting=True)
        yield from self._erase(moved=True)

    def purge(self, user_id: str) -> Flow[dict[str, int]]:
        """Insert a tombstone into every session of the user, delete everything else, and return counts."""
        counts = yield from self._write(partial(self._purge, user_id), deleting=True)
        yield from self._erase(moved=True)
        return counts
