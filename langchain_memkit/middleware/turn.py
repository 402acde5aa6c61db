"""The turn of an agent's run: started, loaded, ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._histories import epoch_at, is_native, seq_of, stored_ids
from langchain_memkit._sync import Step, as_step, both
from langchain_memkit.base import CONTEXT, GetSessionHistory, HistoryView, Memory, Turn, TurnContext, check_id
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.chain_io import aborted
from langchain_memkit.messages.trimming import batch_op, index_of, turn_starts, whole_tool_groups, with_turn_ids
from langchain_memkit.middleware.run import Run
from langchain_memkit.middleware.state import (
    Marker,
    in_state_order,
    is_dialogue,
    messages_in,
    start_of_turn,
    turn_started_at,
    unstored_start,
)
from langchain_memkit.preprocessors.budget import load
from langchain_memkit.runnables.saving import UNSAVED, TurnOptions
from langchain_memkit.runnables.session import session_history

__all__ = [
    "TurnStart",
    "check_place",
    "commit",
    "config_of_turn",
    "ids_of_call",
    "on_cancel",
    "on_error",
    "session_of_run",
]

QUIET = "nostream"  # LangGraph's tag: models called to build the context are not streamed as the agent's
ELSEWHERE = (
    "this run was begun for another user or session. Resume it with the same session_id (or thread_id) and user_id, in "
    "the config or in the runtime context."
)


def ids_of_call(config: RunnableConfig, context: Any) -> dict[str, Any]:
    """Return the ids of a call. A user_id of the runtime context, which the app sets, overrides that of the config."""
    given = {k: v for k, v in (config.get("configurable") or {}).items() if not k.startswith(("__", "checkpoint_"))}
    user_id = context.get("user_id") if isinstance(context, Mapping) else getattr(context, "user_id", None)
    return given if user_id is None else {**given, "user_id": user_id}


def session_of_run(configurable: dict[str, Any]) -> str:
    """Return user and session as one text."""
    session_id = configurable.get("session_id", configurable.get("thread_id"))
    return f"{configurable.get('user_id')!r} {session_id!r}"


def check_place(marker: Marker | None, configurable: dict[str, Any]) -> None:
    """Refuse to resume a run of another user or session, before anything of it is called.

    Raises:
        ConfigurationError: The marker's run is open and belongs to another user or session.
    """
    if marker is not None and not marker["done"] and marker["place"] != session_of_run(configurable):
        raise ConfigurationError(ELSEWHERE)


def config_of_turn(config: RunnableConfig, history: Any, context: TurnContext) -> RunnableConfig:
    """Return the config for memories and preprocessors of the turn, with history and context in `configurable`."""
    known = {**(config.get("configurable") or {}), "message_history": history, CONTEXT: context}
    return {**config, "configurable": known, "tags": [*(config.get("tags") or []), QUIET]}


class BoundSession(NamedTuple):
    """A session's history and its further memories."""

    history: Any
    native: bool
    memories: list[Memory]


