"""What was found, as people look at it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from langchain_core.documents import Document

from langchain_memkit.errors import MissingExtraError
from langchain_memkit.memories.retriever import plain_score
from langchain_memkit.memories.vector.rounds import Line, lines_of_document
from langchain_memkit.messages.notes import Record
from langchain_memkit.messages.text import printable, printable_html
from langchain_memkit.scoring.ranking import PARTS, Ranked

__all__ = ["Hit", "HitList", "hit_of", "record_of"]

WIDTH = 80  # characters of a text in a line


@dataclass(frozen=True, slots=True)
class Hit:
    """A round that was found, or the piece of a long one.

    Attributes:
        id: Of the record in the store.
        text: What was said, a line for each message: `speaker: text`. Where the question names a speaker, what others
            say without a word of the question is left out.
        score: How well it answers; the sum of `parts`. Compare it within one search only.
        parts: The score by part: `"relevance"`, `"lexical"`, `"neighbours"`, ...; see `Ranking`.
        session_id: Where it was said.
        date: When, aware, UTC.
        speakers: Who speaks in the text, in order of appearance: names, or `"human"`, `"ai"`, `"tool"`.
        message_ids: Of the messages in the text; those without an id are left out.
        rerank: The reranker's score; None without one, or if it gives none.
        relation: How much the question has to do with it: what `floor` is compared with.
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
    """Hits, best first; prints a line for each, is a table in a notebook, and draws itself.

    Example:
        >>> HitList()._repr_html_()
        '<p>No hits.</p>'
    """

    def __repr__(self) -> str:
        """A line for each: score, date, session, the beginning of the text."""
        lines = [f"{len(self) or 'no'} {'hit' if len(self) == 1 else 'hits'}"]
        for hit in self:
            text = printable(hit.text)
            text = text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
            lines.append(f"{hit.score:.2f} ({_day(hit)}, session {printable(hit.session_id)}): {text}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """A table in which stored text is text."""
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
        """A pandas `DataFrame` with a line for each hit and a column for each part of the score.

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
        """A bar for each hit, best on top, in which every part of its score has a colour.

        Args:
            ax: Axes of matplotlib's to draw on; None makes them.

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
        """Parts that add something to any of these, in the order of `Ranking`."""
        return [name for name in PARTS if any(hit.parts.get(name) for hit in self)]


def hit_of(ranked: Ranked, rerank: float | None, document: Document) -> Hit:
    """A ranked record with its text."""
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


def record_of(ranked: Ranked, rerank: float | None, document: Document, rank: int) -> Record:
    """A record as it stands in a note; `rank`: how many are more relevant."""
    entry, lines = ranked.entry, _shown(ranked, document)
    return Record(
        _text(lines) if lines else document.page_content,
        source=f"session {entry.session}" if entry.session else "",
        date=entry.at,
        parts=tuple((line.message, line.text) for line in lines),
        rank=rank,
        score=plain_score(ranked.score if rerank is None else rerank),
    )


def _shown(ranked: Ranked, document: Document) -> list[Line]:
    """The messages that are worth their tokens; `[]` for a plain document."""
    lines = lines_of_document(document)
    return [lines[i] for i in ranked.shown if i < len(lines)] or lines


def _text(lines: Sequence[Line]) -> str:
    """A line for each message, each speaker named once in a row.

    Further lines of a message are indented, so that none of them can be taken for somebody else's.
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
