"""Call styles, for tests that run in each of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from langchain_memkit._sync import adrive, drive

Call: TypeAlias = Callable[..., Any]

ITERATORS = ("iter_", "yield_")


def call_sync(target: object, name: str, *args: object, **kwargs: object) -> object:
    """Call a method, run a flow or read a property of a history or store; iterators are returned as lists."""
    member = getattr(target, name)
    if not callable(member):
        return member
    result = member(*args, **kwargs)
    if inspect.iscoroutine(result):
        return drive(result)
    return list(result) if name.startswith(ITERATORS) else result


async def call_async(target: object, name: str, *args: object, **kwargs: object) -> object:
    """Call the async twin of a method or property, or run a flow; iterators are returned as lists."""
    twin = "aget_messages" if name == "messages" else f"a{name}"
    if inspect.iscoroutinefunction(getattr(target, name, None)):
        return await adrive(getattr(target, name)(*args, **kwargs))
    result = getattr(target, twin)(*args, **kwargs)
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
