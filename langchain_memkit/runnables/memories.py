"""The memories of a turn: bound to its session, loaded into one note, and given the finished turn to save."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage, FunctionMessage, SystemMessage, ToolMessage
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig
from langchain_core.runnables.config import ContextThreadPoolExecutor

from langchain_memkit._sync import Step, call_user_function, event, gather
from langchain_memkit.base import HistoryView, Memory, Query
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.fanout import LOAD_ERROR, REMARK, OnLoadError, load_failure, name_of
from langchain_memkit.memories.retriever import RetrieverMemory
from langchain_memkit.messages.notes import Record, tag_source
from langchain_memkit.messages.text import is_user_message
from langchain_memkit.messages.trimming import group_starts
from langchain_memkit.runnables.session import session_history

__all__ = ["MemoryBinder", "insert_note"]

T = TypeVar("T")

logger = logging.getLogger("langchain_memkit")


@dataclass(frozen=True, slots=True)
class MemoryBinder:
    """The entries of `memories=`, and the policy for one that cannot be loaded."""

    entries: Sequence[Any]
    on_load_error: OnLoadError

    @classmethod
    def of(cls, entries: Any, on_load_error: OnLoadError) -> MemoryBinder:
        """Validate the argument and wrap retrievers into memories.

        Raises:
            ConfigurationError: The argument is not a list, or an entry is neither a memory, a factory nor a retriever.
        """
        if isinstance(entries, (str, Memory)) or not isinstance(entries, Sequence):
            msg = f"memories must be a list, not {type(entries).__name__}"
            raise ConfigurationError(msg)
        found: list[Any] = []
        for i, entry in enumerate(entries):
            known = isinstance(entry, Memory)
            if not (known or isinstance(entry, Runnable) or callable(entry)) or isinstance(entry, type):
                is_class = isinstance(entry, type)
                name = f"the class {entry.__name__}" if is_class else type(entry).__name__
                maker = entry.__name__ if is_class and hasattr(entry, "factory") else "X"
                msg = (
                    f"memories[{i}] must be a Memory, a function (session_id, user_id) that makes one "
                    f"({maker}.factory(...)), or a retriever, not {name}"
                )
                raise ConfigurationError(msg)
            found.append(RetrieverMemory(entry) if isinstance(entry, Runnable) and not known else entry)
        return cls(found, on_load_error)

    async def bind(
        self, specs: Sequence[ConfigurableFieldSpec] | None, configurable: dict[str, Any], history: Any
    ) -> list[Memory]:
        """Return the memories bound to a session, factories called.

        Args:
            specs: The keys that `history_factory_config` names; None for `session_id` and `user_id`.
            configurable: `config["configurable"]` of the call.
            history: The history of the turn.

        Raises:
            ConfigurationError: An id is missing, or a memory is bound to another session or user.
        """
        bound: list[Memory] = []
        for i, entry in enumerate(self.entries):
            memory = entry
            if not isinstance(entry, Memory):
                named = specs if specs and {spec.id for spec in specs} == {*signature(entry).parameters} else None
                ids = configurable if named else {k: v for k, v in _ids(configurable, history).items() if v is not None}
                memory = await session_history(entry, named, ids, name=f"memories[{i}]")
            if not isinstance(memory, Memory):
                msg = f"memories[{i}] made a {type(memory).__name__}, not a Memory"
                raise ConfigurationError(msg)
            _check_binding(memory, i, configurable, history)
            bound.append(memory)
        return bound

    async def beside(self, memories: Sequence[Memory], read: Step[T]) -> T:
        """Perform the read of the history while the memories prefetch what they can; return what it returns.

        On an event loop all memories prefetch; in sync code only those that wait for a server, since a thread costs
        more than reading a file.

        Args:
            memories: The memories of the turn.
            read: The read of the history.
        """
        able: list[Any] = [memory for memory in memories if hasattr(memory, "aprefetch")]
        if not able:
            return await read
        remote = [memory for memory in able if getattr(memory, "is_remote", False)]

        def sync() -> list[Any]:
            if not remote:
                return [read.sync()]
            with ContextThreadPoolExecutor(len(remote)) as pool:
                # At interpreter shutdown no threads can be started; then each memory reads in its own load.
                with suppress(RuntimeError):
                    for memory in remote:
                        pool.submit(memory.prefetch)
                return [read.sync()]

        steps: list[Step[Any]] = [read, *(Step(lambda: None, memory.aprefetch) for memory in able)]
        found: T | Exception = (await Step(sync, gather(steps).asynchronous))[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def load(
        self,
        memories: Sequence[Memory],
        view: HistoryView,
        asked: Sequence[BaseMessage],
        config: RunnableConfig,
        *,
        whole: bool,
        trial: bool = False,
    ) -> list[Record]:
        """Load the records that the memories hold for the new input.

        A memory that fails is handled by `on_load_error`, except for a `ConfigurationError`, which is always raised.

        Args:
            memories: The memories of the turn.
            view: The history as it was read.
            asked: The new input.
            config: The config of the turn.
            whole: Whether the model sees all of the history.
            trial: Whether this is a dry run.
        """
        if not memories:
            return []
        past = view.messages
        remarks: list[str] = []
        query = Query(
            _question(asked, past),
            past,
            view.epoch,
            past if whole else (),
            trial=trial,
            remarks=remarks if trial else None,
        )
        # On an event loop all memories load at the same time. A failure is returned as a value and stops no other.
        results = await gather([Step(partial(m.load, query), partial(m.aload, query)) for m in memories])
        loaded: list[Record] = []
        for memory, result in zip(memories, results, strict=True):
            if isinstance(result, ConfigurationError):  # every turn would fail with it
                raise result
            if isinstance(result, Exception):
                await self._failed(memory, result, config)
            else:
                loaded += tag_source(result, name_of(memory))
        for remark in remarks:
            await event(config, REMARK, {"message": remark})
        return loaded

    async def _failed(self, memory: Memory, error: Exception, config: RunnableConfig) -> None:
        failure, heard = load_failure(memory, error)
        if self.on_load_error == "raise":
            raise failure
        await event(config, LOAD_ERROR, heard)
        if callable(self.on_load_error):
            await call_user_function(self.on_load_error, failure, name="on_load_error")
        else:
            logger.warning("left out of the turn: %s", failure)


def insert_note(
    past: list[BaseMessage], asked: list[BaseMessage], note: BaseMessage | None, *, apart: bool
) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Insert the note between past and new input, as late as providers accept it.

    Tool results must directly follow the calls that they answer, so the note goes before those calls; a system message
    that begins a conversation stays first.

    Args:
        past: The past messages, oldest first.
        asked: The new input.
        note: The note with the records that memories returned; None if there is none.
        apart: Whether a prompt receives past and new input in separate places.

    Returns:
        Past and new input, one of them with the note.
    """
    if note is None:
        return past, asked
    if past and asked and isinstance(asked[0], (ToolMessage, FunctionMessage)):
        calls = group_starts(past)[-1]
        return [*past[:calls], note, *past[calls:]], asked
    lead = 0
    while not (apart or past) and lead < len(asked) and isinstance(asked[lead], SystemMessage):
        lead += 1
    return (past, [*asked[:lead], note, *asked[lead:]]) if lead else ([*past, note], asked)


