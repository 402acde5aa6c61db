"""The contract on a real MongoDB, standalone and replica set."""

from __future__ import annotations

from typing import Any

import pytest

from langchain_memkit import MongoDBChatMessageHistory
from testkit.histories import HistoryCases
from testkit.properties import HistoryPropertiesContract


class TestDropIn(HistoryCases):
    @pytest.fixture
    def make_history(self, server: Any, database: str) -> Any:
        """Histories made one by one, as with langchain-mongodb."""
        return lambda session_id, user_id=None: MongoDBChatMessageHistory(
            server.uri, session_id, database, user_id=user_id
        )


class TestFactory(HistoryCases):
    @pytest.fixture
    def make_history(self, standalone: Any, database: str) -> Any:
        """Histories of one factory."""
        with MongoDBChatMessageHistory.factory(standalone.uri, database) as factory:
            yield factory


class TestGivenClient(HistoryCases):
    @pytest.fixture
    def make_history(self, standalone: Any, database: str) -> Any:
        """Histories on the caller's own sync client: async calls run in a thread."""
        from pymongo import MongoClient

        with MongoClient(standalone.uri) as client:
            yield MongoDBChatMessageHistory.factory(None, database, client=client)


class TestProperties(HistoryPropertiesContract):
    @pytest.fixture
    def make_history(self, standalone: Any, database: str) -> Any:
        """Histories of one factory."""
        with MongoDBChatMessageHistory.factory(standalone.uri, database) as factory:
            yield factory
