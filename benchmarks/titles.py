"""Titles in a message among 100,000: `make bench`.

Method. Invented titles of two to six words, from the words of texts/english.txt and made-up ones, seeded. Messages are
passages of 50 words of texts/english.txt; every second one names a title with one typo (a letter put in, left out or
exchanged, or two that changed places, anywhere in it). Beside `KeyFinder`, the search of `KeyValueMemory`: the loop of
the book chapter, `for title in titles: if title in message`, which finds no typos; and rapidfuzz's `process.extractOne`
of `partial_ratio` over all titles, which does. All in one process, in turns.

Recall is the share of titles with a typo that are found; false hits are those in passages that name none.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rapidfuzz import fuzz, process

from benchmarks.common import TEXTS, Case, alternate, arguments, environment, finish, for_each, ratio
from langchain_memkit.matching.fuzzy import KeyFinder

SYLLABLES = re.findall(
    "[a-z]+", "ba be co da di fa go ha ka le li ma mo na ni po ra re sa se ta to va wi nor lin ser tan"
)
WORDS = 50


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
    text = (TEXTS / "english.txt").read_text(encoding="utf-8").split()
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
            run=partial(for_each, find, [(message,) for message in messages]),
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


def main() -> None:
    """Runs it."""
    options = arguments("Titles in a message among 100,000.").parse_args()
    about = environment(quick=options.quick, packages=("rapidfuzz", "ahocorasick-rs"))
    result = measure(*((5_000, 3) if options.quick else (100_000, 21)))
    finish("titles", options.output, about, result["rows"], result["ratios"], full=not options.quick)


if __name__ == "__main__":
    main()
