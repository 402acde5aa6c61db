"""One page of all results: docs/benchmarks.md, its plots, and the six figures of the README: `make bench` ends with it.

Nothing is measured here, and no figure is written by hand: the words of the page stand in it, its tables are made of
benchmarks/results and of the gate's record, in seconds. A test finds a figure that was changed in one place only.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, Row, every, number, one

ROOT = Path(__file__).resolve().parents[1]
GATE = ROOT / "tests" / "gate" / "results"
PAGE, IMAGES, README = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "images", ROOT / "README.md"
PARTS = {
    "history": "Histories",
    "context": "Context",
    "sessions": "Sessions",
    "turn_costs": "Turns with memory",
    "tokens": "Token counters",
    "moving": "Moves between stores",
    "entities": "Entities",
    "titles": "Titles",
    "recall": "Recall",
    "followups": "Follow-ups",
    "gate memkit": "Reliability",
}
UNTOLD = "not recorded"
BLOCK = re.compile(r"<!-- made of the results: (.*?) -->\n.*?<!-- end -->", re.DOTALL)
BEGIN, END = "<!-- figures: made by python -m benchmarks.overview -->", "<!-- end of figures -->"
DEPLOYMENTS = {"sqlite": "SQLite file", "standalone": "MongoDB, standalone", "replica_set": "MongoDB, three nodes"}
Results = Mapping[str, dict[str, Any]]
"""The committed results by name: those of the benchmarks, and `gate memkit` and `gate peer`."""

Behind = Iterator[tuple[str, str, str, str]]
"""Part, what, memkit's figure, and what is ahead of it."""


# -- text


def duration(ms: float) -> str:
    """Three digits, in the unit that reads best."""
    return f"{number(ms)} ms" if ms < 1_000 else f"{number(ms / 1_000)} s"


def share(value: float) -> str:
    """A share of one, as the field writes it: .872. Results have four digits, so halves are met, and go up."""
    return str(Decimal(str(value)).quantize(Decimal(".001"), ROUND_HALF_UP)).replace("0.", ".")


def span(values: Iterable[float]) -> str:
    """The least and the most, or the one value of all."""
    found = [number(value) for value in sorted(values)]
    return found[0] if found[0] == found[-1] else f"{found[0]} to {found[-1]}"


def forms(values: Iterable[str]) -> str:
    """Different values, each once, in their order."""
    return "; ".join(dict.fromkeys(values))


def wrapped(text: str) -> str:
    """A paragraph on lines of up to 120 characters."""
    words = " ".join(text.split())
    return textwrap.fill(words, 120, break_long_words=False, break_on_hyphens=False)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""

    def line(cells: Sequence[str]) -> str:
        return "|" + "|".join(f" {cell.replace('|', '/')} " if cell else " " for cell in cells) + "|"

    return "\n".join([line(head), "|---" * len(head) + "|", *map(line, rows)])


def where_and_with(about: Mapping[str, Any]) -> tuple[str, str]:
    """The machine and the versions of a result; the gate says the same in other words."""
    machine = about["machine"]
    if not isinstance(machine, str):
        machine = f"{machine['cores']} cores, {machine['os'].split()[-1]}, Python {machine['python']}"
    return machine, ", ".join(f"{name} {value}" for name, value in about["versions"].items())


# -- histories

SYSTEMS = {
    "memkit": "memkit",
    "peer": "langchain-mongodb, `trim_messages`",
    "peer_history_size": "langchain-mongodb, `history_size=20`",
    "peer_equal_writes": "langchain-mongodb, majority and journal asked for",
    "floor": "bare pymongo",
    "chain": "the chain alone, messages from memory",
}
PLAIN = {**SYSTEMS, "peer": "langchain-mongodb"}  # where nothing is trimmed
ROWS = {"pairs": "two messages", "import": "an import"}
WHAT = {
    "turn": "a turn that sees the last 20",
    "read_last_20": "reading the last 20",
    "append_one_call": "messages in one call",
    "append_pairs": "two messages in a call",
}


def _sizes(rows: list[Row]) -> list[int]:
    return sorted({row["stored"] for row in rows if "stored" in row})


def _by_size(results: Results) -> str:
    rows, found = results["history"]["rows"], results["history"]["ratios"]
    sizes = _sizes(rows)
    lines = []
    peers = ("peer", "peer_history_size")
    for what, place, peer in product(("turn", "read_last_20"), ("standalone", "replica_set"), peers):
        name = "langchain-mongodb, all of it read" if (what, peer) == ("read_last_20", "peer") else SYSTEMS[peer]
        those = every(found, ratio=f"{what}, {peer} / memkit", deployment=place)
        ratios = (number(one(those, stored=size)["value"]) for size in sizes)
        lines.append((f"{WHAT[what]}, {DEPLOYMENTS[place]}", name, *ratios))
    return table(("peer / memkit, by messages stored", "", *(f"{size:,}" for size in sizes)), lines)


def _at_once(results: Results) -> str:
    rows, found = results["history"]["rows"], results["history"]["ratios"]
    lines = []
    for what, peer in product(("append_one_call", "append_pairs"), ("peer", "peer_equal_writes")):
        many = every(rows, measurement=what)[0]["messages"]
        title = f"{many:,} messages in one call" if what == "append_one_call" else WHAT[what]
        those = every(found, ratio=f"{what}, {peer} / memkit")
        for row in sorted(those, key=lambda row: list(DEPLOYMENTS).index(row["deployment"])):
            place = row["deployment"]
            at = every(rows, measurement=what, deployment=place)
            times = (f"{number(one(at, system=system)['median_ms'])} ms" for system in ("memkit", peer))
            lines.append((f"{title}, {DEPLOYMENTS[place]}", PLAIN[peer], number(row["value"]), *times))
    for what, place in product(("connections", "threads"), ("standalone", "replica_set")):
        ratio = one(found, ratio=f"{what} of a kept history, peer / memkit", deployment=place)
        kept = every(rows, measurement="kept_histories", deployment=place)
        ours, theirs = (one(kept, system=system) for system in ("memkit", "peer"))
        title = f"{what} of {ours['histories']} kept histories, {DEPLOYMENTS[place]}"
        lines.append((title, PLAIN["peer"], number(ratio["value"]), f"{ours[what]:,}", f"{theirs[what]:,}"))
    return table(("", "peer", "peer / memkit", "memkit", "peer"), lines)


