"""`MongoDBVectorStore` on real servers: LangChain's own suite, the contract, and what only a server can do wrong."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import ObjectId
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage
from langchain_tests.integration_tests import VectorStoreIntegrationTests
from pymongo import AsyncMongoClient, MongoClient, monitoring

from langchain_memkit import MongoDBVectorStore, VectorMemory, purge_user
from langchain_memkit._sync import adrive, drive
from langchain_memkit.backends.mongodb import commands
from langchain_memkit.backends.mongodb import vector_documents as vector_indexes
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryConflictError,
    HistoryReadError,
    HistoryWriteError,
    MessageTooLargeError,
)
from langchain_memkit.ranking.records import digest_of
from langchain_memkit.testing._styles import call_async, call_sync
from langchain_memkit.testing.vectors import AT, EMBEDDING, expected_entries, facts, record
from testkit.vector_stores import VectorStoreCases
from tools.local_mongodb import local_mongodb


class TestServer(VectorStoreCases):
    @pytest.fixture
    def make_store(self, replica_set: Any, database: str) -> Any:
        """Stores made one by one."""
        return lambda embedding, **options: MongoDBVectorStore(replica_set.uri, embedding, database, **options)


class TestGivenClient(VectorStoreCases):
    @pytest.fixture
    def make_store(self, standalone: Any, database: str) -> Any:
        """Stores on the caller's own sync client: async calls run in a thread."""
        with MongoClient(standalone.uri) as client:
            yield lambda embedding, **options: MongoDBVectorStore(None, embedding, database, client=client, **options)


class TestLangChain(VectorStoreIntegrationTests):
    @pytest.fixture
    async def vectorstore(self, standalone: Any, database: str) -> Any:
        """An empty store."""
        async with MongoDBVectorStore(standalone.uri, self.get_embeddings(), database) as store:
            yield store


@pytest.fixture
def collection(standalone: Any, database: str) -> Any:
    """The collection behind memkit's back, with the driver's defaults."""
    with MongoClient(standalone.uri) as client:
        yield client[database]["vectors"]


@pytest.fixture
def store(standalone: Any, database: str) -> Any:
    """An empty store."""
    return MongoDBVectorStore(standalone.uri, EMBEDDING, database)


@pytest.fixture
def other(standalone: Any, database: str) -> Any:
    """Another store on the same collection, as another process has."""
    return MongoDBVectorStore(standalone.uri, EMBEDDING, database)


@pytest.fixture
def watched(standalone: Any, database: str, listener: Any) -> Iterator[Any]:
    """A store whose commands the listener notes."""
    with MongoClient(standalone.uri, event_listeners=[listener]) as client:
        yield MongoDBVectorStore(None, EMBEDDING, database, client=client)


def save(store: Any, *documents: Document) -> bool:
    """Stores records with their vectors."""
    user, session = documents[0].metadata["user_id"], documents[0].metadata["session_id"]
    begun = drive(store.records.begin(user, session))
    vectors = drive(store.records.embed([document.page_content for document in documents]))
    return bool(drive(store.records.write(user, session, begun.generation, documents, vectors)))


def test_document_reads_well(store: Any, collection: Any) -> None:
    """A person sees user, session, text and words as plain fields."""
    save(store, record(1, "running dogs"))
    document = collection.find_one({"stamp": {"$gt": 0}})
    assert document["_id"] == {"id": record(1).id, "user_id": "u1"}
    assert (document["user_id"], document["session_id"], document["position"]) == ("u1", "s1", 1)
    assert document["text"] == "human: running dogs\nai: it is fine"
    assert document["said"] == [
        {"role": "human", "name": "", "words": "run dog"},
        {"role": "ai", "name": "Bot", "words": "fine"},
    ]
    assert document["metadata"]["messages"] == ["q1", "a1"]
    assert document["vector"].as_vector().data == pytest.approx(
        drive(store.records.embed([document["text"]]))[0].tolist()
    )


@pytest.mark.parametrize("version", [{"$set": {"stems_version": 1}}, {"$unset": {"stems_version": 1}}])
def test_words_of_an_older_version_are_made_anew(store: Any, other: Any, collection: Any, version: Any) -> None:
    """Records that version 1 stored are found by the words of today."""
    save(store, record(1, "Meine Schwestern haben zwei Häuser gekauft."))
    expected = drive(store.records.index("u1")).entries
    collection.update_one({"_id.id": record(1).id}, {"$set": {"said.0.words": "mein hauser"}})
    collection.update_one({"_id.id": record(1).id}, version)
    assert "haus" in expected[0].said[0].stems
    assert drive(other.records.index("u1")).entries == expected


