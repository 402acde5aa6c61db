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
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bson import Binary, Int64, encode
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, IndexModel, UpdateOne
from pymongo.operations import SearchIndexModel

from langchain_memkit.backends.mongodb.clients import BsonDict, scope_filter
from langchain_memkit.errors import MessageTooLargeError
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.ranking.tokenize import STEMS_VERSION
from langchain_memkit.stores.vector_rows import DocumentRow, IndexRow, NewRecord

MAX_DOCUMENT = 16 * 2**20 - 4096  # bytes: room for the ids, which are added on the server
VECTOR_SUBTYPE = 9
FLOAT32 = b"\x27\x00"  # header of a binary vector of 4-byte floats
CHANCE_BITS = 11
STEP_BITS = 32  # of the random step of a session's version: two thousand million of them fit into 64 bits
BY_ID = [("_id", ASCENDING)]  # an index hint: without it the planner tries every index that begins with the user
PROBE_ID = {"probe": 1}
SEARCH_INDEX = "memkit_near"  # of `$vectorSearch`
CANDIDATES = 10  # that the server compares for each result
MOST_CANDIDATES = 10_000  # that the server accepts
SCORE = "memkit_score"
ON_CELLS = dict.fromkeys(
    (
        "_id", "session_id", "round_id", "position", "created_at", "importance", "epoch", "expires_at", "said",
        "messages", "vector", "text", "metadata", "digest", "v", "step", "stamp", "generation", "stems_version",
    ),
    1,
)  # fmt: skip
ON_SESSION = {"generation": 1, "stamp": 1, "last.waits": 1}
ON_DEAD = dict.fromkeys(("_id", "session_id", "stamp", "generation"), 1)
ON_TEXTS = {**ON_DEAD, **dict.fromkeys(("user_id", "position", "expires_at", "text", "metadata", "v"), 1)}
ON_STORED = {**ON_TEXTS, "vector": 1}
ON_BEGIN = {**ON_STORED, "digest": 1, "last": 1}


def records_filter(user_id: str, session_id: str | None = None, **conditions: object) -> BsonDict:
    """Build a filter on records of a user; conditions may hold operators, but never a caller's own value."""
    return {**scope_filter(user_id, session_id), "stamp": {"$gt": 0}, **conditions}


def key_of(user_id: str, name: str) -> object:
    """Return the `_id` of a new record: ids are unique per user."""
    return {"id": name, "user_id": user_id} if user_id else name


def record_id_of(key: Any) -> Any:
    """Return the id of a record, given its `_id`."""
    return key["id"] if isinstance(key, Mapping) and "id" in key else key


def with_ids(user_id: str, ids: Sequence[str]) -> BsonDict:
    """Build a filter on record ids, to be combined with one on the user; it matches either form of `_id`."""
    return {"_id": {"$in": [*ids, *(key_of(user_id, name) for name in ids if user_id)]}}


def session_filter(user_id: str, session_id: str) -> BsonDict:
    """Build a filter on the document of a session."""
    return {**scope_filter(user_id, session_id), "_id": {"$eq": {"user_id": user_id, "session_id": session_id}}}


def not_records(user_id: str) -> BsonDict:
    """Build a filter on the session documents of a user."""
    return {**scope_filter(user_id), "stamp": {"$lte": 0}}


def begin_filter(user_id: str, session_id: str, digests: Sequence[str], ids: Sequence[str]) -> BsonDict:
    """Build a filter on a session's document, records with these ids, and records whose text has these digests."""
    owned = scope_filter(user_id)
    keys = [{"user_id": user_id, "session_id": session_id}, *with_ids(user_id, ids)["_id"]["$in"]]
    named = {**owned, "_id": {"$in": keys}}
    if not digests:
        return named
    return {"$or": [named, {**owned, "digest": {"$in": list(digests)}, "vector": {"$ne": None}}]}


def is_session(document: Mapping[str, Any]) -> bool:
    """Return whether a document is that of a session."""
    return isinstance(document["_id"], Mapping) and "session_id" in document["_id"]


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


