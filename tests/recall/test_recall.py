"""What vector memory finds of the recall set stays above its floors, and each part of the ranking keeps a row there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from statistics import mean

import pytest
from langchain_memkit.ranking.relevance import OWN

from benchmarks.dialogues import RECALL_SET, RecallSet
from benchmarks.recall_floors import ABLATIONS, FLOORS, WORDS_ONLY, Kept, lines, measured, missed
from langchain_memkit.ranking.score import Ranking

LARGEST = 1_000_000  # bytes
SHOWN = {"unanswerable": 30, "everyday": 60, "near misses": 700}  # tokens for what nothing answers, the mean
LOST = 0.02  # of the evidence, by the floor
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
        for text in one.unanswerable:  # near misses name a speaker or mean the user, these do not
            assert not OWN.search(text)
            assert not any(speaker in text for speaker in one.speakers if speaker[0].isupper())
        for question in one.questions:
            assert question.evidence
            assert all(question.quote in texts[turn] for turn in question.evidence)


@pytest.mark.parametrize("embedder", FLOORS)
def test_every_kind_of_question_is_above_its_floor(embedder: str, saved: Saved) -> None:
    """R@512 and R@1,024 of what VectorMemory finds, with WordLlama's vectors and by words only."""
    table = measured(saved(embedder), lambda system, question: system.search(question.text))
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
def test_the_floor_hides_no_answers(embedder: str, saved: Saved) -> None:
    """Of the evidence that `load` shows without a floor, it shows nearly all."""
    asked = [(system, question) for system in saved(embedder) for question in system.dialogue.questions]
    with_floor, without = (sum(system.shown(q, floor=f) for system, q in asked) for f in (True, False))
    print(f"\n{embedder}: {1 - with_floor / without:.2%} of the evidence lost by the floor")
    assert with_floor >= (1 - LOST) * without


@pytest.mark.parametrize("name", ABLATIONS)
def test_each_part_of_the_ranking_keeps_a_row_above_its_floor(
    name: str, saved: Saved, conversations: RecallSet
) -> None:
    """Without this part the row that it is for falls below its floor."""
    ablation = ABLATIONS[name]
    with ablation.saved(saved(ablation.embedder), conversations.dialogues) as systems:
        assert missed(ablation.embedder, ablation.table(systems, ablation.kind)) != []


def test_the_documentation_has_a_row_for_each_part() -> None:
    """docs/recall.md shows what is lost without each part, beside the floors that hold here."""
    page = (Path(__file__).parents[2] / "docs" / "recall.md").read_text()
    for name, ablation in ABLATIONS.items():
        [row] = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith(f"| {name} |")]
        metric, with_it, without, floor = row[3], *map(float, row[4:])
        assert row[1:3] == [ablation.kind, ablation.embedder]
        assert floor == pytest.approx(FLOORS[ablation.embedder][ablation.kind][metric])
        assert without < floor < with_it


def test_no_weight_is_left_out() -> None:
    """Every weight that `Ranking` has by default is taken away by some ablation."""
    weights = {field.name for field in fields(Ranking) if isinstance(field.default, float) and field.default} - {
        "decay_rate"
    }
    assert {name for ablation in ABLATIONS.values() for name, to in ablation.weights.items() if not to} == weights
    assert OFF.isdisjoint(weights)
