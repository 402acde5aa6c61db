"""What only a server can do wrong: down, failing over, indexes, other people's rows, damage, forks, many clients."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import BSON, ObjectId, encode
from bson.raw_bson import RawBSONDocument
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage, message_to_dict
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer
from pymongo import AsyncMongoClient, MongoClient

from langchain_memkit import MongoDBChatMessageHistory, create_runnable_with_message_history, purge_user
from langchain_memkit.backends.mongodb import clients, commands
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryReadError,
    HistoryWriteError,
    MessageDecodeError,
    MessageTooLargeError,
    StaleTurnError,
)
from langchain_memkit.stores.history_rows import ReadVersion, SessionScope, prepare_batch
from langchain_memkit.testing import FakeChatModel
from tools.local_mongodb import local_mongodb

TURN = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]


def texts(history: Any) -> list[str]:
    """The text of each message."""
    return [m.text for m in history.messages]


@pytest.fixture
def collection(standalone: Any, database: str) -> Any:
    """The collection behind memkit's back, with the driver's defaults."""
    with MongoClient(standalone.uri) as client:
        yield client[database]["message_store"]


@pytest.fixture
def history(standalone: Any, database: str) -> Any:
    """Session s1 of nobody."""
    return MongoDBChatMessageHistory(standalone.uri, "s1", database)


def closed_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def test_document_reads_well(history: Any, collection: Any) -> None:
    """In a shell a turn shows user, session, time, roles and text as plain fields; nothing of the peer's schema."""
    history.add_messages(TURN)
    (document,) = collection.find()
    assert (document["user_id"], document["session_id"], document["seq"], document["v"]) == ("", "s1", 1, 1)
    assert isinstance(document["createdAt"], datetime)
    assert [(m["role"], m["content"]) for m in document["messages"]] == [
        ("human", "My name is Nemo."),
        ("ai", "Hello Nemo."),
    ]
    assert all(isinstance(n, int) for n in document["tokens"])
    assert "SessionId" not in document


@pytest.mark.parametrize("uri", ["mongodb://{host}/", "mongodb://{host}/?w=0&journal=false", "mongodb://{host}/?w=1"])
def test_guarantees_are_pinned(standalone: Any, database: str, uri: str, listener: Any) -> None:
    """Writes wait for majority and journal, reads see the majority, whatever the connection string says."""
    with MongoClient(uri.format(host=standalone.hosts[0]), event_listeners=[listener]) as client:
        history = MongoDBChatMessageHistory(None, "s1", database, client=client)
        history.add_messages(TURN)
        history.messages  # noqa: B018  # reading is the test
    (insert,) = [body for name, body in listener.sent if name == "insert"]
    assert insert["writeConcern"]["w"] == "majority"
    assert insert["writeConcern"]["j"] is True
    assert insert["maxTimeMS"] > 0  # the driver's own form of wtimeout where a time limit is set
    assert [b["readConcern"] for n, b in listener.sent if n == "find"][-1] == {"level": "majority"}


def test_every_filter_begins_with_the_shard_key(standalone: Any, database: str, listener: Any) -> None:
    """Each command on turns has user_id and session_id by equality: a sharded cluster routes it to one shard."""
    with MongoClient(standalone.uri, event_listeners=[listener]) as client:
        factory = MongoDBChatMessageHistory.factory(None, database, client=client)
        history = factory("s1", "u1")
        history.add_messages(TURN)
        history.tail(max_messages=2)
        list(history.iter_messages())
        history.stored_ids(["x"])
        history.delete_turn(1)
        history.clear()
        factory.purge("u1")
    filters = []
    for name, body in listener.sent:
        if name == "find":
            filters.append(body["filter"])
        elif name in ("update", "delete"):
            filters += [q["q"] for q in body[f"{name}s"]]
    assert len(filters) > 8
    for f in [part for each in filters for part in each.get("$or", [each])]:
        assert f["user_id"] == {"$eq": "u1"}
        assert set(f["session_id"]) == {"$eq"}
        assert "seq" in f
    assert all(set(d) >= {"user_id", "session_id"} for n, b in listener.sent if n == "insert" for d in b["documents"])


def test_reads_are_bounded_index_scans(standalone: Any, database: str, collection: Any, listener: Any) -> None:
    """A tail of 20 in a long session examines about as many keys as it returns rows; retries look up one key."""
    factory = MongoDBChatMessageHistory.factory(standalone.uri, database)
    for i in range(100):
        factory("s1").add_messages([HumanMessage(f"q{i}", id=f"id{i}"), AIMessage("a")])
    with MongoClient(standalone.uri, event_listeners=[listener]) as client:
        history = MongoDBChatMessageHistory(None, "s1", database, client=client)
        assert len(history.tail(max_messages=20)) == 20
        assert history.stored_ids(["id5"]) == {"id5"}
    tail, lookup = [body for name, body in listener.sent if name == "find"]
    for body, most in ((tail, 13), (lookup, 2)):
        command = {k: body[k] for k in ("find", "filter", "sort", "limit") if k in body}
        plan = collection.database.command("explain", command, verbosity="executionStats")
        assert plan["executionStats"]["totalKeysExamined"] <= most
        assert plan["executionStats"]["totalDocsExamined"] <= most


