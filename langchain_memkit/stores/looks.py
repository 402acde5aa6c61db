"""How a memory looks at what changed in a user's turns since it last did."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from langchain_memkit.stores.changes import Changes, UserLog
from langchain_memkit.stores.history import TurnStore


async def catch_up(
    store: TurnStore,
    user_id: str,
    log: UserLog,
    names: Sequence[str],
    now: datetime,
    *,
    page: int = 1000,
    slack: float = 10.0,
    longest: timedelta = timedelta(hours=1),
    whole: timedelta = timedelta(hours=6),
) -> None:
    """Read what changed in a user's turns since the last look into the log, whose `news` tells it; a flow of the store.

    Args:
        store: Where the turns are kept; `keeps_index` is true.
        user_id: The user.
        log: What was read so far. If the last look was longer ago than `longest`, everything is read anew, since
            tombstones expire after two hours.
        names: The names of the indexes to read.
        now: The present.
        page: The number of rows to read at a time.
        slack: Seconds from which on before the mark rows are read again, until it is as old as that: a row may become
            visible after rows that changed later. If one came later, the next turn of its session shows the gap.
        longest: The longest time between two looks.
        whole: How long what was missed, or was changed past memkit, may go unnoticed: then everything is read anew.

    Raises:
        HistoryReadError: The store cannot be reached or read. The log is as if no look had been made.
    """
    while True:
        looks, since, began = log.looks, log.mark, time.monotonic()
        is_due = _is_ago(log.looked_at, now, longest) or _is_ago(log.read_at, now, whole)
        found = await _read_since(
            store, user_id, None if is_due else since, names, page, 0 if log.is_settled else slack
        )
        is_whole = is_due or found.anew
        if log.take(found.rows, found.mark, looks, now, anew=is_whole, began=began, slack=slack):
            break
    missing = log.missing
    if missing and not is_whole:
        again = await _read_since(store, user_id, found.mark, names, page, longest.total_seconds())
        log.fill(again.rows, missing, now)


def _is_ago(moment: datetime | None, now: datetime, longest: timedelta) -> bool:
    return moment is None or now - moment > longest


async def _read_since(
    store: TurnStore, user_id: str, since: Any, names: Sequence[str], page: int, slack: float
) -> Changes:
    """Read all rows that changed since a mark, page after page."""
    found = await store.changes(user_id, since, names, page, slack)
    rows, anew = [*found.rows], found.anew
    while found.has_more:
        found = await store.changes(user_id, found.mark, names, page)
        if found.anew:  # other data took the place of these between two pages
            rows, anew = [], True
        rows += found.rows
    return Changes(rows, found.mark, has_more=False, anew=anew)
