"""Why a record was found, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from langchain_memkit.ranking.question import Question
from langchain_memkit.ranking.records import IndexRecord
from langchain_memkit.ranking.score import Ranked
from langchain_memkit.ranking.tokenize import tokenize


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