IDS_OF_OTHERS: list[Any] = [5, 2**40, -1, 0.5, 1e22, ObjectId("65a1b2c3d4e5f60718293a4b")]


@pytest.mark.parametrize("layout", ["turns", "langchain"])
@pytest.mark.parametrize("given", IDS_OF_OTHERS, ids=repr)
def test_rows_of_a_session_that_is_no_text(
    standalone: Any, database: str, collection: Any, given: Any, layout: Any
) -> None:
    """langchain-mongodb takes an id of any type: str(id) reads its rows, continues, lists and erases them."""
    peer = Peer(standalone.uri, given, database)
    peer.add_messages(TURN)
    peer.close()
    row = {"History": json.dumps(message_to_dict(HumanMessage("other")))}
    collection.insert_many([{"SessionId": other, **row} for other in ("other", True, None, 7, {"$gt": 0})])
    with MongoDBChatMessageHistory.factory(standalone.uri, database, layout=layout) as histories:
        history, said = histories(str(given)), [m.content for m in TURN]
        assert texts(history) == [m.content for m in history.iter_messages()] == said
        assert asyncio.run(history.aget_messages()) == history.messages
        listed = {s.session_id: s.turns for s in histories.list_sessions()}
        assert listed == {str(given): 2, "other": 1, "7": 1}
        if layout == "turns":
            page = histories.list_sessions(limit=5)
            assert {s.session_id: s.title for s in page}[str(given)] == said[0]
        history.add_user_message("more")
        assert texts(history) == [*said, "more"]
        if layout == "turns":
            assert texts(histories(str(given), "u1")) == []
        history.clear()
        assert texts(history) == []
    assert collection.count_documents({"History": {"$exists": True}}) == 5


def test_ids_of_one_text_are_one_session(standalone: Any, database: str, collection: Any) -> None:
    """Rows with the text and rows with the number are of one session; other spellings of the number are not."""
    row = {"History": json.dumps(message_to_dict(HumanMessage("q")))}
    collection.insert_many([{"SessionId": given, **row} for given in ("5", 5, 5, "05", 2**53 + 1)])
    with MongoDBChatMessageHistory.factory(standalone.uri, database) as histories:
        [five, *_] = [s for s in histories.list_sessions() if s.session_id == "5"]
        assert (five.turns, len(histories("5").messages)) == (3, 3)
        for name in ("05", str(2**53 + 1)):
            assert len(histories(name).messages) == 1
        for name in ("+5", "5 ", "\u0665", str(2**70), "1e400", "nan"):
            assert histories(name).messages == []


@pytest.mark.parametrize("direction", ["back", "forward"])
def test_rows_of_a_number_are_read_by_the_index(
    standalone: Any, database: str, collection: Any, listener: Any, direction: str
) -> None:
    """Text and number are two ranges of one index, merged in order: nothing is sorted, and no more read than shown."""
    said = [json.dumps(message_to_dict(HumanMessage(f"q{i}"))) for i in range(900)]
    collection.insert_many({"SessionId": (5, "5", 6)[i % 3], "History": text} for i, text in enumerate(said))
    MongoDBChatMessageHistory.factory(standalone.uri, database).setup()
    with MongoClient(standalone.uri, event_listeners=[listener]) as client:
        history = MongoDBChatMessageHistory(None, "5", database, client=client)
        if direction == "back":
            assert [m.text for m in history.tail(max_messages=3)] == ["q895", "q897", "q898"]
        else:
            assert next(history.iter_messages()).text == "q0"
    body = [body for name, body in listener.sent if name == "find" and "SessionId" in body["filter"]][-1]
    command = {k: body[k] for k in ("find", "filter", "sort", "limit") if k in body}
    plan = collection.database.command("explain", command, verbosity="executionStats")
    assert "SORT_MERGE" in json.dumps(plan["queryPlanner"]["winningPlan"])
    assert plan["executionStats"]["totalDocsExamined"] <= body["limit"]


def test_indexes(history: Any, collection: Any) -> None:
    """First use builds unique indexes on position and op, both partial and led by the shard key, and expiry."""
    history.add_messages(TURN)
    found = collection.index_information()
    for name in ("seq", "op"):
        index = found[f"memkit_{name}"]
        assert index["key"] == [("user_id", 1), ("session_id", 1), (name, 1)]
        assert index["unique"]
        assert index["partialFilterExpression"] == {"seq": {"$exists": True}}
    assert found["memkit_ttl"]["expireAfterSeconds"] == 0
    assert found["memkit_legacy"]["key"] == [("SessionId", 1), ("_id", 1)]
    assert found["memkit_shard_key"]["key"] == [("user_id", 1), ("session_id", 1)]


