"""Follow-up questions: what is found for them with and without `CondenseQuestionRetriever`.

docs/benchmarks.md says what is compared. Besides:

- The conversations come from a folder that you name (`--data`, or the environment variable `MEMKIT_FOLLOWUPS`) with
  CANARD's dev.json, TREC CAsT 2019 and 2020, and TREC iKAT 2023 (and LoCoMo, whose lines serve as distractors), none of
  which is part of this project; the result holds numbers only. Without it a small set is made here, which shows that
  the benchmark works and is NO evidence of quality.
- All turns after the first that somebody rewrote and that have an answer of three words or more. A CANARD document is
  headed by its page's title.
- CAsT's files hold neither answers nor passages. Its documents are the human rewrites of all turns, and the one looked
  for is the turn's own ("known item"). That is near its ceiling from the start: it tells harm, and shows no gain.
- Masked: documents that answered earlier turns are left out (`skip_answered=True`; the messages name them, as
  `create_conversational_rag_chain` stores them). 1,000 more: passages of the other sets are added.
- Two ways to search, the same for every system: BM25 (bm25s, k1 = 0.9, b = 0.4, stems without stop words) behind the
  interface of langchain-community's `BM25Retriever`, and LangChain's `InMemoryVectorStore` with MiniLM. Equals are in a
  random order, which is fixed.
- `text` is what `condense_question` names as `searched_for`, searched for as it is; `any retriever` is
  `CondenseQuestionRetriever` around a retriever that takes nothing but text.
- memkit's constants were chosen on these very conversations: the figures are those of development data.
- ms: wall clock of a question with its search, without embedding. Intervals: 10,000 resamples of whole conversations.

Bars, on data that was named, in full, with BM25 and MiniLM. `memkit weighted`, masked: recall@10 of CANARD at least .62
and .75, of iKAT .70 and .85; in the mean of these four above the previous turn and above rare terms, in recall@10 and
MRR. `weighted` and `any retriever`, unmasked or with 1,000 more: on no set more than .01 below the raw question.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import Row, arguments, environment, finish, ratio, say, unbarred
from benchmarks.embedders import DEFAULT, Shared, shared_embedders
from benchmarks.followups_data import CANARD, IKAT, DataSet, Question, own_set, read_sets
from benchmarks.followups_systems import (
    ANY_RETRIEVER,
    BM25,
    HUMAN,
    PREVIOUS,
    RARE,
    RAW,
    WEIGHTED,
    Index,
    System,
    Text,
    engine_of_vectors,
    engine_of_words,
    memkit_systems,
    prepare,
    texts_of,
)

ENV = "MEMKIT_FOLLOWUPS"
PACKAGES = ("langchain-classic", "bm25s", "PyStemmer", "numpy")
MORE = 1_000  # distractors
QUICK_CONVERSATIONS = 6
RESAMPLES = 10_000
METRICS = ("recall@5", "recall@10", "MRR@10")
MINILM = "minilm"
BARRED_ENGINES = (BM25, MINILM)
BARRED_METRICS = ("recall@10", "MRR@10")
LOSS = -0.01
REACH = {  # recall@10, masked
    (CANARD, BM25): ">= 0.62",
    (CANARD, MINILM): ">= 0.75",
    (IKAT, BM25): ">= 0.70",
    (IKAT, MINILM): ">= 0.85",
}
Array = np.ndarray[Any, Any]


class Place(NamedTuple):
    """Where a system was measured."""

    data: str
    engine: str
    more: int  # distractors
    masked: bool


@dataclass(frozen=True)
class Result:
    """What a system found.

    Attributes:
        place: Where.
        system: Which.
        questions: What was asked.
        ranks: Of the document that was looked for, from 1; 0: it is not among the first 10.
        ms: Milliseconds of a question, without embedding.
    """

    place: Place
    system: str
    questions: tuple[Question, ...]
    ranks: Array
    ms: float


Found = dict[tuple[Place, str], Result]


def measure(data: DataSet, more: int, embedders: Mapping[str, Shared]) -> Iterator[Result]:
    """Every engine and system on a set, with so many distractors."""
    questions = asked_of(data)
    plain, documents = data.pool(0), data.pool(more)
    texts = texts_of(Index(document.page_content for document in plain))
    engines = [engine_of_words(documents)]
    for name, embeddings in embedders.items():
        say(f"{data.name}, {more:,} more: vectors of {name}")
        prepare(embeddings, documents, questions, list(texts.values()))
        engines.append(engine_of_vectors(name, embeddings, documents))
    for engine in engines:
        systems: dict[str, System] = {name: Text(write, engine) for name, write in texts.items() if name != HUMAN}
        for name, system in {**systems, **memkit_systems(engine), HUMAN: Text(texts[HUMAN], engine)}.items():
            for masked in (True, False):
                ranks, ms = ask(system, questions, masked, engine.embeddings)
                yield Result(Place(data.name, engine.name, more, masked), name, tuple(questions), ranks, ms)
        say(f"{data.name}, {more:,} more: {engine.name}")


def asked_of(data: DataSet) -> list[Question]:
    """The questions that a document answers."""
    return [question for question in data.questions if question.gold]


def ask(
    system: System, questions: Sequence[Question], masked: bool, embeddings: Shared | None
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], float]:
    """The ranks of what is looked for, and milliseconds of a question, without embedding."""
    system.find(questions[0], masked)  # the first search of all loads what it needs
    before, begin = embeddings.seconds if embeddings else 0.0, time.perf_counter()
    found = [system.find(question, masked) for question in questions]
    spent = time.perf_counter() - begin - (embeddings.seconds - before if embeddings else 0.0)
    ranks = [rank(names, question.gold) for names, question in zip(found, questions, strict=True)]
    return np.array(ranks, np.int64), 1000 * spent / len(questions)


def rank(found: Sequence[str], gold: str | None) -> int:
    """The place of a document, from 1; 0 if it was not found."""
    return found.index(gold) + 1 if gold is not None and gold in found else 0


def metric(ranks: Array, name: str) -> Array:
    """A value for every question."""
    if name == "MRR@10":
        return np.asarray(np.where(ranks > 0, 1 / np.maximum(ranks, 1), 0.0))
    return np.asarray((ranks > 0) & (ranks <= int(name.partition("@")[2])), float)


def difference(ours: Sequence[Result], theirs: Sequence[Result], name: str) -> dict[str, float]:
    """By how much one system is ahead of another on the same questions, in the mean over places.

    Returns:
        The mean difference and its 95% interval: 2.5% and 97.5% of 10,000 resamples of the conversations of each data
        set, with a fixed seed. A conversation stays whole, in all places of its set, since its questions are alike.
    """
    gaps: dict[str, list[Array]] = {}
    names: dict[str, list[str]] = {}
    for a, b in zip(ours, theirs, strict=True):
        assert a.place == b.place
        gaps.setdefault(a.place.data, []).append(metric(a.ranks, name) - metric(b.ranks, name))
        names[a.place.data] = [question.conversation for question in a.questions]
    total, sums = 0.0, np.zeros(RESAMPLES)
    for number, (data, some) in enumerate(gaps.items()):
        gap = np.sum(some, 0)  # over the engines
        _, place = np.unique(names[data], return_inverse=True)
        by_conversation, sizes = np.bincount(place, gap), np.bincount(place)
        drawn = _resamples(len(sizes), number)
        total += float(gap.mean())
        sums += (drawn @ by_conversation) / (drawn @ sizes)
    low, high = np.quantile(sums / len(ours), (0.025, 0.975))
    return {"value": total / len(ours), "low": float(low), "high": float(high)}


@cache
def _resamples(conversations: int, number: int) -> Array:
    """How often each conversation is drawn, in every resample; of another set in another way."""
    shares = np.full(conversations, 1 / conversations)
    return np.random.default_rng((5, number)).multinomial(conversations, shares, RESAMPLES)


def measured(sets: Sequence[DataSet], options: argparse.Namespace) -> Found:
    """All results."""
    embedders = shared_embedders(options.embeddings or DEFAULT[:1])
    found: Found = {}
    for data in sets:
        for more in (0, MORE):
            for result in measure(data, more, embedders):
                found[result.place, result.system] = result
    return found


def derived(found: Found, more: int, *, barred: bool) -> list[Row]:
    """All ratios; without their bars where the data is not worth them."""
    rows = [*_reached(found), *_averages(found), *_harm(found, more)]
    return rows if barred else unbarred(rows)


# -- differences


def differences(found: Found) -> Iterator[Row]:
    """Of memkit and what it is compared with, wherever both were measured."""
    for (place, system), ours in found.items():
        if system == WEIGHTED:
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
    return float(np.mean([metric(result.ranks, name).mean() for result in results]))


# -- what must be shown


def _reached(found: Found) -> Iterator[Row]:
    for (data, engine), bar in REACH.items():
        ours = found.get((Place(data, engine, 0, True), WEIGHTED))
        if ours:
            value = _mean([ours], "recall@10")
            yield ratio("recall@10, memkit weighted", value, bar, data=data, of=f"{engine}, masked")


def _averages(found: Found) -> Iterator[Row]:
    """Over the four columns of the note's table: two sets, two engines, masked."""
    places = [Place(data, engine, 0, True) for data, engine in product((CANARD, IKAT), BARRED_ENGINES)]
    if not all((place, WEIGHTED) in found for place in places):
        return
    by = {name: [found[place, name] for place in places] for name in (RAW, PREVIOUS, RARE, HUMAN, WEIGHTED)}
    where = {"data": f"{CANARD}; {IKAT}", "of": "mean of four columns, masked"}
    for name in BARRED_METRICS:
        ours, raw, human = (_mean(by[system], name) for system in (WEIGHTED, RAW, HUMAN))
        for other in (PREVIOUS, RARE):
            gap = _interval(difference(by[WEIGHTED], by[other], name))
            yield ratio(f"{name}, {other} / memkit weighted", _mean(by[other], name) / ours, "< 1", **where, **gap)
        yield ratio(f"{name}, share of the gap raw to human, {WEIGHTED}", (ours - raw) / (human - raw), **where)


