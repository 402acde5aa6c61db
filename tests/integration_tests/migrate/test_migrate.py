"""Moving in, out and back: every layout and both backends, with rows that the real peer wrote."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, message_to_dict
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer
from pymongo import MongoClient

from langchain_memkit import (
    MongoDBChatMessageHistory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate import amigrate, export_history, migrate
from langchain_memkit.testing import FakeChatModel
from langchain_memkit.testing.langchain_histories import exchange

TALK = [
    SystemMessage("Be brief."),
    HumanMessage("q1"),
    AIMessage("", tool_calls=[{"name": "f", "args": {"x": 1}, "id": "c1"}]),
    ToolMessage("r1", tool_call_id="c1"),
    AIMessage("a1"),
    HumanMessage("q2"),
    AIMessage("a2"),
    SystemMessage("Be long."),
    HumanMessage("q3"),
]


@pytest.fixture
def peer(standalone: Any, database: str) -> Any:
    """A session that the real langchain-mongodb wrote."""
    history = Peer(standalone.uri, "s1", database)
    history.add_messages(TALK)
    yield history
    history.close()


@pytest.fixture
def rows(standalone: Any, database: str) -> Any:
    """The peer's rows, as a source or a target."""
    return MongoDBChatMessageHistory.factory(standalone.uri, database, layout="langchain")


@pytest.fixture
def native(standalone: Any, database: str) -> Any:
    """Native turns in the same collection."""
    return MongoDBChatMessageHistory.factory(standalone.uri, database)


@pytest.fixture
def sqlite(tmp_path: Path) -> Any:
    """A file."""
    return SQLiteChatMessageHistory.factory(tmp_path / "chat.db")


def elsewhere(standalone: Any, database: str, **options: Any) -> Any:
    """Another collection."""
    return MongoDBChatMessageHistory.factory(standalone.uri, database, "elsewhere", **options)


def shapes(history: Any) -> list[list[str]]:
    """The types of the messages, turn by turn."""
    return [[m.type for m in turn.messages] for turn in history.iter_turns()]


def test_sessions_that_are_no_texts(standalone: Any, database: str, rows: Any, native: Any) -> None:
    """Rows of langchain-mongodb under a number or an ObjectId move to the session str(id), once."""
    given: list[Any] = [5, 0.5, ObjectId("65a1b2c3d4e5f60718293a4b")]
    for session_id in given:
        peer = Peer(standalone.uri, session_id, database)
        peer.add_messages(exchange(str(session_id)))
        peer.close()
    for source in (rows, native):
        with SQLiteChatMessageHistory.factory(":memory:") as histories:
            for _ in range(2):
                report = migrate(source, histories, user_id="u1", progress=False)
                assert (report.sessions, report.skipped) == (3, [])
            for name in map(str, given):
                assert [m.content for m in histories(name, "u1").messages] == [m.content for m in exchange(name)]


def test_from_the_peer_and_back(peer: Any, rows: Any, sqlite: Any, standalone: Any, database: str) -> None:
    """Rows become whole turns of a user, and those become rows again that the real peer reads: the same messages."""
    report = migrate(rows, sqlite, user_id="u1", progress=False)
    assert (report.sessions, report.turns, report.messages, report.skipped) == (1, 3, 9, [])
    history = sqlite("s1", "u1")
    assert history.messages == TALK
    assert shapes(history) == [["system", "human", "ai", "tool", "ai"], ["human", "ai"], ["system", "human"]]
    back = elsewhere(standalone, database, layout="langchain")
    report = migrate(sqlite, back, progress=False)
    assert "carry no user" in report.skipped[0]
    unowned = SQLiteChatMessageHistory.factory(":memory:")
    migrate(rows, unowned, progress=False)
    migrate(unowned, back, progress=False)
    reader = Peer(standalone.uri, "s1", database, "elsewhere")
    assert reader.messages == TALK
    reader.close()


