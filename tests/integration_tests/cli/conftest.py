"""The command line on a real MongoDB, with rows that the real peers wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer
from pymongo import MongoClient
from typer.testing import CliRunner

from langchain_memkit import MongoDBChatMessageHistory, MongoDBKeyValueStore, MongoDBVectorStore
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
def full(standalone: Any, database: str) -> Iterator[str]:
    """A database with turns, Q/A documents, keys and vectors of two users; its name."""
    place = (standalone.uri, database)
    with (
        MongoDBChatMessageHistory.factory(*place) as histories,
        MongoDBChatMessageHistory.factory(*place, "chats", layout="qa") as chats,
        MongoDBKeyValueStore(*place) as keys,
        MongoDBVectorStore(standalone.uri, DeterministicFakeEmbedding(size=8), database) as vectors,
    ):
        for user in ("u1", "u2"):
            for session in ("a", "b"):
                histories(session, user).add_messages([HumanMessage(f"{user} {session}"), AIMessage("yes")])
            chats("c", user).add_messages([HumanMessage(f"{user} asks"), AIMessage("yes")])
            rows = ("summary/a/x", "entities/fact/x", "entities/session/a", "key_value/entry/x", "own")
            keys.mset([(user_prefix(user) + row, {"n": 1}) for row in rows])
            vectors.add_texts([f"{user} one", f"{user} two"], [{"user_id": user}] * 2)
        yield database
