"""Who may read a file, and what may be done with one that may not be written to."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import HumanMessage

from langchain_memkit import SQLiteChatMessageHistory, SQLiteKeyValueStore, VectorMemory
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from langchain_memkit.migrate import export_history
from testkit.older_files import WITHOUT_CHANGES

NOBODY = 65534


def write_history(path: Path, **options: Any) -> Any:
    """A history with a turn, which has the file open."""
    history = SQLiteChatMessageHistory(path, "s1", **options)
    history.add_user_message("hello")
    return history


def write_key_value(path: Path, **options: Any) -> Any:
    """A key-value store with a pair."""
    store: SQLiteKeyValueStore[dict[str, Any]] = SQLiteKeyValueStore(path, **options)
    store.mset([("k", {"a": 1})])
    return store


def memory_over(histories: Any) -> VectorMemory:
    """A vector memory of a user."""
    return VectorMemory(histories, DeterministicFakeEmbedding(size=4), "s1", user_id="u1")


def write_memory(path: Path, **options: Any) -> Any:
    """A vector memory with a turn."""
    memory = memory_over(SQLiteChatMessageHistory.factory(path, **options))
    memory.save([HumanMessage("Nemo swims.")])
    return memory


WRITERS = [write_history, write_key_value, write_memory]


@pytest.fixture
def umask() -> Iterator[Callable[[int], int]]:
    """Sets the umask, and puts it back."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """The rights of every file."""
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("mask", [0, 0o022, 0o077])
@pytest.mark.parametrize("mode", [None, 0o660])
def test_new_files(write: Any, mask: int, mode: int | None, tmp_path: Path, umask: Any) -> None:
    """A new file, its log and its index are the owner's alone, or have the rights asked for, whatever the umask."""
    umask(mask)
    store = write(tmp_path / "chat.db", **({} if mode is None else {"file_mode": mode}))
    assert modes(tmp_path) == dict.fromkeys(("chat.db", "chat.db-wal", "chat.db-shm"), mode or 0o600)
    assert store is not None


def test_from_the_first_byte(tmp_path: Path, umask: Any) -> None:
    """The file has its rights before SQLite opens it: nobody else can ever have opened it."""
    umask(0)
    seen: list[int] = []

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect" and str(tmp_path) in str(arguments[0]):
            seen.extend(modes(tmp_path).values())

    sys.addaudithook(audit)
    write_history(tmp_path / "chat.db")
    assert set(seen) == {0o600}


def test_files_that_are_there(tmp_path: Path) -> None:
    """An existing file keeps its rights, and so does what SQLite makes beside it."""
    path = tmp_path / "chat.db"
    with contextlib.closing(sqlite3.connect(path)):
        path.touch()
    path.chmod(0o640)
    history = write_history(path)
    assert set(modes(tmp_path).values()) == {0o640}
    assert len(history.messages) == 1


def test_a_link_to_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A link leads to a new file with the same rights."""
    (tmp_path / "chat.db").symlink_to(tmp_path / "there.db")
    write_history(tmp_path / "chat.db")
    assert modes(tmp_path)["there.db"] == 0o600


BOTH = """
import os, sys
from langchain_memkit import SQLiteChatMessageHistory
os.umask(0)
histories = SQLiteChatMessageHistory.factory(sys.argv[1], file_mode=int(sys.argv[3], 8))
print("ready", flush=True)
sys.stdin.readline()
for i in range(5):
    histories(sys.argv[2]).add_user_message(f"{i}")
"""


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_two_processes_at_once(tmp_path: Path, mode: int) -> None:
    """Processes that begin one file at the same time share it: nothing is lost, and it has its rights."""
    path = tmp_path / "chat.db"
    command = [sys.executable, "-c", BOTH, str(path)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen([*command, name, oct(mode)], **pipes) for name in ("s1", "s2")]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [process.communicate() and process.returncode for process in both] == [0, 0]
    assert modes(tmp_path)["chat.db"] == mode
    assert [len(SQLiteChatMessageHistory(path, name).messages) for name in ("s1", "s2")] == [5, 5]


@pytest.mark.parametrize("mode", [0o400, 0o060, 0o1777, -1, "600", True, None])
def test_wrong_modes(tmp_path: Path, mode: Any) -> None:
    """A mode that its owner could not use, or that is none, is refused with an example."""
    with pytest.raises(ConfigurationError, match="0o660 for a group"):
        SQLiteChatMessageHistory.factory(tmp_path / "chat.db", file_mode=mode)


def test_copies_keep_the_mode(tmp_path: Path) -> None:
    """A store that another process is given makes the file with the same rights."""
    history = SQLiteChatMessageHistory(tmp_path / "chat.db", "s1", file_mode=0o640)
    pickle.loads(pickle.dumps(history)).add_user_message("hello")  # our own
    assert modes(tmp_path)["chat.db"] == 0o640


# -- without write access


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def as_nobody(work: Callable[[], Any]) -> Any:
    """What a function returns in a process that has no rights of root's."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            os.write(write, pickle.dumps(work()))
        except BaseException as error:  # the parent raises
            os.write(write, pickle.dumps(f"{type(error).__name__}: {error}"))
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read, "rb") as pipe:
        return pickle.loads(pipe.read())  # our own


