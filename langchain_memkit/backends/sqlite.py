"""Chat history in one SQLite file: no server, safe with threads and processes.

Every write is one transaction (`BEGIN IMMEDIATE`) on a WAL database with `synchronous=FULL`: a turn that was
acknowledged survives a kill and a power cut, and half a turn is never seen. Deleted text is overwritten
(`secure_delete`) and the write-ahead log is emptied after `clear` and `purge`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

from langchain_memkit._flow import Flow, drive
from langchain_memkit.backends._history import (
    EMPTY,
    Batch,
    Head,
    HistoryFactory,
    Page,
    Scope,
    TurnHistory,
    admits,
    new_epoch,
    read_turn,
    stored_or_conflict,
)
from langchain_memkit.base import Now, SessionInfo, TokenCounter, Turn, utc_now
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryConflictError,
    HistoryReadError,
    HistoryWriteError,
    MemkitError,
    MessageTooLargeError,
    StaleTurnError,
)
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.messages.turns import counter_name

__all__ = ["SQLiteChatMessageHistory"]

T = TypeVar("T")

MARKER_TTL = timedelta(hours=1)
MAX_IDLE = 8  # connections kept open per file

MIGRATIONS = [
    """
    CREATE TABLE turns (
        user_id TEXT NOT NULL, session_id TEXT NOT NULL, seq INTEGER NOT NULL, op TEXT NOT NULL,
        kind TEXT NOT NULL, v INTEGER NOT NULL, epoch INTEGER NOT NULL, base INTEGER NOT NULL,
        created_at TEXT NOT NULL, expires_at REAL, is_deleted INTEGER NOT NULL DEFAULT 0,
        messages TEXT NOT NULL, tokens TEXT NOT NULL, token_counter TEXT NOT NULL,
        PRIMARY KEY (user_id, session_id, seq), UNIQUE (user_id, session_id, op)
    );
    CREATE INDEX turns_expires ON turns (expires_at) WHERE expires_at IS NOT NULL;
    CREATE TABLE message_ids (
        user_id TEXT NOT NULL, session_id TEXT NOT NULL, message_id TEXT NOT NULL, seq INTEGER NOT NULL,
        PRIMARY KEY (user_id, session_id, message_id, seq)
    ) WITHOUT ROWID;
    CREATE TRIGGER turns_deleted AFTER DELETE ON turns BEGIN
        DELETE FROM message_ids WHERE user_id = old.user_id AND session_id = old.session_id AND message_id IN
            (SELECT json_extract(value, '$.id') FROM json_each(iif(json_valid(old.messages), old.messages, '[]')))
            AND seq = old.seq;
    END;
    """,
]
"""Forward migrations; `PRAGMA user_version` counts those that were applied."""

HERE = "user_id = :user AND session_id = :session"
LIVE = "(expires_at IS NULL OR expires_at > :now)"


class Database:
    """Connections to one file: a few idle ones are kept, each is used by one thread at a time."""

    def __init__(self, path: str, timeout: float) -> None:
        self.path = path
        self.timeout = timeout
        self.in_memory = path == ":memory:"
        self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._turnstile = threading.Lock()  # an in-memory database has a single connection
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Lends a connection; it goes back to the idle ones afterwards."""
        if self._pid != os.getpid():
            # connections of the parent must be neither used nor closed after a fork: keep them, out of reach
            _INHERITED.append(self._idle)
            self._forget()
        if self.in_memory:
            with self._turnstile, self._lend() as connection:
                yield connection
        else:
            with self._lend() as connection:
                yield connection

    @contextmanager
    def _lend(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        connection = connection or self._open()
        try:
            yield connection
        finally:
            with self._lock:
                keep = not self._closed and len(self._idle) < MAX_IDLE
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def _open(self) -> sqlite3.Connection:
        if self.in_memory and self._closed:
            msg = "this in-memory database was closed, and its content went with it"
            raise sqlite3.ProgrammingError(msg)
        connection = sqlite3.connect(self.path, timeout=self.timeout, isolation_level=None, check_same_thread=False)
        try:
            connection.row_factory = sqlite3.Row
            deadline = time.monotonic() + self.timeout
            while True:
                try:
                    # switching to WAL ignores the busy time-out when several processes open a new file at once
                    connection.execute("PRAGMA journal_mode = WAL")
                    break
                except sqlite3.OperationalError as error:
                    if "locked" not in str(error) or time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA secure_delete = ON")
            self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        self._closed = False
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == len(MIGRATIONS):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()  # another process may have been faster
            if version > len(MIGRATIONS):
                msg = f"{self.path} was written by a newer memkit (format {version}); this one knows {len(MIGRATIONS)}"
                raise ConfigurationError(msg)
            for script in MIGRATIONS[version:]:
                for statement in _statements(script):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Closes the idle connections; using the database again opens new ones (a file's, not an in-memory one's)."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()


_INHERITED: list[list[sqlite3.Connection]] = []
_databases: dict[str, Database] = {}


def _statements(script: str) -> Iterator[str]:
    """Single statements of a script, so that they run inside one transaction (`executescript` would commit)."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def _database(path: str | os.PathLike[str], timeout: float) -> Database:
    """One `Database` per file and process; in-memory ones are never shared."""
    if not isinstance(path, (str, Path)) or not str(path):
        msg = f"path must be a file name or ':memory:', not {type(path).__name__}"
        raise TypeError(msg)
    if str(path) == ":memory:":
        return Database(":memory:", timeout)
    name = os.path.abspath(path)
    return _databases.setdefault(name, Database(name, timeout))


class SQLiteTurnStore:
    """The storage model on SQLite. Each operation is one transaction, run on a borrowed connection."""

    def __init__(self, database: Database, ttl: float | None, token_counter: TokenCounter | None, now: Now) -> None:
        if ttl is not None and not ttl > 0:
            msg = f"ttl is in seconds and must be above 0, or None to keep turns; got {ttl!r:.50}"
            raise ConfigurationError(msg)
        self._database = database
        self._ttl = ttl
        self._counter = token_counter
        self._now = now

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

    def page_back(self, scope: Scope, older: tuple[int, int] | None, limit: int) -> Flow[Page]:
        """Turns before `older` = (seq, base), newest first."""
        return (yield from self._read(partial(self._page_back, scope, older, limit)))

    def page_forward(self, scope: Scope, after: int | None, limit: int) -> Flow[tuple[list[Turn], int | None]]:
        """Turns after a position, oldest first, and the position to go on from."""
        return (yield from self._read(partial(self._page_forward, scope, after, limit)))

    def stored_ids(self, scope: Scope, ids: Sequence[str]) -> Flow[set[str]]:
        """Which of the ids belong to live messages of the session."""
        return (yield from self._read(partial(self._stored_ids, scope, ids)))

    def sessions(self, user_id: str) -> Flow[list[SessionInfo]]:
        """The user's sessions, most recently used first."""
        return (yield from self._read(partial(self._sessions, user_id)))

    def append(self, scope: Scope, batch: Batch, expected_seq: int | None, epoch: int | None) -> Flow[int]:
        """Stores a batch in one transaction; returns the position of its last row."""
        work = partial(self._append, scope, batch, expected_seq, epoch)
        return (yield from self._write(work, batch))

    def flag(self, scope: Scope, seq: int, *, deleted: bool) -> Flow[bool]:
        """Sets or removes the soft-delete mark of a turn."""
        return (yield from self._write(partial(self._flag, scope, seq, deleted)))

    def clear(self, scope: Scope) -> Flow[None]:
        """Marker in, everything older out."""
        yield from self._write(lambda connection: self._void(connection, scope))
        yield self._erase

    def purge(self, user_id: str) -> Flow[dict[str, int]]:
        """Marker into every session of the user, everything else out."""
        counts = yield from self._write(partial(self._purge, user_id))
        yield self._erase
        return counts  # type: ignore[no-any-return]  # results of operations are untyped

    def _read(self, work: Callable[[sqlite3.Connection], Any]) -> Flow[Any]:
        try:
            return (yield work)
        except sqlite3.Error as error:
            msg = f"cannot read {self._database.path}: {error}"
            raise HistoryReadError(msg) from error

    def _write(self, work: Callable[[sqlite3.Connection], Any], batch: Batch | None = None) -> Flow[Any]:
        def transaction(connection: sqlite3.Connection) -> Any:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = work(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result

        context = batch.error_context if batch else {}
        try:
            return (yield transaction)
        except (sqlite3.DataError, OverflowError) as error:
            msg = f"a turn is larger than SQLite stores in one row: {error}"
            raise MessageTooLargeError(msg, **context) from error
        except sqlite3.Error as error:
            msg = f"cannot write {self._database.path}: {error}. Nothing was stored."
            raise HistoryWriteError(msg, **context) from error

    # -- operations

    def _parameters(self, scope: Scope, **more: Any) -> dict[str, Any]:
        return {"user": scope.user_id, "session": scope.session_id, "now": self._now().timestamp(), **more}

    def _head(self, connection: sqlite3.Connection, scope: Scope) -> Head | None:
        row = connection.execute(
            f"SELECT seq, epoch, base FROM turns WHERE {HERE} AND {LIVE} ORDER BY seq DESC LIMIT 1",
            self._parameters(scope),
        ).fetchone()
        return Head(*row) if row else None

    def _purged(self, connection: sqlite3.Connection, user_id: str) -> int:
        """The epoch of the user's last purge, kept under the session id that no caller can pass."""
        head = self._head(connection, Scope(user_id, "")) if user_id else None
        return head.epoch if head else 0

    def _page_back(
        self, scope: Scope, older: tuple[int, int] | None, limit: int, connection: sqlite3.Connection
    ) -> Page:
        before, base = older or (2**63 - 1, 0)
        rows = connection.execute(
            f"SELECT * FROM turns WHERE {HERE} AND {LIVE} AND seq < :before AND seq > :base"
            " ORDER BY seq DESC LIMIT :limit",
            self._parameters(scope, before=before, base=base, limit=limit),
        ).fetchall()
        if older is None:
            base = rows[0]["base"] if rows else 0
        head = Head(rows[0]["seq"], rows[0]["epoch"], base) if rows else EMPTY
        epoch = head.epoch or self._purged(connection, scope.user_id)
        more = len(rows) == limit and rows[-1]["seq"] > base + 1
        turns = [self._turn(row) for row in rows if row["seq"] > base and not row["is_deleted"]]
        return Page(turns, head.seq, epoch, (rows[-1]["seq"], base) if more else None)

    def _page_forward(
        self, scope: Scope, after: int | None, limit: int, connection: sqlite3.Connection
    ) -> tuple[list[Turn], int | None]:
        head = self._head(connection, scope) or EMPTY
        rows = connection.execute(
            f"SELECT * FROM turns WHERE {HERE} AND {LIVE} AND seq > :after ORDER BY seq LIMIT :limit",
            self._parameters(scope, after=max(after or 0, head.base), limit=limit),
        ).fetchall()
        turns = [self._turn(row) for row in rows if not row["is_deleted"]]
        return turns, rows[-1]["seq"] if len(rows) == limit else None

    def _turn(self, row: sqlite3.Row) -> Turn:
        data = dict(row)
        for name in ("messages", "tokens"):
            try:
                data[name] = json.loads(data[name])
            except (TypeError, ValueError, RecursionError):
                data[name] = None
        try:
            data["createdAt"] = datetime.fromisoformat(data["created_at"])
        except (TypeError, ValueError):
            data["createdAt"] = None
        return read_turn(data, self._counter)

    def _stored_ids(self, scope: Scope, ids: Sequence[str], connection: sqlite3.Connection) -> set[str]:
        known = connection.execute(
            "SELECT DISTINCT m.message_id FROM message_ids m JOIN turns t USING (user_id, session_id, seq)"
            " WHERE m.user_id = :user AND m.session_id = :session"
            " AND m.message_id IN (SELECT value FROM json_each(:ids))"
            " AND (t.expires_at IS NULL OR t.expires_at > :now) AND NOT t.is_deleted",
            self._parameters(scope, ids=json.dumps(list(ids))),
        )
        return {row[0] for row in known} & set(ids)

    def _sessions(self, user_id: str, connection: sqlite3.Connection) -> list[SessionInfo]:
        rows = connection.execute(
            "SELECT session_id, COUNT(*), MIN(created_at), MAX(created_at) FROM turns WHERE user_id = :user"
            f" AND kind = 'turn' AND NOT is_deleted AND {LIVE} GROUP BY session_id ORDER BY MAX(created_at) DESC",
            self._parameters(Scope(user_id, "")),
        )
        parse = datetime.fromisoformat
        return [SessionInfo(session, count, parse(first), parse(last)) for session, count, first, last in rows]

    def _append(
        self,
        scope: Scope,
        batch: Batch,
        expected_seq: int | None,
        epoch: int | None,
        connection: sqlite3.Connection,
    ) -> int:
        self._expire(connection, scope)
        head = self._head(connection, scope)
        stored = self._stored_rows(connection, scope, [row.op for row in batch.rows])
        last = 0
        for index, row in enumerate(batch.rows):
            if row.op in stored:
                last = stored_or_conflict(batch, index, stored[row.op])
        if len(stored) == len(batch.rows):
            return last
        if not admits(head, epoch, self._purged(connection, scope.user_id)):
            msg = f"session {scope.session_id!r} was cleared while this turn ran, so the turn was not stored"
            raise StaleTurnError(msg, **batch.error_context)
        if expected_seq is not None and expected_seq != (head or EMPTY).seq:
            msg = f"expected the session at position {expected_seq}, it is at {(head or EMPTY).seq}; read it again"
            raise HistoryConflictError(msg, **batch.error_context)
        head = head or Head(0, new_epoch(), 0)
        for row in batch.rows:
            if row.op not in stored:
                head = head._replace(seq=head.seq + 1)
                self._insert(connection, scope, head, "turn", row.op, row.messages, row.tokens)
        return head.seq

    def _stored_rows(self, connection: sqlite3.Connection, scope: Scope, ops: list[str]) -> dict[str, Turn]:
        rows = connection.execute(
            f"SELECT * FROM turns WHERE {HERE} AND op IN (SELECT value FROM json_each(:ops))",
            self._parameters(scope, ops=json.dumps(ops)),
        )
        return {row["op"]: self._turn(row) for row in rows}

    def _insert(
        self,
        connection: sqlite3.Connection,
        scope: Scope,
        head: Head,
        kind: Literal["turn", "clear", "purge"],
        op: str,
        messages: list[dict[str, Any]],
        tokens: list[int],
    ) -> None:
        now = self._now()
        expires: float | None = None
        if kind != "turn":
            expires = (now + MARKER_TTL).timestamp()
        elif self._ttl is not None:
            expires = now.timestamp() + self._ttl
        connection.execute(
            "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?)",
            (
                *scope,
                head.seq,
                op,
                kind,
                FORMAT_VERSION,
                head.epoch,
                head.base,
                now.isoformat(),
                expires,
                json.dumps(messages, ensure_ascii=False),
                json.dumps(tokens),
                counter_name(self._counter),
            ),
        )
        ids = {data.get("id") for data in messages}
        connection.executemany(
            "INSERT INTO message_ids VALUES (?, ?, ?, ?)", [(*scope, i, head.seq) for i in ids if isinstance(i, str)]
        )

    def _expire(self, connection: sqlite3.Connection, scope: Scope) -> None:
        """Removes what has expired: all of this session, so that positions are free, and some of the rest."""
        parameters = self._parameters(scope)
        connection.execute(f"DELETE FROM turns WHERE {HERE} AND expires_at <= :now", parameters)
        connection.execute(
            "DELETE FROM turns WHERE rowid IN (SELECT rowid FROM turns WHERE expires_at <= :now LIMIT 100)", parameters
        )

    def _flag(self, scope: Scope, seq: int, deleted: bool, connection: sqlite3.Connection) -> bool:
        cursor = connection.execute(
            f"UPDATE turns SET is_deleted = :deleted WHERE {HERE} AND seq = :seq AND kind = 'turn'",
            self._parameters(scope, seq=seq, deleted=int(deleted)),
        )
        return cursor.rowcount > 0

    def _void(self, connection: sqlite3.Connection, scope: Scope, kind: Literal["clear", "purge"] = "clear") -> int:
        """Puts a contentless marker at the end of the session and deletes what is older; returns turns deleted."""
        self._expire(connection, scope)
        seq = (self._head(connection, scope) or EMPTY).seq + 1
        self._insert(connection, scope, Head(seq, new_epoch(), seq), kind, f"{kind}:{uuid4()}", [], [])
        parameters = self._parameters(scope, seq=seq)
        (turns,) = connection.execute(
            f"SELECT COUNT(*) FROM turns WHERE {HERE} AND seq < :seq AND kind = 'turn'", parameters
        ).fetchone()
        connection.execute(f"DELETE FROM turns WHERE {HERE} AND seq < :seq", parameters)
        return int(turns)

    def _purge(self, user_id: str, connection: sqlite3.Connection) -> dict[str, int]:
        self._void(connection, Scope(user_id, ""), "purge")
        names = connection.execute(
            "SELECT DISTINCT session_id FROM turns WHERE user_id = ? AND session_id <> '' ORDER BY 1", (user_id,)
        ).fetchall()
        deleted = [self._void(connection, Scope(user_id, name)) for (name,) in names]
        return {"sessions": sum(1 for n in deleted if n), "turns": sum(deleted)}

    def _erase(self, connection: sqlite3.Connection) -> None:
        """Empties the write-ahead log, which still holds deleted text; a reader may delay that to the next time."""
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except sqlite3.OperationalError:
            return


class SQLiteChatMessageHistory(TurnHistory):
    """A chat history in one SQLite file: durable, atomic turns, no server. The default for one machine.

    A LangChain chat history: use it wherever one is taken. Safe with threads and with several processes on one file
    (not on a network drive). No I/O happens before the first use.

    Args:
        path: The file; created at first use, its folder must exist. `":memory:"` keeps it in this object (or factory).
        session_id: The conversation, 1 to 512 bytes.
        user_id: Whose it is. Histories of the same session id and different users never meet.
        history_size: `messages` returns at most this many, cut at a turn. None returns all.
        ttl: Seconds after which a turn disappears. None keeps it.
        token_counter: Counts tokens of messages when they are stored; default LangChain's approximation.
        on_corrupt: `"report"` leaves damaged messages out and logs them, `"raise"` raises `MessageDecodeError`.
        timeout: Seconds to wait for another process that is writing.
        now: The clock, for tests.

    Raises:
        TypeError: An id is no string.
        ValueError: An id is empty or malformed, or another argument is wrong.

    Example:
        >>> from langchain_core.messages import AIMessage, HumanMessage
        >>> history = SQLiteChatMessageHistory(":memory:", "s1")
        >>> history.add_messages([HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")])
        >>> [m.content for m in history.messages]
        ['My name is Nemo.', 'Hello Nemo.']
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        session_id: str,
        *,
        user_id: str | None = None,
        history_size: int | None = None,
        ttl: float | None = None,
        token_counter: TokenCounter | None = None,
        on_corrupt: Literal["report", "raise"] = "report",
        timeout: float = 30.0,
        now: Now = utc_now,
    ) -> None:
        store = SQLiteTurnStore(_database(path, timeout), ttl, token_counter, now)
        super().__init__(
            store,
            session_id,
            user_id,
            history_size=history_size,
            token_counter=token_counter,
            on_corrupt=on_corrupt,
        )

    @classmethod
    def factory(
        cls,
        path: str | os.PathLike[str],
        *,
        history_size: int | None = None,
        ttl: float | None = None,
        token_counter: TokenCounter | None = None,
        on_corrupt: Literal["report", "raise"] = "report",
        timeout: float = 30.0,
        now: Now = utc_now,
    ) -> HistoryFactory[SQLiteChatMessageHistory]:
        """A `get_session_history(session_id, user_id=None)` for this file.

        Args:
            path: As in the class.
            history_size: As in the class.
            ttl: As in the class.
            token_counter: As in the class.
            on_corrupt: As in the class.
            timeout: As in the class.
            now: As in the class.

        Returns:
            A callable that makes histories, with `list_sessions`, `purge`, `setup` and `close`.

        Example:
            >>> histories = SQLiteChatMessageHistory.factory(":memory:")
            >>> histories("s1", user_id="u1").add_user_message("hello")
            >>> len(histories("s1", user_id="u1").messages), len(histories("s1", user_id="u2").messages)
            (1, 0)
        """
        store = SQLiteTurnStore(_database(path, timeout), ttl, token_counter, now)

        def make(session_id: str, user_id: str | None) -> SQLiteChatMessageHistory:
            history = cls.__new__(cls)
            TurnHistory.__init__(
                history,
                store,
                session_id,
                user_id,
                history_size=history_size,
                token_counter=token_counter,
                on_corrupt=on_corrupt,
            )
            return history

        return HistoryFactory(store, make)
