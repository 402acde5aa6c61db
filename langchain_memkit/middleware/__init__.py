"""The same transcript for agents: a middleware for `langchain.agents.create_agent`.

A run of the agent is a turn: `opening` begins it or takes it up again, `view` is what each call of the model shows, and
`ending` stores it. What lives that long is a `run`, found again in `runs` by what the agent's `state` says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal
from weakref import ref

from langchain.agents.middleware.types import (
    AgentMiddleware,
    ExtendedModelResponse,
    ModelRequest,
    ModelResponse,
    ToolCallRequest,
)
from langchain_core.messages import BaseMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.config import get_config
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command

from langchain_memkit._compat import ContextOverflowError
from langchain_memkit._flow import Flow, adrive, arun_step, drive, run_step, shielded
from langchain_memkit.base import GetSessionHistory, Memory, MemoryFactory, Preprocessor
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.memories.telling import OnLoadError
from langchain_memkit.middleware.claims import Claims
from langchain_memkit.middleware.ending import failed, finish, stopped, watch
from langchain_memkit.middleware.opening import Door, configured, place_of_run
from langchain_memkit.middleware.run import Run, messages_of
from langchain_memkit.middleware.runs import TWICE, Handle, Runs
from langchain_memkit.middleware.state import HistoryState, divide
from langchain_memkit.middleware.tools import NO_USER, memory_tools
from langchain_memkit.middleware.trial import trial
from langchain_memkit.middleware.view import shown
from langchain_memkit.runnables.saving import BeforeSave, OnDroppedTurn, OnSaveError, OpenTurn, Policy
from langchain_memkit.runnables.session import checked_function

__all__ = ["MessageHistoryMiddleware"]

CHECKPOINTER = "__pregel_checkpointer"  # where LangGraph tells a node of its checkpointer


class MessageHistoryMiddleware(AgentMiddleware[Any, Any, Any]):
    """Gives an agent of `langchain.agents.create_agent` a durable conversation, the same that chains have.

    Each run is one turn: question, tool calls, results and answer are stored as one atomic row when the run ends, as
    the other middleware left them. The model is shown the transcript through the preprocessor, what memories recall,
    and the run's own messages; the agent's state keeps all of its messages. With and without a checkpointer;
    docs/agents.md says what is stored when a run fails, waits for a person, is stopped, or goes on from an older
    checkpoint. Put it first in the list of middleware, so that it comes last when the run ends.

    The config names the session as `session_id` (else `thread_id`); the owner is `user_id` of the runtime context, else
    of the config.

    Args:
        get_session_history: As in `create_runnable_with_message_history`; the following as well.
        preprocessor: Messages in, messages out, applied to the past; the run's own messages share its budget. If they
            alone outgrow it, the oldest whole tool groups are left out of the view, never the question.
        memories: What else the model is reminded of; asked once in a run, before its first call.
        before_save: Takes the messages of the turn and returns those to store.
        on_save_error: `"raise"` (a `HistoryWriteError` whose `.output` is the state's answer), `"log"`, or a callable.
        on_model_error: A model or tool raised: `"discard"` stores nothing, `"save_input"` keeps the question.
        on_abort: The run was cancelled or closed: `"save_partial"` stores what had been said, marked
            `response_metadata["memkit_status"] = "aborted"`; `"discard"` stores nothing.
        on_dropped_turn: The session was cleared while the turn ran: `"report"`, `"raise"`, or a callable.
        on_context_overflow: The model was given more than its context holds: `"retry"` once with 70%, or `"raise"`.
        on_load_error: A memory cannot be loaded: `"report"`, `"raise"`, or a callable.
        tools: Gives the model `remember`, `recall` and `forget`, for the user who is served; notes are kept in the
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
        policy = Policy.of(
            None,
            preprocessor,
            memories,
            before_save,
            on_save_error,
            on_model_error,
            on_abort,
            on_dropped_turn,
            on_context_overflow,
            on_load_error,
        )
        self._policy = policy
        self.preprocessor = policy.preprocessor
        self._claims = Claims()
        self._door = Door(checked_function(get_session_history), policy, self._claims)
        self._runs = Runs()
        self._needs_user = tools
        self.tools: Sequence[BaseTool] = memory_tools(policy.memories, self._run_of) if tools else []

    def open(self, value: Any, config: RunnableConfig | None = None) -> OpenTurn:
        """A run as far as its first call of the model, for `explain_turn`: nothing is called, nothing is stored."""
        return trial(self._door, needs_user=self._needs_user).invoke(value, config)

    async def aopen(self, value: Any, config: RunnableConfig | None = None) -> OpenTurn:
        """Async twin of `open`."""
        return await trial(self._door, needs_user=self._needs_user).ainvoke(value, config)

    def before_agent(self, state: HistoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Opens the turn."""
        return drive(self._begin(state, runtime), run_step)

    async def abefore_agent(self, state: HistoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Async twin of `before_agent`."""
        return await adrive(self._begin(state, runtime), arun_step)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Shows the model the conversation; the state keeps its messages."""
        config = get_config()
        run = drive(self._run_of(request.state, request.runtime, config), run_step)
        try:
            with run.listening():
                try:
                    response = handler(drive(self._shown(run, request, config), run_step))
                except ContextOverflowError as error:
                    response = handler(drive(self._smaller(run, request, config, error), run_step))
        except BaseException as error:
            drive(self._broken(run, request, config, error), run_step)
            raise
        return _answered(run, response, config)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
        """Async twin of `wrap_model_call`."""
        config = get_config()
        run = await adrive(self._run_of(request.state, request.runtime, config), arun_step)
        try:
            with run.listening():
                try:
                    response = await handler(await adrive(self._shown(run, request, config), arun_step))
                except ContextOverflowError as error:
                    response = await handler(await adrive(self._smaller(run, request, config, error), arun_step))
        except BaseException as error:
            flow = self._broken(run, request, config, error)
            await shielded(lambda: adrive(flow, arun_step))
            raise
        return _answered(run, response, config)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Takes note of what a tool returns."""
        config = get_config()
        run = drive(self._run_of(request.state, request.runtime, config, whole=False), run_step)
        try:
            with run.calling():
                result = handler(request)
        except BaseException as error:
            drive(self._broken(run, request, config, error), run_step)
            raise
        run.add(messages_of(result))
        return result

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Async twin of `wrap_tool_call`."""
        config = get_config()
        run = await adrive(self._run_of(request.state, request.runtime, config, whole=False), arun_step)
        try:
            with run.calling():
                result = await handler(request)
        except BaseException as error:
            flow = self._broken(run, request, config, error)
            await shielded(lambda: adrive(flow, arun_step))
            raise
        run.add(messages_of(result))
        return result

    def after_agent(self, state: HistoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Stores the turn."""
        return drive(self._end(state, runtime), run_step)

    async def aafter_agent(self, state: HistoryState, runtime: Runtime[Any]) -> dict[str, Any]:
        """Async twin of `after_agent`."""
        return await shielded(lambda: adrive(self._end(state, runtime), arun_step))

    # -- the steps, for both call styles

    def _begin(self, state: Any, runtime: Any) -> Flow[dict[str, Any]]:
        config = get_config()
        ids = configured(config, runtime.context)
        if isinstance(state.get("memkit_run"), Handle):
            raise ConfigurationError(TWICE)
        if self._needs_user and ids.get("user_id") is None:
            raise ConfigurationError(NO_USER)
        place, messages = place_of_run(ids), state["messages"]
        own = messages[divide(messages, state.get("memkit_turn"))[1] :]
        asked = self._runs.announce(place, [m.id for m in own if m.id])
        run = yield from self._door.begin(state, ids, config, self._runs.under_way(place))
        run.asked, asked.run = asked, ref(run)
        handle = self._runs.begin(run, runtime.stream_writer)
        if not _is_checkpointed(config):
            watch(handle, self._policy, config)
        return {"memkit_turn": run.mark, "memkit_run": handle, **_emptied(state)}

    def _run_of(self, state: Any, runtime: Any, config: RunnableConfig, *, whole: bool = True) -> Flow[Run]:
        """The run of a state, taken up again if another invocation began it; read for, if it has to be `whole`."""
        ids, invocation = configured(config, runtime.context), runtime.stream_writer
        run = self._runs.take_up(state, place_of_run(ids), invocation)
        if run is None:  # it did not pass `before_agent`
            run = yield from self._door.begin(state, ids, config)
            self._runs.add(state, run, invocation)
        run.observe(state["messages"])
        if whole:
            yield from self._completed(run, state, runtime, config)
        return run

    def _completed(self, run: Run, state: Any, runtime: Any, config: RunnableConfig) -> Flow[None]:
        if run.history is None:
            yield from self._door.complete(run, state, configured(config, runtime.context), config)

    def _shown(self, run: Run, request: ModelRequest[Any], config: RunnableConfig) -> Flow[ModelRequest[Any]]:
        messages: list[Any] = yield from shown(run, self._policy, request.messages, config)
        return request.override(messages=messages)

    def _smaller(
        self, run: Run, request: ModelRequest[Any], config: RunnableConfig, error: ContextOverflowError
    ) -> Flow[ModelRequest[Any]]:
        """The request once more with less of the past, after the model said that it was too much; else its error."""
        yield from self._policy.overflowed(run.context, config, error)
        return (yield from self._shown(run, request, config))

    def _broken(
        self, run: Run, request: ModelRequest[Any] | ToolCallRequest, config: RunnableConfig, error: BaseException
    ) -> Flow[None]:
        """A call raised, was interrupted on purpose, or is cancelled."""
        if run.unsettled:
            self._runs.leave(run)
        if isinstance(error, GraphBubbleUp):
            run.take_failure()
            return
        yield from self._completed(run, request.state, request.runtime, config)
        if isinstance(error, Exception):
            yield from failed(run, self._policy, config)
        else:
            yield from stopped(run, self._policy, config)

    def _end(self, state: Any, runtime: Any) -> Flow[dict[str, Any]]:
        config = get_config()
        run = yield from self._run_of(state, runtime, config)
        elsewhere, shared = self._runs.asked_elsewhere(run), _is_checkpointed(config)
        mark = yield from finish(run, self._policy, state, config, self._claims, elsewhere=elsewhere, shared=shared)
        return {"memkit_turn": mark, "memkit_run": None, **_emptied(state)}


def _emptied(state: Any) -> dict[str, Any]:
    return {"memkit_seen": []} if state.get("memkit_seen") else {}


def _is_checkpointed(config: RunnableConfig) -> bool:
    return (config.get("configurable") or {}).get(CHECKPOINTER) is not None


def _answered(
    run: Run, response: ModelResponse[Any], config: RunnableConfig
) -> ModelResponse[Any] | ExtendedModelResponse[Any]:
    """Takes note of an answer. Once something was taken from the state, it is told what was said, for who resumes."""
    run.add(response.result)
    if not (run.unsettled and _is_checkpointed(config)):
        return response
    run.unsettled = False
    return ExtendedModelResponse(response, Command(update={"memkit_seen": run.seen}))
