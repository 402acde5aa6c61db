"""Stores the entries of an app or a user, and caches them until anybody changes them.

Cache invalidation: one row, `version`, holds a random token and is written last with every change. A load reads this
row, and reads all entries again if the token differs from the cached one. The token is read before the entries, so a
change that happens during the read is noticed by the next load.
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
    """Cache of the entries of one user (or the app) over a store; shared by the user's memories and by threads.

    Args:
        store: Any key-value store.
        user_id: Whose entries; None for the app's.
        aliases: Further names by title.
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
        """Return the current entries; costs one read unless they were changed."""
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
        with self._lock:  # of several threads that noticed the change, one builds the index
            if self._catalog.token != token:
                catalog = Catalog(entries, self._aliases, self._min_score, token)
                # Entries without a version row: they are being added, or purged, at this moment. The snapshot is right
                # for this load, but must not be cached, since nothing would tell that it is out of date.
                if token is None and entries:
                    return catalog
                self._catalog = catalog
            return self._catalog

    async def add(self, entries: Sequence[Entry]) -> None:
        """Store entries; existing ones with the same titles are replaced."""
        if entries:
            await self._set(sorted(((self._entries + e.key, e.to_row()) for e in entries), key=itemgetter(0)))

    async def remove(self, titles: Iterable[str]) -> None:
        """Delete entries by title; unknown titles are ignored."""
        keys = [self._entries + Entry(title, "").key for title in titles]
        if keys:
            # Invalidate the caches before the delete as well: if this process dies before the second write, no other
            # one goes on showing entries that it cached before and that are gone.
            await self._set([])
            await self._delete(keys)
            await self._set([])

    async def purge(self) -> int:
        """Delete every row, the version row included, and return how many entries there were."""
        keys = await self._keys(self._prefix)
        if keys:
            await self._set([])
            await self._delete([*keys, self._version])
        return sum(key.startswith(self._entries) for key in keys)

    def _get(self, keys: Sequence[str]) -> Step[list[dict[str, Any] | None]]:
        return Step(lambda: self.store.mget(keys), lambda: self.store.amget(keys))

    async def _set(self, rows: list[tuple[str, dict[str, Any]]]) -> None:
        # The token comes last: whoever reads the new token finds all the rows that were written before it.
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
