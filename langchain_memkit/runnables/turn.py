"""One turn as a runnable: opened (ids checked, input captured), loaded, run and saved, in the call path.

The steps are flows (see `_flow`), written once for both call styles. What happens when one of them fails is said at
`create_runnable_with_message_history`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar
from uuid import uuid4

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.callbacks.manager import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun
from langchain_core.messages import BaseMessage
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig

from langchain_memkit._flow import Flow, adrive, drive
from langchain_memkit.base import GetSessionHistory, HistoryView, Preprocessor, check_id
from langchain_memkit.errors import (
    ConfigurationError,
    HistoryWriteError,
    IdempotencyConflictError,
    StaleTurnError,
)
from langchain_memkit.messages.chain_io import (
    StreamedOutput,
    aborted,
    input_messages,
    output_messages,
    without_echo,
)
from langchain_memkit.messages.turns import same_messages
from langchain_memkit.runnables.session import Step, arun_step, run_step, session_history, user_code

__all__ = ["BeforeSave", "HistoryTurn", "OnDroppedTurn", "OnSaveError", "Policy"]

logger = logging.getLogger("langchain_memkit")


T = TypeVar("T")


BeforeSave: TypeAlias = Callable[[list[BaseMessage]], list[BaseMessage]]


OnSaveError: TypeAlias = Literal["raise", "log"] | Callable[[HistoryWriteError], None]


OnDroppedTurn: TypeAlias = Literal["report", "raise"] | Callable[[HistoryWriteError], None]


@dataclass(frozen=True, slots=True)
class Policy:
    """The options of the factory; see `create_runnable_with_message_history`."""

    preprocessor: Preprocessor | None
    before_save: BeforeSave | None
    on_save_error: OnSaveError
    on_model_error: Literal["discard", "save_input"]
    on_abort: Literal["save_partial", "discard"]
    on_dropped_turn: OnDroppedTurn

    def check(self) -> None:
        """Refuses misspelt policies now rather than at the first failure."""
        allowed: dict[str, tuple[str, ...]] = {
            "on_save_error": ("raise", "log"),
            "on_model_error": ("discard", "save_input"),
            "on_abort": ("save_partial", "discard"),
            "on_dropped_turn": ("report", "raise"),
        }
        for name, words in allowed.items():
            value = getattr(self, name)
            may_be_callable = name in ("on_save_error", "on_dropped_turn")
            if value not in words and not (may_be_callable and callable(value)):
                or_callable = " or a callable" if may_be_callable else ""
                msg = f"{name} must be {' or '.join(map(repr, words))}{or_callable}, not {value!r:.50}"
                raise ConfigurationError(msg)


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """A turn under way: everything that its save needs, captured when it began."""

    history: Any
    native: bool  # has `view` and `append_turn`
    turn_id: str
    epoch: int | None
    new: list[BaseMessage]
    shown: list[BaseMessage]
    input: Any
    config: RunnableConfig


class HistoryTurn(Runnable[Any, Any]):
    """The whole turn as a runnable: what `RunnableWithMessageHistory` binds."""

    def __init__(
        self,
        runnable: Runnable[Any, Any],
        get_session_history: GetSessionHistory,
        input_key: str | None,
        output_key: str | None,
        history_key: str | None,
        specs: Sequence[ConfigurableFieldSpec] | None,
        policy: Policy,
    ) -> None:
        self.runnable = runnable
        self.name = "RunnableWithMessageHistory"
        self._get_session_history = get_session_history
        self._input_key = input_key
        self._output_key = output_key
        self._history_key = history_key
        self._specs = specs
        self._policy = policy

    # -- the four ways to run

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """One turn."""

        def turn_of(value: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig) -> Any:
            turn = drive(self._open(value, config), run_step)
            try:
                output = self.runnable.invoke(turn.input, turn.config, **kwargs)
            except Exception:
                drive(self._model_failed(turn), run_step)
                raise
            drive(self._save(turn, output), run_step)
            return output

        return self._call_with_config(turn_of, input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Async twin of `invoke`."""

        async def turn_of(value: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig) -> Any:
            turn = await adrive(self._open(value, config), arun_step)
            try:
                output = await self.runnable.ainvoke(turn.input, turn.config, **kwargs)
            except Exception:
                await _shielded(adrive(self._model_failed(turn), arun_step))
                raise
            await _shielded(adrive(self._save(turn, output), arun_step))
            return output

        return await self._acall_with_config(turn_of, input, config)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """One turn, streamed; saved when the stream ends or is closed."""
        yield from self.transform(iter([input]), config, **kwargs)

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Async twin of `stream`."""

        async def once() -> AsyncIterator[Any]:
            yield input

        async with aclosing(self.atransform(once(), config, **kwargs)) as chunks:  # type: ignore[type-var]  # a generator
            async for chunk in chunks:
                yield chunk

    def transform(self, input: Iterator[Any], config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """One turn for a streamed input, which is gathered first."""
        inner: list[Any] = []

        def turn_of(
            values: Iterator[Any], run_manager: CallbackManagerForChainRun, config: RunnableConfig
        ) -> Iterator[Any]:
            inner.append(self._stream(values, config, kwargs))
            return inner[0]  # type: ignore[no-any-return]  # the generator just made

        outer = self._transform_stream_with_config(input, turn_of, config)
        try:
            yield from outer
        finally:
            for generator in inner:  # core's wrapper ends without closing it, and then nothing would be saved
                generator.close()

    async def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Async twin of `transform`."""
        inner: list[Any] = []

        def turn_of(
            values: AsyncIterator[Any], run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
        ) -> AsyncIterator[Any]:
            inner.append(self._astream(values, config, kwargs))
            return inner[0]  # type: ignore[no-any-return]  # the generator just made

        try:
            async with aclosing(self._atransform_stream_with_config(input, turn_of, config)) as outer:  # type: ignore[type-var]  # a generator
                async for chunk in outer:
                    yield chunk
        finally:
            for generator in inner:
                await generator.aclose()

    def _stream(self, values: Iterator[Any], config: RunnableConfig, kwargs: dict[str, Any]) -> Iterator[Any]:
        gathered = StreamedOutput()
        for value in values:
            gathered.add(value)
        turn = drive(self._open(gathered.value, config), run_step)
        streamed = StreamedOutput()
        chunks = self.runnable.stream(turn.input, turn.config, **kwargs)
        try:
            for chunk in chunks:
                streamed.add(chunk)
                yield chunk
        except Exception:
            drive(self._model_failed(turn), run_step)
            raise
        except BaseException:  # closed by the consumer, collected, or Ctrl-C
            # before the model's stream is closed: some wrappers run it to its end first
            drive(self._abort(turn, streamed), run_step)
            raise
        finally:
            if hasattr(chunks, "close"):
                chunks.close()
        drive(self._save(turn, streamed.value), run_step)

    async def _astream(
        self, values: AsyncIterator[Any], config: RunnableConfig, kwargs: dict[str, Any]
    ) -> AsyncIterator[Any]:
        gathered = StreamedOutput()
        async for value in values:
            gathered.add(value)
        turn = await adrive(self._open(gathered.value, config), arun_step)
        streamed = StreamedOutput()
        chunks = self.runnable.astream(turn.input, turn.config, **kwargs)
        try:
            async for chunk in chunks:
                streamed.add(chunk)
                yield chunk
        except Exception:
            await _shielded(adrive(self._model_failed(turn), arun_step))
            raise
        except BaseException:  # closed by the consumer, collected, or cancelled
            await _shielded(adrive(self._abort(turn, streamed), arun_step))
            raise
        finally:
            if hasattr(chunks, "aclose"):
                await chunks.aclose()
        await _shielded(adrive(self._save(turn, streamed.value), arun_step))

    # -- the steps of a turn

    def _open(self, value: Any, config: RunnableConfig) -> Flow[OpenTurn]:
        """Checks, captures the input, loads, composes. Nothing is stored yet."""
        if (self._input_key or self._history_key) and not isinstance(value, dict):
            msg = (
                f"with input_messages_key or history_messages_key the input must be a dict, not {type(value).__name__}"
            )
            raise ValueError(msg)
        given = input_messages(value, self._input_key)
        configurable = config.get("configurable") or {}
        turn_id = configurable.get("turn_id")
        turn_id = str(uuid4()) if turn_id is None else check_id(turn_id, "turn_id")
        history = configurable.get("message_history")
        if history is None:
            history = yield session_history(self._get_session_history, self._specs, configurable)
        native = hasattr(history, "append_turn") and hasattr(history, "view")
        if native:
            size = getattr(history, "history_size", None)
            view = yield Step(lambda: history.view(max_messages=size), lambda: history.aview(max_messages=size))
        else:
            view = HistoryView(list((yield Step(lambda: history.messages, history.aget_messages))))
        # the next runnable finds the history where LangChain's class puts it
        config = {**config, "configurable": {**configurable, "message_history": history}}
        ids = [m.id for m in given if m.id]
        known = {m.id for m in view.messages} & set(ids)
        if native and set(ids) - known:
            known |= yield Step(lambda: history.stored_ids(ids), lambda: history.astored_ids(ids))
        new = [m for m in given if not m.id or m.id not in known]
        past: list[BaseMessage] = view.messages
        if (chain := self._policy.preprocessor) is not None:
            past = yield Step(lambda: chain.invoke(past, config), lambda: chain.ainvoke(past, config))
        asked = given if self._history_key else (new or given[-1:])
        past = [m for m in past if not m.id or m.id not in {a.id for a in asked}]
        composed = self._compose(value, past, asked)
        epoch = view.epoch if native else None
        return OpenTurn(history, native, turn_id, epoch, new, [*past, *asked], composed, config)

    def _compose(self, value: Any, past: list[BaseMessage], asked: list[BaseMessage]) -> Any:
        if self._history_key:
            return {**value, self._history_key: past}
        messages = [*past, *asked]
        return {**value, self._input_key: messages} if self._input_key else messages

    def _save(self, turn: OpenTurn, output: Any) -> Flow[None]:
        """Stores the finished turn, and applies `on_save_error` if that fails."""
        try:
            messages = [*turn.new, *without_echo(output_messages(output, self._output_key), turn.shown)]
            yield from self._store(turn, messages, turn.turn_id)
        except Exception as error:  # noqa: BLE001  # whatever a history or a caller's function raises
            yield from self._save_failed(turn, _write_error(error, turn, output))

    def _abort(self, turn: OpenTurn, streamed: StreamedOutput) -> Flow[None]:
        """Stores what was yielded before the stream was closed or cancelled."""
        if self._policy.on_abort == "discard" or streamed.empty:
            return
        output = streamed.value
        try:
            partial = aborted(without_echo(output_messages(output, self._output_key), turn.shown))
            if partial:
                # an id of its own, so that a retry of the turn is still stored
                yield from self._store(turn, [*turn.new, *partial], f"{turn.turn_id[:500]}:aborted")
        except Exception as error:  # noqa: BLE001  # whatever a history or a caller's function raises
            failure = _write_error(error, turn, output)
            # perhaps nobody is left to receive it
            logger.error("the partial answer of a stopped turn was not stored: %s", failure)
            yield from self._save_failed(turn, failure)

    def _model_failed(self, turn: OpenTurn) -> Flow[None]:
        """The turn did not happen; with `save_input`, the question is kept. Never hides the model's error."""
        if self._policy.on_model_error != "save_input" or not turn.new:
            return
        try:
            yield from self._store(turn, turn.new, f"{turn.turn_id[:500]}:failed")
        except Exception as error:  # noqa: BLE001  # whatever a history or a caller's function raises
            logger.error("the model failed, and then its input was not stored: %s", error)
            yield _event(turn, "memkit_save_error", error)

    def _store(self, turn: OpenTurn, messages: list[BaseMessage], turn_id: str) -> Flow[None]:
        if (before_save := self._policy.before_save) is not None:
            messages = list((yield user_code(before_save, messages, name="before_save")))
        if not messages:
            return
        history, epoch = turn.history, turn.epoch
        if not turn.native:
            yield Step(lambda: history.add_messages(messages), lambda: history.aadd_messages(messages))
            return
        try:
            yield Step(
                lambda: history.append_turn(messages, turn_id=turn_id, epoch=epoch),
                lambda: history.aappend_turn(messages, turn_id=turn_id, epoch=epoch),
            )
        except StaleTurnError as error:
            yield from self._dropped(turn, error)
        except IdempotencyConflictError as error:
            # a retry around the chain: same question, and the model worded its answer anew. The first one stays.
            asked = len(turn.new)
            if before_save is not None or not same_messages(error.stored[:asked], messages[:asked]):
                raise
            yield from self._dropped(turn, error)

    def _dropped(self, turn: OpenTurn, error: HistoryWriteError) -> Flow[None]:
        policy = self._policy.on_dropped_turn
        if policy == "raise":
            raise error
        if callable(policy):
            yield user_code(policy, error, name="on_dropped_turn")
            return
        logger.warning("turn not stored: %s", error)
        yield _event(turn, "memkit_dropped_turn", error)

    def _save_failed(self, turn: OpenTurn, error: HistoryWriteError) -> Flow[None]:
        policy = self._policy.on_save_error
        yield _event(turn, "memkit_save_error", error)
        if policy == "raise":
            raise error
        if callable(policy):
            yield user_code(policy, error, name="on_save_error")
        else:
            logger.error("turn not stored: %s", error)


