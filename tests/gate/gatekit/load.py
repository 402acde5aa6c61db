"""200 conversations at once on one event loop: what R18 runs in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import re
import select
import statistics
import threading
import time
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.runnables import RunnableGenerator

from gatekit.floor import bare_turns
from gatekit.systems import SYSTEMS, Place, config, split_turns
from langchain_memkit import VectorMemory, WordLlamaEmbeddings, create_trim_preprocessor
from langchain_memkit.messages.notes import is_note

SESSIONS, USERS = 200, 20
NAMES = re.compile(r"u\d+-s\d+")
THINGS = ("parrot", "lighthouse", "violin", "teapot", "bicycle", "harbour", "umbrella", "telescope", "garden", "piano")
MIX = {"ainvoke": 40, "astream": 40, "recall": 8, "tail": 6, "list": 4, "clear": 2}  # of a hundred steps
TICK = 0.02  # seconds between two looks at the event loop
FLOOR = 1.0  # seconds of each of the two runs of the floor


class Load:
    """The conversations, what they should hold, and what was measured."""

    def __init__(self, place: Place) -> None:
        system = SYSTEMS["memkit"]()
        self.histories: Any = system.histories(place)
        self.memories = VectorMemory.factory(self.histories, WordLlamaEmbeddings(), max_tokens=200)
        self.chain = system.chain(
            RunnableGenerator(_never, self._answer),
            self.histories,
            preprocessor=create_trim_preprocessor(max_tokens=400),
            memories=[self.memories],
        )
        self.said: dict[str, list[str]] = {f"u{k % USERS}-s{k}": [] for k in range(SESSIONS)}  # since the last clear
        self.wrong: list[str] = []
        self.errors: list[str] = []
        self.seconds: dict[str, list[float]] = {}  # of each kind of step
        self.lags: list[float] = []

    async def run(self, seconds: float) -> None:
        """All conversations at once for so long."""
        self.seconds, self.lags = {kind: [] for kind in MIX}, []
        until = time.monotonic() + seconds
        await asyncio.gather(self._watch(until), *(self._converse(session, until) for session in self.said))

    async def _watch(self, until: float) -> None:
        while time.monotonic() < until:
            started = time.perf_counter()
            await asyncio.sleep(TICK)
            self.lags.append(time.perf_counter() - started - TICK)

    async def _converse(self, session: str, until: float) -> None:
        chance = random.Random()
        while time.monotonic() < until:
            (kind,) = chance.choices(list(MIX), list(MIX.values()))
            started = time.perf_counter()
            try:
                await self._step(kind, session, f"where is the {chance.choice(THINGS)} {chance.randrange(1000)}?")
            except Exception as error:
                self.errors.append(f"{kind} of {session}: {error!r}"[:300])
            self.seconds[kind].append(time.perf_counter() - started)

    async def _step(self, kind: str, session: str, text: str) -> None:
        user, said = session.split("-")[0], self.said[session]
        question = f"{session} {len(said) // 2}: {text}"
        history, memory = self.histories(session, user), self.memories(session, user)
        if kind == "recall":
            self._check_notes(session, await memory.aload(question))
        elif kind == "tail":
            self._expect(session, "the tail", [m.text for m in await history.atail(max_messages=20)], said[-20:])
        elif kind == "list":
            listed = {info.session_id: info.turns for info in await self.histories.alist_sessions(user)}
            self._expect(session, "the list", [listed.get(session, 0)], [len(said) // 2])
        elif kind == "clear":
            await memory.aclear()
            self.said[session] = []
        else:
            await (self._stream if kind == "astream" else self.chain.ainvoke)(question, config(session, user))
            self.said[session] = [*said, question, f"re: {question}"]

    async def _stream(self, question: str, configured: Any) -> None:
        async for _ in self.chain.astream(question, configured):
            pass

    async def _answer(self, inputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """The model: repeats the question in three pieces, after a look at what it was given."""
        async for messages in inputs:
            *before, question = messages
            session = question.text.split(" ", 1)[0]
            self._check_notes(session, before)
            seen, said = [m.text for m in before if not is_note(m)], self.said[session]
            self._expect(session, "the model's view", seen, said[-len(seen) :] if seen else said[-1:])
            for piece in ("re: ", question.text[:10], question.text[10:]):
                yield AIMessageChunk(content=piece)
                await asyncio.sleep(0)

    def _expect(self, session: str, what: str, seen: list[Any], expected: list[Any]) -> None:
        if seen != expected:
            self.wrong.append(f"{session}: {what} ends with {seen[-1:]}, not {expected[-1:]}")

    def _check_notes(self, session: str, messages: list[BaseMessage]) -> None:
        user = session.split("-")[0]
        noted = {name for m in messages if is_note(m) for name in NAMES.findall(m.text)}
        self._expect(session, "a note", sorted(name for name in noted if name.split("-")[0] != user), [])

    async def read_back(self) -> tuple[int, int]:
        """What is stored at the end: messages that are lost, void or out of order, and split turns."""
        lost = split = 0
        for session, said in self.said.items():
            found = [m.text for m in await self.histories(session, session.split("-")[0]).aget_messages()]
            lost += max(len(set(said) ^ set(found)), int(found != said))
            split += len(split_turns(found))
        return lost, split


def _never(inputs: Iterator[Any]) -> Iterator[Any]:
    raise AssertionError("the model was called by sync code")
    yield from inputs


def resident() -> float:
    """Memory of this process in MB, after a collection."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def percentile(seconds: list[float], percent: int) -> float:
    """In ms."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1000


def hold_conversations(place: Place, warm: float, seconds: float, out: Any) -> None:
    """Runs the load between two runs of the floor; sends the figures."""
    warnings.simplefilter("ignore")  # what fails counts, what libraries say does not
    threading.Thread(target=end_with_the_reader, args=(out.fileno(),), daemon=True).start()
    out.send(asyncio.run(_measured(place, warm, seconds)))


def end_with_the_reader(pipe: int) -> None:
    """Ends this process when nobody is left to read what it sends: the parent was killed."""
    poll = select.poll()
    poll.register(pipe, 0)  # an error is reported in any case
    poll.poll()
    os._exit(1)


async def _measured(place: Place, warm: float, seconds: float) -> dict[str, Any]:
    load = Load(place)
    bare = await bare_turns(place, SESSIONS, FLOOR)
    await load.run(warm)
    before = resident()
    await load.run(seconds)
    grown = resident() - before
    bare += await bare_turns(place, SESSIONS, FLOOR)
    turns = load.seconds["ainvoke"] + load.seconds["astream"]
    lost, split = await load.read_back()
    await load.histories.aclose()
    return {
        "errors": load.errors,
        "wrong": load.wrong,
        "lost": lost,
        "split": split,
        "steps": {kind: len(times) for kind, times in load.seconds.items()},
        "p50": percentile(turns, 50),
        "p99": percentile(turns, 99),
        "lag": percentile(load.lags, 99),
        "grown": grown,
        "bare p50": percentile(bare, 50),
        "bare p99": percentile(bare, 99),
    }
