"""Commands to a MongoDB server: one body for sync and async, repeated safely, read where they are safe."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, Generic, TypeVar

import pymongo
from bson import CodecOptions, DatetimeConversion
from bson.errors import InvalidDocument
from pymongo.errors import (
    BulkWriteError,
    ConnectionFailure,
    DocumentTooLarge,
    InvalidOperation,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from langchain_memkit._sync import Flow, Operation, adrive, drive, drive_in_thread
from langchain_memkit.backends.mongodb.clients import Clients, redact
from langchain_memkit.backends.mongodb.failures import driver_errors
from langchain_memkit.base import Now, TokenCounter, check_seconds
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryReadError,
    HistoryWriteError,
    MemkitError,
    MessageTooLargeError,
)
from langchain_memkit.stores.history_rows import Batch

T = TypeVar("T")

CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True,
    tzinfo=UTC,
    unicode_decode_error_handler="replace",  # one damaged string must not hide a session
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
TRANSIENT_CODES = {6, 7, 50, 64, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}
DUPLICATE_KEY = 11000
LEAST = 0.05  # seconds before a deadline in which no new try begins, because the driver would overrun it
NOT_IN_NAMES = (frozenset('/\\. "$\x00'), frozenset("$\x00"))  # of databases, of collections
TOO_LARGE_CODES = {10334, 17280, 17419, 17420}


@dataclass(slots=True)
class Command(Operation[Any]):
    """One command: `function(collection)` for a sync or an async collection, with its time limit in seconds."""

    function: Callable[[Any], Any]
    timeout: float | None


def jitter(longest: float) -> float:
    """Draw the seconds to wait before the next try, from a fifth of `longest` up to it, so that writers spread out."""
    return random.uniform(longest / 5, longest)  # noqa: S311  # no secret


@dataclass(slots=True)
class Pause(Operation[None]):
    """A wait before the next try, in seconds."""

    seconds: float


def next_try(deadline: float, longest: float = 0.25) -> Pause | None:
    """Return the pause before the next try, at most half of the time that is left; None if the deadline is too near.

    Args:
        deadline: By `time.monotonic()`, in seconds.
        longest: Upper limit of the pause in seconds.
    """
    left = deadline - time.monotonic()
    return Pause(min(jitter(longest), left / 2)) if left > LEAST else None


@dataclass(frozen=True, kw_only=True)
class CollectionRef:
    """The collection of a store, and the time limits of commands on it.

    Attributes:
        names: Database and collection.
        timeout: Seconds within which reads and the first use fail.
        save_timeout: Seconds for which a write is retried on a server that was reached before.
    """

    names: tuple[str, str]  # database, collection
    timeout: float
    save_timeout: float

    def __post_init__(self) -> None:
        given: tuple[Any, Any] = self.names
        for name, argument, refused in zip(given, ("database_name", "collection_name"), NOT_IN_NAMES, strict=True):
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
    create_index: bool
    index_kwargs: Mapping[str, Any]
    ttl: float | None
    token_counter: TokenCounter | None
    now: Now


_reached: set[Any] = set()
_clocks: dict[Any, float] = {}  # per server: its Unix time in seconds, minus our monotonic clock


class DuplicateKey(Exception):  # noqa: N818  # never leaves the flows
    """A document with this id exists already."""


S = TypeVar("S", bound=CollectionRef)


class Runner(Generic[S]):
    """Run flows of `Command` and `Pause` on a collection, with the sync or the async client.

    Args:
        clients: The driver clients.
        settings: The collection's names and time limits.
    """

    upserts_may_meet: ClassVar[bool] = False
    """Whether a duplicate key may come from two upserts of the same id at once; the second attempt then succeeds."""

    def __init__(self, clients: Clients, settings: S) -> None:
        self.clients = clients
        self.settings = settings

    def __repr__(self) -> str:
        """Name hosts and collection only."""
        return f"{type(self).__name__}({self.clients.hosts}, {'.'.join(self.settings.names)})"

    @property
    def place(self) -> Any:
        """A key that is equal for stores on the same collection, however the server is spelled; it asks the server."""
        return (self.run(self.reading(self._server())), self.settings.names)

    @property
    def reached(self) -> bool:
        """Whether the server has answered this process before; saves are then retried for longer."""
        return self.clients.key in _reached

    @property
    def patience(self) -> float:
        """Seconds for which a write is tried: `save_timeout` on a server that was reached before, else `timeout`."""
        return self.settings.save_timeout if self.reached else self.settings.timeout

    def collection(self, client: Any) -> Any:
        """Return the collection with the guarantees pinned, whatever the connection string says.

        Writes wait for a majority and the journal; reads go to the primary and see what a majority has.
        """
        database, name = self.settings.names
        return client[database].get_collection(
            name,
            codec_options=CODEC,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern(w="majority", j=True, wtimeout=int(self.settings.save_timeout * 1000)),
        )

    def run(self, flow: Flow[T]) -> T:
        """Run a flow with the sync client."""

        def perform(operation: Command | Pause) -> Any:
            if isinstance(operation, Pause):
                time.sleep(operation.seconds)
                return None
            with driver_errors(), pymongo.timeout(operation.timeout):
                result = operation.function(self.collection(self.clients.sync()))
            _reached.add(self.clients.key)
            return result

        return drive(flow, perform)

    async def arun(self, flow: Flow[T]) -> T:
        """Run a flow with the async client of the running loop."""
        if self.clients.async_runs_in_thread:
            return await drive_in_thread(flow, self.run)

        async def perform(operation: Command | Pause) -> Any:
            if isinstance(operation, Pause):
                return await asyncio.sleep(operation.seconds)
            collection = self.collection(await self.clients.asynchronous())
            with driver_errors(), pymongo.timeout(operation.timeout):
                result = await operation.function(collection)
            _reached.add(self.clients.key)
            return result

        return await adrive(flow, perform)

    def close(self) -> None:
        """Release the shared client, which closes it if no other factory uses it."""
        self.clients.release()

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        await self.clients.arelease()

    async def retried(self, function: Callable[[Any], Any], patience: float | None = None) -> Any:
        """Run an idempotent command, and run it again after transient errors.

        Args:
            function: The command, given the collection.
            patience: Seconds for all tries together; None for those of a write.

        Returns:
            The command's result.
        """

        async def once(seconds: float) -> Any:
            return await Command(function, seconds)

        return await self._again(once, patience or self.patience)

    async def aggregate(self, pipeline: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Run an aggregation. Ours look at a whole user, so they get `save_timeout`; a dead server fails earlier."""

        async def whole(seconds: float) -> list[dict[str, Any]]:
            deadline = time.monotonic() + seconds
            cursor = await Command(lambda c: c.aggregate(pipeline), seconds)
            return await Command(lambda c: cursor.to_list(), max(deadline - time.monotonic(), 0.1))  # type: ignore[no-any-return]  # untyped

        await self.there()
        return await self._again(whole, self.settings.save_timeout)

    async def there(self) -> None:
        """Ping the server, so that a dead one fails within `timeout` before a command that may take longer."""
        await self.retried(lambda c: c.database.command("ping"), self.settings.timeout)

    async def read_clock(self) -> None:
        """Read the server's clock, once per process and server."""
        if self.clients.key not in _clocks:
            said = await Command(lambda c: c.database.command("hello"), self.settings.timeout)
            moment = said["localTime"]
            _clocks[self.clients.key] = (
                moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            ).timestamp() - time.monotonic()

    def server_now(self) -> datetime:
        """Return the server's time, whatever this machine's clock says; `read_clock` must have run."""
        return datetime.fromtimestamp(_clocks[self.clients.key] + time.monotonic(), UTC)

    async def reading(self, flow: Flow[T]) -> T:
        """Run a flow, raising the driver's errors as `HistoryReadError`."""
        try:
            return await flow
        except PyMongoError as error:
            msg = f"cannot read from {self.clients.hosts} within {self.settings.timeout:g} s: {text_of(error)}"
            raise HistoryReadError(msg) from error

    async def writing(self, flow: Flow[T], batch: Batch | None = None) -> T:
        """Run a flow, raising the driver's errors as `HistoryWriteError` with the batch.

        Args:
            flow: The flow.
            batch: What it stores; None if the error should carry no messages.

        Raises:
            HistoryWriteError: A driver's error; `maybe_stored` unless it is certain that nothing was.
            MessageTooLargeError: A document is over 16 MB or cannot be encoded.
        """
        context = batch.error_context if batch else {}
        try:
            return await flow
        except MemkitError:
            raise
        except (DocumentTooLarge, InvalidDocument) as error:
            msg = f"a turn is larger than one MongoDB document may be (16 MB), or cannot be encoded: {error}"
            raise MessageTooLargeError(msg, **context) from error
        except PyMongoError as error:
            if codes_of(error) & TOO_LARGE_CODES:
                msg = "a turn is larger than one MongoDB document may be (16 MB)"
                raise MessageTooLargeError(msg, **context) from error
            unknown = is_transient(error) and not isinstance(error, ServerSelectionTimeoutError)
            state = "It may be stored" if unknown else "Nothing was stored"
            limit = f" within {self.patience:g} s" if is_transient(error) else ""
            msg = f"cannot write to {self.clients.hosts}{limit}: {text_of(error)}. {state}."
            raise HistoryWriteError(msg, maybe_stored=unknown, **context) from error

    async def _sent(self, function: Callable[[Any], Any], *, begun: bool = False) -> Any:
        """Run an idempotent write command, retrying it until the deadline.

        Args:
            function: The command, given the collection.
            begun: Earlier commands of the same call have written already.

        Returns:
            The command's result.

        Raises:
            DuplicateKey: A document with this id exists. With `upserts_may_meet` the command is retried instead.
            HistoryWriteError: The server refused, or the deadline has passed.
        """
        deadline = time.monotonic() + self.patience
        while True:
            try:
                return await Command(function, max(deadline - time.monotonic(), 0.1))
            except PyMongoError as error:
                taken = DUPLICATE_KEY in codes_of(error)
                if taken and not self.upserts_may_meet:
                    raise DuplicateKey from error
                again = taken or is_transient(error)
                # The error must tell whether anything may be stored: the bulk write was done in part, or its outcome is
                # unknown. Only a failed server selection proves that nothing was sent.
                counts = getattr(error, "details", None) or {}
                begun = begun or counts.get("nUpserted", 0) + counts.get("nMatched", 0) > 0
                begun = begun or (again and not isinstance(error, ServerSelectionTimeoutError))
                if not again or time.monotonic() > deadline:
                    state = "Some of it may be done: calling again is safe" if begun else "Nothing was changed"
                    limit = f" within {self.patience:g} s" if again else ""
                    msg = f"cannot write to {self.clients.hosts}{limit}: {text_of(error)}. {state}."
                    raise HistoryWriteError(msg, maybe_stored=begun) from error
            await Pause(jitter(0.25))

    async def _again(self, attempt: Callable[[float], Flow[T]], patience: float) -> T:
        """Repeat an attempt after transient errors until the deadline.

        Args:
            attempt: Makes one try, given the seconds that are left.
            patience: Seconds for all tries together.
        """
        deadline, unknown = time.monotonic() + patience, False
        while True:
            try:
                return await attempt(max(deadline - time.monotonic(), 0.1))
            except PyMongoError as error:
                unselected, pause = isinstance(error, ServerSelectionTimeoutError), next_try(deadline)
                if not is_transient(error) or pause is None:
                    # The last try sent nothing, but an earlier one may have been applied: the caller must not conclude
                    # from a failed server selection that nothing was done.
                    if unknown and unselected:
                        raise ConnectionFailure(str(error)) from error
                    raise
                unknown = unknown or not unselected
            await pause

    async def _server(self) -> Any:
        said = await self.retried(lambda c: c.database.client.admin.command("hello"))
        process = (said.get("topologyVersion") or {}).get("processId")
        # Several routers lead to one sharded cluster: by their process ids one collection would look like two.
        is_router = said.get("msg") == "isdbgrid"
        return self.clients.servers if process is None or is_router else process


