"""How long an event loop stands still while something is done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, NamedTuple

TICK = 0.005  # seconds between two looks


class Taken(NamedTuple):
    """Seconds: the longest in which nothing else ran on the loop, what this process worked in such a time, and all.

    Where other processes take the processor, the loop waits for it; then `worked` tells what was ours.
    """

    still: float
    worked: float
    whole: float


async def watched(work: Awaitable[Any]) -> Taken:
    """Awaits it, and looks at the loop meanwhile."""
    longest = most = 0.0

    async def look() -> None:
        nonlocal longest, most
        while True:
            started, worked = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK)
            longest = max(longest, time.perf_counter() - started - TICK)
            most = max(most, time.process_time() - worked)

    looking = asyncio.create_task(look())
    await asyncio.sleep(2 * TICK)
    started = time.perf_counter()
    try:
        await work
    finally:
        whole = time.perf_counter() - started
        await asyncio.sleep(0)  # a last look: what stood still to the very end counts
        await asyncio.sleep(2 * TICK)
        looking.cancel()
    return Taken(longest, most, whole)
