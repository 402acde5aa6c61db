"""The primary is killed while eight threads write, or stands still: nothing is lost, doubled, halved, out of order.

Most of the time of this row goes to elections: a set of the gate holds one 2 s after its primary fell silent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from gatekit.failover import Crashes, Writers, count, crashes, on_every_node
from gatekit.systems import Place, answer_to, config, echo, texts
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from pymongo import MongoClient, WriteConcern

from langchain_memkit.errors import MemkitError

THREADS = 8
OWN = tuple(f"s{i}" for i in range(THREADS))
ONE = ("one",) * THREADS
LIMITS = "&".join(f"{name}TimeoutMS=1000" for name in ("serverSelection", "socket", "connect", "waitQueue"))
READ_TIMEOUT = 5.0  # seconds, the default: nobody feels an election that is shorter
WINDOW = 0.7  # seconds for which a primary without its secondaries goes on acknowledging w=1; it steps down after 2


@dataclass(frozen=True)
class Variant:
    """What is added to the connection string, and the session of each writer."""

    name: str
    options: str
    threads: tuple[str, ...]
    tasks: tuple[str, ...] = ()  # of one event loop, beside the threads; the peer has no async methods of its own
    twice: bool = False


VARIANTS = [
    Variant("default URI", "", OWN, tasks=ONE),
    Variant("1 s limits", LIMITS, OWN),
    Variant("retryWrites=false", "retryWrites=false", OWN),
    Variant("w=1, two crashes", "w=1", OWN, twice=True),
]


def crash_once(crash: Crashes, writers: Writers, place: Place) -> float:
    """The primary is killed; it comes back when a new one has taken writes. Returns how long the election took."""
    primary, before = crash.server.primary_index(), writers.acknowledged
    crash.kill(primary)
    seconds = crash.elected()
    writers.wait(before + writers.total // 10, 3)
    crash.restart(primary)
    return seconds


def crash_twice(crash: Crashes, writers: Writers, place: Place) -> float:
    """Both secondaries are killed and, a moment later, the primary: what it took meanwhile, with w=1, is rolled back.

    The two come back first and elect one of them, which knows nothing of that moment; then the old primary comes back.
    """
    primary, before = crash.server.primary_index(), writers.acknowledged
    others = [index for index in range(len(crash.server.hosts)) if index != primary]
    crash.kill(*others)
    with MongoClient(place.through(crash.server.hosts[primary]).uri) as alone:
        alone[place.database].get_collection("canary", write_concern=WriteConcern(1)).insert_one({"_id": 1})
    writers.wait(before + writers.total // 10, WINDOW)
    crash.kill(primary)
    crash.restart(*others)
    seconds = crash.elected()
    crash.restart(primary)
    return seconds


@pytest.mark.gate(row=1, limit=120)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("place", ["replica_set"], indirect=True)
def test_primary_is_killed(
    variant: Variant, place: Place, replica_set: Any, system: Any, nightly: bool, figure: Any
) -> None:
    """Writing goes on through the election; every node then shows the same, and all that was acknowledged."""
    asked = place.with_options(variant.options) if variant.options else place
    chain = system.chain(echo, system.histories(asked, size=20))
    tasks = variant.tasks if system.name == "memkit" else ()
    writers = Writers(chain, variant.threads, 200 if nightly else 60, tasks)
    with crashes(replica_set) as crash:
        writers.start()
        assert writers.wait(writers.total * 2 // 5, 30), "the writers were slow to begin"
        election = (crash_twice if variant.twice else crash_once)(crash, writers, place)
        unended = writers.join(40)
    assert unended == 0, f"{unended} writers have not ended"
    if variant.twice:
        with MongoClient(place.uri) as client:
            assert client[place.database]["canary"].count_documents({}) == 0, "nothing was rolled back"
    sessions = sorted({*variant.threads, *tasks})
    seen = on_every_node(system, place, sessions)
    counts = [count(writers.held, node) for node in seen]
    for name in counts[0]:
        figure(f"{variant.name}: {name}", max(each[name] for each in counts), at_most=0)
    assert all(node == seen[0] for node in seen), "the nodes show different orders"
    errors = [held.error for held in writers.held if held.error is not None]
    assert [error for error in errors if not isinstance(error, MemkitError)] == []
    felt = 0 if election < READ_TIMEOUT else len(variant.threads) + len(tasks)
    figure(f"{variant.name}: turns that raised", len(errors), at_most=felt)
    figure(f"{variant.name}: election", election, at_most=15, unit=" s")
    longest = max(held.seconds for held in writers.held)
    figure(f"{variant.name}: longest turn", longest, at_most=election + 5, unit=" s")


@pytest.mark.gate(row=1, memkit_only=True, limit=60)
@pytest.mark.parametrize("place", ["replica_set"], indirect=True)
def test_primary_stands_still(place: Place, replica_set: Any, system: Any, figure: Any) -> None:
    """A primary that is frozen before a save costs an election and some seconds, sync and async; each turn is once."""
    primary = replica_set.primary_index()
    others = [host for index, host in enumerate(replica_set.hosts) if index != primary]
    histories = system.histories(place.with_options("heartbeatFrequencyMS=60000"))  # the driver does not notice
    reached, seconds = threading.Barrier(3), dict[str, float]()

    def model(messages: Any) -> AIMessage:
        reached.wait(30)  # the past is read, and the primary still runs
        reached.wait(30)  # now it does not
        seconds[messages[-1].text] = time.monotonic()
        return answer_to(messages)

    def hold(said: str) -> None:
        chain = system.chain(RunnableLambda(model), histories)
        if said == "sync":
            chain.invoke(said, config(said))
        else:
            asyncio.run(chain.ainvoke(said, config(said)))
        seconds[said] = time.monotonic() - seconds[said]

    for said in ("sync", "async"):
        histories(said).add_user_message("before")
    with ThreadPoolExecutor() as pool:
        turns = [pool.submit(hold, said) for said in ("sync", "async")]
        reached.wait(30)
        os.kill(replica_set.pids[primary], signal.SIGSTOP)
        try:
            begun = time.monotonic()
            reached.wait(30)
            wait_for_majority(others, place.database)
            election = time.monotonic() - begun
            for turn in turns:
                turn.result(40)
        finally:
            os.kill(replica_set.pids[primary], signal.SIGCONT)
    replica_set.wait_ready()
    for said in ("sync", "async"):
        assert texts(histories(said)) == ["before", said, f"re: {said}"]
    figure("primary stands still: until a majority takes writes", election, at_most=30, unit=" s")
    figure("primary stands still: longest save", max(seconds.values()), at_most=election + 5, unit=" s")


def wait_for_majority(hosts: list[str], database: str) -> None:
    """Until one of these takes writes, and a majority has one: the other may still listen to who does not answer."""
    with ExitStack() as stack:
        clients = [stack.enter_context(MongoClient(host, directConnection=True)) for host in hosts]
        while True:
            for client in clients:
                if client.admin.command("hello")["isWritablePrimary"]:
                    majority = WriteConcern("majority", j=True)
                    client[database].get_collection("canary", write_concern=majority).insert_one({})
                    return
            time.sleep(0.05)
