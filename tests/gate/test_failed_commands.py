"""Whichever command of an async turn, a soft delete, clear or purge breaks off: whole or nothing, repeatable."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gatekit.servers import server
from gatekit.systems import Place, config, echo, texts
from gatekit.wire import CutError, Wire
from pymongo import MongoClient

from langchain_memkit.errors import HistoryReadError, HistoryWriteError, MemkitError

BEFORE = ["before", "re: before"]
TURN = ["hello", "re: hello"]
AT_ONCE = 24  # most of the time a broken command is waited for
REPLY_LOST, GONE, LOST_AND_GONE = "reply lost", "gone", "reply lost and then gone"
FAULTS = {"standalone": [GONE, LOST_AND_GONE], "replica_set": [REPLY_LOST]}  # to a client, gone is gone


def work(operation: str, system: Any, place: Place, user: str, **options: Any) -> None:
    """One of the four, with a client of its own."""
    histories = system.histories(place, **options)
    if operation == "clear":
        histories("s1", user).clear()
    elif operation == "hide":
        histories("s1", user).delete_turn(1)
    elif operation == "purge":
        histories.purge(user)
    else:

        async def turn() -> None:
            try:
                await system.chain(echo, histories).ainvoke("hello", config("s1", user, "t1"))
            finally:
                await histories.aclose()

        asyncio.run(turn())


def left(system: Any, place: Place, user: str) -> list[list[str]]:
    """What the user's two sessions hold, asked past the proxy."""
    return [texts(system.history(place, session, user)) for session in ("s1", "s2")]


def allowed(operation: str) -> tuple[list[list[list[str]]], list[list[str]]]:
    """What may be left after a failure, and what must be after a success."""
    if operation == "async turn":
        return [[BEFORE, BEFORE], [BEFORE + TURN, BEFORE]], [BEFORE + TURN, BEFORE]
    if operation in ("clear", "hide"):
        return [[BEFORE, BEFORE], [[], BEFORE]], [[], BEFORE]
    return [[one, two] for one in (BEFORE, []) for two in (BEFORE, [])], [[], []]


class Case:
    """One operation of a user of its own, with a fault at the n-th command; None breaks nothing."""

    def __init__(self, operation: str, how: str, fault: int | None) -> None:
        self.operation, self.how, self.fault = operation, how, fault
        self.user = f"{operation} {how} {fault}"
        self.count = 0
        self.error: Exception | None = None
        self.wrong: list[str] = []
        self.go_down: Callable[[], None] = lambda: None

    def on_command(self, name: str) -> str | None:
        """Breaks what is to be broken."""
        self.count += 1
        if self.fault is None or self.count <= self.fault:
            return None
        if self.count == self.fault + 1 and self.how != GONE:
            return "deaf"
        if self.how != REPLY_LOST:
            self.go_down()
            raise CutError
        return None

    def run(self, system: Any, place: Place, wire: Wire) -> None:
        """Does it with the fault, looks, and does it again without."""
        for session in ("s1", "s2"):
            system.chain(echo, system.histories(place)).invoke("before", config(session, self.user))
        system.history(wire.place, "warm").add_user_message("warm")
        patience = 20 if self.how == REPLY_LOST else 0.4
        wire.on_command, self.go_down = self.on_command, wire.go_down
        try:
            work(self.operation, system, wire.place, self.user, timeout=patience, save_timeout=patience)
        except Exception as error:  # which one is asked below
            self.error = error
        wire.on_command = lambda name: None
        found, (failed, done) = left(system, place, self.user), allowed(self.operation)
        if found not in (failed if self.error else [done]):
            self.wrong.append(f"{self.error!r:.80} left {found}")
        if self.error and getattr(self.error, "maybe_stored", None) is False and found != [BEFORE, BEFORE]:
            self.wrong.append(f"said that nothing was done, but left {found}")
        if isinstance(self.error, HistoryWriteError) and self.operation == "async turn" and self.error.output is None:
            self.wrong.append("lost the answer")
        work(self.operation, system, place, self.user)
        if (found := left(system, place, self.user)) != done:
            self.wrong.append(f"the retry left {found}")


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.filterwarnings(  # pymongo's monitor is cancelled while it connects
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_each_command_of_a_change_fails(
    place: Place, wires: Callable[[], Wire], system: Any, collection: Any, figure: Any
) -> None:
    """Whichever command breaks off, and whether the server comes back: typed, whole or nothing, and repeatable."""

    def run(case: Case) -> Case:
        case.run(system, place, wires())
        return case

    operations = ("async turn", "clear", "hide", "purge")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        counts = {case.operation: case.count for case in pool.map(run, [Case(o, "whole", None) for o in operations])}
        faults = [(o, how, n) for how in FAULTS[place.kind] for o in operations for n in range(counts[o])]
        cases = list(pool.map(run, [Case(*fault) for fault in faults]))
    gc.collect()  # here, where the warnings are expected
    assert {case.user: case.wrong for case in cases if case.wrong} == {}
    untyped = [case.error for case in cases if case.error and not isinstance(case.error, MemkitError)]
    assert untyped == []
    if place.kind == "standalone":
        assert {type(case.error) for case in cases} == {HistoryWriteError, HistoryReadError}
    else:
        assert all(case.error is None for case in cases), "a single fault was not got over"
    purged = [case.user for case in cases if case.operation == "purge"]
    assert collection.count_documents({"user_id": {"$in": purged}, "messages": {"$exists": True}}) == 0
    figure(f"{place.kind}: commands of changes broken", len(cases), at_least=12)


@pytest.fixture
def keeper(system: Any, tmp_path: Path) -> Iterator[Place]:
    """A server on which our user may do everything but delete; `root:r00t` may."""
    with server(tmp_path, "--auth") as host:
        with MongoClient(f"mongodb://{host}/?directConnection=true") as client:
            client.admin.command("createUser", "root", pwd="r00t", roles=["root"])
        actions = ["find", "insert", "update", "createIndex", "listIndexes", "collStats"]
        with MongoClient(f"mongodb://root:r00t@{host}/") as client:
            rights = [{"resource": {"db": "", "collection": ""}, "actions": actions}]
            client.admin.command("createRole", "keeper", privileges=rights, roles=[])
            client.admin.command("createUser", "nemo", pwd="s3cr3t", roles=["keeper"])
        yield Place("standalone", f"mongodb://nemo:s3cr3t@{host}/?authSource=admin", "gate", (host,))
        system.leave(host)


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("operation", ["clear", "purge"])
def test_marked_but_not_deleted(operation: str, keeper: Place, system: Any) -> None:
    """What is refused after its marker is in does not claim that nothing was done; called again, it completes."""
    owner = replace(keeper, uri=keeper.uri.replace("nemo:s3cr3t", "root:r00t"))
    for session in ("s1", "s2"):
        system.chain(echo, system.histories(owner)).invoke("before", config(session, "u1"))
    with pytest.raises(HistoryWriteError, match="call again") as raised:
        work(operation, system, keeper, "u1")
    assert raised.value.maybe_stored
    assert "s3cr3t" not in str(raised.value)
    failed, done = allowed(operation)
    assert left(system, keeper, "u1") in failed
    work(operation, system, owner, "u1")
    assert left(system, owner, "u1") == done
    with MongoClient(owner.uri) as client:
        found = client["gate"]["message_store"].find({"messages": {"$exists": True}})
        assert {document["session_id"] for document in found} == ({"s2"} if operation == "clear" else set())
