"""`LangGraphKeyValueStore`: a LangGraph store as the key-value store of our memories."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, SearchOp

from langchain_memkit._sync import Flow, Operation, adrive, drive
from langchain_memkit.backends._key_value.data import KeyRange, Stored
from langchain_memkit.backends._key_value.verbs import KeyValueStore, V
from langchain_memkit.base import check_text
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from langchain_memkit.messages.codec import FORMAT_VERSION

__all__ = ["LangGraphKeyValueStore"]

T = TypeVar("T")

BATCH = 500  # operations of one call
LISTED = 10_000  # items of one search


class LangGraphKeyValueStore(KeyValueStore[V]):
    """A store of LangGraph's (`InMemoryStore`, `PostgresStore`, ...) as a LangChain `BaseStore`.

    For apps whose graphs have a store already: `KeyValueMemory`, `EntityMemory` and `create_history_preprocessor` take
    this as their `store`. Values are dicts, bytes or Documents. Everything lies under one namespace, each user's in a
    namespace of its own below it; the value of an item is `{"v": 1, "json": "..."}`. What is not used, and why:
    LangGraph's search indexes nothing of it; items never expire, whatever the store's `default_ttl` says, because what
    is derived must go with what it was derived from; a key listing reads the values as well, because LangGraph lists
    items, not keys.

    Args:
        store: The store. It is yours: nothing here closes it or sets it up.
        namespace: What all our items lie under, as labels. Use one of its own.

    Raises:
        ConfigurationError: `store` is no store of LangGraph's, or the namespace cannot be one.

    Example:
        >>> from langgraph.store.memory import InMemoryStore
        >>> store = LangGraphKeyValueStore(InMemoryStore())
        >>> store.mset([("u1/profile", {"name": "Nemo"})])
        >>> store.mget(["u1/profile", "u1/address"]), store.purge("u1")
        ([{'name': 'Nemo'}, None], {'keys': 1})
    """

    def __init__(self, store: BaseStore, namespace: Sequence[str] = ("memkit",)) -> None:
        given: object = store
        if not isinstance(given, BaseStore):
            msg = f"store must be a BaseStore of langgraph.store.base, not {type(given).__name__}"
            raise ConfigurationError(msg)
        super().__init__(_Items(store, _checked(namespace)))
        self._shown = f"{type(store).__name__}, {'/'.join(namespace)}"

    def __repr__(self) -> str:
        """Names the store's class and the namespace."""
        return f"{type(self).__name__}({self._shown})"


@dataclass(slots=True)
class StoreBatch(Operation[list[Any]]):
    """LangGraph's operations, sent in one call; their results."""

    operations: Sequence[Op]


