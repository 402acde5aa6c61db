"""Turns in a MongoDB collection: read, appended, cleared."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern

from langchain_memkit._sync import Flow
from langchain_memkit.backends.mongodb.clients import Clients
from langchain_memkit.backends.mongodb.commands import (
    DUPLICATE_KEY,
    Command,
    Runner,
    Settings,
    is_transient,
    next_try,
    read_committed,
    text_of,
)
from langchain_memkit.backends.mongodb.documents import (
    IN_TWO_HOURS,
    NO_TURNS,
    OPENING,
    OURS,
    SHOWN,
    STORED_LONG_AGO,
    Kind,
    contentless,
    ensure_indexes,
    head_of,
    is_live,
    legacy_filter,
    legacy_turn,
    native_turn,
    position,
    turn_document,
    turns_filter,
    voided,
)
from langchain_memkit.base import SessionHead, SessionInfo, Turn
from langchain_memkit.errors import HistoryConflictError, HistoryWriteError, StaleTurnError
from langchain_memkit.stores.history import TurnStore
from langchain_memkit.stores.history_rows import (
    EMPTY,
    MOST,
    Batch,
    Page,
    PageLimit,
    ReadVersion,
    SessionScope,
    TurnRow,
    may_append,
    new_epoch,
    stored_or_conflict,
    until_limit,
)

logger = logging.getLogger("langchain_memkit")

MAX_SLICE = 1_000_000


class LegacyPosition(NamedTuple):
    """A page position among langchain-mongodb's rows.

    Attributes:
        identity: The `_id` of the last row of the page before; None for the first page.
        native_since: The date of the oldest native turn, if known: newer rows show that an old app still writes.
    """

    identity: Any | None
    native_since: datetime | None


class Append:
    """The append of one batch or tombstone to a session, retried until it is stored or the deadline has passed.

    Args:
        store: The collection to write to.
        scope: User and session.
        batch: The rows to store, in order.
        kind: `"turn"` for content; `"clear"` or `"purge"` for a tombstone.
        expected_seq: The position that the session must be at; None for any.
        origin: The epoch, time and head that the turn saw when it began.
    """

    def __init__(
        self,
        store: MongoTurnStore,
        scope: SessionScope,
        batch: Batch,
        kind: Kind,
        expected_seq: int | None,
        origin: ReadVersion,
    ) -> None:
        self.store = store
        self.scope = scope
        self.batch = batch
        self.kind = kind
        self.expected_seq = expected_seq
        self.origin = origin
        self.pending = list(enumerate(batch.rows))
        self.last = EMPTY
        # Look for stored rows before the first insert in two cases: an import of several rows may continue one that
        # broke off, and with `expected_seq` a retry of a stored turn must succeed instead of raising a conflict.
        self.look_up = len(batch.rows) > 1 or expected_seq is not None
        # A single turn may start from the head read at load, which saves one query. Not where turns expire: their
        # positions become free again, so the unique index would not notice that the remembered head is gone.
        head = None if self.look_up or store.ttl is not None else origin.head
        self.known = None if head is None or head.last == "expiring turn" else head
        # Seconds for one try, less than the whole deadline: if the server hangs, there must be time for another try.
        self.limit = store.settings.timeout
        self.unknown = False
        self.deadline = 0.0

    async def flow(self) -> SessionHead:
        """Append all rows; return the head after the last one.

        Raises:
            HistoryWriteError: The deadline has passed, or the server refused after part of it may have been stored.
            StaleTurnError: The session was cleared or purged since the turn began.
            HistoryConflictError: The session is not at `expected_seq`.
            IdempotencyConflictError: The same `op` is stored with other messages.
        """
        store = self.store
        await ensure_indexes(store.clients, store.settings)
        await store.read_clock()
        self.deadline = time.monotonic() + store.patience
        while True:
            try:
                if self.look_up:
                    await self._look_up()
                if self.pending:
                    await self._insert()
                if not self.pending:
                    return self.last
                message = "other writers were faster every time"
            except PyMongoError as error:
                if not is_transient(error):
                    if self._begun:
                        raise self._failed(text_of(error)) from error
                    raise
                # Only a failed server selection proves that nothing was sent; after any other failure the insert may
                # have been applied, so look for the ops before inserting again.
                self.unknown = self.unknown or not isinstance(error, ServerSelectionTimeoutError)
                self.look_up, self.limit, message = True, self.limit * 2, text_of(error)
                cause: PyMongoError | None = error
            else:
                cause = None
            # A lost race for a position is over at once; an election or lost connection needs longer.
            pause = next_try(self.deadline, 0.25 if cause else 0.02)
            if pause is None:
                raise self._failed(message, f" within {self.store.patience:g} s") from cause
            await pause

    @property
    def _begun(self) -> bool:
        """Whether some rows are stored, or may be."""
        return self.unknown or len(self.pending) < len(self.batch.rows)

    @property
    def _remaining(self) -> float:
        """Seconds until the deadline, at least 0.1."""
        return max(self.deadline - time.monotonic(), 0.1)

    @property
    def _one_try(self) -> float:
        """Time limit of one insert in seconds; it doubles after each time-out, since a large batch may need longer."""
        return min(self._remaining, self.limit)

    @property
    def _look(self) -> float:
        """Time limit of one read of the session in seconds."""
        return min(self._remaining, self.store.settings.timeout)

    def _failed(self, reason: str, limit: str = "") -> HistoryWriteError:
        hosts = self.store.clients.hosts
        state = "It may be stored: retry with the same turn_id" if self._begun else "Nothing was stored"
        if len(self.batch.rows) > 1:
            more = ", perhaps more" if self.unknown else ""
            state = f"{len(self.batch.rows) - len(self.pending)} of {len(self.batch.rows)} parts are stored{more}: add "
            state += "`error.messages` again to continue"
        msg = f"cannot write to {hosts}{limit}: {reason}. {state}."
        return HistoryWriteError(msg, maybe_stored=self._begun, **self.batch.error_context)

    async def _look_up(self) -> None:
        """Drop the rows that are stored already from `pending`.

        Only rows that a majority has count: others may still be rolled back.
        """
        ops = [row.op for _, row in self.pending]
        query = turns_filter(*self.scope, op={"$in": ops})
        documents = await read_committed(self.store, query, None, self.deadline)
        if documents is None:
            self.unknown = True
            raise self._failed("no majority has confirmed it")
        current = await self.store.head(self.scope, "local", self._look) or EMPTY
        stored = {d["op"]: d for d in documents if not (isinstance(d.get("seq"), int) and d["seq"] < current.base)}
        for index, row in list(self.pending):
            if row.op in stored:
                document = stored[row.op]
                if self.kind == "turn":
                    stored_or_conflict(self.batch, index, native_turn(document, None))
                self.last = head_of([document]) or EMPTY
                self.pending.remove((index, row))
        # Rows below the base are left over from a clear that broke off. They still hold their ops in the unique index,
        # so an insert of the same op would fail for ever: finish the clear first.
        if len(documents) > len(stored):
            await erase_before(self.store, self.scope, current._replace(seq=current.base))
        self.look_up = False

    async def _insert(self) -> None:
        """Try once to insert the pending rows after the head. The head may be out of date: the unique index decides."""
        store, scope, origin = self.store, self.scope, self.origin
        # Use the remembered head for one try only. A local read suffices after that: a stale head leads to a position
        # that is taken, and a majority confirms our insert only together with the row that it follows.
        known = head = self.known
        self.known = None
        if head is None or (head.seq and head.epoch != origin.epoch):
            head = await store.head(scope, "local", self._look) or EMPTY
        # First turn of a session: the collection may have been dropped and made anew without its unique indexes.
        if not head.seq:
            await ensure_indexes(store.clients, store.settings, again=True)
        # If the session is still in the epoch that the turn saw, no purge has reached it. Otherwise the purge tombstone
        # decides. The order matters: the opening document first, so that a purge that starts after our look-up finds
        # this session and voids what we insert.
        purged = 0
        if origin.epoch is not None and scope.user_id and not (head.seq and head.epoch == origin.epoch):
            if not head.seq:
                await self._open()
            purged = await store.purged(scope.user_id, self._look)
        self._check(head, purged)
        if self.kind != "turn":
            await self._insert_marker(head)
            return
        # The epoch of a session that begins with a tombstone lives in that tombstone. Extend its life before inserting
        # after it; if it expired meanwhile, return and let the next try read the head again.
        if head.last == "marker" and not await self._renew(head):
            return
        documents = self._documents(head)
        try:
            await Command(lambda c: c.insert_many(documents), self._one_try)
        except BulkWriteError as error:
            done, taken = _read_bulk_error(error)
            self._stored(documents[:done])
            if taken is None:
                raise
            # A duplicate `seq` means that another writer took the position; a duplicate `op`, or an unnamed field, may
            # be this very turn, stored by an earlier try.
            self.look_up = taken != "seq" or self.expected_seq is not None
            # Only the remembered head was out of date: read it and try again without a pause.
            if known and not self.look_up:
                await self._insert()
            return
        self._stored(documents)

    async def _open(self) -> None:
        """Upsert the session's opening document, which has no content and makes a purge find the session."""
        row = turns_filter(*self.scope, seq={"$eq": OPENING})
        made = contentless("opening", "opening", EMPTY)
        await self.store.retried(lambda c: c.update_one(row, made, upsert=True), self._look)

    async def _renew(self, head: SessionHead) -> bool:
        """Extend the life of the tombstone at the head by two hours; return whether it still exists."""
        row = turns_filter(*self.scope, seq={"$eq": head.seq}, kind={"$in": NO_TURNS}, epoch={"$eq": head.epoch})
        change = [{"$set": {"expiresAt": IN_TWO_HOURS}}]
        result = await self.store.retried(lambda c: c.update_one(row, change), self._look)
        return bool(result.matched_count)

    async def _insert_marker(self, head: SessionHead) -> None:
        """Try once to insert a tombstone after the head, with a new epoch.

        It is an upsert because only an update pipeline can read the server's clock.
        """
        (_, row), seq = self.pending[0], head.seq + 1
        marker = SessionHead(seq, new_epoch(), seq, "marker")
        query = turns_filter(*self.scope, seq={"$eq": seq}, op={"$eq": row.op})
        made = contentless(self.kind, row.op, marker)
        try:
            await Command(lambda c: c.update_one(query, made, upsert=True), self._one_try)
        except DuplicateKeyError:
            return
        self.last = marker
        self.pending.clear()

    def _check(self, head: SessionHead, purged: int) -> None:
        # The epoch first: a turn of an erased session is dropped, whatever position the caller expected.
        context = self.batch.error_context
        if not may_append(head if head.seq else None, self.origin, purged, self.store.settings.now()):
            erased = "was cleared, or its user purged," if purged else "was cleared"
            msg = f"session {self.scope.session_id!r} {erased} while this turn ran, so the turn was not stored"
            raise StaleTurnError(msg, **context)
        if self.expected_seq is not None and self.expected_seq != head.seq:
            msg = f"expected the session at position {self.expected_seq}, it is at {head.seq}; read it again"
            raise HistoryConflictError(msg, maybe_stored=self.unknown, **context)

    def _documents(self, head: SessionHead) -> list[dict[str, Any]]:
        # The first turn of an empty session draws the session's epoch; every later one repeats the head's.
        store, documents = self.store, []
        settings, server_now = store.settings, store.server_now()
        if not head.seq:
            head = SessionHead(0, new_epoch(), 0)
        for _, row in self.pending:
            head = head._replace(seq=head.seq + 1)
            documents.append(
                turn_document(self.scope, head, row, settings.now(), server_now, settings.ttl, settings.token_counter)
            )
        return documents

    def _stored(self, documents: list[dict[str, Any]]) -> None:
        # `insert_many` is ordered, so what is stored is always a prefix of the pending rows.
        if documents:
            self.last = head_of(documents[-1:]) or EMPTY
            del self.pending[: len(documents)]
            if self.expected_seq is not None:
                self.expected_seq = self.last.seq


