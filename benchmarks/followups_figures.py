"""What benchmarks/followups.py derives from its measurements: differences, the gate's figures, and the bars."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from benchmarks.followups_data import CANARD, CANARD_60, IKAT, Question
from benchmarks.followups_engines import BM25
from benchmarks.followups_score import Place, Result, difference
from benchmarks.followups_systems import ANY_RETRIEVER, AUTO, HUMAN, PREVIOUS, RARE, RAW, WEIGHTED
from benchmarks.report import Row, ratio

__all__ = ["Gated", "derived", "differences", "gate_rows"]

MINILM = "minilm"
BARRED_ENGINES = (BM25, MINILM)
BARRED_METRICS = ("recall@10", "MRR@10")
LOSS = -0.01
EQUAL_PASS, LOSE_NOTHING = "gate: share of the equal that pass", "gate: share of the passed that lose nothing"
REACH = {  # recall@10, masked
    (CANARD_60, BM25): ">= 0.62",
    (CANARD_60, MINILM): ">= 0.75",
    (CANARD, BM25): ">= 0.62",
    (CANARD, MINILM): ">= 0.75",
    (IKAT, BM25): ">= 0.70",
    (IKAT, MINILM): ">= 0.85",
}
Found = Mapping[tuple[Place, str], Result]


@dataclass(frozen=True)
class Gated:
    """What the gate said to all turns after the first of a set, in their order."""

    data: str
    questions: Sequence[Question]
    passed: Sequence[bool]


def derived(found: Found, others: Sequence[Row], more: int, *, barred: bool) -> list[Row]:
    """All ratios; without their bars where the data is not worth them."""
    gates = [row for row in others if row["measurement"] == "gate"]
    rows = [*_reached(found), *_averages(found), *_harm(found, more), *_gate_ratios(gates)]
    return rows if barred else [{k: value for k, value in row.items() if k not in ("bar", "holds")} for row in rows]


# -- differences


def differences(found: Found) -> Iterator[Row]:
    """Of memkit and what it is compared with, wherever both were measured."""
    for (place, system), ours in found.items():
        if system in (WEIGHTED, AUTO):
            for other, name in product((RAW, PREVIOUS, RARE, HUMAN), BARRED_METRICS):
                gap = difference([ours], [found[place, other]], name)
                what = {"system": system, "other": other, "metric": name}
                yield {"measurement": "difference", **place._asdict(), **what, **_rounded(gap)}


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}


def _interval(gap: Mapping[str, float]) -> dict[str, float]:
    """A difference, as the tables show it behind a figure."""
    return _rounded({"difference": gap["value"], "low": gap["low"], "high": gap["high"]})


def _mean(results: Sequence[Result], name: str) -> float:
    return float(np.mean([result.of(name).mean() for result in results]))


# -- what must be shown


def _reached(found: Found) -> Iterator[Row]:
    for (data, engine), bar in REACH.items():
        ours = found.get((Place(data, engine, 0, True), WEIGHTED))
        if ours:
            value = _mean([ours], "recall@10")
            yield ratio("recall@10, memkit weighted", value, bar, data=data, of=f"{engine}, masked")


def _averages(found: Found) -> Iterator[Row]:
    """Over the four columns of the note's table: two sets, two engines, masked."""
    for canard in (CANARD_60, CANARD):
        places = [Place(data, engine, 0, True) for data, engine in product((canard, IKAT), BARRED_ENGINES)]
        if not all((place, WEIGHTED) in found for place in places):
            continue
        by = {name: [found[place, name] for place in places] for name in (RAW, PREVIOUS, RARE, HUMAN, WEIGHTED, AUTO)}
        where = {"data": f"{canard}; {IKAT}", "of": "mean of four columns, masked"}
        for name in BARRED_METRICS:
            ours = _mean(by[WEIGHTED], name)
            for other in (PREVIOUS, RARE):
                share = _mean(by[other], name) / ours
                gap = _interval(difference(by[WEIGHTED], by[other], name))
                yield ratio(f"{name}, {other} / memkit weighted", share, "< 1", **where, **gap)
            raw, human = _mean(by[RAW], name), _mean(by[HUMAN], name)
            for system in (WEIGHTED, AUTO):
                share = (_mean(by[system], name) - raw) / (human - raw)
                yield ratio(f"{name}, share of the gap raw to human, {system}", share, **where)


