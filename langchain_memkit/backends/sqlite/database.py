"""A SQLite file: connections, threads, forks, transactions."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, TypeVar

from langchain_memkit._locks import ForkAware, ForkSafeLock
from langchain_memkit._sync import Flow, drive_in_thread
from langchain_memkit.base import Now, check_path, check_seconds, utc_now
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, MessageTooLargeError
from langchain_memkit.stores.backend import StoreBackend

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")

PATIENCE = 5.0  # seconds; a fork from inside an operation must not wait for itself for ever
MAX_IDLE = 8  # connections kept open per file
OWNER_ALONE = 0o600
IMMUTABLE = "ro&immutable=1"  # needs no -wal and -shm beside the file: for a folder where they cannot be created
REWRITTEN = 8 * 2**20  # bytes; a file up to this size is rewritten after a deletion, in some 0.05 s

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
    CREATE INDEX message_ids_seq ON message_ids (user_id, session_id, seq);
    CREATE TRIGGER turns_deleted AFTER DELETE ON turns BEGIN
        DELETE FROM message_ids WHERE user_id = old.user_id AND session_id = old.session_id AND seq = old.seq;
    END;
    """,
    """
    CREATE TABLE key_values (key TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL, v INTEGER NOT NULL);
    """,
    # Vectors had tables of their own; files that have these keep them, see `old_records`.
    "",
    # Whoever edits messages with SQL means to, so the trigger drops the checksum. Damage on disk fires no trigger.
    """
    ALTER TABLE turns ADD COLUMN checksum INTEGER;
    CREATE TRIGGER turns_edited AFTER UPDATE OF messages ON turns BEGIN
        UPDATE turns SET checksum = NULL WHERE rowid = new.rowid;
    END;
    """,
    "",
    "",
    """
    CREATE TABLE session_details (
        user_id TEXT NOT NULL, session_id TEXT NOT NULL, epoch INTEGER NOT NULL, expires_at REAL,
        title TEXT NOT NULL, metadata TEXT NOT NULL, PRIMARY KEY (user_id, session_id)
    );
    CREATE INDEX session_details_expires ON session_details (expires_at) WHERE expires_at IS NOT NULL;
    CREATE INDEX turns_by_time ON turns (user_id, created_at DESC, session_id, seq DESC);
    """,
    # The rows that replace others, which are few.
    """
    ALTER TABLE turns ADD COLUMN replaces INTEGER;
    ALTER TABLE turns ADD COLUMN trace TEXT;
    CREATE INDEX turns_replaces ON turns (user_id, session_id, seq, replaces, kind) WHERE replaces IS NOT NULL;
    """,
    # Summaries up to a turn (`seq`), of two kinds: the one that is shown, and one that has not caught up yet.
    """
    CREATE TABLE summaries (
        user_id TEXT NOT NULL, session_id TEXT NOT NULL, unfinished INTEGER NOT NULL, id TEXT NOT NULL,
        epoch INTEGER NOT NULL, seq INTEGER NOT NULL, op TEXT NOT NULL, message_id TEXT, expires_at REAL,
        value TEXT NOT NULL, v INTEGER NOT NULL, PRIMARY KEY (user_id, session_id, unfinished)
    );
    CREATE INDEX summaries_expires ON summaries (expires_at) WHERE expires_at IS NOT NULL;
    """,
    # The order in which rows changed, kept by triggers, so that rows of an older version's process have a place in it
    # as well; and what was derived from turns. A number is never given out again, and is of this file: another one may
    # take its place. Text that is changed with SQL is to be looked at anew, so what was derived from it goes.
    """
    CREATE TABLE turn_indexes (
        user_id TEXT NOT NULL, session_id TEXT NOT NULL, seq INTEGER NOT NULL, name TEXT NOT NULL, made BLOB NOT NULL,
        PRIMARY KEY (user_id, session_id, seq, name)
    );
    CREATE TABLE turn_changes (
        user_id TEXT NOT NULL, session_id TEXT NOT NULL, seq INTEGER NOT NULL, change INTEGER NOT NULL,
        PRIMARY KEY (user_id, session_id, seq)
    ) WITHOUT ROWID;
    CREATE INDEX turn_changes_order ON turn_changes (user_id, change);
    CREATE TABLE last_change (change INTEGER NOT NULL, file TEXT NOT NULL);
    INSERT INTO turn_changes SELECT user_id, session_id, seq, row_number() OVER (ORDER BY created_at) FROM turns;
    INSERT INTO last_change SELECT COUNT(*), lower(hex(randomblob(8))) FROM turn_changes;
    CREATE TRIGGER turns_inserted AFTER INSERT ON turns BEGIN
        UPDATE last_change SET change = change + 1;
        INSERT OR REPLACE INTO turn_changes SELECT new.user_id, new.session_id, new.seq, change FROM last_change;
    END;
    CREATE TRIGGER turns_changed
        AFTER UPDATE OF v, is_deleted, epoch, base, replaces, expires_at, messages ON turns BEGIN
        UPDATE last_change SET change = change + 1;
        INSERT OR REPLACE INTO turn_changes SELECT new.user_id, new.session_id, new.seq, change FROM last_change;
    END;
    CREATE TRIGGER turns_rewritten AFTER UPDATE OF messages ON turns BEGIN
        DELETE FROM turn_indexes
            WHERE user_id = new.user_id AND session_id = new.session_id AND seq = new.seq;
    END;
    CREATE TRIGGER turns_gone AFTER DELETE ON turns BEGIN
        DELETE FROM turn_changes WHERE user_id = old.user_id AND session_id = old.session_id AND seq = old.seq;
        DELETE FROM turn_indexes WHERE user_id = old.user_id AND session_id = old.session_id AND seq = old.seq;
    END;
    CREATE TRIGGER turn_indexes_made AFTER INSERT ON turn_indexes BEGIN
        UPDATE last_change SET change = change + 1;
        INSERT OR REPLACE INTO turn_changes SELECT new.user_id, new.session_id, new.seq, change FROM last_change;
    END;
    """,
]
"""Forward migrations; `PRAGMA user_version` counts those that were applied."""

