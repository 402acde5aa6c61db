"""What entity and preference memories of versions 0.1 and 0.2 kept in a key-value store is moved and recalled.

The files in `old_memories` were written by these versions. Of nemo the histories in the same file have the transcript,
of dory none; marlin was purged, and the session "cleared" was cleared.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import (
    EntityMemory,
    PreferenceMemory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    find_english_preferences,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate import MovedMemories, amove_memories, move_memories

DATA = Path(__file__).parent / "old_memories"
NAMES = {"Anna Keller": "PERSON", "Bob": "PERSON", "Robert": "PERSON", "Oslo": "GPE", "Zoe": "PERSON"}


@pytest.fixture(params=["0_1_0", "0_2_0"])
def version(request: pytest.FixtureRequest) -> str:
    """Name the version that wrote the file."""
    return str(request.param)


@pytest.fixture
def path(version: str, tmp_path: Path) -> Path:
    """Copy the file of a version."""
    copied = tmp_path / "memories.db"
    shutil.copy(DATA / f"{version}.file", copied)
    return copied


def entities(histories: Any, user_id: str) -> dict[str, list[str]]:
    """What an entity memory over histories knows: the sentences by name."""
    memory = EntityMemory.factory(histories, lambda text: [], names=NAMES)("new", user_id)
    return {entity.name: [fact.text for fact in entity.facts] for entity in memory.entities()}


def lines(histories: Any, user_id: str) -> list[str]:
    """The lines of a preference memory over histories."""
    memory = PreferenceMemory.factory(histories, find=find_english_preferences)("new", user_id)
    return [line.text for line in memory.preferences()]


def keys(path: Path) -> list[str]:
    """The keys of the store."""
    with SQLiteKeyValueStore(path) as store:
        return sorted(store.yield_keys())


@pytest.mark.parametrize("move", ["sync", "async"])
def test_what_only_the_memories_knew(path: Path, version: str, move: str) -> None:
    """Sentences become turns, decisions are kept, what was cleared stays away, and a second move changes nothing."""
    with SQLiteChatMessageHistory.factory(path) as histories, SQLiteKeyValueStore(path) as store:
        assert move_memories(store, histories, dry_run=True).users == 2
        moved = move_memories(store, histories) if move == "sync" else asyncio.run(amove_memories(store, histories))
        has_lines = version == "0_2_0"
        turns = 3 if has_lines else 2  # a preference lies in a message of its own
        assert moved == MovedMemories(users=2, decisions=4 if has_lines else 2, turns=turns, known=1)
        assert move_memories(store, histories) == MovedMemories()
        assert keys(path) == []
        found = entities(histories, "dory")
        assert found["Zoe Smith"] == ["Zoe plays the cello.", "She is from Oslo."]
        assert "Bob" not in found
        assert entities(histories, "nemo") == {
            "Robert": ["Bob sings."],
            "Anna Keller": ["Anna Keller lives in Oslo."],
            "Oslo": ["Anna Keller lives in Oslo."],
        }
        assert entities(histories, "marlin") == {}
        if has_lines:
            assert lines(histories, "nemo") == ["Call me Al."]
            assert sorted(lines(histories, "dory")) == ["Always use British spelling.", "Answer in metric units."]
        dates = [turn.created_at.year for turn in histories("alone", "dory").iter_turns() if turn.created_at]
        assert set(dates) == {2026}
        histories.purge("dory")
        assert (entities(histories, "dory"), lines(histories, "dory")) == ({}, [])


def test_one_user(path: Path) -> None:
    """With a user_id the records of the others stay where they are."""
    with SQLiteChatMessageHistory.factory(path) as histories, SQLiteKeyValueStore(path) as store:
        assert move_memories(store, histories, user_id="nemo").users == 1
    assert {key.partition("/")[0] for key in keys(path)} == {"dory"}


def test_records_that_cannot_be_read(path: Path) -> None:
    """A damaged record is counted and stays; the others move."""
    damaged = "dory/entities/rule/20260102T091200.000000-0"
    with SQLiteChatMessageHistory.factory(path) as histories, SQLiteKeyValueStore(path) as store:
        store.mset([(damaged, {"v": 1})])
        assert move_memories(store, histories).skipped == 1
        assert "Zoe Smith" in entities(histories, "dory")
    assert keys(path) == [damaged]


def test_a_move_that_broke_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run has moved is no transcript: the next one moves the rest, and stores nothing twice."""
    with SQLiteChatMessageHistory.factory(path) as histories, SQLiteKeyValueStore(path) as store:
        (facts, *_) = [key for key in keys(path) if "/fact/" in key and key.startswith("dory/")]
        (row,) = store.mget([facts])
        assert row is not None
        another = f"dory/entities/fact/zz/{facts.split('/')[4]}/zz"
        generation = f"dory/entities/session/zz/{facts.split('/')[4]}"
        store.mset([(generation, {}), (another, {**row, "session": "zz", "message": "m-zz", "text": "Zoe has a cat."})])
        with monkeypatch.context() as patched:
            patched.setattr(store, "mdelete", lambda keys: (_ for _ in ()).throw(OSError("the disk is full")))
            with pytest.raises(OSError, match="full"):
                move_memories(store, histories, user_id="dory")
        histories("zz", "dory").clear()  # as if this session had not been reached
        again = move_memories(store, histories, user_id="dory")
        assert (again.known, again.left) == (0, 0)
        assert again.turns > 1
        known = entities(histories, "dory")["Zoe Smith"]
        assert sorted(known) == sorted(["Zoe plays the cello.", "She is from Oslo.", "Zoe has a cat."])
        assert not [key for key in keys(path) if key.startswith("dory/")]


def test_a_transcript_of_one_session(path: Path) -> None:
    """Sentences of sessions that are not in the histories, while others are, stay in the store, and are counted."""
    with SQLiteChatMessageHistory.factory(path) as histories, SQLiteKeyValueStore(path) as store:
        (fact, *_) = [key for key in keys(path) if "/fact/" in key and key.startswith("nemo/")]
        (row,) = store.mget([fact])
        assert row is not None
        another = f"nemo/entities/fact/zz/{fact.split('/')[4]}/zz"
        generation = f"nemo/entities/session/zz/{fact.split('/')[4]}"
        store.mset([(generation, {}), (another, {**row, "session": "zz", "message": "m-zz", "text": "Bob has a cat."})])
        moved = move_memories(store, histories, user_id="nemo")
        assert (moved.known, moved.left, moved.turns) == (1, 1, 0)
    assert [key for key in keys(path) if key.startswith("nemo/") and "/fact/" in key] == [another]


def test_histories_without_an_index(path: Path) -> None:
    """What is no factory of histories that keep an index is refused, with the records untouched."""
    before = keys(path)
    with SQLiteKeyValueStore(path) as store, pytest.raises(ConfigurationError, match="give a factory that does"):
        move_memories(store, lambda session_id: None)  # type: ignore[arg-type]
    assert keys(path) == before
