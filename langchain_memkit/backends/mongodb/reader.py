"""Read a history collection: our turns, newest or oldest first, and langchain-mongodb's rows as the oldest."""

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
    """A page position among langchain-mongodb's rows.

    Attributes:
        identity: The `_id` of the last row of the page before; None for the first page.
        native_since: The date of the oldest native turn, if known: newer rows show that an old app still writes.
    """

    identity: Any | None
    native_since: datetime | None


class Reader(Commands):
    """Read flows of a history collection.

    Args:
        clients: The driver clients.
        settings: The collection and its options.
    """

    def __init__(self, clients: Clients, settings: Settings) -> None:
        super().__init__(clients, settings)
        self._warned = False

    @property
    def ttl(self) -> float | None:
        """Seconds after which a turn expires; None if it stays."""
        return self.settings.ttl

    async def page_back(self, scope: Scope, older: Any | None, limit: int, enough: Enough, floor: int = 0) -> Page:
        """Return a page of turns, newest first; for histories without a user, langchain-mongodb's rows follow ours.

        Args:
            scope: User and session.
            older: The position that the page before returned; None for the newest page.
            limit: The most documents to read.
            enough: When the page may end early.
            floor: Leave out turns below this position; 0 for none.
        """
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
            # The documents were cut to their newest messages, but unreadable ones do not count: read them whole.
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
        """Log once that langchain-mongodb's rows exist after a clear.

        They cannot be told from rows that the clear was to delete, so they are not shown.
        """
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
        """Return a page of turns, oldest first: langchain-mongodb's rows, then ours.

        Args:
            scope: User and session.
            after: The position that the page before returned, or the `seq` after which to begin; None for the start.
            limit: The most documents to read.
            hidden: Return soft-deleted turns as well.

        Returns:
            The turns, and the position of the next page; None if this was the last one.
        """
        return await self.reading(self._page_forward(scope, after, limit, hidden))

    async def _page_forward(
        self, scope: Scope, after: Any | None, limit: int, hidden: bool
    ) -> tuple[list[Turn], Any | None]:
        # No head while paging through langchain-mongodb's rows: they are not in our index, so it would cost a scan.
        legacy = isinstance(after, LegacyPlace)
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
        """Return the `_id` of a turn of this session that is stored without a user, with one query; None for none."""
        ours = {**turns_filter("", session_id), "kind": {"$nin": NO_TURNS}, **SHOWN}
        query = {"$or": [ours, legacy_filter(*self.settings.legacy_keys, session_id)]}
        found = self.retried(lambda c: c.find_one(query, ["_id"]), self.settings.timeout)
        row = await self.reading(found)
        return str(row["_id"]) if row else None

    async def stored_ids(self, scope: Scope, ids: Sequence[str]) -> set[str]:
        """Return which of the ids belong to live messages of the session: one indexed query."""
        query = {**turns_filter(*scope), "messages.id": {"$in": list(ids)}}
        fields = ["messages.id", "kind", "seq", "isActive", "isDeleted", "expiresAt"]
        found = self.retried(lambda c: c.find(query, fields).to_list(), self.settings.timeout)
        documents = await self.reading(found)
        now = self.settings.now()
        live = [m.get("id") for d in documents if is_live(d, 0, now) for m in d.get("messages") or ()]
        return set(ids) & {i for i in live if isinstance(i, str)}  # an id that is no valid UTF-8 is stored as a dict

    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]:
        """Return the user's sessions, most recently used first; with `hidden`, soft-deleted turns count as well."""
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
        """Return all users with turns, sorted; the empty string is the unowned space, with langchain-mongodb's rows."""
        match = {"user_id": {"$type": "string"}, "seq": {"$gt": 0}, "kind": {"$nin": NO_TURNS}}
        rows = await self.reading(self.aggregate([{"$match": match}, {"$group": {"_id": "$user_id"}}]))
        legacy = legacy_filter(*self.settings.legacy_keys)
        old = await self.reading(self.retried(lambda c: c.find_one(legacy, {"_id": 1})))
        return sorted({row["_id"] for row in rows} | ({""} if old else set()))

    async def find(
        self, query: dict[str, Any], direction: int, limit: int, key: str = "seq", newest: int | None = None
    ) -> Any:
        """Find at most `limit` documents in order, retrying after a failover.

        Args:
            query: The filter.
            direction: 1 for ascending, -1 for descending.
            limit: The most documents.
            key: The field that sets the order.
            newest: Fetch only this many messages of each document, and one more, from its end: those of an import are
                long. None fetches all.
        """
        fields: dict[str, Any] | None = None
        if newest is not None and newest < MAX_SLICE:
            fields = {name: {"$slice": -(newest + 1)} for name in ("messages", "tokens")}
        return await self.retried(
            lambda c: c.find(query, fields).sort(key, direction).limit(limit).to_list(), self.settings.timeout
        )

    async def head(self, scope: Scope, level: str, seconds: float | None = None) -> Head | None:
        """Return the session's head; None if it holds nothing.

        Args:
            scope: User and session.
            level: Read concern: `"local"` sees the position that writers compete for, `"majority"` what is certain.
            seconds: Time limit; None for the configured one.
        """
        query, fields = turns_filter(*scope), ["seq", "epoch", "base", "kind", "expiresAt"]

        def newest(collection: Any) -> Any:
            chosen = collection.with_options(read_concern=ReadConcern(level))
            return chosen.find(query, fields).sort("seq", -1).limit(4).to_list()

        return head_of(await self.retried(newest, seconds or self.settings.timeout))

    async def purged(self, user_id: str, seconds: float | None = None) -> int:
        """Return the epoch of the user's last purge, 0 if there was none in the last two hours.

        Its tombstone lies under the empty session id, which no caller can pass.
        """
        head = await self.head(Scope(user_id, ""), "local", seconds)
        return head.epoch if head else 0
