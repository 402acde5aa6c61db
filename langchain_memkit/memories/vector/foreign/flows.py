"""Operations of a vector memory on a third-party store, as flows, and the state that only this process holds.

That state is what such a store cannot keep: the sessions seen, the times of recalls, and the sessions forgotten.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from langchain_core.documents import Document

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit.base import SessionInfo
from langchain_memkit.memories.vector.foreign.access import Access
from langchain_memkit.memories.vector.foreign.transcripts import Transcripts
from langchain_memkit.scoring.index import Index, entry_of

__all__ = ["Flows", "Similar", "index_of", "sessions_of"]

K = TypeVar("K")
V = TypeVar("V")

LATELY = 10_000  # users, or forgotten sessions, that are remembered; the least recently used are dropped
UNDATED = datetime.min.replace(tzinfo=UTC)

_moments = itertools.count(1)  # logical clock of this process: orders saves and forgets


class Similar(dict[str, float]):
    """Search result: similarity by record id, scaled from 1 for the most similar to 0 for the last one found.

    Attributes:
        documents: The records, best first.
    """

    def __init__(self, hits: Iterable[tuple[Document, float]] = ()) -> None:
        found = [(document, score) for document, score in hits if document.id]
        super().__init__({document.id: score for document, score in found if document.id})
        self.documents = [document for document, _ in found]


class Flows:
    """Operations behind `ForeignStore`; run those that use the store with `access.run`.

    Args:
        access: Client of the store.
        transcripts: Lexical index of the transcripts; None without `get_session_history`.
    """

    def __init__(self, access: Access, transcripts: Transcripts | None) -> None:
        self._access = access
        self._transcripts = transcripts
        self._guard = ForkSafeLock()
        self._accesses: OrderedDict[str, dict[str, datetime]] = OrderedDict()
        self._sessions: OrderedDict[str, set[str]] = OrderedDict()
        self._forgotten: OrderedDict[tuple[str, str | None], int] = OrderedDict()

    def begin(self, user_id: str, session_id: str) -> str:
        """Register the session and return a logical timestamp."""
        with self._guard:
            _kept(self._sessions, user_id, set()).add(session_id)
        return str(next(_moments))

    async def write(
        self, user_id: str, session_id: str, moment: str, documents: Sequence[Document], delete: Sequence[str]
    ) -> bool:
        """Add and delete records; undo the additions and return False if the session was forgotten since `moment`."""
        await self._access.remove(delete)
        added = await self._access.put(documents)
        # Such a store cannot refuse a write, so compare afterwards: `forget` advances the clock before it deletes, so a
        # record that it could have missed is always noticed, and removed, here.
        if moment and self._forgotten_since(user_id, session_id) > int(moment):
            await self._access.remove(added)
            return False
        return True

    async def search(self, user_id: str, query: str, k: int) -> Similar:
        """Search the user's records by similarity."""
        return Similar(await self._access.search(query, k, {"user_id": user_id}))

    async def everything(self, user_id: str) -> list[Document]:
        """Read all records of a user."""
        return await self._access.everything({"user_id": user_id})

    async def words(self, user_id: str, similar: Similar) -> Index:
        """Return the lexical index of the user's transcripts; without transcripts, an index of the search result."""
        if self._transcripts is None:
            return index_of(similar.documents)
        named = {str(document.metadata.get("session_id") or "") for document in similar.documents} - {""}
        with self._guard:
            known = _kept(self._sessions, user_id, set())
            known |= named
            also = sorted(known)
        index = await self._transcripts.index(user_id, also)
        self._transcripts.rate(user_id, _importance(similar.documents))
        return index

    async def forget(self, user_id: str, session_id: str | None) -> int:
        """Delete all records of a session or user, and this process's state about them; return how many records."""
        with self._guard:  # before the deletion: a save in progress checks this after its write, see `write`
            _kept(self._forgotten, (user_id, session_id), 0)
            self._forgotten[user_id, session_id] = next(_moments)
        wanted = {"user_id": user_id} | ({"session_id": session_id} if session_id is not None else {})
        count = await self._access.remove_all(wanted)
        if self._transcripts is not None:
            self._transcripts.forget(user_id, session_id)
        with self._guard:
            if session_id is None:
                self._accesses.pop(user_id, None)
                self._sessions.pop(user_id, None)
            elif user_id in self._sessions:
                self._sessions[user_id].discard(session_id)
        return count

    async def evict(self, user_id: str, max_records: int, keep: Collection[str]) -> int:
        """Delete the records over `max_records`, least recently recalled first; return how many."""
        documents = await self.everything(user_id)
        accessed = self.accesses(user_id)

        def order(document: Document) -> tuple[bool, datetime, datetime]:
            last = accessed.get(document.id or "")
            return last is not None, last or UNDATED, _created(document) or UNDATED

        others = sorted((document for document in documents if document.id not in keep), key=order)
        surplus = others[: max(0, len(documents) - max_records)]
        return await self._access.remove(document.id or "" for document in surplus)

    def touch(self, user_id: str, ids: Iterable[str], at: datetime) -> None:
        """Record the recall time of records, in this process only."""
        with self._guard:
            _kept(self._accesses, user_id, {}).update(dict.fromkeys(ids, at))

    def accesses(self, user_id: str) -> dict[str, datetime]:
        """Return the last recall of each record that this process recalled, by id."""
        with self._guard:
            return dict(self._accesses.get(user_id, {}))

    def _forgotten_since(self, user_id: str, session_id: str) -> int:
        with self._guard:
            return max(self._forgotten.get((user_id, name), 0) for name in (session_id, None))


def index_of(documents: Iterable[Document]) -> Index:
    """Build an index of documents, without vectors."""
    index = Index()
    for document in documents:
        index.add(entry_of(document), None)
    return index


def sessions_of(documents: Iterable[Document]) -> list[SessionInfo]:
    """Group records by session: one `SessionInfo` each, most recently used first."""
    dates: dict[str, list[datetime | None]] = {}
    for document in documents:
        if name := document.metadata.get("session_id"):
            dates.setdefault(name, []).append(_created(document))
    found = []
    for name, all_dates in dates.items():
        known = [date for date in all_dates if date]
        found.append(SessionInfo(name, len(all_dates), min(known, default=None), max(known, default=None)))
    return sorted(found, key=lambda info: info.updated_at or UNDATED, reverse=True)


def _created(document: Document) -> datetime | None:
    known = document.metadata.get("created_at")  # checked when it was read
    return datetime.fromisoformat(known) if known else None


def _importance(documents: Iterable[Document]) -> Mapping[tuple[str, str], float]:
    known = ((d.metadata.get("session_id"), d.id, d.metadata.get("importance")) for d in documents)
    return {(session, name): value for session, name, value in known if session and name and value is not None}


def _kept(known: OrderedDict[K, V], key: K, first: V) -> V:
    """Get or insert a value in an LRU dict of `LATELY` entries. The caller holds the lock."""
    value = known.setdefault(key, first)
    known.move_to_end(key)
    while len(known) > LATELY:
        known.popitem(last=False)
    return value
