"""More calls at once than a client has connections: they wait for each other, and none fails by waiting."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory, create_runnable_with_message_history
from langchain_memkit.backends.mongodb.bursts import queue_of
from langchain_memkit.testing import FakeChatModel
from tools.local_mongodb import OPTIONS, Node, find_mongod, guarded

TURN = [HumanMessage("My name is Nemo."), AIMessage("Noted.")]
CALLS = 60
SECONDS = 3.0  # for each command: the calls together take three times as long


@pytest.fixture(scope="module")
def slow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that takes 150 ms for each read and write of documents, with a pool of two."""
    folder = tmp_path_factory.mktemp("slow")
    with guarded(folder) as members:
        options = [*OPTIONS, "--setParameter", "enableTestCommands=1"]
        node = Node(find_mongod(folder), folder / "node", options)
        members.append(node)
        node.launch()
        slow = {"failCommands": ["find", "insert"], "blockConnection": True, "blockTimeMS": 150}
        with MongoClient(f"mongodb://{node.host}/") as client:
            client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=slow)
        yield f"mongodb://{node.host}/?maxPoolSize=2"


@pytest.mark.parametrize("style", ["threads", "tasks"])
def test_first_turns_at_once(slow_server: str, database: str, style: str) -> None:
    """Sixty new sessions, by a chain and without one: all are stored, though the last waits far over the time-out."""
    options: Any = {"timeout": SECONDS, "save_timeout": SECONDS}
    with MongoDBChatMessageHistory.factory(slow_server, database, **options) as histories:
        chat = create_runnable_with_message_history(FakeChatModel(), histories)

        def call(n: int) -> None:
            if n % 2:
                chat.invoke(TURN[0].content, {"configurable": {"session_id": f"s{n}"}})
            else:
                histories(f"s{n}").append_turn(TURN)

        async def acall(n: int) -> None:
            if n % 2:
                await chat.ainvoke(TURN[0].content, {"configurable": {"session_id": f"s{n}"}})
            else:
                await histories(f"s{n}").aappend_turn(TURN)

        async def all_of_them() -> None:
            await asyncio.gather(*map(acall, range(CALLS)))
            await histories.aclose()

        if style == "tasks":
            asyncio.run(all_of_them())
        else:
            with ThreadPoolExecutor(CALLS) as pool:
                list(pool.map(call, range(CALLS)))
    with MongoClient(slow_server) as client:
        stored = client[database]["message_store"].aggregate([{"$unwind": "$messages"}, {"$sort": {"session_id": 1}}])
        said = [(d["session_id"], d["messages"]["content"]) for d in stored]
    assert sorted(said) == sorted((f"s{n}", m.content) for n in range(CALLS) for m in TURN)


async def test_cancelled_while_it_waits(slow_server: str, database: str) -> None:
    """A burst that is given up leaves nothing behind: the next call finds its place."""
    with MongoDBChatMessageHistory.factory(slow_server, database, timeout=SECONDS) as histories:
        await histories("s0").aappend_turn(TURN)
        tasks = [asyncio.ensure_future(histories("s0").aget_messages()) for _ in range(CALLS)]
        await tasks[0]
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert any(isinstance(one, asyncio.CancelledError) for one in done)
        assert len(await histories("s0").aget_messages()) == 2
        await histories.aclose()


def _read_in_child(histories: Any, client: Any, said: Any) -> None:
    # the child's client is the parent's, whose sockets it must not use: only the queue is asked
    with queue_of(client).place(SECONDS) as left:
        said.send(left is not None)


@pytest.mark.filterwarnings("ignore:MongoClient opened before fork:UserWarning")
def test_forked_while_all_places_are_taken(slow_server: str, database: str) -> None:
    """A child does not wait for threads that it has not."""
    with MongoDBChatMessageHistory.factory(slow_server, database, timeout=SECONDS) as histories:
        client = histories("s1").client
        queue = queue_of(client)
        forked = multiprocessing.get_context("fork")
        heard, said = forked.Pipe(duplex=False)
        with queue.place(SECONDS), queue.place(SECONDS):
            child = forked.Process(target=_read_in_child, args=(histories, client, said))
            child.start()
            child.join(30)
        assert child.exitcode == 0
        assert heard.recv()
