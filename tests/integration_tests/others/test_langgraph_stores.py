"""`LangGraphKeyValueStore` on stores that keep what they are given: SQLite, sync and async."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_tests.integration_tests import BaseStoreAsyncTests, BaseStoreSyncTests
from langgraph.store.sqlite import SqliteStore
from langgraph.store.sqlite.aio import AsyncSqliteStore

from langchain_memkit import KeyValueMemory, LangGraphKeyValueStore, SQLiteChatMessageHistory
from langchain_memkit.base import apurge_user
from testkit.key_values import KeyValueStoreCases

THREE = ({"a": 1}, {"b": [1, None]}, {"c": {"d": "e"}})


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[SqliteStore]:
    """LangGraph's store in a file, sync only, with a lifetime of items that is over at once."""
    connection = sqlite3.connect(tmp_path / "store.db", check_same_thread=False, isolation_level=None)
    store = SqliteStore(connection, ttl={"default_ttl": 0.0001, "omit_expired": True})
    store.setup()
    yield store
    connection.close()


@pytest.fixture
async def async_store(tmp_path: Path) -> AsyncIterator[AsyncSqliteStore]:
    """LangGraph's async store in a file."""
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        await store.setup()
        yield store


class TestSqlite(KeyValueStoreCases):
    @pytest.fixture
    def make_store(self, sqlite_store: SqliteStore) -> Any:
        """Adapters made one by one, on one file."""
        return lambda: LangGraphKeyValueStore(sqlite_store)


class TestLangChainSync(BaseStoreSyncTests[dict[str, Any]]):
    @pytest.fixture
    def kv_store(self, sqlite_store: SqliteStore) -> Any:
        """An empty store."""
        return LangGraphKeyValueStore(sqlite_store)

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return THREE


class TestLangChainAsync(BaseStoreAsyncTests[dict[str, Any]]):
    @pytest.fixture
    async def kv_store(self, async_store: AsyncSqliteStore) -> Any:
        """An empty store."""
        return LangGraphKeyValueStore(async_store)

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return THREE


def test_another_process(sqlite_store: SqliteStore, tmp_path: Path) -> None:
    """Another connection finds what was stored, although the store's default says that it has expired."""
    LangGraphKeyValueStore(sqlite_store).mset([("u1/a", {"n": 1})])
    sqlite_store.sweep_ttl()
    with SqliteStore.from_conn_string(str(tmp_path / "store.db")) as other:
        assert LangGraphKeyValueStore(other).mget(["u1/a"]) == [{"n": 1}]


async def test_a_users_memories(async_store: AsyncSqliteStore, tmp_path: Path) -> None:
    """Memories on an async-only store, beside the histories; a purge of the user leaves nothing of either."""
    kept = LangGraphKeyValueStore(async_store)
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    books = KeyValueMemory.factory(kept)
    turn = [HumanMessage("Nemo lives in Sydney.", id="1"), AIMessage("Noted.", id="2")]
    await histories("s1", "u1").aadd_messages(turn)
    await books("s1", "u1").aadd({"My Diary": "Dear diary ..."})
    assert "Dear diary" in (await books("s2", "u1").aload("Read My Diary."))[0].text
    counts = await apurge_user("u1", histories, books, kept)
    assert counts[0] == {"sessions": 1, "turns": 1}
    assert await async_store.asearch(("memkit",)) == []
    await histories.aclose()
