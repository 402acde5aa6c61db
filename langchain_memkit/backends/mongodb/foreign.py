"""What the stores of other packages' documents share: rows that are inserted once, in order, without positions.

There is no unique index on other people's documents, so `seq`, epochs and atomic turns do not hold here. A batch is
inserted with ids made before the first try, and its `op` stands in every document, so a retry finds what is there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bson import ObjectId
from pymongo import IndexModel
from pymongo.errors import BulkWriteError, PyMongoError

from langchain_memkit._flow import Flow
from langchain_memkit.backends.mongodb.commands import Call, Commands, Pause, is_transient, jitter
from langchain_memkit.backends.mongodb.documents import is_soft_deleted
from langchain_memkit.errors import ConfigurationError

_indexed: set[Any] = set()


def ascending_ids(count: int) -> list[ObjectId]:
    """Ids for rows whose order is that of their ids: the driver's counter starts again from 0 now and then."""
    return sorted(ObjectId() for _ in range(count))


def refuse_positions(layout: str, expected_seq: int | None) -> None:
    """`expected_seq` has no meaning where documents have no positions."""
    if expected_seq is not None:
        msg = f"layout={layout!r} has no positions, so expected_seq cannot be kept; use layout='turns'"
        raise ConfigurationError(msg)


def ensure(store: Commands, models: list[IndexModel]) -> Flow[None]:
    """Builds the indexes of a layout, once per process and collection, unless `create_index=False`."""
    key = (store.clients.key, store.settings.names, tuple(m.document["name"] for m in models))
    if store.settings.create_index and key not in _indexed:
        yield Call(lambda c: c.create_indexes(models), None)
        _indexed.add(key)


def insert_once(store: Commands, documents: list[dict[str, Any]]) -> Flow[None]:
    """Inserts documents in order, with their ids, until all are there; what a broken connection hides is looked up."""
    deadline = time.monotonic() + store.patience
    pending = list(documents)
    while True:
        batch = list(pending)
        try:
            yield Call(lambda c, batch=batch: c.insert_many(batch), store.settings.save_timeout)  # type: ignore[misc]  # bound now
            return
        except PyMongoError as error:
            if not is_transient(error) or isinstance(error, BulkWriteError) or time.monotonic() > deadline:
                raise
        yield Pause(jitter(0.25))
        ids = [d["_id"] for d in pending]
        found = yield from store.retried(lambda c, ids=ids: c.find({"_id": {"$in": ids}}, {"_id": 1}).to_list())  # type: ignore[misc]  # bound now
        there = {d["_id"] for d in found}
        pending = [d for d in pending if d["_id"] not in there]
        if not pending:
            return


def is_shown(document: Mapping[str, Any], now: datetime, hidden: bool = False) -> bool:
    """Whether a document is neither expired nor (unless `hidden`) soft-deleted."""
    expires = document.get("expiresAt")
    return (hidden or not is_soft_deleted(document)) and not (isinstance(expires, datetime) and expires <= now)
