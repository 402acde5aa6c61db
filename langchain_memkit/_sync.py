"""One body of logic for both call styles.

Every public method comes twice (`load` and `aload`), and what it does is written once, as a *flow*: an `async def` that
does no I/O of its own. Where I/O is due, a flow awaits an *operation*: an object that says how the work is done in each
style. A driver runs the flow and performs its operations: `drive` by calling, without any event loop, `adrive` by
awaiting. So a flow reads like ordinary async code, and there is neither a twin of it nor `asyncio.run` in sync code.

Awaiting an `Operation` hands the operation itself to the driver (`__await__` yields it). The driver performs it and
sends the result back as the value of the `await`; if it failed, the error is raised at the `await`. A flow may await
other flows and operations, nothing else: a coroutine of asyncio's is wrapped in a `Step`, a pair of functions. Each
backend has operations of its own and performs them with its connection. If the driver's task is cancelled or Ctrl-C
arrives, the flow is closed where it stands, as Python closes a generator, and the error goes on.

Example:
    >>> class Greeter:
    ...     def __init__(self, read: Callable[[], str], aread: Callable[[], Awaitable[str]]) -> None:
    ...         self._read = Step(read, aread)
    ...
    ...     def greet(self) -> str:
    ...         return drive(self._greet())
    ...
    ...     async def agreet(self) -> str:
    ...         return await adrive(self._greet())
    ...
    ...     async def _greet(self) -> str:  # the flow: written once
    ...         return f"Hello, {await self._read}!"
    >>> async def aread() -> str:
    ...     return "Dory"
    >>> greeter = Greeter(lambda: "Nemo", aread)
    >>> greeter.greet(), asyncio.run(greeter.agreet())
    ('Hello, Nemo!', 'Hello, Dory!')
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from langchain_core.callbacks import BaseCallbackHandler, adispatch_custom_event, dispatch_custom_event
from langchain_core.runnables import Runnable, RunnableConfig, run_in_executor

from langchain_memkit.errors import ConfigurationError, MemkitError, logger

dry_run: ContextVar[bool] = ContextVar("memkit_dry_run", default=False)
"""Whether `explain_turn` runs this code, so that nothing may be stored."""

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Flow: TypeAlias = Coroutine[Any, Any, T]
"""What calling a flow's `async def` gives; it must be driven or awaited."""


# -- operations


