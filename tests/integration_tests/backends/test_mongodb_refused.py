"""A server that refuses: wrong passwords and missing rights are errors of ours that tell nothing secret."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import (
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    SQLiteChatMessageHistory,
    VectorMemory,
)
from langchain_memkit.errors import MemkitError
from langchain_memkit.migrate import langgraph_source, migrate

SECRETS = ("clownfish", "hunter2", "hunter3")
TURN = [HumanMessage("hi"), AIMessage("hello")]
EMBEDDING = DeterministicFakeEmbedding(size=8)


@pytest.fixture(scope="module")
def guarded_server(root_of_guarded_server: Any) -> str:
    """`host:port` of a real server that asks for a password; `clownfish` may read one database, and no more."""
    root_of_guarded_server["chats"].command("createUser", "clownfish", pwd="hunter2", roles=["read"])
    host, port = root_of_guarded_server.address
    return f"{host}:{port}"


def memory_of(uri: str, *database: str, **options: Any) -> VectorMemory:
    """A vector memory over histories there."""
    return VectorMemory(MongoDBChatMessageHistory.factory(uri, *database, **options), EMBEDDING, "s1", user_id="u1")


DOORS: dict[str, Callable[[str], Any]] = {
    "write": lambda uri: MongoDBChatMessageHistory(uri, "s1", "chats").add_messages(TURN),
    "awrite": lambda uri: asyncio.run(MongoDBChatMessageHistory(uri, "s1", "chats").aadd_messages(TURN)),
    "clear": lambda uri: MongoDBChatMessageHistory(uri, "s1", "chats").clear(),
    "setup": lambda uri: MongoDBChatMessageHistory.factory(uri, "chats").setup(),
    "keys": lambda uri: MongoDBKeyValueStore(uri, "chats").mset([("a", {"b": 1})]),
    "vectors": lambda uri: memory_of(uri, "chats").save(TURN),
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


ADDRESSES = {
    "host": ("mongodb://clownfish:hunter2@127.0.0.1:1", "127.0.0.1:1"),
    "name": ("mongodb://clownfish:hunter2@nosuch.invalid:27017/?replicaSet=rs0", "nosuch.invalid:27017"),
}
VERBS: dict[str, Callable[[str], Any]] = {
    "read": lambda uri: MongoDBChatMessageHistory(uri, "s1", timeout=0.5).messages,
    "aread": lambda uri: asyncio.run(MongoDBChatMessageHistory(uri, "s1", timeout=0.5).aget_messages()),
    "write": lambda uri: MongoDBChatMessageHistory(uri, "s1", timeout=0.5).add_messages(TURN),
    "awrite": lambda uri: asyncio.run(MongoDBChatMessageHistory(uri, "s1", timeout=0.5).aadd_messages(TURN)),
    "setup": lambda uri: MongoDBChatMessageHistory.factory(uri, timeout=0.5).setup(),
    "mget": lambda uri: MongoDBKeyValueStore(uri, timeout=0.5).mget(["k"]),
    "amset": lambda uri: asyncio.run(MongoDBKeyValueStore(uri, timeout=0.5).amset([("k", {})])),
    "search": lambda uri: memory_of(uri, timeout=0.5).search("a"),
    "asave": lambda uri: asyncio.run(memory_of(uri, timeout=0.5).asave(TURN)),
}


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("verb", VERBS)
def test_a_server_that_is_down_is_told_in_a_line(verb: str, address: str) -> None:
    """Host, time limit, what is wrong and what to do: one line, no topology, no password; in time."""
    uri, host = ADDRESSES[address]
    with pytest.raises(MemkitError) as raised:
        VERBS[verb](uri)
    said = str(raised.value)
    assert f"{host} within 0.5 s: " in said
    assert "Errno" in said
    assert "is the server running" in said
    assert "\n" not in said
    assert len(said) < 300
    for word in ("Topology", "configured timeouts", *SECRETS):
        assert word not in said
