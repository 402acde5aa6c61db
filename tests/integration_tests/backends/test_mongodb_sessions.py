"""Lists of sessions and the search on MongoDB: the index, what is not erased yet, other layouts, clears in between."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory
from langchain_memkit.backends.mongodb import commands, documents
from langchain_memkit.backends.mongodb.turns import MongoTurnStore
from langchain_memkit.errors import ConfigurationError

TURN = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]


@pytest.fixture
def collection(standalone: Any, database: str) -> Any:
    """The collection behind memkit's back, with the driver's defaults."""
    with MongoClient(standalone.uri, tz_aware=True) as client:
        yield client[database]["message_store"]


@pytest.fixture
def histories(standalone: Any, database: str) -> Any:
    """A factory."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database) as factory:
        yield factory


def test_large_collection_without_the_index(
    standalone: Any, database: str, histories: Any, collection: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large collection of an older version is read and written as before; only pages and searches name the call."""
    for i in range(3):
        histories(f"s{i}", "u1").add_messages(TURN)
    collection.drop_index(documents.LISTING)
    monkeypatch.setattr(commands, "MAX_AUTO_INDEX", 2)
    commands._indexed.clear()
    with MongoDBChatMessageHistory.factory(standalone.uri, database) as old:
        old("s3", "u1").add_messages(TURN)
        assert len(old("s3", "u1").messages) == 2
        assert len(old.list_sessions("u1")) == 4
        for call in (lambda: old.list_sessions("u1", limit=2), lambda: old.search_messages("u1", "nemo")):
            with pytest.raises(ConfigurationError, match=r"lacks the index memkit_by_time.*setup\(\)"):
                call()
        assert documents.LISTING not in collection.index_information()
        old.setup()
        assert len(old.list_sessions("u1", limit=2)) == 2
        assert len(old.search_messages("u1", "nemo", limit=3)) == 3


def test_small_collection_gets_the_index(histories: Any, collection: Any) -> None:
    """Where building it takes no time, the first page builds it."""
    histories("s1", "u1").add_messages(TURN)
    collection.drop_index(documents.LISTING)
    assert len(histories.list_sessions("u1", limit=2)) == 1
    assert documents.LISTING in collection.index_information()


def test_a_page_is_read_from_the_index(standalone: Any, database: str, listener: Any, collection: Any) -> None:
    """A page is four commands wherever it stands; the walk reads no document."""
    with MongoClient(standalone.uri, event_listeners=[listener], tz_aware=True) as client:
        histories = MongoDBChatMessageHistory.factory(None, database, client=client)
        for i in range(60):
            histories(f"s{i}", "u1").add_messages(TURN)
        page = histories.list_sessions("u1", limit=10)
        for _ in range(4):
            listener.sent.clear()
            page = histories.list_sessions("u1", limit=10, before=page[-1].cursor)
            assert [name for name, _ in listener.sent] == ["find", "find", "aggregate", "aggregate"]
            walk = dict(listener.sent[0][1])
            kept = ("find", "filter", "projection", "sort", "hint", "limit")
            plan = collection.database.command(
                "explain", {name: walk[name] for name in kept}, verbosity="executionStats"
            )
            assert plan["executionStats"]["totalDocsExamined"] == 0
            assert plan["executionStats"]["totalKeysExamined"] <= 41
        assert len(page) == 10


def test_what_a_clear_has_not_erased_yet(histories: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clear that broke off after its tombstone: nothing of what it was to erase is listed or found."""
    histories("s1", "u1").add_messages(TURN)
    histories.update_session("s1", "u1", title="Names", metadata={"f": 1})

    async def broken(*args: object, **kwargs: object) -> int:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(MongoTurnStore, "erase_before", broken)
        with pytest.raises(RuntimeError):
            histories("s1", "u1").clear()
    assert histories.list_sessions("u1") == histories.list_sessions("u1", limit=1) == []
    assert histories.list_sessions("u1", where={"f": 1}) == histories.search_messages("u1", "nemo") == []
    histories("s1", "u1").add_user_message("Anew.")
    (session,) = histories.list_sessions("u1", limit=1)
    assert (session.title, session.preview, session.turns, session.metadata) == ("Anew.", "Anew.", 1, {})


def test_a_clear_while_a_title_is_stored(histories: Any, collection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A title of a conversation that is cleared before it is stored is not kept."""
    histories("s1", "u1").add_messages(TURN)
    store, ends = histories.turn_store, MongoTurnStore._last_turn
    looks = []

    async def last_turn(self: Any, scope: Any) -> Any:
        looks.append(await ends(self, scope))
        if len(looks) == 1:
            await self.clear(scope)
        return looks[-1]

    monkeypatch.setattr(MongoTurnStore, "_last_turn", last_turn)
    with pytest.raises(ConfigurationError, match="cleared meanwhile"):
        histories.update_session("s1", "u1", title="Secret")
    assert store is histories.turn_store
    assert collection.count_documents({"title": "Secret"}) == 0


def test_a_title_goes_with_its_turns(standalone: Any, database: str, collection: Any) -> None:
    """Title and metadata expire with the newest turn; a session that begins again has none; a clear leaves no text."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database, ttl=60)
    histories("s1", "u1").add_messages(TURN)
    histories.update_session("s1", "u1", title="Secret")
    (turn,), (kept,) = collection.find({"kind": "turn"}), collection.find({"kind": "session"})
    assert turn["expiresAt"] == kept["expiresAt"]
    collection.update_many({"kind": "turn"}, {"$set": {"expiresAt": datetime(2020, 1, 1, tzinfo=UTC)}})
    assert histories.list_sessions("u1") == histories.list_sessions("u1", limit=1) == []
    collection.delete_many({"kind": "turn"})  # as the server does
    histories("s1", "u1").add_user_message("Anew.")
    assert [s.title for s in histories.list_sessions("u1", limit=1)] == ["Anew."]
    histories.update_session("s1", "u1", title="Secret again")
    histories.purge("u1")
    assert collection.count_documents({"$or": [{"title": {"$exists": True}}, {"metadata": {"$exists": True}}]}) == 0


def test_rows_of_langchain_mongodb(standalone: Any, database: str, histories: Any) -> None:
    """They are listed in pages with titles; titles of ours and the search are refused with the way out."""
    from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer

    peer = Peer(standalone.uri, "old", database)
    peer.add_messages(TURN)
    peer.close()
    histories("new").add_user_message("Where is the reef?")
    pages = [histories.list_sessions(limit=1)]
    pages.append(histories.list_sessions(limit=1, before=pages[0][-1].cursor))
    assert {(s.session_id, s.title) for page in pages for s in page} == {
        ("old", "My name is Nemo."),
        ("new", "Where is the reef?"),
    }
    for call in (lambda: histories.search_messages(None, "nemo"), lambda: histories.update_session("new", title="t")):
        with pytest.raises(ConfigurationError, match="migrate"):
            call()


@pytest.mark.parametrize("layout", ["qa", "langchain"])
def test_other_layouts(standalone: Any, database: str, layout: str) -> None:
    """They list pages with titles; titles of ours and the search are refused with the way out."""
    histories = MongoDBChatMessageHistory.factory(standalone.uri, database, layout=layout)  # type: ignore[arg-type]
    user = "u1" if layout == "qa" else None
    for name in ("s1", "s2"):
        histories(name, user).add_messages(TURN)
    page = histories.list_sessions(user, limit=1)
    assert [s.title for s in page] == ["My name is Nemo."]
    assert len(histories.list_sessions(user, limit=5, before=page[0].cursor)) == 1
    for call in (
        lambda: histories.search_messages(user, "nemo"),
        lambda: histories.update_session("s1", user, title="t"),
    ):
        with pytest.raises(ConfigurationError, match="migrate"):
            call()


def test_damaged_details_hide_nothing(histories: Any, collection: Any) -> None:
    """A document with a title that is no text, and metadata that is no JSON, hides no session."""
    histories("s1", "u1").add_messages(TURN)
    histories.update_session("s1", "u1", title="t", metadata={"f": 1})
    for damage in ({"metadata": "{"}, {"metadata": 7}, {"metadata": "[]", "title": None}, {"epoch": "x"}):
        collection.update_one({"kind": "session"}, {"$set": damage})
        assert [s.metadata for s in histories.list_sessions("u1", limit=2)] == [{}]
        assert histories.list_sessions("u1", where={"f": 1}) == []
    assert collection.count_documents({"kind": "turn", "messages": {"$size": 2}}) == 1


def test_sessions_of_nobody_in_an_app_with_users(histories: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A list without a user that finds none says once that users have some; with none anywhere it says nothing."""
    assert histories.list_sessions() == []
    histories("s1", "u1").add_messages(TURN)
    assert len(histories.list_sessions("u1")) == 1
    assert caplog.text == ""
    assert [histories.list_sessions(), histories.list_sessions(limit=5)] == [[], []]
    (record,) = caplog.records
    assert "call list_sessions(user_id)" in record.getMessage()
