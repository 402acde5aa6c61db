"""What the interfaces of backends share: how flows are run, set-up and closing."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from langchain_memkit._sync import Flow, adrive, drive

T = TypeVar("T")


class StoreBackend:
    """Base of `TurnStore` and `KeyValueBackend`: how their flows are run, set-up and closing.

    The operations of a backend are `async def`, written once for both call styles: they are *flows*. Sync methods pass
    a flow to `run`, async ones to `arun`. A flow awaits other flows and `Step(sync, asynchronous)`, nothing else: `run`
    performs the first function of a step, without an event loop, and `arun` awaits the second.

    Override `run` and `arun` if flows await operations of your own, say with a borrowed connection, or if your driver
    is sync only: then `arun` is `return await drive_in_thread(flow, self.run)`, and a flow may call the driver.

    Example:
        >>> from langchain_memkit.stores import Step
        >>> class Numbers(StoreBackend):
        ...     async def double(self, number: int) -> int:
        ...         async def asynchronous() -> int:
        ...             return 2 * number
        ...
        ...         return await Step(lambda: 2 * number, asynchronous)
        >>> numbers = Numbers()
        >>> numbers.run(numbers.double(2)), asyncio.run(numbers.arun(numbers.double(2)))
        (4, 4)
    """

    def run(self, flow: Flow[T]) -> T:
        """Run a flow in sync code, to its end or its first error.

        Args:
            flow: A flow of this backend, not begun.

        Returns:
            What the flow returns.

        Raises:
            BaseException: What the flow raises.
        """
        return drive(flow)

    async def arun(self, flow: Flow[T]) -> T:
        """Run a flow on an event loop, which must not be blocked; otherwise like `run`.

        Args:
            flow: A flow of this backend, not begun.

        Returns:
            What the flow returns.

        Raises:
            BaseException: What the flow raises; `asyncio.CancelledError` if the task was cancelled. Whether a write
                that had begun is stored is unknown then, and a retry must find out.
        """
        return await adrive(flow)

    async def setup(self) -> None:
        """Create what the backend needs: tables, indexes. Safe to repeat; a flow that does nothing by default.

        Raises:
            HistoryWriteError: The server failed or refused.
        """

    def close(self) -> None:
        """Close the connections that this backend opened, never those it was given. Does nothing by default."""

    async def aclose(self) -> None:
        """Run `close` asynchronously; in a thread by default."""
        await asyncio.to_thread(self.close)
