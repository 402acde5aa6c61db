"""Turns in a MongoDB collection: read, appended, cleared."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from operator import methodcaller
from typing import Any, ClassVar, NamedTuple
from uuid import uuid4

from bson import ObjectId, Timestamp
from pymongo import IndexModel, UpdateOne
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern

from langchain_memkit.backends.mongodb import commands
from langchain_memkit.backends.mongodb import documents as docs
from langchain_memkit.backends.mongodb.bursts import clock
from langchain_memkit.backends.mongodb.clients import BsonDict
from langchain_memkit.backends.mongodb.commands import Runner, Settings, batches, is_transient, next_try, text_of
from langchain_memkit.backends.mongodb.documents import NO_TURNS, SHOWN, Kind, is_live, legacy_filter, turns_filter
from langchain_memkit.base import EDITS, ListPosition, SessionHead, SessionInfo, Turn, same_conversation
from langchain_memkit.errors import HistoryConflictError, HistoryReadError, HistoryWriteError, StaleTurnError
from langchain_memkit.messages.codec import FORMAT_VERSION
from langchain_memkit.stores import history_rows, sessions
from langchain_memkit.stores.changes import Changes, Place
from langchain_memkit.stores.history import TurnStore
from langchain_memkit.stores.history_rows import (
    EMPTY,
    Batch,
    Page,
    PageLimit,
    ReadVersion,
    SessionScope,
    StoredSummary,
    TurnPage,
)
from langchain_memkit.stores.sessions import FoundPage, Places, SessionDetails, SessionQuery

logger = logging.getLogger("langchain_memkit")

MAX_SLICE = 1_000_000
MANY = 10_000  # turns whose ends one command reads
COPYING = "a fork into this session has not finished: call `fork` of its source again, or `clear` this session"
UNCONFIRMED = "no majority has confirmed what another writer has put there"
EARLIEST = Timestamp(0, 1)
FASTER = "other writers were faster every time"


def _summary_filter(scope: SessionScope, unfinished: bool) -> BsonDict:
    return {**turns_filter(*scope), "seq": {"$eq": docs.UNFINISHED if unfinished else docs.SUMMARY}}


class LegacyPosition(NamedTuple):
    """A page position among langchain-mongodb's rows."""

    identity: object = None  # of the last row of the page before; None for the first page
    native_since: datetime | None = None  # the date of the oldest native turn: newer rows show that an old app writes


