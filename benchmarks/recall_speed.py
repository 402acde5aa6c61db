"""The speed part of benchmarks/recall.py: `VectorMemory` over SQLite and MongoDB beside the least that could be done.

Method. One user has 10,000 rounds (50 words in two messages, each word as often as in English) in sessions of 20, saved
through `VectorMemory`. Embedding is not measured: a stub gives each text a random vector of 384 numbers in 0.05 ms.
Everything is warm, in one process; the cases take turns, so that a slow minute hits all of them. Median and p95 of the
calls; read the ratios, not the milliseconds.

- `search` is `memory.search(question, k=10)`, `load` is `memory.load(question)`, which makes the note for the prompt.
  Both look whether something was stored elsewhere meanwhile. Their floor: a vector for the question, one product of a
  matrix and a vector in numpy, the ten best, and reading the ten texts by their keys.
- `save` stores one round in a session that has 20. Its floor: one insert of the same text and vector in one statement;
  in SQLite with the same journal and the same flush to the disk (WAL, synchronous=FULL), in MongoDB with the same write
  concern (w=majority, j=true). `save` has to know the session's last round before it writes.
- A million: 1,000 users with 1,000 rounds each in one SQLite file; then a new process that knows nothing yet asks 200
  questions of one user (the first one, which reads that user's records, is given apart), and one of each user.

Bars: search at most 15 ms (median) and 40 ms (p95). A save at most 3 ms on SQLite and 2.5 inserts on MongoDB. With a
million rounds a search at most 25 ms, and the process at most 300 MB then.
"""

from __future__ import annotations

import json
import random
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from bson import Binary
from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from benchmarks.measure import Case, alternate
from benchmarks.recall_texts import BEGIN, Lookup, question, rounds
from benchmarks.report import Row, ratio
from langchain_memkit import MongoDBVectorStore, SQLiteVectorStore, VectorMemory
from langchain_memkit.testing import local_mongodb

__all__ = ["FULL", "QUICK", "Scale", "speed"]

SESSION = 20
SQLITE, STANDALONE, REPLICA_SET = "sqlite", "standalone", "replica_set"

Texts = Sequence[tuple[str, np.ndarray[Any, Any]]]


@dataclass(frozen=True)
class Scale:
    """How much is measured. `budget`: seconds for one case, after its third run."""

    rounds: int = 10_000
    runs: int = 200
    budget: float = 30.0
    users: int = 1_000  # of the million
    each: int = 1_000


FULL = Scale()
QUICK = Scale(rounds=120, runs=3, budget=0.5, users=20, each=50)


@dataclass(frozen=True)
class Floor:
    """The least that could be done."""

    read: Callable[[list[int]], list[Any]]
    insert: Callable[[str, bytes], object]


# -- the places


@contextmanager
def places(deployment: str, texts: Texts) -> Iterator[tuple[Any, Floor]]:
    """A store of memkit's, and a floor that has these texts."""
    if deployment == SQLITE:
        with (
            tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder,
            closing(sqlite3.connect(Path(folder, "floor.db"), isolation_level=None)) as connection,
            closing(SQLiteVectorStore(Path(folder, "memkit.db"), Lookup())) as store,
        ):
            yield store, sqlite_floor(connection, texts)
        return
    with local_mongodb(nodes=3 if deployment == REPLICA_SET else 1) as server:
        client: MongoClient[dict[str, Any]] = MongoClient(server.uri)
        with client, closing(MongoDBVectorStore(server.uri, Lookup())) as store:
            yield store, mongodb_floor(client, texts)


def sqlite_floor(connection: sqlite3.Connection, texts: Texts) -> Floor:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE texts (id INTEGER PRIMARY KEY, text TEXT, vector BLOB)")
    insert = "INSERT INTO texts (text, vector) VALUES (?, ?)"
    connection.execute("BEGIN")
    connection.executemany(insert, [(text, vector.tobytes()) for text, vector in texts])
    connection.execute("COMMIT")

    def read(best: list[int]) -> list[Any]:
        keys = json.dumps([i + 1 for i in best])
        return connection.execute(
            "SELECT text FROM texts WHERE id IN (SELECT value FROM json_each(?))", [keys]
        ).fetchall()

    return Floor(read, lambda text, vector: connection.execute(insert, (text, vector)))


def mongodb_floor(client: MongoClient[dict[str, Any]], texts: Texts) -> Floor:
    database = client.get_database(
        "floor", write_concern=WriteConcern("majority", j=True), read_concern=ReadConcern("majority")
    )
    collection = database["texts"]
    collection.insert_many(
        [{"_id": i, "text": text, "vector": Binary(vector.tobytes())} for i, (text, vector) in enumerate(texts)]
    )
    return Floor(
        lambda best: list(collection.find({"_id": {"$in": best}}, {"text": 1})),
        lambda text, vector: collection.insert_one({"text": text, "vector": Binary(vector)}),
    )


