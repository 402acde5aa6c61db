"""One run of an agent: its messages so far, and its turn, which is started, resumed and stored."""

from __future__ import annotations

import operator
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise, takewhile
from typing import Any, Self
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, ToolMessage
from langchain_core.messages.ai import AIMessageChunk
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers.context import register_configure_hook
from langgraph.types import Command

from langchain_memkit import base
from langchain_memkit._histories import check_replaces, epoch_at, load_history, seq_of, stored_ids
from langchain_memkit._sync import Step, as_step, dry_run
from langchain_memkit.base import CONTEXT, GetSessionHistory, HistoryMessages, HistoryView, Messages, TurnContext
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages import trimming
from langchain_memkit.messages.chain_io import aborted
from langchain_memkit.messages.notes import Record, insert_note
from langchain_memkit.messages.trimming import (
    batch_op,
    ids_of_turn,
    same_message,
    turn_starts,
    whole_tool_groups,
    with_id,
    with_turn_ids,
)
from langchain_memkit.middleware.state import (
    Marker,
    NewMessages,
    State,
    found_in,
    in_log,
    in_state_order,
    is_dialogue,
    is_foreign_summary,
    is_lost,
    key_of,
    messages_in,
    missing_in,
    turn_started_at,
    unstored_start,
    with_positions,
    with_void,
    within,
    written,
)
from langchain_memkit.runnables.saving import UNSAVED, OpenTurn, TurnOptions
from langchain_memkit.runnables.session import BoundSession, Configurable, session_history, turn_id_of
from langchain_memkit.runnables.trace import TurnRecorder, recorder_of

# -- the run

_current: ContextVar[Partial | None] = ContextVar("memkit_partial", default=None)
register_configure_hook(_current, inheritable=False)


class Partial(BaseCallbackHandler):
    """Callback that collects the chunks of calls that have not ended; a model that does not stream leaves nothing."""

    run_inline = True  # on the event loop, since no method blocks

    def __init__(self) -> None:
        self._chunks: dict[UUID, list[BaseMessage]] = {}
        self._text: dict[UUID, str] = {}

    def on_chat_model_start(self, serialized: object, messages: object, *, run_id: UUID, **kwargs: Any) -> None:
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

    def on_llm_end(self, response: object, *, run_id: UUID, **kwargs: Any) -> None:
        """Drop a call that ended: its answer is complete."""
        self._chunks.pop(run_id, None)

    def messages(self) -> list[BaseMessage]:
        """Return the partial answer as one message, without its tool calls; an empty list if nothing was said."""
        for run_id, chunks in self._chunks.items():
            total: Any = reduce(operator.add, chunks) if chunks else AIMessage(self._text.get(run_id, ""))
            if total.content or total.tool_calls:
                return [AIMessage(total.content, id=total.id, name=total.name)]
        return []