def _turn_times(results: Results) -> str:
    rows = results["history"]["rows"]
    turns, sizes = every(rows, measurement="turn"), _sizes(rows)
    lines = []
    for place, name in DEPLOYMENTS.items():
        for system in ("memkit", "peer", "peer_history_size", "floor", "chain"):
            for shape in ("pairs", "import") if system == "memkit" else (None,):
                here = [r for r in every(turns, deployment=place, system=system) if shape in (None, r.get("shape"))]
                at = {row.get("stored", sizes[0]): number(row["median_ms"]) for row in here}
                title = SYSTEMS[system] + (f", rows of {ROWS[shape]}" if shape else "")
                if at:
                    lines.append((name, title, *(at.get(size, "") for size in sizes)))
    return table(("a turn, ms, by messages stored", "", *(f"{size:,}" for size in sizes)), lines)


def _growth(results: Results) -> str:
    found, sizes = results["history"]["ratios"], _sizes(results["history"]["rows"])
    lines = []
    for (place, name), shape in product(DEPLOYMENTS.items(), ROWS):
        those = every(found, deployment=place, shape=shape)
        names = (f"turn({sizes[-1]:,}) / turn({size:,})" for size in sizes[:2])
        grown = (number(one(those, ratio=ratio)["value"]) for ratio in names)
        floor = [row["value"] for row in every(those, ratio="turn / (floor + chain alone)")]
        lines.append((name, ROWS[shape], *grown, span(floor) if floor else ""))
    heads = (f"{sizes[-1]:,} / {size:,} stored" for size in sizes[:2])
    return table(("a turn of memkit", "rows of", *heads, "turn / (floor + chain)"), lines)


def histories_behind(results: Results) -> Behind:
    """Where the peer is faster, and bars that are missed."""
    result = results["history"]
    for row in result["ratios"]:
        what, _, rest = row["ratio"].partition(", ")
        if what in WHAT and row["value"] < 1:
            peer = rest.removesuffix(" / memkit")
            where = {key: row[key] for key in ("deployment", "messages", "stored") if key in row}
            ours, theirs = (
                every(result["rows"], measurement=what, system=system, **where)[0]["median_ms"]
                for system in ("memkit", peer)
            )
            stored = f", {row['stored']:,} stored" if "stored" in row else ""
            title = f"{WHAT[what]}, {DEPLOYMENTS[row['deployment']]}{stored}"
            yield ("Histories", title, f"{number(ours)} ms", f"{PLAIN[peer]}: {number(theirs)} ms")
    floors = every(result["ratios"], ratio="turn / (floor + chain alone)")
    times = f"{span(row['value'] for row in floors)} times"
    yield ("Histories", "time of a turn by that of bare pymongo and the chain alone", times, PLAIN["floor"])
    missed: dict[tuple[str, str, str], list[Row]] = {}
    for row in result["ratios"]:
        if not row.get("holds", True):
            missed.setdefault((row["ratio"], row["deployment"], row["shape"]), []).append(row)
    for (name, place, shape), those in missed.items():
        title = f"{name}, {DEPLOYMENTS[place]}, rows of {ROWS[shape]}"
        yield ("Histories", title, span(row["value"] for row in those), f"our bar: {those[0]['bar']}")


# -- moves


def _moves(results: Results) -> str:
    result = results["moving"]
    lines = []
    for row in every(result["ratios"], ratio="time, memkit / floor"):
        times = (
            one(result["rows"], move=row["move"], system=system)["median_ms"] / 1000 for system in ("memkit", "floor")
        )
        lines.append((row["move"], number(row["value"]), *(f"{number(seconds)} s" for seconds in times)))
    many = result["rows"][0]["messages"]
    return table((f"{many:,} messages", "memkit / floor", "memkit", "floor"), lines)


def moves_behind(results: Results) -> Behind:
    """The drivers alone are always faster; how much."""
    found = every(results["moving"]["ratios"], ratio="time, memkit / floor")
    yield (
        "Moves between stores",
        "time of a move by that of the drivers alone",
        f"{span(row['value'] for row in found)} times",
        "the drivers, which check nothing",
    )


# -- sessions


def _sessions(results: Results) -> str:
    rows = results["sessions"]["rows"]
    lines = []
    for row in every(results["sessions"]["ratios"], ratio="time, page 1,000 / page 1"):
        pages = every(rows, store=row["store"], measurement="page")
        found = (duration(each["median_ms"]) for each in every(rows, store=row["store"], measurement="search"))
        name, times = (
            {"sqlite": "SQLite", "mongodb": "MongoDB"}[row["store"]],
            (duration(p["median_ms"]) for p in pages),
        )
        lines.append((name, *times, number(row["value"]), str(pages[0]["commands"]), *found))
    return table(("", "page 1", "page 1,000", "ratio", "sent", "frequent word", "rare word", "no such word"), lines)


# -- turns with memory

TURNS = {
    "plain": "no memory",
    "vector": "`VectorMemory`",
    "entity": "`EntityMemory`",
    "peer": "langchain-mongodb, no memory",
    "peer with memory": "langchain-mongodb, and langchain-classic `VectorStoreRetrieverMemory`, which forgets on exit",
}


