"""The key-value store of summaries, entities and entries: any `BaseStore` of dicts, by default one in process."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, TypeAlias

from langchain_core.stores import BaseStore, InMemoryStore

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._sync import Step
from langchain_memkit.base import describe_type
from langchain_memkit.errors import ConfigurationError

StoredDict: TypeAlias = dict[str, Any]
"""A value of a key-value store: plain JSON data."""

Pairs: TypeAlias = Sequence[tuple[str, StoredDict]]
"""Keys with their values."""

DictStore: TypeAlias = BaseStore[str, StoredDict]
"""A key-value store of dicts."""


class MemoryStore(InMemoryStore):
    """Thread-safe in-process key-value store with sorted keys, so that a prefix scan does not visit all keys."""

    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[str] = []
        self._lock = ForkSafeLock()

    def __repr__(self) -> str:
        """Name no keys: they contain user ids."""
        return "MemoryStore()"

    def mset(self, key_value_pairs: Pairs) -> None:
        """Store values."""
        with self._lock:
            self._put(key_value_pairs)

    def mdelete(self, keys: Sequence[str]) -> None:
        """Delete keys; missing ones are ignored."""
        with self._lock:
            self._remove(keys)

    def _put(self, pairs: Pairs) -> None:
        for key, value in pairs:
            if key not in self.store:
                insort(self._sorted, key)
            self.store[key] = value

    def _remove(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self.store:
                del self.store[key]
                del self._sorted[bisect_left(self._sorted, key)]

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yield the keys with a prefix, sorted, as of the time of the call."""
        begin = prefix or ""
        with self._lock:
            first = last = bisect_left(self._sorted, begin)
            while last < len(self._sorted) and self._sorted[last].startswith(begin):
                last += 1
            keys = self._sorted[first:last]
        yield from keys

    async def ayield_keys(self, *, prefix: str | None = None) -> AsyncIterator[str]:
        """Run `yield_keys` asynchronously."""
        for key in self.yield_keys(prefix=prefix):
            yield key


def store_or_memory(store: DictStore | None) -> DictStore:
    """Return a store that the caller passed as `store=`; a new one in process for None.

    Raises:
        ConfigurationError: It is not a LangChain store; one of LangGraph's has to be wrapped.
    """
    given: object = store
    if given is not None and not isinstance(given, BaseStore):
        msg = f"store must be a BaseStore of langchain_core.stores, not {describe_type(given, BaseStore)}"
        raise ConfigurationError(msg)
    return MemoryStore() if store is None else store


def read_values(store: DictStore, keys: Sequence[str]) -> Step[list[StoredDict | None]]:
    """Read the values of keys; None for each that is not there."""
    return Step(lambda: store.mget(keys), lambda: store.amget(keys))


def write_values(store: DictStore, pairs: Pairs) -> Step[None]:
    """Store pairs of key and value, in this order."""
    return Step(lambda: store.mset(pairs), lambda: store.amset(pairs))


def delete_keys(store: DictStore, keys: Sequence[str]) -> Step[None]:
    """Delete keys; missing ones are ignored."""
    return Step(lambda: store.mdelete(keys), lambda: store.amdelete(keys))


def list_keys(store: DictStore, prefix: str) -> Step[list[str]]:
    """List the keys under a prefix, sorted."""

    async def collect() -> list[str]:
        return sorted([key async for key in store.ayield_keys(prefix=prefix)])

    return Step(lambda: sorted(store.yield_keys(prefix=prefix)), collect)
