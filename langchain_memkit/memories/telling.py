"""What is done with several memories: each is tried, then the first failure is raised and the others are logged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from langchain_memkit._histories import epoch_at, has_native, stored_ids
from langchain_memkit._sync import Step, gather
from langchain_memkit.base import Memory, SavedTurn, describe_error, utc_now
from langchain_memkit.errors import HistoryReadError, MemoryReadError, MemoryWriteError
from langchain_memkit.memories.retriever import RetrieverMemory

__all__ = ["LOAD_ERROR", "OnLoadError", "load_failure", "name_of", "on_all", "save_all", "take_back", "tell"]

logger = logging.getLogger("langchain_memkit")

LOAD_ERROR = "memkit_load_error"
"""What callback handlers hear of a memory that could not be loaded."""

REMARK = "memkit_remark"
"""What callback handlers hear, on trial only, of what a memory left out."""

OnLoadError: TypeAlias = Literal["report", "raise"] | Callable[[MemoryReadError], None]
"""What is done about one."""


def name_of(memory: Any) -> str:
    """A memory's kind, for reports: what it holds stays out of them."""
    if isinstance(memory, RetrieverMemory):
        return repr(memory)
    return getattr(memory, "__name__", type(memory).__name__)  # a function has one of its own


def load_failure(memory: Any, error: Exception) -> tuple[MemoryReadError, dict[str, str]]:
    """What is raised, and what callback handlers hear, of a memory that could not be loaded."""
    name = name_of(memory)
    failure = MemoryReadError(f"{name} could not be loaded: {describe_error(error)}")
    failure.__cause__ = error
    return failure, {"memory": name, "error": type(error).__name__, "message": str(failure)}


async def on_all(parts: Sequence[Any], verb: str, *args: Any) -> list[Any]:
    """What a verb returns for each part; the first part, the transcript if there is one, goes before the others."""
    results: list[Any] = []
    for some in (parts[:1], parts[1:]):
        results += await _verb_of(some, verb, *args)
    failed = _first_failure(parts, results, verb)
    if failed:
        raise failed[1]
    return results


async def tell(memories: Sequence[Memory], turn: SavedTurn, history: Any, seq: int | None) -> None:
    """Tells memories of a turn that stands in a history of ours; what is erased meanwhile is taken back.

    Args:
        memories: Of the turn.
        turn: As it was stored.
        history: Where.
        seq: Its position, if its epoch is not known for sure: the first turn of a session draws one.
    """
    if not memories:
        return
    ttl = getattr(history, "ttl", None)
    turn.expires_at = None if ttl is None else utc_now() + timedelta(seconds=ttl)
    try:
        if seq and hasattr(history, "iter_turns"):
            epoch = await epoch_at(history, seq)
            if epoch is None:
                return
            turn.epoch = epoch
        await save_all(memories, turn)
        await take_back(memories, turn, history)
    except HistoryReadError as error:
        msg = f"the turn is stored, but what memories should know of it cannot be read: {error}"
        raise MemoryWriteError(msg, messages=turn, turn_id=turn.turn_id, maybe_stored=True) from error


async def save_all(memories: Sequence[Memory], turn: SavedTurn) -> None:
    """Tells memories of a turn that is stored."""
    writing = [memory for memory in memories if not memory.read_only]
    results = await _verb_of(writing, "save", turn) if writing else []
    failed = _first_failure(writing, results, "save")
    if failed:
        name, error = failed
        msg = f"the turn is stored, but {name} was not told of it: {describe_error(error)}"
        raise MemoryWriteError(msg, messages=turn, turn_id=turn.turn_id, maybe_stored=True) from error


async def take_back(memories: Collection[Memory], turn: SavedTurn, history: Any) -> None:
    """Takes a turn back that was erased while memories were told of it, where they can: one look for its ids.

    Memories whose save was refused in that case need no look.
    """
    able = [memory for memory in memories if not memory.read_only and hasattr(memory, "aforget_messages")]
    able = [memory for memory in able if not getattr(memory, "save_was_checked", False)]
    ids = [message.id for message in turn if message.id]
    if able and ids and has_native(history, "astored_ids"):
        stored = await stored_ids(history, ids)
        if not stored:
            await on_all(able, "forget_messages", ids)


def _verb_of(parts: Sequence[Any], verb: str, *args: Any) -> Step[list[Any]]:
    def step(part: Any) -> Step[Any]:
        return Step(lambda: getattr(part, verb)(*args), lambda: getattr(part, f"a{verb}")(*args))

    return gather([step(part) for part in parts])


def _first_failure(parts: Sequence[Any], results: Sequence[Any], verb: str) -> tuple[str, Exception] | None:
    failures = [(name_of(part), r) for part, r in zip(parts, results, strict=True) if isinstance(r, Exception)]
    for name, error in failures[1:]:
        logger.error("%s.%s failed as well: %s", name, verb, describe_error(error))
    return failures[0] if failures else None