def _question(asked: Sequence[BaseMessage], past: Sequence[BaseMessage]) -> str:
    """Return the new input as text; during tool calls, the question that they were made for."""
    texts = [str(m.text) for m in asked if is_user_message(m)]
    if not texts:
        texts = [next((str(m.text) for m in reversed(past) if is_user_message(m)), "")]
    return "\n".join(texts)


def _ids(configurable: dict[str, Any], history: Any) -> dict[str, Any]:
    """Return the ids of the history in use, since `history_factory_config` may name them differently in the config."""
    session_id = configurable.get("session_id", configurable.get("thread_id"))
    return {
        "session_id": getattr(history, "session_id", None) or session_id,
        "user_id": getattr(history, "user_id", None) or configurable.get("user_id"),
    }


def _check_binding(memory: Memory, i: int, configurable: dict[str, Any], history: Any) -> None:
    """Refuse a memory of another session or user: a single object in `memories=` would serve every session.

    Raises:
        ConfigurationError: The memory is bound to other ids than the turn's.
    """
    for name, value in _ids(configurable, history).items():
        bound = getattr(memory, name)
        if bound is not None and bound != value:
            msg = (
                f"memories[{i}] ({type(memory).__name__}) is bound to {name} {bound!r}, but this turn has {value!r}. "
                "Give its factory instead of the memory."
            )
            raise ConfigurationError(msg)
