"""The storage model on MongoDB: flows that append, read, clear and purge, for both call styles.

Order is a gap-free `seq` per session. A turn is inserted at `last + 1`, and the unique index on (user_id, session_id,
seq) decides between writers; who loses reads again and tries the next position. The unique index on `op` makes a retry
harmless, so after any unclear outcome the same turn is simply sent again until the deadline.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timezone
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

import pymongo
from bson import CodecOptions, DatetimeConversion
from bson.errors import InvalidDocument
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    DocumentTooLarge,
    InvalidOperation,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from langchain_memkit._flow import Flow, adrive, drive
from langchain_memkit.backends._history import (
    EMPTY,
    Batch,
    Head,
    Page,
    Row,
    Scope,
    admits,
    new_epoch,
    stored_or_conflict,
)
from langchain_memkit.backends.mongodb.clients import Clients, redact
from langchain_memkit.backends.mongodb.documents import (
    Kind,
    head_of,
    index_models,
    is_live,
    legacy_filter,
    legacy_turn,
    native_turn,
    turn_document,
    turns_filter,
)
from langchain_memkit.base import Now, SessionInfo, TokenCounter, Turn
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryConflictError,
    HistoryReadError,
    HistoryWriteError,
    MemkitError,
    MessageTooLargeError,
    StaleTurnError,
)

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")

CODEC = CodecOptions(
    tz_aware=True,
    tzinfo=timezone.utc,
    unicode_decode_error_handler="replace",  # one damaged string must not hide a session
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
HINT_SECONDS = 30  # far below the shortest time in which positions can become free again (TTL >= 60 s, markers 1 h)
MAX_HINTS = 10_000
MAX_AUTO_INDEX = 100_000
TRANSIENT_CODES = {6, 7, 50, 64, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}
DUPLICATE_KEY = 11000
TOO_LARGE_CODES = {10334, 17280, 17419, 17420}


class Call(NamedTuple):
    """One command: `function(collection)` for a sync or an async collection, with its time limit in seconds."""

    function: Callable[[Any], Any]
    timeout: float | None


class Pause(NamedTuple):
    """Wait before the next try."""

    seconds: float


class MongoTurnStore:
    """All flows of one collection, with the clients that run them."""

    def __init__(
        self,
        clients: Clients,
        database_name: str,
        collection_name: str,
        *,
        session_id_key: str,
        history_key: str,
        create_index: bool,
        index_kwargs: Mapping[str, Any] | None,
        ttl: float | None,
        timeout: float,
        save_timeout: float,
        token_counter: TokenCounter | None,
        now: Now,
    ) -> None:
        self.clients = clients
        self._names = (database_name, collection_name)
        self._legacy_keys = (session_id_key, history_key)
        self._create_index = create_index
        self._index_kwargs = dict(index_kwargs or {})
        self._ttl = ttl
        self._timeout = timeout
        self._save_timeout = save_timeout
        self._counter = token_counter
        self._now = now
        self._hints: dict[Scope, tuple[Head, float]] = {}
        self._warned = False

    # -- running flows

    def collection(self, client: Any) -> Any:
        """The collection with the guarantees pinned, whatever the connection string says."""
        database, name = self._names
        return client[database].get_collection(
            name,
            codec_options=CODEC,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern(w="majority", j=True, wtimeout=int(self._save_timeout * 1000)),
        )

    def run(self, flow: Flow[T]) -> T:
        """Runs a flow with the sync client."""

        def step(operation: Call | Pause) -> Any:
            if isinstance(operation, Pause):
                time.sleep(operation.seconds)
                return None
            with pymongo.timeout(operation.timeout):
                return operation.function(self.collection(self.clients.sync()))

        return drive(flow, step)

    async def arun(self, flow: Flow[T]) -> T:
        """Runs a flow with the async client of the running loop."""
        if self.clients.async_runs_in_thread:
            return await asyncio.to_thread(self.run, flow)

        async def step(operation: Call | Pause) -> Any:
            if isinstance(operation, Pause):
                return await asyncio.sleep(operation.seconds)
            collection = self.collection(await self.clients.asynchronous())
            with pymongo.timeout(operation.timeout):
                return await operation.function(collection)

        return await adrive(flow, step)

    def close(self) -> None:
        """Lets go of the shared client."""
        self.clients.release()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self.clients.arelease()

    # -- set-up

    def setup(self) -> Flow[None]:
        """Builds missing indexes, however large the collection is."""
        yield from self._reading(self._ensure_indexes(forced=True))

    def _ensure_indexes(self, *, forced: bool = False) -> Flow[None]:
        key = (self.clients.key, self._names, self._legacy_keys[0])
        if key in _indexed and not forced:
            return
        existing = yield Call(lambda c: c.index_information(), self._timeout)
        # by keys and uniqueness, because users rename indexes and build them by hand
        present = {(tuple(map(tuple, i["key"])), bool(i.get("unique"))) for i in existing.values()}
        wanted = index_models(self._legacy_keys[0], self._index_kwargs)
        missing = [
            model
            for model in wanted
            if (tuple(model.document["key"].items()), bool(model.document.get("unique"))) not in present
        ]
        critical = [m.document["name"] for m in missing if m.document.get("unique")]
        if missing and (self._create_index or forced):
            yield from self._build_indexes(missing, forced)
        elif critical:
            msg = (
                f"collection {'.'.join(self._names)} lacks the unique indexes {critical}, without which turns could be "
                "lost or doubled, and create_index=False. Build them with MongoDBChatMessageHistory.factory(...).setup()."
            )
            raise ConfigurationError(msg)
        _indexed.add(key)

    def _build_indexes(self, missing: list[Any], forced: bool) -> Flow[None]:
        if not forced:
            count = yield Call(lambda c: c.estimated_document_count(), self._timeout)
            if count > MAX_AUTO_INDEX:
                names = [m.document["name"] for m in missing]
                msg = (
                    f"collection {'.'.join(self._names)} holds {count:,} documents and lacks the indexes {names}. "
                    "Building them takes a while, so it is not done by surprise: run "
                    "MongoDBChatMessageHistory.factory(...).setup() once."
                )
                raise ConfigurationError(msg)
        try:
            yield Call(lambda c: c.create_indexes(missing), None)
        except OperationFailure as error:
            if error.code in (13, 8000):  # not allowed: said as a driver would, with the reason
                raise
            msg = (
                f"{self.clients.hosts} refused an index of collection {'.'.join(self._names)}: {redact(str(error))}. "
                "memkit needs partial unique indexes (MongoDB 5.0 or newer, Atlas, or a compatible server that has them)."
            )
            raise ConfigurationError(msg) from error

    # -- reading

    def page_back(self, scope: Scope, older: Any | None, limit: int) -> Flow[Page]:
        """Turns newest first; below our own lie the rows of langchain-mongodb, for histories without a user."""
        return (yield from self._reading(self._page_back(scope, older, limit)))

    def _page_back(self, scope: Scope, older: Any | None, limit: int) -> Flow[Page]:
        if isinstance(older, _Legacy):
            turns, older = yield from self._legacy_page(scope, older, -1, limit)
            return Page(turns, 0, 0, older)
        before, base = older or (None, 0)
        seq = {"$gt": base} if before is None else {"$gt": base, "$lt": before}
        documents = yield self._find(turns_filter(*scope, seq=seq), -1, limit)
        head = head_of(documents) or EMPTY
        base = base if older else head.base
        if older is None and documents:
            self._remember(scope, head)
        epoch = head.epoch
        if not documents and older is None:
            epoch = (yield from self._purged(scope.user_id)) if scope.user_id else 0
        now = self._now()
        turns = [native_turn(d, self._counter) for d in documents if is_live(d, base, now)]
        last = documents[-1]["seq"] if documents else 0
        if len(documents) == limit and last > base + 1:
            return Page(turns, head.seq, epoch, (last, base))
        legacy = _Legacy(None, documents[-1].get("createdAt") if documents else None)
        return Page(turns, head.seq, epoch, None if scope.user_id or base else legacy)

    def _legacy_page(self, scope: Scope, at: _Legacy, direction: int, limit: int) -> Flow[tuple[list[Turn], Any]]:
        query = legacy_filter(*self._legacy_keys, scope.session_id)
        if at.identity is not None:
            query["_id"] = {"$lt" if direction < 0 else "$gt": at.identity}
        rows = yield self._find(query, direction, limit, key="_id")
        turns = [legacy_turn(row, self._legacy_keys[1], self._counter) for row in rows]
        newest = turns[0].created_at if turns and at.identity is None and direction < 0 else None
        if newest and at.native_since and newest > at.native_since and not self._warned:
            self._warned = True
            logger.warning(
                "session %r: an old app still writes langchain-mongodb rows after native turns exist; they are shown "
                "before those turns",
                scope.session_id,
            )
        return turns, _Legacy(rows[-1]["_id"], None) if len(rows) == limit else None

    def page_forward(self, scope: Scope, after: Any | None, limit: int) -> Flow[tuple[list[Turn], Any | None]]:
        """Turns oldest first: langchain-mongodb's rows, then ours."""
        return (yield from self._reading(self._page_forward(scope, after, limit)))

    def _page_forward(self, scope: Scope, after: Any | None, limit: int) -> Flow[tuple[list[Turn], Any | None]]:
        head = (yield from self._head(scope, "majority")) or EMPTY
        if (after is None and not scope.user_id and not head.base) or isinstance(after, _Legacy):
            turns, following = yield from self._legacy_page(scope, after or _Legacy(None, None), 1, limit)
            return turns, following or 0
        after = max(after or 0, head.base)
        documents = yield self._find(turns_filter(*scope, seq={"$gt": after}), 1, limit)
        now = self._now()
        turns = [native_turn(d, self._counter) for d in documents if is_live(d, head.base, now)]
        return turns, documents[-1]["seq"] if len(documents) == limit else None

    def stored_ids(self, scope: Scope, ids: Sequence[str]) -> Flow[set[str]]:
        """Which of the ids belong to live messages of the session: one indexed query."""
        query = turns_filter(*scope, **{"messages.id": {"$in": list(ids)}})
        fields = ["messages.id", "kind", "seq", "isActive", "isDeleted", "expiresAt"]
        find = Call(lambda c: c.find(query, fields).to_list(), self._timeout)
        documents = yield from self._reading(_one(find))
        now = self._now()
        found = {m.get("id") for d in documents if is_live(d, 0, now) for m in d.get("messages") or ()}
        return set(ids) & found

    def sessions(self, user_id: str) -> Flow[list[SessionInfo]]:
        """The user's sessions, most recently used first."""
        return (yield from self._reading(self._sessions(user_id)))

    def _sessions(self, user_id: str) -> Flow[list[SessionInfo]]:
        live = {"kind": {"$nin": ["clear", "purge"]}, "isDeleted": {"$ne": True}, "isActive": {"$ne": False}}
        group = {"_id": "$session_id", "n": {"$sum": 1}, "a": {"$min": "$createdAt"}, "z": {"$max": "$createdAt"}}
        found = yield from self._aggregate([{"$match": turns_filter(user_id, **live)}, {"$group": group}])
        merged = {row["_id"]: SessionInfo(row["_id"], row["n"], row["a"], row["z"]) for row in found}
        if not user_id:
            key = self._legacy_keys[0]
            group = {"_id": f"${key}", "n": {"$sum": 1}, "a": {"$min": "$_id"}, "z": {"$max": "$_id"}}
            match = {**legacy_filter(*self._legacy_keys), key: {"$type": "string"}}
            for row in (yield from self._aggregate([{"$match": match}, {"$group": group}])):
                ours = merged.get(row["_id"])
                first, last = (getattr(row[name], "generation_time", None) for name in "az")
                merged[row["_id"]] = SessionInfo(
                    row["_id"], row["n"] + (ours.turns if ours else 0), first, ours.updated_at if ours else last
                )
        oldest = self._now().replace(year=1970)
        return sorted(merged.values(), key=lambda s: s.updated_at or oldest, reverse=True)

    def _aggregate(self, pipeline: list[dict[str, Any]]) -> Flow[list[dict[str, Any]]]:
        cursor = yield Call(lambda c: c.aggregate(pipeline), self._save_timeout)
        return (yield Call(lambda c: cursor.to_list(), self._save_timeout))  # type: ignore[no-any-return]  # untyped op

    def _find(self, query: dict[str, Any], direction: int, limit: int, key: str = "seq") -> Call:
        return Call(lambda c: c.find(query).sort(key, direction).limit(limit).to_list(), self._timeout)

    def _head(self, scope: Scope, level: str) -> Flow[Head | None]:
        query, fields = turns_filter(*scope), {"_id": 0, "seq": 1, "epoch": 1, "base": 1}

        def newest(collection: Any) -> Any:
            chosen = collection.with_options(read_concern=ReadConcern(level))
            return chosen.find(query, fields).sort("seq", -1).limit(4).to_list()

        return head_of((yield Call(newest, self._timeout)))

    def _purged(self, user_id: str) -> Flow[int]:
        """The epoch of the user's last purge, kept under the session id that no caller can pass."""
        head = yield from self._head(Scope(user_id, ""), "local")
        return head.epoch if head else 0

    # -- writing

    def append(self, scope: Scope, batch: Batch, expected_seq: int | None, epoch: int | None) -> Flow[int]:
        """Stores a batch; returns the position of its last row."""
        flow = _Append(self, scope, batch, "turn", expected_seq, epoch).flow()
        head = yield from self._writing(flow, batch)
        return head.seq

    def flag(self, scope: Scope, seq: int, *, deleted: bool) -> Flow[bool]:
        """Sets or removes the soft-delete mark of a turn."""
        query = turns_filter(*scope, seq={"$eq": int(seq)}, kind={"$nin": ["clear", "purge"]})
        change = {"$set": {"isDeleted": deleted}}
        result = yield from self._writing(self._retried(lambda c: c.update_one(query, change)))
        return result.matched_count > 0

    def clear(self, scope: Scope) -> Flow[None]:
        """Marker in, everything older out; whatever the marker covers is invisible at once."""
        yield from self._writing(self._void(scope, "clear"))

    def purge(self, user_id: str) -> Flow[dict[str, int]]:
        """Marker into every session of the user, everything else out."""
        return (yield from self._writing(self._purge(user_id)))

    def _purge(self, user_id: str) -> Flow[dict[str, int]]:
        yield from self._void(Scope(user_id, ""), "purge")
        rows = yield from self._aggregate([{"$match": turns_filter(user_id)}, {"$group": {"_id": "$session_id"}}])
        scopes = [Scope(user_id, row["_id"]) for row in rows if isinstance(row["_id"], str) and row["_id"]]
        heads = []
        for scope in scopes:
            heads.append((yield from self._mark(scope, "clear")))
        deleted = []
        for scope, head in zip(scopes, heads, strict=True):
            deleted.append((yield from self._delete_older(scope, head)))
        return {"sessions": sum(1 for n in deleted if n), "turns": sum(deleted)}

    def _void(self, scope: Scope, kind: Kind) -> Flow[int]:
        head = yield from self._mark(scope, kind)
        deleted = yield from self._delete_older(scope, head)
        if not scope.user_id:
            rows = legacy_filter(*self._legacy_keys, scope.session_id)
            yield from self._retried(lambda c: c.delete_many(rows))
        return deleted

    def _mark(self, scope: Scope, kind: Kind) -> Flow[Head]:
        batch = Batch([], [], [Row(f"{kind}:{uuid4()}", [], [])], None)
        return (yield from _Append(self, scope, batch, kind, None, None).flow())

    def _delete_older(self, scope: Scope, head: Head) -> Flow[int]:
        older = turns_filter(*scope, seq={"$lt": head.seq})
        turns = yield from self._retried(lambda c: c.delete_many({**older, "kind": {"$nin": ["clear", "purge"]}}))
        yield from self._retried(lambda c: c.delete_many(older))
        return int(turns.deleted_count)

    def _retried(self, function: Callable[[Any], Any]) -> Flow[Any]:
        """A repeatable command, sent again until the deadline."""
        deadline = time.monotonic() + self._save_timeout
        while True:
            try:
                return (yield Call(function, max(deadline - time.monotonic(), 0.1)))
            except PyMongoError as error:
                if not is_transient(error) or time.monotonic() > deadline:
                    raise
            yield Pause(random.uniform(0.05, 0.25))

    # -- memory of positions: only a guess, the unique index decides

    def _remember(self, scope: Scope, head: Head) -> None:
        if len(self._hints) >= MAX_HINTS:
            self._hints.clear()
        self._hints[scope] = (head, time.monotonic())

    def _recall(self, scope: Scope) -> Head | None:
        head, since = self._hints.get(scope, (None, 0.0))
        return head if time.monotonic() - since < HINT_SECONDS else None

    # -- errors

    def _reading(self, flow: Flow[T]) -> Flow[T]:
        try:
            return (yield from flow)
        except PyMongoError as error:
            msg = f"cannot read from {self.clients.hosts} within {self._timeout:g} s: {redact(str(error))[:500]}"
            raise HistoryReadError(msg) from error

    def _writing(self, flow: Flow[T], batch: Batch | None = None) -> Flow[T]:
        context = batch.error_context if batch else {}
        try:
            return (yield from flow)
        except MemkitError:
            raise
        except (DocumentTooLarge, InvalidDocument) as error:
            msg = f"a turn is larger than one MongoDB document may be (16 MB): {redact(str(error))[:300]}"
            raise MessageTooLargeError(msg, **context) from error
        except PyMongoError as error:
            if _codes(error) & TOO_LARGE_CODES:
                msg = "a turn is larger than one MongoDB document may be (16 MB)"
                raise MessageTooLargeError(msg, **context) from error
            unknown = is_transient(error) and not isinstance(error, ServerSelectionTimeoutError)
            state = "It may be stored" if unknown else "Nothing was stored"
            msg = f"cannot write to {self.clients.hosts}: {redact(str(error))[:500]}. {state}."
            raise HistoryWriteError(msg, maybe_stored=unknown, **context) from error