def _harm(found: Found, more: int) -> Iterator[Row]:
    """The lowest of the differences to the raw question; where answered documents are in the way, or others."""
    for system, (masked, others), name in product(
        (WEIGHTED, AUTO, ANY_RETRIEVER), ((False, 0), (False, more), (True, more)), BARRED_METRICS
    ):
        pairs = [
            (ours, found[place, RAW])
            for (place, who), ours in found.items()
            if who == system and (place.more, place.masked) == (others, masked) and place.engine in BARRED_ENGINES
        ]
        if pairs:
            ours, raw = min(pairs, key=lambda pair: _mean([pair[0]], name) - _mean([pair[1]], name))
            gap = difference([ours], [raw], name)
            condition = ("masked" if masked else "unmasked") + (f", {others:,} more" if others else "")
            of = f"{condition}; lowest: {ours.place.data}, {ours.place.engine}"
            yield ratio(f"{name}, {system} - raw question", gap["value"], f">= {LOSS}", of=of, **_interval(gap))


# -- the gate


def gate_rows(gated: Gated, found: Found) -> Iterator[Row]:
    """Its figures for a set: in all, and for each engine what its passing cost."""
    turns = list(zip(gated.questions, gated.passed, strict=True))
    passed = [question for question, yes in turns if yes]
    equal = [question for question in gated.questions if question.turn.equal]
    equal_passed = sum(question.turn.equal for question in passed)
    row: Row = {"measurement": "gate", "data": gated.data, "turns": len(turns), "passed": len(passed)}
    row |= {"equal": len(equal), "equal_passed": equal_passed, "calls_saved": round(len(passed) / len(turns), 4)}
    engines = dict.fromkeys(place.engine for place, _ in found if place.data == gated.data)
    for engine in engines:
        place = Place(gated.data, engine, 0, True)
        asked, expanded = found[place, RAW], found[place, WEIGHTED]
        at = {id(question): i for i, question in enumerate(asked.questions)}
        hit = {
            name: [bool(result.ranks[at[id(question)]]) for question in passed if id(question) in at]
            for name, result in (("asked", asked), ("expanded", expanded))
        }
        judged = [question for question in passed if question.turn.equal or id(question) in at]
        lost = [
            question
            for question in judged
            if not question.turn.equal and expanded.ranks[at[id(question)]] and not asked.ranks[at[id(question)]]
        ]
        recall = {f"recall@10 {name}": round(float(np.mean(hits)), 4) for name, hits in hit.items() if hits}
        yield {**row, "engine": engine, "judged": len(judged), "good": len(judged) - len(lost), **recall}


def _gate_ratios(rows: Sequence[Row]) -> Iterator[Row]:
    for data in dict.fromkeys(row["data"] for row in rows):
        of_set = [row for row in rows if row["data"] == data]
        first = of_set[0]
        if first["equal"]:
            of = f"{first['equal_passed']} of {first['equal']}"
            yield ratio(EQUAL_PASS, first["equal_passed"] / first["equal"], ">= 0.4", data=data, of=of)
        of = f"{first['passed']} of {first['turns']}"
        yield ratio("gate: model calls saved", first["calls_saved"], data=data, of=of)
        for row in of_set:
            engine = row["engine"]
            if row["judged"]:
                bar = ">= 0.95" if engine in BARRED_ENGINES else None
                of = f"{engine}, {row['good']} of {row['judged']}"
                yield ratio(LOSE_NOTHING, row["good"] / row["judged"], bar, data=data, of=of)
            if "recall@10 asked" in row:
                gap = row["recall@10 asked"] - row["recall@10 expanded"]
                yield ratio("gate: recall@10 of the passed, as asked - expanded", gap, data=data, of=engine)
