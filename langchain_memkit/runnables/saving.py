"""The options of a turn, and its saving as they say; `create_runnable_with_message_history` documents them."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypedDict

from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.base import coerce_to_runnable

from langchain_memkit import base, errors
from langchain_memkit._histories import add_messages, append_turn, turns_between
from langchain_memkit._sync import Step, call_user_function, dry_run, event, raise_or_call
from langchain_memkit._timezones import TimezoneLike, check_timezone
from langchain_memkit.base import HistoryView, Memory, MemoryFactory, SavedTurn, check_one_of
from langchain_memkit.errors import ConfigurationError, HistoryWriteError, IdempotencyConflictError, StaleTurnError
from langchain_memkit.memories.chat_history import PreprocessorLike
from langchain_memkit.memories.fanout import OnLoadError, index_turn, notify_memories, save_all
from langchain_memkit.messages.chain_io import StreamedOutput, aborted, output_messages, without_echo
from langchain_memkit.messages.codec import storable
from langchain_memkit.messages.notes import is_note, without_forged_marks
from langchain_memkit.messages.trimming import same_messages, with_turn_ids
from langchain_memkit.preprocessors.trim import create_trim_preprocessor
from langchain_memkit.runnables.session import BoundSession, PromptBuilder, memory_entries
from langchain_memkit.runnables.trace import TurnRecorder

logger = logging.getLogger("langchain_memkit")

UNSAVED = -1

BeforeSave: TypeAlias = Callable[[list[BaseMessage]], list[BaseMessage]]
OnSaveError: TypeAlias = Literal["raise", "log"] | Callable[[HistoryWriteError], None]
OnDroppedTurn: TypeAlias = Literal["report", "raise"] | Callable[[HistoryWriteError], None]
MemoryLike: TypeAlias = Memory | MemoryFactory | Runnable[str, Any]


class TurnKeywords(TypedDict, total=False):
    """The keyword arguments that chain, RAG chain and agent share: those of `TurnOptions`."""

    preprocessor: PreprocessorLike
    memories: Sequence[MemoryLike]
    before_save: BeforeSave | None
    on_save_error: OnSaveError
    on_model_error: Literal["discard", "save_input"]
    on_abort: Literal["save_partial", "discard"]
    on_dropped_turn: OnDroppedTurn
    on_context_overflow: Literal["retry", "raise"]
    on_load_error: OnLoadError
    timezone: TimezoneLike
    trace: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTurn:
    """A turn in progress: everything that saving it needs, captured when it began."""

    session: BoundSession
    view: HistoryView  # the history as it was read
    turn_id: str
    epoch: int  # of the session when the turn began
    since: datetime | None
    new: list[BaseMessage]
    config: RunnableConfig
    shown: list[BaseMessage] = field(default_factory=list)
    asked: list[BaseMessage] = field(default_factory=list)
    input: Any = None
    called_with: Any = None  # the caller's input
    after: int | None = None  # in a graph: the session's position when the run looked up what of the state is stored
    in_graph: bool = False  # the graph gave its messages ids, different ones in each attempt
    replayed: bool = False  # the turn is stored already, and repeated from one of its own checkpoints
    before: Sequence[BaseMessage] = ()  # the part of `shown` before the new input
    recorder: TurnRecorder = field(default_factory=TurnRecorder)


@dataclass(slots=True, kw_only=True)
class TurnOptions:
    """What a turn is made with and what to do with its outcome, checked now rather than at the first failure."""

    output_key: str | None = None
    max_tokens: int | None = None
    preprocessor: PreprocessorLike = None
    memories: Sequence[MemoryLike] = ()
    before_save: BeforeSave | None = None
    on_save_error: OnSaveError = "raise"
    on_model_error: Literal["discard", "save_input"] = "discard"
    on_abort: Literal["save_partial", "discard"] = "save_partial"
    on_dropped_turn: OnDroppedTurn = "report"
    on_context_overflow: Literal["retry", "raise"] = "retry"
    on_load_error: OnLoadError = "report"
    timezone: TimezoneLike = None
    trace: bool = False
    prompt: PromptBuilder = field(init=False)

    def __post_init__(self) -> None:
        given: object = self.preprocessor
        name = getattr(given, "__name__", "")
        # A common mistake: passing the function that creates a preprocessor instead of its result.
        if name.startswith("create_") and given.__module__.startswith("langchain_memkit.preprocessors"):
            msg = f"preprocessor is the function {name} itself: call it, as in preprocessor={name}(max_tokens=4000)"
            raise ConfigurationError(msg)
        check_one_of(self.on_save_error, "on_save_error", ["raise", "log"], function=True)
        check_one_of(self.on_model_error, "on_model_error", ["discard", "save_input"])
        check_one_of(self.on_abort, "on_abort", ["save_partial", "discard"])
        check_one_of(self.on_dropped_turn, "on_dropped_turn", ["report", "raise"], function=True)
        check_one_of(self.on_context_overflow, "on_context_overflow", ["retry", "raise"])
        check_one_of(self.on_load_error, "on_load_error", ["report", "raise"], function=True)
        if not isinstance(self.trace, bool):
            raise ConfigurationError(f"trace must be True or False, not {self.trace!r:.50}")
        if self.max_tokens is not None:
            if self.preprocessor is not None:
                msg = "max_tokens= trims, and preprocessor= says how as well: give one of them, as in "
                raise ConfigurationError(f"{msg}preprocessor=create_trim_preprocessor({self.max_tokens!r:.20})")
            self.preprocessor = create_trim_preprocessor(self.max_tokens)
        chain = None if self.preprocessor is None else coerce_to_runnable(self.preprocessor)
        on_errors, zone = (self.on_load_error, self.on_context_overflow), check_timezone(self.timezone)
        self.prompt = PromptBuilder(memory_entries(self.memories), chain, *on_errors, zone)

    def answer(self, output: object) -> list[BaseMessage]:
        """Return the messages in the runnable's output."""
        return output_messages(output, self.output_key)

    async def save(self, turn: OpenTurn, output: object, messages: Sequence[BaseMessage] | None = None) -> int | None:
        """Store the finished turn; if that fails, apply `on_save_error`.

        Without `messages` the turn's are its new input and the new ones in the output. Returns its position, None if it
        has none, or `UNSAVED` if storing failed and the failure was not raised.
        """
        try:
            if messages is None:
                whole = [*turn.new, *without_echo(self.answer(output), turn.shown, turn.asked)]
            else:
                whole = output_messages([*messages], None)
            return await self._store(turn, whole, turn.turn_id)
        except Exception as error:  # noqa: BLE001  # whatever a history or a caller's function raises
            failure = _write_error(error, turn, output)
            if self.on_dropped_turn == "raise" and isinstance(error, (StaleTurnError, IdempotencyConflictError)):
                raise failure from error.__cause__
            await self._save_failed(turn, failure)
            return UNSAVED

    async def abort(self, turn: OpenTurn, streamed: StreamedOutput) -> None:
        """Store the partial answer of a stream that was closed or cancelled, as `on_abort` says."""
        if not streamed.empty:
            output = streamed.value
            await self.save_partial(turn, lambda: without_echo(self.answer(output), turn.shown, turn.asked), output)

    async def save_partial(self, turn: OpenTurn, said: Callable[[], list[BaseMessage]], output: object) -> None:
        """Store what was said before the turn was stopped, if anything; a failure is handled as in `save`."""
        if self.on_abort == "discard":
            return
        try:
            # Evaluated inside the `try`, since converting an unfinished output may fail as well.
            if partial := aborted(said()):
                # Under an id of its own, so that a retry of the whole turn is still stored.
                await self._store(turn, [*turn.new, *partial], _derived_id(turn.turn_id, "aborted"))
        except Exception as error:  # noqa: BLE001  # whatever a history or a caller's function raises
            failure = _write_error(error, turn, output)
            # Logged in any case, since a cancelled caller may never receive the error.
            logger.error("the partial answer of a stopped turn was not stored: %s", failure)
            await self._save_failed(turn, failure)

    async def model_failed(self, turn: OpenTurn) -> None:
        """Drop the turn after the model failed; with `save_input`, store its question. Never hide the model's error."""
        # An answer that is there already stays, if the model fails that was to give another one.
        if self.on_model_error != "save_input" or not turn.new or turn.view.replaces:
            return
        try:
            await self._store(turn, turn.new, _derived_id(turn.turn_id, "failed"))
        except Exception as error:  # noqa: BLE001  # whatever a history or a caller's function raises
            failure = _write_error(error, turn, None)
            logger.error("the model failed, and then its input was not stored: %s", failure)
            await _event(turn, "memkit_save_error", failure)

    async def _store(self, turn: OpenTurn, messages: Sequence[BaseMessage], turn_id: str) -> int | None:
        if dry_run.get():
            return None
        # Recalled records are never stored, even if the runnable returns them.
        messages = [without_forged_marks(message) for message in messages if not is_note(message)]
        given = len(messages)
        if self.before_save is not None:
            # Copies, so that redacting in place changes neither the caller's input nor the returned answer.
            copies = [m.model_copy() for m in messages]
            messages = list(await call_user_function(self.before_save, copies, name="before_save"))
        return await self._append(turn, messages, turn_id, given, turn.after) if messages else None

    async def _append(
        self, turn: OpenTurn, messages: list[BaseMessage], turn_id: str, given: int, after: int | None
    ) -> int | None:
        history, native, memories, _ = turn.session
        # Histories of other packages have neither turn ids nor epochs: the turn is added through LangChain's methods,
        # and a retry may store it twice.
        if not native:
            await add_messages(history, messages)
            await save_all(memories, SavedTurn(messages, turn_id))
            return None
        place = [getattr(history, "user_id", None) or "", getattr(history, "session_id", "")]
        # Memories identify their records by the ids of the messages that they were derived from, so ids are set
        # before the history and the memories get the messages.
        named = with_turn_ids(messages, place, turn_id)
        seq: int | None = None
        trace = _trace_of(turn, redacted=self.before_save is not None) if self.trace else None
        known: Any = {"epoch": turn.epoch, "since": turn.since, "head": turn.view.head, "after": after, "trace": trace}
        known |= {"replaces": turn.view.replaces} if turn.view.replaces else {}
        index = await index_turn(memories, history, named)
        try:
            seq = await append_turn(history, named, turn_id=turn_id, index=index, **known)
        # The session was cleared or purged since the turn began: storing it would bring erased text back.
        except StaleTurnError as error:
            await self._dropped(turn, error)
            return None
        except errors.HistoryConflictError:
            # Of two runs on one thread each finds the other's question in the state. Whoever stores first has it.
            others = await turns_between(history, after or 0)
            stored = {message.id for other in others for message in other.messages}
            left = [message for message in named if message.id not in stored]
            after = max((other.seq for other in others), default=None)
            return await self._append(turn, left, turn_id, given, after) if left else None
        except IdempotencyConflictError as error:
            # What is compared is what is stored: metadata that cannot be was left out there.
            messages, named = storable(messages).messages, storable(named).messages
            if turn.in_graph:
                # Another run on this thread has stored a part of this turn, or the turn is repeated as a branch:
                # append what is missing under an id made from it, so that a retry of this append is stored once.
                if rest := _rest(turn, named, error.stored):
                    turn = replace(turn, view=turn.view._replace(replaces=None))  # what is stored has done that
                    digest = hashlib.sha256("\0".join(str(m.id) for m in rest).encode()).hexdigest()[:16]
                    return await self._append(turn, rest, _derived_id(turn.turn_id, digest), given, after)
                # What another run found of this one in the state may be a part of what this one has stored since.
                if len(named) < len(error.stored) and all(message in error.stored for message in named):
                    return None
                pairs = zip(messages, error.stored, strict=False)
                messages = [message.model_copy(update={"id": stored.id}) for message, stored in pairs]
            # A retry around the chain has the same question, but the model worded its answer differently: the first
            # answer stays. Anything else under this turn_id is a conflict.
            asked = len(turn.new)
            if len(messages) != given or not same_messages(error.stored[:asked], messages[:asked]):
                raise
            await self._dropped(turn, error)
            named = error.stored  # the first attempt may have ended before the memories saved it
        # A turn that may have drawn the epoch itself (as the session's first, or because those before it may expire)
        # passes its position, where the epoch is looked up.
        drew = turn.view.seq == 0 or turn.view.epoch != turn.epoch or getattr(history, "ttl", None)
        replaces = turn.view.replaces
        saved = SavedTurn(named, turn_id, turn.epoch, seq=seq)
        await notify_memories(memories, saved, history, seq if drew or replaces else None, replaces)
        return seq

    async def _dropped(self, turn: OpenTurn, error: HistoryWriteError) -> None:
        if not await raise_or_call(self.on_dropped_turn, error, "on_dropped_turn"):
            logger.warning("turn not stored: %s", error)
            await _event(turn, "memkit_dropped_turn", error)

    async def _save_failed(self, turn: OpenTurn, error: HistoryWriteError) -> None:
        await _event(turn, "memkit_save_error", error)
        if not await raise_or_call(self.on_save_error, error, "on_save_error"):
            logger.error("%s" if isinstance(error, errors.MemoryWriteError) else "turn not stored: %s", error)