@dataclass(eq=False, slots=True)
class Run:
    """One run of the agent, from its input (or from where it was resumed) to its answer."""

    session: BoundSession
    marker: Marker  # as the state holds it
    view: HistoryView  # the history as it was read
    known: set[str]  # ids of the run's messages that are stored already
    recorder: TurnRecorder
    loaded: list[Record] | None = None  # what the memories returned
    context: TurnContext = field(default_factory=TurnContext)  # which preprocessors read
    finished: bool = False  # the turn is saved
    replayed: int | None = None  # position of the stored turn that the run repeats
    unsettled: bool = False  # messages were removed from the state, and this is not persisted in it yet
    partial: Partial = field(default_factory=Partial)  # collects what the model says in the current call
    left: list[BaseMessage] = field(default_factory=list)  # of earlier turns, which a dry run does not store
    _state: list[BaseMessage] = field(default_factory=list)  # the state's messages when they were observed last
    _names: list[str | None] = field(default_factory=list)  # their ids in the run; None for those not of the run
    _seen: dict[str, BaseMessage] = field(default_factory=dict)
    _removed: set[str] = field(default_factory=set)
    _summaries: set[str] | None = None
    _answers: list[str] = field(default_factory=list)

    def start_at(self, older: Messages, messages: Messages, seen: Messages = (), *, lost: bool = False) -> None:
        """Tell the state's messages that are the run's from `older` ones.

        `seen` are those of an earlier part of the run, some of which the state may have lost. If it is `lost` where the
        run began, system messages in front are the app's own.
        """
        self._seen = {m.id or "": m for m in seen}
        self._state = [*older, *seen]
        self._names = [*(None for _ in older), *(m.id for m in seen)]
        self._name(messages, apart=lost)
        self._removed = self._seen.keys() - {*self._names}
        self.unsettled = bool(self._removed)

    def _name(self, messages: Messages, *, apart: bool) -> None:
        """Give the state's new messages their ids in the run; system messages in front of it are the app's own."""
        found = found_in(messages, self._state)
        names = [None if place is None else self._names[place] for place in found]
        taken = {*self._seen, *names}
        derived = (name for name in ids_of_turn([self.marker["place"]], self.marker["turn_id"]) if name not in taken)
        begun = not apart
        for i, message in enumerate(messages):
            is_new = found[i] is None
            begins = is_new and not isinstance(message, SystemMessage)
            begun = begun or begins or names[i] is not None
            if is_new and begun:
                names[i] = message.id or next(derived)
        self._state, self._names = list(messages), names

    @property
    def seen(self) -> list[BaseMessage]:
        """The run's messages, those removed from the state included."""
        return list(self._seen.values())

    @property
    def own(self) -> list[BaseMessage]:
        """The run's messages that the state holds, each with its id in the run."""
        named = zip(self._names, self._state, strict=True)
        return _latest((name, with_id(m, name)) for name, m in named if name is not None and is_dialogue(m))

    def split(self, given: Messages) -> tuple[list[BaseMessage], list[BaseMessage], list[BaseMessage]]:
        """Split a request, as other middleware left it: messages of the past, those in front of it, the run's own.

        Of several summaries of LangChain's `SummarizationMiddleware` the last one counts.
        """
        found = self._found(given)
        names = [None if place is None else self._names[place] for place in found]
        past = [i for i, place in enumerate(found) if place is not None and names[i] is None]
        rest = [i for i in sorted({*range(len(given))} - {*past}) if is_dialogue(given[i])]
        ahead = takewhile(lambda i: found[i] is None and isinstance(given[i], SystemMessage), rest)
        summaries = [i for i, message in enumerate(given) if is_foreign_summary(message)]
        front = {*ahead, *rest[: bisect_right(rest, max(past, default=-1))], *summaries[-1:]}
        own = _latest((names[i] or given[i].id or f"{i}", given[i]) for i in rest if i not in front)
        older = [given[i] for i in past if is_dialogue(given[i])]
        return older, [given[i] for i in sorted(front)], own

    def uncovered(self, own: Messages) -> list[BaseMessage]:
        """Return the run's messages of a request with those in place of which the state has a void summary."""
        covered = self.marker.get("covered", [])
        if not covered:
            return list(own)
        shown = {*covered, *(m.id for m in own)}
        return in_state_order([m for m in self.seen if m.id in shown], own)

    def _found(self, given: Messages) -> list[int | None]:
        """Return the positions of a request's messages in the state."""
        # With the ids of the state's messages it is those, though they may be edited and have no ids.
        if [m.id for m in given] == [m.id for m in self._state]:
            return [*range(len(given))]
        return found_in(given, self._state)

    def past(self, older: Messages, own: set[str]) -> tuple[list[BaseMessage], list[BaseMessage]]:
        """Return the transcript before the run, and those of the request's `older` messages that it does not have.

        The rows that this thread wrote are as the request has them. `own` are the ids of the run's messages.
        """
        read = self.view.messages
        if not isinstance(read, HistoryMessages):  # of another package: which rows the thread wrote is unknown
            return [*(m for m in read if m.id not in own), *self.left], missing_in(older, found_in(older, read))
        shown = self._shown(read, own)
        mine = [i for i in shown if within(self.marker.get("wrote", []), read.turns[i].seq)]
        found = found_in(older, [read[i] for i in mine])
        copies = {mine[place]: m for m, place in zip(older, found, strict=True) if place is not None}
        removed = {*mine} - copies.keys()
        covered = {*self.marker.get("covered", [])}
        removed = {i for i in removed if read[i].id not in covered}
        for i in sorted(removed):
            if _is_partial(read, i) and i - 1 not in removed:  # the state never had it
                removed.remove(i)
        in_order = iter(copies)  # of the request, where an app may have put a message in front
        places = [next(in_order) if i in copies else i for i in shown if i not in removed]
        past = read.selected(places)
        for i, place in enumerate(places):
            copy = with_id(copies.get(place, read[place]), read[place].id)
            if not same_message(read[place], copy):
                past[i] = copy
        past.extend(self.left)
        return past, missing_in(older, found)

    def _shown(self, read: HistoryMessages, own: set[str]) -> list[int]:
        """Return what of the transcript the thread shows: no branches that it left, and no rows of the run itself."""
        # A row with one of the run's messages is a part of the run, an aborted attempt for instance: the state has it.
        repeated = {turn.op for turn, message in zip(read.turns, read, strict=False) if message.id in own}
        left = with_positions(self.marker["skip"])
        return [i for i, turn in enumerate(read.turns) if not (turn.op in repeated or within(left, turn.seq))]

    def observe(self, messages: Messages) -> list[BaseMessage]:
        """Synchronize with the state's messages and return all messages of the run, removed ones included.

        A message that disappears when a summary comes, or while later ones stay, was summarized or trimmed: it still
        belongs to the turn. Messages that disappear from the end were taken back and are not stored.
        """
        self.marker = with_void(self.marker, self._state, messages)
        self._name(messages, apart=True)
        # Where the run begins is counted if messages have no ids, and another process may resume it.
        start = next((i for i, name in enumerate(self._names) if name is not None), len(messages))
        if start < self.marker.get("start", 0):
            self.marker = {**self.marker, "start": start}
        current = {m.id or "": m for m in self.own}
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
        self._seen = self._with_removed(current)
        return self.seen

    def _with_removed(self, current: dict[str, BaseMessage]) -> dict[str, BaseMessage]:
        """Return the run's messages: removed ones keep their former positions, new ones come after the known ones."""
        place = {name: i for i, name in enumerate(self._seen)}
        left = [name for name in self._seen if name in self._removed and name not in current]
        merged: dict[str, BaseMessage] = {}
        for name, message in current.items():
            while left and place[left[0]] < place.get(name, len(place)):
                taken = left.pop(0)
                merged[taken] = self._seen[taken]
            merged[name] = message
        return merged | {name: self._seen[name] for name in left}

    def answered(self, messages: Messages) -> None:
        """Record the ids of the model's answer, which the state does not have yet."""
        self._answers = [m.id for m in messages if m.id]

    def said(self, more: Messages) -> tuple[list[BaseMessage], list[BaseMessage]]:
        """Return the run's unstored input, and its unstored messages since, `more` and a partial answer included."""
        messages = [*self._seen.values(), *(m for m in more if m.id not in self._seen), *self.partial.messages()]
        first = next((i for i, m in enumerate(messages) if isinstance(m, AIMessage)), len(messages))
        return self.unstored(messages[:first]), self.unstored(messages[first:])

    def unstored(self, messages: Messages) -> list[BaseMessage]:
        """Return the messages that are not in the transcript yet."""
        return [m for m in messages if m.id not in self.known]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collect what the model says while it is called in the `with` block."""
        self.partial = Partial()
        token = _current.set(self.partial)
        try:
            with self.recorder.listening():
                yield
        finally:
            _current.reset(token)

    def turn(self, new: list[BaseMessage], config: RunnableConfig) -> OpenTurn:
        """Return the run's turn in the form that `TurnOptions` saves."""
        return OpenTurn(
            session=self.session,
            view=self.view,
            turn_id=self.marker["turn_id"],
            epoch=self.marker["epoch"],
            since=turn_started_at(self.marker),
            new=new,
            config=config,
            after=self.marker["seq"],
            in_graph=True,
            replayed=self.replayed is not None,
            recorder=self.recorder,
        )


