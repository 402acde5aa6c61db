"""Summaries beside a history of MongoDB: the contract, on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory
from testkit.stored_summaries import StoredSummariesContract


class TestMongoDB(StoredSummariesContract):
    @pytest.fixture
    def histories(self, standalone: Any, database: str) -> Iterator[Any]:
        """A factory on one collection."""
        with MongoDBChatMessageHistory.factory(standalone.uri, database) as factory:
            yield factory

    @pytest.fixture
    def raw(self, standalone: Any, database: str) -> Iterator[Callable[[], str]]:
        """Reads the documents."""
        with MongoClient[dict[str, Any]](standalone.uri) as client:
            collection = client[database]["message_store"]
            yield lambda: "\n".join(sorted(json.dumps(d["value"]) for d in collection.find({"kind": "summary"})))
