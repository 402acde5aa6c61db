"""The log and the options that all vector memories of a factory share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo
from math import inf
from typing import Any

from langchain_core.documents.compressor import BaseDocumentCompressor

from langchain_memkit._timezones import TimezoneOfUser
from langchain_memkit.base import Now, TokenCounter
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.vector.turn_log import TurnLog
from langchain_memkit.ranking.floor import FLOOR
from langchain_memkit.ranking.score import Ranking
from langchain_memkit.stores.history import HistoryFactory


@dataclass(frozen=True)
class VectorMemoryConfig:
    """Options of a `VectorMemory`, whose docstring describes each of them, and what it recalls from."""

    log: TurnLog
    max_tokens: int
    k: int | None
    ranking: Ranking
    floor: float | None
    max_records: int | None
    reranker: BaseDocumentCompressor | None
    read_only: bool
    counter: TokenCounter
    now: Now
    timezone: tzinfo | TimezoneOfUser | None

    @property
    def store(self) -> HistoryFactory[Any]:
        """What a factory sets up, and shows of itself."""
        return self.log.histories


def check_floor(floor: float | str | None, ranking: Ranking) -> float | None:
    """Resolve the `floor=` argument to a number above 0, or to None for no floor."""
    if floor == "auto":
        return None if ranking.over_all else FLOOR
    if floor is None:
        return None
    if isinstance(floor, bool) or not isinstance(floor, (int, float)) or not 0 <= floor < inf:
        msg = f'floor must be a number from 0 up, "auto" ({FLOOR:g}), or None for any question; got {floor!r:.50}'
        raise ConfigurationError(msg)
    return float(floor) or None
