"""The contract of recall on MongoDB."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import MongoDBVectorStore, VectorMemory, WordLlamaEmbeddings
from langchain_memkit.errors import HistoryReadError, HistoryWriteError
from testkit.memories import RecallCases


class TestOnMongoDB(RecallCases):
    @pytest.fixture
    def store(self, standalone: Any, database: str) -> Iterator[MongoDBVectorStore]:
        """A collection of its own."""
        with MongoDBVectorStore(standalone.uri, WordLlamaEmbeddings(), database) as store:
            yield store


async def test_a_server_that_is_down() -> None:
    """A load fails as a read and a save as a write that stored nothing, in both styles; no credentials in the text."""
    store = MongoDBVectorStore("mongodb://bob:secret@127.0.0.1:1", WordLlamaEmbeddings(), timeout=0.5)
    memory = VectorMemory(store, "s1", user_id="u1")
    turn = [HumanMessage("My cat is called Nemo."), AIMessage("Cute!")]
    with pytest.raises(HistoryReadError) as read:
        memory.load("Who is Nemo?")
    with pytest.raises(HistoryReadError):
        await memory.aload("Who is Nemo?")
    with pytest.raises(HistoryWriteError, match="nothing of the turn was stored") as write:
        memory.save(turn)
    with pytest.raises(HistoryWriteError, match="nothing of the turn was stored"):
        await memory.asave(turn)
    assert not any("secret" in str(error.value) for error in (read, write))
