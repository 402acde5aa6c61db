"""The runs of a middleware: which one a state belongs to, and which are under way at the same time."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary, ref

from langchain_core.messages import BaseMessage

from langchain_memkit.errors import ConfigurationError
from langchain_memkit.middleware.run import Asked, Run
from langchain_memkit.middleware.state import Mark

__all__ = ["Handle", "Runs", "seen_in"]

SILENT = 0.1  # seconds between two steps, after which it is looked whether a run is over, and not collected yet
LEFT = 64  # runs that broke off when the state had lost a part of what they said
TWICE = (
    "two of this agent's middleware are MessageHistoryMiddleware, so each turn would be stored twice. One can have "
    "several memories; for a second transcript copy the first one."
)
ELSEWHERE = (
    "this run was begun for another user or session. Resume it with the same session_id (or thread_id) and user_id, in "
    "the config or in the runtime context."
)


class Handle(dict[str, Any]):
    """A run in the agent's state. An empty dict, since a stream of updates shows it and may be turned into JSON."""

    def __init__(self, run: Run, invocation: object) -> None:
        super().__init__()
        self.run = run
        self.invocation = ref(invocation) if _is_of_one(invocation) else None

    __hash__ = object.__hash__  # type: ignore[assignment]  # a run is itself, and may be referred to weakly

    def __deepcopy__(self, memo: Any) -> Self:
        """Of a copied state, too, there is one run."""
        return self

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[()]]:
        """Elsewhere it means nothing."""
        return dict, ()


class Runs:
    """Finds the run of a state.

    A run is in the state from its beginning; but where it is taken up after an interrupt no state can be written, and
    LangGraph before 1.2 gives tools a state without what is not checkpointed. Then it is known by its mark, and by the
    stream writer of the runtime, of which there is one for each invocation.
    """

    def __init__(self) -> None:
        self._live: WeakValueDictionary[str, Handle] = WeakValueDictionary()
        self._resumed: WeakKeyDictionary[object, list[Handle]] = WeakKeyDictionary()
        self._asked: WeakSet[Asked] = WeakSet()
        self._left: OrderedDict[str, list[BaseMessage]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, state: Any, place: str, invocation: object) -> Run | None:
        """The run; None if nobody has begun or taken it up in this invocation.

        Args:
            state: Of the agent.
            place: Whose conversation; a copied thread must not find the run of another one.
            invocation: The runtime's stream writer.
        """
        handle = state.get("memkit_run")
        if not isinstance(handle, Handle):
            handle = self._live.get(_key(state.get("memkit_turn"), place))
            if handle is None or handle.invocation is None or handle.invocation() is not invocation:
                return None
        return None if handle.run.finished else handle.run

    def under_way(self, place: str) -> set[str]:
        """Ids of what the runs of this conversation say that are not over, in this process."""

        def look() -> list[Run]:
            with self._lock:
                runs = [handle.run for handle in self._live.values()]
            return [run for run in runs if run.place == place and run.is_live and (run.calls or run.has_spoken)]

        # between two steps it cannot be told from one that waits for a person: what that one said would be lost
        _collect(lambda: any(run.silence for run in look()))
        return {name for run in look() for name in run.names()}

    def asked_elsewhere(self, run: Run) -> set[str]:
        """Of a run's input what a run at the same time brought, and stores: it was in the state, unanswered."""
        mine = run.asked

        def look() -> list[Asked]:
            with self._lock:
                known = [asked for asked in self._asked if asked.place == run.place and not asked.failed]
            # whose last message stands before my last one has brought it, and what is before it is not mine either
            before = [asked for asked in known if mine is not None and asked.ids and asked.ids[-1] in mine.ids[:-1]]
            return [asked for asked in before if (other := asked.run()) is None or other.is_live]

        _collect(lambda: any((other := asked.run()) is not None and other.silence > SILENT for asked in look()))
        return {name for asked in look() for name in asked.ids}

    def announce(self, place: str, ids: Iterable[str]) -> Asked:
        """Says what a run is asked before it has read anything; it counts as long as the result is held."""
        asked = Asked(place, tuple(ids))
        with self._lock:
            self._asked.add(asked)
        return asked

    def take_up(self, state: Any, place: str, invocation: object) -> Run | None:
        """As `find`; else the state's run, if one was begun, taken up as long as this invocation lasts."""
        mark: Mark | None = state.get("memkit_turn")
        with self._lock:
            run = self.find(state, place, invocation)
            if run is None and mark is not None and not mark["done"]:
                if mark["place"] != place:
                    raise ConfigurationError(ELSEWHERE)
                run = Run.taken_up(place, mark, state, self._left.pop(mark["key"], []) or seen_in(state))
                self._keep(mark, run, invocation)
            return run

    def leave(self, run: Run) -> None:
        """Keeps what a run has said that broke off when the state had lost a part of it, for who takes it up."""
        with self._lock:
            self._left[run.mark["key"]] = run.seen
            while len(self._left) > LEFT:
                self._left.popitem(last=False)

    def begin(self, run: Run, invocation: object) -> Handle:
        """Makes what is put into the state."""
        handle = Handle(run, invocation)
        with self._lock:
            self._live[_key(run.mark, run.place)] = handle
        return handle

    def add(self, state: Any, run: Run, invocation: object) -> None:
        """Remembers a run for which no state can be written, as long as this invocation lasts."""
        with self._lock:
            self._keep(state.get("memkit_turn"), run, invocation)

    def _keep(self, mark: Mark | None, run: Run, invocation: object) -> None:
        handle = Handle(run, invocation)
        if handle.invocation is not None:
            self._live[_key(mark, run.place)] = handle
            self._resumed.setdefault(invocation, []).append(handle)


def _collect(doubtful: Callable[[], bool]) -> None:
    """Lets Python collect runs that are over and refer to themselves, as long as there is doubt about one.

    The young generations are quick. A run whose objects had become old, since the process made much while its model
    spoke, is found by a whole collection only: 0.1 s in a process of a million objects, when runs meet on a thread.
    """
    for generation in (1, 2):
        if doubtful():
            gc.collect(generation)


def seen_in(state: Mapping[str, Any]) -> list[BaseMessage]:
    """What a state says that its run has said, once a part of that was taken from it."""
    return list(state.get("memkit_seen") or [])


def _is_of_one(writer: object) -> bool:
    """Whether a stream writer was made for one invocation: outside of a graph there is one for all."""
    return "<locals>" in getattr(writer, "__qualname__", "")


def _key(mark: Mark | None, place: str) -> str:
    return f"{mark['key'] if mark else ''}\0{place}"
