"""R14: many histories, and forks."""

from __future__ import annotations

from typing import Any

import pytest
from gatekit.jobs import fork_under_load, keep_histories
from gatekit.systems import Place
from pymongo import MongoClient

HISTORIES, FORKS = 500, 30


def connections(place: Place) -> int:
    """Connections that the server counts."""
    with MongoClient(place.uri) as client:
        return int(client.admin.command("serverStatus")["connections"]["current"])


@pytest.mark.gate("R14")
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_many_histories(place: Place, system: Any, forks: Any, figure: Any) -> None:
    """500 histories that are kept and used share a handful of connections and threads."""
    out, writer = forks.Pipe(duplex=False)
    reader, go = forks.Pipe(duplex=False)
    process = forks.Process(target=keep_histories, args=(system.name, place, HISTORIES, reader, writer))
    process.start()
    try:
        assert out.poll(20)
        out.recv()
        before = connections(place) if place.kind != "sqlite" else 0
        go.send(None)
        assert out.poll(50), f"{HISTORIES} histories took more than 50 s"
        threads = out.recv()
        more = (connections(place) if place.kind != "sqlite" else 0) - before
    finally:
        process.kill()
        process.join(5)
    figure(f"{place.kind}: more threads for {HISTORIES} histories", threads, at_most=10)
    figure(f"{place.kind}: more connections for {HISTORIES} histories", more, at_most=10)


@pytest.mark.gate("R14")
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
