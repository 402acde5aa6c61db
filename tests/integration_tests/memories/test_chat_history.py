"""A MongoDB history as a memory: the contract on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from langchain_memkit import ChatHistoryMemory, MongoDBChatMessageHistory
from testkit.memories import HostileTexts


class TestOnMongoDB(HostileTexts):
    across_sessions = False

    @pytest.fixture
    def make_memory(self, server: Any, database: str) -> Iterator[Any]:
        """Over one collection."""
        with MongoDBChatMessageHistory.factory(server.uri, database_name=database) as histories:

            def make(session_id: str, user_id: str | None = None, **options: Any) -> ChatHistoryMemory:
                return ChatHistoryMemory(histories(session_id, user_id), **options)

            yield make
