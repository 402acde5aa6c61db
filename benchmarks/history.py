"""memkit beside langchain-mongodb with langchain-core's RunnableWithMessageHistory: `make bench`.

docs/benchmarks.md says what is compared; all is measured in one run, by one process, the systems in turns. Besides:

- Each turn must give the model exactly 20 messages and the question, and each read must return the newest 20, or the
  run fails.
- On the replica set the peer's connection string asks for the writes that memkit makes, `w=majority&journal=true`. On
  the standalone server it is measured as people run it (w=1, no journal); appends there with equal writes, too.
- The peer gets one shared client and one kept history object per session, so no turn of its pays for a connection or an
  index. Its chain takes dict input, which reads the history once a turn.
- Sessions: one for each size, filled before and brought back to its size after each turn, both untimed. The peer's is
  filled by `insert_many` of its own documents. memkit's twice: as an app leaves it, a row for two messages (copies of a
  row that memkit wrote), and as an import, one `add_messages` call, which makes rows of up to 100.
- The floor is bare pymongo: find the newest 20 messages, insert one turn, with memkit's write concern, documents like
  memkit's and one index, plus the chain alone, given its 20 messages from memory.
- One call of 10,000 messages is measured whole. Batches of two are measured in blocks of 40 calls, given per call.
- Kept histories are made in a process of their own: 500 on the standalone server, 100 on the replica set, where the
  threads of 500 of the peer's take all of a small machine.
- Bars: one call on the replica set is at least 100 times as fast as the peer's. With 100,000 messages stored a turn
  takes at most 1.3 times as long as with 20 (and as with 1,000: a short session costs one more look), and at any size
  at most twice the floor.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from langchain_mongodb import MongoDBChatMessageHistory as PeerHistory
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from benchmarks.common import (
    Case,
    Row,
    alternate,
    arguments,
    environment,
    every,
    finish,
    median,
    one,
    ratio,
    say,
    unbarred,
)
from benchmarks.systems import (
    WINDOW,
    ChainAlone,
    Floor,
    History,
    Memkit,
    Peer,
    Turns,
    conversation,
    memkit_on_mongodb,
    memkit_on_sqlite,
)
from langchain_memkit import MongoDBChatMessageHistory
from tools.local_mongodb import local_mongodb

EQUAL = "w=majority&journal=true"


@dataclass(frozen=True)
class Scale:
    """How much is measured. `budget`: seconds for one case of appends or turns, after its third run."""

    sizes: tuple[int, ...] = (20, 1_000, 10_000, 100_000)
    one_call: int = 10_000
    pairs: int = 40
    append_runs: int = 9
    turn_runs: int = 31
    budget: float = 5.0
    histories: tuple[int, int] = (500, 100)  # standalone, replica set


QUICK = Scale(sizes=(20, 200), one_call=120, pairs=3, append_runs=3, turn_runs=3, budget=0.3, histories=(3, 3))


def append_cases(systems: Sequence[tuple[History, Row]], scale: Scale) -> Iterator[list[Case]]:
    """Rows 1: one long call, and many short ones."""
    many, few = conversation(scale.one_call), conversation(2)

    def long(system: History) -> None:
        system.add(f"long-{uuid4()}", many)

    def short(system: History) -> None:
        session = f"short-{uuid4()}"
        for _ in range(scale.pairs):
            system.add(session, few)

    for measurement, function, calls, size in (
        ("append_one_call", long, 1, scale.one_call),
        ("append_pairs", short, scale.pairs, 2),
    ):
        yield [
            Case({"measurement": measurement, **row, "messages": size}, partial(function, system), calls=calls)
            for system, row in systems
        ]


def fill(systems: Sequence[tuple[Turns, Row]], scale: Scale) -> Iterator[tuple[Turns, str, Row]]:
    """A session for each system, shape and size."""
    for system, row in systems:
        shapes = ("pairs", "import") if isinstance(system, Memkit) else ("pairs",)
        for shape in shapes:
            for size in scale.sizes:
                session = f"{shape}-{system.name}-{size}"
                system.fill(session, size)
                system.take_back(session)
                yield system, session, {**row, "stored": size, "shape": shape}


def turn_cases(sessions: Sequence[tuple[Turns, str, Row]], deployment: str) -> list[Case]:
    """Rows 2: a chain turn in every session, and the chain alone."""
    chain = ChainAlone()
    cases = [Case({"measurement": "turn", "deployment": deployment, "system": "chain"}, chain.run)]
    for system, session, row in sessions:
        back = partial(system.take_back, session)
        cases.append(Case({"measurement": "turn", **row}, partial(system.turn, session), finish=back))
    return cases


def read_cases(sessions: Sequence[tuple[Turns, str, Row]]) -> Iterator[Case]:
    """Rows 3: the newest 20 messages of every session; they must be the newest."""
    for system, session, row in sessions:
        if isinstance(system, (Memkit, Peer)):
            expected = [message.content for message in conversation(row["stored"])[-WINDOW:]]
            if [message.content for message in system.last(session)] != expected:
                raise AssertionError(f"{row}: these are not the newest {WINDOW} messages")
            yield Case({"measurement": "read_last_20", **row}, partial(system.last, session))


def measure(
    deployment: str,
    chains: Sequence[tuple[Turns, Row]],
    appends: Sequence[tuple[History, Row]],
    scale: Scale,
) -> Iterator[Row]:
    """Rows 1 to 3 of a deployment."""
    say(f"{deployment}: filling sessions of {', '.join(f'{size:,}' for size in scale.sizes)} messages")
    sessions = list(fill(chains, scale))
    time.sleep(1)  # what the servers still have to write
    say(f"{deployment}: reading the newest {WINDOW}")
    yield from alternate(list(read_cases(sessions)), scale.turn_runs, scale.budget)
    say(f"{deployment}: turns")
    yield from alternate(turn_cases(sessions, deployment), scale.turn_runs, scale.budget)
    for cases in append_cases(appends, scale):
        say(f"{deployment}: {cases[0].row['measurement']}, {cases[0].row['messages']:,} messages")
        yield from alternate(cases, scale.append_runs, scale.budget)


def on_mongodb(deployment: str, nodes: int, scale: Scale, about: Row) -> Iterator[Row]:
    """All rows on one server or replica set."""
    with local_mongodb(nodes=nodes) as server:
        uri = server.uri
        equal = f"{uri}{'&' if '?' in uri else '?'}{EQUAL}"
        usual = equal if nodes > 1 else uri
        memkit = memkit_on_mongodb(uri)
        peer, sized = Peer("peer", usual), Peer("peer_history_size", usual, WINDOW)
        strict = Peer("peer_equal_writes", equal) if usual != equal else None
        systems: list[Any] = [memkit, peer, sized, Floor(memkit)]
        about["versions"]["mongod"] = peer.client.server_info()["version"]
        concerns = about["write_concerns"][deployment] = {"memkit": concern(memkit.histories("any").collection)}
        for other in (peer, strict):
            if other:
                concerns[other.name] = concern(other.history("any").collection)

        def row(system: Turns) -> Row:
            return {"deployment": deployment, "system": system.name}

        appends = [(system, row(system)) for system in (memkit, peer, strict) if system]
        yield from measure(deployment, [(system, row(system)) for system in systems], appends, scale)
        count = scale.histories[nodes > 1]
        say(f"{deployment}: {count} kept histories")
        for kept in kept_histories({"memkit": uri, "peer": usual}, server.hosts, count):
            yield {"measurement": "kept_histories", "deployment": deployment, **kept}
        memkit.histories.close()
        for other in (peer, sized, strict):
            if other:
                other.client.close()


def concern(collection: Any) -> Row:
    """How a collection writes and reads; empty means as the server does by default."""
    return {"write": dict(collection.write_concern.document), "read": dict(collection.read_concern.document)}


def on_sqlite(scale: Scale, about: Row) -> Iterator[Row]:
    """Memkit in a file."""
    with tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder:
        memkit = memkit_on_sqlite(str(Path(folder, "chat.db")))
        about["write_concerns"]["sqlite"] = {"memkit": {"journal_mode": "WAL", "synchronous": "FULL"}}
        systems = [(memkit, {"deployment": "sqlite", "system": "memkit"})]
        yield from measure("sqlite", systems, systems, scale)
        memkit.histories.close()


@contextmanager
def quiet_environment() -> Iterator[None]:
    """No tracing, and enough open files for what the peer opens."""
    for name in ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING", "LANGCHAIN_TRACING_V2"):
        os.environ.pop(name, None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# -- what kept histories cost: connections on the servers and threads in the process


def kept_histories(uris: dict[str, str], hosts: tuple[str, ...], count: int) -> Iterator[Row]:
    """Makes histories from a connection string, as both packages document it, and uses each once.

    In a process of its own, so that what it leaves behind disturbs no other measurement.

    Args:
        uris: The connection string of each system, in the order in which they are measured.
        hosts: Every node of the deployment.
        count: How many histories.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        for system, uri in uris.items():
            yield {"system": system, **process.submit(_count, system, uri, hosts, count).result()}


