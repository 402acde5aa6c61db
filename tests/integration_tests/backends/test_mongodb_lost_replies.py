"""Replies that a failover takes away.

A write that the primary has, and a majority not yet: a retry neither doubles nor denies it. A read is asked again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient, WriteConcern
from pymongo.errors import AutoReconnect, OperationFailure, ServerSelectionTimeoutError

from langchain_memkit import MongoDBChatMessageHistory
from langchain_memkit.errors import HistoryConflictError, HistoryWriteError, StaleTurnError

TURN = [HumanMessage("q"), AIMessage("a")]
BEHIND = 0.7  # seconds; after 2 the primary would step down


@contextlib.contextmanager
def secondaries_behind(server: Any) -> Iterator[None]:
    """Stops what is no primary, for a moment: meanwhile nothing reaches a majority."""
    primary = server.primary_index()
    pids = [pid for index, pid in enumerate(server.pids) if index != primary]

    def signal_all(number: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    timer = threading.Timer(BEHIND, signal_all, [signal.SIGCONT])
    signal_all(signal.SIGSTOP)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def replace_verb(monkeypatch: pytest.MonkeyPatch, history: Any, name: str, verb: Any) -> None:
    """Puts `verb(collection, ...)` in the place of a method of the history's collection."""
    original = history._store.collection

    class Collection:
        def __init__(self, real: Any) -> None:
            self.real = real

        def __getattr__(self, other: str) -> Any:
            return partial(verb, self.real) if other == name else getattr(self.real, other)

    monkeypatch.setattr(history._store, "collection", lambda client: Collection(original(client)))


def lose_first_reply(monkeypatch: pytest.MonkeyPatch, history: Any) -> None:
    """The first insert reaches the primary, and its reply is lost."""
    inserted = []

    def insert_many(real: Any, documents: Any) -> Any:
        if inserted:
            return real.insert_many(documents)
        inserted.append(real.with_options(write_concern=WriteConcern(1)).insert_many(documents))
        raise AutoReconnect("the reply was lost")

    replace_verb(monkeypatch, history, "insert_many", insert_many)


def fail_after_insert(monkeypatch: pytest.MonkeyPatch, history: Any, then: Exception, lost: Exception | None) -> None:
    """The insert succeeds, or its reply is lost, and every look at the session that follows fails."""

    def look(real: Any, **options: Any) -> Any:
        raise then

    def insert_many(real: Any, documents: Any) -> Any:
        result = real.insert_many(documents)
        replace_verb(monkeypatch, history, "with_options", look)
        if lost is not None:
            raise lost
        return result

    replace_verb(monkeypatch, history, "insert_many", insert_many)


@pytest.fixture(params=["turns", "langchain", "qa"])
def history(request: pytest.FixtureRequest, replica_set: Any, database: str) -> Any:
    """A history of each layout that has begun."""
    user = "u1" if request.param == "qa" else None
    made = MongoDBChatMessageHistory(replica_set.uri, "s1", database, user_id=user, layout=request.param)
    made.add_messages([HumanMessage("before"), AIMessage("re: before")])
    return made


