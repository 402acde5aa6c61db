"""`MongoDBKeyValueStore` on real servers: LangChain's own suite, the contract, and what only a server can do wrong."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from bson import ObjectId, encode
from langchain_tests.integration_tests import BaseStoreAsyncTests, BaseStoreSyncTests
from pymongo import AsyncMongoClient, MongoClient

from langchain_memkit import MongoDBChatMessageHistory, MongoDBKeyValueStore, purge_user
from langchain_memkit.backends.mongodb import clients
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, MessageTooLargeError
from testkit.key_values import KeyValueStoreCases
from tools.local_mongodb import local_mongodb

THREE = ({"a": 1}, {"b": [1, None]}, {"c": {"d": "e"}})


class TestServer(KeyValueStoreCases):
    @pytest.fixture
    def make_store(self, server: Any, database: str) -> Any:
        """Stores made one by one."""
        return lambda: MongoDBKeyValueStore(server.uri, database)


class TestGivenClient(KeyValueStoreCases):
    @pytest.fixture
    def make_store(self, standalone: Any, database: str) -> Any:
        """Stores on the caller's own sync client: async calls run in a thread."""
        with MongoClient(standalone.uri) as client:
            yield lambda: MongoDBKeyValueStore(None, database, client=client)


class TestLangChainSync(BaseStoreSyncTests[dict[str, Any]]):
    @pytest.fixture
    def kv_store(self, server: Any, database: str) -> Any:
        """An empty store."""
        with MongoDBKeyValueStore(server.uri, database) as store:
            yield store

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return THREE


class TestLangChainAsync(BaseStoreAsyncTests[dict[str, Any]]):
    @pytest.fixture
    async def kv_store(self, server: Any, database: str) -> Any:
        """An empty store."""
        async with MongoDBKeyValueStore(server.uri, database) as store:
            yield store

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return THREE


class TestBytesSync(BaseStoreSyncTests[bytes]):
    @pytest.fixture
    def kv_store(self, server: Any, database: str) -> Any:
        """An empty store."""
        return MongoDBKeyValueStore(server.uri, database)

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return (b"\x00", b"", b"\xff" * 1000)


class TestBytesAsync(BaseStoreAsyncTests[bytes]):
    @pytest.fixture
    async def kv_store(self, server: Any, database: str) -> Any:
        """An empty store."""
        return MongoDBKeyValueStore(server.uri, database)

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return (b"\x00", b"", b"\xff" * 1000)


@pytest.fixture
def collection(standalone: Any, database: str) -> Any:
    """The collection behind memkit's back, with the driver's defaults."""
    with MongoClient(standalone.uri) as client:
        yield client[database]["key_value"]


@pytest.fixture
def store(standalone: Any, database: str) -> Any:
    """An empty store."""
    return MongoDBKeyValueStore(standalone.uri, database)


def test_document_reads_well(store: Any, collection: Any) -> None:
    """A person sees key and value as plain fields."""
    store.mset([("u1/profile", {"name": "Nemo", "likes": ["sea"]})])
    assert collection.find_one() == {"_id": "u1/profile", "value": {"name": "Nemo", "likes": ["sea"]}, "v": 1}


def test_pinned_guarantees(standalone: Any, database: str, listener: Any) -> None:
    """Whatever the connection string says, writes wait for a majority and the journal, reads for a majority."""
    uri = f"{standalone.uri}?w=0&journal=false&readConcernLevel=local"
    with MongoClient(uri, event_listeners=[listener]) as client:
        store = MongoDBKeyValueStore(None, database, client=client)
        store.mset([("k", {})])
        store.mget(["k"])
        list(store.yield_keys())
        store.mdelete(["k"])
        store.purge("u1")
    bodies = [body for name, body in listener.sent if name in ("update", "delete")]
    assert len(bodies) == 3
    assert all(body["writeConcern"]["w"] == "majority" and body["writeConcern"]["j"] is True for body in bodies)
    finds = [body for name, body in listener.sent if name == "find"]
    assert len(finds) == 2
    assert all(body["readConcern"] == {"level": "majority"} for body in finds)