def _harm(found: Found, more: int) -> Iterator[Row]:
    """The lowest of the differences to the raw question; where answered documents are in the way, or others."""
    for system, (masked, others), name in product(
        (WEIGHTED, ANY_RETRIEVER), ((False, 0), (False, more), (True, more)), BARRED_METRICS
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


def row_of(result: Result) -> Row:
    """A result's figures; no model is called."""
    figures = {name: round(float(metric(result.ranks, name).mean()), 4) for name in METRICS}
    place = {"measurement": "retrieval", **result.place._asdict(), "system": result.system}
    return {**place, "questions": len(result.questions), **figures, "calls": 0.0, "ms": float(f"{result.ms:.3g}")}


def main() -> None:
    parser = arguments("Follow-up questions: what is found for them.")
    parser.add_argument("--data", type=Path, default=os.environ.get(ENV) or None, help=f"a folder (or: {ENV})")
    parser.add_argument("--embeddings", action="append", choices=DEFAULT, help="may be repeated; minilm without it")
    options = parser.parse_args()
    sets = read_sets(options.data) if options.data else [own_set()]
    sets = [data.limited(QUICK_CONVERSATIONS) if options.quick else data for data in sets]
    sets = [data for data in sets if asked_of(data)]
    about = environment(quick=options.quick, packages=PACKAGES)
    about["data"] = [
        {
            "name": data.name,
            "conversations": len({question.conversation for question in data.questions}),
            "turns": len(data.questions),
            "questions": len(asked_of(data)),
            "documents": len(data.ids),
        }
        for data in sets
    ]
    found = measured(sets, options)
    full = bool(options.data) and not options.quick
    rows = [*map(row_of, found.values()), *differences(found)]
    finish("followups", options.output, about, rows, derived(found, MORE, barred=full), full=full)


if __name__ == "__main__":
    main()
