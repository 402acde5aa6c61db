"""What a turn costs with and without a memory: `python -m benchmarks.turn_costs`.

Method. One process, one SQLite file and one standalone mongod on this machine. A user has so many rounds in other
sessions; then turns go on in one session, plain ones and ones with a memory in turn, so that a slow minute hits all.
CPU is the process's own (`time.process_time`; threads of the driver included, the server not), medians of the turns.
Commands are what the driver sends while turns go on, statements what SQLite runs, without BEGIN and COMMIT. The model
is a fake that answers at once; the embedder is WordLlama, the product's default. Read the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from langchain_core.messages import AIMessage, HumanMessage
from pymongo import monitoring

from langchain_memkit import (
    EntityMemory,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    MongoDBVectorStore,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    SQLiteVectorStore,
    VectorMemory,
    WordLlamaEmbeddings,
    create_runnable_with_message_history,
)
from langchain_memkit.base import Mention
from langchain_memkit.testing import FakeChatModel, local_mongodb

TEXT = (
    "garden harbour violin recipe ladder winter mountain ticket doctor painting river camera blanket engine "
    "teacher passport lemon bicycle island concert window letter pepper theatre kitchen forest market jacket "
    "bridge sister brother holiday meeting project deadline invoice museum orchestra saddle compass lantern "
    "basket thunder pillow candle mirror puzzle rocket salad tunnel umbrella village wallet yoghurt zebra anchor "
    "balcony carpet dentist "
)
WORDS = TEXT.split()
NAMES = re.compile(r"\b(?:Nemo|Dory|Marlin|Coral|Gill|Bloat|Peach|Jacques|Bubbles|Gurgle|Pearl|Tad)\b")
PEOPLE = "Nemo Dory Marlin Coral Gill Bloat Peach Jacques Bubbles Gurgle Pearl Tad".split()  # noqa: SIM905  # a text
SIZES = (200, 2_000)
USER = "u1"


def found(text: str) -> list[Mention]:
    """A few names: an extractor's own time is not measured here, but all that follows is."""
    return [Mention(m.group(), "PERSON", m.start(), m.end()) for m in NAMES.finditer(text)]


def sentence(chance: random.Random, length: int) -> str:
    """Words by chance, as long as what people write."""
    said = " ".join(chance.choice(WORDS) for _ in range(length))
    return f"{said.capitalize()} with {chance.choice(PEOPLE)}."


def rounds(count: int, seed: int = 1) -> list[list[Any]]:
    """Turns of a user and a model."""
    chance = random.Random(seed)  # no secret
    return [[HumanMessage(sentence(chance, 12)), AIMessage(sentence(chance, 25))] for _ in range(count)]


class Sent(monitoring.CommandListener):
    """Counts the commands of the clients of this process, but for those that no turn waits for."""

    IGNORED = frozenset({"hello", "ismaster", "isMaster", "endSessions", "listIndexes", "ping"})

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        """Count one."""
        if event.command_name not in self.IGNORED:
            self.names[event.command_name] += 1

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        """Do nothing."""

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        """Do nothing."""