def test_create_index_false(standalone: Any, database: str, collection: Any) -> None:
    """Without its unique indexes a history does not write; built by hand, under any name, they are recognised."""
    commands._indexed.clear()
    history = MongoDBChatMessageHistory(standalone.uri, "s1", database, create_index=False)
    with pytest.raises(ConfigurationError, match="create_index=False"):
        history.add_messages(TURN)
    assert history.messages == []
    assert collection.count_documents({}) == 0
    for name in ("seq", "op"):
        keys = [("user_id", 1), ("session_id", 1), (name, 1)]
        collection.create_index(
            keys, unique=True, partialFilterExpression={"seq": {"$exists": True}}, name=f"my_{name}"
        )
    history.add_messages(TURN)
    assert len(history.messages) == 2
    assert "memkit_ttl" not in collection.index_information()


def test_large_collections_are_not_indexed_by_surprise(
    standalone: Any, database: str, collection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the limit first use raises with the command to run; setup() builds, and then it works."""
    monkeypatch.setattr(commands, "MAX_AUTO_INDEX", 10)
    collection.insert_many([{"x": i} for i in range(11)])
    factory = MongoDBChatMessageHistory.factory(standalone.uri, database)
    with pytest.raises(ConfigurationError, match=r"holds 11 documents.*setup\(\)"):
        factory("s1").add_messages(TURN)
    factory.setup()
    factory("s1").add_messages(TURN)
    assert len(factory("s1").messages) == 2


def test_rows_of_langchain_mongodb_are_read_in_place(standalone: Any, database: str, collection: Any) -> None:
    """What the real peer wrote comes first, in order; ours follow; the peer still sees its own rows and no others."""
    from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer

    peer = Peer(standalone.uri, "s1", database)
    old = [
        SystemMessage("Be brief."),
        HumanMessage("q1"),
        AIMessage("a1", tool_calls=[]),
        ToolMessage("t", tool_call_id="1"),
    ]
    peer.add_messages(old)
    history = MongoDBChatMessageHistory(standalone.uri, "s1", database)
    assert history.messages == old
    history.add_messages(TURN)
    assert texts(history) == ["Be brief.", "q1", "a1", "t", "My name is Nemo.", "Hello Nemo."]
    assert [m.text for m in history.iter_messages()] == texts(history)
    assert [m.text for m in history.iter_messages(after_seq=0)] == ["My name is Nemo.", "Hello Nemo."]
    assert [m.text for m in history.tail(max_messages=3)] == ["My name is Nemo.", "Hello Nemo."]
    assert [m.text for m in history.tail(max_messages=5)] == ["My name is Nemo.", "Hello Nemo."]
    assert len(history.tail(max_messages=6)) == 6
    assert peer.messages == old
    assert [s.turns for s in MongoDBChatMessageHistory.factory(standalone.uri, database).list_sessions()] == [5]
    assert MongoDBChatMessageHistory(standalone.uri, "s1", database, user_id="u1").messages == []
    history.clear()
    assert history.messages == peer.messages == []
    peer.close()


def test_rows_of_the_peer_with_other_keys(standalone: Any, database: str, collection: Any) -> None:
    """session_id_key and history_key name the peer's fields; names of our own fields are refused."""
    message = json.dumps(message_to_dict(HumanMessage("q")))
    collection.insert_one({"sid": "s1", "msg": message})
    history = MongoDBChatMessageHistory(standalone.uri, "s1", database, session_id_key="sid", history_key="msg")
    assert texts(history) == ["q"]
    for name in ("session_id", "user_id", "seq", "messages", "$x", "a.b", ""):
        with pytest.raises(ConfigurationError, match="session_id_key"):
            MongoDBChatMessageHistory(standalone.uri, "s1", database, session_id_key=name)


def test_damaged_rows_of_the_peer(history: Any, collection: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Unreadable rows of the peer are reported; good ones around them come back."""
    good = json.dumps(message_to_dict(HumanMessage("good")))
    evil = json.dumps({"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {}})
    bad = ["{", "null", "[]", '"text"', 7, None, {"type": "human"}, '{"type": "martian", "data": {}}', evil, b"\xff"]
    for row in [good, *bad, good]:
        collection.insert_one({"SessionId": "s1", "History": row})
    collection.insert_one({"SessionId": "s1", "History": message_to_dict(HumanMessage("object"))})
    view = history.view()
    assert [m.text for m in view.messages] == ["good", "good", "object"]
    assert len(view.problems) == len(bad)
    assert f"{len(bad)} unreadable" in caplog.text


def test_old_app_still_writing_is_reported(
    standalone: Any, database: str, collection: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A row of the peer that is younger than our first turn is shown, and there is a warning."""
    history = MongoDBChatMessageHistory(standalone.uri, "s1", database, now=lambda: datetime(2020, 1, 1, tzinfo=UTC))
    history.add_messages(TURN)
    collection.insert_one({"SessionId": "s1", "History": json.dumps(message_to_dict(HumanMessage("late")))})
    assert "late" in texts(history)
    assert "old app still writes" in caplog.text


def damaged(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A stored document, damaged in many ways."""
    without = {k: {n: v for n, v in document.items() if n != k} for k in ("messages", "v", "tokens")}
    return {
        "no messages": without["messages"],
        "no version": without["v"],
        "newer version": {**document, "v": 2},
        "messages is text": {**document, "messages": "hello"},
        "messages is null": {**document, "messages": None},
        "message is a number": {**document, "messages": [7]},
        "unknown role": {**document, "messages": [{"role": "martian", "content": "x"}]},
        "no role": {**document, "messages": [{"content": "x"}]},
        "role is an object": {**document, "messages": [{"role": {"$gt": ""}, "content": "x"}]},
        "content is a number": {**document, "messages": [{"role": "human", "content": 7}]},
        "content is an id": {**document, "messages": [{"role": "human", "content": ObjectId()}]},
        "unknown tag": {**document, "messages": [{"role": "human", "content": {"_memkit": "eval", "value": "1"}}]},
        "no tag value": {**document, "messages": [{"role": "human", "content": {"_memkit": "str"}}]},
    }


KINDS = sorted(damaged({}))


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_documents(standalone: Any, history: Any, collection: Any, database: str, kind: str) -> None:
    """Good messages come back in order, the damaged document is reported, kept, and does not stop a writer."""
    for text in "abc":
        history.add_user_message(text)
    document = collection.find_one({"seq": 2})
    collection.replace_one({"_id": document["_id"]}, damaged(document)[kind])
    view = history.view()
    assert [m.text for m in view.messages] == ["a", "c"]
    assert len(view.problems) == 1
    assert history.append_turn(TURN) == 4
    assert collection.count_documents({}) == 4
    strict = MongoDBChatMessageHistory(standalone.uri, "s1", database, on_corrupt="raise")
    with pytest.raises(MessageDecodeError):
        strict.messages  # noqa: B018  # reading is the test


@pytest.mark.parametrize("field", ["epoch", "base", "op", "createdAt", "kind", "tokens", "token_counter"])
@pytest.mark.parametrize("value", [None, "x", {"a": 1}, [1]], ids=repr)
@pytest.mark.parametrize("seq", [2, 3])
def test_damaged_bookkeeping_hides_nothing(history: Any, collection: Any, field: str, value: Any, seq: int) -> None:
    """A damaged field beside the messages, in the middle or at the end, loses no message and stops no writer."""
    for text in "abc":
        history.add_user_message(text)
    collection.update_one({"seq": seq}, {"$set": {field: value}})
    assert texts(history) == ["a", "b", "c"]
    assert history.append_turn([HumanMessage("d")]) == 4
    assert texts(history) == ["a", "b", "c", "d"]


def test_invalid_text_in_a_document(history: Any, collection: Any, database: str) -> None:
    """Bytes that are no UTF-8, which only a broken driver writes, do not hide the session."""
    for text in "abc":
        history.add_user_message(text)
    raw = encode(collection.find_one({"seq": 2})).replace(b"\x02\x00\x00\x00b\x00", b"\x02\x00\x00\x00\xff\x00")
    assert BSON(raw)
    collection.delete_one({"seq": 2})
    with MongoClient(collection.database.client.address[0], collection.database.client.address[1]) as client:
        client[database]["message_store"].insert_one(RawBSONDocument(raw))
    assert [m.text for m in history.messages][::2] == ["a", "c"]


def test_too_large_turn(history: Any) -> None:
    """A turn that no document can hold is a typed error with the messages in it; a large one that fits is stored."""
    history.add_messages([HumanMessage("é" * 4_000_000)])
    assert history.messages[0].content == "é" * 4_000_000
    with pytest.raises(MessageTooLargeError) as raised:
        history.add_messages([HumanMessage("é" * 9_000_000)])
    assert not raised.value.maybe_stored
    assert len(raised.value.messages) == 1
    assert len(history.messages) == 1


@pytest.mark.parametrize("style", ["sync", "async"])
def test_what_the_driver_cannot_encode_is_not_large(history: Any, style: str) -> None:
    """A row of a store's own with what BSON has not is refused as that, with its messages and without its text."""
    odd: Any = [{"n": object()}, {"nu\x00l": 1}, {"n": 2**64}, {"nested": {1: 2}}]
    for data in odd:
        batch = prepare_batch([HumanMessage("my secret")], None, None)
        batch = replace(batch, rows=[replace(batch.rows[0], messages=[data])])
        store = history.turn_store
        flow = store.append(SessionScope("", "s1"), batch, None, ReadVersion())
        with pytest.raises(HistoryWriteError) as raised:
            store.run(flow) if style == "sync" else asyncio.run(store.arun(flow))
        assert type(raised.value) is HistoryWriteError
        assert not raised.value.maybe_stored
        assert [m.text for m in raised.value.messages] == ["my secret"]
        assert "secret" not in str(raised.value)
    assert history.messages == []


# pymongo's monitor is cancelled while it connects, and then leaves the socket to the collector
UNCLOSED = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")


@UNCLOSED
@pytest.mark.parametrize("style", ["sync", "async"])
def test_server_down(style: str) -> None:
    """Constructing does no I/O; reads and writes fail with a typed error that names the host and no credentials."""
    port = closed_port()
    uri = f"mongodb://nemo:s3cr3t@127.0.0.1:{port}/?authSource=admin"
    history = MongoDBChatMessageHistory(uri, "s1", timeout=0.5)
    factory = MongoDBChatMessageHistory.factory(uri, timeout=0.5)
    for error, name, args in (
        (HistoryReadError, "tail", ()),
        (HistoryWriteError, "add_messages", (TURN,)),
        (HistoryWriteError, "clear", ()),
    ):
        with pytest.raises(error) as raised:
            getattr(history, name)(*args) if style == "sync" else asyncio.run(getattr(history, f"a{name}")(*args))
        assert str(port) in str(raised.value)
        assert "s3cr3t" not in f"{raised.value!s} {raised.value!r} {raised.value.__cause__!r} {history!r} {factory!r}"
        if isinstance(raised.value, HistoryWriteError):
            assert not raised.value.maybe_stored
    del raised
    gc.collect()  # here, where the warning is expected


@UNCLOSED
def test_server_down_leaves_the_loop_free() -> None:
    """While a read waits for a server that is down, the event loop goes on."""
    asyncio.run(_beats_while_reading())
    gc.collect()  # here, where the warning is expected


async def _beats_while_reading() -> None:
    history = MongoDBChatMessageHistory(f"mongodb://127.0.0.1:{closed_port()}", "s1", timeout=60)
    reading = asyncio.create_task(history.aget_messages())
    for _ in range(10):
        await asyncio.sleep(0.01)
    assert not reading.done()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


def test_connection_arguments(standalone: Any) -> None:
    """Wrong connection arguments are refused with the peer's words, and never show a password."""
    with MongoClient(standalone.uri) as client, pytest.raises(ValueError, match="not both"):
        MongoDBChatMessageHistory(standalone.uri, "s1", client=client)
    with pytest.raises(ValueError, match="must be provided"):
        MongoDBChatMessageHistory(None, "s1")
    for uri in ("http://nemo:s3cr3t@host/", "mongodb://nemo:s3cr3t@host:99999/", "mongodb://ne:mo:s3cr3t@host/"):
        with pytest.raises(ConfigurationError) as raised:
            MongoDBChatMessageHistory(uri, "s1", timeout=0.2).messages  # noqa: B018  # reading is the test
        assert "s3cr3t" not in str(raised.value)
    for arguments in ({"ttl": 5}, {"timeout": 0}, {"save_timeout": -1}, {"layout": "rows"}):
        with pytest.raises(ConfigurationError):
            MongoDBChatMessageHistory(standalone.uri, "s1", **arguments)


def test_given_async_client(standalone: Any, database: str) -> None:
    """An async client of the caller's is used by the async methods; sync ones say what is missing."""

    async def go() -> list[BaseMessage]:
        client: AsyncMongoClient[Any] = AsyncMongoClient(standalone.uri)
        history = MongoDBChatMessageHistory(None, "s1", database, async_client=client)
        await history.aadd_messages(TURN)
        stored = await history.aget_messages()
        with pytest.raises(ConfigurationError, match="async_client"):
            history.messages  # noqa: B018  # reading is the test
        await client.close()
        return stored

    assert len(asyncio.run(go())) == 2


def connections(server: Any) -> int:
    """Connections that the server counts."""
    with MongoClient(server.uri) as client:
        return int(client.admin.command("serverStatus")["connections"]["current"])


def test_many_histories_share_a_client(standalone: Any, database: str) -> None:
    """500 kept histories cost a handful of connections and threads."""
    before, threads = connections(standalone), threading.active_count()
    kept = [MongoDBChatMessageHistory(standalone.uri, f"s{i}", database) for i in range(500)]
    for history in kept:
        history.add_messages(TURN)
    assert connections(standalone) <= before + 10
    assert threading.active_count() <= threads + 10


def test_event_loops_leave_no_connections(standalone: Any, database: str) -> None:
    """Every asyncio.run has a client of its own, which is closed with its loop."""
    before = connections(standalone)
    for _ in range(20):
        asyncio.run(MongoDBChatMessageHistory(standalone.uri, "s1", database).aadd_messages(TURN))
    deadline = time.monotonic() + 60
    while connections(standalone) > before + 4 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert connections(standalone) <= before + 4
    assert len(clients._async) <= 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the test
@pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")  # the fixture's own client
def test_fork(standalone: Any, database: str) -> None:
    """A forked child opens a client of its own; parent and child both go on writing."""
    history = MongoDBChatMessageHistory(standalone.uri, "s1", database)
    history.add_messages(TURN)
    child = os.fork()
    if child == 0:
        try:
            history.add_messages(TURN)
            os._exit(0 if len(history.messages) >= 4 else 1)
        except BaseException:
            os._exit(2)
    history.add_messages(TURN)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(history.messages) == 6


def test_closing(standalone: Any, database: str) -> None:
    """The last factory of a connection string closes the shared client; histories reconnect when used again."""
    uri = f"mongodb://{standalone.hosts[0]}/?appName=closing"  # a client that no other test uses
    first = MongoDBChatMessageHistory.factory(uri, database)
    with MongoDBChatMessageHistory.factory(uri, database) as second:
        second("s1").add_messages(TURN)
        shared = second("s1").client
    assert first("s1").client is shared
    first.close()
    assert first("s1").client is not shared
    assert len(first("s1").messages) == 2
    history = first("s1")
    history.close()
    assert len(history.messages) == 2


def test_soft_delete_flags_of_other_apps(history: Any, collection: Any) -> None:
    """isDeleted: true and isActive: false hide a turn; missing flags mean live."""
    for text in "abcd":
        history.add_user_message(text)
    collection.update_one({"seq": 2}, {"$set": {"isDeleted": True}})
    collection.update_one({"seq": 3}, {"$set": {"isActive": False}})
    collection.update_one({"seq": 4}, {"$set": {"isActive": True, "isDeleted": False}})
    assert texts(history) == ["a", "d"]


def test_ttl(standalone: Any, database: str, collection: Any) -> None:
    """Turns carry the time at which the server removes them; expired ones are not shown before that."""
    history = MongoDBChatMessageHistory(standalone.uri, "s1", database, ttl=3600)
    history.add_messages(TURN)
    (document,) = collection.find()
    assert (document["expiresAt"] - document["createdAt"]).total_seconds() == 3600
    collection.update_one({}, {"$set": {"expiresAt": datetime(2020, 1, 1, tzinfo=UTC)}})
    assert history.messages == []


def test_purge(standalone: Any, database: str, collection: Any) -> None:
    """Nothing with content is left of the user; turns under way are refused, also in sessions not yet begun."""
    factory = MongoDBChatMessageHistory.factory(standalone.uri, database)
    for session in ("s1", "s2"):
        factory(session, "u1").add_messages(TURN)
    factory("s1", "u2").add_messages(TURN)
    factory("s1").add_messages(TURN)
    old, new = factory("s1", "u1").view(), factory("new", "u1").view()
    assert purge_user("u1", factory) == [{"sessions": 2, "turns": 2}]
    left = list(collection.find({"user_id": "u1"}))
    assert left
    assert all("messages" not in d and d["kind"] in ("clear", "purge", "void") and "expiresAt" in d for d in left)
    for session, view in (("s1", old), ("new", new)):
        with pytest.raises(StaleTurnError):
            factory(session, "u1").append_turn(TURN, epoch=view.epoch)
    assert factory.list_sessions("u1") == []
    assert len(factory("s1", "u2").messages) == len(factory("s1").messages) == 2
    factory("new", "u1").append_turn(TURN, epoch=factory("new", "u1").view().epoch)
    assert [s.session_id for s in factory.list_sessions("u1")] == ["new"]


def test_clear_that_broke_off(history: Any, collection: Any) -> None:
    """After a crash behind its marker the old turns are void: unseen, and their names are free again."""
    history.append_turn(TURN, turn_id="t1")
    (old,) = collection.find()
    history.clear()
    collection.replace_one({"_id": old["_id"]}, old)  # as if its content were still there
    assert history.messages == []
    assert list(history.iter_messages()) == []
    history.append_turn(TURN, turn_id="t1")
    assert texts(history) == ["My name is Nemo.", "Hello Nemo."]
    assert collection.find_one({"seq": 1})["kind"] == "void"
    assert collection.count_documents({"messages": {"$exists": True}}) == 1


def test_purge_between_look_and_insert(standalone: Any, database: str, listener: Any) -> None:
    """A purge that slips in between a new session's look and its insert still wins: the turn is taken back."""
    factory = MongoDBChatMessageHistory.factory(standalone.uri, database)
    factory("other", "u1").add_messages(TURN)

    def started(event: Any) -> None:
        """Purges when the insert is about to be sent."""
        if event.command_name == "insert" and not listener.sent:
            listener.sent.append(("purge", None))
            factory.purge("u1")

    listener.started = started
    with MongoClient(standalone.uri, event_listeners=[listener]) as client:
        history = MongoDBChatMessageHistory(None, "new", database, user_id="u1", client=client)
        with pytest.raises(StaleTurnError, match="purged"):
            history.append_turn(TURN, epoch=history.view().epoch)
    assert factory("new", "u1").messages == []


def test_lost_reply_is_stored_once(standalone: Any, database: str) -> None:
    """A write whose reply is lost is looked up and not stored twice."""
    with MongoClient(standalone.uri, retryWrites=False) as client:
        history = MongoDBChatMessageHistory(None, "s1", database, client=client)
        history.add_messages(TURN)
        store = history._store
        original, failures = store.collection, iter([True, False])

        def flaky(given: Any) -> Any:
            real = original(given)

            class Proxy:
                def __getattr__(self, name: str) -> Any:
                    return getattr(real, name)

                def insert_many(self, documents: Any) -> Any:
                    from pymongo.errors import AutoReconnect

                    result = real.insert_many(documents)
                    if next(failures, False):
                        raise AutoReconnect("the reply was lost")
                    return result

            return Proxy()

        store.collection = flaky  # type: ignore[method-assign]  # the reply is lost after the server has stored
        assert history.append_turn([HumanMessage("once")]) == 2
        store.collection = original  # type: ignore[method-assign]  # as it was
        assert texts(history) == ["My name is Nemo.", "Hello Nemo.", "once"]


@pytest.mark.replica_set
def test_failover() -> None:
    """The primary is killed while four threads write: no acknowledged turn lost, doubled, split or out of order."""
    with local_mongodb(nodes=3) as server:
        factory = MongoDBChatMessageHistory.factory(server.uri)
        acknowledged: dict[int, list[str]] = {w: [] for w in range(4)}
        half = threading.Event()

        def write(writer: int) -> None:
            for i in range(30):
                factory(f"s{writer % 2}").add_messages([HumanMessage(f"{writer}-{i}"), AIMessage("a")])
                acknowledged[writer].append(f"{writer}-{i}")
                if i == 10:
                    half.set()

        threads = [threading.Thread(target=write, args=(w,)) for w in acknowledged]
        for thread in threads:
            thread.start()
        half.wait()
        server.kill(server.primary_index())
        for thread in threads:
            thread.join()
        for session in (0, 1):
            turns = list(factory(f"s{session}").iter_turns())
            assert [t.seq for t in turns] == list(range(1, len(turns) + 1))
            assert all(len(t.messages) == 2 for t in turns)
            for w in (session, session + 2):
                assert [t.messages[0].text for t in turns if t.messages[0].text.startswith(f"{w}-")] == acknowledged[w]
        assert all(len(turns) == 30 for turns in acknowledged.values())
        factory.close()


def two_workers(standalone: Any, database: str) -> tuple[Any, Any]:
    """Two factories that share nothing but the collection, as two processes would."""
    return tuple(MongoDBChatMessageHistory.factory(standalone.uri, database) for _ in range(2))  # type: ignore[return-value]  # two


def test_remembered_position_and_a_clear_elsewhere(standalone: Any, database: str, collection: Any) -> None:
    """A clear frees positions: a worker that remembers an older one is not led below the marker."""
    ours, theirs = two_workers(standalone, database)
    ours("s1").add_messages([HumanMessage("1")])
    for text in "234":
        theirs("s1").add_messages([HumanMessage(text)])
    theirs("s1").clear()
    seq = ours("s1").append_turn([HumanMessage("after")])
    assert texts(theirs("s1")) == texts(ours("s1")) == ["after"]
    assert [t.seq for t in theirs("s1").iter_turns()] == [seq]
    assert collection.count_documents({"kind": "turn"}) == 1


def test_turn_over_a_clear_elsewhere(standalone: Any, database: str, collection: Any) -> None:
    """A turn that began before another worker's clear is refused, although that freed the position it remembers."""
    ours, theirs = two_workers(standalone, database)
    ours("s1").add_messages([HumanMessage("1")])
    view = ours("s1").view()
    theirs("s1").add_messages([HumanMessage("2")])
    theirs("s1").clear()
    with pytest.raises(StaleTurnError):
        ours("s1").append_turn([HumanMessage("about 1")], epoch=view.epoch, since=view.read_at)
    assert collection.count_documents({"kind": "turn"}) == 0


def test_import_over_a_clear_elsewhere(standalone: Any, database: str) -> None:
    """An import that starts below another worker's marker arrives whole."""
    ours, theirs = two_workers(standalone, database)
    ours("s1").add_messages([HumanMessage("1")])
    for text in "234":
        theirs("s1").add_messages([HumanMessage(text)])
    theirs("s1").clear()
    given = [m for i in range(300) for m in (HumanMessage(str(i)), AIMessage("a"))]
    ours("s1").add_messages(given)
    assert [m.text for m in theirs("s1").messages] == [m.text for m in given]


def test_marker_that_expires(standalone: Any, database: str, collection: Any) -> None:
    """A marker that the server removes after its hour is not remembered: nobody's turn becomes invisible."""
    ours, theirs = two_workers(standalone, database)
    for _ in range(3):
        ours("s1").add_messages(TURN)
    ours("s1").clear()
    ours("s1").view()
    collection.delete_many({"kind": "clear"})
    theirs("s1").add_messages([HumanMessage("first")])
    ours("s1").add_messages([HumanMessage("second")])
    assert texts(ours("s1")) == texts(theirs("s1")) == ["first", "second"]


def test_dropped_collection(history: Any, collection: Any) -> None:
    """A collection that is dropped while the process lives gets its indexes back before anything is stored."""
    history.add_user_message("old")
    collection.drop()
    threads = [threading.Thread(target=history.add_user_message, args=(str(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [t.seq for t in history.iter_turns()] == list(range(1, 9))
    assert "memkit_seq" in collection.index_information()


def test_errors_show_no_content(history: Any, collection: Any, database: str) -> None:
    """Neither a password with odd characters nor what was said gets into an error."""
    down = MongoDBChatMessageHistory(f"mongodb://nemo:pa ss@127.0.0.1:{closed_port()}", "s1", timeout=0.2)
    with pytest.raises(HistoryReadError) as read:
        down.messages  # noqa: B018  # reading is the test
    assert "pa ss" not in str(read.value)
    assert "nemo" not in str(read.value)
    history.add_messages(TURN)
    rules = {"$jsonSchema": {"required": ["never"]}}
    collection.database.command("collMod", "message_store", validator=rules)
    with pytest.raises(HistoryWriteError, match="validation") as write:
        history.add_messages([HumanMessage("my diagnosis")])
    assert "diagnosis" not in str(write.value)
    assert not write.value.maybe_stored


def test_expired_turns_are_not_listed(standalone: Any, database: str, collection: Any) -> None:
    """A session whose turns have expired is not listed, also before the server has removed them."""
    factory = MongoDBChatMessageHistory.factory(standalone.uri, database, ttl=60)
    factory("s1", "u1").add_messages(TURN)
    assert len(factory.list_sessions("u1")) == 1
    collection.update_many({}, {"$set": {"expiresAt": datetime(2020, 1, 1, tzinfo=UTC)}})
    assert factory.list_sessions("u1") == []


def test_peer_rows_after_a_clear_are_reported(history: Any, collection: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Rows that an old app writes after a clear are not shown, and there is a warning."""
    history.add_messages(TURN)
    history.clear()
    collection.insert_one({"SessionId": "s1", "History": json.dumps(message_to_dict(HumanMessage("late")))})
    assert texts(history) == []
    assert "after a clear are not shown" in caplog.text


def test_streams_that_end_with_their_loop(standalone: Any, database: str) -> None:
    """A stream that is still open somewhere inside a sequence when the loop ends stores what it had."""
    from langchain_core.output_parsers import StrOutputParser

    factory = MongoDBChatMessageHistory.factory(standalone.uri, database)
    chain: Any = create_runnable_with_message_history(FakeChatModel(), factory) | StrOutputParser()

    async def stop_early(session: str) -> None:
        stream = chain.astream("What is my name?", {"configurable": {"session_id": session}})
        async for _ in stream:
            break
        await stream.aclose()

    for i in range(5):
        asyncio.run(stop_early(f"s{i}"))
    assert [[m.type for m in factory(f"s{i}").messages] for i in range(5)] == [["human", "ai"]] * 5


def test_retry_comes_before_a_conflict(history: Any) -> None:
    """A turn that is stored already is returned, also if expected_seq has moved on since."""
    assert history.append_turn(TURN, turn_id="t1", expected_seq=0) == 1
    assert history.append_turn(TURN, turn_id="t1", expected_seq=0) == 1


@pytest.mark.parametrize("damage", ["none", "newest", "middle"])
def test_tail_over_rows_of_an_import(history: Any, collection: Any, damage: str) -> None:
    """Long rows are read in part; no message goes missing between two rows, unreadable ones or not."""
    talk: list[BaseMessage] = []
    for i in range(175):
        talk += [HumanMessage(f"q{i}", id=f"q{i}"), AIMessage(f"a{i}", id=f"a{i}")]
    history.add_messages(talk)
    history.add_messages([HumanMessage("last", id="x"), AIMessage("LAST", id="y")])
    gone = {"none": set(), "newest": {"a174", "q173"}, "middle": {f"a{i}" for i in range(135, 145)}}[damage]
    for identity in gone:
        position = int(identity[1:]) % 50 * 2 + (identity[0] == "a")
        row = collection.find_one({"messages.id": identity})
        assert row["messages"][position]["id"] == identity
        collection.update_one({"_id": row["_id"]}, {"$set": {f"messages.{position}": {"id": identity}}})
    whole = [m.id for m in history.messages]
    assert len(whole) == 352 - len(gone)
    for size in [0, 1, 2, 3, 4, 19, 20, 21, 51, 99, 100, 101, 102, 103, 151, 152, 200, 201, 352, 2**40]:
        tail = [m.id for m in history.tail(max_messages=size)]
        assert len(tail) <= size
        assert tail == whole[len(whole) - len(tail) :]
        assert len(tail) >= min(size, len(whole)) - 2
