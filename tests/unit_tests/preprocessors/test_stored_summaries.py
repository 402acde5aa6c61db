"""Summaries beside a history of SQLite: the contract, and what is kept elsewhere."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory
from testkit.stored_summaries import StoredSummariesContract


class TestSQLite(StoredSummariesContract):
    @pytest.fixture
    def histories(self, tmp_path: Path) -> Iterator[Any]:
        """A factory on one file."""
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
            yield factory

    @pytest.fixture
    def raw(self, tmp_path: Path) -> Callable[[], str]:
        """Reads the table."""

        def read() -> str:
            with closing(sqlite3.connect(tmp_path / "chat.db")) as connection:
                rows = connection.execute("SELECT value FROM summaries ORDER BY 1").fetchall()
            return "\n".join(value for (value,) in rows)

        return read
