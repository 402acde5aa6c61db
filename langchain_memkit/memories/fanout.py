"""Call several memories: all are tried, then the first error is raised and the others are logged."""

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

__all__ = [
    "LOAD_ERROR",
    "OnLoadError",
    "call_all",
    "load_failure",
    "name_of",
    "notify_memories",
    "save_all",
    "undo_if_deleted",
]

logger = logging.getLogger("langchain_memkit")

LOAD_ERROR = "memkit_load_error"
"""Name of the callback event that reports a memory that could not be loaded."""

REMARK = "memkit_remark"
"""Name of the callback event that reports what a memory left out; sent only in a dry run."""

OnLoadError: TypeAlias = Literal["report", "raise"] | Callable[[MemoryReadError], None]
"""Policy for a memory that cannot be loaded; a callable is called with the error."""


def name_of(memory: Any) -> str:
    """Return the name of a memory's kind for reports; never what it holds."""
    if isinstance(memory, RetrieverMemory):
        return repr(memory)
    return getattr(memory, "__name__", type(memory).__name__)  # a function has one of its own


def load_failure(memory: Any, error: Exception) -> tuple[MemoryReadError, dict[str, str]]:
    """Return the error to raise and the event data to send for a memory that could not be loaded."""
    name = name_of(memory)
    failure = MemoryReadError(f"{name} could not be loaded: {describe_error(error)}")
    failure.__cause__ = error
    return failure, {"memory": name, "error": type(error).__name__, "message": str(failure)}


async def call_all(parts: Sequence[Any], verb: str, *args: Any) -> list[Any]:
    """Call a method of each part, the first part before the others, and return the results in order.

    The first part is the transcript if there is one. All parts are called even if one fails; then the first error is
    raised and the others are logged.
    """
    results: list[Any] = []
    # The transcript goes first: once it is cleared, turns that began before are refused by it (if it is one of our
    # histories), and so reach no other memory.
    for some in (parts[:1], parts[1:]):
        results += await _verb_of(some, verb, *args)
    failed = _first_failure(parts, results, verb)
    if failed:
        raise failed[1]
    return results


async def notify_memories(memories: Sequence[Memory], turn: SavedTurn, history: Any, seq: int | None) -> None:
    """Save a turn in memories after it was stored in one of our histories.

    If the turn was erased (clear, purge, expiry) it is not saved; if it is erased while memories save it, it is deleted
    from them again.

    Args:
        memories: The memories of the chain or agent.
        turn: The turn as it was stored; its epoch and expiry are set here.
        history: The history that stores it.
        seq: Its position, if the epoch has to be looked up there: the first turn of a session draws one. None if the
            turn knows its epoch.

    Raises:
        MemoryWriteError: The turn is stored, but a memory could not save it, or the history could not be read.
    """
    if not memories:
        return
    ttl = getattr(history, "ttl", None)
    turn.expires_at = None if ttl is None else utc_now() + timedelta(seconds=ttl)
    try:
        if seq and hasattr(history, "iter_turns"):
            epoch = await epoch_at(history, seq)
            # No such turn any more: memories must not learn what was erased.
            if epoch is None:
                return
            turn.epoch = epoch
        await save_all(memories, turn)
        await undo_if_deleted(memories, turn, history)
    except HistoryReadError as error:
        msg = f"the turn is stored, but what memories should know of it cannot be read: {error}"
        raise MemoryWriteError(msg, messages=turn, turn_id=turn.turn_id, maybe_stored=True) from error


async def save_all(memories: Sequence[Memory], turn: SavedTurn) -> None:
    """Save a stored turn in all memories that are not read-only.

    Raises:
        MemoryWriteError: The first failure, after all were tried.
    """
    writing = [memory for memory in memories if not memory.read_only]
    results = await _verb_of(writing, "save", turn) if writing else []
    failed = _first_failure(writing, results, "save")
    if failed:
        name, error = failed
        msg = f"the turn is stored, but {name} was not told of it: {describe_error(error)}"
        raise MemoryWriteError(msg, messages=turn, turn_id=turn.turn_id, maybe_stored=True) from error


async def undo_if_deleted(memories: Collection[Memory], turn: SavedTurn, history: Any) -> None:
    """Delete a turn from memories if it was erased while they saved it: one query for its message ids.

    Memories whose save would itself have been refused in that case (`save_was_checked`) are skipped; if only such
    memories are left, nothing is queried. Messages without ids cannot be looked up.
    """
    able = [memory for memory in memories if not memory.read_only and hasattr(memory, "aforget_messages")]
    # Their own write has already checked that the session still exists, which saves the query below.
    able = [memory for memory in able if not getattr(memory, "save_was_checked", False)]
    ids = [message.id for message in turn if message.id]
    if able and ids and has_native(history, "astored_ids"):
        stored = await stored_ids(history, ids)
        if not stored:
            await call_all(able, "forget_messages", ids)


def _verb_of(parts: Sequence[Any], verb: str, *args: Any) -> Step[list[Any]]:
    def step(part: Any) -> Step[Any]:
        return Step(lambda: getattr(part, verb)(*args), lambda: getattr(part, f"a{verb}")(*args))

    return gather([step(part) for part in parts])


def _first_failure(parts: Sequence[Any], results: Sequence[Any], verb: str) -> tuple[str, Exception] | None:
    failures = [(name_of(part), r) for part, r in zip(parts, results, strict=True) if isinstance(r, Exception)]
    for name, error in failures[1:]:
        logger.error("%s.%s failed as well: %s", name, verb, describe_error(error))
    return failures[0] if failures else None
