"""`SQLiteChatMessageHistory`: the contract, and what only a file can do wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.testing import ChatMessageHistoryContract, HistoryPropertiesContract


class TestFile(ChatMessageHistoryContract):
    @pytest.fixture
    def make_history(self, tmp_path: Path) -> Any:
        """Histories made one by one, on one file."""
        return lambda session_id, user_id=None: SQLiteChatMessageHistory(
            tmp_path / "chat.db", session_id, user_id=user_id
        )


class TestFactory(ChatMessageHistoryContract):
    @pytest.fixture
    def make_history(self, tmp_path: Path) -> Any:
        """Histories of one factory, on one file."""
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
            yield factory


class TestMemory(ChatMessageHistoryContract):
    @pytest.fixture
    def make_history(self) -> Any:
        """Histories of one factory, in memory."""
        with SQLiteChatMessageHistory.factory(":memory:") as factory:
            yield factory


class TestProperties(HistoryPropertiesContract):
    @pytest.fixture
    def make_history(self, tmp_path: Path) -> Any:
        """Histories of one factory, on one file."""
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
            yield factory
