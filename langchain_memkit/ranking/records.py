"""Records as the index holds them, built from stored documents. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from langchain_core.documents import Document

from langchain_memkit.ranking.tokenize import tokenize, tokenize_record

OF_GREETINGS = """fine great good nice cool perfect awesome thanks thank welcome hi hello hey bye goodbye morning
    evening night got understood problem glad help cheers lot"""
GREETINGS = frozenset(tokenize(OF_GREETINGS))


class Utterance(NamedTuple):
    """The tokenized text of one message of a record."""

    role: str  # "human", "ai", "tool", or "" for a plain document
    name: str  # the speaker's, "" if there is none
    stems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IndexRecord:
    """One record of the index: a round of a conversation, one chunk of a long round, or a plain document.

    Attributes:
        id: The record's id.
        session: Its session id, "" for plain documents.
        round_id: The round's id, shared by all its chunks.
        position: Sort key inside the session; equal positions keep the order in which they were added.
        at: When it was said, aware; `None` if unknown.
        said: The words of its messages.
        messages: The ids of its messages.
        epoch: Epoch of the history when it was taken; 0 if unknown.
        importance: From 1 to 10; `None` if unrated.
        expires_at: The time from which it is not found any more.
        stamp: Version number of the stored row; every change of a row draws a new one.
    """

    id: str
    session: str
    round_id: str
    position: int
    at: datetime | None
    said: tuple[Utterance, ...]
    messages: tuple[str, ...] = ()
    epoch: int = 0
    importance: float | None = None
    expires_at: datetime | None = None
    stamp: int = 0


class StoredSession(NamedTuple):
    """State of a session as a store returns it before a write.

    Attributes:
        generation: Random value drawn when the session began; a write with another generation is refused.
        last: The record with the highest position; `None` if there is none, or none that the write could continue.
        vectors: Vectors that are stored already, by digest of their text.
        records: The requested records of the session, by id.
        position: Position of the last record, behind which new ones go; 0 if there is none.
        state: Version of the session, set if this was answered from a snapshot instead of a read; the write is a
            compare-and-set on it.
    """

    generation: str
    last: Document | None
    vectors: Mapping[str, Any]
    records: Mapping[str, Document] = {}  # never changed
    position: int = 0
    state: int | None = None


def is_greeting(text: str, most: int = 80) -> bool:
    """Return whether a text of at most `most` characters is only a greeting or thanks.

    Consent is none ("Yes, please"): what is answered to it may be what the user waited for.

    Example:
        >>> is_greeting("Good morning!"), is_greeting("Thanks, that was about Oslo.")
        (True, False)
    """
    words = tokenize(text, "english") if len(text) <= most else []
    return bool(words) and GREETINGS.issuperset(words)


def index_record_of(document: Document, *, stems: Sequence[Sequence[str]] | None = None) -> IndexRecord:
    """Build the index entry of a stored document.

    Args:
        document: A document with an id. Its metadata is that of a round; every field may be missing.
        stems: The words of each message, if they were stored; else the text is tokenized.

    Raises:
        ValueError: The document has no id, or the number of lists of stems is not the number of messages.

    Example:
        >>> entry = index_record_of(Document("Ann: I sing.", id="1", metadata={"said": [["human", "Ann", 5, 12]]}))
        >>> entry.said
        (Utterance(role='human', name='Ann', stems=('sing',)),)
    """
    if not document.id:
        msg = "a document needs an id to be ranked"
        raise ValueError(msg)
    known, text = document.metadata, document.page_content
    spans = known.get("said") or [["", "", 0, len(text)]]
    asked = [text[start:end] for role, _, start, end in spans if role == "human"]
    if asked and all(map(is_greeting, asked)):
        words: Sequence[Sequence[str]] = [()] * len(spans)  # nobody asks for a greeting, or for the answer to one
    elif stems is not None:
        words = stems
    else:
        words = [tokenize_record(text[start:end]) for _, _, start, end in spans]
    return IndexRecord(
        id=document.id,
        session=known.get("session_id") or "",
        round_id=known.get("round_id") or document.id,
        position=known.get("position") or 0,
        at=_time(known.get("created_at")),
        said=tuple(Utterance(role, name, tuple(found)) for (role, name, *_), found in zip(spans, words, strict=True)),
        messages=tuple(known.get("messages") or ()),
        epoch=known.get("epoch") or 0,
        importance=known.get("importance"),
        expires_at=_time(known.get("expires_at")),
    )


def digest_of(text: str) -> str:
    """Hash a text, ignoring case and white space: 32 hexadecimal digits of a SHA-256.

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
