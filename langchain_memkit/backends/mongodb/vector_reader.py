"""Flows that read a collection of vectors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from pymongo.errors import PyMongoError

from langchain_memkit.backends._vectors.rows import Cells, Mark, Stored
from langchain_memkit.backends._vectors.shelf import News, Session, Since
from langchain_memkit.backends.mongodb.clients import Clients
from langchain_memkit.backends.mongodb.commands import Call, Place, Runner
from langchain_memkit.backends.mongodb.repeating import batches
from langchain_memkit.backends.mongodb.vector_documents import (
    A_NUMBER,
    BY_ID,
    LAST_FIRST,
    ON_BEGIN,
    ON_CELLS,
    ON_STORED,
    ON_TEXTS,
    PROBE_ID,
    begin_filter,
    cells_of,
    is_session,
    live,
    matters,
    name_of,
    news_pipeline,
    not_records,
    owned_filter,
    records_filter,
    stored_of,
    vector_of,
    with_ids,
)
from langchain_memkit.backends.mongodb.vector_indexes import ensure_vector_indexes
from langchain_memkit.base import Now, SessionInfo

SAME = 8  # records with one text that are looked at for its vector


class VectorReader(Runner):
    """What is read."""

    def __init__(self, clients: Clients, settings: Place, now: Now) -> None:
        super().__init__(clients, settings)
        self._now = now

    async def setup(self) -> None:
        """Builds missing indexes, however large the collection is."""
        await self.reading(ensure_vector_indexes(self.clients, self.settings, forced=True))

    async def _call(self, function: Callable[[Any], Any]) -> Any:
        return await Call(function, self.settings.timeout)

    async def _found(self, query: dict[str, Any], fields: Any, **options: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self._call(lambda c: c.find(query, fields, **options).to_list())
        for document in found:
            document["_id"] = name_of(document.get("_id"))
        return found

    async def _rows(self, pipeline: list[dict[str, Any]]) -> list[dict[str, Any]]:
        cursor = await self._call(lambda c: c.aggregate(pipeline))
        rows: list[dict[str, Any]] = await self._call(lambda c: cursor.to_list())
        return rows

    async def news(self, user_id: str, session_id: str | None, since: Since | None) -> News:
        """The mark: the sum of the stamps of the user's sessions, None if there is no session; and what is new."""
        pipeline = news_pipeline(self.settings.names[1], user_id, session_id, since)
        mark: Mark | None = None
        session, cells = None, []
        for found in await self.reading(self._rows(pipeline)):
            if found["_id"] is None:
                mark = (int(found["total"]),) if found["total"] else None
            elif not is_session(found):
                cells.append(cells_of(found))
            elif (found.get("last") or {}).get("waits") is False:
                session = Session(str(found.get("generation")), int(found.get("stamp") or 0))
        return News(session, mark, cells)

    def change(self, cells: Sequence[Cells], replaced: Sequence[int]) -> Mark:
        """Of the mark, by these records: each write has a step of its own."""
        return (sum({int(row.step) for row in cells if isinstance(row.step, int)}),)

    async def stamps(self, user_id: str) -> list[int]:
        """Stamps of the user's records."""
        listing = self._found(records_filter(user_id), {"_id": 0, "stamp": 1}, sort=[("stamp", 1)])
        rows = await self.reading(listing)
        return [int(row["stamp"]) for row in rows]

    async def cells(self, user_id: str, stamps: Sequence[int]) -> list[Cells]:
        """Records to rank."""
        query = records_filter(user_id, stamp={"$in": list(stamps)})
        return [cells_of(d) for d in await self.reading(self._alive(user_id, query, ON_CELLS))]

    async def stored(self, user_id: str, stamps: Sequence[int]) -> list[Stored]:
        """Records to show."""
        query = records_filter(user_id, stamp={"$in": list(stamps)})
        return [stored_of(d) for d in await self.reading(self._alive(user_id, query, ON_TEXTS))]

    async def _alive(self, user_id: str, query: dict[str, Any], fields: Any) -> list[dict[str, Any]]:
        """Records of a user; those of forgotten sessions, which a writer that was killed may have left, are removed."""
        found = await self._found(query, fields)
        dead = await self._dead(user_id, found)
        if not dead:
            return found
        gone = {d["stamp"] for d in dead}
        remove = records_filter(user_id, stamp={"$in": sorted(gone)}, **with_ids(user_id, [d["_id"] for d in dead]))
        with suppress(PyMongoError):  # they stay dead; whoever reads them next tries again
            await self._call(lambda c: c.delete_many(remove))
        return [d for d in found if d["stamp"] not in gone]

    async def _dead(self, user_id: str, found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Those that are of sessions that were forgotten; looked up now: a session is there before its records."""
        bound = [d for d in found if d.get("generation") and isinstance(d["session_id"], str)]
        generations = await self._generations(user_id, sorted({d["session_id"] for d in bound}))
        return [d for d in bound if d["generation"] != generations.get(d["session_id"])]

    async def _generations(self, user_id: str, sessions: Sequence[str]) -> dict[str, str]:
        generations: dict[str, str] = {}
        for batch in batches(sessions):
            ids = [{"user_id": user_id, "session_id": session} for session in batch]
            query = {"user_id": {"$eq": user_id}, "_id": {"$in": ids}}
            found = await self._found(query, {"session_id": 1, "generation": 1}, hint=BY_ID)
            generations.update((d["session_id"], d.get("generation", "")) for d in found)
        return generations

    async def _known(
        self, user_id: str, session_id: str, digests: Sequence[str], ids: Sequence[str]
    ) -> list[dict[str, Any]]:
        """A session's document, records with these ids, and some with these digests."""
        most = 1 + len(ids) + SAME * len(digests)
        found = await self._found(begin_filter(user_id, session_id, digests, ids), ON_BEGIN, limit=most)
        if digests and len(found) == most:  # one text many times: nothing else must be left out for it
            found += await self._found(begin_filter(user_id, session_id, (), ids), ON_BEGIN, hint=BY_ID)
        return found

    async def _last(
        self, session: Mapping[str, Any], digests: Sequence[str], messages: Collection[str] | None
    ) -> tuple[dict[str, Any] | None, int]:
        """The last record of a session, if it has to be read, and the position of the last one."""
        told: Any = session.get("last")
        if not matters(told, digests, messages):
            return None, int(told["position"])
        here = {"generation": {"$eq": session.get("generation")}, "position": A_NUMBER, "expires_at": live(self._now())}
        query = records_filter(session["user_id"], session["session_id"], **here)
        found = await self._found(query, ON_TEXTS, sort=LAST_FIRST, limit=1)
        return (found[0], int(found[0]["position"])) if found else (None, 0)

    async def by_ids(self, user_id: str, ids: Sequence[str], *, vectors: bool) -> list[Stored]:
        """Records of a user to show."""
        return await self.reading(self._by_ids(user_id, ids, ON_STORED if vectors else ON_TEXTS))

    async def _by_ids(self, user_id: str, ids: Sequence[str], fields: Any) -> list[Stored]:
        found: list[Stored] = []
        for batch in batches(ids):
            query = {"user_id": {"$eq": user_id}, **with_ids(user_id, batch)}
            documents = await self._found(query, fields, hint=BY_ID)
            records = [d for d in documents if isinstance(d.get("stamp"), int)]
            gone = {d["_id"] for d in await self._dead(user_id, records)}
            found += [stored_of(d) for d in records if d["_id"] not in gone]
        return found

    async def owned(self, ids: Sequence[str]) -> bool:
        """Whether a user has a record with one of these ids."""
        for batch in batches(ids):
            if await self.reading(self._found(owned_filter(batch), {"_id": 1}, limit=1)):
                return True
        return False

    async def accesses(self, user_id: str) -> dict[str, datetime]:
        """Last recalls by record id."""
        query = records_filter(user_id, accessed_at={"$type": "date"})
        rows = await self.reading(self._found(query, {"accessed_at": 1}))
        return {row["_id"]: row["accessed_at"] for row in rows}

    async def sessions(self, user_id: str) -> list[SessionInfo]:
        """The user's sessions, most recently used first."""
        match = {**records_filter(user_id), "session_id": {"$gt": ""}, "expires_at": live(self._now())}
        rounds = {"session": "$session_id", "round": "$round_id", "generation": "$generation"}
        sessions = {"session": "$_id.session", "generation": "$_id.generation"}
        ends = {"first": {"$min": "$first"}, "last": {"$max": "$last"}}
        pipeline = [
            {"$match": match},
            {"$group": {"_id": rounds, "first": {"$min": "$created_at"}, "last": {"$max": "$created_at"}}},
            {"$group": {"_id": sessions, "rounds": {"$sum": 1}, **ends}},
            {"$sort": {"last": -1, "_id": 1}},
        ]
        rows = await self.reading(self.aggregate(pipeline))
        known = await self.reading(self._found(not_records(user_id), {"session_id": 1, "generation": 1}))
        generations = {d["session_id"]: d.get("generation") for d in known}
        return [
            SessionInfo(row["_id"]["session"], row["rounds"], row["first"], row["last"])
            for row in rows
            # plain documents have none; that of a forgotten session is another one
            if row["_id"].get("generation") in ("", generations.get(row["_id"]["session"]))
        ]

    async def probe(self) -> bytes | None:
        """What is kept of the embedding model."""
        found = await self.reading(self._found({"_id": {"$eq": PROBE_ID}}, {"probe": 1}))
        return vector_of({"vector": found[0].get("probe")}) if found else None