def _read_bulk_error(error: BulkWriteError) -> tuple[int, str | None]:
    """Read how many documents a failed `insert_many` stored, and the field of the duplicate key.

    Returns:
        The count, and the last field of the violated unique index: empty where the server does not name it, None if the
        failure was no duplicate key. If the write concern failed, the count is 0: nothing is certain.
    """
    details = error.details or {}
    failures = details.get("writeErrors") or []
    if details.get("writeConcernErrors"):
        return 0, None  # nothing is certain: the caller looks the ops up
    done = int(details.get("nInserted", 0))
    if not failures or failures[0].get("code") != DUPLICATE_KEY:
        return done, None
    return done, str([*(failures[0].get("keyPattern") or [""])][-1])


async def insert_tombstone(store: MongoTurnStore, scope: SessionScope, kind: Kind) -> SessionHead:
    """Insert a tombstone at the end of a session; everything before it is void from then on.

    Args:
        store: The collection.
        scope: User and session.
        kind: `"clear"` or `"purge"`.

    Returns:
        The head, which is the tombstone with its new epoch.
    """
    batch = Batch([], [], [TurnRow(f"{kind}:{uuid4()}", [], [])], None)
    return await Append(store, scope, batch, kind, None, ReadVersion()).flow()


async def erase_before(store: MongoTurnStore, scope: SessionScope, head: SessionHead) -> int:
    """Erase the content of everything before a tombstone; return how many turns that were.

    Turns of the last two hours (and the tolerance for client clocks) keep their position as documents without content,
    until no writer can come any more that read the session before the tombstone. Older ones are deleted. Older
    tombstones expire by themselves. It may be repeated after a crash.
    """
    turns = turns_filter(*scope, seq={"$gt": 0, "$lt": head.seq}, kind={"$nin": NO_TURNS})
    old = await store.retried(lambda c: c.delete_many({**turns, **STORED_LONG_AGO}))
    change = voided(head.epoch)
    recent = await store.retried(lambda c: c.update_many(turns, change))
    # Documents with a damaged position: no reader shows them, but their content must go as well.
    rest = turns_filter(*scope, seq={"$exists": True, "$not": {"$gt": 0, "$lte": MOST}})
    await store.retried(lambda c: c.delete_many(rest))
    return int(old.deleted_count) + int(recent.modified_count)


