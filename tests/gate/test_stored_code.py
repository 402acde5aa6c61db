"""Stored data that asks to be run or to be told a secret stays data, wherever it stands and however it is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from gatekit.stored_code import CANARY, HOSTILE, SECRET, TRAP, World, plant
from gatekit.watched import read_under_watch, set_trap
from pymongo import MongoClient


@pytest.fixture(params=["sqlite", "mongodb"])
def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[World, World]]:
    """A harmless world and a hostile one of the same shape."""
    uri = "" if request.param == "sqlite" else request.getfixturevalue("standalone").uri
    made = []
    for hostile in (False, True):
        folder = tmp_path / ("hostile" if hostile else "harmless")
        folder.mkdir()
        made.append(World(request.param, folder, uri, f"gate_{uuid4().hex[:12]}", hostile))
        plant(made[-1])
    set_trap(made[1].folder)
    yield made[0], made[1]
    if uri:
        with MongoClient(uri) as client:
            for world in made:
                client.drop_database(world.database)


@pytest.fixture
def reading(worlds: tuple[World, World], forks: Any) -> Iterator[Any]:
    """A process that has read the harmless world and knows what that takes; when told, it reads the other."""
    ours, theirs = forks.Pipe()
    process = forks.Process(target=read_under_watch, args=(*worlds, theirs))
    process.start()
    theirs.close()
    assert ours.poll(30), "the process does not begin"
    assert ours.recv() == "ready"
    yield ours
    ours.close()
    process.join(10)
    process.kill()


@pytest.mark.gate(row=9, memkit_only=True)
def test_stored_code_stays_data(worlds: tuple[World, World], reading: Any, figure: Any) -> None:
    """Read in every public way, nothing is imported, run or opened for it, and no secret comes out anywhere."""
    reading.send("now")
    assert reading.poll(30), "the process does not answer"
    came = reading.recv()
    kind = worlds[0].kind
    assert came.beyond == []
    assert not came.sprung
    shown = {way: seen.text for way, seen in came.ways.items()} | {"log": came.logged}
    assert [way for way, text in shown.items() if SECRET in text] == []
    assert [(way, seen.text) for way, seen in came.ways.items() if not seen.typed] == []
    assert [way for way, seen in came.ways.items() if seen.failed != came.harmless[way].failed] == []
    known = {"bombs": HOSTILE}
    assert came.fields.count(known) == 3, "what was stored in a field came back as something else"
    assert {"type": "text", "text": "Nemo?", **known} in came.fields[3]
    assert [known] in came.fields
    told = sum(CANARY in text or TRAP in text for text in shown.values())
    figure(f"{kind}: ways that show what was planted, as data", told, at_least=15)
    figure(f"{kind}: imports, runs and opens beyond the harmless", len(came.beyond), at_most=0)
