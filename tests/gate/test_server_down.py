"""A server that is down is an error soon, and never a standstill."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import itertools
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from inspect import signature
from typing import Any

import pytest
from gatekit.systems import Place
from langchain.agents import create_agent
from langchain_core.messages import HumanMessage

from langchain_memkit import MessageHistoryMiddleware, MongoDBChatMessageHistory
from langchain_memkit.errors import HistoryReadError, HistoryWriteError
from langchain_memkit.migrate import export_history
from langchain_memkit.testing import FakeChatModel

TIMEOUT = 0.5  # seconds: the `timeout` that memkit is given; the peer has it in its connection string
THEIRS = "serverSelectionTimeoutMS=500&connectTimeoutMS=500&socketTimeoutMS=500"
DEFAULT = 5.0  # what it is without one
SLACK = 0.7  # for noise
GIVE_UP = 2.5  # how long a test waits at most
BRISK = "heartbeatFrequencyMS=500"  # else a monitor of pymongo that misses its end holds asyncio.run up for 10 s

pytestmark = pytest.mark.filterwarnings(  # pymongo's monitor is cancelled while it connects
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(params=["refuses", "silent"])
def how(request: pytest.FixtureRequest) -> str:
    """Whether nobody listens, or somebody does who never answers."""
    return str(request.param)


@contextlib.contextmanager
def down(kind: str, how: str) -> Iterator[Place]:
    """The address of a server, or of a replica set with all its three nodes, that is down."""
    with contextlib.ExitStack() as stack:
        nodes = 1 if kind == "standalone" else 3
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(nodes)]
        hosts = tuple(f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners)
        if how == "refuses":
            stack.close()
        name = "&replicaSet=rs0" if nodes > 1 else ""
        uri = f"mongodb://nemo:s3cr3t@{','.join(hosts)}/?authSource=admin{name}"
        yield Place(kind, uri, "gate", hosts)


@pytest.fixture(params=["standalone", "replica_set"])
def gone(request: pytest.FixtureRequest, how: str) -> Iterator[Place]:
    """One that is down."""
    with down(request.param, how) as place:
        yield place
    gc.collect()  # here, where the warnings are expected


@pytest.fixture
def all_gone() -> Iterator[list[Place]]:
    """All four."""
    with contextlib.ExitStack() as stack:
        kinds = itertools.product(("standalone", "replica_set"), ("refuses", "silent"))
        yield [stack.enter_context(down(*kind)) for kind in kinds]
    gc.collect()


def brisk(system: Any, place: Place) -> Place:
    """The place with the time-outs that the system takes from a connection string."""
    return place.with_options(BRISK if system.name == "memkit" else f"{BRISK}&{THEIRS}")


def timed(action: Callable[[], Any]) -> tuple[float, BaseException | None]:
    """How long an action takes, in a thread of its own that is given up after a while, and what it raised."""
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            action()
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=run, daemon=True)
    started = time.monotonic()
    thread.start()
    thread.join(GIVE_UP)
    return time.monotonic() - started, (outcome or [None])[0]


@pytest.mark.gate(row=10, memkit_only=True)
def test_failing_elsewhere(all_gone: list[Place], figure: Any) -> None:
    """So do the lists of a factory, an export, and the beginning of an agent's run, which reads twice."""

    def agent(factory: Any) -> Any:
        made = create_agent(FakeChatModel(), [], middleware=[MessageHistoryMiddleware(factory)])
        return made.invoke({"messages": [("user", "hi")]}, {"configurable": {"session_id": "s1"}})

    uses: dict[str, Callable[[Any], Any]] = {
        "list_sessions": lambda factory: factory.list_sessions("u1"),
        "export": lambda factory: export_history(factory, io.StringIO(), progress=False),
        "agent": agent,
    }

    def fail(try_: tuple[Place, str]) -> tuple[float, BaseException | None]:
        place, name = try_
        uri = place.with_options(f"{BRISK}&appName={name}").uri
        with MongoDBChatMessageHistory.factory(uri, timeout=TIMEOUT) as factory:
            return timed(partial(uses[name], factory))

    tries = list(itertools.product(all_gone, uses))
    with ThreadPoolExecutor(len(tries)) as pool:
        outcomes = list(pool.map(fail, tries))
    for (_, name), (seconds, error) in zip(tries, outcomes, strict=True):
        figure(f"{name} fails, timeout {TIMEOUT:g} s", seconds, at_most=TIMEOUT + SLACK, unit=" s")
        assert isinstance(error, HistoryReadError)
        assert "s3cr3t" not in f"{error} {error!r} {error.__cause__!r}"


@pytest.mark.gate(row=10)
def test_constructing(gone: Place, system: Any, figure: Any) -> None:
    """Making a history does nothing that waits."""
    there = gone if system.name == "memkit" else brisk(system, gone)
    seconds, _ = timed(lambda: system.history(there, "s1"))
    figure("construct", seconds * 1000, at_most=50, unit=" ms")


def use(system: Any, place: Place, verb: str) -> None:
    """One use of a history in one of the four ways."""
    history = system.history(place, "s1", timeout=TIMEOUT)
    if verb == "read":
        history.messages  # noqa: B018  # reading is the test
    elif verb == "write":
        history.add_messages([HumanMessage("x")])
    elif verb == "aread":
        asyncio.run(history.aget_messages())
    else:
        asyncio.run(history.aadd_messages([HumanMessage("x")]))


