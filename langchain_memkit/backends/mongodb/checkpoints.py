"""Read the checkpoints that LangGraph's `MongoDBSaver` wrote, thread by thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, TypeAlias

import pymongo
from pymongo.errors import PyMongoError

from langchain_memkit.backends.mongodb.clients import Clients
from langchain_memkit.backends.mongodb.commands import CODEC, text_of
from langchain_memkit.backends.mongodb.failures import driver_errors
from langchain_memkit.errors import HistoryReadError

__all__ = ["CheckpointCollection"]

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
