"""Share driver clients: one sync client per process and connection string, one async client per event loop as well."""

from __future__ import annotations

import asyncio
import atexit
import os
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeAlias, TypeVar

import pymongo
from pymongo import AsyncMongoClient, MongoClient
from pymongo.driver_info import DriverInfo
from pymongo.errors import ConfigurationError as DriverConfigurationError

from langchain_memkit._locks import ForkSafeLock
from langchain_memkit.base import check_address, hosts_of, redact
from langchain_memkit.errors import ConfigurationError

BsonDict: TypeAlias = dict[str, Any]
"""A document, a filter, an update or a stage of a pipeline, as the driver takes and gives them."""

LoopKey: TypeAlias = tuple[int, asyncio.AbstractEventLoop, str]
"""Process, event loop and connection string."""

SCHEMES = ("mongodb://", "mongodb+srv://")
GOODBYE_SECONDS = 1.0  # limit for closing a client, which tells the server; that may be down


def scope_filter(user_id: str, session_id: str | None = None) -> BsonDict:
    """Build a filter on a user, and on a session if given: always by equality, so that an id is never an operator."""
    user: BsonDict = {"user_id": {"$eq": user_id}}
    return user if session_id is None else {**user, "session_id": {"$eq": session_id}}


# The process id in the keys gives a forked child clients of its own: the driver's threads and sockets do not survive a
# fork, and those of the parent must not be closed in the child.
_lock = ForkSafeLock()
_sync: dict[tuple[int, str], MongoClient[BsonDict]] = {}
_async: dict[LoopKey, tuple[AsyncMongoClient[BsonDict], AsyncGenerator[None, None]]] = {}
_users: dict[tuple[int, str], weakref.WeakSet[Clients]] = {}  # weak: a dropped factory keeps no client open
C = TypeVar("C")