def test_plans(standalone: Any, database: str, collection: Any, listener: Any) -> None:
    """Listing reads keys of the range only, from the index alone; reading and purging touch what they concern."""
    MongoDBKeyValueStore(standalone.uri, database).mset([(f"u{u}/{i:03}", {}) for u in range(10) for i in range(100)])
    with MongoClient(standalone.uri, event_listeners=[listener]) as client:
        store = MongoDBKeyValueStore(None, database, client=client)
        assert len(list(store.yield_keys(prefix="u3/"))) == 100
        store.mget(["u3/001", "u3/002", "none"])
        listing, reading = [body for name, body in listener.sent if name == "find"]
        store.purge("u3")
        (purge,) = [body["deletes"][0]["q"] for name, body in listener.sent if name == "delete"]
    store = MongoDBKeyValueStore(standalone.uri, database)
    assert len(list(store.yield_keys())) == 900
    assert listing["limit"] == 1000

    def examined(body: Any) -> tuple[int, int]:
        command = {k: body[k] for k in ("find", "filter", "projection", "sort", "limit") if k in body}
        plan = collection.database.command("explain", command, verbosity="executionStats")
        assert "COLLSCAN" not in str(plan["queryPlanner"]["winningPlan"])
        return plan["executionStats"]["totalKeysExamined"], plan["executionStats"]["totalDocsExamined"]

    store.mset([(f"u3/{i:03}", {}) for i in range(100)])
    assert examined(listing) == (100, 0)
    keys, documents = examined(reading)
    assert keys <= 6
    assert documents == 2
    assert examined({"find": "key_value", "filter": purge}) == (100, 100)


def test_no_other_index_is_needed(store: Any, collection: Any) -> None:
    """The store builds no index."""
    store.mset([("k", {})])
    assert list(collection.index_information()) == ["_id_"]