def text_of(error: PyMongoError) -> str:
    """Describe a driver's error, in at most some 600 characters, without credentials or stored documents."""
    if isinstance(error, BulkWriteError):
        details = error.details or {}
        failures = [*(details.get("writeErrors") or ()), *(details.get("writeConcernErrors") or ())]
        return "; ".join(f"{f.get('errmsg', 'failed')} (code {f.get('code')})" for f in failures[:3])[:500]
    # Cut off the settings and the topology description that the driver appends.
    said = re.sub(r" \(configured timeouts: [^)]*\)|, full error: \{.*", "", redact(str(error)), flags=re.DOTALL)
    said = " ".join(re.split(r",? (?:Timeout: -?[\d.]+s, )?Topology Description: ", said)[0].split()).rstrip(".")[:500]
    if isinstance(error, ServerSelectionTimeoutError):
        said += " (is the server running, and may this machine reach it? `timeout=` sets how long to wait)"
    return said


def codes_of(error: PyMongoError) -> set[int]:
    """Return the server's error codes, including those of single writes in a bulk write."""
    details = getattr(error, "details", None) or {}
    nested = [*(details.get("writeErrors") or ()), *(details.get("writeConcernErrors") or ())]
    return {code for code in (getattr(error, "code", None), *(e.get("code") for e in nested)) if isinstance(code, int)}


