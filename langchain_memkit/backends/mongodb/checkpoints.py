"""What LangGraph's `MongoDBSaver` wrote, read thread by thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pymongo
from pymongo.errors import PyMongoError

from langchain_memkit.backends.mongodb.clients import Clients
from langchain_memkit.backends.mongodb.commands import CODEC, text_of
from langchain_memkit.errors import HistoryReadError

__all__ = ["CheckpointCollection"]

FIRST_SECONDS = 5.0
SECONDS = 60.0
NEWEST: list[dict[str, Any]] = [
    {"$match": {"checkpoint_ns": ""}},
    {"$project": {"_id": 0, "thread_id": 1, "checkpoint_id": 1}},
    {"$group": {"_id": "$thread_id", "newest": {"$max": "$checkpoint_id"}}},
    {"$sort": {"_id": 1}},
]


class CheckpointCollection:
    """A collection of checkpoints.

    Args:
        uri: The connection string.
        database: The database's name.
        collection: The collection's name.
    """

    def __init__(self, uri: str, database: str, collection: str) -> None:
        self._clients = Clients(uri, None, None)
        self._names = (database, collection)

    def __repr__(self) -> str:
        """Names the host and the collection."""
        return f"CheckpointCollection({self._clients.hosts}, {'.'.join(self._names)})"

    def count(self) -> int:
        """How many threads there are."""
        counted = [*NEWEST[:-1], {"$count": "n"}]
        found = list(self._reading(lambda c: iter([list(c.aggregate(counted))])))
        return int(found[0][0]["n"]) if found[0] else 0

    def rows(self) -> Generator[tuple[Any, Any, Any, Any], None, None]:
        """Thread id, type, checkpoint and metadata of the latest checkpoint of each thread's root namespace."""
        return self._reading(_newest)

    def _reading(self, read: Any) -> Generator[Any, None, None]:
        database, name = self._names
        self._clients.hold()
        try:
            collection = self._clients.sync()[database].get_collection(name, codec_options=CODEC)
            with pymongo.timeout(FIRST_SECONDS):
                collection.find_one({}, {"_id": 1})
            yield from read(collection)
        except PyMongoError as error:
            msg = f"cannot read {'.'.join(self._names)} from {self._clients.hosts}: {text_of(error)}"
            raise HistoryReadError(msg) from error
        finally:
            self._clients.release()


def _newest(collection: Any) -> Iterator[tuple[Any, Any, Any, Any]]:
    with pymongo.timeout(SECONDS):
        threads = list(collection.aggregate(NEWEST, allowDiskUse=True))
    for thread in threads:
        query = {"thread_id": {"$eq": thread["_id"]}, "checkpoint_ns": "", "checkpoint_id": {"$eq": thread["newest"]}}
        with pymongo.timeout(SECONDS):
            found = collection.find_one(query, {"type": 1, "checkpoint": 1, "metadata": 1})
        if found:  # else it was deleted meanwhile
            yield thread["_id"], found.get("type"), found.get("checkpoint"), found.get("metadata")
