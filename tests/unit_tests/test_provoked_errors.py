"""More than forty errors, as apps provoke them, searched for what was said and for every piece of a password.

Texts, causes, logs, reprs and what the command line prints are searched; a piece is what stands between two special
characters of the password, from two letters on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import pytest
from langchain.agents import create_agent
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from typer.testing import CliRunner

from langchain_memkit import (
    CondenseQuestionRetriever,
    KeyValueMemory,
    MessageHistoryMiddleware,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    VectorMemory,
    create_conversational_rag_chain,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    purge_user,
    session,
)
from langchain_memkit.cli.app import app
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate import (
    export_history,
    import_history,
    langchain_file_source,
    langchain_sql_source,
    langgraph_source,
    migrate,
    vector_records_source,
)
from langchain_memkit.testing import FakeChatModel

SAID = f"my secret is {uuid4().hex}"  # made here, so that no line of source has it
USER = "qwv"
# with every character that ends a user name, a host, a database or an option, once and several times
PASSWORDS = [
    "zqx{}jvk{}xwq".format(*marks)
    for marks in ("@/", "/@", "@@", ":/", "/:", "?@", "@?", "#@", "@#", "#/", "//", "::", ":@", "%/", "&?", "=?")
]
PASSWORDS += ["27017/zqx=jvk", "27017/?zqx=jvk", "27017?zqx=jvk", "zqx jvk/@xwq", "[zqx]@jvk/xwq", ",zqx/jvk,", "1/zqx"]
EMBEDDING = DeterministicFakeEmbedding(size=8)
MODEL = FakeChatModel()
TURN: list[BaseMessage] = [HumanMessage(SAID), AIMessage(SAID)]
CONFIG = session("s1", user_id="u1")
# pymongo leaves a socket to the garbage collector if its connecting is cancelled
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed:ResourceWarning",
    "ignore::UserWarning",  # the driver's, of options; where they may go is the app's business
)

Provoke = Callable[..., None]


def pieces_of(password: str) -> list[str]:
    """What stands between special characters; a port is no secret."""
    return [piece for piece in re.findall(r"\w{2,}", f"{USER} {password}") if piece != "27017"]


def addresses(password: str) -> list[str]:
    """Connection strings in which nobody has percent-encoded the password, or has, and nobody answers."""
    return [
        f"mongodb://{USER}:{password}@127.0.0.1:1",
        f"mongodb://{USER}:{password}@127.0.0.1:1/chat?serverSelectionTimeoutMS=50",
        f"mongodb+srv://{USER}:{password}@cluster.invalid/chat",
    ]


@pytest.fixture
def provoke(told_by: Callable[[BaseException], str], caplog: pytest.LogCaptureFixture) -> Iterator[Provoke]:
    """Calls what fails, and searches all that is told of it; at the end, all that was logged."""
    secrets: set[str] = {SAID}

    def call(function: Callable[[], Any], *pieces: str, name: str = "", wanted: str = "") -> None:
        secrets.update(pieces)
        try:
            result = function()
            if asyncio.iscoroutine(result):
                asyncio.run(result)
        except Exception as error:
            told = f"{told_by(error)}\n{error!r}"
            assert wanted in told, told
            assert [secret for secret in (SAID, *pieces) if secret in told] == [], told
        else:
            pytest.fail(f"nothing was raised: {name}")

    with caplog.at_level(logging.DEBUG, "langchain_memkit"):
        yield call
    logged = "\n".join(r.getMessage() + str(r.exc_text) for r in caplog.records)
    assert [secret for secret in secrets if secret in logged] == [], logged


def remember(histories: Any) -> VectorMemory:
    """A vector memory of a user."""
    return VectorMemory(histories, EMBEDDING, "s1", user_id="u1")


def doors(uri: str) -> list[Callable[[], Any]]:
    """What an app makes of an address, and its first use of it."""
    return [
        lambda: MongoDBChatMessageHistory(uri, "s1", timeout=0.1).add_messages(TURN),
        lambda: MongoDBChatMessageHistory.factory(uri, timeout=0.1)("s1", "u1").messages,
        lambda: MongoDBChatMessageHistory(uri, "s1", layout="qa", user_id="u1", timeout=0.1).aget_messages(),
        lambda: MongoDBKeyValueStore(uri, timeout=0.1).mset([("a", {"said": SAID})]),
        lambda: remember(MongoDBChatMessageHistory.factory(uri, timeout=0.1)).search(SAID),
        lambda: migrate(langgraph_source(uri), SQLiteChatMessageHistory.factory(":memory:"), progress=False),
    ]


@pytest.mark.parametrize("password", PASSWORDS)
def test_passwords_that_are_not_encoded(password: str, provoke: Provoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is told how to encode it, by every door; no piece of it is in an error, a log or a repr."""
    for uri in addresses(password):
        for door in doors(uri):
            provoke(door, *pieces_of(password))
    monkeypatch.setenv("MEMKIT_URI", uri)
    for words in (["list", "--from", uri], ["doctor", uri, "--debug"], ["purge", "--user", "u1"], ["stats"], [uri]):
        done = CliRunner().invoke(app, words)
        assert done.exit_code in (1, 2, 3), done.output
        assert [piece for piece in pieces_of(password) if piece in done.output] == [], done.output


