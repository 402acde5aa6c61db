"""What `VectorMemory` finds of the recall set, by kind of question, and what each part of the ranking is for.

    python -m benchmarks.recall_floors              # the figures beside their floors
    python -m benchmarks.recall_floors --data locomo.json   # of LoCoMo's conversations, which have no floors
    python -m benchmarks.recall_floors --ablation   # what is lost without each part, as docs/benchmarks.md has it
    python -m benchmarks.recall_floors --silence [--data locomo.json]   # what is shown for prompts that nothing answers
    python -m benchmarks.recall_floors --notes [--data locomo.json]   # the evidence in notes of 94 to 1,024 tokens

The conversations are saved in a `VectorMemory` over a SQLite file, with WordLlama's vectors (the extra `local`) or with
none (words only); `--embeddings minilm` adds MiniLM. Then every question is asked: `R@512` is the share of the evidence
in the best records that fit into 512 tokens of o200k_base, `R@1,024` likewise. `make recall` holds these figures above
`FLOORS`, which lie .02 below what was measured, and shows that each part of the ranking keeps a row above its floor.

Silence: the tokens of a note for everyday prompts (texts/everyday.txt), for questions of other conversations, for those
about what is not spoken of and for near misses; and the share of the evidence in the notes without a floor that is not
in those with it.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.messages import BaseMessage

from benchmarks.common import TEXTS
from benchmarks.dialogues import Dialogue, Found, Question, locomo_dialogues, recall_set, score, tokens
from benchmarks.embedders import Shared, embeddings_named
from langchain_memkit import SQLiteVectorStore, VectorMemory
from langchain_memkit._sync import drive
from langchain_memkit.memories.vector.recalling import hit_of
from langchain_memkit.messages.notes import records_of
from langchain_memkit.ranking import bm25 as matches
from langchain_memkit.ranking import tokenize as words
from langchain_memkit.ranking.bm25 import IndexSnapshot
from langchain_memkit.ranking.index import Index, digest_of, index_record_of
from langchain_memkit.ranking.score import Ranking, best_first

WORDS_ONLY, FEW = "words only", "wordllama, ten candidates"
METRICS = {"R@512": "recall within 512", "R@1,024": "recall within 1,024"}
ENOUGH = 1_024  # tokens of records that are looked at
NOTE_TOKENS = 1_000  # the default of `max_tokens`
COUNTER = "o200k_base"
NOTES = (94, 158, 256, 512, 1_024)  # tokens; the frame takes 30 of them
OTHERS = 30  # questions of each other conversation, for silence
PROMPTS = {"everyday": 115, "others": 125, "unanswerable": 60}  # of 300 that a memory cannot help
Row = dict[str, float]
Table = dict[str, Row]  # by kind of question


class Kept:
    """A conversation in a `VectorMemory` over a SQLite file, saved by sessions; the clock is that of the talk.

    Args:
        dialogue: The conversation.
        embeddings: None: vectors mean nothing and have no weight.
        folder: For the file.
        weights: Those of its parts.
        text_splitter: In place of the default one, if it is given.
    """

    def __init__(
        self, dialogue: Dialogue, embeddings: Embeddings | None, folder: Path, weights: Ranking, text_splitter: Any
    ) -> None:
        self.dialogue = dialogue
        self.now = datetime.now(UTC)
        self.ranking = weights
        self.embeddings = embeddings or DeterministicFakeEmbedding(size=8)
        self.store = SQLiteVectorStore(folder / f"{dialogue.name}.db", self.embeddings)
        more: dict[str, Any] = {"max_tokens": NOTE_TOKENS, "token_counter": "o200k_base", "now": lambda: self.now}
        more |= {"ranking": weights} | ({"text_splitter": text_splitter} if text_splitter else {})
        self.memories = VectorMemory.factory(self.store, **more)
        self.unfloored = VectorMemory.factory(self.store, floor=None, **more)
        for session, turns in groupby(dialogue.turns, key=lambda turn: turn.session):
            said = [*turns]
            self.now = said[0].at
            self.memories(session, "u1").save(dialogue.messages(said))
        self.now += timedelta(hours=1)  # when the questions are asked
        self.index = drive(self.store.records.index("u1"))
        found = self.store.get_by_ids([entry.id for entry in self.index.entries], user_id="u1")
        self.documents = {document.id: document for document in found}

    def search(self, question: str) -> list[Found]:
        """What `VectorMemory` finds."""
        hits = self.memories("questions", "u1").search(question, k=60)
        return [Found(hit.message_ids, hit.text) for hit in hits]

    def ranked(self, question: str, weights: Ranking, *, once: bool = True) -> list[Found]:
        """The same by the index alone, which is quicker, and as much as is looked at."""
        asked = ranking.Question(question, self.embeddings.embed_query(question), self.now)
        made: list[Found] = []
        seen: set[str] = set()
        size = 0
        for record in best_first(self.index, asked, weights).records:
            document = self.documents[record.entry.id]
            digest = digest_of(document.page_content)
            if once and digest in seen:
                continue
            seen.add(digest)
            hit = hit_of(record, None, document)
            made.append(Found(hit.message_ids, hit.text))
            size += tokens(hit.text)
            if size > ENOUGH:
                break
        return made

    def noted(self, prompt: str, *, floor: bool = True) -> int:
        """Tokens of what `load` shows a model for a prompt."""
        return sum(tokens(note.text) for note in self._notes(prompt, floor))

    def shown(self, question: Question, *, floor: bool = True) -> float:
        """The share of the evidence in what `load` shows."""
        records = [record for note in self._notes(question.text, floor) for record in records_of(note)]
        ids = {name for record in records if question.quote in record.text for name, _ in record.parts}
        return len(question.evidence & ids) / len(question.evidence)

    def _notes(self, prompt: str, floor: bool) -> list[BaseMessage]:
        memories = self.memories if floor else self.unfloored
        return memories("questions", "u1").load(prompt)

    def close(self) -> None:
        self.memories.close()


@cache
def shared_embedder(name: str) -> Shared:
    """An embedder that makes each vector once."""
    made = embeddings_named(name)
    if made is None:
        raise FileNotFoundError(f"{name} is not there: python tools/parts.py minilm")
    return Shared(made)


@contextmanager
def kept(embedder: str, dialogues: Iterable[Dialogue], text_splitter: Any = None) -> Iterator[list[Kept]]:
    """The conversations with an embedder's vectors: `wordllama`, `minilm`, `WORDS_ONLY`, or `FEW`."""
    shared = None if embedder == WORDS_ONLY else shared_embedder("wordllama" if embedder == FEW else embedder)
    weights = Ranking(relevance=0.0) if shared is None else Ranking(candidates=10) if embedder == FEW else Ranking()
    with tempfile.TemporaryDirectory(prefix="memkit-recall-") as folder, ExitStack() as open_:
        systems = []
        for dialogue in dialogues:
            system = Kept(dialogue, shared, Path(folder), weights, text_splitter)
            open_.callback(system.close)
            systems.append(system)
        yield systems


