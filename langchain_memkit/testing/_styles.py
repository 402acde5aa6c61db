"""Call styles, for tests that run in each of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, TypeAlias

import pytest
from langchain_core.runnables import Runnable
from langchain_core.runnables.base import RunnableGenerator

Call: TypeAlias = Callable[..., Any]

ITERATORS = ("iter_", "yield_")


class Styles:
    """A call in one of the four styles invoke, ainvoke, stream and astream; `stop_after` closes a stream early."""

    def __init__(self, style: str) -> None:
        self.asynchronous = style.startswith("a")
        self.streams = style.endswith("stream")

    def __call__(self, chain: Runnable[Any, Any], value: Any, config: Any, stop_after: int | None = None) -> Any:
        """Return the output, or the list of chunks of a stream."""
        if self.asynchronous:
            return asyncio.run(self._acall(chain, value, config, stop_after))
        if not self.streams:
            return chain.invoke(value, config)
        chunks, stream = [], chain.stream(value, config)
        for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == stop_after:
                stream.close()  # type: ignore[attr-defined]  # a generator
                break
        return chunks

    async def _acall(self, chain: Runnable[Any, Any], value: Any, config: Any, stop_after: int | None) -> Any:
        if not self.streams:
            return await chain.ainvoke(value, config)
        chunks = []
        async with aclosing(chain.astream(value, config)) as stream:  # type: ignore[type-var]  # a generator
            async for chunk in stream:
                chunks.append(chunk)
                if len(chunks) == stop_after:
                    break
        return chunks


def streaming(function: Any) -> Any:
    """Make a runnable that streams what the generator function yields for its whole input."""
    if inspect.isasyncgenfunction(function):

        async def atransform(inputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
            async for value in inputs:
                async for chunk in function(value):
                    yield chunk

        return RunnableGenerator(atransform)

    def transform(inputs: Iterator[Any]) -> Iterator[Any]:
        for value in inputs:
            yield from function(value)

    async def in_async(inputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for value in inputs:
            for chunk in function(value):
                yield chunk

    return RunnableGenerator(transform, in_async)


def call_sync(target: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call a method or read a property of a history or store; iterators are returned as lists."""
    member = getattr(target, name)
    if not callable(member):
        return member
    result = member(*args, **kwargs)
    return list(result) if name.startswith(ITERATORS) else result


async def call_async(target: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Call the async twin of a method or property; iterators are returned as lists."""
    if name == "messages":
        return await target.aget_messages()
    result = getattr(target, f"a{name}")(*args, **kwargs)
    return [item async for item in result] if name.startswith(ITERATORS) else await result


class BothStyles:
    """Base class of contracts whose cases run in both styles."""

    @pytest.fixture(params=["sync", "async"])
    def call(self, request: pytest.FixtureRequest) -> Iterator[Call]:
        """Yield `call(store, "mset", ...)` in both styles; `call(history, "messages")` reads; iterators give lists."""
        if request.param == "sync":
            yield call_sync
            return
        with asyncio.Runner() as runner:
            yield lambda target, name, *args, **kwargs: runner.run(call_async(target, name, *args, **kwargs))
