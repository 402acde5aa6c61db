"""What stands in a collection: documents, the one place where filters are built, and indexes. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from bson import Decimal128, ObjectId, Timestamp
from pymongo import ASCENDING, IndexModel

from langchain_memkit.backends._history.rows import MARKER_TTL, MOST, Row, Scope, read_turn
from langchain_memkit.base import Head, TokenCounter, Turn
from langchain_memkit.errors import MessageDecodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_legacy_message
from langchain_memkit.messages.counting import count_tokens, counter_name

Kind = Literal["turn", "clear", "purge"]
NO_TURNS = ["clear", "purge", "void", "opening"]
"""Kinds of documents without content: markers, what they have voided, and what opens a user's session."""
SHOWN = {"isDeleted": {"$ne": True}, "isActive": {"$ne": False}}
"""What a query asks of documents that were not soft-deleted."""

FIELDS = (
    "_id",
    "user_id",
    "session_id",
    "seq",
    "v",
    "kind",
    "epoch",
    "base",
    "op",
    "createdAt",
    "storedAt",
    "expiresAt",
    "messages",
    "tokens",
    "token_counter",
    "isActive",
    "isDeleted",
)
OURS = {"seq": {"$exists": True}}
"""What tells our documents from rows of langchain-mongodb; the unique indexes are partial on it."""

OPENING = 0
"""The position of the document that opens a user's session, below that of every turn."""

