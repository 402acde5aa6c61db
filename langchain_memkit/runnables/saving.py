"""Saving of a finished turn, and the policies for failures that `create_runnable_with_message_history` documents."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self, TypeAlias

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import coerce_to_runnable

from langchain_memkit._compat import ContextOverflowError
from langchain_memkit._histories import add_messages, append_turn
from langchain_memkit._sync import Step, call_user_function, event
from langchain_memkit.base import Memory, Preprocessor, SavedTurn, SessionHead, TurnContext, describe_error
from langchain_memkit.base.validation import MAX_ID_BYTES
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryWriteError,
    IdempotencyConflictError,
    MemoryWriteError,
    StaleTurnError,
)
from langchain_memkit.memories.fanout import OnLoadError, notify_memories, save_all
from langchain_memkit.messages.chain_io import StreamedOutput, aborted, output_messages, without_echo
from langchain_memkit.messages.notes import is_note, without_forged_marks
from langchain_memkit.messages.trimming import same_messages, with_turn_ids
from langchain_memkit.runnables.memories import MemoryBinder
from langchain_memkit.runnables.wiring import ModelInputWatch

__all__ = ["BeforeSave", "OnDroppedTurn", "OnSaveError", "OpenTurn", "TurnOptions"]

logger = logging.getLogger("langchain_memkit")

SMALLER = 0.7  # share of the budget that a retry after a context overflow uses

UNSAVED = -1

BeforeSave: TypeAlias = Callable[[list[BaseMessage]], list[BaseMessage]]
OnSaveError: TypeAlias = Literal["raise", "log"] | Callable[[HistoryWriteError], None]
OnDroppedTurn: TypeAlias = Literal["report", "raise"] | Callable[[HistoryWriteError], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTurn:
    """A turn in progress: everything that saving it needs, captured when it began."""

    history: Any
    native: bool  # has `view` and `append_turn`
    memories: list[Memory]
    turn_id: str
    epoch: int | None
    since: datetime | None
    new: list[BaseMessage]
    shown: list[BaseMessage]
    asked: list[BaseMessage]
    input: Any
    config: RunnableConfig
    in_graph: bool = False  # the graph gave its messages ids, different ones in each attempt
    replayed: bool = False  # the turn is stored already, and repeated from one of its own checkpoints
    given: Sequence[BaseMessage] | None = None  # the model's input, where known and other than `shown`
    begun: bool = False  # the session has turns that never expire, so its epoch is set; else the first turn draws one
    head: SessionHead | None = None  # the session's last position and epoch when the history was read
    watch: ModelInputWatch | None = None  # records the models' input until it is known whether it contains the past


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """What to do with a turn's outcome: the options of `create_runnable_with_message_history`, checked."""

    output_key: str | None = None
    preprocessor: Preprocessor | None
    memories: MemoryBinder
    before_save: BeforeSave | None
    on_save_error: OnSaveError
    on_model_error: Literal["discard", "save_input"]
    on_abort: Literal["save_partial", "discard"]
    on_dropped_turn: OnDroppedTurn
    on_context_overflow: Literal["retry", "raise"]

    @classmethod
    def of(cls, *, preprocessor: Any, memories: Any, on_load_error: OnLoadError, **options: Any) -> Self:
        """Validate the options that chain, agent and RAG chain share.

        Args:
            preprocessor: A runnable or a function, or None.
            memories: The `memories=` argument.
            on_load_error: What to do if a memory cannot be read.
            options: The other fields, by name.

        Raises:
            ConfigurationError: An option has a wrong type or an unknown value.
        """
        if not (preprocessor is None or isinstance(preprocessor, Runnable) or callable(preprocessor)):
            msg = f"preprocessor must be a runnable or function of messages, not {type(preprocessor).__name__}"
            raise ConfigurationError(msg)
        name = getattr(preprocessor, "__name__", "")
        # A common mistake: passing the function that creates a preprocessor instead of its result.
        if name.startswith("create_") and preprocessor.__module__.startswith("langchain_memkit.preprocessors"):
            msg = f"preprocessor is the function {name} itself: call it, as in preprocessor={name}(max_tokens=4000)"
            raise ConfigurationError(msg)
        chain = None if preprocessor is None else coerce_to_runnable(preprocessor)
        checked = cls(preprocessor=chain, memories=MemoryBinder.of(memories, on_load_error), **options)
        checked.check()
        return checked

    def check(self) -> None:
        """Validate the policies now rather than at the first failure.

        Raises:
            ConfigurationError: A policy is misspelt, or `before_save` is not callable.
        """
        if self.before_save is not None and not callable(self.before_save):
            msg = f"before_save must be a function of messages, not {type(self.before_save).__name__}"  # type: ignore[unreachable]  # callers without types
            raise ConfigurationError(msg)
        allowed: dict[str, tuple[str, ...]] = {
            "on_save_error": ("raise", "log"),
            "on_model_error": ("discard", "save_input"),
            "on_abort": ("save_partial", "discard"),
            "on_dropped_turn": ("report", "raise"),
            "on_context_overflow": ("retry", "raise"),
            "on_load_error": ("report", "raise"),
        }
        for name, words in allowed.items():
            value = self.memories.on_load_error if name == "on_load_error" else getattr(self, name)
            may_be_callable = name in ("on_save_error", "on_dropped_turn", "on_load_error")
            if value not in words and not (may_be_callable and callable(value)):
                or_callable = " or a callable" if may_be_callable else ""
                msg = f"{name} must be {' or '.join(map(repr, words))}{or_callable}, not {value!r:.50}"
                raise ConfigurationError(msg)

    async def overflowed(
        self, context: TurnContext, config: RunnableConfig, error: ContextOverflowError, *, said: bool = False
    ) -> None:
        """Scale the budget down for one retry after a context overflow, or raise the model's error.

        Args:
            context: The turn's context.
            config: The config of the turn.
            error: The model's error.
            said: Whether the model had begun to answer, which rules out a retry.
        """
        if context.scale < 1 or not context.used or said or self.on_context_overflow == "raise":
            raise error
        logger.warning("the model was given more than its context holds; trying once with %d%%", 100 * SMALLER)
        await event(config, "memkit_context_overflow", {"error": type(error).__name__, "scale": SMALLER})
        context.scale = SMALLER

    async def save(self, turn: OpenTurn, output: Any) -> None:
        """Store the finished turn; if that fails, apply `on_save_error`."""
        try:
            answer = output_messages(output, self.output_key)
            messages = [*turn.new, *_without_notes(without_echo(answer, turn.shown, turn.asked))]
            await self._store(turn, messages, turn.turn_id)
        except Exception as error:  # noqa: BLE001  # whatever a history or a caller's function raises
            await self._not_saved(turn, error, output)

    async def save_messages(self, turn: OpenTurn, messages: Sequence[BaseMessage], output: Any) -> int | None:
        """Store a turn whose messages are given explicitly; else like `save`.

        Returns:
            The turn's position; None if it has none; `UNSAVED` if storing failed and the failure was not raised.
        """
        try:
            whole = output_messages(list(messages), None)
            return await self._store(turn, _without_notes(whole), turn.turn_id)
        except Exception as error:  # noqa: BLE001  # whatever a history or a caller's function raises
            await self._not_saved(turn, error, output)
            return UNSAVED

    async def _not_saved(self, turn: OpenTurn, error: Exception, output: Any) -> None:
        if self.on_dropped_turn == "raise" and isinstance(error, (StaleTurnError, IdempotencyConflictError)):
            raise _write_error(error, turn, output) from error.__cause__
        await self._save_failed(turn, _write_error(error, turn, output))

    async def abort(self, turn: OpenTurn, streamed: StreamedOutput) -> None:
        """Store the partial answer of a stream that was closed or cancelled, as `on_abort` says."""
        if self.on_abort == "discard" or streamed.empty:
            return
        output = streamed.value
        await self.save_partial(
            turn, lambda: without_echo(output_messages(output, self.output_key), turn.shown, turn.asked), output
        )

    async def save_partial(self, turn: OpenTurn, said: Callable[[], list[BaseMessage]], output: Any) -> None:
        """Store what was said before the turn was stopped, if anything; a failure is handled as in `save`."""
        if self.on_abort == "discard":
            return
        try:
            # Evaluated inside the `try`, since converting an unfinished output may fail as well.
            partial = aborted(_without_notes(said()))
            if partial:
                # Under an id of its own, so that a retry of the whole turn is still stored.
                await self._store(turn, [*turn.new, *partial], _derived_id(turn.turn_id, "aborted"))
        except Exception as error:  # noqa: BLE001  # whatever a history or a caller's function raises
            failure = _write_error(error, turn, output)
            # Logged in any case, since a cancelled caller may never receive the error.
            logger.error("the partial answer of a stopped turn was not stored: %s", failure)
            await self._save_failed(turn, failure)

    async def model_failed(self, turn: OpenTurn) -> None:
        """Drop the turn after the model failed; with `save_input`, store its question. Never hide the model's error."""
        if self.on_model_error != "save_input" or not turn.new:
            return
        try:
            await self._store(turn, turn.new, _derived_id(turn.turn_id, "failed"))
        except Exception as error:  # noqa: BLE001  # whatever a history or a caller's function raises
            failure = _write_error(error, turn, None)
            logger.error("the model failed, and then its input was not stored: %s", failure)
            await _event(turn, "memkit_save_error", failure)

    async def _store(self, turn: OpenTurn, messages: list[BaseMessage], turn_id: str) -> int | None:
        given, messages = len(messages), [without_forged_marks(message) for message in messages]
        if self.before_save is not None:
            # Copies, so that redacting in place changes neither the caller's input nor the returned answer.
            copies = [m.model_copy() for m in messages]
            messages = list(await call_user_function(self.before_save, copies, name="before_save"))
        return await self._append(turn, messages, turn_id, given) if messages else None

    async def _append(self, turn: OpenTurn, messages: list[BaseMessage], turn_id: str, given: int) -> int | None:
        asked = len(turn.new)
        history, at = turn.history, {"epoch": turn.epoch, "since": turn.since, "head": turn.head}
        # Histories of other packages have neither turn ids nor epochs: the turn is added through LangChain's methods,
        # and a retry may store it twice.
        if not turn.native:
            await add_messages(history, messages)
            await save_all(turn.memories, SavedTurn(messages, turn_id))
            return None
        place = [getattr(history, "user_id", None) or "", getattr(history, "session_id", "")]
        # Memories identify their records by the ids of the messages that they were derived from, so ids are set
        # before the history and the memories get the messages.
        named = with_turn_ids(messages, place, turn_id)
        seq: int | None = None
        try:
            seq = await append_turn(history, named, turn_id=turn_id, **at)
        # The session was cleared or purged since the turn began: storing it would bring erased text back.
        except StaleTurnError as error:
            await self._dropped(turn, error)
            return None
        except IdempotencyConflictError as error:
            if turn.in_graph:
                # Another run on this thread has stored a part of this turn, or the turn is repeated as a branch:
                # append what is missing under an id made from it, so that a retry of this append is stored once.
                if rest := _rest(turn, named, error.stored):
                    return await self._append(turn, rest, _derived_id(turn.turn_id, _hash_of_ids(rest)), given)
                messages = [_renamed(m, s) for m, s in zip(messages, error.stored, strict=False)]
            # A retry around the chain has the same question, but the model worded its answer differently: the first
            # answer stays. Anything else under this turn_id is a conflict.
            if len(messages) != given or not same_messages(error.stored[:asked], messages[:asked]):
                raise
            await self._dropped(turn, error)
            named = error.stored  # the first attempt may have ended before the memories saved it
        # Only a turn that may be the session's first passes its position: it drew the epoch itself, which is looked up
        # there.
        await notify_memories(
            turn.memories, SavedTurn(named, turn_id, turn.epoch or 0), history, None if turn.begun else seq
        )
        return seq

    async def _dropped(self, turn: OpenTurn, error: HistoryWriteError) -> None:
        policy = self.on_dropped_turn
        if policy == "raise":
            raise error
        if callable(policy):
            await call_user_function(policy, error, name="on_dropped_turn")
            return
        logger.warning("turn not stored: %s", error)
        await _event(turn, "memkit_dropped_turn", error)

    async def _save_failed(self, turn: OpenTurn, error: HistoryWriteError) -> None:
        policy = self.on_save_error
        await _event(turn, "memkit_save_error", error)
        if policy == "raise":
            raise error
        if callable(policy):
            await call_user_function(policy, error, name="on_save_error")
        else:
            logger.error("%s" if isinstance(error, MemoryWriteError) else "turn not stored: %s", error)


