"""100,000 messages of langchain-mongodb move to ours and back."""

from __future__ import annotations

import contextlib
import json
import time
from typing import Any

import pytest
from gatekit.systems import Place
from langchain_core.messages import AIMessage, HumanMessage, message_to_dict
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer

from langchain_memkit.migrate import migrate

SESSIONS, TURNS = 10, 5_000  # of two messages each


def row(session: int, message: Any) -> dict[str, str]:
    """A message as langchain-mongodb's class writes it."""
    return {"SessionId": f"s{session}", "History": json.dumps(message_to_dict(message))}


def fill(collection: Any) -> None:
    """Conversations of ten sessions, as its class would have left them, every message another."""
    for session in range(SESSIONS):
        said = [m for i in range(TURNS) for m in (HumanMessage(f"question {i}"), AIMessage(f"answer {session}.{i}"))]
        collection.insert_many([row(session, message) for message in said])


def stored(collection: Any, session: int) -> list[str]:
    """What the rows of a session hold, in their order."""
    return [found["History"] for found in collection.find({"SessionId": f"s{session}"}).sort("_id", 1)]


def seconds(source: Any, target: Any, sessions: int = SESSIONS) -> float:
    """How long it takes to move everything."""
    started = time.monotonic()
    report = migrate(source, target, progress=False)
    assert (report.sessions, report.messages, report.skipped) == (sessions, sessions * 2 * TURNS, [])
    return time.monotonic() - started


@pytest.mark.gate(row=16, memkit_only=True, limit=240)
@pytest.mark.parametrize("place", ["standalone"], indirect=True)
def test_there_and_back(place: Place, collection: Any, system: Any, figure: Any) -> None:
    """Every message arrives in its place, there and back, where the real peer reads it; doing it again adds nothing."""
    fill(collection)
    rows = system.histories(place, layout="langchain")
    ours = system.histories(place, collection_name="ours")
    back = system.histories(place, collection_name="back", layout="langchain")
    took = seconds(rows, ours) + seconds(ours, back)
    originals = [stored(collection, i) for i in range(SESSIONS)]
    collection.delete_many({"SessionId": {"$ne": "s0"}})  # once more with one of them: the rest is no different
    seconds(rows, ours, sessions=1)
    seconds(ours, back)
    database = collection.database
    assert database["ours"].count_documents({}) == SESSIONS * TURNS
    for i, there in enumerate(originals):
        again = stored(database["back"], i)
        assert len(again) == len(there) == 2 * TURNS
        wrong = [k for k, (a, b) in enumerate(zip(there, again, strict=True)) if a != b]
        assert not wrong, f"s{i}: {len(wrong)} rows differ, the first is row {wrong[0]}: {again[wrong[0]]:.120}"
    with contextlib.closing(Peer(place.uri, "s3", place.database, "back", create_index=False)) as peer:
        said = [m for i in range(TURNS) for m in (f"question {i}", f"answer 3.{i}")]
        assert [message.text for message in peer.messages] == said
    figure("100,000 messages there and back", took, at_most=60, unit=" s")
