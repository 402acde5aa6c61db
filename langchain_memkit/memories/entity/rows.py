"""Rows and keys of the entity memory: facts, rules (decisions of people), descriptions, generations, versions. Pure.

Rows are added and deleted, never read, changed and written back, so concurrent writers lose nothing. A fact's key holds
a generation of its session, and the fact is live only while the row of that generation exists. Clearing a session
deletes the generation rows first: what a concurrent save still writes is then dead, and is deleted by the next read
that finds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

from langchain_memkit.base import user_prefix

__all__ = ["DescriptionRow", "EntityKeys", "FactRow", "ResolutionRule", "fact_id", "id_in", "read_row"]

VERSION = 1
DAMAGED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


class FactRow(NamedTuple):
    """A sentence that contains a name.

    Attributes:
        key: Key of the name.
        surface: The name as it was written.
        label: Type of the name; empty if neither the app nor an extractor told it.
        text: The sentence.
        role: `"human"` or `"ai"`.
        speaker: The message's `name`; empty if it has none.
        session: The session in which it was said.
        message: Id of the message.
        given: Whether the message came with that id, so that a history can be asked for it.
        at: When it was said, aware.
        start: Where the name begins in the message, in characters.
        end: Where it ends.
        epoch: Epoch of the session; 0 if unknown.
        expires_at: When it expires; None for never.
    """

    key: str
    surface: str
    label: str
    text: str
    role: str
    speaker: str
    session: str
    message: str
    given: bool
    at: datetime
    start: int
    end: int
    epoch: int
    expires_at: datetime | None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain JSON data for a store."""
        data = self._asdict()
        data["at"] = self.at.isoformat()
        data["expires_at"] = self.expires_at.isoformat() if self.expires_at else None
        return {"v": VERSION, **data}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FactRow:
        """Return the row; raises one of `DAMAGED` for malformed data."""
        texts = [_text(data[name]) for name in cls._fields[:8]]
        numbers = [int(data[name]) for name in ("start", "end", "epoch")]
        expires = _moment(data["expires_at"]) if data["expires_at"] else None
        if not texts[0]:
            raise ValueError
        return cls._make([*texts, bool(data["given"]), _moment(data["at"]), *numbers, expires])


class ResolutionRule(NamedTuple):
    """A decision of a person about two names.

    `"merge"` and `"rename"` make them one entity, shown under the second name; `"split"` keeps them apart.
    """

    kind: str
    name: str
    other: str
    key: str
    other_key: str

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain JSON data for a store."""
        return {"v": VERSION, **self._asdict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> ResolutionRule:
        """Return the rule; raises one of `DAMAGED` for malformed data."""
        if data["kind"] not in ("merge", "rename", "split"):
            raise ValueError
        return cls(*(_text(data[name]) for name in cls._fields))


class DescriptionRow(NamedTuple):
    """A model's description of an entity; valid only while every fact that it was made from (`facts`) is stored."""

    key: str
    text: str
    at: datetime
    facts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain JSON data for a store."""
        return {"v": VERSION, "key": self.key, "text": self.text, "at": self.at.isoformat(), "facts": list(self.facts)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DescriptionRow:
        """Return the description; raises one of `DAMAGED` for malformed data."""
        return cls(_text(data["key"]), _text(data["text"]), _moment(data["at"]), tuple(map(_text, data["facts"])))


ROWS: dict[str, type[FactRow] | type[ResolutionRule] | type[DescriptionRow]] = {
    "description": DescriptionRow,
    "fact": FactRow,
    "rule": ResolutionRule,
}


def read_row(kind: str, data: Any) -> Any:
    """Return the row of a kind (`"fact"`, `"rule"`, `"description"`); None for damaged data or a newer version."""
    try:
        return ROWS[kind].from_dict(data) if data["v"] == VERSION else None
    except DAMAGED:
        return None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


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
    """Store keys of one user's rows. All begin with `prefix`; ids in them are percent-encoded."""

    def __init__(self, user_id: str) -> None:
        self.prefix = user_prefix(user_id) + "entities/"

    def fact(self, session_id: str, generation: str, row: FactRow) -> str:
        """Return the key of a fact in a generation of its session."""
        return f"{self.facts(session_id)}{generation}/{fact_id(row)}"

    def facts(self, session_id: str) -> str:
        """Return the prefix of the facts of a session."""
        return f"{self.prefix}fact/{quote(session_id, safe='')}/"

    def generation(self, session_id: str, generation: str) -> str:
        """Return the key of the row that keeps the facts of a generation alive."""
        return f"{self.sessions(session_id)}{generation}"

    def sessions(self, session_id: str) -> str:
        """Return the prefix of the generation rows of a session."""
        return f"{self.prefix}session/{quote(session_id, safe='')}/"

    def rule(self, now: datetime, last: str = "") -> str:
        """Return the key of a new rule; keys sort by time, and after the key `last` even if the clock was set back."""
        stamp = f"{now.astimezone(UTC):%Y%m%dT%H%M%S.%f}"
        before = last[len(self.prefix) + len("rule/") :].partition("-")[0]
        # The clock was set back, or two rules fall into one microsecond: rules must keep the order of the decisions.
        if before >= stamp:
            later = datetime.strptime(before, "%Y%m%dT%H%M%S.%f") + timedelta(microseconds=1)  # noqa: DTZ007  # all are UTC
            stamp = f"{later:%Y%m%dT%H%M%S.%f}"
        return f"{self.prefix}rule/{stamp}-{uuid4().hex[:12]}"

    def description(self, key: str) -> str:
        """Return the key of an entity's description."""
        return f"{self.prefix}description/{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    @property
    def versions(self) -> str:
        """Return the prefix of the version rows, which tell caches whether anything changed."""
        return f"{self.prefix}version/"

    def version(self) -> str:
        """Return a fresh version key, never used before."""
        return f"{self.versions}{uuid4().hex}"

    def parts(self, key: str) -> Sequence[str]:
        """Return the kind of a key and its other parts, decoded."""
        return [unquote(part) for part in key[len(self.prefix) :].split("/")]
