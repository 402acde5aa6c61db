"""What changed, on MongoDB: one type of time, rows of older writers, writes that were stalled, a restarted server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from bson import Timestamp
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient
from pymongo.errors import OperationFailure
from pymongo.monitoring import CommandListener

from langchain_memkit import MongoDBChatMessageHistory
from langchain_memkit.testing.changes import NAME, Reader
from tools.local_mongodb import local_mongodb

TURN = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]


@pytest.fixture
def histories(server: Any, database: str) -> Iterator[Any]:
    """Histories on each kind of server."""
    with MongoDBChatMessageHistory.factory(server.uri, database) as made:
        yield made


@pytest.fixture
def collection(server: Any, database: str) -> Iterator[Any]:
    """Their collection."""
    with MongoClient(server.uri) as client:
        yield client[database]["message_store"]


def test_one_type_of_time(histories: Any, collection: Any) -> None:
    """Whatever writes a row, the server has stamped it with a Timestamp: a range on one type finds all."""
    history = histories("s1", "u1")
    for _ in range(4):
        history.append_turn(TURN, index={NAME: b"x"})
    history.delete_turn(1)
    history.edit(2, TURN)
    history.undo_edit()
    history.fork("s2")
    histories("s3", "u1").append_turn(TURN)
    histories("s3", "u1").clear()
    Reader(history).keep([(("s2", 1), collection.find_one({"session_id": "s2", "seq": 1})["op"], b"y")])
    histories("s4", "u1").add_messages([message for _ in range(60) for message in TURN])
    found = list(collection.find({"seq": {"$gt": 0}}))
    assert {type(document["changed"]) for document in found} == {Timestamp}
    assert min(document["changed"].time for document in found) > 1_700_000_000


def test_history_reads_leave_the_index_out(server: Any, database: str, collection: Any) -> None:
    """A turn's index is sent to nobody who reads messages."""
    replies: list[Any] = []

    class Replies(CommandListener):
        """Notes what the server answers."""

        def started(self, event: Any) -> None:
            """Nothing to do."""

        def succeeded(self, event: Any) -> None:
            replies.append(event.reply)

        def failed(self, event: Any) -> None:
            """Nothing to do."""

    with MongoClient(server.uri, event_listeners=[Replies()]) as client:
        histories = MongoDBChatMessageHistory.factory(client=client, database_name=database)
        history = histories("s1", "u1")
        history.append_turn(TURN, index={NAME: b"derived"})
        assert collection.find_one({"seq": 1})["index"] == {NAME: b"derived"}
        reads = (lambda: history.messages, lambda: [*history.iter_turns()], lambda: history.view(max_tokens=10))
        for read in (*reads, lambda: histories.search_messages("u1", "nemo"), lambda: histories.list_sessions("u1")):
            assert read()
    assert replies
    assert "derived" not in repr(replies)


def test_rows_of_an_older_writer(histories: Any, collection: Any) -> None:
    """Rows without a mark are told, marked, and told no more; those that come later, while others look, as well."""
    history = histories("s1", "u1")
    reader = Reader(history)
    for _ in range(3):
        history.append_turn(TURN)
    collection.update_many({}, {"$unset": {"changed": ""}})
    assert [row.seq for row in reader.look(page=2).come] == [1, 2, 3]
    assert collection.count_documents({"changed": None, "seq": {"$gt": 0}}) == 0
    history.append_turn(TURN)
    collection.update_one({"seq": 4}, {"$unset": {"changed": ""}})
    assert [row.seq for row in reader.look().come] == [4]
    assert reader.look() == ([], [])


def test_rows_that_must_not_be_marked(
    histories: Any, collection: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who may only read sees rows of an older writer in its first look, and later rows of new ones; the log says it."""
    history = histories("s1", "u1")
    for _ in range(3):
        history.append_turn(TURN)
    collection.update_many({"seq": {"$lt": 3}}, {"$unset": {"changed": ""}})
    reader = Reader(history)

    def refuse(*_: Any, **__: Any) -> Any:
        raise OperationFailure("not authorized", 13)

    from pymongo.collection import Collection

    with monkeypatch.context() as patched:
        patched.setattr(Collection, "update_many", refuse)
        assert [row.seq for row in reader.look(page=2).come] == [3, 1, 2] or len(reader.log) == 3
        history.append_turn(TURN)
        assert [row.seq for row in reader.look().come] == [4]
    assert "cannot be marked" in caplog.text


def test_a_stalled_write(histories: Any, collection: Any) -> None:
    """A turn whose time the server drew long before it became visible comes with the next turn of its session."""
    history = histories("s1", "u1")
    reader = Reader(history)
    history.append_turn(TURN)
    reader.look()
    history.append_turn(TURN)
    early = Timestamp(collection.find_one({"seq": 1})["changed"].time - 100, 1)
    collection.update_one({"seq": 2}, {"$set": {"changed": early}})
    assert reader.look() == ([], [])
    history.append_turn(TURN)
    assert sorted(row.seq for row in reader.look().come) == [2, 3]


def test_pages_within_the_slack(histories: Any, collection: Any) -> None:
    """However many rows a look reads again, it reads all of them: what became visible late is among them."""
    history = histories("s1", "u1")
    for _ in range(30):
        history.append_turn(TURN)
    reader = Reader(history)
    reader.look()
    late = collection.find_one({"seq": 20})["changed"]
    collection.update_one({"seq": 20}, {"$set": {"isDeleted": True, "changed": late}})
    assert reader.look(page=7) == ([("s1", 20)], [])


def test_the_first_write_after_a_restart_is_a_clear() -> None:
    """A server without replication does not know its cluster's time then: a clear needs none."""
    with local_mongodb() as server, MongoDBChatMessageHistory.factory(server.uri, "d") as histories:
        history = histories("s1", "u1")
        reader = Reader(history)
        history.append_turn(TURN)
        reader.look()
        server.kill(0)
        server.restart(0)
        server.wait_ready()
        history.clear()
        assert reader.look() == ([("s1", 1)], [])


def test_a_tombstone_without_a_mark(histories: Any, collection: Any) -> None:
    """The server may end between the two parts of a tombstone: it is found all the same."""
    history = histories("s1", "u1")
    reader = Reader(history)
    history.append_turn(TURN)
    reader.look()
    history.clear()
    collection.update_one({"kind": "clear"}, {"$unset": {"changed": ""}})
    assert reader.look() == ([("s1", 1)], [])


def test_what_is_settled_is_not_read_again(histories: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing has changed for longer than the slack, a look reads no rows, however many came together."""
    history = histories("s1", "u1")
    history.add_messages([message for _ in range(300) for message in TURN])
    reader, clock = Reader(history), [100.0]
    monkeypatch.setattr("langchain_memkit.stores.looks.time.monotonic", lambda: clock[0])
    read = []
    changes = history.turn_store.changes

    async def counted(*args: Any) -> Any:
        found = await changes(*args)
        read.append(len(found.rows))
        return found

    monkeypatch.setattr(history.turn_store, "changes", counted)
    for seconds in (0, 5, 11, 1):
        clock[0] += seconds
        reader.look()
    assert read[-2] > 0 == read[-1]
    history.append_turn(TURN)
    assert [row.session_id for row in reader.look().come] == ["s1"]