OLD_RECORDS = """SELECT COUNT(*) = 3 FROM pragma_table_info('vectors') WHERE name IN ('round_id', 'digest', 'metadata')
    AND EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'vector_generations')"""
"""Whether there is the table in which a vector memory of version 0.1 or 0.2 kept its records, and none of the app's."""
OWN_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
TABLES = frozenset(re.findall(r"CREATE TABLE (\w+)", "".join(MIGRATIONS)))


class Database(ForkAware):
    """The connections to one file: a few idle ones are kept, and each is used by one thread at a time.

    A fork waits for the connections in use and closes the others. Those of the parent must be neither used nor closed
    in the child (sqlite.org/howtocorrupt.html), and the locks on files that SQLite notes in memory would be taken there
    for the child's own. A database in memory stays behind, so that the two cannot diverge.
    """

    def __init__(self, path: str, timeout: float, file_mode: int = OWNER_ALONE) -> None:
        self.path = path
        self.timeout = timeout
        self.file_mode = file_mode
        self.in_memory = path == ":memory:"
        self._idle: list[tuple[tuple[int, int] | None, sqlite3.Connection]] = []  # each with the file it belongs to
        self._lost = False  # an in-memory database was closed
        self._turn = ForkSafeLock()  # an in-memory database has a single connection
        self._changed = threading.Condition()  # of the next two
        self._in_use = 0
        self._forking = False
        weakref.finalize(self, _close_all, self._idle)
        super().__init__()

    def before_fork(self) -> None:
        """Wait for the connections in use, and close the others."""
        with self._changed:
            self._forking = True
            self._changed.wait_for(lambda: self._in_use == 0, PATIENCE)
        if not self.in_memory:
            self.close()

    def after_fork(self, *, in_child: bool) -> None:
        """Let waiting threads go on; in the child, begin without connections."""
        if in_child:  # the condition may be held by a thread that does not exist here: it is replaced, not released
            self._changed, self._in_use = threading.Condition(), 0
            self.close()
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def __reduce__(self) -> tuple[Callable[..., Database], tuple[str, float, int]]:
        """Pickle the file name and options; another process opens the file itself."""
        if self.in_memory:
            raise TypeError("what lies in ':memory:' cannot be pickled: give a file name as path")
        return shared_database, (self.path, self.timeout, self.file_mode)

    def __deepcopy__(self, memo: object) -> Database:
        """Return this object: a copied history reads and writes the same conversation."""
        return self

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection, and take it back afterwards."""
        with self._changed:
            self._changed.wait_for(lambda: not self._forking, PATIENCE)
            self._in_use += 1
        try:
            with self._turn if self.in_memory else nullcontext():
                if self._lost:
                    msg = "this in-memory database was closed (or left behind by a fork), and its content went with it"
                    raise sqlite3.ProgrammingError(msg)
                yield from self._lend()
        finally:
            with self._changed:
                self._in_use -= 1
                self._changed.notify_all()

    def _lend(self) -> Iterator[sqlite3.Connection]:
        file = self.identity()
        if file is None:
            make_file(self.path, self.file_mode)
            file = self.identity()
        connection, before = self._take_idle(file), None
        if connection is None:
            address = ":memory:" if self.in_memory else file_uri(self.path)
            before = _state_of(self.path) if address.endswith(IMMUTABLE) else None
            connection = self._open(address)
        try:
            yield connection
            # `immutable=1` switches off locking and change detection: what was read while the file changed may be
            # inconsistent.
            if before and before != _state_of(self.path):
                raise sqlite3.OperationalError("it was changed while it was read; call again")
        finally:
            if connection.in_transaction:  # interrupted, e.g. by Ctrl-C: the transaction did not happen
                connection.rollback()
            # One without write access is not kept: access may be granted later.
            if before is None and len(self._idle) < MAX_IDLE:
                self._idle.append((file, connection))
            else:
                connection.close()

    def _take_idle(self, file: tuple[int, int] | None) -> sqlite3.Connection | None:
        with suppress(IndexError):  # none is idle
            while True:
                known, connection = self._idle.pop()
                if known == file:
                    return connection
                connection.close()  # its file was deleted or replaced, and has no name any more
        return None

    def identity(self) -> tuple[int, int] | None:
        """Return device and inode of the file; None if there is no file."""
        if self.in_memory:
            return (0, 0)
        state = _state_of(self.path)
        return state and state[:2]

    def _open(self, address: str) -> sqlite3.Connection:
        # No `isolation_level`: transactions are begun explicitly. Connections move between threads, but each is used
        # by one at a time, so SQLite's check of the thread is switched off.
        connection = sqlite3.connect(
            address, timeout=self.timeout, isolation_level=None, check_same_thread=False, uri=not self.in_memory
        )
        try:
            connection.row_factory = sqlite3.Row
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")  # one damaged cell hides no session
            if address.endswith(IMMUTABLE):
                self._version(connection)
                return connection
            deadline = time.monotonic() + self.timeout
            while True:
                try:
                    # Switching to WAL ignores the busy time-out when several processes open a new file at once, hence
                    # this loop.
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
            connection.close()  # ends a transaction, too
            raise
        return connection

    def _version(self, connection: sqlite3.Connection) -> int:
        version: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > len(MIGRATIONS):
            msg = f"{self.path} was written by a newer memkit (format {version}); this one knows {len(MIGRATIONS)}"
            raise ConfigurationError(msg)
        return version

    def _migrate(self, connection: sqlite3.Connection) -> None:
        if self._version(connection) == len(MIGRATIONS):
            return
        connection.execute("BEGIN IMMEDIATE")
        # The version again, now under the lock: another process may have migrated the file meanwhile.
        for script in MIGRATIONS[self._version(connection) :]:
            statement = ""
            for line in script.splitlines():  # `executescript` would commit
                statement += f"{line}\n"
                if sqlite3.complete_statement(statement):
                    connection.execute(statement)
                    statement = ""
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")

    def close(self) -> None:
        """Close the idle connections. A file is opened again at its next use; an in-memory database is gone."""
        self._lost = self.in_memory
        _close_all(self._idle)


def _close_all(idle: list[tuple[tuple[int, int] | None, sqlite3.Connection]]) -> None:
    with suppress(IndexError):  # none is left
        while True:
            idle.pop()[1].close()


def make_file(path: str, mode: int) -> None:
    """Create an empty file with these permissions, unless it exists; SQLite copies them to its -wal and -shm."""
    try:
        number = os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), mode)
    except OSError:  # it exists, or SQLite will say why it cannot be opened
        return
    if hasattr(os, "fchmod"):
        os.fchmod(number, mode)  # the umask may have removed some of the permissions
    os.close(number)


def file_uri(path: str, mode: str = "rw") -> str:
    """Return the URI by which SQLite opens a file that is there, for writing or with `"ro"` never for that."""
    is_writable = os.access(path, os.W_OK) and os.access(Path(path).parent, os.W_OK)
    if not is_writable and not Path(f"{path}-wal").exists():  # nothing is created beside it then
        mode = IMMUTABLE
    return f"{Path(path).absolute().as_uri()}?mode={mode}"


def _state_of(path: str) -> tuple[int, int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # a path object takes longer to make than to use
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


_databases: weakref.WeakValueDictionary[tuple[str, float, int], Database] = weakref.WeakValueDictionary()
_databases_lock = ForkSafeLock()


def shared_database(path: str | os.PathLike[str], timeout: float, file_mode: int = OWNER_ALONE) -> Database:
    """Return the one `Database` per file, timeout, mode and process; in-memory ones are never shared."""
    if path == "":
        raise ConfigurationError("path must be a file name or ':memory:', not empty")
    if timeout != 0:  # 0 means not to wait for another process
        check_seconds(timeout, "timeout")
    if type(file_mode) is not int or not 0 <= file_mode <= 0o777 or file_mode & OWNER_ALONE != OWNER_ALONE:
        msg = f"file_mode must be from 0o600 to 0o777, e.g. 0o660 for a group, not {file_mode!r:.50}"
        raise ConfigurationError(msg)
    if str(path) == ":memory:":
        return Database(":memory:", timeout)
    key = (os.path.abspath(check_path(path)), timeout, file_mode)
    with _databases_lock:
        # The dictionary is weak: a database is shared while somebody uses it, and its connections close with the last
        # user.
        database = _databases[key] = _databases.get(key) or Database(*key)
    return database


FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of a damaged or unreachable file; UnicodeDecodeError is raised where SQLite quotes a damaged name."""

