"""Documents of turns, and the indexes they need."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from bson import Decimal128, ObjectId, Timestamp
from pymongo import ASCENDING, IndexModel
from pymongo.errors import OperationFailure

from langchain_memkit.backends.mongodb.clients import Clients, redact
from langchain_memkit.backends.mongodb.commands import Command, Settings
from langchain_memkit.base import SessionHead, TokenCounter, Turn
from langchain_memkit.errors import ConfigurationError, MessageDecodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_legacy_message
from langchain_memkit.messages.tokens import count_tokens, counter_name
from langchain_memkit.stores.history_rows import MARKER_TTL, MOST, SessionScope, TurnRow, read_turn

Kind = Literal["turn", "clear", "purge"]
NO_TURNS = ["clear", "purge", "void", "opening"]
"""Kinds of documents without messages: clear and purge markers, voided turns, and a user's opening document."""
SHOWN = {"isDeleted": {"$ne": True}, "isActive": {"$ne": False}}
"""Filter that leaves out soft-deleted documents."""

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
"""Filter for memkit's documents, which rows of langchain-mongodb do not match; the unique indexes are partial on it."""

OPENING = 0
"""Position of the document that opens a user's session; it is below the position of every turn."""

CLOCKS = timedelta(minutes=5)
"""Allowed clock skew: a client's date that is at most this far behind the server's counts as the server's."""
IN_TWO_HOURS = {"$add": ["$$NOW", MARKER_TTL // timedelta(milliseconds=1)]}
"""Pipeline expression for the expiry of a document without messages, by the server's clock."""


def turns_filter(user_id: str, session_id: str | None = None, **conditions: Any) -> dict[str, Any]:
    """Build a filter on our documents: always with the user, always by equality, so that an id is never an operator.

    Args:
        user_id: The user; an empty string is the unowned space.
        session_id: The session; None for all sessions of the user.
        **conditions: Further conditions, operators included; never a caller's own value.
    """
    query: dict[str, Any] = {"user_id": {"$eq": user_id}}
    if session_id is not None:
        query["session_id"] = {"$eq": session_id}
    return {**query, "seq": {"$gt": 0, "$lte": MOST}, **conditions}


def legacy_filter(session_id_key: str, history_key: str, session_id: str | None = None) -> dict[str, Any]:
    """Build a filter on rows of langchain-mongodb; `session_id=None` means every session."""
    chosen: dict[str, Any] = {"$exists": True} if session_id is None else {"$eq": session_id}
    return {session_id_key: chosen, history_key: {"$exists": True}, "seq": {"$exists": False}}


def unique_index(name: str) -> IndexModel:
    """Define a partial unique index on (user_id, session_id, `name`): the compare-and-set of the storage model."""
    keys = [("user_id", ASCENDING), ("session_id", ASCENDING), (name, ASCENDING)]
    return IndexModel(keys, unique=True, partialFilterExpression=OURS, name=f"memkit_{name}")


def index_models(session_id_key: str, index_kwargs: Mapping[str, Any]) -> list[IndexModel]:
    """Define all indexes of a collection: order, idempotence, message ids, shard key, expiry, langchain-mongodb's rows.

    Args:
        session_id_key: The field in which langchain-mongodb's rows keep the session id.
        index_kwargs: More options for the index on that field.
    """
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
    """Define the index that reads langchain-mongodb's rows of a session in order."""
    return IndexModel([(session_id_key, ASCENDING), ("_id", ASCENDING)], **{"name": "memkit_legacy", **index_kwargs})


def turn_document(
    scope: SessionScope,
    head: SessionHead,
    row: TurnRow,
    now: datetime,
    server_now: datetime,
    ttl: float | None,
    counter: TokenCounter | None,
) -> dict[str, Any]:
    """Build the document of one turn, with the fields in the order in which a person reads them.

    Args:
        scope: User and session.
        head: Position, epoch and base of the turn itself.
        row: Its messages, tokens and flags.
        now: The date of the turn, by the client's clock, unless the row has one.
        server_now: The time of the server's clock.
        ttl: Seconds after which it expires; None keeps it, or uses the row's own expiry.
        counter: The token counter, whose name is stored with the counts.
    """
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
    # An imported turn, or a client whose clock is slow: `createdAt` does not tell when it was stored, which a clear has
    # to know. The server replaces an empty timestamp with its own time.
    if now < server_now - CLOCKS:
        document["storedAt"] = Timestamp(0, 0)
    if ttl is not None:
        document["expiresAt"] = now + timedelta(seconds=ttl)
    elif row.expires_at is not None:
        document["expiresAt"] = row.expires_at
    if row.is_deleted:
        document["isDeleted"] = True
    return document


def contentless(kind: str, op: str, head: SessionHead) -> list[dict[str, Any]]:
    """Build the update pipeline that upserts a document without content: a tombstone, or a session's opening document.

    User, session and position come from the filter of the upsert. The document expires after two hours by the server's
    clock.

    Args:
        kind: The kind of the document.
        op: Its operation name.
        head: Its epoch and base.
    """
    fields = {"op": op, "kind": kind, "epoch": head.epoch, "base": head.base, "v": FORMAT_VERSION}
    literal = {name: {"$literal": value} for name, value in fields.items()}
    return [{"$set": {"createdAt": "$$NOW", **literal, "expiresAt": IN_TWO_HOURS}}]


def voided(epoch: int) -> list[dict[str, Any]]:
    """Build the update pipeline that empties the turns before a tombstone and keeps their positions from late writers.

    Args:
        epoch: The epoch of the tombstone.
    """
    # The `op` gives way to one made of the position, because the same turn may be stored once more after the clear.
    # `base` stays as it was: with the tombstone's base, turns stored after the tombstone expired would count as void.
    name = {"$convert": {"input": "$seq", "to": "string", "onError": {"$toString": "$_id"}}}
    kept = {field: f"${field}" for field in ("_id", "user_id", "session_id", "seq", "base")}
    made = {"op": {"$concat": ["void:", name]}, "kind": "void", "epoch": {"$literal": epoch}, "v": FORMAT_VERSION}
    return [{"$replaceWith": {**kept, **made, "expiresAt": IN_TWO_HOURS}}]


def _stored_long_ago() -> dict[str, Any]:
    """Build the condition that a turn was stored before any writer that may still come read its session.

    That is two hours and twice the tolerance for client clocks ago, by the server's clock.
    """
    stamped = {"$eq": [{"$type": "$storedAt"}, "timestamp"]}
    stored = {"$cond": [stamped, {"$toDate": "$storedAt"}, "$createdAt"]}
    since = {"$subtract": ["$$NOW", (MARKER_TTL + 2 * CLOCKS) // timedelta(milliseconds=1)]}
    return {"$expr": {"$and": [{"$eq": [{"$type": stored}, "date"]}, {"$lt": [stored, since]}]}}


STORED_LONG_AGO = _stored_long_ago()


def is_live(document: Mapping[str, Any], base: int, now: datetime, hidden: bool = False) -> bool:
    """Return whether a document is a turn to show.

    Args:
        document: The document.
        base: Position of the last clear: turns up to it are void.
        now: The time by which turns have expired.
        hidden: Show soft-deleted turns as well.
    """
    seq, expires = document.get("seq"), document.get("expiresAt")
    return (
        document.get("kind", "turn") not in NO_TURNS
        and not (isinstance(seq, (int, float)) and seq <= base)
        and (hidden or not is_soft_deleted(document))
        and not (isinstance(expires, datetime) and expires <= now)
    )


def is_soft_deleted(document: Mapping[str, Any]) -> bool:
    """Return whether a document is soft-deleted; without a flag it is live."""
    return document.get("isDeleted") is True or document.get("isActive") is False


def head_of(documents: list[dict[str, Any]]) -> SessionHead | None:
    """Return the session's head, given its newest documents, newest first; None if none is undamaged.

    Epoch and base come from the newest undamaged document; the position is the highest of all of them.
    """
    for document in documents:
        epoch, base = document.get("epoch"), document.get("base")
        if isinstance(epoch, int) and isinstance(base, int):
            contentless, expires = document.get("kind") in NO_TURNS, document.get("expiresAt") is not None
            last: Any = "marker" if contentless else "expiring turn" if expires else "turn"
            return SessionHead(max(position(d.get("seq")) for d in documents), int(epoch), int(base), last)
    return None


def position(seq: Any) -> int:
    """Return a stored position as an int, even of a damaged document; 0 for anything that is no position."""
    # A damaged list: the unique index holds each of its numbers, so the next free position is after the highest.
    if isinstance(seq, list):
        return max(map(position, seq), default=0)
    number = seq.to_decimal() if isinstance(seq, Decimal128) else seq
    return int(number) if isinstance(number, (int, float, Decimal)) else 0


def legacy_turn(document: Mapping[str, Any], history_key: str, counter: TokenCounter | None) -> Turn:
    """Convert a row of langchain-mongodb, `{SessionId, History: "<json>"}`, to a turn of one message.

    A row that cannot be decoded becomes a turn without messages, with the reason in `problems`.
    """
    identity = document.get("_id")
    created_at = identity.generation_time if isinstance(identity, ObjectId) else None
    note = document.get("memkit")  # rows that we wrote name the turn to which they belong
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
    """Convert one of our documents to a turn."""
    return read_turn(document, counter)


MAX_AUTO_INDEX = 100_000
NOT_ALLOWED_CODES = (13, 8000)

_known: set[Any] = set()


async def ensure_indexes(clients: Clients, settings: Settings, *, forced: bool = False, again: bool = False) -> None:
    """Ensure that the collection has its indexes; the server is asked once per process, and when a session begins.

    Args:
        clients: The clients, which identify the server.
        settings: The collection's names, and whether indexes may be built.
        forced: Build missing indexes, however large the collection is.
        again: Ask the server even if this process has asked before.

    Raises:
        ConfigurationError: The unique indexes are missing and are not to be built, or the server refuses them.
    """
    key = (clients.key, settings.names, settings.legacy_keys[0])
    if key in _known and not (forced or again):
        return
    existing = await Command(lambda c: c.index_information(), settings.timeout)
    missing = _missing(settings, existing)
    critical = [m.document["name"] for m in missing if m.document.get("unique")]
    if missing and (settings.create_index or forced):
        if not forced:
            await _refuse_large(settings, missing)
        await _build(clients, settings, missing)
    elif critical:
        msg = (
            f"collection {'.'.join(settings.names)} lacks the unique indexes {critical}, without which turns could be "
            "lost or doubled, and create_index=False. Build them with MongoDBChatMessageHistory.factory(...).setup()."
        )
        raise ConfigurationError(msg)
    _known.add(key)


def _missing(settings: Settings, existing: dict[str, Any]) -> list[IndexModel]:
    # Compare keys and uniqueness, not names, because users rename indexes and build them by hand.
    present = {(tuple(map(tuple, i["key"])), bool(i.get("unique"))) for i in existing.values()}
    wanted = index_models(settings.legacy_keys[0], settings.index_kwargs)
    return [
        model
        for model in wanted
        if (tuple(model.document["key"].items()), bool(model.document.get("unique"))) not in present
    ]


async def _refuse_large(settings: Settings, missing: list[IndexModel]) -> None:
    count = await Command(lambda c: c.estimated_document_count(), settings.timeout)
    if count > MAX_AUTO_INDEX:
        names = [m.document["name"] for m in missing]
        msg = (
            f"collection {'.'.join(settings.names)} holds {count:,} documents and lacks the indexes {names}. "
            "Building them takes a while, so it is not done by surprise: run "
            "MongoDBChatMessageHistory.factory(...).setup() once."
        )
        raise ConfigurationError(msg)


async def _build(clients: Clients, settings: Settings, missing: list[IndexModel]) -> None:
    try:
        await Command(lambda c: c.create_indexes(missing), None)
    except OperationFailure as error:
        if error.code in NOT_ALLOWED_CODES:
            raise
        msg = (
            f"{clients.hosts} refused an index of collection {'.'.join(settings.names)}: {redact(str(error))}. "
            "memkit needs partial unique indexes (MongoDB 5.0 or newer, Atlas, or a compatible server that has them)."
        )
        raise ConfigurationError(msg) from error
