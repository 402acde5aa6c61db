"""What a vector memory does with a store of others, as flows, and what is known of it in this process alone."""

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

LATELY = 10_000  # users, or sessions that were forgotten, of which something is known
UNDATED = datetime.min.replace(tzinfo=UTC)

_moments = itertools.count(1)


class Similar(dict[str, float]):
    """What a search found: by id of a record, 1 for the most similar to 0 for the last that was found.

    Attributes:
        documents: The records, best first.
    """

    def __init__(self, hits: Iterable[tuple[Document, float]] = ()) -> None:
        found = [(document, score) for document, score in hits if document.id]
        super().__init__({document.id: score for document, score in found if document.id})
        self.documents = [document for document, _ in found]


class Flows:
    """The verbs of `ForeignStore`; those that use the store run under `access.run`.

    Args:
        access: The store.
        transcripts: The words of the transcripts; None if there are none.
    """

    def __init__(self, access: Access, transcripts: Transcripts | None) -> None:
        self._access = access
        self._transcripts = transcripts
        self._guard = ForkSafeLock()
        self._accesses: OrderedDict[str, dict[str, datetime]] = OrderedDict()
        self._sessions: OrderedDict[str, set[str]] = OrderedDict()
        self._forgotten: OrderedDict[tuple[str, str | None], int] = OrderedDict()

    def begin(self, user_id: str, session_id: str) -> str:
        """Remembers that there is this session; returns the moment."""
        with self._guard:
            _kept(self._sessions, user_id, set()).add(session_id)
        return str(next(_moments))

    async def write(
        self, user_id: str, session_id: str, moment: str, documents: Sequence[Document], delete: Sequence[str]
    ) -> bool:
        """Adds records; takes them back if their session was forgotten since that moment."""
        await self._access.remove(delete)
        added = await self._access.put(documents)
        if moment and self._forgotten_since(user_id, session_id) > int(moment):
            await self._access.remove(added)
            return False
        return True

    async def search(self, user_id: str, query: str, k: int) -> Similar:
        """What is most similar."""
        return Similar(await self._access.search(query, k, {"user_id": user_id}))

    async def everything(self, user_id: str) -> list[Document]:
        """All records of a user."""
        return await self._access.everything({"user_id": user_id})

    async def words(self, user_id: str, similar: Similar) -> Index:
        """The index of the transcripts; without transcripts, of what was found."""
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
        """Deletes the records of a session, or of a user, and what this process knows of them."""
        with self._guard:  # first: a save that is under way sees it when it has written
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
        """Deletes what is too much."""
        documents = await self.everything(user_id)
        accessed = self.accesses(user_id)

        def order(document: Document) -> tuple[bool, datetime, datetime]:
            last = accessed.get(document.id or "")
            return last is not None, last or UNDATED, _created(document) or UNDATED

        others = sorted((document for document in documents if document.id not in keep), key=order)
        surplus = others[: max(0, len(documents) - max_records)]
        return await self._access.remove(document.id or "" for document in surplus)

    def touch(self, user_id: str, ids: Iterable[str], at: datetime) -> None:
        """Remembers when records were recalled."""
        with self._guard:
            _kept(self._accesses, user_id, {}).update(dict.fromkeys(ids, at))

    def accesses(self, user_id: str) -> dict[str, datetime]:
        """When records were last recalled."""
        with self._guard:
            return dict(self._accesses.get(user_id, {}))

    def _forgotten_since(self, user_id: str, session_id: str) -> int:
        with self._guard:
            return max(self._forgotten.get((user_id, name), 0) for name in (session_id, None))


def index_of(documents: Iterable[Document]) -> Index:
    """An index of documents, without vectors."""
    index = Index()
    for document in documents:
        index.add(entry_of(document), None)
    return index


def sessions_of(documents: Iterable[Document]) -> list[SessionInfo]:
    """The sessions of records, the last used first."""
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
    """What is known under a key; what was used longest ago goes when it is too much. The lock is held."""
    value = known.setdefault(key, first)
    known.move_to_end(key)
    while len(known) > LATELY:
        known.popitem(last=False)
    return value
