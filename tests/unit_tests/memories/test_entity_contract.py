"""Entity memory under the contract of all memories: in this process, and on SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteKeyValueStore
from testkit.memories import HostileTexts, entities_on


class TestInThisProcess(HostileTexts):
    @pytest.fixture
    def make_memory(self) -> Any:
        """One store."""
        return entities_on(None)


class TestOnSQLite(HostileTexts):
    @pytest.fixture
    def make_memory(self, tmp_path: Path) -> Any:
        """One file."""
        return entities_on(SQLiteKeyValueStore(tmp_path / "memory.db"))
