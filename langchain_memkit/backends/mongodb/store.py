"""The storage model on MongoDB: flows that append, clear and purge, for both call styles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pymongo.errors import PyMongoError

from langchain_memkit._sync import Flow
from langchain_memkit.backends._history.rows import Batch, Origin, Scope
from langchain_memkit.backends.mongodb.append import Append, mark, void_older
from langchain_memkit.backends.mongodb.commands import text_of
from langchain_memkit.backends.mongodb.documents import NO_TURNS, OURS, Kind, legacy_filter, turns_filter
from langchain_memkit.backends.mongodb.indexes import ensure_indexes
from langchain_memkit.backends.mongodb.reader import Reader
from langchain_memkit.base import Head
from langchain_memkit.errors import HistoryWriteError

T = TypeVar("T")


class MongoTurnStore(Reader):
    """All flows of one collection, with the clients that run them."""

    layout = "turns"

    async def setup(self) -> None:
        """Builds missing indexes, however large the collection is."""
        await self.reading(ensure_indexes(self.clients, self.settings, forced=True))

    async def append(self, scope: Scope, batch: Batch, expected_seq: int | None, origin: Origin) -> int:
        """Stores a batch; returns the position of its last row."""
        flow = Append(self, scope, batch, "turn", expected_seq, origin).flow()
        head = await self.writing(flow, batch)
        return head.seq

    async def flag(self, scope: Scope, turn: int | str, *, deleted: bool) -> bool:
        """Sets or removes the soft-delete mark of a turn."""
        which = "op" if isinstance(turn, str) else "seq"
        query = {**turns_filter(*scope, kind={"$nin": NO_TURNS}), which: {"$eq": turn}}
        change = {"$set": {"isDeleted": deleted}}
        result = await self.writing(self.retried(lambda c: c.update_one(query, change)))
        return bool(result.matched_count)

    async def drop_turns(self, scope: Scope, ops: Sequence[str]) -> None:
        """Deletes turns that were written somewhere else, and nothing that came since."""
        for begin in range(0, len(ops), 1000):
            query = turns_filter(*scope, op={"$in": list(ops[begin : begin + 1000])})
            await self.writing(self.retried(lambda c, query=query: c.delete_many(query)))  # type: ignore[misc]  # bound now

    async def clear(self, scope: Scope) -> None:
        """Marker in, everything older out; whatever the marker covers is invisible at once."""
        await self.writing(self._void(scope, "clear"))

    async def purge(self, user_id: str) -> dict[str, int]:
        """Marker into every session of the user, everything else out."""
        return await self.writing(self._purge(user_id))

    async def _purge(self, user_id: str) -> dict[str, int]:
        await self._void(Scope(user_id, ""), "purge")
        return await self._begun(self._purge_sessions(user_id))

    async def _purge_sessions(self, user_id: str) -> dict[str, int]:
        rows = await self.aggregate(
            [{"$match": turns_filter(user_id, seq=OURS["seq"])}, {"$group": {"_id": "$session_id"}}]
        )
        scopes = [Scope(user_id, row["_id"]) for row in rows if isinstance(row["_id"], str) and row["_id"]]
        heads: dict[Scope, Head] = {}
        for scope in scopes:
            heads[scope] = await mark(self, scope, "clear")
        sessions = turns = 0
        for scope, head in heads.items():
            deleted = await void_older(self, scope, head)
            sessions, turns = sessions + bool(deleted), turns + deleted
        return {"sessions": sessions, "turns": turns}

    async def _void(self, scope: Scope, kind: Kind) -> int:
        """Puts a marker at the end of a session and deletes what is before it; returns how many turns went."""
        head = await mark(self, scope, kind)
        return await self._begun(self._remove_older(scope, head))

    async def _begun(self, flow: Flow[T]) -> T:
        """What follows a marker: if it fails, something was done already."""
        try:
            return await flow
        except (PyMongoError, HistoryWriteError) as error:
            cause = error if isinstance(error, PyMongoError) else error.__cause__
            reason = text_of(cause) if isinstance(cause, PyMongoError) else "other writers were faster every time"
            msg = f"cannot write to {self.clients.hosts}: {reason}. Not all is deleted yet: call again to go on."
            raise HistoryWriteError(msg, maybe_stored=True) from cause

    async def _remove_older(self, scope: Scope, head: Head) -> int:
        deleted = await void_older(self, scope, head)
        if not scope.user_id:
            rows = legacy_filter(*self.settings.legacy_keys, scope.session_id)
            await self.retried(lambda c: c.delete_many(rows))
        return deleted
