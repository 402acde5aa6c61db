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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from pymongo import monitoring

from benchmarks.conversations import vocabulary
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
from langchain_memkit.testing import FakeChatModel
from tools.local_mongodb import local_mongodb

PEOPLE = ("Nemo", "Dory", "Marlin", "Coral", "Gill", "Bloat", "Peach", "Jacques", "Bubbles", "Gurgle", "Pearl", "Tad")
NAMES = re.compile(rf"\b(?:{'|'.join(PEOPLE)})\b")
SIZES = (200, 2_000)  # rounds that the user has
FIRST = 5  # turns that open connections and sessions, and do not count
USER = "u1"


def mentions(text: str) -> list[Mention]:
    """A few names: an extractor's own time is not measured here, but all that follows is."""
    return [Mention(m.group(), "PERSON", m.start(), m.end()) for m in NAMES.finditer(text)]


def sentence(chance: random.Random, length: int) -> str:
    return f"{' '.join(chance.choices(vocabulary(), k=length)).capitalize()} with {chance.choice(PEOPLE)}."


class Sent(monitoring.CommandListener):
    """Counts the commands of the clients of this process, but for those that no turn waits for."""

    IGNORED = frozenset({"hello", "ismaster", "isMaster", "endSessions", "listIndexes", "ping"})

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if event.command_name not in self.IGNORED:
            self.names[event.command_name] += 1

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


@contextmanager
def statements(counted: Counter[str]) -> Iterator[None]:
    """Counts the statements of every SQLite connection that is opened meanwhile."""
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


def chains_of(size: int, histories: Any, store: Any, values: Any) -> dict[str, Any]:
    """A plain chain and one with each memory, which knows other sessions of the user, 20 rounds each."""
    memories: dict[str, Any] = {"vector": VectorMemory.factory(store), "entity": EntityMemory.factory(mentions, values)}
    for memory in memories.values():
        chance = random.Random(1)
        for i in range(0, size, 20):
            rounds = range(min(20, size - i))
            pairs = [(HumanMessage(sentence(chance, 12)), AIMessage(sentence(chance, 25))) for _ in rounds]
            memory(f"old-{i}", USER).save([message for pair in pairs for message in pair])
    with_each: dict[str, list[Any]] = {"plain": [], **{name: [memory] for name, memory in memories.items()}}
    return {
        name: create_runnable_with_message_history(FakeChatModel(), histories, memories=used)
        for name, used in with_each.items()
    }


def measured(
    chains: dict[str, Any], size: int, turns: int, style: str, counted: Counter[str], runner: asyncio.Runner
) -> Iterator[dict[str, Any]]:
    """Turn after turn, one of each chain, and what they cost."""
    chance = random.Random(size)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in chains}
    sent: dict[str, Counter[str]] = {name: Counter() for name in chains}
    for i in range(turns + FIRST):
        for name, chain in chains.items():
            config: Any = {"configurable": {"session_id": f"{name}-{style}", "user_id": USER}}
            text = sentence(chance, 12)
            counted.clear()
            cpu, wall = time.process_time(), time.perf_counter()
            if style == "sync":
                chain.invoke(text, config)
            else:
                runner.run(chain.ainvoke(text, config))
            if i >= FIRST:
                spent[name].append((time.process_time() - cpu, time.perf_counter() - wall))
                sent[name].update(counted)
    plain = median(cpu for cpu, _ in spent["plain"])
    for name, times in spent.items():
        cpu, wall = (median(column) for column in zip(*times, strict=True))
        yield {
            "style": style,
            "rounds": size,
            "memory": name,
            "cpu_ms": round(1000 * cpu, 2),
            "wall_ms": round(1000 * wall, 2),
            "times_plain": round(cpu / plain, 2),
            "commands": {c: round(n / turns, 2) for c, n in sorted(sent[name].items()) if c not in ("BEGIN", "COMMIT")},
        }


def main() -> None:
    """Measures, and prints a line of JSON for each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=40, help="turns of each chain that are measured")
    parser.add_argument("--quick", action="store_true", help="few turns over few rounds, to see that it runs")
    options = parser.parse_args()
    turns, sizes = (5, (40,)) if options.quick else (options.turns, SIZES)
    listener = Sent()
    monitoring.register(listener)
    for size in sizes:
        for name in ("sqlite", "mongodb"):
            with ExitStack() as stack:
                counted: Counter[str] = Counter() if name == "sqlite" else listener.names
                parts: tuple[Any, ...]
                if name == "sqlite":
                    stack.enter_context(statements(counted))
                    path = str(Path(stack.enter_context(tempfile.TemporaryDirectory()), "chat.db"))
                    stores: Any = SQLiteVectorStore(path, WordLlamaEmbeddings()), SQLiteKeyValueStore(path)
                    parts = SQLiteChatMessageHistory.factory(path, history_size=20), *stores
                else:
                    uri = stack.enter_context(local_mongodb()).uri
                    stores = MongoDBVectorStore(uri, WordLlamaEmbeddings()), MongoDBKeyValueStore(uri)
                    parts = MongoDBChatMessageHistory.factory(uri, history_size=20), *stores
                runner = stack.enter_context(asyncio.Runner())
                chains = chains_of(size, *parts)
                for style in ("sync", "async"):
                    for row in measured(chains, size, turns, style, counted, runner):
                        print(json.dumps({"store": name, **row}), flush=True)
                for part in parts:
                    part.close()
                    runner.run(part.aclose())


if __name__ == "__main__":
    main()
