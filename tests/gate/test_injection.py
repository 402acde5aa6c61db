"""Published injections into queries, by ids and by the keys of filters, replayed at the doors of memkit."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from gatekit.systems import Place, config, echo, texts
from langchain.agents import create_agent
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from typer.testing import CliRunner

from langchain_memkit import (
    MessageHistoryMiddleware,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    SQLiteKeyValueStore,
    VectorMemory,
    purge_user,
)
from langchain_memkit.cli.app import app
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate import langchain_sql_source, migrate
from langchain_memkit.testing import FakeChatModel

STORES = pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
EMBEDDING = DeterministicFakeEmbedding(size=8)
SECRET = "the victim's secret"
BODIES = [  # what a client sends where a server expects an id, as JSON
    '{"$gt": ""}', '{"$ne": null}', '{"$regex": "^victim"}', '{"$where": "1"}', '{"$exists": true}',
    '{"$in": ["victim", "s1"]}', '["victim"]', '{"thread_id": {"$gt": ""}}',
]  # fmt: skip
KEYS = ["x') OR '1'='1", "x') UNION SELECT body FROM turns --", "user_id' OR 1=1 --", "$x", "a.b", "$.*", "x\x00"]


@pytest.fixture
def histories(place: Place, system: Any) -> Any:
    """A factory whose store holds a victim's conversations, with and without an owner."""
    factory = system.histories(place)
    for session, user in (("victim-thread", None), ("victim-thread", "victim")):
        factory(session, user).add_messages([HumanMessage(SECRET), AIMessage("noted")])
    return factory


def unharmed(histories: Any) -> None:
    """Fails if the victim's conversations changed, or if there are others."""
    for user in (None, "victim"):
        assert [s.session_id for s in histories.list_sessions(user)] == ["victim-thread"]
        assert texts(histories("victim-thread", user)) == [SECRET, "noted"]


def doors(system: Any, histories: Any, model: FakeChatModel) -> dict[str, Callable[[Any], Any]]:
    """Every way by which an app passes on what a request calls an id."""
    chain = system.chain(echo, histories)
    agent = create_agent(model, [], middleware=[MessageHistoryMiddleware(histories)])
    asked = {"messages": [HumanMessage("What did I say?")]}
    return {
        "factory": histories,
        "owner": lambda bad: histories("s1", bad),
        "list": histories.list_sessions,
        "purge": histories.purge,
        "purge_user": lambda bad: purge_user(bad, histories),
        "chain, session": lambda bad: chain.invoke("hi", config(bad)),
        "chain, thread": lambda bad: chain.invoke("hi", {"configurable": {"thread_id": bad}}),
        "chain, owner": lambda bad: chain.invoke("hi", config("victim-thread", bad)),
        "agent, thread": lambda bad: agent.invoke(asked, {"configurable": {"thread_id": bad}}),
        "agent, session": lambda bad: agent.invoke(asked, config(bad)),
        "agent, owner": lambda bad: agent.invoke(asked, config("victim-thread", bad)),
        "agent, owner in the context": lambda bad: agent.invoke(
            asked, config("victim-thread"), context={"user_id": bad}
        ),
    }


@pytest.mark.gate(row=20, memkit_only=True)
@pytest.mark.parametrize("place", ["standalone"], indirect=True)
def test_cve_2026_48121_operators_as_identifiers(histories: Any, system: Any) -> None:
    """GHSA-98xf-r82g-9mhx: `{"$gt": ""}` as a thread id opened another tenant's state. Here it is a TypeError."""
    model = FakeChatModel()
    for door in doors(system, histories, model).values():
        for body in BODIES:
            with pytest.raises(TypeError, match="must be a str"):
                door(json.loads(body))
    assert model.calls == []
    unharmed(histories)


@pytest.mark.gate(row=20, memkit_only=True)
@STORES
def test_cve_2026_48121_operators_as_text(histories: Any, system: Any) -> None:
    """The same bodies as text are names of conversations that nobody has: nothing of anybody is found by them."""
    model = FakeChatModel()
    open_doors = doors(system, histories, model)
    for body in BODIES:
        assert histories(body).messages == []
        assert histories("victim-thread", body).messages == []
        assert histories.list_sessions(body) == []
        assert set(histories.purge(body).values()) <= {0}
        assert SECRET not in str(open_doors["chain, owner"](body))
        assert SECRET not in str(open_doors["agent, owner"](body))
        histories(body).clear()
        histories.purge(body)
    assert SECRET not in str(model.calls)
    assert histories.list_sessions("victim")[0].session_id == "victim-thread"
    unharmed(histories)


@pytest.mark.gate(row=20, memkit_only=True)
@pytest.mark.parametrize("place", ["standalone"], indirect=True)
def test_langchainjs_11672_operators_as_session_id(place: Place, histories: Any, sent: Any) -> None:
    """`{$regex: "^victim"}` as session id read, wrote and deleted another's history. Here no command is sent."""
    with sent() as names:
        for body in BODIES:
            with pytest.raises(TypeError, match="session_id must be a str"):
                MongoDBChatMessageHistory(place.with_options("appName=r20").uri, json.loads(body), place.database)
    assert names == []
    there = MongoDBChatMessageHistory(place.uri, "victim-thread", place.database)
    with pytest.raises(AttributeError, match="session_id of a MongoDBChatMessageHistory cannot be changed"):
        there.session_id = json.loads(BODIES[2])  # behind the constructor's back
    there.add_messages([HumanMessage("of victim-thread still")])
    assert texts(histories("victim-thread"))[-1] == "of victim-thread still"


