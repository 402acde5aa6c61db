"""memkit beside langchain-mongodb with langchain-core's RunnableWithMessageHistory: `make bench`.

Method. Everything is measured in one run, by one process: memkit on a SQLite file, then all systems on the same mongod,
a standalone server, and on the same replica set of three nodes, all on this machine. The systems take turns, run by
run, in alternating order, so that a slow minute hits all of them. Given are median, minimum and maximum. Read the
ratios, not the milliseconds.

- Same messages, same prompt, same model: a fake that answers at once. Each turn must give the model exactly 20 messages
  and the question, and each read must return the newest 20, or the run fails.
- memkit runs with its defaults (majority and journalled writes, majority reads, all its indexes) and `history_size=20`.
- On the replica set the peer's connection string asks for the same writes, `w=majority&journal=true`. On the standalone
  server it is measured as people run it (w=1, no journal), which is where memkit pays for what it promises; appends are
  measured there with equal writes, too.
- The peer gets one shared client and one kept history object per session, so no turn of its pays for a connection or an
  index. Its chain takes dict input, which reads the history once a turn. It is measured with
  `trim_messages(token_counter=len, max_tokens=20)`, and with its own `history_size=20`.
- Sessions: one for each size, filled before and brought back to its size after each turn, both untimed. The peer's is
  filled by `insert_many` of its own documents. memkit's twice: as an app leaves it, a row for two messages (copies of a
  row that memkit wrote), and as an import, one `add_messages` call, which makes rows of up to 100.
- The floor is bare pymongo: find the newest 20 messages, insert one turn, with memkit's write concern, documents like
  memkit's and one index, plus the chain alone, given its 20 messages from memory.
- Appends: new sessions, messages without ids. One call of 10,000 messages is measured whole on every side. Batches of
  two are measured in blocks of 40 calls, given per call.
- Kept histories are made from a connection string, as both packages document, in a process of their own: 500 on the
  standalone server, 100 on the replica set, where the threads of 500 of the peer's take all of a small machine.
- Bars: one call on the replica set is at least 100 times as fast as the peer's. With 100,000 messages stored a turn
  takes at most 1.3 times as long as with 20 (and as with 1,000: a short session costs one more look), and at any size
  at most twice the floor.
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.console import Console

from benchmarks.kept import kept_histories
from benchmarks.measure import Case, alternate
from benchmarks.report import environment, ratios, show, write
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
from langchain_memkit.testing import local_mongodb

RESULTS = Path(__file__).parent / "results" / "history.json"
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

console = Console(markup=False, highlight=False, emoji=False)
console.width = max(console.width, 124)  # of a file or a pipe, too


def say(text: str) -> None:
    console.print(f"{time.strftime('%H:%M:%S')}  {text}", style="dim")


def append_cases(systems: Sequence[tuple[History, dict[str, Any]]], scale: Scale) -> Iterator[list[Case]]:
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
            Case({"measurement": measurement, **row, "messages": size}, lambda f=function, s=system: f(s), calls=calls)  # type: ignore[misc]  # bound now
            for system, row in systems
        ]


def fill(systems: Sequence[tuple[Turns, dict[str, Any]]], scale: Scale) -> Iterator[tuple[Turns, str, dict[str, Any]]]:
    """A session for each system, shape and size."""
    for system, row in systems:
        shapes = ("pairs", "import") if isinstance(system, Memkit) else ("pairs",)
        for shape in shapes:
            for size in scale.sizes:
                session = f"{shape}-{system.name}-{size}"
                system.fill(session, size)
                system.take_back(session)
                yield system, session, {**row, "stored": size, "shape": shape}


def turn_cases(sessions: Sequence[tuple[Turns, str, dict[str, Any]]], deployment: str) -> list[Case]:
    """Rows 2: a chain turn in every session, and the chain alone."""
    chain = ChainAlone()
    cases = [Case({"measurement": "turn", "deployment": deployment, "system": "chain"}, chain.run)]
    for system, session, row in sessions:
        case = Case(
            {"measurement": "turn", **row},
            run=lambda s=system, i=session: s.turn(i),  # type: ignore[misc]  # bound now
            finish=lambda s=system, i=session: s.take_back(i),  # type: ignore[misc]  # bound now
        )
        cases.append(case)
    return cases


def read_cases(sessions: Sequence[tuple[Turns, str, dict[str, Any]]]) -> Iterator[Case]:
    """Rows 3: the newest 20 messages of every session; they must be the newest."""
    for system, session, row in sessions:
        if isinstance(system, (Memkit, Peer)):
            expected = [message.content for message in conversation(row["stored"])[-WINDOW:]]
            if [message.content for message in system.last(session)] != expected:
                raise AssertionError(f"{row}: these are not the newest {WINDOW} messages")
            yield Case({"measurement": "read_last_20", **row}, lambda s=system, i=session: s.last(i))  # type: ignore[misc]  # bound now


def measure(
    deployment: str,
    chains: Sequence[tuple[Turns, dict[str, Any]]],
    appends: Sequence[tuple[History, dict[str, Any]]],
    scale: Scale,
) -> Iterator[dict[str, Any]]:
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


def on_mongodb(deployment: str, nodes: int, scale: Scale, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
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

        def row(system: Turns) -> dict[str, Any]:
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


def concern(collection: Any) -> dict[str, Any]:
    """How a collection writes and reads; empty means as the server does by default."""
    return {"write": dict(collection.write_concern.document), "read": dict(collection.read_concern.document)}


def on_sqlite(scale: Scale, about: dict[str, Any]) -> Iterator[dict[str, Any]]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description="memkit beside langchain-mongodb and RunnableWithMessageHistory.")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works; no figures to quote")
    parser.add_argument("--output", type=Path, help="JSON file (default: benchmarks/results/history.json; quick: none)")
    options = parser.parse_args()
    scale = QUICK if options.quick else Scale()
    begin = time.monotonic()
    about = environment(quick=options.quick)
    rows: list[dict[str, Any]] = []
    with quiet_environment():
        for part in (
            on_sqlite(scale, about),
            on_mongodb("standalone", 1, scale, about),
            on_mongodb("replica_set", 3, scale, about),
        ):
            rows += part
    about["seconds"] = round(time.monotonic() - begin)
    result = {**about, "ratios": ratios(rows, quick=options.quick), "rows": rows}
    show(result, console)
    write(result, options.output or (None if options.quick else RESULTS))


if __name__ == "__main__":
    main()
