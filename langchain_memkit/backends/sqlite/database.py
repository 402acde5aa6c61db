"""A SQLite file: connections, threads, forks, transactions."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

from langchain_memkit._sync import Flow, Operation, drive, drive_in_thread
from langchain_memkit.base import check_path, check_seconds
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, MessageTooLargeError

PATIENCE = 5.0  # seconds; a fork from inside an operation must not wait for itself for ever


class Closable(Protocol):
    """An object whose idle connections are closed before a fork."""

    def close_idle(self) -> None:
        """Close the connections that are not in use."""


class _Gate:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.under_way = 0
        self.forking = False


_gate = _Gate()
databases: weakref.WeakSet[Closable] = weakref.WeakSet()
"""Everything that has connections to files."""


@contextmanager
def operation() -> Iterator[None]:
    """Mark an operation that a fork waits for. If a fork is under way, wait for it first."""
    gate = _gate
    with gate.changed:
        gate.changed.wait_for(lambda: not gate.forking, PATIENCE)
        gate.under_way += 1
    try:
        yield
    finally:
        with gate.changed:
            gate.under_way -= 1
            gate.changed.notify_all()


def _before() -> None:
    with _gate.changed:
        # from here on new operations wait; those under way may take `PATIENCE` seconds to finish
        _gate.forking = True
        _gate.changed.wait_for(lambda: _gate.under_way == 0, PATIENCE)
    for database in list(databases):
        database.close_idle()


def _after_in_parent() -> None:
    with _gate.changed:
        _gate.forking = False
        _gate.changed.notify_all()


def _after_in_child() -> None:
    # The parent's condition may be held by a thread that does not exist in the child, so it is replaced, not
    # released.
    global _gate
    _gate = _Gate()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)


MAX_IDLE = 8  # connections kept open per file
OWNER_ALONE = 0o600

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
    """
    CREATE TABLE vectors (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, user_id TEXT NOT NULL, session_id TEXT NOT NULL,
        round_id TEXT NOT NULL, position INTEGER NOT NULL, digest TEXT NOT NULL, created_at REAL, expires_at REAL,
        facts TEXT NOT NULL, stems_version INTEGER NOT NULL, vector BLOB, text TEXT NOT NULL, metadata TEXT NOT NULL,
        v INTEGER NOT NULL
    );
    CREATE INDEX vectors_user ON vectors (user_id, created_at);
    CREATE INDEX vectors_session ON vectors (user_id, session_id, position);
    CREATE INDEX vectors_digest ON vectors (user_id, digest) WHERE vector IS NOT NULL;
    CREATE INDEX vectors_expires ON vectors (expires_at) WHERE expires_at IS NOT NULL;
    CREATE TABLE vector_accesses (
        user_id TEXT NOT NULL, id TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (user_id, id)
    ) WITHOUT ROWID;
    CREATE TRIGGER vectors_deleted AFTER DELETE ON vectors BEGIN
        DELETE FROM vector_accesses WHERE user_id = old.user_id AND id = old.id;
    END;
    CREATE TABLE vector_generations (
        user_id TEXT NOT NULL, session_id TEXT NOT NULL, generation TEXT NOT NULL, PRIMARY KEY (user_id, session_id)
    ) WITHOUT ROWID;
    CREATE TABLE vector_meta (name TEXT NOT NULL PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
    """,
    # Whoever edits messages with SQL means to, so the trigger drops the checksum. Damage on disk fires no trigger.
    """
    ALTER TABLE turns ADD COLUMN checksum INTEGER;
    CREATE TRIGGER turns_edited AFTER UPDATE OF messages ON turns BEGIN
        UPDATE turns SET checksum = NULL WHERE rowid = new.rowid;
    END;
    """,
    # Ids used to be unique among all users. The last number ever given out is copied too: numbers are never reused.
    """
    CREATE TABLE vectors_of_users (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, user_id TEXT NOT NULL, session_id TEXT NOT NULL,
        round_id TEXT NOT NULL, position INTEGER NOT NULL, digest TEXT NOT NULL, created_at REAL, expires_at REAL,
        facts TEXT NOT NULL, stems_version INTEGER NOT NULL, vector BLOB, text TEXT NOT NULL, metadata TEXT NOT NULL,
        v INTEGER NOT NULL, UNIQUE (id, user_id)
    );
    INSERT INTO vectors_of_users SELECT * FROM vectors;
    DELETE FROM sqlite_sequence WHERE name = 'vectors_of_users';
    INSERT INTO sqlite_sequence SELECT 'vectors_of_users', seq FROM sqlite_sequence WHERE name = 'vectors';
    DROP TABLE vectors;
    ALTER TABLE vectors_of_users RENAME TO vectors;
    CREATE INDEX vectors_user ON vectors (user_id, created_at);
    CREATE INDEX vectors_session ON vectors (user_id, session_id, position);
    CREATE INDEX vectors_digest ON vectors (user_id, digest) WHERE vector IS NOT NULL;
    CREATE INDEX vectors_expires ON vectors (expires_at) WHERE expires_at IS NOT NULL;
    CREATE TRIGGER vectors_deleted AFTER DELETE ON vectors BEGIN
        DELETE FROM vector_accesses WHERE user_id = old.user_id AND id = old.id;
    END;
    """,
]
"""Forward migrations; `PRAGMA user_version` counts those that were applied."""

TABLES = frozenset(re.findall(r"CREATE TABLE (\w+)", "".join(MIGRATIONS)))


class Database:
    """The connections to one file: a few idle ones are kept, and each is used by one thread at a time."""

    def __init__(self, path: str, timeout: float, file_mode: int = OWNER_ALONE) -> None:
        self.path = path
        self.timeout = timeout
        self.file_mode = file_mode
        self.in_memory = path == ":memory:"
        self._forget()
        if not self.in_memory:
            databases.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the file name and options; another process opens the file itself."""
        if self.in_memory:
            msg = "what lies in ':memory:' cannot be pickled: give a file name as path"
            raise TypeError(msg)
        return shared_database, (self.path, self.timeout, self.file_mode)

    def __deepcopy__(self, memo: object) -> Database:
        """Return this object: a copied history reads and writes the same conversation."""
        return self

    def _forget(self) -> None:
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        self._turnstile = threading.Lock()  # an in-memory database has a single connection
        self._closed = False
        self._file: tuple[int, int] | None = None  # the file (device, inode) to which the idle connections belong
        self._pid = os.getpid()
        weakref.finalize(self, _close_idle, self._pid, self._idle)

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """Lend a connection, and take it back afterwards."""
        if self._pid != os.getpid():
            # Connections opened in the parent must be neither used nor closed in the child
            # (sqlite.org/howtocorrupt.html): they stay referenced, out of reach. An in-memory database stays behind
            # with them: it counts as closed, so that using it raises instead of silently starting empty.
            _INHERITED.append(self._idle)
            self._forget()
            self._closed = self.in_memory
        with operation(), self._turnstile if self.in_memory else nullcontext(), self._lend() as connection:
            yield connection

    @contextmanager
    def _lend(self) -> Iterator[sqlite3.Connection]:
        file = self.identity()
        with self._lock:
            # The file was deleted or replaced: the old connections write to a file that no longer has a name.
            if file != self._file:
                _close_idle(self._pid, self._idle)
                self._file = file
            connection = self._idle.pop() if self._idle else None
        access = FileAccess.WRITE
        if connection is None:
            if not self.in_memory:
                make_file(self.path, self.file_mode)
                access = file_access(self.path)
            connection = self._open(access)
            file = self.identity()
            with self._lock:
                self._file = file
        state = _state_of(self.path) if access is FileAccess.UNCHANGED else None
        try:
            yield connection
            # `immutable=1` switches off locking and change detection: what was read while the file changed may be
            # inconsistent.
            if access is FileAccess.UNCHANGED and _state_of(self.path) != state:
                msg = "it was changed while it was read; call again"
                raise sqlite3.OperationalError(msg)
        finally:
            # interrupted, e.g. by Ctrl-C: the transaction did not happen
            if connection.in_transaction:
                connection.rollback()
            with self._lock:
                keep = not self._closed and file == self._file and len(self._idle) < MAX_IDLE
                keep = (
                    keep and access is FileAccess.WRITE
                )  # a read-only one is not kept: write access may be granted later
                if keep:
                    self._idle.append(connection)
            if not keep:
                connection.close()

    def identity(self) -> tuple[int, int] | None:
        """Return device and inode of the file; None if there is no file."""
        if self.in_memory:
            return (0, 0)
        try:
            found = Path(self.path).stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino)

    def _open(self, access: FileAccess) -> sqlite3.Connection:
        if self.in_memory and self._closed:
            msg = "this in-memory database was closed (or left behind by a fork), and its content went with it"
            raise sqlite3.ProgrammingError(msg)
        address = ":memory:" if self.in_memory else uri_of(self.path, access)
        # No `isolation_level`: transactions are begun explicitly. Connections move between threads, but each is used
        # by one at a time, so SQLite's check of the thread is switched off.
        connection = sqlite3.connect(
            address, timeout=self.timeout, isolation_level=None, check_same_thread=False, uri=not self.in_memory
        )
        try:
            connection.row_factory = sqlite3.Row
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")  # one damaged cell hides no session
            if access is not FileAccess.WRITE:
                self._check_version(connection)
                self._closed = False
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
            connection.close()
            raise
        self._closed = False
        return connection

    def _check_version(self, connection: sqlite3.Connection) -> int:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > len(MIGRATIONS):
            msg = f"{self.path} was written by a newer memkit (format {version}); this one knows {len(MIGRATIONS)}"
            raise ConfigurationError(msg)
        return int(version)

    def _migrate(self, connection: sqlite3.Connection) -> None:
        if self._check_version(connection) == len(MIGRATIONS):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            # again, now under the lock: another process may have migrated the file meanwhile
            version = self._check_version(connection)
            for script in MIGRATIONS[version:]:
                for statement in _statements(script):
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # a full disk ends it by itself
                connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close the idle connections. A file is opened again at its next use; an in-memory database is gone."""
        with self._lock:
            self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that are not in use; the next use opens new ones."""
        with self._lock:
            _close_idle(self._pid, self._idle)


