"""Share driver clients: one sync client per process and connection string, one async client per event loop as well."""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import threading
import weakref
from collections.abc import AsyncGenerator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import pymongo
from pymongo import AsyncMongoClient, MongoClient
from pymongo.driver_info import DriverInfo
from pymongo.errors import ConfigurationError as DriverConfigurationError
from pymongo.errors import InvalidURI

from langchain_memkit.errors import ConfigurationError

__all__ = ["Clients", "hosts_of", "redact"]

SCHEMES = ("mongodb://", "mongodb+srv://")
GOODBYE_SECONDS = 1.0  # limit for closing a client, which tells the server; that may be down

_lock = threading.RLock()
_sync: dict[tuple[int, str], MongoClient[dict[str, Any]]] = {}
_async: dict[tuple[int, int, str], tuple[asyncio.AbstractEventLoop, AsyncMongoClient[dict[str, Any]], Any]] = {}
_users: dict[tuple[int, str], weakref.WeakSet[Clients]] = {}  # weak: a dropped factory keeps no client open

try:
    _DRIVER = DriverInfo("langchain-memkit", version("langchain-memkit"))
except PackageNotFoundError:  # run from a source tree that is not installed
    _DRIVER = DriverInfo("langchain-memkit")


def redact(text: str) -> str:
    """Return the text without the user and password of any connection string in it."""
    return re.sub(r"//[^/?#]*@", "//", text)


def hosts_of(uri: str) -> str:
    """Return the hosts of a connection string, for messages: no credentials, no options."""
    authority = re.split(r"[/?#]", uri.partition("//")[2], maxsplit=1)[0]
    return authority.rpartition("@")[2] or "the server"


