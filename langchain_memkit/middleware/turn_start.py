"""A run begins, or is resumed where it was interrupted: whose conversation, what of it is new, what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._histories import is_native, seq_of, stored_ids
from langchain_memkit._sync import Step, as_step, both
from langchain_memkit.base import CONTEXT, GetSessionHistory, HistoryView, Memory, Turn, TurnContext, check_id
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.chain_io import aborted
from langchain_memkit.messages.cuts import whole_tool_groups
from langchain_memkit.messages.turns import batch_op, index_of, turn_starts, with_turn_ids
from langchain_memkit.middleware.run import Run
from langchain_memkit.middleware.state import (
    Marker,
    in_order,
    is_said,
    messages_in,
    moment,
    start_of_turn,
    unstored_start,
)
from langchain_memkit.preprocessors.loading import load
from langchain_memkit.runnables.saving import UNSAVED, Policy
from langchain_memkit.runnables.session import session_history

__all__ = ["TurnStart", "check_place", "configured", "in_turn", "place_of_run"]

QUIET = "nostream"  # LangGraph's word: models called for the context are not the agent speaking
ELSEWHERE = (
    "this run was begun for another user or session. Resume it with the same session_id (or thread_id) and user_id, in "
    "the config or in the runtime context."
)


def configured(config: RunnableConfig, context: Any) -> dict[str, Any]:
    """Return the ids of a call. Those of the runtime context count more: an app sets them, and a client the config."""
    given = {k: v for k, v in (config.get("configurable") or {}).items() if not k.startswith(("__", "checkpoint_"))}
    user_id = context.get("user_id") if isinstance(context, Mapping) else getattr(context, "user_id", None)
    return given if user_id is None else {**given, "user_id": user_id}


def place_of_run(configurable: dict[str, Any]) -> str:
    """Return whose conversation it is, as one text."""
    session_id = configurable.get("session_id", configurable.get("thread_id"))
    return f"{configurable.get('user_id')!r} {session_id!r}"


def check_place(marker: Marker | None, configurable: dict[str, Any]) -> None:
    """Refuse to go on with a run of another user or session, before anything of it is called."""
    if marker is not None and not marker["done"] and marker["place"] != place_of_run(configurable):
        raise ConfigurationError(ELSEWHERE)


def in_turn(config: RunnableConfig, history: Any, context: TurnContext) -> RunnableConfig:
    """Return the config for what takes part in the turn."""
    known = {**(config.get("configurable") or {}), "message_history": history, CONTEXT: context}
    return {**config, "configurable": known, "tags": [*(config.get("tags") or []), QUIET]}


class Bound(NamedTuple):
    """A conversation and the memories beside it."""

    history: Any
    native: bool
    memories: list[Memory]


@dataclass(frozen=True, slots=True)
class TurnStart:
    """What the middleware was made with."""

    get_session_history: GetSessionHistory
    policy: Policy

    async def begin(
        self,
        state: Mapping[str, Any],
        configurable: dict[str, Any],
        config: RunnableConfig,
        seen: Sequence[BaseMessage] = (),
        *,
        trial: bool = False,
    ) -> Run:
        """Begin a run with new input. What the state holds beside it and the transcript does not is stored first.

        Args:
            state: Of the agent.
            configurable: The ids of the call.
            config: Of the call.
            seen: What the run before it was seen to say, where the state has lost a part of it.
            trial: Whether somebody only wants to see what would be shown: nothing is stored.
        """
        messages = messages_in(state)
        before: Marker | None = state.get("memkit_turn")
        place = place_of_run(configurable)
        turn_id = configurable.get("turn_id")
        turn_id = str(uuid4()) if turn_id is None else check_id(turn_id, "turn_id")
        bound = await self.bind(configurable)
        start = unstored_start(messages, before)
        first = start_of_turn(messages, start)
        # with the ids that the run before has stored them by, or would have
        named = with_turn_ids(messages[start:], [place], _namer(before, turn_id))
        known, view = await self._read(bound, [m.id or "" for m in (*seen, *named)], messages[first:], config)
        moved = before is not None and before["place"] != place
        skip, forked = list[list[int]](), False
        # without a marker this is the thread's first turn, perhaps again; or the agent is a node of a larger graph
        if not moved and (before is not None or {m.id for m in named[first - start :]} & known):
            skip, forked = _skipped(before, view, config)
        cleared = before is not None and await _is_cleared(bound, before, view)
        if before is not None and (cleared or moved):
            # what the state had then must not come back, and is not somebody else's
            start = unstored_start(messages, before, settled=True)
            first = start_of_turn(messages, start)
            if moved and not before["done"]:  # nobody can tell whose it is that stands between
                start = first
            before, seen, named = None, (), with_turn_ids(messages[start:], [place], turn_id)
        # of what was put into the state since, nobody can tell whether that was before the clear
        left = [] if cleared else in_order(seen, named[: first - start])
        left = [m for m in left if m.id not in known and is_said(m)]
        if before is not None and not before["done"]:  # what is stored of the run before is the past
            while first + 1 < len(messages) and (
                named[first - start].id in known or _is_retry(messages, first, before, turn_id)
            ):
                first += 1
        marker = _marker(messages, first, turn_id, view, before, skip, place)
        older, unnamed = _older(messages, first)
        run = Run(place, marker, older, unnamed, bound.history, bound.native, bound.memories, view, known)
        if forked:
            run.known = set()  # the branch is stored whole, beginning with its question
        if left and not (before is None and await _was_cleared(bound, view)):
            if trial:  # it is shown as if it had been
                run.view = view._replace(messages=[*view.messages, *left])
            else:
                if not await self._adopt(run, left, before, config):  # the next run tries again
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
        """Go on with a run that another invocation, perhaps in another process, began.

        Args:
            state: Of the agent, with the marker of the run.
            configurable: The ids of the call.
            config: Of the call.
            seen: What the run was seen to say, where the state has lost a part of it.
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
        if index_of(messages, marker["first"]) < 0 and marker["first"] is not None:  # it was removed
            older |= known
        replayed: int | None = None
        if bound.native and known & {m.id for m in own}:
            replayed = await seq_of(bound.history, batch_op([], marker["turn_id"]), marker["seq"])
        if replayed:  # the turn was stored once: it is run again from its middle, or only its end is
            known, marker = set(), {**marker, "seq": view.seq, "skip": [*marker["skip"], [replayed, view.seq]]}
        run = Run(place, marker, older, unnamed, bound.history, bound.native, bound.memories, view, known)
        run.replayed = replayed
        run.remember(seen, messages)
        return run

    async def bind(self, configurable: dict[str, Any]) -> Bound:
        """Return the conversation of a call and the memories beside it; nothing is read."""
        history = await session_history(self.get_session_history, None, configurable)
        outer = configurable.get("message_history")
        if outer is not None and _ids(outer) == _ids(history):
            msg = (
                "the agent runs inside create_runnable_with_message_history over the same conversation, so each turn "
                "would be stored twice. Leave out one of the two, or give the agent a session_id of its own."
            )
            raise ConfigurationError(msg)
        memories = await self.policy.memories.bind(None, configurable, history)
        return Bound(history, is_native(history), memories)

    async def _read(
        self, bound: Bound, ids: Sequence[str], asked: Sequence[BaseMessage], config: RunnableConfig
    ) -> tuple[set[str], HistoryView]:
        """Read which of these messages are stored (one indexed query), and the past; on an event loop both at once."""
        view, memories = self._view(bound, asked, config), self.policy.memories
        if not bound.native:
            found = await memories.beside(bound.memories, view)
            return {m.id for m in found.messages if m.id}, found
        stored = stored_ids(bound.history, ids)
        return await memories.beside(bound.memories, both(stored, view))

    def _view(self, bound: Bound, asked: Sequence[BaseMessage], config: RunnableConfig) -> Step[HistoryView]:
        inside = in_turn(config, bound.history, TurnContext(asked))

        return as_step(lambda: load(bound.history, self.policy.preprocessor, inside, native=bound.native))

    async def _adopt(self, run: Run, left: list[BaseMessage], before: Marker | None, config: RunnableConfig) -> bool:
        """Store what the state holds and the transcript does not, a row a turn; the same again changes nothing.

        Returns:
            Whether it is stored; a failure that is not to be raised is reported.
        """
        turn_id = run.marker["turn_id"]
        for begin, end in pairwise([*turn_starts(left), len(left)]):
            said = left[begin:end]
            whole = whole_tool_groups(said)
            if whole != said:  # it waited for a result, and the user went on
                said = aborted(said) or whole
            turn = replace(run.turn(said, config), turn_id=batch_op(said, None))
            if before is not None:
                if not (before["done"] or begin or before["turn_id"] == turn_id):
                    # under its own id, so that of two runs at the same time each stores what the other has not
                    turn = replace(turn, turn_id=before["turn_id"])
                if before["epoch"]:
                    turn = replace(turn, epoch=before["epoch"], since=moment(before))
            if said and await self.policy.save_messages(turn, said, None) == UNSAVED:
                return False
        return True


