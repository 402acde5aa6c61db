"""What stores share: how the flows of their backends are run, and how values become plain data and come back."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, TypeVar

from langchain_memkit._sync import Flow, adrive, drive
from langchain_memkit.errors import MessageEncodeError
from langchain_memkit.messages.codec import decode_value, encode_value

T = TypeVar("T")

UNREADABLE = (AttributeError, KeyError, OSError, OverflowError, RecursionError, TypeError, ValueError)
"""Exceptions that decoding damaged data raises."""


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

    Attributes:
        is_remote: Whether an operation waits for a server: then sync code does several at the same time, in threads.
    """

    is_remote: ClassVar[bool] = False

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

    def __str__(self) -> str:
        """Name the type, for the `repr` of stores. Override it to tell where the data is, without credentials."""
        return type(self).__name__

    def close(self) -> None:
        """Close the connections that this backend opened, never those it was given. Does nothing by default."""

    async def aclose(self) -> None:
        """Run `close` asynchronously; in a thread by default."""
        await asyncio.to_thread(self.close)


def encode_exactly(value: object, path: str) -> Any:
    """Encode a value as plain data; raise `MessageEncodeError` if it would not come back equal."""
    encoded, back = encode_value(value, path), None
    if encoded == value:  # all of it plain, as in every record of a memory: read back it is the same
        return encoded
    problem = "would not come back equal"
    try:
        # A value that changes on the way must be refused now, not found on reading: for one, a datetime in the hour
        # that clocks repeat in autumn differs from itself in another time zone.
        back = decode_value(encoded)
    except UNREADABLE as error:
        problem = f"would be unreadable once stored ({type(error).__name__})"
    if back != value:  # out here, since the other error may quote the value
        if isinstance(value, dict) and isinstance(back, dict):
            path += next((f"[{key!r:.80}]" for key in value if key not in back or back[key] != value[key]), "")
        raise MessageEncodeError(path, problem)
    return encoded
