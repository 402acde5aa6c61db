"""Records as they are ranked, and how they come of stored documents. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from langchain_core.documents import Document

from langchain_memkit.scoring.words import stems as stems_of

__all__ = ["Begun", "Entry", "Said", "digest_of", "entry_of"]


class Said(NamedTuple):
    """What one message adds to a record.

    Attributes:
        role: "human", "ai", "tool", or "" for a plain document.
        name: The speaker's name, "" if there is none.
        stems: The words, as `stems` gives them.
    """

    role: str
    name: str
    stems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A record as it is ranked: a round of a conversation, a piece of a long one, or a plain document.

    Attributes:
        id: The record's id.
        session: The session that it is from, "" for plain documents.
        round_id: Pieces of one round share it.
        position: The order inside the session; equal ones stand in the order in which they were added.
        at: When it was said, aware.
        said: The words of its messages.
        messages: The ids of its messages.
        epoch: The epoch of the history that it was taken from.
        importance: From 1 to 10, `None` if nobody rated it.
        expires_at: From then on it is not found.
        stamp: The number of the stored row; a changed row gets another one.
    """

    id: str
    session: str
    round_id: str
    position: int
    at: datetime | None
    said: tuple[Said, ...]
    messages: tuple[str, ...] = ()
    epoch: int = 0
    importance: float | None = None
    expires_at: datetime | None = None
    stamp: int = 0


class Begun(NamedTuple):
    """What a store knows of a session before records are written.

    Attributes:
        generation: Drawn when the session began; a write of another generation is refused.
        last: The session's record with the highest position; `None` if it has none, or none that matters.
        vectors: The vectors that are already stored, by the digest of their text.
        records: The session's records that were asked for, by id.
        position: Of the session's last record; what follows stands behind it. 0 if there is none.
        state: What the session was like, where nothing was read for it: a write says that it goes out from this.
    """

    generation: str
    last: Document | None
    vectors: Mapping[str, Any]
    records: Mapping[str, Document] = {}  # never changed
    position: int = 0
    state: int | None = None


def entry_of(document: Document, *, stamp: int = 0, stems: Sequence[Sequence[str]] | None = None) -> Entry:
    """Return the record that a stored document is.

    Args:
        document: With an id, and the metadata of a round; all of it may be missing.
        stamp: The number of the stored row.
        stems: The words of each message, if they were stored; else they are computed.

    Raises:
        ValueError: The document has no id, or there are not as many lists of stems as messages.

    Example:
        >>> entry = entry_of(Document("Ann: I sing.", id="1", metadata={"said": [["human", "Ann", 5, 12]]}))
        >>> entry.said
        (Said(role='human', name='Ann', stems=('sing',)),)
    """
    if not document.id:
        msg = "a document needs an id to be ranked"
        raise ValueError(msg)
    known, text = document.metadata, document.page_content
    spans = known.get("said") or [["", "", 0, len(text)]]
    words = stems if stems is not None else [stems_of(text[start:end]) for _, _, start, end in spans]
    return Entry(
        id=document.id,
        session=known.get("session_id") or "",
        round_id=known.get("round_id") or document.id,
        position=known.get("position") or 0,
        at=_time(known.get("created_at")),
        said=tuple(Said(role, name, tuple(found)) for (role, name, *_), found in zip(spans, words, strict=True)),
        messages=tuple(known.get("messages") or ()),
        epoch=known.get("epoch") or 0,
        importance=known.get("importance"),
        expires_at=_time(known.get("expires_at")),
        stamp=stamp,
    )


def digest_of(text: str) -> str:
    """Return the same for texts that differ in case and white space only: 32 hexadecimal digits of a SHA-256.

    Example:
        >>> digest_of("Hello  World") == digest_of("hello world ")
        True
    """
    return hashlib.sha256(" ".join(text.casefold().split()).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _time(value: Any) -> datetime | None:
    if value is None or value == "":
        return None
    found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