@dataclass
class Append:
    """The append of one batch or tombstone to a session, retried until it is stored or the deadline has passed."""

    store: MongoTurnStore
    scope: SessionScope
    batch: Batch
    kind: Kind = "turn"
    expected_seq: int | None = None
    origin: ReadVersion = field(default_factory=ReadVersion)
    unknown: bool = False  # whether something may be stored already
    last: SessionHead = EMPTY  # the head after the last row that is stored
    waits: str = ""  # what the last try waited for: a copy into the session, or a majority

    def __post_init__(self) -> None:
        self.pending = list(enumerate(self.batch.rows))
        # A single turn may start from the head read at load, which saves one query. Not where turns expire: their
        # positions become free again, so the unique index would not notice that the remembered head is gone.
        head = self.origin.head
        fits = head and self.expected_seq in (None, head.seq) and not self.store.ttl and head.last != "expiring turn"
        # Look for stored rows before the first insert in two cases: an import of several rows may continue one that
        # broke off, and with `expected_seq` a retry of a stored turn must succeed instead of raising a conflict. From
        # a head at that position the insert finds out itself.
        self.look_up = len(self.batch.rows) > 1 or not (fits or self.expected_seq is None)
        self.known = head if fits and not self.look_up else None
        # Seconds for one command, less than the whole deadline: if the server hangs, there must be time for another
        # try. They double after each failure, since a large batch may need longer.
        self.limit = self.store.settings.timeout

    async def flow(self) -> SessionHead:
        """Append all rows; return the head after the last one.

        Raises `HistoryWriteError`, `StaleTurnError`, `HistoryConflictError` or `IdempotencyConflictError`.
        """
        await self.store.ensure()
        self.now = await self.store.server_now()
        self.deadline = clock() + self.store.patience
        while True:
            cause: PyMongoError | None = None
            try:
                if self.look_up:
                    await self._look_up()
                if self.pending and not self.look_up:
                    await self._insert()
                if not self.pending:
                    return self.last
                message = self.waits or FASTER
            except PyMongoError as error:
                if not is_transient(error):
                    if self._begun:
                        raise self._failed(text_of(error)) from error
                    raise
                # Only a failed server selection proves that nothing was sent; after any other failure the insert may
                # have been applied, so look for the ops before inserting again.
                self.unknown = self.unknown or not isinstance(error, ServerSelectionTimeoutError)
                self.look_up, self.limit, message, cause = True, self.limit * 2, text_of(error), error
            # A lost race for a position is over at once; an election or lost connection needs longer.
            pause = next_try(self.deadline, 0.25 if cause or self.waits else 0.02)
            if pause is None:
                raise self._failed(message, f" within {self.store.patience:g} s") from cause
            await pause

    @property
    def _begun(self) -> bool:
        """Whether some rows are stored, or may be."""
        return self.unknown or len(self.pending) < len(self.batch.rows)

    async def _head(self, scope: SessionScope) -> SessionHead:
        return docs.head_of(await self.store.command(self.store.newest(scope), self._seconds)) or EMPTY

    @property
    def _seconds(self) -> float:
        """Time limit of the next command."""
        return min(commands.left_until(self.deadline), self.limit)

    def _failed(self, reason: str, limit: str = "") -> HistoryWriteError:
        rows, state = len(self.batch.rows), "Nothing was stored"
        if rows > 1:
            state = f"{rows - len(self.pending)} of {rows} parts are stored{', perhaps more' if self.unknown else ''}"
            state += ": add `error.messages` again to continue"
        elif self._begun:
            again = "It may be stored: retry with the same turn_id"
            state = again if self.kind == "turn" else "Not all is deleted yet: call again to go on"
        msg = f"cannot write to {self.store.clients.hosts}{limit}: {reason}. {state}."
        return HistoryWriteError(msg, maybe_stored=self._begun, **self.batch.error_context)

    async def _look_up(self) -> None:
        """Drop the rows from `pending` that a majority has stored already; others may still be rolled back."""
        query = turns_filter(*self.scope, op={"$in": [row.op for _, row in self.pending]})
        documents = await self.store.committed(query, None, self.deadline)
        if documents is None:
            self.unknown = True
            raise self._failed("no majority has confirmed it")
        current = await self._head(self.scope)
        if self._waits_for(current):
            return
        stored = {d["op"]: d for d in documents if not (isinstance(d.get("seq"), int) and d["seq"] < current.base)}
        for index, row in list(self.pending):
            if document := stored.get(row.op):
                if self.kind == "turn":
                    history_rows.stored_or_conflict(self.batch, index, history_rows.read_turn(document, None))
                self.last = docs.head_of([document]) or EMPTY
                self.pending.remove((index, row))
        # Rows below the base are left over from a clear that broke off. They still hold their ops in the unique index,
        # so an insert of the same op would fail for ever: finish the clear first.
        if len(documents) > len(stored):
            await self.store.erase_before(self.scope, current._replace(seq=current.base))
        self.look_up = False

    def _waits_for(self, head: SessionHead) -> bool:
        """Return, and note, whether turns are being copied into the session; a tombstone does not wait for them."""
        copied = head.last == "copy" and self.kind == "turn"
        self.waits = COPYING if copied else ""
        return copied

    async def _insert(self) -> None:
        """Try once to insert the pending rows after the head. The head may be out of date: the unique index decides."""
        store, scope = self.store, self.scope
        # Use the remembered head for one try only. A local read suffices after that: a stale head leads to a position
        # that is taken, and a majority confirms our insert only together with the row that it follows.
        known = head = self.known
        self.known = None
        if head is None or (head.seq and head.epoch != self.origin.epoch):
            head = await self._head(scope)
        if self._waits_for(head):
            return
        # First turn of a session: the collection may have been dropped and made anew without its unique indexes.
        if not head.seq:
            await store.ensure(again=True)
        if not await self._may_append(head):
            return
        if self.expected_seq not in (None, head.seq):
            await self._conflict(head)
            return
        if self.kind != "turn":
            await self._insert_tombstone(head)
            return
        # The epoch of a session that begins with a tombstone lives in that tombstone. Extend its life before inserting
        # after it; if it expired meanwhile, return and let the next try read the head again.
        if head.last == "marker" and not await store.renew(scope, head, self._seconds):
            return
        # The first turn of an empty session draws the session's epoch; every later one repeats the head's, unless it
        # replaces others.
        end = head if head.seq else history_rows.first_head(scope)
        rows, heads = [row for _, row in self.pending], list[SessionHead]()
        for row in rows:
            end = end._replace(seq=end.seq + 1, last="turn", epoch=history_rows.next_epoch(end.epoch, row))
            heads.append(end)
        settings, now = store.settings, self.now
        documents = [docs.turn_document(scope, *pair, settings, now) for pair in zip(heads, rows, strict=True)]
        inserted, failed = len(heads), None
        try:
            await store.command(lambda c: c.insert_many(documents), self._seconds)
        except BulkWriteError as error:
            if commands.details_of(error).get("writeConcernErrors"):
                raise  # nothing is certain: look the ops up
            inserted, failed = commands.details_of(error).get("nInserted", 0), error
        if inserted:  # `insert_many` is ordered, so what is stored is always a prefix of the pending rows
            self.last = heads[inserted - 1]
            del self.pending[:inserted]
            if self.expected_seq is not None:
                self.expected_seq = self.last.seq
        if failed is not None:
            reason = (commands.details_of(failed).get("writeErrors") or [{}])[0]
            if reason.get("code") != commands.DUPLICATE_KEY:
                raise failed
            # A duplicate `seq` means that another writer took the position; a duplicate `op`, or an unnamed field, may
            # be this very turn, stored by an earlier try.
            taken = [*(reason.get("keyPattern") or [""])][-1]
            self.look_up = taken != "seq" or self.expected_seq is not None
            # Only the remembered head was out of date: read it and try again without a pause.
            if known and not self.look_up:
                await self._insert()

    async def _may_append(self, head: SessionHead) -> bool:
        """Raise if the turn may not be appended after this head, since its session was erased.

        Return False, to wait, if no majority has what erased it: who is refused may begin a turn anew, and must not be
        shown then what is gone.
        """
        store, scope, origin = self.store, self.scope, self.origin
        # If the session is still in the epoch that the turn saw, no purge has reached it. Otherwise the purge tombstone
        # decides. The order matters: the opening document first, so that a purge that starts after our look-up finds
        # this session and voids what we insert.
        purged = 0
        if origin.epoch is not None and scope.user_id and not (head.seq and head.epoch == origin.epoch):
            if not head.seq:
                opening, made = docs.opening(scope)
                await self.store.command(lambda c: c.update_one(opening, made, upsert=True), self._seconds)
            purged = (await self._head(SessionScope(scope.user_id, ""))).epoch
        # The epoch first: a turn of an erased session is dropped, whatever position the caller expected.
        context = self.batch.error_context
        if not history_rows.may_append(head if head.seq else None, origin, purged, store.settings.now()):
            certain = docs.head_of(await store.command(store.newest(scope, "majority"), self._seconds)) or EMPTY
            if certain.epoch != head.epoch:
                self.waits = UNCONFIRMED
                return False
            erased = "was cleared, or its user purged," if purged else "was cleared or edited"
            msg = f"session {scope.session_id!r} {erased} while this turn ran, so the turn was not stored"
            raise StaleTurnError(msg, **context)
        return True

    async def _conflict(self, head: SessionHead) -> None:
        """Raise, since the session is not where expected, unless no majority has what moved it on: then wait.

        Who is refused reads the session again, by a majority, and must find there what was stored before it.
        """
        certain = docs.head_of(await self.store.command(self.store.newest(self.scope, "majority"), self._seconds))
        if (certain or EMPTY).seq == self.expected_seq:
            self.waits = UNCONFIRMED
            return
        msg = f"expected the session at position {self.expected_seq}, it is at {head.seq}; read it again"
        raise HistoryConflictError(msg, maybe_stored=self.unknown, **self.batch.error_context)

    async def _insert_tombstone(self, head: SessionHead) -> None:
        """Try once to insert a tombstone after the head: an upsert, whose pipeline can read the server's clock."""
        (_, row), seq = self.pending[0], head.seq + 1
        tombstone = SessionHead(seq, history_rows.new_epoch(), seq, "marker")
        query = turns_filter(*self.scope, seq={"$eq": seq}, op={"$eq": row.op})
        # One command of two parts: a document that has the first alone, since the server ended, is looked for as well.
        parts = [
            UpdateOne(query, docs.contentless(self.kind, row.op, tombstone), upsert=True),
            UpdateOne(query, docs.CHANGES_NOW),
        ]
        try:
            await self.store.command(lambda c: c.bulk_write(parts), self._seconds)
        except BulkWriteError as error:
            if commands.DUPLICATE_KEY not in commands.codes_of(error):
                raise
            return
        self.last = tombstone
        self.pending.clear()


