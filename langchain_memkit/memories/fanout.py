"""Call several memories: all are tried, then the first error is raised and the others are logged."""

from __future__ import annotations

import inspect
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from operator import methodcaller
from typing import Any, Literal, TypeAlias, TypeVar

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from langchain_memkit._histories import epoch_at, has_native, stored_ids, turns_between
from langchain_memkit._sync import ClosingMixin, Step, adrive, drive, event, gather, raise_or_call
from langchain_memkit.base import GoneMessages, Memory, SavedTurn, SessionInfo, check_id, describe_error, utc_now
from langchain_memkit.errors import ConfigurationError, HistoryReadError, MemoryReadError, MemoryWriteError
from langchain_memkit.memories.retriever import RetrieverMemory

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")

LOAD_ERROR = "memkit_load_error"
"""Name of the callback event that reports a memory that could not be loaded."""

REMARK = "memkit_remark"
"""Name of the callback event that reports what a memory left out (in a dry run), or what did not fit (in any run)."""

OnLoadError: TypeAlias = Literal["report", "raise"] | Callable[[MemoryReadError], None]
"""Policy for a memory that cannot be loaded; a callable is called with the error."""


def name_of(memory: object) -> str:
    """Return the name of a memory's kind for reports; never what it holds."""
    # A function has a name of its own.
    return repr(memory) if isinstance(memory, RetrieverMemory) else getattr(memory, "__name__", type(memory).__name__)