@pytest.mark.parametrize("i", range(6))
def test_servers_that_are_down(i: int, provoke: Provoke) -> None:
    """An encoded password is used, and the host that does not answer is named without it, by every door."""
    for password in (PASSWORDS[0], PASSWORDS[-1]):
        uri = f"mongodb://{USER}:{quote_plus(password)}@127.0.0.1:1/?serverSelectionTimeoutMS=50"
        provoke(doors(uri)[i], *pieces_of(password), quote_plus(password), wanted="127.0.0.1:1")


@pytest.mark.parametrize("password", PASSWORDS[::3])
def test_addresses_where_a_file_is_expected(password: str, provoke: Provoke) -> None:
    """An address of any server given as a path, as an id, as a function, or to SQLAlchemy."""
    memory = SQLiteChatMessageHistory.factory(":memory:")
    for scheme in ("mongodb", "postgresql", "redis", "sqlite+pysqlcipher"):
        uri = f"{scheme}://{USER}:{password}@127.0.0.1:1/chat"
        calls: list[Callable[[], Any]] = [
            lambda uri=uri: SQLiteChatMessageHistory(uri, "s1"),  # type: ignore[misc]  # bound now
            lambda uri=uri: SQLiteChatMessageHistory.factory(uri),  # type: ignore[misc]  # as above
            lambda uri=uri: SQLiteKeyValueStore(uri),  # type: ignore[misc]  # as above
            lambda uri=uri: migrate(vector_records_source(uri), memory, progress=False),  # type: ignore[misc]  # as above
            lambda uri=uri: export_history(memory, uri),  # type: ignore[misc]  # as above
            lambda uri=uri: import_history(memory, uri),  # type: ignore[misc]  # as above
            lambda uri=uri: langchain_file_source(uri),  # type: ignore[misc]  # as above
            lambda uri=uri: memory(uri),  # type: ignore[misc]  # as above
            lambda uri=uri: create_runnable_with_message_history(MODEL, uri),  # type: ignore[misc]  # as above
            lambda uri=uri: KeyValueMemory.from_file(uri),  # type: ignore[misc]  # as above
        ]
        if not scheme.startswith("mongodb"):
            calls += [lambda uri=uri: MongoDBKeyValueStore(uri)]  # type: ignore[misc]  # as above
        for call in calls:
            provoke(call, *pieces_of(password))
    for scheme in ("postgresql+psycopg", "mysql", "nonsense"):
        source = langchain_sql_source(f"{scheme}://{USER}:{password}@127.0.0.1:1/chat?options=x")
        provoke(lambda source=source: migrate(source, memory, progress=False), *pieces_of(password))  # type: ignore[misc]  # as above


def test_addresses_that_are_fine() -> None:
    """Encoded, or with characters that end nothing, a password is taken, and the host is told."""
    for password in ("p%40ss%2Fw", "p#ss", "p;ss!$&'()*,=+~", "p ss"):
        history = MongoDBChatMessageHistory(f"mongodb://me:{password}@h1:27017,h2/chat?w=1", "s1")
        assert "(h1:27017,h2, " in repr(history.turn_store)
    for uri, hosts in {
        "mongodb://h1": "h1",
        "mongodb://h1?w=1": "h1",
        "mongodb://[::1]:27017/x": "[::1]:27017",
        "mongodb://%2Ftmp%2Fmongodb.sock": "%2Ftmp%2Fmongodb.sock",
    }.items():
        assert f"({hosts}, " in repr(MongoDBChatMessageHistory.factory(uri))


@pytest.mark.parametrize("uri", ["mongodb://me:a@b@h", "mongodb://me:a/b@h/", "mongodb://me:a:b@h", "mongodb://a?b@h"])
def test_the_way_out(uri: str) -> None:
    """The error says what to encode, and with what; at once, before a host is looked up that is none."""
    with pytest.raises(ConfigurationError, match=r"percent-encode .*@, :, / .*urllib\.parse\.quote_plus") as raised:
        MongoDBChatMessageHistory(uri, "s1")
    assert "h" not in re.sub(r"\w{2,}", "", str(raised.value))


