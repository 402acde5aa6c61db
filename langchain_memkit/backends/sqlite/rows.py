"""What rows say, those of the table `turns` above all, and how damage to them is noticed."""

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
SOUND = (  # of a row that says where the session stands; a damaged one is passed over
    f"typeof(seq) = 'integer' AND seq BETWEEN 1 AND {MOST} AND typeof(epoch) = 'integer'"
    " AND typeof(base) = 'integer' AND base BETWEEN 0 AND seq"
)
LOST = (  # the newest position between two others at which messages are known, if there is no row
    f"SELECT seq FROM (SELECT seq FROM message_ids WHERE {HERE} AND seq > :above AND seq < :below"
    " ORDER BY seq DESC LIMIT 1) AS known"
    f" WHERE NOT EXISTS (SELECT 1 FROM turns WHERE {HERE} AND turns.seq = known.seq)"
)


def own(rows: Iterable[sqlite3.Row], scope: Scope) -> list[sqlite3.Row]:
    """Return the rows, which are all of this session: a damaged index leads to those of others.

    Raises:
        sqlite3.DatabaseError: They are not.
    """
    found = list(rows)
    if any((row["user_id"], row["session_id"]) != scope for row in found):
        msg = f"its index is damaged: {REPAIR}"
        raise sqlite3.DatabaseError(msg)
    return found


def lost_turns(connection: sqlite3.Connection, scope: Scope, seqs: Sequence[int], end: int) -> list[Turn]:
    """Return turns between these positions, newest first down to `end`, whose messages are known but no row is found.

    A damaged index hides rows without an error. What was deleted is not known either, so it is not taken for lost.
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
    """Return what is kept of the messages of a turn beside them: a changed bit of text is still text."""
    return zlib.crc32(text.encode("utf-8", "replace") if isinstance(text, str) else text)


def fits_checksum(row: Mapping[str, Any]) -> bool:
    """Return whether the messages of a row are those that were stored; a row of memkit 0.1.0 has nothing to tell by."""
    known = row.get("checksum")
    if known is None:
        return True
    messages = row["messages"]
    return isinstance(messages, (str, bytes)) and known == checksum_of(messages)


def loaded(text: object) -> Any:
    """Return the plain data of a cell; None, which nothing is that is stored, if it is damaged."""
    try:
        return json.loads(text)  # type: ignore[arg-type]  # a damaged cell may hold anything
    except (TypeError, ValueError, RecursionError):
        return None


def date_of(seconds: Any) -> datetime | None:
    """Return a stored moment; None if it is damaged, or after every date."""
    try:
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def iso_date_of(text: object) -> datetime | None:
    """Return a stored date; None if it is damaged."""
    try:
        return datetime.fromisoformat(str(text))
    except ValueError:
        return None
