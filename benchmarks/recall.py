"""Evidence in long conversations: `VectorMemory` beside its peers, and how fast it is: `make bench`.

docs/benchmarks.md says what is compared. Besides:

- The conversations come from a file in LoCoMo's format that you name (`--data`, or the environment variable
  `MEMKIT_LOCOMO`), which is no part of this project; the result holds numbers only. Without it a small conversation is
  made here, which shows that the benchmark works and is NO evidence of quality.
- Embedders: MiniLM (computed in numpy), if its files are there (`python tools/parts.py minilm`), and WordLlama's table
  of words, which memkit's extra `local` brings.
- memkit's weights were chosen with the help of four of LoCoMo's conversations (conv-26, 30, 41, 42). The other six are
  the better evidence: look at the figures by conversation.
- LoCoMo's questions of category 5 are left out: nothing answers them. 1 asks for several facts, 2 for times, 3 for what
  one has to infer, 4 for one fact.
- recall@k is the share of the evidence in the first k records; within n: in those that fit into n tokens. MRR: 1 / rank
  of the first record with evidence. Counted are the records themselves; what memkit's `load` really puts before a
  model, with its frame, sessions and dates, is given apart: the share of the evidence in a note of 1,024 tokens.
- Time: wall clock, without embedding, of a message saved and a question asked, one run. Speed: see recall_speed.py.

Bars, on data that was named: memkit is ahead of the best other in recall@10, recall within 1,024 and MRR, in all (the
low end of the interval is not below 0) and in each conversation. Speed: see there.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Row, arguments, environment, finish, ratio, say, unbarred
from benchmarks.dialogues import Dialogue, locomo_dialogues, own_dialogue, score
from benchmarks.embedders import DEFAULT, Shared, shared_embedders
from benchmarks.recall_speed import FULL, QUICK, speed
from benchmarks.recall_systems import (
    DEPTH,
    MEMKIT,
    PACKAGES,
    WITH_VECTORS,
    WITHOUT_VECTORS,
    Make,
    Memkit,
)

ENV = "MEMKIT_LOCOMO"
QUICK_TURNS, QUICK_QUESTIONS, QUICK_DIALOGUES = 120, 8, 2
NO_VECTORS = "none"
NOTE = "in the note"  # of memkit only: what `load` puts before a model
BARRED = ("recall@10", "recall within 1,024", "MRR")
RESAMPLES = 10_000


@dataclass(frozen=True)
class Answer:
    """What a system made of a question: what `score` says."""

    dialogue: str
    category: int
    scores: dict[str, float]


Measured = Sequence[tuple[Row, list[Answer]]]


def means(answers: Iterable[Answer]) -> dict[str, float]:
    """The mean of each metric over questions."""
    scores = [answer.scores for answer in answers]
    return {metric: float(np.mean([one[metric] for one in scores])) for metric in scores[0]}


def difference(ours: Sequence[Answer], theirs: Sequence[Answer], metric: str) -> dict[str, Any]:
    """By how much one system is ahead of another on the same questions.

    Returns:
        The mean difference and its 95% interval: 2.5% and 97.5% of 10,000 resamples of the questions of each
        conversation, with a fixed seed. It says how much the questions leave to chance; other conversations may differ
        by more.
    """
    gaps = np.array([a.scores[metric] - b.scores[metric] for a, b in zip(ours, theirs, strict=True)])
    names = np.array([answer.dialogue for answer in ours])
    chance = np.random.default_rng(5)
    sums = np.zeros(RESAMPLES)
    for name in dict.fromkeys(names.tolist()):
        part = gaps[names == name]
        sums += chance.choice(part, (RESAMPLES, len(part))).sum(1)
    low, high = np.quantile(sums / len(gaps), (0.025, 0.975))
    return {"value": float(gaps.mean()), "low": float(low), "high": float(high)}


def prepare(embeddings: Shared, dialogue: Dialogue) -> None:
    """Makes the vectors of what the systems will ask for in batches, which is quicker."""
    rounds = [[turn.line for turn in said] for said in dialogue.rounds()]
    embeddings.embed_documents(
        [
            *(turn.line for turn in dialogue.turns),
            *("\n".join(lines) for lines in rounds),
            *(" ".join(lines) for lines in rounds),
            *("input: {}\noutput: {}".format(lines[0], "\n".join(lines[1:])) for lines in rounds),
            *(question.text for question in dialogue.questions),
        ]
    )


def ask(make: Make, embeddings: Shared | None, dialogue: Dialogue) -> tuple[list[Answer], float, list[float]]:
    """One system on one conversation: its answers, and seconds, of all messages and of each question."""

    def spent(work: Callable[[], Any]) -> tuple[Any, float]:
        before, begin = embeddings.seconds if embeddings else 0.0, time.perf_counter()
        result = work()
        return result, time.perf_counter() - begin - (embeddings.seconds - before if embeddings else 0.0)

    with tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder:
        system = make(embeddings, Path(folder))
        _, saving = spent(lambda: system.save(dialogue))
        answers, asking = [], []
        for question in dialogue.questions:
            found, seconds = spent(partial(system.search, question.text, DEPTH))
            scores = score(found, question)
            if isinstance(system, Memkit):
                scores[NOTE] = len(question.evidence & system.noted(question.text)) / len(question.evidence)
            answers.append(Answer(dialogue.name, question.category, scores))
            asking.append(seconds)
        system.close()
    return answers, saving, asking


def measure(
    data: str, dialogues: Sequence[Dialogue], embedders: Mapping[str, Shared]
) -> Iterator[tuple[Row, list[Answer]]]:
    """Each embedder's systems on all conversations of a data set: what is timed, and the answers."""
    for embedder, embeddings in {**embedders, NO_VECTORS: None}.items():
        if embeddings:
            say(f"{data}, {embedder}: vectors")
            for dialogue in dialogues:
                prepare(embeddings, dialogue)
        for name, make in (WITH_VECTORS if embeddings else WITHOUT_VECTORS).items():
            answers: list[Answer] = []
            saving, asking = 0.0, []
            for dialogue in dialogues:
                some, seconds, each = ask(make, embeddings, dialogue)
                answers += some
                saving += seconds
                asking += each
            where = {"data": data, "embedder": embedder, "system": name}
            times = {
                "add_ms": 1000 * saving / sum(len(dialogue.turns) for dialogue in dialogues),
                "query_ms": 1000 * statistics.median(asking),
                "query_p95_ms": 1000 * sorted(asking)[int(0.95 * (len(asking) - 1))],
            }
            say(f"{data}, {embedder}: {name}")
            yield {"measurement": "time", **where, **{key: float(f"{ms:.3g}") for key, ms in times.items()}}, answers


