"""Lists of sessions and the search in a SQLite file: forward migration, the index, expiry, traces, damage."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.backends.sqlite import database
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.stores.sessions import title_in
from langchain_memkit.testing import FrozenClock
from testkit.older_files import WITHOUT_CHANGES

TURN = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database file that does not exist yet."""
    return tmp_path / "chat.db"


def execute(path: Path, script: str) -> list[Any]:
    """Works on the file behind memkit's back."""
    with sqlite3.connect(path) as connection:
        rows = [connection.execute(statement).fetchall() for statement in filter(str.strip, script.split(";"))]
    connection.close()
    return rows[-1]


def test_a_file_of_an_older_version(path: Path) -> None:
    """A file without the table and the index gets both, and its sessions are listed in pages."""
    histories = SQLiteChatMessageHistory.factory(path)
    for name in ("a", "b", "c"):
        histories(name, "u1").add_messages(TURN)
    histories.close()
    later = "DROP INDEX turns_replaces; ALTER TABLE turns DROP COLUMN replaces; ALTER TABLE turns DROP COLUMN trace"
    execute(
        path,
        f"{WITHOUT_CHANGES} DROP TABLE summaries; DROP TABLE session_details; DROP INDEX turns_by_time; {later};"
        "PRAGMA user_version = 6",
    )
    database._databases.clear()
    with SQLiteChatMessageHistory.factory(path) as again:
        page = again.list_sessions("u1", limit=2)
        assert [s.session_id for s in page + again.list_sessions("u1", limit=2, before=page[-1].cursor)] == [*"cba"]
        again.update_session("a", "u1", title="A")
        assert len(again.search_messages("u1", "nemo")) == 6


def test_a_page_is_read_from_the_index(path: Path) -> None:
    """A page is six statements wherever it stands, and the walk reads no row of the table."""
    with SQLiteChatMessageHistory.factory(path) as histories:
        for i in range(60):
            histories(f"s{i}", "u1").add_messages(TURN)
        said: list[str] = []
        with histories.turn_store._database.connection() as connection:  # type: ignore[attr-defined]
            connection.set_trace_callback(said.append)
        page = histories.list_sessions("u1", limit=10)
        for _ in range(4):
            said.clear()
            page = histories.list_sessions("u1", limit=10, before=page[-1].cursor)
            assert len(page) == 10
            assert sorted(statement.split()[0] for statement in said) == ["PRAGMA", *["SELECT"] * 5]
            plan = [row[3] for row in execute(path, f"EXPLAIN QUERY PLAN {said[0]}")]
            assert "USING COVERING INDEX turns_by_time" in plan[0]
            assert not any("TEMP B-TREE" in line for line in plan)


def test_a_title_expires_with_its_turns(path: Path) -> None:
    """Title and metadata go with the newest turn that there was, also from the file."""
    clock = FrozenClock()
    histories = SQLiteChatMessageHistory.factory(path, ttl=60, now=clock)
    histories("s1", "u1").add_messages(TURN)
    histories.update_session("s1", "u1", title="Secret", metadata={"f": "Secret"})
    clock.tick(61)
    for options in ({}, {"limit": 5}, {"where": {"f": "Secret"}}):
        assert histories.list_sessions("u1", **options) == []  # type: ignore[arg-type]
    histories("s2", "u1").add_user_message("Anew.")
    assert execute(path, "SELECT * FROM session_details") == []
    histories("s1", "u1").add_user_message("Anew.")
    assert {s.title for s in histories.list_sessions("u1", limit=5)} == {"Anew."}


@pytest.mark.parametrize("erase", ["clear", "purge"])
def test_nothing_of_a_title_stays_in_the_file(path: Path, erase: str) -> None:
    """Neither the file nor its log holds title or metadata after a clear or a purge."""
    histories = SQLiteChatMessageHistory.factory(path)
    histories("s1", "u1").add_messages(TURN)
    histories.update_session("s1", "u1", title="Secret-title", metadata={"f": "Secret-value"})
    _ = histories("s1", "u1").clear() if erase == "clear" else histories.purge("u1")
    found = b"".join(file.read_bytes() for file in path.parent.glob("chat.db*"))
    assert b"Secret" not in found


def test_damaged_dates_and_details(path: Path) -> None:
    """A session stands where its newest turn with a date does; damaged metadata hides no session."""
    histories = SQLiteChatMessageHistory.factory(path)
    for name in ("a", "b"):
        histories(name, "u1").add_messages(TURN)
        histories(name, "u1").add_messages(TURN)
        histories.update_session(name, "u1", title="t", metadata={"f": 1})
    for date in ("'zzz'", "x'ff'", "7", "''"):
        execute(path, f"UPDATE turns SET created_at = {date} WHERE session_id = 'b' AND seq = 2")
        assert [s.session_id for s in histories.list_sessions("u1", limit=1)] == ["b"]
        assert {s.session_id for s in histories.list_sessions("u1", limit=5)} == {"a", "b"}
        assert len(histories.search_messages("u1", "nemo")) == 6
    execute(path, "UPDATE session_details SET metadata = '{', title = 7")
    assert [s.metadata for s in histories.list_sessions("u1", limit=5)] == [{}, {}]
    assert histories.list_sessions("u1", where={"f": 1}) == []


