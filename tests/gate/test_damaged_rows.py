"""A damaged row in the middle of a session costs itself and nothing else."""

from __future__ import annotations

import io
import json
import logging
import sqlite3
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId
from gatekit.systems import Place

from langchain_memkit.migrate import export_history

MISSING = object()
DAMAGE: dict[str, Any] = {
    "missing": MISSING,
    "null": None,
    "number": 7,
    "empty text": "",
    "no JSON": "not json",
    "cut JSON": '[{"role": "human", "content": "x"',
    "bytes": b"\xff\xfe\x00",
    "date": datetime(2026, 1, 1, tzinfo=UTC),
    "list of numbers": [1],
    "list of lists": [[[]]],
    "wrong document": {"a": {"b": 1}},
    "unknown type": [{"role": "martian", "content": "x"}],
    "no type": [{"content": "x"}],
    "content is a number": [{"role": "human", "content": 7}],
    "id is a document": [{"role": "human", "content": "x", "id": {"$ne": 1}}],
    "unknown tag": [{"role": "human", "content": {"_memkit": "code", "value": "import os"}}],
}


def damage(collection: Any, payload: str, value: Any) -> None:
    """Spoils the middle one of the three rows written last, behind the system's back."""
    _, middle, _ = collection.find({payload: {"$exists": True}}).sort("_id", -1).limit(3)
    if value is MISSING:
        del middle[payload]
    elif payload == "History" and isinstance(value, list):  # the peer's rows hold a message each, as JSON
        said = value[0]
        kind = said.get("role") if isinstance(said, dict) else said
        middle[payload] = json.dumps({"type": kind, "data": said} if isinstance(said, dict) else value)
    else:
        middle[payload] = value
    collection.replace_one({"_id": middle["_id"]}, middle)


def damage_file(path: str, session: str, value: Any) -> None:
    """The same for a file; what SQL cannot hold is written as text."""
    if value is MISSING or isinstance(value, datetime):
        value = "[null]" if value is MISSING else str(value)
    stored = json.dumps(value) if isinstance(value, (list, dict)) or value is None else value
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE turns SET messages = ? WHERE seq = 2 AND session_id = ?", (stored, session))
    connection.close()


def read(history: Any) -> list[str]:
    """The session; that it cannot be read is a failure of data, not of the test."""
    try:
        return [message.text for message in history.messages]
    except Exception as error:
        raise AssertionError(f"the session is unreadable: {error!r:.120}") from error


@pytest.mark.gate(row=6)
def test_damaged_rows(
    place: Place, system: Any, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest, figure: Any
) -> None:
    """Good messages come back in order, the damaged row is counted and reported, and the session goes on."""
    for kind, value in DAMAGE.items():
        history = system.history(place, kind)
        for text in "abc":
            history.add_user_message(text)
        if place.kind == "sqlite":
            damage_file(place.uri, kind, value)
        else:
            damage(request.getfixturevalue("collection"), system.payload, value)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert read(history) == ["a", "c"], kind
        assert [r for r in caplog.records if r.levelno >= logging.WARNING], f"{kind}: nothing was reported"
        history.add_user_message("d")
        assert read(history) == ["a", "c", "d"], kind
        if system.name == "memkit":
            assert len(history.view().problems) == 1, kind
            assert [message.text for message in history.iter_messages()] == ["a", "c", "d"], kind
    figure(f"{place.kind}: kinds of damage", len(DAMAGE), at_least=12)


FIELDS = ("seq", "epoch", "base", "expiresAt", "isDeleted", "op", "kind", "createdAt", "tokens", "v")
VALUES = (float("inf"), float("nan"), Int64(2**63 - 1), 1e300, Decimal128("1E+400"), -1, 0, "x", None, MISSING)
SPOILED = {  # by the name of the session
    f"{name}: {'missing' if value is MISSING else repr(value)}": (name, value)
    for name in FIELDS
    for value in VALUES
    if (name, value) != ("seq", MISSING)  # what has no position is none of our rows
}


@pytest.fixture
def histories(place: Place, system: Any, collection: Any) -> Any:
    """A factory whose store has such a session for each of SPOILED, with that in its middle row."""
    factory = system.histories(place)
    for text in "abc":
        factory("s").add_user_message(text)
    like = list(collection.find({"session_id": "s"}).sort("seq", 1))
    rows = []
    for session, (name, value) in SPOILED.items():
        copies = [{**row, "_id": ObjectId(), "session_id": session} for row in like]
        copies[1][name] = value
        if value is MISSING:
            del copies[1][name]
        rows += copies
    collection.insert_many(rows)
    return factory


def lived_through(history: Any) -> tuple[list[str], list[str]]:
    """What a session shows, and what after another turn, by every way of reading."""
    said = read(history)
    history.add_user_message("d")
    after = read(history)
    assert sorted(message.text for message in history.iter_messages()) == sorted(after)
    assert [message.text for message in history.tail(max_messages=9)] == after
    return said, after


@pytest.mark.gate(row=6, memkit_only=True)
@pytest.mark.parametrize("place", ["standalone"], indirect=True)
def test_damaged_fields(place: Place, histories: Any, caplog: pytest.LogCaptureFixture, figure: Any) -> None:
    """Whatever stands in a field of a row, the others are read, it is reported if it cannot be, and all goes on.

    Not reported is a row whose position is none: no query of a turn sees it, and one that would is one more each time.
    """
    wrong = []
    for session in SPOILED:
        caplog.clear()
        try:
            with caplog.at_level(logging.WARNING):
                said, after = lived_through(histories(session))
        except Exception as error:
            wrong.append(f"{session}: {error!r:.200}")
            continue
        if [text for text in said if text != "b"] != ["a", "c"] or sorted(after) != sorted([*said, "d"]):
            wrong.append(f"{session}: {said}, then {after}")
        elif (
            "b" not in said
            and SPOILED[session][0] != "seq"
            and not [r for r in caplog.records if r.levelno >= logging.WARNING]
        ):
            wrong.append(f"{session}: nothing was reported")
    assert not wrong, "; ".join(wrong)
    figure(f"{place.kind}: damaged fields", len(SPOILED), at_least=90)


@pytest.mark.gate(row=6, memkit_only=True)
@pytest.mark.parametrize("place", ["standalone"], indirect=True)
def test_damaged_fields_are_listed_exported_and_cleared(histories: Any, collection: Any) -> None:
    """Lists and exports pass over what stands in such a field, and a clear takes the damaged row with the others."""
    assert {info.session_id for info in histories.list_sessions()} == {"s", *SPOILED}
    assert export_history(histories, io.StringIO(), progress=False).sessions == len(SPOILED) + 1
    for session in SPOILED:
        histories(session).clear()
    left = collection.find({"session_id": {"$ne": "s"}, "messages": {"$exists": True}})
    assert [row["session_id"] for row in left] == []
    assert [session for session in SPOILED if read(histories(session))] == []
