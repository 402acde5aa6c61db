"""Layouts of other packages: langchain-mongodb's rows, and documents of questions and answers."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory, create_runnable_with_message_history
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, MessageEncodeError
from langchain_memkit.testing import FakeChatModel, FrozenClock, LangChainHistoryContract
from langchain_memkit.testing.langchain_histories import exchange

TURN = exchange("My name is Nemo.")


@pytest.fixture
def collection(standalone: Any, database: str) -> Any:
    """The collection behind memkit's back."""
    with MongoClient(standalone.uri, tz_aware=True) as client:
        yield client[database]["message_store"]


@pytest.fixture
def rows(standalone: Any, database: str) -> Any:
    """A factory that writes langchain-mongodb's rows."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database, layout="langchain") as factory:
        yield factory


@pytest.fixture
def documents(standalone: Any, database: str) -> Any:
    """A factory that writes documents of questions and answers."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database, layout="qa") as factory:
        yield factory


def texts(history: Any) -> list[str]:
    """The text of each message."""
    return [m.text for m in history.messages]


class TestQAContract(LangChainHistoryContract):
    @pytest.fixture
    def make_history(self, documents: Any) -> Any:
        """LangChain's verbs over documents of questions and answers, all of one user."""
        return lambda session_id, user_id=None: documents(session_id, user_id or "u1")


class TestRowsContract(LangChainHistoryContract):
    @pytest.fixture
    def make_history(self, rows: Any) -> Any:
        """LangChain's verbs over rows of langchain-mongodb."""
        return rows

    test_every_message_type_round_trips = None  # type: ignore[assignment]  # JSON cannot say tuples, sets and bytes

    def test_two_writers_never_split_a_turn(self, make_history: Any) -> None:
        """Not promised here: rows of parallel turns may interleave, and that is why this layout is for a transition."""


def test_rows_are_the_peers(standalone: Any, database: str, rows: Any, collection: Any) -> None:
    """The real langchain-mongodb reads what we write, and we read what it writes, in one order."""
    peer = Peer(standalone.uri, "s1", database)
    rows("s1").add_messages(TURN)
    peer.add_messages(exchange("from the peer"))
    rows("s1").add_messages(exchange("again"))
    expected = ["My name is Nemo.", "re: My name is Nemo.", "from the peer", "re: from the peer", "again", "re: again"]
    assert texts(rows("s1")) == [m.text for m in peer.messages] == expected
    assert [s.turns for s in rows.list_sessions()] == [6]
    peer.clear()
    peer.close()
    assert texts(rows("s1")) == []


def test_rows_refuse_what_they_cannot_say(rows: Any) -> None:
    """No users, no positions, nothing that JSON would change: said at once, and nothing is stored."""
    with pytest.raises(ConfigurationError, match="no user"):
        rows("s1", "u1")
    with pytest.raises(ConfigurationError, match="no positions"):
        rows("s1").append_turn(TURN, expected_seq=0)
    called: Any = {"name": "f", "args": {"x": (1, 2)}, "id": "1"}
    with pytest.raises(MessageEncodeError, match=r"messages\[1\]"):
        rows("s1").add_messages([HumanMessage("q"), AIMessage("", tool_calls=[called])])
    assert rows("s1").messages == []


