"""What histories cost that are kept: connections on the servers and threads in the process."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any

from langchain_mongodb import MongoDBChatMessageHistory as PeerHistory
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from benchmarks.systems import conversation
from langchain_memkit import MongoDBChatMessageHistory


def kept_histories(uris: dict[str, str], hosts: tuple[str, ...], count: int) -> Iterator[dict[str, Any]]:
    """Makes histories from a connection string, as both packages document it, and uses each once.

    In a process of its own, so that what it leaves behind disturbs no other measurement.

    Args:
        uris: The connection string of each system, in the order in which they are measured.
        hosts: Every node of the deployment.
        count: How many histories.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        for system, uri in uris.items():
            yield {"system": system, **process.submit(_count, system, uri, hosts, count).result()}


def _count(system: str, uri: str, hosts: tuple[str, ...], count: int) -> dict[str, Any]:
    cls: Any = MongoDBChatMessageHistory if system == "memkit" else PeerHistory
    with ExitStack() as stack:
        observers = [
            stack.enter_context(MongoClient[dict[str, Any]](f"mongodb://{host}/?directConnection=true"))
            for host in hosts
        ]
        before = _connections(observers), threading.active_count()
        kept: list[Any] = []
        result: dict[str, Any] = {}
        try:
            for i in range(count):
                kept.append(cls(uri, f"kept-{i}", database_name=f"kept_{system}"))
                kept[-1].add_messages(conversation(2))
        except PyMongoError as error:  # a small machine may not bear so many: say how far it came
            result["stopped_by"] = type(error).__name__
        time.sleep(1)
        result |= {
            "histories": len(kept),
            "connections": _connections(observers) - before[0],
            "threads": threading.active_count() - before[1],
        }
        for history in kept:
            history.close()
    return result


def _connections(observers: list[MongoClient[dict[str, Any]]]) -> int:
    return sum(observer.admin.command("serverStatus")["connections"]["current"] for observer in observers)
