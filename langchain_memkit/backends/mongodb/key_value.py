"""`MongoDBKeyValueStore`: one document per key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from bson import encode
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, MongoClient, ReplaceOne

from langchain_memkit.backends.mongodb.clients import BsonDict, Clients
from langchain_memkit.backends.mongodb.commands import CollectionRef, Runner, batches
from langchain_memkit.errors import MessageTooLargeError
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.stores.key_value import KeyRange, KeyValueBackend, KeyValueStore, StoredValue, V

MAX_DOCUMENT = 16 * 2**20


class MongoDBKeyValueStore(KeyValueStore[V]):
    """A LangChain `BaseStore` in MongoDB with text keys: a write is stored by a majority, or an error is raised.

    Use it for data of a user rather than of a session. Values are dicts, bytes (as `CacheBackedEmbeddings` and
    `create_kv_docstore` store them) or Documents (`ParentDocumentRetriever`). Tell a type checker which with
    `MongoDBKeyValueStore[bytes](...)`; without brackets they are dicts. All keys of a user begin with
    `user_prefix(user_id)` of `langchain_memkit.base`; `purge` deletes them. A document is `{_id: key, value: {...}}`,
    so no further index is needed, and `{_id: 1}` is the shard key. `mset` writes in order and can be repeated; each
    value is written whole, but when it fails, some of many pairs may be stored. Of two writers on one key the last one
    wins. No I/O happens before the first use. Clients are shared as with `MongoDBChatMessageHistory`.

    Args:
        connection_string: `mongodb://...`; None if `client` or `async_client` is given. Writes wait for a majority and
            the journal, reads see what a majority has, whatever it says.
        database_name: The database.
        collection_name: The collection: one of its own, not that of the histories.
        client: Your own `MongoClient`, never closed here. The async methods then use a worker thread.
        async_client: Your own `AsyncMongoClient`, never closed here.
        timeout: Seconds within which reads and the first use fail if the server cannot be reached.
        save_timeout: Seconds for which a write is retried on a server that was reached before.

    Raises:
        ConfigurationError: The arguments contradict each other.

    Example:
        ```python
        with MongoDBKeyValueStore("mongodb://localhost:27017") as store:
            store.mset([("u1/profile", {"name": "Nemo"})])
            assert store.mget(["u1/profile"]) == [{"name": "Nemo"}]
            assert store.purge("u1") == {"keys": 1}
        ```
    """

    is_remote: ClassVar = True
    """True: reads go over the network, so callers should run several of them concurrently."""

    def __init__(
        self,
        connection_string: str | None = None,
        database_name: str = "chat_history",
        collection_name: str = "key_value",
        *,
        client: MongoClient[BsonDict] | None = None,
        async_client: AsyncMongoClient[BsonDict] | None = None,
        timeout: float = 5.0,
        save_timeout: float = 30.0,
    ) -> None:
        clients = Clients(connection_string, client, async_client)
        place = CollectionRef(names=(database_name, collection_name), timeout=timeout, save_timeout=save_timeout)
        clients.hold()
        super().__init__(_Documents(clients, place))


class _Documents(Runner[CollectionRef], KeyValueBackend):
    """Flows of the key-value collection."""

    upserts_may_meet = True

    async def get(self, keys: Sequence[str]) -> dict[str, StoredValue]:
        found = [document for batch in batches(keys) for document in await self.find({"_id": {"$in": batch}})]
        return {document["_id"]: StoredValue(document.get("value"), document.get("v")) for document in found}

    async def page(self, keys: KeyRange, limit: int) -> list[str]:
        documents = await self.find(between(keys), ["_id"], sort=[("_id", 1)], limit=limit)
        return [document["_id"] for document in documents]

    async def set(self, values: dict[str, Any]) -> None:
        for i, batch in enumerate(batches([_replacement(key, value) for key, value in values.items()])):
            await self.bulk_write(batch, begun=i > 0)

    async def delete(self, keys: Sequence[str]) -> None:
        for i, batch in enumerate(batches(keys)):
            await self.delete_many({"_id": {"$in": batch}}, begun=i > 0)

    async def delete_range(self, keys: KeyRange) -> int:
        return await self.delete_many(between(keys))


def between(keys: KeyRange) -> BsonDict:
    """Build the filter for a range of keys, which uses the index on `_id`; ids that are not text never match."""
    return {"_id": {"$gte": keys.begin} if keys.end is None else {"$gte": keys.begin, "$lt": keys.end}}


def _replacement(key: str, value: Any) -> ReplaceOne[Any]:
    """Build the write of one pair, encoded here so that one that is too large is refused before others are stored."""
    raw = encode({"_id": key, "value": value, "v": FORMAT_VERSION})
    if len(raw) > MAX_DOCUMENT:
        msg = f"values[{key!r}] is larger than one MongoDB document may be (16 MB). Nothing was stored."
        raise MessageTooLargeError(msg)
    return ReplaceOne({"_id": {"$eq": key}}, RawBSONDocument(raw), upsert=True)
