"""Many histories, and forks."""

from __future__ import annotations

from typing import Any

import pytest
from gatekit.jobs import fork_under_load, keep_histories
from gatekit.servers import connections
from gatekit.systems import Place

HISTORIES, FORKS = 500, 30
PATIENCE = 15  # seconds for what takes two; the peer would start 4,000 threads


KEEPER = "keeper"  # how the connections of the process are told from others


@pytest.mark.gate(row=14)
def test_many_histories(place: Place, system: Any, forks: Any, figure: Any) -> None:
    """500 histories that are kept and used share the handful of connections and threads that one takes (per node)."""
    out, writer = forks.Pipe(duplex=False)
    reader, go = forks.Pipe(duplex=False)
    there = place.with_options(f"appName={KEEPER}")
    process = forks.Process(target=keep_histories, args=(system.name, there, HISTORIES, reader, writer))
    process.start()
    try:
        assert out.poll(20)
        out.recv()
        before = connections(place, KEEPER)
        assert bool(before) == bool(place.hosts), "connections are not counted"
        go.send(None)
        assert out.poll(PATIENCE), f"{HISTORIES} histories took more than {PATIENCE} s"
        threads = out.recv()
        more = connections(place, KEEPER) - before
    finally:
        process.kill()
        process.join(5)
    figure(f"{place.kind}: more threads for {HISTORIES} histories", threads, at_most=10)
    figure(f"{place.kind}: connections for one history", before, at_most=10)
    figure(f"{place.kind}: more connections for {HISTORIES} histories", more, at_most=10)


@pytest.mark.gate(row=14)
def test_forks_under_load(place: Place, system: Any, forks: Any, figure: Any) -> None:
    """30 children, forked while four threads write, hold a turn each; the parent goes on."""
    out, writer = forks.Pipe(duplex=False)
    process = forks.Process(target=fork_under_load, args=(system.name, place, FORKS, writer))
    process.start()
    try:
        assert out.poll(45), "the forks did not end"
        codes, failures = out.recv()
    finally:
        process.kill()
        process.join(5)
    assert failures == []
    figure(f"{place.kind}: forks that work", codes.count(0), at_least=FORKS)
