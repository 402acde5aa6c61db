"""What a clear and a purge leave on MongoDB: positions without content, until no late writer can come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import Timestamp
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory
from langchain_memkit.errors import StaleTurnError

TURN = [HumanMessage("a secret"), AIMessage("noted")]
EARLY, LATE = (lambda: datetime(2020, 1, 1, tzinfo=UTC)), (lambda: datetime(2999, 1, 1, tzinfo=UTC))


@pytest.fixture
def collection(standalone: Any, database: str) -> Iterator[Any]:
    """The collection behind memkit's back."""
    with MongoClient(standalone.uri, tz_aware=True) as client:
        yield client[database]["message_store"]


def texts(history: Any) -> list[str]:
    """The text of each message."""
    return [message.text for message in history.messages]


def age(collection: Any, **query: Any) -> None:
    """As if these rows had been stored three hours before."""
    long_ago = datetime.now(UTC) - timedelta(hours=3)
    collection.update_many(query, [{"$set": {"createdAt": long_ago}}, {"$unset": "storedAt"}])


def test_recent_turns_keep_their_positions(standalone: Any, database: str, collection: Any) -> None:
    """The content of a cleared turn goes at once; the row of a recent one stays, without it, for two hours."""
    history = MongoDBChatMessageHistory.factory(standalone.uri, database)("s1", "u1")
    for n in range(4):
        history.append_turn([HumanMessage(f"a secret {n}", id=f"id{n}")], turn_id=f"t{n}")
    collection.update_one({"seq": 3}, {"$set": {"isDeleted": True, "note": "a secret of the app's"}})
    age(collection, seq={"$lte": 2})
    history.clear()
    rows = list(collection.find({"seq": {"$gt": 0}}).sort("seq"))
    assert [(row["seq"], row["kind"]) for row in rows] == [(3, "void"), (4, "void"), (5, "clear")]
    assert "secret" not in str(rows)
    assert "t3" not in str(rows)
    for row in rows:
        left = row["expiresAt"] - datetime.now(UTC)
        assert timedelta(hours=1, minutes=59) < left <= timedelta(hours=2, seconds=5)
    assert history.append_turn(TURN, turn_id="t3") == 6  # a name is free again
    assert texts(history) == ["a secret", "noted"]


@pytest.mark.parametrize("now", [EARLY, LATE], ids=["clock is slow", "clock is fast"])
def test_the_servers_clock_decides(standalone: Any, database: str, collection: Any, now: Any) -> None:
    """Rows that were stored a moment ago stay, and a marker lives for two hours, whatever the client's clock says."""
    factory = MongoDBChatMessageHistory.factory(standalone.uri, database, now=now)
    history = factory("s1", "u1")
    for _ in range(2):
        history.add_messages(TURN)
    view = history.view()
    history.add_messages(TURN)
    history.clear()
    rows = list(collection.find({"seq": {"$gt": 0}}).sort("seq"))
    assert [row["kind"] for row in rows] == ["void", "void", "void", "clear"]
    assert all(abs(row["expiresAt"] - datetime.now(UTC) - timedelta(hours=2)) < timedelta(minutes=1) for row in rows)
    with pytest.raises(StaleTurnError):
        history.append_turn(TURN, epoch=view.epoch, since=view.read_at, head=view.head)
    assert texts(history) == []


def test_imports_count_from_when_they_were_stored(standalone: Any, database: str, collection: Any) -> None:
    """Turns with dates of their own, as an import writes them, say when the server has stored them."""
    source = MongoDBChatMessageHistory.factory(standalone.uri, database, "source")
    source("s1", "u1").add_messages(TURN)
    collection.database["source"].update_many({}, {"$set": {"createdAt": datetime(2020, 1, 1, tzinfo=UTC)}})
    from langchain_memkit.migrate import migrate

    target = MongoDBChatMessageHistory.factory(standalone.uri, database)
    migrate(source, target, progress=False)
    (row,) = collection.find({"seq": 1})
    assert row["createdAt"].year == 2020
    assert isinstance(row["storedAt"], Timestamp)
    assert row["storedAt"].time > time.time() - 600
    target("s1", "u1").clear()
    assert collection.find_one({"seq": 1})["kind"] == "void"


def test_a_late_writer_below_the_marker(standalone: Any, database: str, collection: Any) -> None:
    """What was read before a clear leads to a position that is taken: the turn is refused, and nothing is stored."""
    factory = MongoDBChatMessageHistory.factory(standalone.uri, database)
    history = factory("s1", "u1")
    for _ in range(3):
        history.add_messages(TURN)
    view = history.view()
    for _ in range(3):
        history.add_messages(TURN)
    for _ in range(2):
        history.clear()
    history.add_user_message("a new beginning")
    with pytest.raises(StaleTurnError):
        history.append_turn(TURN, epoch=view.epoch, since=view.read_at, head=view.head)
    assert texts(history) == ["a new beginning"]
    assert collection.count_documents({"messages": {"$exists": True}}) == 1