class Clients:
    """Source of a store's clients: the caller's own, or shared ones for a connection string.

    A shared client is looked up at every use, so it is a new one after a fork and in another event loop. A caller's own
    client is never closed.
    """

    def __init__(
        self, uri: str | None, client: MongoClient[BsonDict] | None, async_client: AsyncMongoClient[BsonDict] | None
    ) -> None:
        given: object = uri
        if given is not None and given != "" and not (isinstance(given, str) and given.startswith(SCHEMES)):
            # The driver would take a file name for a host name. Never quote the value: it may hold a password.
            what = "this text" if isinstance(given, str) else f"a {type(given).__name__}"
            msg = (
                f"connection_string must begin with {' or '.join(SCHEMES)}, as in mongodb://localhost:27017, which "
                f"{what} does not. For a file use SQLiteChatMessageHistory or SQLiteKeyValueStore; "
                "a client of your own goes into client= or async_client= (of a collection: collection.database.client)"
            )
            raise ConfigurationError(msg)
        if bool(uri) == (client is not None or async_client is not None):
            both = "Must provide connection_string or client, not both"
            raise ConfigurationError(both if uri else "Either connection_string or client must be provided")
        check_address(uri or "", "connection_string")
        self._uri = uri or ""
        self._client = client
        self._async_client = async_client

    def __getstate__(self) -> dict[str, object]:
        """Return the state for pickling, which is the connection string; given clients cannot be pickled."""
        if not self._uri:
            msg = "a client of yours cannot be pickled: give a connection_string instead of client= or async_client="
            raise TypeError(msg)
        return vars(self)

    def __deepcopy__(self, memo: object) -> Clients:
        """Return itself: clients are shared."""
        return self

    @property
    def hosts(self) -> str:
        """The host names, for messages; no credentials."""
        return hosts_of(self._uri) if self._uri else "the given client"

    @property
    def encrypts(self) -> bool:
        """Whether a given client encrypts fields of documents by itself."""
        given = (self._client, self._async_client)
        return any(client is not None and client.options.auto_encryption_opts is not None for client in given)

    @property
    def servers(self) -> object:
        """A key that is equal for connection strings with the same hosts, in any order and with any options."""
        return frozenset(hosts_of(self._uri).lower().split(",")) if self._uri else self.key

    @property
    def key(self) -> str | int:
        """A key that is equal for stores with the same connection string or given client."""
        return self._uri or id(self._client if self._client is not None else self._async_client)

    @property
    def async_runs_in_thread(self) -> bool:
        """Whether async methods use the sync client in a thread: only that was given, or the loop is shutting down."""
        if self._async_client is not None:
            return False
        # The driver's async client fails on a loop that is shutting down, but a stream that is closed in that moment
        # must still store what it had.
        return not self._uri or getattr(asyncio.get_running_loop(), "_asyncgens_shutdown_called", False)

    def sync(self) -> MongoClient[BsonDict]:
        """Return the sync client for this process."""
        if self._client is not None:
            return self._client
        if not self._uri:
            raise ConfigurationError("only an async_client was given: use the async methods, or pass client= as well")
        with _lock:
            client = _sync.get(self._process_key)
            if client is None or _is_closed(client):
                client = _sync[self._process_key] = self._new(MongoClient)
        return client

    @property
    def _process_key(self) -> tuple[int, str]:
        return os.getpid(), self._uri

    @property
    def _loop_key(self) -> LoopKey:
        return os.getpid(), asyncio.get_running_loop(), self._uri

    async def asynchronous(self) -> AsyncMongoClient[BsonDict]:
        """Return the async client for this process and the running event loop."""
        if self._async_client is not None:
            return self._async_client
        client, _ = _async.get(self._loop_key, (None, None))
        if client is None or _is_closed(client):
            for stale in [key for key in list(_async) if key[1].is_closed()]:
                _async.pop(stale, None)
            client = self._new(AsyncMongoClient)
            keeper = _close_with_loop(client, self._loop_key)
            _async[self._loop_key] = (client, keeper)
            await anext(keeper)  # start the generator, so that the loop ends it at shutdown
        return client

    def _new(self, cls: Callable[..., C]) -> C:
        try:
            # `connect=False`: no threads and no DNS look-ups before the first operation.
            return cls(self._uri, connect=False, driver=DriverInfo("langchain-memkit"))
        except (DriverConfigurationError, ValueError, TypeError) as error:
            raise ConfigurationError(f"connection_string is not valid: {redact(str(error))}") from None

    def hold(self) -> None:
        """Register this object as a user of the shared client in this process."""
        with _lock:
            _users.setdefault(self._process_key, weakref.WeakSet()).add(self)

    def release(self) -> None:
        """Unregister this object, and close the shared sync client if it was the last user."""
        with _lock:
            holders = _users.setdefault(self._process_key, weakref.WeakSet())
            holders.discard(self)
            client = None if holders else _sync.pop(self._process_key, None)
        if client is not None:
            with pymongo.timeout(GOODBYE_SECONDS):
                client.close()

    async def arelease(self) -> None:
        """Run `release` asynchronously; the last user closes the running loop's async client as well."""
        await asyncio.to_thread(self.release)
        if not _users.get(self._process_key) and (entry := _async.get(self._loop_key)):
            await entry[1].aclose()


def _is_closed(client: object) -> bool:
    """Return whether a shared client was closed by a caller, who gets it from a history's `client`."""
    return bool(getattr(client, "_closed", False))


async def _close_with_loop(client: AsyncMongoClient[BsonDict], key: LoopKey) -> AsyncGenerator[None, None]:
    """Close the client when its loop shuts down: `asyncio.run` ends every started async generator first.

    Streams that are ended in the same moment store what they had with the sync client: see `async_runs_in_thread`.
    """
    try:
        yield
    finally:
        _async.pop(key, None)  # a later caller gets a new client
        with pymongo.timeout(GOODBYE_SECONDS):
            await client.close()


@atexit.register
def _close_all() -> None:
    for (pid, _), client in list(_sync.items()):
        if pid == os.getpid():
            with pymongo.timeout(GOODBYE_SECONDS):
                client.close()
