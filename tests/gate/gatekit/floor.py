"""The least that a turn costs on this machine in this minute: bare pymongo or sqlite3, many tasks at once."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from pymongo import AsyncMongoClient
from pymongo.write_concern import WriteConcern

from gatekit.systems import Place, echo

LAST = 10  # turns, of two messages each

Turn = Callable[[str, int], Awaitable[None]]  # session, number


@asynccontextmanager
async def bare_turn(place: Place) -> AsyncIterator[Turn]:
    """A turn of the driver alone: the last ten read, the model called without any memory, one inserted durably."""
    if place.kind == "sqlite":
        with closing(sqlite3.connect(f"{place.uri}.floor", isolation_level=None, check_same_thread=False)) as file:
            yield _on_file(file)
        return
    async with AsyncMongoClient(place.uri, appname="floor") as client:
        concern = WriteConcern("majority", j=True)
        turns = client.get_database(place.database).get_collection("floor", write_concern=concern)
        await turns.create_index([("session", 1), ("seq", 1)])
        yield _on_server(turns)


async def bare_turns(place: Place, tasks: int, seconds: float) -> list[float]:
    """How long each of them took."""
    async with bare_turn(place) as turn:
        return await turns_for(turn, [f"s{k}" for k in range(tasks)], seconds)


async def turns_for(turn: Turn, sessions: list[str], seconds: float) -> list[float]:
    """How long each turn took, with all sessions at once for so long."""
    times: list[float] = []
    until = time.monotonic() + seconds

    async def hold(name: str) -> None:
        number = 0
        while time.monotonic() < until:
            started = time.perf_counter()
            await turn(name, number)
            times.append(time.perf_counter() - started)
            number += 1

    await asyncio.gather(*map(hold, sessions))
    return times


def _messages(rows: list[Any]) -> list[Any]:
    return [kind(text) for row in reversed(rows) for kind, text in zip((HumanMessage, AIMessage), row, strict=True)]


def _on_server(turns: Any) -> Turn:
    async def turn(name: str, number: int) -> None:
        rows = await turns.find({"session": name}).sort("seq", -1).limit(LAST).to_list()
        question = HumanMessage(f"{name} {number}: where is the parrot?")
        answer = await echo.ainvoke([*_messages([row["said"] for row in rows]), question])
        await turns.insert_one({"session": name, "seq": time.time_ns(), "said": [question.text, answer.text]})

    return turn


def _on_file(connection: sqlite3.Connection) -> Turn:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS turns (session TEXT, seq INTEGER, said TEXT)")
    connection.execute("CREATE INDEX IF NOT EXISTS turns_session ON turns (session, seq)")
    lock = threading.Lock()

    def run(statement: str, *values: Any) -> list[Any]:
        with lock:
            return connection.execute(statement, values).fetchall()

    async def turn(name: str, number: int) -> None:
        select = "SELECT said FROM turns WHERE session = ? ORDER BY seq DESC LIMIT ?"
        rows = await asyncio.to_thread(run, select, name, LAST)
        question = HumanMessage(f"{name} {number}: where is the parrot?")
        answer = await echo.ainvoke([*_messages([json.loads(said) for (said,) in rows]), question])
        said = json.dumps([question.text, answer.text])
        await asyncio.to_thread(run, "INSERT INTO turns VALUES (?, ?, ?)", name, time.time_ns(), said)

    return turn
