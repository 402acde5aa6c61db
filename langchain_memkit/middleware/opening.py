"""A run begins, or is taken up where it was interrupted: whose conversation, what of it is new, what was said."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._flow import Flow, Step, adrive, arun_step, drive, run_step
from langchain_memkit._histories import is_native, stored_ids
from langchain_memkit.base import CONTEXT, GetSessionHistory, HistoryView, Memory, Turn, TurnContext, check_id
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.chain_io import aborted
from langchain_memkit.messages.cuts import whole_tool_groups
from langchain_memkit.messages.turns import batch_op, turn_starts
from langchain_memkit.middleware.claims import Claims, claimed
from langchain_memkit.middleware.run import Run
from langchain_memkit.middleware.runs import seen_in
from langchain_memkit.middleware.state import Mark, divide, index_of, is_said, moment
from langchain_memkit.preprocessors.loading import load
from langchain_memkit.runnables.saving import Policy
from langchain_memkit.runnables.session import session_history

__all__ = ["Door", "configured", "in_turn", "place_of_run"]

QUIET = "nostream"  # LangGraph's word: models called for the context are not the agent speaking


def configured(config: RunnableConfig, context: Any) -> dict[str, Any]:
    """The ids of a call: those of the runtime context count more, since an app sets them, and a client the config."""
    given = {k: v for k, v in (config.get("configurable") or {}).items() if not k.startswith(("__", "checkpoint_"))}
    user_id = context.get("user_id") if isinstance(context, Mapping) else getattr(context, "user_id", None)
    return given if user_id is None else {**given, "user_id": user_id}


def place_of_run(configurable: dict[str, Any]) -> str:
    """Whose conversation, as one text."""
    session_id = configurable.get("session_id", configurable.get("thread_id"))
    return f"{configurable.get('user_id')!r} {session_id!r}"


def in_turn(config: RunnableConfig, history: Any, context: TurnContext) -> RunnableConfig:
    """The config for what takes part in the turn."""
    known = {**(config.get("configurable") or {}), "message_history": history, CONTEXT: context}
    return {**config, "configurable": known, "tags": [*(config.get("tags") or []), QUIET]}


class Bound(NamedTuple):
    """A conversation and the memories beside it."""

    history: Any
    native: bool
    memories: list[Memory]


@dataclass(frozen=True, slots=True)
class Door:
    """What the middleware was made with."""

    get_session_history: GetSessionHistory
    policy: Policy
    claims: Claims

    def begin(
        self,
        state: Mapping[str, Any],
        configurable: dict[str, Any],
        config: RunnableConfig,
        others: Collection[str] = (),
        *,
        trial: bool = False,
    ) -> Flow[Run]:
        """A run with new input. What the state holds beside it and the transcript does not is stored first.

        Args:
            state: Of the agent.
            configurable: The ids of the call.
            config: Of the call.
            others: Ids of what runs say that are under way: they store it themselves.
            trial: Whether somebody only wants to see what would be shown: nothing is stored.
        """
        messages: list[BaseMessage] = list(state["messages"])
        before: Mark | None = state.get("memkit_turn")
        place, seen = place_of_run(configurable), seen_in(state)
        turn_id = configurable.get("turn_id")
        turn_id = str(uuid4()) if turn_id is None else check_id(turn_id, "turn_id")
        bound = yield from self._bound(configurable)
        start, first = divide(messages, before, others)
        ids = [m.id for m in (*seen, *messages[start:]) if m.id]
        known, view = yield from self._read(bound, ids, messages[first:], config)
        if before is not None and (before["place"] != place or (bound.native and _is_cleared(before, view))):
            # what the state had then must not come back, and is not somebody else's
            start, first = divide(messages, before, others, settled=True)
            before, seen = None, []
        left = [m for m in _in_order(seen, messages[start:first]) if m.id not in known and is_said(m)]
        if before is not None and not before["done"]:  # what is stored of the run before is the past
            while first + 1 < len(messages) and (
                messages[first].id in known or _is_retry(messages, first, before, turn_id)
            ):
                first += 1
        mark = _mark(messages, first, turn_id, view, before, config, place)
        run = Run(place, mark, {m.id for m in messages[:first] if m.id}, known, *bound, view)
        if before is not None and mark["skip"] != before["skip"]:
            run.known = set()  # the branch is stored whole, beginning with its question
        elif left and not (before is None and (yield from _was_cleared(bound, view))):
            if trial:  # it is shown as if it had been
                run.view = view._replace(messages=[*view.messages, *left])
            else:
                # somebody may have stored it since: this is rare enough for another look
                stored: set[str] = set()
                if bound.native:
                    stored = yield stored_ids(bound.history, [m.id for m in left if m.id])
                yield from self._adopt(run, [m for m in left if m.id not in stored], before, config)
                run.view = yield self._view(bound, messages[first:], config)
        run.observe(messages)
        return run

    def complete(
        self, run: Run, state: Mapping[str, Any], configurable: dict[str, Any], config: RunnableConfig
    ) -> Flow[None]:
        """Reads what a run needs that was taken up in its middle."""
        messages: list[BaseMessage] = list(state["messages"])
        bound = yield from self._bound(configurable)
        first, mark = index_of(messages, run.mark["first"]), run.mark
        ids = {m.id for m in (*run.seen, *messages) if m.id}
        known, view = yield from self._read(bound, sorted(ids), messages[max(first, 0) :], config)
        if first < 0:
            run.older |= known
        turns: Sequence[Turn] = getattr(view.messages, "turns", ())
        done = next((turn.seq for turn in turns if turn.op == batch_op([], mark["turn_id"])), None)
        if done:  # the turn was stored once: it is run again from its middle, or only its end is
            known, run.replayed = set(), done
            run.mark = {**mark, "seq": view.seq, "skip": [*mark["skip"], [done, view.seq]]}
        run.known, run.view, run.native, run.memories = known, view, bound.native, bound.memories
        run.history = bound.history

    def _bound(self, configurable: dict[str, Any]) -> Flow[Bound]:
        history = yield session_history(self.get_session_history, None, configurable)
        outer = configurable.get("message_history")
        if outer is not None and _ids(outer) == _ids(history):
            msg = (
                "the agent runs inside create_runnable_with_message_history over the same conversation, so each turn "
                "would be stored twice. Leave out one of the two, or give the agent a session_id of its own."
            )
            raise ConfigurationError(msg)
        memories = yield from self.policy.memories.bind(None, configurable, history)
        native = is_native(history)
        return Bound(history, native, memories)

    def _read(
        self, bound: Bound, ids: Sequence[str], asked: Sequence[BaseMessage], config: RunnableConfig
    ) -> Flow[tuple[set[str], HistoryView]]:
        """Which of these messages are stored (one indexed query), and the past; on an event loop both at once."""
        view = self._view(bound, asked, config)
        if not bound.native:
            found: HistoryView = yield view
            return {m.id for m in found.messages if m.id}, found
        stored = stored_ids(bound.history, ids)

        async def at_once() -> Any:
            return await asyncio.gather(stored.asynchronous(), view.asynchronous())

        known, found = yield Step(lambda: (stored.sync(), view.sync()), at_once)
        return known, found

    def _view(self, bound: Bound, asked: Sequence[BaseMessage], config: RunnableConfig) -> Step:
        inside = in_turn(config, bound.history, TurnContext(asked))

        def flow() -> Flow[HistoryView]:
            return load(bound.history, self.policy.preprocessor, inside, native=bound.native)

        return Step(lambda: drive(flow(), run_step), lambda: adrive(flow(), arun_step))

    def _adopt(self, run: Run, left: list[BaseMessage], before: Mark | None, config: RunnableConfig) -> Flow[None]:
        """Stores what the state holds and the transcript does not, a turn each; the same again changes nothing."""
        for begin, end in pairwise([*turn_starts(left), len(left)]):
            said = left[begin:end]
            whole = whole_tool_groups(said)
            if whole != said:  # it waited for a result, and was overtaken
                said = aborted(said) or whole
            turn = replace(run.turn(said, config), turn_id=batch_op(said, None))
            if before is not None and before["epoch"]:
                turn = replace(turn, epoch=before["epoch"], since=moment(before))
            if said := self.claims.take(run, said):
                yield from claimed(self.claims, run, said, self.policy.save_messages(turn, said, None))


def _in_order(seen: Sequence[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """What a run was seen to say, as far as it stands there now, as it stands there."""
    current = {m.id: m for m in messages}
    before = {m.id for m in seen}
    return [*(current.get(m.id, m) for m in seen), *(m for m in messages if m.id not in before)]


def _is_retry(messages: Sequence[BaseMessage], i: int, before: Mark, turn_id: str) -> bool:
    """Whether a question that nobody answered is the one that is asked again, by a retry around the agent."""
    again = before["turn_id"] == turn_id and isinstance(messages[i], HumanMessage)
    return again and (messages[i].type, messages[i].content) == (messages[-1].type, messages[-1].content)


def _was_cleared(bound: Bound, view: HistoryView) -> Flow[bool]:
    """Whether the session was cleared once: a thread without a mark may still hold what was erased then."""
    if not (bound.native and view.epoch):
        return False
    history = bound.history
    first: Turn | None = yield Step(
        lambda: next(history.iter_turns(), None), lambda: anext(aiter(history.aiter_turns()), None)
    )
    return first is None or first.seq > 1


def _ids(history: Any) -> tuple[Any, Any]:
    return getattr(history, "user_id", None), getattr(history, "session_id", history)


def _is_cleared(before: Mark, view: HistoryView) -> bool:
    """Whether the session was cleared since a run. One that began it and did not end cannot tell; then it was."""
    return before["epoch"] != view.epoch and (before["epoch"] != 0 or not before["done"])


def _mark(
    messages: Sequence[BaseMessage],
    first: int,
    turn_id: str,
    view: HistoryView,
    before: Mark | None,
    config: RunnableConfig,
    place: str,
) -> Mark:
    skip = before["skip"] if before else []
    # LangGraph tells a run which checkpoint its caller addressed: here the thread goes on from an older one
    if before is not None and (config.get("metadata") or {}).get("checkpoint_id") and view.seq > before["seq"]:
        skip = [*skip, [before["seq"] + 1, view.seq]]
    return Mark(
        key=uuid4().hex,
        place=place,
        turn_id=turn_id,
        first=messages[first].id if first < len(messages) else None,
        end=messages[-1].id if messages else None,
        done=False,
        epoch=view.epoch,
        since=view.read_at.isoformat() if view.read_at else None,
        base=before["seq"] if before else 0,
        seq=view.seq,
        skip=skip,
    )
