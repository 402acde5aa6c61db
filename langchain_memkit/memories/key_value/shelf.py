"""The entries of an app or a user in a store: read again only when they were changed, by whomever.

One row, `version`, holds a random token and is written last with every change. A load reads this row; if it is not what
it was, all entries are read again. The token is read before them, so what changes meanwhile is seen by the next load.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from langchain_core.stores import BaseStore

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit.base import user_prefix
from langchain_memkit.memories.key_value.catalog import Catalog
from langchain_memkit.memories.key_value.entries import Entry

__all__ = ["Shelf"]

logger = logging.getLogger("langchain_memkit")

BATCH = 1000  # keys of a read or a removal
UNREAD = object()


class Shelf:
    """Shared by all memories of one user, and by threads.

    Args:
        store: Any key-value store.
        user_id: Whose entries; None for the app's.
        aliases: Further names of titles.
        min_score: See `Catalog`.
    """

    def __init__(
        self,
        store: BaseStore[str, dict[str, Any]],
        user_id: str | None,
        aliases: Mapping[str, Sequence[str]],
        min_score: float | None,
    ) -> None:
        self.store = store
        self._prefix = user_prefix(user_id or "") + "key_value/"
        self._version = self._prefix + "version"
        self._entries = self._prefix + "entry/"
        self._aliases = aliases
        self._min_score = min_score
        self._catalog = Catalog(token=UNREAD)
        self._lock = ForkSafeLock()

    async def current(self) -> Catalog:
        """The entries as they are now: one read, unless they were changed."""
        (row,) = await self._get([self._version])
        token = row.get("token") if isinstance(row, Mapping) else None
        if self._catalog.token == token:
            return self._catalog
        entries: list[Entry] = []
        keys = await self._keys(self._entries)
        for i in range(0, len(keys), BATCH):
            values = await self._get(keys[i : i + BATCH])
            entries += filter(None, map(Entry.from_row, values))
        if len(entries) < len(keys):
            logger.warning("%d of %d key-value entries are damaged and left out", len(keys) - len(entries), len(keys))
        return await cpu_bound(lambda: self._build(token, entries))

    def _build(self, token: Any, entries: list[Entry]) -> Catalog:
        with self._lock:  # of many threads that saw the change, one builds
            if self._catalog.token != token:
                catalog = Catalog(entries, self._aliases, self._min_score, token)
                if token is None and entries:  # they came or went meanwhile: true now, and to be read again
                    return catalog
                self._catalog = catalog
            return self._catalog

    async def add(self, entries: Sequence[Entry]) -> None:
        """Stores entries, in place of those with the same titles."""
        if entries:
            await self._set(sorted(((self._entries + e.key, e.to_row()) for e in entries), key=itemgetter(0)))

    async def remove(self, titles: Iterable[str]) -> None:
        """Removes entries; those that are not there are no error."""
        keys = [self._entries + Entry(title, "").key for title in titles]
        if keys:
            await self._set([])  # before as well: who dies in between leaves nobody with what is gone
            await self._delete(keys)
            await self._set([])

    async def purge(self) -> int:
        """Removes every row; returns how many entries there were."""
        keys = await self._keys(self._prefix)
        if keys:
            await self._set([])
            await self._delete([*keys, self._version])
        return sum(key.startswith(self._entries) for key in keys)

    def _get(self, keys: Sequence[str]) -> Step[list[dict[str, Any] | None]]:
        return Step(lambda: self.store.mget(keys), lambda: self.store.amget(keys))

    async def _set(self, rows: list[tuple[str, dict[str, Any]]]) -> None:
        pairs = [*rows, (self._version, {"token": secrets.token_hex(16)})]
        await Step(lambda: self.store.mset(pairs), lambda: self.store.amset(pairs))

    async def _delete(self, keys: Sequence[str]) -> None:
        for i in range(0, len(keys), BATCH):
            some = keys[i : i + BATCH]
            await Step(partial(self.store.mdelete, some), partial(self.store.amdelete, some))

    async def _keys(self, prefix: str) -> list[str]:
        async def collect() -> list[str]:
            return [key async for key in self.store.ayield_keys(prefix=prefix)]

        return await Step(lambda: list(self.store.yield_keys(prefix=prefix)), collect)