def _close_idle(pid: int, idle: list[sqlite3.Connection]) -> None:
    """Close connections, but only in the process that opened them."""
    while idle and pid == os.getpid():
        idle.pop().close()


_INHERITED: list[list[sqlite3.Connection]] = []


class FileAccess(Enum):
    """The access to a file, as an option of its address."""

    WRITE = "mode=rw"  # never "rwc": SQLite would create the file readable for everybody
    READ = "mode=ro"
    UNCHANGED = "mode=ro&immutable=1"  # needs no -wal and -shm beside it: for a folder where they cannot be created


def make_file(path: str, mode: int) -> None:
    """Create an empty file with these permissions, unless it exists; SQLite copies them to its -wal and -shm."""
    if Path(path).exists():
        return
    try:
        number = os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_CLOEXEC", 0), mode)
    except OSError as error:  # it exists, or SQLite will say why it cannot be opened
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            full = sqlite3.OperationalError("database or disk is full")
            full.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise full from error
        return
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(number, mode)  # the umask may have removed some of the permissions
    finally:
        os.close(number)


def file_access(path: str) -> FileAccess:
    """Return the access that this process has to a file."""
    log = _state_of(f"{path}-wal")
    of_file, of_folder = (_may_write(name) for name in (path, Path(path).parent))
    if of_file and (of_folder or log):
        return FileAccess.WRITE
    return FileAccess.READ if log and (log[0] or Path(f"{path}-shm").exists()) else FileAccess.UNCHANGED