def _count(system: str, uri: str, hosts: tuple[str, ...], count: int) -> Row:
    cls: Any = MongoDBChatMessageHistory if system == "memkit" else PeerHistory
    with ExitStack() as stack:
        observers = [
            stack.enter_context(MongoClient[Row](f"mongodb://{host}/?directConnection=true")) for host in hosts
        ]
        before = _connections(observers), threading.active_count()
        kept: list[Any] = []
        result: Row = {}
        try:
            for i in range(count):
                kept.append(cls(uri, f"kept-{i}", database_name=f"kept_{system}"))
                kept[-1].add_messages(conversation(2))
        except PyMongoError as error:  # a small machine may not bear so many: say how far it came
            result["stopped_by"] = type(error).__name__
        time.sleep(1)
        result |= {
            "histories": len(kept),
            "connections": _connections(observers) - before[0],
            "threads": threading.active_count() - before[1],
        }
        for history in kept:
            history.close()
    return result


def _connections(observers: list[MongoClient[Row]]) -> int:
    return sum(observer.admin.command("serverStatus")["connections"]["current"] for observer in observers)


# -- ratios


def ratios(rows: list[Row], *, quick: bool) -> list[Row]:
    """All ratios, those with a bar first; above 1 in `peer / memkit` means that memkit is faster."""
    deployments = dict.fromkeys(row["deployment"] for row in rows)
    found = [*turn_ratios(rows, list(deployments))]
    for deployment in deployments:
        if deployment != "sqlite":
            found += peer_ratios(rows, deployment)
    return sorted(unbarred(found) if quick else found, key=lambda row: str(row["ratio"]))


