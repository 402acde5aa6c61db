"""`SQLiteKeyValueStore`: values under keys, in the file of the chat histories or in one of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from langchain_memkit.backends.sqlite.database import OWNER_ALONE, Transactions, shared_database
from langchain_memkit.backends.sqlite.history import parse_json
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.stores.key_value import KeyRange, KeyValueBackend, KeyValueStore, StoredValue, V

IN_RANGE = "key >= :begin AND key < :end"
PUT = "INSERT INTO key_values VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value, v = excluded.v"
DELETE = "DELETE FROM key_values WHERE key IN (SELECT value FROM json_each(:keys))"


class SQLiteKeyValueStore(KeyValueStore[V]):
    """Values under text keys in one SQLite file: a LangChain `BaseStore`, durable, no server.

    Use it for data of a user rather than of a conversation. Values are dicts, bytes (as `CacheBackedEmbeddings` and
    `create_kv_docstore` store them) or Documents (`ParentDocumentRetriever`). Tell a type checker which:
    `SQLiteKeyValueStore[bytes](...)`; without brackets it is dicts. All data of a user has keys under
    `user_prefix(user_id)` of `langchain_memkit.base`, which `purge` deletes. Safe with threads and with several
    processes on one file; the file may hold chat histories as well. A `mset` is one transaction: all of it or nothing.
    Of two writers on one key the last one wins. No I/O happens before the first use.

    Args:
        path: The file; created at first use, its folder must exist. `":memory:"` keeps the data in this object.
        timeout: Seconds to wait for another process that is writing.
        file_mode: The permissions of the file, its -wal and its -shm if they are created here: 0o600 by default, for
            the owner alone; 0o660 shares it with a group. An existing file keeps its own.

    Raises:
        TypeError: The path is not a file name.

    Example:
        >>> from langchain_memkit.base import user_prefix
        >>> with SQLiteKeyValueStore(":memory:") as store:
        ...     store.mset([(user_prefix("u1") + "profile", {"name": "Nemo"})])
        ...     store.mget(["u1/profile"])
        ...     store.purge("u1")
        [{'name': 'Nemo'}]
        {'keys': 1}
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: float = 30.0, file_mode: int = OWNER_ALONE) -> None:
        super().__init__(_Rows(shared_database(path, timeout, file_mode)))


class _Rows(Transactions, KeyValueBackend):
    """The SQL of the table `key_values`, as flows."""

    async def get(self, keys: Sequence[str]) -> dict[str, StoredValue]:
        query = "SELECT key, value, v FROM key_values WHERE key IN (SELECT value FROM json_each(:keys))"
        rows = await self._select(query, keys=json.dumps(keys))
        return {row["key"]: StoredValue(parse_json(row["value"]), row["v"]) for row in rows}

    async def set(self, values: dict[str, object]) -> None:
        rows = _rows_of(values)
        await self._write(lambda connection: connection.executemany(PUT, rows))

    async def delete(self, keys: Sequence[str]) -> None:
        if await self._change(DELETE, deleting=True, keys=json.dumps(keys)):
            await self._erase()

    async def page(self, keys: KeyRange, limit: int) -> list[str]:
        query = f"SELECT key FROM key_values WHERE {IN_RANGE} ORDER BY key LIMIT :limit"
        return [row["key"] for row in await self._select(query, **_bounds(keys), limit=limit)]

    async def delete_range(self, keys: KeyRange) -> int:
        count = await self._change(f"DELETE FROM key_values WHERE {IN_RANGE}", deleting=True, **_bounds(keys))
        await self._erase(moved=True)
        return count


def _rows_of(values: dict[str, object]) -> list[tuple[str, str, int]]:
    return [(key, json.dumps(value, ensure_ascii=False), FORMAT_VERSION) for key, value in values.items()]


def _bounds(keys: KeyRange) -> dict[str, str | bytes]:
    return {"begin": keys.begin, "end": b"" if keys.end is None else keys.end}  # any blob comes after every text
