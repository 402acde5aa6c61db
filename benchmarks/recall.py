"""Evidence in long conversations: `VectorMemory` beside its peers, and how fast it is: `make bench`.

Method. Conversations over many sessions are saved, in order, as an app would save them; then questions are asked whose
evidence is known, the messages that answer them. No model and no judge: what is looked at is whether these messages are
found. The conversations come from files that you name: one in LoCoMo's format (`--data`, or the environment variable
`MEMKIT_LOCOMO`), and a folder of REALTALK (`--realtalk`). Neither is part of this project (LoCoMo's licence is CC BY-NC
4.0), and the result holds numbers only. Without them a small conversation is made here, which shows that the benchmark
works and is NO evidence of quality.

- Every system has the same embedder and the very same vectors, made once: MiniLM (all-MiniLM-L6-v2, computed in numpy),
  if its files are there (`--minilm`, or `python tools/parts.py minilm`), and WordLlama's table of words, which memkit's
  extra `local` brings; `--embeddings module:factory` names others. Each gives a table of its own.
- memkit has its defaults, over a SQLite file, and gets messages with their speakers' names and ids and the date of the
  session. The others get `speaker: text`, and are as their packages are: LlamaIndex's VectorMemory,
  langchain-classic's VectorStoreRetrieverMemory and TimeWeightedVectorStoreRetriever (as shipped: every question
  changes what the next ones find), langgraph's InMemoryStore with an index, mem0 with `infer=False` on its local Qdrant
  (no keyword part: that needs more packages). References: BM25 over stems without stop words, and its ranks fused with
  those of cosines (k = 60). The first speaker has the user's part. Pictures are their captions.
- memkit's weights were chosen with the help of four of LoCoMo's conversations (conv-26, 30, 41, 42). The other six, and
  REALTALK, are the better evidence: look at the figures by conversation.
- LoCoMo's questions of category 5 are left out: nothing answers them. 1 asks for several facts, 2 for times, 3 for what
  one has to infer, 4 for one fact.
- Each is asked for 60 records. recall@k is the share of the evidence in the first k records. These differ in size (a
  message here, a round of two or three there), so compare `recall within n`: records are packed in their order until
  the next one would be more than n tokens of o200k_base, which is what a prompt pays for. MRR: 1 / rank of the first
  record with evidence. A difference is given to the best of all others, peer or reference, chosen for each metric
  after the fact, with the 95% interval of 10,000 paired resamples of the questions.
  Counted are the records themselves. What memkit's `load` really puts before a model, with its frame, sessions and
  dates, is given apart: the share of the evidence in a note of 1,024 tokens.
- Time: wall clock, without embedding, of a message saved and a question asked, one run. memkit and mem0 write to files,
  memkit so that a round survives a loss of power; the others keep all in memory.

Speed is measured apart, see recall_speed.py. `--million` adds a million rounds of 1,000 users (minutes, and some GB
of disk in the temporary folder).

Bars, on data that was named: memkit is ahead of the best other in recall@10, recall within 1,024 and MRR, in all (the
low end of the interval is not below 0) and in each conversation. Speed: see there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langchain_core.messages import HumanMessage

from benchmarks.recall_data import Dialogue, locomo_dialogues, own_dialogue, realtalk_dialogues
from benchmarks.recall_embedders import DEFAULT, Shared, embeddings_named
from benchmarks.recall_report import console, figures, say, show
from benchmarks.recall_score import DEPTH, NOTE, Answer, means, score
from benchmarks.recall_speed import FULL, QUICK, speed
from benchmarks.recall_systems import PACKAGES, WITH_VECTORS, WITHOUT_VECTORS, Make, Memkit
from benchmarks.report import Row, environment, write
from langchain_memkit.messages.tokens import OpenAITokenCounter

RESULTS = Path(__file__).parent / "results" / "recall.json"
ENV = "MEMKIT_LOCOMO"
OWN = "own (no evidence of quality)"
QUICK_TURNS, QUICK_QUESTIONS, QUICK_DIALOGUES = 120, 8, 2
NO_VECTORS = "none"


@cache
def tokens(text: str) -> int:
    """Of o200k_base, without the frame of a message."""
    counter = OpenAITokenCounter("o200k_base")
    return counter([HumanMessage(text)]) - counter([HumanMessage("")])


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
            found, seconds = spent(lambda q=question: system.search(q.text, DEPTH))  # type: ignore[misc]  # bound now
            scores = score(found, question, tokens)
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


def data_sets(options: argparse.Namespace) -> dict[str, list[Dialogue]]:
    """What was named, or the conversation that is made here."""
    found: dict[str, list[Dialogue]] = {}
    if options.data:
        found[options.data.name] = locomo_dialogues(options.data)
    if options.realtalk:
        found["REALTALK"] = realtalk_dialogues(options.realtalk)
    found = found or {OWN: [own_dialogue()]}
    if options.quick:
        found = {
            name: [dialogue.part(QUICK_TURNS, QUICK_QUESTIONS) for dialogue in dialogues[:QUICK_DIALOGUES]]
            for name, dialogues in found.items()
        }
    return {name: [dialogue for dialogue in dialogues if dialogue.questions] for name, dialogues in found.items()}


def shared_embedders(names: Sequence[str], minilm: Path | None, file: Path | None) -> dict[str, Shared]:
    """Those that are there; says which is not."""
    found = {}
    for name in names:
        embeddings = embeddings_named(name, minilm)
        if embeddings is None:
            console.print(f"{name} is not measured: its files are not there (python tools/parts.py minilm)")
        else:
            found[name] = Shared(embeddings, name, file)
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Evidence in long conversations: VectorMemory beside its peers.")
    parser.add_argument("--quick", action="store_true", help="little of everything, to see that it works")
    parser.add_argument("--data", type=Path, default=os.environ.get(ENV) or None, help=f"a LoCoMo file (or: {ENV})")
    parser.add_argument("--realtalk", type=Path, help="a folder with REALTALK's files Chat_*.json")
    parser.add_argument("--embeddings", action="append", help="minilm, wordllama or module:factory; may be repeated")
    parser.add_argument("--minilm", type=Path, help="a folder with MiniLM's model.safetensors and tokenizer.json")
    parser.add_argument("--cache", type=Path, help="a SQLite file for the vectors, to be quicker next time")
    parser.add_argument("--only", choices=("recall", "speed"), help="one part")
    parser.add_argument("--million", action="store_true", help="speed with a million rounds, too")
    parser.add_argument(
        "--output", "--out", type=Path, help=f"JSON file (with data, in full: {RESULTS.name}; else none)"
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    about = environment(quick=options.quick)
    del about["write_concerns"]
    about["versions"] |= {name: version(name) for name in PACKAGES}
    rows: list[Row] = []
    found: list[Row] = []
    if options.only != "speed":
        sets = data_sets(options)
        about["data"] = [
            {
                "name": name,
                "conversations": len(dialogues),
                "messages": sum(len(dialogue.turns) for dialogue in dialogues),
                "questions": sum(len(dialogue.questions) for dialogue in dialogues),
            }
            for name, dialogues in sets.items()
        ]
        embedders = shared_embedders(options.embeddings or DEFAULT, options.minilm, options.cache)
        about["tokens"] = "o200k_base"
        for name, dialogues in sets.items():
            measured = list(measure(name, dialogues, embedders))
            rows += [row for timed, answers in measured for row in rows_of(timed, answers)]
            found += figures(measured, barred=name != OWN and not options.quick)
    if options.only != "recall":
        quick = QUICK if options.quick else FULL
        timed, judged = speed(quick, million=options.million)
        rows += timed
        found += judged
    result = {**about, "ratios": sorted(found, key=lambda row: "bar" not in row), "rows": rows}
    show(result)
    full = (options.data or options.realtalk) and not options.quick and not options.only
    write(result, options.output or (RESULTS if full else None))


if __name__ == "__main__":
    main()
