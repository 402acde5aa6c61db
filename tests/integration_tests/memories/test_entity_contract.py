"""Entity memory under the contract of all memories, on a real MongoDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from langchain_memkit import MongoDBChatMessageHistory
from testkit.memories import HostileTexts, entities_on


class TestOnMongoDB(HostileTexts):
    @pytest.fixture
    def make_memory(self, server: Any, database: str) -> Iterator[Any]:
        """Two factories on one collection, one of them read-only."""
        with MongoDBChatMessageHistory.factory(server.uri, database) as histories:
            yield entities_on(histories)
