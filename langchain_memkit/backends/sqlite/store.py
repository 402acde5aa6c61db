"""The storage model on SQLite: every operation is one transaction, run on a borrowed connection."""

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
    """The storage model on SQLite, in flows of one step each."""

    layout = "turns"

    async def setup(self) -> None:
        """Opens the file, which creates the tables."""
        await self._read(lambda connection: None)

    async def page_back(
        self, scope: Scope, older: tuple[int, int] | None, limit: int, enough: Enough, floor: int = 0
    ) -> Page:
        """Turns before `older` = (seq, base), newest first."""
        return await self._read(partial(self._page_back, scope, older, limit, enough, floor))

    async def page_forward(
        self, scope: Scope, after: int | None, limit: int, *, hidden: bool = False
    ) -> tuple[list[Turn], int | None]:
        """Turns after a position, oldest first, and the position to go on from; `hidden`: soft-deleted ones as well."""
        return await self._read(partial(self._page_forward, scope, after, limit, hidden))

    async def unowned(self, session_id: str) -> str | None:
        """What tells a turn of this session that is stored without a user; None if there is none."""
        return await self._read(partial(self._unowned, session_id))

    async def stored_ids(self, scope: Scope, ids: Sequence[str]) -> set[str]:
        """Which of the ids belong to live messages of the session."""
        return await self._read(partial(self._stored_ids, scope, ids))

    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]:
        """The user's sessions, most recently used first; `hidden`: counted with their soft-deleted turns."""
        return await self._read(partial(self._sessions, user_id, hidden))

    async def owners(self) -> list[str]:
        """Every user with turns."""

        def distinct(connection: sqlite3.Connection) -> list[str]:
            rows = connection.execute("SELECT DISTINCT user_id FROM turns WHERE kind = 'turn' ORDER BY 1")
            return [row[0] for row in rows]

        return await self._read(distinct)

    async def append(self, scope: Scope, batch: Batch, expected_seq: int | None, origin: Origin) -> int:
        """Stores a batch in one transaction; returns the position of its last row."""
        work = partial(self._append, scope, batch, expected_seq, origin)
        return await self._write(work, **batch.error_context)

    async def flag(self, scope: Scope, turn: int | str, *, deleted: bool) -> bool:
        """Sets or removes the soft-delete mark of a turn."""
        return await self._write(partial(self._flag, scope, turn, deleted))

    async def clear(self, scope: Scope) -> None:
        """Marker in, everything older out."""
        await self._write(lambda connection: self._void(connection, scope), deleting=True)
        await self._erase(moved=True)

    async def purge(self, user_id: str) -> dict[str, int]:
        """Marker into every session of the user, everything else out."""
        counts = await self._write(partial(self._purge, user_id), deleting=True)
        await self._erase(moved=True)
        return counts