class RunHandle(dict[str, object]):
    """Reference to a run in the agent's state: an empty dict, since update streams show it and may be turned into JSON.

    It is never checkpointed, so each invocation has its own.
    """

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def __deepcopy__(self, memo: object) -> Self:
        """Return itself: copies of the state share the run."""
        return self

    def __reduce__(self) -> tuple[type[dict[str, object]], tuple[()]]:
        """Pickle as an empty dict: other processes do not know the run."""
        return dict, ()


@dataclass(slots=True)
class StepCalls:
    """The model and tool calls in one step of a run, as far as they must know of each other in this process."""

    running: int = 0  # number of tools that are running
    failed: bool = False  # one of them raised or was cancelled: cancellations that follow are not the caller's
    results: list[BaseMessage] = field(default_factory=list)  # those that the state does not have yet
    seen: list[BaseMessage] = field(default_factory=list)  # the run's messages when a call raised


def messages_of(result: object) -> list[BaseMessage]:
    """Return the tool messages in a tool's return value: a message, a command, or several of these."""
    if isinstance(result, Command):
        result = result.update.get("messages") if isinstance(result.update, Mapping) else None
    if isinstance(result, (list, tuple)):
        return [message for part in result for message in messages_of(part)]
    return [result] if isinstance(result, ToolMessage) else []


