"""A million rounds of a thousand users in a SQLite file: one process fills it, another asks (see recall_speed.py)."""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from datetime import timedelta
from itertools import islice
from pathlib import Path

from benchmarks.recall_texts import BEGIN, Lookup, question, rounds
from langchain_memkit import SQLiteVectorStore, VectorMemory

SESSION, QUESTIONS = 50, 200


def fill(path: Path, users: int, each: int) -> None:
    """Saves all through `VectorMemory`, a session at a time; says every few seconds how far it is."""
    now, shown = BEGIN, time.monotonic()
    with VectorMemory.factory(SQLiteVectorStore(path, Lookup()), now=lambda: now) as memories:
        for user in range(users):
            stored = list(islice(rounds(f"user-{user}"), each))
            for begin in range(0, each, SESSION):
                now = BEGIN + timedelta(hours=begin)
                said = [message for _, pair in stored[begin : begin + SESSION] for message in pair]
                memories(f"session-{begin}", f"user-{user}").save(said)
            if time.monotonic() - shown > 20:
                shown = time.monotonic()
                print(f"          {(user + 1) * each:,} of {users * each:,} rounds", flush=True)


def ask(path: Path, users: int, each: int) -> dict[str, float]:
    """Searches of one user, then of every user once, in a process that has read nothing yet."""
    chance = random.Random(4)
    before = resident_mb()
    with VectorMemory.factory(SQLiteVectorStore(path, Lookup()), now=lambda: BEGIN + timedelta(days=90)) as memories:

        def search(user: int) -> float:
            text = question(chance)
            begin = time.perf_counter()
            assert memories("questions", f"user-{user}").search(text, k=10)
            return 1000 * (time.perf_counter() - begin)

        first = search(users // 2)
        one = sorted(search(users // 2) for _ in range(QUESTIONS))
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


def main() -> None:
    what, path, users, each = sys.argv[1:]
    if what == "fill":
        fill(Path(path), int(users), int(each))
    else:
        print(json.dumps(ask(Path(path), int(users), int(each))))


if __name__ == "__main__":
    main()