class SessionWrite(NamedTuple):
    """Builder of the updates of one write, each of which changes the session's version by the same `step`.

    Without a `generation` it writes documents outside of any session, whose version is kept in a document with an empty
    session id.
    """

    user_id: str
    session_id: str
    generation: str | None
    step: int

    @property
    def _session(self) -> BsonDict:
        return {**session_filter(self.user_id, self.session_id), "generation": {"$eq": self.generation}}

    def upsert(self, row: NewRecord, stamp: int) -> UpdateOne:
        """Replace the record with this id in the same session, keeping its last recall, or insert it with this number.

        Where the id is taken by a record of another session or generation, it fails with a duplicate key.
        """
        first = {"_id": key_of(row.user_id, row.entry.id), **({"generation": ""} if self.generation is None else {})}
        change = {"$set": _fields_of(row, stamp, self.step), "$setOnInsert": first}
        return UpdateOne(self._record(row.entry.session, row.entry.id), change, upsert=True, hint=BY_ID)

    def insert(self, row: NewRecord, stamp: int) -> UpdateOne:
        """Insert a record, or change nothing if its id exists in the session's generation."""
        change = {"$setOnInsert": _fields_of(row, stamp, self.step, _id=key_of(row.user_id, row.entry.id))}
        return UpdateOne(self._record(row.entry.session, row.entry.id), change, upsert=True, hint=BY_ID)

    def _record(self, session_id: str, name: str) -> BsonDict:
        here = {} if self.generation is None else {"generation": {"$eq": self.generation}}
        return {**scope_filter(self.user_id, session_id), **with_ids(self.user_id, [name]), **here}

    def exchange(self, name: str, digest: str, new: tuple[NewRecord, int] | None) -> UpdateOne:
        """Replace a record iff its text still has this digest (compare-and-set), or only check that; insert nothing."""
        query = self._record(self.session_id, name)
        if new is None:
            return UpdateOne({**query, "digest": {"$eq": digest}}, {"$set": {"digest": digest}}, hint=BY_ID)
        # Match its own number as well: after an unknown outcome the update is sent again, and must match what it wrote.
        query["$or"] = [{"digest": {"$eq": digest}}, {"stamp": {"$eq": Int64(new[1])}}]
        return UpdateOne(query, {"$set": _fields_of(*new, self.step)}, hint=BY_ID)

    def bump_version(self, last: Mapping[str, Any] | None = None) -> UpdateOne:
        """Bump the session's version, after the change or last in the same bulk write; it matches a live session only.

        `last` describes the newest of the written records; without it the last record has to be read before the next
        write.
        """
        step = {"$inc": {"stamp": Int64(self.step)}}
        if self.generation is None:
            return UpdateOne(session_filter(self.user_id, ""), step, upsert=True, hint=BY_ID)
        if last is None:
            return UpdateOne(self._session, {**step, "$set": {"last.waits": True}}, hint=BY_ID)
        # Decided on the server: a writer of older records, or a concurrent one, must not overwrite the description of a
        # newer last record.
        told = {"$cond": [{"$gte": [last["position"], "$last.position"]}, {"$literal": last}, "$last"]}
        change = {"stamp": {"$add": ["$stamp", Int64(self.step)]}, "last": told}
        return UpdateOne(self._session, [{"$set": change}], hint=BY_ID)

    def append_if_unchanged(self, last: Mapping[str, Any], stamp: int) -> UpdateOne:
        """Complete an append iff the session's version is still `stamp`; `last` describes the newest record."""
        # Besides an unchanged version, no other writer may have announced a write, which sets `last.waits` (see
        # `announce`). So `waits` must still be False; only if the appended record itself waits, our own announcement
        # has just set it.
        here = {**self._session, "stamp": {"$eq": Int64(stamp)}, "last.waits": {"$eq": last["waits"]}}
        here["last.position"] = {"$lt": last["position"]}
        return UpdateOne(here, {"$inc": {"stamp": Int64(self.step)}, "$set": {"last": last}}, hint=BY_ID)

    def announce(self, stamp: int | None = None) -> UpdateOne:
        """Check the session's generation, or with a version that it is unchanged, and announce a write.

        From then on the session's last record has to be read before the next write, and `append_if_unchanged` fails.
        """
        here = {"stamp": {"$eq": Int64(stamp)}, "last.waits": {"$eq": False}} if stamp is not None else {}
        return UpdateOne({**self._session, **here}, {"$set": {"last.waits": True}}, hint=BY_ID)