def _namer(before: Marker | None, turn_id: str) -> str:
    """Return the turn by which messages without an id are named that stand between the last run and this one."""
    if before is None:
        return f"{turn_id}:before"
    return f"{before['turn_id']}:after" if before["done"] else before["turn_id"]


def _older(messages: Sequence[BaseMessage], first: int) -> tuple[set[str], int]:
    """Return the ids of what came before a run, without those of its own messages, and how many have none."""
    ids = {m.id for m in messages[:first] if m.id} - {m.id for m in messages[first:]}
    return ids, sum(not m.id for m in messages[:first])


def _is_retry(messages: Sequence[BaseMessage], i: int, before: Marker, turn_id: str) -> bool:
    """Return whether a question that nobody answered is asked again, by a retry around the agent."""
    again = before["turn_id"] == turn_id and isinstance(messages[i], HumanMessage)
    return again and (messages[i].type, messages[i].content) == (messages[-1].type, messages[-1].content)


async def _was_cleared(bound: Bound, view: HistoryView) -> bool:
    """Return whether the session was cleared once: a thread without a marker may still hold what was erased then."""
    if not (bound.native and view.epoch):
        return False
    history = bound.history
    first: Turn | None = await Step(
        lambda: next(history.iter_turns(), None), lambda: anext(aiter(history.aiter_turns()), None)
    )
    return first is None or first.seq > 1


def _ids(history: Any) -> tuple[Any, Any]:
    return getattr(history, "user_id", None), getattr(history, "session_id", history)


async def _is_cleared(bound: Bound, before: Marker, view: HistoryView) -> bool:
    """Return whether the session was cleared since a run. One that waited before it had a turn cannot tell."""
    if not bound.native or before["epoch"] == view.epoch:
        return False
    return before["epoch"] != 0 or (not before["done"] and await _was_cleared(bound, view))


def _skipped(before: Marker | None, view: HistoryView, config: RunnableConfig) -> tuple[list[list[int]], bool]:
    """Return the positions of branches not taken, and whether the thread goes on from an older checkpoint here."""
    seq, skip = (before["seq"], before["skip"]) if before else (0, [])
    # LangGraph tells a run which checkpoint its caller addressed
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