def turn_ratios(rows: list[Row], deployments: list[str]) -> Iterator[Row]:
    """How a turn grows with what is stored, and what it costs beside bare pymongo and the chain alone."""
    sizes = sorted({row["stored"] for row in rows if row["measurement"] == "turn" and "stored" in row})
    for deployment in deployments:
        where = {"measurement": "turn", "deployment": deployment}
        for shape in ("pairs", "import"):
            at = {size: median(rows, **where, system="memkit", shape=shape, stored=size) for size in sizes}
            place = {"deployment": deployment, "shape": shape}
            for size in sizes[:2]:
                place_of = {**place, "stored": sizes[-1]}
                yield ratio(f"turn({sizes[-1]:,}) / turn({size:,})", at[sizes[-1]] / at[size], "<= 1.3", **place_of)
            for size in sizes if deployment != "sqlite" else ():
                floor = median(rows, **where, system="floor", stored=size) + median(rows, **where, system="chain")
                yield ratio("turn / (floor + chain alone)", at[size] / floor, "<= 2", **place, stored=size)


def peer_ratios(rows: list[Row], deployment: str) -> Iterator[Row]:
    """The peer's time by memkit's."""
    place = {"deployment": deployment}
    for row in [row for row in every(rows, deployment=deployment) if "peer" in row["system"]]:
        same = {key: row[key] for key in ("measurement", "deployment", "messages", "stored", "shape") if key in row}
        if row["measurement"] == "kept_histories":
            ours = one(rows, **same, system="memkit")
            for what in ("connections", "threads"):
                each = [r[what] / r["histories"] for r in (row, ours)]
                yield ratio(f"{what} of a kept history, peer / memkit", each[0] / each[1], **place)
            continue
        bar = ">= 100" if (row["measurement"], deployment) == ("append_one_call", "replica_set") else None
        value = row["median_ms"] / median(rows, **same, system="memkit")
        detail = {key: row[key] for key in ("messages", "stored") if key in row}
        yield ratio(f"{row['measurement']}, {row['system']} / memkit", value, bar, **place, **detail)


def main() -> None:
    options = arguments("memkit beside langchain-mongodb and RunnableWithMessageHistory.").parse_args()
    scale = QUICK if options.quick else Scale()
    begin = time.monotonic()
    about = environment(quick=options.quick, packages=("langchain-mongodb", "pymongo")) | {"write_concerns": {}}
    rows: list[Row] = []
    with quiet_environment():
        rows += on_sqlite(scale, about)
        rows += on_mongodb("standalone", 1, scale, about)
        rows += on_mongodb("replica_set", 3, scale, about)
    about["seconds"] = round(time.monotonic() - begin)
    finish("history", options.output, about, rows, ratios(rows, quick=options.quick), full=not options.quick)


if __name__ == "__main__":
    main()
