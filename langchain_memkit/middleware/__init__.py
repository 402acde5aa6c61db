"""Durable conversations for agents: a middleware for `langchain.agents.create_agent`.

A run of the agent is a turn: `run` begins, resumes and stores it, `prompt` makes the messages for each call of the
model. Other processes resume a run from the marker in the agent's state. Which messages are stored is decided by their
ids in the transcript, and by that marker where messages have none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias, Unpack

from langchain.agents.middleware import AgentMiddleware
from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse, ToolCallRequest
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import BaseMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command

from langchain_memkit._sync import adrive, drive, shielded, warn_if_blocking
from langchain_memkit.base import GetSessionHistory, check_arguments
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.messages.tokens import tool_schemas
from langchain_memkit.middleware import run as runs
from langchain_memkit.middleware.run import Run, RunHandle, StepCalls, ids_of_call
from langchain_memkit.middleware.state import (
    HistoryState,
    Marker,
    State,
    dialogue_in_state,
    dialogue_of_run,
    messages_in,
)
from langchain_memkit.middleware.tools import NO_USER, READ_RESULT, memory_tools, result_reader
from langchain_memkit.runnables.saving import TurnKeywords, TurnOptions
from langchain_memkit.runnables.session import Configurable, checked_function

__all__ = ["MessageHistoryMiddleware"]

Request: TypeAlias = ModelRequest[Any]
Response: TypeAlias = ModelResponse[Any] | ExtendedModelResponse[Any]
ToolResult: TypeAlias = ToolMessage | Command[Any]
Update: TypeAlias = dict[str, Any]  # of the state
Context: TypeAlias = Runtime[Any]

MOST_RUNS = 1000  # runs per process whose tool calls are tracked
TWICE = (
    "two of this agent's middleware are MessageHistoryMiddleware, so each turn would be stored twice. One can have "
    "several memories; for a second transcript copy the first one."
)


class MessageHistoryMiddleware(AgentMiddleware[Any, Any, Any]):
    """Middleware that gives an agent of `langchain.agents.create_agent` the durable conversation that chains have.

    Each run is one turn: question, tool calls, results and answer are stored as one atomic row when the run ends, as
    the other middleware left them. The model sees the transcript through the preprocessor, recalled records and the
    run's own messages; the agent's state keeps all of its messages. It works with and without a checkpointer;
    docs/agents.md says what is stored when a run fails, waits for a person, is stopped, or continues from an older
    checkpoint. Put it first in the list of middleware, so that it comes last when the run ends.

    The config names the session as `session_id` (else `thread_id`); the owner is `user_id` of the runtime context, else
    of the config.

    Args:
        get_session_history: Returns the history of a session, as in `create_runnable_with_message_history`.
        max_tokens: What a call of the model may hold, as in `create_runnable_with_message_history`. In a run that
            outgrows it old tool results are shown as one line each, before any call is left out.
        preprocessor: Messages in, messages out: one of memkit's is given the past and the run so far, as is what is
            piped with it; any other one the past.
        memories: Further memories for the model; loaded once in a run, before its first model call.
        tools: Give the model tools that keep something for the current user: `remember`, `recall` and
            `forget` for notes, in the first `KeyValueMemory.factory(store)` among `memories`, and
            `remember_preference` and `forget_preference`, in the first `PreferenceMemory`.
        read_results: Give the model the tool `read_result`, with which it reads a tool result again that was shortened
            to fit, in whole or only the lines that hold a word.
        **options: `timezone`, `before_save` and all that begin with `on_`, as in
            `create_runnable_with_message_history`: `on_model_error` is for tools as well, `on_abort` for runs that are
            cancelled or closed, and the `.output` of a `HistoryWriteError` is the state's answer.

    Raises:
        ConfigurationError: The options do not fit together.

    Example:
        >>> from langchain.agents import create_agent
        >>> from langchain_memkit import SQLiteChatMessageHistory
        >>> from langchain_memkit.testing import FakeChatModel
        >>> histories = SQLiteChatMessageHistory.factory(":memory:")
        >>> agent = create_agent(FakeChatModel(), [], middleware=[MessageHistoryMiddleware(histories)])
        >>> config = {"configurable": {"session_id": "s1", "user_id": "u1"}}
        >>> _ = agent.invoke({"messages": [("user", "My name is Nemo.")]}, config)
        >>> agent.invoke({"messages": [("user", "What is my name?")]}, config)["messages"][-1].content
        'You told me: My name is Nemo.'
    """

    state_schema = HistoryState

    def __init__(
        self,
        get_session_history: GetSessionHistory,
        *,
        max_tokens: int | None = None,
        tools: bool = False,
        read_results: bool = False,
        **options: Unpack[TurnKeywords],
    ) -> None:
        super().__init__()
        check_arguments(options, MessageHistoryMiddleware.__init__, TurnOptions)
        self._options = TurnOptions(max_tokens=max_tokens, **options)
        self.preprocessor = self._options.prompt.preprocessor
        self._turns = runs.AgentTurns(checked_function(get_session_history), self._options)
        self._calls: dict[str, StepCalls] = {}
        self._schemas: tuple[list[Any], str] = [], ""
        self._needs_user = tools
        if not isinstance(read_results, bool):
            raise ConfigurationError(f"read_results must be True or False, not {read_results!r:.50}")
        self._reader = READ_RESULT if read_results else None
        self.tools: Sequence[BaseTool] = [
            *(memory_tools(self._turns) if tools else ()),
            *([result_reader(self._turns)] if read_results else ()),
        ]

    def before_agent(self, state: HistoryState, runtime: Context) -> Update:
        """Start the turn; messages of the state that the transcript lacks are stored first."""
        warn_if_blocking()
        return drive(self._begin(state, runtime))

    async def abefore_agent(self, state: HistoryState, runtime: Context) -> Update:
        """Run `before_agent` asynchronously."""
        return await adrive(self._begin(state, runtime))

    def wrap_model_call(self, request: Request, handler: Callable[[Request], ModelResponse[Any]]) -> Response:
        """Call the model with the conversation as its prompt; the state keeps its own messages."""
        config = get_config()
        run = drive(self._run_of(request.state, request.runtime.context, config))
        try:
            with run.listening():
                shown = drive(self._shown(run, request, config))
                try:
                    response = handler(shown)
                except ContextOverflowError as error:
                    shown = drive(self._shrunk(run, request, config, error))
                    response = handler(shown)
            drive(self._measured(run, shown, config))
        except BaseException as error:
            drive(self._broken(request, config, error, run))
            raise
        return _answered(run, request.state, response)

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[ModelResponse[Any]]]
    ) -> Response:
        """Run `wrap_model_call` asynchronously."""
        config = get_config()
        run = await adrive(self._run_of(request.state, request.runtime.context, config))
        try:
            with run.listening():
                shown = await adrive(self._shown(run, request, config))
                try:
                    response = await handler(shown)
                except ContextOverflowError as error:
                    shown = await adrive(self._shrunk(run, request, config, error))
                    response = await handler(shown)
            await adrive(self._measured(run, shown, config))
        except BaseException as error:
            await shielded(partial(self._broken, request, config, error, run))
            raise
        return _answered(run, request.state, response)

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        """Call the tool and remember its result, so that it can be stored if another tool of the step is cancelled."""
        config = get_config()
        with self._tool_call(request, config) as calls:
            try:
                result = handler(request)
            except BaseException as error:
                drive(self._broken(request, config, error))
                raise
        calls.results += runs.messages_of(result)
        return result

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        """Run `wrap_tool_call` asynchronously."""
        config = get_config()
        with self._tool_call(request, config) as calls:
            try:
                result = await handler(request)
            except BaseException as error:
                await shielded(partial(self._broken, request, config, error))
                raise
        calls.results += runs.messages_of(result)
        return result

    def after_agent(self, state: HistoryState, runtime: Context) -> Update:
        """Store the turn, and close its marker in the state."""
        return drive(self._end(state, runtime))

    async def aafter_agent(self, state: HistoryState, runtime: Context) -> Update:
        """Run `after_agent` asynchronously."""
        return await shielded(lambda: self._end(state, runtime))

    # -- the steps, for both call styles

    def _ids(self, config: RunnableConfig, context: object) -> Configurable:
        ids = ids_of_call(config, context)
        if self._needs_user and ids.get("user_id") is None:
            raise ConfigurationError(NO_USER)
        return ids

    def _calls_of(self, marker: Marker | None, *, new: bool = False) -> StepCalls:
        """Return the calls of a run's current step, shared within this process; a `new` step has no calls yet."""
        key = marker["key"] if marker else ""
        # Bounded, since a run that is interrupted and never resumed does not reach `_end`.
        if new or key not in self._calls:
            self._calls[key] = StepCalls()
            for old in list(self._calls)[:-MOST_RUNS]:
                self._calls.pop(old, None)
        return self._calls.get(key) or StepCalls()

    def _seen(self, state: State) -> list[BaseMessage]:
        """Return the messages of the marker's run, those removed from the state included.

        They come from this process if it knows the run, else from the state.
        """
        marker: Marker | None = state.get("memkit_turn")
        here = self._calls[marker["key"]].seen if marker and marker["key"] in self._calls else []
        return dialogue_in_state(here or state.get("memkit_seen") or [], messages_in(state))

    async def _begin(self, state: State, runtime: Context) -> Update:
        config = get_config()
        ids = self._ids(config, runtime.context)
        # The handle is not checkpointed and is removed when a run ends. One that is here already was set by a second
        # instance in this very run.
        if isinstance(state.get("memkit_run"), RunHandle):
            raise ConfigurationError(TWICE)
        run = await self._turns.begin(state, ids, config, self._seen(state))
        return {"memkit_turn": run.marker, "memkit_run": RunHandle(run), **_emptied(state)}

    async def _run_of(self, state: State, context: object, config: RunnableConfig) -> Run:
        """Return the run of this invocation; if there is none, resume the one that the state's marker names."""
        handle, marker = state.get("memkit_run"), state.get("memkit_turn")
        if isinstance(handle, RunHandle) and not handle.run.finished:
            run = handle.run
        elif marker is not None and not marker["done"]:
            run = await self._turns.resume(state, ids_of_call(config, context), config, self._seen(state))
        else:  # the invocation did not pass `before_agent`
            run = await self._turns.begin(state, ids_of_call(config, context), config)
        run.observe(messages_in(state))
        return run

    @contextmanager
    def _tool_call(self, request: ToolCallRequest, config: RunnableConfig) -> Iterator[StepCalls]:
        """Register a tool call and record the run's messages: in a resumed run nothing else has read the state yet."""
        runs.check_place(request.state.get("memkit_turn"), ids_of_call(config, request.runtime.context))
        calls = self._calls_of(request.state.get("memkit_turn"))
        calls.seen = dialogue_of_run(request.state)
        calls.running += 1
        handle = request.state.get("memkit_run")
        try:
            with handle.run.recorder.listening() if isinstance(handle, RunHandle) else nullcontext():
                yield calls
        finally:
            calls.running -= 1
            if calls.failed and not calls.running:  # the last one of a failed step has ended
                calls.failed, calls.results = False, []

    async def _shown(self, run: Run, request: Request, config: RunnableConfig) -> Request:
        self._calls_of(run.marker, new=True)
        given = convert_to_messages(request.messages)
        context, prompt = run.context, self._options.prompt
        context.beside = [] if request.system_message is None else [request.system_message]
        context.schemas = self._schemas_of(request.tools)
        context.reader = self._reader
        if prompt.preprocessor is None:
            prompt.measured.check_length(run.view.messages, request.model)
        messages: list[Any] = await self._turns.prompt(run, given, config)
        return request.override(messages=messages)

    def _schemas_of(self, tools: Sequence[Any]) -> str:
        """Return the schemas of an agent's tools, which are the same in nearly every call."""
        known, schemas = self._schemas
        if len(known) != len(tools) or any(a is not b for a, b in zip(known, tools, strict=True)):
            schemas = tool_schemas(tools)
            self._schemas = list(tools), schemas
        return schemas

    async def _measured(self, run: Run, shown: Request, config: RunnableConfig) -> None:
        """Measure what the model really held: other middleware may have added to the request since."""
        call = run.recorder.composed_for
        if call is not None:
            inside = runs.config_of_turn(config, run.session.history, run.context)
            await self._options.prompt.measure(run.context, shown.messages, call, inside)

    async def _shrunk(self, run: Run, request: Request, config: RunnableConfig, error: ContextOverflowError) -> Request:
        """Rebuild the request with less of the past after a context overflow, or raise its error."""
        await self._options.prompt.shrink(run.context, config, error)
        return await self._shown(run, request, config)

    async def _broken(
        self, request: Request | ToolCallRequest, config: RunnableConfig, error: BaseException, run: Run | None = None
    ) -> None:
        """Store what the options ask for after a call raised or was cancelled; nothing after an intended interrupt."""
        state: State = request.state
        calls = self._calls_of(state.get("memkit_turn") if run is None else run.marker)
        if run is not None and run.unsettled:
            calls.seen = run.seen
        if isinstance(error, GraphBubbleUp):
            return
        # Tools of one step run in parallel: when one fails, LangGraph cancels the others. Only the first failure
        # decides what is stored, else the turn would be stored once for each of them.
        first, calls.failed = not calls.failed, True
        raised, options = isinstance(error, Exception), self._options
        if not first or (options.on_model_error if raised else options.on_abort) == "discard":
            return
        run = run or await self._run_of(state, request.runtime.context, config)
        await self._turns.stopped(run, error, [] if raised else calls.results, config)

    async def _end(self, state: State, runtime: Context) -> Update:
        config = get_config()
        run = await self._run_of(state, runtime.context, config)
        marker = await self._turns.commit(run, state, config)
        self._calls.pop(marker["key"], None)
        return {"memkit_turn": marker, "memkit_run": None, **_emptied(state)}


def _emptied(state: State) -> Update:
    return {"memkit_seen": []} if state.get("memkit_seen") else {}


def _answered(run: Run, state: State, response: ModelResponse[Any]) -> Response:
    """Record the answer, and update the state after a resume or once other middleware removed messages.

    Removed messages are persisted in `memkit_seen`, so that a later resume in another process still stores them.
    """
    run.answered(response.result)
    update: Update = {}
    handle = state.get("memkit_run")
    if not (isinstance(handle, RunHandle) and handle.run is run):
        update["memkit_run"] = RunHandle(run)
    if run.marker != state.get("memkit_turn"):
        update["memkit_turn"] = run.marker
    if run.unsettled:
        run.unsettled = False
        update["memkit_seen"] = run.seen
    return ExtendedModelResponse(response, Command(update=update)) if update else response