@pytest.mark.parametrize("times", [2, 3])
def test_twice_is_once(peer: Any, rows: Any, sqlite: Any, standalone: Any, database: str, times: int) -> None:
    """Running a migration again adds nothing, in any direction."""
    back = elsewhere(standalone, database, layout="langchain")
    answers = MongoDBChatMessageHistory.factory(standalone.uri, database, "answers", layout="qa")
    for _ in range(times):
        migrate(rows, sqlite, progress=False)
        migrate(sqlite, back, progress=False)
        migrate(sqlite, answers, user_id="u1", progress=False)
    assert sqlite("s1").messages == back("s1").messages == answers("s1", "u1").messages == TALK
    assert len(list(answers("s1", "u1").iter_turns())) == 3


def test_dry_run_writes_nothing(peer: Any, rows: Any, sqlite: Any) -> None:
    """A dry run counts the same and leaves the target empty."""
    report = migrate(rows, sqlite, dry_run=True, progress=False)
    assert (report.turns, report.messages) == (3, 9)
    assert str(report).startswith("would move 9 messages in 3 turns of 1 sessions; 0 skipped")
    assert sqlite.list_sessions() == []


def test_adopted_in_place_and_rolled_back(peer: Any, native: Any, rows: Any, standalone: Any, database: str) -> None:
    """A collection taken over in place goes back: native turns become rows behind the old ones, once."""
    for text in ("new 1", "new 2"):
        native("s1").add_messages(exchange(text))
    native("s2").add_messages(exchange("only new"))
    everything = native("s1").messages
    assert len(peer.messages) == len(TALK)
    migrate(native, rows, progress=False)
    report = migrate(native, rows, progress=False)
    assert (report.turns, report.skipped) == (0, [])
    assert [m.text for m in peer.messages] == [m.text for m in everything]
    with MongoClient(standalone.uri) as client:
        assert client[database]["message_store"].count_documents({"kind": "turn"}) == 0
    other = Peer(standalone.uri, "s2", database)
    assert [m.text for m in other.messages] == ["only new", "re: only new"]
    other.close()
    assert native("s1").messages == everything


def test_one_server_spelled_in_two_ways(native: Any, standalone: Any, database: str) -> None:
    """The way back in place is known as such whatever the server is called: nothing is there twice."""
    for text in ("one", "two"):
        native("s1").add_messages(exchange(text))
    said = native("s1").messages
    other = standalone.uri.replace("127.0.0.1", "localhost").rstrip("/") + "/?w=1"
    assert other != standalone.uri
    again = MongoDBChatMessageHistory.factory(other, database)
    with pytest.raises(ConfigurationError, match="same place"):
        migrate(native, again, progress=False)
    with MongoClient(other) as client, pytest.raises(ConfigurationError, match="same place"):
        migrate(native, MongoDBChatMessageHistory.factory(client=client, database_name=database), progress=False)
    migrate(native, MongoDBChatMessageHistory.factory(other, database, layout="langchain"), progress=False)
    assert native("s1").messages == said


def test_two_servers_are_two_places(native: Any, replica_set: Any, database: str) -> None:
    """The same names on another server are another place: nothing is removed here."""
    native("s1").add_messages(exchange("one"))
    there = MongoDBChatMessageHistory.factory(replica_set.uri, database, layout="langchain")
    migrate(native, there, progress=False)
    assert [t.op for t in native("s1").iter_turns()] != []
    assert native("s1").messages == there("s1").messages


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_one_file_under_two_names(sqlite: Any, tmp_path: Path, link: Any) -> None:
    """A file is the same place by whatever link it is reached."""
    sqlite("s1").add_messages(exchange("one"))
    link(tmp_path / "chat.db", tmp_path / "link.db")
    with pytest.raises(ConfigurationError, match="same place"):
        migrate(sqlite, SQLiteChatMessageHistory.factory(tmp_path / "link.db"), progress=False)


