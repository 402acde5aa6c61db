"""The turn over MongoDB, standalone and replica set."""

from __future__ import annotations

from typing import Any

import pytest

from langchain_memkit import MongoDBChatMessageHistory
from testkit.edits import EditedTurnCases
from testkit.turns import HistoryTurnCases


class TestMongoDB(HistoryTurnCases):
    @pytest.fixture
    def get_session_history(self, server: Any, database: str) -> Any:
        """A factory on one collection."""
        with MongoDBChatMessageHistory.factory(server.uri, database) as factory:
            yield factory


class TestEdits(EditedTurnCases):
    @pytest.fixture
    def get_session_history(self, server: Any, database: str) -> Any:
        """A factory on one collection."""
        with MongoDBChatMessageHistory.factory(server.uri, database) as factory:
            yield factory
