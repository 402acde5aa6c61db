"""Documents, filters, updates and indexes of a vector collection. Every filter is built here. No I/O.

```
{_id: {id: "<id>", user_id}, user_id, session_id, round_id, position, text, said, metadata, ..., stamp, vector, v}
{_id: {user_id, session_id}, user_id, session_id, generation, stamp, last}    a session; without it its records are dead
{_id: {probe: 1}, user_id: "", session_id: "", probe}            the embedding of a fixed text
```

An unowned record has its plain id as `_id`. So have the records that memkit 0.1.0 stored for users; these are still
found, and replaced in place.

The `generation` of a session is its epoch, drawn at random when the session begins; each record carries it.

The `stamp` of a record is its number (above 0). The `stamp` of a session is its version: at most 0, and lowered by a
random step after each change of its records. So the sum of the versions of a user's sessions tells whether anything has
changed, and an index covers it. Records keep the step of their write as `step`: a reader of new records adds the steps
up and knows whether these records explain the whole change. `last` describes the session's last record: its position,
digest and message ids, and in `waits` whether it must be read before the next one is written.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from bson import Binary, Int64, MaxKey, encode
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING, IndexModel, UpdateOne

from langchain_memkit.backends.mongodb.clients import Clients
from langchain_memkit.backends.mongodb.commands import CollectionRef, Command
from langchain_memkit.backends.mongodb.documents import MAX_AUTO_INDEX
from langchain_memkit.errors import ConfigurationError, MessageTooLargeError
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.ranking.tokenize import STEMS_VERSION
from langchain_memkit.stores.vector_cache import ReadUpTo
from langchain_memkit.stores.vector_rows import DocumentRow, IndexRow, NewRecord

MAX_DOCUMENT = 16 * 2**20 - 4096  # bytes: room for the ids, which are added on the server
VECTOR_SUBTYPE = 9
FLOAT32 = b"\x27\x00"  # header of a binary vector of 4-byte floats
CHANCE_BITS = 11
STEP_BITS = 32  # of the random step of a session's version: two thousand million of them fit into 64 bits
MATTERS = {"$set": {"last.waits": True}}
A_NUMBER = {"$lt": float("inf")}  # matches numbers only: a stored position may be damaged
BY_ID = [("_id", ASCENDING)]  # an index hint: without it the planner tries every index that begins with the user
LAST_FIRST = [("position", DESCENDING)]
PROBE_ID = {"probe": 1}
ON_CELLS = dict.fromkeys(
    (
        "_id", "session_id", "round_id", "position", "created_at", "importance", "epoch", "expires_at", "said",
        "messages", "stems_version", "vector", "text", "metadata", "digest", "v", "step", "stamp",
        "generation",
    ),
    1,
)  # fmt: skip
ON_TEXTS = dict.fromkeys(
    ("_id", "user_id", "session_id", "position", "expires_at", "text", "metadata", "v", "stamp", "generation"), 1
)
ON_SESSION = {"generation": 1, "stamp": 1, "last.waits": 1}
ON_DEAD = dict.fromkeys(("_id", "session_id", "stamp", "generation"), 1)
ON_STORED = {**ON_TEXTS, "vector": 1}
ON_BEGIN = {**ON_STORED, "digest": 1, "last": 1}


def records_filter(user_id: str, session_id: str | None = None, **conditions: Any) -> dict[str, Any]:
    """Build a filter on records: always with the user, always by equality, so that an id is never an operator.

    Args:
        user_id: The user; an empty string is the unowned space.
        session_id: The session; None for all sessions of the user.
        **conditions: Further conditions, operators included; never a caller's own value.
    """
    query: dict[str, Any] = {"user_id": {"$eq": user_id}}
    if session_id is not None:
        query["session_id"] = {"$eq": session_id}
    return {**query, "stamp": {"$gt": 0}, **conditions}


def key_of(user_id: str, name: str) -> Any:
    """Return the `_id` of a new record: ids are unique per user."""
    return {"id": name, "user_id": user_id} if user_id else name


def record_id_of(key: Any) -> Any:
    """Return the id of a record, given its `_id`."""
    return key["id"] if isinstance(key, Mapping) and "id" in key else key


def with_ids(user_id: str, ids: Sequence[str]) -> dict[str, Any]:
    """Build a filter on record ids, to be combined with one on the user; it matches either form of `_id`."""
    return {"_id": {"$in": [*ids, *(key_of(user_id, name) for name in ids if user_id)]}}


def owned_filter(ids: Sequence[str]) -> dict[str, Any]:
    """Build a filter on records with these ids that belong to any user."""
    # Embedded documents compare field by field, so this range holds every `_id` that begins with the record id, and the
    # index on `_id` covers it.
    ranges = [{"_id": {"$gt": {"id": name}, "$lt": {"id": name, "user_id": MaxKey()}}} for name in ids]
    return {"$or": [{"_id": {"$in": list(ids)}, "user_id": {"$gt": ""}}, *ranges]}


def session_filter(user_id: str, session_id: str) -> dict[str, Any]:
    """Build a filter on the document of a session."""
    return {
        "user_id": {"$eq": user_id},
        "session_id": {"$eq": session_id},
        "_id": {"$eq": {"user_id": user_id, "session_id": session_id}},
    }


def news_pipeline(
    collection: str, user_id: str, session_id: str | None, since: ReadUpTo | None
) -> list[dict[str, Any]]:
    """Build the one query that brings a cached index up to date.

    Args:
        collection: The collection's name.
        user_id: The user.
        session_id: The session whose document is read, too; None for none.
        since: What the cache holds; None to read no records.

    Returns:
        An aggregation whose rows are the session's document, the sum of the versions of all of the user's sessions, and
        the records added since, in this order.
    """
    whole = [{"$match": not_records(user_id)}, {"$group": {"_id": None, "total": {"$sum": "$stamp"}}}]
    parts: list[list[dict[str, Any]]] = [whole]
    # The order matters, because others may write in between. The session's version is read first: of a write after that
    # the records are among the new ones, while the version is the old one, so that the turn's compare-and-set fails. In
    # another order a turn could append without having seen the last record. A write between the sum and the records
    # leaves records that do not explain the sum, so that the cache lists everything.
    if session_id is not None:
        parts.insert(0, [{"$match": session_filter(user_id, session_id)}, {"$project": ON_SESSION}])
    if since is not None:
        # Exclude our own writes one by one instead of raising the watermark to them: other processes may have stored
        # records with lower numbers meanwhile.
        stamps = {"$gt": since.stamp, "$nin": [Int64(stamp) for stamp in since.own]}
        parts.append([{"$match": records_filter(user_id, stamp=stamps)}, {"$project": ON_CELLS}])
    first, *others = parts
    return [*first, *({"$unionWith": {"coll": collection, "pipeline": part}} for part in others)]


def not_records(user_id: str) -> dict[str, Any]:
    """Build a filter on the session documents of a user."""
    return {"user_id": {"$eq": user_id}, "stamp": {"$lte": 0}}


def begin_filter(user_id: str, session_id: str, digests: Sequence[str], ids: Sequence[str]) -> dict[str, Any]:
    """Build a filter on a session's document, on records with these ids, and on records whose text has these digests.

    Args:
        user_id: The user.
        session_id: The session.
        digests: Digests of texts whose stored vectors can be used again.
        ids: Record ids.
    """
    owned = {"user_id": {"$eq": user_id}}
    named = {
        **owned,
        "_id": {"$in": [{"user_id": user_id, "session_id": session_id}, *with_ids(user_id, ids)["_id"]["$in"]]},
    }
    if not digests:
        return named
    return {"$or": [named, {**owned, "digest": {"$in": list(digests)}, "vector": {"$ne": None}}]}


def is_session(document: Mapping[str, Any]) -> bool:
    """Return whether a document is that of a session."""
    return isinstance(document["_id"], Mapping) and "session_id" in document["_id"]


def not_expired(now: datetime) -> dict[str, Any]:
    """Build a condition on `expires_at` that leaves out expired records, which the server deletes a minute later."""
    return {"$not": {"$lte": now}}


def index_models() -> list[IndexModel]:
    """Return all indexes of a collection: record numbers, shard key with positions, text digests, recalls, expiry."""

    def model(name: str, *fields: str, **options: Any) -> IndexModel:
        return IndexModel([(field, ASCENDING) for field in fields], name=f"memkit_{name}", **options)

    return [
        model("stamps", "user_id", "stamp"),
        model("sessions", "user_id", "session_id", "position"),
        model("digests", "user_id", "digest"),
        model("accesses", "user_id", "accessed_at", "created_at"),
        model("ttl", "expires_at", expireAfterSeconds=0),
    ]


def new_record_numbers(count: int) -> list[int]:
    """Draw new record numbers: in the order of writing as far as clocks agree, with random low bits to be unique."""
    micros = time.time_ns() // 1000
    return [(micros + i << CHANCE_BITS) + random.getrandbits(CHANCE_BITS) for i in range(count)]


def upsert(row: NewRecord, generation: str | None, stamp: int, step: int) -> UpdateOne:
    """Build the upsert of a record, which replaces the one with its id in the same session and keeps its last recall.

    Where the id is taken by a record of another session or generation, the upsert fails with a duplicate key.

    Args:
        row: The record.
        generation: The session's generation; None for documents outside of any session.
        stamp: The record's number.
        step: The step of the write, by which the session's version changes.
    """
    query = record_filter(row.user_id, row.entry.session, row.entry.id)
    first = {"_id": key_of(row.user_id, row.entry.id)}
    change: dict[str, Any] = {"$set": _fields_of(row, stamp, step), "$setOnInsert": first}
    if generation is None:
        first["generation"] = ""
    else:
        query["generation"] = {"$eq": generation}
    return UpdateOne(query, change, upsert=True, hint=BY_ID)


def insert(row: NewRecord, generation: str, stamp: int, step: int) -> UpdateOne:
    """Build the insert of a record, which changes nothing if its id exists in the session's generation."""
    query = {**record_filter(row.user_id, row.entry.session, row.entry.id), "generation": {"$eq": generation}}
    fields = _fields_of(row, stamp, step, _id=key_of(row.user_id, row.entry.id))
    return UpdateOne(query, {"$setOnInsert": fields}, upsert=True, hint=BY_ID)