# -- its turn


def ids_of_call(config: RunnableConfig, context: object) -> Configurable:
    """Return the ids of a call. A user_id of the runtime context, which the app sets, overrides that of the config."""
    given = {k: v for k, v in (config.get("configurable") or {}).items() if not k.startswith(("__", "checkpoint_"))}
    user_id = context.get("user_id") if isinstance(context, Mapping) else getattr(context, "user_id", None)
    return given if user_id is None else {**given, "user_id": user_id}


def session_of_run(configurable: Configurable) -> str:
    """Return user and session as one text."""
    session_id = configurable.get("session_id", configurable.get("thread_id"))
    return f"{configurable.get('user_id')!r} {session_id!r}"


def check_place(marker: Marker | None, configurable: Configurable) -> None:
    """Refuse to resume a run of another user or session, before anything of it is called."""
    if marker is not None and not marker["done"] and marker["place"] != session_of_run(configurable):
        raise ConfigurationError(
            "this run was begun for another user or session. Resume it with the same session_id (or thread_id) and "
            "user_id, in the config or in the runtime context."
        )


def config_of_turn(config: RunnableConfig, history: object, context: TurnContext) -> RunnableConfig:
    """Return the config for memories and preprocessors of the turn, with history and context in `configurable`."""
    known = {**(config.get("configurable") or {}), "message_history": history, CONTEXT: context}
    # LangGraph's tag: models called to build the context are not streamed as the agent's.
    return {**config, "configurable": known, "tags": [*(config.get("tags") or []), "nostream"]}


