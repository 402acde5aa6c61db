"""Preference memory under the contract of all memories, on SQLite: in this process, and in a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory
from testkit.memories import PreferenceCases, preferences_on


class TestInThisProcess(PreferenceCases):
    @pytest.fixture
    def make_memory(self) -> Any:
        """One database that lies in memory."""
        return preferences_on(SQLiteChatMessageHistory.factory(":memory:"))


class TestOnSQLite(PreferenceCases):
    @pytest.fixture
    def make_memory(self, tmp_path: Path) -> Iterator[Any]:
        """One file."""
        with SQLiteChatMessageHistory.factory(tmp_path / "memory.db") as histories:
            yield preferences_on(histories)
