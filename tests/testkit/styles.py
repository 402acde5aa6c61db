"""A call of a runnable in each of its styles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from itertools import islice
from typing import Any, TypeAlias

from langchain_core.runnables import Runnable, RunnableConfig

AnyRunnable: TypeAlias = Runnable[Any, Any]


class Styles:
    """A call in one of the four styles invoke, ainvoke, stream and astream; `stop_after` closes a stream early."""

    def __init__(self, style: str) -> None:
        self.asynchronous = style.startswith("a")
        self.streams = style.endswith("stream")

    def __call__(self, chain: AnyRunnable, value: object, config: RunnableConfig, stop_after: int | None = None) -> Any:
        """Return the output, or the list of chunks of a stream."""
        if self.asynchronous:
            return asyncio.run(self._acall(chain, value, config, stop_after))
        if not self.streams:
            return chain.invoke(value, config)
        stream = chain.stream(value, config)
        assert isinstance(stream, Generator)
        with closing(stream):
            return list(islice(stream, stop_after))

    async def _acall(self, chain: AnyRunnable, value: object, config: RunnableConfig, stop_after: int | None) -> object:
        if not self.streams:
            return await chain.ainvoke(value, config)
        chunks, stream = [], chain.astream(value, config)
        assert isinstance(stream, AsyncGenerator)
        async with aclosing(stream):
            async for chunk in stream:
                chunks.append(chunk)
                if len(chunks) == stop_after:
                    break
        return chunks
