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


def test_histories_without_an_index(path: Path) -> None:
    """What is no factory of histories that keep an index is refused, with the records untouched."""
    before = keys(path)
    with SQLiteKeyValueStore(path) as store, pytest.raises(ConfigurationError, match="give a factory that does"):
        move_memories(store, lambda session_id: None)  # type: ignore[arg-type]
    assert keys(path) == before