@pytest.mark.gate(row=10)
def test_failing(gone: Place, system: Any, figure: Any) -> None:
    """Reads and writes fail within `timeout`, typed, with the host and without the password in the text."""
    verbs = ["read", "write", "aread", "awrite"]
    there = brisk(system, gone)
    with ThreadPoolExecutor(len(verbs)) as pool:
        outcomes = list(pool.map(lambda verb: timed(lambda: use(system, there, verb)), verbs))
    for verb, (seconds, error) in zip(verbs, outcomes, strict=True):
        figure(f"{verb} fails, timeout {TIMEOUT:g} s", seconds, at_most=TIMEOUT + SLACK, unit=" s")
        assert error is not None, "no error"
        assert "s3cr3t" not in f"{error} {error!r} {error.__cause__!r}"
        assert "127.0.0.1" in str(error)
        if system.name == "memkit":
            assert isinstance(error, HistoryReadError if "read" in verb else HistoryWriteError)
            assert signature(MongoDBChatMessageHistory).parameters["timeout"].default == DEFAULT


CALLS = 64  # at once, twice as many as a client sends


def seconds_of_threads(histories: Any) -> list[float]:
    """How long each of the reads took until it failed, in threads."""

    def read(n: int) -> float:
        started = time.monotonic()
        with pytest.raises(HistoryReadError):
            histories(f"s{n}").messages  # noqa: B018  # reading is the test
        return time.monotonic() - started

    with ThreadPoolExecutor(CALLS) as pool:
        return list(pool.map(read, range(CALLS)))


def seconds_of_tasks(histories: Any) -> list[float]:
    """How long each of the reads took until it failed, on an event loop."""

    async def read(n: int) -> float:
        started = time.monotonic()
        with pytest.raises(HistoryReadError):
            await histories(f"s{n}").aget_messages()
        return time.monotonic() - started

    async def read_all() -> list[float]:
        return list(await asyncio.gather(*map(read, range(CALLS))))

    return asyncio.run(read_all())


@pytest.mark.gate(row=10, memkit_only=True)
@pytest.mark.parametrize(("gone", "how"), [("standalone", "silent")], indirect=True)
@pytest.mark.parametrize("seconds_of", [seconds_of_threads, seconds_of_tasks])
def test_failing_in_a_burst(gone: Place, seconds_of: Callable[[Any], list[float]], figure: Any) -> None:
    """Each of many reads at once fails within `timeout`, also those that wait for a place of the client."""
    with MongoDBChatMessageHistory.factory(gone.with_options(BRISK).uri, timeout=TIMEOUT) as histories:
        longest = max(seconds_of(histories))
    figure(f"{CALLS} reads at once fail, timeout {TIMEOUT:g} s", longest, at_most=TIMEOUT + SLACK, unit=" s")


def longest_pause(system: Any, place: Place) -> float:
    """Seconds for which the event loop did nothing else while an async read waited for the server."""
    beats: list[float] = []

    async def beat() -> None:
        while True:
            beats.append(time.monotonic())
            await asyncio.sleep(0.005)

    async def go() -> None:
        task = asyncio.create_task(beat())
        await asyncio.sleep(0.05)
        try:
            await system.history(place, "s1", timeout=TIMEOUT).aget_messages()
        finally:
            beats.append(time.monotonic())
            task.cancel()

    place = brisk(system, place)
    seconds, _ = timed(lambda: asyncio.run(go()))
    if seconds > GIVE_UP - 0.5:
        beats.append(time.monotonic())
    return max(b - a for a, b in itertools.pairwise(beats))


@pytest.mark.gate(row=10)
def test_event_loop_goes_on(gone: Place, system: Any, figure: Any) -> None:
    """While an async read waits for the server the event loop is never held up for long (median of three)."""
    tries = 3 if system.name == "memkit" else 1
    with ThreadPoolExecutor(tries) as pool:  # an event loop and a client each
        pauses = pool.map(lambda k: longest_pause(system, gone.with_options(f"appName=try{k}")), range(tries))
        lag = statistics.median(pauses)
    figure("event loop lag", lag * 1000, at_most=100, unit=" ms")


LEAVER = """
import sys
from langchain_memkit import MongoDBChatMessageHistory
MongoDBChatMessageHistory(sys.argv[1], "s1", sys.argv[2]).add_user_message("hello")
print("stored", flush=True)
sys.stdin.readline()
"""


@pytest.mark.gate(row=10, memkit_only=True)
@pytest.mark.parametrize("place", ["standalone"], indirect=True)  # through a proxy a node of a set is no different
def test_exit_does_not_wait(place: Place, wire: Any, figure: Any) -> None:
    """A process whose server has gone ends within `timeout`."""
    command = [sys.executable, "-c", LEAVER, wire.place.uri, place.database]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "stored\n"
        wire.go_down()
        started = time.monotonic()
        process.stdin.write("go\n")
        process.stdin.flush()
        try:
            process.wait(DEFAULT + GIVE_UP)
        except subprocess.TimeoutExpired:
            process.kill()
        seconds = time.monotonic() - started
    figure("exit of a process", seconds, at_most=DEFAULT + SLACK, unit=" s")
