"""The data of a turn explanation, and its display as text, in a notebook and in a terminal with rich."""

from __future__ import annotations

import html
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

__all__ = [
    "PARTS",
    "RecalledRecord",
    "ShownMessage",
    "TurnExplanation",
    "drawn",
    "excerpt",
    "known_of",
    "score_of",
    "unframed",
]


def drawn(seen: TurnExplanation) -> Any:
    """Draw a bar of the budget and a line for each message and record, with all stored text free of rich's markup."""
    # here: rich comes with an extra, and only who prints with it calls this
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    whole = max(sum(seen.tokens.values()), seen.max_tokens or 0, 1)
    bar, legend = Text(), Text()
    for part, count in seen.tokens.items():
        bar.append("█" * round(BAR * count / whole), style=COLOURS[part])
        legend.append(f"█ {part} {count:,}  " if count else "", style=COLOURS[part])
    bar.append("░" * max(BAR - len(bar), 0), style="dim")
    shown = Table("part", "role", "tokens", "text", box=None, header_style="dim")
    for m in seen.messages:
        shown.add_row(Text(m.part, COLOURS[m.part]), Text(m.role), f"{m.tokens:,}", Text(excerpt(unframed(m))))
    recalled = Table("recalled by", "score", "of", "text", box=None, header_style="dim")
    for r in seen.recalled:
        recalled.add_row(Text(excerpt(r.memory)), score_of(r), Text(excerpt(known_of(r))), Text(excerpt(r.text)))
    notes = [Text(f"note {excerpt(note)}", style="italic") for note in seen.notes]
    if seen.searched_for is not None:
        notes.insert(0, Text(f"searched for: {excerpt(seen.searched_for)}"))
    title = Text(f"{seen.size}; {seen.left_out}", style="bold")
    return Group(title, bar, legend, shown, *([recalled] if seen.recalled else []), *notes)


PARTS = ("system", "summary", "history", "notes", "input")  # "reserved" is a part as well, but has no messages
BAR = 40  # characters
EXCERPT = 100  # characters
COLOURS = {
    "system": "#8d99ae",
    "summary": "#e9c46a",
    "history": "#2a9d8f",
    "notes": "#8ab17d",
    "input": "#e76f51",
    "reserved": "#cccccc",
}


@dataclass(frozen=True, slots=True)
class ShownMessage:
    """One message of the prompt.

    Attributes:
        part: `"system"`, `"summary"`, `"history"`, `"notes"` (records of memories) or `"input"`.
        role: `"human"`, `"ai"`, `"tool"`, `"system"`; `"notification"`: a human message that an agent's harness added.
        text: Its text; tool calls, and images and files by name, in brackets.
        tokens: Its size, as `TurnExplanation.counter` counts.
        id: Its id, if it has one.
    """

    part: str
    role: str
    text: str
    tokens: int
    id: str | None


@dataclass(frozen=True, slots=True)
class RecalledRecord:
    """One recalled record in the prompt.

    Attributes:
        memory: The kind of memory.
        score: Relevance, if the memory computes one; comparable within one memory only.
        about: The subject, an entity's name or a title; or the speaker.
        source: Where it comes from: a session, a file, a title; empty if unknown.
        date: When it was said or written; None if unknown.
        text: Its text, word for word.
    """

    memory: str
    score: float | None
    about: str
    source: str
    date: datetime | None
    text: str


