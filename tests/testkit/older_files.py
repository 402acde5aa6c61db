"""Files as older versions wrote them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

WITHOUT_CHANGES = (
    "DROP TRIGGER turns_inserted; DROP TRIGGER turns_changed; DROP TRIGGER turns_rewritten; DROP TRIGGER turns_gone;"
    "DROP TABLE turn_indexes; DROP TABLE turn_changes; DROP TABLE last_change;"
)
"""SQL that takes away what only the newest files have."""

VECTORS = """
    CREATE TABLE IF NOT EXISTS vectors (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, user_id TEXT NOT NULL, session_id TEXT NOT NULL,
        round_id TEXT NOT NULL, position INTEGER NOT NULL, digest TEXT NOT NULL, created_at REAL, expires_at REAL,
        facts TEXT NOT NULL, stems_version INTEGER NOT NULL, vector BLOB, text TEXT NOT NULL, metadata TEXT NOT NULL,
        v INTEGER NOT NULL, UNIQUE (id, user_id)
    );
    CREATE TABLE IF NOT EXISTS vector_accesses (
        user_id TEXT NOT NULL, id TEXT NOT NULL, at REAL NOT NULL, PRIMARY KEY (user_id, id)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS vector_generations (
        user_id TEXT NOT NULL, session_id TEXT NOT NULL, generation TEXT NOT NULL, PRIMARY KEY (user_id, session_id)
    ) WITHOUT ROWID;
    CREATE TRIGGER IF NOT EXISTS vectors_deleted AFTER DELETE ON vectors BEGIN
        DELETE FROM vector_accesses WHERE user_id = old.user_id AND id = old.id;
    END;
"""
"""Where a vector memory of version 0.2 kept its records."""


def add_old_records(path: Path, user_id: str, session_id: str, texts: Sequence[str]) -> None:
    """Add rounds of one line, as a vector memory of version 0.2 stored them, to a file that any memkit made."""
    columns = "id user_id session_id round_id position digest created_at facts stems_version text metadata v"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(VECTORS)
        for n, text in enumerate(texts):
            line, name = f"human: {text}", f"{session_id}-{n}"
            said = {"said": [["human", "", len("human: "), len(line)]], "messages": [""]}
            row = (name, user_id, session_id, name, n, name, 1767312000.0, "{}", 1, line, json.dumps(said), 1)
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO vectors ({columns.replace(' ', ', ')}) VALUES ({marks})", row)
