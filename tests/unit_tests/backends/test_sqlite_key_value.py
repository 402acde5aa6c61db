"""`SQLiteKeyValueStore`: LangChain's own suite, the contract, and what only a file can do wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_tests.integration_tests import BaseStoreAsyncTests, BaseStoreSyncTests

from langchain_memkit import SQLiteChatMessageHistory, SQLiteKeyValueStore, purge_user
from langchain_memkit.backends.sqlite import database
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from testkit.key_values import KeyValueStoreCases

THREE = ({"a": 1}, {"b": [1, None]}, {"c": {"d": "e"}})


class TestFile(KeyValueStoreCases):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> Any:
        """Stores made one by one, on one file."""
        return lambda: SQLiteKeyValueStore(tmp_path / "chat.db")


class TestLangChainSync(BaseStoreSyncTests[dict[str, Any]]):
    @pytest.fixture
    def kv_store(self, tmp_path: Path) -> Any:
        """An empty store."""
        with SQLiteKeyValueStore(tmp_path / "chat.db") as store:
            yield store

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return THREE


class TestLangChainAsync(BaseStoreAsyncTests[dict[str, Any]]):
    @pytest.fixture
    async def kv_store(self) -> Any:
        """An empty store, in memory."""
        async with SQLiteKeyValueStore(":memory:") as store:
            yield store

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return THREE


class TestBytesSync(BaseStoreSyncTests[bytes]):
    @pytest.fixture
    def kv_store(self, tmp_path: Path) -> Any:
        """An empty store."""
        return SQLiteKeyValueStore(tmp_path / "chat.db")

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return (b"\x00", b"", b"\xff" * 1000)


class TestBytesAsync(BaseStoreAsyncTests[bytes]):
    @pytest.fixture
    async def kv_store(self, tmp_path: Path) -> Any:
        """An empty store."""
        return SQLiteKeyValueStore(tmp_path / "chat.db")

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return (b"\x00", b"", b"\xff" * 1000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database file that does not exist yet."""
    return tmp_path / "chat.db"


