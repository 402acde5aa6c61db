"""Read what is stored for certain: by the primary and by a majority.

What only the primary has may still be rolled back, but must not be written a second time either: a retry waits until
the outcome is known.
"""

from __future__ import annotations

import time
from typing import Any

from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from langchain_memkit.backends._history.rows import Batch
from langchain_memkit.backends.mongodb.commands import Call, Commands, Pause, is_transient, jitter, next_try
from langchain_memkit.errors import HistoryWriteError


async def settled(
    store: Commands, query: dict[str, Any], fields: dict[str, Any] | list[str] | None, deadline: float
) -> list[dict[str, Any]] | None:
    """Return the matching documents once a majority has all that the primary has; None if not before the deadline.

    Args:
        store: The collection.
        query: The filter.
        fields: The fields to return; None for all.
        deadline: By `time.monotonic()`, in seconds.
    """

    def primary_only(collection: Any) -> Any:
        return collection.with_options(read_concern=ReadConcern("local")).find(query, ["_id"]).to_list()

    while True:
        timeout = min(max(deadline - time.monotonic(), 0.1), store.settings.timeout)
        here = await Call(primary_only, timeout)
        there = await Call(lambda c: c.find(query, fields).to_list(), timeout) if here else []
        if {d["_id"] for d in here} == {d["_id"] for d in there}:
            return there
        if time.monotonic() > deadline:
            return None
        await Pause(jitter(0.05))


async def known(
    store: Commands,
    query: dict[str, Any],
    fields: dict[str, Any] | list[str],
    batch: Batch,
    deadline: float,
) -> list[dict[str, Any]]:
    """Return the documents of a batch that are stored already, retrying after transient errors until the deadline.

    Args:
        store: The collection.
        query: The filter that finds the batch's documents.
        fields: The fields to return.
        batch: The batch, for errors.
        deadline: By `time.monotonic()`, in seconds.

    Raises:
        HistoryWriteError: Some are stored, but no majority has confirmed them in time.
    """
    while True:
        try:
            found = await settled(store, query, fields, deadline)
        except PyMongoError as error:
            pause = next_try(deadline)
            if not is_transient(error) or pause is None:
                raise
        else:
            if found is None:
                raise unclear(store, "no majority has confirmed it", batch)
            return found
        await pause


def unclear(store: Commands, reason: str, batch: Batch) -> HistoryWriteError:
    """Build the error for an unknown outcome: the batch may be stored or not."""
    msg = f"cannot write to {store.clients.hosts}: {reason}. It may be stored: retry with the same turn_id."
    return HistoryWriteError(msg, maybe_stored=True, **batch.error_context)