def bound_maker(maker: Callable[..., T], session_id: str, user_id: str | None) -> Callable[[], T]:
    """Return a function that makes the history or memory of a session and its user, with `maker`.

    Raises:
        ConfigurationError: There is a user, and `maker` takes no `user_id`: dropping it would mix the users' data. Or
            it is a class, or async.
        TypeError, ValueError: An id is not a string, empty or malformed.
    """
    if isinstance(maker, type) or inspect.iscoroutinefunction(maker):
        msg = f"{name_of(maker)} is a class or async: give a function (session_id, user_id), such as X.factory(...)"
        raise ConfigurationError(msg)
    make = partial(maker, check_id(session_id, "session_id"))
    if user_id is None:
        return make
    parameters = inspect.signature(maker).parameters.values()
    if not any(p.name == "user_id" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise ConfigurationError(f"{name_of(maker)} takes no user_id, so users would share what it makes")
    return partial(make, user_id=check_id(user_id, "user_id"))


async def report_load_error(
    memory: object, error: Exception, on_load_error: OnLoadError, config: RunnableConfig | None
) -> None:
    """Do what `on_load_error` says of a memory that could not be loaded; without a config no event is sent."""
    if isinstance(error, ConfigurationError):  # a developer's mistake, which would fail in every turn
        raise error
    name = name_of(memory)
    failure = MemoryReadError(f"{name} could not be loaded: {describe_error(error)}")
    failure.__cause__ = error
    if config is not None and on_load_error != "raise":
        await event(config, LOAD_ERROR, {"memory": name, "error": type(error).__name__, "message": str(failure)})
    if not await raise_or_call(on_load_error, failure, "on_load_error"):
        logger.warning("left out of the turn: %s", failure)


async def call_all(parts: Sequence[object], verb: str, *args: object) -> list[Any]:
    """Call a method of each part, the first part before the others, and return the results in order.

    The first part is the transcript if there is one. All parts are called even if one fails; then the first error is
    raised and the others are logged.
    """
    # The transcript goes first: once it is cleared, turns that began before are refused by it (if it is one of our
    # histories), and so reach no other memory.
    results = [*await _call_each(parts[:1], verb, *args), *await _call_each(parts[1:], verb, *args)]
    if failed := _first_failure(parts, results, verb):
        raise failed[1]
    return results


async def notify_memories(
    memories: Sequence[Memory], turn: SavedTurn, history: Any, seq: int | None, replaces: int | None = None
) -> None:
    """Save a turn in memories after it was stored in one of our histories; its epoch and expiry are set here.

    If the turn was erased (clear, purge, expiry) it is not saved; if it is erased while memories save it, it is deleted
    from them again. `seq` is its position, if the epoch has to be looked up there: the first turn of a session draws
    one. None if the turn knows its epoch. With `replaces`, what the turn replaces is deleted from them first.

    Raises:
        MemoryWriteError: The turn is stored, but a memory could not save it, or the history could not be read.
    """
    if not memories:
        return
    turn.store = getattr(history, "turn_store", None)
    ttl = getattr(history, "ttl", None)
    turn.expires_at = None if ttl is None else utc_now() + timedelta(seconds=ttl)
    try:
        if seq and hasattr(history, "iter_turns"):
            epoch = await epoch_at(history, seq)
            # No such turn any more: memories must not learn what was erased.
            if epoch is None:
                return
            turn.epoch = epoch
        if replaces is not None and seq:
            replaced = [t for t in await turns_between(history, replaces - 1, seq, hidden=True) if t.is_replaced]
            gone = [message.id for each in replaced for message in each.messages if message.id]
            ids = GoneMessages(gone, turn.store)
            if (able := _forgetting(memories)) and ids:
                await call_all(able, "forget_messages", ids)
        await save_all(memories, turn)
        await undo_if_deleted(memories, turn, history)
    except HistoryReadError as error:
        msg = f"the turn is stored, but what memories should know of it cannot be read: {error}"
        raise MemoryWriteError(msg, messages=turn, turn_id=turn.turn_id, maybe_stored=True) from error


async def index_turn(memories: Sequence[Memory], history: Any, messages: Sequence[BaseMessage]) -> dict[str, bytes]:
    """Have the memories that recall from this history derive what is to be stored with a turn.

    One that fails is logged: what it lacks is made later, and a turn is not lost over it.
    """
    found: dict[str, bytes] = {}
    for memory, made in zip(memories, await _call_each(memories, "index_turn", history, messages), strict=True):
        if isinstance(made, Exception):
            logger.warning("%s did not index a turn, and does it later: %s", name_of(memory), describe_error(made))
        else:
            found |= made
    return found


async def save_all(memories: Sequence[Memory], turn: SavedTurn) -> None:
    """Save a stored turn in all memories that are not read-only.

    Raises:
        MemoryWriteError: The first failure, after all were tried.
    """
    writing = [memory for memory in memories if not memory.read_only]
    if failed := _first_failure(writing, await _call_each(writing, "save", turn), "save"):
        name, error = failed
        msg = f"the turn is stored, but {name} was not told of it: {describe_error(error)}"
        raise MemoryWriteError(msg, messages=turn, turn_id=turn.turn_id, maybe_stored=True) from error


async def undo_if_deleted(memories: Collection[Memory], turn: SavedTurn, history: Any) -> None:
    """Delete a turn from memories if it was erased while they saved it: one query for its message ids.

    Memories whose save would itself have been refused in that case (`save_was_checked`) are skipped; if only such
    memories are left, nothing is queried. Messages without ids cannot be looked up.
    """
    # Their own write has already checked that the session still exists, which saves the query below.
    able = [memory for memory in _forgetting(memories) if not getattr(memory, "save_was_checked", False)]
    ids = GoneMessages([message.id for message in turn if message.id], turn.store)
    if able and ids and has_native(history, "astored_ids") and not await stored_ids(history, ids):
        await call_all(able, "forget_messages", ids)


def _forgetting(memories: Collection[Memory]) -> list[Memory]:
    return [memory for memory in memories if not memory.read_only and hasattr(memory, "aforget_messages")]


def _call_each(parts: Sequence[object], verb: str, *args: object) -> Step[list[Any]]:
    call, acall = methodcaller(verb, *args), methodcaller(f"a{verb}", *args)
    return gather([Step(partial(call, part), partial(acall, part)) for part in parts])


def _first_failure(parts: Sequence[object], results: Sequence[object], verb: str) -> tuple[str, Exception] | None:
    failures = [(name_of(part), r) for part, r in zip(parts, results, strict=True) if isinstance(r, Exception)]
    for name, error in failures[1:]:
        logger.error("%s.%s failed as well: %s", name, verb, describe_error(error))
    return failures[0] if failures else None


class ForwardingFactory(ClosingMixin):
    """Base class of factories of memories that forward `setup`, `list_sessions`, `purge` and `close` to others."""

    _makers: Sequence[Any]

    def setup(self) -> None:
        """Set up the stores of all factories that have a `setup`."""
        drive(call_all(self._able("setup"), "setup"))

    async def asetup(self) -> None:
        """Run `setup` asynchronously."""
        await adrive(call_all(self._able("setup"), "setup"))

    def _able(self, verb: str) -> list[Any]:
        """Return the factories that have a method."""
        return [maker for maker in self._makers if hasattr(maker, verb)]

    def list_sessions(self, user_id: str | None = None) -> list[SessionInfo]:
        """Return the sessions that the user has in any of the memories, the last used first; None: without an owner.

        Raises:
            ConfigurationError: None of the factories can list sessions.
        """
        return drive(self._list_sessions(user_id))

    async def alist_sessions(self, user_id: str | None = None) -> list[SessionInfo]:
        """Run `list_sessions` asynchronously; it returns a list, not an async iterator."""
        return await adrive(self._list_sessions(user_id))

    async def _list_sessions(self, user_id: str | None) -> list[SessionInfo]:
        able = self._able("list_sessions")
        if not able:
            raise ConfigurationError("none of the factories has list_sessions; that of the histories has")
        lists = await call_all(able, "list_sessions", user_id)
        # In reverse, so that of a session in several memories the primary's record is kept, then that of the first
        # secondary.
        found = {info.session_id: info for infos in reversed(lists) for info in infos}
        undated = datetime.min.replace(tzinfo=UTC)
        return sorted(found.values(), key=lambda info: info.updated_at or undated, reverse=True)

    def purge(self, user_id: str) -> Mapping[str, int]:
        """Delete everything of a user in every memory; part of `purge_user`.

        Returns:
            Counts of what was deleted, by kind: `{"sessions": 2, "turns": 9, "facts": 7}`.

        Raises:
            ConfigurationError: A factory has no `purge`; nothing was deleted.
            HistoryWriteError: A store failed; the others were tried, and calling again finishes the work.
        """
        return drive(self._purge(check_id(user_id, "user_id")))

    async def apurge(self, user_id: str) -> Mapping[str, int]:
        """Run `purge` asynchronously."""
        return await adrive(self._purge(check_id(user_id, "user_id")))

    async def _purge(self, user_id: str) -> Mapping[str, int]:
        # Check all before deleting anything: a purge that skips a memory would leave the user's data behind unnoticed.
        unable = [name_of(maker) for maker in self._makers if not hasattr(maker, "purge")]
        if unable:
            msg = f"{unable[0]} has no purge(user_id), so the user would not be forgotten; nothing was deleted"
            raise ConfigurationError(msg)
        total: Counter[str] = Counter()
        for count in await call_all(self._makers, "purge", user_id):
            total.update(count)
        return dict(total)

    def close(self) -> None:
        """Close all factories that have a `close`."""
        drive(call_all(self._able("close"), "close"))

    async def aclose(self) -> None:
        """Run `close` asynchronously."""
        await adrive(call_all(self._able("close"), "close"))