class Operation(Generic[T_co]):
    """Base of what a flow awaits; `await operation` gives the result of the type in brackets."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, T_co]:
        """Hand the operation to the driver; return what it sends back."""
        return (yield self)  # type: ignore[no-any-return]  # the driver's result


@dataclass(slots=True)
class Step(Operation[T_co]):
    """An operation as two functions: what is called in sync code, and what is awaited on an event loop."""

    sync: Callable[[], T_co]
    asynchronous: Callable[[], Awaitable[T_co]]


def run_step(step: Step[T]) -> T:
    """Perform a step by calling."""
    return _checked(step).sync()


async def arun_step(step: Step[T]) -> T:
    """Perform a step by awaiting."""
    return await _checked(step).asynchronous()


def _checked(awaited: Operation[T]) -> Step[T]:
    if not isinstance(awaited, Step):
        name = type(awaited).__name__
        raise TypeError(f"a flow can await flows and steps only, not {name}: wrap the call in Step(sync, asynchronous)")
    return awaited


# -- drivers


def drive(flow: Flow[T], perform: Callable[[Any], Any] = run_step) -> T:
    """Run a flow in sync code and return its result; `perform` performs its operations.

    An error of an operation is raised in the flow first, at its `await`.
    """
    result: Any = None
    failure: Exception | None = None
    try:
        while True:
            operation = flow.send(result) if failure is None else flow.throw(failure)
            result = failure = None
            try:
                result = perform(operation)
            except Exception as error:  # noqa: BLE001  # the flow decides what to do with it
                # thrown below, not here: else it would be the `__context__` of whatever the flow raises in its place
                failure = error
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # the coroutine's return value
    finally:
        del failure  # its traceback holds this frame
        flow.close()  # does nothing unless Ctrl-C or the like broke off the operation


async def adrive(flow: Flow[T], perform: Callable[[Any], Awaitable[Any]] = arun_step) -> T:
    """Run a flow on an event loop; the async twin of `drive`."""
    result: Any = None
    failure: Exception | None = None
    try:
        while True:
            operation = flow.send(result) if failure is None else flow.throw(failure)
            result = failure = None
            try:
                result = await perform(operation)
            except Exception as error:  # noqa: BLE001  # the flow decides what to do with it
                failure = error
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # the coroutine's return value
    finally:
        del failure  # its traceback holds this frame
        flow.close()  # does nothing unless the task was cancelled in the operation


async def drive_in_thread(flow: Flow[T], run: Callable[[Flow[T]], T]) -> T:
    """Run a flow in a worker thread, in which `run` drives it, for what has no async way of its own.

    Cancelling does not stop a thread that has begun; one that has not will not begin.
    """
    # who pops it has it: the thread, or a caller who was cancelled before, since a coroutine that never runs warns
    waiting = [flow]
    try:
        return await asyncio.to_thread(lambda: run(waiting.pop()))
    finally:
        with suppress(IndexError):
            waiting.pop().close()


async def shielded(make_flow: Callable[[], Flow[T]]) -> T:
    """Run a flow to its end even if the caller is cancelled meanwhile: a save that has begun is whole or nothing.

    The flow is made at once, and again if the loop that shuts down has cancelled the first one.
    """

    async def work() -> T:
        return await adrive(make_flow())

    # A cancellation ends only the wait: the task goes on, and is awaited again. Its own error comes below.
    task = asyncio.ensure_future(work())
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
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


# -- steps


def as_step(make_flow: Callable[[], Flow[T]], *, shield: bool = False) -> Step[T]:
    """Return a flow as one step; the flow is made when the step is performed, on an event loop `shielded` if wanted."""

    async def asynchronous() -> T:
        return await (shielded(make_flow) if shield else adrive(make_flow()))

    return Step(lambda: drive(make_flow()), asynchronous)


class AsStep(Protocol):
    """Makes a step of a flow that somebody else runs, as `as_step` does of a flow of steps."""

    def __call__(self, make_flow: Callable[[], Flow[T]], /) -> Step[T]:
        """Return the flow as one step."""


def is_async(function: object) -> bool:
    """Return whether a call returns a coroutine: for an async function, or an object with an async `__call__`."""
    called = getattr(function, "__call__", None)  # noqa: B004  # the method itself is asked
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def warn_if_blocking() -> None:
    """Log once per process that a sync call stops the event loop on which it is made.

    A notebook runs its cells on a loop, where nobody else waits, so nothing is said there.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    shell = sys.modules.get("IPython")
    if shell is None or shell.get_ipython() is None:
        report_blocking()


@cache
def report_blocking() -> None:
    """Log that a sync call stops an event loop."""
    logger.warning(
        "a sync call (invoke, stream) runs on an event loop, which stands still until the model has answered and the "
        "turn is stored: use the async verbs there (ainvoke, astream). This is said once"
    )


def call_user_function(function: Callable[..., Any], *args: Any, name: str) -> Step[Any]:
    """Return a step that calls a user's function, plain or async, which was passed as the argument `name`.

    On an event loop a plain function runs in a thread, since it may do I/O.
    """

    def sync() -> Any:
        result = function(*args)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise ConfigurationError(f"{name} is async, so use the async verbs: ainvoke, astream, abatch, aload")
        return result

    async def asynchronous() -> Any:
        if is_async(function):
            return await function(*args)
        result = await run_in_executor(None, function, *args)
        return await result if inspect.isawaitable(result) else result

    return Step(sync, asynchronous)


async def raise_or_call(option: object, error: Exception, name: str) -> bool:
    """Do what an `on_...` option says of an error: raise it, or call the given function; return whether it is one."""
    if option == "raise":
        raise error
    if callable(option):
        await call_user_function(option, error, name=name)
    return callable(option)


