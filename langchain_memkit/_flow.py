"""Logic written once for sync and async callers.

A *flow* is a generator that yields operations and receives their results; `drive` runs it by calling each operation,
`adrive` by awaiting it. Each module's runner defines what an operation is; the plainest is `Step`, run by `run_step`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import copy_context
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig, run_in_executor

from langchain_memkit.errors import ConfigurationError, MemkitError

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")

Flow: TypeAlias = Generator[Any, Any, T]


def drive(flow: Flow[T], run: Callable[[Any], Any]) -> T:
    """Run a flow, calling `run(operation)` for each operation; an error of an operation is raised inside the flow."""
    result, failure = None, None
    try:
        while True:
            operation = flow.send(result) if failure is None else flow.throw(failure)
            result = failure = None
            try:
                result = run(operation)
            except Exception as error:  # noqa: BLE001  # the flow decides what to do with it
                # thrown below, not here: else it would be the `__context__` of whatever the flow raises in its place
                failure = error
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # the generator's return value
    finally:
        del failure  # its traceback holds this frame


async def adrive(flow: Flow[T], run: Callable[[Any], Awaitable[Any]]) -> T:
    """Run `drive` asynchronously."""
    result, failure = None, None
    try:
        while True:
            operation = flow.send(result) if failure is None else flow.throw(failure)
            result = failure = None
            try:
                result = await run(operation)
            except Exception as error:  # noqa: BLE001  # the flow decides what to do with it
                failure = error
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # the generator's return value
    finally:
        del failure  # its traceback holds this frame


class Step(NamedTuple):
    """An operation of a flow, in both call styles."""

    sync: Callable[[], Any]
    asynchronous: Callable[[], Awaitable[Any]]


def run_step(step: Step) -> Any:
    """Run a step by calling."""
    return step.sync()


async def arun_step(step: Step) -> Any:
    """Run a step by awaiting."""
    return await step.asynchronous()


def is_async(function: Any) -> bool:
    """Return whether a call returns a coroutine: for an async function, or an object with an async `__call__`."""
    called = getattr(function, "__call__", None)  # noqa: B004  # the method itself is asked
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def user_code(function: Callable[..., Any], *args: Any, name: str) -> Step:
    """Wrap a call of the caller's function, plain or async, as a step.

    On an event loop a plain function runs in a thread, since it may do I/O.

    Args:
        function: The function.
        *args: Its arguments.
        name: The argument by which the caller passed it, for the error if an async one is called from sync code.
    """

    def sync() -> Any:
        result = function(*args)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            msg = f"{name} is async, so use the async verbs: ainvoke, astream, abatch, aload"
            raise ConfigurationError(msg)
        return result

    async def asynchronous() -> Any:
        if is_async(function):
            return await function(*args)
        result = await run_in_executor(None, function, *args)
        return await result if inspect.isawaitable(result) else result

    return Step(sync, asynchronous)


def in_thread(function: Callable[[], T], *, long: bool = True) -> Step:
    """Wrap work without I/O as a step. On an event loop it runs in a thread if `long`, to keep the loop free."""

    async def asynchronous() -> T:
        return await asyncio.to_thread(function) if long else function()

    return Step(function, asynchronous)


def together(steps: Sequence[Step]) -> Step:
    """Combine steps into one that returns all results; the result of a failed step is its error.

    In sync code the steps run one after the other, on an event loop at the same time.
    """

    def sync() -> list[Any]:
        results: list[Any] = []
        for step in steps:
            try:
                results.append(step.sync())
            except Exception as error:  # noqa: BLE001  # the flow decides what to do with it
                results.append(error)
        return results

    async def asynchronous() -> list[Any]:
        results = await asyncio.gather(*(step.asynchronous() for step in steps), return_exceptions=True)
        for result in results:
            # a cancellation or an interrupt is not a result
            if isinstance(result, BaseException) and not isinstance(result, Exception):
                raise result
        return results

    return Step(sync, asynchronous)


def internal_call(run_name: str, purpose: str) -> RunnableConfig:
    """Return the config of a model call that is not part of an answer: a summary, a rewritten question, a rating.

    From 1.5 on langchain recognizes such calls by a value that it draws for each process. It is read from langchain's
    module if that is loaded; otherwise no agent is running that would look for it.
    """
    langchain = sys.modules.get("langchain.agents.middleware.internal_call_transformer")
    mark: dict[str, Any] = getattr(langchain, "internal_call_metadata", dict)()
    return {"run_name": run_name, "tags": ["nostream"], "metadata": {"memkit": purpose, **mark}}


def model_call(llm: Runnable[Any, Any], prompt: Any, config: RunnableConfig, seconds: float | None) -> Step:
    """Wrap one call of a model as a step with a time limit.

    After the limit, the call is cancelled on an event loop; in sync code its thread is left to finish by itself.

    Args:
        llm: The model.
        prompt: Its input.
        config: The config of the call.
        seconds: The limit in seconds; None for no limit.

    Raises:
        TimeoutError: The model took longer, or raised it itself.
    """
    late = None if seconds is None else f"the model took longer than {seconds:g} s"

    async def asynchronous() -> Any:
        try:
            return await asyncio.wait_for(llm.ainvoke(prompt, config), seconds)
        except TimeoutError as error:
            if str(error) or late is None:  # the model's own error, not the limit's
                raise
            raise TimeoutError(late) from None

    return Step(lambda: _within(seconds, late, lambda: llm.invoke(prompt, config)), asynchronous)


def _within(seconds: float | None, late: str | None, function: Callable[[], T]) -> T:
    if seconds is None:
        return function()
    box: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            box.put((function(), None))
        except BaseException as error:  # noqa: BLE001  # handed to the caller
            box.put((None, error))

    # A daemon thread: a model that never answers must not keep the process from exiting. It runs in a copy of the
    # context, in which LangChain finds the callbacks of the caller.
    threading.Thread(target=copy_context().run, args=(run,), daemon=True, name="memkit-model").start()
    try:
        result, error = box.get(timeout=seconds)
    except Empty:
        raise TimeoutError(late) from None
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]  # what the function returned


async def shielded(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Await work to its end even if the caller is cancelled meanwhile: a save that has begun is whole or nothing."""
    task = asyncio.ensure_future(work())
    cancelled: asyncio.CancelledError | None = None
    # A cancellation ends only the wait: the shielded task goes on, and is awaited again.
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:  # noqa: BLE001  # the task's own error: raised or logged below
            break
    if task.cancelled():
        # The task itself was cancelled: the loop is shutting down and has cancelled every task. It does so once, so
        # the work can still be done here.
        await work()
        raise cancelled or asyncio.CancelledError
    if cancelled is None:
        return task.result()
    if (failure := task.exception()) is not None:
        # Only memkit's own errors are logged with their text: others may quote messages.
        told = failure if isinstance(failure, MemkitError) else type(failure).__name__
        logger.error("a save failed while its caller was cancelled: %s", told)
    raise cancelled


class Closing(ABC):
    """A base class with `with` and `async with` for objects that have `close` and `aclose`."""

    @abstractmethod
    def close(self) -> None:
        """Release the resources of this object."""

    @abstractmethod
    async def aclose(self) -> None:
        """Run `close` asynchronously."""

    def __enter__(self) -> Self:
        """Return this object."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close this object."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return this object."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close this object."""
        await self.aclose()
