"""Rows and keys of the entity memory: facts, rules (decisions of people), descriptions, generations, versions. Pure.

Rows are added and deleted, never read, changed and written back, so concurrent writers lose nothing. A fact's key holds
a generation of its session, and the fact is live only while the row of that generation exists. Clearing a session
deletes the generation rows first: what a concurrent save still writes is then dead, and is deleted by the next read
that finds it.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias
from urllib.parse import quote, unquote
from uuid import uuid4

from langchain_memkit.base import user_prefix
from langchain_memkit.memories.rebuildable import read_row
from langchain_memkit.stores.in_memory import StoredDict


class FactRow(NamedTuple):
    """A sentence that contains a name."""

    text: str  # the sentence
    role: str  # "human" or "ai"
    speaker: str  # the message's `name`; empty if it has none
    session: str
    message: str  # id of the message, or one derived from its text
    given: bool  # whether the message came with that id, so that a history can be asked for it
    at: datetime  # when it was said, aware
    epoch: int  # of the session; 0 if unknown
    expires_at: datetime | None  # None for never
    key: str = ""  # of the name
    surface: str = ""  # the name as it was written
    label: str = ""  # type of the name; empty if neither the app nor an extractor told it
    start: int = 0  # where the name begins in the message, in characters
    end: int = 0


class ResolutionRule(NamedTuple):
    """A decision of a person about two names.

    `"merge"` and `"rename"` make them one entity, shown under the second name; `"split"` keeps them apart.
    """

    kind: str
    name: str
    other: str
    key: str
    other_key: str


class DescriptionRow(NamedTuple):
    """A model's description of an entity; valid only while every fact that it was made from (`facts`) is stored."""

    key: str
    text: str
    at: datetime
    facts: tuple[str, ...]


EntityRow: TypeAlias = FactRow | ResolutionRule | DescriptionRow
ROWS: dict[str, type[EntityRow]] = {"description": DescriptionRow, "fact": FactRow, "rule": ResolutionRule}


def row_of(kind: str, data: StoredDict) -> EntityRow | None:
    """Return the row of a kind (`"fact"`, `"rule"`, `"description"`); None for damaged data or a newer version."""
    row = read_row(ROWS[kind], data)
    valid = row.kind in ("merge", "rename", "split") if isinstance(row, ResolutionRule) else row and row.key
    return row if valid else None


def fact_id(row: FactRow) -> str:
    """Return a hash of name, session, message and sentence, so that saving the same turn again stores nothing new."""
    digest = hashlib.sha256()
    for part in (row.key, row.session, row.message, row.text):
        data = part.encode("utf-8", "surrogatepass")
        # The length goes before each part, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:32]


def id_in(key: str) -> str:
    """Return the `fact_id` in a fact's key."""
    return key.rpartition("/")[2]


class EntityKeys:
    """Store keys of one user's rows.

    All begin with `prefix`, then the kind of row: `fact/<session>/<generation>/<id>`, `session/<session>/<generation>`,
    `rule/<time>-<random>`, `description/<hash>`, `version/<random>`; ids are percent-encoded.
    """

    def __init__(self, user_id: str) -> None:
        self.prefix = user_prefix(user_id) + "entities/"
        self.versions = self.of("version", "")

    def of(self, *parts: str) -> str:
        """Return the key with these parts; with an empty last part the prefix of all keys below the others."""
        return self.prefix + "/".join([quote(part, safe="") for part in parts])

    def parts(self, key: str) -> list[str]:
        """Return the parts of a key, decoded; the first is its kind."""
        return [unquote(part) for part in key[len(self.prefix) :].split("/")]

    def fact(self, generation: str, row: FactRow) -> str:
        """Return the key of a fact in a generation of its session."""
        return f"{self.of('fact', row.session, '')}{generation}/{fact_id(row)}"

    def rule(self, now: datetime, last: str = "") -> str:
        """Return the key of a new rule; keys sort by time, and after the key `last` even if the clock was set back."""
        stamp = f"{now.astimezone(UTC):%Y%m%dT%H%M%S.%f}"
        before = last.rpartition("/")[2].partition("-")[0]
        # The clock was set back, or two rules fall into one microsecond: rules must keep the order of the decisions.
        if before >= stamp:
            later = datetime.strptime(before, "%Y%m%dT%H%M%S.%f") + timedelta(microseconds=1)  # noqa: DTZ007  # all are UTC
            stamp = f"{later:%Y%m%dT%H%M%S.%f}"
        return self.of("rule", f"{stamp}-{uuid4().hex[:12]}")

    def description(self, key: str) -> str:
        """Return the key of an entity's description."""
        return self.of("description", hashlib.sha256(key.encode()).hexdigest()[:32])

    def version(self) -> str:
        """Return a fresh version key, never used before."""
        return self.versions + uuid4().hex