REPAIR = "restore a backup, or save what can be read with SQLite's own tool: sqlite3 FILE .recover"
HINTS = {
    sqlite3.SQLITE_BUSY: "another program is writing; `timeout=` sets how long to wait for it",
    sqlite3.SQLITE_CANTOPEN: "does its folder exist, and may it be written to?",
    sqlite3.SQLITE_CORRUPT: REPAIR,
    sqlite3.SQLITE_FULL: "make room and call again",
    sqlite3.SQLITE_IOERR: "is the disk full or failing? make room and call again",
    sqlite3.SQLITE_NOTADB: "is it another kind of file? give another path, or restore a backup",
    sqlite3.SQLITE_READONLY: "may this user write to the file and its folder?",
}
"""Advice for the user, by SQLite's primary error code."""


def explain_error(error: Exception, path: str | os.PathLike[str]) -> str:
    """Return SQLite's message about a file, with a hint on what to do where it is too short."""
    if isinstance(error, UnicodeDecodeError):
        return f"database disk image is malformed ({REPAIR})"
    hint = HINTS.get(_code_of(error))
    if Path(path).is_dir():
        hint = f"{path} is a folder: name a file in it, such as {Path(path) / 'chat.db'}"
    return f"{error} ({hint})" if hint else str(error)


def _code_of(error: BaseException) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the higher bits say where in SQLite


