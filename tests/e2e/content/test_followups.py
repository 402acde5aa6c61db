"""A real model rewrites 30 follow-up questions: figures beside the weights, which need no model.

`make e2e-content`, not part of CI. The conversations are CANARD's and iKAT's, from the folder that MEMKIT_FOLLOWUPS
names or from the evaluation data beside the project: they are not part of the repository.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from langchain_openai import ChatOpenAI

from benchmarks.followups import metric, rank
from benchmarks.followups_data import DataSet, Question, read_sets
from benchmarks.followups_systems import (
    HUMAN,
    RAW,
    WEIGHTED,
    Index,
    Rewritten,
    Text,
    engine_of_words,
    key,
    memkit_systems,
    texts_of,
)
from langchain_memkit import CondenseQuestionRetriever

pytestmark = pytest.mark.e2e_content

BESIDE = Path(__file__).resolve().parents[4] / "shared" / "bench" / "data"
SAMPLE = 15  # questions of each set


def drawn(data: DataSet) -> list[Question]:
    """Questions that somebody had to rewrite, and that a document answers."""
    found = [q for q in data.questions if q.gold and q.turn.asked.casefold() != q.turn.rewrite.casefold()]
    return random.Random(5).sample(found, SAMPLE)


def test_thirty_follow_ups(model: ChatOpenAI) -> None:
    """Every question is answered by something; what is found is printed, by BM25, answered documents left out."""
    folder = Path(os.environ.get("MEMKIT_FOLLOWUPS", BESIDE))
    if not folder.is_dir():
        pytest.skip(f"no evaluation data in {folder}: set MEMKIT_FOLLOWUPS")
    heard: dict[str, str] = {}

    class Heard(CondenseQuestionRetriever):
        """Notes what the model wrote."""

        def refusal(self, question: str, rewrite: str, earlier: Sequence[str]) -> str | None:
            """Reject as ever."""
            heard[question] = rewrite
            return super().refusal(question, rewrite, earlier)

    sets = [data for data in read_sets(folder) if data.name in ("CANARD", "iKAT 2023")]
    assert len(sets) == 2
    for data in sets:
        questions, made, said, by = drawn(data), {}, {}, Counter[str]()
        retriever = Heard(retriever=lambda _: [], llm=model, mode="llm", timeout=120)
        for question in questions:
            found = retriever.condense_question(question.turn.asked, question.messages)
            assert found.question.strip()
            by[found.by if found.by == "model" else found.reason] += 1
            if found.by == "model":
                made[key(question)] = found.question
            said[key(question)] = heard.pop(question.turn.asked, None)
        documents = data.pool(0)
        engine = engine_of_words(documents)
        texts = texts_of(Index(document.page_content for document in documents))
        systems = {
            RAW: Text(texts[RAW], engine),
            WEIGHTED: memkit_systems(engine)[WEIGHTED],
            "model, unchecked": Rewritten(said, engine),
            "model, else weighted": Rewritten(made, engine),
            HUMAN: Text(texts[HUMAN], engine),
        }
        print(f"\n{data.name}: {dict(by)}")
        for name, system in systems.items():
            ranks = np.array([rank(system.find(question, True), question.gold) for question in questions])
            recall, mrr = metric(ranks, "recall@10").mean(), metric(ranks, "MRR@10").mean()
            print(f"  {name:<22} recall@10 {recall:.3f}  MRR {mrr:.3f}")
