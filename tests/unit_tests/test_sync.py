"""One body of logic for both call styles: flows, operations, drivers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from langchain_memkit._sync import (
    Flow,
    Operation,
    Step,
    adrive,
    as_step,
    call_user_function,
    cpu_bound,
    drive,
    drive_in_thread,
    gather,
    shielded,
)
from langchain_memkit.errors import ConfigurationError

T = TypeVar("T")
Run = Callable[[Flow[Any]], Any]

ROOT = Path(__file__).parents[2]


class Dropped(Exception):  # noqa: N818  # whose end a test waits for
    """An error of an operation."""


class Ends(BaseException):
    """What no `except Exception` takes, like Ctrl-C."""


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """Drive a flow of steps in each call style."""
    return drive if request.param == "sync" else lambda flow: asyncio.run(adrive(flow))


def step(function: Callable[[], T]) -> Step[T]:
    """Return a step that does the same in both styles."""

    async def asynchronous() -> T:
        await asyncio.sleep(0)
        return function()

    return Step(function, asynchronous)


def failing(error: BaseException) -> Step[None]:
    """Return a step that raises."""

    def fail() -> None:
        raise error

    return step(fail)


# -- results and errors


def test_results_arrive_at_the_await(run: Run) -> None:
    """An operation's result is the value of its await, through flows that await flows."""

    async def inner(number: int) -> int:
        return await step(lambda: number + 1) + await step(lambda: number + 2)

    async def outer() -> list[int]:
        return [await inner(1), await inner(10)]

    assert run(outer()) == [5, 23]


def test_a_flow_without_operations_returns(run: Run) -> None:
    """A flow need not await anything."""

    async def flow() -> str:
        return "at once"

    assert run(flow()) == "at once"


def test_an_error_is_raised_at_its_await(run: Run) -> None:
    """A flow may catch what an operation raised and go on."""

    async def flow() -> str:
        try:
            await failing(Dropped())
        except Dropped:
            return await step(lambda: "caught")
        return "never"

    assert run(flow()) == "caught"


def test_an_error_leaves_the_flow_without_a_context_of_ours(run: Run) -> None:
    """What a flow raises anew has the operation's error as its context, and that one has none."""

    async def flow() -> None:
        try:
            await failing(Dropped("first"))
        except Dropped as error:
            raise LookupError from error

    with pytest.raises(LookupError) as caught:
        run(flow())
    assert isinstance(caught.value.__context__, Dropped)
    assert caught.value.__context__.__context__ is None


def test_an_error_after_a_caught_one_has_no_context(run: Run) -> None:
    """An error that was dealt with does not stick to the next one."""

    async def flow() -> None:
        with suppress(Dropped):
            await failing(Dropped())
        await failing(LookupError())

    with pytest.raises(LookupError) as caught:
        run(flow())
    assert caught.value.__context__ is None


def test_an_error_goes_with_its_last_user() -> None:
    """A driver keeps neither the error nor what its traceback holds: no garbage collection is needed."""

    def fail() -> None:
        raise Dropped

    async def flow() -> None:
        try:
            await step(fail)
        except Dropped as error:
            seen.append(weakref.ref(error))
            raise

    seen: list[Any] = []
    with suppress(Dropped):
        drive(flow())
    assert seen[0]() is None


@pytest.mark.parametrize("where", ["flow", "operation"])
def test_stop_iteration_is_no_result(run: Run, where: str) -> None:
    """A StopIteration that nobody catches is a RuntimeError, never a value."""

    async def flow() -> str:
        if where == "flow":
            raise StopIteration("value")
        await failing(StopIteration("value"))
        return "never"

    with pytest.raises(RuntimeError, match="raised StopIteration"):
        run(flow())


def test_a_stop_iteration_of_an_operation_can_be_dealt_with(run: Run) -> None:
    """A user's function that raises StopIteration is a failure at the await like others."""

    async def flow() -> str:
        try:
            await failing(StopIteration())
        except Exception as error:  # the one or the other, by the interpreter
            return f"caught {type(error).__name__}"
        return "never"

    assert run(flow()) == "caught RuntimeError"


# -- what is refused


def test_a_coroutine_of_asyncio_in_a_flow_is_refused(run: Run) -> None:
    """What asyncio would do is not done in sync code, so it is refused in both styles, with the way out."""

    async def flow() -> None:
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match=r"can await flows and steps only.*wrap the call in Step"):
        run(flow())


async def test_a_flow_without_a_driver_is_refused() -> None:
    """Awaiting a flow on an event loop without `adrive` is refused by asyncio."""

    async def flow() -> None:
        await step(lambda: None)

    with pytest.raises(RuntimeError, match="Step"):
        await asyncio.ensure_future(flow())


