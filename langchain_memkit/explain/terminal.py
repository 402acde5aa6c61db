"""Rendering of a turn explanation in a terminal. Imports rich, which the caller has, since it prints with it."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from langchain_memkit.explain.view import BAR, COLOURS, TurnExplanation, excerpt, known_of, score_of, unframed

__all__ = ["drawn"]


def drawn(seen: TurnExplanation) -> Any:
    """Draw a bar of the budget and a line for each message and record, with all stored text free of rich's markup."""
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
