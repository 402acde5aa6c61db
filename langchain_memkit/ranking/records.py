"""Records as the index holds them, built from stored documents. Pure."""

from __future__ import annotations

from collections.abc import Sequence
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
        importance: From 1 to 10; `None` if unrated.
        expires_at: The time from which it is not found any more.
    """

    id: str
    session: str
    round_id: str
    position: int
    at: datetime | None
    said: tuple[Utterance, ...]
    messages: tuple[str, ...] = ()
    importance: float | None = None
    expires_at: datetime | None = None


def is_greeting(text: str, most: int = 80) -> bool:
    """Return whether a text of at most `most` characters is only a greeting or thanks.

    Consent is none ("Yes, please"): what is answered to it may be what the user waited for.

    Example:
        >>> is_greeting("Good morning!"), is_greeting("Thanks, that was about Oslo.")
        (True, False)
    """
    words = tokenize(text, "english") if len(text) <= most else []
    return bool(words) and GREETINGS.issuperset(words)


def stems_of(said: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return the words of each message of a record, given as role and text.

    Nobody asks for a greeting, or for the answer to one, so where the user only greets there are none.

    Example:
        >>> stems_of([("human", "I sing songs."), ("ai", "Which?")])
        [('sing', 'song'), ('?',)]
    """
    asked = [text for role, text in said if role == "human"]
    if asked and all(map(is_greeting, asked)):
        return [() for _ in said]
    return [tuple(tokenize_record(text)) for _, text in said]


def index_record_of(document: Document) -> IndexRecord:
    """Build the index entry of a document.

    Args:
        document: A document with an id. Its metadata is that of a round; every field may be missing.

    Raises:
        ValueError: The document has no id.

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
    words = stems_of([(role, text[start:end]) for role, _, start, end in spans])
    return IndexRecord(
        id=document.id,
        session=known.get("session_id") or "",
        round_id=known.get("round_id") or document.id,
        position=known.get("position") or 0,
        at=_time(known.get("created_at")),
        said=tuple(Utterance(role, name, found) for (role, name, *_), found in zip(spans, words, strict=True)),
        messages=tuple(known.get("messages") or ()),
        importance=known.get("importance"),
        expires_at=_time(known.get("expires_at")),
    )


def _time(value: Any) -> datetime | None:
    if value is None or value == "":
        return None
    found = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