def uri_of(path: str, access: FileAccess) -> str:
    """Return the URI of a file for SQLite, with an access mode."""
    return f"{Path(path).absolute().as_uri()}?{access.value}"


def _may_write(path: str | Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _state_of(path: str) -> tuple[int, int] | None:
    """Return size and modification time of a file; None if there is no file."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns


_databases: weakref.WeakValueDictionary[tuple[str, float, int], Database] = weakref.WeakValueDictionary()
_databases_lock = threading.Lock()


def _statements(script: str) -> Iterator[str]:
    """Yield the statements of a script one by one, to run them in one transaction (`executescript` would commit)."""
    statement = ""
    for line in script.splitlines():
        statement += line + "\n"
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def shared_database(path: str | os.PathLike[str], timeout: float, file_mode: int = OWNER_ALONE) -> Database:
    """Return the one `Database` per file, timeout, mode and process; in-memory ones are never shared.

    Args:
        path: The file, or `":memory:"`.
        timeout: Seconds to wait for another process that is writing; 0 not to wait.
        file_mode: The permissions of the file if it is created.

    Raises:
        TypeError: The path is not a file name.
        ConfigurationError: The path is a connection string, or another argument is out of range.
    """
    if not isinstance(path, (str, Path)) or not str(path):
        msg = f"path must be a file name or ':memory:', not {type(path).__name__}"
        raise TypeError(msg)
    if timeout != 0:  # 0 means not to wait at all
        check_seconds(timeout, "timeout")
    if type(file_mode) is not int or not 0 <= file_mode <= 0o777 or file_mode & OWNER_ALONE != OWNER_ALONE:
        given = oct(file_mode) if type(file_mode) is int else f"{file_mode!r:.50}"
        msg = f"file_mode must be the rights of a new file, from 0o600 to 0o777, e.g. 0o660 for a group; got {given}"
        raise ConfigurationError(msg)
    if str(path) == ":memory:":
        return Database(":memory:", timeout)
    name = os.path.abspath(check_path(path))
    key = (name, timeout, file_mode)
    with _databases_lock:
        # The dictionary is weak: a database is shared while somebody uses it, and its connections close with the last
        # user.
        database = _databases.get(key) or Database(*key)
        _databases[key] = database
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


def explain_error(error: Exception) -> str:
    """Return SQLite's message, with a hint on what to do where it is too short."""
    if isinstance(error, UnicodeDecodeError):
        return f"database disk image is malformed ({REPAIR})"
    hint = HINTS.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)  # the higher bits say where in SQLite
    return f"{error} ({hint})" if hint else str(error)