def is_transient(error: PyMongoError) -> bool:
    """Return whether a retry may succeed, as after a lost connection, election, time-out or failed write concern."""
    if isinstance(error, ConnectionFailure) or error.timeout:
        return True
    # Another factory closed the shared client in the same moment; the next try gets a new client.
    if isinstance(error, InvalidOperation):
        return "after close" in str(error)
    details = getattr(error, "details", None) or {}
    if error.has_error_label("RetryableWriteError") or details.get("writeConcernErrors"):
        return True
    return bool(codes_of(error) & TRANSIENT_CODES)


async def read_committed(
    store: Runner[Settings], query: dict[str, Any], fields: dict[str, Any] | list[str] | None, deadline: float
) -> list[dict[str, Any]] | None:
    """Return the matching documents once a majority has all that the primary has; None if not before the deadline.

    Args:
        store: The collection.
        query: The filter.
        fields: The fields to return; None for all.
        deadline: By `time.monotonic()`, in seconds.
    """

    def primary_only(collection: Any) -> Any:
        return collection.with_options(read_concern=ReadConcern("local")).find(query, ["_id"]).to_list()

    while True:
        timeout = min(max(deadline - time.monotonic(), 0.1), store.settings.timeout)
        here = await Command(primary_only, timeout)
        there = await Command(lambda c: c.find(query, fields).to_list(), timeout) if here else []
        if {d["_id"] for d in here} == {d["_id"] for d in there}:
            return there
        if time.monotonic() > deadline:
            return None
        await Pause(jitter(0.05))


