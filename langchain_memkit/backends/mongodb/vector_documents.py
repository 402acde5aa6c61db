"""What stands in a collection of vectors: documents, the one place where filters are built, and indexes. No I/O.

```
{_id: {id: "<id>", user_id}, user_id, session_id, round_id, position, text, said, metadata, ..., stamp, vector, v}
{_id: {user_id, session_id}, user_id, session_id, generation, stamp, last}    a session: without it its records are dead
{_id: {probe: 1}, user_id: "", session_id: "", probe}            what the embedding model makes of a fixed text
```

A record of nobody has its id alone as `_id`, and so have those that memkit 0.1.0 stored for users: these are found, and
replaced where they stand.

The stamp of a record is its number. That of a session is at most 0 and goes down by a random number with each change of
its records, after the change: so the sum over a user's sessions tells whether anything changed, and an index knows it.
Records keep this number as `step`: so who reads some that are new knows whether these are all that has changed.
`last` says of a session's last record whether it has to be read before the next one is written.
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

from langchain_memkit.backends._vectors.rows import Cells, Row, Stored
from langchain_memkit.backends._vectors.shelf import Since
from langchain_memkit.errors import MessageTooLargeError
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.scoring.words import STEMS_VERSION

MAX_DOCUMENT = 16 * 2**20 - 4096  # bytes: room for the ids, which are added on the server
VECTOR_SUBTYPE = 9
FLOAT32 = b"\x27\x00"  # what a binary vector of 4-byte floats begins with
CHANCE_BITS = 11
STEP_BITS = 32  # of the numbers by which a session's stamp changes: two thousand million of them fit into 64 bits
MATTERS = {"$set": {"last.waits": True}}
A_NUMBER = {"$lt": float("inf")}  # a condition on a position, which may be damaged
BY_ID = [("_id", ASCENDING)]  # told to the server, which would try every index that begins with the user
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
    """Return a filter on records: always with the user, always by equality, so that an id is never an operator.

    Args:
        user_id: Whose; an empty string is the unowned space.
        session_id: The conversation; None for all of the user's.
        **conditions: Further conditions, operators included; never a caller's own value.
    """
    query: dict[str, Any] = {"user_id": {"$eq": user_id}}
    if session_id is not None:
        query["session_id"] = {"$eq": session_id}
    return {**query, "stamp": {"$gt": 0}, **conditions}


def key_of(user_id: str, name: str) -> Any:
    """Return what a new record is stored under: an id is unique for its user."""
    return {"id": name, "user_id": user_id} if user_id else name


def name_of(key: Any) -> Any:
    """Return the id of a record, from what it is stored under."""
    return key["id"] if isinstance(key, Mapping) and "id" in key else key


def with_ids(user_id: str, ids: Sequence[str]) -> dict[str, Any]:
    """Return a filter on ids, which are strings; to go with one on the user."""
    return {"_id": {"$in": [*ids, *(key_of(user_id, name) for name in ids if user_id)]}}


def owned_filter(ids: Sequence[str]) -> dict[str, Any]:
    """Return a filter on records of users, whichever, with these ids."""
    # documents are compared field by field: these are all that begin with the id, and the index knows them
    ranges = [{"_id": {"$gt": {"id": name}, "$lt": {"id": name, "user_id": MaxKey()}}} for name in ids]
    return {"$or": [{"_id": {"$in": list(ids)}, "user_id": {"$gt": ""}}, *ranges]}


def session_filter(user_id: str, session_id: str) -> dict[str, Any]:
    """Return a filter on the document of a session."""
    return {
        "user_id": {"$eq": user_id},
        "session_id": {"$eq": session_id},
        "_id": {"$eq": {"user_id": user_id, "session_id": session_id}},
    }


def news_pipeline(collection: str, user_id: str, session_id: str | None, since: Since | None) -> list[dict[str, Any]]:
    """Return what gives a session, the sum of the stamps of all of the user's, and records that were added, in this order."""
    whole = [{"$match": not_records(user_id)}, {"$group": {"_id": None, "total": {"$sum": "$stamp"}}}]
    parts: list[list[dict[str, Any]]] = [whole]
    if session_id is not None:  # before the sum: what is stored in between is then among what is new
        parts.insert(0, [{"$match": session_filter(user_id, session_id)}, {"$project": ON_SESSION}])
    if since is not None:
        # ours may be higher than some that others wrote meanwhile
        stamps = {"$gt": since.stamp, "$nin": [Int64(stamp) for stamp in since.own]}
        parts.append([{"$match": records_filter(user_id, stamp=stamps)}, {"$project": ON_CELLS}])
    first, *others = parts
    return [*first, *({"$unionWith": {"coll": collection, "pipeline": part}} for part in others)]