_indexed: set[Any] = set()
_reached: set[Any] = set()


class _Legacy(NamedTuple):
    """A place among langchain-mongodb's rows, and since when native turns exist."""

    identity: Any | None
    native_since: Any | None


def _one(call: Call) -> Flow[Any]:
    return (yield call)


def _codes(error: PyMongoError) -> set[int]:
    details = getattr(error, "details", None) or {}
    nested = [*(details.get("writeErrors") or ()), *(details.get("writeConcernErrors") or ())]
    return {code for code in (getattr(error, "code", None), *(e.get("code") for e in nested)) if isinstance(code, int)}


def is_transient(error: PyMongoError) -> bool:
    """Whether trying the same again may help: connection, election, time-out, write concern."""
    if isinstance(error, ConnectionFailure) or error.timeout:
        return True
    if isinstance(error, InvalidOperation):  # another factory closed the shared client: the next try gets a new one
        return "after close" in str(error)
    details = getattr(error, "details", None) or {}
    if error.has_error_label("RetryableWriteError") or details.get("writeConcernErrors"):
        return True
    return bool(_codes(error) & TRANSIENT_CODES)


class _Append:
    """One batch or marker on its way into a session: try, look, try again, until it is stored or time is up."""

    def __init__(
        self,
        store: MongoTurnStore,
        scope: Scope,
        batch: Batch,
        kind: Kind,
        expected_seq: int | None,
        epoch: int | None,
    ) -> None:
        self.store = store
        self.scope = scope
        self.batch = batch
        self.kind = kind
        self.expected_seq = expected_seq
        self.epoch = epoch
        self.pending = list(enumerate(batch.rows))
        self.head = store._recall(scope) if expected_seq is None else None
        self.last = EMPTY
        self.look_up = len(batch.rows) > 1  # an import may be the continuation of one that broke off
        self.unknown = False

    def flow(self) -> Flow[Head]:
        """Runs to the end; returns where the last row was stored."""
        store = self.store
        yield from store._ensure_indexes()
        reached = store.clients.key in _reached
        deadline = time.monotonic() + (store._save_timeout if reached else store._timeout)
        while True:
            try:
                if self.look_up:
                    yield from self._look_up()
                if self.pending:
                    yield from self._insert(max(min(deadline - time.monotonic(), store._save_timeout), 0.1))
                if not self.pending:
                    return self.last
                message = "other writers were faster every time"
            except PyMongoError as error:
                if not is_transient(error):
                    raise
                self.unknown = self.unknown or not isinstance(error, ServerSelectionTimeoutError)
                self.look_up, self.head, message = True, None, redact(str(error))[:500]
                cause: PyMongoError | None = error
            else:
                cause = None
            if time.monotonic() > deadline:
                raise self._failed(message) from cause
            yield Pause(random.uniform(0.05, 0.25) if cause else random.uniform(0.0, 0.02))

    def _failed(self, reason: str) -> HistoryWriteError:
        hosts = self.store.clients.hosts
        state = "It may be stored: retry with the same turn_id" if self.unknown else "Nothing was stored"
        if len(self.batch.rows) > 1:
            state = f"{len(self.batch.rows) - len(self.pending)} of {len(self.batch.rows)} parts are stored: add "
            state += "`error.messages` again to continue"
        msg = f"cannot write to {hosts}: {reason}. {state}."
        return HistoryWriteError(msg, maybe_stored=self.unknown, **self.batch.error_context)

    def _look_up(self) -> Flow[None]:
        """Finds out which rows are stored already. Counts only what a majority has: the rest may still vanish."""
        ops = [row.op for _, row in self.pending]
        query = turns_filter(*self.scope, op={"$in": ops})
        documents = yield Call(lambda c: c.find(query).to_list(), self.store._timeout)
        current = (yield from self.store._head(self.scope, "local")) or EMPTY
        stored = {d["op"]: d for d in documents if not (isinstance(d.get("seq"), int) and d["seq"] < current.base)}
        for index, row in list(self.pending):
            if row.op in stored:
                document = stored[row.op]
                if self.kind == "turn":
                    stored_or_conflict(self.batch, index, native_turn(document, None))
                self.last = head_of([document]) or EMPTY
                self.pending.remove((index, row))
        if len(documents) > len(stored):  # left over from a clear that broke off: finish it, then they are free
            yield from self.store._delete_older(self.scope, current._replace(seq=current.base))
        self.look_up = False

    def _insert(self, timeout: float) -> Flow[None]:
        """One try: at the remembered position or the one just read."""
        store, scope = self.store, self.scope
        head = self.head or (yield from store._head(scope, "local"))
        purged = 0
        if self.epoch is not None and not (head and head.epoch == self.epoch) and scope.user_id:
            purged = yield from store._purged(scope.user_id)
        self._check(head, purged)
        documents = self._documents(head)
        try:
            yield Call(lambda c: c.insert_many(documents), timeout)
        except BulkWriteError as error:
            done, duplicate = _read_bulk_error(error)
            self._stored(documents[:done])
            if not duplicate:
                raise
            self.head, self.look_up = None, True
            return
        self._stored(documents)
        _reached.add(store.clients.key)
        if head is None and self.epoch is not None and scope.user_id:
            yield from self._recheck(purged)

    def _check(self, head: Head | None, purged: int) -> None:
        context = self.batch.error_context
        if not admits(head, self.epoch, purged):
            msg = f"session {self.scope.session_id!r} was cleared while this turn ran, so the turn was not stored"
            raise StaleTurnError(msg, **context)
        at = (head or EMPTY).seq
        if self.expected_seq is not None and self.expected_seq != at:
            msg = f"expected the session at position {self.expected_seq}, it is at {at}; read it again"
            raise HistoryConflictError(msg, **context)

    def _documents(self, head: Head | None) -> list[dict[str, Any]]:
        store, documents = self.store, []
        head = head or Head(0, new_epoch(), 0)
        for _, row in self.pending:
            head = head._replace(seq=head.seq + 1)
            if self.kind != "turn":
                head = Head(head.seq, new_epoch(), head.seq)
            now = store._now()
            documents.append(turn_document(self.scope, head, self.kind, row, now, store._ttl, store._counter))
        return documents

    def _stored(self, documents: list[dict[str, Any]]) -> None:
        if documents:
            self.last = head_of(documents[-1:]) or EMPTY
            self.store._remember(self.scope, self.last)
            del self.pending[: len(documents)]
            if self.expected_seq is not None:
                self.expected_seq = self.last.seq

    def _recheck(self, purged: int) -> Flow[None]:
        """A purge that ran between our look and our insert did not see this new session: take it back."""
        if (yield from self.store._purged(self.scope.user_id)) != purged:
            yield from self.store._void(self.scope, "clear")
            msg = f"user of session {self.scope.session_id!r} was purged while this turn ran, so it was not stored"
            raise StaleTurnError(msg, **self.batch.error_context)


def _read_bulk_error(error: BulkWriteError) -> tuple[int, bool]:
    """How many documents went in before the first failure, and whether that was a duplicate key."""
    details = error.details or {}
    failures = details.get("writeErrors") or []
    if details.get("writeConcernErrors"):
        return 0, False  # nothing is certain: look it up
    duplicate = bool(failures) and failures[0].get("code") == DUPLICATE_KEY
    return int(details.get("nInserted", 0)), duplicate
