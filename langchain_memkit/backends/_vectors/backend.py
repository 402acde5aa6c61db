"""The interface that a backend implements for our vector stores."""

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
    """A backend's answer to `begin`, the read that precedes a write to a session.

    Attributes:
        generation: The session's generation; a session that is forgotten and begun again gets another one.
        last: The session's last record, as a list of at most one; may be empty where it does not matter for the write.
        vectors: The stored vectors of the requested texts, by digest.
        records: The requested records of the session.
        position: The position of the last record; 0 if there is none.
    """

    generation: str
    last: Sequence[Stored]
    vectors: Mapping[str, bytes]
    records: Sequence[Stored]
    position: Any


class VectorBackend(Source, ProbeStore, Protocol):
    """The interface that a backend implements for our vector stores; all but the runners and closers are flows.

    A record carries a *stamp*, the number of its write. A user's records have a *version* (a tuple of numbers, `Mark`),
    which every write changes and which `news` returns, so that cached records are known to be current. A session has a
    *generation*, drawn when it begins and dropped when it is forgotten.

    * `run` and `arun` run a flow; `setup` creates tables or indexes.
    * `begin` reads what a write to a session depends on, and draws the generation of a new session.
    * `write` stores rows and deletes others. `place` is (session id, generation), None for plain documents; `expected`
      holds digests of records that must be unchanged; `state` is the session's state, which must be unchanged (None:
      not checked). It returns None if the session has another generation.
    * `by_ids` reads records of a user by id; `owned` returns whether any user has a record with one of the ids.
    * `delete` deletes records by id; `forget` a session, or all of a user if `session_id` is None; `evict` records
      above a limit, first those never recalled.
    * `touch` stores the time of a recall, `accesses` returns these times by id; `sessions` lists a user's sessions.
    """

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
