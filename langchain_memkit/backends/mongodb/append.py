"""A batch on its way into a session.

Order is a gap-free `seq` per session. A turn is inserted at `last + 1`, and the unique index on (user_id, session_id,
seq) decides between writers; who loses reads again and tries the next position. The unique index on `op` makes a retry
harmless, so after any unclear outcome the same turn is simply sent again until the deadline.

An insert decides by itself, without a second look at the session:

- A clear does not free the positions that a late writer may still take: turns of the last two hours stay as rows
  without content, so what was read before a clear leads to a position that is taken.
- A purge finds sessions by their rows. So a user's session is opened by a row without content, then the purge is looked
  up, then the turn is inserted: a purge that comes after the look finds the session.
- What such rows stand for is over when they expire, so a turn that goes behind one renews it first.
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
    """One batch or marker on its way into a session: try, look, try again, until it is stored or time is up."""

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
        # an import may be the continuation of one that broke off, and a retry comes before a conflict of positions
        self.look_up = len(batch.rows) > 1 or expected_seq is not None
        # where a turn begins without a look of its own; where turns expire, positions are free again
        head = None if self.look_up or store.ttl is not None else origin.head
        self.known = None if head is None or head.last == "expiring turn" else head
        self.limit = store.settings.timeout  # seconds for one try: on a server that stands still, another one is due
        self.unknown = False
        self.deadline = 0.0

    async def flow(self) -> Head:
        """Runs to the end; returns where the last row was stored."""
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
                self.unknown = self.unknown or not isinstance(error, ServerSelectionTimeoutError)
                self.look_up, self.limit, message = True, self.limit * 2, text_of(error)
                cause: PyMongoError | None = error
            else:
                cause = None
            pause = next_try(self.deadline, 0.25 if cause else 0.02)
            if pause is None:
                raise self._failed(message, f" within {self.store.patience:g} s") from cause
            await pause

    @property
    def _begun(self) -> bool:
        """Whether some of it is stored, or may be."""
        return self.unknown or len(self.pending) < len(self.batch.rows)

    @property
    def _remaining(self) -> float:
        """Seconds that are left for one command."""
        return max(self.deadline - time.monotonic(), 0.1)

    @property
    def _one_try(self) -> float:
        """Seconds for one try to write; the next one may take longer, in case that much is to be written."""
        return min(self._remaining, self.limit)

    @property
    def _look(self) -> float:
        """Seconds for a look at the session."""
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
        """Finds out which rows are stored already. Counts only what a majority has: the rest may still vanish."""
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
        if len(documents) > len(stored):  # left over from a clear that broke off: finish it, then their names are free
            await void_older(self.store, self.scope, current._replace(seq=current.base))
        self.look_up = False

    async def _insert(self) -> None:
        """One try, at the position after the last one. What is known of it may be out of date: the index decides."""
        store, scope, origin = self.store, self.scope, self.origin
        known = head = self.known
        self.known = None
        if head is None or (head.seq and head.epoch != origin.epoch):
            head = await store.head(scope, "local", self._look) or EMPTY
        if not head.seq:  # a first turn: perhaps of a collection that was dropped and is new
            await ensure_indexes(store.clients, store.settings, again=True)
        purged = 0
        if origin.epoch is not None and scope.user_id and not (head.seq and head.epoch == origin.epoch):
            if not head.seq:
                await self._open()
            purged = await store.purged(scope.user_id, self._look)
        self._check(head, purged)
        if self.kind != "turn":
            await self._insert_marker(head)
            return
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
            # a position is taken by others; anything else may be this turn itself
            self.look_up = taken != "seq" or self.expected_seq is not None
            if known and not self.look_up:  # others have written since: that is no reason to wait
                await self._insert()
            return
        self._stored(documents)

    async def _open(self) -> None:
        """Puts a row without content into a session, by which a purge finds it from now on."""
        row = turns_filter(*self.scope, seq={"$eq": OPENING})
        made = contentless("opening", "opening", EMPTY)
        await self.store.retried(lambda c: c.update_one(row, made, upsert=True), self._look)

    async def _renew(self, head: Head) -> bool:
        """Keeps the marker that the session begins with; returns whether it is still there."""
        row = turns_filter(*self.scope, seq={"$eq": head.seq}, kind={"$in": NO_TURNS}, epoch={"$eq": head.epoch})
        change = [{"$set": {"expiresAt": IN_TWO_HOURS}}]
        result = await self.store.retried(lambda c: c.update_one(row, change), self._look)
        return bool(result.matched_count)

    async def _insert_marker(self, head: Head) -> None:
        """An upsert, since only a pipeline can ask for the server's time."""
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
        context = self.batch.error_context
        if not admits(head if head.seq else None, self.origin, purged, self.store.settings.now()):
            erased = "was cleared, or its user purged," if purged else "was cleared"
            msg = f"session {self.scope.session_id!r} {erased} while this turn ran, so the turn was not stored"
            raise StaleTurnError(msg, **context)
        if self.expected_seq is not None and self.expected_seq != head.seq:
            msg = f"expected the session at position {self.expected_seq}, it is at {head.seq}; read it again"
            raise HistoryConflictError(msg, maybe_stored=self.unknown, **context)

    def _documents(self, head: Head) -> list[dict[str, Any]]:
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
        if documents:
            self.last = head_of(documents[-1:]) or EMPTY
            del self.pending[: len(documents)]
            if self.expected_seq is not None:
                self.expected_seq = self.last.seq


def _read_bulk_error(error: BulkWriteError) -> tuple[int, str | None]:
    """How many documents went in before the first failure, and, if that was a duplicate key, which field it ends with.

    The field is empty where a server does not tell, and None for any other failure.
    """
    details = error.details or {}
    failures = details.get("writeErrors") or []
    if details.get("writeConcernErrors"):
        return 0, None  # nothing is certain: look it up
    done = int(details.get("nInserted", 0))
    if not failures or failures[0].get("code") != DUPLICATE_KEY:
        return done, None
    return done, str([*(failures[0].get("keyPattern") or [""])][-1])


async def mark(store: Reader, scope: Scope, kind: Kind) -> Head:
    """Puts a marker without content at the end of a session: whatever is before it is void from now on."""
    batch = Batch([], [], [Row(f"{kind}:{uuid4()}", [], [])], None)
    return await Append(store, scope, batch, kind, None, Origin()).flow()


async def void_older(store: Reader, scope: Scope, head: Head) -> int:
    """Removes the content of everything before a marker; returns how many turns that were.

    What was stored in the last two hours keeps its position, until no writer can come that has read the session before.
    Older markers go of themselves.
    """
    turns = turns_filter(*scope, seq={"$gt": 0, "$lt": head.seq}, kind={"$nin": NO_TURNS})
    old = await store.retried(lambda c: c.delete_many({**turns, **STORED_LONG_AGO}))
    change = voided(head.epoch)
    recent = await store.retried(lambda c: c.update_many(turns, change))
    # what has no sound position, which no reader sees
    rest = turns_filter(*scope, seq={"$exists": True, "$not": {"$gt": 0, "$lte": MOST}})
    await store.retried(lambda c: c.delete_many(rest))
    return int(old.deleted_count) + int(recent.modified_count)
