"""A run begins, or is taken up where it was interrupted: whose conversation, what of it is new, what was said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._flow import Flow, Step
from langchain_memkit.base import CONTEXT, GetSessionHistory, HistoryView, Memory, TurnContext, check_id
from langchain_memkit.messages.turns import batch_op, turn_starts
from langchain_memkit.middleware.run import Run
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

    place: str
    history: Any
    native: bool
    memories: list[Memory]


@dataclass(frozen=True, slots=True)
class Door:
    """What the middleware was made with."""

    get_session_history: GetSessionHistory
    policy: Policy

    def begin(
        self, state: Mapping[str, Any], configurable: dict[str, Any], config: RunnableConfig, *, busy: bool = False
    ) -> Flow[Run]:
        """A run with new input. What the state holds beside it and the transcript does not is stored first.

        Args:
            state: Of the agent.
            configurable: The ids of the call.
            config: Of the call.
            busy: Whether the thread's run before this one has not ended yet: what it said it will store itself.
        """
        messages: list[BaseMessage] = list(state["messages"])
        before: Mark | None = state.get("memkit_turn")
        turn_id = configurable.get("turn_id")
        turn_id = str(uuid4()) if turn_id is None else check_id(turn_id, "turn_id")
        bound = yield from self._bound(configurable)
        start, first = divide(messages, before, settled=busy)
        known: set[str] = yield from _stored(bound, messages[start:])
        view = yield from self._viewed(bound, messages[first:], config)
        if before is not None and bound.native and before["epoch"] not in (0, view.epoch):
            # cleared meanwhile: what the state had then must not come back
            start, first = divide(messages, before, settled=True)
            before = None
        mark = _mark(messages, first, turn_id, view, before, config)
        run = Run(*bound, mark, view, {m.id for m in messages[:first] if m.id}, known | _ids_in(bound, view))
        if before is not None and mark["skip"] != before["skip"]:
            run.known = set()  # the branch is stored whole, beginning with its question
        elif not busy and (yield from self._adopt(run, messages[start:first], before, config)):
            run.view = yield from self._viewed(bound, messages[first:], config)
        run.observe(messages)
        return run

    def resume(self, state: Mapping[str, Any], configurable: dict[str, Any], config: RunnableConfig) -> Flow[Run]:
        """A run that another invocation, perhaps in another process, began."""
        mark: Mark | None = state.get("memkit_turn")
        if mark is None or mark["done"]:  # it did not pass `before_agent`
            return (yield from self.begin(state, configurable, config))
        messages: list[BaseMessage] = list(state["messages"])
        bound = yield from self._bound(configurable)
        first = index_of(messages, mark["first"])
        known: set[str] = yield from _stored(bound, messages)
        view = yield from self._viewed(bound, messages[max(first, 0) :], config)
        known |= _ids_in(bound, view)
        older = {m.id for m in messages[:first] if m.id} if first >= 0 else set(known)
        run = Run(*bound, mark, view, older, known)
        run.recover(state.get("memkit_removed") or [])
        done = next((t.seq for t in getattr(view.messages, "turns", ()) if t.op == batch_op([], mark["turn_id"])), None)
        if done:  # the turn was finished once, and is run again from its middle: a branch of its own
            run.known = set()
            run.mark = {**mark, "seq": view.seq, "skip": [*mark["skip"], [done, view.seq]]}
        run.observe(messages)
        return run

    def _bound(self, configurable: dict[str, Any]) -> Flow[Bound]:
        history = yield session_history(self.get_session_history, None, configurable)
        memories = yield from self.policy.memories.bind(None, configurable, history)
        native = hasattr(history, "append_turn") and hasattr(history, "view")
        return Bound(place_of_run(configurable), history, native, memories)

    def _viewed(self, bound: Bound, asked: Sequence[BaseMessage], config: RunnableConfig) -> Flow[HistoryView]:
        inside = in_turn(config, bound.history, TurnContext(asked))
        return (yield from load(bound.history, self.policy.preprocessor, inside, native=bound.native))

    def _adopt(self, run: Run, messages: list[BaseMessage], before: Mark | None, config: RunnableConfig) -> Flow[bool]:
        """Stores what the state holds and the transcript does not, a turn each; the same again changes nothing."""
        left = [m for m in run.unstored(messages) if is_said(m)]
        for begin, end in pairwise([*turn_starts(left), len(left)]):
            said = left[begin:end]
            turn = replace(run.turn(said, config), turn_id=batch_op(said, None))
            if before is not None and before["epoch"]:
                turn = replace(turn, epoch=before["epoch"], since=moment(before))
            yield from self.policy.save_messages(turn, said, None)
        return bool(left)


def _stored(bound: Bound, messages: Sequence[BaseMessage]) -> Flow[set[str]]:
    """Which of the messages the transcript has: one indexed query."""
    ids = [m.id for m in messages if m.id]
    if not (bound.native and ids):
        return set()
    history = bound.history
    return (yield Step(lambda: history.stored_ids(ids), lambda: history.astored_ids(ids)))  # type: ignore[no-any-return]  # any history


def _ids_in(bound: Bound, view: HistoryView) -> set[str]:
    """For a history that cannot be asked: it was read as a whole."""
    return set() if bound.native else {m.id for m in view.messages if m.id}


def _mark(
    messages: Sequence[BaseMessage],
    first: int,
    turn_id: str,
    view: HistoryView,
    before: Mark | None,
    config: RunnableConfig,
) -> Mark:
    skip = before["skip"] if before else []
    # LangGraph tells a run which checkpoint its caller addressed: here the thread goes on from an older one
    if before is not None and (config.get("metadata") or {}).get("checkpoint_id") and view.seq > before["seq"]:
        skip = [*skip, [before["seq"] + 1, view.seq]]
    return Mark(
        key=uuid4().hex,
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