def test_a_flow_that_is_never_driven_fails_its_test(tmp_path: Path) -> None:
    """The settings of our tests make an error of it: a lost `await` would skip what it is about."""
    lost = tmp_path / "test_lost.py"
    lost.write_text(
        "async def flow():\n    pass\n\ndef test_lost():\n    flow()\n\nasync def test_driven():\n    await flow()\n"
    )
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    command += ["--disable-plugin-autoload", "-p", "pytest_asyncio.plugin"]  # loading those of others takes seconds
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", str(lost)], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "was never awaited" in done.stdout


# -- being broken off


class Trace:
    """What a flow went through."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def flow(self, operation: Operation[Any]) -> None:
        """Wait for an operation, and note how that ended."""
        try:
            await operation
        except BaseException as error:
            self.seen.append(type(error).__name__)
            raise
        finally:
            self.seen.append("finally")

    async def outer(self, operation: Operation[Any]) -> None:
        """Do the same within a flow that catches errors."""
        try:
            await self.flow(operation)
        except Exception:  # must not catch what ends the flow
            self.seen.append("caught")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Ends])
def test_ctrl_c_closes_a_flow(error: type[BaseException]) -> None:
    """What is no Exception goes through the driver; the flow is closed before the caller knows."""
    trace = Trace()
    with pytest.raises(error):
        drive(trace.outer(failing(error())))
    assert trace.seen == ["GeneratorExit", "finally"]


async def test_a_cancelled_task_closes_its_flow() -> None:
    """Cancelling reaches the operation; the flow is closed, and is not resumed with the cancellation."""

    async def wait() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            trace.seen.append("operation cancelled")
            raise

    trace, began = Trace(), asyncio.Event()
    task = asyncio.create_task(adrive(trace.outer(Step(lambda: None, wait))))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert trace.seen == ["operation cancelled", "GeneratorExit", "finally"]


async def test_a_cancellation_that_an_operation_raises_ends_the_flow() -> None:
    """A CancelledError without a cancelled task is no error that a flow deals with either."""
    trace = Trace()
    with pytest.raises(asyncio.CancelledError):
        await adrive(trace.outer(failing(asyncio.CancelledError())))
    assert trace.seen == ["GeneratorExit", "finally"]


async def test_a_time_limit_ends_a_flow() -> None:
    """`asyncio.timeout` around a driver closes the flow and becomes a TimeoutError."""
    trace = Trace()

    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(adrive(trace.outer(Step(lambda: None, wait))), 0.01)
    assert trace.seen == ["GeneratorExit", "finally"]


def test_a_flow_is_driven_once(run: Run) -> None:
    """A flow that was driven cannot be driven again: nothing is done twice by mistake."""

    async def flow() -> int:
        return await step(lambda: 1)

    once = flow()
    assert run(once) == 1
    with pytest.raises(RuntimeError, match="already awaited"):
        run(once)


# -- in a thread


async def test_a_flow_in_a_thread_returns_and_raises() -> None:
    """A flow driven by a worker thread gives its result or its error to the loop."""

    async def flow(error: Exception | None) -> int:
        if error:
            await failing(error)
        return await step(threading.get_ident)

    assert await drive_in_thread(flow(None), drive) != threading.get_ident()
    with pytest.raises(Dropped):
        await drive_in_thread(flow(Dropped()), drive)


async def test_a_flow_whose_thread_has_not_begun_never_begins() -> None:
    """A caller that is cancelled while all threads are busy leaves nothing behind: no call, and no warning."""

    async def flow() -> None:
        called.append(1)

    called: list[int] = []
    loop, release = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = asyncio.create_task(asyncio.to_thread(release.wait))
    await asyncio.sleep(0)
    task = asyncio.create_task(drive_in_thread(flow(), drive))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    await busy
    await asyncio.to_thread(lambda: None)  # whatever stood in the queue before has been taken
    assert called == []


async def test_a_flow_whose_thread_has_begun_goes_on() -> None:
    """Cancelling does not stop a thread: what it does is done to the end."""

    def work() -> None:
        began.set()
        release.wait(60)

    async def flow() -> None:
        await step(work)
        done.set()

    began, release, done = threading.Event(), threading.Event(), threading.Event()
    task = asyncio.create_task(drive_in_thread(flow(), drive))
    await asyncio.to_thread(began.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not done.is_set()
    release.set()
    assert await asyncio.to_thread(done.wait, 10)


# -- shielded


async def test_a_shielded_flow_is_finished() -> None:
    """The caller is cancelled in the middle of a save: it learns that when the save is done."""

    async def slow() -> None:
        began.set()
        await release.wait()

    async def save() -> None:
        await Step(lambda: None, slow)
        stored.append(1)

    began, release = asyncio.Event(), asyncio.Event()
    stored: list[int] = []
    task = asyncio.create_task(shielded(save))
    await began.wait()
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stored == [1]


@pytest.mark.parametrize("begun", [False, True], ids=["before it begins", "while it waits"])
def test_a_shielded_flow_is_made_again_by_a_loop_that_shuts_down(begun: bool) -> None:
    """A loop that ends cancels the save itself; it is done then, from its beginning, and no flow is left over."""

    async def turn(save: Callable[[], Flow[None]]) -> None:
        await shielded(save)

    async def wait() -> None:
        tries.append(1)
        await asyncio.sleep(0.01 if len(tries) > 1 else 10)

    async def save() -> None:
        await Step(lambda: None, wait)
        stored.append(1)

    async def main() -> None:
        task = asyncio.create_task(turn(save))
        for _ in range(3 if begun else 1):
            await asyncio.sleep(0)
        assert bool(tries) is begun
        left.append(task)

    tries: list[int] = []
    stored: list[int] = []
    left: list[Any] = []
    asyncio.run(main())  # cancels what is left
    assert left[0].cancelled()
    assert stored == [1]


# -- steps


def test_gather_gives_results_and_errors_in_order(run: Run) -> None:
    """Each step's result, or its error in its place."""

    async def flow() -> Sequence[Any]:
        return await gather([step(lambda: 1), failing(Dropped("2")), step(lambda: 3)])

    first, error, third = run(flow())
    assert (first, repr(error), third) == (1, "Dropped('2')", 3)