class _Items:
    """Flows on the items."""

    def __init__(self, store: BaseStore, namespace: tuple[str, ...]) -> None:
        self._store = store
        self._namespace = namespace

    def run(self, flow: Flow[T]) -> T:
        return drive(flow, self._send)

    async def arun(self, flow: Flow[T]) -> T:
        return await adrive(flow, self._asend)

    def _send(self, batch: StoreBatch) -> list[Any]:
        operations = batch.operations
        try:
            return self._store.batch(operations)
        except Exception as error:
            raise self._failed(operations, error) from error

    async def _asend(self, batch: StoreBatch) -> list[Any]:
        operations = batch.operations
        try:
            try:
                return await self._store.abatch(operations)
            except NotImplementedError:  # a store that is sync only
                return await asyncio.to_thread(self._store.batch, operations)
        except Exception as error:
            raise self._failed(operations, error) from error

    def _failed(self, operations: Sequence[Op], error: Exception) -> Exception:
        """Without the store's own text, which may hold what it connects to; that is the cause."""
        what = f"{type(self._store).__name__} of LangGraph failed ({type(error).__name__}; see the cause)"
        if not any(isinstance(operation, PutOp) for operation in operations):
            return HistoryReadError(f"cannot read: the {what}")
        return HistoryWriteError(f"cannot write: the {what}. Calling again is safe.", maybe_stored=True)

    async def get(self, keys: Sequence[str]) -> dict[str, Stored]:
        found: list[Item | None] = []
        for i in range(0, len(keys), BATCH):
            found += await StoreBatch([GetOp(self._place(key), key) for key in keys[i : i + BATCH]])
        return {key: _stored(item) for key, item in zip(keys, found, strict=True) if item is not None}

    async def set(self, values: dict[str, Any]) -> None:
        # ttl=None: never, whatever the store's default
        await self._put(
            PutOp(
                self._place(key),
                key,
                {"v": FORMAT_VERSION, "json": json.dumps(value, ensure_ascii=False)},
                index=False,
                ttl=None,
            )
            for key, value in values.items()
        )

    async def set_if_exists(self, key: str, values: dict[str, Any], gone: Sequence[str]) -> bool:
        """LangGraph has no conditional write: the key is looked for afterwards, and what came too late goes."""
        await self.set(values)
        exists = key in await self.get([key])
        await self.delete(gone if exists else list(values))
        return exists

    async def delete(self, keys: Sequence[str]) -> None:
        await self._put(PutOp(self._place(key), key, None) for key in keys)

    async def _put(self, operations: Iterable[PutOp]) -> None:
        listed = list(operations)
        for i in range(0, len(listed), BATCH):
            await StoreBatch(listed[i : i + BATCH])

    async def page(self, keys: KeyRange, limit: int) -> list[str]:
        """All of them, since a search has read them all."""
        place, found, offset = self._common_place(keys), set[str](), 0
        while True:
            # refresh_ttl: looking for keys is no use of the items
            (items,) = await StoreBatch([SearchOp(place, limit=LISTED, offset=offset, refresh_ttl=False)])
            found |= {item.key for item in items if self._is_in(item, keys)}
            if len(items) < LISTED:
                return sorted(found)
            offset += len(items)

    async def delete_range(self, keys: KeyRange) -> int:
        gone: set[str] = set()
        # again: what is deleted or written meanwhile moves the pages
        while found := [key for key in await self.page(keys, LISTED) if key not in gone]:
            await self.delete(found)
            gone |= set(found)
        return len(gone)

    def close(self) -> None:
        """Nothing: the store is the caller's."""

    async def aclose(self) -> None:
        """Nothing: the store is the caller's."""

    def _place(self, key: str) -> tuple[str, ...]:
        """The namespace of a key: `user_prefix(user_id)` is one of its own, so a user's keys are found by it."""
        # labels hold no full stop; two that fall together do no harm, since the item's key is the whole key
        return *self._namespace, key.partition("/")[0].replace("%", "%25").replace(".", "%2E") or "~"

    def _common_place(self, keys: KeyRange) -> tuple[str, ...]:
        head, slash, _ = keys.begin.partition("/")
        # "0" is what comes after "/": below that, every key begins with the head and a slash
        return self._place(head) if slash and keys.end is not None and keys.end <= f"{head}0" else self._namespace

    def _is_in(self, item: Item, keys: KeyRange) -> bool:
        """Some stores find by the beginning of the text, so a neighbour's items may be among them."""
        inside = keys.begin <= item.key and (keys.end is None or item.key < keys.end)
        return inside and tuple(item.namespace) == self._place(item.key)


def _stored(item: Item) -> Stored:
    value: Any = item.value
    try:
        return Stored(json.loads(value["json"]), value["v"])
    except (KeyError, TypeError, ValueError, RecursionError):  # not ours, or damaged
        return Stored(None, value.get("v") if isinstance(value, dict) else None)


def _checked(namespace: Sequence[str]) -> tuple[str, ...]:
    labels = () if isinstance(namespace, str) else tuple(namespace)
    if not labels or labels[0] == "langgraph":
        msg = f"namespace must be labels, as in ('memkit',), the first not 'langgraph'; got {namespace!r:.100}"
        raise ConfigurationError(msg)
    for label in labels:
        if "." in check_text(label, "each label of the namespace", 4096):
            msg = f"a label of a namespace holds no full stop; got {label!r:.100}"
            raise ConfigurationError(msg)
    return labels
