"""A run ends: with an answer, with an error, or because it is cancelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._histories import epoch_at
from langchain_memkit.middleware.run import Run
from langchain_memkit.middleware.state import Marker, messages_in
from langchain_memkit.runnables.saving import UNSAVED, Policy

__all__ = ["failed", "finish", "stopped"]


async def finish(run: Run, policy: Policy, state: Mapping[str, Any], config: RunnableConfig) -> Marker:
    """Store the turn as the other middleware left it; return what the state is told."""
    messages = messages_in(state)
    new = run.unstored(run.observe(messages))
    new = _with_calls(run, new, messages)
    run.finished = True
    seq: int | None = None
    if new:
        output = {key: state[key] for key in ("messages", "structured_response") if key in state}
        asked = list(takewhile(lambda m: m.type in ("human", "system"), new))
        seq = await policy.save_messages(run.turn(asked, config), new, output)
    if run.replayed is not None and seq == run.replayed:  # it said the same, so there is no branch
        run.marker = {**run.marker, "skip": run.marker["skip"][:-1]}
    if seq == UNSAVED:  # reported, not raised: the state has it, and the next run stores it
        return run.marker
    end, epoch = (messages[-1].id if messages else None), run.marker["epoch"]
    if run.native and seq and not epoch:  # the session's first turn has drawn it
        epoch = await epoch_at(run.history, seq) or 0
    seq = seq or run.marker["seq"]
    return {**run.marker, "done": True, "end": end, "held": len(messages), "epoch": epoch, "seq": seq}


def _with_calls(run: Run, new: list[BaseMessage], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Add the calls before results that came after the run had been stopped: then they were stored without."""
    late = [m.tool_call_id for m in takewhile(lambda m: isinstance(m, ToolMessage), new) if isinstance(m, ToolMessage)]
    said = [m for m in run.own(messages) if isinstance(m, AIMessage)] if late else []
    calls = [call for m in said for call in m.tool_calls if call["id"] in late]
    return [AIMessage("", tool_calls=calls, id=f"{new[0].id}-calls"), *new] if calls else new


async def failed(run: Run, policy: Policy, config: RunnableConfig) -> None:
    """Do what `on_model_error` says, after a model or a tool raised."""
    asked, _ = run.said(())
    await policy.model_failed(run.turn(asked, config))
    if policy.on_model_error == "save_input":
        run.known |= {m.id for m in asked if m.id}


async def stopped(run: Run, policy: Policy, config: RunnableConfig, results: Sequence[BaseMessage]) -> None:
    """Keep what had been said when the run was cancelled in a call, as `on_abort` says.

    Args:
        run: The run.
        policy: Its options.
        config: Of the call.
        results: What tools of the same step had returned.
    """
    asked, said = run.said(results)
    await policy.save_partial(run.turn(asked, config), lambda: said, {"messages": [*asked, *said]})
    run.known |= {m.id for m in (*asked, *said) if m.id}
