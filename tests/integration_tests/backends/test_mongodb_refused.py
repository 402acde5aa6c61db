"""A server that refuses: wrong passwords and missing rights are errors of ours that tell nothing secret."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient

from langchain_memkit import (
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    MongoDBVectorStore,
    SQLiteChatMessageHistory,
)
from langchain_memkit.errors import MemkitError
from langchain_memkit.migrate import langgraph_source, migrate
from langchain_memkit.testing._mongod import Node, find_mongod, guarded
from langchain_memkit.testing.mongod import OPTIONS

SECRETS = ("clownfish", "hunter2", "hunter3")
TURN = [HumanMessage("hi"), AIMessage("hello")]
EMBEDDING = DeterministicFakeEmbedding(size=8)


@pytest.fixture(scope="module")
def guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a real server that asks for a password; `clownfish` may read one database, and no more."""
    folder = tmp_path_factory.mktemp("auth")
    with guarded(folder) as members:
        node = Node(find_mongod(folder), folder / "node", [*OPTIONS, "--auth"], 60.0)
        members.append(node)
        node.launch()
        with MongoClient(f"mongodb://{node.host}/") as client:
            client.admin.command("createUser", "root", pwd="root-pass", roles=["root"])
        with MongoClient(f"mongodb://root:root-pass@{node.host}/") as client:
            client["chats"].command("createUser", "clownfish", pwd="hunter2", roles=["read"])
        yield node.host


DOORS: dict[str, Callable[[str], Any]] = {
    "write": lambda uri: MongoDBChatMessageHistory(uri, "s1", "chats").add_messages(TURN),
    "awrite": lambda uri: asyncio.run(MongoDBChatMessageHistory(uri, "s1", "chats").aadd_messages(TURN)),
    "clear": lambda uri: MongoDBChatMessageHistory(uri, "s1", "chats").clear(),
    "setup": lambda uri: MongoDBChatMessageHistory.factory(uri, "chats").setup(),
    "keys": lambda uri: MongoDBKeyValueStore(uri, "chats").mset([("a", {"b": 1})]),
    "vectors": lambda uri: MongoDBVectorStore(uri, EMBEDDING, "chats").add_texts(["a"]),
}
READERS: dict[str, Callable[[str], Any]] = {
    "read": lambda uri: MongoDBChatMessageHistory(uri, "s1", "chats").messages,
    "aread": lambda uri: asyncio.run(MongoDBChatMessageHistory(uri, "s1", "chats").aget_messages()),
    "checkpoints": lambda uri: migrate(
        langgraph_source(uri, database_name="chats"), SQLiteChatMessageHistory.factory(":memory:"), progress=False
    ),
}


def refused(door: Callable[[str], Any], uri: str) -> str:
    """The error's text, once it was seen that nothing in it or in its traceback is secret."""
    with pytest.raises(MemkitError) as raised:
        door(uri)
    text = "\n".join([repr(raised.value), repr(vars(raised.value)), *traceback.format_exception(raised.value)])
    assert [secret for secret in SECRETS if secret in text] == [], text
    return str(raised.value)


@pytest.mark.parametrize("name", [*DOORS, *READERS])
def test_wrong_passwords(guarded_server: str, name: str) -> None:
    """The password that was refused is not repeated, nor whose it was; the host is."""
    uri = f"mongodb://clownfish:hunter3@{guarded_server}/?authSource=chats&appName={name}"
    assert guarded_server in refused((DOORS | READERS)[name], uri)


@pytest.mark.parametrize("name", DOORS)
def test_missing_rights(guarded_server: str, name: str) -> None:
    """Who may only read is told so, without the name of the user."""
    refused(DOORS[name], f"mongodb://clownfish:hunter2@{guarded_server}/?authSource=chats&appName={name}")
