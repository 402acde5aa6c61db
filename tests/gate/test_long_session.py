"""A session of 100,000 messages costs what is asked of it."""

from __future__ import annotations

import json
import sqlite3
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from bson import ObjectId
from gatekit.systems import Place, config, echo
from langchain_core.messages import AIMessage, HumanMessage

TURNS = 50_000
ASKED = 20
TURN = [HumanMessage("What do I do?"), AIMessage("You ask the same thing again and again.")]


def copies(template: dict[str, Any], i: int) -> dict[str, Any]:
    """The template as the row of another turn of the session "long"."""
    row = {**template, "_id": ObjectId()}
    if "SessionId" in row:
        return {**row, "SessionId": "long"}
    said = [{**m, "id": f"{i}-{k}"} for k, m in enumerate(row["messages"])]
    return {**row, "session_id": "long", "seq": i + 1, "op": f"turn:{i}", "messages": said}


def fill(collection: Any) -> None:
    """Copies the rows that the system wrote for one turn until the session "long" holds 100,000 messages."""
    templates = list(collection.find())
    for begin in range(0, TURNS, 5000):
        rows = [copies(t, i) for i in range(begin, begin + 5000) for t in templates]
        collection.insert_many(rows, ordered=False)


def fill_file(path: str) -> None:
    """The same for a file."""
    with sqlite3.connect(path) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(turns)")]
        (template,) = connection.execute(f"SELECT {', '.join(names)} FROM turns").fetchall()
        row = dict(zip(names, template, strict=True))
        said = json.loads(row["messages"])
        insert = f"INSERT INTO turns ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        rows = (
            {
                **row,
                "session_id": "long",
                "seq": i + 1,
                "op": f"turn:{i}",
                "messages": json.dumps([{**m, "id": f"{i}-{k}"} for k, m in enumerate(said)]),
                "checksum": None,
            }
            for i in range(TURNS)
        )
        connection.executemany(insert, (tuple(r.values()) for r in rows))
    connection.close()


def median_ms(action: Callable[[], Any], tries: int = 9) -> float:
    """The median time of an action, in ms."""
    times = []
    for _ in range(tries):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000


@pytest.mark.gate(row=11)
def test_long_session(place: Place, system: Any, figure: Any, request: pytest.FixtureRequest) -> None:
    """The last 20 of 100,000 messages are read, and a turn is added, as fast and as lean as in a short session."""
    system.history(place, "template").add_messages(TURN)
    if place.kind == "sqlite":
        fill_file(place.uri)
    else:
        fill(request.getfixturevalue("collection"))
    history = system.history(place, "long", history_size=ASKED)
    assert [m.text for m in history.messages] == [m.text for m in TURN * (ASKED // 2)]
    read = median_ms(lambda: history.messages)
    add = median_ms(lambda: history.add_messages(TURN))
    tracemalloc.start()
    history.messages  # noqa: B018  # reading is the test
    history.add_messages(TURN)
    grown = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    if place.kind != "sqlite":
        keys = keys_examined(request.getfixturevalue("collection").database, history)
        figure(f"{place.kind}: keys examined for the last {ASKED}", keys, at_most=ASKED + 1)
    figure(f"{place.kind}: last {ASKED}", read, at_most=60, unit=" ms")
    figure(f"{place.kind}: add", add, at_most=100, unit=" ms")
    figure(f"{place.kind}: memory", grown, at_most=10, unit=" MB")
    chain = system.chain(echo, lambda session_id: history)
    figure(f"{place.kind}: turn", median_ms(lambda: chain.invoke("q", config("long"))), at_most=160, unit=" ms")


def keys_examined(database: Any, history: Any) -> int:
    """What the server looked at for one read, by its own profiler."""
    database.command("profile", 2)
    history.messages  # noqa: B018  # reading is the test
    database.command("profile", 0)
    return sum(
        entry.get("keysExamined", 0)
        for entry in database["system.profile"].find({"ns": {"$not": {"$regex": "profile"}}})
    )
