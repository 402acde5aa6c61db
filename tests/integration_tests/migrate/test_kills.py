"""A move whose process is killed in the middle is finished by the next run: nothing missing, nothing twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer

from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.migrate import export_history, import_history, langchain_sql_source, migrate

with warnings.catch_warnings():  # it says that nobody looks after it any more
    warnings.simplefilter("ignore", DeprecationWarning)
    from langchain_community.chat_message_histories import SQLChatMessageHistory

SESSIONS = ("s1", "s2", "s3")
TURNS = 10

# runs a move that ends itself with SIGKILL as it has written for the n-th time, inside the transaction on SQLite
KILLED = """
    import os, signal, sys
    from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory
    from langchain_memkit.backends.sqlite.history import SQLiteTurnStore
    from langchain_memkit.migrate import export_history, import_history, langchain_sql_source, migrate
    from langchain_memkit.migrate import transfer
    from pymongo.collection import Collection

    uri, database, folder, times = sys.argv[1:5]
    transfer.BATCH_TURNS = 4
    written = 0

    def deadly(original):
        def write(*args, **options):
            global written
            result = original(*args, **options)
            written += 1
            if written == int(times):
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return write

    SQLiteTurnStore._insert = deadly(SQLiteTurnStore._insert)
    Collection.insert_many = deadly(Collection.insert_many)
    mongo = lambda name, **options: MongoDBChatMessageHistory.factory(uri, database, name, **options)
    sqlite = SQLiteChatMessageHistory.factory
    {work}
"""
SQL = 'migrate(langchain_sql_source(folder + "/community.db"), sqlite(folder + "/memkit.db"), progress=False)'
LINES = 'import_history(sqlite(folder + "/memkit.db"), folder + "/all.jsonl", progress=False)'
ROWS = 'migrate(mongo("rows", layout="langchain"), mongo("memkit"), progress=False)'
BACK = 'migrate(mongo("memkit"), mongo("memkit", layout="langchain"), progress=False)'


def talk(session: str) -> list[BaseMessage]:
    """What was said in a session."""
    said = [(HumanMessage(f"{session} q{i}"), AIMessage(f"{session} a{i}")) for i in range(TURNS)]
    return [message for turn in said for message in turn]


def texts(histories: Any) -> list[list[str]]:
    """The texts of each session."""
    return [[m.text for m in histories(session).messages] for session in SESSIONS]


WHOLE = [[m.text for m in talk(session)] for session in SESSIONS]


def killed(work: str, *arguments: Any) -> None:
    """Runs the work in a process that kills itself in the middle."""
    code = textwrap.dedent(KILLED).replace("{work}", work)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.fixture
def sql(tmp_path: Path) -> Path:
    """A file of langchain-community's class."""
    for session in SESSIONS:
        old = SQLChatMessageHistory(session, connection=f"sqlite:///{tmp_path / 'community.db'}")
        old.add_messages(talk(session))
        old.engine.dispose()
    return tmp_path / "community.db"


@pytest.fixture
def mongo(standalone: Any, database: str) -> Any:
    """Makes factories for a collection."""
    return lambda name, **options: MongoDBChatMessageHistory.factory(standalone.uri, database, name, **options)


@pytest.fixture
def rows(standalone: Any, database: str) -> Iterator[Any]:
    """A collection of langchain-mongodb's class, and how to open it with that class."""
    opened = [Peer(standalone.uri, session, database, "rows") for session in SESSIONS]
    for peer in opened:
        peer.add_messages(talk(peer.session_id))
    yield opened
    for peer in opened:
        peer.close()


@pytest.mark.parametrize("times", [1, 17])
def test_sql_to_sqlite(sql: Path, tmp_path: Path, standalone: Any, database: str, times: int) -> None:
    """Killed inside a transaction: whole turns only, and the next run ends with all of them, once."""
    killed(SQL, standalone.uri, database, tmp_path, times)
    target = SQLiteChatMessageHistory.factory(tmp_path / "memkit.db")
    there = texts(target)
    assert there != WHOLE
    assert all(len(found) % 2 == 0 and found == whole[: len(found)] for found, whole in zip(there, WHOLE, strict=True))
    for _ in range(2):
        migrate(langchain_sql_source(sql), target, progress=False)
        assert texts(target) == WHOLE


def test_rows_to_mongodb(rows: Any, mongo: Any, tmp_path: Path, standalone: Any, database: str) -> None:
    """Killed after a write that the server has: it is not written again."""
    killed(ROWS, standalone.uri, database, tmp_path, 5)
    target = mongo("memkit")
    assert 0 < sum(map(len, texts(target))) < sum(map(len, WHOLE))
    for _ in range(2):
        migrate(mongo("rows", layout="langchain"), target, progress=False)
        assert texts(target) == WHOLE


def test_the_way_back_in_place(mongo: Any, tmp_path: Path, standalone: Any, database: str) -> None:
    """Killed while native turns become rows in their own collection: the next run ends it, and the peer reads all."""
    native = mongo("memkit")
    for session in SESSIONS:
        for begin in range(0, 2 * TURNS, 2):
            native(session).append_turn(talk(session)[begin : begin + 2])
    killed(BACK, standalone.uri, database, tmp_path, 5)
    for _ in range(2):
        migrate(native, mongo("memkit", layout="langchain"), progress=False)
    for session, whole in zip(SESSIONS, WHOLE, strict=True):
        with closing(Peer(standalone.uri, session, database, "memkit")) as peer:
            assert [m.text for m in peer.messages] == whole
    assert mongo("memkit").list_sessions()[0].turns == 2 * TURNS  # rows: no turn is left beside them


def test_import(sql: Path, tmp_path: Path, standalone: Any, database: str) -> None:
    """Killed in the middle of an import: the next one goes on."""
    source = SQLiteChatMessageHistory.factory(":memory:")
    migrate(langchain_sql_source(sql), source, progress=False)
    export_history(source, tmp_path / "all.jsonl", progress=False)
    killed(LINES, standalone.uri, database, tmp_path, 22)
    target = SQLiteChatMessageHistory.factory(tmp_path / "memkit.db")
    assert texts(target) != WHOLE
    for _ in range(2):
        assert import_history(target, tmp_path / "all.jsonl", progress=False).skipped == []
        assert texts(target) == WHOLE


def test_export(sql: Path, tmp_path: Path, standalone: Any, database: str) -> None:
    """Killed in the middle of an export: no file stands under its name, and the next one is whole."""
    source = SQLiteChatMessageHistory.factory(tmp_path / "memkit.db")
    migrate(langchain_sql_source(sql), source, progress=False)
    work = """
    from langchain_memkit.migrate import jsonl
    jsonl.turn_line = deadly(jsonl.turn_line)
    export_history(sqlite(folder + "/memkit.db"), folder + "/all.jsonl", progress=False)
    """.replace("\n    ", "\n")
    killed(work, standalone.uri, database, tmp_path, 15)
    assert not (tmp_path / "all.jsonl").exists()
    export_history(source, tmp_path / "all.jsonl", progress=False)
    target = SQLiteChatMessageHistory.factory(":memory:")
    import_history(target, tmp_path / "all.jsonl", progress=False)
    assert texts(target) == WHOLE