def test_what_a_look_costs(watched: Any, listener: Any) -> None:
    """A look at an unchanged user is one command; also after a save of one's own, which is two."""
    save(watched, *[record(n) for n in range(20)])
    drive(watched.records.index("u1"))
    del listener.sent[:]
    begun = drive(watched.records.begin("u1", "s1", ["a"], ["b"], ["c"]))
    drive(watched.records.begin("u1", "s1", ["a"], ["b"]))
    drive(watched.records.begin("u1", "s2", ["a"], ["b"], ["c"]))
    assert [name for name, _ in listener.sent] == ["find", "find", "find", "find", "listIndexes", "findAndModify"]
    del listener.sent[:]
    drive(watched.records.write("u1", "s1", begun.generation, [record(20)], [None]))
    assert [name for name, _ in listener.sent] == ["update"]
    del listener.sent[:]
    assert len(drive(watched.records.index("u1"))) == 21
    assert [name for name, _ in listener.sent] == ["aggregate"]
    watched.delete([record(3).id], user_id="u1")
    del listener.sent[:]
    assert len(drive(watched.records.index("u1"))) == 20
    assert [name for name, _ in listener.sent] == ["aggregate", "find"]
    assert listener.sent[1][1]["projection"] == {"_id": 0, "stamp": 1}


def test_pinned_guarantees(standalone: Any, database: str, listener: Any) -> None:
    """Whatever the connection string says, writes wait for a majority and the journal, reads for a majority."""
    uri = f"{standalone.uri}?w=0&journal=false&readConcernLevel=local"
    with MongoClient(uri, event_listeners=[listener]) as client:
        store = MongoDBVectorStore(None, EMBEDDING, database, client=client)
        save(store, record(1))
        drive(store.records.touch("u1", [str(record(1).id)], AT))
        assert len(drive(store.records.index("u1"))) == 1
        drive(store.records.sessions("u1"))
        drive(store.records.evict("u1", 0))
        store.delete(["a"], user_id="u1")
        store.forget("u1", "s1")
        store.forget("u1")
    writes = [body for name, body in listener.sent if name in ("update", "delete", "findAndModify", "insert")]
    assert len(writes) > 7
    assert all(body["writeConcern"]["w"] == "majority" and body["writeConcern"]["j"] is True for body in writes)
    reads = [body for name, body in listener.sent if name in ("find", "aggregate")]
    assert len(reads) > 5
    assert all(body["readConcern"] == {"level": "majority"} for body in reads)


def test_filters_begin_with_the_user(watched: Any, listener: Any, collection: Any) -> None:
    """Every command names one user by equality, but for ids, and markers; none reads the collection through."""
    save(watched, *[record(n) for n in range(4)])
    for user in range(20):
        save(watched, *[record(n, user_id=f"v{user}") for n in range(10)])
    del listener.sent[:]
    drive(watched.records.index("u1"))
    save(watched, record(9))
    drive(watched.records.begin("u1", "s1", ["a"], ["b"]))
    drive(watched.records.touch("u1", ["a"], AT))
    drive(watched.records.accesses("u1"))
    drive(watched.records.sessions("u1"))
    drive(watched.records.evict("u1", 1))
    watched.forget("u1", "s1")
    watched.forget("u1")
    sent = {"find": "filter", "delete": "deletes", "update": "updates", "findAndModify": "query"}
    examined = 0
    for name, body in listener.sent:
        if name == "aggregate":
            queries = [body["pipeline"][0]["$match"]]
        elif name in sent:
            part = body[sent[name]]
            queries = [each["q"] for each in part] if isinstance(part, list) else [part]
        else:
            continue
        for query in queries:
            if not any(name in str(query.get("_id")) for name in ("probe", "forgotten")):
                assert all(part["user_id"] == {"$eq": "u1"} for part in query.get("$or", [query]))
            plan = collection.database.command(
                "explain", {"find": collection.name, "filter": query}, verbosity="executionStats"
            )
            assert "COLLSCAN" not in str(plan["queryPlanner"]["winningPlan"]), query
            examined += 1
            assert plan["executionStats"]["totalDocsExamined"] <= 6, query
    assert examined > 15


