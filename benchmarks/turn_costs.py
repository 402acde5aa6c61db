"""What a turn costs with and without a memory, beside LangChain's: `python -m benchmarks.turn_costs`.

Method. One process, one SQLite file and one standalone mongod on this machine. A user has so many rounds in other
sessions; then turns go on in one session, those of each chain in turn, so that a slow minute hits all. CPU is the
process's own (`time.process_time`; threads of the driver included, the server not), medians of the turns. Commands are
what the driver sends while turns go on, statements what SQLite runs, without BEGIN and COMMIT. The model is a fake that
answers at once; the embedder is WordLlama, the product's default. Read the ratios.

The peer is LangChain's own: `RunnableWithMessageHistory` on langchain-mongodb's history with `history_size=20`, one
kept history for the session and one client. It has the same rounds in a `VectorStoreRetrieverMemory` of
langchain-classic around core's `InMemoryVectorStore`, read before the model and told of the turn after it. What it
remembers is in this process only, and its client writes as it does by default; memkit writes both to the server, with
majority and journal.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # else threads of numpy spin on into the turns of others

import asyncio
import random
import re
import sqlite3
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from langchain_classic.memory import VectorStoreRetrieverMemory
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as PeerHistory
from pymongo import MongoClient, monitoring

from benchmarks.common import Row, arguments, environment, finish, one, ratio
from benchmarks.conversations import vocabulary
from langchain_memkit import (
    EntityMemory,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
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
PAST = 11.0  # seconds, after which the other sessions are of the past: a memory reads again what came within ten
FIRST = 5  # turns that open connections and sessions, and do not count
PACKAGES = ("langchain-mongodb", "langchain-classic", "pymongo")
PEER, PEER_RECALLS = "peer", "peer with memory"


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


def known(size: int) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The user's other sessions, 20 rounds each."""
    chance = random.Random(1)
    for i in range(0, size, 20):
        yield f"old-{i}", [(sentence(chance, 12), sentence(chance, 25)) for _ in range(min(20, size - i))]


def chains_of(size: int, histories: Any, values: Any) -> dict[str, Any]:
    """A plain chain and one with each memory, which knows the other sessions; each has a user of its own."""
    memories: dict[str, Any] = {
        "vector": VectorMemory.factory(histories, WordLlamaEmbeddings()),
        "entity": EntityMemory.factory(histories, mentions),
    }
    for name, memory in memories.items():
        for session_id, rounds in known(size):
            for said, answer in rounds:
                memory(session_id, name).save([HumanMessage(said), AIMessage(answer)])
    with_each: dict[str, list[Any]] = {"plain": [], **{name: [memory] for name, memory in memories.items()}}
    return {
        name: create_runnable_with_message_history(FakeChatModel(), histories, memories=used)
        for name, used in with_each.items()
    }


class Peer:
    """A chain of LangChain's own parts, in the two call styles that are measured."""

    def __init__(self, client: Any, size: int | None) -> None:
        self.memory: Any = None
        history, notes = MessagesPlaceholder("history"), ("human", "{notes}\n\n{input}")
        chain: Any = ChatPromptTemplate([history, ("human", "{input}") if size is None else notes]) | FakeChatModel()
        kept: dict[str, Any] = {}

        def of(session_id: str) -> Any:
            if session_id not in kept:
                kept[session_id] = PeerHistory(None, session_id, client=client, history_size=20, database_name="peer")
            return kept[session_id]

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # LangChain has deprecated both classes
            if size is not None:
                retriever = InMemoryVectorStore(WordLlamaEmbeddings()).as_retriever()
                self.memory = VectorStoreRetrieverMemory(retriever=retriever, memory_key="notes", input_key="input")
                for _, rounds in known(size):
                    for said, answer in rounds:
                        self.memory.save_context({"input": said}, {"output": answer})
                chain = RunnablePassthrough.assign(notes=self.notes) | chain
            keys: dict[str, Any] = {"input_messages_key": "input", "history_messages_key": "history"}
            self.chain = RunnableWithMessageHistory(chain, of, **keys)

    def notes(self, given: dict[str, Any]) -> str:
        """What the memory knows of the question."""
        found: dict[str, str] = self.memory.load_memory_variables({"input": given["input"]})
        return found["notes"]

    def invoke(self, text: str, config: Any) -> None:
        """One turn."""
        answer = self.chain.invoke(
            {"input": text}, {"configurable": {"session_id": config["configurable"]["session_id"]}}
        )
        if self.memory:
            self.memory.save_context({"input": text}, {"output": answer.text})

    async def ainvoke(self, text: str, config: Any) -> None:
        """One turn, async."""
        session_id = config["configurable"]["session_id"]
        answer = await self.chain.ainvoke({"input": text}, {"configurable": {"session_id": session_id}})
        if self.memory:
            await self.memory.asave_context({"input": text}, {"output": answer.text})


