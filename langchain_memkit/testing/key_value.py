"""Contract for memkit's key-value stores. The list of cases is the specification.

Example:
    ```python
    class TestMyStore(KeyValueStoreContract):
        @pytest.fixture
        def make_store(self):
            server = MyServer()
            return lambda: MyStore(server)
    ```
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeAlias

from langchain_memkit.base import user_prefix
from langchain_memkit.testing._styles import BothStyles, Call

__all__ = ["KeyValueStoreContract"]

MakeStore: TypeAlias = Callable[[], Any]

UNUSUAL_KEYS = ["$ne", '{"$gt": ""}', "a.b", "a%", "a_", "' OR 1=1 --", "^a.*", "日本", "🐠", "\U0010ffff", "\uffff"]
EDGES = ["a", "a\ud7ff", "a\ue000", "a\uffff", "a\U00010000", "a\U0010ffff", "a\U0010ffff\U0010ffff", "b", "A", "é"]
VALUE: dict[str, Any] = {
    "text": "🐠 naïve\x00",
    "n": [1, 2.5, -0.0, True, None, 2**63, 10**400, float("inf")],
    "deep": {"a.b": {"$gt": 1, "": []}, "_id": {}, "_memkit": "x"},
    "odd": {7: ("a", {"b"}, b"\xff"), "lone": "\ud83d"},
    "at": datetime(2026, 1, 2, 3, 4, 5, 678901, UTC),
}


class KeyValueStoreContract(BothStyles):
    """Contract for a `BaseStore` of dicts with async twins, `purge` and `close`.

    Give it a `make_store` fixture: `make_store()` returns a new store object over one place per test.
    """

    def test_starts_empty(self, make_store: MakeStore, call: Call) -> None:
        """A new store is empty, and calls without work are no errors."""
        store = make_store()
        assert call(store, "mget", ["a", "b"]) == [None, None]
        assert call(store, "mget", []) == []
        call(store, "mset", [])
        call(store, "mdelete", [])
        call(store, "mdelete", ["a"])
        assert call(store, "yield_keys") == []

    def test_survives_reopening(self, make_store: MakeStore, call: Call) -> None:
        """Another object reads what one has stored, and so does the first after it was closed."""
        store = make_store()
        call(store, "mset", [("k", VALUE)])
        assert call(make_store(), "mget", ["k"]) == [VALUE]
        call(store, "close")
        assert call(store, "mget", ["k"]) == [VALUE]
        (value,) = call(store, "mget", ["k"])
        assert [type(n) for n in value["n"]] == [type(n) for n in VALUE["n"]]

    def test_repeated_keys(self, make_store: MakeStore, call: Call) -> None:
        """Repeated keys behave as in a dict: the last value is stored whole, and each requested key is answered."""
        store = make_store()
        call(store, "mset", [("k", {"n": 1}), ("other", {"a": 1, "b": 2}), ("k", {"n": 2})])
        assert call(store, "mget", ["k", "none", "k"]) == [{"n": 2}, None, {"n": 2}]
        call(store, "mdelete", ["k", "k"])
        assert call(store, "yield_keys") == ["other"]
        call(store, "mset", [("other", {"c": 3})])
        assert call(store, "mget", ["other"]) == [{"c": 3}]

    def test_unusual_keys(self, make_store: MakeStore, call: Call) -> None:
        """Every text is a key, and two quoted ids of any kind fit into one: operators and wildcards are plain text."""
        store, odd = make_store(), [*UNUSUAL_KEYS, "x" * 4096, user_prefix("é" * 256) + user_prefix("\x7f" * 512)]
        call(store, "mset", [(key, {"key": key}) for key in odd])
        assert call(store, "mget", odd) == [{"key": key} for key in odd]
        assert call(store, "yield_keys") == sorted(odd)
        for key in odd:
            assert call(store, "yield_keys", prefix=key) == [key]
        call(store, "mdelete", odd[:5])
        assert call(store, "yield_keys") == sorted(odd[5:])

    def test_keys_by_prefix(self, make_store: MakeStore, call: Call) -> None:
        """Keys come sorted by code point; a prefix finds what begins with it, itself included, and nothing else."""
        store = make_store()
        call(store, "mset", [(key, {}) for key in EDGES])
        assert call(store, "yield_keys") == call(store, "yield_keys", prefix="") == sorted(EDGES)
        for prefix in ["a", "a\ud7ff", "a\U0010ffff", "\U0010ffff", "c", "é"]:
            assert call(store, "yield_keys", prefix=prefix) == sorted(key for key in EDGES if key.startswith(prefix))

    def test_many_keys(self, make_store: MakeStore, call: Call) -> None:
        """Thousands of keys are stored, listed over several pages, read and deleted."""
        store, many = make_store(), [f"u/{i:05}" for i in range(2500)]
        call(store, "mset", [(key, {"i": i}) for i, key in enumerate(many)])
        call(store, "mset", [("t/1", {}), ("v/1", {})])
        assert call(store, "yield_keys", prefix="u/") == many
        assert call(store, "mget", many[::-1])[:2] == [{"i": 2499}, {"i": 2498}]
        call(store, "mdelete", many[:1000])
        assert call(store, "yield_keys") == ["t/1", *many[1000:], "v/1"]
        assert call(store, "purge", "u") == {"keys": 1500}
        assert call(store, "yield_keys") == ["t/1", "v/1"]

    def test_purge_spares_other_users(self, make_store: MakeStore, call: Call) -> None:
        """Purging a user takes all that lies under the user's prefix, whatever the ids of others look like."""
        store, users = make_store(), ["a", "a/b", "ab", "A", "a%2Fb", "a\U0010ffff", "%", "/"]
        mine = {user: [user_prefix(user) + name for name in ("", "profile", "x/y")] for user in users}
        call(store, "mset", [(key, {}) for keys in [*mine.values(), ["/nobody's", "a"]] for key in keys])
        for user in users:
            assert call(store, "yield_keys", prefix=user_prefix(user)) == sorted(mine[user])
            assert call(store, "purge", user) == {"keys": 3}
            assert call(store, "purge", user) == {"keys": 0}
            del mine[user]
            left = [key for keys in mine.values() for key in keys]
            assert call(store, "yield_keys") == sorted([*left, "/nobody's", "a"])

    def test_writers_at_once(self, make_store: MakeStore) -> None:
        """Parallel writers lose nothing; a shared key holds the complete value of one of them."""

        def write(writer: int) -> None:
            store = make_store()
            for i in range(20):
                store.mset([(f"{writer}/{i}", {"n": i}), ("shared", {"a": writer, "b": [writer] * 50})])

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, range(4)))
        store = make_store()
        assert store.mget([f"{w}/{i}" for w in range(4) for i in range(20)]) == [{"n": i} for i in range(20)] * 4
        (shared,) = store.mget(["shared"])
        assert shared["b"] == [shared["a"]] * 50
