"""What only a file can do wrong: kills, forks, locks, damage, versions, expiry, traces of deleted text."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import (
    KeyValueMemory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_runnable_with_message_history,
    purge_user,
)
from langchain_memkit.backends.sqlite import database
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryReadError,
    HistoryWriteError,
    MessageDecodeError,
    StaleTurnError,
)
from langchain_memkit.migrate import export_history, import_history
from langchain_memkit.testing import FrozenClock

TURN = [HumanMessage("My name is Nemo."), AIMessage("Hello Nemo.")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database file that does not exist yet."""
    return tmp_path / "chat.db"


def texts(history: Any) -> list[str]:
    """The text of each message."""
    return [m.text for m in history.messages]


def execute(path: Path, statement: str, *values: Any) -> list[Any]:
    """Works on the file behind memkit's back."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute(statement, values).fetchall()
    connection.close()
    return rows


def test_constructor_does_no_io(path: Path) -> None:
    """Nothing is opened or created before the first use."""
    SQLiteChatMessageHistory(path, "s1")
    SQLiteChatMessageHistory.factory(path)
    assert not path.exists()


def test_readable_with_any_sqlite_tool(path: Path) -> None:
    """A stored turn shows user, session, time, roles and text as plain values."""
    SQLiteChatMessageHistory(path, "s1", user_id="u1").add_messages(TURN)
    ((user, session, seq, created, stored),) = execute(
        path, "SELECT user_id, session_id, seq, created_at, messages FROM turns"
    )
    assert (user, session, seq) == ("u1", "s1", 1)
    assert created.endswith("+00:00")
    assert [(m["role"], m["content"]) for m in json.loads(stored)] == [
        ("human", "My name is Nemo."),
        ("ai", "Hello Nemo."),
    ]


@pytest.mark.parametrize("erase", ["clear", "purge"])
def test_erased_text_is_gone_from_the_disk(path: Path, erase: str) -> None:
    """After clear or purge the deleted words are neither in the file nor in the write-ahead log."""
    histories = SQLiteChatMessageHistory.factory(path)
    for i in range(50):
        histories("s1", "u1").add_messages([HumanMessage(f"secret-{i} " * 50, id=f"secret-id-{i}")])
    if erase == "clear":
        histories("s1", "u1").clear()
    else:
        assert histories.purge("u1") == {"sessions": 1, "turns": 50}
    left = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"secret" not in left
    assert b"session_id" in left


def test_turns_expire_whole(path: Path) -> None:
    """After its ttl a turn is gone for every reader, and a session begun again is a new one."""
    clock = FrozenClock()
    history = SQLiteChatMessageHistory(path, "s1", ttl=60, now=clock)
    history.append_turn(TURN, turn_id="t1")
    first = history.view()
    clock.tick(61)
    assert history.messages == []
    assert history.append_turn(TURN, turn_id="t1") == 1
    assert history.view().epoch not in (0, first.epoch)
    clock.tick(61)
    history.add_user_message("later")
    assert execute(path, "SELECT COUNT(*) FROM turns")[0][0] == 1
    assert execute(path, "SELECT COUNT(*) FROM message_ids")[0][0] == 1


def test_markers_hold_nothing_and_go(path: Path) -> None:
    """What clear leaves behind is ids and numbers, and that only for two hours."""
    clock = FrozenClock()
    histories = SQLiteChatMessageHistory.factory(path, now=clock)
    histories("s1", "u1").add_messages(TURN)
    histories.purge("u1")
    assert {row[0] for row in execute(path, "SELECT messages FROM turns")} == {"[]"}
    clock.tick(7201)
    histories("s2").add_user_message("anything")
    assert execute(path, "SELECT DISTINCT user_id FROM turns") == [("",)]


def test_purge_reaches_turns_under_way(path: Path) -> None:
    """A turn that began before the purge is refused, also in a session that did not exist yet; others stay."""
    histories = SQLiteChatMessageHistory.factory(path)
    histories("s1", "u1").add_messages(TURN)
    histories("s1", "u2").add_messages(TURN)
    old, new = histories("s1", "u1").view(), histories("new", "u1").view()
    assert purge_user("u1", histories) == [{"sessions": 1, "turns": 1}]
    for session, view in (("s1", old), ("new", new)):
        with pytest.raises(StaleTurnError):
            histories(session, "u1").append_turn(TURN, epoch=view.epoch)
    histories("new", "u1").append_turn(TURN, epoch=histories("new", "u1").view().epoch)
    assert [s.session_id for s in histories.list_sessions("u1")] == ["new"]
    assert len(histories("s1", "u2").messages) == 2


def test_list_sessions(path: Path) -> None:
    """Sessions of one user, most recently used first, with counts and times; empty ones are left out."""
    clock = FrozenClock()
    histories = SQLiteChatMessageHistory.factory(path, now=clock)
    for session in ("a", "b", "a", "cleared"):
        clock.tick(1)
        histories(session, "u1").add_messages(TURN)
    histories("cleared", "u1").clear()
    histories("mine").add_messages(TURN)
    found = histories.list_sessions("u1")
    assert [(s.session_id, s.turns) for s in found] == [("a", 2), ("b", 1)]
    assert found[0].updated_at == FrozenClock()().replace(second=3)
    assert [s.session_id for s in histories.list_sessions()] == ["mine"]
    assert asyncio.run(histories.alist_sessions("u1")) == found


def test_newer_file_is_refused(path: Path) -> None:
    """A file of a newer memkit is not touched."""
    SQLiteChatMessageHistory(path, "s1").add_messages(TURN)
    execute(path, "PRAGMA user_version = 99")
    database._databases.clear()
    with pytest.raises(ConfigurationError, match="newer memkit"):
        SQLiteChatMessageHistory(path, "s1").messages  # noqa: B018  # reading is the test


def test_older_file_is_migrated(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version's migration runs once, in one transaction, and keeps the data."""
    SQLiteChatMessageHistory(path, "s1").add_messages(TURN)
    database._databases.clear()
    monkeypatch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS, "ALTER TABLE turns ADD COLUMN mood TEXT;"])
    assert len(SQLiteChatMessageHistory(path, "s1").messages) == 2
    assert execute(path, "PRAGMA user_version") == [(len(database.MIGRATIONS),)]
    assert "mood" in {row[1] for row in execute(path, "PRAGMA table_info(turns)")}


