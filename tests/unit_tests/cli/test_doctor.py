"""`memkit doctor` on this machine and on files."""

from __future__ import annotations

import json
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.cli import doctor as environment
from langchain_memkit.errors import SpacyModelMissing

Memkit = Callable[..., Any]
BROKEN = """
import sys
sys.path.insert(0, ".")
from langchain_memkit.cli import main
sys.exit(main(["doctor"]))
"""


def looked_at(memkit: Memkit, *words: Any) -> tuple[int, dict[str, dict[str, str]]]:
    """The exit code and the checks by their subject."""
    done = memkit("doctor", *words, "--json")
    return done.exit_code, {check["subject"]: check for check in json.loads(done.stdout)}


def test_this_machine(memkit: Memkit) -> None:
    """Without a place: versions, extras, the spaCy pipeline; every line has a status and a text."""
    code, checks = looked_at(memkit)
    assert code == 0
    assert {"Python", "SQLite", "langchain-memkit", "langchain-core", "extra cli", "spaCy pipeline"} <= set(checks)
    assert all(check["status"] in ("ok", "warn", "fail") and check["found"] for check in checks.values())
    lines = memkit("doctor").stdout.splitlines()
    assert sum(line.startswith("ok    ") for line in lines) == len(checks)


def test_what_is_not_installed(memkit: Memkit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing extra is no fault, and the line says how to get it; a version that does not fit is a warning."""
    known = environment.package_version
    versions = {"pymongo": None, "rich": "1.0"}
    monkeypatch.setattr(
        environment, "package_version", lambda name=environment.PACKAGE: versions.get(name, known(name))
    )
    code, checks = looked_at(memkit)
    assert code == 0
    assert checks["extra mongodb"]["found"] == "not installed: pymongo"
    assert 'pip install "langchain-memkit[mongodb]"' in checks["extra mongodb"]["advice"]
    assert (checks["extra cli"]["status"], checks["extra cli"]["found"][:18]) == ("warn", "rich 1.0 is not <1")


def test_no_pipeline(memkit: Memkit, monkeypatch: pytest.MonkeyPatch) -> None:
    """No trained pipeline is a warning with the ways to one."""
    monkeypatch.setenv("MEMKIT_SPACY_MODEL", "no_such_model")
    _, checks = looked_at(memkit)
    assert checks["spaCy pipeline"]["status"] == "warn"
    assert "python -m spacy download" in checks["spaCy pipeline"]["advice"]
    assert issubclass(SpacyModelMissing, ImportError)


def test_a_file_that_is_well(memkit: Memkit, full: Path) -> None:
    """Integrity, format, journal, log and room each have their line."""
    code, checks = looked_at(memkit, full)
    assert code == 0
    parts = ("integrity", "format", "journal", "write-ahead log", "rights", "room")
    assert [checks[f"{full}: {part}"]["status"] for part in parts] == ["ok"] * 6
    assert checks[f"{full}: rights"]["found"] == "0600: its owner alone"
    assert checks[f"{full}: format"]["found"] == "5 of 5"


@pytest.mark.parametrize(
    ("mode", "status", "found"),
    [(0o644, "warn", "may read"), (0o602, "warn", "may write"), (0o660, "ok", "its owner and its group")],
)
def test_files_that_others_can_read(memkit: Memkit, full: Path, mode: int, status: str, found: str) -> None:
    """A file that every user of the machine can read, as memkit made them before, is a warning with the way out."""
    full.chmod(mode)
    code, checks = looked_at(memkit, full)
    rights = checks[f"{full}: rights"]
    assert (code, rights["status"]) == (0, status)
    assert found in rights["found"]
    assert ("chmod 600" in rights["advice"]) == (status == "warn")


def test_missing_indexes_are_built(memkit: Memkit, full: Path) -> None:
    """A missing index or trigger fails; --fix says what it builds, builds it, and then all is well."""
    with closing(sqlite3.connect(full)) as connection:
        connection.executescript("DROP INDEX turns_expires; DROP TRIGGER turns_deleted")
    code, checks = looked_at(memkit, full)
    assert (code, checks[f"{full}: turns_expires"]["found"]) == (1, "missing")
    done = memkit("doctor", full, "--fix")
    assert done.exit_code == 0, done.output
    assert f"{full}: building turns_expires, turns_deleted" in done.stderr
    assert looked_at(memkit, full)[0] == 0


def test_a_wrong_table_is_left_alone(memkit: Memkit, full: Path) -> None:
    """What --fix cannot make without touching content fails and stays as it is."""
    with closing(sqlite3.connect(full)) as connection:
        connection.execute("ALTER TABLE key_values ADD COLUMN more TEXT")
    done = memkit("doctor", full, "--fix")
    assert done.exit_code == 1
    assert "not as memkit makes it" in done.stdout


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
    for version, code in ((9, 1), (2, 0)):
        with closing(sqlite3.connect(full)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
            if version == 2:
                connection.executescript("DROP TRIGGER turns_edited; ALTER TABLE turns DROP COLUMN checksum")
        found, checks = looked_at(memkit, full)
        assert (found, checks[f"{full}: format"]["found"][:6]) == (code, f"{version} of 5")


def test_a_log_left_over(memkit: Memkit, full: Path) -> None:
    """A write-ahead log that an app has open, or that a killed one left, is said with its size."""
    with closing(sqlite3.connect(full)) as connection:
        connection.execute("INSERT INTO key_values VALUES ('x', '{}', 1)")
        connection.commit()
        _, checks = looked_at(memkit, full)
    assert "was killed; nothing is lost" in checks[f"{full}: write-ahead log"]["found"]


def test_histories_of_others_are_pointed_out(memkit: Memkit, full: Path) -> None:
    """Tables of other packages in the file are named with the command that moves them in."""
    with closing(sqlite3.connect(full)) as connection:
        connection.execute("CREATE TABLE message_store (id INTEGER)")
    _, checks = looked_at(memkit, full)
    assert "--from-format sql" in checks[f"{full}: message_store"]["advice"]


def test_one_file_that_cannot_be_opened(memkit: Memkit, full: Path) -> None:
    """What the system does not open is a line like any other, and so are all that were looked at."""
    with closing(socket.socket(socket.AF_UNIX)) as nothing:
        nothing.bind("x.db")  # which not even root can open
        code, checks = looked_at(memkit, full, "x.db")
    assert (code, checks["x.db"]["status"], checks["x.db"]["found"]) == (1, "fail", "No such device or address")
    assert checks[f"{full}: integrity"]["status"] == "ok"


def test_spacy_that_is_broken(memkit: Memkit, tmp_path: Path) -> None:
    """A spaCy that fails in whatever way is a warning, and the other lines are printed."""
    (tmp_path / "spacy.py").write_text("raise RuntimeError('numpy is another')")
    command = [sys.executable, "-c", BROKEN]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "warn  spaCy pipeline: spaCy cannot be used: RuntimeError: numpy is another" in done.stdout, done.stderr
    assert "ok    Python" in done.stdout


def test_tables_of_others(memkit: Memkit, tmp_path: Path) -> None:
    """An app's own tables in the file are named, since such a file is not written anew after a clear."""
    SQLiteChatMessageHistory(tmp_path / "chat.db", "s1").add_user_message("hi")
    with closing(sqlite3.connect(tmp_path / "chat.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    code, checks = looked_at(memkit, "chat.db")
    assert code == 0
    assert checks["chat.db: tables of others"]["found"] == "orders"
    assert "not written anew" in checks["chat.db: tables of others"]["advice"]
