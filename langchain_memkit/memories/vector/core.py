"""The store and the options that all vector memories of a factory share."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta, tzinfo
from math import inf
from typing import Any

from langchain_core.documents.compressor import BaseDocumentCompressor

from langchain_memkit._timezones import TimezoneOfUser
from langchain_memkit.base import GetSessionHistory, Now, TokenCounter
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.vector.adapter import VectorStoreAdapter
from langchain_memkit.memories.vector.rounds import Round, Splitter
from langchain_memkit.ranking.floor import FLOOR
from langchain_memkit.ranking.score import Ranking
from langchain_memkit.stores.vectors import RecordVectorStore, VectorMemoryStore


@dataclass(frozen=True)
class VectorMemoryConfig:
    """Options of a `VectorMemory`, whose docstring describes each of them, and its store."""

    store: RecordVectorStore | VectorStoreAdapter
    max_tokens: int
    k: int | None
    ranking: Ranking
    floor: float | None
    splitter: Splitter
    max_records: int | None
    ttl: timedelta | None
    importance: Any
    reranker: BaseDocumentCompressor | None
    get_session_history: GetSessionHistory | None
    read_only: bool
    counter: TokenCounter
    now: Now
    timezone: tzinfo | TimezoneOfUser | None

    @property
    def records(self) -> VectorMemoryStore:
        """The operations of the store, as flows."""
        return self.store if isinstance(self.store, VectorStoreAdapter) else self.store.records

    def expiring(self, round_: Round) -> Round:
        """Return a round that expires with its turn, or `ttl` after it was said if that is earlier."""
        ends = [moment for moment in (round_.expires_at, round_.at + self.ttl if self.ttl else None) if moment]
        return round_._replace(expires_at=min(ends, default=None))


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
