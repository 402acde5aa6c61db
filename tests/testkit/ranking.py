"""Records and indexes for the tests of the ranking."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from langchain_memkit.ranking.bm25 import ROOM, match_words
from langchain_memkit.ranking.index import Index, IndexRecord, Utterance
from langchain_memkit.ranking.tokenize import tokenize_record

NOW = datetime(2024, 5, 15, 12, tzinfo=UTC)


def record_of(
    record_id: str, *lines: str, session: str = "s", position: int | None = None, at: datetime | None = NOW, **more: Any
) -> IndexRecord:
    """Make a record of lines "role/name: text"; of the user, if a line has no role."""
    said = []
    for line in lines:
        speaker, text = line.split(": ", 1) if ": " in line else ("human", line)
        role, _, name = speaker.partition("/")
        said.append(Utterance(role, name, tuple(tokenize_record(text))))
    place = ROOM * int(record_id) if position is None else position
    return IndexRecord(record_id, session, record_id, place, at, tuple(said), **more)


def index_of(*records: IndexRecord, vectors: Sequence[Sequence[float] | None] | None = None) -> Index:
    """Make an index of records."""
    index = Index()
    for record, vector in zip(records, vectors or [None] * len(records), strict=True):
        index.add(record, vector)
    return index


def lexical(index: Index, stems: Sequence[str]) -> Any:
    """Return BM25 of each record for a question of these stems, whoever says them."""
    return match_words(index.view, index.postings, stems).found
