"""`memkit purge` on files."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from langchain_memkit import (
    EntityMemory,
    KeyValueMemory,
    PreferenceMemory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.backends.sqlite.inspection import count_old_records, tables_of
from langchain_memkit.errors import StaleTurnError
from langchain_memkit.stores.history import HistoryFactory
from langchain_memkit.testing import FakeChatModel

Memkit = Callable[..., Any]
FOUND = {
    "sessions": 2, "turns": 3, "summaries": 1, "entities": 1, "key-values": 1, "preferences": 0, "other keys": 1,
    "vectors": 2,
}  # fmt: skip


def rows(stdout: str) -> dict[str, list[int]]:
    """The numbers of the table, by what they count."""
    table = [re.split(r"\s{2,}", line) for line in stdout.splitlines() if "full.db" in line]
    return {what: [int(n) for n in numbers] for what, _, *numbers in table}


def left(path: Path, user: str) -> list[int]:
    """Sessions, keys and vectors of a user."""
    with SQLiteChatMessageHistory.factory(path) as histories, SQLiteKeyValueStore(path) as keys:
        mine = [key for key in keys.yield_keys() if key.startswith(user)]
        records = count_old_records(path, user) if "vectors" in tables_of(path) else 0
        return [len(histories.list_sessions(user)), len(mine), records]


def test_everything_of_one_user_goes(memkit: Memkit, full: Path) -> None:
    """All parts of the file forget the user, the counts say how much, and the other user keeps everything."""
    done = memkit("purge", "--user", "u1", "--in", full, "--yes")
    assert done.exit_code == 0, done.stderr
    assert rows(done.stdout) == {what: [n, 0] for what, n in FOUND.items()}
    assert left(full, "u1") == [0, 0, 0]
    assert left(full, "u2") == [2, 5, 2]
    again = memkit("purge", "--user", "u1", "--in", full, "--yes")
    assert (again.exit_code, {n for numbers in rows(again.stdout).values() for n in numbers}) == (0, {0})


def test_what_the_memories_themselves_keep(memkit: Memkit, tmp_path: Path) -> None:
    """Rows of the real summarizer and key-value memory are counted under their names, and go, as do names and lines."""
    path = tmp_path / "full.db"
    keys = SQLiteKeyValueStore(path)
    fits = create_history_preprocessor(lambda prompt: "Nemo sails.", max_tokens=300, store=keys)
    histories = SQLiteChatMessageHistory.factory(path)
    entities = EntityMemory.factory(histories, lambda text: [], names=["Nemo"])
    diary = KeyValueMemory.factory(keys)
    diary("s1", "u1").add({"My Diary": "Dear diary"})
    PreferenceMemory.factory(histories)("s1", "u1").add("Never use emojis")
    chat = create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=fits, memories=[entities])
    for day in range(30):
        chat.invoke(f"Nemo has nothing to tell of day {day}.", {"configurable": {"session_id": "s1", "user_id": "u1"}})
    found = {what: n for what, (n,) in rows(memkit("purge", "--user", "u1", "--in", path, "--dry-run").stdout).items()}
    assert (found["sessions"], found["turns"], found["key-values"]) == (1, 30, 1)
    assert found["summaries"] >= 1
    assert "other keys" not in found
    done = memkit("purge", "--user", "u1", "--in", path, "--yes")
    assert done.exit_code == 0
    assert list(keys.yield_keys()) == []
    assert entities("s1", "u1").entities() == []
    assert PreferenceMemory.factory(histories)("s1", "u1").preferences() == []


def test_deleted_text_leaves_the_file(memkit: Memkit, full: Path) -> None:
    """Neither turns nor vectors of the user can be read in the file afterwards."""
    assert b"u1 one" in full.read_bytes()
    memkit("purge", "--user", "u1", "--in", full, "--yes")
    folder = b"".join(path.read_bytes() for path in full.parent.glob("full.db*"))
    assert b"u1 one" not in folder
    assert b"u1 a" not in folder
    assert b"u2 one" in folder


@pytest.mark.parametrize(("answer", "gone"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)])
def test_asks_first(memkit: Memkit, full: Path, answer: str, gone: bool) -> None:
    """Without --yes it shows what there is and asks; anything but yes deletes nothing, and so does no answer."""
    done = memkit("purge", "--user", "u1", "--in", full, input=answer)
    assert done.exit_code == (0 if gone else 2)
    assert "turns" in done.stdout
    assert ("nothing was deleted" in done.stderr) != gone
    assert left(full, "u1") == ([0, 0, 0] if gone else [2, 5, 2])


@pytest.mark.parametrize("words", [["--dry-run"], ["--yes"], []])
@pytest.mark.parametrize("also", [[], ["--in", "empty.db"]])
def test_stores_are_closed(
    memkit: Memkit, full: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], also: list[str]
) -> None:
    """Every store that was opened is closed, also after a dry run, the answer no, or a place that holds nothing."""
    (full.parent / "empty.db").touch()
    closed = []
    for kind in (HistoryFactory, SQLiteKeyValueStore):

        def close(store: Any, original: Callable[[Any], None] = kind.close, name: str = kind.__name__) -> None:
            closed.append(name)
            original(store)

        monkeypatch.setattr(kind, "close", close)
    memkit("purge", "--user", "u1", "--in", full, *also, *words, input="n\n")
    assert sorted(closed) == ["HistoryFactory", "SQLiteKeyValueStore"]


def test_dry_run_deletes_nothing(memkit: Memkit, full: Path) -> None:
    """A dry run shows the counts and neither asks nor deletes."""
    done = memkit("purge", "--user", "u1", "--in", full, "--dry-run")
    assert (done.exit_code, rows(done.stdout)) == (0, {what: [n] for what, n in FOUND.items()})
    assert left(full, "u1") == [2, 5, 2]


def test_a_turn_under_way_is_refused(memkit: Memkit, full: Path) -> None:
    """What began before the purge is not stored after it."""
    history = SQLiteChatMessageHistory(full, "a", user_id="u1")
    view = history.view()
    memkit("purge", "--user", "u1", "--in", full, "--yes")
    with pytest.raises(StaleTurnError):
        history.append_turn([HumanMessage("late")], epoch=view.epoch, since=view.read_at)


def test_several_places(memkit: Memkit, full: Path, tmp_path: Path) -> None:
    """--in may be given again; a place that holds nothing of memkit stops everything before anything is deleted."""
    other = tmp_path / "other.db"
    SQLiteChatMessageHistory(other, "s", user_id="u1").add_user_message("x")
    (tmp_path / "empty.db").touch()
    for nothing in ("empty.db", "nothing.db"):
        done = memkit("purge", "--user", "u1", "--in", other, "--in", nothing, "--yes")
        assert done.exit_code == 2
        assert nothing in done.stderr
        assert left(other, "u1")[0] == 1
    done = memkit("purge", "--user", "u1", "--in", other, "--in", full, "--yes")
    assert done.exit_code == 0, done.stderr
    assert left(other, "u1") == left(full, "u1") == [0, 0, 0]


def test_somebody_writes_meanwhile(memkit: Memkit, full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If something of the user is there again afterwards, it says so and the exit code is 1."""
    from langchain_memkit.cli import purge

    original = purge.purge_user

    def beaten(user: str, *parts: Any) -> Any:
        result = original(user, *parts)
        SQLiteKeyValueStore(full).mset([("u1/own", {})])
        return result

    monkeypatch.setattr(purge, "purge_user", beaten)
    done = memkit("purge", "--user", "u1", "--in", full, "--yes")
    assert done.exit_code == 1
    assert rows(done.stdout)["other keys"] == [1, 1]
    assert "somebody wrote meanwhile" in done.stderr


@pytest.mark.parametrize("user", ["", "x" * 600])
def test_bad_ids(memkit: Memkit, full: Path, user: str) -> None:
    """An id that can be nobody's is refused before anything is read."""
    assert memkit("purge", "--user", user, "--in", full, "--yes").exit_code == 2
