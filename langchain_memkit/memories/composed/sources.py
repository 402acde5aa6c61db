"""Load the parts of a composed memory: how long each may take, and what happens if one fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Any

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable
from langchain_core.runnables.config import ensure_config

from langchain_memkit._sync import Step, call_user_function, gather
from langchain_memkit.base import Memory, check_seconds
from langchain_memkit.errors import ConfigurationError, HistoryReadError
from langchain_memkit.memories.fanout import LOAD_ERROR, OnLoadError, load_failure
from langchain_memkit.memories.retriever import RetrieverMemory
from langchain_memkit.preprocessors.budget import checked_size

__all__ = ["Source", "checked_policy", "load_all", "source_of"]

logger = logging.getLogger("langchain_memkit")


@dataclass(frozen=True, slots=True)
class Source:
    """A memory with limits, as a part of a `ComposedMemory`.

    Attributes:
        memory: The memory, or a retriever; for `ComposedMemory.factory`, a factory of memories.
        max_tokens: Budget of what is shown of it, counted as a note by itself; None for no limit.
        timeout: Seconds that its `load` may take; None for no limit. A late answer is dropped: a sync `load` runs on in
            its thread to the end, but its result is not used.

    Example:
        >>> from langchain_memkit import KeyValueMemory
        >>> Source(KeyValueMemory({"Tea": "At five."}), max_tokens=200, timeout=0.5).timeout
        0.5
    """

    memory: Any
    max_tokens: int | None = None
    timeout: float | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            checked_size(self.max_tokens, "max_tokens", 1)
        check_seconds(self.timeout, "timeout", none="for any time")


def source_of(part: Any, name: str) -> Source:
    """Return a memory, a retriever or a source as a `Source`; `name` is the argument's name for errors."""
    source = part if isinstance(part, Source) else Source(part)
    memory = source.memory
    if isinstance(memory, Memory):
        return source
    if isinstance(memory, Runnable):
        return Source(RetrieverMemory(memory), source.max_tokens, source.timeout)
    msg = f"{name} must be a Memory, a retriever, or a Source of one, not {type(memory).__name__}"
    if callable(memory):
        msg += "; factories of memories are for ComposedMemory.factory(...)"
    elif hasattr(memory, "add_messages"):
        msg += "; a chat history becomes one by ChatHistoryMemory(history)"
    raise ConfigurationError(msg)


def checked_policy(on_load_error: Any) -> OnLoadError:
    """Validate `on_load_error=`."""
    if on_load_error in ("report", "raise") or callable(on_load_error):
        return on_load_error  # type: ignore[no-any-return]  # just looked at
    msg = f"on_load_error must be 'report', 'raise' or a callable, not {on_load_error!r:.50}"
    raise ConfigurationError(msg)


async def load_all(sources: Sequence[Source], query: str, on_load_error: OnLoadError) -> list[list[BaseMessage]]:
    """Load all sources for a query, concurrently on an event loop; one that fails yields `[]` and is reported."""
    results = await gather([_loading(source, query) for source in sources])
    loaded: list[list[BaseMessage]] = []
    for source, result in zip(sources, results, strict=True):
        if isinstance(result, ConfigurationError):  # a developer's mistake, which would fail in every turn
            raise result
        if isinstance(result, Exception):
            await _left_out(source.memory, result, on_load_error)
        loaded.append([] if isinstance(result, Exception) else result)
    return loaded


def _loading(source: Source, query: str) -> Step[list[BaseMessage]]:
    memory, seconds = source.memory, source.timeout
    if seconds is None:
        return Step(partial(memory.load, query), partial(memory.aload, query))
    late = f"no answer within {seconds:g} s"

    def sync() -> Any:
        answer = _in_thread(partial(memory.load, query))
        try:
            return answer.result(seconds)
        except TimeoutError:
            if answer.done():  # a TimeoutError raised by the memory itself
                raise
            raise HistoryReadError(late) from None

    async def asynchronous() -> Any:
        # A sync-only load gets a thread of its own here too: the loop's executor has few threads, which late loads
        # would block, and the loop waits for them when it shuts down.
        plain = type(memory).aload is Memory.aload
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                loading: Awaitable[Any] = (
                    asyncio.wrap_future(_in_thread(partial(memory.load, query))) if plain else memory.aload(query)
                )
                return await loading
        except TimeoutError:
            if not limit.expired():
                raise
            raise HistoryReadError(late) from None

    return Step(sync, asynchronous)


def _in_thread(call: Callable[[], Any]) -> Future[Any]:
    """Call a function in a daemon thread of its own and return a future of its result.

    Nobody has to wait for it, not even the interpreter at exit.
    """
    answer: Future[Any] = Future()
    answer.set_running_or_notify_cancel()
    context = copy_context()

    def run() -> None:
        try:
            answer.set_result(context.run(call))
        except BaseException as error:  # noqa: BLE001  # passed to the caller that waits for the future
            answer.set_exception(error)

    Thread(target=run, name="memkit-load", daemon=True).start()
    return answer


async def _left_out(memory: Memory, error: Exception, on_load_error: OnLoadError) -> None:
    failure, heard = load_failure(memory, error)
    if on_load_error == "raise":
        raise failure
    await _event(heard)
    if callable(on_load_error):
        await call_user_function(on_load_error, failure, name="on_load_error")
    else:
        logger.warning("left out: %s", failure)


def _event(data: dict[str, Any]) -> Step[None]:
    """Make a step that sends an event to the callback handlers of the current run, if there is one."""

    # Outside a run langchain-core refuses to send custom events.
    def within_a_run() -> bool:
        return getattr(ensure_config().get("callbacks"), "parent_run_id", None) is not None

    def sync() -> None:
        if within_a_run():
            dispatch_custom_event(LOAD_ERROR, data)

    async def asynchronous() -> None:
        if within_a_run():
            await adispatch_custom_event(LOAD_ERROR, data)

    return Step(sync, asynchronous)
