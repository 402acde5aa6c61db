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
from langchain_memkit.backends.sqlite.inspection import inspect_file
from langchain_memkit.errors import HistoryWriteError, MessageDecodeError, MessageTooLargeError

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


def test_a_turn_has_a_limit(path: Path) -> None:
    """What no MongoDB document could hold is refused here too, before anything is stored, with the messages."""
    history = SQLiteChatMessageHistory(path, "s1")
    history.add_messages([HumanMessage("x" * (16 * 2**20 - 1000))])
    for text in ("x" * 16 * 2**20, "\u00e4" * 9 * 2**20):
        with pytest.raises(MessageTooLargeError, match="larger than 16 MB") as raised:
            history.append_turn([HumanMessage(text)], turn_id="t1")
        assert (raised.value.maybe_stored, raised.value.turn_id) == (False, "t1")
        assert [m.content for m in raised.value.messages] == [text]
    assert len(history.messages) == 1


def test_larger_turns_that_are_there_stay(path: Path) -> None:
    """A turn over the limit that an earlier version stored is read as before."""
    history = SQLiteChatMessageHistory(path, "s1")
    history.add_user_message("small")
    execute(path, "UPDATE turns SET messages = json_replace(messages, '$[0].content', hex(zeroblob(9000000)))")
    assert [len(m.content) for m in history.messages] == [18_000_000]
    history.add_user_message("next")
    assert len(history.messages) == 2


def damaged(path: Path, old: bytes, new: bytes) -> None:
    """Changes bytes of the file itself, as a disk does."""
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


def test_changed_text_is_found(path: Path) -> None:
    """A bit that a disk has changed in a text is no other text: the turn is reported as damaged, the rest is read."""
    history = SQLiteChatMessageHistory(path, "s1")
    for text in ("first", "Pay 100 to Nemo", "last"):
        history.append_turn([HumanMessage(text)])
    history._store.close()
    damaged(path, b"Pay 100 to", b"Pay 900 to")
    view = history.view()
    assert [m.text for m in view.messages] == ["first", "last"]
    assert view.problems == ("turn 2: damaged, its messages do not fit their checksum",)
    with pytest.raises(MessageDecodeError, match="turn 2"):
        SQLiteChatMessageHistory(path, "s1", on_corrupt="raise").messages  # noqa: B018  # reading is the test
    assert inspect_file(path).problems == ["1 turns are damaged: their messages do not fit their checksums"]


def test_changes_by_hand_are_meant(path: Path) -> None:
    """Who changes messages with SQL gets what was written: the checksum goes, and doctor has no problem with it."""
    history = SQLiteChatMessageHistory(path, "s1")
    history.append_turn([HumanMessage("Pay 100 to Nemo")])
    execute(path, "UPDATE turns SET messages = replace(messages, '100', '900')")
    assert [m.text for m in history.messages] == ["Pay 900 to Nemo"]
    assert execute(path, "SELECT checksum FROM turns") == [(None,)]
    assert inspect_file(path).problems == []