def exchange(
    user_id: str, place: tuple[str, str], name: str, digest: str, new: tuple[NewRecord, int, int] | None
) -> UpdateOne:
    """Build the update that replaces a record iff its text still has this digest (compare-and-set); it inserts nothing.

    Args:
        user_id: The user.
        place: Session id and generation.
        name: The record's id.
        digest: The digest of the text that the record should have.
        new: The new record, its number and the step of the write; None only checks that the record is unchanged.
    """
    query = {**record_filter(user_id, place[0], name), "generation": {"$eq": place[1]}}
    if new is None:
        return UpdateOne({**query, "digest": {"$eq": digest}}, {"$set": {"digest": digest}}, hint=BY_ID)
    # Match its own number as well: after an unknown outcome the update is sent again, and must match what it wrote.
    query["$or"] = [{"digest": {"$eq": digest}}, {"stamp": {"$eq": Int64(new[1])}}]
    return UpdateOne(query, {"$set": _fields_of(*new)}, hint=BY_ID)


def record_filter(user_id: str, session_id: str, name: str) -> dict[str, Any]:
    """Build a filter on one record of a session."""
    return {"user_id": {"$eq": user_id}, "session_id": {"$eq": session_id}, **with_ids(user_id, [name])}


def _fields_of(row: NewRecord, stamp: int, step: int, **more: Any) -> RawBSONDocument:
    """Encode the fields of a record, except for user and session, which the filter of the upsert adds.

    It is encoded here, once, so that its size is known before anything is sent.

    Raises:
        MessageTooLargeError: It would not fit into a document of 16 MB.
    """
    entry = row.entry
    fields = {
        "round_id": entry.round_id,
        "position": entry.position,
        "created_at": entry.at,
        "text": row.text,
        "said": [{"role": role, "name": name, "words": words} for role, name, words in row.said],
        "metadata": row.metadata,
        "messages": list(entry.messages),
        "epoch": entry.epoch,
        "importance": entry.importance,
        "expires_at": entry.expires_at,
        "digest": row.digest,
        "stems_version": STEMS_VERSION,
        "stamp": Int64(stamp),
        "step": Int64(step),
        "vector": None if row.vector is None else Binary(FLOAT32 + row.vector, VECTOR_SUBTYPE),
        "v": FORMAT_VERSION,
        **more,
    }
    raw = encode(fields)
    if len(raw) > MAX_DOCUMENT:
        msg = f"record {entry.id!r:.80} is larger than one MongoDB document may be (16 MB). Nothing was stored."
        raise MessageTooLargeError(msg)
    return RawBSONDocument(raw)