logger = logging.getLogger("langchain_memkit")

WRITTEN_ANEW = 8 * 2**20  # bytes; a file up to this size is rewritten after a deletion, in some 0.05 s

T = TypeVar("T")


@dataclass(slots=True)
class WithConnection(Operation[T]):
    """Do `work(connection)` on a borrowed connection."""

    work: Callable[[sqlite3.Connection], T]


class Transactions:
    """Runners and steps of flows. Transactions are not retried: SQLite itself waits for other writers."""

    _database: Database

    def __repr__(self) -> str:
        """Show the file."""
        return f"{type(self).__name__}({self._database.path!r})"

    @property
    def place(self) -> Any:
        """A value that is equal for stores on the same file, under whatever name or link."""
        if self._database.in_memory:
            return self._database
        return self._database.identity() or os.path.realpath(self._database.path)

    @property
    def in_memory(self) -> bool:
        """Whether the database has no file."""
        return self._database.in_memory

    def run(self, flow: Flow[T]) -> T:
        """Run a flow, each step on a borrowed connection."""

        def perform(operation: WithConnection[Any]) -> Any:
            with self._database.connection() as connection:
                return operation.work(connection)

        return drive(flow, perform)

    async def arun(self, flow: Flow[T]) -> T:
        """Run a flow in a worker thread, SQLite's only way to be async. Cancelling does not stop the thread."""
        return await drive_in_thread(flow, self.run)

    def close(self) -> None:
        """Close the idle connections."""
        self._database.close()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        await asyncio.to_thread(self._database.close)

    async def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await WithConnection(work)
        except FAILURES as error:
            msg = f"cannot read {self._database.path}: {explain_error(error)}"
            raise HistoryReadError(msg) from error

    async def _write(self, work: Callable[[sqlite3.Connection], T], *, deleting: bool = False, **context: Any) -> T:
        """Run a function in one transaction.

        Args:
            work: The function of the connection.
            deleting: If the disk is full, empty the write-ahead log and try again: SQLite needs room to delete, and
                the room that the log gives back is often all there is.
            **context: Attributes of the error, if one is raised.
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
                # inside the try, because Ctrl-C may arrive between taking the lock and the next line
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
        except MessageTooLargeError as error:  # raised where the batch is not known: add its context
            raise MessageTooLargeError(str(error), **context) from None
        except (sqlite3.DataError, OverflowError) as error:
            msg = f"larger than SQLite stores in one row: {error}. Nothing was stored."
            raise MessageTooLargeError(msg, **context) from error
        except FAILURES as error:
            # The commit may be whole in the log although the disk did not confirm it: then the turn is there after a
            # restart. After every other error nothing was stored.
            unknown = committing and getattr(error, "sqlite_errorname", "") == "SQLITE_IOERR_FSYNC"
            again = "retry with the same turn_id" if "turn_id" in context else "call again"
            state = f"It may be stored: {again}" if unknown else "Nothing was stored"
            msg = f"cannot write {self._database.path}: {explain_error(error)}. {state}."
            raise HistoryWriteError(msg, maybe_stored=unknown, **context) from error

    async def _erase(self, *, moved: bool = False) -> None:
        """Empty the write-ahead log, which still holds deleted text. A reader may delay that until the next time.

        Args:
            moved: Whether to remove copies of rows as well. `secure_delete` overwrites a row where it is; if SQLite had
                moved it before, as it does when neighbouring rows change, the page that it came from keeps a copy
                (after 8 of 120 purges of key-values, 1 of 240 of turns). Rewriting a small file leaves none; a file
                with tables of other programs is not rewritten, since that would change the rowids of their rows.
        """

        def scrub(connection: sqlite3.Connection) -> None:
            try:
                connection.execute("PRAGMA busy_timeout = 200")
                # The log first: while somebody reads, it cannot be emptied, and a rewritten file would stay in it.
                if _truncated(connection) and moved and _small_and_ours(connection):
                    connection.execute("PRAGMA temp_store = MEMORY")  # no temporary file beside ours
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
            logger.warning(msg, self._database.path, explain_error(error))


def _kind_of(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF  # the higher bits say where in SQLite


def _truncated(connection: sqlite3.Connection) -> bool:
    """Empty the write-ahead log, and return whether that worked: not while somebody reads or writes."""
    busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def _small_and_ours(connection: sqlite3.Connection) -> bool:
    """Return whether the file may be rewritten: it is small, and holds no tables of other programs."""
    (pages,), (size,) = (connection.execute(f"PRAGMA page_{of}").fetchone() for of in ("count", "size"))
    tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return bool(pages * size <= WRITTEN_ANEW and {name for (name,) in tables.fetchall()} <= TABLES)