@dataclass(frozen=True, slots=True)
class AgentTurns:
    """Starts, resumes and stores the turns of one middleware."""

    get_session_history: GetSessionHistory
    options: TurnOptions

    async def begin(self, state: State, configurable: Configurable, config: RunnableConfig, seen: Messages = ()) -> Run:
        """Start a run with new input; messages of the state that the transcript lacks are stored first.

        `seen` are the messages of the previous run, removed ones included. A dry run stores nothing.
        """
        recorder = recorder_of(self, configurable)
        before: Marker | None = state.get("memkit_turn")
        session = await self.bind(configurable)
        self._check_replaces(configurable, session, before)
        place, turn_id = session_of_run(configurable), turn_id_of(configurable)
        new = NewMessages(messages_in(state), before, place, turn_id, seen)
        known, view = await self._read(session, [m.id or "" for m in (*seen, *new.named)], new.input, config)
        left_branch = _left_branch(before, view, config) if new.may_fork(known) else []
        skip = [*before["skip"], *left_branch] if before is not None and not new.moved else left_branch
        cleared = before is not None and await _is_cleared(session, before, view)
        if cleared or new.moved:
            new.forget()
        left = new.left(known, view)
        # A branch is stored whole, beginning with its question.
        run = Run(session, new.marker(view, skip), view, set() if left_branch else known, recorder)
        run.start_at(new.messages[: new.first], new.messages)
        # After a clear nothing older than the input is stored: it may have been added to the state before the clear.
        # That may be so in a thread without a marker, too.
        erased = cleared or bool(view.replaces)
        if left and not erased and new.before is None:
            erased = await _was_cleared(session, view)
        if erased or dry_run.get():
            run.left = [] if erased else left  # a dry run shows the messages as if they had been stored
        elif left:
            await self._adopt(run, left, new, config)
        run.observe(new.messages)
        return run

    async def resume(
        self, state: State, configurable: Configurable, config: RunnableConfig, seen: Messages = ()
    ) -> Run:
        """Resume a run that another invocation, perhaps in another process, started; the state has its marker."""
        messages = messages_in(state)
        marker: Marker = state["memkit_turn"]
        check_place(marker, configurable)
        session = await self.bind(configurable)
        self._check_replaces(configurable, session, marker)
        start = unstored_start(messages, marker)
        own = with_turn_ids(messages[start:], [marker["place"]], marker["turn_id"])
        ids = {m.id for m in (*seen, *messages, *own) if m.id}
        known, view = await self._read(session, sorted(ids), messages[start:], config)
        marker = {**marker, "wrote": written(marker, view, ids, messages)}
        run = Run(session, marker, view, known, recorder_of(self, configurable))
        older = messages[:start]
        if lost := is_lost(messages, marker):
            older = [m for m, stored in zip(messages, in_log(messages, known, view), strict=True) if stored]
        if session.native and known & {m.id for m in own}:
            # Some of the run's messages are stored: by an aborted attempt, or as the whole turn, which has its own key.
            run.replayed = await seq_of(session.history, batch_op([], marker["turn_id"]), marker["seq"])
        # The turn is stored already, so this repeats it or its last steps from an older checkpoint. It is stored
        # again as a branch, and the positions from the first attempt on are skipped in its prompts.
        if run.replayed:
            run.known = set()
            run.marker = {**marker, "seq": view.seq, "skip": [*marker["skip"], [run.replayed, view.seq]]}
        run.start_at(older, messages, seen, lost=lost)
        return run

    async def bind(self, configurable: Configurable) -> BoundSession:
        """Return the history of a call and its further memories, without reading them."""
        history = await session_history(self.get_session_history, None, configurable)
        outer = configurable.get("message_history")
        ids = [(getattr(each, "user_id", None), getattr(each, "session_id", each)) for each in (outer, history)]
        if outer is not None and ids[0] == ids[1]:
            raise ConfigurationError(
                "the agent runs inside create_runnable_with_message_history over the same conversation, so each turn "
                "would be stored twice. Leave out one of the two, or give the agent a session_id of its own."
            )
        return await self.options.prompt.bind(None, configurable, history)

    def _check_replaces(self, configurable: Configurable, session: BoundSession, before: Marker | None) -> None:
        replaces = configurable.get("replaces")
        check_replaces(replaces, session.history)
        if replaces is not None and before is not None:
            raise ConfigurationError(
                "the config has `replaces`, but a checkpointer keeps this conversation, where the old messages would "
                "stay. Branch it with LangGraph: take an earlier checkpoint from agent.get_state_history(config), and "
                "invoke the agent with its config, or change it first with agent.update_state. Or give no checkpointer"
            )

    async def _read(
        self, session: BoundSession, ids: Sequence[str], asked: Messages, config: RunnableConfig
    ) -> tuple[set[str], HistoryView]:
        """Look up which messages are stored (one indexed query) and read the past; on an event loop both at once."""
        view, beside = self._view(session, asked, config), self.options.prompt.beside
        if session.native:
            stored = stored_ids(session.history, ids, (config.get("configurable") or {}).get("replaces"))
            known, read = await beside(session.memories, stored, view)
            # What was stored between the two reads is in the later one: it must not be taken for unstored.
            return known | ({m.id for m in read.messages if m.id} & {*ids}), read
        [found] = await beside(session.memories, view)
        return {m.id for m in found.messages if m.id}, found

    def _view(self, session: BoundSession, asked: Messages, config: RunnableConfig) -> Step[HistoryView]:
        inside = config_of_turn(config, session.history, TurnContext(asked))
        chain = self.options.prompt.preprocessor
        return as_step(lambda: load_history(session.history, chain, inside, native=session.native))

    async def _adopt(self, run: Run, left: Messages, new: NewMessages, config: RunnableConfig) -> None:
        """Store messages of the state that the transcript lacks, one row per turn; repeating it changes nothing.

        If that fails without raising, the marker starts before them: the next run tries again.
        """
        before = new.before
        for begin, end in pairwise([*turn_starts(left), len(left)]):
            said = list(left[begin:end])
            whole = whole_tool_groups(said)
            if whole != said:  # a tool call was still waiting for its result when the user went on
                said = aborted(said) or whole
            turn = replace(run.turn(said, config), turn_id=batch_op(said, None))
            if before is not None:
                if not (before["done"] or begin or before["turn_id"] == run.marker["turn_id"]):
                    # Under the previous turn's own id: of two concurrent runs each then stores only the messages
                    # that the other has not.
                    turn = replace(turn, turn_id=before["turn_id"])
                # With the epoch of the earlier run: if the session was cleared meanwhile, the append is refused.
                if before["epoch"]:
                    turn = replace(turn, epoch=before["epoch"], since=turn_started_at(before))
            seq = await self.options.save(turn, None, said) if said else None
            if seq == UNSAVED:
                run.marker = {**run.marker, "first": new.messages[new.start].id, "start": new.start}
                run.start_at(new.messages[: new.start], new.messages)
                break
            if seq:
                run.marker = {**run.marker, "wrote": with_positions(run.marker["wrote"], [seq])}
        run.view = await self._view(run.session, new.input, config)

    async def prompt(self, run: Run, given: Messages, config: RunnableConfig) -> list[BaseMessage]:
        """Build the messages for one call of the model from those of its request.

        First come system messages that only the request has, and a summary of LangChain's `SummarizationMiddleware`;
        then past, note and the run's own messages.
        """
        older, front, own = run.split(given)
        own = run.uncovered(own)
        past, rest = run.past(older, {m.id for m in (*own, *run.own) if m.id})
        apps = {id(m) for m in (*front, *(m for m in rest if isinstance(m, SystemMessage)))}
        erased = {*run.marker.get("void", [])}
        summary = [m for m in given if id(m) in apps and key_of(m) not in erased]
        context, prompt = run.context, self.options.prompt
        run.recorder.composing = True
        context.asked, context.past, context.notes = [*summary, *own], past, []
        inside = config_of_turn(config, run.session.history, context)
        # Memories are loaded once per run, so that later calls of the same run see the same note.
        if run.loaded is None:
            context.timezone = await prompt.timezone_of(run.session)
            view = run.view._replace(messages=past)
            run.loaded = await prompt.load(run.session, view, own, inside, context.timezone)
        kept, asked, note = await prompt.compose(context, run.loaded, inside, in_run=True)
        own = asked[len(summary) :]
        # Providers refuse incomplete tool groups; the last one is kept if the run begins with its results.
        last = trimming.group_starts(kept)[-1] if kept and own and isinstance(own[0], trimming.RESULTS) else len(kept)
        kept = [*whole_tool_groups(kept[:last]), *kept[last:]]
        before, after = insert_note(kept, own, note, apart=False)
        shown = [*summary, *before, *after]
        context.asked = run.own  # what of it is left out is told
        run.recorder.opened(run.marker["turn_id"], prompt.preprocessor, shown, context)
        return shown

    async def commit(self, run: Run, state: State, config: RunnableConfig) -> Marker:
        """Store the turn as the other middleware left it, and return the updated marker for the state."""
        messages = messages_in(state)
        new = run.unstored(run.observe(messages))
        new = _with_late_calls(new, run.own)
        run.finished = True
        seq: int | None = None
        if new:
            output = {key: state[key] for key in ("messages", "structured_response") if key in state}
            # The leading messages without an answer are the turn's input: retries compare by them.
            asked = list(takewhile(lambda m: m.type in ("human", "system"), new))
            with run.recorder.timing("save"):
                seq = await self.options.save(run.turn(asked, config), output, new)
        if run.replayed is not None and seq == run.replayed:  # the same messages again, so there is no new branch
            run.marker = {**run.marker, "skip": run.marker["skip"][:-1]}
        # The failure was reported, not raised. The marker stays open: the state has the messages, and the next run
        # stores them.
        if seq == UNSAVED:
            return run.marker
        epoch = run.marker["epoch"]
        if run.session.native and seq and not epoch:  # the session's first turn has drawn the epoch
            epoch = await epoch_at(run.session.history, seq) or 0
        return {
            **run.marker,
            "done": True,
            "end": messages[-1].id if messages else None,
            "held": len(messages),
            "epoch": epoch,
            "seq": seq or run.marker["seq"],
            "wrote": with_positions(run.marker.get("wrote", []), [seq] if seq else []),
        }

    async def stopped(self, run: Run, error: BaseException, results: Messages, config: RunnableConfig) -> None:
        """Apply `on_model_error` after a model or a tool raised, or `on_abort` after the run was cancelled in a call.

        `results` are those that tools of the same step had returned.
        """
        asked, said = run.said(results)
        turn = run.turn(asked, config)
        # What is stored gets an id of its own, so a later save of this run must leave it out.
        if isinstance(error, Exception):
            await self.options.model_failed(turn)
            run.known |= {m.id for m in asked if m.id}
        else:
            await self.options.save_partial(turn, lambda: said, {"messages": [*asked, *said]})
            run.known |= {m.id for m in (*asked, *said) if m.id}


