"""Which ranked records are related to a question at all. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from langchain_memkit.ranking.question import Question
from langchain_memkit.ranking.score import Ranked

FLOOR = 1.25
"""The score from which on a record is related, unless an app says otherwise."""


def related(ranked: Iterable[Ranked], question: Question, floor: float | None, few: int = 3) -> Iterator[Ranked]:
    """Choose the records that are related to a question: those that score at least `floor`, each by itself.

    What a record has of its neighbours is not enough: without that it must score a fifth of the floor. Where the
    question says "I" or "my", half of the floor, without that, is enough for the user's best statements, since people
    ask for what they once told in other words.

    Args:
        ranked: Records, best first.
        question: The question.
        floor: The score; None for any.
        few: How many statements of the user there are at most if some of them score less than `floor`.

    Returns:
        The chosen ones, lazily, best first.

    Example:
        >>> from datetime import UTC, datetime
        >>> from langchain_core.documents import Document
        >>> from langchain_memkit.ranking.question import read_question
        >>> from langchain_memkit.ranking.records import index_record_of
        >>> record = index_record_of(Document("x", id="1"))
        >>> found = [Ranked(record, score, {}, score, True, (0,)) for score in (2.0, 0.7, 0.1)]
        >>> asks = [read_question(text, datetime.now(UTC)) for text in ("Who won?", "Where do I live?")]
        >>> [[one.score for one in related(found, question, floor=1.0)] for question in asks]
        [[2.0], [2.0, 0.7]]
    """
    if floor is None:
        yield from ranked
        return
    statements = 0
    least = floor / 2 if question.first_person else floor
    for record in ranked:
        is_high = record.score >= floor
        if not is_high and (record.score < least or statements >= few):
            return
        by_itself = record.own >= floor / 5
        is_statement = record.states and record.own >= least and statements < few
        if (is_high and by_itself) or is_statement:
            statements += record.states
            yield record