def _fields_of(row: NewRecord, stamp: int, step: int, **more: object) -> RawBSONDocument:
    """Encode the fields of a record, without those that the filter of the upsert adds, and check its size."""
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
        "vector": None if row.vector is None else binary(row.vector),
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


def last_of(rows: Sequence[NewRecord]) -> BsonDict | None:
    """Describe the newest of these records for the session's `last`; None if there are none.

    `waits` is True where a later save may have to go on with the record: its round is open, or ends with a question.
    """
    row = max(rows, key=lambda row: row.entry.position, default=None)
    if row is None:
        return None
    waits = bool(row.metadata.get("open")) or bool(row.entry.said and row.entry.said[-1].role == "human")
    messages = [message for message in row.entry.messages if message]
    return {"position": Int64(row.entry.position), "waits": waits, "digest": row.digest, "messages": messages}


def binary(vector: bytes) -> Binary:
    """Return a vector as it is stored, given its 4-byte floats."""
    return Binary(FLOAT32 + vector, VECTOR_SUBTYPE)


def cells_of(document: Mapping[str, Any]) -> IndexRow:
    """Convert a document to the columns that ranking needs; a damaged one has None for its facts."""
    try:
        facts: Any = [
            record_id_of(document["_id"]), document["session_id"], document["round_id"], _whole(document["position"]),
            document["created_at"], document["importance"], _whole(document["epoch"]), document["expires_at"],
            [(part["role"], part["name"], part["words"]) for part in document["said"]], document["messages"],
        ]  # fmt: skip
    except (KeyError, TypeError):
        facts = None
    others = map(document.get, ("text", "metadata", "digest", "v", "stems_version", "step"))
    return IndexRow(int(document["stamp"]), facts, vector_of(document), *others)


def stored_of(document: Mapping[str, Any]) -> DocumentRow:
    """Convert a document to the columns that showing it needs."""
    get = document.get
    place, shown = (get("user_id"), get("session_id"), get("expires_at")), (get("text"), get("metadata"))
    return DocumentRow(int(document["stamp"]), record_id_of(get("_id")), *place, *shown, vector_of(document), get("v"))


def vector_of(document: Mapping[str, Any]) -> bytes | None:
    """Return the vector of a document as bytes of 4-byte floats; None if it has none, empty if it is damaged."""
    found = document.get("vector")
    if found is None:
        return None
    return bytes(found)[2:] if isinstance(found, bytes) and found[:2] == FLOAT32 else b""


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, int) else number  # the driver's Int64 becomes a plain int


def search_index_model(dims: int) -> SearchIndexModel:
    """Define the search index on vectors of so many dimensions, with user and session as filters."""
    vector = {"type": "vector", "path": "vector", "numDimensions": dims, "similarity": "cosine"}
    filters = [{"type": "filter", "path": path} for path in ("user_id", "session_id")]
    return SearchIndexModel({"fields": [vector, *filters]}, SEARCH_INDEX, "vectorSearch")


def search_pipeline(user_id: str, session_id: str | None, vector: Sequence[float], k: int) -> list[BsonDict]:
    """Build the search for the `k` records with the nearest vectors; the user is a filter inside the search."""
    search = {
        "index": SEARCH_INDEX,
        "path": "vector",
        "queryVector": list(vector),
        "numCandidates": min(k * CANDIDATES, MOST_CANDIDATES),
        "limit": min(k, MOST_CANDIDATES),
        "filter": scope_filter(user_id, session_id),
    }
    return [{"$vectorSearch": search}, {"$project": {**ON_STORED, SCORE: {"$meta": "vectorSearchScore"}}}]
