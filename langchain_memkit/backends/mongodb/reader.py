"""Reading a collection: our turns newest or oldest first, and langchain-mongodb's rows before them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from pymongo.read_concern import ReadConcern

from langchain_memkit.backends._history.rows import EMPTY, MOST, Enough, Page, Scope, until_enough
from langchain_memkit.backends.mongodb.clients import Clients
from langchain_memkit.backends.mongodb.commands import Commands, Settings
from langchain_memkit.backends.mongodb.documents import (
    NO_TURNS,
    SHOWN,
    head_of,
    is_live,
    legacy_filter,
    legacy_turn,
    native_turn,
    position,
    turns_filter,
)
from langchain_memkit.base import Head, SessionInfo, Turn

logger = logging.getLogger("langchain_memkit")

MAX_SLICE = 1_000_000


class LegacyPlace(NamedTuple):
    """A place among langchain-mongodb's rows, and since when native turns exist."""

    identity: Any | None
    native_since: datetime | None


class Reader(Commands):
    """Flows that read."""

    def __init__(self, clients: Clients, settings: Settings) -> None:
        super().__init__(clients, settings)
        self._warned = False

    @property
    def ttl(self) -> float | None:
        """Seconds after which a turn goes."""
        return self.settings.ttl

    async def page_back(self, scope: Scope, older: Any | None, limit: int, enough: Enough, floor: int = 0) -> Page:
        """Turns newest first; below our own lie the rows of langchain-mongodb, for histories without a user."""
        return await self.reading(self._page_back(scope, older, limit, enough, floor))

    async def _page_back(self, scope: Scope, older: Any | None, limit: int, enough: Enough, floor: int = 0) -> Page:
        if isinstance(older, LegacyPlace):
            turns, older = await self._legacy_page(scope, older, -1, limit)
            return Page(turns, 0, 0, None, older)
        before, base = older or (None, 0)
        base = max(base, floor - 1)
        query = turns_filter(*scope, seq={"$gt": base, **({"$lte": MOST} if before is None else {"$lt": before})})
        documents = await self.find(query, -1, limit, newest=enough.messages)
        found = head_of(documents)
        head = found or EMPTY
        known = head if found or not (documents or floor) else None
        base = base if older else max(base, head.base)
        epoch = head.epoch
        if not documents and older is None:
            epoch = await self.purged(scope.user_id) if scope.user_id else 0
        now = self.settings.now()
        turns, stopped = until_enough(self._live_turns(documents, base, now), enough)
        if enough.messages is not None and any(turn.problems for turn in turns):
            # what cannot be read does not count: whole rows are needed
            documents = await self.find(query, -1, limit)
            turns, stopped = until_enough(self._live_turns(documents, base, now), enough)
        last = turns[-1].seq if stopped else documents[-1]["seq"] if documents else 0
        if stopped or (len(documents) == limit and position(last) > base + 1):
            return Page(turns, head.seq, epoch, now, (last, base), known)
        if head.base and not scope.user_id and older is None:
            await self._report_rows_after_clear(scope)
        legacy = LegacyPlace(None, documents[-1].get("createdAt") if documents else None)
        return Page(turns, head.seq, epoch, now, None if scope.user_id or base else legacy, known)

    def _live_turns(
        self, documents: list[dict[str, Any]], base: int, now: datetime, hidden: bool = False
    ) -> Iterator[Turn]:
        return (native_turn(d, self.settings.token_counter) for d in documents if is_live(d, base, now, hidden))

    async def _report_rows_after_clear(self, scope: Scope) -> None:
        """Rows that an old app wrote after a clear cannot be told from those it was to delete: said, not shown."""
        query = legacy_filter(*self.settings.legacy_keys, scope.session_id)
        if not self._warned and await self.find(query, 1, 1, key="_id"):
            self._warned = True
            logger.warning(
                "session %r: rows of langchain-mongodb written after a clear are not shown", scope.session_id
            )

    async def _legacy_page(self, scope: Scope, at: LegacyPlace, direction: int, limit: int) -> tuple[list[Turn], Any]:
        query = legacy_filter(*self.settings.legacy_keys, scope.session_id)
        if at.identity is not None:
            query["_id"] = {"$lt" if direction < 0 else "$gt": at.identity}
        rows = await self.find(query, direction, limit, key="_id")
        turns = [legacy_turn(row, self.settings.legacy_keys[1], self.settings.token_counter) for row in rows]
        newest = turns[0].created_at if turns and at.identity is None and direction < 0 else None
        if newest and at.native_since and newest > at.native_since and not self._warned:
            self._warned = True
            logger.warning(
                "session %r: an old app still writes langchain-mongodb rows after native turns exist; they are shown "
                "before those turns",
                scope.session_id,
            )
        return turns, LegacyPlace(rows[-1]["_id"], None) if len(rows) == limit else None

    async def page_forward(
        self, scope: Scope, after: Any | None, limit: int, *, hidden: bool = False
    ) -> tuple[list[Turn], Any | None]:
        """Turns oldest first: langchain-mongodb's rows, then ours; `hidden`: soft-deleted ones as well."""
        return await self.reading(self._page_forward(scope, after, limit, hidden))

    async def _page_forward(
        self, scope: Scope, after: Any | None, limit: int, hidden: bool
    ) -> tuple[list[Turn], Any | None]:
        legacy = isinstance(after, LegacyPlace)  # head would be a scan there: rows of others are not in our index
        head = EMPTY if legacy else await self.head(scope, "majority") or EMPTY
        if (after is None and not scope.user_id and not head.base) or isinstance(after, LegacyPlace):
            turns, following = await self._legacy_page(scope, after or LegacyPlace(None, None), 1, limit)
            return turns, following or 0
        after = max(after or 0, head.base)
        documents = await self.find(turns_filter(*scope, seq={"$gt": after, "$lte": MOST}), 1, limit)
        now = self.settings.now()
        turns = list(self._live_turns(documents, head.base, now, hidden))
        return turns, documents[-1]["seq"] if len(documents) == limit else None

    async def unowned(self, session_id: str) -> str | None:
        """What tells a turn of this session that is stored without a user; None if there is none: one query."""
        ours = {**turns_filter("", session_id), "kind": {"$nin": NO_TURNS}, **SHOWN}
        query = {"$or": [ours, legacy_filter(*self.settings.legacy_keys, session_id)]}
        found = self.retried(lambda c: c.find_one(query, ["_id"]), self.settings.timeout)
        row = await self.reading(found)
        return str(row["_id"]) if row else None

    async def stored_ids(self, scope: Scope, ids: Sequence[str]) -> set[str]:
        """Which of the ids belong to live messages of the session: one indexed query."""
        query = {**turns_filter(*scope), "messages.id": {"$in": list(ids)}}
        fields = ["messages.id", "kind", "seq", "isActive", "isDeleted", "expiresAt"]
        found = self.retried(lambda c: c.find(query, fields).to_list(), self.settings.timeout)
        documents = await self.reading(found)
        now = self.settings.now()
        live = [m.get("id") for d in documents if is_live(d, 0, now) for m in d.get("messages") or ()]
        return set(ids) & {i for i in live if isinstance(i, str)}  # what is no UTF-8 is tagged

    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]:
        """The user's sessions, most recently used first; `hidden`: counted with their soft-deleted turns."""
        return await self.reading(self._sessions(user_id, hidden))

    async def _sessions(self, user_id: str, hidden: bool) -> list[SessionInfo]:
        live: dict[str, Any] = {"kind": {"$nin": NO_TURNS}, "expiresAt": {"$not": {"$lte": self.settings.now()}}}
        live |= {} if hidden else SHOWN
        group = {"_id": "$session_id", "n": {"$sum": 1}, "a": {"$min": "$createdAt"}, "z": {"$max": "$createdAt"}}
        found = await self.aggregate([{"$match": {**turns_filter(user_id), **live}}, {"$group": group}])
        merged = {row["_id"]: SessionInfo(row["_id"], row["n"], row["a"], row["z"]) for row in found}
        if not user_id:
            key = self.settings.legacy_keys[0]
            group = {"_id": f"${key}", "n": {"$sum": 1}, "a": {"$min": "$_id"}, "z": {"$max": "$_id"}}
            match = {**legacy_filter(*self.settings.legacy_keys), key: {"$type": "string"}}
            for row in await self.aggregate([{"$match": match}, {"$group": group}]):
                ours = merged.get(row["_id"])
                first, last = (getattr(row[name], "generation_time", None) for name in "az")
                merged[row["_id"]] = SessionInfo(
                    row["_id"], row["n"] + (ours.turns if ours else 0), first, ours.updated_at if ours else last
                )
        oldest = self.settings.now().replace(year=1970)
        return sorted(merged.values(), key=lambda s: s.updated_at or oldest, reverse=True)

    async def owners(self) -> list[str]:
        """Every user with turns; an empty string stands for nobody, with rows of langchain-mongodb."""
        match = {"user_id": {"$type": "string"}, "seq": {"$gt": 0}, "kind": {"$nin": NO_TURNS}}
        rows = await self.reading(self.aggregate([{"$match": match}, {"$group": {"_id": "$user_id"}}]))
        legacy = legacy_filter(*self.settings.legacy_keys)
        old = await self.reading(self.retried(lambda c: c.find_one(legacy, {"_id": 1})))
        return sorted({row["_id"] for row in rows} | ({""} if old else set()))

    async def find(
        self, query: dict[str, Any], direction: int, limit: int, key: str = "seq", newest: int | None = None
    ) -> Any:
        """A bounded, sorted find, sent again if a failover breaks it off.

        `newest`: one message more than this of each row, since rows of imports are long.
        """
        fields: dict[str, Any] | None = None
        if newest is not None and newest < MAX_SLICE:
            fields = {name: {"$slice": -(newest + 1)} for name in ("messages", "tokens")}
        return await self.retried(
            lambda c: c.find(query, fields).sort(key, direction).limit(limit).to_list(), self.settings.timeout
        )

    async def head(self, scope: Scope, level: str, seconds: float | None = None) -> Head | None:
        """Where the session stands; `level` local sees what writers compete for, majority what is certain."""
        query, fields = turns_filter(*scope), ["seq", "epoch", "base", "kind", "expiresAt"]

        def newest(collection: Any) -> Any:
            chosen = collection.with_options(read_concern=ReadConcern(level))
            return chosen.find(query, fields).sort("seq", -1).limit(4).to_list()

        return head_of(await self.retried(newest, seconds or self.settings.timeout))

    async def purged(self, user_id: str, seconds: float | None = None) -> int:
        """The epoch of the user's last purge, kept under the session id that no caller can pass."""
        head = await self.head(Scope(user_id, ""), "local", seconds)
        return head.epoch if head else 0
