"""`SQLiteChatMessageHistory`: the contract, and what only a file can do wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langchain_memkit import SQLiteChatMessageHistory
from testkit.histories import HistoryCases
from testkit.properties import HistoryPropertiesContract


class TestFile(HistoryCases):
    @pytest.fixture
    def make_history(self, tmp_path: Path) -> Any:
        """Histories made one by one, on one file."""
        return lambda session_id, user_id=None: SQLiteChatMessageHistory(
            tmp_path / "chat.db", session_id, user_id=user_id
        )


class TestFactory(HistoryCases):
    @pytest.fixture
    def make_history(self, tmp_path: Path) -> Any:
        """Histories of one factory, on one file."""
        with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
            yield factory


class TestMemory(HistoryCases):
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


def test_ids_that_are_no_utf8(tmp_path: Path) -> None:
    """A message whose id cannot be written as UTF-8 comes back as it was."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as histories:
        histories("s1").add_messages([HumanMessage("hello", id="\ud800")])
        assert [m.id for m in histories("s1").messages] == ["\ud800"]
