"""Preference memory under the contract of all memories, on a real MongoDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from langchain_memkit import MongoDBChatMessageHistory
from testkit.memories import PreferenceCases, preferences_on


class TestOnMongoDB(PreferenceCases):
    @pytest.fixture
    def make_memory(self, server: Any, database: str) -> Iterator[Any]:
        """Two factories on one collection, one of them read-only."""
        with MongoDBChatMessageHistory.factory(server.uri, database) as histories:
            yield preferences_on(histories)
