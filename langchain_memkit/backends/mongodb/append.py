"""A batch on its way into a session.

Order is a gap-free `seq` per session. A turn is inserted at `last + 1`, and the unique index on (user_id, session_id,
seq) decides between writers; who loses reads again and tries the next position. The unique index on `op` makes a retry
harmless, so after any unclear outcome the same turn is simply sent again until the deadline.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

from pymongo.errors import BulkWriteError, PyMongoError, ServerSelectionTimeoutError

from langchain_memkit._flow import Flow
from langchain_memkit.backends._history.rows import (
    EMPTY,
    MOST,
    Batch,
    Head,
    Origin,
    Row,
    Scope,
    admits,
    new_epoch,
    stored_or_conflict,
)
from langchain_memkit.backends.mongodb.commands import DUPLICATE_KEY, Call, is_transient, next_try, text_of
from langchain_memkit.backends.mongodb.documents import (
    MARKERS,
    Kind,
    head_of,
    native_turn,
    turn_document,
    turns_filter,
)
from langchain_memkit.backends.mongodb.indexes import ensure_indexes
from langchain_memkit.backends.mongodb.reader import Reader
from langchain_memkit.backends.mongodb.settled import settled
from langchain_memkit.errors import HistoryConflictError, HistoryWriteError, StaleTurnError

MAX_SEQ = 2**63 - 1


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
        self.unchecked: list[tuple[int, Row]] = []  # stored, but perhaps below a marker
        self.lowest = MAX_SEQ
        self.first_of: int | None = None  # began a user's session: the purge that was seen before
        # an import may be the continuation of one that broke off, and a retry comes before a conflict of positions
        self.look_up = len(batch.rows) > 1 or expected_seq is not None
        self.unknown = False
        self.deadline = 0.0

    def flow(self) -> Flow[Head]:
        """Runs to the end; returns where the last row was stored."""
        store = self.store
        yield from ensure_indexes(store.clients, store.settings)
        self.deadline = time.monotonic() + store.patience
        while True:
            try:
                if self.look_up:
                    yield from self._look_up()
                if self.pending:
                    yield from self._insert()
                if self.unchecked:
                    yield from self._check_again()
                if not self.pending:
                    return self.last
                message = "other writers were faster every time"
            except PyMongoError as error:
                if not is_transient(error):
                    if self._begun:
                        raise self._failed(text_of(error)) from error
                    raise
                self.unknown = self.unknown or not isinstance(error, ServerSelectionTimeoutError)
                self.look_up, message = True, text_of(error)
                cause: PyMongoError | None = error
            else:
                cause = None
            pause = next_try(self.deadline, 0.25 if cause else 0.02)
            if pause is None:
                raise self._failed(message, f" within {self.store.patience:g} s") from cause
            yield pause

    @property
    def _begun(self) -> bool:
        """Whether some of it is stored, or may be."""
        return self.unknown or len(self.pending) < len(self.batch.rows)

    @property
    def _remaining(self) -> float:
        """Seconds that are left for one command."""
        return max(self.deadline - time.monotonic(), 0.1)

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

    def _look_up(self) -> Flow[None]:
        """Finds out which rows are stored already. Counts only what a majority has: the rest may still vanish."""
        ops = [row.op for _, row in self.pending]
        query = turns_filter(*self.scope, op={"$in": ops})
        documents = yield from settled(self.store, query, None, self.deadline)
        if documents is None:
            self.unknown = True
            raise self._failed("no majority has confirmed it")
        current = (yield from self.store.head(self.scope, "local", self._look)) or EMPTY
        stored = {d["op"]: d for d in documents if not (isinstance(d.get("seq"), int) and d["seq"] < current.base)}
        for index, row in list(self.pending):
            if row.op in stored:
                document = stored[row.op]
                if self.kind == "turn":
                    stored_or_conflict(self.batch, index, native_turn(document, None))
                self.last = head_of([document]) or EMPTY
                self.pending.remove((index, row))
        if len(documents) > len(stored):  # left over from a clear that broke off: finish it, then they are free
            yield from delete_older(self.store, self.scope, current._replace(seq=current.base))
        self.look_up = False

    def _insert(self) -> Flow[None]:
        """One try, at the position after the last one. The read may be out of date at once: the index decides."""
        store, scope = self.store, self.scope
        head = yield from store.head(scope, "local", self._look)
        if head is None:  # a first turn: perhaps of a collection that was dropped and is new
            yield from ensure_indexes(store.clients, store.settings, again=True)
        purged = 0
        if self.origin.epoch is not None and not (head and head.epoch == self.origin.epoch) and scope.user_id:
            purged = yield from store.purged(scope.user_id, self._look)
        self._check(head, purged)
        documents = self._documents(head)
        try:
            yield Call(lambda c: c.insert_many(documents), self._remaining)
        except BulkWriteError as error:
            done, duplicate = _read_bulk_error(error)
            self._stored(documents[:done])
            if not duplicate:
                raise
            self.look_up = True
            return
        self._stored(documents)
        if head is None and self.origin.epoch is not None and scope.user_id:
            self.first_of = purged

    def _check(self, head: Head | None, purged: int) -> None:
        context = self.batch.error_context
        if not admits(head, self.origin, purged, self.store.settings.now()):
            msg = f"session {self.scope.session_id!r} was cleared while this turn ran, so the turn was not stored"
            raise StaleTurnError(msg, **context)
        at = (head or EMPTY).seq
        if self.expected_seq is not None and self.expected_seq != at:
            msg = f"expected the session at position {self.expected_seq}, it is at {at}; read it again"
            raise HistoryConflictError(msg, maybe_stored=self.unknown, **context)

    def _documents(self, head: Head | None) -> list[dict[str, Any]]:
        store, documents = self.store, []
        head = head or Head(0, new_epoch(), 0)
        for _, row in self.pending:
            head = head._replace(seq=head.seq + 1)
            if self.kind != "turn":
                head = Head(head.seq, new_epoch(), head.seq)
            now = store.settings.now()
            documents.append(
                turn_document(self.scope, head, self.kind, row, now, store.settings.ttl, store.settings.token_counter)
            )
        return documents

    def _stored(self, documents: list[dict[str, Any]]) -> None:
        if documents:
            self.last = head_of(documents[-1:]) or EMPTY
            if self.kind == "turn":
                self.unchecked += self.pending[: len(documents)]
                self.lowest = min(self.lowest, documents[0]["seq"])
            del self.pending[: len(documents)]
            if self.expected_seq is not None:
                self.expected_seq = self.last.seq

    def _check_again(self) -> Flow[None]:
        """Looks once more behind an insert, because a clear or purge may have slipped in between look and insert.

        A clear frees the positions that it deletes, so a turn can go in below the marker, where it is void. And a purge
        does not see a session that begins beside it.
        """
        store, scope = self.store, self.scope
        head = (yield from store.head(scope, "local", self._look)) or EMPTY
        void = head.base >= self.lowest
        if void:
            yield from delete_older(store, scope, head._replace(seq=head.base))
        elif self.first_of is not None and (yield from store.purged(scope.user_id, self._look)) != self.first_of:
            yield from delete_older(store, scope, (yield from mark(store, scope, "clear")))
            void = True
        rows, self.unchecked, self.lowest, self.first_of = self.unchecked, [], MAX_SEQ, None
        if void and self.origin.epoch is not None:
            msg = (
                f"session {scope.session_id!r} was cleared or its user purged while this turn ran, so it was not stored"
            )
            raise StaleTurnError(msg, **self.batch.error_context)
        if void:
            self.pending = [*rows, *self.pending]


def _read_bulk_error(error: BulkWriteError) -> tuple[int, bool]:
    """How many documents went in before the first failure, and whether that was a duplicate key."""
    details = error.details or {}
    failures = details.get("writeErrors") or []
    if details.get("writeConcernErrors"):
        return 0, False  # nothing is certain: look it up
    duplicate = bool(failures) and failures[0].get("code") == DUPLICATE_KEY
    return int(details.get("nInserted", 0)), duplicate


def mark(store: Reader, scope: Scope, kind: Kind) -> Flow[Head]:
    """Puts a contentless marker at the end of a session: whatever is before it is void from now on."""
    batch = Batch([], [], [Row(f"{kind}:{uuid4()}", [], [])], None)
    return (yield from Append(store, scope, batch, kind, None, Origin()).flow())


def delete_older(store: Reader, scope: Scope, head: Head) -> Flow[int]:
    """Deletes everything before a marker; returns how many turns went."""
    older = turns_filter(*scope, seq={"$lt": head.seq})
    turns = yield from store.retried(lambda c: c.delete_many({**older, "kind": {"$nin": MARKERS}}))
    # with the markers what has no sound position, which no reader sees
    rest = turns_filter(*scope, seq={"$exists": True, "$not": {"$gte": head.seq, "$lte": MOST}})
    yield from store.retried(lambda c: c.delete_many(rest))
    return int(turns.deleted_count)