class Transactions(StoreBackend):
    """Reads and writes of flows, which call SQLite: they never run on an event loop, but in a worker thread.

    Transactions are not retried: SQLite itself waits for other writers.
    """

    def __init__(self, database: Database, now: Now = utc_now) -> None:
        self._database = database
        self._now = now

    def __str__(self) -> str:
        """Show the file."""
        return repr(self._database.path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    @property
    def place(self) -> object:
        """A value that is equal for stores on the same file, under whatever name or link."""
        if self._database.in_memory:
            return self._database
        return self._database.identity() or os.path.realpath(self._database.path)

    @property
    def in_memory(self) -> bool:
        """Whether the database has no file."""
        return self._database.in_memory

    async def arun(self, flow: Flow[T]) -> T:
        """Run a flow in a worker thread, SQLite's only way to be async. Cancelling does not stop the thread."""
        return await drive_in_thread(flow, self.run)

    async def setup(self) -> None:
        """Open the file, which creates its tables."""
        with self._reading():
            pass

    def close(self) -> None:
        """Close the idle connections."""
        self._database.close()

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection to a read, whose errors become `HistoryReadError`."""
        try:
            with self._database.connection() as connection:
                yield connection
        except OverflowError as error:
            raise HistoryReadError("a number has more than the 64 bits that SQLite takes") from error
        except FAILURES as error:
            raise HistoryReadError(
                f"cannot read {self._database.path}: {explain_error(error, self._database.path)}"
            ) from error

    @contextmanager
    def _one_look(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection to several statements that see the file at one moment, whatever others write meanwhile.

        Decode what they read afterwards: as long as it lasts, a clear cannot empty the log.
        """
        with self._reading() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    async def _select(self, statement: str, **parameters: object) -> list[sqlite3.Row]:
        """Return the rows of a query, which may use the time as `:now`."""
        with self._reading() as connection:
            return connection.execute(statement, {"now": self._now().timestamp(), **parameters}).fetchall()

    async def _change(self, statement: str, *, deleting: bool = False, **parameters: object) -> int:
        """Run one statement that writes, and return the number of rows that it changed."""
        return await self._write(lambda c: c.execute(statement, parameters).rowcount, deleting=deleting)

    async def _write(self, work: Callable[[sqlite3.Connection], T], *, deleting: bool = False, **context: Any) -> T:
        """Run a function in one transaction; `context` has the attributes of an error, if one is raised."""
        committing, once_more = False, deleting
        try:
            with self._database.connection() as connection:
                while True:
                    try:
                        # inside the try, because Ctrl-C may arrive between taking the lock and the next line
                        connection.execute("BEGIN IMMEDIATE")
                        result = work(connection)
                        committing = True
                        connection.execute("COMMIT")
                        return result
                    except BaseException as error:
                        if connection.in_transaction:
                            connection.execute("ROLLBACK")
                        # SQLite needs room to delete, and that which the log gives back is often all there is.
                        is_full = _code_of(error) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
                        if not (once_more and is_full):
                            raise
                    once_more = False
                    with suppress(sqlite3.Error):
                        _empty_log(connection)
        except MessageTooLargeError as error:  # raised where the batch is not known: add its context
            raise MessageTooLargeError(str(error), **context) from None
        except (sqlite3.DataError, OverflowError) as error:
            if "INTEGER" in str(error):  # not a long text, but a large number
                msg = "a number has more than the 64 bits that SQLite takes. Nothing was stored."
                raise HistoryWriteError(msg, **context) from error
            msg = f"larger than SQLite stores in one row: {error}. Nothing was stored."
            raise MessageTooLargeError(msg, **context) from error
        except FAILURES as error:
            # The commit may be whole in the log although the disk did not confirm it: then the turn is there after a
            # restart. After every other error nothing was stored.
            unknown = committing and getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_FSYNC"
            again = "retry with the same turn_id" if "turn_id" in context else "call again"
            state = f"It may be stored: {again}" if unknown else "Nothing was stored"
            msg = f"cannot write {self._database.path}: {explain_error(error, self._database.path)}. {state}."
            raise HistoryWriteError(msg, maybe_stored=unknown, **context) from error

    async def _erase(self, *, moved: bool = False) -> None:
        """Empty the log, which still holds deleted text, and if `moved` remove copies of rows that SQLite had moved."""
        # A reader may delay that until the next time. `secure_delete` overwrites a row where it is; if SQLite had moved
        # it before, as it does when neighbouring rows change, the page that it came from keeps a copy (after 8 of 120
        # purges of key-values, 1 of 240 of turns). Rewriting a small file leaves none; a file with tables of other
        # programs is not rewritten, since that would change the rowids of their rows.

        if self._database.in_memory:
            return
        try:
            with self._database.connection() as connection:
                try:
                    connection.execute("PRAGMA busy_timeout = 200")
                    # The log first: while somebody reads, it cannot be emptied, and a rewritten file would stay in it.
                    (pages,), (size,) = (connection.execute(f"PRAGMA page_{of}").fetchone() for of in ("count", "size"))
                    tables = {name for (name,) in connection.execute(OWN_TABLES).fetchall()}
                    if _empty_log(connection) and moved and pages * size <= REWRITTEN and tables <= TABLES:
                        connection.execute("PRAGMA temp_store = MEMORY")  # no temporary file beside ours
                        connection.execute("VACUUM")
                        _empty_log(connection)
                finally:
                    connection.execute("PRAGMA temp_store = DEFAULT")
                    connection.execute(f"PRAGMA busy_timeout = {int(self._database.timeout * 1000)}")
        except FAILURES as error:
            msg = "deleted, but the text may stay in %s or its -wal until the next clear or purge: %s"
            logger.warning(msg, self._database.path, explain_error(error, self._database.path))


def _empty_log(connection: sqlite3.Connection) -> bool:
    """Empty the write-ahead log, and return whether that worked: not while somebody reads or writes."""
    return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
