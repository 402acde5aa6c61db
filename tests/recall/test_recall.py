"""What vector memory finds of the recall set stays above its floors, and what nothing answers shows little.

`LOST` is the evidence that notes with a floor lack: paraphrases, and sentences of long answers, that share hardly a
word with their question score below it. A lower floor would show them, and more for prompts that nothing answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from statistics import mean

import numpy as np
import pytest

from benchmarks.dialogues import RECALL_SET, RecallSet
from benchmarks.recall_floors import (
    ABLATIONS,
    FLOORS,
    WORDS_ONLY,
    Kept,
    changes_without,
    interval,
    lines,
    measured,
    missed,
)
from langchain_memkit.ranking.question import read_question
from langchain_memkit.ranking.score import Ranking

LARGEST = 1_000_000  # bytes
SHOWN = {"unanswerable": 20, "everyday": 30, "near misses": 220}  # tokens for what nothing answers, the mean
LOST = {"wordllama": 0.147, WORDS_ONLY: 0.135}  # of the evidence, by the floor; .02 above what was measured
KINDS = {"date", "exact", "long", "multi", "name", "neighbour", "paraphrase", "repeated", "role", "session", "speaker"}
OFF = {"recency", "importance"}  # weights that are 0 unless an app asks for them
Saved = Callable[[str], list[Kept]]


def test_the_set_is_small() -> None:
    """Its file is no burden to who clones the repository."""
    assert RECALL_SET.stat().st_size < LARGEST


def test_the_set_asks_each_kind_of_question_often_enough(conversations: RecallSet) -> None:
    """At least 300 questions with evidence, each kind among them, 60 without of either kind, and everyday prompts."""
    kinds = Counter(question.kind for one in conversations.dialogues for question in one.questions)
    assert set(kinds) == KINDS
    assert min(kinds.values()) >= 8
    assert sum(kinds.values()) >= 300
    assert sum(len(one.unanswerable) for one in conversations.dialogues) >= 60
    assert sum(len(one.near_misses) for one in conversations.dialogues) >= 60
    assert len(conversations.everyday) >= 40
    for one in conversations.dialogues:
        texts = {turn.id: turn.text for turn in one.turns}
        assert len(texts) == len(one.turns)
        asked = [question.text for question in one.questions] + [*one.unanswerable, *one.near_misses]
        assert len(set(asked)) == len(asked)
        turns_end = one.turns[-1].at
        for text in one.unanswerable:  # near misses name a speaker or mean the user, these do not
            assert not read_question(text, turns_end).first_person
            assert not any(speaker in text for speaker in one.speakers if speaker[0].isupper())
        for question in one.questions:
            assert question.evidence
            assert all(question.quote in texts[turn] for turn in question.evidence)


@pytest.mark.parametrize("embedder", FLOORS)
def test_every_kind_of_question_is_above_its_floor(embedder: str, saved: Saved) -> None:
    """R@512 and R@1,024 of what VectorMemory finds, with WordLlama's vectors and by words only."""
    table = measured(saved(embedder))
    print(f"\n{lines(embedder, table)}")
    assert set(table) == KINDS
    assert missed(embedder, table) == []


@pytest.mark.parametrize("embedder", ["wordllama", WORDS_ONLY])
def test_what_nothing_answers_shows_little(embedder: str, saved: Saved, conversations: RecallSet) -> None:
    """The mean of tokens that `load` shows for what nothing answers, and without a floor; nothing for a thank-you."""
    for kind, most in SHOWN.items():
        asked = [
            (system, prompt)
            for system in saved(embedder)
            for prompt in {
                "unanswerable": system.dialogue.unanswerable,
                "everyday": conversations.everyday,
                "near misses": system.dialogue.near_misses,
            }[kind]
        ]
        with_floor, without = (mean(system.noted(prompt, floor=f) for system, prompt in asked) for f in (True, False))
        print(f"\n{embedder}: {kind} {with_floor:.0f} tokens, without a floor {without:.0f}")
        assert with_floor <= most < without
    assert [
        system.noted(text) for system in saved(embedder) for text in conversations.small_talk if system.noted(text)
    ] == []


@pytest.mark.parametrize("embedder", ["wordllama", WORDS_ONLY])
def test_the_floor_hides_few_answers(embedder: str, saved: Saved) -> None:
    """Of the evidence that `load` shows without a floor, it shows most."""
    asked = [(system, question) for system in saved(embedder) for question in system.dialogue.questions]
    with_floor, without = (sum(system.shown(q, floor=f) for system, q in asked) for f in (True, False))
    print(f"\n{embedder}: {1 - with_floor / without:.2%} of the evidence lost by the floor")
    assert with_floor >= (1 - LOST[embedder]) * without


@pytest.mark.parametrize("name", ABLATIONS)
def test_each_part_of_the_score_can_be_switched_off(name: str, saved: Saved) -> None:
    """Its ablation changes what is found, and no part is worth so much that nothing is found without it."""
    changes = changes_without(saved("wordllama"), ABLATIONS[name])
    print(f"\n{name}: {interval(np.array(changes))}")
    assert any(changes)
    assert -0.2 < mean(changes) < 0.02


def test_no_weight_is_left_out() -> None:
    """Every weight that `Ranking` has by default is taken away by some ablation."""
    weights = {field.name for field in fields(Ranking) if isinstance(field.default, float) and field.default} - {
        "decay_rate"
    }
    assert {name for change in ABLATIONS.values() for name in change} == weights
    assert OFF.isdisjoint(weights)
