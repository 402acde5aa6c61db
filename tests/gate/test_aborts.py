"""A call that is closed, cancelled or interrupted, before, during and after the model and during the save."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from contextlib import aclosing
from typing import Any

import pytest
from gatekit.systems import Place, config
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.runnables import RunnableGenerator, RunnableLambda

WORDS = ["one ", "two ", "three "]
YIELDED = {"before": 0, "during": 2, "after": 3}
SAID = {"before": [], "during": ["q", "one two "], "after": ["q", "one two three "]}


def speaker(moment: str, reached: Any, interrupt: bool = False) -> Any:
    """A streaming model that says what the moment asks for, then waits, or is interrupted by Ctrl-C."""

    def transform(inputs: Any) -> Any:
        for _ in inputs:
            pass
        for word in WORDS[: YIELDED[moment]]:
            yield AIMessageChunk(content=word, chunk_position="last" if word == WORDS[-1] else None)
        if interrupt:
            raise KeyboardInterrupt

    async def atransform(inputs: Any) -> Any:
        async for _ in inputs:
            pass
        for word in WORDS[: YIELDED[moment]]:
            yield AIMessageChunk(content=word, chunk_position="last" if word == WORDS[-1] else None)
        reached.set()
        await asyncio.sleep(30)

    return RunnableGenerator(transform, atransform)


def close_stream(chain: Any, count: int) -> None:
    """A consumer that stops after `count` chunks."""
    stream = chain.stream("q", config("s1"))
    for _ in range(count):
        next(stream)
    stream.close()


def interrupt_stream(chain: Any, count: int) -> None:
    """Ctrl-C arrives while the model streams."""
    with pytest.raises(KeyboardInterrupt):
        list(chain.stream("q", config("s1")))


async def aclose_stream(chain: Any, count: int, reached: Any) -> None:
    """The async consumer that stops."""
    async with aclosing(chain.astream("q", config("s1"))) as stream:
        for _ in range(count):
            await anext(stream)
        if not count:  # it stops while the model has said nothing yet
            first = asyncio.ensure_future(anext(stream))
            await asyncio.wait_for(reached.wait(), 10)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first


async def cancel_stream(chain: Any, count: int, reached: Any) -> None:
    """The consumer's task is cancelled."""

    async def consume() -> None:
        async for _ in chain.astream("q", config("s1")):
            pass

    task = asyncio.create_task(consume())
    await asyncio.wait_for(reached.wait(), 10)
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


WAYS = ["close", "interrupt", "aclose", "cancel"]
STOPS = [  # a generator that runs cannot be closed by anybody: what stops it before its first chunk is an interrupt
    pytest.param(how, moment, id=f"{how}-{moment}")
    for how in WAYS
    for moment in YIELDED
    if (how, moment) != ("close", "before")
]


@pytest.mark.gate(row=12)
@pytest.mark.parametrize(("how", "moment"), STOPS)
def test_stopped_stream(how: str, moment: str, place: Place, system: Any) -> None:
    """What was yielded is stored, marked, however the stream is stopped; nothing yielded, nothing stored.

    The peer has no marks: of an answer that was not said to its last chunk it may leave nothing, but no part.
    """
    histories = system.histories(place)

    async def go() -> None:
        reached = asyncio.Event()
        chain = system.chain(speaker(moment, reached), histories)
        await (aclose_stream if how == "aclose" else cancel_stream)(chain, YIELDED[moment], reached)

    if how in ("aclose", "cancel"):
        asyncio.run(go())
    else:
        chain = system.chain(speaker(moment, None, how == "interrupt"), histories)
        (close_stream if how == "close" else interrupt_stream)(chain, YIELDED[moment])
    stored = histories("s1").messages
    said = [message.text for message in stored]
    expected = [] if moment == "during" and system.name == "peer" else SAID[moment]
    assert said == expected, f"stored {said}, not {expected}"
    assert all(type(message) is not AIMessageChunk for message in stored)
    if stored and system.name == "memkit":
        assert stored[-1].response_metadata["memkit_status"] == "aborted"


@pytest.mark.gate(row=12, memkit_only=True)
@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_stopped_stream_discarded(how: str, place: Place, system: Any) -> None:
    """With on_abort="discard" a stopped stream leaves nothing, in every style."""
    histories = system.histories(place)

    async def go() -> None:
        reached = asyncio.Event()
        chain = system.chain(speaker("during", reached), histories, on_abort="discard")
        await (aclose_stream if how == "aclose" else cancel_stream)(chain, 2, reached)

    if how in ("aclose", "cancel"):
        asyncio.run(go())
    else:
        chain = system.chain(speaker("during", None, how == "interrupt"), histories, on_abort="discard")
        (close_stream if how == "close" else interrupt_stream)(chain, 2)
    assert histories("s1").messages == []


@pytest.mark.gate(row=12)
@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
def test_stopped_before_the_answer(style: str, place: Place, system: Any) -> None:
    """A call that is interrupted or cancelled while the model thinks leaves nothing."""
    histories = system.histories(place)

    def think(_: Any) -> AIMessage:
        raise KeyboardInterrupt

    async def athink(_: Any) -> AIMessage:
        started.set()
        await asyncio.sleep(30)
        return AIMessage("never")

    async def go() -> None:
        task = asyncio.create_task(chain.ainvoke("q", config("s1")))
        await asyncio.wait_for(started.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    started = asyncio.Event()
    chain = system.chain(RunnableLambda(think, athink), histories)
    if style == "invoke":
        with pytest.raises(KeyboardInterrupt):
            chain.invoke("q", config("s1"))
    else:
        asyncio.run(go())
    assert histories("s1").messages == []


@pytest.mark.gate(row=12)
@pytest.mark.parametrize("style", ["invoke", "stream", "ainvoke", "astream"])
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_stopped_during_the_save(style: str, place: Place, wire: Any, system: Any) -> None:
    """A save that has begun is whole or nothing: cancelled and interrupted while the insert is on its way."""
    system.history(wire.place, "s1").add_user_message("before")
    chain = system.chain(RunnableLambda(lambda _: AIMessage("answer")), system.histories(wire.place))
    saving = threading.Event()

    def slow(name: str) -> None:
        if name == "insert":
            saving.set()
            time.sleep(0.15)

    async def consume() -> None:
        if style == "ainvoke":
            await chain.ainvoke("q", config("s1"))
        else:
            async for _ in chain.astream("q", config("s1")):
                pass

    async def go() -> None:
        task = asyncio.create_task(consume())
        assert await asyncio.to_thread(saving.wait, 10)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def interrupt() -> None:
        if saving.wait(10):
            time.sleep(0.03)
            os.kill(os.getpid(), signal.SIGINT)

    wire.on_command = slow
    if style in ("invoke", "stream"):
        threading.Thread(target=interrupt, daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            if style == "invoke":
                chain.invoke("q", config("s1"))
            else:
                list(chain.stream("q", config("s1")))
            time.sleep(0.5)
    else:
        asyncio.run(go())
    wire.on_command = lambda name: None
    time.sleep(0.3)  # what is on its way arrives
    said = [message.text for message in system.history(place, "s1").messages]
    whole = ["before", "q", "answer"]
    assert said in ([["before"], whole] if style in ("invoke", "stream") else [whole])
