"""The cache that drops what was used least recently."""

from __future__ import annotations

from langchain_memkit._lru import LRUCache


def test_the_least_recently_used_goes_first() -> None:
    """Reading and replacing a value count as use; adding one more than the limit drops the one used longest ago."""
    cache = LRUCache[str, int](3)
    for number, name in enumerate("abc"):
        cache.put(name, number)
    assert cache.get("a") == 0
    cache.put("b", 10)
    cache.put("d", 3)
    assert [cache.get(name) for name in "abcd"] == [0, 10, None, 3]


def test_a_value_is_added_once() -> None:
    """`get_or_put` returns the first value, which then counts as used, and the given one after it was removed."""
    cache = LRUCache[str, list[int]](2)
    first = cache.get_or_put("a", [1])
    cache.put("b", [2])
    assert cache.get_or_put("a", [3]) is first
    cache.put("c", [4])
    assert (cache.get("b"), cache.pop("a"), cache.pop("a")) == (None, first, None)
    assert cache.get_or_put("a", [5]) == [5]
    cache.clear()
    assert [cache.get(name) for name in "abc"] == [None] * 3


def test_without_room_nothing_is_kept() -> None:
    """A limit of 0 keeps nothing, and a limit that was lowered holds from the next value on."""
    cache = LRUCache[str, int](0)
    cache.put("a", 1)
    assert cache.get("a") is None
    cache.limit = 2
    for name in "abc":
        cache.put(name, 1)
    cache.limit = 1
    cache.put("d", 1)
    assert [cache.get(name) for name in "abcd"] == [None, None, None, 1]


def test_sizes_that_grow() -> None:
    """The sizes are those of the moment; what was used last stays even if it is over the limit alone."""
    cache = LRUCache[str, bytearray](10, len)
    cache.put("a", bytearray(6))
    cache.put("b", bytearray(4))
    cache.evict()
    assert cache.get("a") == bytearray(6)
    grown = cache.get("b")
    assert grown is not None
    grown.extend(bytes(7))
    cache.evict()
    assert (cache.get("a"), cache.get("b")) == (None, bytearray(11))