@dataclass
class Fork:
    """The copy of the turns that a session shows into another session, tried again until the deadline has passed.

    The turns go into the new session one after the other, each at the next position, as any turn does. So whatever
    comes between, a writer, a clear or a purge, takes a position that the copy needs and stops it there. All turns
    but the last carry as `base` the position that the last one will have: as long as such a turn is the newest, the
    session shows nothing, and whoever wants to append to it waits. The last turn carries the base of the session, and
    shows them all.

    Args:
        store: Where both sessions are kept.
        source: The session to copy.
        target: The new session.
        at: The position of the last turn to copy; None for all.
        page: The number of turns that are read and inserted at a time.
    """

    store: MongoTurnStore
    source: SessionScope
    target: SessionScope
    at: int | None
    page: int = 100
    ops: list[str] | None = field(default=None, init=False)  # the turns to copy, as the first look finds them
    epoch: int = field(default=0, init=False)  # of the target at that time
    made: set[object] = field(default_factory=set, init=False)  # ids of copies that were sent, stored or not

    async def flow(self) -> bool:
        """Copy the turns; return whether the target holds them now, and nothing else.

        Raises `StaleTurnError` or `HistoryWriteError`.
        """
        deadline = clock() + self.store.patience
        while True:
            try:
                done = await self._try_once()
            except commands.DuplicateKey:  # somebody was faster at this position, or an earlier try of ours was stored
                done = None
            if done is not None:
                return done
            wait = next_try(deadline, 0.02)
            if wait is None:
                hosts = self.store.clients.hosts
                busy = f"others wrote to session {self.target.session_id!r} every time"
                msg = f"cannot write to {hosts} within {self.store.patience:g} s: {busy}. Fork again to continue."
                raise HistoryWriteError(msg, maybe_stored=True)
            await wait

    async def _try_once(self) -> bool | None:
        """Look at both sessions and copy what is missing; return None if that has to be tried again."""
        # The order is the promise to a purge, which puts a tombstone into every session, and then another one into
        # those that are marked here. If it has not reached the source when its turns are listed, the second tombstone
        # in the target comes after the look at the target: it takes the place of the copy, or lies above it.
        await self._mark()
        there = await self.store.rows_of(self.target)
        head = docs.head_of(there) or SessionHead(0, history_rows.new_epoch(), 0)
        if self.ops is None:
            shown = await self.store.shown_rows(self.source, self.at)
            if self.at is not None and self.at not in [d["seq"] for d in shown[-1:]]:
                raise history_rows.not_shown(self.source.session_id, self.at)
            self.ops = [d["op"] for d in shown]
            self.epoch = head.epoch
        if head.last == "marker" and head.epoch != self.epoch:
            raise self._cleared(self.target)
        turns = [d for d in reversed(there) if docs.is_turn(d)]
        if head.last == "copy":
            return await self._continue(head, [d for d in turns if d.get("epoch") == head.epoch])
        is_in_use = head.seq > 0 and head.last != "marker"
        if is_in_use or not self.ops:
            held = [d for d in turns if d["seq"] > head.base]
            first = held[: len(self.ops)]
            if [d.get("op") for d in first] != self.ops:
                return False
            await self._finish(head)  # of a call that may have ended before this
            # An earlier try of ours may be stored, and others may have gone on from there. But if nothing of it is
            # ours, what follows may be of another call, which copied more turns than this one was asked for.
            is_ours = any(d["_id"] in self.made for d in first)
            return is_ours or len(held) == len(first)
        if turns:  # a clear broke off before it had erased them, and they hold their ops
            await self.store.erase_before(self.target, head._replace(seq=head.base))
        if head.last == "marker" and not await self.store.renew(self.target, head, self.store.settings.timeout):
            return None
        return await self._insert(self.ops, head.seq + len(self.ops), head._replace(base=head.seq))

    async def _continue(self, head: SessionHead, turns: list[BsonDict]) -> bool | None:
        """Go on with a copy under way, given its turns; return False if it is one of other turns."""
        ops = self.ops or []
        first = turns[0]["seq"] - 1
        is_same = head.base == first + len(ops) and [d.get("op") for d in turns] == ops[: len(turns)]
        return await self._insert(ops[len(turns) :], head.base, head._replace(base=first)) if is_same else False

    async def _mark(self) -> None:
        """Make the target known to a purge, as the target of a copy. Nobody's sessions are purged."""
        if self.target.user_id:
            opening, made = docs.opening(self.target, is_copy=True)
            await self.store.sent(lambda c: c.update_one(opening, made, upsert=True))

    async def _insert(self, ops: list[str], end: int, head: SessionHead) -> bool | None:
        """Insert these turns after the head of the target, the last one at `end`; return None to try again."""
        for some in batches(ops, self.page):
            found = await self.store.find(turns_filter(*self.source, op={"$in": some}, kind={"$nin": NO_TURNS}))
            by_op = {d["op"]: d for d in found}
            if len(by_op) < len(some):
                await self._give_up()
                return None
            copies: list[BsonDict] = []
            for op in some:
                head = head._replace(seq=head.seq + 1)
                base = head.base if head.seq == end else end
                copies.append(_copy(by_op[op], self.target, head._replace(base=base)))
            self.made.update(each["_id"] for each in copies)
            await self.store.sent(methodcaller("insert_many", copies), begun=True)
        await self._finish(head)
        return True

    async def _finish(self, head: SessionHead) -> None:
        """Give the turns of a copy that is shown their final base, which counts when the last one has expired."""
        copied = turns_filter(*self.target, epoch={"$eq": head.epoch}, base={"$gt": head.base}, kind={"$nin": NO_TURNS})
        final = {"$set": {"base": head.base}, **docs.CHANGES_NOW}
        await self.store.sent(lambda c: c.update_many(copied, final), begun=True)

    async def _give_up(self) -> None:
        """Erase what is copied, and say that the source was cleared; return if another call has finished the copy."""
        head = docs.head_of(await self.store.rows_of(self.target))
        if head is not None and head.last == "copy":
            try:
                tombstone = await self.store.tombstone(self.target, "clear", after=head.seq)
            except HistoryConflictError:
                return
            await self.store.erase_before(self.target, tombstone)
        elif head is not None and head.last != "marker":
            return
        raise self._cleared(self.source)

    def _cleared(self, scope: SessionScope) -> StaleTurnError:
        what = f"session {scope.session_id!r} was cleared, or turns of it expired, during the fork"
        return StaleTurnError(f"{what}: nothing of the copy is shown")


def _copy(document: BsonDict, target: SessionScope, head: SessionHead) -> BsonDict:
    """Return the document of the same turn in another session, shown, and dated by the server."""
    left_out = ("replaces", "isDeleted", "isActive")
    kept = {name: value for name, value in document.items() if name not in left_out}
    place = {"seq": head.seq, "epoch": head.epoch, "base": head.base}
    return {**kept, "_id": ObjectId(), **target._asdict(), **place, "storedAt": docs.NOW, "changed": docs.NOW}


