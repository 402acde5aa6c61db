"""A sync call on an event loop stops everybody else's: that is said, once, and only where it is so."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.runnables import RunnableLambda

from langchain_memkit import (
    MessageHistoryMiddleware,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
    session,
)
from langchain_memkit._sync import report_blocking
from langchain_memkit.testing import FakeChatModel

HISTORIES = SQLiteChatMessageHistory.factory(":memory:")
CHAT = create_runnable_with_message_history(FakeChatModel(), HISTORIES)
AGENT: Any = create_agent(FakeChatModel(), [], middleware=[MessageHistoryMiddleware(HISTORIES)])
ASKED: Any = {"messages": [("user", "hi")]}
S1 = session("s1")
SYNC: dict[str, Callable[[], Any]] = {
    "invoke": lambda: CHAT.invoke("hi", S1),
    "stream": lambda: list(CHAT.stream("hi", S1)),
    "an agent": lambda: AGENT.invoke(ASKED, S1),
}


@pytest.fixture(autouse=True)
def anew(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """As in a process that has said nothing yet."""
    report_blocking.cache_clear()
    with caplog.at_level(logging.WARNING, "langchain_memkit"):
        yield


@pytest.mark.parametrize("name", SYNC)
async def test_a_sync_call_on_a_loop(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """It works, and is named once, with the way out."""
    for _ in range(3):
        SYNC[name]()
    (record,) = caplog.records
    assert "use the async verbs there (ainvoke, astream)" in record.getMessage()


@pytest.mark.parametrize("name", SYNC)
def test_a_sync_call_without_a_loop(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Scripts, `def` endpoints, which run in threads, and sync steps of async chains are fine."""
    SYNC[name]()
    asyncio.run(asyncio.to_thread(SYNC[name]))
    asyncio.run(RunnableLambda(lambda _: SYNC[name]()).ainvoke("hi"))
    asyncio.run(CHAT.abatch(["hi"], S1))  # type: ignore[arg-type]  # one config for all
    assert caplog.text == ""


async def test_async_calls(caplog: pytest.LogCaptureFixture) -> None:
    """The way out says nothing."""
    await CHAT.ainvoke("hi", S1)
    assert [chunk async for chunk in CHAT.astream("hi", S1)]
    await AGENT.ainvoke(ASKED, S1)
    await asyncio.to_thread(CHAT.batch, ["hi", "ho"], S1)
    assert caplog.text == ""


def test_nobody_has_to_listen() -> None:
    """In a process without a logging set-up the line is on stderr, once."""
    code = """
import asyncio
from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history, session
from langchain_memkit.testing import FakeChatModel
chat = create_runnable_with_message_history(FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"))
async def handler():
    return [chat.invoke("hi", session("s1")).text, chat.invoke("hi", session("s1")).text]
print(asyncio.run(handler()))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.count("use the async verbs") == 1
