"""What lives as long as a run of the agent: its turn, what was loaded for it, and what it has said so far."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from langchain_memkit.base import HistoryView, Memory, TurnContext
from langchain_memkit.messages.unsaid import compose_notes
from langchain_memkit.middleware.partial import Partial, gathering
from langchain_memkit.middleware.state import Mark, index_of, is_foreign_summary, is_said, moment
from langchain_memkit.runnables.saving import OpenTurn

__all__ = ["Asked", "Run", "messages_of"]


DEAD = 1.0  # seconds between two steps, after which a run is taken to be over


@dataclass(eq=False, slots=True, weakref_slot=True)
class Asked:
    """What a run is asked, of which other runs may find a part in the state, unanswered."""

    place: str
    ids: tuple[str, ...]
    failed: bool = False
    run: Callable[[], Run | None] = lambda: None


@dataclass(eq=False, slots=True, weakref_slot=True)
class Run:
    """One run, from its input (or from where it was taken up) to its answer.

    Attributes:
        place: Whose conversation.
        mark: What the state is told of the turn.
        older: Ids of the state's messages that came before the run.
        known: Ids of those of the run that are stored already.
        history: Where the turn is stored; None while nothing was read.
        native: Whether that is one of ours.
        memories: Beside it.
        view: The history as it was read.
        loaded: What the memories recalled; None while they were not asked.
        context: What preprocessors are told.
        failing: A model or tool has raised, or the run is interrupted: what is cancelled now was not abandoned.
        finished: The turn is saved.
        asked: What it was asked, known to others.
        unsettled: A summary has removed messages of which the state was not told yet.
        replayed: Position of the turn if it was stored once before.
        calls: How many calls of models and tools are under way.
    """

    place: str
    mark: Mark
    older: set[str]
    known: set[str] = field(default_factory=set)
    history: Any = None
    native: bool = False
    memories: list[Memory] = field(default_factory=list)
    view: HistoryView = field(default_factory=lambda: HistoryView([]))
    loaded: list[BaseMessage] | None = None
    context: TurnContext = field(default_factory=TurnContext)
    failing: bool = False
    finished: bool = False
    replayed: int | None = None
    calls: int = 0
    unsettled: bool = False
    partial: Partial = field(default_factory=Partial)
    asked: Asked | None = None
    _seen: dict[str, BaseMessage] = field(default_factory=dict)
    _removed: set[str] = field(default_factory=set)
    _summaries: set[str] | None = None
    _pending: list[BaseMessage] = field(default_factory=list)
    _touched: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def taken_up(cls, place: str, mark: Mark, state: Mapping[str, Any], seen: Sequence[BaseMessage]) -> Self:
        """A run that another invocation, perhaps in another process, began; nothing is read for it yet."""
        messages = state["messages"]
        before = messages[: max(index_of(messages, mark["first"]), 0)]
        run = cls(place, mark, {m.id for m in before if m.id})
        run._seen = {m.id or "": m for m in seen}
        run._removed = run._seen.keys() - {m.id for m in messages}
        run.observe(messages)
        return run

    @property
    def seen(self) -> list[BaseMessage]:
        """What the run was seen to say, with what was taken from the state."""
        with self._lock:
            return list(self._seen.values())

    @property
    def has_spoken(self) -> bool:
        """Whether it has said anything but its question."""
        with self._lock:
            return any(isinstance(m, AIMessage) for m in (*self._seen.values(), *self._pending))

    def names(self) -> set[str]:
        """Ids of that, and of what is not in the state yet."""
        with self._lock:
            return {m.id for m in (*self._seen.values(), *self._pending) if m.id}

    def own(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Those of the state's messages that belong to the run."""
        return [m for m in messages if m.id not in self.older and is_said(m)]

    def observe(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Looks at the state; returns all of the run's messages, those that were taken from it among them.

        A message that goes when a summary comes, or while later ones stay, was summarized or trimmed, and belongs to
        the turn. What is taken from the end was taken back.
        """
        current = {m.id or f"#{i}": m for i, m in enumerate(self.own(messages))}
        summaries = {m.id or "" for m in messages if is_foreign_summary(m)}
        with self._lock:
            self._touched = time.monotonic()
            order = [*self._seen, *(m.id or "" for m in self._pending)]
            last = next((i for i in reversed(range(len(order))) if order[i] in current), 0)
            summarized = self._summaries is not None and bool(summaries - self._summaries)
            gone = (self._seen.keys() if summarized else set(order[:last])) - current.keys() - self._removed
            self._removed |= gone
            self._summaries, self.unsettled = summaries, self.unsettled or bool(gone)
            self._seen = _merged(self._seen, current, self._removed)
            answered = {m.tool_call_id for m in current.values() if isinstance(m, ToolMessage)}
            self._pending = [
                m for m in self._pending if m.id not in current and getattr(m, "tool_call_id", None) not in answered
            ]
            return list(self._seen.values())

    def add(self, messages: Sequence[BaseMessage]) -> None:
        """Takes what a model or a tool returned, which is not in the state yet."""
        with self._lock:
            self._pending += messages

    def said(self, *, raw: bool) -> tuple[list[BaseMessage], list[BaseMessage]]:
        """The run's input, and what was said since; with `raw`, also what no other middleware has looked at."""
        with self._lock:
            messages = [*self._seen.values(), *(self._pending if raw else ())]
        if raw:
            messages += self.partial.messages()
        first = next((i for i, m in enumerate(messages) if isinstance(m, AIMessage)), len(messages))
        return self.unstored(messages[:first]), self.unstored(messages[first:])

    def unstored(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Those that the transcript does not have."""
        return [m for m in messages if m.id not in self.known]

    @contextmanager
    def calling(self) -> Iterator[None]:
        """While a model or a tool is called."""
        with self._lock:
            self.calls += 1
        try:
            yield
        finally:
            with self._lock:
                self.calls -= 1
                self._touched = time.monotonic()

    @property
    def silence(self) -> float:
        """Seconds since something was heard of it; 0 while it calls something, and when it is finished."""
        return 0.0 if self.calls or self.finished else time.monotonic() - self._touched

    @property
    def is_live(self) -> bool:
        """Whether it may go on: a step of LangGraph's takes milliseconds. What it says is its own to store then."""
        return not self.failing and self.silence < DEAD

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While a model is called; somebody recovered from what failed before, if anything did."""
        self._fail(False)
        self.partial = Partial()
        with self.calling(), gathering(self.partial):
            yield

    def take_failure(self) -> bool:
        """Whether this is the first failure of the run."""
        with self._lock:
            first = not self.failing
            self._fail(True)
            return first

    def _fail(self, failing: bool) -> None:
        self.failing = failing
        if self.asked is not None:
            self.asked.failed = failing

    def turn(self, new: list[BaseMessage], config: RunnableConfig) -> OpenTurn:
        """The turn as what saves it wants it."""
        epoch = self.mark["epoch"] if self.native else None
        # one that was taken up may have begun the session: then its mark has another epoch than what was read now
        stands = self.native and self.view.seq > 0 and self.view.epoch == epoch
        return OpenTurn(
            self.history,
            self.native,
            self.memories,
            self.mark["turn_id"],
            epoch,
            moment(self.mark),
            new,
            [],
            [],
            None,
            config,
            in_graph=True,
            begun=stands and not getattr(self.history, "ttl", None),
        )

    def note(self, shown: Sequence[BaseMessage]) -> BaseMessage | None:
        """What the memories recalled, as far as it is not shown anyway."""
        return compose_notes(self.loaded or [], shown)


def _merged(seen: dict[str, BaseMessage], current: dict[str, BaseMessage], removed: set[str]) -> dict[str, BaseMessage]:
    """The messages that are there now, and those that were taken away, in the places that they had."""
    place = {name: i for i, name in enumerate(seen)}
    left = [name for name in seen if name in removed and name not in current]
    known = sum(name in seen for name in current)
    merged: dict[str, BaseMessage] = {}
    for name, message in current.items():
        here = place.get(name, -1) if known else len(seen)  # what is new stands behind all that was there before
        known -= name in seen
        while left and place[left[0]] < here:
            taken = left.pop(0)
            merged[taken] = seen[taken]
        merged[name] = message
    return merged | {name: seen[name] for name in left}


def messages_of(result: Any) -> list[BaseMessage]:
    """The results of a call in what a tool returned: a message, a command, or several of these."""
    if isinstance(result, Command):
        result = result.update.get("messages") if isinstance(result.update, dict) else None
    if isinstance(result, (list, tuple)):
        return [message for part in result for message in messages_of(part)]
    return [result] if isinstance(result, ToolMessage) else []
