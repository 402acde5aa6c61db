"""Key-value stores over any store of rows."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from typing import Any, Generic, NamedTuple

from langchain_core.documents import Document
from langchain_core.stores import BaseStore
from typing_extensions import TypeVar as TypeVarWithDefault

from langchain_memkit._sync import ClosingMixin
from langchain_memkit.base import check_id, check_text, describe_value, user_prefix
from langchain_memkit.errors import MessageEncodeError, logger
from langchain_memkit.messages.codec import FORMAT_VERSION, decode_value
from langchain_memkit.stores.backend import UNREADABLE, StoreBackend, encode_exactly

MAX_KEY_BYTES = 4096  # two ids of 512 bytes fit: quoting makes up to 3 bytes of each
PAGE = 1000
STORED_TYPES = (dict, bytes, Document)


class StoredValue(NamedTuple):
    """A value as a backend read it, with its format version; it may be damaged."""

    value: object
    version: object


class KeyRange(NamedTuple):
    """The keys from `begin` up to, not including, `end`; None for no end."""

    begin: str
    end: str | None


def check_keys(keys: Iterable[str]) -> list[str]:
    """Validate keys and return them as a list. Raise before any I/O if one is invalid."""
    if isinstance(keys, str):  # its letters would be taken for keys
        raise TypeError("keys must be a list of str, not a str")
    return [check_text(key, "key", MAX_KEY_BYTES) for key in keys]


def encode_pairs(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Encode values as plain data by key; of a repeated key the last one counts. Raise for what cannot be stored."""
    values: dict[str, object] = {}
    for key, value in pairs:
        name = check_text(key, "key", MAX_KEY_BYTES)
        path = f"values[{name!r}]"
        if not isinstance(value, STORED_TYPES):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise MessageEncodeError(path, f"is a {kind}, and a store takes dicts, bytes and Documents")
        values[name] = encode_exactly(value, path)
    return values


def decode(key: str, stored: StoredValue) -> Any:
    """Decode a stored value; None if it is damaged, which is logged."""
    if stored.version != FORMAT_VERSION:
        problem = f"format {describe_value(stored.version)}, this version reads {FORMAT_VERSION}; is memkit older here?"
    else:
        try:
            value = decode_value(stored.value)
            if isinstance(value, STORED_TYPES):
                return value
            problem = f"a {type(value).__name__} instead of a dict, bytes or a Document"
        except UNREADABLE as error:
            problem = f"a value cannot be read ({type(error).__name__})"
    logger.warning("key %.200r is unreadable and left as it is: %s", key, problem)
    return None


def range_of(prefix: str) -> KeyRange:
    """Return the range of the keys that begin with `prefix`: up to the next text after them, by code points."""
    for i in reversed(range(len(prefix))):
        following = ord(prefix[i]) + 1
        if following <= 0x10FFFF:
            # surrogates are not characters: U+E000 follows U+D7FF
            return KeyRange(prefix, prefix[:i] + chr(0xE000 if following == 0xD800 else following))
    return KeyRange(prefix, None)


def range_after(keys: KeyRange, page: list[str]) -> KeyRange | None:
    """Return the range after a page; None at the end. Keys hold no NUL: `last + NUL` is the first text after `last`."""
    # A damaged key may sort differently from its decoded text; without this check the listing would go in circles.
    return None if len(page) < PAGE or page[-1] < keys.begin else keys._replace(begin=page[-1] + "\x00")


V = TypeVarWithDefault("V", default=dict[str, Any])
"""What the values are: dicts, unless one says `SQLiteKeyValueStore[bytes]` or `[Document]`. Only type checkers ask."""


class KeyValueBackend(StoreBackend, ABC):
    """The interface below a key-value store: subclass it to keep values in a database of your own.

    `KeyValueStore(backend)` does the rest: it checks keys, encodes values as plain data (JSON types) and decodes them.
    Every method is a flow (see `StoreBackend`) and may be called by many threads, tasks and processes at once.
    `langchain_memkit.testing.KeyValueStoreContract` tests it. The invariants:

    * A value is replaced whole, and readers see the old one or the new one. Of two writers the last one wins.
    * Every write is idempotent: a call whose outcome is unknown may be made again unchanged.
    * Keys are ordered by code points, as `sorted` does it, whatever the database's collation.
    * A stored value comes back with the `FORMAT_VERSION` that it was stored with; `StoredValue` may be damaged.

    Raises:
        HistoryReadError: `get` or `page` cannot reach or read the database. The text holds no credentials, and the
            driver's error is its cause, as below.
        HistoryWriteError: Another method failed, and may be called again; `maybe_stored` says whether some is stored.
    """

    @abstractmethod
    async def get(self, keys: Sequence[str]) -> dict[str, StoredValue]:
        """Read values.

        Args:
            keys: Different keys; at least one.

        Returns:
            The stored values by key, without keys that do not exist.
        """

    @abstractmethod
    async def set(self, values: dict[str, object]) -> None:
        """Store values, each with `FORMAT_VERSION`, in place of those that exist.

        Args:
            values: Plain data by key; at least one. They are stored in one transaction where the database has any.

        Raises:
            MessageTooLargeError: A value is larger than the database takes; nothing was stored.
        """

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """Delete keys for good; those that do not exist are ignored.

        Args:
            keys: Different keys; at least one.
        """

    @abstractmethod
    async def page(self, keys: KeyRange, limit: int) -> list[str]:
        """List the first keys of a range, with an index.

        Args:
            keys: The range.
            limit: The greatest number of keys.

        Returns:
            The keys, in order of code points: fewer than `limit` only at the end of the range, and more only by a
            backend that has read all of it anyway.
        """

    @abstractmethod
    async def delete_range(self, keys: KeyRange) -> int:
        """Delete the keys of a range for good. A value that is stored there meanwhile may stay.

        Args:
            keys: The range.

        Returns:
            How many keys were deleted.
        """


