"""What `VectorMemory` finds of the recall set, by kind of question, and what each part of the ranking is for.

    python -m benchmarks.recall_floors              # the figures beside their floors
    python -m benchmarks.recall_floors --data locomo.json   # of LoCoMo's conversations, which have no floors
    python -m benchmarks.recall_floors --ablation [--locomo FILE] [--ikat FOLDER]   # what is lost without each part
    python -m benchmarks.recall_floors --silence [--data locomo.json]   # what is shown for prompts that nothing answers
    python -m benchmarks.recall_floors --notes [--data locomo.json]   # the evidence in notes of 94 to 1,024 tokens

The conversations are saved by a `VectorMemory` in a SQLite file of histories, with WordLlama's vectors (the extra
`local`) or with none (words only); `--embeddings minilm` adds MiniLM. Then every question is asked: `R@512` is the
share of the evidence in the best records that fit into 512 tokens of o200k_base, `R@1,024` likewise. `make recall`
holds these figures above `FLOORS`, which lie .02 below what was measured.

Some kinds were found more often by an earlier ranking, whose parts were scaled by question and which had rules for
single kinds: `long` (R@1,024 .933 with WordLlama's vectors, .767 by words only), `neighbour` (.903, .903) and, by words
only, `session` (1.000). One score takes the place of these rules, the same for all kinds, and comparable between
questions, so that the floor holds for each record by itself. The other kinds are found as often as then, or more often.

Ablation: the change of R@1,024 with one part of the score switched off, over all questions of a set, with its 95%
interval (bootstrap over questions, paired).

Silence: the tokens of a note for everyday prompts (texts/everyday.txt), for questions of other conversations, for those
about what is not spoken of and for near misses; and the share of the evidence in the notes without a floor that is not
in those with it.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.messages import BaseMessage

from benchmarks.common import TEXTS
from benchmarks.dialogues import Dialogue, Found, Question, locomo_dialogues, recall_set, score, tokens
from benchmarks.embedders import Shared, embeddings_named
from langchain_memkit import SQLiteChatMessageHistory, VectorMemory
from langchain_memkit._sync import drive
from langchain_memkit.memories.vector.recalling import hit_of
from langchain_memkit.messages.notes import records_of
from langchain_memkit.ranking.question import read_question
from langchain_memkit.ranking.score import Ranking, best_first

WORDS_ONLY = "words only"
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
    """A conversation in a `VectorMemory` over a file of histories, saved by sessions; the clock is that of the talk.

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
        self.histories = SQLiteChatMessageHistory.factory(folder / f"{dialogue.name}.db", now=lambda: self.now)
        more: dict[str, Any] = {"max_tokens": NOTE_TOKENS, "token_counter": "o200k_base", "now": lambda: self.now}
        more |= {"ranking": weights} | ({"text_splitter": text_splitter} if text_splitter else {})
        self.memories = VectorMemory.factory(self.histories, self.embeddings, **more)
        self.unfloored = VectorMemory.factory(self.histories, self.embeddings, floor=None, **more)
        for session, turns in groupby(dialogue.turns, key=lambda turn: turn.session):
            said = [*turns]
            self.now = said[0].at
            self.memories(session, "u1").save(dialogue.messages(said))
        self.now += timedelta(hours=1)  # when the questions are asked
        held = drive(self.memories._core.log.look("u1"))
        self.index, self.stored = held.index, held.stored

    def search(self, question: str) -> list[Found]:
        """What `VectorMemory` finds."""
        hits = self.memories("questions", "u1").search(question, k=60)
        return [Found(hit.message_ids, hit.text) for hit in hits]

    def ranked(self, question: str, weights: Ranking) -> list[Found]:
        """The same by the index alone, which is quicker, and as much as is looked at."""
        asked = replace(read_question(question, self.now), vector=self.embeddings.embed_query(question))
        made: list[Found] = []
        seen: set[str] = set()
        size = 0
        for record in best_first(self.index, asked, weights).records:
            stored = self.stored[record.entry.id].record
            text = " ".join(stored.text.casefold().split())
            if text in seen:
                continue
            seen.add(text)
            hit = hit_of(record, None, stored, asked)
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
        self.unfloored.close()
        self.histories.close()


@cache
def shared_embedder(name: str) -> Shared:
    """An embedder that makes each vector once."""
    made = embeddings_named(name)
    if made is None:
        raise FileNotFoundError(f"{name} is not there: python tools/parts.py minilm")
    return Shared(made)


@contextmanager
def kept(embedder: str, dialogues: Iterable[Dialogue], text_splitter: Any = None) -> Iterator[list[Kept]]:
    """The conversations with an embedder's vectors: `wordllama`, `minilm`, or `WORDS_ONLY`."""
    shared = None if embedder == WORDS_ONLY else shared_embedder(embedder)
    weights = Ranking(relevance=0.0) if shared is None else Ranking()
    with tempfile.TemporaryDirectory(prefix="memkit-recall-") as folder, ExitStack() as open_:
        systems = []
        for dialogue in dialogues:
            system = Kept(dialogue, shared, Path(folder), weights, text_splitter)
            open_.callback(system.close)
            systems.append(system)
        yield systems


