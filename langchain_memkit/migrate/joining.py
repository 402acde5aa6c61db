"""Grouping of rows with one message each into turns. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

from langchain_memkit.base import Turn
from langchain_memkit.messages.turns import MAX_BATCH_MESSAGES

ROW = "row:"
"""How a single message of somebody else's store is named as a turn: it is joined with its neighbours."""


def whole_turns(turns: Iterable[Turn]) -> Iterator[Turn]:
    """Group rows of one message each, as other packages store them, into turns; other turns are passed on unchanged."""
    rows: list[Turn] = []
    for turn in turns:
        keep = _rows_of_next_turn(rows, turn)
        if len(keep) < len(rows):
            yield _joined(rows[: len(rows) - len(keep)])
            rows = keep
        # Rows of other packages have no position; question and answer documents are turns already.
        if turn.seq == 0 and len(turn.messages) == 1 and not turn.op.startswith("qa:"):
            rows.append(turn)
        else:
            yield turn
    if rows:
        yield _joined(rows)


def _rows_of_next_turn(rows: list[Turn], turn: Turn) -> list[Turn]:
    """Return which collected rows belong to the same turn as this row.

    All of them while their turn continues; the system messages directly before a question; none if a turn begins.
    """
    if not rows:
        return rows
    if rows[-1].op == turn.op and turn.seq == 0:
        return rows  # memkit wrote them as one turn
    if turn.seq or len(turn.messages) != 1 or not (turn.op.startswith(ROW) and rows[-1].op.startswith(ROW)):
        return []
    if len(rows) >= MAX_BATCH_MESSAGES and not isinstance(turn.messages[0], ToolMessage):
        return []
    if not isinstance(turn.messages[0], HumanMessage):
        return rows
    system = len(rows)
    while system > 0 and isinstance(rows[system - 1].messages[0], SystemMessage):
        system -= 1
    # A human message right after another one (and system messages between) continues the same turn.
    asks_on = system > 0 and isinstance(rows[system - 1].messages[0], HumanMessage)
    return rows if asks_on or system == 0 else rows[system:]


def _joined(rows: list[Turn]) -> Turn:
    messages = [m for row in rows for m in row.messages]
    return replace(rows[0], messages=messages, tokens=[n for row in rows for n in row.tokens], problems=[])
