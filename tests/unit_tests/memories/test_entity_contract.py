"""Entity memory under the contract of all memories: in this process, and on SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import EntityMemory, SpacyEntityExtractor, SQLiteKeyValueStore
from testkit.memories import HostileTexts


class TestInThisProcess(HostileTexts):
    @pytest.fixture
    def make_memory(self) -> Any:
        """One store, spaCy's model."""
        return options_too(None)


class TestOnSQLite(HostileTexts):
    @pytest.fixture
    def make_memory(self, tmp_path: Path) -> Any:
        """One file."""
        return options_too(SQLiteKeyValueStore(tmp_path / "memory.db"))


def options_too(store: Any) -> Any:
    """A factory that also takes `read_only`: two factories on one place."""
    writing = EntityMemory.factory(SpacyEntityExtractor(), store)
    reading = EntityMemory.factory(SpacyEntityExtractor(), store or writing._core.store, read_only=True)

    def make(session_id: str, user_id: str | None = None, *, read_only: bool = False) -> EntityMemory:
        return (reading if read_only else writing)(session_id, user_id)

    return make
