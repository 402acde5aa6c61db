"""The command line in this process, as a user would type it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from typer.testing import CliRunner

from langchain_memkit import SQLiteChatMessageHistory, SQLiteKeyValueStore
from langchain_memkit.base import user_prefix
from langchain_memkit.cli.app import app
from testkit.older_files import add_old_records


@pytest.fixture
def memkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs a command in a folder of the test's own; the result has `exit_code`, `stdout` and `stderr`."""
    monkeypatch.chdir(tmp_path)
    for name in ("MEMKIT_URI", "MEMKIT_FROM_URI", "MEMKIT_TO_URI"):
        monkeypatch.delenv(name, raising=False)
    return lambda *words, **options: CliRunner().invoke(app, list(map(str, words)), **options)


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A file with turns, keys, and vectors of an older version, of two users."""
    path = tmp_path / "full.db"
    with SQLiteChatMessageHistory.factory(path) as histories, SQLiteKeyValueStore(path) as keys:
        for user in ("u1", "u2"):
            for session in ("a", "b"):
                histories(session, user).add_messages([HumanMessage(f"{user} {session}"), AIMessage("yes")])
            hidden = histories("b", user).append_turn([HumanMessage("hidden")], turn_id="hidden")
            histories("b", user).delete_turn(hidden)
            rows = ("summary/a/x", "entities/fact/x", "entities/session/a", "key_value/entry/x", "own")
            keys.mset([(user_prefix(user) + row, {"n": 1}) for row in rows])
            add_old_records(path, user, "a", [f"{user} one", f"{user} two"])
    return path