@pytest.mark.gate(row=20, memkit_only=True)
@STORES
def test_cve_2026_48121_on_the_command_line(place: Place, histories: Any) -> None:
    """`memkit purge --user` takes its word as it stands: an operator is a user whom nobody knows."""
    where = place.uri if place.kind == "sqlite" else f"mongodb://{place.hosts[0]}/{place.database}"
    for body in BODIES:
        CliRunner().invoke(app, ["purge", "--user", body, "--in", where, "--yes"])
    unharmed(histories)
    done = CliRunner().invoke(app, ["purge", "--user", "victim", "--in", where, "--yes"])
    assert (done.exit_code, histories.list_sessions("victim")) == (0, []), done.output


@pytest.mark.gate(row=20, memkit_only=True)
@STORES
def test_cve_2025_67644_filter_keys(histories: Any) -> None:
    """GHSA-9rwj-6rc7-p77c: `{"x') OR '1'='1": "dummy"}` listed everything. Here a key is a name, or it is refused."""
    histories("b", "u1").add_messages([HumanMessage("of u1"), AIMessage("noted")])
    histories.update_session("b", "u1", metadata={"x": "1"})
    for user in ("victim", "u1", None):
        for key in KEYS:
            for wanted in ({key: "dummy"}, {"x": "1", key: "dummy"}, {"x": {key: "1"}}):
                try:
                    found = histories.list_sessions(user, where=wanted)
                except (ConfigurationError, TypeError, ValueError):
                    found = []
                assert found == []
        for operator in ({"$or": [{}]}, {"x": {"$ne": ""}}, {"x": {"$exists": True}}):
            with pytest.raises((ConfigurationError, TypeError, ValueError)):
                histories.list_sessions(user, where=operator)
    assert [s.session_id for s in histories.list_sessions("u1", where={"x": "1"})] == ["b"]
    unharmed(histories)


@pytest.mark.gate(row=20, memkit_only=True)
@STORES
def test_cve_2025_67644_filters_of_recall(histories: Any) -> None:
    """What a search in memory is held to is a name as well: nobody is told what the victim said."""
    with VectorMemory.factory(histories, EMBEDDING) as memories:
        for bad in (*KEYS[:-1], *BODIES):
            for user in ("u1", bad):
                assert memories("s1", user).search("secret") == []
                assert memories(bad, user).search("secret", session_id="victim-thread") == []
            assert memories("s1", "victim").search("secret", session_id=bad) == []
            for operator in map(json.loads, BODIES):
                with pytest.raises(TypeError, match="session_id must be a str"):
                    memories("s1", "victim").search("secret", session_id=operator)
        assert [hit.session_id for hit in memories("s1", "victim").search("secret")] == ["victim-thread"]
    unharmed(histories)


@pytest.mark.gate(row=20, memkit_only=True)
@STORES
def test_cve_2025_67644_keys_and_prefixes(place: Place) -> None:
    """Keys and prefixes of key-value stores are compared as they stand: neither SQL, LIKE, nor a pattern."""
    sqlite = place.kind == "sqlite"
    with SQLiteKeyValueStore(place.uri) if sqlite else MongoDBKeyValueStore(place.uri, place.database) as store:
        store.mset([("victim/a", {"v": SECRET}), ("u1/a", {"v": 1})])
        for bad in (*KEYS[:-1], "%", "_ictim/a", "victim/.", "^victim", ".*", "*", "u1/' OR '1'='1", "victim/a' --"):
            assert store.mget([bad]) == [None]
            assert list(store.yield_keys(prefix=bad)) == []
            store.mdelete([bad])
            assert store.purge(bad) == {"keys": 0}
        assert store.mget(["victim/a", "u1/a"]) == [{"v": SECRET}, {"v": 1}]


@pytest.mark.gate(row=20, memkit_only=True)
@STORES
def test_cve_2025_67644_names_of_tables_and_fields(histories: Any, tmp_path: Path) -> None:
    """Names of tables, columns and fields that are to be read are names: SQL in them is an unknown name."""
    file = tmp_path / "old.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT)")
    before = file.read_bytes()
    for bad in ("x') OR '1'='1", 'message_store"; DROP TABLE message_store; --', "message_store --", "sqlite_master"):
        for names in ({"table_name": bad}, {"session_id_column": bad}):
            for where in (file, f"sqlite:///{file}"):
                with pytest.raises(ConfigurationError, match="has no"):
                    migrate(langchain_sql_source(where, **names), histories, progress=False)
    assert file.read_bytes() == before
    for key in ("$where", "a.b", "", "user_id"):
        with pytest.raises(ConfigurationError):
            MongoDBChatMessageHistory("mongodb://127.0.0.1:1", "s1", session_id_key=key)
        with pytest.raises(ConfigurationError):
            MongoDBChatMessageHistory("mongodb://127.0.0.1:1", "s1", history_key=key)
