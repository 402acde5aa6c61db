"""What deleting and committing leave on the disk, and what is said of it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.errors import HistoryWriteError

TURN = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database file that does not exist yet."""
    return tmp_path / "chat.db"


def execute(path: Path, statement: str) -> list[Any]:
    """A statement from outside."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        return connection.execute(statement).fetchall()


def test_rows_of_others_keep_their_places(path: Path) -> None:
    """In a file with tables of an app's own a clear empties the log and changes no rowid, which the app may know."""
    history = SQLiteChatMessageHistory(path, "s1")
    history.add_user_message("secret")
    execute(path, "CREATE TABLE theirs (name TEXT)")
    for name in "abc":
        execute(path, f"INSERT INTO theirs VALUES ('{name}')")
    execute(path, "DELETE FROM theirs WHERE name = 'a'")
    history.clear()
    assert execute(path, "SELECT rowid, name FROM theirs") == [(2, "b"), (3, "c")]
    assert b"secret" not in b"".join(file.read_bytes() for file in path.parent.iterdir())


def test_beside_a_reader_the_log_does_not_grow(path: Path) -> None:
    """While another connection reads, clears write no new file into the log, and the next one without it empties it."""
    histories = SQLiteChatMessageHistory.factory(path)
    histories("long").add_messages([HumanMessage("x" * 1000) for _ in range(1000)])
    histories("s1").add_user_message("secret")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM turns").fetchone()
        log = Path(f"{path}-wal")
        before = log.stat().st_size
        for _ in range(3):
            histories("s1").clear()
        assert log.stat().st_size - before < path.stat().st_size / 2
    histories("s1").clear()
    assert b"secret" not in b"".join(file.read_bytes() for file in path.parent.iterdir())


class Unconfirmed:
    """A connection whose commit reaches the log, but whose disk then fails to confirm it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, statement: str, *parameters: Any) -> Any:
        """Runs it; a commit then fails."""
        result = self._connection.execute(statement, *parameters)
        if statement == "COMMIT":
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = "SQLITE_IOERR_FSYNC"
            raise error
        return result


def test_a_commit_that_the_disk_did_not_confirm(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is there after a restart nobody can tell: the error says so, and a retry stores it once."""
    history = SQLiteChatMessageHistory(path, "s1")
    history.add_user_message("before")
    lend = history._store._database.connection

    @contextlib.contextmanager
    def unconfirmed() -> Iterator[Any]:
        with lend() as connection:
            yield Unconfirmed(connection)

    with monkeypatch.context() as patch:
        patch.setattr(history._store._database, "connection", unconfirmed)
        with pytest.raises(HistoryWriteError, match="may be stored") as raised:
            history.append_turn(TURN, turn_id="t1")
    assert raised.value.maybe_stored
    assert history.append_turn(TURN, turn_id="t1") == 2
    assert len(history.messages) == 3