def random_increment() -> int:
    """Draw the step, below 0, by which a session's version changes: random, so that no two sets of steps sum alike."""
    # Not from `random`: an app may give it the same seed in all of its processes.
    return -1 - secrets.randbits(STEP_BITS)


def bump_version(
    user_id: str, step: int, place: tuple[str, str] | None, last: Mapping[str, Any] | None = None
) -> UpdateOne:
    """Build the update that bumps a session's version; send it after the change, or last in the same bulk write.

    It matches only while the session has this generation, so its result also tells whether the session still exists.

    Args:
        user_id: The user.
        step: A step from `random_increment`.
        place: Session id and generation. None for documents outside of any session, whose version is kept in a document
            with an empty session id.
        last: The description of the newest of the written records, from `last_of`. None: the session's last record has
            to be read before the next write.
    """
    if place is None:
        return UpdateOne(session_filter(user_id, ""), {"$inc": {"stamp": Int64(step)}}, upsert=True, hint=BY_ID)
    if last is None:
        return UpdateOne(_alive(user_id, place), {"$inc": {"stamp": Int64(step)}, **MATTERS}, hint=BY_ID)
    # Decided on the server: a writer of older records, or a concurrent one, must not overwrite the description of a
    # newer last record.
    newer = {"$gte": [last["position"], "$last.position"]}
    told = {"$cond": [newer, {"$literal": last}, "$last"]}
    change = {"stamp": {"$add": ["$stamp", Int64(step)]}, "last": told}
    return UpdateOne(_alive(user_id, place), [{"$set": change}], hint=BY_ID)


