"""Flows that change a collection of vectors, but for the storing of records: recalls, deleting."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from bson import Int64

from langchain_memkit.backends._vectors.rows import Row
from langchain_memkit.backends.mongodb.repeating import BATCH, RepeatingRunner, batches
from langchain_memkit.backends.mongodb.vector_documents import (
    BY_ID,
    ON_DEAD,
    draw_step,
    not_records,
    records_filter,
    session_filter,
    with_ids,
)
from langchain_memkit.backends.mongodb.vector_indexes import ensure_vector_indexes
from langchain_memkit.backends.mongodb.vector_reader import VectorReader
from langchain_memkit.errors import HistoryConflictError

SEVERAL = 5  # tries of what may meet somebody else


class VectorWriter(VectorReader, RepeatingRunner):
    """What is recalled and deleted."""

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Keeps recalls."""
        query, change = records_filter(user_id, **with_ids(user_id, ids)), {"$max": {"accessed_at": at}}
        await self._sent(lambda c: c.update_many(query, change))

    async def delete(self, user_id: str, ids: Sequence[str]) -> None:
        """Deletes records of a user."""
        for batch in batches(ids):
            gone = {"user_id": {"$eq": user_id}, **with_ids(user_id, batch)}
            # before, too: whoever calls again after this process was killed cannot know that there were some
            if await self._sent(lambda c, gone=gone: c.find(gone, {"_id": 1}, limit=1).to_list()):  # type: ignore[misc]  # bound now
                await self._stir(user_id)
                await self._sent(lambda c, gone=gone: c.delete_many(gone))  # type: ignore[misc]  # bound now
                await self._stir(user_id)

    async def _stir(self, user_id: str) -> None:
        """Tells that records are deleted, by any session of the user: without one nobody relies on what he holds."""
        step = {"$inc": {"stamp": Int64(draw_step())}}
        some = not_records(user_id)
        found = await self._sent(lambda c: c.find(some, {"session_id": 1}, limit=SEVERAL).to_list(), begun=True)
        for session in found:
            one = session_filter(user_id, session["session_id"])  # with the shard key, which servers before 7.0 need
            result = await self._sent(lambda c, one=one: c.update_one(one, step), begun=True)  # type: ignore[misc]  # bound now
            if result.matched_count:
                return

    async def forget(self, user_id: str, session_id: str | None) -> int:
        """Deletes a session or a user; returns how many records."""
        # the generations first: from then on a save is refused
        first = not_records(user_id) if session_id is None else session_filter(user_id, session_id)
        await self._sent(lambda c: c.delete_many(first))
        result = await self._sent(lambda c: c.delete_many(records_filter(user_id, session_id)), begun=True)
        # once more: a save that was overtaken may have stored something since, and been killed
        await self.reading(self._alive(user_id, records_filter(user_id, session_id), ON_DEAD))
        await self._stir(user_id)
        return int(result.deleted_count)

    async def evict(self, user_id: str, max_records: int, keep: Sequence[str]) -> int:
        """Deletes what is too much; returns how many."""
        counting = self._call(lambda c: c.count_documents(records_filter(user_id)))
        count: int = await self.reading(counting)
        surplus = left = max(0, count - max_records)
        if surplus:
            await self._stir(user_id)  # before, too: whoever calls again finds nothing to do
        for recalled in (None, {"$type": "date"}):
            order = [("accessed_at", 1), ("created_at", 1)]
            query = records_filter(user_id, accessed_at=recalled, _id={"$nin": with_ids(user_id, keep)["_id"]["$in"]})
            while left:
                some = {"sort": order, "limit": min(left, BATCH)}
                found = await self.reading(self._found(query, {"_id": 1}, **some))
                if not found:
                    break
                gone = records_filter(user_id, **with_ids(user_id, [document["_id"] for document in found]))
                result = await self._sent(lambda c, gone=gone: c.delete_many(gone))  # type: ignore[misc]  # bound now
                left -= result.deleted_count
        if left < surplus:
            await self._stir(user_id)
        return surplus - left

    async def _check_owners(self, user_id: str, rows: Sequence[Row], state: str) -> None:
        sessions = {row.entry.id: row.entry.session for row in rows}
        for batch in batches(list(sessions)):
            mine = {"user_id": {"$eq": user_id}, **with_ids(user_id, batch)}
            if not user_id:  # an id alone may be that of a record that memkit 0.1.0 stored for a user
                del mine["user_id"]
            for other in await self.reading(self._found(mine, {"user_id": 1, "session_id": 1}, hint=BY_ID)):
                if (other.get("user_id"), other.get("session_id")) != (user_id, sessions[other["_id"]]):
                    msg = f"id {other['_id']!r:.80} belongs to a document of another session or user. {state}."
                    raise HistoryConflictError(msg)

    async def _withdraw(self, user_id: str, rows: Sequence[Row], place: tuple[str, str]) -> None:
        """Removes what was written for a session that is gone."""
        for batch in batches([row.entry.id for row in rows]):
            mine = records_filter(user_id, place[0], generation={"$eq": place[1]}, **with_ids(user_id, batch))
            await self._sent(lambda c, mine=mine: c.delete_many(mine), begun=True)  # type: ignore[misc]  # bound now
        await self._stir(user_id)

    async def _ready(self, *, again: bool = False) -> None:
        await self.writing(ensure_vector_indexes(self.clients, self.settings, again=again))
