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
from pymongo.errors import BulkWriteError, PyMongoError, ServerSelectionTimeoutError

from langchain_memkit.backends._history.rows import Batch
from langchain_memkit.backends.mongodb.commands import (
    DUPLICATE_KEY,
    Call,
    Commands,
    is_transient,
    next_try,
    text_of,
)
from langchain_memkit.backends.mongodb.documents import is_soft_deleted
from langchain_memkit.backends.mongodb.settled import known, unclear
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


async def ensure(store: Commands, models: list[IndexModel]) -> None:
    """Builds the indexes of a layout, once per process and collection, unless `create_index=False`."""
    key = (store.clients.key, store.settings.names, tuple(m.document["name"] for m in models))
    if store.settings.create_index and key not in _indexed:
        await store.there()
        await Call(lambda c: c.create_indexes(models), None)
        _indexed.add(key)


async def insert_once(store: Commands, documents: list[dict[str, Any]], batch: Batch, deadline: float) -> None:
    """Inserts documents in order, with their ids, until all are there; what a broken connection hides is looked up."""
    pending, begun = list(documents), False
    while pending:
        try:
            if begun:
                query = {"_id": {"$in": [d["_id"] for d in pending]}}
                there = {d["_id"] for d in await known(store, query, ["_id"], batch, deadline)}
                pending = [d for d in pending if d["_id"] not in there]
            if pending:
                await Call(lambda c, given=list(pending): c.insert_many(given), max(deadline - time.monotonic(), 0.1))  # type: ignore[misc]  # bound now
            return
        except PyMongoError as error:
            again = is_transient(error) or _met_itself(error)
            begun = begun or (again and not isinstance(error, ServerSelectionTimeoutError)) or _inserted(error) > 0
            pause = next_try(deadline)
            if not again or pause is None:
                if begun:
                    raise unclear(store, text_of(error), batch) from error
                raise
        await pause


def _met_itself(error: PyMongoError) -> bool:
    """Whether a document is there already under the id that an earlier try made."""
    failures = error.details.get("writeErrors") or [] if isinstance(error, BulkWriteError) and error.details else []
    return bool(failures) and all(
        f.get("code") == DUPLICATE_KEY and list(f.get("keyPattern") or ()) == ["_id"] for f in failures
    )


def _inserted(error: PyMongoError) -> int:
    details = error.details if isinstance(error, BulkWriteError) else None
    return int((details or {}).get("nInserted", 0))


def is_shown(document: Mapping[str, Any], now: datetime, hidden: bool = False) -> bool:
    """Whether a document is neither expired nor (unless `hidden`) soft-deleted."""
    expires = document.get("expiresAt")
    return (hidden or not is_soft_deleted(document)) and not (isinstance(expires, datetime) and expires <= now)
