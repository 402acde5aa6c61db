"""Which run stores which message, among runs at the same time: each message is stored by one of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from langchain_core.messages import BaseMessage

from langchain_memkit._flow import Flow
from langchain_memkit.middleware.run import Run
from langchain_memkit.runnables.saving import UNSAVED

__all__ = ["Claims", "claimed"]

MOST = 10_000  # messages: of all runs that are not over, and of the last ones that are


class Claims:
    """Decides between a run that saves what it said and one that finds the same in the state and takes it for left."""

    def __init__(self) -> None:
        self._taken: OrderedDict[tuple[str, int, str], str] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, run: Run, messages: Iterable[BaseMessage]) -> list[BaseMessage]:
        """Of these messages those that no other run has taken; they are this one's from now on."""
        mine: list[BaseMessage] = []
        with self._lock:
            for message in messages:
                owner = self._taken.setdefault(_key(run, message), run.mark["key"]) if message.id else run.mark["key"]
                if owner == run.mark["key"]:
                    mine.append(message)
            while len(self._taken) > MOST:
                self._taken.popitem(last=False)
        return mine

    def give_back(self, run: Run, messages: Iterable[BaseMessage]) -> None:
        """They were not stored after all."""
        with self._lock:
            for message in messages:
                if self._taken.get(_key(run, message)) == run.mark["key"]:
                    del self._taken[_key(run, message)]


def claimed(claims: Claims, run: Run, messages: Sequence[BaseMessage], save: Flow[int | None]) -> Flow[int | None]:
    """A save of what was taken; if it fails, others may have it."""
    stored = False
    try:
        seq = yield from save
        stored = seq != UNSAVED
    finally:
        if not stored:
            claims.give_back(run, messages)
    return seq


def _key(run: Run, message: BaseMessage) -> tuple[str, int, str]:
    """A session that was cleared is another one: the same message may be said in it again."""
    return run.place, run.mark["epoch"], message.id or ""
