"""`MongoDBKeyValueStore`: values under keys, one document for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from bson import encode
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, DeleteMany, MongoClient, ReplaceOne, UpdateOne
from pymongo.errors import BulkWriteError

from langchain_memkit.backends._key_value.data import KeyRange, Stored
from langchain_memkit.backends._key_value.verbs import KeyValueStore, V
from langchain_memkit.backends.mongodb.clients import Clients
from langchain_memkit.backends.mongodb.commands import Call, Place
from langchain_memkit.backends.mongodb.repeating import RepeatingRunner, batches
from langchain_memkit.errors import HistoryWriteError, MessageTooLargeError
from langchain_memkit.messages.codec import FORMAT_VERSION

MAX_DOCUMENT = 16 * 2**20
IMMUTABLE = 66  # the server's code for a write that would change an `_id`


class MongoDBKeyValueStore(KeyValueStore[V]):
    """Values under text keys in MongoDB: a LangChain `BaseStore`, stored by a majority or an error is raised.

    For what belongs to a user rather than to a conversation. Values are dicts, bytes (as `CacheBackedEmbeddings` and
    `create_kv_docstore` store them) or Documents (`ParentDocumentRetriever`). A type checker is told which:
    `MongoDBKeyValueStore[bytes](...)`; without brackets it is dicts. Everything of a user lies under
    `user_prefix(user_id)` of `langchain_memkit.base`, which `purge` deletes. A document is `{_id: key, value: {...}}`,
    so no further index is needed, and `{_id: 1}` is the shard key. A `mset` writes in order and can be repeated; each
    value is whole, but of many pairs some may be stored when it fails. Of two writers on one key the last one wins. No
    I/O happens before the first use. Clients are shared as with `MongoDBChatMessageHistory`.

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
        ConfigurationError: Arguments do not fit together.

    Example:
        ```python
        with MongoDBKeyValueStore("mongodb://localhost:27017") as store:
            store.mset([("u1/profile", {"name": "Nemo"})])
            assert store.mget(["u1/profile"]) == [{"name": "Nemo"}]
            assert store.purge("u1") == {"keys": 1}
        ```
    """

    is_remote: ClassVar = True
    """Reads wait for a server, so several at once save time."""

    def __init__(
        self,
        connection_string: str | None = None,
        database_name: str = "chat_history",
        collection_name: str = "key_value",
        *,
        client: MongoClient[dict[str, Any]] | None = None,
        async_client: AsyncMongoClient[dict[str, Any]] | None = None,
        timeout: float = 5.0,
        save_timeout: float = 30.0,
    ) -> None:
        clients = Clients(connection_string, client, async_client)
        place = Place(names=(database_name, collection_name), timeout=timeout, save_timeout=save_timeout)
        clients.hold()
        super().__init__(_Documents(clients, place))
        self._name = f"{clients.hosts}, {database_name}.{collection_name}"

    def __repr__(self) -> str:
        """Names hosts and collection only."""
        return f"{type(self).__name__}({self._name})"


class _Documents(RepeatingRunner):
    """Flows on the collection."""

    upserts_may_meet = True

    async def get(self, keys: Sequence[str]) -> dict[str, Stored]:
        return await self.reading(self._get(keys))

    async def _get(self, keys: Sequence[str]) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        for batch in batches(keys):
            query = {"_id": {"$in": batch}}
            documents = await Call(lambda c, query=query: c.find(query).to_list(), self.settings.timeout)  # type: ignore[misc]  # bound now
            found.update((d["_id"], Stored(d.get("value"), d.get("v"))) for d in documents)
        return found

    async def page(self, keys: KeyRange, limit: int) -> list[str]:
        return await self.reading(self._page(keys, limit))

    async def _page(self, keys: KeyRange, limit: int) -> list[str]:
        query = _between(keys)
        documents = await Call(
            lambda c: c.find(query, {"_id": 1}).sort("_id", 1).limit(limit).to_list(), self.settings.timeout
        )
        return [document["_id"] for document in documents]

    async def set(self, values: dict[str, Any]) -> None:
        operations = [_replacement(key, value) for key, value in values.items()]
        for i, batch in enumerate(batches(operations)):
            await self._sent(lambda c, batch=batch: c.bulk_write(batch), begun=i > 0)  # type: ignore[misc]  # bound now

    async def set_if_exists(self, key: str, values: dict[str, Any], gone: Sequence[str]) -> bool:
        operations: list[Any] = [_replacement(name, value) for name, value in values.items()]
        look = _failing_without(key)
        removals: list[Any] = [DeleteMany({"_id": {"$in": batch}}) for batch in batches(gone)]
        # looked for at the end as well: who deletes the key between finds there what was written before, or it is here
        writes = [[look, *batch, look] for batch in batches(operations)] or [[look]]
        writes[-1] += removals
        for i, batch in enumerate(writes):
            try:
                await self._sent(lambda c, batch=batch: c.bulk_write(batch), begun=i > 0)  # type: ignore[misc]  # bound now
            except HistoryWriteError as error:
                if not _is_missing(error.__cause__):
                    raise
                await self.delete(list(values))
                return False
        return True

    async def delete(self, keys: Sequence[str]) -> None:
        for i, batch in enumerate(batches(keys)):
            query = {"_id": {"$in": batch}}
            await self._sent(lambda c, query=query: c.delete_many(query), begun=i > 0)  # type: ignore[misc]  # bound now

    async def delete_range(self, keys: KeyRange) -> int:
        query = _between(keys)
        result = await self._sent(lambda c: c.delete_many(query))
        return int(result.deleted_count)


def _between(keys: KeyRange) -> dict[str, Any]:
    """A range of the index on `_id`; keys of other types are in no range of texts."""
    return {"_id": {"$gte": keys.begin} if keys.end is None else {"$gte": keys.begin, "$lt": keys.end}}


def _failing_without(key: str) -> UpdateOne:
    """What changes nothing where the key is, and fails where it is not, so that an ordered write ends there.

    It would have to be inserted then, under another `_id` than the one that was looked for, which no server does.
    """
    return UpdateOne({"_id": {"$eq": key}}, {"$setOnInsert": {"_id": None}}, upsert=True)


def _is_missing(error: BaseException | None) -> bool:
    """Whether a write ended there."""
    errors = (error.details or {}).get("writeErrors", ()) if isinstance(error, BulkWriteError) else ()
    return any(found.get("code") == IMMUTABLE for found in errors)


def _replacement(key: str, value: Any) -> ReplaceOne[Any]:
    """What stores one pair; refused here rather than by the server after other pairs went in."""
    raw = encode({"_id": key, "value": value, "v": FORMAT_VERSION})
    if len(raw) > MAX_DOCUMENT:
        msg = f"values[{key!r}] is larger than one MongoDB document may be (16 MB). Nothing was stored."
        raise MessageTooLargeError(msg)
    return ReplaceOne({"_id": {"$eq": key}}, RawBSONDocument(raw), upsert=True)
