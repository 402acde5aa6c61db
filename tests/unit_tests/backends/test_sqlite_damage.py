"""Damage to a file that SQLite itself does not notice: reported or passed over, never an error without a type."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langchain_memkit import SQLiteChatMessageHistory, SQLiteKeyValueStore
from langchain_memkit.errors import HistoryReadError, HistoryWriteError
from langchain_memkit.migrate import langchain_sql_source, migrate

VALUES = ["'x'", "x'ff'", "1e300", "9223372036854775807", "'9e99'"]


@pytest.fixture
def histories(tmp_path: Path) -> Any:
    """A session of three turns, and another one."""
    factory = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    for text in "abc":
        factory("s1").add_user_message(text)
    factory("s2").add_user_message("z")
    factory.close()
    return factory


def execute(path: Path, statement: str) -> None:
    """Works on the file behind memkit's back."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


def texts(history: Any) -> list[str]:
    """The text of each message."""
    return [m.text for m in history.messages]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("seq", [2, 3])
@pytest.mark.parametrize("column", ["base", "epoch", "expires_at", "is_deleted"])
def test_damaged_cells(column: str, seq: int, value: str, histories: Any, tmp_path: Path) -> None:
    """A damaged number beside the messages hides none of them, and the session goes on."""
    execute(tmp_path / "chat.db", f"UPDATE turns SET {column} = {value} WHERE session_id = 's1' AND seq = {seq}")
    assert texts(histories("s1")) == ["a", "b", "c"]
    assert [m.text for m in histories("s1").iter_messages()] == ["a", "b", "c"]
    assert histories("s1").append_turn([HumanMessage("d")]) == 4
    assert texts(histories("s1")) == ["a", "b", "c", "d"]
    histories("s1").clear()
    assert texts(histories("s1")) == []
    assert texts(histories("s2")) == ["z"]


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("seq", [1, 2, 3])
def test_damaged_positions(seq: int, value: str, histories: Any, tmp_path: Path) -> None:
    """A turn whose position is lost is reported, its position is not given away, and clear deletes its text."""
    path = tmp_path / "chat.db"
    execute(path, f"UPDATE turns SET seq = {value} WHERE session_id = 's1' AND seq = {seq}")
    for found in (histories("s1").view().problems, next_problems(histories("s1"))):
        assert len(found) == 1
        assert f"turn {seq}" in found[0]
        assert "backup" in found[0]
    assert texts(histories("s1")) == [text for i, text in enumerate("abc", 1) if i != seq]
    assert histories("s1").append_turn([HumanMessage("d")]) == 4
    histories("s1").clear()
    assert histories("s1").view().problems == ()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT COUNT(*) FROM turns WHERE messages LIKE '%human%'").fetchone() == (1,)


def next_problems(history: Any) -> list[str]:
    """What reading forwards reports."""
    return [problem for turn in history.iter_turns() for problem in turn.problems]


def test_gaps_that_are_no_damage(tmp_path: Path) -> None:
    """Turns that were cleared, hidden or that expired are not taken for lost."""
    path = tmp_path / "chat.db"
    short = SQLiteChatMessageHistory(path, "s1", ttl=1e-9)
    for history in (SQLiteChatMessageHistory(path, "s1"), short, SQLiteChatMessageHistory(path, "s1"), short):
        history.add_user_message("x")
    history = SQLiteChatMessageHistory(path, "s1")
    history.delete_turn(3)
    assert history.view().problems == ()
    assert next_problems(history) == []
    history.add_user_message("y")  # deletes what has expired
    assert history.view().problems == ()
    history.clear()
    history.add_user_message("z")
    assert history.view().problems == ()
    assert next_problems(history) == []


@pytest.mark.parametrize("ttl", [1e12, 1e300])
def test_a_ttl_beyond_every_date(ttl: float, tmp_path: Path) -> None:
    """What expires after the last date that there is can be read until then."""
    history = SQLiteChatMessageHistory(tmp_path / "chat.db", "s1", ttl=ttl)
    history.add_user_message("hello")
    assert texts(history) == ["hello"]


@pytest.mark.parametrize("name", [b"turns", b"key_values"])
def test_a_definition_that_is_no_text(name: bytes, histories: Any, tmp_path: Path) -> None:
    """SQLite's own error then holds bytes that are no text; it is still one of ours that says what to do."""
    path = tmp_path / "chat.db"
    data = path.read_bytes()
    at = data.index(b"NULL", data.index(b"CREATE TABLE " + name))
    path.write_bytes(data[:at] + b"NU\xbeL" + data[at + 4 :])
    store = SQLiteKeyValueStore(path)
    reads: list[Callable[[], Any]] = [
        lambda: histories("s1").messages,
        histories.list_sessions,
        lambda: store.mget(["a"]),
        lambda: migrate(langchain_sql_source(path), histories, progress=False),
    ]
    for read in reads:
        with pytest.raises(HistoryReadError, match=r"chat\.db.*backup"):
            read()
    for write in (lambda: histories("s1").add_user_message("d"), lambda: store.mset([("a", {})])):
        with pytest.raises(HistoryWriteError, match=r"chat\.db.*backup"):
            write()
