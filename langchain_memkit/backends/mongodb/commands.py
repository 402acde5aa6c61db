"""Running commands on a collection: guarantees pinned, time limits kept, errors told apart."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

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
from langchain_memkit.backends._history.rows import Batch
from langchain_memkit.backends.mongodb.clients import Clients, redact
from langchain_memkit.backends.mongodb.failures import driver_errors
from langchain_memkit.base import Now, TokenCounter, seconds_given
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryReadError,
    HistoryWriteError,
    MemkitError,
    MessageTooLargeError,
)

T = TypeVar("T")

CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    tz_aware=True,
    tzinfo=UTC,
    unicode_decode_error_handler="replace",  # one damaged string must not hide a session
    datetime_conversion=DatetimeConversion.DATETIME_AUTO,
)
TRANSIENT_CODES = {6, 7, 50, 64, 89, 91, 134, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436}
DUPLICATE_KEY = 11000
LEAST = 0.05  # seconds before a deadline in which no new try begins: the driver would carry it beyond
NOT_IN_NAMES = (frozenset('/\\. "$\x00'), frozenset("$\x00"))  # of databases, of collections
TOO_LARGE_CODES = {10334, 17280, 17419, 17420}


@dataclass(slots=True)
class Call(Operation[Any]):
    """One command: `function(collection)` for a sync or an async collection, with its time limit in seconds."""

    function: Callable[[Any], Any]
    timeout: float | None


def jitter(longest: float) -> float:
    """Seconds to wait before the next try, random so that writers do not meet again."""
    return random.uniform(longest / 5, longest)  # noqa: S311  # no secret


@dataclass(slots=True)
class Pause(Operation[None]):
    """Wait before the next try."""

    seconds: float


def next_try(deadline: float, longest: float = 0.25) -> Pause | None:
    """The pause before the next try, no longer than half of what is left; None if too little is left for one."""
    left = deadline - time.monotonic()
    return Pause(min(jitter(longest), left / 2)) if left > LEAST else None


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which collection, and the time limits of commands on it, in seconds."""

    names: tuple[str, str]  # database, collection
    timeout: float
    save_timeout: float

    def __post_init__(self) -> None:
        given: tuple[Any, Any] = self.names
        for name, argument, refused in zip(given, ("database_name", "collection_name"), NOT_IN_NAMES, strict=True):
            if not isinstance(name, str) or not name or not refused.isdisjoint(name):
                # not the value: a connection string in the wrong place has a password
                msg = f"{argument} must be a str without any of {' '.join(sorted(map(repr, refused)))}"
                raise ConfigurationError(msg)
        seconds_given(self.timeout, "timeout")
        seconds_given(self.save_timeout, "save_timeout")


@dataclass(frozen=True, kw_only=True)
class Settings(Place):
    """The arguments of `MongoDBChatMessageHistory` that concern its collection; see there."""

    legacy_keys: tuple[str, str]  # session_id_key, history_key
    user_id_key: str  # of layout "qa"
    create_index: bool
    index_kwargs: Mapping[str, Any]
    ttl: float | None
    token_counter: TokenCounter | None
    now: Now


_reached: set[Any] = set()
_clocks: dict[Any, float] = {}  # of servers: seconds since 1970, less those of our monotonic clock


