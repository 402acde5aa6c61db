"""What a real server refuses is told without what was to be stored: the driver's errors carry whole documents."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from bson.code import Code
from bson.errors import InvalidDocument, InvalidStringData
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient, errors

from langchain_memkit import (
    EntityMemory,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    VectorMemory,
    create_runnable_with_message_history,
    explain_turn,
)
from langchain_memkit.backends.mongodb.commands import codes_of, is_transient
from langchain_memkit.backends.mongodb.failures import without_documents
from langchain_memkit.base import Mention
from langchain_memkit.errors import HistoryReadError, HistoryWriteError, MemkitError
from langchain_memkit.migrate import export_history
from langchain_memkit.testing import FakeChatModel

SAID = f"my secret is {uuid4().hex}"  # made here, so that no line of source has it
PASSWORD = uuid4().hex
EMBEDDING = DeterministicFakeEmbedding(size=8)
TURN = [HumanMessage(SAID), AIMessage(SAID)]
CONFIG = {"configurable": {"session_id": "s1", "user_id": "u1"}}

Failed = Callable[[Callable[[], Any]], MemkitError]


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Our loggers do not say it either."""
    with caplog.at_level(logging.DEBUG, "langchain_memkit"):
        yield
    told = "".join(r.getMessage() + str(r.exc_text) for r in caplog.records if r.name.startswith("langchain_memkit"))
    assert SAID not in told
    assert PASSWORD not in told


@pytest.fixture
def failed(told_by: Callable[[BaseException], str]) -> Failed:
    """The error of a call, once it was seen that neither it nor what it is chained to tells."""

    def run(call: Callable[[], Any]) -> None:
        result = call()
        if asyncio.iscoroutine(result):
            asyncio.run(result)

    def fail(call: Callable[[], Any]) -> MemkitError:
        with pytest.raises(MemkitError) as raised:
            run(call)
        text = told_by(raised.value)
        assert SAID not in text, text
        assert PASSWORD not in text, text
        return raised.value

    return fail


def writes(uri: str, name: str, **options: Any) -> dict[str, Callable[[], Any]]:
    """Every way to write what was said, sync and async."""

    def history(layout: str = "turns") -> Any:
        user = {} if layout == "langchain" else {"user_id": "u1"}
        return MongoDBChatMessageHistory(uri, "s1", name, layout=layout, **user, **options)  # type: ignore[arg-type]  # a layout

    keys = MongoDBKeyValueStore(uri, name, **options)
    histories = MongoDBChatMessageHistory.factory(uri, name, **options)
    vectors = VectorMemory(histories, EMBEDDING, "s1", user_id="u1")
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    made: dict[str, Callable[[], Any]] = {}
    for layout in ("turns", "langchain", "qa"):
        made[f"{layout}, add"] = lambda layout=layout: history(layout).add_messages(TURN)  # type: ignore[misc]  # bound now
        made[f"{layout}, aadd"] = lambda layout=layout: history(layout).aadd_messages(TURN)  # type: ignore[misc]  # as above
    many = [message for _ in range(60) for message in (HumanMessage(SAID), AIMessage(SAID))]
    return {
        **made,
        "append": lambda: history().append_turn(TURN, turn_id="t1"),
        "aappend": lambda: history().aappend_turn(TURN, turn_id="t1"),
        "import": lambda: history().add_messages(many),
        "aimport": lambda: history().aadd_messages(many),
        "keys": lambda: keys.mset([("k", {"said": SAID})]),
        "akeys": lambda: keys.amset([("k", {"said": SAID})]),
        "vectors": lambda: vectors.save(TURN),
        "avectors": lambda: vectors.asave(TURN),
        "chain": lambda: chat.invoke(SAID, CONFIG),
        "achain": lambda: chat.ainvoke(SAID, CONFIG),
        "stream": lambda: list(chat.stream(SAID, CONFIG)),
    }


def reads(uri: str, name: str, **options: Any) -> dict[str, Callable[[], Any]]:
    """Every way to read."""
    history = MongoDBChatMessageHistory(uri, "s1", name, user_id="u1", **options)
    keys, histories = (of(uri, name, **options) for of in (MongoDBKeyValueStore, MongoDBChatMessageHistory.factory))
    vectors = VectorMemory(histories, EMBEDDING, "s1", user_id="u1")
    return {
        "messages": lambda: history.messages,
        "amessages": lambda: history.aget_messages(),
        "tail": lambda: history.tail(max_messages=3),
        "sessions": lambda: MongoDBChatMessageHistory.factory(uri, name, **options).list_sessions("u1"),
        "keys": lambda: keys.mget(["k"]),
        "akeys": lambda: keys.amget(["k"]),
        "vectors": lambda: vectors.search(SAID),
        "avectors": lambda: vectors.asearch(SAID),
    }


REFUSALS: dict[str, Any] = {
    "never": {"never": {"$exists": True}},
    "schema": {"$jsonSchema": {"required": ["never"], "properties": {"messages": {"maxItems": 0}}}},
    "expression": {"$expr": {"$eq": [{"$toInt": {"$ifNull": ["$text", {"$literal": SAID}]}}, 1]}},
}


