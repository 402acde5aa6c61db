"""`memkit migrate`, `export` and `import` on files."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import sys
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import SQLiteChatMessageHistory

pytestmark = pytest.mark.filterwarnings("ignore:The class `.*ChatMessageHistory` was deprecated")
Memkit = Callable[..., Any]


def turns(path: Path, session: str = "s1", user: str | None = None) -> list[list[str]]:
    """What a session holds, turn by turn."""
    return [
        [m.text for m in turn.messages] for turn in SQLiteChatMessageHistory(path, session, user_id=user).iter_turns()
    ]


@pytest.fixture
def sql(tmp_path: Path, community: Any) -> Path:
    """A file that the real SQLChatMessageHistory wrote."""
    path = tmp_path / "old.db"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        history = community.SQLChatMessageHistory("s1", connection=f"sqlite:///{path}")
    for i in range(2):
        history.add_messages([HumanMessage(f"q{i}"), AIMessage(f"a{i}")])
    history.engine.dispose()
    return path


@pytest.fixture
def folder(tmp_path: Path, community: Any) -> Path:
    """A folder that the real FileChatMessageHistory wrote, and a file that was cut off."""
    path = tmp_path / "files"
    path.mkdir()
    community.FileChatMessageHistory(str(path / "s1.json")).add_messages([HumanMessage("q"), AIMessage("a")])
    whole = (path / "s1.json").read_text()
    (path / "s2.json").write_text(whole[:-20])
    return path


def test_sql_history_moves_in(memkit: Memkit, sql: Path, tmp_path: Path) -> None:
    """A table of langchain-community is recognised, moved to a user, and moved once however often it is run."""
    for _ in range(2):
        done = memkit("migrate", "--from", sql, "--to", "new.db", "--user", "u1")
        assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == ["moved     count", "sessions  1", "turns     2", "messages  4"]
    assert done.stderr == f"from {sql} (sql) to new.db (memkit)\n"
    assert turns(tmp_path / "new.db", user="u1") == [["q0", "a0"], ["q1", "a1"]]


def test_a_table_of_another_name(memkit: Memkit, sql: Path, tmp_path: Path) -> None:
    """The table and its column can be named, and what is not there is said."""
    with closing(sqlite3.connect(sql)) as connection:
        connection.executescript(
            "ALTER TABLE message_store RENAME TO chats; ALTER TABLE chats RENAME session_id TO chat;"
        )
    words = ("migrate", "--from", sql, "--from-format", "sql", "--to", "new.db")
    assert memkit(*words).exit_code == 2
    done = memkit(*words, "--table", "chats", "--session-id-column", "chat")
    assert done.exit_code == 0, done.stderr
    assert len(turns(tmp_path / "new.db")) == 2


def test_what_is_skipped_is_told(memkit: Memkit, folder: Path, tmp_path: Path) -> None:
    """What could not be moved stands in the report with its reason, and the exit code is 1."""
    done = memkit("migrate", "--from", folder, "--to", "new.db")
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[4] == ""
    assert lines[5].split() == ["skipped", "why"]
    assert lines[6].startswith("session 's2', file s2.json")
    assert turns(tmp_path / "new.db") == [["q", "a"]]


def test_dry_run_makes_nothing(memkit: Memkit, sql: Path, tmp_path: Path) -> None:
    """A dry run counts the same, and there is no new file."""
    done = memkit("migrate", "--from", sql, "--to", "new.db", "--dry-run")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "would be moved  count")
    assert "messages        4" in done.stdout
    assert not (tmp_path / "new.db").exists()


def test_from_the_environment(memkit: Memkit, sql: Path, tmp_path: Path) -> None:
    """WHERE may come from MEMKIT_URI, and each side from a variable of its own."""
    assert memkit("migrate", "--to", "new.db", env={"MEMKIT_URI": str(sql)}).exit_code == 0
    sides = {"MEMKIT_FROM_URI": str(tmp_path / "new.db"), "MEMKIT_TO_URI": str(tmp_path / "newer.db")}
    assert memkit("migrate", env={**sides, "MEMKIT_URI": "nowhere/at/all"}).exit_code == 0
    assert turns(tmp_path / "newer.db") == [["q0", "a0"], ["q1", "a1"]]
    assert memkit("doctor", env={"MEMKIT_URI": str(tmp_path / "newer.db")}).stdout.count("newer.db") >= 4


def test_import_has_limits(memkit: Memkit, full: Path) -> None:
    """A line over --max-line is left out and named; more than --max-size in all ends the import; both can be raised."""
    SQLiteChatMessageHistory(full, "long").add_user_message("x" * 2_000_000)
    assert memkit("export", "all.jsonl.gz", "--from", full).exit_code == 0
    left_out = memkit("import", "all.jsonl.gz", "--to", "a.db", "--max-line", "1")
    assert left_out.exit_code == 1
    assert "longer than 1 MB" in " ".join(left_out.stdout.split())
    ended = memkit("import", "all.jsonl.gz", "--to", "b.db", "--max-size", "1")
    assert ended.exit_code != 0
    assert "--max-size" in ended.output
    assert memkit("import", "all.jsonl.gz", "--to", "c.db", "--max-line", "2").exit_code == 0
    assert memkit("import", "all.jsonl.gz", "--to", "c.db", "--max-line", "0").exit_code == 2


def test_quiet(memkit: Memkit, sql: Path, folder: Path) -> None:
    """--quiet prints nothing, and the exit code still tells."""
    done = memkit("migrate", "--from", folder, "--to", "new.db", "--quiet")
    assert (done.exit_code, done.output) == (1, "")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["migrate", "--from", "full.db"], "--to"),
        (["migrate", "--from", "full.db", "--to", "full.db"], "same place"),
        (["migrate", "--from", "full.db", "--to", "x/y.db"], "folder does not exist"),
        (["migrate", "--from", "full.db", "--to", "y.db", "--to-format", "qa"], "no MongoDB"),
        (["migrate", "--from", "full.db", "--to", "y.db", "--from-format", "what"], "memkit --help"),
        (["migrate", "--from", "full.db", "--to", "text.txt"], "neither"),
        (["migrate", "--from", "text.txt", "--to", "y.db", "--from-format", "memkit"], "neither"),
        (["migrate", "--from", "full.db", "--to", "y.db", "--user", "x\x00"], "without NUL"),
        (["export"], "FILE"),
        (["export", "nowhere/x.jsonl", "--from", "full.db"], "nowhere"),
        (["import", "nothing.jsonl", "--to", "y.db"], "nothing.jsonl"),
        (["import", "nothing.gz", "--to", "y.db"], "nothing.gz"),
        (["import", "text.txt", "--to", "y.db"], "no export"),
        (["nonsense"], "nonsense"),
    ],
)
def test_usage_errors(memkit: Memkit, full: Path, words: list[str], match: str) -> None:
    """A command that cannot be run says why in one line, exits with 2 and writes nothing."""
    (full.parent / "text.txt").write_text("text")
    done = memkit(*words)
    assert done.exit_code == 2
    assert match in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("memkit: ")
    assert "Traceback" not in done.stderr
    assert not (full.parent / "y.db").exists()


def test_a_store_that_fails(memkit: Memkit, sql: Path, tmp_path: Path) -> None:
    """A store that cannot be written is exit code 3 and says to run it again."""
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection:
        connection.execute("CREATE TABLE turns (id INTEGER)")
    done = memkit("migrate", "--from", sql, "--to", "new.db")
    assert done.exit_code == 3
    assert "Run the same command again" in done.stderr
    assert "Traceback" in memkit("migrate", "--from", sql, "--to", "new.db", "--debug").stderr


@pytest.mark.parametrize("name", ["all.jsonl", "all.jsonl.gz", "-"])
def test_export_and_import(memkit: Memkit, full: Path, name: str, tmp_path: Path) -> None:
    """What was exported comes back equal, hidden turns included, through a file, a packed one and a pipe."""
    exported = memkit("export", name, "--from", full)
    assert exported.exit_code == 0, exported.stderr
    data = exported.stdout_bytes if name == "-" else (tmp_path / name).read_bytes()
    lines = (gzip.decompress(data) if name.endswith("gz") else data).splitlines()
    assert len(lines) == 8  # 6 turns
    for _ in range(2):
        imported = memkit("import", name, "--to", "copy.db", input=data if name == "-" else None)
        assert imported.exit_code == 0, imported.stderr
    for user in ("u1", "u2"):
        for session in ("a", "b"):
            assert turns(tmp_path / "copy.db", session, user) == turns(full, session, user)
    again = memkit("export", "-", "--from", "copy.db").stdout_bytes
    assert sorted(again.splitlines()[1:]) == sorted(lines[1:])


def test_only_one_user(memkit: Memkit, full: Path, tmp_path: Path) -> None:
    """--user exports and imports the conversations of one user only."""
    memkit("export", "all.jsonl", "--from", full)
    memkit("export", "one.jsonl", "--from", full, "--user", "u1")
    assert "u2" not in (tmp_path / "one.jsonl").read_text()
    memkit("import", "all.jsonl", "--to", "one.db", "--user", "u2")
    with SQLiteChatMessageHistory.factory(tmp_path / "one.db") as histories:
        assert (len(histories.list_sessions("u1")), len(histories.list_sessions("u2"))) == (0, 2)
    done = memkit("import", "all.jsonl", "--to", "none.db", "--dry-run")
    assert "would be imported" in done.stdout
    assert not (tmp_path / "none.db").exists()


def test_exports_are_private(memkit: Memkit, full: Path, tmp_path: Path) -> None:
    """Only its owner reads an export, packed or not, and nothing half-written stands under its name."""
    for name in ("a.jsonl", "a.gz"):
        memkit("export", name, "--from", full)
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    full.write_bytes(full.read_bytes()[:100] + b"\x00" * 5000)
    broken = memkit("export", "b.gz", "--from", full)
    assert broken.exit_code in (1, 3)
    assert not (tmp_path / "b.gz").exists()


def test_a_cut_off_export(memkit: Memkit, full: Path, tmp_path: Path) -> None:
    """What is whole of a file that was cut off comes in, and the rest is reported."""
    memkit("export", "all.jsonl", "--from", full)
    whole = (tmp_path / "all.jsonl").read_text()
    done = memkit("import", "-", "--to", "copy.db", input=whole[:-100])
    assert done.exit_code == 1
    assert "cut off" in done.stdout


def test_hostile_ids_are_shown_as_text(memkit: Memkit, tmp_path: Path) -> None:
    """An id full of control characters and markup is printed without effect."""
    path = tmp_path / "\x1b[31m[bold].json"
    path.write_text(json.dumps([{"type": "human", "data": {"content": "x"}}, {"type": "[red]\x1b[2J", "data": {}}]))
    done = memkit("migrate", "--from", path, "--to", "new.db")
    assert done.exit_code == 1
    assert "\x1b" not in done.output
    assert "[bold]" in done.stdout
    assert "\\x1b" in done.stdout


def test_no_bar_in_a_pipe(memkit: Memkit, sql: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar is asked for on a terminal only, and never with --no-progress."""
    asked: list[bool] = []

    def record(*args: Any, progress: bool, **kwargs: Any) -> Any:
        from langchain_memkit.migrate import MigrationReport

        asked.append(progress)
        return MigrationReport()

    monkeypatch.setattr("langchain_memkit.migrate.migrate", record)
    words = ("migrate", "--from", sql, "--to", "new.db")
    memkit(*words)
    monkeypatch.setattr("langchain_memkit.cli.output.Output.is_terminal", True)
    memkit(*words)
    memkit(*words, "--no-progress")
    memkit(*words, "--quiet")
    assert asked == [False, True, False, False]


def test_output_survives_an_old_terminal(memkit: Memkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal without Unicode shows escapes instead of failing."""
    from langchain_memkit.cli.output import Output

    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    Output().line("für Nemo")
    stream.flush()
    assert stream.buffer.getvalue() == b"f\\xfcr Nemo\n"  # type: ignore[attr-defined]  # a BytesIO
