"""A run ends: with an answer, with an error, or because nobody waits for it any more."""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from itertools import takewhile
from queue import SimpleQueue
from typing import Any
from weakref import finalize

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._flow import Flow, adrive, arun_step, drive, run_step
from langchain_memkit._histories import stored_ids
from langchain_memkit._locks import ForkSafeLock
from langchain_memkit.middleware.claims import Claims, claimed
from langchain_memkit.middleware.run import Run
from langchain_memkit.middleware.runs import Handle
from langchain_memkit.middleware.state import Mark
from langchain_memkit.runnables.saving import UNSAVED, Policy

__all__ = ["failed", "finish", "stopped", "watch", "worker"]

logger = logging.getLogger("langchain_memkit")

NOT_STORED = "an abandoned run was not stored: %s"
PATIENCE = 0.05  # seconds after which it is looked whether an event loop still runs


def finish(
    run: Run,
    policy: Policy,
    state: Mapping[str, Any],
    config: RunnableConfig,
    claims: Claims,
    *,
    elsewhere: Set[str] = frozenset(),
    shared: bool = False,
) -> Flow[Mark]:
    """Stores the turn as the other middleware left it; returns what the state is told.

    Args:
        run: The run.
        policy: Its options.
        state: Of the agent.
        config: Of the call.
        claims: Of the runs at the same time.
        elsewhere: Ids of messages that other runs store.
        shared: Whether other processes may have seen the state meanwhile.
    """
    messages: list[BaseMessage] = list(state["messages"])
    new = yield from _mine(run, run.unstored(run.observe(messages)), elsewhere, shared=shared)
    if not run.mark["skip"]:  # a branch is stored whole
        new = claims.take(run, new)
    new = _with_calls(run, new, messages)
    run.finished = True
    output = {key: state[key] for key in ("messages", "structured_response") if key in state}
    asked = new[: next((i for i, m in enumerate(new) if m.type not in ("human", "system")), len(new))]
    save = policy.save_messages(run.turn(asked, config), new, output) if new else _nothing()
    seq: int | None = yield from claimed(claims, run, new, save)
    end = messages[-1].id if messages else None
    if run.replayed is not None and seq == run.replayed:  # it said the same, so there is no branch
        run.mark = {**run.mark, "skip": run.mark["skip"][:-1]}
    if seq == UNSAVED:  # reported, not raised: the state has it, and the next run stores it
        run.take_failure()
        return run.mark
    return {**run.mark, "done": True, "end": end, "seq": seq or run.mark["seq"]}


def _mine(run: Run, new: list[BaseMessage], elsewhere: Set[str], *, shared: bool) -> Flow[list[BaseMessage]]:
    """Without questions of others that stood unanswered in the state, and without what was stored since."""
    early = {m.id for m in list(takewhile(lambda m: m.type == "human", new))[:-1] if m.id}
    asked = [m.id for m in new if m.id and (shared or m.id in early)]
    if not asked or run.mark["skip"]:
        return new
    told = early & elsewhere
    if run.native:
        told |= yield stored_ids(run.history, asked)
    return [m for m in new if m.id not in told]


def _with_calls(run: Run, new: list[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """With the calls before results that came after the run had been stopped: then they were stored without."""
    late = [m.tool_call_id for m in takewhile(lambda m: isinstance(m, ToolMessage), new) if isinstance(m, ToolMessage)]
    said = [m for m in run.own(messages) if isinstance(m, AIMessage)] if late else []
    calls = [call for m in said for call in m.tool_calls if call["id"] in late]
    return [AIMessage("", tool_calls=calls, id=f"{new[0].id}-calls"), *new] if calls else new


def _nothing() -> Flow[None]:
    return
    yield


def failed(run: Run, policy: Policy, config: RunnableConfig) -> Flow[None]:
    """A model or a tool raised: what `on_model_error` says, once."""
    if run.take_failure():
        asked, _ = run.said(raw=False)
        yield from policy.model_failed(run.turn(asked, config))
        if policy.on_model_error == "save_input":
            run.known |= {m.id for m in asked if m.id}


def stopped(run: Run, policy: Policy, config: RunnableConfig) -> Flow[None]:
    """The run was cancelled in a call: what had been said is kept, as `on_abort` says, once."""
    if not run.finished and run.take_failure():
        yield from _keep(run, policy, config, raw=True)


def _keep(run: Run, policy: Policy, config: RunnableConfig, *, raw: bool) -> Flow[None]:
    asked, said = run.said(raw=raw)
    yield from policy.save_partial(run.turn(asked, config), lambda: said, {"messages": [*asked, *said]})
    run.known |= {m.id for m in (*asked, *said) if m.id}


def watch(handle: Handle, policy: Policy, config: RunnableConfig) -> None:
    """Without a checkpointer nobody can go on with a run that is dropped between its steps: it is stored then.

    Python says so when it collects the run, at any place in any thread, so that nothing may wait there.
    """
    if policy.on_abort == "discard":
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    worker.start()  # it cannot be begun there
    # the rest of the config leads to the graph's channels, which hold the run
    told: RunnableConfig = {"callbacks": config.get("callbacks"), "metadata": config.get("metadata") or {}}
    finalize(handle, _dropped, handle.run, policy, told, loop).atexit = False


def _dropped(run: Run, policy: Policy, config: RunnableConfig, loop: asyncio.AbstractEventLoop | None) -> None:
    if run.finished or run.failing:
        return
    run.failing = True
    # what no other middleware has looked at stays out: perhaps one of them has just refused it
    worker.put(partial(_save, partial(_keep, run, policy, config, raw=False), loop))


def _save(flow: Callable[[], Flow[None]], loop: asyncio.AbstractEventLoop | None) -> None:
    """On the run's event loop; if that ends before the work is done, here: doing it twice stores it once."""
    done = threading.Event()
    if loop is not None and loop.is_running():
        with suppress(RuntimeError):  # closed meanwhile
            loop.call_soon_threadsafe(_begin, flow, done)
        while loop.is_running() and not done.wait(PATIENCE):
            pass
    if not done.is_set():
        drive(flow(), run_step)


_tasks: set[asyncio.Task[None]] = set()


def _begin(flow: Callable[[], Flow[None]], done: threading.Event) -> None:
    async def save() -> None:
        if getattr(asyncio.get_running_loop(), "_executor_shutdown_called", False):  # it is about to end
            return
        try:
            await adrive(flow(), arun_step)
        except Exception as error:  # noqa: BLE001  # nobody is left to receive it
            logger.error(NOT_STORED, error)
        done.set()

    task = asyncio.ensure_future(save())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


class Worker:
    """A thread for what may not be done where Python collects garbage; it begins with the first run that may need it.

    A queue's `put` may be called there, and anything else that waits for a lock may not.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = ForkSafeLock()

    def start(self) -> None:
        """Sees to it that the thread runs, in this process."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, daemon=True, name="memkit-abandoned")
                self._thread.start()

    def put(self, work: Callable[[], None]) -> None:
        """Does this soon."""
        self._work.put(work)

    def wait(self, seconds: float = 5.0) -> None:
        """Ends the thread when it has done all."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive():
            self._work.put(None)
            thread.join(seconds)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:  # noqa: BLE001  # nobody is left to receive it
                logger.error(NOT_STORED, error)


worker = Worker()
atexit.register(worker.wait)
