"""The reliability gate: rows with bounds, on real servers. `make gate` measures memkit, `make gate-peer` the peer.

The same tests run against both. memkit must pass them all; the peer must fail every row by an assertion on data, order,
time or error type, else the row proves nothing new.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient

from tools.local_mongodb import local_mongodb

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE))  # --import-mode=importlib puts no folder of tests there

from gatekit import commands, record  # noqa: E402  # after the line above
from gatekit.report import BOUNDS, GateReport  # noqa: E402
from gatekit.systems import SYSTEMS, Place  # noqa: E402
from gatekit.wire import Wire  # noqa: E402

ROOT = HERE.parents[1]
TEST_LIMIT = 60.0  # seconds

PEER_WARNINGS = (  # of the peer and of what is asked of it; none of them is about memkit
    ("ignore::DeprecationWarning", "LangChain deprecates the classes of the peer"),
    ("ignore::PendingDeprecationWarning", "as above"),
    ("ignore::ResourceWarning", "its histories leave clients open"),
    ("ignore::pytest.PytestUnraisableExceptionWarning", "its histories leave sockets to the collector"),
    ("ignore::pytest.PytestUnhandledThreadExceptionWarning", "its waits are given up before they end"),
    ("ignore::UserWarning", "its clients are opened before a fork"),
    ("ignore::RuntimeWarning", "its coroutines are given up before they end"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--gate-system`: what the tests are pointed at."""
    parser.addoption("--gate-system", choices=sorted(SYSTEMS), default="memkit", help="what the gate measures")
    parser.addoption("--gate-nightly", action="store_true", help="longer rows: more turns, more examples, all races")
    parser.addoption("--gate-record", action="store_true", help="writes the committed record and docs/reliability.md")


def pytest_configure(config: pytest.Config) -> None:
    """One report per run."""
    config.stash[REPORT] = GateReport(
        _system_name(config), nightly=bool(config.getoption("gate_nightly", default=False))
    )


REPORT = pytest.StashKey[GateReport]()
SERVER_VERSION = pytest.StashKey[str]()


