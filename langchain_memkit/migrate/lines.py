"""The format of an export: JSON lines, one object each. Pure.

```
{"memkit": "export", "v": 1, "created_at": "..."}            the first line
{"user_id": ..., "session_id": ..., "op": ..., "messages": [...], ...}   a turn
{"memkit": "end", "turns": 2}                                the last line: without it the file was cut off
```
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from langchain_memkit.backends._history.rows import Scope, read_turn
from langchain_memkit.base import Turn, check_id
from langchain_memkit.errors import MessageDecodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, encode_messages
from langchain_memkit.messages.counting import counter_name

EXPORT_VERSION = 1


def header_line(created_at: datetime) -> str:
    """Write the first line."""
    return _line({"memkit": "export", "v": EXPORT_VERSION, "created_at": created_at.isoformat()})


def end_line(turns: int) -> str:
    """Write the last line."""
    return _line({"memkit": "end", "turns": turns})


def turn_line(owner: str, session_id: str, turn: Turn, counter: Any) -> str:
    """Write a turn with everything that is stored of it; default values are left out.

    Raises:
        MessageEncodeError: A message holds a value that cannot be written.
    """
    data: dict[str, Any] = {"user_id": owner or None, "session_id": session_id, "op": turn.op}
    if turn.seq:
        data["seq"] = turn.seq
    for name, moment in (("created_at", turn.created_at), ("expires_at", turn.expires_at)):
        if moment is not None:
            data[name] = moment.isoformat()
    if turn.is_deleted:
        data["is_deleted"] = True
    data |= {"messages": encode_messages(turn.messages), "tokens": turn.tokens, "token_counter": counter_name(counter)}
    return _line({**data, "v": FORMAT_VERSION})


def _line(data: dict[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False) + "\n"


def read_line(text: str) -> dict[str, Any]:
    """Parse a line.

    Raises:
        MessageDecodeError: The line is not a JSON object, or not UTF-8.
    """
    try:
        text.encode()  # the file was opened with surrogateescape, so invalid UTF-8 shows as lone surrogates
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        whole = "damaged" if text.endswith("\n") else "cut off"
        msg = f"{whole} ({type(error).__name__})"
        raise MessageDecodeError(msg) from error
    if not isinstance(data, dict):
        msg = "no JSON object"
        raise MessageDecodeError(msg)
    return data


def read_scope(data: Mapping[str, Any]) -> Scope:
    """Return the user and session that a line belongs to.

    Raises:
        MessageDecodeError: The ids are missing or invalid.
    """
    owner, session_id = data.get("user_id"), data.get("session_id")
    try:
        return Scope("" if owner is None else check_id(owner, "user_id"), check_id(session_id, "session_id"))
    except (TypeError, ValueError) as error:
        raise MessageDecodeError(str(error)) from error


def turn_of_line(data: Mapping[str, Any], where: str, counter: Any) -> Turn:
    """Decode a line into a turn; damage is reported in its `problems`."""
    op = data.get("op")
    try:
        check_id(op, "op")
    except (TypeError, ValueError) as error:
        return Turn(0, 0, "", None, [], [], [f"{where}: {error}"])
    row = {**data, "createdAt": _date(data.get("created_at")), "expiresAt": _date(data.get("expires_at"))}
    turn = read_turn({**row, "isDeleted": data.get("is_deleted") is True}, counter)
    # Problems name a turn's position; in a file the line is what a user can look up.
    turn.problems[:] = [where + re.sub(r"^turn (-?\d+|\?)", "", problem) for problem in turn.problems]
    return turn


def _date(value: Any) -> datetime | None:
    """Parse an aware date into UTC; None if it is missing, naive or out of range."""
    try:
        found = datetime.fromisoformat(value)
        return found.astimezone(UTC) if found.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None