def _write_error(error: Exception, turn: OpenTurn, output: Any) -> HistoryWriteError:
    """Any failure of a save as a `HistoryWriteError` that carries the answer."""
    if not isinstance(error, HistoryWriteError):
        text = f"the turn was not saved: {type(error).__name__}: {error}"
        wrapped = HistoryWriteError(text, maybe_stored=not turn.native)
        wrapped.__cause__ = error
        error = wrapped
    error.output = output
    error.turn_id = error.turn_id or turn.turn_id
    error.messages = error.messages or list(turn.new)
    return error


def _event(turn: OpenTurn, name: str, error: BaseException) -> Step:
    """Tells callback handlers (`on_custom_event`); data without message content."""
    data = {"error": type(error).__name__, "message": str(error), "turn_id": turn.turn_id}

    def sync() -> None:
        dispatch_custom_event(name, data, config=turn.config)

    async def asynchronous() -> None:
        await adispatch_custom_event(name, data, config=turn.config)

    return Step(sync, asynchronous)


async def _shielded(work: Coroutine[Any, Any, T]) -> T:
    """Awaits to the end even if cancelled meanwhile: a save that has begun is whole or nothing."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.cancelled():
                raise
            cancelled = error
        except BaseException:  # noqa: BLE001  # the task's own error: raised or logged below
            break
    if cancelled is None:
        return task.result()
    if (failure := task.exception()) is not None:
        logger.error("a save failed while its caller was cancelled: %s", failure)
    raise cancelled
