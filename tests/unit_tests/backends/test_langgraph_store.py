"""`LangGraphKeyValueStore`: LangChain's own suite, the contract, and what lies in the LangGraph store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from langchain_tests.integration_tests import BaseStoreAsyncTests, BaseStoreSyncTests
from langgraph.store.base import Op, PutOp, Result
from langgraph.store.memory import InMemoryStore

from langchain_memkit import (
    KeyValueMemory,
    LangGraphKeyValueStore,
    create_history_preprocessor,
    purge_user,
)
from langchain_memkit.backends import langgraph_store
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from testkit.key_values import KeyValueStoreCases

THREE = ({"a": 1}, {"b": [1, None]}, {"c": {"d": "e"}})
TTL = {"default_ttl": 0.001, "refresh_on_read": True}


class TestInMemory(KeyValueStoreCases):
    @pytest.fixture
    def make_store(self) -> Any:
        """Adapters made one by one, on one store."""
        shared = InMemoryStore()
        return lambda: LangGraphKeyValueStore(shared)


class TestLangChainSync(BaseStoreSyncTests[dict[str, Any]]):
    @pytest.fixture
    def kv_store(self) -> Any:
        """An empty store."""
        return LangGraphKeyValueStore(InMemoryStore())

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return THREE


class TestLangChainAsync(BaseStoreAsyncTests[dict[str, Any]]):
    @pytest.fixture
    async def kv_store(self) -> Any:
        """An empty store."""
        return LangGraphKeyValueStore(InMemoryStore())

    @pytest.fixture
    def three_values(self) -> Any:
        """Three values."""
        return THREE


class Recording(InMemoryStore):
    """Keeps the operations that it is given; `fail` is raised instead."""

    def __init__(self, fail: Exception | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.seen: list[list[Op]] = []
        self.fail = fail

    def batch(self, ops: Any) -> list[Result]:
        """Records."""
        self.seen.append(list(ops))
        if self.fail:
            raise self.fail
        return super().batch(self.seen[-1])

    async def abatch(self, ops: Any) -> list[Result]:
        """Records."""
        return self.batch(ops)


def test_what_is_stored() -> None:
    """Each user has a namespace, the key is the whole key, the value is text; a person can read it."""
    store = InMemoryStore()
    ours = LangGraphKeyValueStore(store, ("app", "memkit"))
    ours.mset([("u1/profile", {"name": "Némo"}), ("a.b%/x", {}), ("alone", {}), ("/app", {})])
    items = {item.namespace: (item.key, item.value) for item in store.search(())}
    assert items == {
        ("app", "memkit", "u1"): ("u1/profile", {"v": 1, "json": '{"name": "Némo"}'}),
        ("app", "memkit", "a%2Eb%25"): ("a.b%/x", {"v": 1, "json": "{}"}),
        ("app", "memkit", "alone"): ("alone", {"v": 1, "json": "{}"}),
        ("app", "memkit", "~"): ("/app", {"v": 1, "json": "{}"}),
    }
    assert repr(ours) == "LangGraphKeyValueStore(InMemoryStore, app/memkit)"


def test_listing_a_user_reads_that_user() -> None:
    """A prefix of a user's searches the user's namespace alone; without one, everything is read."""
    store = Recording()
    ours = LangGraphKeyValueStore(store)
    ours.mset([(f"{user}/{i}", {}) for user in ("u1", "u2", "u10") for i in range(3)])
    for prefix, place, keys in [
        ("u1/", ("memkit", "u1"), ["u1/0", "u1/1", "u1/2"]),
        ("u1/2", ("memkit", "u1"), ["u1/2"]),
        ("u1", ("memkit",), ["u1/0", "u1/1", "u1/2", "u10/0", "u10/1", "u10/2"]),
    ]:
        store.seen.clear()
        assert list(ours.yield_keys(prefix=prefix)) == keys
        assert [op.namespace_prefix for ops in store.seen for op in ops] == [place]


def test_others_in_the_namespace_are_left_alone() -> None:
    """Neighbours, other namespaces and items that are not ours are neither listed nor purged, nor read as ours."""
    store = InMemoryStore()
    ours, theirs = LangGraphKeyValueStore(store), LangGraphKeyValueStore(store, ("memkit", "u1"))
    ours.mset([("u1/a", {"n": 1})])
    theirs.mset([("u1/b", {"n": 2})])
    store.put(("memkit", "u1"), "odd", {"text": "an app's own"})
    store.put(("memkit", "u1"), "u1/foreign", {"text": "under a key of ours"})
    store.put(("memories", "u1"), "m", {"text": "an app's own"})
    assert list(ours.yield_keys()) == ["u1/a", "u1/foreign"]
    assert ours.mget(["u1/a", "u1/b", "u1/foreign"]) == [{"n": 1}, None, None]
    assert purge_user("u1", ours) == [{"keys": 2}]
    assert theirs.mget(["u1/b"]) == [{"n": 2}]
    assert {item.key for item in store.search(())} == {"u1/b", "odd", "m"}


def test_a_store_that_finds_too_much() -> None:
    """A store that searches by the beginning of the text gives a neighbour's items as well: they are sorted out."""

    class Loose(InMemoryStore):
        """As LIKE 'memkit.u1%' finds."""

        def batch(self, ops: Any) -> list[Result]:
            """Searches with the last label left out."""
            return super().batch(
                [op._replace(namespace_prefix=op.namespace_prefix[:1]) if hasattr(op, "limit") else op for op in ops]
            )

    ours = LangGraphKeyValueStore(Loose())
    ours.mset([("u1/a", {}), ("u10/a", {})])
    assert list(ours.yield_keys(prefix="u1/")) == ["u1/a"]
    assert ours.purge("u1") == {"keys": 1}
    assert list(ours.yield_keys()) == ["u10/a"]


