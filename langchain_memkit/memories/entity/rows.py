"""What is stored: one row for each mention, decisions of people, descriptions; and the keys these stand under. Pure.

Nothing is read, changed and written back, so writers who meet lose nothing. A fact stands under a generation of its
session and is live only while the generation's own row is there: clearing deletes that row first, so what a save that
was under way still writes is dead, and is deleted when it is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

from langchain_memkit.base import user_prefix

__all__ = ["DescriptionRow", "FactRow", "Keys", "Rule", "fact_id", "id_in", "read_row"]

VERSION = 1
DAMAGED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


class FactRow(NamedTuple):
    """A sentence in which a name stands. `label` is empty where no extractor told the kind."""

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
        """Return plain data, as a store takes it."""
        data = self._asdict()
        data["at"] = self.at.isoformat()
        data["expires_at"] = self.expires_at.isoformat() if self.expires_at else None
        return {"v": VERSION, **data}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> FactRow:
        """Return the row; raises one of `DAMAGED` for what is none."""
        texts = [_text(data[name]) for name in cls._fields[:8]]
        numbers = [int(data[name]) for name in ("start", "end", "epoch")]
        expires = _moment(data["expires_at"]) if data["expires_at"] else None
        if not texts[0]:
            raise ValueError
        return cls._make([*texts, bool(data["given"]), _moment(data["at"]), *numbers, expires])


class Rule(NamedTuple):
    """A decision of a person: two names are one (`"merge"`, `"rename"`: the second is shown), or two (`"split"`)."""

    kind: str
    name: str
    other: str
    key: str
    other_key: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as a store takes it."""
        return {"v": VERSION, **self._asdict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Rule:
        """Return the rule; raises one of `DAMAGED` for what is none."""
        if data["kind"] not in ("merge", "rename", "split"):
            raise ValueError
        return cls(*(_text(data[name]) for name in cls._fields))


class DescriptionRow(NamedTuple):
    """A model's words on an entity, true only while every fact they were made of is there."""

    key: str
    text: str
    at: datetime
    facts: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, as a store takes it."""
        return {"v": VERSION, "key": self.key, "text": self.text, "at": self.at.isoformat(), "facts": list(self.facts)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DescriptionRow:
        """Return the description; raises one of `DAMAGED` for what is none."""
        return cls(_text(data["key"]), _text(data["text"]), _moment(data["at"]), tuple(map(_text, data["facts"])))


ROWS: dict[str, type[FactRow] | type[Rule] | type[DescriptionRow]] = {
    "description": DescriptionRow,
    "fact": FactRow,
    "rule": Rule,
}


def read_row(kind: str, data: Any) -> Any:
    """Return the row of a kind; None for what is damaged or of a newer version."""
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
    """Return what makes a fact itself: the same turn saved again stores nothing new."""
    digest = hashlib.sha256()
    for part in (row.key, row.session, row.message, row.text):
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:32]


def id_in(key: str) -> str:
    """Return the `fact_id` in a fact's key."""
    return key.rpartition("/")[2]


class Keys:
    """The keys of one user."""

    def __init__(self, user_id: str) -> None:
        self.prefix = user_prefix(user_id) + "entities/"

    def fact(self, session_id: str, generation: str, row: FactRow) -> str:
        """Of a fact."""
        return f"{self.facts(session_id)}{generation}/{fact_id(row)}"

    def facts(self, session_id: str) -> str:
        """Return what the facts of a session begin with."""
        return f"{self.prefix}fact/{quote(session_id, safe='')}/"

    def generation(self, session_id: str, generation: str) -> str:
        """Of the row that keeps a session's facts alive."""
        return f"{self.sessions(session_id)}{generation}"

    def sessions(self, session_id: str) -> str:
        """Return what the generations of a session begin with."""
        return f"{self.prefix}session/{quote(session_id, safe='')}/"

    def rule(self, now: datetime, last: str = "") -> str:
        """Of a new decision: keys are in the order of time, and come after the last one whatever the clock says."""
        stamp = f"{now.astimezone(UTC):%Y%m%dT%H%M%S.%f}"
        before = last[len(self.prefix) + len("rule/") :].partition("-")[0]
        if before >= stamp:
            later = datetime.strptime(before, "%Y%m%dT%H%M%S.%f") + timedelta(microseconds=1)  # noqa: DTZ007  # all are UTC
            stamp = f"{later:%Y%m%dT%H%M%S.%f}"
        return f"{self.prefix}rule/{stamp}-{uuid4().hex[:12]}"

    def description(self, key: str) -> str:
        """Of what is said about an entity."""
        return f"{self.prefix}description/{hashlib.sha256(key.encode()).hexdigest()[:32]}"

    @property
    def versions(self) -> str:
        """What the keys begin with that tell whether anything changed."""
        return f"{self.prefix}version/"

    def version(self) -> str:
        """Of a change: never used before."""
        return f"{self.versions}{uuid4().hex}"

    def parts(self, key: str) -> Sequence[str]:
        """Kind and the rest of a key, unquoted."""
        return [unquote(part) for part in key[len(self.prefix) :].split("/")]
