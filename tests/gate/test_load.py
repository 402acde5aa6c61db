"""200 conversations at once on one event loop, in a process of its own; and what a turn costs beside others'."""

from __future__ import annotations

from typing import Any

import pytest
from gatekit.load import SESSIONS, hold_conversations
from gatekit.pace import BARE, PEER, PLAIN, RECALLING, hold_paces
from gatekit.servers import connections
from gatekit.systems import Place

APP = "load"  # how the connections of the process are told from others
POOL, WATCHERS, LEAVING = 100, 2, 10  # connections of the driver: for the work, for each node, closed in this moment
FULL, BRIEF = (60, 4), (5, 2)  # seconds of load, and of warming up before
LAG = 500  # ms
SLOWER = 40  # times the bare turn, which does nothing else meanwhile
SHARES = {PLAIN: 8, RECALLING: 20}  # of the bare driver's turns: at least one in so many
UNSETTLED, PER_TURN = 30, 0.012  # MB: what an allocator keeps, and what a recalling memory holds of each turn


@pytest.mark.gate(row=18, memkit_only=True, limit=150)
def test_many_conversations_at_once(place: Place, forks: Any, figure: Any, nightly: bool) -> None:
    """Turns, streams, recalls, lists and clears of 200 sessions: no error, nothing lost, split or shown to others.

    How long a turn takes is held to that of bare drivers in the same process and minute, which read ten turns, ask the
    model and insert one, and do nothing else; here four of ten steps are recalls, lists, clears and reads.
    """
    seconds, warm = FULL if place.kind == "replica_set" else BRIEF
    out, writer = forks.Pipe(duplex=False)
    there = place.with_options(f"appName={APP}")
    process = forks.Process(target=hold_conversations, args=(there, warm, 60 if nightly else seconds, writer))
    process.start()
    most = 0
    try:
        while not out.poll(1):
            assert process.is_alive(), "the process of the conversations is gone"
            most = max(most, connections(place, APP))
        found = out.recv()
    finally:
        process.kill()
        process.join(5)
    assert found["errors"][:3] == found["wrong"][:3] == []
    figure(f"{place.kind}: errors of {SESSIONS} sessions", len(found["errors"]), at_most=0)
    figure(f"{place.kind}: wrong views, notes, lists", len(found["wrong"]), at_most=0)
    figure(f"{place.kind}: messages lost or out of order", found["lost"], at_most=0)
    figure(f"{place.kind}: split turns", found["split"], at_most=0)
    assert min(found["steps"].values()) > 0, f"not all kinds of steps: {found['steps']}"
    if place.hosts:
        assert most, "connections are not counted"
        figure(f"{place.kind}: connections", most, at_most=POOL + WATCHERS * len(place.hosts) + LEAVING)
    held = found["steps"]["ainvoke"] + found["steps"]["astream"]
    figure(f"{place.kind}: memory", found["grown"], at_most=UNSETTLED + PER_TURN * held, unit=" MB")
    figure(f"{place.kind}: event loop lag p99", found["lag"], at_most=LAG, unit=" ms")
    figure(f"{place.kind}: turn p50", found["p50"], at_most=SLOWER * found["bare p50"], unit=" ms")
    figure(f"{place.kind}: turn p99", found["p99"], at_most=SLOWER * found["bare p99"], unit=" ms")


@pytest.mark.gate(row=18, memkit_only=True, limit=150)
def test_turns_beside_those_of_the_bare_driver(place: Place, forks: Any, figure: Any) -> None:
    """A chain, one that recalls, and the peer, which writes as durably, take turns with the driver in one process."""
    out, writer = forks.Pipe(duplex=False)
    process = forks.Process(target=hold_paces, args=(place, writer))
    process.start()
    try:
        while not out.poll(1):
            assert process.is_alive(), "the process of the conversations is gone"
        found = out.recv()
    finally:
        process.kill()
        process.join(5)
    bare = found[BARE].speed
    theirs = found[PEER].speed if place.hosts else 0.0  # there is none for files
    least = {PLAIN: max(theirs, bare / SHARES[PLAIN]), RECALLING: bare / SHARES[RECALLING]}  # the peer recalls nothing
    for name, share in SHARES.items():
        figure(f"{place.kind}: {name}", found[name].speed, at_least=least[name], unit=" turns/s")
        figure(f"{place.kind}: bare turns in the time of one of the {name}", bare / found[name].speed, at_most=share)
    if theirs:
        figure(f"{place.kind}: bare turns in the time of one of the peer", bare / theirs, at_least=1)
