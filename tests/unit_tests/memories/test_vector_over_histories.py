"""Vector memory over SQLite histories: the contract of recall, and what only one log can give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory
from testkit.memories import RecallCases
from testkit.recall import HistoryRecallContract


class TestSQLite(HistoryRecallContract, RecallCases):
    @pytest.fixture
    def histories(self, tmp_path: Path) -> Any:
        """Histories in a file."""
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as made:
            yield made
