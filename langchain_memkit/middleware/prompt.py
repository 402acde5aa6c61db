"""The messages for a call of the model: the past of the transcript, what memories recall, and the run's own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._sync import Step, cpu_bound
from langchain_memkit.base import HistoryMessages
from langchain_memkit.messages.counting import approximate_tokens
from langchain_memkit.messages.cuts import RESULTS, whole_tool_groups
from langchain_memkit.messages.turns import group_starts
from langchain_memkit.middleware.run import Run
from langchain_memkit.middleware.state import is_foreign_summary
from langchain_memkit.middleware.turn_start import in_turn
from langchain_memkit.preprocessors.budget import Budget
from langchain_memkit.runnables.memories import with_note
from langchain_memkit.runnables.saving import Policy

__all__ = ["shown"]


async def shown(
    run: Run,
    policy: Policy,
    given: Sequence[BaseMessage],
    messages: Sequence[BaseMessage],
    config: RunnableConfig,
    *,
    trial: bool = False,
) -> list[BaseMessage]:
    """Return the messages for one call of the model.

    Args:
        run: The run.
        policy: Its options.
        given: The messages as the middleware before this one left them.
        messages: Of the state.
        config: Of the call.
        trial: Whether somebody only wants to see it.
    """
    summary = [m for m in given if is_foreign_summary(m)][-1:]
    own = run.own_of_request(given, messages)
    ids = {m.id for m in (*own, *run.own(messages)) if m.id}
    past = _past(run, given, ids, summarized=bool(summary))
    context, chain = run.context, policy.preprocessor
    context.asked, context.past, context.notes = [*summary, *own], past, []
    inside = in_turn(config, run.history, context)
    if run.loaded is None:
        seen = run.view._replace(messages=past)
        whole = chain is None
        run.loaded = await policy.memories.load(run.memories, seen, own, inside, whole=whole, trial=trial)
    kept: list[BaseMessage] = past
    if chain is not None:
        most = run.note(own)
        context.notes = [] if most is None else [most]
        kept = await Step(lambda: chain.invoke(past, inside), lambda: chain.ainvoke(past, inside))
    note = run.note([*kept, *own])
    context.notes = [] if note is None else [note]
    budget: Budget | None = getattr(getattr(chain, "first", chain), "budget", None)
    if budget is not None:  # a counter of the app may do I/O
        fit = partial(budget.fit_run, own, [*summary, *context.notes], context.scale)
        own = await cpu_bound(fit, long=budget.counter is not approximate_tokens)
    before, after = with_note(_whole(kept, own), own, note, apart=False)
    return [*summary, *before, *after]


def _past(run: Run, given: Sequence[BaseMessage], own: set[str], *, summarized: bool) -> list[BaseMessage]:
    """Return what came before the run, on this branch of the thread, of the history as it was read."""
    read = run.view.messages
    if not isinstance(read, HistoryMessages):
        return [m for m in read if m.id not in own]
    skip, hidden = run.marker["skip"], set[str]()
    places: list[int] = []
    for i in range(_first_kept(run, given, read) if summarized else 0, len(read)):
        turn = read.turns[i]
        if read[i].id in own:  # a part of the run that is stored, a stopped attempt say: the state has it
            hidden.add(turn.op)
        if not (turn.op in hidden or any(begin <= turn.seq <= end for begin, end in skip)):
            places.append(i)
    if len(places) == len(read):
        return read
    return HistoryMessages(
        [read[i] for i in places],
        [read.tokens[i] for i in places],
        read.counter,
        [read.turns[i] for i in places],
        read.epoch,
        read.window,
    )


def _first_kept(run: Run, given: Sequence[BaseMessage], read: HistoryMessages) -> int:
    """Return where the past begins that a summary in the state leaves: at the oldest message that it kept."""
    kept = {m.id for m in given if m.id in run.older and not is_foreign_summary(m)}
    if kept:
        return next((i for i, m in enumerate(read) if m.id in kept), 0)
    # nothing from before the run: what others have said since the thread's last turn was not summarized
    return next((i for i, t in enumerate(read.turns) if t.seq > run.marker["base"]), len(read))


def _whole(past: list[BaseMessage], own: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the past without half tool groups, which providers refuse; the last may be answered by what follows."""
    if not (own and isinstance(own[0], RESULTS)):
        return whole_tool_groups(past)
    last = group_starts(past)[-1] if past else 0
    return [*whole_tool_groups(past[:last]), *past[last:]]
