"""Entity memory under the contract of all memories, on a real MongoDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from langchain_memkit import EntityMemory, MongoDBKeyValueStore, SpacyEntityExtractor
from testkit.memories import HostileTexts


class TestOnMongoDB(HostileTexts):
    @pytest.fixture
    def make_memory(self, server: Any, database: str) -> Iterator[Any]:
        """Two factories on one collection, one of them read-only."""
        with MongoDBKeyValueStore(server.uri, database, "key_value") as store:
            writing = EntityMemory.factory(SpacyEntityExtractor(), store)
            reading = EntityMemory.factory(SpacyEntityExtractor(), store, read_only=True)

            def make(session_id: str, user_id: str | None = None, *, read_only: bool = False) -> EntityMemory:
                return (reading if read_only else writing)(session_id, user_id)

            yield make