DAMAGE: dict[str, dict[str, Any]] = {
    "no value": {"v": 1},
    "no version": {"value": {}},
    "newer version": {"value": {}, "v": 2},
    "a list": {"value": [1], "v": 1},
    "text": {"value": "hello", "v": 1},
    "null": {"value": None, "v": 1},
    "an id inside": {"value": {"a": ObjectId()}, "v": 1},
    "unknown tag": {"value": {"_memkit": "eval", "value": "1"}, "v": 1},
    "no tag value": {"value": {"a": {"_memkit": "str"}}, "v": 1},
    "tag is a list": {"value": {"a": {"_memkit": ["str"]}}, "v": 1},
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_values(store: Any, collection: Any, damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged value is None and reported; the others come back, it is not deleted, and can be replaced."""
    store.mset([(key, {"key": key}) for key in "abc"])
    collection.replace_one({"_id": "b"}, damage)
    assert store.mget(["a", "b", "c"]) == [{"key": "a"}, None, {"key": "c"}]
    assert "key 'b' is unreadable" in caplog.text
    assert list(store.yield_keys()) == ["a", "b", "c"]
    assert collection.count_documents({}) == 3
    store.mset([("b", {"new": 1})])
    assert store.mget(["b"]) == [{"new": 1}]


def test_documents_of_others_are_left_alone(store: Any, collection: Any) -> None:
    """Documents whose id is no text are neither listed nor purged."""
    collection.insert_many([{"x": 1}, {"_id": 7}, {"_id": {"a": "u1/"}}])
    store.mset([("u1/k", {})])
    assert list(store.yield_keys()) == ["u1/k"]
    assert store.purge("u1") == {"keys": 1}
    assert collection.count_documents({}) == 3


def test_too_large_value(store: Any) -> None:
    """A value that no document can hold is refused before others of the call go in; the largest that fits is stored."""
    spare = 16 * 2**20 - len(encode({"_id": "k", "value": {"text": ""}, "v": 1}))
    largest = {"text": "x" * spare}
    store.mset([("k", largest)])
    assert store.mget(["k"]) == [largest]
    with pytest.raises(MessageTooLargeError, match=r"values\['j'\].*16 MB"):
        store.mset([("other", {}), ("j", {"text": "x" * (spare + 1)})])
    assert list(store.yield_keys()) == ["k"]


def test_part_of_a_call(store: Any, collection: Any) -> None:
    """When the server refuses a pair the error says that others may be stored, and tells nothing of the values."""
    collection.database.create_collection("key_value", validator={"value.bad": {"$exists": False}})
    with pytest.raises(HistoryWriteError, match="call again") as raised:
        store.mset([("a", {"n": 1}), ("b", {"bad": "s3cr3t"}), ("c", {})])
    assert raised.value.maybe_stored
    assert "s3cr3t" not in str(raised.value)
    assert store.mget(["a", "b", "c"]) == [{"n": 1}, None, None]
    with pytest.raises(HistoryWriteError, match="Nothing was changed") as raised:
        store.mset([("b", {"bad": 1})])
    assert not raised.value.maybe_stored


# pymongo's monitor is cancelled while it connects, and then leaves the socket to the collector
UNCLOSED = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")


@UNCLOSED
@pytest.mark.parametrize("style", ["sync", "async"])
def test_server_down(style: str) -> None:
    """Constructing does no I/O; every verb fails with a typed error that names the host and no credentials."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    store = MongoDBKeyValueStore(f"mongodb://nemo:s3cr3t@127.0.0.1:{port}/?authSource=admin", timeout=0.5)
    assert repr(store) == f"MongoDBKeyValueStore(127.0.0.1:{port}, chat_history.key_value)"

    def sync(name: str, argument: Any) -> Any:
        return list(store.yield_keys()) if name == "yield_keys" else getattr(store, name)(argument)

    async def asynchronous(name: str, argument: Any) -> Any:
        if name == "yield_keys":
            return [key async for key in store.ayield_keys()]
        return await getattr(store, f"a{name}")(argument)

    for error, name, argument in (
        (HistoryReadError, "mget", ["k"]),
        (HistoryReadError, "yield_keys", None),
        (HistoryWriteError, "mset", [("k", {})]),
        (HistoryWriteError, "mdelete", ["k"]),
        (HistoryWriteError, "purge", "u1"),
    ):
        with pytest.raises(error) as raised:
            sync(name, argument) if style == "sync" else asyncio.run(asynchronous(name, argument))
        assert str(port) in str(raised.value)
        assert "s3cr3t" not in f"{raised.value!s} {raised.value!r} {raised.value.__cause__!r} {store!r}"
        if isinstance(raised.value, HistoryWriteError):
            assert not raised.value.maybe_stored
    del raised
    gc.collect()  # here, where the warning is expected


def test_arguments(standalone: Any) -> None:
    """Wrong arguments are refused at once, and never show a password."""
    with MongoClient(standalone.uri) as client, pytest.raises(ConfigurationError, match="not both"):
        MongoDBKeyValueStore(standalone.uri, client=client)
    with pytest.raises(ConfigurationError, match="must be provided"):
        MongoDBKeyValueStore()
    for arguments in ({"timeout": 0}, {"save_timeout": -1}, {"timeout": float("nan")}):
        with pytest.raises(ConfigurationError, match="seconds above 0"):
            MongoDBKeyValueStore(standalone.uri, **arguments)
    with pytest.raises(ConfigurationError) as raised:
        MongoDBKeyValueStore("mongodb://nemo:s3cr3t@host:99999/").mget(["k"])
    assert "s3cr3t" not in str(raised.value)


def test_given_async_client(standalone: Any, database: str) -> None:
    """An async client of the caller's is used by the async methods; sync ones say what is missing."""

    async def go() -> list[Any]:
        client: AsyncMongoClient[Any] = AsyncMongoClient(standalone.uri)
        store = MongoDBKeyValueStore(None, database, async_client=client)
        await store.amset([("k", {"n": 1})])
        found = await store.amget(["k"])
        assert [key async for key in store.ayield_keys(prefix="k")] == ["k"]
        with pytest.raises(ConfigurationError, match="async_client"):
            store.mget(["k"])
        await store.aclose()
        await client.close()
        return found

    assert asyncio.run(go()) == [{"n": 1}]


def test_clients_are_shared_and_let_go(standalone: Any, database: str) -> None:
    """Stores and histories of one connection string share a client, closed with the last one that holds it."""
    uri = f"{standalone.uri}?appName=shared"
    first, second = MongoDBKeyValueStore(uri, database), MongoDBKeyValueStore(uri, database, "other")
    histories = MongoDBChatMessageHistory.factory(uri, database)
    first.mset([("u1/k", {})])
    second.mset([("u1/k", {})])
    histories("s1", "u1").add_user_message("hello")
    mine = [key for key in clients._sync if key[1] == uri]
    assert len(mine) == 1
    assert purge_user("u1", histories, first, second) == [{"sessions": 1, "turns": 1}, {"keys": 1}, {"keys": 1}]
    first.close()
    histories.close()
    assert mine[0] in clients._sync
    second.close()
    assert mine[0] not in clients._sync
    assert second.mget(["u1/k"]) == [None]
    second.close()


WRITER = """
import sys
from langchain_memkit import MongoDBKeyValueStore
store = MongoDBKeyValueStore(sys.argv[1], sys.argv[2])
for i in range(50):
    name = sys.argv[3]
    store.mset([(f"{name}/{i}", {"n": i}), (f"shared/{i}", {"by": name, "again": name})])
"""


def test_two_processes(standalone: Any, database: str) -> None:
    """Two processes that upsert the same new keys lose nothing and fail at nothing."""
    command = [sys.executable, "-c", WRITER, standalone.uri, database]
    processes = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [process.wait(60) for process in processes] == [0, 0]
    store = MongoDBKeyValueStore(standalone.uri, database)
    assert len(list(store.yield_keys())) == 150
    assert all(value["by"] == value["again"] for value in store.mget([f"shared/{i}" for i in range(50)]))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the test
@pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")
def test_fork(store: Any) -> None:
    """A forked child has a client of its own; parent and child both go on."""
    store.mset([("before", {})])
    child = os.fork()
    if child == 0:
        try:
            store.mset([("child", {})])
            os._exit(0 if "before" in list(store.yield_keys()) else 1)
        except BaseException:
            os._exit(2)
    store.mset([("parent", {})])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(store.yield_keys()) == ["before", "child", "parent"]


@pytest.mark.replica_set
def test_failover(database: str) -> None:
    """While the primary is killed, writes of both styles are retried until the next one answers; none is lost."""
    with local_mongodb(nodes=3) as servers:
        store = MongoDBKeyValueStore(servers.uri, database)
        half, after = threading.Event(), threading.Event()  # ten were written; the primary is gone

        def pairs(style: str, i: int) -> list[tuple[str, Any]]:
            return [(f"{style}{i:03}/{n}", {"n": n}) for n in range(3)]

        def write_sync() -> None:
            for i in range(30):
                if i == 10:
                    half.set()
                    after.wait(60)
                store.mset(pairs("sync", i))

        async def write_async() -> None:
            for i in range(30):
                if i == 10:
                    await asyncio.to_thread(half.wait, 60)
                    servers.kill(servers.primary_index())
                    after.set()
                await store.amset(pairs("async", i))

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write_sync)
            asyncio.run(write_async())
            writing.result()
        wanted = [pair for style in ("sync", "async") for i in range(30) for pair in pairs(style, i)]
        assert store.mget([key for key, _ in wanted]) == [value for _, value in wanted]
        store.close()
