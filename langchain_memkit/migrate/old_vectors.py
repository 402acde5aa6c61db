"""Source for the records that vector memories of versions 0.1 and 0.2 kept in a store of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from langchain_memkit.backends.sqlite.inspection import drop_old_records, old_records
from langchain_memkit.base import Turn, check_path
from langchain_memkit.errors import required_extra
from langchain_memkit.messages.codec import decode_value
from langchain_memkit.migrate.sources import Conversation, ConversationSource, unreadable, utc_date
from langchain_memkit.stores.old_records import OldRecord

OP = "vectors:"
"""Prefix of the turn ids of what is made of such records."""

Records: TypeAlias = Callable[[], Generator[OldRecord, None, None]]


class Piece(NamedTuple):
    """A message, or a part of a long one."""

    role: str
    name: str
    text: str
    message_id: str


def vector_records_source(
    url_or_path: str | os.PathLike[str], *, database_name: str = "chat_history", collection_name: str = "vectors"
) -> ConversationSource:
    """Open what `VectorMemory` of memkit 0.1 and 0.2 kept in a vector store as a source for `migrate`.

    It is for apps whose memory had no history of memkit beside it: each round becomes a turn with its date, so that a
    memory over the histories recalls it. Whoever has the transcripts has nothing to move, since a memory over them
    recalls them; if records were made of turns in the target, `migrate` refuses to move any, since what was erased
    there would come back. For the same reason a session's records are deleted once all of them have arrived.

    Args:
        url_or_path: The SQLite file, which may be that of the histories, or a `mongodb://` URI.
        database_name: MongoDB database.
        collection_name: MongoDB collection.

    Returns:
        A source. What tools said becomes text of the model, since their calls were not kept; documents that belong to
        no conversation are reported, and stay where they are.

    Raises:
        MissingExtraError: For MongoDB, `pymongo` is not installed.
        ConfigurationError: Raised when it is read: there is no such file, or it holds no such records.
        HistoryReadError: Raised when it is read: the database fails.

    Example:
        ```python
        migrate(vector_records_source("memory.db"), SQLiteChatMessageHistory.factory("memory.db"))
        ```
    """
    if isinstance(url_or_path, str) and url_or_path.startswith(("mongodb://", "mongodb+srv://")):
        with required_extra("mongodb", "reading MongoDB"):
            from langchain_memkit.backends.mongodb import inspection
        names = (url_or_path, database_name, collection_name)
        # No partials: their reprs, which are part of the source's, would show the password.
        return ConversationSource(
            partial(_conversations, lambda: inspection.old_records(*names)),
            copies=OP,
            drop=lambda found: inspection.drop_old_records(*names, found.user_id, str(found.session_id)),
        )
    path = check_path(url_or_path)
    return ConversationSource(
        partial(_conversations, partial(old_records, path)),
        copies=OP,
        drop=lambda found: drop_old_records(path, found.user_id, str(found.session_id)),
    )


def _conversations(records_of: Records) -> Generator[Conversation, None, None]:
    with closing(records_of()) as opened:
        records = [*opened]  # since they are deleted one session after the other
        for (user_id, session_id), found in groupby(records, key=lambda record: (record.user_id, record.session_id)):
            if session_id:
                yield Conversation(session_id, user_id, partial(_turns, found))
                continue
            count = sum(1 for _ in found)
            why = f"documents: {count} of them are of no conversation, and stay where they are"
            yield Conversation("documents", user_id, partial(iter, [unreadable(why)]))


def _turns(records: Iterable[OldRecord]) -> Iterator[Turn]:
    now = datetime.now(UTC)
    for round_id, pieces in groupby(records, key=lambda record: record.round_id):
        found = [*pieces]
        try:
            messages = _messages([piece for record in found for piece in _pieces(record)])
        except (KeyError, TypeError, ValueError) as error:
            yield unreadable(f"record {round_id!r:.50}: unreadable ({type(error).__name__})")
            continue
        expires_at = found[-1].expires_at
        if messages and not (expires_at and expires_at <= now):
            when = utc_date(found[0].created_at)
            yield Turn(0, 0, f"{OP}{round_id}", when, messages, tokens=[], expires_at=expires_at)


def _pieces(record: OldRecord) -> Iterator[Piece]:
    metadata = json.loads(record.metadata) if isinstance(record.metadata, str) else record.metadata
    known: dict[str, Any] = decode_value(metadata)
    text: str = decode_value(record.text)
    spans, ids = known["said"], known.get("messages") or []
    for i, (role, name, begin, end) in enumerate(spans):
        yield Piece(role, name, text[begin:end], ids[i] if len(ids) == len(spans) else "")


def _messages(pieces: Iterable[Piece]) -> list[BaseMessage]:
    """Return the messages, of which a long one had been cut into several records."""
    made: list[BaseMessage] = []
    for piece in pieces:
        last = made[-1] if made else None
        if last is not None and piece.message_id and last.id == piece.message_id:
            last.content = f"{last.content}\n{piece.text}"
            continue
        kind: Any = HumanMessage if piece.role == "human" else AIMessage
        made.append(kind(piece.text, name=piece.name or None, id=piece.message_id or None))
    return made
