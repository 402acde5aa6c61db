"""Inspect a server, the collections of a database and their indexes, without changing them; build missing indexes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import pymongo
from pymongo import IndexModel, MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from langchain_memkit.backends.mongodb import documents, vector_documents
from langchain_memkit.backends.mongodb.clients import Clients
from langchain_memkit.backends.mongodb.commands import CODEC, text_of
from langchain_memkit.backends.mongodb.failures import driver_errors
from langchain_memkit.backends.mongodb.layouts import qa_index_models
from langchain_memkit.base import user_prefix
from langchain_memkit.errors import HistoryReadError, HistoryWriteError
from langchain_memkit.stores.key_value import range_of

__all__ = [
    "CheckpointCollection",
    "CollectionFacts",
    "IndexFault",
    "ServerFacts",
    "build_indexes",
    "count_records",
    "inspect_collection",
    "inspect_server",
    "kinds_in",
]

SAMPLE = 20  # documents read from either end of a collection
MOST_COUNTED = 100_000
DETAILS = ("unique", "partialFilterExpression", "expireAfterSeconds")
BY_INDEX = {"memkit_seq": "turns", "memkit_qa": "qa", "memkit_stamps": "vectors"}


class ServerFacts(NamedTuple):
    """Result of `inspect_server`. A field is None where the user of the connection lacks the permission to ask."""

    hosts: str
    version: str
    topology: str  # "standalone", "replica set" or "sharded"
    members: list[str]
    unhealthy: list[str] | None
    arbiters: int
    default_write_concern: str | None


class IndexFault(NamedTuple):
    """An index that is missing or has the wrong options."""

    name: str
    state: str  # "missing" or "wrong"
    model: IndexModel
    present_as: str | None


class CollectionFacts(NamedTuple):
    """Result of `inspect_collection`. Kinds are turns, langchain-mongodb, qa, vectors, key_value and langgraph."""

    name: str
    kinds: frozenset[str]
    size: int
    indexes: list[str]
    faults: list[IndexFault]
    unowned_rows: int  # of langchain-mongodb; at most MOST_COUNTED are counted


def inspect_server(uri: str, timeout: float = 5.0) -> ServerFacts:
    """Ask a server for its version, topology, members and health.

    Args:
        uri: The connection string.
        timeout: Seconds for all commands together.

    Raises:
        ConfigurationError: The connection string is not valid.
        HistoryReadError: The server cannot be reached, or refuses the user.
    """
    with _server(uri, timeout) as (client, hosts):
        hello = client.admin.command("hello")
        version = client.server_info()["version"]
        concern = _allowed(lambda: client.admin.command("getDefaultRWConcern").get("defaultWriteConcern"))
        status = _allowed(lambda: client.admin.command("replSetGetStatus")) if "setName" in hello else None
    topology = "replica set" if "setName" in hello else "sharded" if hello.get("msg") == "isdbgrid" else "standalone"
    members = [*hello.get("hosts", ()), *hello.get("passives", ())]
    unhealthy = None
    if status is not None:
        unhealthy = [f"{m['name']} ({m['stateStr']})" for m in status["members"] if m["state"] not in (1, 2, 7)]
    arbiters = len(hello.get("arbiters", ()))
    return ServerFacts(
        hosts=hosts,
        version=version,
        topology=topology,
        members=members,
        unhealthy=unhealthy,
        arbiters=arbiters,
        default_write_concern=None if concern is None else str(dict(concern)),
    )


def kinds_in(
    uri: str, database: str, keys: tuple[str, str], timeout: float = 5.0, *, user_id: str | None = None
) -> dict[str, frozenset[str]]:
    """Return the collections of a database with the kinds of data that each seems to hold.

    The kinds are found by its indexes and by some documents from either end, so a kind in between may be missed.

    Args:
        uri: The connection string.
        database: The database's name.
        keys: `session_id_key` and `history_key` of langchain-mongodb's rows.
        timeout: Seconds for all commands together.
        user_id: A user whose key-values are found wherever they are in a collection; None for none.

    Raises:
        ConfigurationError: The connection string is not valid.
        HistoryReadError: The server cannot be reached or read.
    """
    with _server(uri, timeout) as (client, _):
        names = client[database].list_collection_names(filter={"type": "collection"})
        mine = [name for name in sorted(names) if not name.startswith("system.")]
        return {name: _kinds(client[database][name], keys, user_id) for name in mine}


def inspect_collection(
    uri: str, database: str, name: str, keys: tuple[str, str], user_id_key: str = "userId", timeout: float = 5.0
) -> CollectionFacts:
    """Inspect a collection: the kinds of data in it, and the indexes that these need.

    Args:
        uri: The connection string.
        database: The database's name.
        name: The collection's name.
        keys: `session_id_key` and `history_key` of langchain-mongodb's rows.
        user_id_key: The field that holds the user's id in documents of layout "qa".
        timeout: Seconds for all commands together.

    Raises:
        ConfigurationError: The connection string is not valid.
        HistoryReadError: The server cannot be reached or read.
    """
    with _server(uri, timeout) as (client, _):
        collection = client[database][name]
        kinds = _kinds(collection, keys)
        present = _indexes(collection)
        count = collection.estimated_document_count()
        rows = 0
        if "langchain-mongodb" in kinds:
            rows = collection.count_documents(documents.legacy_filter(*keys), limit=MOST_COUNTED)
    faults = [f for model in _wanted(kinds, keys[0], user_id_key) for f in _fault(model, present)]
    return CollectionFacts(f"{database}.{name}", kinds, count, sorted(present), faults, rows)


def build_indexes(uri: str, database: str, name: str, faults: list[IndexFault]) -> None:
    """Drop our indexes that are wrong, and build all that are missing, however long that takes.

    Args:
        uri: The connection string.
        database: The database's name.
        name: The collection's name.
        faults: The faults that `inspect_collection` found.

    Raises:
        HistoryWriteError: The server cannot be reached, or refuses.
    """
    clients = Clients(uri, None, None)
    collection = clients.sync()[database][name]
    try:
        with driver_errors():
            for fault in faults:
                if fault.present_as is not None:
                    collection.drop_index(fault.present_as)
            collection.create_indexes([fault.model for fault in faults])
    except PyMongoError as error:
        msg = f"{clients.hosts} did not build the indexes of {database}.{name}: {text_of(error)}"
        raise HistoryWriteError(msg) from error


def count_records(uri: str, database: str, name: str, user_id: str, timeout: float = 5.0) -> int:
    """Count the vectors of a user in a collection; no embedding model is needed.

    Args:
        uri: The connection string.
        database: The database's name.
        name: The collection's name.
        user_id: The user.
        timeout: Seconds.

    Raises:
        HistoryReadError: The server cannot be reached or read.
    """
    with _server(uri, timeout) as (client, _):
        return client[database][name].count_documents(vector_documents.records_filter(user_id))


@contextmanager
def _server(uri: str, timeout: float) -> Iterator[tuple[MongoClient[dict[str, Any]], str]]:
    clients = Clients(uri, None, None)
    client = clients.sync()
    try:
        with driver_errors(), pymongo.timeout(timeout):
            # A command that the driver does not retry, so that a wrong password is reported at once.
            client.admin.command("ping")
            yield client, clients.hosts
    except PyMongoError as error:
        msg = f"cannot read from {clients.hosts} within {timeout:g} s: {text_of(error)}"
        raise HistoryReadError(msg) from error


def _allowed(ask: Callable[[], Any]) -> Any:
    """Return the answer to a command; None where the user lacks the permission or the server does not know it."""
    try:
        return ask()
    except OperationFailure:
        return None


def _kinds(collection: Any, keys: tuple[str, str], user_id: str | None = None) -> frozenset[str]:
    kinds = {BY_INDEX[name] for name in _indexes(collection) if name in BY_INDEX}
    sample = [*collection.find().limit(SAMPLE), *collection.find().sort("_id", -1).limit(SAMPLE)]
    if user_id is not None:
        begin, end = range_of(user_prefix(user_id))
        ids = {"$gte": begin} if end is None else {"$gte": begin, "$lt": end}
        found = {"_id": ids, "value": {"$exists": True}, "v": {"$exists": True}}
        sample += collection.find(found).limit(SAMPLE)
    return frozenset(kinds | {kind for document in sample if (kind := _kind(document, keys))})


def _kind(document: Mapping[str, Any], keys: tuple[str, str]) -> str | None:
    """Return the kind of a document, by its fields; None for an unknown one."""
    if {"seq", "epoch", "op", "session_id"} <= document.keys():
        return "turns"
    if {*keys} <= document.keys() and "seq" not in document:
        return "langchain-mongodb"
    if {"question", "chatId"} <= document.keys():
        return "qa"
    if {"stamp", "user_id", "session_id"} <= document.keys():
        return "vectors"
    if isinstance(document.get("_id"), str) and {*document} == {"_id", "value", "v"}:
        return "key_value"
    return "langgraph" if {"thread_id", "checkpoint_ns", "checkpoint"} <= document.keys() else None


def _indexes(collection: Any) -> dict[str, Any]:
    try:
        return dict(collection.index_information())
    except OperationFailure as error:
        if error.code == 26:  # no such collection
            return {}
        raise


def _wanted(kinds: frozenset[str], session_id_key: str, user_id_key: str) -> list[IndexModel]:
    """Return the indexes that our stores need for the kinds of data in a collection."""
    models: list[IndexModel] = []
    if kinds & {"turns", "langchain-mongodb"}:
        models += documents.index_models(session_id_key, {})
    if "qa" in kinds:
        models += qa_index_models(user_id_key, None)
    if "vectors" in kinds:
        models += vector_documents.index_models()
    return models


def _fault(model: IndexModel, present: dict[str, Any]) -> list[IndexFault]:
    """Return the fault of an index, if any; compares keys, since users rename indexes and build them by hand."""
    wanted = model.document
    keys = list(wanted["key"].items())
    same = {name: index for name, index in present.items() if [tuple(pair) for pair in index["key"]] == keys}
    if any(_details(index) == _details(wanted) for index in same.values()):
        return []
    name = wanted["name"]
    if name in present:
        return [IndexFault(name, "wrong", model, name)]
    if same and any(wanted.get(detail) is not None for detail in DETAILS):
        # An index with the same keys, but not unique, not partial or without expiry, does not do the work.
        return [IndexFault(name, "wrong", model, None)]
    return [] if same else [IndexFault(name, "missing", model, None)]


def _details(index: Mapping[str, Any]) -> list[Any]:
    return [index.get(detail) or None if detail == "unique" else index.get(detail) for detail in DETAILS]


OlderCheckpoint: TypeAlias = tuple[Any, Any, list[tuple[Any, Any]]]
"""Type, checkpoint, and type and value of each write that followed it."""
Older: TypeAlias = Callable[[str], Iterator[OlderCheckpoint | None]]

ORDER = ["task_path", "task_id", "idx"]  # the order in which LangGraph applies the writes of a step
FIRST_SECONDS = 5.0
SECONDS = 60.0
NEWEST: list[dict[str, Any]] = [
    {"$match": {"checkpoint_ns": ""}},
    {"$project": {"_id": 0, "thread_id": 1, "checkpoint_id": 1}},
    {"$group": {"_id": "$thread_id", "newest": {"$max": "$checkpoint_id"}}},
    {"$sort": {"_id": 1}},
]


class CheckpointCollection:
    """A collection of LangGraph checkpoints, never written.

    Args:
        uri: The connection string.
        database: The database's name.
        collection: The name of the collection of checkpoints.
        writes: The name of the collection of writes, which holds what each step wrote to the channels.
    """

    def __init__(self, uri: str, database: str, collection: str, writes: str) -> None:
        self._clients = Clients(uri, None, None)
        self._names = (database, collection)
        self._writes = writes

    def __repr__(self) -> str:
        """Name the host and the collection."""
        return f"CheckpointCollection({self._clients.hosts}, {'.'.join(self._names)})"

    def count(self) -> int:
        """Return the number of threads."""
        counted = [*NEWEST[:-1], {"$count": "n"}]
        found = list(self._reading(lambda c: iter([list(c.aggregate(counted))])))
        return int(found[0][0]["n"]) if found[0] else 0

    def rows(self) -> Generator[tuple[Any, Any, Any, Any, Older], None, None]:
        """Read the latest checkpoint of each thread's root namespace.

        Yields:
            Thread id, type, checkpoint, metadata, and a function that reads a channel's earlier checkpoints.
        """
        return self._reading(partial(_newest, self._writes))

    def _reading(self, read: Any) -> Generator[Any, None, None]:
        database, name = self._names
        self._clients.hold()
        try:
            collection = self._clients.sync()[database].get_collection(name, codec_options=CODEC)
            with driver_errors():
                # A short first read, so that a dead server fails soon; the reads that follow may take longer.
                with pymongo.timeout(FIRST_SECONDS):
                    collection.find_one({}, {"_id": 1})
                yield from read(collection)
        except PyMongoError as error:
            msg = f"cannot read {'.'.join(self._names)} from {self._clients.hosts}: {text_of(error)}"
            raise HistoryReadError(msg) from error
        finally:
            self._clients.release()


def _newest(writes: str, collection: Any) -> Iterator[tuple[Any, Any, Any, Any, Older]]:
    with pymongo.timeout(SECONDS):
        threads = list(collection.aggregate(NEWEST, allowDiskUse=True))
    log = collection.database.get_collection(writes, codec_options=CODEC)
    for thread in threads:
        found = _checkpoint(collection, thread["_id"], thread["newest"])
        # A thread may have been deleted since the list was read.
        if found:
            older = partial(_older, collection, log, thread["_id"], found.get("parent_checkpoint_id"))
            yield thread["_id"], found.get("type"), found.get("checkpoint"), found.get("metadata"), older


def _checkpoint(collection: Any, thread_id: Any, checkpoint_id: Any) -> dict[str, Any] | None:
    query = {"thread_id": {"$eq": thread_id}, "checkpoint_ns": "", "checkpoint_id": {"$eq": checkpoint_id}}
    with pymongo.timeout(SECONDS):
        found: dict[str, Any] | None = collection.find_one(
            query, {"type": 1, "checkpoint": 1, "metadata": 1, "parent_checkpoint_id": 1}
        )
    return found


def _older(collection: Any, log: Any, thread_id: Any, parent: Any, channel: str) -> Iterator[OlderCheckpoint | None]:
    """Read the ancestors of a checkpoint, the newest first, with the writes to one channel that followed each.

    If an ancestor is missing, None is yielded in its place and the reading ends.
    """
    seen: set[Any] = set()  # a damaged chain of parents must not loop
    while isinstance(parent, str) and parent and parent not in seen:
        seen.add(parent)
        found = _checkpoint(collection, thread_id, parent)
        if found is None:
            yield None
            return
        query = {"thread_id": {"$eq": thread_id}, "checkpoint_ns": "", "checkpoint_id": {"$eq": parent}}
        with pymongo.timeout(SECONDS):
            writes = list(log.find({**query, "channel": {"$eq": channel}}))
        writes.sort(
            key=lambda write: (str(write.get("task_path") or ""), str(write.get("task_id")), write.get("idx", 0))
        )
        yield found.get("type"), found.get("checkpoint"), [(write.get("type"), write.get("value")) for write in writes]
        parent = found.get("parent_checkpoint_id")