@dataclass(frozen=True, slots=True, repr=False)
class TurnExplanation:
    """The prompt of a turn, shown as text, as a table in notebooks, in colours with rich, or as data with `to_dict()`.

    Attributes:
        messages: The messages in the model's order.
        tokens: Sums by part; with `"reserved"` if tokens are reserved for the answer and the schemas of tools.
        max_tokens: The budget, answer and tools included; None without a preprocessor of memkit. The instruction and
            the
            documents of a RAG chain are added to it.
        dropped: Number of messages that were read, but are neither shown nor summarized.
        summarized: Number of messages that the summary covers.
        dropped_ids: Ids of the dropped messages; None for a message without one.
        summarized_ids: Ids of the messages that were read in this turn and summarized; of earlier turns only the count
            is
            known.
        recalled: Records of memories, in the model's order.
        notes: Problems and remarks.
        counter: The token counter: `"approximate"`, the name of an encoding, `"len"` for messages.
        searched_for: The question that a retriever searched for in place of a follow-up question; None if it was not
            rewritten.
    """

    messages: list[ShownMessage]
    tokens: dict[str, int]
    max_tokens: int | None = None
    dropped: int = 0
    summarized: int = 0
    dropped_ids: list[str | None] = field(default_factory=list)
    summarized_ids: list[str | None] = field(default_factory=list)
    recalled: list[RecalledRecord] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counter: str = "approximate"
    searched_for: str | None = None

    @property
    def kept(self) -> int:
        """Number of history messages that are shown unchanged."""
        return sum(message.part == "history" for message in self.messages)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with dates in ISO 8601."""
        recalled = [{**asdict(r), "date": r.date and r.date.isoformat()} for r in self.recalled]
        return {**asdict(self), "recalled": recalled}

    def __str__(self) -> str:
        """Format a bar for each part, a line for each message, and one for each recalled record."""
        whole = max(sum(self.tokens.values()), self.max_tokens or 0, 1)
        lines = [f"{self.size}; {self.left_out}"]
        lines += [f"{p:>8} {'█' * round(BAR * n / whole):<{BAR}} {n:>7,}" for p, n in self.tokens.items() if n]
        lines += [f"{m.part:>8} {m.role:>6} {m.tokens:>6,}  {excerpt(unframed(m))}" for m in self.messages]
        if self.searched_for is not None:
            lines.append(f"searched for: {excerpt(self.searched_for)}")
        lines += [f"recalled {score_of(r):>6} {_origin(r)}: {excerpt(r.text)}" for r in self.recalled]
        return "\n".join([*lines, *(f"    note {excerpt(note)}" for note in self.notes)])

    def __repr__(self) -> str:
        """Return the same text as `str`, so that a Python prompt displays it."""
        return str(self)

    @property
    def size(self) -> str:
        """Total tokens and the budget, in words."""
        of = f" of {self.max_tokens:,}" if self.max_tokens else ""
        unit = "messages" if self.counter == "len" else f"tokens ({self.counter})"
        return f"{sum(self.tokens.values()):,}{of} {unit}"

    @property
    def left_out(self) -> str:
        """The numbers of kept, summarized and dropped messages and of recalled records, in words."""
        recalled = f", {len(self.recalled):,} records recalled" if self.recalled else ""
        return f"{self.kept:,} messages kept, {self.summarized:,} summarized, {self.dropped:,} dropped{recalled}"

    def _repr_html_(self) -> str:
        """Render a table for notebooks; stored text is escaped."""
        whole = max(sum(self.tokens.values()), self.max_tokens or 0, 1)
        bar = "".join(
            f'<div title="{p}: {n:,}" style="width:{100 * n / whole:.2f}%;background:{COLOURS[p]}"></div>'
            for p, n in self.tokens.items()
        )
        legend = " ".join(
            f'<span style="color:{COLOURS[p]}">&#9632;</span> {p} {n:,}' for p, n in self.tokens.items() if n
        )
        rows = "".join(
            f"<tr><td>{m.part}</td><td>{html.escape(m.role)}</td><td>{m.tokens:,}</td>"
            f'<td style="text-align:left;white-space:pre-wrap">{html.escape(m.text)}</td></tr>'
            for m in self.messages
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        recalled = "".join(
            f"<tr><td>{html.escape(r.memory)}</td><td>{score_of(r)}</td><td>{html.escape(known_of(r))}</td>"
            f'<td style="text-align:left;white-space:pre-wrap">{html.escape(r.text)}</td></tr>'
            for r in self.recalled
        )
        if self.searched_for is not None:
            notes += f"<p>searched for: {html.escape(self.searched_for)}</p>"
        if recalled:
            head = "<tr><th>recalled by</th><th>score</th><th>of</th><th>text</th></tr>"
            recalled = f"<table>{head}{recalled}</table>"
        return (
            f"<div><b>{html.escape(self.size)}</b>; {self.left_out}"
            f'<div style="display:flex;height:1em;background:#eee">{bar}</div>{legend}{notes}'
            f"<table><tr><th>part</th><th>role</th><th>tokens</th><th>text</th></tr>{rows}</table>{recalled}</div>"
        )

    def __rich__(self) -> Any:
        """Render in colours for a terminal, as `rich.print` displays it."""
        return drawn(self)


def score_of(record: RecalledRecord) -> str:
    """Format the score with two digits; an empty string if there is none."""
    return "" if record.score is None else f"{record.score:.2f}"


def known_of(record: RecalledRecord) -> str:
    """Format subject, date and source, as far as they are known."""
    day = record.date.date().isoformat() if record.date else ""
    return ", ".join(part for part in (record.about, day, record.source) if part)


def _origin(record: RecalledRecord) -> str:
    known = excerpt(known_of(record))
    return f"{excerpt(record.memory)} ({known})" if known else excerpt(record.memory)


def unframed(message: ShownMessage) -> str:
    """Return the text of a summary or note without the frame around it, which would fill the line."""
    tag = {"summary": "summary", "notes": "records"}.get(message.part)
    inner = message.text.partition(f"<{tag}>\n")[2].removesuffix(f"\n</{tag}>") if tag else ""
    if tag == "summary":
        inner = "\n".join(line.removeprefix("> ") for line in inner.splitlines())
    return inner or message.text


def excerpt(text: str) -> str:
    """Return the beginning of a text as one line without control characters, which a terminal would obey."""
    line = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text[: 10 * EXCERPT].split()))
    return line if len(line) <= EXCERPT else line[: EXCERPT - 3] + "..."
