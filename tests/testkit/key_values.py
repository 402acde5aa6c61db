"""Cases of memkit's own key-value stores beyond the contract: refusals, and what is the same over every backend."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document

from langchain_memkit.base import apurge_user, purge_user
from langchain_memkit.errors import HistoryWriteError, MessageEncodeError
from langchain_memkit.testing._styles import Call
from langchain_memkit.testing.key_value import EDGES, KeyValueStoreContract, MakeStore
from testkit.properties import SETTINGS, keys, values

HOSTILE_KEYS = [{"$ne": None}, {"$gt": ""}, None, 123, b"k", ["k"], True, ("k",)]
BAD_KEYS = ["", "a\x00b", "\ud800", "x" * 4097, "é" * 2049]

operations = st.lists(
    st.tuples(st.just("mset"), st.lists(st.tuples(st.sampled_from(EDGES), st.fixed_dictionaries({"n": st.integers()}))))
    | st.tuples(st.sampled_from(["mdelete", "mget"]), st.lists(st.sampled_from(EDGES)))
    | st.tuples(st.just("yield_keys"), st.sampled_from(["", "a", "c", *EDGES])),
    max_size=12,
)


class KeyValueStoreCases(KeyValueStoreContract):
    """The contract, and these cases; the fixture is the contract's."""

    def test_refusals(self, make_store: MakeStore, call: Call) -> None:
        """A value that would not come back equal is refused with its path, and its whole call with it."""
        store = make_store()
        cases = [
            ({"a": [1, float("nan")]}, "values['k']['a'][1]"),
            ({"a": {"b": object()}}, "values['k']['a']['b']"),
            ({"a": lambda: 1}, "values['k']['a']"),
            ("text", "values['k']"),
            (bytearray(b"a"), "values['k']"),
            (Document("a", metadata={"n": float("nan")}), "values['k']['metadata']['n']"),
            (type("Mine", (Document,), {})("a"), "values['k']"),
            (type("Mine", (bytes,), {})(b"a"), "values['k']"),
            ([("a", 1)], "values['k']"),
            (None, "values['k']"),
        ]
        for bad, path in cases:
            with pytest.raises(MessageEncodeError) as raised:
                call(store, "mset", [("good", {}), ("k", bad)])
            assert raised.value.path == path
            assert str(raised.value).endswith("Nothing was stored. Convert or drop it before you store it.")
        assert call(store, "yield_keys") == []

    @pytest.mark.parametrize("bad", HOSTILE_KEYS, ids=repr)
    def test_keys_must_be_strings(self, make_store: MakeStore, call: Call, bad: Any) -> None:
        """Anything but a string is a TypeError before any I/O: operators never reach a filter."""
        store = make_store()
        for name, argument in (("mget", ["k", bad]), ("mdelete", ["k", bad]), ("mset", [("k", {}), (bad, {})])):
            with pytest.raises(TypeError):
                call(store, name, argument)
        with pytest.raises(TypeError):
            call(store, "purge", bad)
        if bad is not None:
            with pytest.raises(TypeError):
                call(store, "yield_keys", prefix=bad)
        with pytest.raises(TypeError):
            call(store, "mget", "letters are no keys")
        assert call(store, "yield_keys") == []

    @pytest.mark.parametrize("bad", BAD_KEYS, ids=lambda bad: repr(bad[:4]))
    def test_malformed_keys(self, make_store: MakeStore, call: Call, bad: str) -> None:
        """Empty, too long, NUL and lone surrogates are a ValueError; an empty prefix is every key."""
        store = make_store()
        for name, argument in (("mget", [bad]), ("mdelete", [bad]), ("mset", [(bad, {})]), ("purge", bad)):
            with pytest.raises(ValueError, match=r"key|user_id"):
                call(store, name, argument)
        if bad:
            with pytest.raises(ValueError, match="prefix"):
                call(store, "yield_keys", prefix=bad)

    def test_context_managers(self, make_store: MakeStore) -> None:
        """A store closes with its block, in both styles."""

        async def inside() -> object:
            async with make_store() as store:
                return await store.amget(["k"])

        with make_store() as store:
            store.mset([("k", {"n": 1})])
        assert asyncio.run(inside()) == [{"n": 1}]

    def test_is_a_part_of_purge_user(self, make_store: MakeStore) -> None:
        """`purge_user` and its twin take a store."""
        store = make_store()
        store.mset([("u1/a", {}), ("u2/a", {})])
        assert purge_user("u1", store) == [{"keys": 1}]
        assert asyncio.run(apurge_user("u2", store)) == [{"keys": 1}]

    def test_what_is_accepted_comes_back_equal(self, make_store: MakeStore) -> None:
        """300 random values: equal on return, or refused with nothing stored."""
        store, accepted = make_store(), 0

        @settings(SETTINGS, max_examples=300)
        @given(st.dictionaries(keys, values, max_size=3))
        def check(value: dict[object, object]) -> None:
            nonlocal accepted
            key = str(uuid4())
            try:
                store.mset([(key, value)])
            except HistoryWriteError:
                assert store.mget([key]) == [None]
                return
            accepted += 1
            assert store.mget([key]) == [value]

        check()
        assert accepted > 150, "most of what was tried should be storable"

    def test_behaves_like_a_dict(self, make_store: MakeStore, call: Call) -> None:
        """After random operations the store holds the same as a dict."""
        store = make_store()

        @settings(SETTINGS, max_examples=60)
        @given(operations)
        def check(steps: list[tuple[str, Any]]) -> None:
            call(store, "mdelete", EDGES)
            model: dict[str, object] = {}
            for name, argument in steps:
                listing = name == "yield_keys"
                got = call(store, name, prefix=argument) if listing else call(store, name, argument)
                if name == "mset":
                    model.update(argument)
                elif name == "mdelete":
                    model = {key: value for key, value in model.items() if key not in argument}
                elif name == "mget":
                    assert got == [model.get(key) for key in argument]
                else:
                    assert got == sorted(key for key in model if key.startswith(argument))

        check()
