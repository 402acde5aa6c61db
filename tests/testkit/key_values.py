"""Cases of memkit's own key-value stores beyond the contract: refusals, and what is the same over every backend."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document

from langchain_memkit.base import apurge_user, purge_user
from langchain_memkit.errors import HistoryWriteError, MessageEncodeError
from langchain_memkit.testing._styles import Call
from langchain_memkit.testing.key_value import EDGES, VALUE, KeyValueStoreContract, MakeStore
from testkit.examples import examples
from testkit.properties import SETTINGS, keys, values

HOSTILE_KEYS = [{"$ne": None}, {"$gt": ""}, None, 123, b"k", ["k"], True, ("k",)]
BAD_KEYS = ["", "a\x00b", "\ud800", "x" * 4097, "é" * 2049]
Wrap: TypeAlias = Callable[[object], object]
NESTINGS: dict[str, Wrap] = {
    "dict": lambda value: {"d": value},
    "int key": lambda value: {1: value},
    "list": lambda value: {"d": [value]},
    "tuple": lambda value: {"d": (value,)},
    "document": lambda value: Document("text", metadata={"d": value}),
}
DOCUMENTS = [
    Document("Nemo is a fish. 🐠\x00\ud83d", id="1", metadata={"n": 1, "at": VALUE["at"], "a.b": {"$gt": (1, b"2")}}),
    Document("", metadata={}),
    Document("_memkit", id="", metadata={"_memkit": "bytes", "value": "YQ=="}),
]
BYTES = [b"", b"\x00\xff", b"_memkit", bytes(range(256)) * 50]

operations = st.lists(
    st.tuples(st.just("mset"), st.lists(st.tuples(st.sampled_from(EDGES), st.fixed_dictionaries({"n": st.integers()}))))
    | st.tuples(st.sampled_from(["mdelete", "mget"]), st.lists(st.sampled_from(EDGES)))
    | st.tuples(st.just("yield_keys"), st.sampled_from(["", "a", "c", *EDGES])),
    max_size=12,
)


class KeyValueStoreCases(KeyValueStoreContract):
    """The contract, and these cases; the fixture is the contract's."""

    def test_values_are_copies(self, make_store: MakeStore, call: Call) -> None:
        """Changes that the caller makes to a value, before or after, reach neither the store nor another reader."""
        store, given_value = make_store(), copy.deepcopy(VALUE)
        call(store, "mset", [("k", given_value)])
        given_value["n"].clear()
        first, second = call(store, "mget", ["k", "k"])
        first["deep"].clear()
        assert [second, *call(store, "mget", ["k"])] == [VALUE, VALUE]

    def test_bytes_and_documents(self, make_store: MakeStore, call: Call) -> None:
        """Bytes and Documents come back equal and of the same type, next to dicts that look like them."""
        store = make_store()
        given_values: list[object] = [*BYTES, *DOCUMENTS, {"_memkit": "bytes", "value": "YQ=="}, {"a": b"1"}]
        pairs = [(str(i), value) for i, value in enumerate(given_values)]
        call(store, "mset", pairs)
        got = call(make_store(), "mget", [key for key, _ in pairs])
        assert got == given_values
        assert [type(value) for value in got] == [type(value) for value in given_values]
        call(store, "mset", [("0", {"n": 1})])
        assert call(store, "mget", ["0"]) == [{"n": 1}]

    @pytest.mark.parametrize("wrap", NESTINGS.values(), ids=NESTINGS.keys())
    def test_the_deepest_value_is_readable(self, make_store: MakeStore, wrap: Wrap) -> None:
        """Every accepted nesting comes back: no store has a lower limit than the refusal."""
        store = make_store()

        def deeper(depth: int, value: object) -> None:
            store.mset([(f"{depth:02}", value)])
            assert store.mget([f"{depth:02}"]) == [value]
            deeper(depth + 1, wrap(value))

        with pytest.raises(MessageEncodeError, match="nested deeper"):
            deeper(1, wrap({}))
        assert len(list(store.yield_keys())) > 15

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
        """Random values: equal on return, or refused with nothing stored."""
        store = make_store()
        accepted = tried = 0

        @settings(SETTINGS, max_examples=examples(60))
        @given(st.dictionaries(keys, values, max_size=3))
        def check(value: dict[object, object]) -> None:
            nonlocal accepted, tried
            tried += 1
            key = str(uuid4())
            try:
                store.mset([(key, value)])
            except HistoryWriteError:
                assert store.mget([key]) == [None]
                return
            accepted += 1
            assert store.mget([key]) == [value]

        check()
        assert accepted > tried / 2, "most of what was tried should be storable"

    def test_behaves_like_a_dict(self, make_store: MakeStore, call: Call) -> None:
        """After random operations the store holds the same as a dict."""
        store = make_store()

        @settings(SETTINGS, max_examples=examples(15))
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