def refusing(folder: Path) -> Iterator[tuple[str, Callable[[], Any]]]:
    """By name, what fails on a file that refuses every write, and on one whose rows are damaged."""
    path, damaged = folder / "refusing.db", folder / "damaged.db"
    for file in (path, damaged):
        SQLiteChatMessageHistory(file, "s1", user_id="u1").add_messages([HumanMessage("hello"), AIMessage("yes")])
        SQLiteKeyValueStore(file).mset([("k", {"a": 1})])
    with sqlite3.connect(path) as connection:
        tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
        for (table,) in connection.execute(tables).fetchall():
            for verb in ("INSERT", "UPDATE"):
                refuse = f"BEFORE {verb} ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END"
                connection.execute(f"CREATE TRIGGER no_{table}_{verb} {refuse}")
    connection.close()
    with sqlite3.connect(damaged) as connection:
        connection.execute("UPDATE turns SET messages = ?", (json.dumps([{"role": SAID, "content": SAID}]),))
    connection.close()
    histories = SQLiteChatMessageHistory.factory(path)
    strict = SQLiteChatMessageHistory.factory(damaged, on_corrupt="raise")
    keys, memory = SQLiteKeyValueStore(path), remember(histories)
    chat = create_runnable_with_message_history(MODEL, histories)
    memories = [VectorMemory.factory(histories, EMBEDDING)]
    remembering = create_runnable_with_message_history(
        MODEL, SQLiteChatMessageHistory.factory(":memory:"), memories=memories
    )
    agent = create_agent(MODEL, [], middleware=[MessageHistoryMiddleware(histories)])
    history, text = histories("s1", "u1"), f"I say that {SAID}."
    asked: Any = {"messages": [HumanMessage(text)]}
    yield "add", lambda: history.add_messages(TURN)
    yield "aadd", lambda: history.aadd_messages(TURN)
    yield "append", lambda: history.append_turn(TURN, turn_id="t1")
    yield "edit", lambda: history.append_turn(TURN, replaces=1)
    yield "delete", lambda: history.delete_turn(1)
    yield "fork", lambda: history.fork("s2")
    yield "title", lambda: histories.update_session("s1", "u1", title=SAID)
    yield "keys", lambda: keys.mset([("k", {"said": SAID})])
    yield "akeys", lambda: keys.amset([("k", {"said": SAID})])
    yield "vectors", lambda: memory.save(TURN)
    yield "avectors", lambda: memory.asave(TURN)
    yield "chain", lambda: chat.invoke(text, CONFIG)
    yield "achain", lambda: chat.ainvoke(text, CONFIG)
    yield "stream", lambda: list(chat.stream(text, CONFIG))
    yield "agent", lambda: agent.invoke(asked, CONFIG)
    yield "memory", lambda: remembering.invoke(text, CONFIG)
    yield "damaged", lambda: strict("s1", "u1").messages
    yield "damaged, async", lambda: strict("s1", "u1").aget_messages()
    yield "damaged, tail", lambda: strict("s1", "u1").tail(max_messages=3)
    yield "damaged, chain", lambda: create_runnable_with_message_history(MODEL, strict).invoke(text, CONFIG)