# -- the cases


class Clock:
    """The time that the memories are told."""

    now: datetime = BEGIN

    def __call__(self) -> datetime:
        return self.now


def measure(deployment: str, scale: Scale) -> list[Row]:
    """All rows of a deployment."""
    stream, lookup = rounds("speed"), Lookup()
    stored = list(islice(stream, scale.rounds))
    lines = ["\n".join(f"{message.type}: {message.text}" for message in said) for _, said in stored]
    texts = [(line, np.array(lookup.embed_query(line), np.float32)) for line in lines]
    clock = Clock()
    with places(deployment, texts) as (store, floor):
        memories = VectorMemory.factory(store, now=clock)
        for begin in range(0, len(stored), SESSION):
            clock.now = stored[begin][0]
            said = [message for _, each in stored[begin : begin + SESSION] for message in each]
            memories(f"session-{begin}", "u1").save(said)
        matrix = np.array([vector for _, vector in texts])
        chance = random.Random(3)

        def least() -> None:
            scores = matrix @ np.array(lookup.embed_query(question(chance)), np.float32)
            best = np.argpartition(-scores, 10)[:10]
            assert len(floor.read([int(i) for i in best[np.argsort(-scores[best])]])) == 10

        def save() -> None:
            clock.now, said = next(stream)
            memories("session-0", "u1").save(said)

        def insert() -> None:
            _, said = next(stream)
            text = "\n".join(f"{message.type}: {message.text}" for message in said)
            floor.insert(text, np.array(lookup.embed_query(text), np.float32).tobytes())

        asking = memories("questions", "u1")
        cases = {
            ("search", "memkit"): lambda: asking.search(question(chance), k=10),
            ("load", "memkit"): lambda: asking.load(question(chance)),
            ("search", "floor"): least,
        }
        for warm in cases.values():
            warm()
        rows = timed(cases, deployment, scale)
        rows += timed({("save", "memkit"): save, ("save", "floor"): insert}, deployment, scale)
    return rows


def timed(cases: dict[tuple[str, str], Callable[[], object]], deployment: str, scale: Scale) -> list[Row]:
    """A row for each case, in turns."""
    made = [
        Case({"measurement": what, "deployment": deployment, "system": system, "rounds": scale.rounds}, run)
        for (what, system), run in cases.items()
    ]
    rows = alternate(made, scale.runs, scale.budget)
    p95 = [1000 * sorted(case.times)[int(0.95 * (len(case.times) - 1))] for case in made]
    return [{**row, "p95_ms": float(f"{ms:.4g}")} for row, ms in zip(rows, p95, strict=True)]


def million_rows(scale: Scale) -> Row:
    """The figures of a process of its own, over a file that another one has filled."""
    with tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.recall_million"]
        place = [str(Path(folder, "million.db")), str(scale.users), str(scale.each)]
        subprocess.run([*command, "fill", *place], check=True)
        done = subprocess.run([*command, "ask", *place], check=True, stdout=subprocess.PIPE, text=True)
    return {"measurement": "million", "deployment": SQLITE, "users": scale.users, **json.loads(done.stdout)}


# -- all of it


def speed(scale: Scale, *, million: bool) -> tuple[list[Row], list[Row]]:
    """All rows, and what is derived from them."""
    rows: list[Row] = []
    for deployment in (SQLITE, STANDALONE) if scale == QUICK else (SQLITE, STANDALONE, REPLICA_SET):
        rows += measure(deployment, scale)
    if million:
        rows.append(million_rows(scale))
    found = list(ratios(rows))
    if scale == QUICK:  # too small for a judgement
        found = [{key: value for key, value in row.items() if key not in ("bar", "holds")} for row in found]
    return rows, found


def ratios(rows: Sequence[Row]) -> Iterator[Row]:
    """Figures of memkit, and by the floor's."""
    at = {(row["deployment"], row["measurement"], row.get("system")): row for row in rows}
    for (deployment, what, system), row in at.items():
        place = {"deployment": deployment}
        if what == "million":
            yield ratio("search among a million, ms", row["search_ms"], "<= 25", **place)
            yield ratio("memory of the process, MB", row["process_mb"], "<= 300", **place)
            continue
        if system != "memkit":
            continue
        median, p95 = row["median_ms"], row["p95_ms"]
        by_floor = median / at[deployment, "save" if what == "save" else "search", "floor"]["median_ms"]
        if what == "save":
            yield ratio("save, ms", median, "<= 3" if deployment == SQLITE else None, **place)
            yield ratio("save / insert", by_floor, None if deployment == SQLITE else "<= 2.5", **place)
        else:
            yield ratio(f"{what}, ms", median, "<= 15" if what == "search" else None, **place)
            yield ratio(f"{what}, ms, p95", p95, "<= 40" if what == "search" else None, **place)
            yield ratio(f"{what} / floor", by_floor, **place)