def measured(systems: Sequence[Kept]) -> Table:
    """Each metric by kind of question, the mean over questions."""
    scores: dict[str, list[Row]] = {}
    for system in systems:
        for question in system.dialogue.questions:
            scores.setdefault(question.kind, []).append(score(system.search(question.text), question))
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
        "date": {"R@512": 0.980, "R@1,024": 0.980},
        "exact": {"R@512": 0.980, "R@1,024": 0.980},
        "long": {"R@512": 0.713, "R@1,024": 0.747},
        "multi": {"R@512": 0.952, "R@1,024": 0.952},
        "name": {"R@512": 0.980, "R@1,024": 0.980},
        "neighbour": {"R@512": 0.786, "R@1,024": 0.851},
        "paraphrase": {"R@512": 0.355, "R@1,024": 0.480},
        "repeated": {"R@512": 0.980, "R@1,024": 0.980},
        "role": {"R@512": 0.918, "R@1,024": 0.980},
        "session": {"R@512": 0.821, "R@1,024": 0.957},
        "speaker": {"R@512": 0.752, "R@1,024": 0.819},
    },
    WORDS_ONLY: {
        "date": {"R@512": 0.967, "R@1,024": 0.967},
        "exact": {"R@512": 0.980, "R@1,024": 0.980},
        "long": {"R@512": 0.580, "R@1,024": 0.613},
        "multi": {"R@512": 0.952, "R@1,024": 0.952},
        "name": {"R@512": 0.980, "R@1,024": 0.980},
        "neighbour": {"R@512": 0.786, "R@1,024": 0.819},
        "paraphrase": {"R@512": 0.183, "R@1,024": 0.199},
        "repeated": {"R@512": 0.980, "R@1,024": 0.980},
        "role": {"R@512": 0.966, "R@1,024": 0.980},
        "session": {"R@512": 0.821, "R@1,024": 0.935},
        "speaker": {"R@512": 0.756, "R@1,024": 0.766},
    },
}


# -- the figures


def changes_without(systems: Sequence[Kept], change: Mapping[str, Any], metric: str = "R@1,024") -> list[float]:
    """What a question's recall changes by with other weights, for each question of all conversations."""
    changes = []
    for system in systems:
        without = replace(system.ranking, **change)
        for question in system.dialogue.questions:
            before, after = (
                score(system.ranked(question.text, weights), question)[METRICS[metric]]
                for weights in (system.ranking, without)
            )
            changes.append(after - before)
    return changes


def show_ablations(embedder: str, sets: Mapping[str, Sequence[Dialogue]]) -> None:
    """Print, for each set of conversations, the change of R@1,024 without each part, with its 95% interval."""
    for name, dialogues in sets.items():
        with kept(embedder, dialogues) as systems:
            for part, change in ABLATIONS.items():
                if part == "relevance" and embedder == WORDS_ONLY:
                    continue
                changes = changes_without(systems, change)
                print(f"{embedder}, {name}, without {part}: {interval(np.array(changes))}", flush=True)


def interval(values: npt.NDArray[np.float64], draws: int = 2_000) -> str:
    """The mean, and its 95% interval over questions (bootstrap)."""
    chance = np.random.default_rng(0)
    means = values[chance.integers(0, len(values), (draws, len(values)))].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return f"{values.mean():.3f} ({low:.3f} to {high:.3f})"


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
            options: dict[str, Any] = {
                "max_tokens": budget,
                "token_counter": COUNTER,
                "now": lambda now=system.now: now,
            }
            memory = VectorMemory(system.histories, system.embeddings, "questions", user_id="u1", **options)
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
    parser.add_argument("--locomo", type=Path, help="a LoCoMo file, for --ablation in addition to the recall set")
    parser.add_argument("--ikat", type=Path, help="a folder with iKAT's topics, likewise")
    parser.add_argument("--embeddings", action="append", default=[], help="minilm, in addition")
    options = parser.parse_args()
    sets: dict[str, list[Dialogue]] = {}
    if options.ablation:
        from benchmarks.recall_chats import sets_in  # which is built on this module

        sets = {
            name: [replace(one, questions=tuple(each.question for each in asked)) for one, asked in chats]
            for name, chats in sets_in(options.locomo, options.ikat).items()
        }
    dialogues = locomo_dialogues(options.data) if options.data else recall_set().dialogues
    for embedder in ("wordllama", WORDS_ONLY, *options.embeddings):
        if options.ablation:
            show_ablations(embedder, sets)
            continue
        with kept(embedder, dialogues) as systems:
            if options.notes:
                print(f"{embedder}: {notes(systems)}", flush=True)
            elif options.silence:
                print(f"{embedder}: {silence(systems)}", flush=True)
            elif options.data:
                [row] = measured(systems).values()
                print(f"{embedder}: {', '.join(f'{metric} {value:.3f}' for metric, value in row.items())}", flush=True)
            else:
                print(lines(embedder, measured(systems)))


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
