"""Inspect a server, the collections of a database and their indexes, without changing them; build missing indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pymongo
from pymongo import IndexModel, MongoClient
from pymongo.collection import Collection
from pymongo.errors import PyMongoError

from langchain_memkit.backends.mongodb import documents
from langchain_memkit.backends.mongodb.clients import BsonDict, Clients, scope_filter
from langchain_memkit.backends.mongodb.commands import CODEC, missing_indexes, text_of
from langchain_memkit.backends.mongodb.failures import driver_errors
from langchain_memkit.backends.mongodb.key_value import between
from langchain_memkit.backends.mongodb.layouts import qa_index_models
from langchain_memkit.base import user_prefix
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from langchain_memkit.stores.key_value import range_of
from langchain_memkit.stores.old_records import OldRecord

SAMPLE = 20  # documents read from either end of a collection
BY_FIELDS = {
    "turns": {"seq", "epoch", "op", "session_id"},
    "qa": {"question", "chatId"},
    "vectors": {"stamp", "user_id", "session_id"},
    "langgraph": {"thread_id", "checkpoint_ns", "checkpoint"},
}
BY_INDEX = {"memkit_seq": "turns", "memkit_qa": "qa", "memkit_stamps": "vectors"}  # of versions 0.1 and 0.2
FIRST_SECONDS = 5.0  # for a first read, so that a dead server fails soon
SECONDS = 60.0  # for the reads that follow

Older: TypeAlias = Callable[[str], Iterator[tuple[object, object, list[tuple[object, object]]] | None]]
"""Reads the checkpoints before one: type, checkpoint, and type and value of each write to a channel that followed."""


class CollectionFacts(NamedTuple):
    """The findings on a collection. Kinds are turns, langchain-mongodb, qa, vectors, key_value and langgraph."""

    kinds: frozenset[str]
    size: int
    missing: list[IndexModel]


def describe_server(uri: str) -> str:
    """Ask a server for its version and topology."""
    with _server(uri) as client:
        hello = client.admin.command("hello")
        version = client.server_info()["version"]
    if "setName" in hello:
        return f"MongoDB {version}, replica set of {len([*hello.get('hosts', ()), *hello.get('passives', ())])}"
    return f"MongoDB {version}, {'sharded cluster' if hello.get('msg') == 'isdbgrid' else 'standalone'}"


def inspect_database(
    uri: str, database: str, keys: tuple[str, str], user_id_key: str = "userId", *, user_id: str | None = None
) -> dict[str, CollectionFacts]:
    """Inspect the collections of a database: the kinds of data that each seems to hold, and the indexes these need.

    The kinds are found by its indexes and by some documents from either end, so a kind in between may be missed, except
    for the key-values of the user if one is given. `keys` are `session_id_key` and `history_key` of langchain-mongodb.
    """
    found: dict[str, CollectionFacts] = {}
    with _server(uri) as client:
        for name in sorted(client[database].list_collection_names(filter={"type": "collection"})):
            if not name.startswith("system."):
                collection = client[database][name]
                present = dict(collection.index_information())
                kinds = _kinds(collection, keys, present, user_id)
                wanted = documents.index_models(keys[0], {}) if kinds & {"turns", "langchain-mongodb"} else []
                wanted += qa_index_models(user_id_key, None) if "qa" in kinds else []
                size = collection.estimated_document_count()
                found[name] = CollectionFacts(kinds, size, missing_indexes(wanted, present))
    return found


def build_indexes(uri: str, database: str, name: str, models: list[IndexModel]) -> None:
    """Build indexes, however long that takes."""
    doing = f"build the indexes of {database}.{name} (drop another one that has the same name first) on"
    with _server(uri, doing, None, HistoryWriteError) as client:
        client[database][name].create_indexes(models)


def old_records(uri: str, database: str, name: str) -> Generator[OldRecord, None, None]:
    """Yield the records that vector memories of version 0.1 and 0.2 kept in a collection, session by session, in order.

    A session has a document with its generation; records of another one were left over from before a clear.
    """
    with _server(uri, f"read {database}.{name} from", None) as client:
        collection = client[database].get_collection(name, CODEC)
        if not collection.find_one({"stamp": {"$exists": True}}, {"_id": 1}):
            raise ConfigurationError(f"{database}.{name} holds no records of a vector memory")
        sessions = collection.find({"stamp": {"$lte": 0}, "generation": {"$exists": True}})
        alive = {(found["user_id"], found["session_id"]): found["generation"] for found in sessions}
        order = {"user_id": 1, "session_id": 1, "position": 1}
        with pymongo.timeout(SECONDS):
            records = collection.find({"stamp": {"$gt": 0}}).sort(order).allow_disk_use(True)
        for found in records:
            place = (found.get("user_id", ""), found.get("session_id", ""))
            if not place[1] or found.get("generation") == alive.get(place, ""):
                dates = (found.get("created_at"), found.get("expires_at"))
                yield OldRecord(*place, found.get("round_id", ""), *dates, found.get("text"), found.get("metadata"))


def drop_old_records(uri: str, database: str, name: str, user_id: str, session_id: str) -> None:
    """Delete the records of a session, and what tells of it."""
    with _server(uri, f"delete in {database}.{name} on", None, HistoryWriteError) as client:
        client[database][name].delete_many({**scope_filter(user_id, session_id), "stamp": {"$exists": True}})


class OldVectors:
    """A collection of such records, in which a user can be purged; a user's sessions go with them."""

    def __init__(self, uri: str, database: str, name: str) -> None:
        self._names = (uri, database, name)

    def count(self, user_id: str) -> int:
        """Return the number of a user's records."""
        uri, database, name = self._names
        with _server(uri) as client:
            return client[database][name].count_documents({**scope_filter(user_id), "stamp": {"$gt": 0}})

    def purge(self, user_id: str) -> dict[str, int]:
        """Delete the records of a user."""
        uri, database, name = self._names
        with _server(uri, f"delete in {database}.{name} on", None, HistoryWriteError) as client:
            collection = client[database][name]
            # Sessions first, since a record without its session is never read.
            collection.delete_many({**scope_filter(user_id), "stamp": {"$lte": 0}})
            found = collection.delete_many({**scope_filter(user_id), "stamp": {"$gt": 0}})
        return {"vectors": found.deleted_count}

    async def apurge(self, user_id: str) -> dict[str, int]:
        """Run `purge` in a worker thread."""
        return await asyncio.to_thread(self.purge, user_id)