def rows_of(timed: Row, answers: Sequence[Answer]) -> Iterator[Row]:
    """What a system found: in all, by category and by conversation."""
    yield timed
    place = {"measurement": "recall", **{key: timed[key] for key in ("data", "embedder", "system")}}
    groups = {"all": list(answers)}
    for answer in answers:
        groups.setdefault(f"category {answer.category}", []).append(answer)
    for answer in answers:
        groups.setdefault(answer.dialogue, []).append(answer)
    for where, group in groups.items():
        figures = {metric: round(value, 4) for metric, value in means(group).items()}
        yield {**place, "where": where, "questions": len(group), **figures}


def figures(measured: Measured, *, barred: bool) -> list[Row]:
    """By how much memkit is ahead of the best of all others; with bars if the data is worth it."""
    found: list[Row] = []
    for row, ours in measured:
        if row["system"] == MEMKIT:
            embedder = row["embedder"]
            others = [
                (other["system"], answers)
                for other, answers in measured
                if other["embedder"] in (embedder, NO_VECTORS) and other["system"] != MEMKIT
            ]
            found += _ahead({"data": row["data"], "embedder": embedder}, ours, others)
    return found if barred else unbarred(found)


def _ahead(place: Row, ours: Sequence[Answer], others: Sequence[tuple[str, list[Answer]]]) -> Iterator[Row]:
    """In all, and in how many conversations it is not; without vectors it is no default, and has no bar."""
    yield ratio("share of the evidence in the note of 1,024 tokens", means(ours)[NOTE], **place)
    barred = place["embedder"] != NO_VECTORS
    for metric in BARRED:
        name, theirs = max(others, key=lambda other: means(other[1])[metric])
        gap = {key: round(value, 4) for key, value in difference(ours, theirs, metric).items()}
        shown = {"of": name, "difference": gap["value"], "high": gap["high"]}
        yield ratio(f"{metric}, memkit - best other, low end", gap["low"], ">= 0" if barred else None, **place, **shown)
        behind = 0
        for dialogue in dict.fromkeys(answer.dialogue for answer in ours):
            mine, *theirs_here = (
                means(answer for answer in answers if answer.dialogue == dialogue)[metric]
                for answers in (ours, *(answers for _, answers in others))
            )
            behind += mine < max(theirs_here)
        yield ratio(f"{metric}, conversations in which any other is ahead", behind, "<= 0" if barred else None, **place)


def main() -> None:
    parser = arguments("Evidence in long conversations: VectorMemory beside its peers.")
    parser.add_argument("--data", type=Path, default=os.environ.get(ENV) or None, help=f"a LoCoMo file (or: {ENV})")
    parser.add_argument("--embeddings", action="append", choices=DEFAULT, help="may be repeated; both without it")
    parser.add_argument("--million", action="store_true", help="speed with a million rounds, too")
    options = parser.parse_args()
    full = bool(options.data) and not options.quick
    name = options.data.name if options.data else "own (no evidence of quality)"
    dialogues = locomo_dialogues(options.data) if options.data else [own_dialogue()]
    if options.quick:
        dialogues = [dialogue.part(QUICK_TURNS, QUICK_QUESTIONS) for dialogue in dialogues[:QUICK_DIALOGUES]]
    dialogues = [dialogue for dialogue in dialogues if dialogue.questions]
    about = environment(quick=options.quick, packages=PACKAGES)
    sizes = {
        "conversations": len(dialogues),
        "messages": sum(len(dialogue.turns) for dialogue in dialogues),
        "questions": sum(len(dialogue.questions) for dialogue in dialogues),
    }
    about |= {"data": [{"name": name, **sizes}], "tokens": "o200k_base"}
    embedders = shared_embedders(options.embeddings or DEFAULT)
    measured = list(measure(name, dialogues, embedders))
    rows = [row for timed, answers in measured for row in rows_of(timed, answers)]
    timed, judged = speed(QUICK if options.quick else FULL, million=options.million)
    finish("recall", options.output, about, rows + timed, figures(measured, barred=full) + judged, full=full)


if __name__ == "__main__":
    main()
