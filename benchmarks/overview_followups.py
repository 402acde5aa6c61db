"""The overview's section about follow-up questions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

from benchmarks.overview_text import Results, bars, every, one, share, table
from benchmarks.report import Row, number

__all__ = ["BEHIND", "BLOCKS", "ENGINES", "FOUR", "OTHERS", "SYSTEMS", "exact", "four", "mean"]

SYSTEMS = {
    "raw question": "the question as it was asked",
    "previous q + a + q": "previous question, its answer, question",
    "rare terms": "rare terms of what was said before",
    "memkit weighted": 'memkit, `mode="weighted"`, no gate',
    "memkit auto": "memkit, the gate first",
    "memkit, any retriever": "memkit around a retriever that takes text only",
    "human rewrite": "a person's rewrite (the ceiling)",
}
OTHERS = ("raw question", "previous q + a + q", "rare terms")
ENGINES = {"BM25": "BM25", "minilm": "MiniLM"}
FOUR = [(data, engine) for data in ("CANARD", "iKAT 2023") for engine in ENGINES]
MORE = 1_000  # documents of other sets
PART = "CANARD, 60 conversations"  # of CANARD: told apart by the benchmark, counted once here


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


def _leads(results: Results) -> str:
    lines = []
    for row in results["followups"]["ratios"]:
        metric, _, rest = row["ratio"].partition(", ")
        other = rest.removesuffix(" / memkit weighted")
        if row.get("data") == "CANARD; iKAT 2023" and other in SYSTEMS:
            lead = f"{share(row['difference'])} ({share(row['low'])} to {share(row['high'])})"
            lines.append((SYSTEMS[other], metric, number(row["value"]), lead))
    return table(("", "metric", "other / memkit", "memkit's lead"), lines)


def _sets(results: Results) -> str:
    keys = ("conversations", "turns", "questions", "documents")
    lines = [(data["name"], *(f"{data[key]:,}" for key in keys)) for data in results["followups"]["data"]]
    return table(("", *keys), lines)


def _retrieval(*, masked: bool, more: int = 0) -> Callable[[Results], str]:
    def made(results: Results) -> str:
        lines = []
        for system, name in SYSTEMS.items():
            those = four(results["followups"]["rows"], system, masked=masked, more=more)
            lines.append((name, *(f"{share(exact(row))} / {share(row['MRR@10'])}" for row in those)))
        head = (f"{data.partition(' ')[0]}, {ENGINES[engine]}" for data, engine in FOUR)
        return table(("recall@10 / MRR@10", *head), lines)

    return made


def _gate(results: Results) -> str:
    gated = every(results["followups"]["rows"], measurement="gate")
    lines = []
    for data in dict.fromkeys(row["data"] for row in gated):
        at = [one(gated, data=data, engine=engine) for engine in ENGINES]
        passed = f"{at[0]['passed']} of {at[0]['turns']:,}"
        lines.append((data, passed, *(f"{row['good']} of {row['judged']}" for row in at)))
    return table(("", "turns that pass", "lose nothing, BM25", "lose nothing, MiniLM"), lines)


def followups_behind(results: Results) -> Iterator[tuple[str, ...]]:
    """Sets and conditions in which another expansion finds more than the weighted mode."""
    rows = every(results["followups"]["rows"], measurement="retrieval")
    for ours in every(rows, system="memkit weighted"):
        if ours["data"] == PART:
            continue
        where = {key: ours[key] for key in ("data", "engine", "more", "masked")}
        for metric in ("recall@10", "MRR@10"):
            better = [r for name in OTHERS for r in every(rows, **where, system=name) if r[metric] > ours[metric]]
            if better:
                condition = "earlier answers left out" if ours["masked"] else "nothing left out"
                more = f", {ours['more']:,} more" if ours["more"] else ""
                title = f"{metric}, {ours['data']}, {ENGINES[ours['engine']]}, {condition}{more}"
                others = "; ".join(f"{SYSTEMS[row['system']]}: {share(exact(row, metric))}" for row in better)
                yield ("Follow-ups", title, share(exact(ours, metric)), others)


BLOCKS = {
    "follow-ups, sets": _sets,
    "follow-ups, leads": _leads,
    "follow-ups, earlier answers left out": _retrieval(masked=True),
    "follow-ups, nothing left out": _retrieval(masked=False),
    "follow-ups, more documents": _retrieval(masked=False, more=MORE),
    "follow-ups, gate": _gate,
    "follow-ups, bars": lambda results: bars(results["followups"]["ratios"]),
}
BEHIND = (followups_behind,)