def not_records(user_id: str) -> dict[str, Any]:
    """Return a filter on the documents of a user's sessions."""
    return {"user_id": {"$eq": user_id}, "stamp": {"$lte": 0}}


def begin_filter(user_id: str, session_id: str, digests: Sequence[str], ids: Sequence[str]) -> dict[str, Any]:
    """Return a filter on a session's document, on records with these ids, and on those with texts of these digests."""
    owned = {"user_id": {"$eq": user_id}}
    named = {
        **owned,
        "_id": {"$in": [{"user_id": user_id, "session_id": session_id}, *with_ids(user_id, ids)["_id"]["$in"]]},
    }
    if not digests:
        return named
    return {"$or": [named, {**owned, "digest": {"$in": list(digests)}, "vector": {"$ne": None}}]}


def is_session(document: Mapping[str, Any]) -> bool:
    """Return whether this is the document of a session."""
    return isinstance(document["_id"], Mapping) and "session_id" in document["_id"]


def live(now: datetime) -> dict[str, Any]:
    """Return a condition on what has not expired: the server removes it a minute later."""
    return {"$not": {"$lte": now}}


def index_models() -> list[IndexModel]:
    """Return every index of a collection: number and stamps of a user's records, shard key, texts, recalls, expiry."""

    def model(name: str, *fields: str, **options: Any) -> IndexModel:
        return IndexModel([(field, ASCENDING) for field in fields], name=f"memkit_{name}", **options)

    return [
        model("stamps", "user_id", "stamp"),
        model("sessions", "user_id", "session_id", "position"),
        model("digests", "user_id", "digest"),
        model("accesses", "user_id", "accessed_at", "created_at"),
        model("ttl", "expires_at", expireAfterSeconds=0),
    ]


def draw_stamps(count: int) -> list[int]:
    """Numbers of rows: in the order of writing as far as clocks agree, and unique by chance."""
    micros = time.time_ns() // 1000
    return [(micros + i << CHANCE_BITS) + random.getrandbits(CHANCE_BITS) for i in range(count)]


def upsert(row: Row, generation: str | None, stamp: int, step: int) -> UpdateOne:
    """Return what stores a row in place of the one with its id, if that one is of the same session; its recalls stay.

    Args:
        row: The row.
        generation: Of its session: a row of another generation is not replaced. None for plain documents.
        stamp: The row's number.
        step: Of the write.
    """
    query = record_filter(row.user_id, row.entry.session, row.entry.id)
    first = {"_id": key_of(row.user_id, row.entry.id)}
    change: dict[str, Any] = {"$set": _fields_of(row, stamp, step), "$setOnInsert": first}
    if generation is None:
        first["generation"] = ""
    else:
        query["generation"] = {"$eq": generation}
    return UpdateOne(query, change, upsert=True, hint=BY_ID)


def insert(row: Row, generation: str, stamp: int, step: int) -> UpdateOne:
    """Return what stores a row, if there is none with its id."""
    query = {**record_filter(row.user_id, row.entry.session, row.entry.id), "generation": {"$eq": generation}}
    fields = _fields_of(row, stamp, step, _id=key_of(row.user_id, row.entry.id))
    return UpdateOne(query, {"$setOnInsert": fields}, upsert=True, hint=BY_ID)


def exchange(
    user_id: str, place: tuple[str, str], name: str, digest: str, new: tuple[Row, int, int] | None
) -> UpdateOne:
    """Return what replaces a record, if its text is still the one with this digest; nothing is added.

    Args:
        user_id: Whose.
        place: Session and generation.
        name: The record's id.
        digest: Of the text that it should have.
        new: The new row, its number and the step of the write; None to look only.
    """
    query = {**record_filter(user_id, place[0], name), "generation": {"$eq": place[1]}}
    if new is None:
        return UpdateOne({**query, "digest": {"$eq": digest}}, {"$set": {"digest": digest}}, hint=BY_ID)
    # its own number: so that it may be sent again
    query["$or"] = [{"digest": {"$eq": digest}}, {"stamp": {"$eq": Int64(new[1])}}]
    return UpdateOne(query, {"$set": _fields_of(*new)}, hint=BY_ID)


def record_filter(user_id: str, session_id: str, name: str) -> dict[str, Any]:
    """Return a filter on one record of a session."""
    return {"user_id": {"$eq": user_id}, "session_id": {"$eq": session_id}, **with_ids(user_id, [name])}


def _fields_of(row: Row, stamp: int, step: int, **more: Any) -> RawBSONDocument:
    """Return all that is stored of a row, but whose it is; encoded once, to see how large it is."""
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


def draw_step() -> int:
    """By how much the stamp of a session changes: by chance, so that no two sets of changes have the same sum."""
    return -1 - secrets.randbits(STEP_BITS)  # whatever seed an app gives to `random` in all of its processes