@dataclass(frozen=True, slots=True)
class TurnStart:
    """Starts and resumes the runs of one middleware."""

    get_session_history: GetSessionHistory
    policy: TurnOptions

    async def begin(
        self,
        state: Mapping[str, Any],
        configurable: dict[str, Any],
        config: RunnableConfig,
        seen: Sequence[BaseMessage] = (),
        *,
        trial: bool = False,
    ) -> Run:
        """Start a run with new input; messages of the state that the transcript lacks are stored first.

        Args:
            state: The agent's state.
            configurable: The ids of the call.
            config: The config of the call.
            seen: Messages of the previous run, removed ones included.
            trial: Whether this is a dry run, which stores nothing.

        Raises:
            ConfigurationError: The ids do not fit the histories or memories of the middleware.
        """
        messages = messages_in(state)
        before: Marker | None = state.get("memkit_turn")
        place = session_of_run(configurable)
        turn_id = configurable.get("turn_id")
        turn_id = str(uuid4()) if turn_id is None else check_id(turn_id, "turn_id")
        bound = await self.bind(configurable)
        start = unstored_start(messages, before)
        first = start_of_turn(messages, start)
        # Messages without an id get the ids that the previous run stored them by, or would have: so the indexed
        # lookup below recognizes them, and a second attempt to store them changes nothing.
        named = with_turn_ids(messages[start:], [place], _namer(before, turn_id))
        known, view = await self._read(bound, [m.id or "" for m in (*seen, *named)], messages[first:], config)
        moved = before is not None and before["place"] != place
        skip, forked = list[list[int]](), False
        # Without a marker this is the thread's first turn, perhaps repeated, or the agent is a node of a larger
        # graph. It is a fork only if messages of this very turn are stored already.
        if not moved and (before is not None or {m.id for m in named[first - start :]} & known):
            skip, forked = _skipped(before, view, config)
        cleared = before is not None and await _is_cleared(bound, before, view)
        if before is not None and (cleared or moved):
            # What the state held then must not come back after a clear, nor move to another user or session.
            start = unstored_start(messages, before, settled=True)
            first = start_of_turn(messages, start)
            if moved and not before["done"]:  # whose the messages in between are is unknown: leave them out
                start = first
            before, seen, named = None, (), with_turn_ids(messages[start:], [place], turn_id)
        # After a clear nothing older than the input is stored: it may have been added to the state before the clear.
        left = [] if cleared else in_state_order(seen, named[: first - start])
        left = [m for m in left if m.id not in known and is_dialogue(m)]
        # Stored messages of the unfinished previous run, and a question that a retry repeats, belong to the past.
        if before is not None and not before["done"]:
            while first + 1 < len(messages) and (
                named[first - start].id in known or _is_retry(messages, first, before, turn_id)
            ):
                first += 1
        marker = _marker(messages, first, turn_id, view, before, skip, place)
        older, unnamed = _older(messages, first)
        run = Run(
            place=place,
            marker=marker,
            older=older,
            older_unnamed=unnamed,
            history=bound.history,
            native=bound.native,
            memories=bound.memories,
            view=view,
            known=known,
        )
        if forked:
            run.known = set()  # a branch is stored whole, beginning with its question
        # A thread without a marker may still hold what was erased when the session was cleared: do not store it again.
        if left and not (before is None and await _was_cleared(bound, view)):
            if trial:  # show the messages as if they had been stored
                run.view = view._replace(messages=[*view.messages, *left])
            else:
                # If that fails without raising, the marker starts before these messages: the next run tries again.
                if not await self._adopt(run, left, before, config):
                    run.marker = {**run.marker, "first": messages[start].id, "start": start}
                    run.older, run.older_unnamed = _older(messages, start)
                run.view = await self._view(bound, messages[first:], config)
        run.observe(messages)
        return run

    async def resume(
        self,
        state: Mapping[str, Any],
        configurable: dict[str, Any],
        config: RunnableConfig,
        seen: Sequence[BaseMessage] = (),
    ) -> Run:
        """Resume a run that another invocation, perhaps in another process, started.

        Args:
            state: The agent's state, with the marker of the run.
            configurable: The ids of the call.
            config: The config of the call.
            seen: Messages of the run, removed ones included.

        Raises:
            ConfigurationError: The run belongs to another user or session.
        """
        messages = messages_in(state)
        marker: Marker = state["memkit_turn"]
        check_place(marker, configurable)
        place = marker["place"]
        bound = await self.bind(configurable)
        start = unstored_start(messages, marker)
        own = with_turn_ids(messages[start:], [place], marker["turn_id"])
        ids = {m.id for m in (*seen, *messages, *own) if m.id}
        known, view = await self._read(bound, sorted(ids), messages[start:], config)
        older, unnamed = _older(messages, start)
        # The run's first message was removed, so its start is unknown: stored messages count as older than the run.
        if index_of(messages, marker["first"]) < 0 and marker["first"] is not None:
            older |= known
        replayed: int | None = None
        if bound.native and known & {m.id for m in own}:
            # Some of the run's messages are stored: by an aborted attempt, or as the whole turn, which has its own key.
            replayed = await seq_of(bound.history, batch_op([], marker["turn_id"]), marker["seq"])
        # The turn is stored already, so this repeats it or its last steps from an older checkpoint. It is stored
        # again as a branch, and the positions from the first attempt on are skipped in its prompts.
        if replayed:
            known, marker = set(), {**marker, "seq": view.seq, "skip": [*marker["skip"], [replayed, view.seq]]}
        run = Run(
            place=place,
            marker=marker,
            older=older,
            older_unnamed=unnamed,
            history=bound.history,
            native=bound.native,
            memories=bound.memories,
            view=view,
            known=known,
        )
        run.replayed = replayed
        run.remember(seen, messages)
        return run

    async def bind(self, configurable: dict[str, Any]) -> BoundSession:
        """Return the history of a call and its further memories, without reading them.

        Raises:
            ConfigurationError: A surrounding chain stores the same session, or a memory belongs to another one.
        """
        history = await session_history(self.get_session_history, None, configurable)
        outer = configurable.get("message_history")
        if outer is not None and _ids(outer) == _ids(history):
            msg = (
                "the agent runs inside create_runnable_with_message_history over the same conversation, so each turn "
                "would be stored twice. Leave out one of the two, or give the agent a session_id of its own."
            )
            raise ConfigurationError(msg)
        memories = await self.policy.memories.bind(None, configurable, history)
        return BoundSession(history, is_native(history), memories)

    async def _read(
        self, bound: BoundSession, ids: Sequence[str], asked: Sequence[BaseMessage], config: RunnableConfig
    ) -> tuple[set[str], HistoryView]:
        """Look up which messages are stored (one indexed query) and read the past; on an event loop both at once."""
        view, memories = self._view(bound, asked, config), self.policy.memories
        if not bound.native:
            found = await memories.beside(bound.memories, view)
            return {m.id for m in found.messages if m.id}, found
        stored = stored_ids(bound.history, ids)
        return await memories.beside(bound.memories, both(stored, view))

    def _view(self, bound: BoundSession, asked: Sequence[BaseMessage], config: RunnableConfig) -> Step[HistoryView]:
        inside = config_of_turn(config, bound.history, TurnContext(asked))

        return as_step(lambda: load(bound.history, self.policy.preprocessor, inside, native=bound.native))

    async def _adopt(self, run: Run, left: list[BaseMessage], before: Marker | None, config: RunnableConfig) -> bool:
        """Store messages of the state that the transcript lacks, one row per turn; repeating it changes nothing.

        Returns:
            False if that failed and the failure was reported rather than raised.
        """
        turn_id = run.marker["turn_id"]
        for begin, end in pairwise([*turn_starts(left), len(left)]):
            said = left[begin:end]
            whole = whole_tool_groups(said)
            if whole != said:  # a tool call was still waiting for its result when the user went on
                said = aborted(said) or whole
            turn = replace(run.turn(said, config), turn_id=batch_op(said, None))
            if before is not None:
                if not (before["done"] or begin or before["turn_id"] == turn_id):
                    # Under the previous turn's own id: of two concurrent runs each then stores only the messages
                    # that the other has not.
                    turn = replace(turn, turn_id=before["turn_id"])
                # With the epoch of the earlier run: if the session was cleared meanwhile, the append is refused.
                if before["epoch"]:
                    turn = replace(turn, epoch=before["epoch"], since=turn_started_at(before))
            if said and await self.policy.save_messages(turn, said, None) == UNSAVED:
                return False
        return True