CLOCKS = timedelta(minutes=5)
"""A date by a client's clock that is no further than this behind the server's is taken for the server's."""
IN_TWO_HOURS = {"$add": ["$$NOW", MARKER_TTL // timedelta(milliseconds=1)]}
"""By the server's clock, for pipelines: when a document without content goes."""


def turns_filter(user_id: str, session_id: str | None = None, **conditions: Any) -> dict[str, Any]:
    """Return a filter on our documents: always with the user, always by equality, so that an id is never an operator.

    Args:
        user_id: Whose; an empty string is the unowned space.
        session_id: The conversation; None for all of the user's.
        **conditions: Further conditions, operators included; never a caller's own value.
    """
    query: dict[str, Any] = {"user_id": {"$eq": user_id}}
    if session_id is not None:
        query["session_id"] = {"$eq": session_id}
    return {**query, "seq": {"$gt": 0, "$lte": MOST}, **conditions}


def legacy_filter(session_id_key: str, history_key: str, session_id: str | None = None) -> dict[str, Any]:
    """Return a filter on rows of langchain-mongodb; `session_id=None` means every session."""
    chosen: dict[str, Any] = {"$exists": True} if session_id is None else {"$eq": session_id}
    return {session_id_key: chosen, history_key: {"$exists": True}, "seq": {"$exists": False}}


def unique_index(name: str) -> IndexModel:
    """Return a partial unique index on (user_id, session_id, `name`): the compare-and-set of the storage model."""
    keys = [("user_id", ASCENDING), ("session_id", ASCENDING), (name, ASCENDING)]
    return IndexModel(keys, unique=True, partialFilterExpression=OURS, name=f"memkit_{name}")


def index_models(session_id_key: str, index_kwargs: Mapping[str, Any]) -> list[IndexModel]:
    """Return every index of a collection: order, idempotence, message ids, shard key, expiry, legacy rows."""
    scope = [("user_id", ASCENDING), ("session_id", ASCENDING)]
    return [
        unique_index("seq"),
        unique_index("op"),
        IndexModel([*scope, ("messages.id", ASCENDING)], partialFilterExpression=OURS, name="memkit_message_ids"),
        IndexModel(scope, name="memkit_shard_key"),
        IndexModel([("expiresAt", ASCENDING)], expireAfterSeconds=0, partialFilterExpression=OURS, name="memkit_ttl"),
        legacy_index(session_id_key, index_kwargs),
    ]


def legacy_index(session_id_key: str, index_kwargs: Mapping[str, Any]) -> IndexModel:
    """Return the index that reads langchain-mongodb's rows of a session in order."""
    return IndexModel([(session_id_key, ASCENDING), ("_id", ASCENDING)], **{"name": "memkit_legacy", **index_kwargs})


def turn_document(
    scope: Scope,
    head: Head,
    row: Row,
    now: datetime,
    server_now: datetime,
    ttl: float | None,
    counter: TokenCounter | None,
) -> dict[str, Any]:
    """Return the document of one turn, in the order in which a person reads it."""
    now = row.created_at or now
    document: dict[str, Any] = {
        "user_id": scope.user_id,
        "session_id": scope.session_id,
        "seq": head.seq,
        "createdAt": now,
        "messages": row.messages,
        "tokens": row.tokens,
        "token_counter": counter_name(counter),
        "op": row.op,
        "kind": "turn",
        "epoch": head.epoch,
        "base": head.base,
        "v": FORMAT_VERSION,
    }
    if now < server_now - CLOCKS:
        document["storedAt"] = Timestamp(0, 0)  # the server puts its own time there
    if ttl is not None:
        document["expiresAt"] = now + timedelta(seconds=ttl)
    elif row.expires_at is not None:
        document["expiresAt"] = row.expires_at
    if row.is_deleted:
        document["isDeleted"] = True
    return document


def contentless(kind: str, op: str, head: Head) -> list[dict[str, Any]]:
    """Return what makes a marker, or what opens a session, of an upsert's filter; the server's clock says when it goes."""
    fields = {"op": op, "kind": kind, "epoch": head.epoch, "base": head.base, "v": FORMAT_VERSION}
    literal = {name: {"$literal": value} for name, value in fields.items()}
    return [{"$set": {"createdAt": "$$NOW", **literal, "expiresAt": IN_TWO_HOURS}}]


def voided(epoch: int) -> list[dict[str, Any]]:
    """Return what a clear leaves of a turn: its position, so that no late writer takes it.

    Its name is free again, since the turn may be stored once more after the clear. Its `base` stays what it was: with
    the marker's, turns would be void that are stored after the marker is gone.
    """
    name = {"$convert": {"input": "$seq", "to": "string", "onError": {"$toString": "$_id"}}}
    kept = {field: f"${field}" for field in ("_id", "user_id", "session_id", "seq", "base")}
    made = {"op": {"$concat": ["void:", name]}, "kind": "void", "epoch": {"$literal": epoch}, "v": FORMAT_VERSION}
    return [{"$replaceWith": {**kept, **made, "expiresAt": IN_TWO_HOURS}}]


def _stored_long_ago() -> dict[str, Any]:
    """Return a condition: stored before any writer read its session that may still come, by the server's clock."""
    stamped = {"$eq": [{"$type": "$storedAt"}, "timestamp"]}
    stored = {"$cond": [stamped, {"$toDate": "$storedAt"}, "$createdAt"]}
    since = {"$subtract": ["$$NOW", (MARKER_TTL + 2 * CLOCKS) // timedelta(milliseconds=1)]}
    return {"$expr": {"$and": [{"$eq": [{"$type": stored}, "date"]}, {"$lt": [stored, since]}]}}


STORED_LONG_AGO = _stored_long_ago()


def is_live(document: Mapping[str, Any], base: int, now: datetime, hidden: bool = False) -> bool:
    """Return whether a document is a turn to show: after the last clear, not expired, not soft-deleted unless `hidden`."""
    seq, expires = document.get("seq"), document.get("expiresAt")
    return (
        document.get("kind", "turn") not in NO_TURNS
        and not (isinstance(seq, (int, float)) and seq <= base)
        and (hidden or not is_soft_deleted(document))
        and not (isinstance(expires, datetime) and expires <= now)
    )


def is_soft_deleted(document: Mapping[str, Any]) -> bool:
    """Return whether a document was hidden; without a mark it was not."""
    return document.get("isDeleted") is True or document.get("isActive") is False


def head_of(documents: list[dict[str, Any]]) -> Head | None:
    """Return where the session stands, from its newest documents, newest first; damaged ones are passed over."""
    for document in documents:
        epoch, base = document.get("epoch"), document.get("base")
        if isinstance(epoch, int) and isinstance(base, int):
            contentless, expires = document.get("kind") in NO_TURNS, document.get("expiresAt") is not None
            last: Any = "marker" if contentless else "expiring turn" if expires else "turn"
            return Head(max(position(d.get("seq")) for d in documents), int(epoch), int(base), last)
    return None


def position(seq: Any) -> int:
    """Return a stored position as a whole number, though the row may be damaged; 0 for what is none."""
    if isinstance(seq, list):  # the unique index holds each of its numbers
        return max(map(position, seq), default=0)
    number = seq.to_decimal() if isinstance(seq, Decimal128) else seq
    return int(number) if isinstance(number, (int, float, Decimal)) else 0


def legacy_turn(document: Mapping[str, Any], history_key: str, counter: TokenCounter | None) -> Turn:
    """Return a row of langchain-mongodb, `{SessionId, History: "<json>"}`, as a turn of one message."""
    identity = document.get("_id")
    created_at = identity.generation_time if isinstance(identity, ObjectId) else None
    note = document.get("memkit")  # rows that we wrote say which turn they belong to
    op = note.get("op") if isinstance(note, Mapping) else None
    turn = Turn(0, 0, op if isinstance(op, str) else f"row:{identity}", created_at, [], [])
    try:
        stored = document.get(history_key)
        message = decode_legacy_message(json.loads(stored) if isinstance(stored, (str, bytes)) else stored)
    except (ValueError, RecursionError, MessageDecodeError) as error:
        reason = str(error) if isinstance(error, MessageDecodeError) else type(error).__name__
        turn.problems.append(f"row {identity}: {reason}")
    else:
        turn.messages.append(message)
        turn.tokens.extend(count_tokens([message], counter))
    return turn


def native_turn(document: Mapping[str, Any], counter: TokenCounter | None) -> Turn:
    """Return one of our documents as a turn."""
    return read_turn(document, counter)
