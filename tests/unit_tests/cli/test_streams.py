"""What `memkit export` refuses to replace, and what it leaves behind."""

from __future__ import annotations

import gzip
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

Memkit = Callable[..., Any]


def content(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["full.db", "full.db-wal", "full.db-shm", "soft", "hard", "other.db", "other.db-wal"])
def test_no_database_is_replaced(memkit: Memkit, full: Path, tmp_path: Path, name: str) -> None:
    """The source, what belongs to it, another name of it and any other database stay."""
    (tmp_path / "soft").symlink_to(full)
    (tmp_path / "hard").hardlink_to(full)
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE mine (id INTEGER)")
    before = content(tmp_path)
    for words in (("--from", full), ()):
        done = memkit("export", name, *words, env={"MEMKIT_URI": str(full)})
        assert (done.exit_code, "is a database" in done.stderr) == (2, True), done.output
    assert content(tmp_path) == before


def test_other_files_are_replaced(memkit: Memkit, full: Path, tmp_path: Path) -> None:
    """An older export, an empty file and a name that only looks like a log are written."""
    (tmp_path / "empty.jsonl").touch()
    for name in ("empty.jsonl", "empty.jsonl", "my-wal"):
        assert memkit("export", name, "--from", full, "--yes").exit_code == 0
        assert (tmp_path / name).read_text().startswith('{"memkit": "export"')


@pytest.mark.parametrize("kind", ["gz", "jsonl"])
def test_an_export_follows_no_link(memkit: Memkit, full: Path, tmp_path: Path, kind: str) -> None:
    """What others put beside it is neither written through nor given the export to read."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / f"a.{kind}.part").symlink_to(precious)
    (tmp_path / f"b.{kind}.part").touch(0o666)
    for name in (f"a.{kind}", f"b.{kind}"):
        assert memkit("export", name, "--from", full).exit_code == 0
        data = (tmp_path / name).read_bytes()
        assert (gzip.decompress(data) if kind == "gz" else data).startswith(b'{"memkit": "export"')
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_nothing_is_left_of_what_broke_off(
    memkit: Memkit, full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Ctrl-C and a full disk leave neither the file nor a part of it."""

    def fail(number: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    done = memkit("export", "x.gz", "--from", full)
    assert done.exit_code == (130 if isinstance(error, KeyboardInterrupt) else 3)
    assert not list(tmp_path.glob("x.gz*"))


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A file of another application."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT)")
    return path


def test_a_foreign_file_stays_as_it_is(memkit: Memkit, full: Path, foreign: Path, tmp_path: Path) -> None:
    """A file of another application is neither written to nor opened as ours."""
    before = foreign.read_bytes()
    assert memkit("export", "all.jsonl", "--from", full).exit_code == 0
    for words in (
        ("migrate", "--from", full, "--to", foreign),
        ("migrate", "--from", full, "--to", foreign, "--dry-run"),
        ("migrate", "--from", foreign, "--from-format", "memkit", "--to", "new.db"),
        ("import", "all.jsonl", "--to", foreign),
        ("export", "new.jsonl", "--from", foreign, "--from-format", "memkit"),
    ):
        done = memkit(*words)
        assert (done.exit_code, "none of memkit" in done.stderr) == (2, True), done.output
    assert foreign.read_bytes() == before
    assert not list(tmp_path.glob("app.db-*"))


def test_who_names_a_file_twice_means_it(memkit: Memkit, foreign: Path) -> None:
    """A history of another package may be moved within its own file."""
    done = memkit("migrate", "--from", foreign, "--to", "app.db")
    assert done.exit_code == 0, done.output
