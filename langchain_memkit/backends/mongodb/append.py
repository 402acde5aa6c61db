"""Append a batch of turns, or a tombstone, to a session: the write path of the storage model.

Order is a gap-free `seq` per session. A turn is inserted at `last + 1`, and the unique index on (user_id, session_id,
seq) is the compare-and-set between writers; the loser reads the head again and tries the next position. The unique
index on `op` makes a retry idempotent, so after any unknown outcome the same turn is sent again until the deadline.

The insert alone decides; the session is not read again afterwards:

- A clear does not free the positions that a late writer may still take: turns of the last two hours stay as documents
  without content, so a writer that read the head before the clear tries a position that is taken.
- A purge finds sessions by their documents. So a user's new session first gets an opening document without content,
  then the purge tombstone is looked up, then the turn is inserted: a purge after the look-up finds the session.
- Such documents protect a session only until they expire, so a turn that follows a tombstone renews it first.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from pymongo.errors import BulkWriteError, DuplicateKeyError, PyMongoError, ServerSelectionTimeoutError

from langchain_memkit.backends._history.rows import (
    EMPTY,
    MOST,
    Batch,
    Origin,
    Row,
    Scope,
    admits,
    new_epoch,
    stored_or_conflict,
)
from langchain_memkit.backends.mongodb.commands import DUPLICATE_KEY, Call, is_transient, next_try, text_of
from langchain_memkit.backends.mongodb.documents import (
    IN_TWO_HOURS,
    NO_TURNS,
    OPENING,
    STORED_LONG_AGO,
    Kind,
    contentless,
    head_of,
    native_turn,
    turn_document,
    turns_filter,
    voided,
)
from langchain_memkit.backends.mongodb.indexes import ensure_indexes
from langchain_memkit.backends.mongodb.reader import Reader
from langchain_memkit.backends.mongodb.settled import settled
from langchain_memkit.base import Head
from langchain_memkit.errors import HistoryConflictError, HistoryWriteError, StaleTurnError


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
        store: Reader,
        scope: Scope,
        batch: Batch,
        kind: Kind,
        expected_seq: int | None,
        origin: Origin,
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

    async def flow(self) -> Head:
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
            state = f"{len(self.batch.rows) - len(self.pending)} of {len(self.batch.rows)} parts are stored: add "
            state += "`error.messages` again to continue"
        msg = f"cannot write to {hosts}{limit}: {reason}. {state}."
        return HistoryWriteError(msg, maybe_stored=self._begun, **self.batch.error_context)

    async def _look_up(self) -> None:
        """Drop the rows that are stored already from `pending`.

        Only rows that a majority has count: others may still be rolled back.
        """
        ops = [row.op for _, row in self.pending]
        query = turns_filter(*self.scope, op={"$in": ops})
        documents = await settled(self.store, query, None, self.deadline)
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
            await void_older(self.store, self.scope, current._replace(seq=current.base))
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
            await Call(lambda c: c.insert_many(documents), self._one_try)
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

    async def _renew(self, head: Head) -> bool:
        """Extend the life of the tombstone at the head by two hours; return whether it still exists."""
        row = turns_filter(*self.scope, seq={"$eq": head.seq}, kind={"$in": NO_TURNS}, epoch={"$eq": head.epoch})
        change = [{"$set": {"expiresAt": IN_TWO_HOURS}}]
        result = await self.store.retried(lambda c: c.update_one(row, change), self._look)
        return bool(result.matched_count)

    async def _insert_marker(self, head: Head) -> None:
        """Try once to insert a tombstone after the head, with a new epoch.

        It is an upsert because only an update pipeline can read the server's clock.
        """
        (_, row), seq = self.pending[0], head.seq + 1
        marker = Head(seq, new_epoch(), seq, "marker")
        query = turns_filter(*self.scope, seq={"$eq": seq}, op={"$eq": row.op})
        made = contentless(self.kind, row.op, marker)
        try:
            await Call(lambda c: c.update_one(query, made, upsert=True), self._one_try)
        except DuplicateKeyError:
            return
        self.last = marker
        self.pending.clear()

    def _check(self, head: Head, purged: int) -> None:
        # The epoch first: a turn of an erased session is dropped, whatever position the caller expected.
        context = self.batch.error_context
        if not admits(head if head.seq else None, self.origin, purged, self.store.settings.now()):
            erased = "was cleared, or its user purged," if purged else "was cleared"
            msg = f"session {self.scope.session_id!r} {erased} while this turn ran, so the turn was not stored"
            raise StaleTurnError(msg, **context)
        if self.expected_seq is not None and self.expected_seq != head.seq:
            msg = f"expected the session at position {self.expected_seq}, it is at {head.seq}; read it again"
            raise HistoryConflictError(msg, maybe_stored=self.unknown, **context)

    def _documents(self, head: Head) -> list[dict[str, Any]]:
        # The first turn of an empty session draws the session's epoch; every later one repeats the head's.
        store, documents = self.store, []
        settings, server_now = store.settings, store.server_now()
        if not head.seq:
            head = Head(0, new_epoch(), 0)
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


async def mark(store: Reader, scope: Scope, kind: Kind) -> Head:
    """Insert a tombstone at the end of a session; everything before it is void from then on.

    Args:
        store: The collection.
        scope: User and session.
        kind: `"clear"` or `"purge"`.

    Returns:
        The head, which is the tombstone with its new epoch.
    """
    batch = Batch([], [], [Row(f"{kind}:{uuid4()}", [], [])], None)
    return await Append(store, scope, batch, kind, None, Origin()).flow()


async def void_older(store: Reader, scope: Scope, head: Head) -> int:
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
