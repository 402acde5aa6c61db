"""Reading the cells of rows, above all of the table `turns`, and noticing damage to them."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from langchain_memkit.backends._history.rows import MOST, Scope
from langchain_memkit.backends.sqlite.database import REPAIR
from langchain_memkit.base import Turn

HERE = "user_id = :user AND session_id = :session"
LIVE = "(expires_at IS NULL OR expires_at > :now)"
SOUND = (  # a condition on rows that tell where the session ends; damaged ones are skipped
    f"typeof(seq) = 'integer' AND seq BETWEEN 1 AND {MOST} AND typeof(epoch) = 'integer'"
    " AND typeof(base) = 'integer' AND base BETWEEN 0 AND seq"
)
LOST = (  # the newest position between two others that has message ids but no row
    f"SELECT seq FROM (SELECT seq FROM message_ids WHERE {HERE} AND seq > :above AND seq < :below"
    " ORDER BY seq DESC LIMIT 1) AS known"
    f" WHERE NOT EXISTS (SELECT 1 FROM turns WHERE {HERE} AND turns.seq = known.seq)"
)


def own(rows: Iterable[sqlite3.Row], scope: Scope) -> list[sqlite3.Row]:
    """Return the rows as a list, checked to be of this session: a damaged index may lead to rows of others.

    Raises:
        sqlite3.DatabaseError: A row belongs to another session.
    """
    found = list(rows)
    if any((row["user_id"], row["session_id"]) != scope for row in found):
        msg = f"its index is damaged: {REPAIR}"
        raise sqlite3.DatabaseError(msg)
    return found


def lost_turns(connection: sqlite3.Connection, scope: Scope, seqs: Sequence[int], end: int) -> list[Turn]:
    """Report positions that have message ids but no row, as turns with a problem.

    A damaged index hides rows without an error. Deleting a row deletes its message ids too, so a deleted turn is not
    taken for lost.

    Args:
        connection: The connection.
        scope: The session.
        seqs: Positions in descending order: those of the rows read, and an upper end. The gaps between them are
            searched.
        end: The lowest position, exclusive.

    Returns:
        Newest first; at most one for each gap.
    """
    lost: list[Turn] = []
    for below, above in pairwise([*(seq for seq in seqs if seq > end), end]):
        if below - above > 1:
            given = {"user": scope.user_id, "session": scope.session_id, "above": above, "below": below}
            row = connection.execute(LOST, given).fetchone()
            if row:
                problem = f"turn {row[0]}: its row is not found, the file is damaged: {REPAIR}"
                lost.append(Turn(row[0], 0, "", None, [], [], problems=[problem]))
    return lost


def checksum_of(text: str | bytes) -> int:
    """Return the checksum of a turn's messages, stored beside them: a flipped bit in a text still leaves a text."""
    return zlib.crc32(text.encode("utf-8", "replace") if isinstance(text, str) else text)


def fits_checksum(row: Mapping[str, Any]) -> bool:
    """Return whether a row's messages match their checksum; rows of memkit 0.1.0 have none and pass."""
    known = row.get("checksum")
    if known is None:
        return True
    messages = row["messages"]
    return isinstance(messages, (str, bytes)) and known == checksum_of(messages)


def loaded(text: object) -> Any:
    """Parse the JSON of a cell; None, which is never stored, if it is damaged."""
    try:
        return json.loads(text)  # type: ignore[arg-type]  # a damaged cell may hold anything
    except (TypeError, ValueError, RecursionError):
        return None


def date_of(seconds: Any) -> datetime | None:
    """Return a datetime from stored seconds; None if damaged or out of range."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def iso_date_of(text: object) -> datetime | None:
    """Return a datetime from stored ISO 8601 text; None if damaged."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None