def _write_error(error: Exception, turn: OpenTurn, output: Any) -> HistoryWriteError:
    """Turn any failure of a save into a `HistoryWriteError` that carries the answer."""
    if not isinstance(error, HistoryWriteError):
        text = f"saving the turn raised {describe_error(error)}"
        # A history of another package may have stored the turn, or a part of it, before it raised.
        wrapped = HistoryWriteError(text, maybe_stored=not turn.native)
        wrapped.__cause__ = error
        error = wrapped
    error.output = output
    error.turn_id = error.turn_id or turn.turn_id
    error.messages = error.messages or list(turn.new)
    return error


def _event(turn: OpenTurn, name: str, error: HistoryWriteError) -> Step[None]:
    return event(turn.config, name, {"error": type(error).__name__, "message": str(error), "turn_id": turn.turn_id})


def _without_notes(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Remove notes of memories: recalled records are never stored, even if the runnable returns them."""
    return [message for message in messages if not is_note(message)]


def _rest(turn: OpenTurn, messages: list[BaseMessage], stored: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages of a run that an existing row of the same turn id does not hold; none if this is a retry.

    If the row holds a part of the run (another run found it unfinished and stored it), return the rest. If it holds
    other messages, return all of them for a turn that is repeated from one of its own checkpoints, which makes a
    branch.
    """
    known = {m.id for m in stored}
    new = [m for m in messages if m.id not in known]
    if not new or (turn.new and not turn.replayed and len(new) == len(messages)):
        return []
    if known <= {m.id for m in messages}:
        return new
    return messages if turn.replayed else []


def _hash_of_ids(messages: Sequence[BaseMessage]) -> str:
    return hashlib.sha256("\0".join(str(m.id) for m in messages).encode()).hexdigest()[:16]


def _renamed(message: BaseMessage, other: BaseMessage) -> BaseMessage:
    return message.model_copy(update={"id": other.id})


def _derived_id(turn_id: str, state: str) -> str:
    """Return the id for a turn that did not end well; long ids are hashed to stay within the limit."""
    if len(turn_id.encode()) > MAX_ID_BYTES - len(state) - 1:
        turn_id = hashlib.sha256(turn_id.encode()).hexdigest()
    return f"{turn_id}:{state}"
