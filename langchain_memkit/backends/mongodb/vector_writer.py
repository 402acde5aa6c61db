"""Note recalls in a vector collection, and delete from it."""

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

SEVERAL = 5  # sessions to try, since one may be forgotten meanwhile


class VectorWriter(VectorReader, RepeatingRunner):
    """Flows that note recalls and delete records."""

    async def touch(self, user_id: str, ids: Sequence[str], at: datetime) -> None:
        """Note that records were recalled at a time; an earlier time changes nothing."""
        query, change = records_filter(user_id, **with_ids(user_id, ids)), {"$max": {"accessed_at": at}}
        await self._sent(lambda c: c.update_many(query, change))

    async def delete(self, user_id: str, ids: Sequence[str]) -> None:
        """Delete records of a user by their ids."""
        for batch in batches(ids):
            gone = {"user_id": {"$eq": user_id}, **with_ids(user_id, batch)}
            # Bump the version before the deletion as well as after it. If this process is killed in between, a repeated
            # call finds no records and bumps nothing, and caches would show the deleted records for ever.
            if await self._sent(lambda c, gone=gone: c.find(gone, {"_id": 1}, limit=1).to_list()):  # type: ignore[misc]  # bound now
                await self._stir(user_id)
                await self._sent(lambda c, gone=gone: c.delete_many(gone))  # type: ignore[misc]  # bound now
                await self._stir(user_id)

    async def _stir(self, user_id: str) -> None:
        """Bump the version of any session of the user, so that cached indexes of this user are read again."""
        # Any session will do, since caches compare the sum. A user without sessions needs no bump: without a version no
        # cache relies on what it holds.
        step = {"$inc": {"stamp": Int64(draw_step())}}
        some = not_records(user_id)
        found = await self._sent(lambda c: c.find(some, {"session_id": 1}, limit=SEVERAL).to_list(), begun=True)
        for session in found:
            # The filter has the shard key, which servers before 7.0 need for an `update_one`.
            one = session_filter(user_id, session["session_id"])
            result = await self._sent(lambda c, one=one: c.update_one(one, step), begun=True)  # type: ignore[misc]  # bound now
            if result.matched_count:
                return

    async def forget(self, user_id: str, session_id: str | None) -> int:
        """Delete a session, or with None all of the user's; return how many records that were."""
        # The session documents first: without its generation every save of the session is refused from then on.
        first = not_records(user_id) if session_id is None else session_filter(user_id, session_id)
        await self._sent(lambda c: c.delete_many(first))
        result = await self._sent(lambda c: c.delete_many(records_filter(user_id, session_id)), begun=True)
        # Once more: a save that was under way may have stored records since, and been killed before withdrawing them.
        # This read deletes dead records.
        await self.reading(self._alive(user_id, records_filter(user_id, session_id), ON_DEAD))
        await self._stir(user_id)
        return int(result.deleted_count)

    async def evict(self, user_id: str, max_records: int, keep: Sequence[str]) -> int:
        """Delete the records above a limit; return how many that were.

        Args:
            user_id: The user.
            max_records: How many records may stay. Those never recalled go first, then those whose last recall is the
                oldest; among equals the older record.
            keep: Ids of records that are not deleted.
        """
        counting = self._call(lambda c: c.count_documents(records_filter(user_id)))
        count: int = await self.reading(counting)
        surplus = left = max(0, count - max_records)
        if surplus:
            # Before and after, as in `delete`: a repeated call would find no surplus and bump nothing.
            await self._stir(user_id)
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
            # A plain id may belong to a record that memkit 0.1.0 stored for a user, so an unowned write looks at those
            # of all users.
            if not user_id:
                del mine["user_id"]
            for other in await self.reading(self._found(mine, {"user_id": 1, "session_id": 1}, hint=BY_ID)):
                if (other.get("user_id"), other.get("session_id")) != (user_id, sessions[other["_id"]]):
                    msg = f"id {other['_id']!r:.80} belongs to a document of another session or user. {state}."
                    raise HistoryConflictError(msg)

    async def _withdraw(self, user_id: str, rows: Sequence[Row], place: tuple[str, str]) -> None:
        """Delete the records just written for a session that was forgotten meanwhile, and bump the user's version."""
        for batch in batches([row.entry.id for row in rows]):
            mine = records_filter(user_id, place[0], generation={"$eq": place[1]}, **with_ids(user_id, batch))
            await self._sent(lambda c, mine=mine: c.delete_many(mine), begun=True)  # type: ignore[misc]  # bound now
        await self._stir(user_id)

    async def _ready(self, *, again: bool = False) -> None:
        await self.writing(ensure_vector_indexes(self.clients, self.settings, again=again))
