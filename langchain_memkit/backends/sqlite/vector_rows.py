"""Conversion between records and rows of the table `vectors`, with the SQL of the columns. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from langchain_memkit.backends._vectors.rows import Cells, Row, Stored
from langchain_memkit.backends.sqlite.rows import loaded
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.scoring.words import STEMS_VERSION

CELLS = "seq, facts, stems_version, vector, text, metadata, digest, v"  # the columns of `Cells`, in order
STORED = ", ".join(["seq", *Stored._fields[1:]])
TEXTS = STORED.replace(", vector", ", NULL")  # without the vector, which takes time to read
COLUMNS = (
    "seq", "id", "user_id", "session_id", "round_id", "position", "digest", "created_at", "expires_at", "facts",
    "stems_version", "vector", "text", "metadata", "v",
)  # fmt: skip
INSERT = f"INSERT INTO vectors ({', '.join(COLUMNS)}) VALUES ({', '.join('?' * len(COLUMNS))})"
UPDATE = f"UPDATE vectors SET {', '.join(f'{name} = ?' for name in COLUMNS)} WHERE id = ? AND user_id = ?"


def values_of(row: Row) -> list[Any]:
    """Return the values of a row in the order of `COLUMNS`; its number is filled in when it is written."""
    entry = row.entry
    # text that is not valid Unicode (a lone surrogate) is stored as a blob of JSON
    text = row.text if isinstance(row.text, str) else json.dumps(row.text).encode()
    at, expires_at = _seconds(entry.at), _seconds(entry.expires_at)
    facts = [
        entry.id, entry.session, entry.round_id, entry.position, at, entry.importance, entry.epoch, expires_at,
        row.said, entry.messages,
    ]  # fmt: skip
    return [
        None, entry.id, row.user_id, entry.session, entry.round_id, entry.position, row.digest, at, expires_at,
        json.dumps(facts, ensure_ascii=False), STEMS_VERSION, row.vector, text,
        json.dumps(row.metadata, ensure_ascii=False), FORMAT_VERSION,
    ]  # fmt: skip


def _seconds(at: datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def cells_of(rows: Sequence[Sequence[Any]]) -> list[Cells]:
    """Parse rows with the columns `CELLS`."""
    try:
        facts = json.loads(f"[{','.join([row[1] for row in rows])}]")  # all rows at once, which is faster
        if len(facts) != len(rows):
            raise ValueError
    except (TypeError, ValueError, RecursionError):
        facts = [loaded(row[1]) for row in rows]
    return [
        Cells(row[0], fact, row[2], row[3], loaded(row[4]) if isinstance(row[4], bytes) else row[4], *row[5:])
        for row, fact in zip(rows, facts, strict=True)
    ]


def stored_of(row: Sequence[Any]) -> Stored:
    """Parse a row with the columns `STORED`."""
    stored = Stored(*row)
    text = loaded(stored.text) if isinstance(stored.text, bytes) else stored.text
    return stored._replace(text=text, metadata=loaded(stored.metadata))
