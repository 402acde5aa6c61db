"""Turns per second of the bare driver, the peer and two chains, slice by slice in one process: what R18 compares."""

from __future__ import annotations

import asyncio
import threading
import time
import warnings
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

from gatekit.floor import LAST, Turn, bare_turn, turns_for
from gatekit.load import end_with_the_reader
from gatekit.systems import SYSTEMS, Place, config, echo
from langchain_memkit import VectorMemory, WordLlamaEmbeddings

SESSIONS = USERS = 50  # each user is in one conversation
SLICES, SECONDS = 3, 1.0  # of each system
THINGS = ("parrot", "lighthouse", "violin", "teapot", "bicycle", "harbour", "umbrella", "telescope", "garden", "piano")
BARE, PLAIN, RECALLING, PEER = "bare driver", "chain", "chain with memory", "peer"
EQUAL = "w=majority&journal=true"  # what memkit and the bare driver write with


class Pace(NamedTuple):
    """What a system came to, all slices together."""

    turns: int
    seconds: float

    @property
    def speed(self) -> float:
        """Turns per second."""
        return self.turns / self.seconds


def hold_paces(place: Place, out: Any) -> None:
    """Measures, in a process of its own; sends what each system came to."""
    warnings.simplefilter("ignore")  # of the peer and of what is asked of it
    threading.Thread(target=end_with_the_reader, args=(out.fileno(),), daemon=True).start()
    out.send(asyncio.run(paces(place)))


async def paces(place: Place) -> dict[str, Pace]:
    """The systems in turn, each with the same number of conversations, which all go on since ten turns."""
    names = [f"u{k % USERS}-s{k}" for k in range(SESSIONS)]
    found: dict[str, Pace] = {}
    async with AsyncExitStack() as stack:
        makers: dict[str, Any] = {BARE: bare_turn, PLAIN: _plain, RECALLING: _recalling}
        if place.hosts:  # for files there is no peer
            makers[PEER] = _peer
        turns = {name: await stack.enter_async_context(make(place)) for name, make in makers.items()}
        for turn in turns.values():
            await asyncio.gather(*(_begun(turn, name) for name in names))
        for _ in range(SLICES):
            for name, turn in turns.items():
                started, before = time.perf_counter(), found.get(name, Pace(0, 0.0))
                held = len(await turns_for(turn, names, SECONDS))
                found[name] = Pace(before.turns + held, before.seconds + time.perf_counter() - started)
    return found


async def _begun(turn: Turn, name: str) -> None:
    for number in range(LAST):
        await turn(name, number)


def question(name: str, number: int) -> str:
    """What is asked: of another thing in each turn."""
    return f"{name} {number}: where is the {THINGS[number % len(THINGS)]}?"


@asynccontextmanager
async def _plain(place: Place) -> AsyncIterator[Turn]:
    async with SYSTEMS["memkit"]().histories(place, size=2 * LAST) as histories:
        yield _turn_of(SYSTEMS["memkit"]().chain(echo, histories), "plain")


@asynccontextmanager
async def _recalling(place: Place) -> AsyncIterator[Turn]:
    async with SYSTEMS["memkit"]().histories(place, size=2 * LAST) as histories:
        memories = [VectorMemory.factory(histories, WordLlamaEmbeddings(), max_tokens=200)]
        yield _turn_of(SYSTEMS["memkit"]().chain(echo, histories, memories=memories), "recalling")


@asynccontextmanager
async def _peer(place: Place) -> AsyncIterator[Turn]:
    peer = SYSTEMS["peer"]()
    yield _turn_of(peer.chain(echo, peer.sharing(place.with_options(EQUAL), size=2 * LAST)), "peer")


def _turn_of(chain: Any, kind: str) -> Turn:
    async def turn(name: str, number: int) -> None:
        await chain.ainvoke(question(name, number), config(f"{name}-{kind}", name.split("-")[0]))

    return turn
