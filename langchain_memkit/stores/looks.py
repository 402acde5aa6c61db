"""How a memory looks at what changed in a user's turns since it last did."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from langchain_memkit.stores.changes import ChangedRow, UserLog
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
        slack: Seconds from which on before the mark rows are read again: a row may become visible after rows that
            changed later. If one came later than that, the next turn of its session shows the gap.
        longest: The longest time between two looks.

    Raises:
        HistoryReadError: The store cannot be reached or read. The log is as if no look had been made.
    """
    while True:
        looks = log.looks
        is_new = log.looked_at is None or now - log.looked_at > longest
        rows, mark = await _rows_since(store, user_id, None if is_new else log.mark, names, page, slack)
        if log.take(rows, mark, looks, now, anew=is_new):
            break
    if log.missing and not is_new:
        missing = log.missing
        again, _ = await _rows_since(store, user_id, mark, names, page, longest.total_seconds())
        log.add((row for row in again if row.place in missing), now)
        log.give_up(missing)


async def _rows_since(
    store: TurnStore, user_id: str, since: Any, names: Sequence[str], page: int, slack: float
) -> tuple[list[ChangedRow], Any]:
    """Read all rows that changed since a mark, and return them with the new mark."""
    rows: list[ChangedRow] = []
    while True:
        found = await store.changes(user_id, since, names, page, slack)
        rows += found.rows
        since, slack = found.mark, 0.0
        if not found.has_more:
            return rows, since
