"""Logic written once for both call styles.

A *flow* is a generator that yields operations and receives their results; `drive` runs it by calling, `adrive` by
awaiting. What an operation is, the runner of each module says; the plainest is `Step`, run by `run_step`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

T = TypeVar("T")

Flow: TypeAlias = Generator[Any, Any, T]


def drive(flow: Flow[T], run: Callable[[Any], Any]) -> T:
    """Runs a flow, calling `run(operation)` for each step; errors are raised inside the flow."""
    try:
        operation = next(flow)
        while True:
            try:
                result = run(operation)
            except Exception as error:  # noqa: BLE001  # the flow decides what to do with it
                operation = flow.throw(error)
            else:
                operation = flow.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # the generator's return value


async def adrive(flow: Flow[T], run: Callable[[Any], Awaitable[Any]]) -> T:
    """Async twin of `drive`."""
    try:
        operation = next(flow)
        while True:
            try:
                result = await run(operation)
            except Exception as error:  # noqa: BLE001  # the flow decides what to do with it
                operation = flow.throw(error)
            else:
                operation = flow.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # the generator's return value


class Step(NamedTuple):
    """An operation of a flow in both call styles."""

    sync: Callable[[], Any]
    asynchronous: Callable[[], Awaitable[Any]]


def run_step(step: Step) -> Any:
    """Runs a step by calling."""
    return step.sync()


async def arun_step(step: Step) -> Any:
    """Runs a step by awaiting."""
    return await step.asynchronous()


class Closing(ABC):
    """`with` and `async with` for what has `close` and `aclose`."""

    @abstractmethod
    def close(self) -> None:
        """Ends what this object began."""

    @abstractmethod
    async def aclose(self) -> None:
        """Async twin of `close`."""

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        self.close()

    async def __aenter__(self) -> Self:
        """Returns itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes."""
        await self.aclose()
