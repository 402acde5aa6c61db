"""The speed part of benchmarks/recall.py: `VectorMemory` over SQLite and MongoDB beside the least that could be done.

Method. One user has 10,000 rounds (50 words in two messages, each word as often as in English) in sessions of 20, each
a turn of a history, imported and indexed by `VectorMemory`. Embedding is not measured: a stub gives each text a random
vector of 384 numbers in 0.05 ms. Everything is warm, in one process; the cases take turns, so that a slow minute hits
all of them. Median and p95 of the calls; read the ratios, not the milliseconds.

- `search` is `memory.search(question, k=10)`, `load` is `memory.load(question)`, which makes the note for the prompt.
  Both look whether something was stored elsewhere meanwhile. Their floor: a vector for the question, one product of a
  matrix and a vector in numpy, the ten best, and reading the ten texts by their keys.
- `save` stores one round in a session that has 20. Its floor: one insert of the same text and vector in one statement;
  in SQLite with the same journal and the same flush to the disk (WAL, synchronous=FULL), in MongoDB with the same write
  concern (w=majority, j=true). `save` has to know what of it is stored, and where the session ends, before it writes.
- On MongoDB what changed in the last ten seconds is read again at each look, since its marks are not in the order of
  commits: right after an import of 10,000 turns a question takes some 180 ms. The cases begin after that.
- A million: 1,000 users with 1,000 rounds each in one SQLite file; then a new process that knows nothing yet asks 200
  questions of one user (the first one, which reads that user's records, is given apart), and one of each user.

Bars: search at most 15 ms (median) and 40 ms (p95). A save at most 3 ms on SQLite and 2.5 inserts on MongoDB. With a
million rounds a search at most 25 ms, and the process at most 300 MB then.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
from bson import Binary
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pymongo import MongoClient
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from benchmarks.common import Case, Row, alternate, ratio, unbarred
from benchmarks.conversations import vocabulary
from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory, VectorMemory
from langchain_memkit.base import Turn
from langchain_memkit.migrate import migrate
from langchain_memkit.migrate.sources import Conversation, ConversationSource
from tools.local_mongodb import local_mongodb

ASKED, ANSWERED, QUESTION = 20, 30, 10  # words, about as many as in LoCoMo
BEGIN = datetime(2020, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
SETTLED = 11  # seconds, after which a bulk of writes on MongoDB is not looked at again

Round = tuple[datetime, list[BaseMessage]]
SESSION = 20
MILLION_SESSION, MILLION_QUESTIONS = 50, 200
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


# -- what is stored and asked: words in random order, with random vectors


class Lookup(Embeddings):
    """Stands for an embedder where all but embedding is timed: a random direction for each text, always the same.

    A text takes 0.05 ms, which is in the figures.
    """

    is_local = True

    def __init__(self, width: int = 384) -> None:
        self.width = width

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
        vector = np.random.default_rng(seed).standard_normal(self.width, np.float32)
        made: list[float] = (vector / np.linalg.norm(vector)).tolist()
        return made


def rounds(seed: str) -> Iterator[Round]:
    """A question and its answer with the hour in which they were said, without end; words as often as in English."""
    chance = random.Random(seed)
    for number in count():
        asked, answered = (" ".join(chance.choices(vocabulary(), k=words)) for words in (ASKED, ANSWERED))
        said: list[BaseMessage] = [
            HumanMessage(asked, id=f"{seed}-{number}-q"),
            AIMessage(answered, id=f"{seed}-{number}-a"),
        ]
        yield BEGIN + number * HOUR, said


def question(chance: random.Random) -> str:
    """Words as often as in English: half of them are stop words, and some of the others stand in many rounds."""
    return " ".join(chance.choices(vocabulary(), k=QUESTION))


class Clock:
    """The time that the histories and memories are told."""

    now: datetime = BEGIN

    def __call__(self) -> datetime:
        return self.now


# -- the places


@contextmanager
def places(deployment: str, texts: Texts, clock: Clock) -> Iterator[tuple[Any, Floor]]:
    """Histories of memkit's with this clock, and a floor that has these texts."""
    if deployment == SQLITE:
        with (
            tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder,
            closing(sqlite3.connect(Path(folder, "floor.db"), isolation_level=None)) as connection,
            SQLiteChatMessageHistory.factory(Path(folder, "memkit.db"), now=clock) as histories,
        ):
            yield histories, sqlite_floor(connection, texts)
        return
    with local_mongodb(nodes=3 if deployment == REPLICA_SET else 1) as server:
        client: MongoClient[dict[str, Any]] = MongoClient(server.uri)
        with client, MongoDBChatMessageHistory.factory(server.uri, now=clock) as histories:
            yield histories, mongodb_floor(client, texts)


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