def cpu_bound(function: Callable[[], T], *, long: bool = True) -> Step[T]:
    """Return work without I/O as a step. On an event loop it runs in a thread if `long`, to keep the loop free."""

    async def asynchronous() -> T:
        # not asyncio.to_thread, in which a StopIteration of a user's function would never come back
        return await run_in_executor(None, function) if long else function()

    return Step(function, asynchronous)


def gather(steps: Sequence[Step[T]]) -> Step[list[T | Exception]]:
    """Combine steps into one that returns all results; the result of a failed step is its error.

    In sync code the steps run one after the other, on an event loop at the same time.
    """

    def sync() -> list[T | Exception]:
        results: list[T | Exception] = []
        for step in steps:
            try:
                results.append(step.sync())
            except Exception as error:  # noqa: BLE001  # the flow decides what to do with it
                results.append(error)
        return results

    async def asynchronous() -> list[T | Exception]:
        results: list[Any] = await asyncio.gather(*(step.asynchronous() for step in steps), return_exceptions=True)
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


def model_call(llm: Runnable[Any, Any], prompt: object, config: RunnableConfig, seconds: float | None) -> Step[Any]:
    """Return one call of a model as a step with a time limit in seconds, or without one.

    Raises:
        TimeoutError: The model took longer, or raised it itself.
    """
    ask = Step(lambda: llm.invoke(prompt, config), lambda: llm.ainvoke(prompt, config))
    return time_limited(ask, seconds, lambda: TimeoutError(f"the model took longer than {seconds:g} s"), "memkit-model")


def time_limited(step: Step[T], seconds: float | None, late: Callable[[], Exception], thread: str) -> Step[T]:
    """Return a step that raises the error `late()` after a limit in seconds; the step itself for None.

    After the limit, the call is cancelled on an event loop; in sync code its thread is left to finish by itself.
    """
    if seconds is None:
        return step

    def sync() -> T:
        answer = in_daemon_thread(step.sync, thread)
        try:
            return answer.result(seconds)
        except TimeoutError:
            if answer.done():  # raised by the call itself, not by the limit
                raise
            raise late() from None

    async def asynchronous() -> T:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await step.asynchronous()
        except TimeoutError:
            if not limit.expired():
                raise
            raise late() from None

    return Step(sync, asynchronous)


async def closing_stream(chunks: AsyncIterator[T]) -> AsyncGenerator[T]:
    """Hand on a stream that is closed with this one: LangChain's wrappers leave their inner generators open."""
    try:
        async for chunk in chunks:
            yield chunk
    finally:
        if isinstance(chunks, AsyncGenerator):
            await chunks.aclose()


def in_daemon_thread(function: Callable[[], T], name: str) -> Future[T]:
    """Call a function in a daemon thread of its own, in a copy of the context; return a future of its result.

    Nobody has to wait for what never answers, not even the interpreter at exit.
    """
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001  # passed to the caller that waits for the future
            answer.set_exception(error)

    # in a copy of the context LangChain finds the callbacks of the caller
    threading.Thread(target=copy_context().run, args=(run,), daemon=True, name=name).start()
    return answer


class ClosingMixin(ABC):
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

    def __exit__(self, *error: object) -> None:
        """Close this object."""
        self.close()

    async def __aenter__(self) -> Self:
        """Return this object."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close this object."""
        await self.aclose()


class EventRecorder(BaseCallbackHandler):
    """Callback that keeps the data of custom events by their names, in the order in which they were sent."""

    run_inline = True  # it only keeps references, which needs no thread

    def __init__(self) -> None:
        self.events: defaultdict[str, list[Any]] = defaultdict(list)

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        """Keep the data of an event."""
        self.events[name].append(data)


CONDENSED = "memkit_condense_question"
"""Name of the callback event that reports a condensed question, with the fields of a `StandaloneQuestion`."""


def event(config: RunnableConfig, name: str, data: Mapping[str, object]) -> Step[None]:
    """Send a custom event to callback handlers. Only the event of a rewritten question holds text of a message."""
    return Step(
        lambda: dispatch_custom_event(name, data, config=config),
        lambda: adispatch_custom_event(name, data, config=config),
    )
