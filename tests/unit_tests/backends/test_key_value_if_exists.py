"""`mset_if_exists`: a write that is refused where its owner is gone, on every store without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from langchain_memkit import SQLiteKeyValueStore
from langchain_memkit.backends.langgraph_store import LangGraphKeyValueStore
from langchain_memkit.errors import MessageEncodeError
from langchain_memkit.stores.in_memory import MemoryStore

MAKERS: dict[str, Callable[[Path], Any]] = {
    "sqlite": lambda folder: SQLiteKeyValueStore(folder / "chat.db"),
    "langgraph": lambda folder: LangGraphKeyValueStore(InMemoryStore()),
    "memory": lambda folder: MemoryStore(),
}


@pytest.fixture(params=list(MAKERS))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A store."""
    return MAKERS[request.param](tmp_path)


@pytest.fixture(params=["sync", "async"])
def write(request: pytest.FixtureRequest, store: Any) -> Callable[..., bool]:
    """The verb in both styles."""
    if request.param == "sync":
        return store.mset_if_exists  # type: ignore[no-any-return]  # any store
    return lambda *args, **named: asyncio.run(store.amset_if_exists(*args, **named))


def test_written_where_the_key_is(store: Any, write: Callable[..., bool]) -> None:
    """New values and new versions of old ones are stored, others go, and the key stays as it is."""
    store.mset([("u1", {"own": 1}), ("u1/a", {"n": 1}), ("u1/old", {}), ("u2/a", {})])
    assert write("u1", [("u1/a", {"n": 2}), ("u1/b", {"n": 3})], delete=["u1/old", "never there"])
    assert store.mget(["u1", "u1/a", "u1/b", "u1/old", "u2/a"]) == [{"own": 1}, {"n": 2}, {"n": 3}, None, {}]
    assert write("u1", [])


def test_refused_where_the_key_is_gone(store: Any, write: Callable[..., bool]) -> None:
    """Nothing is stored and nothing goes; a key that only begins like another is another."""
    store.mset([("u1/a", {"n": 1}), ("u1/old", {}), ("u12", {})])
    assert not write("u1", [("u1/b", {"n": 2})], delete=["u1/old"])
    assert sorted(store.yield_keys()) == ["u1/a", "u1/old", "u12"]


def test_refused_before_anything_is_written(tmp_path: Path) -> None:
    """A value that no store takes, and keys that are none."""
    store = SQLiteKeyValueStore(tmp_path / "chat.db")
    store.mset([("u1", {})])
    with pytest.raises(MessageEncodeError):
        store.mset_if_exists("u1", [("u1/a", {"n": 1}), ("u1/b", {"n": object()})])
    with pytest.raises(TypeError):
        store.mset_if_exists(1, [("u1/a", {})])  # type: ignore[arg-type]  # as a caller without types may
    with pytest.raises(TypeError):
        store.mset_if_exists("u1", [("u1/a", {})], delete="u1")
    assert list(store.yield_keys()) == ["u1"]


def test_nothing_stays_behind_a_purge(tmp_path: Path) -> None:
    """Eight writers while the owner goes, and then what belongs to it: whoever was late has stored nothing."""
    store = SQLiteKeyValueStore(tmp_path / "chat.db")

    def go_on(writer: int) -> int:
        return sum(1 for _ in _written(store, writer))

    for _ in range(5):
        store.mset([("owner", {})])
        with ThreadPoolExecutor(8) as pool:
            counts = [pool.submit(go_on, n) for n in range(8)]
            while len(list(store.yield_keys(prefix="fact/"))) < 20:
                pass
            store.mdelete(["owner"])
            store.mdelete(list(store.yield_keys(prefix="fact/")))
            assert sum(count.result() for count in counts) >= 20
        assert list(store.yield_keys()) == []


def _written(store: Any, writer: int) -> Iterator[int]:
    number = 0
    while store.mset_if_exists("owner", [(f"fact/{writer}/{number}", {})]):
        yield number
        number += 1
