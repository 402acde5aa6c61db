"""Flows on the tables of vectors: each write is one transaction."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any
from uuid import uuid4

from langchain_memkit.backends._vectors.backend import Beginning
from langchain_memkit.backends._vectors.rows import Cells, Mark, Row, Stored, Written, check_expected
from langchain_memkit.backends._vectors.shelf import News, Session, Since
from langchain_memkit.backends.sqlite.database import Database
from langchain_memkit.backends.sqlite.rows import LIVE, date_of
from langchain_memkit.backends.sqlite.transactions import Transactions
from langchain_memkit.backends.sqlite.vector_rows import (
    CELLS,
    INSERT,
    STORED,
    TEXTS,
    UPDATE,
    cells_of,
    stored_of,
    values_of,
)
from langchain_memkit.base import Now, SessionInfo
from langchain_memkit.errors import HistoryConflictError

STEP = 2**16
MARK = (
    "SELECT count(*), coalesce(sum(seq), 0), (SELECT generation FROM vector_generations"
    " WHERE user_id = :user AND session_id = :session) FROM vectors WHERE user_id = :user"
)
LAST_STAMP = (
    f"SELECT seq FROM vectors WHERE user_id = :user AND session_id = :session AND {LIVE} ORDER BY position DESC LIMIT 1"
)
THESE = "IN (SELECT value FROM json_each(:these))"
PROBE = "probe 1"


class VectorRecords(Transactions):
    """Flows of a store; what they do for memories and searches, `backends/_vectors` says."""

    def __init__(self, database: Database, now: Now) -> None:
        self._database = database
        self._now = now

    async def setup(self) -> None:
        """Opens the file, which creates the tables."""
        await self._read(lambda connection: None)

    # -- reading

    async def _select(self, statement: str, **parameters: Any) -> list[Any]:
        given = {"now": self._now().timestamp(), **parameters}
        return await self._read(lambda connection: connection.execute(statement, given).fetchall())

    async def news(self, user_id: str, session_id: str | None, since: Since | None) -> News:
        """Number of the user's records and the sum of their stamps, a session's generation, and what was added."""

        def look(connection: sqlite3.Connection) -> News:
            given = {"user": user_id, "session": session_id}
            count, total, generation = connection.execute(MARK, given).fetchone()
            session = None if generation is None else Session(generation)
            if since is None or since.mark == (count, total):
                return News(session, (count, total))
            added = f"SELECT {CELLS} FROM vectors WHERE user_id = :user AND seq > :stamp AND seq NOT {THESE}"
            more = {"user": user_id, "stamp": since.stamp, "these": json.dumps(since.own)}
            return News(session, (count, total), cells_of(connection.execute(added, more).fetchall()))

        return await self._read(look)

    def change(self, cells: Sequence[Cells], replaced: Sequence[int]) -> Mark:
        """Of the mark, by these records in place of some with these stamps."""
        return len(cells) - len(replaced), sum(row.stamp for row in cells) - sum(replaced)

    async def stamps(self, user_id: str) -> list[int]:
        """Stamps of the user's records."""
        rows = await self._select("SELECT seq FROM vectors WHERE user_id = :user ORDER BY seq", user=user_id)
        return [row[0] for row in rows]

    async def cells(self, user_id: str, stamps: Sequence[int]) -> list[Cells]:
        """Records to rank."""
        rows = await self._rows(CELLS, user_id, stamps)
        return cells_of(rows)

    async def stored(self, user_id: str, stamps: Sequence[int]) -> list[Stored]:
        """Records to show."""
        rows = await self._rows(STORED, user_id, stamps)
        return [stored_of(row) for row in rows]

    async def _rows(self, columns: str, user_id: str, stamps: Sequence[int]) -> list[Any]:
        # the plus sign: the rows are looked up by their number, not by the index on users
        statement = f"SELECT {columns} FROM vectors WHERE seq {THESE} AND +user_id = :user"
        return await self._select(statement, user=user_id, these=json.dumps(stamps))

    async def by_ids(self, user_id: str, ids: Sequence[str], *, vectors: bool) -> list[Stored]:
        """Records of a user to show."""
        statement = f"SELECT {STORED if vectors else TEXTS} FROM vectors WHERE id {THESE} AND user_id = :user"
        rows = await self._select(statement, user=user_id, these=json.dumps(ids))
        return [stored_of(row) for row in rows]

    async def owned(self, ids: Sequence[str]) -> bool:
        """Whether a user has a record with one of these ids."""
        statement = f"SELECT 1 FROM vectors WHERE id {THESE} AND user_id <> '' LIMIT 1"
        return bool(await self._select(statement, these=json.dumps(ids)))

    async def accesses(self, user_id: str) -> dict[str, datetime]:
        """Last recalls by record id."""
        rows = await self._select("SELECT id, at FROM vector_accesses WHERE user_id = :user", user=user_id)
        return {name: datetime.fromtimestamp(at, UTC) for name, at in rows}

    async def sessions(self, user_id: str) -> list[SessionInfo]:
        """The user's sessions, most recently used first."""
        rows = await self._select(
            "SELECT session_id, count(DISTINCT round_id), min(created_at), max(created_at) FROM vectors"
            f" WHERE user_id = :user AND session_id <> '' AND {LIVE} GROUP BY session_id"
            " ORDER BY max(created_at) DESC, max(seq) DESC",
            user=user_id,
        )
        return [SessionInfo(name, rounds, date_of(first), date_of(last)) for name, rounds, first, last in rows]

    async def probe(self) -> bytes | None:
        """What is kept of the embedding model."""
        rows = await self._select("SELECT value FROM vector_meta WHERE name = :name", name=PROBE)
        return bytes(rows[0][0]) if rows else None

    async def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str],
        ids: Sequence[str],
        messages: Collection[str] | None,
    ) -> Beginning:
        """Generation, last record, which costs nothing here, stored vectors, and records."""
        given = {"user": user_id, "session": session_id, "now": self._now().timestamp()}

        def look(connection: sqlite3.Connection) -> tuple[str | None, list[Any], list[Any], list[Any]]:
            generation = _generation(connection, user_id, session_id)
            last = f"SELECT {TEXTS}, position FROM vectors WHERE user_id = :user AND session_id = :session AND {LIVE}"
            last += " ORDER BY position DESC LIMIT 1"
            vectors = f"SELECT digest, vector FROM vectors WHERE user_id = :user AND digest {THESE}"
            vectors += " AND vector IS NOT NULL GROUP BY digest"
            records = f"SELECT {TEXTS} FROM vectors WHERE id {THESE} AND +user_id = :user AND +session_id = :session"

            def found(statement: str, names: Sequence[str]) -> list[Any]:
                return connection.execute(statement, {**given, "these": json.dumps(names)}).fetchall() if names else []

            return generation, found(last, [session_id]), found(vectors, digests), found(records, ids)

        def draw(connection: sqlite3.Connection) -> str:
            statement = "INSERT OR IGNORE INTO vector_generations VALUES (?, ?, ?)"
            connection.execute(statement, (user_id, session_id, uuid4().hex))
            return _generation(connection, user_id, session_id) or ""

        generation, last, vectors, records = await self._read(look)
        if generation is None:
            generation = await self._write(draw)
        shown = [[stored_of(row) for row in rows] for rows in ([row[:-1] for row in last], records)]
        return Beginning(generation, shown[0], dict(map(tuple, vectors)), shown[1], last[0][-1] if last else 0)

    # -- writing

    async def keep_probe(self, probe: bytes) -> bytes:
        """Keeps the probe unless there is one; returns the one that is kept."""

        def keep(connection: sqlite3.Connection) -> bytes:
            connection.execute("INSERT OR IGNORE INTO vector_meta VALUES (?, ?)", (PROBE, probe))
            return bytes(connection.execute("SELECT value FROM vector_meta WHERE name = ?", (PROBE,)).fetchone()[0])

        return await self._write(keep)

    async def write(
        self,
        user_id: str,
        rows: Sequence[Row],
        delete: Sequence[str],
        place: tuple[str, str] | None,
        expected: Mapping[str, str],
        state: int | None,
    ) -> Written | None:
        """Stores rows and deletes others in one transaction; None if the session is another one."""
        ready = [values_of(row) for row in rows]
        return await self._write(partial(self._store, user_id, ready, delete, place, expected, state))

    def _store(
        self,
        user_id: str,
        rows: Sequence[list[Any]],
        delete: Sequence[str],
        place: tuple[str, str] | None,
        expected: Mapping[str, str],
        state: int | None,
        connection: sqlite3.Connection,
    ) -> Written | None:
        if place is not None and _generation(connection, user_id, place[0]) != place[1]:
            return None
        if place is not None and state is not None:
            session = {"user": user_id, "session": place[0], "now": self._now().timestamp()}
            last = connection.execute(LAST_STAMP, session).fetchone()
            if (last[0] if last else 0) != state:
                msg = f"session {place[0]!r:.80} was changed by somebody else. Nothing was stored: begin again."
                raise HistoryConflictError(msg)
        expired = connection.execute(
            "DELETE FROM vectors WHERE seq IN (SELECT seq FROM vectors WHERE expires_at <= ? LIMIT 100)"
            " RETURNING user_id, seq",
            (self._now().timestamp(),),
        ).fetchall()
        ids = [row[1] for row in rows]
        old = connection.execute(
            f"SELECT id, seq, session_id, digest FROM vectors WHERE id {THESE} AND user_id = :user",
            {"these": json.dumps([*ids, *delete, *expected]), "user": user_id},
        ).fetchall()
        here = {name: digest for name, _, session, digest in old if place and session == place[0]}
        check_expected(expected, here)
        old = [row for row in old if row[0] in {*ids, *delete}]
        sessions = {row[1]: row[3] for row in rows}
        for name, _, session, _ in old:
            if name in sessions and session != sessions[name]:
                msg = f"id {name!r:.80} belongs to a document of another session. Nothing was stored."
                raise HistoryConflictError(msg)
        known = {name: seq for name, seq, *_ in old}
        stamp = _last_stamp(connection)
        for row in rows:
            # numbers with gaps of chance: two sets of them do not have the same sum
            row[0] = stamp = stamp + random.randint(1, STEP)  # noqa: S311  # no secret
            if row[1] in known:
                connection.execute(UPDATE, (*row, row[1], user_id))
            else:
                connection.execute(INSERT, row)
        gone = [name for name in delete if name in known]
        if gone:
            remove = f"DELETE FROM vectors WHERE id {THESE} AND user_id = :user"
            connection.execute(remove, {"these": json.dumps(gone), "user": user_id})
        lost = [*known.values(), *(seq for owner, seq in expired if owner == user_id)]
        return Written([row[0] for row in rows], (len(rows) - len(lost), sum(row[0] for row in rows) - sum(lost)))

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Keeps recalls."""
        statement = (
            f"INSERT INTO vector_accesses SELECT user_id, id, :at FROM vectors WHERE id {THESE} AND user_id = :user"
            " ON CONFLICT (user_id, id) DO UPDATE SET at = max(at, excluded.at)"
        )
        await self._changed(statement, user=user_id, these=json.dumps(ids), at=at.timestamp())

    async def _changed(self, statement: str, *, deleting: bool = False, **parameters: Any) -> int:
        def change(connection: sqlite3.Connection) -> int:
            return connection.execute(statement, parameters).rowcount

        count: int = await self._write(change, deleting=deleting)
        return count

    # -- deleting

    async def delete(self, user_id: str, ids: Sequence[str]) -> None:
        """Deletes records of a user."""
        remove = f"DELETE FROM vectors WHERE id {THESE} AND user_id = :user"
        if await self._changed(remove, deleting=True, user=user_id, these=json.dumps(ids)):
            await self._erase()

    async def forget(self, user_id: str, session_id: str | None) -> int:
        """Deletes a session or a user; returns how many records."""
        here = "user_id = :user" if session_id is None else "user_id = :user AND session_id = :session"

        def delete(connection: sqlite3.Connection) -> int:
            given = {"user": user_id, "session": session_id}
            connection.execute(f"DELETE FROM vector_generations WHERE {here}", given)
            return connection.execute(f"DELETE FROM vectors WHERE {here}", given).rowcount

        count = await self._write(delete, deleting=True)
        await self._erase(moved=True)
        return count

    async def evict(self, user_id: str, max_records: int, keep: Sequence[str]) -> int:
        """Deletes what is too much; returns how many."""
        never = (
            "DELETE FROM vectors WHERE seq IN (SELECT seq FROM vectors v WHERE user_id = :user AND NOT EXISTS"
            " (SELECT 1 FROM vector_accesses a WHERE a.user_id = :user AND a.id = v.id)"
            f" AND id NOT {THESE} ORDER BY created_at, seq LIMIT :n)"
        )
        longest = (
            "DELETE FROM vectors WHERE user_id = :user AND id IN"
            f" (SELECT id FROM vector_accesses WHERE user_id = :user AND id NOT {THESE} ORDER BY at LIMIT :n)"
        )

        def delete(connection: sqlite3.Connection) -> int:
            (count,) = connection.execute("SELECT count(*) FROM vectors WHERE user_id = ?", (user_id,)).fetchone()
            surplus = left = max(0, int(count) - max_records)
            for statement in (never, longest):
                if left:
                    given = {"user": user_id, "n": left, "these": json.dumps(keep)}
                    left -= connection.execute(statement, given).rowcount
            return surplus - left

        return await self._write(delete)


def _last_stamp(connection: sqlite3.Connection) -> int:
    """The highest number that a row has or had."""
    (stamp,) = connection.execute(
        "SELECT max(coalesce((SELECT max(seq) FROM vectors), 0),"
        " coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'vectors'), 0))"
    ).fetchone()
    return int(stamp)


def _generation(connection: sqlite3.Connection, user_id: str, session_id: str) -> str | None:
    statement = "SELECT generation FROM vector_generations WHERE user_id = ? AND session_id = ?"
    row = connection.execute(statement, (user_id, session_id)).fetchone()
    return None if row is None else str(row[0])