def measured(systems: Sequence[Kept], find: Callable[[Kept, Question], Sequence[Found]], kind: str = "") -> Table:
    """Each metric by kind of question, the mean over questions; one kind only, if it is named."""
    scores: dict[str, list[Row]] = {}
    for system in systems:
        for question in system.dialogue.questions:
            if not kind or question.kind == kind:
                scores.setdefault(question.kind, []).append(score(find(system, question), question))
    return {
        name: {short: float(np.mean([one[metric] for one in rows])) for short, metric in METRICS.items()}
        for name, rows in sorted(scores.items())
    }


def missed(embedder: str, table: Table) -> list[str]:
    """The rows that are below their floor, in words."""
    floors = FLOORS[embedder]
    return [
        f"{kind} {metric}: {value:.3f}, its floor is {floors[kind][metric]:.3f}"
        for kind, row in table.items()
        for metric, value in row.items()
        if value < floors[kind][metric]
    ]


# -- what each part is for

ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "relevance": {"relevance": 0.0},
    "lexical": {"lexical": 0.0},
    "neighbours": {"neighbours": 0.0},
    "session": {"session": 0.0},
    "name": {"name": 0.0},
    "speaker": {"speaker": 0.0},
    "others": {"others": 1.0},
    "date": {"date": 0.0},
}


