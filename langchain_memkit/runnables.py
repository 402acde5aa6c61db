"""The main door: any runnable with a durable conversation around it.

A turn is opened (ids checked, input captured), loaded, run and saved, in the call path, once for both call styles: the
steps below are flows (see `_flow`). What goes wrong where is documented at `create_runnable_with_message_history`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import uuid4

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.messages import BaseMessage
from langchain_core.runnables import ConfigurableFieldSpec, Runnable, RunnableConfig, ensure_config, run_in_executor
from langchain_core.runnables.base import RunnableBindingBase, coerce_to_runnable
from langchain_core.runnables.utils import get_unique_config_specs
from pydantic import BaseModel, RootModel, create_model

from langchain_memkit._compat import CoreRunnableWithMessageHistory
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

__all__ = ["RunnableWithMessageHistory", "create_runnable_with_message_history"]

logger = logging.getLogger("langchain_memkit")

T = TypeVar("T")

BeforeSave: TypeAlias = Callable[[list[BaseMessage]], list[BaseMessage]]
OnSaveError: TypeAlias = Literal["raise", "log"] | Callable[[HistoryWriteError], None]
OnDroppedTurn: TypeAlias = Literal["report", "raise"] | Callable[[HistoryWriteError], None]


class Step(NamedTuple):
    """An operation of a flow in both call styles."""

    sync: Callable[[], Any]
    asynchronous: Callable[[], Awaitable[Any]]


def _run(step: Step) -> Any:
    return step.sync()


async def _arun(step: Step) -> Any:
    return await step.asynchronous()


def _user_code(function: Callable[..., Any], *args: Any, name: str) -> Step:
    """A caller's function, plain or async. On an event loop a plain one runs in a thread: it may do I/O."""

    def sync() -> Any:
        result = function(*args)
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            msg = f"{name} is async, so use ainvoke, astream or abatch"
            raise ConfigurationError(msg)
        return result

    async def asynchronous() -> Any:
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004  # the method itself is asked
            return await function(*args)
        result = await run_in_executor(None, function, *args)
        return await result if inspect.isawaitable(result) else result

    return Step(sync, asynchronous)


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

        def turn_of(value: Any, config: RunnableConfig) -> Any:
            turn = drive(self._open(value, config), _run)
            try:
                output = self.runnable.invoke(turn.input, turn.config, **kwargs)
            except Exception:
                drive(self._model_failed(turn), _run)
                raise
            drive(self._save(turn, output), _run)
            return output

        return self._call_with_config(turn_of, input, config)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        """Async twin of `invoke`."""

        async def turn_of(value: Any, config: RunnableConfig) -> Any:
            turn = await adrive(self._open(value, config), _arun)
            try:
                output = await self.runnable.ainvoke(turn.input, turn.config, **kwargs)
            except Exception:
                await _shielded(adrive(self._model_failed(turn), _arun))
                raise
            await _shielded(adrive(self._save(turn, output), _arun))
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

        def turn_of(values: Iterator[Any], config: RunnableConfig) -> Iterator[Any]:
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

        def turn_of(values: AsyncIterator[Any], config: RunnableConfig) -> AsyncIterator[Any]:
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
        turn = drive(self._open(gathered.value, config), _run)
        streamed = StreamedOutput()
        try:
            with closing(self.runnable.stream(turn.input, turn.config, **kwargs)) as chunks:  # type: ignore[type-var]  # a generator
                for chunk in chunks:
                    streamed.add(chunk)
                    yield chunk
        except Exception:
            drive(self._model_failed(turn), _run)
            raise
        except BaseException:  # closed by the consumer, collected, or Ctrl-C
            drive(self._abort(turn, streamed), _run)
            raise
        drive(self._save(turn, streamed.value), _run)

    async def _astream(
        self, values: AsyncIterator[Any], config: RunnableConfig, kwargs: dict[str, Any]
    ) -> AsyncIterator[Any]:
        gathered = StreamedOutput()
        async for value in values:
            gathered.add(value)
        turn = await adrive(self._open(gathered.value, config), _arun)
        streamed = StreamedOutput()
        try:
            async with aclosing(self.runnable.astream(turn.input, turn.config, **kwargs)) as chunks:  # type: ignore[type-var]  # a generator
                async for chunk in chunks:
                    streamed.add(chunk)
                    yield chunk
        except Exception:
            await _shielded(adrive(self._model_failed(turn), _arun))
            raise
        except BaseException:  # closed by the consumer, collected, or cancelled
            await _shielded(adrive(self._abort(turn, streamed), _arun))
            raise
        await _shielded(adrive(self._save(turn, streamed.value), _arun))

    # -- the steps of a turn

    def _open(self, value: Any, config: RunnableConfig) -> Flow[OpenTurn]:
        """Checks, captures the input, loads, composes. Nothing is stored yet."""
        if (self._input_key or self._history_key) and not isinstance(value, dict):
            msg = f"with input_messages_key or history_messages_key the input must be a dict, not {type(value).__name__}"
            raise ValueError(msg)
        given = input_messages(value, self._input_key)
        configurable = config.get("configurable") or {}
        turn_id = configurable.get("turn_id")
        turn_id = str(uuid4()) if turn_id is None else check_id(turn_id, "turn_id")
        history = configurable.get("message_history")
        if history is None:
            history = yield self._session_history(configurable)
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

    def _session_history(self, configurable: dict[str, Any]) -> Step:
        """The call of `get_session_history`, by its signature; every id is checked before."""
        function = self._get_session_history
        parameters = inspect.signature(function).parameters
        kinds = {p.kind for p in parameters.values()}
        user_id = configurable.get("user_id")
        if self._specs:
            args, kwargs = _configured_ids(self._specs, configurable, list(parameters))
        else:
            args, kwargs = [], {}
            if parameters:
                session_id = configurable.get("session_id", configurable.get("thread_id"))
                if session_id is None:
                    raise _missing(["session_id"], ["session_id"])
                args = [check_id(session_id, "session_id")]
            if user_id is not None:
                check_id(user_id, "user_id")
                if "user_id" not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
                    msg = (
                        "config['configurable'] has a user_id that get_session_history cannot take. "
                        "Give it a parameter `user_id=None`, or leave user_id out."
                    )
                    raise ConfigurationError(msg)
                kwargs = {"user_id": user_id}
            elif (p := parameters.get("user_id")) is not None and p.default is p.empty and len(parameters) > 1:
                raise _missing(["user_id"], ["session_id", "user_id"])

        def call() -> Any:
            return function(*args, **kwargs)

        async def acall() -> Any:
            return await function(*args, **kwargs)

        is_async = inspect.iscoroutinefunction(function)
        return _user_code(acall if is_async else call, name="get_session_history")

    def _save(self, turn: OpenTurn, output: Any) -> Flow[None]:
        """Stores the finished turn, and applies `on_save_error` if that fails."""
        try:
            messages = [*turn.new, *without_echo(output_messages(output, self._output_key), turn.shown)]
            yield from self._store(turn, messages, turn.turn_id)
        except Exception as error:
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
        except Exception as error:
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
        except Exception as error:
            logger.error("the model failed, and then its input was not stored: %s", error)
            yield _event(turn, "memkit_save_error", error)

    def _store(self, turn: OpenTurn, messages: list[BaseMessage], turn_id: str) -> Flow[None]:
        if (before_save := self._policy.before_save) is not None:
            messages = list((yield _user_code(before_save, messages, name="before_save")))
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
            yield _user_code(policy, error, name="on_dropped_turn")
            return
        logger.warning("turn not stored: %s", error)
        yield _event(turn, "memkit_dropped_turn", error)

    def _save_failed(self, turn: OpenTurn, error: HistoryWriteError) -> Flow[None]:
        policy = self._policy.on_save_error
        yield _event(turn, "memkit_save_error", error)
        if policy == "raise":
            raise error
        if callable(policy):
            yield _user_code(policy, error, name="on_save_error")
        else:
            logger.error("turn not stored: %s", error)