DAMAGE = {
    "no JSON": "not json",
    "truncated JSON": '[{"role": "human", "content": "x"',
    "no list": '{"role": "human"}',
    "null": "null",
    "binary": b"\xff\xfe\x00",
    "unknown role": '[{"role": "martian", "content": "x"}]',
    "role is no text": '[{"role": 7, "content": "x"}]',
    "no role": '[{"content": "x"}]',
    "content is a number": '[{"role": "human", "content": 7}]',
    "message is text": '["hello"]',
    "unknown tag": '[{"role": "human", "content": {"_memkit": "code", "value": "import os"}}]',
    "bad tag value": '[{"role": "human", "content": {"_memkit": "str", "value": "?"}}]',
    "tool without id": '[{"role": "tool", "content": "x"}]',
    "extra overwrites a field": '[{"role": "human", "content": "x", "extra": {"id": "y"}}]',
    "deeply nested": "[" * 5000 + "]" * 5000,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
@pytest.mark.usefixtures("no_collection")
def test_damaged_rows(path: Path, damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Good messages come back in order, the damaged row is counted and reported, and never deleted."""
    history = SQLiteChatMessageHistory(path, "s1")
    for text in "abc":
        history.add_user_message(text)
    execute(path, "UPDATE turns SET messages = ? WHERE seq = 2", damage)
    view = history.view()
    assert [m.text for m in view.messages] == ["a", "c"]
    assert len(view.problems) == 1
    assert "turn 2" in view.problems[0]
    assert "1 unreadable" in caplog.text
    assert [m.text for m in history.iter_messages()] == ["a", "c"]
    assert history.append_turn([HumanMessage("d")]) == 4
    assert execute(path, "SELECT COUNT(*) FROM turns") == [(4,)]
    strict = SQLiteChatMessageHistory(path, "s1", on_corrupt="raise")
    with pytest.raises(MessageDecodeError, match="turn 2"):
        strict.messages  # noqa: B018  # reading is the test
    history.clear()
    assert history.messages == []


def test_row_of_a_newer_format(path: Path) -> None:
    """A row with a newer `v` is reported, never guessed at."""
    history = SQLiteChatMessageHistory(path, "s1")
    history.add_messages(TURN)
    execute(path, "UPDATE turns SET v = 2")
    assert history.messages == []
    assert "format 2" in history.view().problems[0]


def test_damaged_token_counts_are_counted_again(path: Path) -> None:
    """Token counts are a copy: damaged or foreign ones are not trusted."""
    history = SQLiteChatMessageHistory(path, "s1")
    history.add_messages(TURN)
    (turn,) = history.iter_turns()
    for tokens in ("[1]", '["x", "y"]', "null", "[-5, 3]"):
        execute(path, "UPDATE turns SET tokens = ?", tokens)
        assert next(history.iter_turns()).tokens == turn.tokens
    counting = SQLiteChatMessageHistory(path, "s1", token_counter=lambda messages: 7 * len(messages))
    assert next(counting.iter_turns()).tokens == [7, 7]


def test_failing_token_counter_costs_no_turn(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A counter that raises is reported, and the turn is stored all the same."""

    def broken(_: Any) -> int:
        raise OSError("no vocabulary")

    history = SQLiteChatMessageHistory(path, "s1", token_counter=broken)
    history.add_messages(TURN)
    assert texts(history) == ["My name is Nemo.", "Hello Nemo."]
    assert "token counter" in caplog.text


def test_missing_folder_and_other_files(tmp_path: Path) -> None:
    """A path that cannot be opened is named in a typed error, for reads and writes."""
    nowhere = tmp_path / "no" / "chat.db"
    with pytest.raises(HistoryReadError, match=r"chat\.db"):
        SQLiteChatMessageHistory(nowhere, "s1").messages  # noqa: B018  # reading is the test
    with pytest.raises(HistoryWriteError, match=r"chat\.db"):
        SQLiteChatMessageHistory(nowhere, "s1").add_messages(TURN)
    other = tmp_path / "other.txt"
    other.write_text("this is no database, but a text of some length" * 40)
    with pytest.raises(HistoryReadError, match="not a database"):
        SQLiteChatMessageHistory(other, "s1").messages  # noqa: B018  # reading is the test
    assert other.read_text().startswith("this is no database")


def test_locked_database(path: Path) -> None:
    """A writer that does not let go is a typed error after `timeout`; nothing was stored; readers go on."""
    SQLiteChatMessageHistory(path, "s1").add_messages(TURN)  # with another timeout, on the same file
    history = SQLiteChatMessageHistory(path, "s1", timeout=0.1)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(HistoryWriteError, match="locked") as raised:
        history.append_turn([HumanMessage("late")], turn_id="t9")
    assert not raised.value.maybe_stored
    assert raised.value.turn_id == "t9"
    assert [m.text for m in raised.value.messages] == ["late"]
    assert len(history.messages) == 2
    blocker.execute("ROLLBACK")
    blocker.close()
    history.add_messages(TURN)
    assert len(history.messages) == 4


def test_closing(path: Path) -> None:
    """A closed factory on a file opens again when used; a closed in-memory one says that its content is gone."""
    histories = SQLiteChatMessageHistory.factory(path)
    histories("s1").add_messages(TURN)
    histories.close()
    assert len(histories("s1").messages) == 2
    in_memory = SQLiteChatMessageHistory.factory(":memory:")
    in_memory("s1").add_messages(TURN)
    in_memory.close()
    with pytest.raises(HistoryReadError, match="in-memory"):
        in_memory("s1").messages  # noqa: B018  # reading is the test


def test_many_histories_few_connections(path: Path) -> None:
    """500 histories share a handful of connections."""
    kept = [SQLiteChatMessageHistory(path, f"s{i}") for i in range(500)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    for history in kept:
        history.add_messages(TURN)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 10


def test_async_calls_do_not_block_the_loop(path: Path) -> None:
    """SQLite runs in a worker thread, off the event loop."""

    async def go() -> set[int]:
        seen: set[int] = set()
        history = SQLiteChatMessageHistory(path, "s1", now=lambda: seen.add(threading.get_ident()) or FrozenClock()())  # type: ignore[func-returns-value]  # add returns None
        await history.aadd_messages(TURN)
        return seen

    assert threading.get_ident() not in asyncio.run(go())


WRITER = """
import sys
from langchain_core.messages import AIMessage, HumanMessage
from langchain_memkit import SQLiteChatMessageHistory
history = SQLiteChatMessageHistory(sys.argv[1], "s1")
for i in range(int(sys.argv[3])):
    history.add_messages([HumanMessage(f"{sys.argv[2]}-{i}"), AIMessage("x" * 2000)])
    print(i, flush=True)
"""


def writer(path: Path, name: str, turns: int) -> subprocess.Popen[str]:
    """A process that writes turns and acknowledges each."""
    command = [sys.executable, "-c", WRITER, str(path), name, str(turns)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_killed_while_writing(path: Path) -> None:
    """After kill -9 every acknowledged turn is there, whole, and positions have no gap."""
    for k in range(2):
        with writer(path, str(k), 10_000) as process:
            assert process.stdout
            acknowledged = [process.stdout.readline() for _ in range(20 + 7 * k)]
            process.send_signal(signal.SIGKILL)
            acknowledged += process.stdout.readlines()
        turns = list(SQLiteChatMessageHistory(path, "s1").iter_turns())
        assert [t.seq for t in turns] == list(range(1, len(turns) + 1))
        assert all(len(t.messages) == 2 for t in turns)
        mine = [t for t in turns if t.messages[0].text.startswith(f"{k}-")]
        assert len(acknowledged) <= len(mine) <= len(acknowledged) + 1


def test_two_processes_on_one_session(path: Path) -> None:
    """Turns of two processes interleave whole, and none is lost."""
    processes = [writer(path, name, 100) for name in "ab"]
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    turns = list(SQLiteChatMessageHistory(path, "s1").iter_turns())
    assert [t.seq for t in turns] == list(range(1, 201))
    for name in "ab":
        assert [t.messages[0].text for t in turns if t.messages[0].text.startswith(name)] == [
            f"{name}-{i}" for i in range(100)
        ]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the test
def test_fork(path: Path) -> None:
    """A forked child opens connections of its own; parent and child both go on writing."""
    history = SQLiteChatMessageHistory(path, "s1")
    history.add_messages(TURN)
    child = os.fork()
    if child == 0:
        try:
            history.add_messages(TURN)
            os._exit(0 if len(history.messages) >= 4 else 1)
        except BaseException:
            os._exit(2)
    history.add_messages(TURN)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(history.messages) == 6


def test_repr_and_factory_arguments(path: Path) -> None:
    """A history names its session; wrong arguments are refused at once."""
    assert repr(SQLiteChatMessageHistory(path, "s1")) == "SQLiteChatMessageHistory(session_id='s1', user_id=None)"
    for arguments in ({"ttl": 0}, {"ttl": -1}, {"history_size": -1}, {"history_size": "5"}, {"on_corrupt": "ignore"}):
        with pytest.raises(ConfigurationError):
            SQLiteChatMessageHistory.factory(path, **arguments)  # type: ignore[arg-type]  # wrong on purpose
    for bad in (None, 5, ""):
        with pytest.raises((TypeError, ValueError)):
            SQLiteChatMessageHistory(bad, "s1")  # type: ignore[arg-type]  # wrong on purpose


INTERRUPTED = """
import os, signal, sqlite3, sys, threading, time
from langchain_memkit import SQLiteChatMessageHistory
history = SQLiteChatMessageHistory(sys.argv[1], "s1", timeout=20)
history.add_user_message("x")
other = sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False)
other.execute("BEGIN IMMEDIATE")
signal.signal(signal.SIGINT, signal.default_int_handler)

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    other.execute("ROLLBACK")

try:
    threading.Timer(0.3, interrupt).start()
    history.add_user_message("y")
except KeyboardInterrupt:
    print("interrupted")
history.add_user_message("z")
other.execute("BEGIN IMMEDIATE")
print([m.text for m in history.messages][-1])
"""


def test_interrupted_while_waiting_for_the_lock(path: Path) -> None:
    """Ctrl-C while another process writes leaves no transaction open: this process and others go on writing."""
    command = [sys.executable, "-c", INTERRUPTED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.split() == ["interrupted", "z"], done.stderr


def test_expiry_during_a_turn(path: Path) -> None:
    """A turn whose session expired meanwhile is stored, as the first of a new one; likewise after a marker's hour."""
    clock = FrozenClock()
    for ttl, wait in ((3600, 3595), (None, 3595)):
        histories = SQLiteChatMessageHistory.factory(path, ttl=ttl, now=clock)
        session = f"s{ttl}"

        def model(messages: Any) -> str:
            clock.tick(10)
            return "answer"

        chat = create_runnable_with_message_history(model, histories)
        config: Any = {"configurable": {"session_id": session, "user_id": "u1"}}
        chat.invoke("one", config)
        if ttl is None:
            histories(session, "u1").clear()
        clock.tick(wait)
        chat.invoke("two", config)
        assert texts(histories(session, "u1")) == ["two", "answer"]
        histories.close()


def test_file_removed_or_replaced(path: Path) -> None:
    """A file that is deleted behind our back is begun anew at its path, not written on in the void."""
    history = SQLiteChatMessageHistory(path, "s1")
    history.add_user_message("old")
    for file in path.parent.iterdir():
        file.unlink()
    history.add_user_message("new")
    assert texts(history) == ["new"]
    assert execute(path, "SELECT COUNT(*) FROM turns") == [(1,)]


def test_many_files_few_descriptors(tmp_path: Path) -> None:
    """A file per user does not use up descriptors: what nobody holds is closed."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for i in range(60):
        SQLiteChatMessageHistory(tmp_path / f"{i}.db", "s1").add_messages(TURN)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 10


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # forking is the test
def test_memory_is_not_shared_with_a_fork() -> None:
    """A forked child is told that an in-memory history stayed behind, instead of finding it empty."""
    history = SQLiteChatMessageHistory(":memory:", "s1")
    history.add_messages(TURN)
    child = os.fork()
    if child == 0:
        try:
            history.messages  # noqa: B018  # reading is the test
        except HistoryReadError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_damage_outside_the_messages(path: Path) -> None:
    """Damaged dates and text that is no UTF-8 hide nothing."""
    histories = SQLiteChatMessageHistory.factory(path)
    for text in "abc":
        histories("s1").add_user_message(text)
    execute(path, "UPDATE turns SET created_at = 'never' WHERE seq = 1")
    execute(path, "UPDATE turns SET messages = CAST(x'ff' AS TEXT), op = CAST(x'fe' AS TEXT) WHERE seq = 2")
    assert texts(histories("s1")) == ["a", "c"]
    assert histories.list_sessions()[0].turns == 3
    for bad in (2**70, -1, 1.5):
        with pytest.raises(ConfigurationError):
            list(histories("s1").iter_turns(after_seq=bad))  # type: ignore[arg-type]  # wrong on purpose


def test_token_counters_without_a_name_are_not_trusted(path: Path) -> None:
    """Counts of one lambda are not taken for those of another."""
    SQLiteChatMessageHistory(path, "s1", token_counter=lambda messages: 1).add_messages(TURN)
    other = SQLiteChatMessageHistory(path, "s1", token_counter=lambda messages: 100)
    assert other.tail(max_tokens=99) == []
    assert len(other.tail(max_tokens=200)) == 2


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """It is said to be one, with a name that could be meant; a folder that is missing is asked for as before."""
    folder = tmp_path / "chats"
    folder.mkdir()
    calls: list[Callable[[], Any]] = [
        lambda: SQLiteChatMessageHistory(folder, "s1").messages,
        lambda: SQLiteChatMessageHistory.factory(folder).setup(),
        lambda: SQLiteChatMessageHistory(folder, "s1").add_user_message("hello"),
        lambda: SQLiteKeyValueStore(folder).mset([("k", {"a": 1})]),
        lambda: SQLiteKeyValueStore(folder).mget(["k"]),
    ]
    for call in calls:
        with pytest.raises((HistoryReadError, HistoryWriteError, ConfigurationError)) as raised:
            call()
        assert f"{folder} is a folder: name a file in it, such as {folder / 'chat.db'}" in str(raised.value)
    with pytest.raises(HistoryReadError, match="does its folder exist"):
        _ = SQLiteChatMessageHistory(folder / "no" / "chat.db", "s1").messages


def test_the_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` at the beginning of a text is expanded wherever a path is taken, and nothing else is."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    SQLiteChatMessageHistory("~/a.db", "s1").add_user_message("hello")
    with SQLiteChatMessageHistory.factory("~/b.db") as histories:
        histories("s1").add_user_message("hello")
        export_history(histories, "~/out.jsonl", progress=False)
        assert import_history(histories, "~/out.jsonl", progress=False).sessions == 1
    SQLiteKeyValueStore("~/c.db").mset([("k", {"a": 1})])
    (home / "books.txt").write_text("Title\n---\nText\n")
    assert KeyValueMemory.from_file("~/books.txt").titles() == ["Title"]
    files = {file.name for file in home.iterdir()}
    assert files >= {"a.db", "b.db", "c.db", "out.jsonl", "books.txt"}
    assert SQLiteChatMessageHistory(home / "a.db", "s1").messages == SQLiteChatMessageHistory("~/a.db", "s1").messages
    assert list(here.iterdir()) == []
    (here / "~").mkdir()
    for name in ("./~/a.db", Path("~/b.db"), "~nobody-of-this-name", "a~b"):
        SQLiteChatMessageHistory(name, "s1").add_user_message("hello")
    assert {file.name for file in here.iterdir()} >= {"~", "~nobody-of-this-name", "a~b"}
    assert {file.name for file in (here / "~").iterdir()} >= {"a.db", "b.db"}
    assert SQLiteChatMessageHistory(":memory:", "s1").messages == []
