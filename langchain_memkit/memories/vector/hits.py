"""Search results for people: printable, tabular and plottable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langchain_core.documents import Document

from langchain_memkit.errors import MissingExtraError
from langchain_memkit.memories.retriever import plain_score
from langchain_memkit.memories.vector.rounds import Line, lines_of_document
from langchain_memkit.messages.notes import Record, lines_of
from langchain_memkit.messages.text import printable, printable_html
from langchain_memkit.scoring.ranking import PARTS, Ranked

__all__ = ["Hit", "HitList", "hit_of", "record_of"]

WIDTH = 80  # characters of a hit's text in its line of the repr


@dataclass(frozen=True, slots=True)
class Hit:
    """A matching round of a conversation, or one chunk of a long round.

    Attributes:
        id: Id of the record in the store.
        text: The messages, one line each: `speaker: text`. If the question names a speaker, messages of others that
            share no word with the question are left out.
        score: How well the record answers; the sum of `parts`. Comparable within one search only.
        parts: The score by feature: `"relevance"`, `"lexical"`, `"neighbours"`, ...; see `Ranking`.
        session_id: The session in which it was said.
        date: When it was said; aware, UTC.
        speakers: The speakers in the text, in order of appearance: names, or `"human"`, `"ai"`, `"tool"`.
        message_ids: Ids of the messages in the text; messages without an id are left out.
        rerank: The reranker's score; None without a reranker, or if it returns no score.
        relation: How related the question is to the record: the number that `floor` is compared with.
    """

    id: str
    text: str
    score: float
    parts: dict[str, float]
    session_id: str
    date: datetime | None
    speakers: tuple[str, ...]
    message_ids: tuple[str, ...]
    rerank: float | None = None
    relation: float = 0.0


class HitList(list[Hit]):
    """A list of hits, best first, that prints one line per hit, renders as a table in notebooks, and can be plotted.

    Example:
        >>> HitList()._repr_html_()
        '<p>No hits.</p>'
    """

    def __repr__(self) -> str:
        """Return one line per hit: score, date, session, beginning of the text."""
        lines = [f"{len(self) or 'no'} {'hit' if len(self) == 1 else 'hits'}"]
        for hit in self:
            text = printable(hit.text)
            text = text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
            lines.append(f"{hit.score:.2f} ({_day(hit)}, session {printable(hit.session_id)}): {text}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Render an HTML table; stored text is escaped."""
        if not self:
            return "<p>No hits.</p>"
        names = self._parts()
        head = "".join(f"<th>{name}</th>" for name in ("score", *names, "when", "where", "text"))
        rows = []
        for hit in self:
            numbers = [hit.score, *(hit.parts.get(name, 0.0) for name in names)]
            cells = [*(f"{number:.2f}" for number in numbers), _day(hit), printable_html(hit.session_id)]
            said = "<br>".join(printable_html(line) for line in hit.text.split("\n"))
            rows.append("".join(f"<td>{cell}</td>" for cell in [*cells, said]))
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def to_dataframe(self) -> Any:
        """Return a pandas `DataFrame` with one row per hit and one column per non-zero part of the score.

        Raises:
            MissingExtraError: pandas is not installed.

        Example:
            >>> list(HitList().to_dataframe().columns)
            ['score', 'when', 'session_id', 'speakers', 'text']
        """
        try:
            import pandas  # type: ignore[import-untyped]  # brings no stubs, and mypy need not know them
        except ImportError as error:
            msg = "to_dataframe() needs pandas: pip install pandas"
            raise MissingExtraError(msg) from error
        names = self._parts()
        rows = [
            [h.score, *(h.parts.get(n, 0.0) for n in names), h.date, h.session_id, ", ".join(h.speakers), h.text]
            for h in self
        ]
        return pandas.DataFrame(rows, columns=["score", *names, "when", "session_id", "speakers", "text"])

    def plot(self, ax: Any = None) -> Any:
        """Plot one horizontal bar per hit, best on top, with one colour per part of the score.

        Args:
            ax: matplotlib axes to draw on; None creates a figure.

        Returns:
            The axes.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        try:
            from matplotlib import pyplot
        except ImportError as error:
            msg = "plot() needs matplotlib: pip install matplotlib"
            raise MissingExtraError(msg) from error
        if ax is None:
            _, ax = pyplot.subplots(figsize=(8, 0.4 * len(self) + 1))
        labels = [f"{i + 1}. {printable(hit.text)[:40]}" for i, hit in enumerate(self)]
        lefts = [0.0] * len(self)
        for name in self._parts():
            widths = [hit.parts.get(name, 0.0) for hit in self]
            ax.barh(labels, widths, left=lefts, label=name, color=f"C{PARTS.index(name)}")
            lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
        ax.invert_yaxis()
        ax.set_xlabel("score")
        if self:
            ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
        return ax

    def _parts(self) -> list[str]:
        """Return the score parts that are non-zero for any hit, in the order of `PARTS`."""
        return [name for name in PARTS if any(hit.parts.get(name) for hit in self)]


def hit_of(ranked: Ranked, rerank: float | None, document: Document) -> Hit:
    """Build the `Hit` of a ranked record from its stored document."""
    entry, lines = ranked.entry, _shown(ranked, document)
    return Hit(
        entry.id,
        _text(lines) if lines else document.page_content,
        ranked.score,
        dict(ranked.parts),
        entry.session,
        entry.at,
        tuple(dict.fromkeys(line.speaker for line in lines)),
        tuple(line.message for line in lines if line.message),
        rerank,
        ranked.relation,
    )


def record_of(
    ranked: Ranked, rerank: float | None, document: Document, rank: int, notes: dict[tuple[int, ...], Any]
) -> tuple[Record, str]:
    """Build the quoted record of a note, and its lines.

    Args:
        ranked: The record.
        rerank: The reranker's score.
        document: The stored document.
        rank: The number of more relevant records, 0 for the best.
        notes: What was made of the record before: a conversation recalls the same records again and again.
    """
    entry = ranked.entry
    score = plain_score(ranked.score if rerank is None else rerank)
    source = f"session {entry.session}" if entry.session else ""
    if (known := notes.get(ranked.shown)) is not None:
        text, parts, told = known
        return Record(text, source=source, date=entry.at, parts=parts, rank=rank, score=score), told
    lines = _shown(ranked, document)
    text = _text(lines) if lines else document.page_content
    parts = tuple((line.message, line.text) for line in lines)
    record = Record(text, source=source, date=entry.at, parts=parts, rank=rank, score=score)
    told = lines_of(record)
    notes[ranked.shown] = (text, parts, told)
    return record, told


def _shown(ranked: Ranked, document: Document) -> list[Line]:
    """Return the messages to show: those that the ranking selected, else all; `[]` for a plain document."""
    lines = lines_of_document(document)
    return [lines[i] for i in ranked.shown if i < len(lines)] or lines


def _text(lines: Sequence[Line]) -> str:
    """Render the messages line by line, naming the speaker only when it changes.

    Continuation lines are indented, so that text inside a message cannot pose as another speaker's line.
    """
    told: list[str] = []
    before = ""
    for line in lines:
        first, *rest = line.text.splitlines() or [""]
        speaker = line.speaker
        told.append(f"  {first}" if speaker == before else f"{speaker}: {first}")
        if rest:
            told += [f"  {more}" for more in rest]
        before = speaker
    return "\n".join(told)


def _day(hit: Hit) -> str:
    return hit.date.date().isoformat() if hit.date else "no date"