def _with_memory(results: Results) -> str:
    """A line for each kind of turn; sync and async, by rounds that the user has."""
    rows = results["turn_costs"]["rows"]
    sizes = sorted({row["rounds"] for row in rows})
    lines = []
    for store, turn in dict.fromkeys((row["store"], row["turn"]) for row in rows):
        found = [
            one(rows, store=store, turn=turn, rounds=size, style=style) for size in sizes for style in ("sync", "async")
        ]
        times = [f"{number(row['median_ms'])} / {number(row['cpu_ms'])}" for row in found]
        sent = "" if store == "sqlite" else str(round(sum(found[0]["commands"].values())))
        lines.append(
            ({"sqlite": "SQLite file", "mongodb": DEPLOYMENTS["standalone"]}[store], TURNS[turn], *times, sent)
        )
    head = (f"{size:,} rounds, {style}" for size in sizes for style in ("sync", "async"))
    return table(("a turn, ms / of them CPU", "with", *head, "commands"), lines)


def turns_behind(results: Results) -> Behind:
    """Peers whose turn took less time."""
    for row in results["turn_costs"]["ratios"]:
        if row["ratio"].startswith("time, ") and row["value"] < 1:
            peer, ours = row["ratio"].removeprefix("time, ").split(" / ")
            where = {key: row[key] for key in ("store", "style", "rounds")}
            times = [
                duration(one(results["turn_costs"]["rows"], turn=turn, **where)["median_ms"]) for turn in (ours, peer)
            ]
            what = f"a turn with {TURNS[ours]}, {row['rounds']:,} rounds, MongoDB, standalone, {row['style']}"
            yield ("Turns with memory", what, times[0], f"{TURNS[peer]}: {times[1]}")


# -- the gate


def _gate_pairs(results: Results) -> Iterator[tuple[str, Row, Row]]:
    """Each row's figures that both systems have: ours, theirs."""
    for name, row in results["gate peer"]["rows"].items():
        ours = {figure["name"]: figure for figure in results["gate memkit"]["rows"][name]["figures"]}
        for theirs in row["figures"]:
            if theirs["name"] in ours:
                yield name, ours[theirs["name"]], theirs


def _value(figure: Row) -> str:
    return str(figure["measured"]).removeprefix(f"{figure['name']}: ")


def _reliability(results: Results) -> str:
    lines = [
        (name, ours["name"].replace("replica_set", "three nodes"), _value(ours), _value(theirs), theirs["bound"])
        for name, ours, theirs in _gate_pairs(results)
    ]
    return table(("", "", "memkit", "langchain-mongodb", "bound"), lines)


def reliability_behind(results: Results) -> Behind:
    """Bounded figures in which memkit is worse by more than a twentieth."""
    for name, ours, theirs in _gate_pairs(results):
        if theirs["bound"].startswith("<=") and ours["badness"] > 1.05 * theirs["badness"]:
            yield "Reliability", f"{name}: {theirs['name']}", _value(ours), f"langchain-mongodb: {_value(theirs)}"


# -- what fits

SUMMARIZERS = {
    "memkit": "memkit, its defaults for 8,000 tokens",
    "middleware": "`SummarizationMiddleware` at 6,000 tokens, its other defaults",
    "middleware keep=2400": '`SummarizationMiddleware`, `keep=("tokens", 2400)`',
    "middleware untrimmed": '`SummarizationMiddleware`, `keep=("tokens", 2400)`, `trim_tokens_to_summarize=None`',
    "buffer, memory": "`ConversationSummaryBufferMemory`, 6,000 tokens, history in memory",
    "buffer, store": "`ConversationSummaryBufferMemory`, 6,000 tokens, over a store, which it cannot cut",
    "langmem": "langmem `summarize_messages(max_tokens=8000)`",
    "langmem 6000": "langmem, `max_tokens_before_summary=6000`",
}
SUMMARY_FIGURES = {
    "calls": "{calls:,}",
    "input / conversation": "{input_share:.2f}",
    "gone unseen": "{gone_unseen:,}",
    "given twice": "{given_twice:,}",
    "broken pairs": "{broken_views:,}",
    "without question": "{without_question:,}",
    "over budget": "{over_budget:,}",
    "ms a turn": "{median_ms:.2g}",
}
ASKED = {
    "median_ms": ("a turn of the preprocessor piped by hand", number, " ms"),
    "calls": ("calls of the summarizer", number, ""),
    "input_share": ("tokens given to the summarizer by those of the conversation", share, ""),
}
BACKENDS = {"sqlite": DEPLOYMENTS["sqlite"], "mongodb": DEPLOYMENTS["standalone"]}
COUNTERS = {
    "default": ("approximate", ""),
    "exact": ("o200k_base", ""),
    "stored": ("o200k_base", "stored"),
}
MODES = {
    "default": "approximate, the same counts",
    "exact": "exact o200k_base",
    "stored": "exact, counts stored with the messages",
}


# -- trimming