def test_stored_once(history: Any, replica_set: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The retry waits until a majority has what the first try wrote, and acknowledges that."""
    lose_first_reply(monkeypatch, history)
    with secondaries_behind(replica_set):
        history.append_turn(TURN, turn_id="t1")
    history.append_turn(TURN, turn_id="t1")
    assert [m.text for m in history.messages] == ["before", "re: before", "q", "a"]


def test_called_again(history: Any, replica_set: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that gave up too early says so, and the next one with the same turn_id finds what it left."""
    patient = history._store.settings
    lose_first_reply(monkeypatch, history)
    with secondaries_behind(replica_set):
        history._store.settings = replace(patient, save_timeout=0.2)
        with pytest.raises(HistoryWriteError, match="no majority has confirmed it") as raised:
            history.append_turn(TURN, turn_id="t1")
        assert raised.value.maybe_stored
        history._store.settings = patient
        history.append_turn(TURN, turn_id="t1")
    assert [m.text for m in history.messages] == ["before", "re: before", "q", "a"]


@pytest.mark.parametrize("history", ["turns"], indirect=True)
def test_own_turn_is_no_conflict(history: Any, replica_set: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `expected_seq`, the turn that moved the session on is its own."""
    lose_first_reply(monkeypatch, history)
    with secondaries_behind(replica_set):
        assert history.append_turn(TURN, turn_id="t1", expected_seq=1) == 2
    assert [m.text for m in history.messages] == ["before", "re: before", "q", "a"]


@pytest.mark.parametrize("history", ["turns"], indirect=True)
def test_a_conflict_can_be_read(history: Any, replica_set: Any) -> None:
    """Who is refused since another turn came first finds that turn: the refusal waits until a majority has it."""
    collection = history._store.collection(history._store.clients.sync()).with_options(write_concern=WriteConcern(1))
    [before] = collection.find({"seq": 1})
    with secondaries_behind(replica_set):
        collection.insert_one({**before, "_id": "other", "op": "other", "seq": 2})
        with pytest.raises(HistoryConflictError, match="it is at 2"):
            history.append_turn(TURN, turn_id="t1", expected_seq=1)
        assert [m.text for m in history.messages] == ["before", "re: before"] * 2


@pytest.mark.parametrize("history", ["turns"], indirect=True)
def test_what_erased_a_turn_can_be_read(history: Any, replica_set: Any) -> None:
    """Who is refused after a clear, and begins anew, sees nothing of before: the refusal waits for a majority."""
    collection = history._store.collection(history._store.clients.sync()).with_options(write_concern=WriteConcern(1))
    [before] = collection.find({"seq": 1})
    view = history.view()
    with secondaries_behind(replica_set):
        tombstone = {"_id": "clear", "op": "clear:x", "kind": "clear", "seq": 2, "base": 2, "epoch": 1024}
        collection.insert_one({**before, **tombstone})
        with pytest.raises(StaleTurnError):
            history.append_turn(TURN, epoch=view.epoch)
        assert history.messages == []


def test_refused_after_a_lost_reply(history: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry that is refused does not say that nothing was stored: the first try may have been."""
    refused = OperationFailure("not authorized", 13)
    fail_after_insert(monkeypatch, history, refused, AutoReconnect("the reply was lost"))
    with pytest.raises(HistoryWriteError, match=r"not authorized.*may be stored") as raised:
        history.append_turn(TURN, turn_id="t1")
    assert raised.value.maybe_stored


@pytest.mark.parametrize("history", ["turns"], indirect=True)
def test_server_gone_after_the_insert(history: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn went in, its reply was lost, and then there is no server: that is not called "nothing was stored"."""
    history._store.settings = replace(history._store.settings, save_timeout=0.5)
    lost = AutoReconnect("the reply was lost")
    fail_after_insert(monkeypatch, history, ServerSelectionTimeoutError("no primary"), lost)
    with pytest.raises(HistoryWriteError, match=r"no primary.*may be stored") as raised:
        history.append_turn(TURN, turn_id="t1")
    assert raised.value.maybe_stored


@pytest.mark.parametrize("history", ["turns"], indirect=True)
def test_server_gone_during_an_import(history: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import of several documents whose reply was lost does not claim to know how many of them are stored."""
    history._store.settings = replace(history._store.settings, save_timeout=0.5)
    lost = AutoReconnect("the reply was lost")
    fail_after_insert(monkeypatch, history, ServerSelectionTimeoutError("no primary"), lost)
    with pytest.raises(HistoryWriteError, match=r"0 of \d+ parts are stored, perhaps more: add") as raised:
        history.add_messages(TURN * 100)
    assert raised.value.maybe_stored


@pytest.mark.parametrize("history", ["turns"], indirect=True)
def test_acknowledged_is_stored(history: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server has acknowledged is stored, though nothing can be read any more: there is no second look."""
    fail_after_insert(monkeypatch, history, ServerSelectionTimeoutError("no primary"), None)
    assert history.append_turn(TURN, turn_id="t1") == 2


@pytest.mark.parametrize("history", ["langchain", "qa"], indirect=True)
def test_refused_in_the_middle(history: Any, replica_set: Any, database: str) -> None:
    """A batch of which a part went in before the server refused one is not called "nothing was stored"."""
    with MongoClient(replica_set.uri) as client:
        words = {name: {"$not": {"$regex": "refuse"}} for name in ("History", "question")}
        client[database].command("collMod", "message_store", validator=words)
    with pytest.raises(HistoryWriteError) as raised:
        history.add_messages([*TURN, HumanMessage("refuse me"), AIMessage("why?")])
    assert raised.value.maybe_stored
    assert [m.text for m in history.messages] == ["before", "re: before", "q", "a"]


@pytest.mark.parametrize("read", [lambda h: h.messages, lambda h: list(h.iter_messages()), lambda h: h.tail()])
def test_read_that_breaks_off(history: Any, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page whose server goes away in the middle, where the driver does not ask again, is asked for again by us."""
    asked = break_first(monkeypatch, history, "find")
    assert [m.text for m in read(history)] == ["before", "re: before"]
    assert len(asked) > 1


def test_list_that_breaks_off(history: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a list of sessions."""
    asked = break_first(monkeypatch, history, "aggregate")
    sessions = history._store.run(history._store.sessions("u1" if history.layout == "qa" else ""))
    assert [found.session_id for found in sessions] == ["s1"]
    assert len(asked) > 1


def break_first(monkeypatch: pytest.MonkeyPatch, history: Any, name: str) -> list[Any]:
    """The first command of that name loses its connection; returns a list of all that are sent."""
    asked = []

    def verb(real: Any, *args: Any, **options: Any) -> Any:
        asked.append(args)
        if len(asked) == 1:
            raise AutoReconnect("the connection was lost")
        return getattr(real, name)(*args, **options)

    replace_verb(monkeypatch, history, name, verb)
    return asked
