"""`KeyValueMemory` over MongoDB: kept, shared, apart by user, forgotten by user, and within a chain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableLambda
from pymongo import MongoClient

from langchain_memkit import (
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    create_runnable_with_message_history,
    purge_user,
)
from langchain_memkit.base import user_prefix
from langchain_memkit.memories.key_value import KeyValueMemory
from langchain_memkit.messages.notes import is_note, records_of
from langchain_memkit.testing._styles import call_async, call_sync

Call = Callable[..., Any]

BOOKS: dict[str, Any] = {
    "Travelling at Night": {"text": "The dream-journals of Illopoly.", "aliases": ["Illopoly's journals"]},
    "The Skeleton Songs": "Poems of greedy delight by Arabella Dusk.",
    "The Locksmith's Dream": "Parallels in the dreams of artisans.",
}


@pytest.fixture(params=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Iterator[Call]:
    """`call(memory, "load", ...)` in both styles."""
    if request.param == "sync":
        yield call_sync
        return
    with asyncio.Runner() as runner:
        yield lambda target, name, *args, **kwargs: runner.run(call_async(target, name, *args, **kwargs))


def titles(messages: Any) -> list[str]:
    """The titles in what was loaded."""
    return [record.about for message in messages for record in records_of(message)]


def test_kept_and_shared(server: Any, database: str, call: Call) -> None:
    """What one object adds or removes, another over its own connection sees at its next load."""
    one, other = (KeyValueMemory(store=MongoDBKeyValueStore(server.uri, database)) for _ in range(2))
    assert call(other, "load", "The Skeleton Songs") == []
    call(one, "add", BOOKS)
    assert titles(call(other, "load", "skeletn songs? No, the skeletn songs and ILLOPOLY'S journals")) == [
        "The Skeleton Songs",
        "Travelling at Night",
    ]
    call(other, "remove", ["The Skeleton Songs"])
    assert call(one, "load", "The Skeleton Songs") == []
    assert call(one, "titles") == ["The Locksmith's Dream", "Travelling at Night"]


def test_purge(server: Any, database: str) -> None:
    """Purging a user leaves no row under the user's prefix, and spares the app's entries."""
    store = MongoDBKeyValueStore(server.uri, database)
    books = KeyValueMemory.factory(store)
    books("s1").add(BOOKS)
    books("s1", "u1").add({"My Diary": "Dear diary ..."})
    assert purge_user("u1", books) == [{"entries": 1}]
    assert list(store.yield_keys(prefix=user_prefix("u1"))) == []
    assert books("s1", "u1").titles() == []
    assert books("s2").titles() == sorted(BOOKS)


def test_a_load_costs_one_read(standalone: Any, database: str, listener: Any) -> None:
    """Thousands of entries are read once; then each load sends one find."""
    with MongoClient(standalone.uri, event_listeners=[listener]) as client:
        memory = KeyValueMemory(store=MongoDBKeyValueStore(None, database, client=client))
        memory.add({f"Volume {i:04} of the Annals": f"About {i}." for i in range(3000)})
        assert titles(memory.load("volume 0815 of the anals")) == ["Volume 0815 of the Annals"]
        listener.sent.clear()
        for _ in range(3):
            memory.load("volume 0815 of the annals")
        assert [name for name, _ in listener.sent] == ["find"] * 3


def test_in_a_chain(standalone: Any, database: str) -> None:
    """The model is given the description with the question that names the book, and the log stays as it was said."""
    given: list[list[BaseMessage]] = []

    def answer(messages: list[BaseMessage]) -> AIMessage:
        given.append(messages)
        return AIMessage("It is hard to say.")

    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    books = KeyValueMemory.factory(MongoDBKeyValueStore(standalone.uri, database))
    books("s1").add(BOOKS)
    with histories:
        chat = create_runnable_with_message_history(RunnableLambda(answer), histories, memories=[books])
        config: Any = {"configurable": {"session_id": "s1"}}
        chat.invoke("Who wrote the skeletn songs?", config)
        chat.invoke("And what is in it?", config)
        for messages in given:
            notes = [record for message in messages if is_note(message) for record in records_of(message)]
            assert [record.text for record in notes] == [BOOKS["The Skeleton Songs"]]
        said = [message.text for message in histories("s1").messages]
        assert len(given) == 2
        assert len(said) == 4
        assert not any("Dusk" in text for text in said)