def test_indexes(store: Any, collection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are built at the first write; on a large collection only by `setup`."""
    assert collection.index_information() == {}
    drive(store.records.index("u1"))
    assert collection.index_information() == {}
    save(store, record(1))
    names = {"_id_", "memkit_accesses", "memkit_digests", "memkit_sessions", "memkit_stamps", "memkit_ttl"}
    assert set(collection.index_information()) == names
    collection.drop_indexes()
    commands._indexed.clear()
    monkeypatch.setattr("langchain_memkit.backends.mongodb.commands.MAX_AUTO_INDEX", 1)
    with pytest.raises(ConfigurationError, match=r"setup\(\)"):
        save(store, record(2))
    assert len(drive(store.records.index("u1"))) == 1
    store.setup()
    assert set(collection.index_information()) == names
    assert save(store, record(2))


def test_shard_key() -> None:
    """Each index but the expiry begins with the user; one begins with the documented shard key."""
    keys = [list(model.document["key"]) for model in vector_indexes.index_models()]
    assert all(key[0] == "user_id" for key in keys if key != ["expires_at"])
    assert any(key[:2] == ["user_id", "session_id"] for key in keys)


DAMAGE: dict[str, dict[str, Any]] = {
    "no words": {"$unset": {"said": 1}},
    "words of another type": {"$set": {"said": [{"role": "human", "name": "", "words": 7}]}},
    "no list": {"$set": {"said": 7}},
    "no position": {"$set": {"position": "first"}},
    "no date": {"$set": {"created_at": "then"}},
    "no round": {"$set": {"round_id": ObjectId()}},
    "short vector": {"$set": {"vector": b"\x27\x00abcd"}},
    "another vector": {"$set": {"vector": b"\x03\x00abcdefgh"}},
    "vector is text": {"$set": {"vector": "vector"}},
    "newer": {"$set": {"v": 2}},
    "session of another type": {"$set": {"session_id": 7}},
}
UNSEEN: dict[str, dict[str, Any]] = {  # the record can be ranked, but not shown
    "metadata": {"$set": {"metadata": "x"}},
    "a tag": {"$set": {"metadata": {"a": {"_memkit": "eval", "value": "1"}}}},
    "an id": {"$set": {"metadata": {"a": ObjectId()}}},
    "no text": {"$unset": {"text": 1}},
}


@pytest.mark.parametrize("name", [*DAMAGE, *UNSEEN])
def test_damaged_documents(store: Any, collection: Any, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged record is left out and reported; the others are found, and it is not deleted."""
    save(store, *[record(n) for n in range(5)])
    collection.update_one({"_id.id": record(3).id}, {**DAMAGE, **UNSEEN}[name])
    store.close()
    for _ in range(2):
        found = store.similarity_search("what about number 3", k=9, filter={"user_id": "u1"})
        assert sorted(document.metadata["position"] for document in found) == [0, 1, 2, 4]
        assert len(drive(store.records.index("u1"))) == (5 if name in UNSEEN else 4)
    assert "unreadable and left as" in caplog.text
    assert "number" not in caplog.text
    assert collection.count_documents({"_id.id": record(3).id}) == 1
    assert drive(store.records.begin("u1", "s1")).last == record(4)
    if not name.startswith("session"):
        save(store, record(3, "as good as new"))
        assert len(drive(store.records.index("u1"))) == 5


def test_documents_of_others_are_left_alone(store: Any, collection: Any) -> None:
    """Documents that are not ours are neither shown nor deleted with a user."""
    collection.insert_many([{"_id": "x", "user_id": "u1"}, {"user_id": "u2", "stamp": 5}, {"_id": 7}])
    save(store, record(1))
    assert store.get_by_ids(["x"], user_id="u1") == []
    assert len(drive(store.records.index("u1"))) == 1
    assert len(drive(store.records.index("u2"))) == 0
    assert collection.count_documents({"user_id": "u2"}) == 1


def test_the_server_expires(standalone: Any, database: str, collection: Any) -> None:
    """An expiry is a date under a TTL index; it is kept here too, and what the server removed is not missed."""
    moment = [AT]
    store = MongoDBVectorStore(standalone.uri, EMBEDDING, database, now=lambda: moment[0])
    save(store, record(1), record(2, expires_at="2999-01-01T00:00:00Z"))
    assert len(drive(store.records.index("u1"))) == 2
    assert collection.index_information()["memkit_ttl"]["expireAfterSeconds"] == 0
    (document,) = collection.find({"expires_at": {"$type": "date"}})
    moment[0] = datetime(2999, 1, 1, tzinfo=UTC)
    collection.delete_one({"_id": document["_id"]})  # as the server does
    assert [entry.position for entry in drive(store.records.index("u1")).entries] == [1]


def test_the_last_record_is_read_where_it_matters(watched: Any, listener: Any) -> None:
    """A new round needs nothing of one that is finished, says something else and is not older."""
    asked, answer = [["human", "", 7, 8]], "human: a"
    for n, (more, text, read) in enumerate(
        [
            ({}, None, False),
            ({"open": True}, None, True),
            ({"said": asked}, answer, True),  # the answer is still to come
            ({}, None, False),
        ]
    ):
        last = record(n, **more)
        save(watched, last if text is None else last.model_copy(update={"page_content": text}))
        found = drive(watched.records.begin("u1", "s1", ["d"], ["i"], ["m"]))
        assert (found.last is not None, found.position) == (read, n)
    assert drive(watched.records.begin("u1", "s1", ["d"], ["i"], None)).last == record(3)
    assert drive(watched.records.begin("u1", "s1", ["d"], ["i"], ["m", "a3"])).last == record(3)
    assert drive(watched.records.begin("u1", "s1", [digest_of(record(3).page_content)], [], [])).last == record(3)
    save(watched, record(1, "older", open=True))
    assert drive(watched.records.begin("u1", "s1", [], [], [])).position == 3
    del listener.sent[:]
    drive(watched.records.begin("u1", "s1", ["d"], ["i"], ["m"]))
    assert [name for name, _ in listener.sent] == ["find", "find"]  # since something waits


def begin_warm(store: Any) -> Any:
    """What a store knows of a session that a turn looked at when it was loaded."""
    save(store, record(2))
    _, looked = drive(store.records.read("u1", "s1"))
    return looked.begun(["d"], [str(record(3).id)])


def test_what_is_known_may_be_out_of_date(store: Any, other: Any) -> None:
    """A session to which somebody else has written is begun again; nothing is lost, and nothing stored twice."""
    begun = begin_warm(store)
    save(other, record(5, open=True))
    with pytest.raises(HistoryConflictError, match="begin again"):
        drive(store.records.write("u1", "s1", begun.generation, [record(3)], [None], state=begun.state))
    again = drive(store.records.begin("u1", "s1", ["d"], [str(record(3).id)], ["q3", "a3"]))
    assert again.last == record(5, open=True)
    assert list(again.records) in ([], [record(3).id])
    assert drive(store.records.write("u1", "s1", again.generation, [record(3)], [None]))
    for each in (store, other):
        assert facts(drive(each.records.index("u1"))) == expected_entries([record(2), record(3), record(5)])


def test_a_session_that_others_forgot(store: Any, other: Any, collection: Any) -> None:
    """Whoever wrote to it before begins it anew; a save that was under way stores nothing."""
    begun = begin_warm(store)
    other.forget("u1", "s1")
    assert not drive(store.records.write("u1", "s1", begun.generation, [record(3)], [None], state=begun.state))
    assert collection.count_documents({"user_id": "u1"}) == 0
    assert save(store, record(3))
    assert facts(drive(other.records.index("u1"))) == expected_entries([record(3)])


def test_a_session_that_was_forgotten_here(store: Any, collection: Any) -> None:
    """A save that was under way stores nothing."""
    for forgotten in ("s1", None):
        begun = begin_warm(store)
        store.forget("u1", forgotten)
        assert not drive(store.records.write("u1", "s1", begun.generation, [record(3)], [None], state=begun.state))
        assert collection.count_documents({"user_id": "u1"}) == 0


def test_what_is_stored_is_not_replaced_unseen(store: Any, other: Any) -> None:
    """Without a look before it a write only adds."""
    save(store, record(1, "as it was"))
    save(other, record(7, user_id="u2"))
    begun = begin_warm(store)
    again = [record(3).model_copy(update={"id": record(1).id})]
    with pytest.raises(HistoryConflictError):
        drive(store.records.write("u1", "s1", begun.generation, again, [None], state=begun.state))
    assert facts(drive(store.records.index("u1"))) == expected_entries([record(1, "as it was"), record(2)])
    begun = drive(store.records.begin("u1", "s1"))
    same_id = record(3).model_copy(update={"id": record(7, user_id="u2").id})
    assert drive(store.records.write("u1", "s1", begun.generation, [same_id], [None], state=begun.state))
    assert facts(drive(store.records.index("u1"))) == expected_entries([record(1, "as it was"), record(2), same_id])
    assert facts(drive(other.records.index("u2"))) == expected_entries([record(7, user_id="u2")])


def test_the_cap_is_kept_at_every_save(store: Any, collection: Any) -> None:
    """An eviction of our own is no change by somebody else: the next save does not lose its own."""
    memory = VectorMemory(store, "s1", user_id="u1", max_records=3)
    for n in range(8):
        memory.save([HumanMessage(f"Question {n} of the day?", id=f"q{n}"), AIMessage(f"It is {n}.", id=f"a{n}")])
        assert collection.count_documents({"stamp": {"$gt": 0}}) == min(n + 1, 3)


def test_two_processes_take_turns(standalone: Any, database: str) -> None:
    """Memories over two stores write to one session in turns: all is stored, once, in order."""
    stores = [MongoDBVectorStore(standalone.uri, EMBEDDING, database) for _ in range(2)]
    for n in range(12):
        memory = VectorMemory(stores[n % 3 % 2], "s1", user_id="u1")
        memory.save([HumanMessage(f"Question {n} of the day?", id=f"q{n}"), AIMessage(f"It is {n}.", id=f"a{n}")])
        if n == 5:
            stores[1].forget("u1", "s1")
    for store in stores:
        entries = sorted(drive(store.records.index("u1")).entries, key=lambda entry: entry.position)
        assert [entry.messages for entry in entries] == [(f"q{n}", f"a{n}") for n in range(6, 12)]


def test_one_text_a_hundred_times(store: Any) -> None:
    """Its vector is found, and all else that is asked for too."""
    for n in range(30):
        save(store, record(n, "same", session_id=f"s{n}"))
    digest = digest_of(record(0, "same").page_content)
    mine, other = (str(record(n, session_id=f"s{n}").id) for n in (7, 8))
    begun = drive(store.records.begin("u1", "s7", [digest], [mine, other]))
    assert list(begun.records) == [mine]
    assert list(begun.vectors) == [digest]
    assert begun.last.id == mine


def test_removed_by_hand(store: Any, collection: Any) -> None:
    """What somebody removed without memkit is not shown; from then on nothing else that was removed is held."""
    save(store, *[record(n) for n in range(4)])
    assert len(drive(store.records.index("u1"))) == 4
    collection.delete_many({"position": {"$in": [1, 3]}})
    assert [document.id for document in store.get_by_ids([record(n).id for n in (0, 1)], user_id="u1")] == [
        record(0).id
    ]
    assert [entry.position for entry in drive(store.records.index("u1")).entries] == [0, 2]


def test_too_large_record(store: Any) -> None:
    """A record that no document can hold is refused before others of the call go in."""
    begun = drive(store.records.begin("u1", "s1"))
    with pytest.raises(MessageTooLargeError, match="16 MB"):
        drive(store.records.write("u1", "s1", begun.generation, [record(1), record(2, "x" * 17 * 2**20)], [None, None]))
    assert len(drive(store.records.index("u1"))) == 0


def test_many_records_in_a_call(store: Any) -> None:
    """More than one command takes are stored, read and deleted, and what is held is what is stored."""
    documents = [record(n) for n in range(1200)]
    assert save(store, *documents)
    assert len(drive(store.records.index("u1"))) == 1200
    assert len(store.get_by_ids([str(d.id) for d in documents], user_id="u1")) == 1200
    store.close()
    assert facts(drive(store.records.index("u1"))) == expected_entries(documents)
    assert drive(store.records.evict("u1", 100)) == 1100
    assert [entry.position for entry in drive(store.records.index("u1")).entries] == list(range(1100, 1200))
    store.delete([str(d.id) for d in documents], user_id="u1")
    assert len(drive(store.records.index("u1"))) == 0


def test_a_forgotten_user_leaves_no_sign(store: Any, collection: Any) -> None:
    """After a purge nothing is left of the user, not even when a save under way was refused."""
    save(store, record(1))
    begun = drive(store.records.begin("u1", "s1"))
    assert purge_user("u1", store) == [{"records": 1}]
    assert not drive(store.records.write("u1", "s1", begun.generation, [record(1)], [None]))
    assert collection.count_documents({"user_id": "u1"}) == 0
    assert [list(document["_id"]) for document in collection.find()] == [["probe"]]


class Meddler(monitoring.CommandListener):
    """Does something right before a command is sent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.action: Any = None

    def started(self, event: Any) -> None:
        """Acts once."""
        if event.command_name == self.name and self.action is not None:
            action, self.action = self.action, None
            action()

    def succeeded(self, event: Any) -> None:
        """Nothing to do."""

    def failed(self, event: Any) -> None:
        """Nothing to do."""


@pytest.mark.parametrize("whole", [False, True], ids=["session", "user"])
def test_forgotten_right_before_the_write(standalone: Any, database: str, collection: Any, whole: bool) -> None:
    """A forget that ends in the very moment before the records go in is not undone by them."""
    meddler = Meddler("update")
    other = MongoDBVectorStore(standalone.uri, EMBEDDING, database)
    with MongoClient(standalone.uri, event_listeners=[meddler]) as client:
        store = MongoDBVectorStore(None, EMBEDDING, database, client=client)
        save(store, record(1))
        begun = drive(store.records.begin("u1", "s1"))
        meddler.action = lambda: other.forget("u1", *([] if whole else ["s1"]))
        assert not drive(store.records.write("u1", "s1", begun.generation, [record(2)], [None]))
        assert meddler.action is None
    assert collection.count_documents({"stamp": {"$gt": 0}}) == 0
    assert collection.count_documents({"user_id": "u1"}) == 0


def test_records_that_a_killed_writer_left(store: Any, collection: Any) -> None:
    """Records whose session was forgotten are dead: not shown, not in the way, and removed by who meets them."""
    save(store, record(1), record(2))
    kept = list(collection.find({"stamp": {"$gt": 0}}))
    store.forget("u1", "s1")
    collection.insert_many(kept)
    store.close()
    assert drive(store.records.begin("u1", "s1")).last is None
    assert save(store, record(1, "anew"))
    assert drive(store.records.begin("u1", "s1")).last == record(1, "anew")
    assert [entry.position for entry in drive(store.records.index("u1")).entries] == [1]
    assert collection.count_documents({"stamp": {"$gt": 0}}) == 1


def test_killed_after_a_purge(store: Any, collection: Any) -> None:
    """What a killed writer left of a session that was forgotten is shown by nobody; the next purge finds it."""
    save(store, record(1), record(2, session_id="s1"))
    kept = list(collection.find({"stamp": {"$gt": 0}}))
    store.forget("u1")
    save(store, record(3, session_id="s2"))
    collection.insert_many(kept)
    ids = [str(record(1).id), str(record(3, session_id="s2").id)]
    assert store.get_by_ids(ids, user_id="u1") == [record(3, session_id="s2")]
    assert [s.session_id for s in drive(store.records.sessions("u1"))] == ["s2"]
    assert drive(store.records.begin("u1", "s2", [], [str(record(1).id)])).records == {}
    store.forget("u1", "s1")
    assert collection.count_documents({"text": {"$regex": "number 1"}}) == 0


@pytest.mark.parametrize("whole", [False, True], ids=["session", "user"])
def test_forget_looks_twice(standalone: Any, database: str, collection: Any, whole: bool) -> None:
    """What a writer that was overtaken, and then killed, stored while the records were deleted goes as well."""
    meddler = Meddler("find")
    with MongoClient(standalone.uri, event_listeners=[meddler]) as client:
        store = MongoDBVectorStore(None, EMBEDDING, database, client=client)
        save(store, record(1))
        store.add_documents([Document("plain", id="p", metadata={"user_id": "u2"})])
        late = list(collection.find({"_id.id": record(1).id}))
        meddler.action = lambda: collection.insert_many(late)
        store.forget("u1", *([] if whole else ["s1"]))
        assert meddler.action is None
    assert [d["_id"]["id"] for d in collection.find({"stamp": {"$gt": 0}})] == ["p"]


def test_part_of_a_call(store: Any, collection: Any) -> None:
    """When the server refuses a record the error says that others may be stored, and tells nothing of the text."""
    collection.database.create_collection("vectors", validator={"position": {"$ne": 666}})
    begun = drive(store.records.begin("u1", "s1"))
    documents = [record(1), record(666, "s3cr3t"), record(3)]
    with pytest.raises(HistoryWriteError) as raised:
        drive(store.records.write("u1", "s1", begun.generation, documents, [None] * 3))
    assert "s3cr3t" not in str(raised.value)
    assert "call again" in str(raised.value)
    assert raised.value.maybe_stored
    assert drive(store.records.write("u1", "s1", begun.generation, [record(1), record(3)], [None] * 2))
    assert [entry.position for entry in drive(store.records.index("u1")).entries] == [1, 3]


# pymongo's monitor is cancelled while it connects, and then leaves the socket to the collector
UNCLOSED = pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")


@UNCLOSED
@pytest.mark.parametrize("style", ["sync", "async"])
def test_server_down(style: str) -> None:
    """Constructing does no I/O; every verb fails with a typed error that names the host and no credentials."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    uri = f"mongodb://nemo:s3cr3t@127.0.0.1:{port}/?authSource=admin"
    store = MongoDBVectorStore(uri, EMBEDDING, timeout=0.5)
    assert repr(store) == f"MongoDBVectorStore(127.0.0.1:{port}, chat_history.vectors)"

    calls: list[tuple[Any, ...]] = [
        (HistoryReadError, "index", "u1"),
        (HistoryReadError, "get_by_ids", ["a"]),
        (HistoryReadError, "begin", "u1", "s1"),
        (HistoryReadError, "similarity_search", "a"),
        (HistoryReadError, "add_documents", [Document("a")]),
        (HistoryReadError, "setup"),
        (HistoryWriteError, "write", "u1", "s1", "g", [record(1)], [None]),
        (HistoryWriteError, "forget", "u1"),
        (HistoryWriteError, "delete", ["a"]),
        (HistoryWriteError, "touch", "u1", ["a"], AT),
    ]

    def told(error: Any, raised: Any) -> None:
        assert str(port) in str(raised)
        assert "s3cr3t" not in f"{raised!s} {raised!r} {raised.__cause__!r} {store!r}"
        assert not getattr(raised, "maybe_stored", False)
        assert isinstance(raised, error)

    for error, name, *arguments in calls:
        target = store if hasattr(store, name) else store.records
        with pytest.raises(error) as raised:
            asyncio.run(call_async(target, name, *arguments)) if style == "async" else call_sync(
                target, name, *arguments
            )
        told(error, raised.value)
    del raised
    gc.collect()  # here, where the warning is expected


def test_arguments(standalone: Any) -> None:
    """Wrong arguments are refused at once, and never show a password."""
    with MongoClient(standalone.uri) as client, pytest.raises(ConfigurationError, match="not both"):
        MongoDBVectorStore(standalone.uri, EMBEDDING, client=client)
    with pytest.raises(ConfigurationError, match="must be provided"):
        MongoDBVectorStore(embedding=EMBEDDING)
    with pytest.raises(ConfigurationError, match="Embeddings"):
        MongoDBVectorStore(standalone.uri)
    with pytest.raises(ConfigurationError, match="seconds above 0"):
        MongoDBVectorStore(standalone.uri, EMBEDDING, timeout=0)
    with pytest.raises(ConfigurationError) as raised:
        drive(MongoDBVectorStore("mongodb://nemo:s3cr3t@host:99999/", EMBEDDING).records.index("u1"))
    assert "s3cr3t" not in str(raised.value)


def test_from_connection_string(standalone: Any, database: str) -> None:
    """A namespace names database and collection; what describes an index of Atlas is refused, without the password."""
    with MongoDBVectorStore.from_connection_string(standalone.uri, f"{database}.rules.new", EMBEDDING) as store:
        store.add_texts(["one"], ids=["1"])
        assert store.collection.full_name == f"{database}.rules.new"
        assert store.collection.count_documents({"_id": "1"}) == 1
        with pytest.raises(ConfigurationError, match=r"which a Collection does not.*collection\.database\.client"):
            MongoDBVectorStore(store.collection, EMBEDDING)
    with pytest.raises(ConfigurationError, match="no such argument: index_name, text_key"):
        MongoDBVectorStore.from_connection_string(standalone.uri, "a.b", EMBEDDING, text_key="t", index_name="i")
    with pytest.raises(ConfigurationError, match=r"'database\.collection', got") as raised:
        MongoDBVectorStore.from_connection_string(standalone.uri, "mongodb://me:hunter2@host", EMBEDDING)
    assert "hunter2" not in str(raised.value)


def test_from_texts(standalone: Any, database: str) -> None:
    """LangChain's own ways to make a store, with our arguments."""
    known: dict[str, Any] = {"connection_string": standalone.uri, "database_name": database}
    store = MongoDBVectorStore.from_texts(["one", "two"], EMBEDDING, [{"n": 1}, {"n": 2}], ids=["a", "b"], **known)
    assert [d.id for d in store.similarity_search("two", k=1)] == ["b"]


def test_given_async_client(standalone: Any, database: str) -> None:
    """An async client of the caller's is used by the async methods; sync ones say what is missing."""

    async def go() -> Any:
        client: AsyncMongoClient[Any] = AsyncMongoClient(standalone.uri)
        store = MongoDBVectorStore(None, EMBEDDING, database, async_client=client)
        await store.aadd_documents([Document("a", id="a", metadata={"user_id": "u1"})])
        found = await store.asimilarity_search("a", filter={"user_id": "u1"})
        with pytest.raises(ConfigurationError, match="async_client"):
            drive(store.records.index("u1"))
        await store.aclose()
        await client.close()
        return found

    assert [document.id for document in asyncio.run(go())] == ["a"]


# -- the server's own searches, which this server does not have


def test_search_pipelines() -> None:
    """The user is a filter inside of the search, and inside of its index."""
    near = vector_indexes.search_index_model(384)
    fields = near.document["definition"]["fields"]
    assert fields[0] == {"type": "vector", "path": "vector", "numDimensions": 384, "similarity": "cosine"}
    assert {"type": "filter", "path": "user_id"} in fields
    assert near.document["type"] == "vectorSearch"
    search, shown = vector_indexes.search_pipeline("u1", "s1", [0.5, 0.5], 7)
    assert search["$vectorSearch"]["filter"] == {"user_id": {"$eq": "u1"}, "session_id": {"$eq": "s1"}}
    assert (search["$vectorSearch"]["numCandidates"], search["$vectorSearch"]["limit"]) == (70, 7)
    assert shown["$project"][vector_indexes.SCORE] == {"$meta": "vectorSearchScore"}
    assert vector_indexes.search_pipeline("u1", None, [1.0], 9999)[0]["$vectorSearch"]["numCandidates"] == 10_000


def test_search_is_exact_without_the_servers(watched: Any, listener: Any) -> None:
    """A server without search indexes is asked for them once per process; then nothing more is sent to it."""
    watched.add_documents([Document("a", id="a")])
    assert [d.id for d in watched.similarity_search("a")] == ["a"]
    assert [d.id for d in watched.similarity_search("a")] == ["a"]
    stages = [next(iter(stage)) for name, body in listener.sent if name == "aggregate" for stage in body["pipeline"]]
    assert stages.count("$listSearchIndexes") == 1
    assert not {"$vectorSearch", "$search"} & set(stages)
    with pytest.raises(ConfigurationError, match="search_index=True"):
        watched.setup(search_index=True)


@pytest.mark.parametrize("style", ["sync", "async"])
def test_the_servers_searches_are_used(watched: Any, listener: Any, style: str) -> None:
    """Where the indexes are there, searches are sent with the user, and with a read concern that they take."""

    def ask(**where: Any) -> Any:
        search = watched.similarity_search if style == "sync" else watched.asimilarity_search
        call = search("a", filter={"user_id": "u1", **where})
        return call if style == "sync" else asyncio.run(call)

    save(watched, record(1))
    records = watched._backend
    records._has_search = True
    del listener.sent[:]
    with pytest.raises(HistoryReadError, match="vectorSearch"):  # this server knows no such stage
        ask()
    (body,) = [body for name, body in listener.sent if name == "aggregate"]
    assert body["pipeline"][0]["$vectorSearch"]["filter"] == {"user_id": {"$eq": "u1"}}
    assert body["readConcern"] == {"level": "local"}
    # what the server cannot filter by is searched in process
    assert ask(position=1) == [record(1)]


PROGRAM = """
import sys
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_memkit._sync import drive
from langchain_memkit import MongoDBVectorStore
from langchain_memkit.testing.vectors import record
store = MongoDBVectorStore(sys.argv[1], DeterministicFakeEmbedding(size=16), sys.argv[2])
session = sys.argv[3]
for n in range(int(sys.argv[4])):
    documents = [record(3 * n + i, "whole record " * 30, session_id=session) for i in range(3)]
    begun = drive(store.records.begin("u1", session))
    vectors = drive(store.records.embed([d.page_content for d in documents]))
    assert drive(store.records.write("u1", session, begun.generation, documents, vectors))
    assert documents[2].id in drive(store.records.index("u1"))
    print(n, flush=True)
"""


def program(uri: str, database: str, session: str, rounds: int, **options: Any) -> subprocess.Popen[bytes]:
    """A process that writes records, three at once."""
    return subprocess.Popen([sys.executable, "-c", PROGRAM, uri, database, session, str(rounds)], **options)


def test_two_processes(standalone: Any, database: str, store: Any) -> None:
    """Two processes that begin on a new collection at once lose nothing, and a third sees all they do."""
    processes = [program(standalone.uri, database, name, 30, stdout=subprocess.DEVNULL) for name in ("s1", "s2")]
    while any(process.poll() is None for process in processes):
        drive(store.records.index("u1"))
        time.sleep(0.02)  # the processor is theirs
    assert [process.returncode for process in processes] == [0, 0]
    assert len(drive(store.records.index("u1"))) == 180
    assert {(s.session_id, s.turns) for s in drive(store.records.sessions("u1"))} == {("s1", 90), ("s2", 90)}


def test_kill(standalone: Any, database: str, store: Any) -> None:
    """A process that is killed while it writes leaves whole records, as many as it said at least."""
    process = program(standalone.uri, database, "s1", 10_000, stdout=subprocess.PIPE)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(10)]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    entries = drive(store.records.index("u1")).entries
    assert len(entries) >= 3 * (told[-1] + 1)
    documents = store.get_by_ids([entry.id for entry in entries], user_id="u1")
    assert {d.page_content for d in documents} == {record(1, "whole record " * 30).page_content}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the test
@pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")
def test_fork(store: Any) -> None:
    """A forked child has a client and an index of its own; parent and child both go on."""
    save(store, record(1))
    index = drive(store.records.index("u1"))
    with index.lock:  # as another thread may, at that moment
        child = os.fork()
        if child == 0:
            try:
                found = (
                    record(1).id in drive(store.records.index("u1")) and drive(store.records.index("u1")) is not index
                )
                save(store, record(2))
                os._exit(0 if found and record(2).id in drive(store.records.index("u1")) else 1)
            except BaseException:
                os._exit(2)
    save(store, record(3))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(entry.position for entry in drive(store.records.index("u1")).entries) == [1, 2, 3]


@pytest.mark.replica_set
@pytest.mark.parametrize("style", ["sync", "async"])
def test_failover(style: str, database: str) -> None:
    """While the primary is killed, writes are retried until the next one answers; none is lost, none is double."""
    with local_mongodb(nodes=3) as servers:
        store = MongoDBVectorStore(servers.uri, EMBEDDING, database)

        async def write(n: int) -> None:
            if style == "sync":
                assert save(store, record(n))
                return
            begun = await adrive(store.records.begin("u1", "s1"))
            vectors = await adrive(store.records.embed([record(n).page_content]))
            assert await adrive(store.records.write("u1", "s1", begun.generation, [record(n)], vectors))

        async def go() -> None:
            for n in range(30):
                if n == 10:
                    servers.kill(servers.primary_index())
                while True:
                    try:
                        await write(n)
                        break
                    except HistoryReadError:  # reads fail within `timeout`
                        continue

        asyncio.run(go())
        assert sorted(entry.position for entry in drive(store.records.index("u1")).entries) == list(range(30))
        store.close()


