"""Histories, their factories and chains, pickled and copied: alike for both stores. No server is needed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import AsyncMongoClient, MongoClient

from langchain_memkit import MongoDBChatMessageHistory, RunnableWithMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.testing import FakeChatModel

URI = "mongodb://localhost:1"
COPIES: dict[str, Callable[[Any], Any]] = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy}


class Labelled(SQLiteChatMessageHistory):
    def __init__(self, path: Any, session_id: str, **options: Any) -> None:
        super().__init__(path, session_id, **options)
        self.label = session_id


@pytest.fixture(params=COPIES)
def again(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Both ways to make another one."""
    return COPIES[request.param]


def test_sqlite_lives_on_in_its_file(tmp_path: Path, again: Callable[[Any], Any]) -> None:
    """A history, a subclass's factory and a chain, once used, are copied and go on with the same conversation."""
    histories = Labelled.factory(tmp_path / "chat.db", history_size=4)
    chain = RunnableWithMessageHistory(FakeChatModel(), histories)
    config: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
    chain.invoke("My name is Nemo.", config)
    assert again(chain).invoke("What is my name?", config).text == "You told me: My name is Nemo."
    other = again(histories)
    assert [session.session_id for session in other.list_sessions("u1")] == ["s1"]
    history = again(histories("s1", "u1"))
    assert (type(history), history.label, history.history_size, history.user_id) == (Labelled, "s1", 4, "u1")
    history.add_messages([HumanMessage("hi"), AIMessage("Hello")])
    assert [m.text for m in other("s1", "u1").messages][-2:] == ["hi", "Hello"]
    histories.close()


def test_mongodb_needs_its_connection_string_only(again: Callable[[Any], Any]) -> None:
    """The same for MongoDB, without a connection: another process makes one of its own."""
    histories = MongoDBChatMessageHistory.factory(URI, "app", history_size=4)
    history = again(histories)("s1", "u1")
    assert (history.session_id, history.user_id, history.history_size) == ("s1", "u1", 4)
    assert again(history).database_name == "app"
    chain: Any = again(RunnableWithMessageHistory(FakeChatModel(), histories))
    assert chain.get_session_history("s1").collection_name == "message_store"
    histories.close()


def test_what_cannot_be_pickled_says_why() -> None:
    """Memory and clients of the caller's belong to this process; the error says what to give instead."""
    in_memory = SQLiteChatMessageHistory.factory(":memory:")
    with pytest.raises(TypeError, match="in ':memory:' cannot be pickled: give a file name as path"):
        pickle.dumps(in_memory("s1"))
    mine = MongoClient[dict[str, Any]](URI, connect=False)
    given: list[dict[str, Any]] = [{"client": mine}, {"async_client": AsyncMongoClient(URI, connect=False)}]
    for clients in given:
        history = MongoDBChatMessageHistory(None, "s1", **clients)
        with pytest.raises(TypeError, match="cannot be pickled: give a connection_string instead of client="):
            pickle.dumps(history)
        assert copy.deepcopy(history)._store.clients is history._store.clients
    mine.close()


def test_a_deep_copy_in_memory_shares_the_conversation() -> None:
    """A copy of a history is another way to the same conversation, wherever that is."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    histories("s1").add_user_message("hi")
    assert [m.text for m in copy.deepcopy(histories)("s1").messages] == ["hi"]
    assert [m.text for m in copy.deepcopy(histories("s1")).messages] == ["hi"]
