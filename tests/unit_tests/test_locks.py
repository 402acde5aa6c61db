"""A lock that is held while another thread forks is open in the child."""

from __future__ import annotations

import multiprocessing
import threading
import warnings
from pathlib import Path

from langchain_core.messages import HumanMessage

from langchain_memkit import EntityMemory, SQLiteChatMessageHistory
from langchain_memkit._locks import ForkSafeLock
from langchain_memkit.base import Mention


def in_child(function: object) -> int | None:
    """The exit code of a forked process; None if it hangs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads: the very case
        child = multiprocessing.get_context("fork").Process(target=function)  # type: ignore[arg-type]
        child.start()
    child.join(60)
    if child.is_alive():
        child.kill()
        return None
    return child.exitcode


def while_held(lock: ForkSafeLock, function: object) -> int | None:
    """Runs a function in a child that is forked while another thread holds the lock."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        return in_child(function)
    finally:
        done.set()
        thread.join()


def test_open_in_the_child() -> None:
    """The child takes it at once, after what it guards was made anew; the parent goes on as before."""
    renewed: list[int] = []
    lock = ForkSafeLock(lambda: renewed.append(1))

    def take() -> None:
        with lock:
            assert renewed == [1]

    assert while_held(lock, take) == 0
    assert renewed == []
    with lock:
        pass


def test_an_entity_memory_in_a_forked_worker(tmp_path: Path) -> None:
    """A server that loads the app and then forks: the worker reads and writes, whatever a thread was at."""
    histories = SQLiteChatMessageHistory.factory(tmp_path / "chat.db")
    memory = EntityMemory(histories, lambda text: [Mention("Nemo", "PERSON", 0, 4)], "s1", user_id="u1")
    memory.save([HumanMessage("Nemo swims.", id="1")])

    def work() -> None:
        memory.save([HumanMessage("Nemo sleeps.", id="2")])
        assert len(memory.entities()[0].facts) == 2

    assert while_held(memory._core.log.lock, work) == 0