T = TypeVar("T")


class MongoTurnStore(Runner[Settings], TurnStore):
    """All flows of one history collection, with the clients that run them."""

    layout = "turns"

    def __init__(self, clients: Clients, settings: Settings) -> None:
        super().__init__(clients, settings)
        self._warned = False

    @property
    def ttl(self) -> float | None:
        """Seconds after which a turn expires; None if it stays."""
        return self.settings.ttl

    async def setup(self) -> None:
        """Build missing indexes, however large the collection is."""
        await self.reading(ensure_indexes(self.clients, self.settings, forced=True))

    async def head(self, scope: SessionScope, level: str, seconds: float | None = None) -> SessionHead | None:
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

    async def page_back(
        self, scope: SessionScope, older: Any | None, limit: int, enough: PageLimit, floor: int = 0
    ) -> Page:
        """Return a page of turns, newest first; for histories without a user, langchain-mongodb's rows follow ours.

        Args:
            scope: User and session.
            older: The position that the page before returned; None for the newest page.
            limit: The most documents to read.
            enough: When the page may end early.
            floor: Leave out turns below this position; 0 for none.
        """
        return await self.reading(self._page_back(scope, older, limit, enough, floor))

    async def page_forward(
        self, scope: SessionScope, after: Any | None, limit: int, *, hidden: bool = False
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

    async def unowned(self, session_id: str) -> str | None:
        """Return the `_id` of a turn of this session that is stored without a user, with one query; None for none."""
        ours = {**turns_filter("", session_id), "kind": {"$nin": NO_TURNS}, **SHOWN}
        query = {"$or": [ours, legacy_filter(*self.settings.legacy_keys, session_id)]}
        found = self.retried(lambda c: c.find_one(query, ["_id"]), self.settings.timeout)
        row = await self.reading(found)
        return str(row["_id"]) if row else None

    async def stored_ids(self, scope: SessionScope, ids: Sequence[str]) -> set[str]:
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

    async def owners(self) -> list[str]:
        """Return all users with turns, sorted; the empty string is the unowned space, with langchain-mongodb's rows."""
        match = {"user_id": {"$type": "string"}, "seq": {"$gt": 0}, "kind": {"$nin": NO_TURNS}}
        rows = await self.reading(self.aggregate([{"$match": match}, {"$group": {"_id": "$user_id"}}]))
        legacy = legacy_filter(*self.settings.legacy_keys)
        old = await self.reading(self.retried(lambda c: c.find_one(legacy, {"_id": 1})))
        return sorted({row["_id"] for row in rows} | ({""} if old else set()))

    async def purged(self, user_id: str, seconds: float | None = None) -> int:
        """Return the epoch of the user's last purge, 0 if there was none in the last two hours.

        Its tombstone lies under the empty session id, which no caller can pass.
        """
        head = await self.head(SessionScope(user_id, ""), "local", seconds)
        return head.epoch if head else 0

    async def append(self, scope: SessionScope, batch: Batch, expected_seq: int | None, origin: ReadVersion) -> int:
        """Append a batch to a session; return the position of its last row.

        Args:
            scope: User and session.
            batch: The rows to store.
            expected_seq: The position that the session must be at; None for any.
            origin: What the turn saw when it began; a turn of an epoch that was erased since is not stored.
        """
        flow = Append(self, scope, batch, "turn", expected_seq, origin).flow()
        head = await self.writing(flow, batch)
        return head.seq

    async def flag(self, scope: SessionScope, turn: int | str, *, deleted: bool) -> bool:
        """Set or remove the soft-delete flag of a turn, given by `op` or position; return whether it exists."""
        which = "op" if isinstance(turn, str) else "seq"
        query = {**turns_filter(*scope, kind={"$nin": NO_TURNS}), which: {"$eq": turn}}
        change = {"$set": {"isDeleted": deleted}}
        result = await self.writing(self.retried(lambda c: c.update_one(query, change)))
        return bool(result.matched_count)

    async def drop_turns(self, scope: SessionScope, ops: Sequence[str]) -> None:
        """Delete the turns with these `op` names, which were copied elsewhere; turns added since stay."""
        for begin in range(0, len(ops), 1000):
            query = turns_filter(*scope, op={"$in": list(ops[begin : begin + 1000])})
            await self.writing(self.retried(lambda c, query=query: c.delete_many(query)))  # type: ignore[misc]  # bound now

    async def clear(self, scope: SessionScope) -> None:
        """Insert a tombstone, then erase everything before it; all of it is invisible at once."""
        await self.writing(self._void(scope, "clear"))

    async def purge(self, user_id: str) -> dict[str, int]:
        """Insert a tombstone into every session of the user, then erase everything else; return counts."""
        return await self.writing(self._purge(user_id))

    # -- flows

    async def _page_back(
        self, scope: SessionScope, older: Any | None, limit: int, enough: PageLimit, floor: int = 0
    ) -> Page:
        if isinstance(older, LegacyPosition):
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
        turns, stopped = until_limit(self._live_turns(documents, base, now), enough)
        if enough.messages is not None and any(turn.problems for turn in turns):
            # The documents were cut to their newest messages, but unreadable ones do not count: read them whole.
            documents = await self.find(query, -1, limit)
            turns, stopped = until_limit(self._live_turns(documents, base, now), enough)
        last = turns[-1].seq if stopped else documents[-1]["seq"] if documents else 0
        if stopped or (len(documents) == limit and position(last) > base + 1):
            return Page(turns, head.seq, epoch, now, (last, base), known)
        if head.base and not scope.user_id and older is None:
            await self._report_rows_after_clear(scope)
        legacy = LegacyPosition(None, documents[-1].get("createdAt") if documents else None)
        return Page(turns, head.seq, epoch, now, None if scope.user_id or base else legacy, known)

    def _live_turns(
        self, documents: list[dict[str, Any]], base: int, now: datetime, hidden: bool = False
    ) -> Iterator[Turn]:
        return (native_turn(d, self.settings.token_counter) for d in documents if is_live(d, base, now, hidden))

    async def _report_rows_after_clear(self, scope: SessionScope) -> None:
        """Log once that langchain-mongodb's rows exist after a clear.

        They cannot be told from rows that the clear was to delete, so they are not shown.
        """
        query = legacy_filter(*self.settings.legacy_keys, scope.session_id)
        if not self._warned and await self.find(query, 1, 1, key="_id"):
            self._warned = True
            logger.warning(
                "session %r: rows of langchain-mongodb written after a clear are not shown", scope.session_id
            )

    async def _legacy_page(
        self, scope: SessionScope, at: LegacyPosition, direction: int, limit: int
    ) -> tuple[list[Turn], Any]:
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
        return turns, LegacyPosition(rows[-1]["_id"], None) if len(rows) == limit else None

    async def _page_forward(
        self, scope: SessionScope, after: Any | None, limit: int, hidden: bool
    ) -> tuple[list[Turn], Any | None]:
        # No head while paging through langchain-mongodb's rows: they are not in our index, so it would cost a scan.
        legacy = isinstance(after, LegacyPosition)
        head = EMPTY if legacy else await self.head(scope, "majority") or EMPTY
        if (after is None and not scope.user_id and not head.base) or isinstance(after, LegacyPosition):
            turns, following = await self._legacy_page(scope, after or LegacyPosition(None, None), 1, limit)
            return turns, following or 0
        after = max(after or 0, head.base)
        documents = await self.find(turns_filter(*scope, seq={"$gt": after, "$lte": MOST}), 1, limit)
        now = self.settings.now()
        turns = list(self._live_turns(documents, head.base, now, hidden))
        return turns, documents[-1]["seq"] if len(documents) == limit else None

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

    async def _purge(self, user_id: str) -> dict[str, int]:
        # The purge tombstone comes before the list of sessions: a session that opens after the list was read looks this
        # tombstone up before its first turn is stored.
        await self._void(SessionScope(user_id, ""), "purge")
        return await self._begun(self._purge_sessions(user_id))

    async def _purge_sessions(self, user_id: str) -> dict[str, int]:
        rows = await self.aggregate(
            [{"$match": turns_filter(user_id, seq=OURS["seq"])}, {"$group": {"_id": "$session_id"}}]
        )
        scopes = [SessionScope(user_id, row["_id"]) for row in rows if isinstance(row["_id"], str) and row["_id"]]
        # Tombstones into all sessions before anything is erased: turns under way are refused everywhere at once.
        heads: dict[SessionScope, SessionHead] = {}
        for scope in scopes:
            heads[scope] = await insert_tombstone(self, scope, "clear")
        sessions = turns = 0
        for scope, head in heads.items():
            deleted = await erase_before(self, scope, head)
            sessions, turns = sessions + bool(deleted), turns + deleted
        return {"sessions": sessions, "turns": turns}

    async def _void(self, scope: SessionScope, kind: Kind) -> int:
        """Insert a tombstone at the end of a session and erase what is before it; return how many turns that were."""
        head = await insert_tombstone(self, scope, kind)
        return await self._begun(self._remove_older(scope, head))

    async def _begun(self, flow: Flow[T]) -> T:
        """Run a flow that follows a tombstone, so that its errors say that the work is done in part and may go on."""
        try:
            return await flow
        except (PyMongoError, HistoryWriteError) as error:
            cause = error if isinstance(error, PyMongoError) else error.__cause__
            reason = text_of(cause) if isinstance(cause, PyMongoError) else "other writers were faster every time"
            msg = f"cannot write to {self.clients.hosts}: {reason}. Not all is deleted yet: call again to go on."
            raise HistoryWriteError(msg, maybe_stored=True) from cause

    async def _remove_older(self, scope: SessionScope, head: SessionHead) -> int:
        deleted = await erase_before(self, scope, head)
        if not scope.user_id:
            rows = legacy_filter(*self.settings.legacy_keys, scope.session_id)
            await self.retried(lambda c: c.delete_many(rows))
        return deleted