@contextmanager
def statements(counted: Counter[str]) -> Iterator[None]:
    """Count the statements of every SQLite connection that is opened meanwhile."""
    connect = sqlite3.connect

    def watched(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(lambda said: counted.update([said.split(None, 1)[0].upper()]))
        return connection

    sqlite3.connect = watched  # type: ignore[assignment]  # for the time of the measurement
    try:
        yield
    finally:
        sqlite3.connect = connect


def chain_of(histories: Any, memories: Sequence[Any]) -> Any:
    """A chain with a window of 20 messages."""
    return create_runnable_with_message_history(FakeChatModel(), histories, memories=memories)


def measured(
    chains: dict[str, Any], size: int, turns: int, style: str, counted: Counter[str], runner: asyncio.Runner
) -> Iterator[dict[str, Any]]:
    """Turn after turn, one of each chain, and what they cost."""
    chance = random.Random(size)  # no secret

    def turn(name: str, text: str) -> None:
        config: Any = {"configurable": {"session_id": f"{name}-{style}", "user_id": USER}}
        if style == "sync":
            chains[name].invoke(text, config)
        else:
            runner.run(chains[name].ainvoke(text, config))

    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in chains}
    sent: dict[str, Counter[str]] = {name: Counter() for name in chains}
    for i in range(turns + 5):
        for name in chains:
            text = sentence(chance, 12)
            counted.clear()
            cpu, wall = time.process_time(), time.perf_counter()
            turn(name, text)
            if i >= 5:  # the first ones open connections and sessions
                spent[name].append((time.process_time() - cpu, time.perf_counter() - wall))
                sent[name].update(counted)
    plain = median(cpu for cpu, _ in spent["plain"])
    for name, times in spent.items():
        cpu, wall = (median(column) for column in zip(*times, strict=True))
        commands = {command: round(count / turns, 2) for command, count in sorted(sent[name].items())}
        for quiet in ("BEGIN", "COMMIT"):
            commands.pop(quiet, None)
        yield {
            "style": style,
            "rounds": size,
            "memory": name,
            "cpu_ms": round(1000 * cpu, 2),
            "wall_ms": round(1000 * wall, 2),
            "times_plain": round(cpu / plain, 2),
            "commands": commands,
        }


def fill(memories: Any, size: int) -> None:
    """Other sessions of the user, 20 rounds each."""
    told = rounds(size)
    for i in range(0, size, 20):
        memories(f"old-{i}", USER).save([message for turn in told[i : i + 20] for message in turn])


def on_sqlite(folder: Path) -> tuple[Any, Any, Any]:
    """Histories and the stores of memories on a file."""
    path = str(folder / f"{uuid4()}.db")
    histories = SQLiteChatMessageHistory.factory(path, history_size=20)
    return histories, SQLiteVectorStore(path, WordLlamaEmbeddings()), SQLiteKeyValueStore(path)


def on_mongodb(uri: str) -> tuple[Any, Any, Any]:
    """The same on a server."""
    database = f"bench_{uuid4().hex[:8]}"
    histories = MongoDBChatMessageHistory.factory(uri, database, history_size=20)
    return histories, MongoDBVectorStore(uri, WordLlamaEmbeddings(), database), MongoDBKeyValueStore(uri, database)


def chains_of(histories: Any, store: Any, values: Any, size: int) -> dict[str, Any]:
    """A plain chain and one with each memory."""
    memories = {"vector": VectorMemory.factory(store), "entity": EntityMemory.factory(found, values)}
    for memory in memories.values():
        fill(memory, size)
    return {"plain": chain_of(histories, ())} | {
        name: chain_of(histories, [memory]) for name, memory in memories.items()
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=40, help="turns of each chain that are measured")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="rounds that the user has")
    parser.add_argument("--stores", nargs="+", default=("sqlite", "mongodb"), choices=("sqlite", "mongodb"))
    parser.add_argument("--styles", nargs="+", default=("sync", "async"), choices=("sync", "async"))
    parser.add_argument("--quick", action="store_true", help="few turns over few rounds, to see that it runs")
    options = parser.parse_args(arguments)
    if options.quick:
        options.turns, options.sizes = 5, (40,)
    listener = Sent()
    monitoring.register(listener)
    with tempfile.TemporaryDirectory() as folder:
        for store in options.stores:
            for size in options.sizes:
                with ExitStack() as stack:
                    counted: Counter[str] = Counter() if store == "sqlite" else listener.names
                    if store == "sqlite":
                        stack.enter_context(statements(counted))
                        parts = on_sqlite(Path(folder))
                    else:
                        parts = on_mongodb(stack.enter_context(local_mongodb()).uri)
                    runner = stack.enter_context(asyncio.Runner())
                    chains = chains_of(*parts, size)
                    for style in options.styles:
                        for row in measured(chains, size, options.turns, style, counted, runner):
                            print(json.dumps({"store": store, **row}), flush=True)
                    for part in parts:
                        part.close()
                        runner.run(part.aclose())


if __name__ == "__main__":
    main()
