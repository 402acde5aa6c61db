"""A client of a real web server hangs up while an answer is streamed, or saved."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from gatekit.http import WORDS, YIELDED, Client, Service, speaker
from gatekit.systems import Place

SAID = {"before": [], "during": ["q", "one two "], "after": ["q", "one two three "]}


@pytest.fixture(params=["/stream", "/events"])
def path(request: pytest.FixtureRequest) -> str:
    """A stream of text over `astream`, and one over `astream_events`."""
    return str(request.param)


@contextmanager
def slow_save(place: Place, wire: Any, answered: threading.Event) -> Iterator[threading.Event]:
    """What is sent after the answer waits until the end of the block; set when a save has begun."""
    begun, go_on = threading.Event(), threading.Event()

    def wait(name: str) -> None:
        if answered.is_set():
            begun.set()
            go_on.wait(10)

    if place.kind == "sqlite":
        with closing(sqlite3.connect(place.uri)) as other:
            other.execute("BEGIN IMMEDIATE")  # somebody else writes: the save waits
            threading.Timer(0.2, begun.set).start()
            yield begun
            other.rollback()
        return
    wire.on_command = wait
    try:
        yield begun
    finally:
        go_on.set()
        wire.on_command = lambda name: None


def stored(history: Any, expected: list[str]) -> list[Any]:
    """The messages of a session, as soon as these are there, or after two seconds."""
    deadline = time.monotonic() + 2
    while True:
        messages = list(history.messages)
        if [m.text for m in messages] == expected or time.monotonic() > deadline:
            return messages
        time.sleep(0.02)


@pytest.mark.gate(row=12)
@pytest.mark.parametrize("moment", ["before", "during"])
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_client_hangs_up(moment: str, path: str, place: Place, system: Any) -> None:
    """What the client was sent is stored, marked; where it was sent nothing, nothing is stored."""
    histories = system.histories(place)
    system.history(place, "warm").add_user_message("warm")
    reached = threading.Event()
    chain = system.chain(speaker(moment, reached), histories)
    with Service(chain) as service, Client(service.port, path) as client:
        client.read(WORDS[1] if YIELDED[moment] else "200 OK")
        assert reached.wait(10)
        client.hang_up()
        assert service.ended.wait(10)
        said = stored(system.history(place, "s1"), SAID[moment])
    assert [m.text for m in said] == SAID[moment]
    if said and system.name == "memkit":
        assert said[-1].response_metadata["memkit_status"] == "aborted"


@pytest.mark.gate(row=12, memkit_only=True)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_client_hangs_up_and_nothing_is_kept(path: str, place: Place, system: Any) -> None:
    """With on_abort="discard" a client that hangs up leaves nothing."""
    chain = system.chain(speaker("during", threading.Event()), system.histories(place), on_abort="discard")
    with Service(chain) as service, Client(service.port, path) as client:
        client.read(WORDS[1])
        client.hang_up()
        assert service.ended.wait(10)
    assert system.history(place, "s1").messages == []


@pytest.mark.gate(row=12)
def test_client_hangs_up_during_the_save(path: str, place: Place, system: Any, request: pytest.FixtureRequest) -> None:
    """A save that has begun is finished, whole, though nobody waits for it any more."""
    wire = None if place.kind == "sqlite" else request.getfixturevalue("wire")
    behind = place if wire is None else wire.place
    system.history(behind, "warm").add_user_message("warm")
    answered = threading.Event()
    with Service(system.chain(speaker("after", answered), system.histories(behind))) as service:
        with slow_save(place, wire, answered) as begun, Client(service.port, path) as client:
            client.read(WORDS[2])
            assert begun.wait(10)
            client.hang_up()
            time.sleep(0.1)  # the server hears of it
        assert service.ended.wait(10)
        said = stored(system.history(place, "s1"), SAID["after"])
    assert [m.text for m in said] == SAID["after"]
    if place.kind != "sqlite":  # where nobody sees for sure that it has begun
        assert "memkit_status" not in said[-1].response_metadata