@pytest.mark.parametrize("gone", ["clear", "void"])
def test_markers_and_voids_expire_one_before_the_other(
    standalone: Any, database: str, collection: Any, gone: str
) -> None:
    """Whichever the server removes first, the next turns are shown, and what was read of the marker still fits."""
    history = MongoDBChatMessageHistory.factory(standalone.uri, database)("s1", "u1")
    for _ in range(3):
        history.add_messages(TURN)
    history.clear()
    view = history.view()
    collection.delete_many({"kind": gone})
    history.append_turn([HumanMessage("first")], epoch=view.epoch, since=view.read_at, head=view.head)
    history.add_user_message("second")
    assert texts(history) == ["first", "second"]
    collection.delete_many({"kind": {"$ne": "turn"}})
    assert texts(history) == ["first", "second"]
    assert [info.turns for info in MongoDBChatMessageHistory.factory(standalone.uri, database).list_sessions("u1")] == [
        2
    ]


def test_a_turn_keeps_the_marker_it_stands_on(standalone: Any, database: str, collection: Any) -> None:
    """The first turn after a clear renews its marker, and does without one that has expired."""
    history = MongoDBChatMessageHistory.factory(standalone.uri, database)("s1", "u1")
    history.add_messages(TURN)
    history.clear()
    soon = datetime.now(UTC) + timedelta(minutes=30)
    collection.update_many({"kind": "clear"}, {"$set": {"expiresAt": soon}})
    view = history.view()
    history.append_turn(TURN, epoch=view.epoch, since=view.read_at, head=view.head)
    assert collection.find_one({"kind": "clear"})["expiresAt"] > soon + timedelta(hours=1)
    history.clear()
    view = history.view()
    collection.delete_many({"kind": {"$ne": "turn"}})  # expired before the turn is stored
    history.append_turn(TURN, epoch=view.epoch, since=view.read_at, head=view.head)
    assert texts(history) == ["a secret", "noted"]


def test_a_purge_sees_a_session_that_is_being_opened(standalone: Any, database: str, collection: Any) -> None:
    """A session of which there is nothing but the row that opens it gets a marker, and the row goes."""
    factory = MongoDBChatMessageHistory.factory(standalone.uri, database)
    factory("s0", "u1").add_messages(TURN)
    view = factory("s1", "u1").view()
    factory("s1", "u1").append_turn(TURN, epoch=view.epoch, since=view.read_at, head=view.head)
    opening = collection.find_one({"session_id": "s1", "seq": 0})
    assert opening["kind"] == "opening"
    assert "messages" not in opening
    assert opening["expiresAt"] - datetime.now(UTC) > timedelta(hours=1, minutes=59)
    collection.delete_one({"session_id": "s1", "seq": 1})  # its writer stands between the two
    assert {info.session_id for info in factory.list_sessions("u1")} == {"s0"}
    assert factory("s1", "u1").messages == []
    factory.purge("u1")
    kinds = {(row["session_id"], row["seq"], row["kind"]) for row in collection.find({"session_id": "s1"})}
    assert kinds == {("s1", 1, "clear")}
    with pytest.raises(StaleTurnError):
        factory("s1", "u1").append_turn(TURN, epoch=view.epoch, since=view.read_at, head=view.head)


def test_20_000_turns_are_cleared(standalone: Any, database: str, collection: Any) -> None:
    """Of a long session only the rows of the last two hours stay, and listing sessions examines no more than before."""
    factory = MongoDBChatMessageHistory.factory(standalone.uri, database)
    factory("kept", "u1").add_messages(TURN)
    (row,) = collection.find({"seq": 1, "session_id": "kept"})
    now, span = datetime.now(UTC), timedelta(seconds=36)

    def rows(begin: int) -> list[dict[str, Any]]:
        return [
            {
                **{name: value for name, value in row.items() if name != "_id"},
                "session_id": "long",
                "seq": n,
                "op": f"turn:{n}",
                "createdAt": now - span * (20_000 - n),
                "messages": [{"role": "human", "content": "a secret", "id": f"id{n}"}],
            }
            for n in range(begin + 1, begin + 10_001)
        ]

    for begin in range(0, 20_000, 10_000):
        collection.insert_many(rows(begin), ordered=False)
    assert {info.session_id: info.turns for info in factory.list_sessions("u1")} == {"kept": 1, "long": 20_000}
    factory("long", "u1").clear()
    left = collection.count_documents({"session_id": "long"})
    assert 200 <= left <= 1000
    assert collection.count_documents({"messages.content": "a secret"}) == 1
    assert [info.session_id for info in factory.list_sessions("u1")] == ["kept"]
    assert factory("long", "u1").messages == []
