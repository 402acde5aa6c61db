"""Commands to a MongoDB server: one body for sync and async, repeated safely, read where they are safe."""

from __future__ import annotations

import asyncio
import inspect
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import pymongo
from bson import CodecOptions, DatetimeConversion
from bson.errors import InvalidDocument
from pymongo import DeleteMany, IndexModel, MongoClient, ReadPreference, ReplaceOne, UpdateOne, WriteConcern
from pymongo import errors as driver
from pymongo.collection import Collection
from pymongo.errors import PyMongoError, ServerSelectionTimeoutError
from pymongo.read_concern import ReadConcern
from pymongo.results import BulkWriteResult

from langchain_memkit._sync import Flow, Step, drive_in_thread
from langchain_memkit.backends.mongodb.bursts import clock, queue_of
from langchain_memkit.backends.mongodb.clients import BsonDict, Clients
from langchain_memkit.backends.mongodb.failures import driver_errors
from langchain_memkit.base import Now, TokenCounter, check_seconds, redact
from langchain_memkit.errors import ConfigurationError, HistoryReadError, HistoryWriteError, MessageTooLargeError
from langchain_memkit.stores.backend import StoreBackend
from langchain_memkit.stores.history_rows import Batch

T = TypeVar("T")
Operations: TypeAlias = DeleteMany | ReplaceOne[Any] | UpdateOne

