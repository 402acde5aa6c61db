"""What an entity memory keeps in the rows of turns: facts, descriptions, and the decisions of people. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from typing import NamedTuple

from langchain_memkit.memories.derived_log import as_text, pack, unpack
from langchain_memkit.stores.changes import ChangedRow

RULES = ("merge", "rename", "split", "forget")


class FactRow(NamedTuple):
    """A sentence that contains a name."""

    text: str  # the sentence
    role: str  # "human" or "ai"
    speaker: str  # the message's `name`; empty if it has none
    session: str
    message: str  # id of the message, or one derived from its text
    given: bool  # whether the message came with that id
    at: datetime  # when it was said, aware
    number: int = 0  # of the message in its turn
    key: str = ""  # of the name
    surface: str = ""  # the name as it was written
    label: str = ""  # type of the name; empty if neither the app nor an extractor told it
    start: int = 0  # where the name begins in the message, in characters
    end: int = 0


class ResolutionRule(NamedTuple):
    """A decision of a person about two names.

    `"merge"` and `"rename"` make them one entity, shown under the second name; `"split"` keeps them apart; `"forget"`
    is about one name, of which nothing is quoted that was stored before it.
    """

    kind: str
    name: str
    other: str
    key: str
    other_key: str


class DescriptionRow(NamedTuple):
    """A model's description of an entity; valid only while every fact that it was made from (`facts`) is shown."""

    key: str
    text: str
    at: datetime
    facts: tuple[str, ...]


def fact_id(row: FactRow) -> str:
    """Return a hash of name, session, message and sentence, which is the same for every process."""
    digest = hashlib.sha256()
    for part in (row.key, row.session, row.message, row.text):
        data = part.encode("utf-8", "surrogatepass")
        # The length goes before each part, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()[:32]


def id_in(key: str) -> str:
    """Return the `fact_id` in a fact's key."""
    return key.rpartition("/")[2]


def encode_facts(facts: Iterable[FactRow]) -> bytes:
    """Encode the facts of a turn, which are in the order of its messages."""
    messages = []
    for head, group in groupby(facts, key=_message_of):
        said = [[fact.text, fact.key, fact.surface, fact.label, fact.start, fact.end] for fact in group]
        messages.append([*head, said])
    return pack(messages)


def decode_facts(data: bytes | None, row: ChangedRow, undated: datetime) -> list[FactRow] | None:
    """Decode the facts of a turn; None if there are none stored, or they are damaged or of another version.

    Message `i` is dated `i` microseconds after the turn, which keeps the order.
    """
    messages = unpack(data)
    if messages is None:
        return None
    found: list[FactRow] = []
    try:
        for number, role, speaker, message, given, said in messages:
            at = (row.created_at or undated) + timedelta(microseconds=number)
            head = (as_text(role), as_text(speaker), row.session_id, as_text(message), bool(given), at, int(number))
            for text, key, surface, label, start, end in said:
                named = (as_text(key), as_text(surface), as_text(label), int(start), int(end))
                found.append(FactRow(as_text(text), *head, *named))
    except (OverflowError, TypeError, ValueError):
        return None
    return found


def encode_descriptions(made: Sequence[DescriptionRow]) -> bytes:
    """Encode the descriptions that a model made after a turn."""
    return pack([[row.key, row.text, list(row.facts)] for row in made])


def decode_descriptions(data: bytes | None, row: ChangedRow, undated: datetime) -> list[DescriptionRow]:
    """Decode the descriptions that a model made after a turn; none if they are damaged."""
    try:
        lines = unpack(data) or []
        at = row.created_at or undated
        return [
            DescriptionRow(as_text(key), as_text(text), at, tuple(map(as_text, facts))) for key, text, facts in lines
        ]
    except (TypeError, ValueError):
        return []


def encode_rule(rule: ResolutionRule) -> bytes:
    """Encode a decision."""
    return pack(list(rule))


def decode_rule(data: bytes | None) -> ResolutionRule | None:
    """Decode a decision; None if it is damaged or of another version."""
    try:
        rule = ResolutionRule(*map(as_text, unpack(data) or ()))
    except TypeError:
        return None
    return rule if rule.kind in RULES and rule.key else None


def _message_of(fact: FactRow) -> tuple[int, str, str, str, int]:
    return fact.number, fact.role, fact.speaker, fact.message, int(fact.given)