def _configured_ids(
    specs: Sequence[ConfigurableFieldSpec], configurable: dict[str, Any], parameters: list[str]
) -> tuple[list[Any], dict[str, Any]]:
    """Arguments for a factory with `history_factory_config`: its one id by place, several by name."""
    names = [spec.id for spec in specs]
    missing = sorted(set(names) - configurable.keys())
    if missing and parameters:
        raise _missing(missing, names)
    for spec in specs:
        if spec.annotation is str and spec.id in configurable:
            check_id(configurable[spec.id], spec.id)
    if len(names) == 1:
        return ([configurable[names[0]]] if parameters else []), {}
    if set(names) != set(parameters):
        msg = (
            f"Expected keys {sorted(names)} do not match parameter names {sorted(parameters)} of get_session_history."
        )
        raise ValueError(msg)
    return [], {name: configurable[name] for name in names}


def _missing(missing: list[str], expected: list[str]) -> ValueError:
    example = {"configurable": dict.fromkeys(missing, "[your-value-here]")}
    return ValueError(
        f"Missing keys {missing} in config['configurable'] Expected keys are {sorted(expected)}."
        f" When using via .invoke() or .stream(), pass in a config; e.g., chain.invoke(..., {example})"
    )


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
        except BaseException:  # noqa: S110, BLE001  # the task's own error: raised or logged below
            break
    if cancelled is None:
        return task.result()
    if (failure := task.exception()) is not None:
        logger.error("a save failed while its caller was cancelled: %s", failure)
    raise cancelled


