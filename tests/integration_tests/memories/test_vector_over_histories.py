"""Vector memory over MongoDB histories: the contract of recall, and the commands that turns cost."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import AsyncMongoClient, MongoClient

from langchain_memkit import (
    MongoDBChatMessageHistory,
    VectorMemory,
    WordLlamaEmbeddings,
    create_runnable_with_message_history,
    session,
)
from langchain_memkit.errors import HistoryReadError, HistoryWriteError
from langchain_memkit.messages.notes import is_note
from langchain_memkit.testing import FakeChatModel
from testkit.memories import RecallCases

SESSIONS = 40
ROUNDS = int(os.environ.get("MEMKIT_ROUNDS", "60"))  # with which docs/embeddings.md says what a turn costs
# The first turn of a process reads all, the second one again what changed in the ten seconds before the last change.
BEFORE = ["Hello there, I am back.", "I went to the cinema."]
ASKED = ["What is film 7?", "Which film did I see?", "Was film 12 good?", "It rains.", "What did I say of film 30?"]


class TestMongoDB(RecallCases):
    @pytest.fixture
    def open_histories(self, standalone: Any, database: str) -> Any:
        """Histories in a collection."""
        return lambda now: MongoDBChatMessageHistory.factory(standalone.uri, database, now=now)


@pytest.mark.parametrize("ids", [(None, None), ("m1", "m2")], ids=["without ids", "with ids"])
async def test_a_server_that_is_down(ids: Any) -> None:
    """A load fails as a read and a save as a write that stored nothing, in both styles; no credentials in the text."""
    histories = MongoDBChatMessageHistory.factory("mongodb://bob:secret@127.0.0.1:1", timeout=0.5)
    memory = VectorMemory(histories, WordLlamaEmbeddings(), "s1", user_id="u1")
    turn = [HumanMessage("My cat is called Nemo.", id=ids[0]), AIMessage("Cute!", id=ids[1])]
    with pytest.raises(HistoryReadError) as read:
        memory.load("Who is Nemo?")
    with pytest.raises(HistoryReadError):
        await memory.aload("Who is Nemo?")
    with pytest.raises(HistoryWriteError) as write:
        memory.save(turn)
    with pytest.raises(HistoryWriteError) as awrite:
        await memory.asave(turn)
    assert [error.value.maybe_stored for error in (write, awrite)] == [False, False]
    assert not any("secret" in str(error.value) for error in (read, write, awrite))


@pytest.fixture
def filled(server: Any, database: str) -> str:
    """A database with the rounds of a user in 40 sessions, all of which have an index."""
    with MongoDBChatMessageHistory.factory(server.uri, database) as histories:
        for i in range(ROUNDS):
            said = [HumanMessage(f"I saw film {i}, it was good."), AIMessage("What is it about?")]
            histories(f"s{i % SESSIONS}", "u1").add_messages(said)
        VectorMemory.factory(histories, WordLlamaEmbeddings())("s1", "u1").index(progress=False)
    if ROUNDS >= 1000:  # what changed within ten seconds is read again, page after page
        time.sleep(11)
    return database


def _chain(histories: Any) -> tuple[Any, FakeChatModel]:
    model = FakeChatModel()
    memories = VectorMemory.factory(histories, WordLlamaEmbeddings())
    return create_runnable_with_message_history(model, histories, memories=[memories]), model


def test_ten_turns(server: Any, filled: str, listener: Any) -> None:
    """A turn is two finds and an insert: the history, what changed, the turn with its index."""
    with MongoClient(server.uri, event_listeners=[listener]) as client:
        chain, model = _chain(MongoDBChatMessageHistory.factory(client=client, database_name=filled))
        for said in BEFORE:
            chain.invoke(said, session("now", user_id="u1"))
        listener.sent.clear()
        for i in range(10):
            chain.invoke(ASKED[i % 5], session("now", user_id="u1"))
        assert Counter(name for name, _ in listener.sent) == {"find": 20, "insert": 10}
    notes = [message.text for messages in model.calls[1:] for message in messages if is_note(message)]
    assert sum("film 7" in note for note in notes) >= 2


def test_ten_turns_async(server: Any, filled: str, listener: Any) -> None:
    """The same on an event loop."""

    async def run() -> None:
        async with AsyncMongoClient(server.uri, event_listeners=[listener]) as client:
            chain, _ = _chain(MongoDBChatMessageHistory.factory(async_client=client, database_name=filled))
            for said in BEFORE:
                await chain.ainvoke(said, session("now", user_id="u1"))
            listener.sent.clear()
            for i in range(10):
                await chain.ainvoke(ASKED[i % 5], session("now", user_id="u1"))
            assert Counter(name for name, _ in listener.sent) == {"find": 20, "insert": 10}

    asyncio.run(run())
