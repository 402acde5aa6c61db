"""Part 4 of `benchmarks.context`: a turn through the factory, with a summarizing preprocessor, by messages stored."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from langchain_core.stores import BaseStore
from pymongo import MongoClient
from pymongo.database import Database

from benchmarks.measure import Case, alternate
from benchmarks.summaries import BUDGET, Summariser
from benchmarks.systems import KEYS, PROMPT, QUESTION, Memkit, Model, memkit_on_mongodb, memkit_on_sqlite
from langchain_memkit import (
    MongoDBKeyValueStore,
    SQLiteKeyValueStore,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.testing import local_mongodb

Config = dict[str, dict[str, str]]


def long_sessions(
    sizes: Sequence[int], runs: int, budget: float, say: Callable[[str], None], versions: dict[str, str]
) -> Iterator[dict[str, Any]]:
    """On SQLite and on a standalone mongod: the first turn over each session, later ones, and what these read."""
    with tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder:
        path = str(Path(folder, "chat.db"))
        memkit = memkit_on_sqlite(path, history_size=None)
        with SQLiteKeyValueStore(path) as store:
            yield from Sessions("sqlite", memkit, store, say).measure(sizes, runs, budget)
        memkit.histories.close()
    with local_mongodb() as server, MongoClient[dict[str, Any]](server.uri) as observer:
        versions["mongod"] = observer.server_info()["version"]
        memkit = memkit_on_mongodb(server.uri, history_size=None)
        with MongoDBKeyValueStore(server.uri) as store:
            sessions = Sessions("mongodb", memkit, store, say, observer["chat_history"])
            yield from sessions.measure(sizes, runs, budget)
        memkit.histories.close()


class Sessions:
    """The sessions of one backend, and a chain over them whose preprocessor summarizes into the same backend."""

    def __init__(
        self,
        backend: str,
        memkit: Memkit,
        store: BaseStore[str, dict[str, Any]],
        say: Callable[[str], None],
        database: Database[dict[str, Any]] | None = None,
    ) -> None:
        self._backend = backend
        self._memkit = memkit
        self._say = say
        self._database = database
        self._model = Model()
        self._summariser = Summariser()
        self._preprocessor = create_history_preprocessor(self._summariser, max_tokens=BUDGET, store=store)
        self._chain = create_runnable_with_message_history(
            PROMPT | self._model, memkit.histories, preprocessor=self._preprocessor, **KEYS
        )

    def measure(self, sizes: Sequence[int], runs: int, budget: float) -> Iterator[dict[str, Any]]:
        """The rows of this backend; the sessions take turns."""
        cases = []
        for size in sizes:
            session = f"pairs-{size}"
            self._say(f"{self._backend}: a session of {size:,} messages, and its first turn, which summarizes them")
            self._memkit.fill(session, size)
            self._memkit.take_back(session)
            yield self._first_turn(session, size)
            row = {"measurement": "turn", "backend": self._backend, "stored": size, **self._reads(session)}
            cases.append(
                Case(
                    row,
                    run=lambda s=session: self._turn(s),  # type: ignore[misc]  # bound now
                    finish=lambda s=session: self._memkit.take_back(s),  # type: ignore[misc]  # bound now
                )
            )
        self._say(f"{self._backend}: turns")
        calls = len(self._summariser.prompts)
        yield from alternate(cases, runs, budget)
        if len(self._summariser.prompts) != calls:
            raise AssertionError(f"{self._backend}: a turn that was measured wrote a summary")

    def _turn(self, session: str) -> None:
        config = {"configurable": {"session_id": session}}
        self._chain.invoke({"input": QUESTION}, config)  # type: ignore[arg-type]  # a config

    def _first_turn(self, session: str, size: int) -> dict[str, Any]:
        calls, begin = len(self._summariser.prompts), time.perf_counter()
        spent = self._summariser.spent
        self._turn(session)
        seconds = time.perf_counter() - begin - (self._summariser.spent - spent)
        self._memkit.take_back(session)
        row = {"measurement": "first_turn", "backend": self._backend, "stored": size}
        return {**row, "calls": len(self._summariser.prompts) - calls, "seconds": round(seconds, 2)}

    def _reads(self, session: str) -> dict[str, Any]:
        """What one turn reads: on MongoDB as the server's profiler says, on SQLite the rows that the history gave."""
        if self._database is None:
            window = self._preprocessor.window({"configurable": {"session_id": session}})
            messages: Any = self._memkit.histories(session).view(window=window).messages
            self._turn(session)
            reads: dict[str, Any] = {"rows": len({id(turn) for turn in messages.turns})}
        else:
            examined = profiled(self._database, lambda: self._turn(session))
            reads = {"rows": sum(examined.values()), **{f"rows_{name}": count for name, count in examined.items()}}
        self._memkit.take_back(session)
        return {**reads, "given": self._model.seen - 1}  # to the model, without the question


def profiled(database: Database[dict[str, Any]], run: Callable[[], object]) -> Counter[str]:
    """Documents that the server examined in reads, by collection, while something ran."""
    database.command("profile", 2)
    run()
    database.command("profile", 0)
    profile = database["system.profile"]
    examined: Counter[str] = Counter()
    for entry in profile.find({"op": {"$in": ["query", "getmore", "command"]}, "docsExamined": {"$exists": True}}):
        collection = entry["ns"].partition(".")[2]
        if not collection.startswith("system."):
            examined[collection] += entry["docsExamined"]
    profile.drop()
    return examined
