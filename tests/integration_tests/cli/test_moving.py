"""`memkit migrate`, `export` and `import` on a server: every way in, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer
from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory

Memkit = Callable[..., Any]


def texts(history: Any) -> list[str]:
    """What a session says."""
    return [message.text for message in history.messages]


def talk(saver: Any) -> None:
    """Two turns of a graph."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(f"re: {state['messages'][-1].text}")]})
    builder.add_edge(START, "answer")
    graph = builder.compile(checkpointer=saver)
    for question in ("q0", "q1"):
        graph.invoke({"messages": [HumanMessage(question)]}, {"configurable": {"thread_id": "t1"}})


def test_from_langchain_mongodb_and_back(
    memkit: Memkit, peer: Any, standalone: Any, database: str, tmp_path: Path
) -> None:
    """The peer's rows are recognised, moved to a file, and from there back into rows that the real peer reads."""
    for _ in range(2):
        done = memkit("migrate", "--from", standalone.uri, "--from-database", database, "--to", "new.db")
        assert done.exit_code == 0, done.stderr
        assert f"{database}.message_store (langchain-mongodb) to new.db (memkit)" in done.stderr
        assert "turns     2" in done.stdout
    for _ in range(2):
        words = ("--to", standalone.uri, "--to-database", database, "--to-collection", "back")
        back = memkit("migrate", "--from", "new.db", *words, "--to-format", "langchain-mongodb")
        assert back.exit_code == 0, back.stderr
    assert texts(SQLiteChatMessageHistory(tmp_path / "new.db", "s1")) == ["q0", "a0", "q1", "a1"]
    reader = Peer(standalone.uri, "s1", database, "back")
    assert texts(reader) == ["q0", "a0", "q1", "a1"]
    reader.close()


def test_damaged_rows_are_told_once(memkit: Memkit, peer: Any, standalone: Any, database: str) -> None:
    """A row that cannot be read stands in the report with its reason, once; the others are moved."""
    peer.collection.insert_one({"SessionId": "s1", "History": "{broken"})
    done = memkit("migrate", "--from", standalone.uri, "--from-database", database, "--to", "new.db")
    assert done.exit_code == 1
    assert done.output.count("JSONDecodeError") == 1
    assert len(SQLiteChatMessageHistory("new.db", "s1").messages) == 4