def _namer(before: Marker | None, turn_id: str) -> str:
    """Return the turn id from which unnamed messages between the last run and this one derive their ids."""
    if before is None:
        return f"{turn_id}:before"
    return f"{before['turn_id']}:after" if before["done"] else before["turn_id"]


def _older(messages: Sequence[BaseMessage], first: int) -> tuple[set[str], int]:
    """Return the ids of messages before position `first` that do not recur after it, and the number without an id."""
    ids = {m.id for m in messages[:first] if m.id} - {m.id for m in messages[first:]}
    return ids, sum(not m.id for m in messages[:first])


def _is_retry(messages: Sequence[BaseMessage], i: int, before: Marker, turn_id: str) -> bool:
    """Return whether the unanswered question at `i` is asked again by a retry with the same turn id."""
    again = before["turn_id"] == turn_id and isinstance(messages[i], HumanMessage)
    return again and (messages[i].type, messages[i].content) == (messages[-1].type, messages[-1].content)


async def _was_cleared(bound: BoundSession, view: HistoryView) -> bool:
    """Return whether the session may have been cleared at some time: it has no turn at position 1 any more.

    It is also true if the first turns expired, since expired text must not be stored again either.
    """
    if not (bound.native and view.epoch):
        return False
    history = bound.history
    first: Turn | None = await Step(
        lambda: next(history.iter_turns(), None), lambda: anext(aiter(history.aiter_turns()), None)
    )
    return first is None or first.seq > 1


def _ids(history: Any) -> tuple[Any, Any]:
    return getattr(history, "user_id", None), getattr(history, "session_id", history)


