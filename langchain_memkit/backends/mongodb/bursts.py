"""Bursts of commands: more at once than a client should send wait here, in order, and not within their time limits."""

from __future__ import annotations

import asyncio
import os
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from threading import Lock
from typing import Any

from pymongo.errors import OperationFailure, ServerSelectionTimeoutError

from langchain_memkit._locks import ForkSafeLock

AT_ONCE = 32  # commands of a client, unless its pool is smaller: a hundred threads keep each other waiting for seconds

_waited: ContextVar[float] = ContextVar("seconds that the commands of this call waited for others", default=0.0)
_lock = ForkSafeLock()
_queues: dict[tuple[int, int], CommandQueue] = {}  # by process and client: a forked child has queues of its own


def clock() -> float:
    """Return `time.monotonic()` for deadlines: it stands still while a command waits for others that are answered."""
    return time.monotonic() - _waited.get()


class CommandQueue:
    """The commands of a client that are under way, and those that wait until one of them is done.

    As long as the server answers others, or builds an index, a command waits without a limit. If it answers nobody,
    those that wait fail as soon as those that were sent.
    """

    def __init__(self, places: int) -> None:
        self._lock = Lock()
        self._free = places
        self._waiting: deque[Future[None]] = deque()
        self._endless: set[Future[None]] = set()  # the places of commands without a limit
        self._answered = 0.0  # when the server answered last, by `time.monotonic()`

    @contextmanager
    def place(self, seconds: float | None) -> Iterator[float | None]:
        """Wait for a place; give the seconds that are left for the command, None for no limit."""
        began, place = time.monotonic(), self._take()
        try:
            while not place.done():
                with suppress(TimeoutError):
                    place.result(self._left(began, seconds))
            with self._noting():
                yield self._begin(place, began, seconds)
        finally:
            self._leave(place)

    @asynccontextmanager
    async def aplace(self, seconds: float | None) -> AsyncIterator[float | None]:
        """Do what `place` does on an event loop."""
        began, place = time.monotonic(), self._take()
        try:
            while not place.done():
                await asyncio.wait([asyncio.wrap_future(place)], timeout=self._left(began, seconds))
            with self._noting():
                yield self._begin(place, began, seconds)
        finally:
            self._leave(place)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note when the server has answered a command; that it refuses one is an answer."""
        try:
            yield
        except OperationFailure as error:
            if not error.timeout:
                self._answered = time.monotonic()
            raise
        self._answered = time.monotonic()

    def _take(self) -> Future[None]:
        """Return a future that is done when its place is free; whoever has it must leave, whatever happens."""
        place: Future[None] = Future()
        with self._lock:
            if self._free:
                self._free -= 1
                place.set_result(None)
            else:
                self._waiting.append(place)
        return place

    def _leave(self, place: Future[None]) -> None:
        """Give a place to the one that waits longest, unless it was given up before it was free."""
        if place.cancel():
            return
        with self._lock:
            self._endless.discard(place)
            while self._waiting:
                # false for those that were given up
                if (other := self._waiting.popleft()).set_running_or_notify_cancel():
                    other.set_result(None)
                    return
            self._free += 1

    def _left(self, began: float, seconds: float | None) -> float | None:
        """Return how long to wait yet; raise if the server has answered nobody for so many seconds."""
        if seconds is None:
            return None
        left = max(began, self._answered) + seconds - time.monotonic()
        if self._endless:
            return seconds
        if left <= 0:
            raise ServerSelectionTimeoutError(f"no command before this one was answered for {seconds:.3g} s")
        return left

    def _begin(self, place: Future[None], began: float, seconds: float | None) -> float | None:
        """Stop the clock of the call for the time in which others were answered; return what is left of its seconds."""
        if seconds is None:
            with self._lock:
                self._endless.add(place)
        others = max(self._answered - began, 0.0)
        _waited.set(_waited.get() + others)
        return None if seconds is None else max(began + others + seconds - time.monotonic(), 0.1)


def queue_of(client: Any) -> CommandQueue:
    """Return the queue of a client, sync or async, in this process."""
    # by identity: the driver's clients are equal if their hosts are
    key = os.getpid(), id(client)
    with _lock:
        if key not in _queues:
            _queues[key] = CommandQueue(min(client.options.pool_options.max_pool_size or AT_ONCE, AT_ONCE))
            weakref.finalize(client, _queues.pop, key, None)
        return _queues[key]