def _trimming(*, ratios: bool) -> Callable[[Results], str]:
    """By budget, counter and size: the peer's time by memkit's, or the times themselves."""

    def made(results: Results) -> str:
        trims, found = every(results["context"]["rows"], measurement="trim"), results["context"]["ratios"]
        sizes = sorted({row["messages"] for row in trims})
        lines: list[tuple[str, ...]] = []
        for budget in dict.fromkeys(row["budget"] for row in trims):
            to = f"to {budget} {'of the tokens' if budget.endswith('%') else 'tokens'}"
            for mode, title in MODES.items():
                if ratios:
                    where = {"ratio": "trim_messages / memkit", "counter": mode, "budget": budget}
                    lines.append((to, title, *(number(one(found, messages=n, **where)["value"]) for n in sizes)))
                    continue
                counter, form = COUNTERS[mode]
                at = every(trims, counter=counter, budget=budget)
                ours = (one(at, system="memkit", messages=n, form=form)["median_ms"] for n in sizes)
                lines.append((to, f"memkit, {title}", *map(number, ours)))
                if mode != "stored":
                    theirs = (every(at, system="trim_messages", messages=n) for n in sizes)
                    least = (number(min(row["median_ms"] for row in those)) for those in theirs)
                    lines.append((to, f"`trim_messages`, {title}", *least))
        head = ("`trim_messages` / memkit, by messages", "counter") if ratios else ("ms, by messages", "")
        return table((*head, *(f"{n:,}" for n in sizes)), lines)

    return made


# -- summaries


def _summaries(results: Results) -> str:
    found = every(results["context"]["rows"], measurement="summaries")
    words = sorted({row["words"] for row in found})
    lines = []
    for system, name in SUMMARIZERS.items():
        those = [one(found, system=system, words=size) for size in words]
        stopped = [" (stopped)" if "stopped_after_seconds" in row else "" for row in those]
        cells = (" / ".join(form.format(**row) for row in those) for form in SUMMARY_FIGURES.values())
        lines.append((name + (stopped[0] if all(stopped) else ""), *cells))
    return table((f"messages of {' / '.join(map(str, words))} words", *SUMMARY_FIGURES), lines)


def _facts(results: Results) -> str:
    found = every(results["context"]["rows"], measurement="facts")
    scenarios = list(dict.fromkeys(row["scenario"] for row in found))
    asked = ("fact_in_first_input", "fact_in_second_prompt", "fact_in_last_view", "message_0_in_its_log")
    lines = []
    for system, name in SUMMARIZERS.items():
        here = [one(found, system=system, scenario=scenario) for scenario in scenarios]
        shown = [" / ".join("yes" if row[key] else "no" for row in here) for key in asked]
        lines.append((name, *shown, " / ".join(f"{row['gone_unseen']:,}" for row in here)))
    head = ("shown to the summarizer", "in its next input", "in the last turn", "message still stored", "gone unseen")
    return table((f"conversation {' / '.join(scenarios)}", *head), lines)


# -- turns


def _turns(results: Results) -> str:
    rows = results["context"]["rows"]
    lines = []
    for row in every(rows, measurement="turn"):
        before = one(rows, measurement="first_turn", backend=row["backend"], stored=row["stored"])
        cells = (f"{row['stored']:,}", f"{number(row['median_ms'])} ms", str(row["rows"]), str(row["given"]))
        lines.append((BACKENDS[row["backend"]], *cells, f"{number(before['seconds'])} s, {before['calls']} calls"))
    return table(("", "stored", "a turn", "rows read", "messages given", "first turn over all of it"), lines)


def context_behind(results: Results) -> Behind:
    """Trims and turns in which a peer is faster, and summaries for which another asks the model less often."""
    rows = results["context"]["rows"]
    for row in every(results["context"]["ratios"], ratio="trim_messages / memkit"):
        if row["value"] < 1:
            title = f"trimming {row['messages']:,} messages to {row['budget']}, {MODES[row['counter']]}"
            yield ("Context", title, "", f"`trim_messages`: {number(row['value'])} of its time")
    found = every(rows, measurement="summaries")
    for system, name in list(SUMMARIZERS.items())[1:]:
        pairs = [(one(found, system="memkit", words=r["words"]), r) for r in every(found, system=system)]
        for key, (what, text, unit) in ASKED.items():
            those = [(ours, theirs) for ours, theirs in pairs if theirs[key] < ours[key]]
            if those:
                sizes = ", ".join(str(ours["words"]) for ours, _ in those)
                mine, others = (" / ".join(text(pair[side][key]) for pair in those) + unit for side in (0, 1))
                unseen = sum(theirs["gone_unseen"] for _, theirs in those) if key != "median_ms" else 0
                note = f" ({unseen} messages gone unseen)" if unseen else ""
                yield ("Context", f"{what}, messages of {sizes} words", mine, f"{name}: {others}{note}")


# -- counters


def _counters(results: Results) -> str:
    rows, found = results["tokens"]["rows"], results["tokens"]["ratios"]
    lines = []
    for row in every(rows, measurement="error"):
        text = row["text"]
        times = (
            number(1000 * one(rows, measurement="time", text=text, counter=name)["median_ms"])
            for name in ("approximate", "langchain-core", "o200k_base")
        )
        lines.append((text, number(one(found, text=text)["value"]), *times, f"{row['error_percent']:+.1f}%"))
    head = (
        "time, langchain-core / memkit",
        "memkit, µs",
        "langchain-core, µs",
        "exact o200k_base, µs",
        "error of memkit's",
    )
    return table(("", *head), lines)


def counters_behind(results: Results) -> Behind:
    """Texts of which the default counter says far too little."""
    low = [row for row in every(results["tokens"]["rows"], measurement="error") if row["error_percent"] < -10]
    for row in low:
        error = span([row["error_percent"]])
        yield ("Token counters", f"the default counter, {row['text']}", f"{error}%", "exact counts: name an encoding")


# -- what is recalled

