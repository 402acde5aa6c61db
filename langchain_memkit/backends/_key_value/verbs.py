"""The verbs of our key-value stores, written once for both call styles and for every backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from langchain_core.stores import BaseStore
from typing_extensions import TypeVar as TypeVarWithDefault

from langchain_memkit._sync import ClosingMixin, Flow
from langchain_memkit.backends._key_value.data import (
    PAGE,
    KeyRange,
    Stored,
    check_keys,
    check_prefix,
    decode,
    encode_pairs,
    range_of,
    rest_of,
)
from langchain_memkit.base import check_id, user_prefix

T = TypeVar("T")
V = TypeVarWithDefault("V", default=dict[str, Any])
"""What the values are: dicts, unless one says `SQLiteKeyValueStore[bytes]` or `[Document]`. Only type checkers ask."""


class KeyValueBackend(Protocol):
    """What a backend implements for `KeyValueStore`; all but the runners are flows. Values are plain data."""

    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...
    async def get(self, keys: Sequence[str]) -> dict[str, Stored]: ...
    async def set(self, values: dict[str, Any]) -> None: ...
    async def delete(self, keys: Sequence[str]) -> None: ...
    async def set_if_exists(self, key: str, values: dict[str, Any], gone: Sequence[str]) -> bool: ...
    async def page(self, keys: KeyRange, limit: int) -> list[str]: ...
    async def delete_range(self, keys: KeyRange) -> int: ...
    def close(self) -> None: ...
    async def aclose(self) -> None: ...


class KeyValueStore(ClosingMixin, BaseStore[str, V], Generic[V]):
    """Verbs shared by `SQLiteKeyValueStore` and `MongoDBKeyValueStore`; see there."""

    def __init__(self, backend: KeyValueBackend) -> None:
        self._backend = backend

    def mget(self, keys: Sequence[str]) -> list[V | None]:
        """The values of these keys.

        Args:
            keys: In any order, repeated ones included.

        Returns:
            A value for each key, in their order; None where there is none, or where it cannot be read: that is logged,
            and what is stored stays as it is. Every value is a copy of its own.

        Raises:
            TypeError: A key is no string.
            ValueError: A key is empty or malformed.
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from langchain_memkit import SQLiteKeyValueStore
            >>> store = SQLiteKeyValueStore(":memory:")
            >>> store.mset([("u1/name", {"text": "Nemo"})])
            >>> store.mget(["u1/name", "u1/age"])
            [{'text': 'Nemo'}, None]
        """
        return self._backend.run(self._mget(check_keys(keys)))

    async def amget(self, keys: Sequence[str]) -> list[V | None]:
        """Async twin of `mget`."""
        return await self._backend.arun(self._mget(check_keys(keys)))

    async def _mget(self, keys: list[str]) -> list[V | None]:
        found = await self._backend.get(list(dict.fromkeys(keys))) if keys else {}
        return [decode(key, found[key]) if key in found else None for key in keys]

    def mset(self, key_value_pairs: Sequence[tuple[str, V]]) -> None:
        """Stores values under keys, in place of those that are there. Of two writers the last one wins.

        Args:
            key_value_pairs: Keys with their values. Of a repeated key the last value counts. A value is bytes, a
                `Document`, or a dict of what a message may hold: JSON types, and also int keys, tuples, sets, bytes,
                datetimes and documents.

        Raises:
            TypeError: A key is no string.
            ValueError: A key is empty or malformed.
            MessageEncodeError: A value would not come back equal; its `path` says which. Nothing was stored.
            MessageTooLargeError: A value is larger than the store takes. Nothing was stored.
            HistoryWriteError: The store failed; `maybe_stored` says whether the outcome is unknown. Calling again is
                safe.

        Example:
            >>> from langchain_memkit import SQLiteKeyValueStore
            >>> store = SQLiteKeyValueStore(":memory:")
            >>> store.mset([("k", {"n": 1}), ("k", {"n": 2})])
            >>> store.mget(["k"])
            [{'n': 2}]
            >>> store.mset([("raw", b"0xff")])
            >>> store.mget(["raw"])
            [b'0xff']
        """
        if values := encode_pairs(key_value_pairs):
            self._backend.run(self._backend.set(values))

    async def amset(self, key_value_pairs: Sequence[tuple[str, V]]) -> None:
        """Async twin of `mset`."""
        # in a thread, because encoding much would hold up the event loop
        if values := await asyncio.to_thread(encode_pairs, list(key_value_pairs)):
            await self._backend.arun(self._backend.set(values))

    def mset_if_exists(self, key: str, key_value_pairs: Sequence[tuple[str, V]], delete: Sequence[str] = ()) -> bool:
        """Store values and delete others in one write, only if there is something under a key, from begin to end.

        For what must not be written once its owner is gone: who deletes `key` first, and then lists and deletes
        what belongs to it, leaves nothing behind, whoever writes meanwhile.

        Args:
            key: What has to be there; it stays as it is.
            key_value_pairs: As in `mset`.
            delete: Keys that go, if the values were stored.

        Returns:
            Whether the key was there; if not, nothing was stored or deleted.

        Raises:
            TypeError: A key is no string.
            ValueError: A key is empty or malformed.
            MessageEncodeError: A value would not come back equal. Nothing was stored.
            MessageTooLargeError: A value is larger than the store takes. Nothing was stored.
            HistoryWriteError: The store failed; calling again is safe.

        Example:
            >>> from langchain_memkit import SQLiteKeyValueStore
            >>> store = SQLiteKeyValueStore(":memory:")
            >>> store.mset([("u1", {}), ("u1/old", {})])
            >>> store.mset_if_exists("u1", [("u1/name", {"text": "Nemo"})], delete=["u1/old"])
            True
            >>> store.mset_if_exists("u2", [("u2/name", {"text": "Dory"})]), list(store.yield_keys())
            (False, ['u1', 'u1/name'])
        """
        owner, values, gone = check_keys([key])[0], encode_pairs(key_value_pairs), check_keys(delete)
        return self._backend.run(self._backend.set_if_exists(owner, values, gone))

    async def amset_if_exists(
        self, key: str, key_value_pairs: Sequence[tuple[str, V]], delete: Sequence[str] = ()
    ) -> bool:
        """Async twin of `mset_if_exists`."""
        owner, gone = check_keys([key])[0], check_keys(delete)
        values = await asyncio.to_thread(encode_pairs, list(key_value_pairs))
        return await self._backend.arun(self._backend.set_if_exists(owner, values, gone))

    def mdelete(self, keys: Sequence[str]) -> None:
        """Deletes these keys for good; those that are not there are no error.

        Args:
            keys: In any order, repeated ones included.

        Raises:
            TypeError: A key is no string.
            ValueError: A key is empty or malformed.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_memkit import SQLiteKeyValueStore
            >>> store = SQLiteKeyValueStore(":memory:")
            >>> store.mset([("a", {}), ("b", {})])
            >>> store.mdelete(["a", "never there"])
            >>> list(store.yield_keys())
            ['b']
        """
        if names := list(dict.fromkeys(check_keys(keys))):
            self._backend.run(self._backend.delete(names))

    async def amdelete(self, keys: Sequence[str]) -> None:
        """Async twin of `mdelete`."""
        if names := list(dict.fromkeys(check_keys(keys))):
            await self._backend.arun(self._backend.delete(names))

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Every key that begins with `prefix`, sorted, read a page at a time by an index.

        Args:
            prefix: `user_prefix(user_id)`, for example; None or an empty string for every key.

        Returns:
            An iterator of keys in order of their code points. Keys that come or go meanwhile may be in it or not.

        Raises:
            TypeError: The prefix is no string.
            ValueError: The prefix is malformed.
            HistoryReadError: The store cannot be reached or read.

        Example:
            >>> from langchain_memkit import SQLiteKeyValueStore
            >>> from langchain_memkit.base import user_prefix
            >>> store = SQLiteKeyValueStore(":memory:")
            >>> store.mset([(user_prefix(user) + "name", {}) for user in ("a", "a/b", "ab")])
            >>> list(store.yield_keys(prefix=user_prefix("a")))
            ['a/name']
        """
        return self._keys(range_of(check_prefix(prefix)))

    def _keys(self, keys: KeyRange | None) -> Generator[str, None, None]:
        while keys:
            page = self._backend.run(self._backend.page(keys, PAGE))
            yield from page
            keys = rest_of(keys, page)

    def ayield_keys(self, *, prefix: str | None = None) -> AsyncGenerator[str, None]:
        """Async twin of `yield_keys`."""
        return self._akeys(range_of(check_prefix(prefix)))

    async def _akeys(self, keys: KeyRange | None) -> AsyncGenerator[str, None]:
        while keys:
            page = await self._backend.arun(self._backend.page(keys, PAGE))
            for key in page:
                yield key
            keys = rest_of(keys, page)

    def purge(self, user_id: str) -> dict[str, int]:
        """Deletes every key under `user_prefix(user_id)` for good. What is written afterwards stays.

        Args:
            user_id: Whose; required.

        Returns:
            `{"keys": n}`: how many were deleted.

        Raises:
            TypeError: `user_id` is no string.
            ValueError: `user_id` is no valid id.
            HistoryWriteError: The store failed; calling again finishes the work.

        Example:
            >>> from langchain_memkit import SQLiteKeyValueStore
            >>> from langchain_memkit.base import user_prefix
            >>> store = SQLiteKeyValueStore(":memory:")
            >>> store.mset([(user_prefix(user) + "name", {}) for user in ("u1", "u2")])
            >>> store.purge("u1"), list(store.yield_keys())
            ({'keys': 1}, ['u2/name'])
        """
        return self._backend.run(self._purge(check_id(user_id, "user_id")))

    async def apurge(self, user_id: str) -> dict[str, int]:
        """Async twin of `purge`."""
        return await self._backend.arun(self._purge(check_id(user_id, "user_id")))

    async def _purge(self, user_id: str) -> dict[str, int]:
        return {"keys": await self._backend.delete_range(range_of(user_prefix(user_id)))}

    def close(self) -> None:
        """Closes the connections that this store opened; a client you passed in stays open."""
        self._backend.close()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self._backend.aclose()
