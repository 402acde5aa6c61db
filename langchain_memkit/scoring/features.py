"""Features of the ranking, each an array with one number per record. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from langchain_memkit.scoring.entries import Entry
from langchain_memkit.scoring.view import View

__all__ = ["importance", "passed_on", "recency", "spread"]

Doubles: TypeAlias = npt.NDArray[np.float64]
Flags: TypeAlias = npt.NDArray[np.bool_]


def spread(values: Doubles, most: int | None = None, known: Flags | None = None) -> Doubles:
    """Scale a feature from 0 (lowest value) to 1 (highest value).

    Args:
        values: One value per record.
        most: Take the value at this rank, counted from the top, as the lowest; smaller values get 0. `None`: the
            lowest of all values.
        known: Flags of the records that have a value; the others get 0 and do not count for the scale.

    Returns:
        Numbers from 0 to 1; all 0 if all values are equal.

    Example:
        >>> spread(np.array([3.0, 1.0, 2.0])).tolist(), spread(np.array([5.0, 5.0])).tolist()
        ([1.0, 0.0, 0.5], [0.0, 0.0])
    """
    compared = values if known is None else values[known]
    if not len(compared):
        return np.zeros(len(values))
    low, high = float(compared.min()), float(compared.max())
    if most is not None and most < len(compared):
        low = float(np.partition(compared, len(compared) - most)[len(compared) - most])
    if not high > low:
        return np.zeros(len(values))
    found: Doubles = np.clip((values - low) / (high - low), 0, 1)
    return found if known is None else found * known


def passed_on(view: View, scores: Doubles, share: float) -> Doubles:
    """Compute the neighbour bonus: `share` x score of adjacent records of a session, `share`^2 of those two away."""
    ordered = scores[view.order]
    got = np.zeros(len(ordered))
    for distance, same in enumerate(view.nearby, 1):
        part = share**distance
        got[distance:] += part * ordered[:-distance] * same
        got[:-distance] += part * ordered[distance:] * same
    found = np.empty(len(ordered))
    found[view.order] = got
    return found


def recency(view: View, accessed: Mapping[str, datetime], now: datetime, decay_rate: float) -> Doubles:
    """Compute `decay_rate ** hours` since the last access, or since it was said if never accessed; 0 if unknown."""
    last = view.times.copy()
    if accessed:
        for i, entry in enumerate(view.entries):
            when = accessed.get(entry.id)
            if when is not None:
                last[i] = when.timestamp()
    hours = np.maximum(now.timestamp() - last, 0) / 3600
    return np.nan_to_num(decay_rate**hours)


def importance(entries: Sequence[Entry]) -> Doubles:
    """Return the importance of each record; unrated ones get the mean of the others, or 0 if none is rated."""
    found = np.array([np.nan if entry.importance is None else entry.importance for entry in entries])
    rated = found[~np.isnan(found)]
    return np.where(np.isnan(found), rated.mean() if len(rated) else 0.0, found)