@pytest.mark.parametrize("layout", ["langchain", "qa"])
def test_odd_metadata_loses_no_turn(
    standalone: Any, database: str, layout: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """What a format cannot say of metadata is left out, marked and logged once; a retry stores nothing twice."""

    def turn() -> list[Any]:
        found = {"rows": [1, float("nan")], "frame": object(), "pair": (1, 2)}
        return [HumanMessage("q", id="q"), ToolMessage("r", id="r", tool_call_id="1", artifact=found)]

    kept, gone = {"rows": [1, None]}, ["artifact['rows'][1]", "artifact['frame']"]
    kept |= {} if layout == "langchain" else {"pair": (1, 2)}
    gone += ["artifact['pair']"] if layout == "langchain" else []
    with MongoDBChatMessageHistory.factory(standalone.uri, database, layout=layout) as factory:
        history = factory("s1") if layout == "langchain" else factory("s1", "u1")
        for given in ({}, {}, {"turn_id": "t1"}, {"turn_id": "t1"}):
            caplog.clear()
            history.append_turn(turn(), **given)
            assert len(caplog.records) == 1
        asked, looked, *again = history.messages
        assert (looked.artifact, looked.response_metadata) == (kept, {"memkit_left_out": gone})
        assert again == [asked, looked]


def test_rows_are_retried_once(rows: Any) -> None:
    """The same turn_id does not add rows twice."""
    for _ in range(2):
        rows("s1").append_turn(TURN, turn_id="t1")
    assert len(rows("s1").messages) == 2


@pytest.mark.parametrize("layout", ["langchain", "qa"])
def test_chain_over_other_layouts(standalone: Any, database: str, layout: Any) -> None:
    """A chain remembers over either layout."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database, layout=layout) as factory:
        chat = create_runnable_with_message_history(FakeChatModel(), factory)
        config: Any = {"configurable": {"session_id": "s1"} | ({"user_id": "u1"} if layout == "qa" else {})}
        chat.invoke("My name is Nemo.", config)
        assert chat.invoke("What is my name?", config).text == "You told me: My name is Nemo."


def test_qa_document(documents: Any, collection: Any) -> None:
    """A turn is one document with exactly the fields of such apps, and flags and dates set."""
    documents("c1", "u1").add_messages(TURN)
    (document,) = collection.find()
    assert document["question"] == "My name is Nemo."
    assert document["response"] == "re: My name is Nemo."
    assert (document["chatId"], document["userId"]) == ("c1", "u1")
    assert (document["isActive"], document["isDeleted"]) == (True, False)
    assert isinstance(document["createdAt"], datetime)
    assert isinstance(document["updatedAt"], datetime)


def test_qa_reads_other_apps(documents: Any, collection: Any, standalone: Any, database: str) -> None:
    """Documents that another app wrote are turns in the order of their dates; undated ones come first."""
    start = datetime(2024, 8, 24, tzinfo=UTC)
    for n in (2, 0, 1):
        collection.insert_one(
            {"question": f"q{n}", "response": f"a{n}", "chatId": "c1", "userId": "u1", "email": "n@sea.example",
             "isActive": True, "isDeleted": False, "createdAt": start + timedelta(hours=n)}
        )  # fmt: skip
    collection.insert_one({"question": "undated", "chatId": "c1", "userId": "u1"})
    collection.insert_one({"question": 7, "response": "odd", "chatId": "c1", "userId": "u1", "createdAt": start})
    history = documents("c1", "u1")
    assert texts(history) == ["undated", "q0", "a0", "odd", "q1", "a1", "q2", "a2"]
    assert [m.text for m in history.iter_messages()] == texts(history)
    assert [m.text for m in history.tail(max_messages=3)] == ["q2", "a2"]
    assert any("question is no text" in problem for problem in history.view().problems)
    by_mail = MongoDBChatMessageHistory(
        standalone.uri, "c1", database, layout="qa", user_id="n@sea.example", user_id_key="email"
    )
    assert texts(by_mail) == ["q0", "a0", "q1", "a1", "q2", "a2"]
    assert documents("c1", "u2").messages == []


def test_last_questions(documents: Any, standalone: Any, database: str) -> None:
    """The last questions come newest first, in every layout, without those that were deleted."""
    native = MongoDBChatMessageHistory(standalone.uri, "c1", f"{database}_native")
    for history in (documents("c1", "u1"), native):
        for text in ("one", "two", "three", "four"):
            history.add_messages(exchange(text))
        assert history.last_questions(3) == ["four", "three", "two"]
        assert history.last_questions(99) == ["four", "three", "two", "one"]
        assert history.last_questions(0) == []
        newest = list(history.iter_turns())[-1]
        assert history.delete_turn(newest.op)
        assert history.last_questions(2) == ["three", "two"]
        assert history.restore_turn(newest.op)
        assert history.last_questions(1) == ["four"]


def test_qa_flags(documents: Any, collection: Any) -> None:
    """Deleting a turn sets the flags of such apps, for documents of other apps as well; flags they set count here."""
    identity = collection.insert_one({"question": "theirs", "chatId": "c1", "userId": "u1"}).inserted_id
    history = documents("c1", "u1")
    assert history.delete_turn(f"qa:{identity}")
    document = collection.find_one({"_id": identity})
    assert (document["isActive"], document["isDeleted"]) == (False, True)
    assert history.messages == []
    history.add_messages(TURN)
    collection.update_one({"question": "My name is Nemo."}, {"$set": {"isActive": False}})
    assert history.messages == []
    assert not history.delete_turn(f"qa:{ObjectId()}")


def test_qa_plain_fields_count(documents: Any, collection: Any) -> None:
    """If somebody edits question or response, the edited text is what is remembered."""
    documents("c1", "u1").add_messages([HumanMessage("q", id="1"), AIMessage("a", id="2")])
    assert [m.id for m in documents("c1", "u1").messages] == ["1", "2"]
    collection.update_one({}, {"$set": {"response": "[redacted]"}})
    assert texts(documents("c1", "u1")) == ["q", "[redacted]"]


def test_qa_many_pages(documents: Any) -> None:
    """More documents than a page come back in order, also where many share one date."""
    clock = FrozenClock()
    for history in (documents("c1", "u1"),):
        history._store.settings.now  # noqa: B018  # the clock of the store is the real one; dates tie within a batch
        history.add_messages([m for i in range(450) for m in exchange(str(i))])
        assert [m.text for m in history.messages][::2] == [str(i) for i in range(450)]
        assert [m.text for m in history.iter_messages()][::2] == [str(i) for i in range(450)]
    assert clock() == FrozenClock()()


def test_qa_users_and_purge(documents: Any, collection: Any) -> None:
    """A user is required; purge leaves nothing of one user and everything of others; retries are stored once."""
    with pytest.raises(ConfigurationError, match="user_id"):
        documents("c1")
    for user in ("u1", "u2"):
        for _ in range(2):
            documents("c1", user).append_turn(TURN, turn_id="t1")
    assert [(s.session_id, s.turns) for s in documents.list_sessions("u1")] == [("c1", 1)]
    assert documents.purge("u1") == {"sessions": 1, "turns": 1}
    assert collection.count_documents({"userId": "u1"}) == 0
    assert len(documents("c1", "u2").messages) == 2
    documents("c1", "u2").clear()
    assert collection.count_documents({}) == 0


def test_order_where_the_drivers_counter_starts_again(standalone: Any, database: str, monkeypatch: Any) -> None:
    """Rows that are ordered by id keep their order when the counter in ids of this process wraps within a batch."""
    history = MongoDBChatMessageHistory(standalone.uri, "s1", database, layout="langchain")
    talk = [HumanMessage(str(i), id=str(i)) for i in range(6)]
    monkeypatch.setattr(ObjectId, "_inc", 0xFFFFFD)
    history.add_messages(talk)
    assert [m.text for m in history.messages] == [m.text for m in talk]


def test_a_client_that_was_closed_is_replaced(standalone: Any, database: str) -> None:
    """Closing the client that a history hands out does not end the process's use of the server."""
    history = MongoDBChatMessageHistory(standalone.uri, "s1", database)
    history.add_user_message("one")
    history.client.close()
    history.add_user_message("two")
    assert [m.text for m in history.messages] == ["one", "two"]


@pytest.mark.parametrize("layout", ["langchain", "qa"])
def test_server_down(layout: Any) -> None:
    """The first write is told within `timeout` that there is no server: indexes, which may take long, come later."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        uri = f"mongodb://127.0.0.1:{taken.getsockname()[1]}"
        history = MongoDBChatMessageHistory(
            uri, "s1", layout=layout, user_id="u1" if layout == "qa" else None, timeout=0.5
        )
        with pytest.raises(HistoryWriteError, match=r"cannot write to 127.* within 0\.5 s.*Nothing was stored"):
            history.add_messages(TURN)
        history.client.close()