METRICS = ("recall within 512", "recall within 1,024", "recall within 2,048", "recall@10", "MRR")
PACKAGES = {
    "VectorStoreRetrieverMemory": "langchain-classic `VectorStoreRetrieverMemory`",
    "TimeWeightedVectorStoreRetriever": "langchain-classic `TimeWeightedVectorStoreRetriever`",
    "langgraph InMemoryStore": "langgraph `InMemoryStore`",
    "LlamaIndex VectorMemory": "LlamaIndex `VectorMemory`",
    "mem0 infer=False": "mem0, `infer=False`",
}
WORDS = "BM25, stems"
REFERENCES = {
    "BM25 and cosine, ranks fused": "BM25 and cosine, ranks fused (no package)",
    WORDS: "BM25 of stems (no package)",
}
NAMES = {"memkit": "memkit `VectorMemory`", **PACKAGES, **REFERENCES}
EMBEDDERS = {"minilm": "MiniLM", "wordllama": "WordLlama", "none": "none"}
GUIDE = "SpacyEntityMemory"


# -- entities


def _entity_ratios(results: Results) -> str:
    found = results["entities"]["ratios"]
    lines = []
    for what, where in (
        ("characters injected, p95", {"talk": "all"}),
        ("time of a save", {"system": "memkit"}),
        ("time of a question", {"system": "memkit"}),
    ):
        lines.append((what, number(one(found, ratio=f"{what}, {GUIDE} / memkit", **where)["value"])))
    return table(("", "the guide's class / memkit"), lines)


def _entities(results: Results) -> str:
    rows, data = results["entities"]["rows"], results["entities"]["data"]
    systems = (GUIDE, "memkit", "memkit, no speakers", "memkit, SQLite")
    stored = [one(rows, measurement="stored", talk="all", system=name) for name in systems]
    given = [one(rows, measurement="injected", talk="all", system=name) for name in systems]

    def timed(what: str) -> list[str]:
        those = [every(rows, measurement=what, system=name) for name in systems]
        return [f"{number(row[0]['median_ms'])} ms" if row else "" for row in those]

    lines = [
        ("messages naming a speaker, stored under the name", *(f"{r['held']:,} of {r['naming']:,}" for r in stored)),
        ("keys; of them dates or numbers, by spaCy's labels", *(f"{r['keys']}; {r['junk_by_label']}" for r in stored)),
        ("the largest entity, of all characters", *(f"{r['largest_percent']}%" for r in stored)),
        ("characters for a question: median, most", *(f"{r['median']:,}, {r['max']:,}" for r in given)),
        ("questions that get nothing", *(f"{r['nothing']:,} of {r['questions']:,}" for r in given)),
        ("a message saved", *timed("save")),
        ("a question", *timed("load")),
    ]
    head = ("the guide's class", *(f"`EntityMemory`{name.removeprefix('memkit')}" for name in systems[1:]))
    return table((f"{data['talks']} conversations, {data['messages']:,} messages", *head), lines)


def entities_behind(results: Results) -> Behind:
    """Where the guide's class is faster."""
    rows = results["entities"]["rows"]
    for what in ("save", "load"):
        guide = one(rows, measurement=what, system=GUIDE)["median_ms"]
        for row in every(rows, measurement=what):
            if row["median_ms"] > guide:
                yield ("Entities", f"{what}, {row['system']}", f"{number(row['median_ms'])} ms", f"{number(guide)} ms")


# -- titles


def _titles(results: Results) -> str:
    typos, *timed = results["titles"]["rows"]
    ratios = {row["ratio"]: row["value"] for row in results["titles"]["ratios"]}
    lines = [("`KeyFinder` of `KeyValueMemory`", "", f"{number(one(timed, system='memkit')['median_ms'])} ms")]
    for name, title in (
        ("title in message", "`title in message`, title by title"),
        ("rapidfuzz extractOne", "rapidfuzz `process.extractOne` of `partial_ratio`"),
    ):
        ratio = number(ratios[f"time, {name} / memkit"])
        lines.append((title, ratio, f"{number(one(timed, system=name)['median_ms'])} ms"))
    return table((f"a message among {typos['titles']:,} titles", "peer / memkit", "time"), lines)


def _typos(results: Results) -> str:
    typos = results["titles"]["rows"][0]
    lines = [
        ("titles with one typo that are found", f"{typos['recall_percent']}%"),
        (f"titles found that nobody meant, {typos['passages']} passages", str(typos["false_hits"])),
        ("making the index, once", f"{typos['build_seconds']} s"),
    ]
    return table(("memkit", ""), lines)


def titles_behind(results: Results) -> Behind:
    """What a loop over the titles does not do: it finds only what is written."""
    typos = results["titles"]["rows"][0]
    if typos["false_hits"]:
        found = f"{typos['false_hits']} in {typos['passages']} passages"
        yield ("Titles", f"titles found that nobody meant, {typos['titles']:,} titles", found, "exact search: none")


# -- recall


def _recall_leads(results: Results) -> str:
    lines = []
    for row in results["recall"]["ratios"]:
        if row["ratio"].endswith("low end"):
            metric = row["ratio"].removesuffix(", memkit - best other, low end")
            lead = f"{share(row['difference'])} ({share(row['value'])} to {share(row['high'])})"
            lines.append((EMBEDDERS[row["embedder"]], metric, NAMES[row["of"]], lead))
    return table(("vectors", "metric", "best other", "memkit's lead"), lines)


def _recall(results: Results) -> str:
    (data,) = results["recall"]["data"]
    found = every(results["recall"]["rows"], measurement="recall", where="all")
    found.sort(key=lambda row: (list(EMBEDDERS).index(row["embedder"]), -row["recall within 1,024"]))
    lines = [
        (EMBEDDERS[row["embedder"]], NAMES[row["system"]], *(share(row[metric]) for metric in METRICS)) for row in found
    ]
    what = f"{data['conversations']} conversations, {data['messages']:,} messages, {data['questions']} questions"
    return table(("vectors", what, *METRICS), lines)