class RunnableWithMessageHistory(CoreRunnableWithMessageHistory):  # type: ignore[misc]  # core's class while it exists
    """A drop-in for LangChain's class of the same name that saves in the call path and raises.

    Takes LangChain's arguments unchanged, and those of `create_runnable_with_message_history`, which is the same thing
    as a function. Works without LangChain's class, which core 2.0 removes.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> from langchain_memkit.testing import FakeChatModel
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> chat = RunnableWithMessageHistory(FakeChatModel(), histories)
        >>> config = {"configurable": {"session_id": "s1"}}
        >>> _ = chat.invoke("My name is Nemo.", config)
        >>> chat.invoke("What is my name?", config).content
        'You told me: My name is Nemo.'
    """

    get_session_history: GetSessionHistory
    input_messages_key: str | None = None
    output_messages_key: str | None = None
    history_messages_key: str | None = None
    history_factory_config: Sequence[ConfigurableFieldSpec]

    def __init__(
        self,
        runnable: Any,
        get_session_history: GetSessionHistory,
        *,
        input_messages_key: str | None = None,
        output_messages_key: str | None = None,
        history_messages_key: str | None = None,
        history_factory_config: Sequence[ConfigurableFieldSpec] | None = None,
        preprocessor: Preprocessor | Callable[[list[BaseMessage]], list[BaseMessage]] | None = None,
        before_save: BeforeSave | None = None,
        on_save_error: OnSaveError = "raise",
        on_model_error: Literal["discard", "save_input"] = "discard",
        on_abort: Literal["save_partial", "discard"] = "save_partial",
        on_dropped_turn: OnDroppedTurn = "report",
        **kwargs: Any,
    ) -> None:
        if not callable(get_session_history):
            msg = "get_session_history must be callable: a function of session_id, or X.factory(...)"
            raise ConfigurationError(msg)
        chain = None if preprocessor is None else coerce_to_runnable(preprocessor)
        policy = Policy(chain, before_save, on_save_error, on_model_error, on_abort, on_dropped_turn)
        policy.check()
        session_id = ConfigurableFieldSpec(
            id="session_id",
            annotation=str,
            name="Session ID",
            description="Unique identifier for a session.",
            default="",
            is_shared=True,
        )
        # past LangChain's constructor, which warns that it is deprecated
        RunnableBindingBase.__init__(
            self,
            bound=HistoryTurn(
                coerce_to_runnable(runnable),
                get_session_history,
                input_messages_key,
                output_messages_key,
                history_messages_key,
                history_factory_config,
                policy,
            ),
            get_session_history=get_session_history,
            input_messages_key=input_messages_key,
            output_messages_key=output_messages_key,
            history_messages_key=history_messages_key,
            history_factory_config=history_factory_config or [session_id],
            **kwargs,
        )

    @property
    def config_specs(self) -> list[ConfigurableFieldSpec]:
        """The keys of `config["configurable"]` that a call needs."""
        wrapped: HistoryTurn = self.bound  # type: ignore[assignment]  # made in the constructor
        return get_unique_config_specs([*wrapped.runnable.config_specs, *self.history_factory_config])

    @property
    def OutputType(self) -> Any:  # noqa: N802  # LangChain's name
        """What the wrapped runnable returns, if it says so."""
        wrapped: HistoryTurn = self.bound  # type: ignore[assignment]  # made in the constructor
        try:
            declared = wrapped.runnable.OutputType
        except TypeError:  # a runnable whose type cannot be inferred
            declared = Any
        if declared is not Any:
            return declared
        return dict[str, Any] if self.history_messages_key or self.input_messages_key else list[BaseMessage]

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """The new input alone; history is not part of it."""
        name, many = "RunnableWithChatHistoryInput", Sequence[BaseMessage]
        if not self.input_messages_key:
            return _root_model(name, many)
        kind: Any = str | BaseMessage | many if self.history_messages_key else many
        return create_model(name, **{self.input_messages_key: (kind, ...)})  # type: ignore[call-overload, no-any-return]  # a dynamic field

    def get_output_schema(self, config: RunnableConfig | None = None) -> type[BaseModel]:
        """The output of the wrapped runnable."""
        kind = self.OutputType
        if inspect.isclass(kind) and issubclass(kind, BaseModel):
            return kind
        return _root_model("RunnableWithChatHistoryOutput", kind)

    def _merge_configs(self, *configs: RunnableConfig | None) -> RunnableConfig:
        # past LangChain's method; an enclosing chain's history is not ours
        config = RunnableBindingBase._merge_configs(self, *configs)
        ensured = ensure_config(config)
        configurable = {k: v for k, v in ensured.get("configurable", {}).items() if k != "message_history"}
        return {**ensured, "configurable": configurable}

    async def astream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> AsyncIterator[Any]:
        """Streams one turn; when `aclose()` returns, the partial answer is stored."""
        merged = self._merge_configs(config)
        async with aclosing(self.bound.astream(input, merged, **{**self.kwargs, **kwargs})) as chunks:  # type: ignore[type-var]  # a generator
            async for chunk in chunks:
                yield chunk

    async def atransform(
        self, input: AsyncIterator[Any], config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """As `astream`, for a streamed input."""
        merged = self._merge_configs(config)
        async with aclosing(self.bound.atransform(input, merged, **{**self.kwargs, **kwargs})) as chunks:  # type: ignore[type-var]  # a generator
            async for chunk in chunks:
                yield chunk


def _root_model(name: str, kind: Any) -> type[BaseModel]:
    return create_model(name, __base__=RootModel[kind])  # type: ignore[valid-type]  # a type made at run time


def create_runnable_with_message_history(
    runnable: Any,
    get_session_history: GetSessionHistory,
    *,
    input_messages_key: str | None = None,
    output_messages_key: str | None = None,
    history_messages_key: str | None = None,
    history_factory_config: Sequence[ConfigurableFieldSpec] | None = None,
    preprocessor: Preprocessor | Callable[[list[BaseMessage]], list[BaseMessage]] | None = None,
    before_save: BeforeSave | None = None,
    on_save_error: OnSaveError = "raise",
    on_model_error: Literal["discard", "save_input"] = "discard",
    on_abort: Literal["save_partial", "discard"] = "save_partial",
    on_dropped_turn: OnDroppedTurn = "report",
) -> RunnableWithMessageHistory:
    """Puts a durable conversation around any chain, model or graph.

    Every call is one turn of the session named in its config: the history is loaded, the runnable is called with it,
    and question and answer (tool messages included) are stored as one atomic turn before the call returns. A stream is
    stored when it ends. The config names the session as `session_id` (else `thread_id`), the owner as `user_id`, and
    `turn_id`, if given, makes a retried call store once.

    Args:
        runnable: A chat model, a chain, a function, or a compiled LangGraph graph over `messages`.
        get_session_history: Called with `session_id`, and `user_id` if it takes one; may be async. Best
            `SQLiteChatMessageHistory.factory(...)` or `MongoDBChatMessageHistory.factory(...)`; histories of other
            packages work without the guarantees about ids, clears and retries.
        input_messages_key: For dict input: the key of the new input.
        output_messages_key: For dict output: the key of the answer.
        history_messages_key: For dict input: the key under which the history is passed; else it is put before the input.
        history_factory_config: Further config keys for `get_session_history`, as in LangChain's class.
        preprocessor: Messages in, messages out, applied to the loaded history: `trim_messages(...)`, for example. It
            changes what the model sees, never what is stored.
        before_save: Takes the messages of the turn and returns those to store (redaction, say).
        on_save_error: `"raise"` (a `HistoryWriteError` whose `.output` holds the answer), `"log"`, or a callable.
        on_model_error: The runnable raised: `"discard"` stores nothing, `"save_input"` keeps the question.
        on_abort: A stream was closed or cancelled: `"save_partial"` stores what had been yielded, marked
            `response_metadata["memkit_status"] = "aborted"`; `"discard"` stores nothing.
        on_dropped_turn: The session was cleared while the turn ran, so it is not stored: `"report"` logs and sends the
            event `memkit_dropped_turn` to callbacks, `"raise"` raises, or a callable.

    Returns:
        A runnable that takes the new input alone; an instance of LangChain's `RunnableWithMessageHistory` while core
        has that class.

    Raises:
        ConfigurationError: The options do not fit together.

    Example:
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> from langchain_memkit.testing import FakeChatModel
        >>> chat = create_runnable_with_message_history(FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"))
        >>> config = {"configurable": {"session_id": "s1", "user_id": "u1"}}
        >>> _ = chat.invoke("I live in Sydney.", config)
        >>> chat.invoke("Where do I live?", config).content
        'You told me: I live in Sydney.'
    """
    return RunnableWithMessageHistory(
        runnable,
        get_session_history,
        input_messages_key=input_messages_key,
        output_messages_key=output_messages_key,
        history_messages_key=history_messages_key,
        history_factory_config=history_factory_config,
        preprocessor=preprocessor,
        before_save=before_save,
        on_save_error=on_save_error,
        on_model_error=on_model_error,
        on_abort=on_abort,
        on_dropped_turn=on_dropped_turn,
    )
