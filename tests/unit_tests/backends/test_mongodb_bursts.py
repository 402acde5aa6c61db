"""The queue of a MongoDB client's commands: in order, without a limit while others are answered, and with one else."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import ServerSelectionTimeoutError

from langchain_memkit.backends.mongodb import bursts
from langchain_memkit.backends.mongodb.bursts import CommandQueue, clock, queue_of

LONG = 600.0  # seconds that no test waits for
SHORT = 0.05


async def in_either_style(queue: CommandQueue, style: str, seconds: float | None) -> float | None:
    """Take a place, give it back, and return the seconds that were left."""
    if style == "sync":
        with queue.place(seconds) as left:
            return left
    async with queue.aplace(seconds) as left:
        return left


def test_in_order() -> None:
    """Who waits longest is next; each has the place alone."""
    queue, order, waiting = CommandQueue(1), list[int](), threading.Semaphore(0)

    def wait(n: int) -> None:
        waiting.release()
        with queue.place(LONG):
            order.append(n)

    with ThreadPoolExecutor(8) as pool:
        with queue.place(LONG):
            for n in range(8):
                pool.submit(wait, n)
                waiting.acquire()
                while len(queue._waiting) <= n:
                    threading.Event().wait(0.001)
        pool.shutdown()
    assert order == [*range(8)]


@pytest.mark.parametrize("style", ["sync", "async"])
def test_nobody_is_answered(style: str) -> None:
    """Who waits fails after its seconds, though nobody has left; the place is not lost, nor one that was given up."""
    queue = CommandQueue(1)
    with queue.place(LONG), pytest.raises(ServerSelectionTimeoutError, match=r"no command .* answered for 0\.05 s"):
        asyncio.run(in_either_style(queue, style, SHORT))
    for _ in range(3):
        left = asyncio.run(in_either_style(queue, style, LONG))
        assert left is not None
        assert left > LONG / 2
    assert queue._free == 1


def test_a_command_that_fails_is_no_answer() -> None:
    """A burst to a dead server fails as a whole: the failure of one gives no time to the next."""
    queue = CommandQueue(1)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"), queue.place(LONG):
            raise OSError("gone")
    assert queue._answered == 0
    with queue.place(LONG):
        pass
    assert queue._answered > 0


@pytest.mark.parametrize("style", ["sync", "async"])
def test_while_an_index_is_built(style: str) -> None:
    """A command without a limit may take longer than the others wait."""
    queue = CommandQueue(1)
    with ThreadPoolExecutor(1) as pool:
        with queue.place(None) as left:
            assert left is None
            waiter = pool.submit(lambda: asyncio.run(in_either_style(queue, style, SHORT)))
            threading.Event().wait(4 * SHORT)
            assert not waiter.done()
        assert waiter.result(LONG) is not None


def test_the_clock_stands_still_while_others_are_answered() -> None:
    """A call that waited has all of its seconds; so have the deadlines that it counts by the clock."""
    queue = CommandQueue(1)

    def wait() -> float:
        with queue.place(LONG):
            return bursts._waited.get()

    with ThreadPoolExecutor(1) as pool:
        with queue.place(LONG):
            waiter = pool.submit(wait)
            while not queue._waiting:
                threading.Event().wait(0.001)
            threading.Event().wait(4 * SHORT)
        assert waiter.result(LONG) >= 3 * SHORT
    before = clock()
    token = bursts._waited.set(LONG)
    assert clock() < before
    bursts._waited.reset(token)


async def test_cancelled() -> None:
    """A task that is cancelled while it waits takes no place, even if it was given one in that moment."""
    queue = CommandQueue(1)
    for given in (False, True):
        async with queue.aplace(LONG) as _:
            task = asyncio.ensure_future(in_either_style(queue, "async", LONG))
            await asyncio.sleep(0)
            assert len(queue._waiting) == 1
            if not given:
                task.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert queue._free == 1


def test_each_client_has_its_own() -> None:
    """Also clients of the same hosts; a queue is not larger than its client's pool, and goes with the client."""
    with ExitStack() as stack:
        uris = [
            "mongodb://localhost:1/?maxPoolSize=2",
            "mongodb://localhost:1/",
            "mongodb://localhost:1/?maxPoolSize=0",
        ]
        clients: list[Any] = [stack.enter_context(MongoClient(uri, connect=False)) for uri in uris]
        queues = [queue_of(client) for client in clients]
        assert [queue._free for queue in queues] == [2, bursts.AT_ONCE, bursts.AT_ONCE]
        assert [queue_of(client) for client in clients] == queues