async def _is_cleared(bound: BoundSession, before: Marker, view: HistoryView) -> bool:
    """Return whether the session was cleared since the previous run, which shows in another epoch.

    An open run that began before the session's first turn has no epoch to compare; then `_was_cleared` decides.
    """
    if not bound.native or before["epoch"] == view.epoch:
        return False
    return before["epoch"] != 0 or (not before["done"] and await _was_cleared(bound, view))


def _skipped(before: Marker | None, view: HistoryView, config: RunnableConfig) -> tuple[list[list[int]], bool]:
    """Return the ranges of positions on other branches, and whether the thread forks from an older checkpoint here."""
    seq, skip = (before["seq"], before["skip"]) if before else (0, [])
    # LangGraph puts the checkpoint that the caller addressed into the metadata. Positions after the marker's are
    # then on the branch that is left.
    if (config.get("metadata") or {}).get("checkpoint_id") and view.seq > seq:
        return [*skip, [seq + 1, view.seq]], True
    return skip, False


def _marker(
    messages: Sequence[BaseMessage],
    first: int,
    turn_id: str,
    view: HistoryView,
    before: Marker | None,
    skip: list[list[int]],
    place: str,
) -> Marker:
    return Marker(
        key=uuid4().hex,
        place=place,
        turn_id=turn_id,
        first=messages[first].id if first < len(messages) else None,
        start=first,
        end=messages[-1].id if messages else None,
        held=len(messages),
        done=False,
        epoch=view.epoch,
        since=view.read_at.isoformat() if view.read_at else None,
        base=before["seq"] if before else 0,
        seq=view.seq,
        skip=skip,
    )


async def commit(run: Run, policy: TurnOptions, state: Mapping[str, Any], config: RunnableConfig) -> Marker:
    """Store the turn as the other middleware left it, and return the updated marker for the state."""
    messages = messages_in(state)
    new = run.unstored(run.observe(messages))
    new = _with_calls(run, new, messages)
    run.finished = True
    seq: int | None = None
    if new:
        output = {key: state[key] for key in ("messages", "structured_response") if key in state}
        # The leading messages without an answer are the turn's input: retries compare by them.
        asked = list(takewhile(lambda m: m.type in ("human", "system"), new))
        seq = await policy.save_messages(run.turn(asked, config), new, output)
    if run.replayed is not None and seq == run.replayed:  # the same messages again, so there is no new branch
        run.marker = {**run.marker, "skip": run.marker["skip"][:-1]}
    # The failure was reported, not raised. The marker stays open: the state has the messages, and the next run
    # stores them.
    if seq == UNSAVED:
        return run.marker
    end, epoch = (messages[-1].id if messages else None), run.marker["epoch"]
    if run.native and seq and not epoch:  # the session's first turn has drawn the epoch
        epoch = await epoch_at(run.history, seq) or 0
    seq = seq or run.marker["seq"]
    return {**run.marker, "done": True, "end": end, "held": len(messages), "epoch": epoch, "seq": seq}


def _with_calls(run: Run, new: list[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Repeat the tool calls before late results of a run that was stopped, since they were stored without them."""
    late = [m.tool_call_id for m in takewhile(lambda m: isinstance(m, ToolMessage), new) if isinstance(m, ToolMessage)]
    said = [m for m in run.own(messages) if isinstance(m, AIMessage)] if late else []
    calls = [call for m in said for call in m.tool_calls if call["id"] in late]
    return [AIMessage("", tool_calls=calls, id=f"{new[0].id}-calls"), *new] if calls else new


async def on_error(run: Run, policy: TurnOptions, config: RunnableConfig) -> None:
    """Apply `on_model_error` after a model or a tool raised."""
    asked, _ = run.said(())
    await policy.model_failed(run.turn(asked, config))
    # The input is stored under an id of its own, so a later save of this run must leave it out.
    if policy.on_model_error == "save_input":
        run.known |= {m.id for m in asked if m.id}


async def on_cancel(run: Run, policy: TurnOptions, config: RunnableConfig, results: Sequence[BaseMessage]) -> None:
    """Apply `on_abort` after the run was cancelled in a call: store the partial turn or nothing.

    Args:
        run: The run.
        policy: Its options.
        config: The config of the call.
        results: Results that tools of the same step had returned.
    """
    asked, said = run.said(results)
    await policy.save_partial(run.turn(asked, config), lambda: said, {"messages": [*asked, *said]})
    run.known |= {m.id for m in (*asked, *said) if m.id}
