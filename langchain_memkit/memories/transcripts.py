"""What memories read of the transcripts that they are derived from."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from langchain_core.messages import BaseMessage

from langchain_memkit._histories import has_native, read_messages, stored_ids
from langchain_memkit._sync import Step
from langchain_memkit.base import GetSessionHistory
from langchain_memkit.errors import ConfigurationError

__all__ = ["Stretch", "erased_messages", "history_of", "read_transcript", "stretch_of", "stretches_of"]

UNDATED = datetime(1970, 1, 1, tzinfo=UTC)
"""When a message was said of which that is not known."""


class Stretch(NamedTuple):
    """Messages that were stored together. `native`: their ids can be asked for, as those of our own rows can."""

    messages: Sequence[BaseMessage]
    at: datetime | None
    epoch: int = 0
    expires_at: datetime | None = None
    native: bool = False


def history_of(get_session_history: GetSessionHistory, session_id: str, user_id: str) -> Step[Any]:
    """The history of a session, whose user is never dropped: a callable that cannot take one is refused."""

    def sync() -> Any:
        parameters = inspect.signature(get_session_history).parameters
        if "user_id" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            msg = "get_session_history must take user_id: this memory is of one user"
            raise ConfigurationError(msg)
        history = get_session_history(session_id, user_id=user_id)
        if inspect.isawaitable(history):
            if inspect.iscoroutine(history):
                history.close()
            msg = "get_session_history is async, so use the async verbs"
            raise ConfigurationError(msg)
        return history

    async def asynchronous() -> Any:
        if inspect.iscoroutinefunction(get_session_history):
            return await get_session_history(session_id, user_id=user_id)
        return await asyncio.to_thread(sync)

    return Step(sync, asynchronous)


def stretches_of(history: Any) -> Step[list[Stretch]]:
    """The whole of a history, oldest first."""

    async def aturns() -> list[Stretch]:
        return [stretch_of(turn) async for turn in history.aiter_turns()]

    messages = read_messages(history)

    async def amessages() -> list[Stretch]:
        return [Stretch(await messages.asynchronous(), None)]

    if has_native(history, "iter_turns"):
        return Step(lambda: [stretch_of(turn) for turn in history.iter_turns()], aturns)
    return Step(lambda: [Stretch(messages.sync(), None)], amessages)


async def read_transcript(
    history: Any, get_session_history: GetSessionHistory | None, session_id: str, user_id: str
) -> Sequence[Stretch]:
    """The whole of a history, oldest first; where none is given, that of `get_session_history`."""
    if history is None:
        if get_session_history is None:
            msg = "rebuild() needs the session's history, or a memory with get_session_history"
            raise ConfigurationError(msg)
        history = await history_of(get_session_history, session_id, user_id)
    return await stretches_of(history)


def stretch_of(turn: Any) -> Stretch:
    """A turn as it is read here."""
    # rows of other packages have no ids that could be asked for
    return Stretch(turn.messages, turn.created_at, turn.epoch, turn.expires_at, bool(turn.seq))


async def erased_messages(
    get_session_history: GetSessionHistory | None, user_id: str, wanted: Mapping[str, Collection[str]]
) -> set[tuple[str, str]]:
    """Session and id of messages that do not stand in their histories any more: one query a session.

    Args:
        get_session_history: Makes the histories; None if there are none to ask.
        user_id: Whose.
        wanted: Ids of messages, by session.
    """
    erased: set[tuple[str, str]] = set()
    if get_session_history is None:
        return erased
    for session, ids in wanted.items():
        history = await history_of(get_session_history, session, user_id)
        if has_native(history, "stored_ids"):
            found = await stored_ids(history, sorted(ids))
        else:
            found = {message.id for message in await read_messages(history) if message.id}
        erased |= {(session, message) for message in set(ids) - found}
    return erased
