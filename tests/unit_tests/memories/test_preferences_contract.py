"""Preference memory under the contract of all memories: in this process, and on SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteKeyValueStore
from langchain_memkit.stores.in_memory import MemoryStore
from testkit.memories import PreferenceCases, preferences_on


class TestInThisProcess(PreferenceCases):
    @pytest.fixture
    def make_memory(self) -> Any:
        """One store."""
        return preferences_on(MemoryStore())


class TestOnSQLite(PreferenceCases):
    @pytest.fixture
    def make_memory(self, tmp_path: Path) -> Any:
        """One file."""
        return preferences_on(SQLiteKeyValueStore(tmp_path / "memory.db"))