def attempt(work: Callable[[], Any]) -> str:
    """The kind and the text of what is raised."""
    try:
        work()
    except (HistoryReadError, HistoryWriteError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


FORKS = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@FORKS
@pytest.mark.parametrize(("of_file", "of_folder"), [(0o444, 0o777), (0o666, 0o555), (0o444, 0o555)])
def test_reading_without_write_access(of_file: int, of_folder: int, open_folder: Path) -> None:
    """Such a file is read, searched and exported, and nothing is left beside it; a write raises one sentence."""
    path = open_folder / "chat.db"
    for write in WRITERS:
        write(path)
    histories = SQLiteChatMessageHistory.factory(path)
    histories("s3", "u1").add_user_message("Nemo sleeps.")  # a turn of which no vectors are stored
    histories.close()
    assert [file.name for file in open_folder.iterdir()] == ["chat.db"]
    path.chmod(of_file)
    open_folder.chmod(of_folder)

    def work() -> list[Any]:
        file = io.StringIO()
        mine = SQLiteChatMessageHistory.factory(path)
        mine.setup()
        found: list[Any] = [[m.text for m in mine("s1").messages]]
        found.append([session.session_id for session in mine.list_sessions()])
        found.append(SQLiteKeyValueStore(path).mget(["k"]))
        found.append(sorted(hit.text for hit in memory_over(mine).search("Nemo")))
        found.append(export_history(mine, file, progress=False).turns)
        found.append(attempt(lambda: mine("s1").add_user_message("no")))
        found.append(attempt(mine("s1").clear))
        found.append(attempt(lambda: SQLiteKeyValueStore(path).mset([("k", {})])))
        found.append([m.text for m in mine("s1").messages])
        return found

    texts, sessions, pairs, recalled, exported, *writes, again = as_nobody(work)
    assert set(texts) == {"hello"}
    assert (sessions, pairs, exported) == (["s1"], [{"a": 1}], len(texts) + 2)
    assert recalled == ["human: Nemo sleeps.", "human: Nemo swims."]
    for said in writes:
        assert said.startswith(f"HistoryWriteError: cannot write {path}: ")
        assert "may this user write to the file and its folder?" in said
    assert again == texts
    assert [file.name for file in open_folder.iterdir()] == ["chat.db"]


@FORKS
def test_reading_an_older_format(open_folder: Path) -> None:
    """A file of memkit 0.1.0 that cannot be brought up to date is read as it is; one of a newer memkit is refused."""
    path = open_folder / "chat.db"
    write_history(path)._store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"{WITHOUT_CHANGES} DROP TRIGGER turns_edited; ALTER TABLE turns DROP COLUMN checksum;"
            "DROP INDEX turns_replaces;"
            "ALTER TABLE turns DROP COLUMN replaces; PRAGMA user_version = 3"
        )
    path.chmod(0o444)
    open_folder.chmod(0o555)
    assert as_nobody(lambda: [m.text for m in SQLiteChatMessageHistory(path, "s1").messages]) == ["hello"]
    assert as_nobody(lambda: [m.text for m in SQLiteChatMessageHistory(path, "s1").iter_messages()]) == ["hello"]
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    newer = as_nobody(lambda: SQLiteChatMessageHistory(path, "s1").messages)
    assert newer.startswith("ConfigurationError: ")


@FORKS
def test_reading_beside_a_writer(open_folder: Path) -> None:
    """While its owner has the file open, who may only read sees what is in the log as well."""
    path = open_folder / "chat.db"
    history = SQLiteChatMessageHistory(path, "s1", file_mode=0o644)
    for text in "abc":
        history.add_user_message(text)
    assert Path(f"{path}-wal").stat().st_size
    open_folder.chmod(0o755)
    assert as_nobody(lambda: [m.text for m in SQLiteChatMessageHistory(path, "s1").messages]) == ["a", "b", "c"]


@FORKS
def test_changed_while_it_is_read(open_folder: Path) -> None:
    """Without files beside it nobody can wait for a writer: what was read while the file changed is refused."""
    path = open_folder / "chat.db"
    history = write_history(path)
    history._store.close()
    path.chmod(0o644)
    open_folder.chmod(0o555)

    def work() -> str:
        mine = SQLiteChatMessageHistory(path, "s1")

        try:
            with mine._store._database.connection() as connection:
                connection.execute("SELECT * FROM turns").fetchall()
                os.write(go, b"x")
                os.read(done, 1)
        except sqlite3.OperationalError as error:
            return str(error)
        return "nothing was raised"

    heard, go = os.pipe()
    done, tell = os.pipe()

    def owner() -> None:
        os.read(heard, 1)
        os.utime(path, ns=(1, 1))
        os.write(tell, b"x")

    thread = threading.Thread(target=owner)
    thread.start()
    said = as_nobody(work)
    os.write(go, b"x")  # where nobody asked for it
    thread.join()
    assert said == "it was changed while it was read; call again"
