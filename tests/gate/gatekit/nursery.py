"""Processes that are forked to write, clear or purge in an app, and killed."""

from __future__ import annotations

import gc
import os
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

from gatekit.derived import SESSION, App
from gatekit.systems import SYSTEMS, Place
from langchain_memkit import WordLlamaEmbeddings, purge_user


class Nursery:
    """Two processes that fork others, and kill them: `forks` makes the two."""

    def __init__(self, forks: Any, system: Any) -> None:
        self._lines, self._processes = [], []
        for _ in range(2):
            line, end = forks.Pipe()
            process = forks.Process(target=_serve, args=(system.name, end))
            process.start()
            end.close()
            self._lines.append(line)
            self._processes.append(process)
        self.run([])  # now they are ready

    def run(self, orders: Sequence[tuple[Any, ...]]) -> list[int]:
        """What `killed` is given, apart from the system; how many steps each had done."""
        for i, line in enumerate(self._lines):
            line.send(orders[i::2])
        done = [line.recv() for line in self._lines]
        return [done[i % 2][i // 2] for i in range(len(orders))]

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the two."""
        for line, process in zip(self._lines, self._processes, strict=True):
            line.send(None)
            process.join(10)
            line.close()


def _serve(system: str, line: Any) -> None:
    warnings.simplefilter("ignore")
    WordLlamaEmbeddings(64).embed_query("warm")  # what is loaded here is not loaded in every fork
    gc.collect()
    gc.freeze()
    while (orders := line.recv()) is not None:
        line.send([killed(system, *order) for order in orders])


def killed(system: str, job: Callable[..., None], place: Place, user: str, delay: float | None) -> int:
    """Forks a process for a job, and kills it so many seconds after it began, if at all; the steps it had done."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            app = App(SYSTEMS[system](), place)
            app.recalled("nobody")  # now clients are connected
            os.write(writer, b".")
            job(app, user, lambda: os.write(writer, b"."))
        finally:
            os._exit(1)
    os.close(writer)
    done = len(os.read(reader, 1))
    if delay is not None:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while some := os.read(reader, 1000):
        done += len(some)
    os.close(reader)
    return done - 1


def write(app: App, user: str, step: Callable[[], Any]) -> None:
    """Turn after turn, each with an entry by title."""
    for n in range(1000):
        app.turn(user, n)
        app.add_book(user, n)
        step()


def clear(app: App, user: str, step: Callable[[], Any] = lambda: None) -> None:
    """Clears the session in every part."""
    app.histories(SESSION, user).clear()
    app.summaries.clear(SESSION, user)
    step()


def clear_history(app: App, user: str, step: Callable[[], Any]) -> None:
    """Clears the transcript alone."""
    app.histories(SESSION, user).clear()
    step()


def purge(app: App, user: str, step: Callable[[], Any]) -> None:
    """Purges a user in every part."""
    purge_user(user, *app.parts)
    step()