# -- floors

FLOORS: Mapping[str, Table] = {
    "wordllama": {
        "date": {"R@512": 0.967, "R@1,024": 0.980},
        "exact": {"R@512": 0.980, "R@1,024": 0.980},
        "long": {"R@512": 0.813, "R@1,024": 0.913},
        "multi": {"R@512": 0.952, "R@1,024": 0.952},
        "name": {"R@512": 0.980, "R@1,024": 0.980},
        "neighbour": {"R@512": 0.851, "R@1,024": 0.883},
        "paraphrase": {"R@512": 0.355, "R@1,024": 0.464},
        "repeated": {"R@512": 0.980, "R@1,024": 0.980},
        "role": {"R@512": 0.896, "R@1,024": 0.980},
        "session": {"R@512": 0.798, "R@1,024": 0.957},
        "speaker": {"R@512": 0.736, "R@1,024": 0.796},
    },
    WORDS_ONLY: {
        "date": {"R@512": 0.967, "R@1,024": 0.967},
        "exact": {"R@512": 0.980, "R@1,024": 0.980},
        "long": {"R@512": 0.680, "R@1,024": 0.747},
        "multi": {"R@512": 0.952, "R@1,024": 0.952},
        "name": {"R@512": 0.980, "R@1,024": 0.980},
        "neighbour": {"R@512": 0.819, "R@1,024": 0.883},
        "paraphrase": {"R@512": 0.136, "R@1,024": 0.168},
        "repeated": {"R@512": 0.980, "R@1,024": 0.980},
        "role": {"R@512": 0.887, "R@1,024": 0.980},
        "session": {"R@512": 0.844, "R@1,024": 0.980},
        "speaker": {"R@512": 0.706, "R@1,024": 0.751},
    },
    FEW: {
        "date": {"R@512": 0.941, "R@1,024": 0.941},
        "exact": {"R@512": 0.980, "R@1,024": 0.980},
        "long": {"R@512": 0.713, "R@1,024": 0.713},
        "multi": {"R@512": 0.952, "R@1,024": 0.952},
        "name": {"R@512": 0.980, "R@1,024": 0.980},
        "neighbour": {"R@512": 0.786, "R@1,024": 0.786},
        "paraphrase": {"R@512": 0.230, "R@1,024": 0.230},
        "repeated": {"R@512": 0.730, "R@1,024": 0.730},
        "role": {"R@512": 0.896, "R@1,024": 0.910},
        "session": {"R@512": 0.616, "R@1,024": 0.616},
        "speaker": {"R@512": 0.687, "R@1,024": 0.687},
    },
}


# -- the figures


def show_ablations(dialogues: Sequence[Dialogue]) -> None:
    """Prints the table of docs/benchmarks.md: for each part the row that it keeps above its floor."""
    print("| without | questions | vectors | metric | with it | without it | floor |\n|---|---|---|---|---|---|---|")
    with ExitStack() as open_:
        stored: dict[str, list[Kept]] = {}
        for name, ablation in ABLATIONS.items():
            embedder, kind = ablation.embedder, ablation.kind
            if embedder not in stored:
                stored[embedder] = open_.enter_context(kept(embedder, dialogues))
            base = Ablation(kind, embedder).table(stored[embedder], kind)[kind]
            with ablation.saved(stored[embedder], dialogues) as systems:
                found = ablation.table(systems, kind)[kind]
            metric = min(METRICS, key=lambda metric: found[metric] - FLOORS[embedder][kind][metric])
            figures = (f"{row[metric]:.3f}".removeprefix("0") for row in (base, found, FLOORS[embedder][kind]))
            print(f"| {name} | {kind} | {embedder} | {metric} | {' | '.join(figures)} |", flush=True)


