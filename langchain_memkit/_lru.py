"""A dict that keeps what was used last, for caches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """Values by key, of which the least recently used are dropped above a limit; the caller holds a lock.

    Args:
        limit: The largest number of values, or with `size_of` the largest sum of their sizes.
        size_of: Returns the size of a value, which may change. The value used last stays then, however large.

    Example:
        >>> cache = LRUCache[str, int](2)
        >>> cache.put("a", 1), cache.put("b", 2), cache.get("a"), cache.put("c", 3)
        (None, None, 1, None)
        >>> cache.get("a"), cache.get("b"), cache.get("c")
        (1, None, 3)
    """

    def __init__(self, limit: int, size_of: Callable[[V], int] | None = None) -> None:
        self.limit = limit
        self._size_of = size_of
        self._entries: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return a value, which counts as used; None if it is not there."""
        try:
            self._entries.move_to_end(key)
        except KeyError:
            return None
        return self._entries.get(key)

    def put(self, key: K, value: V) -> None:
        """Add or replace a value, and evict others above the limit."""
        self._entries.pop(key, None)
        self._entries[key] = value
        self.evict()

    def get_or_put(self, key: K, value: V) -> V:
        """Return the value that is there, else add this one and return it."""
        if (known := self.get(key)) is not None:
            return known
        self.put(key, value)
        return value

    def values(self) -> list[V]:
        """Return all values, those used last at the end."""
        return list(self._entries.values())

    def pop(self, key: K) -> V | None:
        """Remove and return a value; None if it is not there."""
        return self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove everything."""
        self._entries.clear()

    def evict(self) -> None:
        """Drop the least recently used values above the limit: to be called when sizes have grown."""
        if self._size_of is None:
            while len(self._entries) > self.limit:
                self._entries.popitem(last=False)
            return
        size = sum(map(self._size_of, self._entries.values()))
        while size > self.limit and len(self._entries) > 1:
            size -= self._size_of(self._entries.popitem(last=False)[1])
