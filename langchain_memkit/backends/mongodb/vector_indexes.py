"""Indexes of a collection of vectors: built once per process and collection, or asked for."""

from __future__ import annotations

from typing import Any

from langchain_memkit.backends.mongodb.clients import Clients
from langchain_memkit.backends.mongodb.commands import Call, Place
from langchain_memkit.backends.mongodb.indexes import MAX_AUTO_INDEX
from langchain_memkit.backends.mongodb.vector_documents import index_models
from langchain_memkit.errors import ConfigurationError

_known: set[Any] = set()


async def ensure_vector_indexes(
    clients: Clients, settings: Place, *, forced: bool = False, again: bool = False
) -> None:
    """Sees to it that the collection has its indexes; asks once per process, and when a session begins.

    Args:
        clients: For the server's name.
        settings: Which collection.
        forced: Build them, however large the collection is.
        again: Ask the server also if it was asked before.

    Raises:
        ConfigurationError: Indexes are missing, and the collection is too large to build them by surprise.
    """
    key = (clients.key, settings.names)
    if key in _known and not (forced or again):
        return
    existing = await Call(lambda c: c.index_information(), settings.timeout)
    present = {tuple(map(tuple, index["key"])) for index in existing.values()}
    missing = [model for model in index_models() if tuple(model.document["key"].items()) not in present]
    if missing and not forced:
        count = await Call(lambda c: c.estimated_document_count(), settings.timeout)
        if count > MAX_AUTO_INDEX:
            names = [model.document["name"] for model in missing]
            msg = (
                f"collection {'.'.join(settings.names)} holds {count:,} documents and lacks the indexes {names}. "
                "Building them takes a while, so it is not done by surprise: run MongoDBVectorStore(...).setup() once."
            )
            raise ConfigurationError(msg)
    if missing:
        await Call(lambda c: c.create_indexes(missing), None)
    _known.add(key)