async def find_committed(
    store: Runner[Settings],
    query: dict[str, Any],
    fields: dict[str, Any] | list[str],
    batch: Batch,
    deadline: float,
) -> list[dict[str, Any]]:
    """Return the documents of a batch that are stored already, retrying after transient errors until the deadline.

    Args:
        store: The collection.
        query: The filter that finds the batch's documents.
        fields: The fields to return.
        batch: The batch, for errors.
        deadline: By `time.monotonic()`, in seconds.

    Raises:
        HistoryWriteError: Some are stored, but no majority has confirmed them in time.
    """
    while True:
        try:
            found = await read_committed(store, query, fields, deadline)
        except PyMongoError as error:
            pause = next_try(deadline)
            if not is_transient(error) or pause is None:
                raise
        else:
            if found is None:
                raise unknown_outcome(store, "no majority has confirmed it", batch)
            return found
        await pause


def unknown_outcome(store: Runner[Settings], reason: str, batch: Batch) -> HistoryWriteError:
    """Build the error for an unknown outcome: the batch may be stored or not."""
    msg = f"cannot write to {store.clients.hosts}: {reason}. It may be stored: retry with the same turn_id."
    return HistoryWriteError(msg, maybe_stored=True, **batch.error_context)


BATCH = 500  # documents in one command


def batches(items: Sequence[Any]) -> Iterator[list[Any]]:
    """Split a list into parts of at most `BATCH` items, as many as one command takes."""
    return (list(items[i : i + BATCH]) for i in range(0, len(items), BATCH))
