"""The command line on a real MongoDB, with rows that the real peers wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer
from pymongo import MongoClient
from typer.testing import CliRunner

from langchain_memkit import MongoDBChatMessageHistory, MongoDBKeyValueStore
from langchain_memkit.base import user_prefix
from langchain_memkit.cli.app import app


@pytest.fixture
def memkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs a command in a folder of the test's own; the result has `exit_code`, `stdout` and `stderr`."""
    monkeypatch.chdir(tmp_path)
    for name in ("MEMKIT_URI", "MEMKIT_FROM_URI", "MEMKIT_TO_URI"):
        monkeypatch.delenv(name, raising=False)
    return lambda *words, **options: CliRunner().invoke(app, list(map(str, words)), **options)


@pytest.fixture
def client(standalone: Any) -> Iterator[Any]:
    """A client of the test's own."""
    with MongoClient(standalone.uri) as client:
        yield client


@pytest.fixture
def peer(standalone: Any, database: str) -> Iterator[Any]:
    """A session of two turns that the real langchain-mongodb wrote."""
    history = Peer(standalone.uri, "s1", database)
    for i in range(2):
        history.add_messages([HumanMessage(f"q{i}"), AIMessage(f"a{i}")])
    yield history
    history.close()


@pytest.fixture
def full(standalone: Any, database: str, client: Any) -> Iterator[str]:
    """A database with turns, Q/A documents, keys, and vectors of an older version, of two users; its name."""
    place = (standalone.uri, database)
    with (
        MongoDBChatMessageHistory.factory(*place) as histories,
        MongoDBChatMessageHistory.factory(*place, "chats", layout="qa") as chats,
        MongoDBKeyValueStore(*place) as keys,
    ):
        for user in ("u1", "u2"):
            for session in ("a", "b"):
                histories(session, user).add_messages([HumanMessage(f"{user} {session}"), AIMessage("yes")])
            chats("c", user).add_messages([HumanMessage(f"{user} asks"), AIMessage("yes")])
            rows = ("summary/a/x", "entities/fact/x", "entities/session/a", "key_value/entry/x", "own")
            keys.mset([(user_prefix(user) + row, {"n": 1}) for row in rows])
            add_old_records(client[database]["vectors"], user, "a", [f"{user} one", f"{user} two"])
        yield database


def add_old_records(collection: Any, user_id: str, session_id: str, texts: list[str]) -> None:
    """Add rounds of one line, as a vector memory of version 0.2 stored them."""
    place = {"user_id": user_id, "session_id": session_id}
    collection.create_index([("user_id", 1), ("stamp", 1)], name="memkit_stamps")
    collection.insert_one({"_id": place, **place, "generation": 7, "stamp": -3})
    for n, text in enumerate(texts):
        line, name = f"human: {text}", f"{session_id}-{n}"
        known = {"said": [["human", "", len("human: "), len(line)]], "messages": [""]}
        row = {
            "round_id": name,
            "position": n,
            "generation": 7,
            "stamp": n + 1,
            "text": line,
            "metadata": known,
            "v": 1,
        }
        collection.insert_one({"_id": {"id": name, "user_id": user_id}, **place, **row})
