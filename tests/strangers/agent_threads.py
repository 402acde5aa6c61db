"""A conversation with an agent of any kind, under any checkpointer, as an app would have it; for `test_agents*`."""

from __future__ import annotations

import asyncio
import itertools
import operator
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any, Required, TypedDict
from uuid import uuid4

from deepagents import create_deep_agent
from langchain.agents import AgentState, create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    convert_to_messages,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import Field, PrivateAttr
from pymongo import MongoClient

from langchain_memkit import MessageHistoryMiddleware, SQLiteChatMessageHistory, create_runnable_with_message_history

AGENTS = ("create_agent", "operator.add", "DeltaChannel", "create_deep_agent", "agent in a graph")
"""Kinds of agents that have our middleware."""
GRAPHS = ("chain in a graph", "chain in a graph, operator.add")
"""Graphs by hand whose node is our chain."""
SAVERS = ("memory", "sqlite", "mongodb")
INPUTS = ("ids", "no ids", "pairs")
"""How questions are given: messages with ids, messages without, and `("user", text)`."""


class Model(BaseChatModel):
    """Answers "a1", "a2", ... by the number of the call, or what `script` says next: a message or an error."""

    script: list[Any] = Field(default_factory=list)
    calls: list[list[BaseMessage]] = Field(default_factory=list)
    before_answer: Callable[[], None] | None = None
    _lock: Any = PrivateAttr(default_factory=threading.Lock)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        """The script says when tools are called."""
        return self

    def _answer(self, messages: list[BaseMessage]) -> AIMessage:
        with self._lock:
            self.calls.append(list(messages))
            said = self.script.pop(0) if self.script else AIMessage(f"a{len(self.calls)}")
        if self.before_answer:
            self.before_answer()
        if isinstance(said, BaseException):
            raise said
        return said.model_copy(deep=True)

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._answer(messages))])

    def _stream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        answer = self._answer(messages)
        calls = [{"name": c["name"], "args": "{}", "id": c["id"], "index": i} for i, c in enumerate(answer.tool_calls)]
        yield ChatGenerationChunk(message=AIMessageChunk(answer.text, tool_call_chunks=calls))


def look() -> str:
    """Looks."""
    return "seen"


def call(number: int = 1) -> AIMessage:
    """An answer that calls the tool."""
    return AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": f"call-{number}"}])


def word(message: BaseMessage) -> str:
    """A message in a word: its text, the tools it calls, or that a tool failed (deepagents says so at length)."""
    if getattr(message, "status", None) == "error":
        return "(failed)"
    calls = getattr(message, "tool_calls", None)
    return "+".join(c["name"] for c in calls) + "()" if calls else message.text


APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


class AddingState(AgentState[Any]):
    messages: Required[Annotated[list[Any], operator.add]]


class PlainState(TypedDict):
    messages: Annotated[list[Any], operator.add]


def fold(state: list[Any] | None, writes: Sequence[Any]) -> list[Any]:
    """A reducer for DeltaChannel that knows messages by their ids, if they have any, and assigns none."""
    said = list(convert_to_messages(state or []))
    for write in writes:
        for message in convert_to_messages(write if isinstance(write, list) else [write]):
            place = next((i for i, known in enumerate(said) if message.id and known.id == message.id), None)
            if place is None:
                said.append(message)
            else:
                said[place] = message
    return said


class DeltaState(AgentState[Any]):
    messages: Required[Annotated[list[Any], DeltaChannel(fold, snapshot_frequency=3)]]