def _system_name(config: pytest.Config) -> str:
    return str(config.getoption("gate_system", default="memkit"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Notes the row of each test; leaves out what the system under test does not have."""
    system = SYSTEMS[_system_name(config)]
    dropped = []
    for item in [i for i in items if HERE in i.path.parents]:
        mark = item.get_closest_marker("gate")
        assert mark, f"{item.nodeid} names no row: @pytest.mark.gate(row=2)"
        row = f"R{mark.kwargs['row']}"
        assert row in BOUNDS, f"{item.nodeid} names a row that the gate does not have"
        item.user_properties.append(("gate_row", row))
        kind = item.callspec.params.get("place", "standalone") if hasattr(item, "callspec") else "standalone"
        if system.name == "peer":
            if kind not in system.stores or mark.kwargs.get("memkit_only"):
                dropped.append(item)
            for rule, _ in PEER_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(rule))
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in dropped]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    """Notes how a test failed, in one line."""
    report = yield
    if call.excinfo is not None and report.failed:
        asserted = call.excinfo.errisinstance((AssertionError, pytest.fail.Exception))
        text = record.scrubbed((str(call.excinfo.value).strip() or "failed").splitlines()[0])
        failure = ("assertion" if asserted else "error", f"{call.excinfo.typename}: {text}"[:160])
        report.user_properties.append(("gate_failure", failure))
    return report


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: Any) -> None:
    """Gathers the figures (through `pytest_configure`, since this hook knows no config)."""
    for gather in _gatherers:
        gather(report)


_gatherers: list[Callable[[Any], None]] = []


def pytest_sessionstart(session: pytest.Session) -> None:
    """Lets the reports reach the table."""
    _gatherers.append(session.config.stash[REPORT].add)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the figures. The peer's run succeeds if no row was passed by it; ours needs every row in its time."""
    gate = session.config.stash[REPORT]
    _gatherers.clear()
    if not gate.rows or hasattr(session.config, "workerinput"):
        return
    gate.save(ROOT / ".gate")
    if gate.system == "peer" and session.exitstatus in (0, 1):
        session.exitstatus = int(bool(gate.unbeaten()))
    elif session.exitstatus == 0 and gate.slow():
        session.exitstatus = 1
    if session.exitstatus == 0 and session.config.getoption("gate_record"):
        server = session.config.stash.get(SERVER_VERSION, "not used")
        record.write(gate.system, {**record.surroundings(server), **gate.content()})


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """The table of the run."""
    gate = config.stash[REPORT]
    if gate.rows:
        terminalreporter.section(f"gate: {gate.system}")
        gate.show(terminalreporter.write_line)


@pytest.fixture(autouse=True)
def bounded(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test runs for ever: after its limit it fails."""
    mark = request.node.get_closest_marker("gate")
    limit = float(mark.kwargs.get("limit", TEST_LIMIT))

    def give_up(*_: Any) -> None:
        raise AssertionError(f"took longer than {limit:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def figure(record_property: Callable[[str, Any], None]) -> Callable[..., None]:
    """`figure("turns", 80, at_least=50, unit="/s")`: notes a figure for the table, then asserts its bound."""

    def note(
        name: str, measured: float, *, at_most: float | None = None, at_least: float | None = None, unit: str = ""
    ) -> None:
        bound = f"<= {at_most:g}{unit}" if at_least is None else f">= {at_least:g}{unit}"
        good = (at_most is None or measured <= at_most) and (at_least is None or measured >= at_least)
        shown = f"{name}: {measured:.4g}{unit}"
        badness = measured if at_least is None else -measured
        noted = {"name": name, "measured": shown, "bound": bound, "passed": good, "badness": badness}
        record_property("gate_figure", noted)
        assert good, f"{shown}, must be {bound}"

    return note


@pytest.fixture(scope="session")
def system(request: pytest.FixtureRequest) -> Any:
    """What is measured."""
    return SYSTEMS[_system_name(request.config)]()


@pytest.fixture(scope="session")
def nightly(request: pytest.FixtureRequest) -> bool:
    """Whether the long form of the rows is asked for."""
    return bool(request.config.getoption("gate_nightly", default=False))


@pytest.fixture(scope="session")
def standalone(system: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A standalone server."""
    with local_mongodb() as server:
        with MongoClient(server.uri) as client:
            request.config.stash[SERVER_VERSION] = client.server_info()["version"]
        yield server
        system.leave(*server.hosts)


@pytest.fixture(scope="session")
def replica_set(system: Any) -> Iterator[Any]:
    """A replica set of three nodes, one for the whole run."""
    with local_mongodb(nodes=3) as server:
        yield server
        system.leave(*server.hosts)


@pytest.fixture(params=["standalone", "replica_set", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty database of the test's own on each kind of store."""
    if request.param == "sqlite":
        yield Place("sqlite", str(tmp_path / "chat.db"))
        return
    server = request.getfixturevalue(request.param)
    database = f"gate_{uuid4().hex[:12]}"
    yield Place(request.param, server.uri, database, server.hosts)
    with MongoClient(server.uri) as client:
        client.drop_database(database)


@pytest.fixture
def collection(place: Place) -> Iterator[Any]:
    """The collection of the place, behind the system's back."""
    with MongoClient(place.uri) as client:
        yield client[place.database]["message_store"]


@pytest.fixture(scope="session")
def forks() -> Any:
    """Processes that are forked from a warm parent without threads; `forks.Process(target=, args=)`."""
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["gatekit.warm"])
    return context


@pytest.fixture
def wires(place: Place, system: Any) -> Iterator[Callable[[], Any]]:
    """Makes proxies before the server (before its primary) that can delay, cut and go down; `.place` leads through."""
    with MongoClient(place.uri) as client:
        client.admin.command("ping")
        host, port = client.primary or client.address
    with contextlib.ExitStack() as stack:

        def make() -> Wire:
            proxy = stack.enter_context(Wire((host, port)))
            proxy.place = place.through(proxy.host).with_options(f"appName={uuid4().hex}")  # ports come back, names not
            stack.callback(system.leave, proxy.host)
            return proxy

        yield make


@pytest.fixture
def wire(wires: Callable[[], Any]) -> Any:
    """One of them."""
    return wires()


@pytest.fixture
def sent() -> Callable[[], Any]:
    """What gathers the names of the commands that clients made from now on send: a context manager."""
    return commands.sent
