"""What the trace of a turn costs: `python -m benchmarks.trace_costs`.

Method. One process, one SQLite file and one standalone mongod on this machine, a prompt, a preprocessor, a history of
40 messages, and a model that answers at once. Turns without a recorder and with one (as always: traced; with
`trace=True`: stored) take turns in one session each, in an order drawn anew, so that a slow minute hits both. CPU is
the process's own, medians of the turns; the ratios are to a turn without. Without a recorder is no option of the
package: the two functions that begin one are replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate

from langchain_memkit import (
    MongoDBChatMessageHistory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    session,
)
from langchain_memkit.runnables import turn
from langchain_memkit.runnables.trace import TurnRecorder
from langchain_memkit.testing import FakeChatModel
from tools.local_mongodb import local_mongodb

PROMPT = ChatPromptTemplate.from_messages(
    [("system", "Be kind."), ("placeholder", "{chat_history}"), ("human", "{input}")]
)
FIRST = 10  # turns that open connections and sessions, and do not count


@contextmanager
def unrecorded() -> Iterator[None]:
    """Turns in the `with` block have a recorder that nobody tells anything."""
    with (
        patch.object(turn, "recorder_of", lambda owner, configurable: TurnRecorder()),
        patch.object(turn, "recorded", lambda recorder, config: config),
    ):
        yield


async def measured(histories: Any, turns: int, style: str, traced: str) -> tuple[float, float]:
    """CPU milliseconds of a turn without a recorder, and of one that is traced or stored."""
    ways = "without", traced
    said = [m for i in range(20) for m in (HumanMessage(f"Day {i} at sea."), AIMessage("Noted."))]
    chains = {}
    for way in ways:
        histories(f"{style} {traced} {way}", "u1").add_messages(said)
        chains[way] = create_runnable_with_message_history(
            PROMPT | FakeChatModel(), histories, preprocessor=create_trim_preprocessor(400), trace=way == "stored"
        )
    times: dict[str, list[float]] = {way: [] for way in ways}
    chance = random.Random(7)
    for i in range(FIRST + turns):
        for way in chance.sample(ways, 2):
            with ExitStack() as stack:
                if way == "without":
                    stack.enter_context(unrecorded())
                config, begin = session(f"{style} {traced} {way}", user_id="u1"), time.process_time()
                if style == "sync":
                    chains[way].invoke({"input": f"Wave {i}."}, config)
                else:
                    await chains[way].ainvoke({"input": f"Wave {i}."}, config)
                times[way].append(time.process_time() - begin)
    without, found = (1000 * median(times[way][FIRST:]) for way in ways)
    return without, found


def main() -> None:
    """Measures, and prints a line of JSON for each store and style."""
    # What memkit tells the authors of an app, once, would stand between the figures.
    logging.getLogger("langchain_memkit").setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=400, help="turns of each chain that are measured")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        uri = stack.enter_context(local_mongodb()).uri
        runner = stack.enter_context(asyncio.Runner())
        stores: dict[str, Any] = {
            "sqlite": SQLiteChatMessageHistory.factory(Path(folder, "chat.db")),
            "mongodb": MongoDBChatMessageHistory.factory(uri),
        }
        for store, histories in stores.items():
            for style, traced in product(("sync", "async"), ("traced", "stored")):
                without, found = runner.run(measured(histories, options.turns, style, traced))
                row = {"store": store, "style": style, "turn": traced, "ratio": round(found / without, 3)}
                print(json.dumps({**row, "cpu_ms": round(found, 3), "without_ms": round(without, 3)}), flush=True)
            histories.close()
            runner.run(histories.aclose())


if __name__ == "__main__":
    main()