def append_if_unchanged(
    user_id: str, step: int, place: tuple[str, str], last: Mapping[str, Any], stamp: int
) -> UpdateOne:
    """Build the update that completes an append iff the session's version is unchanged (compare-and-set).

    Args:
        user_id: The user.
        step: A step from `random_increment`.
        place: Session id and generation.
        last: The description of the newest appended record, which becomes the session's `last`.
        stamp: The session's version as the turn read it.
    """
    # Besides an unchanged version, no other writer may have announced a write, which sets `last.waits` (see
    # `if_generation`). So `waits` must still be False; only if the appended record itself waits, our own `if_unchanged`
    # has just set it.
    here = {**_alive(user_id, place), "stamp": {"$eq": Int64(stamp)}, "last.waits": {"$eq": last["waits"]}}
    here["last.position"] = {"$lt": last["position"]}
    return UpdateOne(here, {"$inc": {"stamp": Int64(step)}, "$set": {"last": last}}, hint=BY_ID)


def if_generation(user_id: str, place: tuple[str, str]) -> UpdateOne:
    """Build the update that checks the session's generation and announces a write.

    From then on the session's last record has to be read before the next write, and appends by compare-and-set fail.
    """
    return UpdateOne(_alive(user_id, place), MATTERS, hint=BY_ID)


def if_unchanged(user_id: str, place: tuple[str, str], stamp: int) -> UpdateOne:
    """Build the same announcement, which matches iff the version is unchanged and no other write was announced."""
    here = {**_alive(user_id, place), "stamp": {"$eq": Int64(stamp)}, "last.waits": {"$eq": False}}
    return UpdateOne(here, MATTERS, hint=BY_ID)


def _alive(user_id: str, place: tuple[str, str]) -> dict[str, Any]:
    return {**session_filter(user_id, place[0]), "generation": {"$eq": place[1]}}


