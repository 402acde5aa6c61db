"""Follow-up questions: what is found for them with and without `CondenseQuestionRetriever`.

Method. A question that was asked within a conversation is searched for among the answers of all conversations of its
set; the document that is looked for is the answer that was given. No model and no judge. The conversations come from a
folder that you name (`--data`, or the environment variable `MEMKIT_FOLLOWUPS`) with CANARD's dev.json, TREC CAsT 2019
and 2020, and TREC iKAT 2023 (and LoCoMo, whose lines serve as distractors), none of which is part of this project; the
result holds numbers only. Without it a small set is made here, which shows that the benchmark works and is NO evidence
of quality.

- All turns after the first that somebody rewrote and that have an answer of three words or more. A CANARD document is
  headed by its page's title. `CANARD, 60 conversations` are those of the table in the project's note.
- CAsT's files hold neither answers nor passages. Its documents are the human rewrites of all turns, and the one looked
  for is the turn's own ("known item"). That is near its ceiling from the start: it tells harm, and shows no gain.
- Masked: documents that answered earlier turns are left out (`skip_answered=True`; the messages name them, as
  `create_conversational_rag_chain` stores them). Unmasked they stay, and an expanded question finds the last answer
  again. 1,000 more: passages of the other sets are added.
- Two ways to search, the same for every system: BM25 (bm25s, k1 = 0.9, b = 0.4, stems without stop words) behind the
  interface of langchain-community's `BM25Retriever`, and LangChain's `InMemoryVectorStore` with MiniLM
  (all-MiniLM-L6-v2 in numpy; `--embeddings` names others). Equals are in a random order, which is fixed. (The harness
  of the project's note gives the better place to one of two equals: with BM25 it is kinder by up to .013.)
- Systems: the raw question; the turn before, its answer and the question in one text; rare terms (words of earlier
  questions and of the last answer that are rare in the documents); the human rewrite, which is the ceiling. memkit
  without a model: `weighted` always adds what the conversation says (`mode="weighted", gate=None`), `auto` does so only
  where the gate does not let the question pass. `text` is the string that `condense_question` returns, searched for as
  it is; `any retriever` is `CondenseQuestionRetriever` around a retriever that takes nothing but text.
- memkit's constants and its gate were chosen on these very conversations: the figures are those of development data.
- `--model URL` (opt-in, an OpenAI-compatible server): `create_history_aware_retriever` with the prompt of LangChain's
  documentation, and memkit with `mode="llm"`; where memkit does not take the rewrite, its weights serve.
- recall@k, MRR@10: of the one document that is looked for. ms: wall clock of a question with its search, without
  embedding. Intervals: 10,000 resamples of whole conversations, 95%.
- The gate is asked about all turns after the first. A turn that it passes loses nothing if its human rewrite equals the
  question, or if it is not so that the expanded question finds the document in the first 10 and the raw one does not.

Bars, on data that was named, in full, with BM25 and MiniLM. `memkit weighted`, masked: recall@10 of CANARD at least .62
and .75, of iKAT .70 and .85; in the mean of these four above the previous turn and above rare terms, in recall@10 and
MRR. `weighted`, `auto` and `any retriever`, unmasked or with 1,000 more: on no set more than .01 below the raw
question. The gate, on each set: at least 95% of what it passes loses nothing, and it passes at least 40% of the
questions that people left as they were.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np

from benchmarks.followups_data import DataSet, Question, read_sets
from benchmarks.followups_engines import Engine, Index, engine_of_vectors, engine_of_words
from benchmarks.followups_figures import Gated, derived, differences, gate_rows
from benchmarks.followups_own import own_set
from benchmarks.followups_report import console, row_of, say, show
from benchmarks.followups_score import Place, Result, part, rank
from benchmarks.followups_systems import (
    HUMAN,
    Rewrites,
    Rewritten,
    System,
    Text,
    Write,
    memkit_systems,
    prepare,
    texts_of,
)
from benchmarks.recall_embedders import Shared, embeddings_named
from benchmarks.report import Row, environment, write
from langchain_memkit.retrievers import CondenseQuestionRetriever

RESULTS = Path(__file__).parent / "results" / "followups.json"
ENV = "MEMKIT_FOLLOWUPS"
PACKAGES = ("langchain-classic", "bm25s", "PyStemmer", "numpy")
MORE = 1_000  # distractors
QUICK_CONVERSATIONS = 6
FREE = Rewrites()

Measured = dict[tuple[Place, str], Result]


def measure(
    data: DataSet, more: int, embedders: Mapping[str, Shared], models: Mapping[str, Rewrites]
) -> Iterator[Result]:
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
        for name, system in systems_of(engine, texts, models).items():
            cost = models.get(name, FREE)
            for masked in (True, False):
                ranks, ms = ask(system, questions, masked, engine.embeddings)
                place = Place(data.name, engine.name, more, masked)
                yield Result(place, name, tuple(questions), ranks, ms + cost.ms, cost.calls)
        say(f"{data.name}, {more:,} more: {engine.name}")


def asked_of(data: DataSet) -> list[Question]:
    """The questions that a document answers."""
    return [question for question in data.questions if question.gold]


def systems_of(engine: Engine, texts: Mapping[str, Write], models: Mapping[str, Rewrites]) -> dict[str, System]:
    """All, in the order of the tables."""
    systems: dict[str, System] = {name: Text(write, engine) for name, write in texts.items() if name != HUMAN}
    systems |= memkit_systems(engine)
    systems |= {name: Rewritten(made.texts, engine) for name, made in models.items()}
    return {**systems, HUMAN: Text(texts[HUMAN], engine)}


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


def gated(data: DataSet) -> Gated:
    """What memkit's own gate says."""
    retriever = CondenseQuestionRetriever(retriever=lambda _: [])
    said = [retriever.condense_question(question.turn.asked, question.messages) for question in data.questions]
    return Gated(data.name, data.questions, [one.by == "gate" for one in said])


