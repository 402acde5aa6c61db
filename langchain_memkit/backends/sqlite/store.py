"""The turn store on SQLite: every operation is one transaction, run on a borrowed connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

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

    async def setup(self) -> None:
        """Open the file, which creates its tables."""
        await self._read(lambda connection: None)

    async def page_back(
        self, scope: Scope, older: tuple[int, int] | None, limit: int, enough: Enough, floor: int = 0
    ) -> Page:
        """Return a page of turns before `older` = (seq, base), newest first, down to position `floor`."""
        return await self._read(partial(self._page_back, scope, older, limit, enough, floor))

    async def page_forward(
        self, scope: Scope, after: int | None, limit: int, *, hidden: bool = False
    ) -> tuple[list[Turn], int | None]:
        """Return a page of turns after a position, oldest first, and the position to continue from (None: the end).

        Args:
            scope: The session.
            after: The position; None for all.
            limit: The greatest number of rows.
            hidden: Include soft-deleted turns.
        """
        return await self._read(partial(self._page_forward, scope, after, limit, hidden))

    async def unowned(self, session_id: str) -> str | None:
        """Return the op of a turn of this session that was stored without a user; None if there is none."""
        return await self._read(partial(self._unowned, session_id))

    async def stored_ids(self, scope: Scope, ids: Sequence[str]) -> set[str]:
        """Return those of the ids that belong to live messages of the session."""
        return await self._read(partial(self._stored_ids, scope, ids))

    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]:
        """Return the user's sessions, most recently used first; `hidden` counts soft-deleted turns as well."""
        return await self._read(partial(self._sessions, user_id, hidden))

    async def owners(self) -> list[str]:
        """Return every user id that has turns."""

        def distinct(connection: sqlite3.Connection) -> list[str]:
            rows = connection.execute("SELECT DISTINCT user_id FROM turns WHERE kind = 'turn' ORDER BY 1")
            return [row[0] for row in rows]

        return await self._read(distinct)

    async def append(self, scope: Scope, batch: Batch, expected_seq: int | None, origin: Origin) -> int:
        """Store a batch in one transaction, and return the position of its last row."""
        work = partial(self._append, scope, batch, expected_seq, origin)
        return await self._write(work, **batch.error_context)

    async def flag(self, scope: Scope, turn: int | str, *, deleted: bool) -> bool:
        """Set or remove the soft-delete flag of a turn, and return whether there is such a turn."""
        return await self._write(partial(self._flag, scope, turn, deleted))

    async def clear(self, scope: Scope) -> None:
        """Insert a tombstone into the session and delete everything older."""
        await self._write(lambda connection: self._void(connection, scope), deleting=True)
        await self._erase(moved=True)

    async def purge(self, user_id: str) -> dict[str, int]:
        """Insert a tombstone into every session of the user, delete everything else, and return counts."""
        counts = await self._write(partial(self._purge, user_id), deleting=True)
        await self._erase(moved=True)
        return counts
