"""Summaries over `MongoDBChatMessageHistory` and `MongoDBKeyValueStore`: the contract, other rows, and cost."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_mongodb import MongoDBChatMessageHistory as PeerHistory
from pymongo import AsyncMongoClient, MongoClient, monitoring

from langchain_memkit import (
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.testing import FakeChatModel
from testkit.scribe import Scribe, marks, talk
from testkit.styles import Styles
from testkit.summaries import SummariesContract

S1: Any = {"configurable": {"session_id": "s1"}}
SMALL: dict[str, Any] = {"max_tokens": 600, "trigger": ("tokens", 300), "keep": ("tokens", 100)}


class TestMongoDB(SummariesContract):
    @pytest.fixture
    def get_session_history(self, server: Any, database: str) -> Any:
        """A factory on one collection."""
        with MongoDBChatMessageHistory.factory(server.uri, database) as factory:
            yield factory

    @pytest.fixture
    def make_store(self, server: Any, database: str) -> Any:
        """Opens the same collection, each time anew."""
        return lambda: MongoDBKeyValueStore(server.uri, database)


@pytest.fixture(params=["invoke", "ainvoke"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(chain, value, config)` in both styles."""
    return Styles(request.param)


def shown(model: FakeChatModel) -> list[int]:
    """The marks of what the model was given as it was said."""
    return [mark for message in model.calls[-1] for mark in marks(message.text)]


def test_rows_of_langchain_mongodb(standalone: Any, database: str, run: Styles) -> None:
    """Rows of the peer in place, then turns of ours: each message is shown or was summarized, once."""
    with MongoClient(standalone.uri) as client:
        peer = PeerHistory(
            None, "s1", database_name=database, collection_name="message_store", client=client, create_index=False
        )
        peer.add_messages(talk(60))
    scribe, model = Scribe(), FakeChatModel()
    with MongoDBChatMessageHistory.factory(standalone.uri, database) as histories:
        summarize = create_history_preprocessor(
            scribe, store=MongoDBKeyValueStore(standalone.uri, database), **{**SMALL, "trigger": ("tokens", 250)}
        )
        chat = create_runnable_with_message_history(model, histories, preprocessor=summarize)
        for turn in range(12):
            run(chat, "Hello.", S1)
            assert sorted(scribe.seen + shown(model)) == list(range(60 + 2 * turn))
            assert "FACT Nemo" in "".join(message.text for message in model.calls[-1])
            histories("s1").add_messages(talk(2, 10, 60 + 2 * turn))
        histories("s1").clear()
        run(chat, "Hello.", S1)
        assert [message.text for message in model.calls[-1]] == ["Hello."]


class Reads(monitoring.CommandListener):
    """Counts the documents that finds and aggregations return, by collection."""

    def __init__(self) -> None:
        self.documents = 0
        self.commands = 0

    def started(self, event: Any) -> None:
        """Nothing to see yet."""

    def succeeded(self, event: Any) -> None:
        """Counts a batch."""
        cursor = event.reply.get("cursor", {})
        self.documents += len(cursor.get("firstBatch", cursor.get("nextBatch", ())))
        self.commands += 1

    def failed(self, event: Any) -> None:
        """Not counted."""


def test_a_turn_of_a_long_conversation(standalone: Any, database: str) -> None:
    """With 20,000 stored messages and a summary a turn reads as many documents as one of 1,000 messages."""
    read: dict[int, int] = {}
    listener = Reads()
    with MongoClient(standalone.uri, event_listeners=[listener]) as client:
        for length in (1_000, 20_000):
            names = {"database_name": f"{database}_{length}", "client": client}
            with MongoDBChatMessageHistory.factory(None, **names) as histories:
                histories("s1").add_messages(talk(length, 5))
                scribe, model = Scribe(), FakeChatModel()
                budget: Any = {"max_tokens": 200_000, "trigger": ("tokens", 4000)}
                summarize = create_history_preprocessor(scribe, store=MongoDBKeyValueStore(None, **names), **budget)
                chat = create_runnable_with_message_history(model, histories, preprocessor=summarize)
                summarize.summarize(histories("s1"), progress=False)
                chat.invoke("Hello.", S1)
                calls = len(scribe.prompts)
                listener.documents = listener.commands = 0
                chat.invoke("Hello.", S1)
                read[length] = listener.documents
                print(f"{length} messages: {listener.documents} documents in {listener.commands} commands")
                assert len(scribe.prompts) == calls
                assert sorted(scribe.seen + shown(model)) == list(range(length))
    assert read[20_000] <= read[1_000] + 2
    assert read[20_000] < 30


async def test_native_async_client(standalone: Any, database: str) -> None:
    """On async clients alone a summary is written, found again and purged without a sync call."""
    async with AsyncMongoClient(standalone.uri) as client:
        scribe, model = Scribe(), FakeChatModel()
        histories = MongoDBChatMessageHistory.factory(None, database, async_client=client)
        summarize = create_history_preprocessor(
            scribe, store=MongoDBKeyValueStore(None, database, async_client=client), **SMALL
        )
        chat = create_runnable_with_message_history(model, histories, preprocessor=summarize)
        config: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
        await histories("s1", "u1").aadd_messages(talk(60))
        for _ in range(2):
            await chat.ainvoke("Hello.", config)
            assert "FACT Nemo" in "".join(message.text for message in model.calls[-1])
        assert set(scribe.styles) == {"async"}
        assert (await summarize.apurge("u1"))["summaries"] >= 1
