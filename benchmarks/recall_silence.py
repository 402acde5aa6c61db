"""What `VectorMemory` shows for prompts that it cannot help with, and what its floor costs: prints a line for each.

    python -m benchmarks.recall_silence [--data locomo.json]

Notes of 1,024 tokens (o200k_base), with the floor and without. Prompts: everyday ones (texts/everyday.txt), those that
other conversations answer, and what the recall set says that nothing answers. Evidence lost: the share of what is in
the notes without a floor that is not in those with it.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.recall import tokens
from benchmarks.recall_data import Dialogue, Question, locomo_dialogues, recall_set
from benchmarks.recall_embedders import DEFAULT, Shared, embeddings_named
from benchmarks.recall_score import NOTE_TOKENS
from benchmarks.recall_systems import Memkit
from langchain_memkit import VectorMemory
from langchain_memkit.messages.notes import records_of

EVERYDAY = Path(__file__).parent / "texts" / "everyday.txt"
OTHERS = 30  # questions of each other conversation
WORDS_ONLY = "words only"


class Down(Shared):
    """Embeds what is saved, and no question."""

    def embed_query(self, text: str) -> list[float]:
        msg = "this embedder takes no questions"
        raise ConnectionError(msg)


def shown(memory: VectorMemory, text: str) -> int:
    """Tokens of the note for a prompt."""
    return sum(tokens(note.text) for note in memory.load(text))


def found(memory: VectorMemory, question: Question) -> float:
    """The share of the evidence in the note for a question."""
    records = [record for note in memory.load(question.text) for record in records_of(note)]
    ids = {name for record in records if question.quote in record.text for name, _ in record.parts}
    return len(question.evidence & ids) / len(question.evidence)


def measure(dialogues: Sequence[Dialogue], embeddings: Shared) -> dict[str, float]:
    """The mean tokens for each kind of prompt, and the share of the evidence that is lost."""
    prompts = EVERYDAY.read_text(encoding="utf-8").splitlines()
    chance = random.Random(0)
    sizes: dict[str, list[int]] = defaultdict(list)
    kept, whole = 0.0, 0.0
    for dialogue in dialogues:
        with tempfile.TemporaryDirectory(prefix="memkit-bench-") as folder:
            system = Memkit(embeddings, Path(folder))
            system.save(dialogue)
            options: dict[str, Any] = {"max_tokens": NOTE_TOKENS, "token_counter": "o200k_base"}
            memory, without = (
                system.memories("questions", "u1"),
                VectorMemory(system.store, "questions", user_id="u1", floor=None, now=lambda: system.now, **options),  # noqa: B023  # used within the loop
            )
            kept += sum(found(memory, question) for question in dialogue.questions)
            whole += sum(found(without, question) for question in dialogue.questions)
            others = [
                question.text
                for other in dialogues
                if other is not dialogue
                for question in chance.sample(other.questions, min(OTHERS, len(other.questions)))
            ]
            kinds = {"everyday": prompts, "others": others, "unanswerable": dialogue.unanswerable}
            for kind, texts in kinds.items():
                sizes[kind] += [shown(memory, text) for text in texts]
            system.close()
    return {"lost": 1 - kept / whole, **{kind: mean(some) for kind, some in sizes.items() if some}}


def main() -> None:
    parser = argparse.ArgumentParser(description="What VectorMemory shows for prompts that it cannot help with.")
    parser.add_argument("--data", type=Path, help="a LoCoMo file, beside the recall set")
    parser.add_argument("--cache", type=Path, help="a SQLite file for the vectors, to be quicker next time")
    options = parser.parse_args()
    logging.getLogger("langchain_memkit").setLevel(logging.ERROR)
    sets = {"recall set": list(recall_set().dialogues)}
    if options.data:
        sets[options.data.name] = locomo_dialogues(options.data)
    for name in (*DEFAULT, WORDS_ONLY):
        embedder = "wordllama" if name == WORDS_ONLY else name
        embeddings = embeddings_named(embedder, None)
        if embeddings is None:
            print(f"{name} is not measured: its files are not there (python tools/parts.py minilm)")
            continue
        shared = (Down if name == WORDS_ONLY else Shared)(embeddings, embedder, options.cache)
        for data, dialogues in sets.items():
            row = measure(dialogues, shared)
            told = ", ".join(f"{kind} {value:.0f} tokens" for kind, value in row.items() if kind != "lost")
            print(f"{data}, {name}: {row['lost']:.2%} of the evidence lost; {told}", flush=True)


if __name__ == "__main__":
    main()