def execute(path: Path, statement: str, *values: Any) -> list[Any]:
    """Works on the file behind memkit's back."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute(statement, values).fetchall()
    connection.close()
    return rows


def test_constructor_does_no_io(path: Path) -> None:
    """Nothing is created before the first use, nor by keys that are refused; the store names its file."""
    store = SQLiteKeyValueStore(path)
    with pytest.raises(ValueError, match="key must be 1 to 4096 bytes"):
        store.mget([""])
    with pytest.raises(ValueError, match="prefix"):
        store.yield_keys(prefix="\x00")
    with pytest.raises(ValueError, match="prefix"):
        store.ayield_keys(prefix="\x00")
    assert not path.exists()
    assert repr(store) == f"SQLiteKeyValueStore({str(path)!r})"
    with pytest.raises(TypeError):
        SQLiteKeyValueStore(None)  # type: ignore[arg-type]  # wrong on purpose


def test_readable_with_any_sqlite_tool(path: Path) -> None:
    """A value is plain JSON in a row."""
    SQLiteKeyValueStore(path).mset([("u1/profile", {"name": "Zoë", "n": [1, None]})])
    assert execute(path, "SELECT * FROM key_values") == [("u1/profile", '{"name": "Zoë", "n": [1, null]}', 1)]


def test_keys_are_read_by_the_index(path: Path) -> None:
    """Listing and purging search the index of keys; listing reads no values."""
    SQLiteKeyValueStore(path).mset([("k", {})])
    for statement in ("SELECT key FROM", "DELETE FROM"):
        plan = execute(path, f"EXPLAIN QUERY PLAN {statement} key_values WHERE key >= 'a' AND key < 'b'")
        assert "SEARCH key_values USING" in plan[0][-1]
        assert "INDEX" in plan[0][-1]
    assert "COVERING" in execute(path, "EXPLAIN QUERY PLAN SELECT key FROM key_values WHERE key > 'a'")[0][-1]


def test_a_call_is_stored_whole_or_not_at_all(path: Path) -> None:
    """When one pair cannot be written, none is."""
    store = SQLiteKeyValueStore(path)
    store.mset([("a", {"n": 1})])
    execute(
        path, "CREATE TRIGGER no BEFORE INSERT ON key_values WHEN new.key = 'c' BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    with pytest.raises(HistoryWriteError, match="Nothing was stored") as raised:
        store.mset([("a", {"n": 2}), ("b", {}), ("c", {}), ("d", {})])
    assert not raised.value.maybe_stored
    assert store.mget(["a", "b", "c", "d"]) == [{"n": 1}, None, None, None]


def test_in_the_file_of_the_histories(path: Path) -> None:
    """Store and histories share a file, and `purge_user` empties both."""
    histories, store = SQLiteChatMessageHistory.factory(path), SQLiteKeyValueStore(path)
    histories("s1", "u1").add_messages([HumanMessage("secret"), AIMessage("answer")])
    store.mset([("u1/profile", {"text": "secret"}), ("u2/profile", {})])
    assert purge_user("u1", histories, store) == [{"sessions": 1, "turns": 1}, {"keys": 1}]
    assert list(store.yield_keys()) == ["u2/profile"]


@pytest.mark.parametrize("erase", ["mdelete", "purge"])
def test_erased_text_is_gone_from_the_disk(path: Path, erase: str) -> None:
    """After a deletion the words are neither in the file nor in the write-ahead log."""
    store = SQLiteKeyValueStore(path)
    keys = [f"u1/secret-{i}" for i in range(50)]
    store.mset([(key, {"text": "secret " * 50}) for key in keys])
    if erase == "purge":
        assert store.purge("u1") == {"keys": 50}
    else:
        store.mdelete(keys)
    left = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"secret" not in left
    assert b"key_values" in left


def test_copies_of_moved_rows_go_as_well(path: Path) -> None:
    """Rows that SQLite moved to other pages, and left copies of, are gone after a purge, too."""
    chance = random.Random(18)  # one of few seeds for which overwriting the rows alone leaves text of three users
    with SQLiteKeyValueStore(path) as store:
        for _ in range(150):
            user = chance.randrange(8)
            store.mset([(f"u{user}/{chance.randrange(12)}", {"text": f"canary-{user} " * chance.randint(1, 60)})])
        for user in range(6):
            store.purge(f"u{user}")
            left = b"".join(file.read_bytes() for file in path.parent.iterdir())
            assert f"canary-{user} ".encode() not in left
        assert b"canary-7 " in left


def test_older_file_is_migrated(path: Path) -> None:
    """A file of the first version, which held turns only, keeps them and gets the other tables."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(database.MIGRATIONS[0])
    row = ("", "s1", 1, "turn:t1", "turn", 1, 7, 0, "2026-01-02T03:04:05+00:00", None, 0)
    said = json.dumps([{"role": "human", "content": "old", "id": "m1"}])
    execute(path, f"INSERT INTO turns VALUES ({', '.join('?' * 14)})", *row, said, "[1]", "approximate")
    execute(path, "PRAGMA user_version = 1")
    store = SQLiteKeyValueStore(path)
    store.mset([("k", {"n": 1})])
    assert store.mget(["k"]) == [{"n": 1}]
    assert [m.text for m in SQLiteChatMessageHistory(path, "s1").messages] == ["old"]
    assert execute(path, "PRAGMA user_version") == [(len(database.MIGRATIONS),)]


def test_newer_file_is_refused(path: Path) -> None:
    """A file of a newer memkit is not touched."""
    SQLiteKeyValueStore(path).mset([("k", {})])
    execute(path, "PRAGMA user_version = 99")
    database._databases.clear()
    with pytest.raises(ConfigurationError, match="newer memkit"):
        SQLiteKeyValueStore(path).mget(["k"])


