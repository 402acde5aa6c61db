"""Export and import with MongoDB, in every layout; hidden turns and dates on the way between the stores."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.migrate import export_history, import_history, migrate
from langchain_memkit.testing.langchain_histories import exchange, one_of_each

WHEN = datetime(2025, 5, 5, 12, 30, 1, 250_000, tzinfo=UTC)


@pytest.fixture
def native(standalone: Any, database: str) -> Any:
    """Native turns of a user: every message type, a date of their own, one hidden, one session with nothing else."""
    factory = MongoDBChatMessageHistory.factory(standalone.uri, database, now=lambda: WHEN)
    mine = factory("s1", "u1")
    mine.append_turn(one_of_each(), turn_id="t1")
    mine.append_turn(exchange("hidden"), turn_id="t2")
    mine.delete_turn("turn:t2")
    mine.append_turn(exchange("last"), turn_id="t3")
    factory("only hidden", "u1").append_turn(exchange("gone"), turn_id="t9")
    factory("only hidden", "u1").delete_turn("turn:t9")
    return factory


def elsewhere(standalone: Any, database: str, **options: Any) -> Any:
    """Another collection."""
    return MongoDBChatMessageHistory.factory(standalone.uri, database, "elsewhere", **options)


def through_a_file(source: Any, *targets: Any) -> None:
    """Exports from one store and imports into others, twice."""
    text = io.StringIO()
    assert export_history(source, text, progress=False).skipped == []
    for target in targets:
        for _ in range(2):
            text.seek(0)
            assert import_history(target, text, progress=False).skipped == []


def facts(factory: Any, session: str, owner: str | None = "u1") -> list[Any]:
    """All that is stored of a session's turns, hidden ones included."""
    history = factory(session, owner)
    turns, _ = history._store.run(history._page_forward(None, None, hidden=True))
    return [(t.op, t.created_at, t.is_deleted, t.tokens, t.messages, t.problems) for t in turns]


def test_between_the_backends(native: Any, standalone: Any, database: str) -> None:
    """From MongoDB through a file to SQLite and to MongoDB, and from there on by `migrate`: the same everywhere."""
    sqlite, other = SQLiteChatMessageHistory.factory(":memory:"), elsewhere(standalone, database)
    through_a_file(native, sqlite, other)
    third = MongoDBChatMessageHistory.factory(standalone.uri, database, "third")
    migrate(sqlite, third, progress=False)
    for session in ("s1", "only hidden"):
        for factory in (sqlite, other, third):
            assert facts(factory, session) == facts(native, session)
    assert [t[2] for t in facts(third, "s1")] == [False, True, False]
    assert third("s1", "u1").messages == native("s1", "u1").messages
    assert third("only hidden", "u1").restore_turn("turn:t9")
    assert len(third("only hidden", "u1").messages) == 2


def test_rows_of_the_peer(standalone: Any, database: str) -> None:
    """Rows of langchain-mongodb are exported as they are, and imported as whole turns, or as rows again."""
    said = [m for text in ("q1", "q2") for m in exchange(text)]
    peer = Peer(standalone.uri, "s1", database)
    peer.add_messages(said)
    peer.close()
    sqlite = SQLiteChatMessageHistory.factory(":memory:")
    rows = elsewhere(standalone, database, layout="langchain")
    through_a_file(MongoDBChatMessageHistory.factory(standalone.uri, database), sqlite, rows)
    assert sqlite("s1").messages == said
    assert [len(turn.messages) for turn in sqlite("s1").iter_turns()] == [2, 2]
    peer = Peer(standalone.uri, "s1", database, "elsewhere")
    assert peer.messages == said
    peer.close()


def test_documents_of_questions_and_answers(native: Any, standalone: Any, database: str) -> None:
    """The layout of questions and answers takes part, with its own documents, dates and flags."""
    answers = elsewhere(standalone, database, layout="qa")
    migrate(native, answers, progress=False)
    with MongoClient(standalone.uri) as client:
        found = client[database]["elsewhere"]
        assert found.count_documents({"isDeleted": True, "isActive": False}) == 2
        document = {"question": "q", "response": "a", "chatId": "s1", "userId": "u2", "isActive": False}
        found.insert_many([{**document, "createdAt": WHEN}, {**document, "isActive": True, "createdAt": WHEN}])
    assert [m.text for m in answers("s1", "u1").messages][-2:] == ["last", "re: last"]
    assert answers("only hidden", "u1").messages == []
    sqlite = SQLiteChatMessageHistory.factory(":memory:")
    through_a_file(answers, sqlite)
    assert sqlite("s1", "u1").messages == native("s1", "u1").messages
    assert sqlite("s1", "u2").messages == [HumanMessage("q"), AIMessage("a")]
    assert [t[2] for t in facts(sqlite, "s1", "u2")] == [True, False]


def test_hidden_turns_cannot_become_rows(native: Any, standalone: Any, database: str) -> None:
    """Rows of langchain-mongodb cannot be hidden: such turns are left out and named, never shown."""
    unowned = SQLiteChatMessageHistory.factory(":memory:")
    unowned("s1").append_turn(exchange("hidden"), turn_id="t1")
    unowned("s1").delete_turn("turn:t1")
    unowned("s1").append_turn(exchange("shown"), turn_id="t2")
    rows = elsewhere(standalone, database, layout="langchain")
    report = migrate(unowned, rows, progress=False)
    assert [m.text for m in rows("s1").messages] == ["shown", "re: shown"]
    assert len(report.skipped) == 1
    assert "turn:t1: hidden by delete_turn" in report.skipped[0]


@pytest.mark.parametrize("layout", ["turns", "qa"])
def test_expiry_moves_along(standalone: Any, database: str, layout: Any) -> None:
    """A turn that was to expire does so in the target, at the same time."""
    source = SQLiteChatMessageHistory.factory(":memory:", ttl=3600)
    source("s1", "u1").add_messages(exchange("soon gone"))
    (turn,) = source("s1", "u1").iter_turns()
    target = elsewhere(standalone, database, layout=layout)
    migrate(source, target, progress=False)
    with MongoClient(standalone.uri, tz_aware=True) as client:
        document = client[database]["elsewhere"].find_one({"userId" if layout == "qa" else "user_id": "u1"})
    assert document is not None
    assert turn.expires_at is not None
    assert abs(document["expiresAt"] - turn.expires_at) < timedelta(milliseconds=1)  # MongoDB keeps milliseconds