def count_sessions_without_text(uri: str, database: str, name: str, keys: tuple[str, str]) -> int:
    """Count the sessions of langchain-mongodb's rows whose ids are numbers or ObjectIds."""
    match = documents.legacy_sessions_filter(*keys, documents.NO_TEXT)
    counted: list[BsonDict] = [{"$match": match}, {"$group": {"_id": f"${keys[0]}"}}, {"$count": "n"}]
    with _server(uri) as client:
        return sum(found["n"] for found in client[database][name].aggregate(counted))


@contextmanager
def _server(
    uri: str, doing: str = "read from", seconds: float | None = FIRST_SECONDS, kind: type[Exception] = HistoryReadError
) -> Iterator[MongoClient[BsonDict]]:
    """Lend a client, for some seconds or (None) as long as it takes; raise the driver's errors as memkit's."""
    clients = Clients(uri, None, None)
    clients.hold()
    try:
        # Without a limit no context of the driver is entered: it would go on in the caller of a generator.
        with driver_errors(), pymongo.timeout(seconds) if seconds else nullcontext():
            client = clients.sync()
            with pymongo.timeout(FIRST_SECONDS):
                # A command that the driver does not retry, so that a wrong password is reported at once.
                client.admin.command("ping")
            yield client
    except PyMongoError as error:
        limit = f" within {seconds:g} s" if seconds else ""
        raise kind(f"cannot {doing} {clients.hosts}{limit}: {text_of(error)}") from error
    finally:
        clients.release()


