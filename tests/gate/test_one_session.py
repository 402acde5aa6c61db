"""Many processes and threads on one session."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from gatekit.jobs import write_turns
from gatekit.systems import Place, split_turns, texts

PROCESSES, THREADS, TURNS = 4, 2, 50
TOTAL = PROCESSES * THREADS * TURNS


def read_all(system: Any, place: Place, session: str) -> list[str]:
    """The whole session, once the node that is asked has caught up."""
    history = system.history(place, session, create_index=False)
    deadline = time.monotonic() + 3
    while len(said := texts(history)) < 2 * TOTAL and time.monotonic() < deadline:
        time.sleep(0.05)
    return said


@pytest.mark.gate(row=2)
def test_turns_stay_whole_and_in_order(place: Place, system: Any, forks: Any, figure: Any) -> None:
    """Eight writers in four processes: no turn is split or lost, every node shows the same order, at 50 turns/s."""
    barrier = forks.Barrier(PROCESSES + 1)
    pipes = [forks.Pipe(duplex=False) for _ in range(PROCESSES)]
    processes = [
        forks.Process(target=write_turns, args=(system.name, place, "s1", f"p{i}", TURNS, barrier, pipes[i][1]))
        for i in range(PROCESSES)
    ]
    try:
        for process in processes:
            process.start()
        barrier.wait(20)
        started = time.monotonic()
        assert all(reader.poll(30) for reader, _ in pipes), "a writer did not end in 30 s"
        seconds = time.monotonic() - started
    finally:
        for process in processes:
            if process.pid:  # it was started
                process.join(1)
                process.kill()
    assert [error for reader, _ in pipes for error in reader.recv()] == []
    nodes = [place.through(host) for host in place.hosts] if place.kind == "replica_set" else [place]
    seen = [read_all(system, node, "s1") for node in nodes]
    assert len(seen[0]) == 2 * TOTAL, f"{len(seen[0])} of {2 * TOTAL} messages"
    assert all(said == seen[0] for said in seen), "the nodes show different orders"
    split = split_turns(seen[0])
    figure(f"{place.kind}: split turns", len(split), at_most=0)
    for writer in {re.sub(r"-\d+$", "", said) for said in seen[0][::2]}:
        mine = [said for said in seen[0][::2] if said.startswith(f"{writer}-")]
        assert mine == [f"{writer}-{i}" for i in range(TURNS)]
    if system.name == "memkit":
        turns = list(system.history(place, "s1").iter_turns())
        assert [turn.seq for turn in turns] == list(range(1, TOTAL + 1))
    figure(f"{place.kind}: turns", TOTAL / seconds, at_least=50, unit="/s")
