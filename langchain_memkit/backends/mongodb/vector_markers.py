"""Markers of sessions and users that were forgotten: a number made of the ids, and a time. No I/O.

A turn that began before a forget is refused, one that began after it is not. A writer who looked when its turn began
sees by the generation which one it is. One who did not look (`vector_recent.py`) asks the marker how old it is, by the
server's clock, and compares that with how long its own turn takes, by its own: two clocks are never compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

KEPT = 3_600_000  # milliseconds for which a marker stays
TICK = 1  # milliseconds: of the server's clock
AGE = {"age": {"$subtract": ["$$NOW", "$at"]}}
NOW = [{"$set": {"at": "$$NOW", "expires_at": {"$add": ["$$NOW", KEPT]}}}]
_NOBODY = {"user_id": {"$eq": ""}, "session_id": {"$eq": ""}}


def marker_filter(user_id: str, session_id: str | None) -> dict[str, Any]:
    """A filter on the marker of a session, or of a whole user."""
    return {**_NOBODY, "_id": {"$eq": _marker_id(user_id, session_id)}}


def markers_filter(user_id: str, session_id: str) -> dict[str, Any]:
    """A filter on the markers that say that a session was forgotten."""
    return {**_NOBODY, "_id": {"$in": [_marker_id(user_id, name) for name in (session_id, None)]}}


def forgotten_since(began: int, asked: int, answered: int, markers: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether a session that is gone was forgotten after a moment.

    Args:
        began: The moment; like the next two in nanoseconds of this machine's monotonic clock.
        asked: When the server was asked how old the markers are.
        answered: When it had answered.
        markers: With their ages in milliseconds.

    Returns:
        None: at that moment, as far as can be told.
    """
    least, most = (asked - began) / 1e6, (answered - began) / 1e6
    if not markers:
        return most >= KEPT  # one may have been there, and gone
    age = min(marker["age"] for marker in markers)
    if age <= least - TICK:
        return True
    return None if age <= most + TICK else False


def _marker_id(user_id: str, session_id: str | None) -> dict[str, str]:
    return {"forgotten": hashlib.sha256(json.dumps([user_id, session_id]).encode()).hexdigest()}