def rewrites(url: str, questions: Sequence[Question]) -> dict[str, Rewrites]:
    from benchmarks.followups_model import rewrites  # what it needs loads slowly

    return rewrites(url, questions)


def measured(sets: Sequence[DataSet], options: argparse.Namespace) -> tuple[Measured, list[Row]]:
    """All results, those of parts of a set among them, and the rows of the gate and of the model."""
    embedders = shared_embedders(options.embeddings or ["minilm"], options.minilm, options.cache)
    found: Measured = {}
    more_rows: list[Row] = []
    for data in sets:
        models = rewrites(options.model, asked_of(data)) if options.model else {}
        for more in (0, MORE):
            for result in measure(data, more, embedders, models):
                parts = (part(result, name, conversations) for name, conversations in data.parts)
                found.update({(one.place, one.system): one for one in (result, *parts)})
        more_rows += gate_rows(gated(data), found)
        for name, made in models.items():
            shares = {"weighted": round(made.weighted, 4), "failed": round(made.failed, 4)}
            more_rows.append({"measurement": "model", "data": data.name, "system": name, **shares})
    return found, more_rows


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


def data_sets(options: argparse.Namespace) -> list[DataSet]:
    """What was named, or the set that is made here."""
    sets = read_sets(options.data) if options.data else [own_set()]
    limit = options.limit or (QUICK_CONVERSATIONS if options.quick else None)
    sets = [data.limited(limit) for data in sets] if limit else sets
    return [data for data in sets if asked_of(data)]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Follow-up questions: what is found for them.")
    parser.add_argument("--quick", action="store_true", help="few conversations, to see that it works")
    parser.add_argument("--data", type=Path, default=os.environ.get(ENV) or None, help=f"a folder (or: {ENV})")
    parser.add_argument("--limit", type=int, help="conversations of each set that are scored")
    parser.add_argument("--model", metavar="URL", help="an OpenAI-compatible server, with /v1, that rewrites questions")
    parser.add_argument("--embeddings", action="append", help="minilm, wordllama or module:factory; may be repeated")
    parser.add_argument("--minilm", type=Path, help="a folder with MiniLM's model.safetensors and tokenizer.json")
    parser.add_argument("--cache", type=Path, help="a SQLite file for the vectors, to be quicker next time")
    parser.add_argument(
        "--output", "--out", type=Path, help=f"JSON file (with data, in full: {RESULTS.name}; else none)"
    )
    return parser.parse_args()


def main() -> None:
    options = arguments()
    about = environment(quick=options.quick)
    del about["write_concerns"]
    about["versions"] |= {name: version(name) for name in PACKAGES}
    sets = data_sets(options)
    about["data"] = [
        {
            "name": data.name,
            "conversations": len({question.conversation for question in data.questions}),
            "turns": len(data.questions),
            "questions": sum(question.gold is not None for question in data.questions),
            "documents": len(data.ids),
        }
        for data in sets
    ]
    found, more_rows = measured(sets, options)
    full = bool(options.data and not options.quick and not options.limit)
    ratios = derived(found, more_rows, MORE, barred=full)
    rows = [*(row_of(result) for result in found.values()), *more_rows, *differences(found)]
    result = {**about, "ratios": sorted(ratios, key=lambda row: "bar" not in row), "rows": rows}
    show(result)
    write(result, options.output or (RESULTS if full and not options.model else None))


if __name__ == "__main__":
    main()