ARGUMENTS: dict[str, Callable[[], Any]] = {
    "an id": lambda: SQLiteChatMessageHistory(":memory:", {SAID: SAID}),  # type: ignore[arg-type]
    "a long id": lambda: SQLiteChatMessageHistory(":memory:", SAID * 50),
    "an id with NUL": lambda: session(f"{SAID}\x00"),
    "a user": lambda: purge_user([SAID], SQLiteChatMessageHistory.factory(":memory:")),  # type: ignore[arg-type]
    "a cursor": lambda: SQLiteChatMessageHistory.factory(":memory:").list_sessions("u1", before=SAID),
    "a search": lambda: SQLiteChatMessageHistory.factory(":memory:").search_messages("u1", SAID * 50),
    "metadata": lambda: SQLiteChatMessageHistory.factory(":memory:").update_session("s", metadata={SAID: object()}),
    "where": lambda: SQLiteChatMessageHistory.factory(":memory:").list_sessions("u1", where={SAID: [SAID]}),
    "a title": lambda: SQLiteChatMessageHistory.factory(":memory:").update_session("s", title=SAID * 100),
    "messages": lambda: SQLiteChatMessageHistory(":memory:", "s").add_messages([SAID]),  # type: ignore[list-item]
    "one message": lambda: SQLiteChatMessageHistory(":memory:", "s").add_messages(HumanMessage(SAID)),  # type: ignore[arg-type]
    "content": lambda: SQLiteChatMessageHistory(":memory:", "s").add_messages(
        [HumanMessage([{"type": "text", "text": SAID, "odd": {object()}}])]
    ),
    "no function": lambda: create_runnable_with_message_history(MODEL, [SAID]),  # type: ignore[arg-type]
    "a list is returned": lambda: create_runnable_with_message_history(MODEL, lambda s: [HumanMessage(SAID)]).invoke(
        SAID, CONFIG
    ),
    "an input": lambda: create_runnable_with_message_history(
        MODEL, SQLiteChatMessageHistory.factory(":memory:")
    ).invoke([{"said": SAID}], CONFIG),
    "an output": lambda: create_runnable_with_message_history(
        RunnableLambda(lambda _: {SAID}), SQLiteChatMessageHistory.factory(":memory:")
    ).invoke(SAID, CONFIG),
    "a chain's retriever": lambda: create_conversational_rag_chain(
        MODEL, MODEL, SQLiteChatMessageHistory.factory(":memory:")
    ),
    "a past": lambda: CondenseQuestionRetriever(retriever=RunnableLambda(lambda _: [])).invoke(
        {"input": SAID, "chat_history": [{"said": SAID}]}
    ),
    "a budget": lambda: create_trim_preprocessor(1, on_overflow="raise").invoke([HumanMessage(SAID)] * 7),
    "entries": lambda: KeyValueMemory([{"title": "t", "text": {"said": SAID}}]),
    "a value": lambda: SQLiteKeyValueStore(":memory:").mset([("k", {"said": SAID, "odd": object()})]),
}


def test_failing_saves_and_damaged_rows(tmp_path: Path, provoke: Provoke) -> None:
    """Turns that are refused, and rows that cannot be read."""
    count = 0
    for name, call in refusing(tmp_path):
        provoke(call, name=name)
        count += 1
    # With doors, files, commands and extras, forty kinds and more, whatever their passwords.
    assert count + len(ARGUMENTS) >= 40


@pytest.mark.parametrize("name", ARGUMENTS)
def test_bad_arguments(name: str, provoke: Provoke) -> None:
    """What was said, given where something else is expected."""
    provoke(ARGUMENTS[name])


def test_commands(tmp_path: Path, provoke: Provoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line on refusing, damaged and foreign files, with and without `--debug`; a damaged file to import."""
    monkeypatch.chdir(tmp_path)
    assert next(refusing(tmp_path))  # which makes the files
    (tmp_path / "foreign.db").write_text(SAID * 100)
    (tmp_path / "said.jsonl").write_text(json.dumps({"said": SAID}))
    (tmp_path / "folder").mkdir()
    commands = [
        ["import", "said.jsonl", "--to", "new.db"],
        ["import", "said.jsonl", "--to", "refusing.db"],
        ["migrate", "--from", "foreign.db", "--to", "refusing.db"],
        ["export", "out.jsonl", "--from", "damaged.db"],
        ["list", "--from", "foreign.db"],
        ["list", "--from", "damaged.db", "--before", "nonsense"],
        ["list", "--from", "folder"],
        ["show", "nobody", "--from", "damaged.db"],
        ["purge", "--user", "u1", "--in", "foreign.db", "--yes"],
        ["doctor", "foreign.db", "damaged.db"],
        ["report", "-o", "page.html", "foreign.db"],
        ["nonsense"],
    ]
    for words in commands:
        for more in ([], ["--debug"] if words != ["nonsense"] else ["-x"]):
            done = CliRunner().invoke(app, [*words, *more])
            assert done.exit_code in (1, 2, 3), (words, done.output)
            assert SAID not in done.output, (words, done.output)


def test_missing_extras() -> None:
    """Without the packages of the extras, in an interpreter of its own."""
    code = """
import sys
sys.modules.update(dict.fromkeys(("pymongo", "bson", "numpy", "rapidfuzz", "langgraph", "spacy", "wordllama")))
import langchain_memkit as m
for name in sys.argv[2:]:
    try:
        getattr(m, name)(sys.argv[1], "s1")
    except ImportError as error:
        print(name, error, repr(error), repr(error.__cause__))
"""
    names = ["MongoDBChatMessageHistory", "MongoDBKeyValueStore", "WordLlamaEmbeddings", "EntityMemory", "VectorMemory"]
    (uri, *_) = addresses(PASSWORDS[0])
    done = subprocess.run([sys.executable, "-c", code, uri, *names], capture_output=True, text=True, check=False)
    assert done.stdout.count("needs an extra: pip install") == 2 * len(names), done.stderr
    assert [piece for piece in pieces_of(PASSWORDS[0]) if piece in done.stdout + done.stderr] == []