def measured(
    chains: dict[str, Any], size: int, turns: int, style: str, counted: Counter[str], runner: asyncio.Runner
) -> Iterator[Row]:
    """Turn after turn, one of each chain, and what they cost."""
    chance = random.Random(size)
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in chains}
    sent: dict[str, Counter[str]] = {name: Counter() for name in chains}
    for i in range(turns + FIRST):
        for name, chain in chains.items():
            config: Any = {"configurable": {"session_id": f"{name}-{style}", "user_id": name}}
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
    for name, times in spent.items():
        cpu, wall = (median(column) for column in zip(*times, strict=True))
        yield {
            "measurement": "turn",
            "style": style,
            "rounds": size,
            "turn": name,
            "cpu_ms": round(1000 * cpu, 2),
            "median_ms": round(1000 * wall, 2),
            "commands": {c: round(n / turns, 2) for c, n in sorted(sent[name].items()) if c not in ("BEGIN", "COMMIT")},
        }


def derived(rows: list[Row]) -> Iterator[Row]:
    """CPU of each turn by that of a plain one, and the peers' time by ours."""
    for row in rows:
        where = {key: row[key] for key in ("store", "style", "rounds")}
        if row["turn"] in ("vector", "entity"):
            plain = one(rows, turn="plain", **where)["cpu_ms"]
            yield ratio(f"CPU, {row['turn']} / plain", row["cpu_ms"] / plain, **where)
        for peer, ours in ((PEER, "plain"), (PEER_RECALLS, "vector")):
            if row["turn"] == peer:
                yield ratio(
                    f"time, {peer} / {ours}", row["median_ms"] / one(rows, turn=ours, **where)["median_ms"], **where
                )


def main() -> None:
    """Measures, prints and, in a full run, writes."""
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=40, help="turns of each chain that are measured")
    options = parser.parse_args()
    turns, sizes = (5, (40,)) if options.quick else (options.turns, SIZES)
    listener = Sent()
    monitoring.register(listener)
    rows: list[Row] = []
    about = environment(quick=options.quick, packages=PACKAGES)
    for size in sizes:
        for name in ("sqlite", "mongodb"):
            with ExitStack() as stack:
                counted: Counter[str] = Counter() if name == "sqlite" else listener.names
                parts: tuple[Any, ...]
                peers: dict[str, Any] = {}
                if name == "sqlite":
                    stack.enter_context(statements(counted))
                    path = str(Path(stack.enter_context(tempfile.TemporaryDirectory()), "chat.db"))
                    parts = SQLiteChatMessageHistory.factory(path, history_size=20), SQLiteKeyValueStore(path)
                else:
                    uri = stack.enter_context(local_mongodb()).uri
                    parts = MongoDBChatMessageHistory.factory(uri, history_size=20), MongoDBKeyValueStore(uri)
                    client = stack.enter_context(MongoClient[dict[str, Any]](uri))
                    about["versions"]["mongod"] = client.server_info()["version"]
                    peers = {PEER: Peer(client, None), PEER_RECALLS: Peer(client, size)}
                runner = stack.enter_context(asyncio.Runner())
                chains = {**chains_of(size, *parts), **peers}
                time.sleep(0 if options.quick else PAST)
                for style in ("sync", "async"):
                    rows += [{"store": name, **row} for row in measured(chains, size, turns, style, counted, runner)]
                for part in parts:
                    part.close()
                    runner.run(part.aclose())
    finish("turn_costs", options.output, about, rows, list(derived(rows)), full=not options.quick)


if __name__ == "__main__":
    main()
