"""Documents of turns, and the indexes they need."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal

from bson import Decimal128, ObjectId, Timestamp
from bson.errors import InvalidId
from pymongo import ASCENDING, IndexModel

from langchain_memkit.backends.mongodb.clients import BsonDict, scope_filter
from langchain_memkit.backends.mongodb.commands import CHANGES, LISTING, Settings
from langchain_memkit.base import EndKind, ListPosition, SessionHead, TokenCounter, Turn
from langchain_memkit.errors import MessageDecodeError
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_legacy_message
from langchain_memkit.messages.tokens import count_tokens, counter_name
from langchain_memkit.stores.changes import ChangedRow, Place, RowKind
from langchain_memkit.stores.history_rows import MARKER_TTL, MOST, Edit, SessionScope, TurnRow
from langchain_memkit.stores.sessions import SessionQuery

Kind = Literal["turn", "clear", "purge"]
MARKERS = ["clear", "purge", "void", "opening"]
"""Kinds of documents that expire: clear and purge markers, voided turns, and a user's opening document."""
NO_TURNS = [*MARKERS, "undo", "decision", "summary"]
"""Kinds of documents without messages: those, what takes an edit back, decisions of users, and summaries."""
ROW_KINDS: dict[object, RowKind] = {
    "turn": "turn",
    "undo": "undo",
    "decision": "decision",
    "clear": "tombstone",
    "purge": "tombstone",
    "void": "erased",
}
"""What documents are in the order of changes."""
APART = ["clear", "session"]
"""Kinds of documents that a list of sessions needs beside the turns: tombstones, and titles with metadata."""
SHOWN = {"isDeleted": {"$ne": True}, "isActive": {"$ne": False}}
"""Filter that leaves out soft-deleted documents."""
FIELDS = (
    "_id", "user_id", "session_id", "seq", "v", "kind", "epoch", "base", "op", "createdAt", "storedAt", "expiresAt",
    "messages", "tokens", "token_counter", "replaces", "trace", "isActive", "isDeleted", "changed", "index",
)  # fmt: skip
OURS = {"seq": {"$exists": True}}
"""Filter for memkit's documents, which rows of langchain-mongodb do not match; the unique indexes are partial on it."""
DETAILS = -1
"""Position of the document with a session's title and metadata; a clear deletes it as it deletes damaged positions."""
SUMMARY = MOST + 1
"""Position of the summary of a session: above all turns, so that it comes first where the newest turns are read."""
UNFINISHED = MOST + 2
"""Position of a summary that has not caught up yet. A clear deletes both as it deletes damaged positions."""
SUMMARIES = {"$in": [SUMMARY, UNFINISHED]}
"""Condition on the positions of both."""
BY_TIME = [("user_id", 1), ("createdAt", -1), ("session_id", 1), ("seq", -1)]
"""Keys of the index by which sessions are listed and searched; a turn needs it neither to be read nor stored."""
BY_CHANGE = [("user_id", 1), ("changed", 1), ("session_id", 1), ("seq", 1)]
"""Keys of the index by which memories learn what changed."""
NOW = Timestamp(0, 0)
"""What the server replaces with its own time, at the top level of a document that is inserted."""
CHANGES_NOW = {"$currentDate": {"changed": {"$type": "timestamp"}}}
"""Part of an update by which the server notes its time. A pipeline has no such thing: `$$NOW` is a date, and a server
without replication may not know `$$CLUSTER_TIME`, after a restart for one."""
CHANGED = ("session_id", "seq", "op", "kind", "epoch", "base", "replaces", "createdAt", "expiresAt", "changed",
    "isActive", "isDeleted")  # fmt: skip