def _conversations(results: Results) -> str:
    found = _with_minilm(every(results["recall"]["rows"], measurement="recall"))
    places = [place for place in dict.fromkeys(row["where"] for row in found) if place.startswith("conv")]
    lines = []
    for system in dict.fromkeys(row["system"] for row in found):
        at = (one(found, system=system, where=place)["recall within 1,024"] for place in places)
        lines.append((NAMES[system], *map(share, at)))
    return table(("recall within 1,024 tokens", *places), lines)


def _with_minilm(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row["embedder"] == "minilm" or row["system"] == WORDS]


def _times(results: Results) -> str:
    timed = _with_minilm(every(results["recall"]["rows"], measurement="time"))
    ours = one(timed, system="memkit")
    lines = []
    for row in timed:
        ratio = "" if row is ours else number(row["query_ms"] / ours["query_ms"])
        lines.append((NAMES[row["system"]], ratio, number(row["query_ms"]), number(row["add_ms"])))
    return table(("", "a question / memkit's", "a question, ms", "a message saved, ms"), lines)


def _speed(results: Results) -> str:
    rows = [row for row in results["recall"]["rows"] if "deployment" in row and "median_ms" in row]
    lines = []
    for place, name in DEPLOYMENTS.items():
        at = {(row["measurement"], row["system"]): row["median_ms"] for row in every(rows, deployment=place)}
        ratios = (at[what, "memkit"] / at[what, "floor"] for what in ("search", "save"))
        keys = (("search", "memkit"), ("search", "floor"), ("load", "memkit"), ("save", "memkit"), ("save", "floor"))
        lines.append((name, *map(number, ratios), *(number(at[key]) for key in keys)))
    head = ("search / floor", "save / insert", "search, ms", "its floor", "load", "save", "an insert")
    return table((f"{rows[0]['rounds']:,} rounds of one user", *head), lines)


def _million(results: Results) -> str:
    keys = {
        "a search": "search_ms",
        "the first one": "first_search_ms",
        "the process": "process_mb",
        "after a search of each user": "process_after_each_mb",
        "the file": "file_mb",
    }
    lines = []
    for row in every(results["recall"]["rows"], measurement="million"):
        cells = (f"{number(row[key])} {key.rpartition('_')[2].replace('mb', 'MB')}" for key in keys.values())
        lines.append((f"{row['rounds']:,} rounds of {row['users']:,} users", *cells))
    return table(("one SQLite file", *keys), lines)


def recall_behind(results: Results) -> Behind:
    """Packages that answer or save faster, and parts of the data in which another finds more."""
    rows = results["recall"]["rows"]
    timed = _with_minilm(every(rows, measurement="time"))
    ours = one(timed, system="memkit")
    for key, what in (("query_ms", "a question"), ("add_ms", "a message saved")):
        for row in timed:
            if row[key] < ours[key]:
                other = f"{NAMES[row['system']]}: {number(row[key])} ms"
                yield "Recall", f"time of {what}", f"{number(ours[key])} ms", other
    for what, least in (("search", "numpy and the texts by their keys"), ("save", "one insert")):
        pairs = (every(rows, measurement=what, deployment=place) for place in DEPLOYMENTS)
        ratios = [one(p, system="memkit")["median_ms"] / one(p, system="floor")["median_ms"] for p in pairs]
        yield ("Recall", f"time of a {what} by the least that could be done", f"{span(ratios)} times", least)
    found = every(rows, measurement="recall")
    for row in found:
        if row["system"] != "memkit":
            mine = one(found, system="memkit", embedder=row["embedder"], where=row["where"])
            for metric in METRICS:
                if row[metric] > mine[metric]:
                    title = f"{metric}, {row['where']}, {EMBEDDERS[row['embedder']]}"
                    yield ("Recall", title, share(mine[metric]), f"{NAMES[row['system']]}: {share(row[metric])}")


# -- follow-up questions

QUESTIONS = {
    "raw question": "the question as it was asked",
    "previous q + a + q": "previous question, its answer, question",
    "rare terms": "rare terms of what was said before",
    "memkit weighted": "memkit without a model",
    "memkit, any retriever": "memkit around a retriever that takes text only",
    "human rewrite": "a person's rewrite (the ceiling)",
}
OTHERS = ("raw question", "previous q + a + q", "rare terms")
ENGINES = {"BM25": "BM25", "minilm": "MiniLM"}
FOUR = [(data, engine) for data in ("CANARD", "iKAT 2023") for engine in ENGINES]
MORE = 1_000  # documents of other sets


def four(rows: list[Row], system: str, *, masked: bool = True, more: int = 0) -> list[Row]:
    """Of both sets and both searches."""
    found = every(rows, measurement="retrieval", system=system, masked=masked, more=more)
    return [one(found, data=data, engine=engine) for data, engine in FOUR]


def exact(row: Row, metric: str = "recall@10") -> float:
    """A share of whole questions, of which the result has four digits, as it was; MRR as the result has it."""
    value: float = row[metric]
    questions: int = row["questions"]
    return round(value * questions) / questions if metric == "recall@10" else value


def mean(rows: list[Row], system: str) -> float:
    """recall@10 of the four, earlier answers left out."""
    return statistics.fmean(map(exact, four(rows, system)))


def _followup_leads(results: Results) -> str:
    lines = []
    for row in results["followups"]["ratios"]:
        metric, _, rest = row["ratio"].partition(", ")
        other = rest.removesuffix(" / memkit weighted")
        if row.get("data") == "CANARD; iKAT 2023" and other in QUESTIONS:
            lead = f"{share(row['difference'])} ({share(row['low'])} to {share(row['high'])})"
            lines.append((QUESTIONS[other], metric, number(row["value"]), lead))
    return table(("", "metric", "other / memkit", "memkit's lead"), lines)


