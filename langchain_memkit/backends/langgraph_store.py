"""`LangGraphKeyValueStore`: adapts a LangGraph store to the key-value store that our memories use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, SearchOp

from langchain_memkit._sync import Step
from langchain_memkit.base import check_text
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.stores.key_value import KeyRange, KeyValueBackend, KeyValueStore, StoredValue, V

__all__ = ["LangGraphKeyValueStore"]

BATCH = 500  # operations of one call
LISTED = 10_000  # items of one search


class LangGraphKeyValueStore(KeyValueStore[V]):
    """A LangChain `BaseStore` on a LangGraph store (`InMemoryStore`, `PostgresStore`, ...).

    For apps whose graphs have a store already: `KeyValueMemory` and `create_history_preprocessor` take this as their
    `store`. Values are dicts, bytes or Documents. All items lie under one namespace, with a namespace for
    each user below it; the value of an item is `{"v": 1, "json": "..."}`. LangGraph's search does not index the items.
    They never expire, whatever the store's `default_ttl` says, because derived data must be deleted together with its
    source. Listing keys reads the values as well, because LangGraph lists items, not keys.

    Args:
        store: The store. You set it up and close it.
        namespace: The labels of the namespace for all our items. Use one of its own.

    Raises:
        ConfigurationError: The namespace is not valid.

    Example:
        >>> from langgraph.store.memory import InMemoryStore
        >>> store = LangGraphKeyValueStore(InMemoryStore())
        >>> store.mset([("u1/profile", {"name": "Nemo"})])
        >>> store.mget(["u1/profile", "u1/address"]), store.purge("u1")
        ([{'name': 'Nemo'}, None], {'keys': 1})
    """

    def __init__(self, store: BaseStore, namespace: Sequence[str] = ("memkit",)) -> None:
        labels = () if isinstance(namespace, str) else tuple(namespace)
        if not labels or labels[0] == "langgraph":
            msg = f"namespace must be labels, as in ('memkit',), the first not 'langgraph'; got {namespace!r:.100}"
            raise ConfigurationError(msg)
        for label in labels:
            if "." in check_text(label, "each label of the namespace", 4096):
                raise ConfigurationError(f"a label of a namespace holds no full stop; got {label!r:.100}")
        super().__init__(_Items(store, labels))


class _Items(KeyValueBackend):
    """Flows on the items of a LangGraph store."""

    def __init__(self, store: BaseStore, namespace: tuple[str, ...]) -> None:
        self._store = store
        self._namespace = namespace

    def __str__(self) -> str:
        """Name the store's class and the namespace."""
        return f"{type(self._store).__name__}, {'/'.join(self._namespace)}"

    async def _sent(self, operations: Sequence[Op]) -> list[Any]:
        """Send operations, so many in one call, and return their results in order."""
        return [each for i in range(0, len(operations), BATCH) for each in await self._batch(operations[i : i + BATCH])]

    async def _batch(self, operations: Sequence[Op]) -> list[Any]:

        async def send() -> list[Any]:
            try:
                return await self._store.abatch(operations)
            except NotImplementedError:  # a store that is sync only
                return await asyncio.to_thread(self._store.batch, operations)

        try:
            return await Step(lambda: self._store.batch(operations), send)
        except Exception as error:
            # The store's own error, whose text may hold credentials, is the cause.
            what = f"{type(self._store).__name__} of LangGraph failed ({type(error).__name__}; see the cause)"
            if not any(isinstance(operation, PutOp) for operation in operations):
                raise HistoryReadError(f"cannot read: the {what}") from error
            raise HistoryWriteError(f"cannot write: the {what}. Calling again is safe.", maybe_stored=True) from error

    async def get(self, keys: Sequence[str]) -> dict[str, StoredValue]:
        found: list[Item | None] = await self._sent([GetOp(self._place(key), key) for key in keys])
        return {key: _stored(item) for key, item in zip(keys, found, strict=True) if item is not None}

    async def set(self, values: dict[str, object]) -> None:
        # `ttl=None`: the items never expire, whatever the store's default.
        items = [(key, {"v": FORMAT_VERSION, "json": json.dumps(v, ensure_ascii=False)}) for key, v in values.items()]
        await self._sent([PutOp(self._place(key), key, item, index=False, ttl=None) for key, item in items])

    async def delete(self, keys: Sequence[str]) -> None:
        await self._sent([PutOp(self._place(key), key, None) for key in keys])

    async def page(self, keys: KeyRange, limit: int) -> list[str]:
        """Return all keys of a range, sorted, beyond `limit`: the search has read them all anyway."""
        head, slash, _ = keys.begin.partition("/")
        # "0" is the character after "/": every key below that begins with the head and a slash.
        one_user = bool(slash) and keys.end is not None and keys.end <= f"{head}0"
        place, found, offset = self._place(head) if one_user else self._namespace, set[str](), 0
        while True:
            # `refresh_ttl=False`: listing keys does not count as a use of the items.
            (items,) = await self._batch([SearchOp(place, limit=LISTED, offset=offset, refresh_ttl=False)])
            # Some stores match namespaces by text prefix, so another user's items may be among the results.
            mine = [item.key for item in items if tuple(item.namespace) == self._place(item.key)]
            found |= {key for key in mine if keys.begin <= key and (keys.end is None or key < keys.end)}
            if len(items) < LISTED:
                return sorted(found)
            offset += len(items)

    async def delete_range(self, keys: KeyRange) -> int:
        gone: set[str] = set()
        # List again until nothing new is found: concurrent writes and deletions shift the pages.
        while found := [key for key in await self.page(keys, LISTED) if key not in gone]:
            await self.delete(found)
            gone |= set(found)
        return len(gone)

    def _place(self, key: str) -> tuple[str, ...]:
        """Return the namespace of a key: each user's keys have one of their own, by which they are found."""
        # Labels hold no full stop, so it is escaped. Two keys with one label do no harm, since the item's key is whole.
        return *self._namespace, key.partition("/")[0].replace("%", "%25").replace(".", "%2E") or "~"


def _stored(item: Item) -> StoredValue:
    value: Any = item.value
    try:
        return StoredValue(json.loads(value["json"]), value["v"])
    except (KeyError, TypeError, ValueError, RecursionError):  # not ours, or damaged
        return StoredValue(None, value.get("v") if isinstance(value, dict) else None)
