"""What was decided beside the turns moves with them: names that are one, what was forgotten, lines of an app."""

from __future__ import annotations

import io
import json
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import HumanMessage

from langchain_memkit import (
    EntityMemory,
    MongoDBChatMessageHistory,
    PreferenceMemory,
    SQLiteChatMessageHistory,
    find_english_preferences,
)
from langchain_memkit.memories.entity.entity_log import ENTITIES
from langchain_memkit.memories.preferences import LINES
from langchain_memkit.migrate import export_history, import_history, migrate
from langchain_memkit.migrate.sources import DECIDED

NAMES = ["Zoe", "Zed", "Oslo"]


@pytest.fixture(params=["sqlite to mongodb", "mongodb to sqlite", "export"])
def move(request: pytest.FixtureRequest, tmp_path: Any, standalone: Any, database: str) -> Any:
    """Two empty stores, and a function that moves one into the other."""
    here = SQLiteChatMessageHistory.factory(tmp_path / "a.db")
    there = MongoDBChatMessageHistory.factory(standalone.uri, database_name=database, collection_name=uuid4().hex)
    old, new = (here, there) if request.param == "sqlite to mongodb" else (there, here)

    def run() -> Any:
        if request.param != "export":
            return migrate(old, new, progress=False)
        file = io.StringIO()
        report = export_history(old, file, progress=False)
        imported = import_history(new, io.StringIO(file.getvalue()), progress=False)
        assert report.decisions == imported.decisions
        assert "removed" not in file.getvalue()
        return imported

    with here, there:
        yield old, new, run


def told(histories: Any, user_id: str) -> Any:
    """The memories of a user."""
    entities = EntityMemory(histories, lambda text: [], "s1", user_id=user_id, names=NAMES)
    preferences = PreferenceMemory(histories, "s1", user_id=user_id, find=find_english_preferences)
    return entities, preferences


def test_decisions_move(move: Any) -> None:
    """They move once, however often that runs, also of a user who has no turns; what came later moves with the next."""
    old, new, run = move
    entities, preferences = told(old, "u1")
    entities.save([HumanMessage("Zoe sings. Zed is loud. Oslo is far.")])
    preferences.save([HumanMessage("Never use emojis.")])
    preferences.save([HumanMessage("Call me Al.")])
    preferences.add("removed: use metric units")
    assert preferences.remove("removed: use metric units") == 1
    assert preferences.remove("Never use emojis.") == 1
    entities.merge("Zoe", "Zed")
    assert entities.forget("Oslo") == 1
    told(old, "dory")[1].add("Call me Dory.")
    for _ in range(2):
        assert run().decisions == 6
    entities, preferences = told(new, "u1")
    assert [entity.name for entity in entities.entities()] == ["Zed"]
    assert [line.text for line in preferences.preferences()] == ["Call me Al."]
    assert [line.text for line in told(new, "dory")[1].preferences()] == ["Call me Dory."]
    assert told(old, "u1")[1].remove("Call me Al.") == 1
    run()
    assert told(new, "u1")[1].preferences() == []


def test_the_names_of_their_indexes() -> None:
    """The move knows them without loading the memories."""
    assert {ENTITIES, LINES} == set(DECIDED)


@pytest.mark.parametrize(
    "change",
    [
        {"data": "%"},
        {"data": None},
        {"op": ""},
        {"user_id": None},
        {"decision": "not a name"},
        {"decision": 7},
    ],
)
def test_damaged_lines_of_an_export(change: dict[str, Any]) -> None:
    """They are named and skipped."""
    old, new = (SQLiteChatMessageHistory.factory(":memory:") for _ in range(2))
    PreferenceMemory(old, "s1", user_id="u1").add("Call me Al.")
    file = io.StringIO()
    export_history(old, file, progress=False)
    begin, line, end = file.getvalue().splitlines()
    damaged = json.dumps(json.loads(line) | change)
    report = import_history(new, io.StringIO(f"{begin}\n{damaged}\n{end}\n"), progress=False)
    assert (report.decisions, len(report.skipped)) == (0, 1)
    assert report.skipped[0].startswith("line 2: ")
    assert PreferenceMemory(new, "s1", user_id="u1").preferences() == []