def test_nothing_expires_and_nothing_is_indexed() -> None:
    """A store's default lifetime and its index are not for us: what is derived goes with what it is derived from."""
    store = Recording(index={"dims": 4, "embed": DeterministicFakeEmbedding(size=4)})
    store.supports_ttl, store.ttl_config = True, TTL  # type: ignore[misc, assignment]  # as stores with a lifetime have
    ours = LangGraphKeyValueStore(store)
    ours.mset([("u1/a", {"text": "hello"})])
    list(ours.yield_keys())
    puts = [op for ops in store.seen for op in ops if isinstance(op, PutOp)]
    assert [(op.ttl, op.index) for op in puts] == [(None, False)]
    assert store._vectors == {}
    assert store.seen[-1][0].refresh_ttl is False  # type: ignore[union-attr]  # a search


def test_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """More items than one search gives are listed and purged all the same."""
    monkeypatch.setattr(langgraph_store, "LISTED", 7)
    monkeypatch.setattr(langgraph_store, "BATCH", 4)
    ours = LangGraphKeyValueStore(InMemoryStore())
    keys = [f"u1/{i:02}" for i in range(30)]
    ours.mset([(key, {"key": key}) for key in keys])
    assert list(ours.yield_keys()) == keys
    assert ours.mget(keys[::-1]) == [{"key": key} for key in keys[::-1]]
    assert ours.purge("u1") == {"keys": 30}
    assert list(ours.yield_keys()) == []


def test_what_comes_meanwhile() -> None:
    """A listing of everything goes on beyond the user where a page ended, and finds what came meanwhile."""
    ours = LangGraphKeyValueStore(InMemoryStore())
    ours.mset([(f"u1/{i:04}", {}) for i in range(1000)])
    keys = ours.yield_keys()
    first = next(keys)
    ours.mset([("u2/late", {})])
    assert (first, list(keys)[-1]) == ("u1/0000", "u2/late")