def _kinds(collection: Collection[Any], keys: tuple[str, str], indexes: BsonDict, user: str | None) -> frozenset[str]:
    sample = [*collection.find().limit(SAMPLE), *collection.find().sort("_id", -1).limit(SAMPLE)]
    if user is not None:
        kept = {**between(range_of(user_prefix(user))), "value": {"$exists": True}, "v": {"$exists": True}}
        sample += collection.find(kept).limit(SAMPLE)
    kinds = {BY_INDEX[name] for name in indexes if name in BY_INDEX}
    fields_of = {**BY_FIELDS, "langchain-mongodb": {*keys}}
    for document in sample:
        if isinstance(document.get("_id"), str) and document.keys() == {"_id", "value", "v"}:
            kinds.add("key_value")
        else:
            kinds |= set([kind for kind, fields in fields_of.items() if fields <= document.keys()][:1])
    return frozenset(kinds)


def checkpoints_in(
    uri: str, database: str, collection: str, writes_collection: str
) -> Generator[tuple[object, object, object, object, Older], None, None]:
    """Yield thread id, type, checkpoint, metadata and `Older` of the latest checkpoint of each root namespace.

    The first collection has the checkpoints, the second one the writes of each step to the channels.
    """
    newest: list[BsonDict] = [
        {"$match": {"checkpoint_ns": ""}},
        {"$group": {"_id": "$thread_id", "newest": {"$max": "$checkpoint_id"}}},
        {"$sort": {"_id": 1}},
    ]
    with _server(uri, f"read {database}.{collection} from", None) as client:
        where = client[database]
        checkpoints, writes = (where.get_collection(each, CODEC) for each in (collection, writes_collection))
        with pymongo.timeout(SECONDS):
            threads = list(checkpoints.aggregate(newest, allowDiskUse=True))
        for thread in threads:
            found = _checkpoint(checkpoints, thread["_id"], thread["newest"])
            if found:  # a thread may have been deleted since the list was read
                older = partial(_older, checkpoints, writes, thread["_id"], found.get("parent_checkpoint_id"))
                yield thread["_id"], found.get("type"), found.get("checkpoint"), found.get("metadata"), older


def _of_checkpoint(thread_id: object, checkpoint_id: object) -> BsonDict:
    return {"thread_id": {"$eq": thread_id}, "checkpoint_ns": "", "checkpoint_id": {"$eq": checkpoint_id}}


def _checkpoint(collection: Collection[BsonDict], thread_id: object, checkpoint_id: object) -> BsonDict | None:
    fields = ["type", "checkpoint", "metadata", "parent_checkpoint_id"]
    with pymongo.timeout(SECONDS):
        return collection.find_one(_of_checkpoint(thread_id, checkpoint_id), fields)


def _older(
    checkpoints: Collection[BsonDict], writes: Collection[BsonDict], thread_id: object, parent: object, channel: str
) -> Iterator[tuple[object, object, list[tuple[object, object]]] | None]:
    """Yield the checkpoints before one, newest first, with the writes to a channel; None if one is missing."""
    seen: set[str] = set()  # a damaged chain of parents must not loop
    while isinstance(parent, str) and parent and parent not in seen:
        seen.add(parent)
        found = _checkpoint(checkpoints, thread_id, parent)
        if found is None:
            yield None
            return
        with pymongo.timeout(SECONDS):
            log = list(writes.find({**_of_checkpoint(thread_id, parent), "channel": {"$eq": channel}}))
        # The order in which LangGraph applies the writes of a step.
        log.sort(key=lambda write: (str(write.get("task_path") or ""), str(write.get("task_id")), write.get("idx", 0)))
        yield found.get("type"), found.get("checkpoint"), [(write.get("type"), write.get("value")) for write in log]
        parent = found.get("parent_checkpoint_id")