def test_collections_of_0_1_0(store: Any, collection: Any) -> None:
    """Records under an id that was unique for all users are found, replaced where they stand, and block nobody."""
    save(store, record(1), record(2))
    store.add_documents([Document("theirs", id="a", metadata={"user_id": "u2"})])
    for document in list(collection.find({"_id.id": {"$exists": True}})):
        collection.delete_one({"_id": document["_id"]})
        collection.insert_one({**document, "_id": document["_id"]["id"]})
    with MongoDBVectorStore(None, EMBEDDING, collection.database.name, client=collection.database.client) as fresh:
        assert facts(drive(fresh.records.index("u1"))) == expected_entries([record(1), record(2)])
        assert fresh.get_by_ids(["a"], user_id="u2")[0].page_content == "theirs"
        fresh.add_documents([Document("mine", id="a", metadata={"user_id": "u1"})])
        fresh.add_documents([Document("theirs again", id="a", metadata={"user_id": "u2"})])
        save(fresh, record(1, "anew"))
        assert [d.page_content for d in fresh.get_by_ids(["a"], user_id="u2")] == ["theirs again"]
        assert [d.page_content for d in fresh.get_by_ids(["a"], user_id="u1")] == ["mine"]
        assert fresh.get_by_ids([str(record(1).id)], user_id="u1") == [record(1, "anew")]
        assert collection.count_documents({"_id": {"$type": "string"}}) == 3
        for verb in (fresh.get_by_ids, fresh.delete):
            with pytest.raises(ConfigurationError, match="user_id="):
                verb(["a"])
        with pytest.raises(HistoryConflictError, match="another session or user"):
            fresh.add_documents([Document("of nobody", id="a")])
        fresh.delete(["a", str(record(2).id)], user_id="u2")
        assert [d.page_content for d in fresh.get_by_ids(["a"], user_id="u1")] == ["mine"]
        assert drive(fresh.records.evict("u1", 1, [str(record(1).id)])) == 2
        assert facts(drive(fresh.records.index("u1"))) == expected_entries([record(1, "anew")])
        assert fresh.forget("u1") == 1