class Thread:
    """One thread of one agent.

    Args:
        kind: One of `AGENTS` or `GRAPHS`.
        saver: One of `SAVERS`, or None.
        given: One of `INPUTS`.
        style: `"invoke"`, `"ainvoke"` or `"astream"`.
        folder: Where its files are.
        mongod: The server, if one is needed.
        state: Another state than the kind's own.
        remembering: Whether our middleware is there from the beginning.
    """

    def __init__(
        self,
        kind: str,
        saver: str | None,
        given: str,
        style: str,
        folder: Path,
        mongod: Any = None,
        *,
        state: Any = None,
        remembering: bool = True,
    ) -> None:
        self.kind, self.saver, self.given, self.style = kind, saver, given, style
        self.state, self.remembering = state, remembering
        self._file = str(folder / "chat.db")
        self._threads = str(folder / "threads.db")
        self._mongod, self._database = mongod, f"threads_{uuid4().hex}"
        self._memory = InMemorySaver()
        self._ids = itertools.count()
        self.model = Model()
        self._runner = asyncio.Runner()
        self._resources = ExitStack()
        self._open()

    def _open(self) -> None:
        """What a process makes when it starts."""
        self.histories = self._resources.enter_context(SQLiteChatMessageHistory.factory(self._file))
        self.agent = self._agent(self._saver())

    def other_process(self) -> None:
        """Goes on with a new agent, middleware, factory and saver, as another process would."""
        self._resources.close()
        self._open()

    def close(self) -> None:
        """Ends it."""
        self._resources.close()
        self._runner.close()

    def _saver(self) -> Any:
        if self.saver is None:
            return None
        if self.saver == "memory":
            return self._memory
        if self.saver == "mongodb":
            return MongoDBSaver(self._resources.enter_context(MongoClient(self._mongod.uri)), self._database)
        if self.style == "invoke":
            connection = sqlite3.connect(self._threads, check_same_thread=False)
            self._resources.callback(connection.close)
            return SqliteSaver(connection)
        opened = AsyncExitStack()
        saver = self._runner.run(opened.enter_async_context(AsyncSqliteSaver.from_conn_string(self._threads)))
        self._resources.callback(lambda: self._runner.run(opened.aclose()))
        return saver

    def _agent(self, saver: Any) -> Any:
        if self.kind in GRAPHS:
            return self._graph(saver)
        state = {"operator.add": AddingState, "DeltaChannel": DeltaState}.get(self.kind)
        middleware: list[Any] = [MessageHistoryMiddleware(self.histories)] if self.remembering else []
        if self.kind == "create_deep_agent":
            on = {"look": True} if saver else None
            return create_deep_agent(self.model, [look], middleware=middleware, checkpointer=saver, interrupt_on=on)
        if saver:
            middleware.append(HumanInTheLoopMiddleware(interrupt_on={"look": True}))
        if self.kind != "agent in a graph":
            return create_agent(
                self.model, [look], middleware=middleware, checkpointer=saver, state_schema=self.state or state
            )
        inner = create_agent(self.model, [look], middleware=middleware)
        return StateGraph(MessagesState).add_node("agent", inner).add_edge(START, "agent").compile(saver)

    def _graph(self, saver: Any) -> Any:
        chain = create_runnable_with_message_history(self.model, self.histories)

        def answer(state: Any, config: RunnableConfig) -> Any:
            return {"messages": [chain.invoke(convert_to_messages(state["messages"][-1:]), config)]}

        async def aanswer(state: Any, config: RunnableConfig) -> Any:
            return {"messages": [await chain.ainvoke(convert_to_messages(state["messages"][-1:]), config)]}

        state: Any = MessagesState if self.kind == "chain in a graph" else PlainState
        node = answer if self.style == "invoke" else aanswer
        return StateGraph(state).add_node("answer", node).add_edge(START, "answer").compile(saver)

    # -- what an app does

    @property
    def config(self) -> dict[str, Any]:
        """The config of a run."""
        return {"configurable": {"session_id": "s1", "thread_id": "s1", "user_id": "u1"}}

    def question(self, text: str) -> Any:
        """A question as it is given."""
        if self.given == "pairs":
            return ("user", text)
        return HumanMessage(text, id=f"id-{next(self._ids)}" if self.given == "ids" else None)

    def ask(self, *said: Any, at: Any = None) -> Any:
        """Runs a turn with these messages; texts are questions."""
        return self.run({"messages": [self.question(m) if isinstance(m, str) else m for m in said]}, at)

    def run(self, value: Any, at: Any = None) -> Any:
        """Runs the agent; `at` is the config of a checkpoint."""
        config = self.config
        if at is not None:
            config["configurable"].update(at["configurable"])
        if self.style == "invoke":
            return self.agent.invoke(value, config)
        return self._runner.run(self._arun(value, config))

    async def _arun(self, value: Any, config: Any) -> Any:
        if self.style == "ainvoke":
            return await self.agent.ainvoke(value, config)
        last = None
        async for mode, part in self.agent.astream(value, config, stream_mode=["messages", "values"]):
            last = part if mode == "values" else last
        return last

    def chain(self, text: str) -> None:
        """A turn of a chain on the same session."""
        create_runnable_with_message_history(self.model, self.histories).invoke(text, self.config)

    def states(self) -> list[Any]:
        """Every checkpoint of the thread, the newest first."""
        if self.style == "invoke":
            return list(self.agent.get_state_history(self.config))

        async def all_of_them(found: AsyncIterator[Any]) -> list[Any]:
            return [state async for state in found]

        return self._runner.run(all_of_them(self.agent.aget_state_history(self.config)))

    def end(self) -> Any:
        """The config of the newest checkpoint."""
        return self.states()[0].config

    def update(self, messages: list[Any]) -> None:
        """`update_state`, as an app does that puts messages into a thread."""
        if self.style == "invoke":
            self.agent.update_state(self.config, {"messages": messages})
        else:
            self._runner.run(self.agent.aupdate_state(self.config, {"messages": messages}))

    # -- what there is afterwards

    @property
    def history(self) -> Any:
        """The transcript."""
        return self.histories("s1", "u1")

    @property
    def turns(self) -> list[list[str]]:
        """What is stored, turn by turn."""
        return [[word(m) for m in turn.messages] for turn in self.history.iter_turns()]

    @property
    def stored(self) -> list[str]:
        """What is stored, message by message."""
        return [word(m) for m in self.history.messages]

    @property
    def shown(self) -> list[list[str]]:
        """What the model was given at each call: without the system prompt, and a message of the run once.

        HumanInTheLoopMiddleware returns the message whose calls it asked for; `operator.add` keeps it twice.
        """
        found = []
        for messages in self.model.calls:
            said: list[BaseMessage] = []
            for message in messages:
                again = bool(said and said[-1].id and said[-1].id == message.id)
                if not isinstance(message, SystemMessage) and not again:
                    said.append(message)
            found.append([word(m) for m in said])
        return found


@contextmanager
def thread(*args: Any, **kwargs: Any) -> Iterator[Thread]:
    """A `Thread`, closed at the end."""
    made = Thread(*args, **kwargs)
    try:
        yield made
    finally:
        made.close()