class MongoTurnStore(Runner[Settings], TurnStore):
    """All flows of one history collection, with the clients that run them."""

    is_remote: ClassVar = True
    _marks = True  # whether documents of older versions may be marked
    _warned = False  # of rows of langchain-mongodb that come too late

    @property
    def ttl(self) -> float | None:
        """Seconds after which a turn expires; None if it stays."""
        return self.settings.ttl

    def is_same(self, other: object) -> bool:
        """Return whether another store is on the same collection of a server that is named in the same way."""
        if other is self:
            return True
        if not isinstance(other, MongoTurnStore):
            return False
        return (other.clients.servers, other.settings.names) == (self.clients.servers, self.settings.names)

    def index_models(self) -> list[IndexModel]:
        """Define the indexes for our turns and for langchain-mongodb's rows."""
        return docs.index_models(self.settings.legacy_keys[0], self.settings.index_kwargs)

    # -- reading

    def filter(self, scope: SessionScope) -> BsonDict:
        """Build a filter on the documents of a session."""
        return turns_filter(*scope)

    def newest(self, scope: SessionScope, level: str = "local") -> Callable[[Collection[BsonDict]], list[BsonDict]]:
        """Return the command that reads a session's newest documents, for `head_of`.

        The read concern `"local"` sees the position that writers compete for, `"majority"` what is certain.
        """
        query, fields, concern = turns_filter(*scope), ["seq", "epoch", "base", "kind", "expiresAt"], ReadConcern(level)
        return lambda c: c.with_options(read_concern=concern).find(query, fields).sort("seq", -1).limit(4).to_list()

    async def page_back(self, scope: SessionScope, older: Any, limit: int, enough: PageLimit, floor: int = 0) -> Page:
        """Return a page of turns, newest first; for histories without a user, langchain-mongodb's rows follow ours."""
        return (await self._page_back(scope, older, limit, enough, floor))[0]

    async def page_with_summary(
        self, scope: SessionScope, limit: int, enough: PageLimit
    ) -> tuple[Page, StoredSummary | None]:
        """Return the newest page and the summary of a session, which one query reads."""
        page, found = await self._page_back(scope, None, limit, enough, 0, docs.SUMMARY)
        return page, history_rows.read_summary(found, self.settings.now()) if found else None

    async def _page_back(
        self, scope: SessionScope, older: Any, limit: int, enough: PageLimit, floor: int, top: int = history_rows.MOST
    ) -> tuple[Page, BsonDict | None]:
        """Return a page of turns, and the summary if it lies up to the position `top`."""
        if isinstance(older, LegacyPosition):
            turns, older = await self._legacy_page(scope, older, -1, limit)
            return Page(turns, 0, 0, None, older), None
        before, base = older or (None, 0)
        base = max(base, floor - 1)
        upper = {"$lte": top} if before is None else {"$lt": before}
        query = turns_filter(*scope, seq={"$gt": base, **upper})
        # Fetch only so many messages of each document, and one more, from its end: those of an import are long.
        newest = {"$slice": -1 - min(enough.messages or 0, MAX_SLICE)}
        cut = {} if enough.messages is None else {"messages": newest, "tokens": newest}
        now, first, summary = self.settings.now(), base, None
        while True:
            documents = await self.find(query, {"trace": 0, "index": 0, **cut}, sort=[("seq", -1)], limit=limit)
            is_full = len(documents) == limit
            if documents and documents[0]["seq"] == docs.SUMMARY:
                summary = documents.pop(0)
            found = docs.head_of(documents)
            head = found or EMPTY
            base = first if older else max(first, head.base)
            replaced = history_rows.ReplacedTurns(docs.edits_of(documents, base, now))
            turns, stopped = history_rows.until_limit(self._live_turns(documents, base, now, replaced), enough)
            if not (cut and any(turn.problems for turn in turns)):
                break
            cut = {}  # unreadable messages do not count: read the documents whole
        known = head if found or not (documents or floor) else None
        epoch = head.epoch
        if not documents and older is None and scope.user_id:
            # The tombstone of the user's last purge lies under the empty session id.
            epoch = (docs.head_of(await self.read(self.newest(SessionScope(scope.user_id, "")))) or EMPTY).epoch
        last = turns[-1].seq if stopped else documents[-1]["seq"] if documents else 0
        # The next page begins below what the documents of this one replace, as far as they were read.
        jump = turns[-1].replaces if stopped else replaced.first if replaced.first < docs.position(last) else None
        last = jump or last
        if stopped or (is_full and docs.position(last) > base + 1):
            return Page(turns, head.seq, epoch, now, (last, base), known), summary
        if head.base and not scope.user_id and older is None and not self._warned:
            # They cannot be told from rows that the clear was to delete.
            late = await self.find(legacy_filter(*self.settings.legacy_keys, scope.session_id), ["_id"], limit=1)
            if late:
                self._warn(scope, "rows of langchain-mongodb written after a clear are not shown")
        legacy = LegacyPosition(None, documents[-1].get("createdAt") if documents else None)
        return Page(turns, head.seq, epoch, now, None if scope.user_id or base else legacy, known), summary

    async def page_forward(self, scope: SessionScope, after: Any, limit: int, *, hidden: bool = False) -> TurnPage:
        """Return a page of turns, oldest first: langchain-mongodb's rows, then ours."""
        # No head while paging through langchain-mongodb's rows: they are not in our index, so it would cost a scan.
        legacy = after if isinstance(after, LegacyPosition) else None
        head = docs.head_of([] if legacy else await self.read(self.newest(scope, "majority"))) or EMPTY
        base = head.base
        if legacy or (after is None and not scope.user_id and not base):
            turns, following = await self._legacy_page(scope, legacy or LegacyPosition(), 1, limit)
            return turns, following or 0
        # All pages show the session as it was at the first one: an edit that comes later hides nothing of it.
        at, end = after if isinstance(after, tuple) else (after, head.seq or history_rows.MOST)
        query = turns_filter(*scope, seq={"$gt": max(at or 0, base), "$lte": end})
        documents = await self.find(query, {"index": 0}, sort=[("seq", 1)], limit=limit)
        edits: list[history_rows.Edit] = []
        if history_rows.was_edited(head.epoch):
            edits, cleared = await self._edits(scope)
            base = max(base, cleared)
        replaced = history_rows.ReplacedTurns(edit for edit in edits if edit.seq <= end)
        turns = list(self._live_turns(documents, base, self.settings.now(), replaced, hidden))
        return turns, (documents[-1]["seq"], end) if len(documents) == limit else None

    def _live_turns(
        self, documents: list[BsonDict], base: int, now: datetime, replaced: Container[int], hidden: bool = False
    ) -> Iterator[Turn]:
        for document in documents:
            if is_live(document, base, now, hidden) and (hidden or document.get("seq") not in replaced):
                yield history_rows.read_turn(document, self.settings.token_counter, replaced=replaced)

    async def edits(self, scope: SessionScope) -> list[history_rows.Edit]:
        """Return the documents that replace others, newest first."""
        return (await self._edits(scope))[0]

    async def _edits(self, scope: SessionScope) -> tuple[list[history_rows.Edit], int]:
        """Return the documents that replace others, and the position up to which the session is cleared."""
        found = await self.find({**turns_filter(*scope), **docs.EDITS}, ["seq", "replaces", "kind", "expiresAt"])
        # A clear may erase edits before what they replaced, and later. Its tombstone is there before that.
        base = (docs.head_of(await self.read(self.newest(scope, "majority"))) or EMPTY).base
        return docs.edits_of(found, base, self.settings.now()), base

    async def _legacy_page(
        self, scope: SessionScope, at: LegacyPosition, direction: int, limit: int
    ) -> tuple[list[Turn], LegacyPosition | None]:
        query = legacy_filter(*self.settings.legacy_keys, scope.session_id)
        if at.identity is not None:
            query["_id"] = {"$lt" if direction < 0 else "$gt": at.identity}
        rows = await self.find(query, sort=[("_id", direction)], limit=limit)
        turns = [docs.legacy_turn(row, self.settings.legacy_keys[1], self.settings.token_counter) for row in rows]
        newest = turns[0].created_at if turns and at.identity is None and direction < 0 else None
        if newest and at.native_since and newest > at.native_since:
            old = "an old app still writes langchain-mongodb rows after native turns exist; they are shown before those"
            self._warn(scope, f"{old} turns")
        return turns, LegacyPosition(rows[-1]["_id"]) if len(rows) == limit else None

    def _warn(self, scope: SessionScope, what: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("session %r: %s", scope.session_id, what)

    async def unowned(self, session_id: str) -> str | None:
        """Return the `_id` of a turn of this session that is stored without a user, with one query; None for none."""
        ours = {**turns_filter("", session_id), "kind": {"$nin": NO_TURNS}, **SHOWN}
        query = {"$or": [ours, legacy_filter(*self.settings.legacy_keys, session_id)]}
        rows = await self.find(query, ["_id"], limit=1)
        return str(rows[0]["_id"]) if rows else None

    async def stored_ids(self, scope: SessionScope, ids: Sequence[str]) -> set[str]:
        """Return which of the ids belong to live messages of the session: one query of three indexes."""
        # What replaces others is read as well, since it may replace the messages, and so are tombstones: turns before
        # them are void, also if they are not erased yet.
        besides: list[BsonDict] = [docs.EDITS, docs.TOMBSTONES] if self.layout == "turns" else []
        sought: list[BsonDict] = [{"messages.id": {"$in": [*ids]}}, *besides]
        either = [{**self.filter(scope), **one} for one in sought]
        fields = ["messages.id", "kind", "seq", "base", "isActive", "isDeleted", "expiresAt", "replaces"]
        documents, now = await self.find({"$or": either}, fields), self.settings.now()
        tombstones = [docs.position(d.get("base")) for d in documents if d.get("kind") in docs.MARKERS]
        base = max(tombstones, default=0)
        replaced = history_rows.ReplacedTurns(docs.edits_of(documents, base, now))
        shown = [d for d in documents if is_live(d, base, now) and d.get("seq") not in replaced]
        live = [m.get("id") for d in shown for m in d.get("messages") or ()]
        return set(ids) & {i for i in live if isinstance(i, str)}  # an id that is no valid UTF-8 is stored as a dict

    async def sessions(self, user_id: str, *, hidden: bool = False) -> list[SessionInfo]:
        """Return the user's sessions, most recently used first; with `hidden`, soft-deleted turns count as well."""
        live: BsonDict = {"kind": {"$nin": NO_TURNS}, "expiresAt": {"$not": {"$lte": self.settings.now()}}}
        live |= {} if hidden else SHOWN
        match = {**turns_filter(user_id, **live), **await self._unreplaced(user_id)}
        merged = {s.session_id: s for s in await self.grouped(match, "session_id", "createdAt")}
        if not user_id:
            match, key = docs.legacy_sessions_filter(*self.settings.legacy_keys), self.settings.legacy_keys[0]
            for rows in await self.grouped(match, key, "_id"):
                name = rows.session_id  # of a text and of a number, perhaps
                ours = merged.get(name, SessionInfo(name, 0, rows.created_at, rows.updated_at))
                begun = [at for at in (ours.created_at, rows.created_at) if at]
                merged[name] = replace(ours, turns=ours.turns + rows.turns, created_at=min(begun, default=None))
        return sessions.page_of(merged.values(), SessionQuery(user_id))

    async def session_page(self, asked: SessionQuery) -> list[SessionInfo]:
        """Return a page of the user's sessions with titles and previews, most recently used first."""
        if self.layout != "turns" or await self._mixed(asked.user_id):
            return await super().session_page(asked)
        return await sessions.page_by_time(asked, partial(self._walk, asked.user_id), partial(self._described, asked))

    async def _mixed(self, user_id: str) -> bool:
        """Return whether these sessions may hold rows of langchain-mongodb, which are nobody's."""
        rows = docs.legacy_sessions_filter(*self.settings.legacy_keys)
        return not user_id and bool(await self.find(rows, ["_id"], limit=1))

    async def _walk(self, user_id: str, place: ListPosition | None, done: list[str], count: int) -> Places:
        query = turns_filter(user_id, createdAt=docs.until(place)) | {"session_id": {"$nin": done}}
        rows = await self.by_index(query, docs.BY_TIME, {"_id": 0, "createdAt": 1, "session_id": 1}, count)
        return [(at, str(row["session_id"])) for row in rows if isinstance(at := row["createdAt"], datetime)]

    async def _described(self, asked: SessionQuery, names: list[str] | None) -> list[SessionInfo]:
        if asked.where:
            # Looked for as text in text, so nothing of the caller's is an operator; `page_of` compares exactly.
            query = turns_filter(asked.user_id, seq={"$eq": docs.DETAILS}, metadata={"$regex": re.escape(asked.item)})
            names = [row["session_id"] for row in await self.find(query, ["session_id"])]
        if names is None:
            await self.ping()
        unreplaced = await self._unreplaced(asked.user_id, names)
        rows = await self.rows(docs.turns_of_sessions(asked, names, self.settings.now(), unreplaced))
        details = {row["_id"]["session"]: SessionDetails(**row["details"]) for row in docs.groups_of("session", rows)}
        found = docs.counted(rows)
        ends: dict[object, Turn] = {}
        ids = [row[end]["id"] for row in found.values() for end in ("first", "last")]
        for some in range(0, len(ids), MANY):
            for document in await self.rows(docs.ends_of(asked.user_id, ids[some : some + MANY])):
                ends[document["_id"]] = history_rows.read_turn(document, None)
        listed: list[SessionInfo] = []
        for name, row in found.items():
            info = SessionInfo(name, row["turns"], docs.date_of(row["created"]), docs.date_of(row["updated"]))
            first, last = (ends.get(row[end]["id"]) for end in ("first", "last"))
            listed.append(sessions.describe_session(info, [first] if first else [], last, details.get(name)))
        return listed

    async def find_turns(self, user_id: str, words: Sequence[str], after: ListPosition | None, limit: int) -> FoundPage:
        """Return turns that may hold the words, newest first, and where to continue; None at the end."""
        if self.layout != "turns" or await self._mixed(user_id):
            return await super().find_turns(user_id, words, after, limit)
        # The words hold no signs, so they are no patterns of the caller's.
        patterns = [{"$regex": sessions.word_pattern(word), "$options": "i"} for word in words]
        said = [{"$or": [{"messages.content": each}, {"messages.content.text": each}]} for each in patterns]
        query = turns_filter(user_id, kind={"$nin": NO_TURNS}, createdAt=docs.until(after))
        further = [*said, *docs.later(after)]
        query |= {**SHOWN, "session_id": {"$type": "string"}, **({"$and": further} if further else {})}
        query |= await self._unreplaced(user_id)
        await self.ping()
        documents = await self.by_index(query, docs.BY_TIME, {"index": 0}, limit, self.settings.save_timeout)
        heads = {d["session_id"]: EMPTY for d in documents}
        for name in heads:  # turns before a tombstone are void, also if they are not erased yet
            heads[name] = docs.head_of(await self.read(self.newest(SessionScope(user_id, name), "majority"))) or EMPTY
        now, counter = self.settings.now(), self.settings.token_counter
        live = [d for d in documents if is_live(d, heads[d["session_id"]].base, now)]
        turns = [(d["session_id"], history_rows.read_turn(d, counter)) for d in live]
        if len(documents) < limit:
            return turns, None
        last = documents[-1]
        return turns, ListPosition(last["createdAt"], last["session_id"], docs.position(last["seq"]))

    async def _unreplaced(self, user_id: str, names: list[str] | None = None) -> BsonDict:
        """Return the condition that leaves out what edits replaced in a user's sessions, or in some of them."""
        query = turns_filter(user_id) | docs.EDITS | ({} if names is None else {"session_id": {"$in": names}})
        found = await self.find(query, ["session_id", "seq", "replaces", "expiresAt"])
        edits = [(d["session_id"], edit) for d in found for edit in docs.edits_of([d], 0, self.settings.now())]
        return docs.outside(history_rows.replaced_in(edits))

    async def grouped(self, match: BsonDict, key: str, date: str) -> list[SessionInfo]:
        """Count the matching documents by a field, with the first and last date; an `_id` holds its date."""
        ends = {"first": {"$min": f"${date}"}, "last": {"$max": f"${date}"}}
        rows = await self.aggregate([{"$match": match}, {"$group": {"_id": f"${key}", "n": {"$sum": 1}, **ends}}])
        dates = [[docs.date_of(getattr(row[end], "generation_time", row[end])) for end in ends] for row in rows]
        groups = zip(rows, dates, strict=True)
        return [SessionInfo(str(row["_id"]), row["n"], first, last) for row, (first, last) in groups]

    async def owners(self) -> list[str]:
        """Return all users with turns or decisions, sorted; the empty string is what nobody owns, all old rows too."""
        kinds = [kind for kind in NO_TURNS if kind != "decision"]
        match = {"user_id": {"$type": "string"}, "seq": {"$gt": 0}, "kind": {"$nin": kinds}}
        users = {info.session_id for info in await self.grouped(match, "user_id", "createdAt")}
        legacy = await self.find(legacy_filter(*self.settings.legacy_keys), ["_id"], limit=1)
        return sorted(users | ({""} if legacy else set()))

    async def has_users(self) -> bool:
        """Return whether anybody has turns."""
        match = {"user_id": {"$gt": ""}, "seq": {"$gt": 0}, "kind": {"$nin": NO_TURNS}}
        return bool(await self.find(match, ["_id"], limit=1))

    # -- writing

    async def append(self, scope: SessionScope, batch: Batch, expected_seq: int | None, origin: ReadVersion) -> int:
        """Append a batch to a session; return the position of its last row."""
        with self.writing(batch):
            seq = (await Append(self, scope, batch, "turn", expected_seq, origin).flow()).seq
        for row in batch.rows:
            if row.replaces:
                await self._forget_summaries(scope, row.replaces)
        return seq

    async def flag(self, scope: SessionScope, turn: int | str, *, deleted: bool) -> bool:
        """Set or remove the soft-delete flag of a turn, given by `op` or position; return whether it exists."""
        # A turn before a tombstone is erased, although its document may be there for a moment.
        base = (docs.head_of(await self.read(self.newest(scope))) or EMPTY).base
        place = {"$gt": base, "$lte": history_rows.MOST}
        which = {"op": {"$eq": turn}} if isinstance(turn, str) else {"seq": {**place, "$eq": turn}}
        query = turns_filter(*scope, seq=place, kind={"$nin": NO_TURNS}) | which
        update = {"$set": {"isDeleted": deleted}, **docs.CHANGES_NOW}
        changed = await self.sent(lambda c: c.update_one(query, update))
        if changed.matched_count:
            await self._forget_summaries(scope, turn if isinstance(turn, int) else 0)
        return bool(changed.matched_count)

    async def update_session(
        self, scope: SessionScope, title: str | None, metadata: str | None, epoch: int | None = None
    ) -> bool:
        """Store title and metadata of a session in a document of its own; return False if it holds no turns."""
        if self.layout != "turns" or await self._mixed(scope.user_id):
            return await super().update_session(scope, title, metadata, epoch)
        await self.ensure()
        given = {name: value for name, value in (("title", title), ("metadata", metadata)) if value is not None}
        deadline = clock() + self.patience
        while True:
            done = await self._store_details(scope, given, epoch)
            if done is not None:
                return done
            wait = next_try(deadline, 0.02)
            if wait is None:
                msg = f"session {scope.session_id!r} was cleared each time that its title was stored. Call again."
                raise HistoryWriteError(msg)
            await wait

    async def _store_details(self, scope: SessionScope, given: BsonDict, epoch: int | None) -> bool | None:
        """Try once to store title and metadata; return None if that has to be tried again."""
        turn = await self._last_turn(scope)
        if turn is None or not same_conversation(epoch or 0, turn["epoch"]):
            return False
        begin = turn["epoch"] >> EDITS << EDITS  # edits of the conversation change the last bits only
        details = turns_filter(*scope, seq={"$eq": docs.DETAILS})
        ours = {**details, "epoch": {"$gte": begin, "$lt": begin + (1 << EDITS)}}
        fresh: BsonDict = {"op": "session", "kind": "session", "v": FORMAT_VERSION, "title": "", "metadata": "{}"}
        made = {name: value for name, value in fresh.items() if name not in given}
        made["expiresAt"] = await self.server_now() + history_rows.MARKER_TTL
        now = {"$set": {**given, "epoch": turn["epoch"]}, "$setOnInsert": made}
        try:
            await self.sent(lambda c: c.update_one(ours, now, upsert=True), begun=True)
        except commands.DuplicateKey:
            await self._drop_details(scope, details, turn["epoch"])
            return None
        # A clear inserts its tombstone, then erases: it erased this document, or the tombstone is seen now. Until that
        # is known a new document expires, since this process may end here.
        again = await self._last_turn(scope)
        if again is None or not same_conversation(again["epoch"], turn["epoch"]):
            await self.delete_many(ours, begun=True)
            return False
        kept = {"$set": {"expiresAt": turn.get("expiresAt")}}  # no date: it stays
        await self.sent(lambda c: c.update_one(ours, kept), begun=True)
        return True

    async def _drop_details(self, scope: SessionScope, details: BsonDict, epoch: int) -> None:
        """Delete title and metadata of an earlier conversation of the session; those of a later one stay."""
        found = await self.find(details, ["epoch"])
        turn = await self._last_turn(scope)
        # What was found before the session was seen in this conversation is not of a later one.
        if turn is not None and same_conversation(turn["epoch"], epoch):
            for document in found:
                if not same_conversation(document.get("epoch"), epoch):
                    await self.delete_many({**details, "epoch": {"$eq": document.get("epoch")}}, begun=True)

    async def _last_turn(self, scope: SessionScope) -> BsonDict | None:
        """Return epoch and expiry of the session's newest turn; None if it holds none."""
        document = next((d for d in await self.read(self.newest(scope)) if docs.head_of([d])), None)
        if document is None or document.get("kind") in docs.MARKERS or docs.is_being_copied(document):
            return None
        return document if docs.is_shown(document, self.settings.now(), hidden=True) else None

    @property
    def keeps_summaries(self) -> bool:
        """Whether they lie in documents of their own: not where the driver encrypts some fields of documents."""
        return not self.clients.encrypts

    async def summary(self, scope: SessionScope, *, unfinished: bool = False) -> StoredSummary | None:
        """Return a summary of the session."""
        found = await self.find(_summary_filter(scope, unfinished), limit=1)
        return history_rows.read_summary(found[0], self.settings.now()) if found else None

    async def put_summary(
        self,
        scope: SessionScope,
        summary: StoredSummary,
        *,
        previous: str | None,
        turns: Sequence[int],
        unfinished: bool = False,
        moved: str | None = None,
    ) -> bool:
        """Store a summary, look whether all that it tells of is still shown, and take it back if not."""
        await self.ensure()
        op = "unfinished summary" if unfinished else "summary"
        fields = {"id": summary.id, "position": summary.position._asdict(), "value": dict(summary.value)}
        new = {"op": op, "kind": "summary", "v": FORMAT_VERSION, **fields}
        # Whoever clears, hides or replaces turns does that first, and then deletes the summary. So it found this one,
        # or what it did is seen now. Until that is known the document expires, since this process may end here.
        new["expiresAt"] = await self.server_now() + history_rows.MARKER_TTL
        place = _summary_filter(scope, unfinished)
        ours = {**place, "id": {"$eq": summary.id}}
        replaced = {**place, "id": {"$in": [previous, summary.id]}}  # the latter: by an earlier try of this command
        put = UpdateOne(ours if previous is None else replaced, {"$set": new}, upsert=previous is None)
        try:
            done = await self.bulk_write([put])
        except commands.DuplicateKey:
            if previous is not None or not await self._drop_unreadable(scope, unfinished):
                return False
            again: dict[str, Any] = {"turns": turns, "unfinished": unfinished, "moved": moved}
            return await self.put_summary(scope, summary, previous=None, **again)
        if not (done.matched_count or done.upserted_count):
            return False
        source = {**_summary_filter(scope, True), "id": {"$eq": moved}}
        is_there = moved is None or bool(await self.find(source, ["_id"]))
        if not (is_there and await self._are_shown(scope, turns, summary.position.seq)):
            await self.delete_many(ours, begun=True)
            return False
        kept = {"$set": {"expiresAt": summary.expires_at}}  # no date: it stays
        await self.sent(lambda c: c.update_one(ours, kept), begun=True)
        if moved is not None:
            await self.delete_many(source, begun=True)
        return True

    async def _drop_unreadable(self, scope: SessionScope, unfinished: bool) -> bool:
        """Delete a summary that is damaged or has expired; return whether there was one."""
        place = _summary_filter(scope, unfinished)
        for found in await self.find(place, limit=1):
            if history_rows.read_summary(found, self.settings.now()) is None:
                return bool(await self.delete_many({**place, "_id": {"$eq": found["_id"]}}))
        return False

    async def _are_shown(self, scope: SessionScope, turns: Sequence[int], last: int) -> bool:
        """Return whether all turns at some positions are neither hidden, replaced, expired nor erased, nor is `last`.

        That may be 0, for rows of langchain-mongodb, which a clear erases as well.
        """
        fields = ["seq", "kind", "base", "expiresAt", "isActive", "isDeleted", "replaces"]
        sought: list[BsonDict] = [{"seq": {"$in": [*turns]}}, docs.EDITS, docs.TOMBSTONES]
        either = [{**turns_filter(*scope), **one} for one in sought]
        documents, now = await self.find({"$or": either}, fields), self.settings.now()
        tombstones = [docs.position(d.get("base")) for d in documents if d.get("kind") in docs.MARKERS]
        base = max(tombstones, default=0)
        replaced = history_rows.ReplacedTurns(docs.edits_of(documents, base, now))
        live = [d["seq"] for d in documents if is_live(d, base, now) and d["seq"] not in replaced]
        is_erased = 0 < base >= last
        return set(turns) <= set(live) and not is_erased

    async def drop_summaries(self, scope: SessionScope, ids: Sequence[str] | None = None) -> int:
        """Delete summaries of the session."""
        which = {} if ids is None else {"id": {"$in": [*ids]}}
        return await self.delete_many({**turns_filter(*scope), "seq": docs.SUMMARIES, **which})

    async def _forget_summaries(self, scope: SessionScope, seq: int) -> None:
        """Delete the summaries that cover a position, whose turn was changed."""
        covering = {"seq": docs.SUMMARIES, "position.seq": {"$gte": seq}}
        await self.delete_many({**turns_filter(*scope), **covering}, begun=True)

    @property
    def keeps_index(self) -> bool:
        """Whether documents keep what was derived from them: not where the driver encrypts some of their fields."""
        return self.layout == "turns" and not self.clients.encrypts

    async def changes(self, user_id: str, since: Any, names: Sequence[str], limit: int, slack: float = 0) -> Changes:
        """Return a page of the documents that changed, in the order of the server's clock.

        That is not the order in which they become visible: `slack` is for what was under way.
        """
        fields = [*docs.CHANGED, *(f"index.{name}" for name in names)]
        query = docs.changed_since(user_id, since, math.ceil(slack), unmarked=self._marks)
        found = await self.by_index(query, docs.BY_CHANGE, fields, limit)
        is_unmarked = any(document.get("changed") is None for document in found)
        if is_unmarked and await self._mark(user_id):
            found = await self.by_index(query, docs.BY_CHANGE, fields, limit)
            is_unmarked = any(document.get("changed") is None for document in found)  # others may write on
        if is_unmarked:  # they come first, and have no order by which to go on
            found = await self.by_index(query, docs.BY_CHANGE, fields, 0)
            limit = len(found) + 1
        marks = [mark for document in found if isinstance(mark := document.get("changed"), Timestamp)]
        rows = [row for document in found if (row := docs.changed_row(document))]
        has_more = len(found) == limit
        newest = max(marks, default=EARLIEST)
        return Changes(rows, newest if has_more else max(newest, since or EARLIEST), has_more)

    async def _mark(self, user_id: str) -> bool:
        """Have the server note a time in the documents of older versions; return False if that is not possible."""
        if not self._marks:
            return False
        try:
            await self.sent(lambda c: c.update_many(docs.unmarked(user_id), docs.CHANGES_NOW))
        except HistoryWriteError as error:
            self._marks = getattr(error.__cause__, "code", None) not in commands.NOT_ALLOWED_CODES
            logger.warning("turns of an older memkit are read anew each time, since they cannot be marked: %s", error)
            return False
        return True

    async def turns_at(self, user_id: str, places: Sequence[Place]) -> list[tuple[str, Turn]]:
        """Return the turns at some places."""
        found: list[tuple[str, Turn]] = []
        for some in batches(places):
            documents = await self.find(docs.at_places(user_id, some), {"index": 0, "trace": 0})
            now, counter = self.settings.now(), self.settings.token_counter
            live = [d for d in documents if docs.is_shown(d, now, hidden=True)]
            found += [(d["session_id"], history_rows.read_turn(d, counter)) for d in live]
        return found

    async def keep_index(self, user_id: str, name: str, made: Sequence[tuple[Place, str, bytes]]) -> None:
        """Store what was derived from turns that are still there, or decided."""
        kinds = {"$in": ["turn", "decision"]}
        for some in batches(made):
            updates = [
                UpdateOne(
                    turns_filter(user_id, session_id, seq={"$eq": seq}, op={"$eq": op}, kind=kinds),
                    {"$set": {f"index.{name}": data}, **docs.CHANGES_NOW},
                )
                for (session_id, seq), op, data in some
            ]
            # one that has no room for it keeps none of the others from theirs
            await self.sent(lambda c, updates=updates: c.bulk_write(updates, ordered=False), begun=some[0] != made[0])  # type: ignore[misc]

    async def drop_turns(self, scope: SessionScope, ops: Sequence[str]) -> None:
        """Delete the turns with these `op` names, which were copied elsewhere; turns added since stay."""
        for some in batches(ops):
            await self.delete_many(turns_filter(*scope, op={"$in": some}), begun=some[0] != ops[0])

    async def fork(self, scope: SessionScope, session_id: str, at: int | None) -> bool:
        """Copy the turns that are shown into another session; nobody sees a part of it."""
        with self.writing():
            await self.ensure(again=True)
            try:
                return await Fork(self, scope, SessionScope(scope.user_id, session_id), at).flow()
            except HistoryReadError as error:
                msg = f"{error}. A part of the copy may be stored, which nobody sees: fork again to continue"
                raise HistoryWriteError(msg, maybe_stored=True) from error

    async def rows_of(self, scope: SessionScope) -> list[BsonDict]:
        """Return what the documents of a session are, newest first, without their messages."""
        fields = ["op", "seq", "kind", "epoch", "base", "expiresAt", "isActive", "isDeleted", "replaces"]
        return await self.find(turns_filter(*scope), fields, sort=[("seq", -1)])

    async def shown_rows(self, scope: SessionScope, at: int | None) -> list[BsonDict]:
        """Return the turns that are shown, up to a position, oldest first and without their messages."""
        rows, now = await self.rows_of(scope), self.settings.now()
        base = (docs.head_of(rows) or EMPTY).base
        replaced = history_rows.ReplacedTurns(docs.edits_of(rows, base, now))
        shown = [d for d in rows[::-1] if is_live(d, base, now) and d["seq"] not in replaced]
        return [d for d in shown if at is None or d["seq"] <= at]

    async def clear(self, scope: SessionScope) -> None:
        """Insert a tombstone, then erase everything before it; all of it is invisible at once."""
        with self.writing():
            await self.erase_before(scope, await self.tombstone(scope, "clear"))
        if not scope.user_id:
            await self.delete_many(legacy_filter(*self.settings.legacy_keys, scope.session_id), begun=True)

    async def purge(self, user_id: str) -> dict[str, int]:
        """Insert a tombstone into every session of the user, then erase everything else; return counts."""
        # The purge tombstone comes before the list of sessions: a session that opens after the list was read looks this
        # tombstone up before its first turn is stored.
        everybody = SessionScope(user_id, "")
        with self.writing():
            await self.erase_before(everybody, await self.tombstone(everybody, "purge"))
            pipeline = [{"$match": turns_filter(user_id, seq=docs.OURS["seq"])}, {"$group": {"_id": "$session_id"}}]
            heads: dict[SessionScope, SessionHead] = {}
            # Tombstones into all sessions before anything is erased: turns under way are refused everywhere at once.
            # Then the list again: a session that had none yet may have been copied into another one.
            while True:
                rows: list[BsonDict] = await self.sent(lambda c: commands.rows_of(c.aggregate(pipeline)), begun=True)
                named = [SessionScope(user_id, r["_id"]) for r in rows if isinstance(r["_id"], str) and r["_id"]]
                if not (scopes := [scope for scope in named if scope not in heads]):
                    break
                for scope in scopes:
                    heads[scope] = await self.tombstone(scope, "clear", begun=True)
            # A fork that listed its turns before the tombstone came there may go on above the one in its new session,
            # and another fork from there. So those get one more, until nothing was copied in below it.
            while await self._purge_copies(user_id, heads):
                pass
            counts = [await self.erase_before(*pair) for pair in heads.items()]
        return {"sessions": sum(map(bool, counts)), "turns": sum(counts)}

    async def _purge_copies(self, user_id: str, heads: dict[SessionScope, SessionHead]) -> bool:
        """Insert a tombstone into each session that a fork has marked; return whether turns were copied there since."""
        marked: list[BsonDict] = [{"$match": docs.copies_of(user_id)}, {"$project": {"session_id": 1}}]
        copies: list[BsonDict] = await self.sent(lambda c: commands.rows_of(c.aggregate(marked)), begun=True)
        has_come = False
        for copy in copies:
            scope = SessionScope(user_id, copy["session_id"])
            last = heads.get(scope, EMPTY).seq
            heads[scope] = await self.tombstone(scope, "clear", begun=True)
            if heads[scope].seq > last + 1:
                copied = docs.copied_between(scope, last, heads[scope].seq)
                found = await self.sent(methodcaller("count_documents", copied, limit=1), begun=True)
                has_come = has_come or bool(found)
        return has_come

    async def tombstone(
        self, scope: SessionScope, kind: Kind, *, begun: bool = False, after: int | None = None
    ) -> SessionHead:
        """Insert a tombstone at the end of a session, which voids everything before it; return the new head.

        With `after`, raise `HistoryConflictError` unless the session is at this position.
        """
        batch = Batch([], [], [history_rows.TurnRow(f"{kind}:{uuid4()}", [], [])], None)
        return await Append(self, scope, batch, kind, after, unknown=begun).flow()

    async def renew(self, scope: SessionScope, head: SessionHead, seconds: float) -> bool:
        """Extend the life of the tombstone at the end of a session; return False if it has expired."""
        tombstone = turns_filter(*scope, seq={"$eq": head.seq}, kind={"$in": docs.MARKERS}, epoch={"$eq": head.epoch})
        longer = [{"$set": {"expiresAt": docs.IN_TWO_HOURS}}]
        renewed = await self.command(lambda c: c.update_one(tombstone, longer), seconds)
        return bool(renewed.matched_count)

    async def erase_before(self, scope: SessionScope, head: SessionHead) -> int:
        """Erase the content of everything before a tombstone; return how many turns that were.

        Turns of the last two hours keep their position as documents without content, until no writer can come any more
        that read the session before the tombstone. Older ones are deleted. Older tombstones expire by themselves. It
        may be repeated after a crash.
        """
        turns = turns_filter(*scope, seq={"$gt": 0, "$lt": head.seq}, kind={"$nin": docs.MARKERS})
        deleted = await self.delete_many({**turns, **docs.STORED_LONG_AGO}, begun=True)
        recent = await self.sent(lambda c: c.update_many(turns, docs.voided(head.epoch)), begun=True)
        # Documents with a damaged position: no reader shows them, but their content must go as well. The opening of a
        # session that a fork may be copying into stays, since a purge has to see it.
        damaged = {"$exists": True, "$not": {"$gt": 0, "$lte": history_rows.MOST}}
        rest = turns_filter(*scope, seq=damaged, isCopy={"$ne": True})
        await self.delete_many(rest, begun=True)
        return deleted + recent.modified_count
