"""The state of one agent run in this process: its turn, what was loaded for it, and its messages so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers.context import register_configure_hook
from langgraph.types import Command

from langchain_memkit.base import HistoryView, Memory, TurnContext
from langchain_memkit.messages.notes import Record, compose_notes
from langchain_memkit.messages.trimming import with_turn_ids
from langchain_memkit.middleware.state import Marker, is_dialogue, is_foreign_summary, turn_started_at
from langchain_memkit.runnables.saving import OpenTurn

__all__ = ["Partial", "Run", "RunHandle", "StepCalls", "gathering", "messages_of"]

_current: ContextVar[Partial | None] = ContextVar("memkit_partial", default=None)
register_configure_hook(_current, inheritable=False)


class Partial(BaseCallbackHandler):
    """Callback that collects the chunks of calls that have not ended; a model that does not stream leaves nothing."""

    run_inline = True  # on the event loop, since no method blocks

    def __init__(self) -> None:
        self._chunks: dict[UUID, list[BaseMessage]] = {}
        self._text: dict[UUID, str] = {}

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Begin a call; chunks of an earlier attempt are discarded."""
        self._chunks, self._text = {run_id: []}, {}

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: UUID, **kwargs: Any) -> None:
        """Collect a piece of the answer."""
        piece = getattr(chunk, "message", None)
        if run_id in self._chunks:
            self._chunks[run_id].append(piece if isinstance(piece, AIMessageChunk) else AIMessageChunk(content=token))

    def on_stream_event(self, event: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Collect a piece of the answer in LangChain's newer streaming protocol; a model may send both."""
        delta = event.get("delta") or {}
        if delta.get("type") == "text-delta":
            self._text[run_id] = self._text.get(run_id, "") + str(delta.get("text") or "")

    def on_llm_end(self, response: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Drop a call that ended: its answer is complete."""
        self._chunks.pop(run_id, None)

    def messages(self) -> list[BaseMessage]:
        """Return the partial answer as one message, without its tool calls; an empty list if nothing was said."""
        for run_id, chunks in self._chunks.items():
            total: Any = None if chunks else AIMessage(self._text.get(run_id, ""))
            for piece in chunks:
                total = piece if total is None else total + piece
            if total is not None and (total.content or total.tool_calls):
                return [AIMessage(total.content, id=total.id, name=total.name)]
        return []


@contextmanager
def gathering(partial: Partial) -> Iterator[None]:
    """Let `partial` listen to the models that are called inside the `with` block."""
    token = _current.set(partial)
    try:
        yield
    finally:
        _current.reset(token)


@dataclass(eq=False, slots=True)
class Run:
    """One run of the agent, from its input (or from where it was resumed) to its answer.

    Attributes:
        place: User and session, as one text.
        marker: The turn's marker, as the state holds it.
        older: Ids of the state's messages that came before the run.
        older_unnamed: Number of the state's messages without an id that came before the run.
        history: The history in which the turn is stored.
        native: Whether that is one of memkit's own.
        memories: The session's further memories.
        view: The history as it was read.
        known: Ids of the run's messages that are stored already.
        loaded: Records that the memories returned; None until they are loaded.
        context: The turn's context, which preprocessors read.
        finished: Whether the turn is saved.
        replayed: Position of the stored turn if the run repeats one; else None.
        unsettled: Whether messages were removed from the state and this is not persisted in it yet.
        partial: Collects what the model says in the current call.
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
        """Restore the messages of an earlier part of the run, some of which the state may have lost."""
        self._seen = {m.id or "": m for m in seen}
        self._removed = self._seen.keys() - {m.id for m in messages}
        self.unsettled = bool(self._removed)

    @property
    def seen(self) -> list[BaseMessage]:
        """The run's messages, those removed from the state included."""
        return list(self._seen.values())

    def own(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return those of the state's messages that belong to the run, each with an id."""
        found = [messages[i] for i in self._own_positions(messages)]
        return [m for m in with_turn_ids(found, [self.place], self.marker["turn_id"]) if is_dialogue(m)]

    def own_of_request(self, given: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the run's messages in a request, as other middleware left them.

        Args:
            given: The messages of the request.
            messages: The messages of the state. A request with the same ids is the state's, edited in place; else
                messages without an id are searched from the back, since the run's own come last.
        """
        # The usual case: other middleware has added and removed nothing, so positions in the state are valid in the
        # request.
        if len(given) == len(messages) and all(a.id == b.id for a, b in zip(given, messages, strict=True)):
            return [m for m in (given[i] for i in self._own_positions(messages)) if is_dialogue(m)]
        own = {*self._own_positions(messages)}
        unnamed = [(m, i in own) for i, m in enumerate(messages) if not m.id]
        found: list[BaseMessage] = []
        for message in reversed(given):
            is_own = message.id not in self.older
            if not message.id:
                at = next((i for i in reversed(range(len(unnamed))) if unnamed[i][0] == message), None)
                if at is not None:  # else another middleware has added it
                    is_own, unnamed = unnamed[at][1], unnamed[:at]
            if is_own and is_dialogue(message):
                found.insert(0, message)
        return found

    def _own_positions(self, messages: Sequence[BaseMessage]) -> list[int]:
        # Messages without an id can only be counted: the first `older_unnamed` of them came before the run.
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
        """Synchronize with the state's messages and return all messages of the run, removed ones included.

        A message that disappears when a summary comes, or while later ones stay, was summarized or trimmed: it still
        belongs to the turn. Messages that disappear from the end were taken back and are not stored.
        """
        current = {m.id or "": m for m in self.own(messages)}
        summaries = {m.id or "" for m in messages if is_foreign_summary(m)}
        # The last answer may be in the state for the first time while older messages are gone already. Counting it
        # in the order shows that these were removed from the middle, and not taken back from the end.
        order = [*self._seen, *(name for name in self._answers if name not in self._seen)]
        last = next((i for i in reversed(range(len(order))) if order[i] in current), 0)
        # A new summary stands for everything that disappeared with it, wherever that was.
        summarized = self._summaries is not None and bool(summaries - self._summaries)
        gone = (self._seen.keys() if summarized else set(order[:last])) - current.keys() - self._removed
        self._removed |= gone
        self._summaries, self.unsettled = summaries, self.unsettled or bool(gone)
        self._seen = _merged(self._seen, current, self._removed)
        return self.seen

    def answered(self, messages: Sequence[BaseMessage]) -> None:
        """Record the ids of the model's answer, which the state does not have yet."""
        self._answers = [m.id for m in messages if m.id]

    def said(self, more: Sequence[BaseMessage]) -> tuple[list[BaseMessage], list[BaseMessage]]:
        """Return the run's unstored input, and its unstored messages since, `more` and a partial answer included."""
        messages = [*self._seen.values(), *(m for m in more if m.id not in self._seen), *self.partial.messages()]
        first = next((i for i, m in enumerate(messages) if isinstance(m, AIMessage)), len(messages))
        return self.unstored(messages[:first]), self.unstored(messages[first:])

    def unstored(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return the messages that are not in the transcript yet."""
        return [m for m in messages if m.id not in self.known]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collect what the model says while it is called in the `with` block."""
        self.partial = Partial()
        with gathering(self.partial):
            yield

    def turn(self, new: list[BaseMessage], config: RunnableConfig) -> OpenTurn:
        """Return the run's turn in the form that `TurnOptions` saves."""
        epoch = self.marker["epoch"] if self.native else None
        # A resumed run may have started the session itself: its marker's epoch then differs from the one read now.
        stands = self.native and self.view.seq > 0 and self.view.epoch == epoch
        return OpenTurn(
            history=self.history,
            native=self.native,
            memories=self.memories,
            turn_id=self.marker["turn_id"],
            epoch=epoch,
            since=turn_started_at(self.marker),
            new=new,
            shown=[],
            asked=[],
            input=None,
            config=config,
            in_graph=True,
            replayed=self.replayed is not None,
            begun=stands and not getattr(self.history, "ttl", None),
            head=self.view.head,
        )

    def note(self, shown: Sequence[BaseMessage]) -> BaseMessage | None:
        """Return the note with recalled records that `shown` does not contain; None if nothing is left."""
        return compose_notes(self.loaded or [], shown)


class RunHandle(dict[str, Any]):
    """Reference to a run in the agent's state: an empty dict, since update streams show it and may be turned into JSON.

    It is never checkpointed, so each invocation has its own.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def __deepcopy__(self, memo: Any) -> Self:
        """Return itself: copies of the state share the run."""
        return self

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[()]]:
        """Pickle as an empty dict: other processes do not know the run."""
        return dict, ()


@dataclass(slots=True)
class StepCalls:
    """The model and tool calls in one step of a run, as far as they must know of each other in this process.

    Attributes:
        running: Number of tools that are running.
        failed: Whether one of them raised or was cancelled: cancellations that follow are not the caller's.
        results: Results of tools that the state does not have yet.
        seen: The run's messages when a call raised after some had been removed from the state.
    """

    running: int = 0
    failed: bool = False
    results: list[BaseMessage] = field(default_factory=list)
    seen: list[BaseMessage] = field(default_factory=list)

    def leave(self) -> None:
        """Unregister a tool call; when the last one of a failed step has ended, reset the step."""
        self.running -= 1
        if self.failed and not self.running:
            self.failed, self.results = False, []

    def fail(self) -> bool:
        """Mark the step as failed; return whether this is its first failure."""
        first, self.failed = not self.failed, True
        return first


def _merged(seen: dict[str, BaseMessage], current: dict[str, BaseMessage], removed: set[str]) -> dict[str, BaseMessage]:
    """Merge current messages with removed ones, which keep their former positions."""
    place = {name: i for i, name in enumerate(seen)}
    left = [name for name in seen if name in removed and name not in current]
    merged: dict[str, BaseMessage] = {}
    for name, message in current.items():
        while left and place[left[0]] < place.get(name, len(seen)):  # new messages come after the known ones
            taken = left.pop(0)
            merged[taken] = seen[taken]
        merged[name] = message
    return merged | {name: seen[name] for name in left}


def messages_of(result: Any) -> list[BaseMessage]:
    """Return the tool messages in a tool's return value: a message, a command, or several of these."""
    if isinstance(result, Command):
        result = result.update.get("messages") if isinstance(result.update, Mapping) else None
    if isinstance(result, (list, tuple)):
        return [message for part in result for message in messages_of(part)]
    return [result] if isinstance(result, ToolMessage) else []