def test_turns_of_one_time(path: Path) -> None:
    """Sessions whose turns have the same date are listed and found once each, page by page."""
    clock = FrozenClock()
    histories = SQLiteChatMessageHistory.factory(path, now=clock)
    names = [f"s{i:02}" for i in range(30)]
    for name in names:
        for _ in range(3):
            histories(name, "u1").add_messages(TURN)
    clock.tick(timedelta(hours=1).total_seconds())
    histories("s07", "u1").add_messages(TURN)
    histories("s07", "u1").delete_turn(4)
    listed, found = [], []
    page = histories.list_sessions("u1", limit=4)
    while page:
        listed += [s.session_id for s in page]
        page = histories.list_sessions("u1", limit=4, before=page[-1].cursor)
    assert listed == names
    hits = histories.search_messages("u1", "nemo", limit=7)
    while hits:
        found += [(hit.session_id, hit.seq, hit.index) for hit in hits]
        hits = histories.search_messages("u1", "nemo", limit=7, before=hits[-1].cursor)
    assert found == [(name, seq, index) for name in names for seq in (3, 2, 1) for index in (1, 0)]


@pytest.mark.parametrize(
    ("answer", "title"),
    [
        ('  "Reefs of the north"', "Reefs of the north"),
        ("**Title: Reefs**\n\nThis title says ...", "Reefs"),
        ("\n\u201eRiffe im Norden\u201c\n", "Riffe im Norden"),
        ("Reefs\x1b[31m\u202e", "Reefs [31m"),
        ("x" * 100, "x" * 79 + "\u2026"),
        ("", ""),
    ],
)
def test_titles_in_answers(answer: str, title: str) -> None:
    """The first line, without marks, quotation marks and control characters, cut at 80."""
    assert title_in(answer) == title


@pytest.mark.parametrize("style", ["sync", "async"])
async def test_sessions_of_nobody_in_an_app_with_users(
    style: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A list without a user that finds none says once that users have some; any other list says nothing."""
    histories = SQLiteChatMessageHistory.factory(path)

    async def listed(*user: str, **options: Any) -> int:
        if style == "sync":
            return len(histories.list_sessions(*user, **options))
        return len(await histories.alist_sessions(*user, **options))

    assert await listed() == 0
    histories("s1", "u1").add_messages(TURN)
    assert await listed("u1") == 1
    assert await listed("u2") == 0
    assert await listed(where={"folder": "sea"}) == 0
    assert caplog.text == ""
    assert [await listed(), await listed(), await listed(limit=5)] == [0, 0, 0]
    (record,) = caplog.records
    assert "call list_sessions(user_id)" in record.getMessage()
    caplog.clear()
    other = SQLiteChatMessageHistory.factory(path)
    other("s2").add_messages(TURN)
    assert len(other.list_sessions()) == 1
    other("s2").clear()
    other.purge("u1")
    assert other.list_sessions() == []
    assert caplog.text == ""


@pytest.mark.parametrize("name", ["plain", "a b+c&d=e/f?g#h%20%", "Füße 🐟", "x" * 512, "\x01\n\t ."])
def test_cursors_survive_a_url(name: str, path: Path) -> None:
    """They are of letters, digits, `-` and `_`, whatever the ids are, and go on where the page has ended."""
    histories = SQLiteChatMessageHistory.factory(path)
    for session_id in ("last", name, "first"):
        histories(session_id, "u1").add_messages(TURN)
    listed = histories.list_sessions("u1", limit=2)
    found = histories.search_messages("u1", "nemo", limit=3)
    for cursor in (listed[-1].cursor, found[-1].cursor):
        assert quote(cursor, safe="") == quote_plus(cursor) == cursor
        assert cursor.isascii()
    assert [info.session_id for info in histories.list_sessions("u1", before=listed[-1].cursor)] == ["last"]
    assert [hit.session_id for hit in histories.search_messages("u1", "nemo", before=found[-1].cursor)] == [
        name,
        "last",
        "last",
    ]


@pytest.mark.parametrize("change", [str.swapcase, lambda c: c[:-2], lambda c: c + "=", lambda c: c + " ", lambda c: ""])
def test_cursors_that_are_none(change: Callable[[str], str], path: Path) -> None:
    """What is no cursor is a ValueError, not another page."""
    histories = SQLiteChatMessageHistory.factory(path)
    histories("s1", "u1").add_messages(TURN)
    cursor = change(histories.list_sessions("u1")[0].cursor)
    with pytest.raises(ConfigurationError, match="before must be the `cursor` of the last item"):
        histories.list_sessions("u1", before=cursor)
