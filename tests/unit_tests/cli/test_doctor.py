"""`memkit doctor` on this machine and on files."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from testkit.older_files import WITHOUT_CHANGES

Memkit = Callable[..., Any]


def looked_at(memkit: Memkit, *words: Any) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code and the checks by their subject."""
    done = memkit("doctor", *words, "--json")
    return done.exit_code, {check["subject"]: check for check in json.loads(done.stdout)}


def test_this_machine(memkit: Memkit) -> None:
    """Without a place: versions; every line has a status and a text."""
    code, checks = looked_at(memkit)
    assert code == 0
    assert list(checks) == ["Python", "SQLite", "langchain-memkit", "langchain-core"]
    assert all(check["status"] == "ok" and check["found"] for check in checks.values())
    lines = memkit("doctor").stdout.splitlines()
    assert sum(line.startswith("ok    ") for line in lines) == len(checks)


def test_a_file_that_is_well(memkit: Memkit, full: Path) -> None:
    """Content, integrity, format and rights each have their line."""
    code, checks = looked_at(memkit, full)
    assert code == 0
    assert checks[str(full)]["found"] == "6 turns, 10 key_values, 4 vectors"
    assert [checks[f"{full}: {part}"]["status"] for part in ("integrity", "format", "rights")] == ["ok"] * 3
    assert checks[f"{full}: rights"]["found"] == "0600"
    assert checks[f"{full}: format"]["found"] == "10 of 10"


@pytest.mark.parametrize(
    ("mode", "status", "found"),
    [(0o644, "warn", "may read or write 0644"), (0o602, "warn", "may read or write 0602"), (0o660, "ok", "0660")],
)
def test_files_that_others_can_read(memkit: Memkit, full: Path, mode: int, status: str, found: str) -> None:
    """A file that every user of the machine can read, as memkit made them before, is a warning with the way out."""
    full.chmod(mode)
    code, checks = looked_at(memkit, full)
    rights = checks[f"{full}: rights"]
    assert (code, rights["status"]) == (0, status)
    assert found in rights["found"]
    assert ("chmod 600" in rights["advice"]) == (status == "warn")


def test_damage_is_found(memkit: Memkit, full: Path) -> None:
    """A damaged file fails, with what can still be done."""
    data = bytearray(full.read_bytes())
    data[8192:16384] = b"\xff" * 8192
    full.write_bytes(bytes(data))
    done = memkit("doctor", full)
    assert done.exit_code == 1
    assert "fail " in done.stdout
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("content", "found"), [(b"no database at all", "is no SQLite file"), (b"SQLite format 3\x00" + b"\x07" * 200, "")]
)
def test_no_database(memkit: Memkit, tmp_path: Path, content: bytes, found: str) -> None:
    """Another file, or one that only begins like a database, fails in one line."""
    path = tmp_path / "x.db"
    path.write_bytes(content)
    done = memkit("doctor", path, "--fix")
    assert done.exit_code == 1
    assert found in done.stdout
    assert path.read_bytes() == content


def test_formats(memkit: Memkit, full: Path) -> None:
    """A newer format fails, an older one is brought up to date by the next use, and says so."""
    for version, code in ((11, 1), (2, 0)):
        with closing(sqlite3.connect(full)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
            if version == 2:
                connection.executescript(
                    f"{WITHOUT_CHANGES} DROP TRIGGER turns_edited; ALTER TABLE turns DROP COLUMN checksum;"
                    "DROP INDEX turns_replaces; ALTER TABLE turns DROP COLUMN replaces"
                )
        found, checks = looked_at(memkit, full)
        told = checks[f"{full}: format"]["found"].split(";")[0]
        assert (found, told.startswith(f"{version} of 10")) == (code, True)


def test_one_file_that_cannot_be_opened(memkit: Memkit, full: Path) -> None:
    """What the system does not open is a line like any other, and so are all that were looked at."""
    with closing(socket.socket(socket.AF_UNIX)) as nothing:
        nothing.bind("x.db")  # which not even root can open
        code, checks = looked_at(memkit, full, "x.db")
    assert (code, checks["x.db"]["status"], checks["x.db"]["found"]) == (1, "fail", "No such device or address")
    assert checks[f"{full}: integrity"]["status"] == "ok"