def _write_error(error: Exception, turn: OpenTurn, output: object) -> HistoryWriteError:
    """Turn any failure of a save into a `HistoryWriteError` that carries the answer."""
    if not isinstance(error, HistoryWriteError):
        # A history of another package may have stored the turn, or a part of it, before it raised.
        foreign = not turn.session.native
        wrapped = HistoryWriteError(f"saving the turn raised {base.describe_error(error)}", maybe_stored=foreign)
        wrapped.__cause__ = error
        error = wrapped
    error.output = output
    error.turn_id = error.turn_id or turn.turn_id
    error.messages = error.messages or list(turn.new)
    return error


def _trace_of(turn: OpenTurn, *, redacted: bool) -> dict[str, Any] | None:
    """Return the trace to store with a turn; None if no model was called, or it cannot be made, which is logged."""
    try:
        return turn.recorder.trace().to_stored(redacted=redacted) if turn.recorder.calls else None
    except Exception as error:  # noqa: BLE001  # messages of any class; a trace must not cost the turn
        logger.warning("the trace of a turn is not stored: making it raised %s", type(error).__name__)
        return None


def _event(turn: OpenTurn, name: str, error: HistoryWriteError) -> Step[None]:
    return event(turn.config, name, {"error": type(error).__name__, "message": str(error), "turn_id": turn.turn_id})


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


def _derived_id(turn_id: str, state: str) -> str:
    """Return the id for a turn that did not end well; long ids are hashed to stay within the limit."""
    if len(turn_id.encode()) > base.MAX_ID_BYTES - len(state) - 1:
        turn_id = hashlib.sha256(turn_id.encode()).hexdigest()
    return f"{turn_id}:{state}"
