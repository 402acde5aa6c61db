"""What a backend is to our vector stores."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from langchain_memkit._sync import Flow
from langchain_memkit.backends._vectors.embedding import ProbeStore
from langchain_memkit.backends._vectors.rows import Row, Stored, Written
from langchain_memkit.backends._vectors.shelf import Source
from langchain_memkit.base import SessionInfo

T = TypeVar("T")


class Beginning(NamedTuple):
    """What a backend knows of a session: generation, last record if it matters, vectors by digest, records asked for.

    `position` is that of the last record, 0 if there is none.
    """

    generation: str
    last: Sequence[Stored]
    vectors: Mapping[str, bytes]
    records: Sequence[Stored]
    position: Any


class VectorBackend(Source, ProbeStore, Protocol):
    """What a backend implements for our vector stores; all but the runners are flows."""

    def run(self, flow: Flow[T]) -> T: ...
    async def arun(self, flow: Flow[T]) -> T: ...
    async def setup(self) -> None: ...
    async def begin(
        self,
        user_id: str,
        session_id: str,
        digests: Sequence[str],
        ids: Sequence[str],
        messages: Collection[str] | None,
    ) -> Beginning: ...
    async def write(
        self,
        user_id: str,
        rows: Sequence[Row],
        delete: Sequence[str],
        place: tuple[str, str] | None,
        expected: Mapping[str, str],
        state: int | None,
    ) -> Written | None: ...
    async def by_ids(self, user_id: str, ids: Sequence[str], *, vectors: bool) -> list[Stored]: ...
    async def owned(self, ids: Sequence[str]) -> bool: ...
    async def delete(self, user_id: str, ids: Sequence[str]) -> None: ...
    async def forget(self, user_id: str, session_id: str | None) -> int: ...
    async def evict(self, user_id: str, max_records: int, keep: Sequence[str]) -> int: ...
    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None: ...
    async def accesses(self, user_id: str) -> dict[str, datetime]: ...
    async def sessions(self, user_id: str) -> list[SessionInfo]: ...
    def close(self) -> None: ...
    async def aclose(self) -> None: ...