def measure(deployment: str, scale: Scale) -> list[Row]:
    """All rows of a deployment."""
    stream, lookup = rounds("speed"), Lookup()
    stored = list(islice(stream, scale.rounds))
    lines = ["\n".join(f"{message.type}: {message.text}" for message in said) for _, said in stored]
    texts = [(line, np.array(lookup.embed_query(line), np.float32)) for line in lines]
    clock = Clock()
    with places(deployment, texts, clock) as (histories, floor):
        clock.now = stored[-1][0]
        memories = VectorMemory.factory(histories, lookup, now=clock)
        migrate(source_of({"u1": stored}, SESSION), histories, progress=False)
        memories("-", "u1").index(progress=False)
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
        if deployment != SQLITE:
            time.sleep(SETTLED)
        rows = timed(cases, deployment, scale)
        rows += timed({("save", "memkit"): save, ("save", "floor"): insert}, deployment, scale)
    return rows


def source_of(users: dict[str, list[Round]], size: int) -> ConversationSource:
    """The rounds of users in sessions of a size, of which each has the date of its first round."""

    def conversations() -> Generator[Conversation, None, None]:
        for user, stored in users.items():
            for begin in range(0, len(stored), size):
                yield Conversation(f"session-{begin}", user, partial(turns_of, stored[begin : begin + size]))

    return ConversationSource(conversations)


def turns_of(stored: Sequence[Round]) -> Iterator[Turn]:
    """Rounds as turns that are to be stored."""
    for number, (_, said) in enumerate(stored):
        yield Turn(0, 0, f"turn:{number}", stored[0][0], said, tokens=[])


def timed(cases: dict[tuple[str, str], Callable[[], object]], deployment: str, scale: Scale) -> list[Row]:
    """A row for each case, in turns."""
    made = [
        Case({"measurement": what, "deployment": deployment, "system": system, "rounds": scale.rounds}, run)
        for (what, system), run in cases.items()
    ]
    rows = alternate(made, scale.runs, scale.budget)
    p95 = [1000 * sorted(case.times)[int(0.95 * (len(case.times) - 1))] for case in made]
    return [{**row, "p95_ms": float(f"{ms:.4g}")} for row, ms in zip(rows, p95, strict=True)]


# -- a million rounds: one process fills a file, another asks


def million_rows(scale: Scale) -> Row:
    """The figures of a process of its own, over a file that another one has filled."""
    with tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder:
        command = [sys.executable, "-m", "benchmarks.recall_speed"]
        place = [str(Path(folder, "million.db")), str(scale.users), str(scale.each)]
        subprocess.run([*command, "fill", *place], check=True)
        done = subprocess.run([*command, "ask", *place], check=True, stdout=subprocess.PIPE, text=True)
    return {"measurement": "million", "deployment": SQLITE, "users": scale.users, **json.loads(done.stdout)}


def fill(path: Path, users: int, each: int) -> None:
    """Imports and indexes all, a user at a time; says every few seconds how far it is."""
    shown = time.monotonic()
    with SQLiteChatMessageHistory.factory(path, now=lambda: BEGIN + each * HOUR) as histories:
        memories = VectorMemory.factory(histories, Lookup())
        for user in range(users):
            name = f"user-{user}"
            migrate(source_of({name: list(islice(rounds(name), each))}, MILLION_SESSION), histories, progress=False)
            memories("-", name).index(progress=False)
            if time.monotonic() - shown > 20:
                shown = time.monotonic()
                print(f"          {(user + 1) * each:,} of {users * each:,} rounds", flush=True)


def ask(path: Path, users: int, each: int) -> dict[str, float]:
    """Searches of one user, then of every user once, in a process that has read nothing yet."""
    chance = random.Random(4)
    before = resident_mb()
    clock = Clock()
    clock.now += timedelta(days=90)
    with SQLiteChatMessageHistory.factory(path, now=clock) as histories:
        memories = VectorMemory.factory(histories, Lookup(), now=clock)

        def search(user: int) -> float:
            text = question(chance)
            begin = time.perf_counter()
            assert memories("questions", f"user-{user}").search(text, k=10)
            return 1000 * (time.perf_counter() - begin)

        first = search(users // 2)
        one = sorted(search(users // 2) for _ in range(MILLION_QUESTIONS))
        with_one = resident_mb()
        every = [search(user) for user in range(users)]
    found = {
        "rounds": users * each,
        "search_ms": statistics.median(one),
        "search_p95_ms": one[int(0.95 * (len(one) - 1))],
        "first_search_ms": first,
        "first_search_of_each_ms": statistics.median(every),
        "file_mb": path.stat().st_size / 1e6,
        "imported_mb": before,
        "process_mb": with_one,
        "process_after_each_mb": resident_mb(),
    }
    return {name: float(f"{value:.3g}") if name != "rounds" else value for name, value in found.items()}


def resident_mb() -> float:
    """Memory that the process has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])  # Linux
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


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
        found = unbarred(found)
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


if __name__ == "__main__":  # the two processes of the million
    what, *place = sys.argv[1:]
    file, users, each = Path(place[0]), int(place[1]), int(place[2])
    if what == "fill":
        fill(file, users, each)
    else:
        print(json.dumps(ask(file, users, each)))
