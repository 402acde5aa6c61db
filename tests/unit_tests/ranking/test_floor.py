"""Which ranked records are related to a question."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_memkit.ranking.floor import FLOOR, related
from langchain_memkit.ranking.question import read_question
from langchain_memkit.ranking.score import Ranked
from testkit.ranking import NOW, record_of

WHO, MY = (read_question(text, NOW) for text in ("Who won?", "Where do I live?"))
Scores = list[tuple[float, bool]]


def ranked(scores: Scores) -> list[Ranked]:
    """Records with these scores, of which some state something."""
    made = enumerate(scores)
    return [Ranked(record_of(str(i), "tea"), score, {}, score, states, (0,)) for i, (score, states) in made]


def chosen(scores: Scores, asks: bool, floor: float | None = 1.0, few: int = 3) -> list[float]:
    """The scores of the related ones; `asks`: whether the question is in the first person."""
    return [one.score for one in related(ranked(scores), MY if asks else WHO, floor, few)]


def test_each_record_reaches_the_floor_by_itself() -> None:
    """A high score brings no others along; the floor itself is enough."""
    scores = [(9.0, True), (1.0, False), (0.99, True), (0.5, True)]
    assert chosen(scores, asks=False) == [9.0, 1.0]


def test_what_stands_beside_a_match_is_not_enough() -> None:
    """Without what it has of its neighbours, a record needs a fifth of the floor, and a statement half of it."""
    of_neighbours = [Ranked(record_of(str(i), "tea"), 2.0, {}, own, True, (0,)) for i, own in enumerate((0.2, 0.19))]
    assert [one.own for one in related(of_neighbours, WHO, 1.0)] == [0.2]
    low = [Ranked(record_of(str(i), "tea"), 0.9, {}, own, True, (0,)) for i, own in enumerate((0.5, 0.49))]
    assert [one.own for one in related(low, MY, 1.0)] == [0.5]


def test_no_floor() -> None:
    """Then everything is related."""
    assert chosen([(1.0, False), (0.0, False)], asks=False, floor=None) == [1.0, 0.0]


def test_half_of_it_for_statements_of_who_asks() -> None:
    """In the first person; what only asks, or says nothing of the user, needs all of it."""
    scores = [(0.9, False), (0.8, True), (0.5, True), (0.49, True)]
    assert chosen(scores, asks=True) == [0.8, 0.5]
    assert chosen(scores, asks=False) == []


@pytest.mark.parametrize(("few", "expected"), [(0, [2.0]), (2, [2.0, 0.9]), (3, [2.0, 0.9, 0.8])])
def test_only_a_few_of_them(few: int, expected: list[float]) -> None:
    """Statements above the floor count among the few; they are never left out themselves."""
    scores = [(2.0, True), (0.9, True), (0.8, True), (0.7, True)]
    assert chosen(scores, asks=True, few=few) == expected
    assert chosen([(2.0, True)] * 5, asks=True, few=few) == [2.0] * 5


def test_no_more_is_read_than_needed() -> None:
    """Ranked records are made lazily: nothing below the floor is looked at twice."""
    endless = (Ranked(record_of("1", "tea"), 3.0 - i, {}, 3.0 - i, False, (0,)) for i in count())
    assert [one.score for one in related(endless, WHO, 1.5)] == [3.0, 2.0]
    assert next(endless).score == 0.0


def test_the_default() -> None:
    """A little more than one word that nothing else holds."""
    assert FLOOR == 1.25


@given(
    st.lists(st.tuples(st.floats(0, 4), st.booleans()), max_size=12).map(lambda some: sorted(some, reverse=True)),
    st.booleans(),
    st.floats(0.1, 4),
)
def test_any_scores(scores: Scores, asks: bool, floor: float) -> None:
    """Best first; all that reach the floor; none below half of it; a lower floor leaves none of them out."""
    found = chosen(scores, asks, floor)
    assert found == sorted(found, reverse=True)
    assert [score for score in found if score >= floor] == [score for score, _ in scores if score >= floor]
    assert all(score >= floor / 2 for score in found)
    assert len([score for score in found if score < floor]) <= (3 if asks else 0)
    assert len(chosen(scores, asks, floor / 2)) >= len([score for score in found if score >= floor])