@pytest.mark.parametrize("rule", REFUSALS)
def test_validator(standalone: Any, database: str, rule: str, failed: Failed) -> None:
    """A validator refuses each write; some of the server's own words quote the document."""
    with MongoClient[dict[str, Any]](standalone.uri) as client:
        for how, call in writes(standalone.uri, database).items():
            if rule != "never" and how not in ("append", "akeys", "vectors"):
                continue
            client.drop_database(database)
            for name in ("message_store", "key_value"):
                client[database].create_collection(name, validator=REFUSALS[rule])
            error = failed(call)
            assert isinstance(error, HistoryWriteError), how
            assert codes_of(error.__cause__) - {65}, how  # type: ignore[arg-type]  # the driver's, which says why
        client.drop_database(database)


def test_unique_index_of_the_app(standalone: Any, database: str, failed: Failed) -> None:
    """An index of the app's own is violated: the server quotes the value."""
    with MongoClient[dict[str, Any]](standalone.uri) as client:
        collection = client[database]["message_store"]
        history = MongoDBChatMessageHistory(standalone.uri, "s0", database, user_id="u1")
        history.add_messages(TURN)
        collection.create_index("messages.content", unique=True)
        other = MongoDBChatMessageHistory(standalone.uri, "s1", database, user_id="u1", save_timeout=0.5)
        failed(lambda: other.add_messages(TURN))
        failed(lambda: other.aadd_messages(TURN))
        client.drop_database(database)


def test_too_large(standalone: Any, database: str, failed: Failed) -> None:
    """A turn larger than a document, in each layout; and a value and a record."""
    large = f"{SAID} " * 400_000
    uri = standalone.uri
    for layout in ("turns", "langchain", "qa"):
        user = {} if layout == "langchain" else {"user_id": "u1"}
        history = MongoDBChatMessageHistory(uri, "s1", database, layout=layout, **user)  # type: ignore[arg-type]  # a layout
        failed(lambda: history.add_messages([HumanMessage(large), AIMessage("ok")]))  # noqa: B023  # called at once
    failed(lambda: MongoDBKeyValueStore(uri, database).mset([("k", {"said": large})]))
    memory = VectorMemory(MongoDBChatMessageHistory.factory(uri, database), EMBEDDING, "s1", user_id="u1")
    failed(lambda: memory.save([HumanMessage(large), AIMessage("ok")]))
    with MongoClient[dict[str, Any]](uri) as client:
        client.drop_database(database)


def test_no_server_and_no_rights(root_of_guarded_server: Any, database: str, failed: Failed) -> None:
    """Nobody listens; a wrong password; a user who may read and not write, and one who may do nothing."""
    host, port = root_of_guarded_server.address
    root_of_guarded_server[database].command("createUser", "reader", pwd=PASSWORD, roles=["read"])
    root_of_guarded_server[database].command("createUser", "nobody", pwd=PASSWORD, roles=[])
    source = f"?authSource={database}"
    refusing = f"mongodb://reader:{PASSWORD}@{host}:{port}/{source}"
    closed = [f"mongodb://nobody:{PASSWORD}@{host}:{port}/{source}", f"mongodb://x:{PASSWORD}@{host}:{port}/{source}"]
    down = f"mongodb://reader:{PASSWORD}@127.0.0.1:1/{source}"
    for call in writes(refusing, database).values():
        failed(call)
    for uri in (*closed, down):
        # what may get better is tried again
        options = {} if uri == closed[0] else {"timeout": 0.2, "save_timeout": 0.2}
        for call in writes(uri, database, **options).values():
            failed(call)
        for how, call in reads(uri, database, **options).items():
            assert isinstance(failed(call), (HistoryReadError, MemkitError)), how
    root_of_guarded_server[database].command("dropUser", "reader")
    root_of_guarded_server[database].command("dropUser", "nobody")


def test_memories_of_a_chain(standalone: Any, database: str, failed: Failed) -> None:
    """The turn is stored and a memory is refused: its error is the driver's, without the text."""
    uri = standalone.uri
    with MongoClient[dict[str, Any]](uri) as client:
        client[database].create_collection("recalled", validator=REFUSALS["never"])
        histories, own = (MongoDBChatMessageHistory.factory(uri, database, n) for n in ("message_store", "recalled"))
        people = EntityMemory.factory(own, lambda text: [Mention("secret", "X", 3, 9)])
        for memory in (people, VectorMemory.factory(own, EMBEDDING)):
            chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[memory])
            failed(lambda: chat.invoke(f"I say: {SAID}.", CONFIG))  # noqa: B023  # called at once
            failed(lambda: chat.ainvoke(f"I say: {SAID}.", CONFIG))  # noqa: B023  # as above
        client.drop_database(database)