def test_way_back_spares_later_turns(native: Any, rows: Any) -> None:
    """A turn that is stored while the way back runs is not deleted with the others."""
    native("s1").add_messages(exchange("old"))
    original = rows._store.append

    def meddle(*args: Any) -> Any:
        native("s1").add_messages(exchange("meanwhile"))
        return original(*args)

    rows._store.append = meddle
    migrate(native, rows, progress=False)
    assert [m.text for m in native("s1").messages] == ["old", "re: old", "meanwhile", "re: meanwhile"]


def test_to_a_user_in_the_same_collection(peer: Any, native: Any) -> None:
    """Rows without a user can be given to one, in place; the old rows stay for whoever still reads them."""
    native("s1", "u2").add_messages(exchange("a secret"))
    native("s2", "u2").add_messages(exchange("another"))
    migrate(native, native, user_id="u1", progress=False)
    migrate(native, native, user_id="u1", progress=False)
    assert native("s1", "u1").messages == TALK
    assert peer.messages == TALK
    assert [session.session_id for session in native.list_sessions("u1")] == ["s1"], "what is another user's stays so"


def test_rows_without_a_user_are_pointed_at(
    peer: Any, native: Any, standalone: Any, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A chain that begins to pass a user_id over langchain-mongodb's rows says once where they are."""
    chat = create_runnable_with_message_history(FakeChatModel(), native)
    config: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
    for _ in range(2):
        assert chat.invoke("What is my name?", config).text == "You have not told me that."
    assert len([record for record in caplog.records if "stored without a user_id" in record.msg]) == 1
    migrate(native, native, user_id="u2", progress=False)
    assert native("s1", "u2").messages == peer.messages
    again = MongoDBChatMessageHistory(standalone.uri, "s1", database, user_id="u3")
    assert again.messages == []
    assert len([record for record in caplog.records if "stored without a user_id" in record.msg]) == 1


def test_one_place_and_its_users(sqlite: Any) -> None:
    """Within a file, too, a user is given nobody's conversations and no other user's."""
    sqlite("s1").add_messages(TALK)
    sqlite("s2", "u2").add_messages(exchange("a secret"))
    for _ in range(2):
        assert migrate(sqlite, sqlite, user_id="u1", progress=False).sessions == 1
    assert [(s.session_id, s.turns) for s in sqlite.list_sessions("u1")] == [("s1", 1)]
    assert len(sqlite("s2", "u2").messages) == 2


def test_one_place_is_refused(native: Any) -> None:
    """Without a user there is nothing that could change."""
    with pytest.raises(ConfigurationError, match="same place"):
        migrate(native, native, progress=False)


def test_broken_rows_are_reported(rows: Any, sqlite: Any, standalone: Any, database: str) -> None:
    """Rows that cannot be read, odd session ids and half turns are counted or moved, and stop nothing."""
    good = json.dumps(message_to_dict(HumanMessage("good")))
    old = {
        "type": "ai",
        "data": {"content": "old", "additional_kwargs": {}, "type": "ai", "example": False, "name": None},
    }
    with MongoClient(standalone.uri) as client:
        store = client[database]["message_store"]
        for session, value in (
            ("s1", good), ("s1", "{broken"), ("s1", old), ("s1", None), ("s1", good),
            ({"$ne": ""}, good), (7, good), ("", good), ("s\x00", good),
        ):  # fmt: skip
            store.insert_one({"SessionId": session, "History": value})
    report = migrate(rows, sqlite, progress=False)
    assert [m.text for m in sqlite("s1").messages] == ["good", "old", "good"]
    assert sum("row " in line for line in report.skipped) == 2
    assert sum("session ''" in line or "\\x00" in line for line in report.skipped) == 2
    assert [m.text for m in sqlite("7").messages] == ["good"]
    assert report.messages == 4


def test_native_turns_keep_their_names_and_dates(native: Any, sqlite: Any) -> None:
    """Between native stores a turn stays one turn, with its id, its time and its owner."""
    when = datetime(2025, 5, 5, tzinfo=UTC)
    old = SQLiteChatMessageHistory.factory(":memory:", now=lambda: when)
    old("s1", "u1").append_turn(exchange("a"), turn_id="t1")
    old("s1").append_turn(exchange("nobody's"))
    migrate(old, native, progress=False)
    migrate(native, sqlite, progress=False)
    (turn,) = sqlite("s1", "u1").iter_turns()
    assert (turn.op, turn.created_at, len(turn.messages)) == ("turn:t1", when, 2)
    assert sqlite("s1", "u1").append_turn(turn.messages, turn_id="t1") == 1
    assert len(sqlite("s1").messages) == 2


async def test_async_twin_and_progress(peer: Any, rows: Any, sqlite: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The async twin does the same beside the event loop; the bar leaves nothing behind on the screen."""
    report = await amigrate(rows, sqlite, user_id="u1")
    assert report.messages == 9
    assert "moved" not in capsys.readouterr().out


def test_resumes_after_a_failure(peer: Any, rows: Any, sqlite: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that fails in the middle raises; the next run finishes."""
    import sqlite3

    monkeypatch.setattr("langchain_memkit.migrate.transfer.BATCH_TURNS", 1)
    original, calls = sqlite._store._insert, iter(range(99))

    def failing(*args: Any) -> Any:
        if next(calls) == 1:
            raise sqlite3.OperationalError("disk I/O error")
        return original(*args)

    sqlite._store._insert = failing
    with pytest.raises(Exception, match="disk I/O error"):
        migrate(rows, sqlite, progress=False)
    assert len(list(sqlite("s1").iter_turns())) == 1
    migrate(rows, sqlite, progress=False)
    assert sqlite("s1").messages == TALK


def test_more_than_one_batch(rows: Any, sqlite: Any, standalone: Any, database: str) -> None:
    """There and back again with 5,000 messages of one session: the same, in order (100,000 are a row of the gate)."""
    text = [json.dumps(message_to_dict(m)) for m in exchange("a question of ordinary length")]
    with MongoClient(standalone.uri) as client:
        store = client[database]["message_store"]
        store.insert_many([{"SessionId": "s1", "History": text[i % 2]} for i in range(5_000)])
    assert migrate(rows, sqlite, progress=False).messages == 5_000
    back = elsewhere(standalone, database, layout="langchain")
    assert migrate(sqlite, back, progress=False).messages == 5_000
    assert back("s1").messages == rows("s1").messages


@pytest.mark.parametrize("layout", ["turns", "langchain", "qa"])
def test_an_answer_that_came_since(rows: Any, standalone: Any, database: str, layout: Any) -> None:
    """A question that was moved before its answer was there gets it by the next run, in every layout, once."""
    target = elsewhere(standalone, database, layout=layout)
    owner = "u1" if layout == "qa" else None
    history = Peer(standalone.uri, "s1", database)
    for message in (HumanMessage("q1"), AIMessage("a1"), AIMessage("and more"), HumanMessage("q2")):
        history.add_message(message)
        for _ in range(2):
            assert migrate(rows, target, user_id=owner, progress=False).skipped == []
    history.add_message(AIMessage("a2"))
    migrate(rows, target, user_id=owner, progress=False)
    assert [m.text for m in target("s1", owner).messages] == ["q1", "a1", "and more", "q2", "a2"]
    history.close()


def test_sessions_that_a_layout_cannot_open(native: Any, rows: Any, sqlite: Any) -> None:
    """Sessions of a user seen through a layout that has none are named, on the way out as well, and stop nothing."""
    native("s1", "u1").add_messages(exchange("mine"))
    native("s2").add_messages(exchange("nobody's"))
    for report in (migrate(rows, sqlite, progress=False), export_history(rows, os.devnull, progress=False)):
        assert report.messages == 2
        assert len(report.skipped) == 1
        assert "carry no user" in report.skipped[0]


def test_a_target_that_refuses_everything_is_an_error(rows: Any, peer: Any, standalone: Any, database: str) -> None:
    """A target without its indexes is not a line for each turn but the error that says what to do."""
    target = elsewhere(standalone, database, create_index=False)
    with pytest.raises(ConfigurationError, match="unique indexes"):
        migrate(rows, target, progress=False)
