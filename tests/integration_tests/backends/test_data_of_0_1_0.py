"""Data that version 0.1.0 wrote, a SQLite file and the documents of a MongoDB collection, is read, changed and erased.

In `data_0_1_0`: sessions of two users and of nobody, with soft-deleted turns, clears, a purge, an import, turns with a
ttl and rows of langchain-mongodb. The markers of clears and of the purge were to go after an hour, so they are there in
one variant (as if written now) and gone in the other.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import json_util
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.errors import StaleTurnError

DATA = Path(__file__).parent / "data_0_1_0"
TURN = [HumanMessage("new question", id="new-q"), AIMessage("new answer", id="new-a")]
NEMO = {"plain": 3, "hidden": 3, "begun again": 2, "tools": 1, "import": 3, "going": 2}


def sqlite_of_0_1_0(folder: Path, markers: bool) -> Any:
    """A copy of the file."""
    path = folder / "chat.db"
    shutil.copy(DATA / "chat.file", path)
    with sqlite3.connect(path) as connection:
        (count,) = connection.execute("SELECT COUNT(*) FROM turns WHERE kind <> 'turn'").fetchone()
        assert count == 4
        connection.execute("UPDATE turns SET expires_at = ? WHERE kind <> 'turn'", (time.time() + 3600 * markers - 1,))
    connection.close()
    return SQLiteChatMessageHistory.factory(path)


def mongodb_of_0_1_0(collection: Any, uri: str, markers: bool) -> Any:
    """A copy of the collection, with its indexes."""
    documents = [json_util.loads(line) for line in (DATA / "message_store.jsonl").read_text("utf-8").splitlines()]
    kept = []
    for document in documents:
        if document.get("kind") in ("clear", "purge"):
            document["expiresAt"] = datetime.now(UTC) + timedelta(hours=1)
            if not markers:
                continue
        kept.append(document)
    assert len(documents) - len(kept) == (0 if markers else 4)
    collection.insert_many(kept)
    histories = MongoDBChatMessageHistory.factory(uri, collection.database.name)
    histories.setup()
    return histories


@pytest.fixture(params=["markers there", "markers gone"])
def markers(request: pytest.FixtureRequest) -> bool:
    """Whether the markers of clears and purges are still there."""
    return request.param == "markers there"


@pytest.fixture(params=["sqlite", "standalone", "replica_set"])
def histories(request: pytest.FixtureRequest, tmp_path: Path, database: str, markers: bool) -> Iterator[Any]:
    """A factory over a copy of the data."""
    if request.param == "sqlite":
        yield sqlite_of_0_1_0(tmp_path, markers)
        return
    server = request.getfixturevalue(request.param)
    with MongoClient(server.uri) as client:
        yield mongodb_of_0_1_0(client[database]["message_store"], server.uri, markers)


def texts(history: Any) -> list[str]:
    """The text of each message."""
    return [message.text for message in history.messages]


def test_is_read(histories: Any) -> None:
    """Each session holds what was stored, in order, without what was hidden, cleared or purged."""
    assert {s.session_id: s.turns for s in histories.list_sessions("nemo")} == NEMO
    assert {s.session_id: s.turns for s in histories.list_sessions("dory")} == {"after": 1}
    assert texts(histories("plain", "nemo")) == [f"{kind}{n} of plain" for n in range(3) for kind in "qa"]
    assert texts(histories("hidden", "nemo")) == [f"{kind}{n} of hidden" for n in (0, 2, 3) for kind in "qa"]
    assert texts(histories("begun again", "nemo")) == [f"{kind}{n} of begun again" for n in (3, 4) for kind in "qa"]
    assert texts(histories("cleared", "nemo")) == texts(histories("purged", "dory")) == []
    assert texts(histories("tools", "nemo")) == ["What is 2 + 2?", "", "4", "Four."]
    assert texts(histories("import", "nemo")) == [f"{kind}{n}" for n in range(130) for kind in "qa"]
    assert texts(histories("nobody")) == [f"{kind}{n} of nobody" for n in range(2) for kind in "qa"]
    assert histories("plain", "nemo").stored_ids(["plain-q1", "new-q"]) == {"plain-q1"}
    if isinstance(histories("legacy"), MongoDBChatMessageHistory):
        said = ["Be brief.", "an old question", "an old answer", "a new question", "a new answer"]
        assert texts(histories("legacy")) == said


@pytest.mark.parametrize("session", ["plain", "hidden", "begun again", "cleared", "going", "import", "unheard of"])
def test_is_appended_to(histories: Any, session: str) -> None:
    """A turn goes behind what is there, once, whether or not a view was loaded before; hidden turns come back."""
    history = histories(session, "nemo")
    before = texts(history)
    view = history.view()
    first = history.append_turn(TURN, turn_id="new", epoch=view.epoch, since=view.read_at)
    assert history.append_turn(TURN, turn_id="new") == first == view.seq + 1
    assert history.append_turn([HumanMessage("more")]) == first + 1
    assert texts(history) == [*before, "new question", "new answer", "more"]
    if session == "hidden":
        assert history.restore_turn(2)
        assert texts(history)[2:4] == ["q1 of hidden", "a1 of hidden"]


@pytest.mark.parametrize("session", ["plain", "hidden", "begun again", "cleared", "going", "import"])
def test_is_cleared(histories: Any, session: str) -> None:
    """A clear leaves nothing of a session, refuses a turn that began before, and the session begins anew."""
    history = histories(session, "nemo")
    view = history.view()
    history.clear()
    assert texts(history) == []
    with pytest.raises(StaleTurnError):
        history.append_turn(TURN, turn_id="late", epoch=view.epoch, since=view.read_at)
    history.append_turn(TURN, turn_id="t0")
    assert texts(history) == ["new question", "new answer"]
    others = {name: turns for name, turns in NEMO.items() if name != session}
    assert {s.session_id: s.turns for s in histories.list_sessions("nemo")} == {**others, session: 1}


def test_is_purged(histories: Any) -> None:
    """A purge leaves nothing of a user, refuses turns that began before, and touches nobody else."""
    views = {name: histories(name, "nemo").view() for name in (*NEMO, "cleared", "unheard of")}
    turns = sum(NEMO.values()) + 1  # and the hidden one
    assert histories.purge("nemo") == {"sessions": len(NEMO), "turns": turns}
    assert histories.list_sessions("nemo") == []
    for name, view in views.items():
        assert texts(histories(name, "nemo")) == []
        with pytest.raises(StaleTurnError):
            histories(name, "nemo").append_turn(TURN, turn_id="late", epoch=view.epoch, since=view.read_at)
    assert texts(histories("after", "dory")) == ["q0 of after", "a0 of after"]
    assert len(texts(histories("nobody"))) == 4
