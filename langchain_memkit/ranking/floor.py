"""Which ranked records are related to a question at all, and why, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

from langchain_memkit.ranking.question import Question
from langchain_memkit.ranking.records import IndexRecord
from langchain_memkit.ranking.score import Ranked
from langchain_memkit.ranking.tokenize import tokenize

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


def reasons_for(ranked: Ranked, question: Question) -> str:
    """Tell why a record was found: what it shares with the question, who says it, and when.

    Args:
        ranked: The record with its score.
        question: The question that it was ranked for.

    Returns:
        The reasons, with semicolons between them.

    Example:
        >>> from datetime import UTC, timedelta
        >>> from langchain_core.documents import Document
        >>> from langchain_memkit.ranking.question import read_question
        >>> from langchain_memkit.ranking.records import index_record_of
        >>> now = datetime(2026, 1, 5, tzinfo=UTC)
        >>> said = {"said": [["human", "", 0, 24]], "created_at": (now - timedelta(days=3)).isoformat()}
        >>> record = index_record_of(Document("My lemon tree has bugs.", id="1", metadata=said))
        >>> parts = {"lexical": 1.0, "relevance": 0.1}
        >>> reasons_for(Ranked(record, 1.1, parts, 1.1, True, (0,)), read_question("How is my lemon tree?", now))
        'shares: lemon, tree; said by you; 3 days ago'
    """
    told = [*_what(ranked, question), *_who(ranked, question)]
    if ranked.entry.at is not None:
        told.append(_ago(ranked.entry.at, question.now))
    return "; ".join(told)


def _what(ranked: Ranked, question: Question, most: int = 6, near: float = 0.25) -> Iterator[str]:
    """Yield what question and record have in common: up to `most` words; a relevance from `near` on is told."""
    part = {"relevance": 0.0, "lexical": 0.0, "neighbours": 0.0, "date": 0.0, **ranked.parts}
    stems = {stem for said in ranked.entry.said for stem in said.stems}
    pairs = zip(question.spelled, question.words, strict=True)
    shared = list(dict.fromkeys(word for word, stem in pairs if stem in stems))
    if shared:
        yield f"shares: {', '.join(shared[:most])}"
    if part["relevance"] >= near:
        yield "close in meaning"
    if part["neighbours"] > part["relevance"] + part["lexical"]:
        yield "next to a related record"
    if part["date"] > 0:
        yield "of a day that is asked for"


def _who(ranked: Ranked, question: Question) -> Iterator[str]:
    """Yield who says it, if that is somebody whom the question asks about."""
    if not ranked.states:
        return
    name = _named(ranked.entry, question)
    if name:
        yield f"said by {name}"
    else:
        yield "said by the model" if question.of_model else "said by you"


def _named(entry: IndexRecord, question: Question) -> str:
    """Return the speaker of a record whom the question names; an empty string if it names none."""
    asked = {*question.words, *question.capitals}
    names = dict.fromkeys(said.name for said in entry.said if said.name)
    return next((name for name in names if not asked.isdisjoint(tokenize(name))), "")


def _ago(at: datetime, now: datetime) -> str:
    """Return how long ago something was said, in days, months or years."""
    days = (now.date() - at.astimezone(now.tzinfo).date()).days
    if days <= 0:
        return "today"
    if days == 1:
        return "yesterday"
    if days < 60:
        return f"{days} days ago"
    months = round(days / 30.44)
    return f"{months} months ago" if months < 24 else f"{round(days / 365.25)} years ago"
