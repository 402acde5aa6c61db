"""The turn over SQLite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory
from testkit.edits import EditedTurnCases
from testkit.turns import HistoryTurnCases


class TestFile(HistoryTurnCases):
    @pytest.fixture
    def get_session_history(self, tmp_path: Path) -> Any:
        """A factory on one file."""
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
            yield factory


class TestEdits(EditedTurnCases):
    @pytest.fixture
    def get_session_history(self, tmp_path: Path) -> Any:
        """A factory on one file."""
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
            yield factory