@pytest.mark.parametrize("value", [{}, {"v": 1}, {"v": 1, "json": 5}, {"v": 1, "json": "{"}, {"v": 2, "json": "{}"}])
def test_damaged(value: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """A damaged item is logged, read as None, and left as it is."""
    store = InMemoryStore()
    store.put(("memkit", "u1"), "u1/a", value)
    assert LangGraphKeyValueStore(store).mget(["u1/a"]) == [None]
    assert "unreadable and left as it is" in caplog.text
    assert store.get(("memkit", "u1"), "u1/a").value == value  # type: ignore[union-attr]  # it is there


def test_errors() -> None:
    """A store that fails raises our errors, with its own as the cause and none of its text."""
    failure = RuntimeError("no route to postgres://admin:secret@db")
    ours = LangGraphKeyValueStore(Recording(fail=failure))
    for call in (lambda: ours.mget(["k"]), lambda: list(ours.yield_keys()), lambda: asyncio.run(ours.amget(["k"]))):
        with pytest.raises(HistoryReadError, match=r"Recording of LangGraph failed \(RuntimeError") as read:
            call()
        assert read.value.__cause__ is failure
        assert "secret" not in str(read.value)
    for call in (lambda: ours.mset([("k", {})]), lambda: asyncio.run(ours.amdelete(["k"]))):
        with pytest.raises(HistoryWriteError, match="Calling again is safe") as written:
            call()
        assert written.value.maybe_stored
        assert written.value.__cause__ is failure
        assert "secret" not in str(written.value)


@pytest.mark.parametrize("namespace", ["memkit", (), ("langgraph",), ("a.b",)])
def test_bad_namespaces(namespace: Any) -> None:
    """What cannot be a namespace of LangGraph's is refused at construction."""
    with pytest.raises(ConfigurationError, match=r"namespace"):
        LangGraphKeyValueStore(InMemoryStore(), namespace)


def test_bad_stores() -> None:
    """A LangGraph store given raw is told from a core store by the error."""
    raw: Any = InMemoryStore()
    for refused in (
        lambda: KeyValueMemory(store=raw),
        lambda: KeyValueMemory.factory(raw),
        lambda: create_history_preprocessor(lambda _: "", max_tokens=100, store=raw),
    ):
        with pytest.raises(ConfigurationError, match=r"wrap it: LangGraphKeyValueStore\(store\)"):
            refused()


def test_memories_live_in_it() -> None:
    """Key-value memory and the summaries keep what they know there, and a purge of the user takes it all."""
    store = InMemoryStore()
    kept = LangGraphKeyValueStore(store)
    books = KeyValueMemory.factory(kept)
    books("s1", "u1").add({"My Diary": "Dear diary ..."})
    assert "Dear diary" in KeyValueMemory.factory(kept)("s2", "u1").load("Read My Diary.")[0].text
    talk = [HumanMessage("Nemo lives in Sydney.", id="1"), AIMessage("Noted.", id="2")] * 3
    options: Any = {"max_tokens": 1000, "trigger": ("messages", 4), "keep": ("messages", 2), "store": kept}
    config: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
    first = create_history_preprocessor(lambda _: "Nemo lives in Sydney.", **options).invoke(talk, config)
    again = create_history_preprocessor(lambda _: pytest.fail("is not asked again"), **options).invoke(talk, config)
    assert "Nemo lives in Sydney." in first[0].text == again[0].text
    assert {item.namespace for item in store.search(())} == {("memkit", "u1")}
    purge_user("u1", books, kept)
    assert store.search(()) == []


async def test_memories_live_in_it_async() -> None:
    """The async twins of the memories work on it, on the event loop."""
    kept = LangGraphKeyValueStore(InMemoryStore())
    memory = KeyValueMemory.factory(kept)("s1", "u1")
    await memory.aadd({"My Diary": "Dear diary ..."})
    assert "Dear diary" in (await memory.aload("Read My Diary."))[0].text
