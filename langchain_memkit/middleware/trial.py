"""What a run would show the model first, for somebody who only wants to see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from langchain_core.messages import convert_to_messages
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda

from langchain_memkit._flow import Flow, adrive, arun_step, drive, run_step
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.middleware.prompt import shown
from langchain_memkit.middleware.tools import NO_USER
from langchain_memkit.middleware.turn_start import TurnStart, configured
from langchain_memkit.runnables.saving import OpenTurn

__all__ = ["trial"]


def trial(turns: TurnStart, *, needs_user: bool) -> Runnable[Any, OpenTurn]:
    """Return a runnable from an agent's input to the turn as it would be opened, without what a checkpoint holds.

    Args:
        turns: Of the middleware.
        needs_user: Whether its tools are for a user, who has to stand in the config.
    """

    def opened(value: Any, config: RunnableConfig) -> OpenTurn:
        return drive(_opened(turns, needs_user, value, config), run_step)

    async def aopened(value: Any, config: RunnableConfig) -> OpenTurn:
        return await adrive(_opened(turns, needs_user, value, config), arun_step)

    return RunnableLambda(opened, afunc=aopened, name="explain_turn")


def _opened(turns: TurnStart, needs_user: bool, value: Any, config: RunnableConfig) -> Flow[OpenTurn]:
    ids = configured(config, None)
    if needs_user and ids.get("user_id") is None:
        raise ConfigurationError(NO_USER)
    if not (isinstance(value, Mapping) and "messages" in value):
        msg = f'the input of an agent is {{"messages": [...]}}, not {type(value).__name__}'
        raise ConfigurationError(msg)
    given = value["messages"]
    # the agent's state gives each message an id; a copy, since the caller's are not ours
    messages = [
        m if m.id else m.model_copy(update={"id": str(uuid4())})
        for m in convert_to_messages(given if isinstance(given, list) else [given])
    ]
    run = yield from turns.begin({"messages": messages}, ids, config, trial=True)
    given = yield from shown(run, turns.policy, messages, messages, config, trial=True)
    return replace(run.turn([], config), shown=given, asked=run.own(messages))