WRITE = {"index": 0, "code": 121, "errmsg": f'bad {{a: "{SAID}"}}', "op": {"text": SAID}, "errInfo": {"why": SAID}}
OF_THE_DRIVER: list[Exception] = [
    errors.BulkWriteError({"writeErrors": [{**WRITE, "keyValue": {"text": SAID}}], "nInserted": 3, "upserted": [SAID]}),
    errors.BulkWriteError({"writeConcernErrors": [{"code": 64, "errmsg": "late", "errInfo": {"wtimeout": True}}]}),
    errors.WriteError(f'Cannot create field "b" in element {{a: "{SAID}"}}', 28, WRITE),
    errors.DuplicateKeyError(f'E11000 duplicate key error dup key: {{ text: "{SAID}" }}', 11000, WRITE),
    errors.OperationFailure(f"cannot read '{SAID}'", 241, {"errmsg": f"no '{SAID}'", "code": 241}),
    errors.ExecutionTimeout("operation exceeded time limit", 50, {"op": SAID}),
    errors.WTimeoutError("waiting timed out", 64, {"errInfo": {"wtimeout": True}, "op": SAID}),
    errors.NotPrimaryError("not primary", {"errorLabels": ["RetryableWriteError"], "op": SAID}),
    errors.AutoReconnect("connection closed", {"errorLabels": ["RetryableWriteError"], "op": SAID}),
    errors.NetworkTimeout("timed out", {"op": SAID}),
    errors.ServerSelectionTimeoutError("no server"),
    errors.ConnectionFailure("no connection", ["RetryableWriteError"]),
    errors.InvalidOperation("Cannot use MongoClient after close"),
    errors.DocumentTooLarge("BSON document too large"),
    errors.EncryptionError(ValueError(SAID)),
    InvalidDocument(f"cannot encode object: {SAID}", {"text": SAID}),
    InvalidStringData(f"strings in documents must be valid UTF-8: {SAID}"),
]


@pytest.mark.parametrize("error", OF_THE_DRIVER, ids=lambda error: type(error).__name__)
def test_copies_of_the_drivers_errors(error: Exception) -> None:
    """A copy is of the same class, with the same codes and labels, decides the same, and holds no document at all."""
    copy = without_documents(error)
    assert type(copy) is type(error)
    assert SAID not in "".join([str(copy), repr(copy), repr(vars(copy)), repr(getattr(copy, "details", ""))])
    if isinstance(error, errors.PyMongoError):
        assert isinstance(copy, errors.PyMongoError)
        assert (codes_of(copy), is_transient(copy)) == (codes_of(error), is_transient(error))
        assert copy.timeout == error.timeout
        assert copy.has_error_label("RetryableWriteError") == error.has_error_label("RetryableWriteError")
        inserted = (getattr(error, "details", None) or {}) if isinstance(error, errors.BulkWriteError) else {}
        assert inserted.get("nInserted") == (getattr(copy, "details", None) or {}).get("nInserted")


def test_classes_of_others() -> None:
    """A class that is not the driver's own becomes the one above it that is."""

    class Odd(errors.WriteError):
        pass

    assert type(without_documents(Odd(SAID, 1, {"op": SAID}))) is errors.WriteError


@pytest.mark.parametrize("field", ["messages.0.role", "messages.0.content", "messages.0.id", "op", "kind", "messages"])
def test_code_where_text_belongs(standalone: Any, database: str, field: str) -> None:
    """BSON's `Code` is a `str` without a hash: the damaged row is left out or read, and its session goes on."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
    history = histories("s1", "u1")
    history.add_messages([HumanMessage("a", id="m1"), AIMessage("b")])
    history.add_messages([HumanMessage("c", id="m2"), AIMessage("d")])
    with MongoClient[dict[str, Any]](standalone.uri) as client:
        changed = client[database]["message_store"].update_one({"seq": 1}, {"$set": {field: Code("x")}})
        assert changed.modified_count == 1
        chat = create_runnable_with_message_history(FakeChatModel(), histories)
        chat.invoke("e", CONFIG)
        assert [m.text for m in history.messages][-4:] == ["c", "d", "e", "Noted."]
        assert [m.text for m in asyncio.run(history.aget_messages())][-4:] == ["c", "d", "e", "Noted."]
        assert explain_turn(chat, "f", CONFIG)
        assert export_history(histories, io.StringIO(), progress=False).turns >= 2
        history.clear()
        assert history.messages == []
        client.drop_database(database)


@pytest.mark.parametrize("row", [{"type": Code("human"), "data": {"content": "a"}}, Code("{}")], ids=["type", "row"])
def test_code_in_rows_of_langchain_mongodb(standalone: Any, database: str, row: Any) -> None:
    """The same in the rows of langchain-mongodb, beside which a conversation goes on."""
    with MongoClient[dict[str, Any]](standalone.uri) as client:
        client[database]["message_store"].insert_one({"SessionId": "s1", "History": row})
        histories = MongoDBChatMessageHistory.factory(standalone.uri, database)
        chat = create_runnable_with_message_history(FakeChatModel(), histories)
        chat.invoke("e", {"configurable": {"session_id": "s1"}})
        assert [m.text for m in histories("s1").messages] == ["e", "Noted."]
        client.drop_database(database)