def last_of(rows: Sequence[NewRecord]) -> dict[str, Any] | None:
    """Describe the newest of these records for the session's `last`; None if there are none.

    `waits` is True where a later save may have to go on with the record: its round is open, or ends with a question.
    """
    row = max(rows, key=lambda row: row.entry.position, default=None)
    if row is None:
        return None
    waits = bool(row.metadata.get("open")) or bool(row.entry.said and row.entry.said[-1].role == "human")
    messages = [message for message in row.entry.messages if message]
    return {"position": Int64(row.entry.position), "waits": waits, "digest": row.digest, "messages": messages}


def must_read_last(last: Any, digests: Sequence[str], messages: Collection[str] | None) -> bool:
    """Return whether a session's last record has to be read before the next write.

    Args:
        last: The stored description of the last record, from `last_of`.
        digests: Digests of the texts to be written.
        messages: Ids of the messages to be written; None if they may continue the last record.
    """
    if messages is None or not isinstance(last, Mapping) or last.get("waits") is not False:
        return True
    return last["digest"] in digests or not set(messages).isdisjoint(last["messages"])


def probe_document(probe: bytes) -> dict[str, Any]:
    """Build the document that keeps the probe of the embedding model: its vector of a fixed text."""
    return {"_id": PROBE_ID, "user_id": "", "session_id": "", "probe": Binary(FLOAT32 + probe, VECTOR_SUBTYPE)}


def cells_of(document: Mapping[str, Any]) -> IndexRow:
    """Convert a document to the columns that ranking needs; a damaged one has None for its facts."""
    try:
        facts: Any = [
            record_id_of(document["_id"]),
            document["session_id"],
            document["round_id"],
            _whole(document["position"]),
            document["created_at"],
            document["importance"],
            _whole(document["epoch"]),
            document["expires_at"],
            [(part["role"], part["name"], part["words"]) for part in document["said"]],
            document["messages"],
        ]
    except (KeyError, TypeError):
        facts = None
    get = document.get
    shown = get("text"), get("metadata"), get("digest")
    return IndexRow(
        int(document["stamp"]), facts, get("stems_version"), vector_of(document), *shown, get("v"), get("step")
    )


def stored_of(document: Mapping[str, Any]) -> DocumentRow:
    """Convert a document to the columns that showing it needs."""
    get = document.get
    vector = vector_of(document)
    place = (record_id_of(get("_id")), get("user_id"), get("session_id"))
    return DocumentRow(
        int(document["stamp"]), *place, get("expires_at"), get("text"), get("metadata"), vector, get("v")
    )


def vector_of(document: Mapping[str, Any]) -> bytes | None:
    """Return the vector of a document as bytes of 4-byte floats; None if it has none, empty if it is damaged."""
    found = document.get("vector")
    if found is None:
        return None
    return bytes(found)[2:] if isinstance(found, bytes) and found[:2] == FLOAT32 else b""


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, int) else number  # the driver's Int64 becomes a plain int


_known: set[Any] = set()


async def ensure_vector_indexes(
    clients: Clients, settings: CollectionRef, *, forced: bool = False, again: bool = False
) -> None:
    """Ensure that the collection has its indexes; the server is asked once per process, and when a session begins.

    Args:
        clients: The clients, which identify the server.
        settings: The collection's names and time limits.
        forced: Build missing indexes, however large the collection is.
        again: Ask the server even if this process has asked before.

    Raises:
        ConfigurationError: Indexes are missing, and the collection is too large to build them by surprise.
    """
    key = (clients.key, settings.names)
    if key in _known and not (forced or again):
        return
    existing = await Command(lambda c: c.index_information(), settings.timeout)
    present = {tuple(map(tuple, index["key"])) for index in existing.values()}
    missing = [model for model in index_models() if tuple(model.document["key"].items()) not in present]
    if missing and not forced:
        count = await Command(lambda c: c.estimated_document_count(), settings.timeout)
        if count > MAX_AUTO_INDEX:
            names = [model.document["name"] for model in missing]
            msg = (
                f"collection {'.'.join(settings.names)} holds {count:,} documents and lacks the indexes {names}. "
                "Building them takes a while, so it is not done by surprise: run MongoDBVectorStore(...).setup() once."
            )
            raise ConfigurationError(msg)
    if missing:
        await Command(lambda c: c.create_indexes(missing), None)
    _known.add(key)