"""Fields of a document that tell what changed."""
NO_TEXT = ("int", "long", "double", "objectId")
"""Types of session ids in langchain-mongodb's rows that are read by `str` of the id."""
EDITS = {"replaces": {"$gt": 0}}
"""Filter for documents that replace others, which are few."""
TOMBSTONES = {"op": {"$gte": "clear:", "$lt": "clear;"}}
"""Filter for the tombstones of a session, which are few and expire; `op` is in an index."""
OPENING = 0
"""Position of the document that opens a user's session; it is below the position of every turn."""
IN_TWO_HOURS = {"$add": ["$$NOW", MARKER_TTL // timedelta(milliseconds=1)]}
"""Pipeline expression for the expiry of a document without messages, by the server's clock."""
CLOCKS = timedelta(minutes=5)  # a client's date that is at most so far behind the server's counts as the server's
IS_DATED = {"$in": [{"$type": "$storedAt"}, ["timestamp", "date"]]}
STORED = {"$cond": [IS_DATED, {"$toDate": "$storedAt"}, "$createdAt"]}
LONG_AGO = {"$subtract": ["$$NOW", (MARKER_TTL + 2 * CLOCKS) // timedelta(milliseconds=1)]}
STORED_LONG_AGO = {"$expr": {"$and": [{"$eq": [{"$type": STORED}, "date"]}, {"$lt": [STORED, LONG_AGO]}]}}
"""Filter for what was stored, by the server's clock, before any writer that may still come read its session."""


def turns_filter(user_id: str, session_id: str | None = None, **conditions: object) -> BsonDict:
    """Build a filter on our documents of a user; conditions may hold operators, but never a caller's own value."""
    return {**scope_filter(user_id, session_id), "seq": {"$gt": 0, "$lte": MOST}, **conditions}


def legacy_filter(session_id_key: str, history_key: str, session_id: str | None = None) -> BsonDict:
    """Build a filter on rows of langchain-mongodb; `session_id=None` means every session.

    That package takes ids of any type: the session `"5"` is that of rows with the text "5" and with the number 5.
    """
    chosen: BsonDict = {"$exists": True}
    if session_id is not None:
        others = legacy_ids(session_id)
        chosen = {"$in": [session_id, *others]} if others else {"$eq": session_id}
    return {session_id_key: chosen, history_key: {"$exists": True}, "seq": {"$exists": False}}


def legacy_ids(session_id: str) -> list[object]:
    """Return the numbers and ObjectIds of which `str` makes a session id, as apps make theirs for memkit.

    Example:
        >>> legacy_ids("5"), legacy_ids("0.5"), legacy_ids("05"), legacy_ids("s1")
        ([5], [0.5], [], [])
    """
    found: list[object] = []
    for kind in (int, float, ObjectId):
        with suppress(ValueError, InvalidId):
            found.append(kind(session_id))
    # BSON has no larger integers
    return [i for i in found if str(i) == session_id and not (isinstance(i, int) and i.bit_length() > 63)]


def legacy_sessions_filter(
    session_id_key: str, history_key: str, types: tuple[str, ...] = ("string", *NO_TEXT)
) -> BsonDict:
    """Build a filter on the rows of langchain-mongodb whose session ids are of a type that memkit reads."""
    return {**legacy_filter(session_id_key, history_key), session_id_key: {"$type": [*types]}}


def index_models(session_id_key: str, index_kwargs: Mapping[str, Any]) -> list[IndexModel]:
    """Define all indexes of a collection; `index_kwargs` are for that of langchain-mongodb's rows."""
    scope, partial = [("user_id", ASCENDING), ("session_id", ASCENDING)], {"partialFilterExpression": OURS}
    return [
        # The compare-and-set of the storage model.
        IndexModel([*scope, ("seq", ASCENDING)], unique=True, name="memkit_seq", **partial),
        IndexModel([*scope, ("op", ASCENDING)], unique=True, name="memkit_op", **partial),
        IndexModel([*scope, ("messages.id", ASCENDING)], name="memkit_message_ids", **partial),
        IndexModel([*scope, ("replaces", ASCENDING)], name="memkit_edits", partialFilterExpression=EDITS),
        IndexModel(scope, name="memkit_shard_key"),
        IndexModel([("expiresAt", ASCENDING)], expireAfterSeconds=0, name="memkit_ttl", **partial),
        IndexModel(BY_TIME, name=LISTING, **partial),
        IndexModel(BY_CHANGE, name=CHANGES, **partial),
        legacy_index(session_id_key, index_kwargs),
    ]


def legacy_index(session_id_key: str, index_kwargs: Mapping[str, Any]) -> IndexModel:
    """Define the index that reads langchain-mongodb's rows of a session in order."""
    return IndexModel([(session_id_key, ASCENDING), ("_id", ASCENDING)], **{"name": "memkit_legacy", **index_kwargs})


def turn_document(
    scope: SessionScope, head: SessionHead, row: TurnRow, settings: Settings, server_now: datetime
) -> BsonDict:
    """Build the document of one turn, with the fields in the order in which a person reads them."""
    now = row.created_at or settings.now()
    document: BsonDict = {
        **scope._asdict(),  # user_id and session_id
        "seq": head.seq,
        "createdAt": now,
        "messages": row.messages,
        "tokens": row.tokens,
        "token_counter": counter_name(settings.token_counter),
        "op": row.op,
        "kind": row.kind,
        "epoch": head.epoch,
        "base": head.base,
        "v": FORMAT_VERSION,
        "changed": NOW,
    }
    # An import keeps its dates, and a client's clock may be slow: then `createdAt` does not tell when the turn was
    # stored, which a clear has to know. The server replaces an empty timestamp with its own time.
    if now < server_now - CLOCKS:
        document["storedAt"] = NOW
    marks = {"replaces": row.replaces, "isDeleted": row.is_deleted, "trace": row.trace, "index": dict(row.index)}
    return {**document, **expiry(row, now, settings), **{name: mark for name, mark in marks.items() if mark}}


def expiry(row: TurnRow, created_at: datetime, settings: Settings) -> BsonDict:
    """Return the field `expiresAt` of a turn: by the configured time to live, else the row's own; empty if it stays."""
    if row.kind == "decision":
        return {}
    at = row.expires_at if settings.ttl is None else created_at + timedelta(seconds=settings.ttl)
    return {} if at is None else {"expiresAt": at}


def contentless(kind: str, op: str, head: SessionHead) -> list[BsonDict]:
    """Build the update pipeline that upserts a tombstone or opening document, for two hours by the server's clock.

    User, session and position come from the filter of the upsert.
    """
    fields = {"op": op, "kind": kind, "epoch": head.epoch, "base": head.base, "v": FORMAT_VERSION}
    literal = {name: {"$literal": value} for name, value in fields.items()}
    return [{"$set": {"createdAt": "$$NOW", **literal, "expiresAt": IN_TWO_HOURS}}]


def turns_of_sessions(
    asked: SessionQuery, names: list[str] | None, now: datetime, unreplaced: BsonDict
) -> list[BsonDict]:
    """Build the pipeline that counts the turns of sessions and finds the `_id`s of the first question and last turn.

    Rows are grouped by session, `base` and `kind`: turns below the highest base are void, also before they are erased.
    """
    turn: BsonDict = {"kind": {"$nin": NO_TURNS}, "expiresAt": {"$not": {"$lte": now}}}
    match = turns_filter(asked.user_id, seq={"$gte": DETAILS, "$lte": MOST})
    match["$or"] = [turn | ({} if asked.hidden else SHOWN), {"kind": {"$in": APART}}]
    match |= unreplaced | ({} if names is None else {"session_id": {"$in": names}})
    roles = {"$cond": [{"$isArray": "$messages.role"}, "$messages.role", []]}
    place = {"seq": "$seq", "id": "$_id"}
    found = {
        "turns": {"$sum": 1},
        "created": {"$min": "$createdAt"},
        "updated": {"$max": "$createdAt"},
        "first": {"$min": {"answer": {"$not": [{"$in": ["human", roles]}]}, **place}},
        "last": {"$max": place},
        "details": {"$max": {"title": "$title", "metadata": "$metadata", "epoch": "$epoch"}},
    }
    kind = {"$cond": [{"$in": ["$kind", APART]}, "$kind", "turn"]}
    group = {"_id": {"session": "$session_id", "base": "$base", "kind": kind}, **found}
    return [{"$match": match}, {"$group": group}]


def groups_of(kind: str, rows: list[BsonDict]) -> list[BsonDict]:
    """Return the groups of one kind among those of `turns_of_sessions`, without those of damaged sessions."""
    return [row for row in rows if row["_id"]["kind"] == kind and isinstance(row["_id"]["session"], str)]


def counted(rows: list[BsonDict]) -> dict[str, BsonDict]:
    """Merge the groups of each session that holds turns, but those whose turns are void, erased already or not.

    The newest document of a session says what is void, as it does for who reads the session (`head_of`).
    """
    turns, bases = groups_of("turn", rows), dict[str, int]()
    for row in sorted(turns + groups_of("clear", rows), key=lambda row: position(row["last"]["seq"])):
        base = row["_id"].get("base")
        bases[row["_id"]["session"]] = base if isinstance(base, int) else 0
    found: dict[str, BsonDict] = {}
    for row in turns:
        name = row["_id"]["session"]
        if position(row["last"]["seq"]) > bases[name]:
            found[name] = _merged(found[name], row) if name in found else row
    return found


def _merged(one: BsonDict, other: BsonDict) -> BsonDict:
    """Merge two groups of the turns of a session."""
    both = (one, other)
    dates = {name: [date for row in both if (date := date_of(row[name]))] for name in ("created", "updated")}
    return {
        **one,
        "turns": one["turns"] + other["turns"],
        "created": min(dates["created"], default=None),
        "updated": max(dates["updated"], default=None),
        "first": min((row["first"] for row in both), key=lambda at: (at["answer"], position(at["seq"]))),
        "last": max((row["last"] for row in both), key=lambda at: position(at["seq"])),
    }


def ends_of(user_id: str, ids: list[object]) -> list[BsonDict]:
    """Build the pipeline that reads turns, with the first question (else message) and the last message."""
    messages = {"$cond": [{"$isArray": "$messages"}, "$messages", []]}
    asked = {"$filter": {"input": messages, "cond": {"$eq": ["$$this.role", "human"]}}}
    said = {"$filter": {"input": messages, "cond": {"$ne": ["$$this.content", ""]}}}
    shown = {"$concatArrays": [{"$slice": [{"$concatArrays": [asked, messages]}, 1]}, {"$slice": [said, -1]}]}
    match = {**scope_filter(user_id), "_id": {"$in": ids}}
    return [{"$match": match}, {"$project": {"seq": 1, "epoch": 1, "v": 1, "messages": shown}}]


def until(place: ListPosition | None) -> BsonDict:
    """Return the condition on the dates of turns that come after a place in the order of `BY_TIME`."""
    return {"$lte": place.at or datetime(1970, 1, 1, tzinfo=UTC)} if place else {"$type": "date"}


def later(place: ListPosition | None) -> list[BsonDict]:
    """Return the further conditions; a turn whose first message was not returned yet is read again."""
    if place is None:
        return []
    here = {"session_id": {"$eq": place.session_id}, "seq": {"$lt": place.seq + min(place.message, 1)}}
    return [{"$or": [{"createdAt": {"$lt": place.at}}, {"session_id": {"$gt": place.session_id}}, here]}]


def date_of(value: object) -> datetime | None:
    """Return a stored date; None for anything else."""
    return value if isinstance(value, datetime) else None


def opening(scope: SessionScope, *, is_copy: bool = False) -> tuple[BsonDict, list[BsonDict]]:
    """Build filter and pipeline of the upsert that makes a user's session known to a purge before it holds a turn."""
    made = contentless("opening", "opening", SessionHead(0, 0, 0))
    marked = [{"$set": {"isCopy": True}}] if is_copy else []
    return turns_filter(*scope, seq={"$eq": OPENING}), made + marked


def copies_of(user_id: str) -> BsonDict:
    """Build the filter on the openings of sessions that turns may be copied into now."""
    return turns_filter(user_id, seq={"$eq": OPENING}, isCopy=True)


def copied_between(scope: SessionScope, last: int, end: int) -> BsonDict:
    """Build the filter on turns between two positions that a fork may have copied there, erased since or not.

    The turns of most writers have no `storedAt`, so a purge need not wait until nobody writes.
    """
    either = [{"storedAt": {"$exists": True}}, {"kind": {"$eq": "void"}}]
    return turns_filter(*scope, seq={"$gt": last, "$lt": end}) | {"$or": either}


def voided(epoch: int) -> list[BsonDict]:
    """Build the update pipeline that empties the turns before a tombstone; their positions stay, for late writers."""
    # The `op` gives way to one made of the position, because the same turn may be stored once more after the clear.
    # `base` stays as it was: with the tombstone's base, turns stored after the tombstone expired would count as void.
    # `changed` stays since the tombstone tells that they are void.
    name = {"$convert": {"input": "$seq", "to": "string", "onError": {"$toString": "$_id"}}}
    kept = {field: f"${field}" for field in ("_id", "user_id", "session_id", "seq", "base", "changed")}
    made = {"op": {"$concat": ["void:", name]}, "kind": "void", "epoch": {"$literal": epoch}, "v": FORMAT_VERSION}
    return [{"$replaceWith": {**kept, **made, "expiresAt": IN_TWO_HOURS}}]


def is_shown(document: BsonDict, now: datetime, hidden: bool = False) -> bool:
    """Return whether a document is neither expired nor (unless `hidden`) soft-deleted; without a flag it is live."""
    expires = document.get("expiresAt")
    is_deleted = document.get("isDeleted") is True or document.get("isActive") is False
    return (hidden or not is_deleted) and not (isinstance(expires, datetime) and expires <= now)


def is_live(document: BsonDict, base: int, now: datetime, hidden: bool = False) -> bool:
    """Return whether a document is a turn to show; those up to `base`, the position of the last clear, are void."""
    seq = document.get("seq")
    is_void = isinstance(seq, (int, float)) and seq <= base
    return is_turn(document) and not is_void and is_shown(document, now, hidden)


def edits_of(documents: Iterable[BsonDict], base: int, now: datetime) -> list[Edit]:
    """Return those of a session's documents, newest first, that replace others, and are neither erased nor expired."""
    made = [d for d in documents if d.get("replaces") and is_shown(d, now, hidden=True)]
    edits = [Edit(position(d.get("seq")), d["replaces"], d.get("kind") == "undo") for d in made]
    return sorted((edit for edit in edits if edit.seq > base), key=lambda edit: -edit.seq)


def head_of(documents: list[BsonDict]) -> SessionHead | None:
    """Return the session's head, given its newest documents, newest first; None if none is undamaged."""
    for document in documents:
        epoch, base = document.get("epoch"), document.get("base")
        if isinstance(epoch, int) and isinstance(base, int):
            end = max(position(d.get("seq")) for d in documents)
            return SessionHead(end, int(epoch), int(base), _kind_of_end(document))
    return None


def _kind_of_end(document: BsonDict) -> EndKind:
    """Return what the last document of a session is."""
    if document.get("kind") in MARKERS:
        return "marker"
    if is_being_copied(document):
        return "copy"
    return "turn" if document.get("expiresAt") is None else "expiring turn"


def is_being_copied(document: BsonDict) -> bool:
    """Return whether an undamaged turn is one of a copy that is not shown yet, if it is the newest of its session."""
    return bool(position(document.get("seq")) <= document["base"])


def is_turn(document: BsonDict) -> bool:
    """Return whether a document is a turn, or was: one that is hidden, replaced or void is."""
    return document.get("kind", "turn") not in NO_TURNS


def position(seq: object) -> int:
    """Return a stored position as an int, even of a damaged document; 0 for anything that is no position."""
    # A damaged list: the unique index holds each of its numbers, so the next free position is after the highest.
    if isinstance(seq, list):
        return max(map(position, seq), default=0)
    number = seq.to_decimal() if isinstance(seq, Decimal128) else seq
    return int(number) if isinstance(number, (int, float, Decimal)) else 0


def changed_row(document: BsonDict) -> ChangedRow | None:
    """Return what a document with the fields `CHANGED` tells; None if it is damaged, or holds neither turn nor mark."""
    seq, epoch, base = (document.get(name) for name in ("seq", "epoch", "base"))
    kind = ROW_KINDS.get(str(document.get("kind", "turn")))  # damaged, it may be something without a hash
    is_sound = all(isinstance(number, int) for number in (seq, epoch, base))
    if kind is None or not is_sound or not isinstance(document.get("session_id"), str):
        return None
    replaces, index = document.get("replaces"), document.get("index")
    return ChangedRow(
        document["session_id"],
        int(document["seq"]),
        str(document.get("op")),
        kind,
        int(document["epoch"]),
        int(document["base"]),
        is_deleted=document.get("isDeleted") is True or document.get("isActive") is False,
        replaces=int(replaces) if isinstance(replaces, int) else None,
        created_at=date_of(document.get("createdAt")),
        expires_at=date_of(document.get("expiresAt")),
        index={name: made for name, made in (index or {}).items() if isinstance(made, bytes)},
        revision=document.get("changed"),
    )


def changed_since(user_id: str, since: Timestamp | None, slack: int, *, unmarked: bool) -> BsonDict:
    """Build the filter on documents that changed after a mark, or up to so many seconds before it; None: all.

    With `unmarked`, those of older versions are among them, which do not tell when they changed.
    """
    if since is None:
        return turns_filter(user_id)
    begin = Timestamp(max(since.time - slack, 0), 0) if slack else since
    return turns_filter(user_id, changed={"$not": {"$lte": begin}} if unmarked else {"$gt": begin})


def unmarked(user_id: str) -> BsonDict:
    """Build the filter on documents of older versions, which do not tell when they changed."""
    return turns_filter(user_id, changed={"$eq": None})


def outside(ranges: Iterable[tuple[str, int, int]], *, short: int = 8) -> BsonDict:
    """Build the condition that leaves out ranges of positions, each with its session.

    The server compares a document with range after range, but looks a position up in a list: most edits replace the
    last turn alone, so the positions of short ranges are listed.

    Args:
        ranges: The session of each range, its first position, and the one after its last.
        short: How many positions of a range are listed at most.
    """
    hidden: list[BsonDict] = []
    listed: dict[str, list[int]] = {}
    for name, begin, end in ranges:
        if end - begin > short:
            hidden.append({"session_id": {"$eq": name}, "seq": {"$gte": begin, "$lt": end}})
        else:
            listed.setdefault(name, []).extend(range(begin, end))
    hidden += [{"session_id": {"$eq": name}, "seq": {"$in": seqs}} for name, seqs in listed.items()]
    return {"$nor": hidden} if hidden else {}


def at_places(user_id: str, places: Iterable[Place]) -> BsonDict:
    """Build the filter on turns at some places."""
    sessions: dict[str, list[int]] = {}
    for session_id, seq in places:
        sessions.setdefault(session_id, []).append(seq)
    either = [{"session_id": {"$eq": name}, "seq": {"$in": seqs}} for name, seqs in sessions.items()]
    return {**turns_filter(user_id, kind={"$nin": NO_TURNS}), "$or": either}


def legacy_turn(document: BsonDict, history_key: str, counter: TokenCounter | None) -> Turn:
    """Convert a row of langchain-mongodb to a turn of one message; one that cannot be decoded has only `problems`."""
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