def stir(user_id: str, step: int, place: tuple[str, str] | None, last: Mapping[str, Any] | None = None) -> UpdateOne:
    """Return what tells that records were changed; sent after the change, or as the last of the same command.

    Args:
        user_id: Whose.
        step: Of `draw_step`.
        place: Session and generation: it matches if there is this one. None for plain documents, which have a document
            of no session.
        last: Of the last one of the records, as `last_of` says it; None: the session's last one has to be read.
    """
    if place is None:
        return UpdateOne(session_filter(user_id, ""), {"$inc": {"stamp": Int64(step)}}, upsert=True, hint=BY_ID)
    if last is None:
        return UpdateOne(_alive(user_id, place), {"$inc": {"stamp": Int64(step)}, **MATTERS}, hint=BY_ID)
    # whoever stores older records, or at the same time, leaves what is said of the last one
    newer = {"$gte": [last["position"], "$last.position"]}
    told = {"$cond": [newer, {"$literal": last}, "$last"]}
    change = {"stamp": {"$add": ["$stamp", Int64(step)]}, "last": told}
    return UpdateOne(_alive(user_id, place), [{"$set": change}], hint=BY_ID)


def take_turn(user_id: str, step: int, place: tuple[str, str], last: Mapping[str, Any], stamp: int) -> UpdateOne:
    """Return the same for newer records than all others, if nobody has changed anything since the session had this stamp.

    Nor looked at it, as whoever is about to does: but for the `first_look` of those who send this.
    """
    here = {**_alive(user_id, place), "stamp": {"$eq": Int64(stamp)}, "last.waits": {"$eq": last["waits"]}}
    here["last.position"] = {"$lt": last["position"]}
    return UpdateOne(here, {"$inc": {"stamp": Int64(step)}, "$set": {"last": last}}, hint=BY_ID)


def look(user_id: str, place: tuple[str, str]) -> UpdateOne:
    """Return what matches if the session is the one of this generation; from now on its last record has to be read."""
    return UpdateOne(_alive(user_id, place), MATTERS, hint=BY_ID)


def first_look(user_id: str, place: tuple[str, str], stamp: int) -> UpdateOne:
    """Return the same, if nobody has looked or changed anything since the session had this stamp."""
    here = {**_alive(user_id, place), "stamp": {"$eq": Int64(stamp)}, "last.waits": {"$eq": False}}
    return UpdateOne(here, MATTERS, hint=BY_ID)


def _alive(user_id: str, place: tuple[str, str]) -> dict[str, Any]:
    return {**session_filter(user_id, place[0]), "generation": {"$eq": place[1]}}


def last_of(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return what there is to know of the last one of these records."""
    row = max(rows, key=lambda row: row.entry.position, default=None)
    if row is None:
        return None
    waits = bool(row.metadata.get("open")) or bool(row.entry.said and row.entry.said[-1].role == "human")
    messages = [message for message in row.entry.messages if message]
    return {"position": Int64(row.entry.position), "waits": waits, "digest": row.digest, "messages": messages}


def matters(last: Any, digests: Sequence[str], messages: Collection[str] | None) -> bool:
    """Return whether a session's last record has to be read.

    Args:
        last: As `last_of` said it.
        digests: Of the texts that are to be written.
        messages: Ids of the messages that are to be written; None if they may go on with it.
    """
    if messages is None or not isinstance(last, Mapping) or last.get("waits") is not False:
        return True
    return last["digest"] in digests or not set(messages).isdisjoint(last["messages"])


def probe_document(probe: bytes) -> dict[str, Any]:
    """Return what is kept of the embedding model."""
    return {"_id": PROBE_ID, "user_id": "", "session_id": "", "probe": Binary(FLOAT32 + probe, VECTOR_SUBTYPE)}


def cells_of(document: Mapping[str, Any]) -> Cells:
    """Return a document as it is ranked."""
    try:
        facts: Any = [
            name_of(document["_id"]),
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
    return Cells(
        int(document["stamp"]), facts, get("stems_version"), vector_of(document), *shown, get("v"), get("step")
    )


def stored_of(document: Mapping[str, Any]) -> Stored:
    """Return a document as it is shown."""
    get = document.get
    vector = vector_of(document)
    place = (name_of(get("_id")), get("user_id"), get("session_id"))
    return Stored(int(document["stamp"]), *place, get("expires_at"), get("text"), get("metadata"), vector, get("v"))


def vector_of(document: Mapping[str, Any]) -> bytes | None:
    """Return the floats of a document; nothing that could be a vector if it is damaged."""
    found = document.get("vector")
    if found is None:
        return None
    return bytes(found)[2:] if isinstance(found, bytes) and found[:2] == FLOAT32 else b""


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, int) else number  # the driver has an int class of its own
