"""Work beside the turns: one at a time for each conversation, in a thread or, on an event loop, as a task."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeAlias

from langchain_memkit._sync import Flow, Step, adrive, drive
from langchain_memkit.preprocessors.records import Place

__all__ = ["Background"]

logger = logging.getLogger("langchain_memkit")

Work: TypeAlias = threading.Thread | asyncio.Task[Any]


class Background:
    """What runs for which conversation."""

    def __init__(self) -> None:
        self._running: dict[Place, Work] = {}
        self._lock = threading.Lock()

    def begin(self, place: Place, make_flow: Callable[[], Flow[None]]) -> Step[None]:
        """Make a flow and start it, unless one runs for this conversation."""

        async def work() -> None:
            await adrive(make_flow())

        async def abegin() -> None:
            with self._lock:
                if not self._is_busy(place):
                    task = asyncio.create_task(work(), name="memkit-summary")
                    self._running[place] = task
                    task.add_done_callback(lambda task: self._end(place, task))

        return Step(lambda: self._begin_thread(place, make_flow), abegin)

    def wait(self, match: Callable[[Place], bool] = lambda _: True) -> Step[None]:
        """Waits for what runs for these conversations, as far as it can be waited for: not on another event loop."""

        def found() -> list[Work]:
            with self._lock:
                return [work for place, work in self._running.items() if match(place)]

        def join() -> None:
            for work in found():
                if isinstance(work, threading.Thread):
                    work.join()

        async def ajoin() -> None:
            loop = asyncio.get_running_loop()
            tasks = [w for w in found() if isinstance(w, asyncio.Task) and w.get_loop() is loop]
            if tasks:
                await asyncio.wait(tasks)
            await asyncio.to_thread(join)

        return Step(join, ajoin)

    def _is_busy(self, place: Place) -> bool:
        work = self._running.get(place)
        if isinstance(work, asyncio.Task):
            return not (work.done() or work.get_loop().is_closed())
        return work is not None and work.is_alive()

    def _begin_thread(self, place: Place, make_flow: Callable[[], Flow[None]]) -> None:
        def run() -> None:
            try:
                drive(make_flow())
            finally:
                self._end(place, thread)

        thread = threading.Thread(target=copy_context().run, args=(run,), daemon=True, name="memkit-summary")
        with self._lock:
            if self._is_busy(place):
                return
            try:
                thread.start()
            except RuntimeError as error:  # too many threads, or the interpreter is about to end
                logger.warning("no summary is written in the background: %s", error)
            else:
                self._running[place] = thread

    def _end(self, place: Place, work: Work) -> None:
        with self._lock:
            if self._running.get(place) is work:
                del self._running[place]
