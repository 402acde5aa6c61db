"""The default key-value store for summaries, entities and entries: in process."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.stores import InMemoryStore

from langchain_memkit._locks import ForkSafeLock

__all__ = ["MemoryStore"]


class MemoryStore(InMemoryStore):
    """Thread-safe in-process key-value store with sorted keys, so that a prefix scan does not visit all keys."""

    def __init__(self) -> None:
        super().__init__()
        self._sorted: list[str] = []
        self._lock = ForkSafeLock()

    def __repr__(self) -> str:
        """Name no keys: they contain user ids."""
        return "MemoryStore()"

    def mset(self, key_value_pairs: Sequence[tuple[str, Any]]) -> None:
        """Store values."""
        with self._lock:
            self._put(key_value_pairs)

    def mset_if_exists(self, key: str, key_value_pairs: Sequence[tuple[str, Any]], delete: Sequence[str] = ()) -> bool:
        """Store values and delete keys, atomically, only if `key` exists; return whether it did."""
        with self._lock:
            exists = key in self.store
            if exists:
                self._put(key_value_pairs)
                self._remove(delete)
            return exists

    async def amset_if_exists(
        self, key: str, key_value_pairs: Sequence[tuple[str, Any]], delete: Sequence[str] = ()
    ) -> bool:
        """Run `mset_if_exists` asynchronously."""
        return self.mset_if_exists(key, key_value_pairs, delete)

    def mdelete(self, keys: Sequence[str]) -> None:
        """Delete keys; missing ones are ignored."""
        with self._lock:
            self._remove(keys)

    def _put(self, pairs: Sequence[tuple[str, Any]]) -> None:
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
