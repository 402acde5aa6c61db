"""`MemoryStore`: the keys that it lists are those that it holds."""

from __future__ import annotations

from langchain_memkit.stores.in_memory import MemoryStore


def test_a_deleted_none_is_not_listed() -> None:
    """A key whose value is None is deleted like any other, and listed once when it is stored again."""
    store = MemoryStore()
    store.mset([("a", None), ("b", 1)])
    store.mdelete(["a", "a"])
    assert list(store.yield_keys()) == ["b"]
    store.mset([("a", None)])
    assert list(store.yield_keys()) == ["a", "b"]