def _followup_sets(results: Results) -> str:
    keys = ("conversations", "turns", "questions", "documents")
    lines = [(data["name"], *(f"{data[key]:,}" for key in keys)) for data in results["followups"]["data"]]
    return table(("", *keys), lines)


def _retrieval(*, masked: bool, more: int = 0) -> Callable[[Results], str]:
    def made(results: Results) -> str:
        lines = []
        for system, name in QUESTIONS.items():
            those = four(results["followups"]["rows"], system, masked=masked, more=more)
            lines.append((name, *(f"{share(exact(row))} / {share(row['MRR@10'])}" for row in those)))
        head = (f"{data.partition(' ')[0]}, {ENGINES[engine]}" for data, engine in FOUR)
        return table(("recall@10 / MRR@10", *head), lines)

    return made


def followups_behind(results: Results) -> Behind:
    """Sets and conditions in which another expansion finds more than the weighted mode."""
    rows = every(results["followups"]["rows"], measurement="retrieval")
    for ours in every(rows, system="memkit weighted"):
        where = {key: ours[key] for key in ("data", "engine", "more", "masked")}
        for metric in ("recall@10", "MRR@10"):
            better = [r for name in OTHERS for r in every(rows, **where, system=name) if r[metric] > ours[metric]]
            if better:
                condition = "earlier answers left out" if ours["masked"] else "nothing left out"
                more = f", {ours['more']:,} more" if ours["more"] else ""
                title = f"{metric}, {ours['data']}, {ENGINES[ours['engine']]}, {condition}{more}"
                others = "; ".join(f"{QUESTIONS[row['system']]}: {share(exact(row, metric))}" for row in better)
                yield ("Follow-ups", title, share(exact(ours, metric)), others)


# -- the six figures of the README

SHOWN_PAGE = "docs/benchmarks.md"
NODES = "replica_set"
USED = ("history", "turn_costs", "context", "recall", "followups", "gate memkit", "gate peer")
TOLD = ("langchain-memkit", "langchain-core", "langchain-mongodb", "langchain-classic", "mongod")


def figures_block(results: Results) -> str:
    """What stands between the marks: the table, where and with what, and what to mind."""
    lines = [make(results) for make in (_figure_turn, _figure_memory, _halves, _figure_trim, _evidence, _follow)]
    used = [results[name] for name in USED]
    machine = forms(where_and_with(result)[0] for result in used)
    versions = {name: forms(r["versions"][name] for r in used if name in r["versions"]) for name in TOLD}
    below = f"""{machine}; {", ".join(f"{name} {value}" for name, value in versions.items())}. Medians on a shared
    machine: read the ratios. The last two lines are of data that memkit's weights were chosen on.
    [All figures, and where memkit is behind]({SHOWN_PAGE}#where-memkit-is-behind)."""
    return "\n".join([BEGIN, table(("", "memkit", "beside it"), lines), "", wrapped(below), END])


def _link(text: str, anchor: str) -> str:
    return f"[{text}]({SHOWN_PAGE}#{anchor})"


def _figure_turn(results: Results) -> tuple[str, ...]:
    turns = every(results["history"]["rows"], measurement="turn", deployment=NODES, shape="pairs")
    least, most = min(r["stored"] for r in turns), max(r["stored"] for r in turns)

    def both(system: str) -> str:
        return " and ".join(duration(one(turns, system=system, stored=n)["median_ms"]) for n in (least, most))

    what = f"that sees the last 20 of {least} and of {most:,} messages, MongoDB of three nodes"
    return (f"{_link('A turn', 'histories')} {what}", both("memkit"), f"langchain-mongodb: {both('peer_history_size')}")


def _figure_memory(results: Results) -> tuple[str, ...]:
    rows = every(results["turn_costs"]["rows"], store="mongodb", style="sync")
    rows = every(rows, rounds=max(row["rounds"] for row in rows))
    ours, theirs = (duration(one(rows, turn=turn)["median_ms"]) for turn in ("vector", "peer with memory"))
    what = f"that recalls from {rows[0]['rounds']:,} rounds, one MongoDB server"
    link = _link("A turn", "turns-with-memory")
    return (f"{link} {what}", ours, f"langchain-mongodb and a vector memory that forgets on exit: {theirs}")


def _halves(results: Results) -> tuple[str, ...]:
    def counted(system: str) -> str:
        figures = results[f"gate {system}"]["rows"]["R3"]["figures"]
        names = (f"{place}: half turns after 60 kills" for place in ("standalone", NODES))
        return " and ".join(str(one(figures, name=name)["badness"]) for name in names)

    what = f"{_link('Half turns', 'reliability')} after 60 kills of the writer, one server and three nodes"
    return (what, counted("memkit"), f"langchain-mongodb: {counted('peer')}")


def _figure_trim(results: Results) -> tuple[str, ...]:
    rows = every(results["context"]["rows"], measurement="trim", counter="approximate")
    size = max(row["messages"] for row in rows)

    def both(system: str) -> str:
        here = every(rows, messages=size, system=system)
        return " and ".join(duration(one(here, budget=budget)["median_ms"]) for budget in ("4,000", "95%"))

    what = f"{_link(f'{size:,} messages', 'context')} trimmed to 4,000 tokens, and to 95%"
    return (what, both("memkit"), f"`trim_messages`: {both('trim_messages')}")


def _evidence(results: Results) -> tuple[str, ...]:
    metric = "recall within 1,024"
    rows = every(results["recall"]["rows"], measurement="recall", where="all")
    rows = [row for row in rows if row["embedder"] == "minilm" or row["system"] == WORDS]
    at = {row["system"]: row[metric] for row in rows}
    package, reference = (max(names, key=lambda name: at[name]) for names in (PACKAGES, REFERENCES))
    others = "; ".join(f"{NAMES[name]}: {share(at[name])}" for name in (package, reference))
    return (f"{_link('Evidence found', 'recall')} within 1,024 tokens, LoCoMo, MiniLM", share(at["memkit"]), others)


