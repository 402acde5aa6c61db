"""The SQL of chat histories: functions of a borrowed connection, each run inside one transaction."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Sequence
from typing import Any, Literal
from uuid import uuid4

from langchain_memkit.backends._history.rows import (
    EMPTY,
    MARKER_TTL,
    MOST,
    Batch,
    Enough,
    Origin,
    Page,
    Row,
    Scope,
    admits,
    new_epoch,
    read_turn,
    stored_or_conflict,
    until_enough,
)
from langchain_memkit.backends.sqlite.database import Database
from langchain_memkit.backends.sqlite.rows import (
    HERE,
    LIVE,
    SOUND,
    checksum_of,
    date_of,
    fits_checksum,
    iso_date_of,
    loaded,
    lost_turns,
    own,
)
from langchain_memkit.base import Head, Now, SessionInfo, TokenCounter, Turn, seconds_given
from langchain_memkit.errors import HistoryConflictError, MessageTooLargeError, StaleTurnError
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.messages.counting import counter_name

MAX_TURN = 16 * 2**20  # bytes, the limit of a MongoDB document, so that every turn stored here can be migrated there


class Operations:
    """Operations on the table `turns`. Each takes the connection last, so that the store can bind the rest."""

    def __init__(self, database: Database, ttl: float | None, token_counter: TokenCounter | None, now: Now) -> None:
        seconds_given(ttl, "ttl", none="to keep turns", most=math.inf)
        self._database = database
        self.ttl = ttl
        self._counter = token_counter
        self._now = now

    def _parameters(self, scope: Scope, **more: Any) -> dict[str, Any]:
        return {"user": scope.user_id, "session": scope.session_id, "now": self._now().timestamp(), **more}

    def _head(self, connection: sqlite3.Connection, scope: Scope) -> Head | None:
        row = connection.execute(
            f"SELECT seq, epoch, base FROM turns WHERE {HERE} AND {LIVE} AND {SOUND} ORDER BY seq DESC LIMIT 1",
            self._parameters(scope),
        ).fetchone()
        return Head(*row) if row else None

    def _purged(self, connection: sqlite3.Connection, user_id: str) -> int:
        """Return the epoch of the user's last purge (0: none), kept under a session id that no caller can pass."""
        head = self._head(connection, Scope(user_id, "")) if user_id else None
        return head.epoch if head else 0

    def _page_back(
        self,
        scope: Scope,
        older: tuple[int, int] | None,
        limit: int,
        enough: Enough,
        floor: int,
        connection: sqlite3.Connection,
    ) -> Page:
        before, base = older or (MOST + 1, 0)
        # `base` is the position of the last tombstone: rows up to it are void, even if their deletion is not
        # finished.
        base = max(base, floor - 1)
        found = connection.execute(
            f"SELECT *, {SOUND} AS sound FROM turns WHERE {HERE} AND {LIVE} AND seq < :before AND seq > :base"
            " ORDER BY seq DESC LIMIT :limit",
            self._parameters(scope, before=before, base=base, limit=limit),
        )
        rows = own(found, scope)
        # A damaged row cannot tell where the session ends: one with a wild position would hide all others.
        head = next((Head(row["seq"], row["epoch"], row["base"]) for row in rows if row["sound"]), EMPTY)
        if older is None:
            base = max(base, head.base) if rows else 0
        # An empty session has no epoch. Its turns are given that of the user's last purge instead, by which a later
        # append notices a purge of a session that held nothing.
        epoch = head.epoch or self._purged(connection, scope.user_id)
        shown = (row for row in rows if row["seq"] > base and row["is_deleted"] != 1)
        # The rows are decoded lazily: the rest of the page is not, once it holds enough.
        turns, stopped = until_enough((self._turn(row, enough.messages) for row in shown), enough)
        last = turns[-1].seq if stopped else rows[-1]["seq"] if len(rows) == limit else 0
        # Gaps are looked for among all rows, hidden ones included: a soft-deleted turn is not lost.
        lost = lost_turns(connection, scope, [before, *(row["seq"] for row in rows if row["seq"] > base)], last or base)
        if lost:
            turns = sorted([*turns, *lost], key=lambda turn: turn.seq, reverse=True)
        return Page(turns, head.seq, epoch, self._now(), (last, base) if last > base + 1 else None)

    def _page_forward(
        self, scope: Scope, after: int | None, limit: int, hidden: bool, connection: sqlite3.Connection
    ) -> tuple[list[Turn], int | None]:
        head = self._head(connection, scope) or EMPTY
        found = connection.execute(
            f"SELECT * FROM turns WHERE {HERE} AND {LIVE} AND seq > :after AND seq <= {MOST} ORDER BY seq LIMIT :limit",
            self._parameters(scope, after=max(after or 0, head.base), limit=limit),
        )
        rows = own(found, scope)
        turns = [self._turn(row) for row in rows if hidden or row["is_deleted"] != 1]
        # On the last page the gap behind the last row counts as well.
        end = [] if len(rows) == limit else [MOST + 1]
        seqs = [*end, *(row["seq"] for row in reversed(rows))]
        lost = lost_turns(connection, scope, seqs, max(after or 0, head.base))
        if lost:
            turns = sorted([*turns, *lost], key=lambda turn: turn.seq)
        return turns, rows[-1]["seq"] if len(rows) == limit else None

    def _turn(self, row: sqlite3.Row, newest: int | None = None) -> Turn:
        data = dict(row)
        sound = fits_checksum(data)
        for name in ("messages", "tokens"):
            data[name] = loaded(data[name])
        data["createdAt"] = iso_date_of(data["created_at"])
        data["isDeleted"] = row["is_deleted"] == 1
        data["expiresAt"] = date_of(row["expires_at"])
        if not sound:
            data["messages"] = None
        turn = read_turn(data, self._counter, newest)
        if not sound:
            turn.problems[:] = [f"turn {turn.seq}: damaged, its messages do not fit their checksum"]
        return turn

    def _unowned(self, session_id: str, connection: sqlite3.Connection) -> str | None:
        row = connection.execute(
            f"SELECT op FROM turns WHERE {HERE} AND {LIVE} AND kind = 'turn' AND NOT is_deleted LIMIT 1",
            self._parameters(Scope("", session_id)),
        ).fetchone()
        return row and str(row[0])

    def _stored_ids(self, scope: Scope, ids: Sequence[str], connection: sqlite3.Connection) -> set[str]:
        known = connection.execute(
            "SELECT DISTINCT m.message_id FROM message_ids m JOIN turns t USING (user_id, session_id, seq)"
            " WHERE m.user_id = :user AND m.session_id = :session"
            " AND m.message_id IN (SELECT value FROM json_each(:ids))"
            " AND (t.expires_at IS NULL OR t.expires_at > :now) AND NOT t.is_deleted",
            self._parameters(scope, ids=json.dumps(list(ids))),
        )
        return {row[0] for row in known} & set(ids)

    def _sessions(self, user_id: str, hidden: bool, connection: sqlite3.Connection) -> list[SessionInfo]:
        shown = "" if hidden else "AND NOT is_deleted"
        rows = connection.execute(
            "SELECT session_id, COUNT(*), MIN(created_at), MAX(created_at) FROM turns WHERE user_id = :user"
            f" AND kind = 'turn' {shown} AND {LIVE} GROUP BY session_id ORDER BY MAX(created_at) DESC",
            self._parameters(Scope(user_id, "")),
        )
        return [
            SessionInfo(session, count, iso_date_of(first), iso_date_of(last)) for session, count, first, last in rows
        ]

    def _append(
        self,
        scope: Scope,
        batch: Batch,
        expected_seq: int | None,
        origin: Origin,
        connection: sqlite3.Connection,
    ) -> int:
        self._expire(connection, scope)
        head = self._head(connection, scope)
        # Idempotency comes before every other check: a retry whose first try was stored must succeed, although the
        # session has moved on since. Of an interrupted import only the missing rows are inserted.
        stored = self._stored_rows(connection, scope, [row.op for row in batch.rows])
        last = 0
        for index, row in enumerate(batch.rows):
            if row.op in stored:
                last = stored_or_conflict(batch, index, stored[row.op])
        if len(stored) == len(batch.rows):
            return last
        # `BEGIN IMMEDIATE` holds the write lock, so no clear can come between this check and the insert.
        if not admits(head, origin, self._purged(connection, scope.user_id), self._now()):
            msg = f"session {scope.session_id!r} was cleared while this turn ran, so the turn was not stored"
            raise StaleTurnError(msg, **batch.error_context)
        if expected_seq is not None and expected_seq != (head or EMPTY).seq:
            msg = f"expected the session at position {expected_seq}, it is at {(head or EMPTY).seq}; read it again"
            raise HistoryConflictError(msg, **batch.error_context)
        # The first turn of a session draws its epoch; later ones copy it. Damaged rows count too: their positions are
        # still taken.
        head = (head or Head(0, new_epoch(), 0))._replace(seq=self._last(connection, scope, head))
        for row in batch.rows:
            if row.op not in stored:
                head = head._replace(seq=head.seq + 1)
                self._insert(connection, scope, head, "turn", row)
        return head.seq

    def _stored_rows(self, connection: sqlite3.Connection, scope: Scope, ops: list[str]) -> dict[str, Turn]:
        rows = connection.execute(
            f"SELECT * FROM turns WHERE {HERE} AND op IN (SELECT value FROM json_each(:ops))",
            self._parameters(scope, ops=json.dumps(ops)),
        )
        return {row["op"]: self._turn(row) for row in own(rows, scope)}

    def _insert(
        self,
        connection: sqlite3.Connection,
        scope: Scope,
        head: Head,
        kind: Literal["turn", "clear", "purge"],
        row: Row,
    ) -> None:
        now = row.created_at or self._now()
        expires: float | None = None
        if kind != "turn":
            expires = (now + MARKER_TTL).timestamp()
        elif self.ttl is not None:
            expires = now.timestamp() + self.ttl
        elif row.expires_at is not None:
            expires = row.expires_at.timestamp()
        messages = json.dumps(row.messages, ensure_ascii=False)
        # the number of characters first, which is free: it is at most the number of bytes
        if len(messages) > MAX_TURN or len(messages.encode()) > MAX_TURN:
            msg = (
                f"a turn is larger than {MAX_TURN >> 20} MB, the most of every store. Nothing was stored. Keep large "
                "content elsewhere, and what leads to it in the message"
            )
            raise MessageTooLargeError(msg)
        connection.execute(
            "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *scope,
                head.seq,
                row.op,
                kind,
                FORMAT_VERSION,
                head.epoch,
                head.base,
                now.isoformat(),
                expires,
                int(row.is_deleted),
                messages,
                json.dumps(row.tokens),
                counter_name(self._counter),
                checksum_of(messages),
            ),
        )
        # An id with a lone surrogate is encoded as a tagged value, not as text, so it cannot be looked up.
        ids = {i for data in row.messages if isinstance(i := data.get("id"), str)}
        connection.executemany("INSERT INTO message_ids VALUES (?, ?, ?, ?)", [(*scope, i, head.seq) for i in ids])

    def _last(self, connection: sqlite3.Connection, scope: Scope, head: Head | None) -> int:
        """Return the last position ever taken in this session, including turns whose row is damaged."""
        (known,) = connection.execute(
            f"SELECT MAX(seq) FROM message_ids WHERE {HERE} AND seq <= {MOST}", self._parameters(scope)
        ).fetchone()
        return max((head or EMPTY).seq, known or 0)

    def _expire(self, connection: sqlite3.Connection, scope: Scope) -> None:
        """Delete expired rows: all of this session, to free their positions and turn ids, and up to 100 others."""
        parameters = self._parameters(scope)
        # the plus signs keep SQLite from walking the whole session: few rows expire, and they have an index
        here = "+user_id = :user AND +session_id = :session"
        connection.execute(f"DELETE FROM turns WHERE expires_at <= :now AND {here}", parameters)
        connection.execute(
            "DELETE FROM turns WHERE rowid IN (SELECT rowid FROM turns WHERE expires_at <= :now LIMIT 100)", parameters
        )

    def _flag(self, scope: Scope, turn: int | str, deleted: bool, connection: sqlite3.Connection) -> bool:
        column = "op" if isinstance(turn, str) else "seq"
        cursor = connection.execute(
            f"UPDATE turns SET is_deleted = :deleted WHERE {HERE} AND {column} = :turn AND kind = 'turn'",
            self._parameters(scope, turn=turn, deleted=int(deleted)),
        )
        return cursor.rowcount > 0

    def _void(self, connection: sqlite3.Connection, scope: Scope, kind: Literal["clear", "purge"] = "clear") -> int:
        """Insert a tombstone at the end of the session, delete everything older, and return how many turns that was."""
        self._expire(connection, scope)
        seq = self._last(connection, scope, self._head(connection, scope)) + 1
        # The tombstone carries a new epoch, and its own position as base: readers stop at it, and a turn that began
        # in the old epoch is refused, so that the text it was based on does not come back. It stays for two hours
        # (see `admits`).
        self._insert(connection, scope, Head(seq, new_epoch(), seq), kind, Row(f"{kind}:{uuid4()}", [], []))
        parameters = self._parameters(scope, seq=seq)
        (turns,) = connection.execute(
            f"SELECT COUNT(*) FROM turns WHERE {HERE} AND seq <> :seq AND kind = 'turn'", parameters
        ).fetchone()
        connection.execute(f"DELETE FROM turns WHERE {HERE} AND seq <> :seq", parameters)
        return int(turns)

    def _purge(self, user_id: str, connection: sqlite3.Connection) -> dict[str, int]:
        # First the tombstone of the user: it refuses turns of sessions that hold no rows yet, which get none of their
        # own.
        self._void(connection, Scope(user_id, ""), "purge")
        names = connection.execute(
            "SELECT DISTINCT session_id FROM turns WHERE user_id = ? AND session_id <> '' ORDER BY 1", (user_id,)
        ).fetchall()
        deleted = [self._void(connection, Scope(user_id, name)) for (name,) in names]
        return {"sessions": sum(1 for n in deleted if n), "turns": sum(deleted)}
