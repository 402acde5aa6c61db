"""A stream that is closed between two steps of its run, or left: stored when Python collects the run."""

from __future__ import annotations

import asyncio
import gc
import logging
from contextlib import aclosing
from typing import Any

import pytest
from agentkit import CONFIG, Scripted, asking, calling, look_up, rows
from langchain.agents import create_agent

from langchain_memkit import MessageHistoryMiddleware
from langchain_memkit.middleware.ending import worker


async def wait_for_rows(history: Any) -> list[list[str]]:
    """The rows as soon as there are any."""
    for _ in range(500):
        if found := rows(history):
            return found
        await asyncio.sleep(0.01)
    return []


@pytest.mark.parametrize("mode", ["updates", "values"])
def test_closed_between_steps(histories: Any, history: Any, checkpointer: Any, mode: Any, stream: Any) -> None:
    """Without a checkpointer, what the state had is stored when Python collects the run; with one the state has it."""
    script = [calling(("look_up", {"word": "a"})), calling(("look_up", {"word": "b"})), "done"]
    agent = create_agent(
        Scripted(script=script), [look_up], middleware=[MessageHistoryMiddleware(histories)], checkpointer=checkpointer
    )

    async def in_async() -> None:
        async with aclosing(agent.astream(asking("q"), CONFIG, stream_mode=mode)) as chunks:
            async for chunk in chunks:
                if "b is a word" in str(chunk):
                    break
        del chunk
        gc.collect()
        await asyncio.sleep(0)
        if not checkpointer:
            await wait_for_rows(history)

    if stream.asynchronous:
        asyncio.run(in_async())
    else:
        chunks = agent.stream(asking("q"), CONFIG, stream_mode=mode)
        for chunk in chunks:
            if "b is a word" in str(chunk):
                break
        chunks.close()
        del chunk, chunks
        gc.collect()
        worker.wait()
    assert [row[:3] for row in rows(history)] == ([] if checkpointer else [["q", "look_up", "a is a word"]])
    if checkpointer:
        agent.invoke(None, CONFIG)
        assert rows(history) == [["q", "look_up", "a is a word", "look_up", "b is a word", "done"]]


def test_left_with_its_loop(histories: Any, history: Any) -> None:
    """An async run that is left when its event loop ends is stored from a thread."""
    script = [calling(("look_up", {"word": "a"})), calling(("look_up", {"word": "b"})), "done"]
    agent = create_agent(Scripted(script=script), [look_up], middleware=[MessageHistoryMiddleware(histories)])

    async def leave() -> None:
        async for chunk in agent.astream(asking("q"), CONFIG, stream_mode="values"):
            if "b is a word" in str(chunk):
                break

    asyncio.run(leave())
    gc.collect()
    worker.wait()
    assert [row[:3] for row in rows(history)] == [["q", "look_up", "a is a word"]]


async def test_fails_when_nobody_is_left(histories: Any, history: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A save that fails when nobody is left is logged."""

    def refuse(messages: Any) -> Any:
        raise ValueError("no")

    agent = create_agent(
        Scripted(script=[calling(("look_up", {"word": "a"})), calling(("look_up", {"word": "b"}))]),
        [look_up],
        middleware=[MessageHistoryMiddleware(histories, before_save=refuse)],
    )
    with caplog.at_level(logging.ERROR):
        chunks = agent.stream(asking("q"), CONFIG, stream_mode="values")
        for chunk in chunks:
            if "b is a word" in str(chunk):
                break
        chunks.close()
        del chunk, chunks
        gc.collect()
        for _ in range(200):
            if caplog.text:
                break
            await asyncio.sleep(0.01)
    assert "was not stored" in caplog.text
    assert rows(history) == []