def _follow(results: Results) -> tuple[str, ...]:
    rows = results["followups"]["rows"]
    raw, *expansions = OTHERS
    best = max(expansions, key=lambda name: mean(rows, name))
    others = f"as asked: {share(mean(rows, raw))}; {QUESTIONS[best]}: {share(mean(rows, best))}"
    asked = _link("Follow-up questions", "follow-ups")
    return (f"{asked} answered within ten, no model", share(mean(rows, "memkit weighted")), others)


# -- the page


def read() -> Results:
    """The committed results."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}
    gate = {f"gate {name}": json.loads((GATE / f"{name}.json").read_text()) for name in ("memkit", "peer")}
    return {**found, **gate}


def measured(results: Results) -> str:
    """Where, when and with what, and what of that no result says."""
    lines = []
    for name, title in PARTS.items():
        machine, versions = where_and_with(results[name])
        lines.append((title, results[name].get("date", UNTOLD), machine, versions))
    undated = sum(date == UNTOLD for _, date, *_ in lines)
    told = "Each part is a run of its own and stands until that part is run again: they were not measured in one go."
    if undated:
        told += f" {undated} of {len(lines)} were written before results held a date, and none is made up here."
    if "mongod" not in results["recall"]["versions"]:
        told += " The result of recall does not name the mongod of its speed part."
    if ";" in (machines := forms(machine for _, _, machine, _ in lines)):
        told += f" The machines differ: {machines}."
    return "\n\n".join([table(("", "date", "machine", "versions"), lines), wrapped(told)])


def behind(results: Results) -> str:
    """What is faster or finds more than memkit, and bars that are missed: by rule, not chosen."""
    ahead: dict[tuple[str, ...], list[str]] = {}
    for rule in BEHIND:
        for *what, other in rule(results):
            ahead.setdefault(tuple(what), []).append(other)
    titles = list(PARTS.values())
    lines = sorted(
        ((*what, "; ".join(others)) for what, others in ahead.items()), key=lambda line: titles.index(line[0])
    )
    return table(("", "", "memkit", "ahead of it"), lines)


def _bars(name: str) -> Callable[[Results], str]:
    """How many of the bars that a benchmark sets itself hold."""

    def made(results: Results) -> str:
        judged = [row for row in results[name]["ratios"] if "bar" in row]
        return f"Bars: {sum(row['holds'] for row in judged)} of {len(judged)} hold."

    return made


BEHIND: tuple[Callable[[Results], Behind], ...] = (
    histories_behind,
    turns_behind,
    moves_behind,
    reliability_behind,
    context_behind,
    counters_behind,
    entities_behind,
    titles_behind,
    recall_behind,
    followups_behind,
)
BLOCKS: dict[str, Callable[[Results], str]] = {
    "where and with what": measured,
    "where memkit is behind": behind,
    "histories, ratios by size": _by_size,
    "histories, other ratios": _at_once,
    "histories, turns": _turn_times,
    "histories, growth": _growth,
    "histories, bars": _bars("history"),
    "moves": _moves,
    "moves, bars": _bars("moving"),
    "sessions": _sessions,
    "sessions, bars": _bars("sessions"),
    "turns with memory": _with_memory,
    "reliability": _reliability,
    "trimming, ratios": _trimming(ratios=True),
    "trimming, times": _trimming(ratios=False),
    "summaries": _summaries,
    "summaries, a fact": _facts,
    "long sessions": _turns,
    "context, bars": _bars("context"),
    "token counters": _counters,
    "entities, ratios": _entity_ratios,
    "entities": _entities,
    "entities, bars": _bars("entities"),
    "titles": _titles,
    "titles, typos": _typos,
    "recall, leads": _recall_leads,
    "recall": _recall,
    "recall, conversations": _conversations,
    "recall, times": _times,
    "recall, speed": _speed,
    "recall, a million": _million,
    "recall, bars": _bars("recall"),
    "follow-ups, sets": _followup_sets,
    "follow-ups, leads": _followup_leads,
    "follow-ups, earlier answers left out": _retrieval(masked=True),
    "follow-ups, nothing left out": _retrieval(masked=False),
    "follow-ups, more documents": _retrieval(masked=False, more=MORE),
    "follow-ups, bars": _bars("followups"),
}


def made(text: str, results: Results) -> str:
    """The page with the tables of these results in their places."""

    def put(found: re.Match[str]) -> str:
        return f"<!-- made of the results: {found[1]} -->\n{BLOCKS[found[1]](results)}\n<!-- end -->"

    return BLOCK.sub(put, text)


def readme(text: str, results: Results) -> str:
    """README.md with the six figures of these results in their place."""
    before, rest = text.split(BEGIN)
    return f"{before}{figures_block(results)}{rest.split(END)[1]}"


def files(results: Results) -> dict[Path, str]:
    """All that is made, by where it belongs."""
    from benchmarks.plots import plots  # matplotlib takes a second, which the tables need not wait for

    drawn = {IMAGES / name: text for name, text in plots(results).items()}
    return {PAGE: made(PAGE.read_text(), results), README: readme(README.read_text(), results), **drawn}


def main() -> None:
    parser = argparse.ArgumentParser(description="The tables of docs/benchmarks.md, its plots, and README's figures.")
    parser.add_argument("--quick", action="store_true", help="says what would change, and writes nothing")
    options = parser.parse_args()
    for path, text in files(read()).items():
        same = path.exists() and path.read_text() == text
        said = "unchanged" if same else "would change" if options.quick else "written"
        if not (same or options.quick):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        print(f"{said}: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
