"""What lives as long as a run of the agent: its turn, what was loaded for it, and what it has said so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command

from langchain_memkit.base import HistoryView, Memory, TurnContext
from langchain_memkit.messages.notes import Record
from langchain_memkit.messages.turns import with_turn_ids
from langchain_memkit.messages.unsaid import compose_notes
from langchain_memkit.middleware.partial import Partial, gathering
from langchain_memkit.middleware.state import Marker, is_foreign_summary, is_said, moment
from langchain_memkit.runnables.saving import OpenTurn

__all__ = ["Calls", "Handle", "Run", "messages_of"]


@dataclass(eq=False, slots=True)
class Run:
    """One run, from its input (or from where it was resumed) to its answer.

    Attributes:
        place: The user and session.
        marker: What the state is told of the turn.
        older: Ids of the state's messages that came before the run.
        older_unnamed: How many of the state's messages without an id came before it.
        history: Where the turn is stored.
        native: Whether that is one of ours.
        memories: Beside it.
        view: The history as it was read.
        known: Ids of the run's messages that are stored already.
        loaded: What the memories recalled; None while they were not asked.
        context: What preprocessors are told.
        finished: Whether the turn is saved.
        replayed: Position of the turn if it was stored once before.
        unsettled: Whether messages were removed of which the state was not told yet.
        partial: What the model has said in the call that is under way.
    """

    place: str
    marker: Marker
    older: set[str]
    older_unnamed: int
    history: Any
    native: bool
    memories: list[Memory]
    view: HistoryView
    known: set[str] = field(default_factory=set)
    loaded: list[Record] | None = None
    context: TurnContext = field(default_factory=TurnContext)
    finished: bool = False
    replayed: int | None = None
    unsettled: bool = False
    partial: Partial = field(default_factory=Partial)
    _seen: dict[str, BaseMessage] = field(default_factory=dict)
    _removed: set[str] = field(default_factory=set)
    _summaries: set[str] | None = None
    _answers: list[str] = field(default_factory=list)

    def remember(self, seen: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> None:
        """Take over what an earlier part of the run was seen to say, of which the state may have lost a part."""
        self._seen = {m.id or "": m for m in seen}
        self._removed = self._seen.keys() - {m.id for m in messages}
        self.unsettled = bool(self._removed)

    @property
    def seen(self) -> list[BaseMessage]:
        """What the run was seen to say, with what was removed from the state."""
        return list(self._seen.values())

    def own(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return those of the state's messages that belong to the run, each with an id."""
        found = [messages[i] for i in self._own_positions(messages)]
        return [m for m in with_turn_ids(found, [self.place], self.marker["turn_id"]) if is_said(m)]

    def own_of_request(self, given: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the run's messages among those of a request, as other middleware has left them.

        Args:
            given: Of the request.
            messages: Of the state. A request with the same ids is the state's, edited in place; else messages without
                an id are looked for from the back, since the run's own come last.
        """
        if len(given) == len(messages) and all(a.id == b.id for a, b in zip(given, messages, strict=True)):
            return [m for m in (given[i] for i in self._own_positions(messages)) if is_said(m)]
        own = {*self._own_positions(messages)}
        unnamed = [(m, i in own) for i, m in enumerate(messages) if not m.id]
        found: list[BaseMessage] = []
        for message in reversed(given):
            is_own = message.id not in self.older
            if not message.id:
                at = next((i for i in reversed(range(len(unnamed))) if unnamed[i][0] == message), None)
                if at is not None:  # else another middleware has put it there
                    is_own, unnamed = unnamed[at][1], unnamed[:at]
            if is_own and is_said(message):
                found.insert(0, message)
        return found

    def _own_positions(self, messages: Sequence[BaseMessage]) -> list[int]:
        older, found = self.older_unnamed, list[int]()
        last = {m.id: i for i, m in enumerate(messages)}  # a reducer may keep a message and its change
        for i, message in enumerate(messages):
            if message.id:
                if message.id not in self.older and last[message.id] == i:
                    found.append(i)
            elif older > 0:
                older -= 1
            else:
                found.append(i)
        return found

    def observe(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Look at the state; return all of the run's messages, those that were removed from it among them.

        A message that goes when a summary comes, or while later ones stay, was summarized or trimmed, and belongs to
        the turn. What is taken from the end was taken back.
        """
        current = {m.id or "": m for m in self.own(messages)}
        summaries = {m.id or "" for m in messages if is_foreign_summary(m)}
        order = [*self._seen, *(name for name in self._answers if name not in self._seen)]
        last = next((i for i in reversed(range(len(order))) if order[i] in current), 0)
        summarized = self._summaries is not None and bool(summaries - self._summaries)
        gone = (self._seen.keys() if summarized else set(order[:last])) - current.keys() - self._removed
        self._removed |= gone
        self._summaries, self.unsettled = summaries, self.unsettled or bool(gone)
        self._seen = _merged(self._seen, current, self._removed)
        return self.seen

    def answered(self, messages: Sequence[BaseMessage]) -> None:
        """Take what the model has answered, which the state does not have yet."""
        self._answers = [m.id for m in messages if m.id]

    def said(self, more: Sequence[BaseMessage]) -> tuple[list[BaseMessage], list[BaseMessage]]:
        """Return the run's input, and what was said since, `more` and the model's unfinished words included."""
        messages = [*self._seen.values(), *(m for m in more if m.id not in self._seen), *self.partial.messages()]
        first = next((i for i, m in enumerate(messages) if isinstance(m, AIMessage)), len(messages))
        return self.unstored(messages[:first]), self.unstored(messages[first:])

    def unstored(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return those that the transcript does not have."""
        return [m for m in messages if m.id not in self.known]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Gather what the model says while it is called."""
        self.partial = Partial()
        with gathering(self.partial):
            yield

    def turn(self, new: list[BaseMessage], config: RunnableConfig) -> OpenTurn:
        """Return the turn as what saves it wants it."""
        epoch = self.marker["epoch"] if self.native else None
        # one that was resumed may have begun the session: then its marker has another epoch than what was read now
        stands = self.native and self.view.seq > 0 and self.view.epoch == epoch
        return OpenTurn(
            self.history,
            self.native,
            self.memories,
            self.marker["turn_id"],
            epoch,
            moment(self.marker),
            new,
            [],
            [],
            None,
            config,
            in_graph=True,
            replayed=self.replayed is not None,
            begun=stands and not getattr(self.history, "ttl", None),
            head=self.view.head,
        )

    def note(self, shown: Sequence[BaseMessage]) -> BaseMessage | None:
        """Return what the memories recalled, as far as it is not shown anyway."""
        return compose_notes(self.loaded or [], shown)


class Handle(dict[str, Any]):
    """A run in the agent's state: an empty dict, since a stream of updates shows it and may be turned into JSON.

    It is never checkpointed, so each invocation has its own.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: copies of a state share the run."""
        return self

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[()]]:
        """Become an empty dict in other processes, where the run is unknown."""
        return dict, ()


@dataclass(slots=True)
class Calls:
    """What the calls of models and tools in one step of a run know of each other, in this process.

    Attributes:
        running: How many tools are being called.
        failed: Whether one of them raised or was stopped: what is cancelled now was not abandoned.
        results: What tools have returned and the state does not have yet.
        seen: What the run had said when a call raised and the state had lost a part of that.
    """

    running: int = 0
    failed: bool = False
    results: list[BaseMessage] = field(default_factory=list)
    seen: list[BaseMessage] = field(default_factory=list)

    def leave(self) -> None:
        """End the call of a tool. When the last one of a failed step has ended, the step is over."""
        self.running -= 1
        if self.failed and not self.running:
            self.failed, self.results = False, []

    def fail(self) -> bool:
        """Return whether this is the first failure."""
        first, self.failed = not self.failed, True
        return first


def _merged(seen: dict[str, BaseMessage], current: dict[str, BaseMessage], removed: set[str]) -> dict[str, BaseMessage]:
    """Return the messages that are there now, and those that were removed, in the places that they had."""
    place = {name: i for i, name in enumerate(seen)}
    left = [name for name in seen if name in removed and name not in current]
    merged: dict[str, BaseMessage] = {}
    for name, message in current.items():
        while left and place[left[0]] < place.get(name, len(seen)):  # what is new stands behind what was there before
            taken = left.pop(0)
            merged[taken] = seen[taken]
        merged[name] = message
    return merged | {name: seen[name] for name in left}


def messages_of(result: Any) -> list[BaseMessage]:
    """Return the results of a call in what a tool returned: a message, a command, or several of these."""
    if isinstance(result, Command):
        result = result.update.get("messages") if isinstance(result.update, Mapping) else None
    if isinstance(result, (list, tuple)):
        return [message for part in result for message in messages_of(part)]
    return [result] if isinstance(result, ToolMessage) else []
