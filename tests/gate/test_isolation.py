"""Users and sessions never meet; what is purged is gone."""

from __future__ import annotations

import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from gatekit.servers import server
from gatekit.systems import Place, config, echo, texts
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient

from langchain_memkit import purge_user
from langchain_memkit.testing import FrozenClock

SPACES = [  # users with one session id, two sessions, nobody's, and two that are one if ids are joined to one
    ("u1", "s"), ("u2", "s"), ("u1", "t"), (None, "s"), ("a", "b:c"), ("a:b", "c"),
]  # fmt: skip
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(range(len(SPACES))), st.sampled_from(["add", "turn", "read", "read", "clear"])),
    min_size=50,
    max_size=50,
)


@pytest.mark.gate(row=8, limit=240)
def test_nothing_crosses(place: Place, system: Any, nightly: bool) -> None:
    """200 random operations of users with one session id, two sessions, and nobody's: each sees its own alone."""
    histories = system.sharing(place)
    chain = system.chain(echo, histories)
    phases = [Phase.generate] if system.name == "peer" else [Phase.generate, Phase.shrink]

    @settings(
        max_examples=24 if nightly else 4,  # of 50 operations each
        deadline=None,
        derandomize=not nightly,
        database=None,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    @given(OPERATIONS)
    def check(operations: list[tuple[int, str]]) -> None:
        run = uuid4().hex[:6]
        model: dict[int, list[str]] = {i: [] for i in range(len(SPACES))}
        for n, (i, verb) in enumerate(operations):
            user, session = SPACES[i][0], f"{SPACES[i][1]}-{run}"
            text = f"{user}/{session}/{n}"
            history = histories(session, user_id=user)
            if verb == "add":
                history.add_messages([HumanMessage(text), AIMessage("x")])
                model[i] += [text, "x"]
            elif verb == "turn":
                chain.invoke(text, config(session, user))
                model[i] += [text, f"re: {text}"]
            elif verb == "clear":
                history.clear()
                model[i] = []
            assert texts(history) == model[i], f"after {verb} of {user}/{SPACES[i][1]}"
        for i, (user, session) in enumerate(SPACES):
            assert texts(histories(f"{session}-{run}", user_id=user)) == model[i], f"{user}/{session} at the end"

    check()


@pytest.mark.gate(row=8, memkit_only=True)
def test_purge_leaves_nothing(place: Place, system: Any, request: pytest.FixtureRequest) -> None:
    """After a purge of one user no row holds anything of theirs, and everybody else's is as it was."""
    histories = system.histories(place)
    for user, session in SPACES:
        for i in range(3):
            histories(session, user).add_messages([HumanMessage(f"canary-{user}-{i}"), AIMessage("x")])
    assert purge_user("u1", histories) == [{"sessions": 2, "turns": 6}]
    for user, session in SPACES:
        expected = [] if user == "u1" else [text for i in range(3) for text in (f"canary-{user}-{i}", "x")]
        assert texts(histories(session, user)) == expected
    assert histories.list_sessions("u1") == []
    if place.kind == "sqlite":
        histories.close()
        left = Path(place.uri).read_bytes().decode("latin-1")
    else:
        left = str(list(request.getfixturevalue("collection").find()))
    assert "canary-u1" not in left
    assert "canary-u2" in left


@pytest.mark.gate(row=8, memkit_only=True)
def test_markers_go_after_two_hours(tmp_path: Path, system: Any) -> None:
    """What a purge leaves holds ids and numbers only, and the server removes it when its two hours are over.

    They are two by the server's clock, whatever that of the client says.
    """
    clock = FrozenClock(datetime.now(UTC) - timedelta(hours=5))
    with (
        server(tmp_path, "--setParameter", "ttlMonitorSleepSecs=1") as host,
        MongoClient(f"mongodb://{host}") as client,
    ):
        histories = system.histories(Place("standalone", f"mongodb://{host}", "gate"), now=clock)
        histories("s", "u1").add_user_message("canary")
        histories.purge("u1")
        collection = client["gate"]["message_store"]
        left = list(collection.find({"user_id": "u1"}))
        assert left
        assert all("messages" not in row for row in left)
        in_two_hours = datetime.now(UTC).replace(tzinfo=None) + timedelta(hours=2)
        assert all(abs(row["expiresAt"] - in_two_hours) < timedelta(minutes=1) for row in left)
        over = [{"$set": {"expiresAt": {"$subtract": ["$expiresAt", 7_200_000]}}}]
        collection.update_many({"user_id": "u1"}, over)
        deadline = time.monotonic() + 8
        while collection.count_documents({"user_id": "u1"}) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert collection.count_documents({"user_id": "u1"}) == 0
        system.leave(host)


@pytest.mark.gate(row=8, memkit_only=True)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_markers_in_a_file_go_after_two_hours(place: Place, system: Any) -> None:
    """The same in a file, at the next write after that."""
    clock = FrozenClock()
    histories = system.histories(place, now=clock)
    histories("s", "u1").add_user_message("canary")
    histories.purge("u1")
    clock.tick(7201)
    histories("other").add_user_message("x")
    with sqlite3.connect(place.uri) as connection:
        assert connection.execute("SELECT DISTINCT user_id FROM turns").fetchall() == [("",)]
    connection.close()
