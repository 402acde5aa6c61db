"""One sync client per process, URI and options; one async client per event loop as well. Never one per history."""

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
GOODBYE_SECONDS = 1.0  # closing tells the server, which may be down

_lock = threading.RLock()
_sync: dict[tuple[int, str], MongoClient[dict[str, Any]]] = {}
_async: dict[tuple[int, int, str], tuple[asyncio.AbstractEventLoop, AsyncMongoClient[dict[str, Any]], Any]] = {}
_users: dict[tuple[int, str], weakref.WeakSet[Clients]] = {}  # factories that were dropped hold nothing open

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
    """Where a store gets its clients: given ones, or shared ones for a connection string.

    A shared client is looked up at every use, so it is a new one after a fork and in another event loop.

    Args:
        uri: The connection string; None if clients are given.
        client: The caller's own sync client, never closed here.
        async_client: The caller's own async client, never closed here.
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
        """Return what another process needs: the connection string."""
        if not self._uri:
            msg = "a client of yours cannot be pickled: give a connection_string instead of client= or async_client="
            raise TypeError(msg)
        return vars(self)

    def __deepcopy__(self, memo: object) -> Clients:
        """Return itself: clients are shared."""
        return self

    def __repr__(self) -> str:
        """Name hosts only."""
        return f"Clients({self.hosts})"

    @property
    def hosts(self) -> str:
        """Host names for messages."""
        return hosts_of(self._uri) if self._uri else "the given client"

    @property
    def servers(self) -> Any:
        """Equal for connection strings that name the same hosts, in whatever order and with whatever options."""
        if not self._uri:
            return self.key
        hosts = hosts_of(self._uri).lower().split(",")
        named = {re.sub(r"^(localhost|\[::1\])(?=:|$)", "127.0.0.1", host) for host in hosts}
        return frozenset(host if re.search(r":\d+$", host) else f"{host}:27017" for host in named)

    @property
    def key(self) -> Any:
        """Equal for stores that talk to the same server."""
        return self._uri or id(self._client if self._client is not None else self._async_client)

    @property
    def async_runs_in_thread(self) -> bool:
        """True if all there is is a sync client of the caller's, or if the running loop is shutting down."""
        if self._async_client is not None:
            return False
        # the driver's async client is no use any more then, and a stream that is ended now must still be stored
        return not self._uri or getattr(asyncio.get_running_loop(), "_asyncgens_shutdown_called", False)

    def sync(self) -> MongoClient[dict[str, Any]]:
        """Return the sync client for this process."""
        if self._client is not None:
            return self._client
        if not self._uri:
            msg = "only an async_client was given: use the async methods, or pass client= as well"
            raise ConfigurationError(msg)
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
        """Names the async client of the running loop."""
        return (os.getpid(), id(asyncio.get_running_loop()), self._uri)

    async def asynchronous(self) -> AsyncMongoClient[dict[str, Any]]:
        """Return the async client for this process and the running event loop."""
        if self._async_client is not None:
            return self._async_client
        loop, key = asyncio.get_running_loop(), self.loop_key
        entry = _async.get(key)
        if entry is None or entry[0] is not loop or _is_closed(entry[1]):
            for stale in [k for k, (other, _, _) in list(_async.items()) if other.is_closed()]:
                _async.pop(stale, None)
            client = self._new(AsyncMongoClient)
            keeper = _close_with_loop(client, key)
            _async[key] = entry = (loop, client, keeper)
            await anext(keeper)
        return entry[1]

    def _new(self, cls: Any) -> Any:
        try:
            # connect=False: no threads and no DNS look-ups before the first operation
            return cls(self._uri, connect=False, driver=_DRIVER)
        except (InvalidURI, DriverConfigurationError, ValueError, TypeError) as error:
            msg = f"connection_string is not valid: {redact(str(error))}"
            raise ConfigurationError(msg) from None

    def hold(self) -> None:
        """Count a factory as a user of the shared client in this process."""
        with _lock:
            _users.setdefault((os.getpid(), self._uri), weakref.WeakSet()).add(self)

    def release(self) -> None:
        """Close the shared sync client when the last factory that held it lets go."""
        key = (os.getpid(), self._uri)
        with _lock:
            holders = _users.setdefault(key, weakref.WeakSet())
            holders.discard(self)
            client = None if holders else _sync.pop(key, None)
        if client is not None:
            with pymongo.timeout(GOODBYE_SECONDS):
                client.close()

    async def arelease(self) -> None:
        """Run `release` asynchronously: closes the shared async client of the running loop as well."""
        await asyncio.to_thread(self.release)
        if not _users.get((os.getpid(), self._uri)) and (entry := _async.get(self.loop_key)):
            await entry[2].aclose()


def _check_address(given: object) -> None:
    """Raise unless it is a connection string, or nothing: the driver would take a file's name for a host's."""
    if given is None or given == "" or (isinstance(given, str) and given.startswith(SCHEMES)):
        return
    # never the value: a mistyped address holds a password
    what = "this text" if isinstance(given, str) else f"a {type(given).__name__}"
    msg = (
        f"connection_string must begin with {' or '.join(SCHEMES)}, as in mongodb://localhost:27017, which {what} does "
        "not. For a file use SQLiteChatMessageHistory, SQLiteKeyValueStore or SQLiteVectorStore; a client of your own "
        "goes into client= or async_client= (of a collection: collection.database.client)"
    )
    raise ConfigurationError(msg)


def _is_closed(client: Any) -> bool:
    """Return whether somebody closed the shared client, which a history's `client` hands out: then a new one is due."""
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
        _async.pop(key, None)  # whoever comes later gets a new client
        with pymongo.timeout(GOODBYE_SECONDS):
            await client.close()


@atexit.register
def _close_all() -> None:
    for (pid, _), client in list(_sync.items()):
        if pid == os.getpid():
            with pymongo.timeout(GOODBYE_SECONDS):
                client.close()
