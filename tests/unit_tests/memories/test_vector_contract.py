"""The contract of recall on SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteVectorStore, WordLlamaEmbeddings
from testkit.memories import RecallCases


class TestSQLite(RecallCases):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Any:
        """A file."""
        store = SQLiteVectorStore(tmp_path / "memory.db", WordLlamaEmbeddings())
        yield store
        store.close()


class TestInMemory(RecallCases):
    @pytest.fixture
    def store(self) -> Any:
        """SQLite without a file."""
        store = SQLiteVectorStore(":memory:", WordLlamaEmbeddings())
        yield store
        store.close()
