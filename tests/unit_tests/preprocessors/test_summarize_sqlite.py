"""Summaries over `SQLiteChatMessageHistory` and `SQLiteKeyValueStore`: the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory, SQLiteKeyValueStore
from testkit.summaries import SummariesContract


class TestSQLite(SummariesContract):
    @pytest.fixture
    def get_session_history(self, tmp_path: Path) -> Any:
        """A factory on one file."""
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
            yield factory

    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Any:
        """Opens the same file, each time anew."""
        return lambda: SQLiteKeyValueStore(tmp_path / "chat.db")
