"""What is stored for certain: the primary has it, and so has a majority.

What the primary alone has may still vanish, and must not be written a second time either: a retry waits until that is
clear.
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
    """What matches, once a majority has what the primary has; None if that is not so in time."""

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
    """What is stored of a batch already, sent again until the deadline.

    Raises:
        HistoryWriteError: Something is, but no majority has confirmed it in time.
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
    """The error that says that nobody can tell whether the batch is stored."""
    msg = f"cannot write to {store.clients.hosts}: {reason}. It may be stored: retry with the same turn_id."
    return HistoryWriteError(msg, maybe_stored=True, **batch.error_context)