def test_to_a_user_in_place(memkit: Memkit, peer: Any, standalone: Any, database: str) -> None:
    """In one collection the rows that belong to nobody go to a user, and what others own stays theirs."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database) as histories:
        histories("s9", "u2").add_messages([HumanMessage("mine"), AIMessage("yes")])
        both = (
            "--from",
            standalone.uri,
            "--from-database",
            database,
            "--to",
            standalone.uri,
            "--to-database",
            database,
        )
        assert memkit("migrate", *both).exit_code == 2
        for _ in range(2):
            done = memkit("migrate", *both, "--user", "u1")
            assert done.exit_code == 0, done.stderr
        assert [s.session_id for s in histories.list_sessions("u1")] == ["s1"]
        assert texts(histories("s1", "u1")) == ["q0", "a0", "q1", "a1"]
        assert texts(histories("s9", "u2")) == ["mine", "yes"]
    assert len(peer.messages) == 4


def test_back_in_place(memkit: Memkit, peer: Any, standalone: Any, database: str) -> None:
    """A collection that was taken over goes back: its turns become rows, and it is said."""
    with MongoDBChatMessageHistory.factory(standalone.uri, database) as histories:
        histories("s1").add_messages([HumanMessage("q2"), AIMessage("a2")])
        uri = f"{standalone.uri.partition('?')[0]}{database}"
        done = memkit("migrate", "--from", uri, "--to", uri, "--to-format", "langchain-mongodb")
        assert done.exit_code == 0, done.stderr
        assert "become rows" in done.stderr
    assert texts(peer) == ["q0", "a0", "q1", "a1", "q2", "a2"]


def test_documents_of_questions_and_answers(memkit: Memkit, client: Any, standalone: Any, database: str) -> None:
    """Documents of another app are recognised and moved with their users, by the key that says whose they are."""
    common = {"chatId": "c1", "isActive": True, "isDeleted": False}
    client[database]["my_app"].insert_many(
        [{"question": f"q{i}", "response": f"a{i}", "email": "n@sea", **common} for i in range(2)]
    )
    words = ("migrate", "--from", standalone.uri, "--from-database", database, "--to", "new.db")
    done = memkit(*words, "--user-id-key", "email")
    assert done.exit_code == 0, done.stderr
    assert "my_app (qa)" in done.stderr
    assert texts(SQLiteChatMessageHistory("new.db", "c1", user_id="n@sea")) == ["q0", "a0", "q1", "a1"]
    there = ("--to", standalone.uri, "--to-database", database, "--to-collection", "qa2", "--to-format", "qa")
    assert memkit("migrate", "--from", "new.db", *there).exit_code == 0
    assert client[database]["qa2"].count_documents({"userId": "n@sea", "question": "q1", "response": "a1"}) == 1


def test_checkpoints_of_langgraph(memkit: Memkit, client: Any, standalone: Any, database: str, tmp_path: Path) -> None:
    """Threads of both savers are recognised and become sessions."""
    with SqliteSaver.from_conn_string(str(tmp_path / "graph.db")) as saver:
        talk(saver)
    talk(MongoDBSaver(client, database))
    sources = (["--from", "graph.db"], ["--from", standalone.uri, "--from-database", database])
    for i, source in enumerate(sources):
        for _ in range(2):
            done = memkit("migrate", *source, "--to", f"new{i}.db")
            assert done.exit_code == 0, done.stderr
        assert "(langgraph)" in done.stderr
        assert texts(SQLiteChatMessageHistory(f"new{i}.db", "t1")) == ["q0", "re: q0", "q1", "re: q1"]


def test_several_collections_are_asked_about(memkit: Memkit, full: str, standalone: Any) -> None:
    """Where more than one collection may be meant it lists them; naming one, or the format, is enough."""
    words = ("migrate", "--from", standalone.uri, "--from-database", full, "--to", "new.db")
    done = memkit(*words)
    assert done.exit_code == 2
    assert "chats (qa), message_store (memkit): say which is meant with --from-collection" in done.stderr
    assert memkit(*words, "--from-format", "qa").exit_code == 0
    assert memkit(*words, "--from-collection", "message_store").exit_code == 0
    assert len(SQLiteChatMessageHistory.factory("new.db").list_sessions("u1")) == 3


def test_nothing_there(memkit: Memkit, standalone: Any, database: str) -> None:
    """A database that holds nothing is an error, not a migration of nothing."""
    done = memkit("migrate", "--from", standalone.uri, "--from-database", database, "--to", "new.db")
    assert done.exit_code == 2
    assert "--from-database" in done.stderr


def test_errors_of_export_name_its_options(memkit: Memkit, full: str, standalone: Any, database: str) -> None:
    """What an error of export says to give is an option of export."""
    words = ("export", "x.jsonl", "--from", standalone.uri, "--database")
    assert "say which is meant with --collection" in memkit(*words, full).stderr
    assert "Is that the right --database?" in memkit(*words, f"{database}_nothing").stderr


def test_export_and_import(memkit: Memkit, full: str, standalone: Any, database: str) -> None:
    """Out of one collection and into another, on a server whose URI comes from the environment."""
    env = {"MEMKIT_URI": standalone.uri}
    words = ("--database", full, "--collection")
    exported = memkit("export", "all.gz", *words, "message_store", env=env)
    assert exported.exit_code == 0, exported.stderr
    for _ in range(2):
        imported = memkit("import", "all.gz", *words, "copy", env=env)
        assert imported.exit_code == 0, imported.stderr
    with MongoDBChatMessageHistory.factory(standalone.uri, full, "copy") as histories:
        assert texts(histories("a", "u1")) == ["u1 a", "yes"]
        assert len(histories.list_sessions("u2")) == 2


def test_rows_of_the_peer_are_exported(memkit: Memkit, peer: Any, standalone: Any, database: str) -> None:
    """Rows of langchain-mongodb need not be migrated before they are exported."""
    assert memkit("export", "rows.jsonl", "--from", standalone.uri, "--database", database).exit_code == 0
    assert memkit("import", "rows.jsonl", "--to", "new.db").exit_code == 0
    assert texts(SQLiteChatMessageHistory("new.db", "s1")) == ["q0", "a0", "q1", "a1"]


def test_into_a_replica_set(memkit: Memkit, peer: Any, standalone: Any, replica_set: Any, database: str) -> None:
    """From one server into another; the database may stand in the URI."""
    target = replica_set.uri.replace("/?", f"/{database}?")
    words = ("migrate", "--from", standalone.uri, "--from-database", database, "--to", target, "--user", "u1")
    done = memkit(*words)
    assert done.exit_code == 0, done.stderr
    with MongoDBChatMessageHistory.factory(replica_set.uri, database) as histories:
        assert texts(histories("s1", "u1")) == ["q0", "a0", "q1", "a1"]


@pytest.mark.parametrize("key", ["--session-id-key", "--history-key"])
def test_fields_of_other_names(memkit: Memkit, standalone: Any, database: str, key: str) -> None:
    """Rows under other field names are found when these are named, and not before."""
    options = {"session_id_key" if key == "--session-id-key" else "history_key": "other"}
    history = Peer(standalone.uri, "s1", database, **options)
    history.add_messages([HumanMessage("q"), AIMessage("a")])
    history.close()
    words = ("migrate", "--from", standalone.uri, "--from-database", database, "--to", "new.db")
    assert memkit(*words).exit_code == 2
    assert memkit(*words, key, "other").exit_code == 0
    assert texts(SQLiteChatMessageHistory("new.db", "s1")) == ["q", "a"]
