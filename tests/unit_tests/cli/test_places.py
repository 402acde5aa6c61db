"""How places are named, and what is found there."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.cli.targets import Format, Target, check_target, detect_format
from langchain_memkit.errors import ConfigurationError


@pytest.mark.parametrize(
    ("uri", "label", "database"),
    [
        ("mongodb://h:1", "h:1", "chat_history"),
        ("mongodb://h:1,g:2/?replicaSet=rs0", "h:1,g:2", "chat_history"),
        ("mongodb://u:p%40%2F@h/my%20chat?x=1", "h", "my chat"),
        ("mongodb+srv://u:p@cluster.example/chat", "cluster.example", "chat"),
    ],
)
def test_uris(uri: str, label: str, database: str) -> None:
    """The database may stand in the URI, an option wins, and neither label nor repr shows credentials."""
    place = check_target(Target(where=uri), "--from")
    assert (place.label, place.database, place.is_mongodb) == (label, database, True)
    assert check_target(Target(where=uri, given_database="other"), "--from").database == "other"
    assert "u:p" not in repr(place)


@pytest.mark.parametrize(
    ("where", "names", "match"),
    [
        ("", {}, "MEMKIT_URI"),
        ("", {}, "--from"),
        (":memory:", {}, "name a file"),
        ("nothing.db", {}, "no such file"),
        ("chat.db", {"given_database": "x"}, "no MongoDB"),
        ("postgresql://u:p@h/x", {"given_database": "x"}, "^h is no MongoDB"),
        ("postgresql://u:p/q@h/x", {"given_database": "x"}, "^the server is no MongoDB"),
        ("mongodb://u:p/q@h/chat", {}, "^--from is not valid: percent-encode .*quote_plus"),
    ],
)
def test_refused(where: str, names: dict[str, Any], match: str) -> None:
    """What cannot be a place is refused before anything is opened."""
    with pytest.raises(ConfigurationError, match=match):
        check_target(Target(where=where, **names), "--from")


def make(kind: str, folder: Path) -> Path:
    """A file or folder of a kind."""
    path = folder / kind
    if kind == "folder":
        path.mkdir()
    elif kind == "json":
        path.write_text(json.dumps([]))
    elif kind == "memkit":
        SQLiteChatMessageHistory(path, "s").add_user_message("x")
    else:
        with closing(sqlite3.connect(path)) as connection:
            for table in kind.split("+"):
                connection.execute(f"CREATE TABLE {table} (id INTEGER)")
    return path


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("memkit", Format.MEMKIT),
        ("message_store", Format.SQL),
        ("checkpoints+writes", Format.LANGGRAPH),
        ("folder", Format.FILE),
        ("json", Format.FILE),
    ],
)
def test_formats_are_found_out(kind: str, found: Format, tmp_path: Path) -> None:
    """One kind of conversations in a file is recognised; what the user says counts more."""
    place = check_target(Target(where=str(make(kind, tmp_path))), "--from")
    assert detect_format(place, None, "--from") == (found, None)
    assert detect_format(place, Format.SQL, "--from") == (Format.SQL, None)


@pytest.mark.parametrize("kind", ["message_store+checkpoints", "unknown"])
def test_formats_that_are_not_clear(kind: str, tmp_path: Path) -> None:
    """Two kinds in one file, or none, are asked about and not guessed."""
    place = check_target(Target(where=str(make(kind, tmp_path))), "--from")
    with pytest.raises(ConfigurationError, match="--from-format"):
        detect_format(place, None, "--from")


def test_looking_changes_nothing(tmp_path: Path, memkit: Callable[..., Any]) -> None:
    """Finding out the format and a doctor's look make no table and leave no file behind."""
    path = make("message_store", tmp_path)
    before = path.read_bytes()
    detect_format(check_target(Target(where=str(path)), "--from"), None, "--from")
    assert memkit("doctor", path).exit_code == 0
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
