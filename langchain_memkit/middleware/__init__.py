"""Durable conversations for agents: a middleware for `langchain.agents.create_agent`.

A run of the agent is a turn: `turn_start` begins or resumes it, `prompt` makes the messages for each call of the model,
and `turn_end` stores it. A `run` holds the turn within this process; other processes resume it from the agent's
`state`. Which messages are stored is decided by their ids in the transcript, and by the state's own marker where
messages have none.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from langchain.agents.middleware.types import (
    AgentMiddleware,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain_core.messages import BaseMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import Runnable, RunnableConfig, ensure_config
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command

from langchain_memkit._compat import ContextOverflowError
from langchain_memkit._sync import adrive, drive, shielded
from langchain_memkit.base import GetSessionHistory, Memory, MemoryFactory, Preprocessor
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.fanout import OnLoadError
from langchain_memkit.messages.trimming import with_ids
from langchain_memkit.middleware.prompt import NO_USER, memory_tools, shown
from langchain_memkit.middleware.run import Run, RunHandle, StepCalls, messages_of
from langchain_memkit.middleware.state import HistoryState, Marker, dialogue_in_state, dialogue_of_run, messages_in
from langchain_memkit.middleware.turn import TurnStart, check_place, commit, ids_of_call, on_cancel, on_error
from langchain_memkit.runnables.saving import BeforeSave, OnDroppedTurn, OnSaveError, OpenTurn, TurnOptions
from langchain_memkit.runnables.session import checked_function

__all__ = ["MessageHistoryMiddleware"]

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
        get_session_history: Returns the history of a session, as in `create_runnable_with_message_history`, where the
            options below mean the same.
        preprocessor: Messages in, messages out, applied to the past; the run's own messages share its budget. If they
            alone outgrow it, the oldest whole tool groups are left out of the view, never the question.
        memories: Further memories for the model; loaded once in a run, before its first model call.
        before_save: A function from the messages of the turn to those to store.
        on_save_error: `"raise"` (a `HistoryWriteError` whose `.output` is the state's answer), `"log"`, or a callable.
        on_model_error: A model or tool raised: `"discard"` stores nothing, `"save_input"` keeps the question.
        on_abort: The run was cancelled or closed: `"save_partial"` stores what had been said, marked
            `response_metadata["memkit_status"] = "aborted"`; `"discard"` stores nothing.
        on_dropped_turn: The session was cleared while the turn ran: `"report"`, `"raise"`, or a callable.
        on_context_overflow: The prompt exceeds the model's context: `"retry"` once with 70% of the budget, or
            `"raise"`.
        on_load_error: A memory cannot be loaded: `"report"`, `"raise"`, or a callable.
        tools: Give the model the tools `remember`, `recall` and `forget` for the current user; notes are kept in the
            first `KeyValueMemory.factory(store)` among `memories`.

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
        preprocessor: Preprocessor | Callable[[list[BaseMessage]], list[BaseMessage]] | None = None,
        memories: Sequence[Memory | MemoryFactory | Runnable[str, Any]] = (),
        before_save: BeforeSave | None = None,
        on_save_error: OnSaveError = "raise",
        on_model_error: Literal["discard", "save_input"] = "discard",
        on_abort: Literal["save_partial", "discard"] = "save_partial",
        on_dropped_turn: OnDroppedTurn = "report",
        on_context_overflow: Literal["retry", "raise"] = "retry",
        on_load_error: OnLoadError = "report",
        tools: bool = False,
    ) -> None:
        super().__init__()
        policy = TurnOptions.of(
            preprocessor=preprocessor,
            memories=memories,
            before_save=before_save,
            on_save_error=on_save_error,
            on_model_error=on_model_error,
            on_abort=on_abort,
            on_dropped_turn=on_dropped_turn,
            on_context_overflow=on_context_overflow,
            on_load_error=on_load_error,
        )
        self._policy = policy
        self.preprocessor = policy.preprocessor
        self._turns = TurnStart(checked_function(get_session_history), policy)
        self._calls: dict[str, StepCalls] = {}
        self._needs_user = tools
        self.tools: Sequence[BaseTool] = memory_tools(self._turns) if tools else []

    def open(self, value: Any, config: RunnableConfig | None = None) -> OpenTurn:
        """Build the first prompt of a run for `explain_turn`: a dry run that calls no model and stores nothing."""
        return drive(self._dry_run(value, ensure_config(config)))

    async def aopen(self, value: Any, config: RunnableConfig | None = None) -> OpenTurn:
        """Run `open` asynchronously."""
        return await adrive(self._dry_run(value, ensure_config(config)))

    def before_agent(self, state: HistoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Start the turn; messages of the state that the transcript lacks are stored first."""
        return drive(self._begin(state, runtime))

    async def abefore_agent(self, state: HistoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Run `before_agent` asynchronously."""
        return await adrive(self._begin(state, runtime))

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Call the model with the conversation as its prompt; the state keeps its own messages."""
        config = get_config()
        run = drive(self._run_of(request.state, request.runtime, config))
        try:
            with run.listening():
                try:
                    response = handler(drive(self._shown(run, request, config)))
                except ContextOverflowError as error:
                    response = handler(drive(self._smaller(run, request, config, error)))
        except BaseException as error:
            drive(self._broken(request, config, error, run))
            raise
        return _answered(run, request.state, response)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Run `wrap_model_call` asynchronously."""
        config = get_config()
        run = await adrive(self._run_of(request.state, request.runtime, config))
        try:
            with run.listening():
                try:
                    response = await handler(await adrive(self._shown(run, request, config)))
                except ContextOverflowError as error:
                    response = await handler(await adrive(self._smaller(run, request, config, error)))
        except BaseException as error:
            await shielded(functools.partial(self._broken, request, config, error, run))
            raise
        return _answered(run, request.state, response)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Call the tool and remember its result, so that it can be stored if another tool of the step is cancelled."""
        config = get_config()
        calls = self._tool_call(request, config)
        try:
            result = handler(request)
        except BaseException as error:
            drive(self._broken(request, config, error))
            raise
        finally:
            calls.leave()
        calls.results += messages_of(result)
        return result

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Run `wrap_tool_call` asynchronously."""
        config = get_config()
        calls = self._tool_call(request, config)
        try:
            result = await handler(request)
        except BaseException as error:
            await shielded(functools.partial(self._broken, request, config, error))
            raise
        finally:
            calls.leave()
        calls.results += messages_of(result)
        return result

    def after_agent(self, state: HistoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Store the turn, and close its marker in the state."""
        return drive(self._end(state, runtime))

    async def aafter_agent(self, state: HistoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Run `after_agent` asynchronously."""
        return await shielded(lambda: self._end(state, runtime))

    # -- the steps, for both call styles

    async def _dry_run(self, value: Any, config: RunnableConfig) -> OpenTurn:
        if not (isinstance(value, Mapping) and "messages" in value):
            msg = f'the input of an agent is {{"messages": [...]}}, not {type(value).__name__}'
            raise ConfigurationError(msg)
        given = value["messages"]
        messages = with_ids(convert_to_messages(given if isinstance(given, list) else [given]))
        run = await self._turns.begin({"messages": messages}, self._ids(config, None), config, trial=True)
        seen = await shown(run, self._policy, messages, messages, config, trial=True)
        return replace(run.turn([], config), shown=seen, asked=run.own(messages))

    def _ids(self, config: RunnableConfig, context: Any) -> dict[str, Any]:
        ids = ids_of_call(config, context)
        if self._needs_user and ids.get("user_id") is None:
            raise ConfigurationError(NO_USER)
        return ids

    def _calls_of(self, marker: Marker | None, *, new: bool = False) -> StepCalls:
        """Return the calls of a run's current step, shared within this process.

        Args:
            marker: The run's marker; None if it has none.
            new: Whether a new step begins, with no calls yet.
        """
        key = marker["key"] if marker else ""
        # Bounded, since a run that is interrupted and never resumed does not reach `_end`.
        if new or key not in self._calls:
            self._calls[key] = StepCalls()
            for old in list(self._calls)[:-MOST_RUNS]:
                self._calls.pop(old, None)
        return self._calls.get(key) or StepCalls()

    def _seen(self, state: Any) -> list[BaseMessage]:
        """Return the messages of the marker's run, those removed from the state included.

        They come from this process if it knows the run, else from the state.
        """
        marker: Marker | None = state.get("memkit_turn")
        here = self._calls[marker["key"]].seen if marker and marker["key"] in self._calls else []
        return dialogue_in_state(here or state.get("memkit_seen") or [], messages_in(state))

    async def _begin(self, state: Any, runtime: Any) -> dict[str, Any]:
        config = get_config()
        ids = self._ids(config, runtime.context)
        # The handle is not checkpointed and is removed when a run ends. One that is here already was set by a second
        # instance in this very run.
        if isinstance(state.get("memkit_run"), RunHandle):
            raise ConfigurationError(TWICE)
        run = await self._turns.begin(state, ids, config, self._seen(state))
        return {"memkit_turn": run.marker, "memkit_run": RunHandle(run), **_emptied(state)}

    async def _run_of(self, state: Any, runtime: Any, config: RunnableConfig) -> Run:
        """Return the run of this invocation; if there is none, resume the one that the state's marker names."""
        handle, marker = state.get("memkit_run"), state.get("memkit_turn")
        if isinstance(handle, RunHandle) and not handle.run.finished:
            run = handle.run
        elif marker is not None and not marker["done"]:
            run = await self._turns.resume(state, ids_of_call(config, runtime.context), config, self._seen(state))
        else:  # the invocation did not pass `before_agent`
            run = await self._turns.begin(state, ids_of_call(config, runtime.context), config)
        run.observe(messages_in(state))
        return run

    def _tool_call(self, request: ToolCallRequest, config: RunnableConfig) -> StepCalls:
        """Register a tool call and record the run's messages: in a resumed run nothing else has read the state yet."""
        check_place(request.state.get("memkit_turn"), ids_of_call(config, request.runtime.context))
        calls = self._calls_of(request.state.get("memkit_turn"))
        calls.seen = dialogue_of_run(request.state)
        calls.running += 1
        return calls

    async def _shown(self, run: Run, request: ModelRequest[Any], config: RunnableConfig) -> ModelRequest[Any]:
        self._calls_of(run.marker, new=True)
        state: Any = request.state
        given = convert_to_messages(request.messages)
        messages: list[Any] = await shown(run, self._policy, given, messages_in(state), config)
        return request.override(messages=messages)

    async def _smaller(
        self, run: Run, request: ModelRequest[Any], config: RunnableConfig, error: ContextOverflowError
    ) -> ModelRequest[Any]:
        """Rebuild the request with less of the past after a context overflow, or raise its error."""
        await self._policy.overflowed(run.context, config, error)
        return await self._shown(run, request, config)

    async def _broken(
        self,
        request: ModelRequest[Any] | ToolCallRequest,
        config: RunnableConfig,
        error: BaseException,
        run: Run | None = None,
    ) -> None:
        """Store what the options ask for after a call raised or was cancelled; nothing after an intended interrupt."""
        state: Any = request.state
        calls = self._calls_of(state.get("memkit_turn") if run is None else run.marker)
        if run is not None and run.unsettled:
            calls.seen = run.seen
        if isinstance(error, GraphBubbleUp):
            return
        # Tools of one step run in parallel: when one fails, LangGraph cancels the others. Only the first failure
        # decides what is stored, else the turn would be stored once for each of them.
        first, policy = calls.fail(), self._policy
        discarded = policy.on_model_error == "discard" if isinstance(error, Exception) else policy.on_abort == "discard"
        if discarded or not first:
            return
        if run is None:
            run = await self._run_of(state, request.runtime, config)
        if isinstance(error, Exception):
            await on_error(run, policy, config)
        else:
            await on_cancel(run, policy, config, calls.results)

    async def _end(self, state: Any, runtime: Any) -> dict[str, Any]:
        config = get_config()
        run = await self._run_of(state, runtime, config)
        marker = await commit(run, self._policy, state, config)
        self._calls.pop(marker["key"], None)
        return {"memkit_turn": marker, "memkit_run": None, **_emptied(state)}


def _emptied(state: Any) -> dict[str, Any]:
    return {"memkit_seen": []} if state.get("memkit_seen") else {}


def _answered(run: Run, state: Any, response: ModelResponse[Any]) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
    """Record the answer, and update the state after a resume or once other middleware removed messages.

    Removed messages are persisted in `memkit_seen`, so that a later resume in another process still stores them.
    """
    run.answered(response.result)
    update: dict[str, Any] = {}
    handle = state.get("memkit_run")
    if not (isinstance(handle, RunHandle) and handle.run is run):
        update = {"memkit_run": RunHandle(run), "memkit_turn": run.marker}
    if run.unsettled:
        run.unsettled = False
        update["memkit_seen"] = run.seen
    return ExtendedModelResponse(response, Command(update=update)) if update else response