class Clients:
    """Source of a store's clients: the caller's own, or shared ones for a connection string.

    A shared client is looked up at every use, so it is a new one after a fork and in another event loop.
    A caller's own client is never closed.

    Args:
        uri: The connection string; None if clients are given.
        client: The caller's own sync client.
        async_client: The caller's own async client.

    Raises:
        ConfigurationError: Neither or both are given, or `uri` is no connection string.
    """

    def __init__(
        self,
        uri: str | None,
        client: MongoClient[dict[str, Any]] | None,
        async_client: AsyncMongoClient[dict[str, Any]] | None,
    ) -> None:
        _check_address(uri)
        if uri and (client is not None or async_client is not None):
            msg = "Must provide connection_string or client, not both"
            raise ConfigurationError(msg)
        if not uri and client is None and async_client is None:
            msg = "Either connection_string or client must be provided"
            raise ConfigurationError(msg)
        self._uri = uri or ""
        self._client = client
        self._async_client = async_client

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling, which is the connection string; given clients cannot be pickled."""
        if not self._uri:
            msg = "a client of yours cannot be pickled: give a connection_string instead of client= or async_client="
            raise TypeError(msg)
        return vars(self)

    def __deepcopy__(self, memo: object) -> Clients:
        """Return itself: clients are shared."""
        return self

    def __repr__(self) -> str:
        """Name the hosts, but no credentials."""
        return f"Clients({self.hosts})"

    @property
    def hosts(self) -> str:
        """The host names, for messages; no credentials."""
        return hosts_of(self._uri) if self._uri else "the given client"

    @property
    def servers(self) -> Any:
        """A key that is equal for connection strings with the same hosts, in any order and with any options."""
        if not self._uri:
            return self.key
        hosts = hosts_of(self._uri).lower().split(",")
        named = {re.sub(r"^(localhost|\[::1\])(?=:|$)", "127.0.0.1", host) for host in hosts}
        return frozenset(host if re.search(r":\d+$", host) else f"{host}:27017" for host in named)

    @property
    def key(self) -> Any:
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

    def sync(self) -> MongoClient[dict[str, Any]]:
        """Return the sync client for this process."""
        if self._client is not None:
            return self._client
        if not self._uri:
            msg = "only an async_client was given: use the async methods, or pass client= as well"
            raise ConfigurationError(msg)
        # The process id in the key gives a forked child a client of its own: the driver's threads and sockets do not
        # survive a fork. The lock is taken only where a client may have to be made.
        key = (os.getpid(), self._uri)
        client = _sync.get(key)
        if client is None or _is_closed(client):
            with _lock:
                if key not in _sync or _is_closed(_sync[key]):
                    _sync[key] = self._new(MongoClient)
                client = _sync[key]
        return client

    @property
    def loop_key(self) -> tuple[int, int, str]:
        """The cache key of the running loop's async client."""
        return (os.getpid(), id(asyncio.get_running_loop()), self._uri)

    async def asynchronous(self) -> AsyncMongoClient[dict[str, Any]]:
        """Return the async client for this process and the running event loop."""
        if self._async_client is not None:
            return self._async_client
        loop, key = asyncio.get_running_loop(), self.loop_key
        entry = _async.get(key)
        # The id of a loop that is gone may be given to a new one, so the loop itself is compared as well.
        if entry is None or entry[0] is not loop or _is_closed(entry[1]):
            for stale in [k for k, (other, _, _) in list(_async.items()) if other.is_closed()]:
                _async.pop(stale, None)
            client = self._new(AsyncMongoClient)
            keeper = _close_with_loop(client, key)
            _async[key] = entry = (loop, client, keeper)
            await anext(keeper)  # start the generator, so that the loop ends it at shutdown
        return entry[1]

    def _new(self, cls: Any) -> Any:
        try:
            # `connect=False`: no threads and no DNS look-ups before the first operation.
            return cls(self._uri, connect=False, driver=_DRIVER)
        except (InvalidURI, DriverConfigurationError, ValueError, TypeError) as error:
            msg = f"connection_string is not valid: {redact(str(error))}"
            raise ConfigurationError(msg) from None

    def hold(self) -> None:
        """Register this object as a user of the shared client in this process."""
        with _lock:
            _users.setdefault((os.getpid(), self._uri), weakref.WeakSet()).add(self)

    def release(self) -> None:
        """Unregister this object, and close the shared sync client if it was the last user."""
        key = (os.getpid(), self._uri)
        with _lock:
            holders = _users.setdefault(key, weakref.WeakSet())
            holders.discard(self)
            client = None if holders else _sync.pop(key, None)
        if client is not None:
            with pymongo.timeout(GOODBYE_SECONDS):
                client.close()

    async def arelease(self) -> None:
        """Run `release` asynchronously; the last user closes the running loop's async client as well."""
        await asyncio.to_thread(self.release)
        if not _users.get((os.getpid(), self._uri)) and (entry := _async.get(self.loop_key)):
            await entry[2].aclose()


def _check_address(given: object) -> None:
    """Refuse anything but a connection string or nothing: the driver would take a file name for a host name."""
    if given is None or given == "" or (isinstance(given, str) and given.startswith(SCHEMES)):
        return
    # Never quote the value: a mistyped connection string holds a password.
    what = "this text" if isinstance(given, str) else f"a {type(given).__name__}"
    msg = (
        f"connection_string must begin with {' or '.join(SCHEMES)}, as in mongodb://localhost:27017, which {what} does "
        "not. For a file use SQLiteChatMessageHistory, SQLiteKeyValueStore or SQLiteVectorStore; a client of your own "
        "goes into client= or async_client= (of a collection: collection.database.client)"
    )
    raise ConfigurationError(msg)


def _is_closed(client: Any) -> bool:
    """Return whether a shared client was closed by a caller, who gets it from a history's `client`."""
    return bool(getattr(client, "_closed", False))


async def _close_with_loop(
    client: AsyncMongoClient[dict[str, Any]], key: tuple[int, int, str]
) -> AsyncGenerator[None, None]:
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