async def test_gather_does_steps_at_once() -> None:
    """On an event loop the steps wait for each other without an end if they were done in turn."""
    one, other = asyncio.Event(), asyncio.Event()

    def meets(mine: asyncio.Event, theirs: asyncio.Event) -> Step[str]:
        async def meet() -> str:
            mine.set()
            await asyncio.wait_for(theirs.wait(), 60)
            return "met"

        return Step(lambda: "", meet)

    async def flow() -> list[Any]:
        return await gather([meets(one, other), meets(other, one)])

    assert await adrive(flow()) == ["met", "met"]


def test_gather_does_not_keep_what_ends_a_program() -> None:
    """A KeyboardInterrupt in one of several steps is raised, not given as a result."""

    async def flow() -> None:
        await gather([step(lambda: 1), failing(KeyboardInterrupt())])

    with pytest.raises(KeyboardInterrupt):
        drive(flow())


def test_a_flow_as_a_step_is_made_when_it_is_performed(run: Run) -> None:
    """A flow can stand among steps; if nobody performs the step there is no flow that waits for ever."""

    async def inner() -> int:
        return await step(lambda: 7)

    async def flow() -> Sequence[Any]:
        as_step(inner)
        return await gather([as_step(inner), as_step(inner)])

    assert run(flow()) == [7, 7]


async def test_a_gathered_flow_that_is_cancelled_before_it_begins_is_not_left_over() -> None:
    """A task that never began has not made its flow, so nothing warns."""

    async def inner() -> int:
        return await step(lambda: 7)

    async def flow() -> Sequence[Any]:
        return await gather([as_step(inner), failing(asyncio.CancelledError())])

    task = asyncio.create_task(adrive(flow()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_long_work_leaves_the_loop() -> None:
    """Long work runs in a thread on an event loop, short work at once."""

    async def flow(*, long: bool) -> int:
        return await cpu_bound(threading.get_ident, long=long)

    assert await adrive(flow(long=True)) != threading.get_ident()
    assert await adrive(flow(long=False)) == threading.get_ident()


def test_a_users_function_is_called_in_both_styles(run: Run) -> None:
    """A plain function of a user's is called with its arguments."""

    async def flow() -> int:
        result: int = await call_user_function(lambda a, b: a + b, 1, 2, name="add")
        return result

    assert run(flow()) == 3


def test_an_async_function_of_a_users_needs_the_async_style() -> None:
    """A user's async function is awaited on an event loop and refused in sync code, with the way out."""

    async def add(a: int, b: int) -> int:
        return a + b

    async def flow() -> Any:
        return await call_user_function(add, 1, 2, name="add")

    assert asyncio.run(adrive(flow())) == 3
    with pytest.raises(ConfigurationError, match="add is async, so use the async verbs"):
        drive(flow())


# -- operations of one's own


class Get(Operation[str]):
    """An operation of a backend: the value of a key."""

    def __init__(self, key: str) -> None:
        self.key = key


def test_a_backend_performs_operations_of_its_own() -> None:
    """A driver takes what performs them: one flow, whatever the connection is."""

    async def flow() -> str:
        return await Get("name") + "!"

    async def aperform(get: Get) -> str:
        await asyncio.sleep(0)
        return stored[get.key]

    stored = {"name": "Nemo"}
    perform: Callable[[Get], str] = lambda get: stored[get.key]  # noqa: E731
    later: Callable[[Get], Awaitable[str]] = aperform
    assert (drive(flow(), perform), asyncio.run(adrive(flow(), later))) == ("Nemo!", "Nemo!")