CODEC: CodecOptions[BsonDict] = CodecOptions(
    tz_aware=True,
    tzinfo=UTC,
    unicode_decode_error_handler="replace",  # one damaged string must not hide a session
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
TRANSIENT_CODES = {6, 7, 50, 64, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}
TOO_LARGE_CODES = {10334, 17280, 17419, 17420}
NOT_ALLOWED_CODES = (13, 8000)
DUPLICATE_KEY = 11000
NO_SUCH_HINT = 2  # the server's error for a missing index
LEAST = 0.05  # seconds before a deadline in which no new try begins, because the driver would overrun it
BATCH = 500  # documents in one command
MAX_AUTO_INDEX = 100_000  # documents of a collection that is indexed without being asked
LISTING = "memkit_by_time"  # the index that is only for lists and searches
CHANGES = "memkit_changes"  # and the one that is only for memories
NOT_IN_NAMES = (frozenset('/\\. "$\x00'), frozenset("$\x00"))  # of databases, of collections


def pause(seconds: float) -> Step[None]:
    """Return a wait, as a step of a flow."""
    return Step(partial(time.sleep, seconds), partial(asyncio.sleep, seconds))


def jitter(longest: float) -> float:
    """Return from a fifth of `longest` seconds up to it, so that writers spread out."""
    return random.uniform(longest / 5, longest)  # noqa: S311  # no secret


def next_try(deadline: float, longest: float = 0.25) -> Step[None] | None:
    """Return the pause before the next try, at most half of the time that is left; None if the deadline is too near."""
    left = deadline - clock()
    return pause(min(jitter(longest), left / 2)) if left > LEAST else None


def left_until(deadline: float) -> float:
    """Return the seconds until a deadline by `clock()`, at least 0.1."""
    return max(deadline - clock(), 0.1)


@dataclass(frozen=True, kw_only=True)
class CollectionRef:
    """The collection of a store, with the time limits of commands on it in seconds."""

    names: tuple[str, str]  # database, collection
    timeout: float  # for reads and the first use
    save_timeout: float  # for which a write is retried on a server that was reached before
    create_index: bool = True

    def __post_init__(self) -> None:
        names: tuple[object, object] = self.names
        for name, argument, refused in zip(names, ("database_name", "collection_name"), NOT_IN_NAMES, strict=True):
            if not isinstance(name, str) or not name or not refused.isdisjoint(name):
                # Never quote the value: a connection string passed as the wrong argument holds a password.
                msg = f"{argument} must be a str without any of {' '.join(sorted(map(repr, refused)))}"
                raise ConfigurationError(msg)
        check_seconds(self.timeout, "timeout")
        check_seconds(self.save_timeout, "save_timeout")


@dataclass(frozen=True, kw_only=True)
class Settings(CollectionRef):
    """The arguments of `MongoDBChatMessageHistory` that concern its collection; that class documents them."""

    legacy_keys: tuple[str, str]  # session_id_key, history_key
    user_id_key: str  # of layout "qa"
    index_kwargs: Mapping[str, Any] = field(compare=False)
    ttl: float | None
    token_counter: TokenCounter | None = field(compare=False)
    now: Now = field(compare=False)


_reached: set[object] = set()
_indexed: set[object] = set()
_clocks: dict[object, float] = {}  # of a server: its Unix time in seconds, minus our monotonic clock


class DuplicateKey(Exception):  # noqa: N818  # never leaves the flows
    """A document with this id exists already."""


S = TypeVar("S", bound=CollectionRef)


class Runner(StoreBackend, Generic[S]):
    """Commands on a collection, for flows, with the sync or the async client."""

    setup_call: ClassVar = "MongoDBChatMessageHistory.factory(...).setup()"
    """The call that builds the indexes, for errors."""
    upserts_may_meet: ClassVar[bool] = False
    """Whether a duplicate key may come from two upserts of the same id at once; the second attempt then succeeds."""

    def __init__(self, clients: Clients, settings: S) -> None:
        self.clients = clients
        self.settings = settings

    def __str__(self) -> str:
        """Name hosts and collection only."""
        return f"{self.clients.hosts}, {'.'.join(self.settings.names)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    @property
    def place(self) -> object:
        """A key that is equal for stores on the same collection, however the server is spelled; it asks the server."""

        async def server() -> object:
            said = await self.read(lambda c: c.database.client.admin.command("hello"))
            process = (said.get("topologyVersion") or {}).get("processId")
            # Several routers lead to one sharded cluster: by their process ids one collection would look like two.
            return self.clients.servers if process is None or said.get("msg") == "isdbgrid" else process

        return (self.run(server()), self.settings.names)

    @property
    def patience(self) -> float:
        """Seconds for which a write is tried: `save_timeout` on a server that has answered before, else `timeout`."""
        return self.settings.save_timeout if self.clients.key in _reached else self.settings.timeout

    def collection(self, client: MongoClient[BsonDict]) -> Collection[BsonDict]:
        """Return the collection with the guarantees pinned, whatever the connection string says.

        Writes wait for a majority and the journal; reads go to the primary and see what a majority has.
        """
        database, name = self.settings.names
        certain = WriteConcern(w="majority", j=True, wtimeout=int(self.settings.save_timeout * 1000))
        return client[database].get_collection(name, CODEC, ReadPreference.PRIMARY, certain, ReadConcern("majority"))

    # -- running

    async def command(self, function: Callable[[Collection[BsonDict]], T], seconds: float | None) -> T:
        """Run one command, `function(collection)`, within so many seconds; with the async client it is awaited.

        The seconds begin when the client has a place for it: a burst of calls waits (`CommandQueue`).
        """

        def send() -> T:
            client = self.clients.sync()
            with driver_errors(), queue_of(client).place(seconds) as left, pymongo.timeout(left):
                return function(self.collection(client))

        async def asend() -> T:
            client: Any = await self.clients.asynchronous()
            awaited: Any = function
            with driver_errors():
                async with queue_of(client).aplace(seconds) as left:
                    with pymongo.timeout(left):
                        result: T = await awaited(self.collection(client))
            return result

        result = await Step(send, asend)
        _reached.add(self.clients.key)
        return result

    async def arun(self, flow: Flow[T]) -> T:
        """Run a flow with the async client of the running loop."""
        if self.clients.async_runs_in_thread:
            return await drive_in_thread(flow, self.run)
        return await super().arun(flow)

    def close(self) -> None:
        """Release the shared client, which closes it if no other factory uses it."""
        self.clients.release()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        await self.clients.arelease()

    # -- reading

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Raise the driver's errors as `HistoryReadError`."""
        try:
            yield
        except OverflowError as error:
            raise HistoryReadError("a number has more than the 64 bits that MongoDB takes") from error
        except PyMongoError as error:
            msg = f"cannot read from {self.clients.hosts} within {self.settings.timeout:g} s: {text_of(error)}"
            raise HistoryReadError(msg) from error

    async def read(self, function: Callable[[Collection[BsonDict]], T], patience: float | None = None) -> T:
        """Run a read, again after transient errors, for so many seconds; None for `timeout`."""
        deadline = clock() + (patience or self.settings.timeout)
        with self.reading():
            while True:
                try:
                    return await self.command(function, left_until(deadline))
                except PyMongoError as error:
                    wait = next_try(deadline)
                    if not is_transient(error) or wait is None:
                        raise
                await wait

    async def server_now(self) -> datetime:
        """Return the server's time, whatever this machine's clock says; it is read once per process and server."""
        if self.clients.key not in _clocks:
            moment: datetime = (await self.read(lambda c: c.database.command("hello")))["localTime"]
            _clocks[self.clients.key] = moment.replace(tzinfo=UTC).timestamp() - time.monotonic()
        return datetime.fromtimestamp(_clocks[self.clients.key] + time.monotonic(), UTC)

    async def find(self, query: BsonDict, fields: object = None, **options: Any) -> list[BsonDict]:
        """Return the documents that match a filter; the options are those of the driver's `find`."""
        return await self.read(lambda c: c.find(query, fields, **options).to_list())

    async def by_index(
        self, query: BsonDict, keys: list[tuple[str, int]], fields: object, limit: int, patience: float | None = None
    ) -> list[BsonDict]:
        """Return documents in the order of an index, which is built if it is missing and the collection is not large.

        Raises:
            ConfigurationError: The index is missing, and is not built without being asked.
        """
        options: dict[str, Any] = {"sort": keys, "hint": keys, "limit": limit, "batch_size": limit}
        for built in (False, True):
            try:
                return await self.read(lambda c: c.find(query, fields, **options).to_list(), patience)
            except HistoryReadError as error:
                if getattr(error.__cause__, "code", None) != NO_SUCH_HINT:
                    raise
                if built:
                    models = [model.document for model in self.index_models()]
                    name = next(model["name"] for model in models if list(model["key"].items()) == keys)
                    lacks = f"collection {'.'.join(self.settings.names)} lacks the index {name}"
                    msg = f"{lacks}, for pages of sessions, searches and memories: run {self.setup_call} once"
                    raise ConfigurationError(msg) from error
            with self.reading():
                await self.ensure(again=True)
        raise AssertionError

    async def aggregate(self, pipeline: list[BsonDict]) -> list[BsonDict]:
        """Run an aggregation. Ours look at a whole user, so they get `save_timeout`; a dead server fails earlier."""
        await self.ping()
        return await self.rows(pipeline)

    async def rows(self, pipeline: list[BsonDict]) -> list[BsonDict]:
        """Run an aggregation on a server that has just answered."""
        options: dict[str, Any] = {"batchSize": BATCH, "allowDiskUse": True}
        return await self.read(lambda c: rows_of(c.aggregate(pipeline, **options)), self.settings.save_timeout)

    async def ping(self) -> None:
        """Ask the server for an answer, which a dead one fails to give soon, before a read that may take long."""
        await self.read(lambda c: c.database.command("ping"))

    async def committed(self, query: BsonDict, fields: list[str] | None, deadline: float) -> list[BsonDict] | None:
        """Return the matching documents once a majority has all that the primary has; None if the deadline passes."""

        def primary(collection: Collection[BsonDict]) -> list[BsonDict]:
            return collection.with_options(read_concern=ReadConcern("local")).find(query, ["_id"]).to_list()

        while True:
            timeout = min(left_until(deadline), self.settings.timeout)
            here = await self.command(primary, timeout)
            there = await self.command(lambda c: c.find(query, fields).to_list(), timeout) if here else []
            if {d["_id"] for d in here} == {d["_id"] for d in there}:
                return there
            if clock() > deadline:
                return None
            await pause(jitter(0.05))

    # -- writing

    @contextmanager
    def writing(self, batch: Batch | None = None) -> Iterator[None]:
        """Raise the driver's errors as `HistoryWriteError` or `MessageTooLargeError`, with the batch if one is given.

        `maybe_stored` is true unless it is certain that nothing was.
        """
        context = batch.error_context if batch else {}
        try:
            yield
        except OverflowError as error:
            msg = "a number has more than the 64 bits that MongoDB takes. Nothing was stored."
            raise HistoryWriteError(msg, **context) from error
        except InvalidDocument as error:
            if not isinstance(error, driver.DocumentTooLarge):
                raise HistoryWriteError(f"cannot be encoded: {error}. Nothing was stored.", **context) from error
            msg = f"a turn is larger than one MongoDB document may be (16 MB): {error}"
            raise MessageTooLargeError(msg, **context) from error
        except PyMongoError as error:
            if codes_of(error) & TOO_LARGE_CODES:
                msg = f"a turn is larger than one MongoDB document may be (16 MB): {text_of(error)}"
                raise MessageTooLargeError(msg, **context) from error
            unknown = is_transient(error) and not isinstance(error, ServerSelectionTimeoutError)
            state = "It may be stored" if unknown else "Nothing was stored"
            raise HistoryWriteError(self._failure(error, state), maybe_stored=unknown, **context) from error

    def _failure(self, error: PyMongoError, state: str) -> str:
        limit = f" within {self.patience:g} s" if is_transient(error) else ""
        return f"cannot write to {self.clients.hosts}{limit}: {text_of(error)}. {state}."

    async def sent(self, function: Callable[[Collection[BsonDict]], T], *, begun: bool = False) -> T:
        """Run an idempotent write command, retrying it until the deadline; `begun` if the same call has written before.

        Raises:
            DuplicateKey: A document with this id exists. With `upserts_may_meet` the command is retried instead.
            HistoryWriteError: The server refused, or the deadline has passed.
        """
        deadline = clock() + self.patience
        while True:
            try:
                return await self.command(function, left_until(deadline))
            except PyMongoError as error:
                taken = DUPLICATE_KEY in codes_of(error)
                if taken and not self.upserts_may_meet:
                    raise DuplicateKey from error
                again = taken or is_transient(error)
                # The error must tell whether anything may be stored: the bulk write was done in part, or its outcome is
                # unknown. Only a failed server selection proves that nothing was sent.
                counts = details_of(error)
                begun = begun or counts.get("nUpserted", 0) + counts.get("nMatched", 0) > 0
                begun = begun or (again and not isinstance(error, ServerSelectionTimeoutError))
                if not again or clock() > deadline:
                    state = "Some of it may be done: call again to finish it" if begun else "Nothing was changed"
                    raise HistoryWriteError(self._failure(error, state), maybe_stored=begun) from error
            await pause(jitter(0.25))

    async def bulk_write(self, operations: Sequence[Operations], *, begun: bool = False) -> BulkWriteResult:
        """Send an ordered bulk write, as `sent` does."""
        return await self.sent(lambda c: c.bulk_write(operations), begun=begun)

    async def delete_many(self, query: BsonDict, *, begun: bool = False) -> int:
        """Delete the documents that match a filter, as `sent` does; return how many that were."""
        return (await self.sent(lambda c: c.delete_many(query), begun=begun)).deleted_count

    def index_models(self) -> list[IndexModel]:
        """Define the indexes that the collection needs."""
        return []

    async def setup(self) -> None:
        """Build missing indexes, however large the collection is."""
        with self.reading():
            await self.ensure(forced=True)

    async def ensure(self, *, forced: bool = False, again: bool = False) -> None:
        """Ensure that the collection has its indexes, asking the server once per process.

        Args:
            forced: Build missing indexes, however large the collection is.
            again: Ask the server even if this process has asked before, as when a session begins.
        """
        settings = self.settings
        key = (self.clients.key, type(self), settings)
        if key in _indexed and not (forced or again):
            return
        collection = f"collection {'.'.join(settings.names)}"
        existing = await self.command(lambda c: c.index_information(), settings.timeout)
        missing = missing_indexes(self.index_models(), existing)
        names = [model.document["name"] for model in missing]
        build = bool(missing) and (settings.create_index or forced)
        if build and not forced:
            count = await self.command(lambda c: c.estimated_document_count(), settings.timeout)
            small = count <= MAX_AUTO_INDEX
            missing = [model for model in missing if small or model.document["name"] not in (LISTING, CHANGES)]
            if missing and count > MAX_AUTO_INDEX:
                why = f"holds {count:,} documents and lacks the indexes {names}"
                msg = f"{collection} {why}. Building them takes a while: run {self.setup_call} once."
                raise ConfigurationError(msg)
        if build and missing:
            try:
                await self.command(lambda c: c.create_indexes(missing), None)
            except driver.OperationFailure as error:
                if error.code in NOT_ALLOWED_CODES or is_transient(error):
                    raise
                raise ConfigurationError(
                    f"{self.clients.hosts} refused an index of {collection}: {redact(str(error))}. memkit needs "
                    "partial unique indexes (MongoDB 5.0 or newer, Atlas, or a compatible server that has them)."
                ) from error
        elif any(model.document.get("unique") for model in missing):
            why = f"lacks unique indexes, of {names}, without which turns could be lost or doubled"
            raise ConfigurationError(f"{collection} {why}, and create_index=False. Build them with {self.setup_call}.")
        _indexed.add(key)


def missing_indexes(models: list[IndexModel], existing: Mapping[str, Any]) -> list[IndexModel]:
    """Return those of the indexes that a collection lacks, given what the driver's `index_information` says of it."""
    # Compare keys and uniqueness, not names, because users rename indexes and build them by hand.
    present = [(list(map(tuple, i["key"])), bool(i.get("unique"))) for i in existing.values()]
    wanted = [(model, model.document) for model in models]
    return [m for m, d in wanted if (list(d["key"].items()), bool(d.get("unique"))) not in present]


def rows_of(cursor: Any) -> Any:
    """Read the cursor of an aggregation to its end; the async client's is awaited first."""

    async def later() -> list[BsonDict]:
        return await (await cursor).to_list()  # type: ignore[no-any-return]  # of either client

    return later() if inspect.isawaitable(cursor) else cursor.to_list()


def text_of(error: PyMongoError) -> str:
    """Describe a driver's error, in at most some 600 characters, without credentials or stored documents."""
    if isinstance(error, driver.BulkWriteError):
        failures = failures_of(error)[:3]
        return "; ".join(f"{f.get('errmsg', 'failed')} (code {f.get('code')})" for f in failures)[:500]
    # Cut off the settings and the topology description that the driver appends.
    said = re.sub(r" \(configured timeouts: [^)]*\)|, full error: \{.*", "", redact(str(error)), flags=re.DOTALL)
    said = " ".join(re.split(r",? (?:Timeout: -?[\d.]+s, )?Topology Description: ", said)[0].split()).rstrip(".")[:500]
    if isinstance(error, ServerSelectionTimeoutError):
        said += " (is the server running, and may this machine reach it? `timeout=` sets how long to wait)"
    return said


def details_of(error: PyMongoError) -> Mapping[str, Any]:
    """Return the server's reply that an error carries; empty for other errors."""
    return getattr(error, "details", None) or {}


def failures_of(error: PyMongoError) -> list[Mapping[str, Any]]:
    """Return what failed of a bulk write: single writes, then their confirmation."""
    return [failure for name in ("writeErrors", "writeConcernErrors") for failure in details_of(error).get(name) or ()]


def codes_of(error: PyMongoError) -> set[int]:
    """Return the server's error codes, including those of single writes in a bulk write."""
    codes = [getattr(error, "code", None), *(failure.get("code") for failure in failures_of(error))]
    return {code for code in codes if isinstance(code, int)}


def is_transient(error: PyMongoError) -> bool:
    """Return whether a retry may succeed, as after a lost connection, election, time-out or failed write concern."""
    # Another factory closed the shared client in the same moment; the next try gets a new client.
    if isinstance(error, driver.InvalidOperation):
        return "after close" in str(error)
    is_lost = isinstance(error, driver.ConnectionFailure) or error.timeout
    is_undone = error.has_error_label("RetryableWriteError") or details_of(error).get("writeConcernErrors")
    return bool(is_lost or is_undone or codes_of(error) & TRANSIENT_CODES)


def batches(items: Sequence[T], most: int = BATCH) -> Iterator[list[T]]:
    """Split a list into parts of at most so many items; by default as many as one command takes."""
    return (list(items[i : i + most]) for i in range(0, len(items), most))