def _is_partial(read: HistoryMessages, i: int) -> bool:
    """Return whether a stored message is what a model had said of an answer when its run was stopped."""
    is_marked = read[i].response_metadata.get(trimming.STATUS) == "aborted"
    return is_marked and read.turns[i].op.endswith(":aborted")


def _with_late_calls(new: list[BaseMessage], own: Messages) -> list[BaseMessage]:
    """Return a run's new messages with the calls of results that come first: they were stored without their calls."""
    results: Any = takewhile(lambda m: isinstance(m, ToolMessage), new)
    late = {result.tool_call_id for result in results}
    asked: Any = (m for m in own if isinstance(m, AIMessage))
    calls = [call for m in asked for call in m.tool_calls if call["id"] in late]
    return [AIMessage("", tool_calls=calls, id=f"{new[0].id}-calls"), *new] if calls else new


def _latest(named: Iterable[tuple[str, BaseMessage]]) -> list[BaseMessage]:
    """Return messages by name: of two with one name the later one, which some reducers keep beside the older."""
    found: dict[str, BaseMessage] = {}
    for name, message in named:
        found.pop(name, None)
        found[name] = message
    return list(found.values())


def _left_branch(before: Marker | None, view: HistoryView, config: RunnableConfig) -> list[list[int]]:
    """Return the positions of a branch that the thread leaves, since the caller named an older checkpoint."""
    seq = before["seq"] if before else 0
    # LangGraph puts the checkpoint that the caller addressed into the metadata.
    addressed = (config.get("metadata") or {}).get("checkpoint_id")
    return [[seq + 1, view.seq]] if addressed and view.seq > seq else []


async def _was_cleared(session: BoundSession, view: HistoryView) -> bool:
    """Return whether the session may have been cleared at some time: it has no turn at position 1 any more.

    It is also true if the first turns expired, since expired text must not be stored again either.
    """
    return bool(session.native and view.epoch) and await epoch_at(session.history, 1) is None


async def _is_cleared(session: BoundSession, before: Marker, view: HistoryView) -> bool:
    """Return whether the session was cleared since the previous run, which shows in another epoch.

    An open run that began before the session's first turn has no epoch to compare; then `_was_cleared` decides.
    """
    if not session.native or before["epoch"] == view.epoch:
        return False
    if before["epoch"] and view.epoch:
        return not base.same_conversation(before["epoch"], view.epoch)
    return before["epoch"] != 0 or (not before["done"] and await _was_cleared(session, view))
