"""Logic written once for both call styles.

A *flow* is a generator that yields operations and receives their results; `drive` runs it by calling, `adrive` by
awaiting. What an operation is, the runner of each module says; the plainest is `Step`, run by `run_step`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

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
