"""The memories of a turn: made with its ids, loaded into one note, told of the finished turn."""

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

from langchain_memkit._events import event
from langchain_memkit._sync import Step, call_user_function, gather
from langchain_memkit.base import HistoryView, Memory, Query
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.retriever import RetrieverMemory
from langchain_memkit.memories.telling import LOAD_ERROR, REMARK, OnLoadError, load_failure, name_of
from langchain_memkit.messages.authors import is_user_message
from langchain_memkit.messages.notes import Record, recalled
from langchain_memkit.messages.turns import group_starts
from langchain_memkit.runnables.session import session_history

__all__ = ["Memories", "with_note"]

T = TypeVar("T")

logger = logging.getLogger("langchain_memkit")


@dataclass(frozen=True, slots=True)
class Memories:
    """The `memories=` of the factory, and what is done when one cannot be loaded."""

    entries: Sequence[Any]
    on_load_error: OnLoadError

    @classmethod
    def of(cls, entries: Any, on_load_error: OnLoadError) -> Memories:
        """Checks the argument and makes memories of retrievers."""
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
        """The memories of a session.

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
        """What the read of the history returns, beside which the memories read what they can at the same time.

        On an event loop all of them do, else those that wait for a server: a thread costs more than a file does.

        Args:
            memories: Of the turn.
            read: The read.
        """
        able: list[Any] = [memory for memory in memories if hasattr(memory, "aprefetch")]
        if not able:
            return await read
        remote = [memory for memory in able if getattr(memory, "is_remote", False)]

        def sync() -> list[Any]:
            if not remote:
                return [read.sync()]
            with ContextThreadPoolExecutor(len(remote)) as pool:
                with suppress(RuntimeError):  # the interpreter ends, and starts no threads: each load reads by itself
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
        """What the memories have to say to the new input.

        Args:
            memories: Of the turn.
            view: The history as it was read.
            asked: The new input.
            config: Of the turn.
            whole: Whether the model sees all of the history.
            trial: Whether somebody only wants to see what would be shown.
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
        results = await gather([Step(partial(m.load, query), partial(m.aload, query)) for m in memories])
        loaded: list[Record] = []
        for memory, result in zip(memories, results, strict=True):
            if isinstance(result, ConfigurationError):  # it would fail in every turn
                raise result
            if isinstance(result, Exception):
                await self._failed(memory, result, config)
            else:
                loaded += recalled(result, name_of(memory))
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


def with_note(
    past: list[BaseMessage], asked: list[BaseMessage], note: BaseMessage | None, *, apart: bool
) -> tuple[list[BaseMessage], list[BaseMessage]]:
    """Past and new input with the note between them: as late as providers take it.

    Results belong right after the calls that they answer, so the note goes before these; a system line that begins a
    conversation stays first.

    Args:
        past: Oldest first.
        asked: The new input.
        note: What memories recalled, if anything.
        apart: Whether a prompt puts the new input after the past.
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
    """The new input as text; while tools are called, the question that they are called for."""
    texts = [str(m.text) for m in asked if is_user_message(m)]
    if not texts:
        texts = [next((str(m.text) for m in reversed(past) if is_user_message(m)), "")]
    return "\n".join(texts)


def _ids(configurable: dict[str, Any], history: Any) -> dict[str, Any]:
    """The ids of the history in use: `history_factory_config` may have given them other names in the config."""
    session_id = configurable.get("session_id", configurable.get("thread_id"))
    return {
        "session_id": getattr(history, "session_id", None) or session_id,
        "user_id": getattr(history, "user_id", None) or configurable.get("user_id"),
    }


def _check_binding(memory: Memory, i: int, configurable: dict[str, Any], history: Any) -> None:
    """Refuses a memory of somebody else: one object in `memories=` would serve every session."""
    for name, value in _ids(configurable, history).items():
        bound = getattr(memory, name)
        if bound is not None and bound != value:
            msg = (
                f"memories[{i}] ({type(memory).__name__}) is bound to {name} {bound!r}, but this turn has {value!r}. "
                "Give its factory instead of the memory."
            )
            raise ConfigurationError(msg)