DAMAGE = {
    "no JSON": "not json",
    "truncated JSON": '{"a": ',
    "a list": "[1]",
    "a number": 7,
    "null": "null",
    "binary": b"\xff\xfe\x00",
    "unknown tag": '{"_memkit": "code", "value": "import os"}',
    "unknown tag inside": '{"a": {"_memkit": "code", "value": "import os"}}',
    "bad tag value": '{"a": {"_memkit": "datetime", "value": 7}}',
    "tagged text": '{"_memkit": "str", "value": "YQ=="}',
    "unhashable": '{"a": {"_memkit": "set", "value": [[]]}}',
    "not a document": '{"a": {"_memkit": "document", "value": {"page_content": 7}}}',
    "deeply nested": "[" * 5000 + "]" * 5000,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.usefixtures("no_collection")
def test_damaged_values(path: Path, damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged value is None and reported; the others come back, it is not deleted, and can be replaced."""
    store = SQLiteKeyValueStore(path)
    store.mset([(key, {"key": key}) for key in "abc"])
    execute(path, "UPDATE key_values SET value = ? WHERE key = 'b'", damage)
    assert store.mget(["a", "b", "c"]) == [{"key": "a"}, None, {"key": "c"}]
    assert "key 'b' is unreadable" in caplog.text
    assert list(store.yield_keys()) == ["a", "b", "c"]
    assert execute(path, "SELECT COUNT(*) FROM key_values") == [(3,)]
    store.mset([("b", {"new": 1})])
    assert store.mget(["b"]) == [{"new": 1}]


def test_row_of_a_newer_format(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A row with a newer `v` is reported, never guessed at."""
    store = SQLiteKeyValueStore(path)
    store.mset([("k", {})])
    execute(path, "UPDATE key_values SET v = 2")
    assert store.mget(["k"]) == [None]
    assert "format 2" in caplog.text


def test_damaged_keys_end_no_listing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are no text are listed somehow or not at all; the listing ends, with every good key in it."""
    monkeypatch.setattr("langchain_memkit.stores.key_value.PAGE", 2)
    monkeypatch.setattr("langchain_memkit.stores.key_value.PAGE", 2)
    store = SQLiteKeyValueStore(path)
    store.mset([(key, {}) for key in "abcde"])
    for i in range(5):
        execute(path, f"INSERT INTO key_values VALUES (CAST(x'ff0{i}' AS TEXT), '{{}}', 1), (x'fe0{i}', '{{}}', 1)")
    assert set(store.yield_keys()) >= set("abcde")


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    """What is no database, or has no folder, is a typed error that names the file."""
    other = tmp_path / "other.txt"
    other.write_text("this is no database, but a text of some length" * 40)
    for bad in (other, tmp_path / "no" / "chat.db"):
        store = SQLiteKeyValueStore(bad)
        with pytest.raises(HistoryReadError, match=bad.name):
            store.mget(["k"])
        with pytest.raises(HistoryReadError, match=bad.name):
            list(store.yield_keys())
        for write in (lambda s: s.mset([("k", {})]), lambda s: s.mdelete(["k"]), lambda s: s.purge("u1")):
            with pytest.raises(HistoryWriteError, match=bad.name):
                write(store)


def test_locked_database(path: Path) -> None:
    """A writer that does not let go is a typed error after `timeout`; readers go on."""
    store = SQLiteKeyValueStore(path, timeout=0.1)
    store.mset([("k", {})])
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(HistoryWriteError, match="locked"):
        store.mset([("k", {"n": 1})])
    assert store.mget(["k"]) == [{}]
    blocker.close()
    store.mset([("k", {"n": 1})])


def test_async_calls_do_not_block_the_loop(path: Path) -> None:
    """SQLite runs in a worker thread: while a call waits for a lock, the event loop goes on."""
    store = SQLiteKeyValueStore(path)
    store.mset([("k", {})])
    blocker = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    blocker.execute("BEGIN IMMEDIATE")

    async def go() -> None:
        writing = asyncio.create_task(store.amset([("k", {"n": 1})]))
        for _ in range(5):
            await asyncio.sleep(0.01)
        assert not writing.done()
        blocker.close()
        await writing

    asyncio.run(go())


WRITER = """
import sys
from langchain_memkit import SQLiteKeyValueStore
store = SQLiteKeyValueStore(sys.argv[1])
for i in range(100):
    store.mset([(f"{sys.argv[2]}/{i}", {"n": i}), ("shared", {"by": sys.argv[2], "again": sys.argv[2]})])
"""


def test_two_processes(path: Path) -> None:
    """Two processes that begin on a new file at once lose nothing."""
    processes = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "ab"]
    assert [process.wait(60) for process in processes] == [0, 0]
    store = SQLiteKeyValueStore(path)
    assert len(list(store.yield_keys())) == 201
    (shared,) = store.mget(["shared"])
    assert shared["by"] == shared["again"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the test
def test_fork(path: Path) -> None:
    """A forked child opens connections of its own; parent and child both go on."""
    store = SQLiteKeyValueStore(path)
    store.mset([("before", {})])
    child = os.fork()
    if child == 0:
        try:
            store.mset([("child", {})])
            os._exit(0 if "before" in list(store.yield_keys()) else 1)
        except BaseException:
            os._exit(2)
    store.mset([("parent", {})])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert list(store.yield_keys()) == ["before", "child", "parent"]