class KeyValueStore(ClosingMixin, BaseStore[str, V], Generic[V]):
    """A LangChain `BaseStore` over any `KeyValueBackend`: base of `SQLiteKeyValueStore` and `MongoDBKeyValueStore`.

    Args:
        backend: Where the values are kept.

    Raises:
        TypeError, ValueError: A key, prefix or user id is not a string, empty or malformed; before any I/O.
        HistoryReadError: The store cannot be reached or read.
        HistoryWriteError: The store failed. Calling again is safe, and finishes the work; `maybe_stored` says whether
            the outcome is unknown.
    """

    def __init__(self, backend: KeyValueBackend) -> None:
        self._backend = backend

    def __repr__(self) -> str:
        """Show what the backend's `str` shows: the file, or hosts and collection; no credentials."""
        return f"{type(self).__name__}({self._backend})"

    def mget(self, keys: Sequence[str]) -> list[V | None]:
        """Return the values of some keys.

        Args:
            keys: Keys in any order; duplicates are allowed.

        Returns:
            A value for each key, in their order; None where there is none, or where it cannot be read: that is logged,
            and the stored value stays as it is. Every value is a copy of its own.
        """
        return self._backend.run(self._mget(check_keys(keys)))

    async def amget(self, keys: Sequence[str]) -> list[V | None]:
        """Run `mget` asynchronously."""
        return await self._backend.arun(self._mget(check_keys(keys)))

    async def _mget(self, keys: list[str]) -> list[V | None]:
        found = await self._backend.get(list(dict.fromkeys(keys))) if keys else {}
        return [decode(key, found[key]) if key in found else None for key in keys]

    def mset(self, key_value_pairs: Sequence[tuple[str, V]]) -> None:
        """Store values under keys, replacing those that exist. Of two concurrent writers the last one wins.

        Args:
            key_value_pairs: Keys with their values. Of a repeated key the last value counts. A value is bytes, a
                `Document`, or a dict of values that a message may hold: JSON types, and also int keys, tuples, sets,
                bytes, datetimes and documents.

        Raises:
            MessageEncodeError: A value would not come back equal; its `path` says which. Nothing was stored.
            MessageTooLargeError: A value is larger than the store accepts. Nothing was stored.

        Example:
            >>> from langchain_memkit import SQLiteKeyValueStore
            >>> store = SQLiteKeyValueStore(":memory:")
            >>> store.mset([("k", {"n": 1}), ("k", {"n": 2})])
            >>> store.mget(["k"])
            [{'n': 2}]
        """
        if values := encode_pairs(key_value_pairs):
            self._backend.run(self._backend.set(values))

    async def amset(self, key_value_pairs: Sequence[tuple[str, V]]) -> None:
        """Run `mset` asynchronously."""
        # in a thread: encoding large values would block the event loop
        if values := await asyncio.to_thread(encode_pairs, list(key_value_pairs)):
            await self._backend.arun(self._backend.set(values))

    def mdelete(self, keys: Sequence[str]) -> None:
        """Delete keys for good; those that do not exist are ignored.

        Args:
            keys: Keys in any order; duplicates are allowed.
        """
        if names := list(dict.fromkeys(check_keys(keys))):
            self._backend.run(self._backend.delete(names))

    async def amdelete(self, keys: Sequence[str]) -> None:
        """Run `mdelete` asynchronously."""
        if names := list(dict.fromkeys(check_keys(keys))):
            await self._backend.arun(self._backend.delete(names))

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Iterate over the keys that begin with `prefix`, sorted; an index is read a page at a time.

        Args:
            prefix: For example `user_prefix(user_id)`; None or an empty string for every key.

        Returns:
            An iterator of keys in order of their code points. Keys stored or deleted meanwhile may be included or not.
        """
        return self._keys(range_of(check_text("" if prefix is None else prefix, "prefix", MAX_KEY_BYTES, least=0)))

    def _keys(self, keys: KeyRange | None) -> Generator[str, None, None]:
        while keys:
            page = self._backend.run(self._backend.page(keys, PAGE))
            yield from page
            keys = range_after(keys, page)

    def ayield_keys(self, *, prefix: str | None = None) -> AsyncGenerator[str, None]:
        """Run `yield_keys` asynchronously."""
        return self._akeys(range_of(check_text("" if prefix is None else prefix, "prefix", MAX_KEY_BYTES, least=0)))

    async def _akeys(self, keys: KeyRange | None) -> AsyncGenerator[str, None]:
        while keys:
            page = await self._backend.arun(self._backend.page(keys, PAGE))
            for key in page:
                yield key
            keys = range_after(keys, page)

    def purge(self, user_id: str) -> dict[str, int]:
        """Delete every key under `user_prefix(user_id)` for good. Values written afterwards stay.

        Args:
            user_id: The user; required.

        Returns:
            `{"keys": n}`: the number of keys deleted.
        """
        return self._backend.run(self._purge(check_id(user_id, "user_id")))

    async def apurge(self, user_id: str) -> dict[str, int]:
        """Run `purge` asynchronously."""
        return await self._backend.arun(self._purge(check_id(user_id, "user_id")))

    async def _purge(self, user_id: str) -> dict[str, int]:
        return {"keys": await self._backend.delete_range(range_of(user_prefix(user_id)))}

    def close(self) -> None:
        """Close the connections that this store opened; a client you passed in stays open."""
        self._backend.close()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        await self._backend.aclose()