def silence(systems: Sequence[Kept]) -> str:
    """The evidence that the floor of `VectorMemory` costs, and mean tokens for each kind of prompt.

    `prompts` are 300 for each conversation with a list of unanswerable questions: the everyday ones, others' questions
    and the unanswerable, weighted as 115, 125 and 60 where there are more or fewer.
    """
    prompts = (TEXTS / "everyday.txt").read_text(encoding="utf-8").splitlines()
    chance = random.Random(0)
    sizes: dict[str, list[int]] = {name: [] for name in (*PROMPTS, "near misses")}
    for system in systems:
        asked = [other.dialogue.questions for other in systems if other is not system]
        others = [question.text for some in asked for question in chance.sample(some, min(OTHERS, len(some)))]
        of = system.dialogue
        for kind, texts in zip(sizes, (prompts, others, of.unanswerable, of.near_misses), strict=True):
            sizes[kind] += [system.noted(text) for text in texts]
    pairs = [(system, question) for system in systems for question in system.dialogue.questions]
    with_floor, without = (sum(system.shown(q, floor=floor) for system, q in pairs) for floor in (True, False))
    means = {kind: float(np.mean(some)) for kind, some in sizes.items() if some}
    counted = {kind: number for kind, number in PROMPTS.items() if kind in means}
    mean = sum(means[kind] * number for kind, number in counted.items()) / sum(counted.values())
    told = ", ".join(f"{kind} {tokens:.0f}" for kind, tokens in means.items())
    return f"{1 - with_floor / without:.2%} of the evidence lost; tokens: {told}; mean of prompts {mean:.0f}"


def notes(systems: Sequence[Kept]) -> str:
    """The share of the evidence in notes of each budget, and how many records they hold."""
    told = []
    for budget in NOTES:
        held: list[float] = []
        records = 0
        for system in systems:
            memory = VectorMemory.factory(
                system.store, max_tokens=budget, token_counter=COUNTER, now=lambda now=system.now: now
            )("questions", "u1")
            for question in system.dialogue.questions:
                found = [record for note in memory.load(question.text) for record in records_of(note)]
                ids = {name for record in found if question.quote in record.text for name, _ in record.parts}
                held.append(len(question.evidence & ids) / len(question.evidence))
                records += len(found)
        told.append(f"{budget:,} tokens: {np.mean(held):.3f} in {records / len(held):.1f} records")
    return "; ".join(told)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ablation", action="store_true", help="what is lost without each part")
    parser.add_argument("--silence", action="store_true", help="what is shown for prompts that nothing answers")
    parser.add_argument("--notes", action="store_true", help="the evidence in notes, by their budget")
    parser.add_argument("--data", type=Path, help="a LoCoMo file in place of the recall set")
    parser.add_argument("--embeddings", action="append", default=[], help="minilm, in addition")
    options = parser.parse_args()
    dialogues = locomo_dialogues(options.data) if options.data else recall_set().dialogues
    if options.ablation:
        show_ablations(dialogues)
        return
    for embedder in ("wordllama", WORDS_ONLY, *options.embeddings):
        with kept(embedder, dialogues) as systems:
            if options.notes:
                print(f"{embedder}: {notes(systems)}", flush=True)
            elif options.silence:
                print(f"{embedder}: {silence(systems)}", flush=True)
            elif options.data:
                [row] = measured(systems, lambda system, question: system.search(question.text)).values()
                print(f"{embedder}: {', '.join(f'{metric} {value:.3f}' for metric, value in row.items())}", flush=True)
            else:
                print(lines(embedder, measured(systems, lambda system, question: system.search(question.text))))


def lines(embedder: str, table: Table) -> str:
    """The figures with their floors, in columns."""
    floors = FLOORS.get(embedder, {})
    made = [f"{embedder:28}" + "".join(f"{metric:>8} (floor)" for metric in METRICS)]
    for kind, row in table.items():
        cells = "".join(
            f"{value:8.3f} ({floors[kind][metric]:.3f})" if kind in floors else f"{value:8.3f}        "
            for metric, value in row.items()
        )
        made.append(f"  {kind:26}{cells}")
    return "\n".join(made)


if __name__ == "__main__":
    main()