class Runner:
    """Runs flows of `Call` and `Pause` on a collection, with the sync or the async client."""

    def __init__(self, clients: Clients, settings: Place) -> None:
        self.clients = clients
        self.settings = settings

    def __repr__(self) -> str:
        """Names hosts and collection only."""
        return f"{type(self).__name__}({self.clients.hosts}, {'.'.join(self.settings.names)})"

    @property
    def place(self) -> Any:
        """Equal for stores on the same collection."""
        return (self.clients.key, self.settings.names)

    @property
    def reached(self) -> bool:
        """Whether the server answered this process once: saves are then retried longer."""
        return self.clients.key in _reached

    @property
    def patience(self) -> float:
        """Seconds for which a write is tried: long on a server that was reached before."""
        return self.settings.save_timeout if self.reached else self.settings.timeout

    def collection(self, client: Any) -> Any:
        """The collection with the guarantees pinned, whatever the connection string says."""
        database, name = self.settings.names
        return client[database].get_collection(
            name,
            codec_options=CODEC,
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("majority"),
            write_concern=WriteConcern(w="majority", j=True, wtimeout=int(self.settings.save_timeout * 1000)),
        )

    def run(self, flow: Flow[T]) -> T:
        """Runs a flow with the sync client."""

        def perform(operation: Call | Pause) -> Any:
            if isinstance(operation, Pause):
                time.sleep(operation.seconds)
                return None
            with driver_errors(), pymongo.timeout(operation.timeout):
                result = operation.function(self.collection(self.clients.sync()))
            _reached.add(self.clients.key)
            return result

        return drive(flow, perform)

    async def arun(self, flow: Flow[T]) -> T:
        """Runs a flow with the async client of the running loop."""
        if self.clients.async_runs_in_thread:
            return await drive_in_thread(flow, self.run)

        async def perform(operation: Call | Pause) -> Any:
            if isinstance(operation, Pause):
                return await asyncio.sleep(operation.seconds)
            collection = self.collection(await self.clients.asynchronous())
            with driver_errors(), pymongo.timeout(operation.timeout):
                result = await operation.function(collection)
            _reached.add(self.clients.key)
            return result

        return await adrive(flow, perform)

    def close(self) -> None:
        """Lets go of the shared client."""
        self.clients.release()

    async def aclose(self) -> None:
        """Async twin of `close`."""
        await self.clients.arelease()

    async def retried(self, function: Callable[[Any], Any], patience: float | None = None) -> Any:
        """A repeatable command, sent again for so many seconds; None: as long as a write is."""

        async def once(seconds: float) -> Any:
            return await Call(function, seconds)

        return await self._again(once, patience or self.patience)

    async def _again(self, attempt: Callable[[float], Flow[T]], patience: float) -> T:
        """Makes an attempt, told how many seconds are left, until one does not break off."""
        deadline, unknown = time.monotonic() + patience, False
        while True:
            try:
                return await attempt(max(deadline - time.monotonic(), 0.1))
            except PyMongoError as error:
                unselected, pause = isinstance(error, ServerSelectionTimeoutError), next_try(deadline)
                if not is_transient(error) or pause is None:
                    if unknown and unselected:  # this attempt did nothing, but one before it may have
                        raise ConnectionFailure(str(error)) from error
                    raise
                unknown = unknown or not unselected
            await pause

    async def aggregate(self, pipeline: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The result of an aggregation; these look at a whole user, so they get the long time limit."""

        async def whole(seconds: float) -> list[dict[str, Any]]:
            deadline = time.monotonic() + seconds
            cursor = await Call(lambda c: c.aggregate(pipeline), seconds)
            return await Call(lambda c: cursor.to_list(), max(deadline - time.monotonic(), 0.1))  # type: ignore[no-any-return]  # untyped

        await self.there()
        return await self._again(whole, self.settings.save_timeout)

    async def there(self) -> None:
        """Tells within `timeout` that the server is down, before a command that may take longer."""
        await self.retried(lambda c: c.database.command("ping"), self.settings.timeout)

    async def reading(self, flow: Flow[T]) -> T:
        """The flow with a driver's errors raised as `HistoryReadError`."""
        try:
            return await flow
        except PyMongoError as error:
            msg = f"cannot read from {self.clients.hosts} within {self.settings.timeout:g} s: {text_of(error)}"
            raise HistoryReadError(msg) from error

    async def writing(self, flow: Flow[T], batch: Batch | None = None) -> T:
        """The flow with a driver's errors raised as `HistoryWriteError`, which carries the batch."""
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


class Commands(Runner):
    """The same for stores of chat histories."""

    settings: Settings

    @property
    def place(self) -> Any:
        """Equal for stores on the same collection, however the server is spelled: asks the server who it is."""
        return (self.run(self.reading(self._server())), self.settings.names)

    async def read_clock(self) -> None:
        """Asks the server for its time, once in a process."""
        if self.clients.key not in _clocks:
            said = await Call(lambda c: c.database.command("hello"), self.settings.timeout)
            moment = said["localTime"]
            _clocks[self.clients.key] = (
                moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            ).timestamp() - time.monotonic()

    def server_now(self) -> datetime:
        """The server's time, whatever the clock of this machine says."""
        return datetime.fromtimestamp(_clocks[self.clients.key] + time.monotonic(), UTC)

    async def _server(self) -> Any:
        said = await self.retried(lambda c: c.database.client.admin.command("hello"))
        process = (said.get("topologyVersion") or {}).get("processId")
        is_router = said.get("msg") == "isdbgrid"  # several of them lead to one cluster
        return self.clients.servers if process is None or is_router else process


def text_of(error: PyMongoError) -> str:
    """A driver's error in words: no credentials, and no document, which a bulk error carries whole."""
    if isinstance(error, BulkWriteError):
        details = error.details or {}
        failures = [*(details.get("writeErrors") or ()), *(details.get("writeConcernErrors") or ())]
        return "; ".join(f"{f.get('errmsg', 'failed')} (code {f.get('code')})" for f in failures[:3])[:500]
    # the driver goes on with its settings and everything it knows of every server
    said = re.sub(r" \(configured timeouts: [^)]*\)|, full error: \{.*", "", redact(str(error)), flags=re.DOTALL)
    said = " ".join(re.split(r",? (?:Timeout: -?[\d.]+s, )?Topology Description: ", said)[0].split()).rstrip(".")[:500]
    if isinstance(error, ServerSelectionTimeoutError):
        said += " (is the server running, and may this machine reach it? `timeout=` sets how long to wait)"
    return said


def codes_of(error: PyMongoError) -> set[int]:
    """The server's error codes, those of single writes included."""
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
    return bool(codes_of(error) & TRANSIENT_CODES)
