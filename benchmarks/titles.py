"""Titles in a message among 100,000: `make bench`.

Method. Invented titles of two to six words, from the words of texts/english.txt and made-up ones, seeded. Messages are
passages of 50 words of texts/english.txt; every second one names a title with one typo (a letter put in, left out or
exchanged, or two that changed places, anywhere in it). Beside `KeyFinder`, the search of `KeyValueMemory`: the loop of
the book chapter, `for title in titles: if title in message`, which finds no typos; and rapidfuzz's `process.extractOne`
of `partial_ratio` over all titles, which does. All in one process, in turns.

Recall is the share of titles with a typo that are found; false hits are those in passages that name none.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz, process
from rich.console import Console
from rich.table import Table

from benchmarks.measure import Case, alternate
from benchmarks.report import environment, ratio, write
from langchain_memkit.matching.fuzzy import KeyFinder

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "titles.json"
SYLLABLES = re.findall(
    "[a-z]+", "ba be co da di fa go ha ka le li ma mo na ni po ra re sa se ta to va wi nor lin ser tan"
)
WORDS = 50
console = Console(markup=False, highlight=False, emoji=False)


def make_titles(count: int, words: Sequence[str], chance: random.Random) -> list[str]:
    """Invented titles, each once."""
    made = ["".join(chance.choices(SYLLABLES, k=chance.randint(2, 4))) for _ in range(4_000)]
    titles: set[str] = set()
    while len(titles) < count:
        some = [word.capitalize() for word in chance.choices([*words, *made], k=chance.randint(2, 6))]
        titles.add(" ".join(["The", *some] if chance.random() < 0.3 else some))
    return sorted(titles)


def with_typo(title: str, chance: random.Random) -> str:
    """The title with one typo."""
    i, letter = chance.randrange(1, len(title) - 1), chance.choice("abcdefghijklmnopqrstuvwxyz")
    change: Callable[[], str] = chance.choice(
        [
            lambda: title[:i] + letter + title[i:],
            lambda: title[:i] + title[i + 1 :],
            lambda: title[:i] + letter + title[i + 1 :],
            lambda: title[:i] + title[i + 1] + title[i] + title[i + 2 :],
        ]
    )
    changed = change()
    return with_typo(title, chance) if changed.lower() == title.lower() else changed


def measure(count: int, runs: int) -> dict[str, Any]:
    """All rows."""
    chance = random.Random(1)  # the same titles and typos in every run
    text = (HERE / "texts" / "english.txt").read_text(encoding="utf-8").split()
    words = sorted(set(re.findall(r"[a-z]{3,}", " ".join(text).lower())))
    titles = make_titles(count, words, chance)
    begin = time.perf_counter()
    finder = KeyFinder({title: title for title in titles}, min_score=88)
    built = time.perf_counter() - begin
    prose = [" ".join(text[i : i + WORDS]) for i in range(0, len(text) - WORDS, WORDS)]
    asked = chance.sample(titles, 1_000)
    found = sum(title in {f.key for f in finder.find(f"I read {with_typo(title, chance)} once.")} for title in asked)
    false = sum(f.kind == "fuzzy" for passage in prose for f in finder.find(passage))
    named = [f"{passage} {with_typo(chance.choice(titles), chance)}" if i % 2 else passage
             for i, passage in enumerate(prose)]  # fmt: skip
    few = named[:4]  # for the slow ones
    systems: dict[str, tuple[Callable[[str], object], list[str]]] = {
        "memkit": (finder.find, named),
        "title in message": (lambda message: [title for title in titles if title in message], few),
        "rapidfuzz extractOne": (
            lambda message: process.extractOne(message, titles, scorer=fuzz.partial_ratio, score_cutoff=88),
            few,
        ),
    }
    cases = [
        Case(
            {"measurement": "time", "system": name},
            run=lambda f=find, m=messages: [f(message) for message in m],  # type: ignore[misc]  # bound now
            calls=len(messages),
        )
        for name, (find, messages) in systems.items()
    ]
    rows = alternate(cases, runs, budget=20.0)
    quality = {"measurement": "typos", "titles": len(titles), "recall_percent": round(100 * found / len(asked), 1),
               "false_hits": false, "passages": len(prose), "build_seconds": round(built, 2)}  # fmt: skip
    took = {row["system"]: row["median_ms"] for row in rows}
    ratios = [
        ratio("ms of a message of 50 words", took["memkit"], bar="<= 5", system="memkit"),
        *(ratio(f"time, {name} / memkit", took[name] / took["memkit"]) for name in took if name != "memkit"),
    ]
    return {"rows": [quality, *rows], "ratios": ratios}


def show(result: dict[str, Any]) -> None:
    """Tables of it."""
    quality, *rows = result["rows"]
    console.print(", ".join(f"{name.replace('_', ' ')} {value}" for name, value in quality.items()))
    table = Table(title="A message of 50 words: median (min-max)")
    for name in ("system", "ms", "runs"):
        table.add_column(name)
    for row in rows:
        table.add_row(row["system"], f"{row['median_ms']} ({row['min_ms']}-{row['max_ms']})", str(row["runs"]))
    console.print(table)
    for figure in result["ratios"]:
        console.print(f"{figure['ratio']}: {figure['value']}")


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description="Titles in a message among 100,000.")
    parser.add_argument("--quick", action="store_true", help="5,000 titles, few runs; nothing is written by default")
    parser.add_argument("--output", type=Path, help=f"JSON file; default of a full run: {RESULTS.name}")
    options = parser.parse_args()
    place = environment(quick=options.quick)
    del place["write_concerns"]  # no database server here
    place["versions"] |= {name: version(name) for name in ("rapidfuzz", "ahocorasick-rs")}
    result = {**place, **measure(*((5_000, 3) if options.quick else (100_000, 21)))}
    show(result)
    write(result, options.output or (None if options.quick else RESULTS))


if __name__ == "__main__":
    main()
