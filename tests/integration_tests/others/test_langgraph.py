"""Graphs without `create_agent`: what docs/langgraph.md shows, async, with a store, and when a run is repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command, interrupt

from langchain_memkit import (
    KeyValueMemory,
    LangGraphKeyValueStore,
    SQLiteChatMessageHistory,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.testing import FakeChatModel

T1: Any = {"configurable": {"thread_id": "t1", "user_id": "u1"}}


@pytest.fixture
def histories(tmp_path: Path) -> Any:
    """A factory on a file."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
        yield factory


def chain_of(*nodes: Any, **options: Any) -> Any:
    """Nodes one after the other."""
    builder: Any = StateGraph(MessagesState)
    names = [node.__name__ for node in nodes]
    for name, node in zip(names, nodes, strict=True):
        builder.add_node(name, node)
    for start, end in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(start, end)
    return builder.compile(**options)


@pytest.mark.parametrize("style", ["sync", "async"])
async def test_summaries_in_a_node(style: str) -> None:
    """A summarizing preprocessor in a node: the state keeps all, the model sees the budget, the thread its summary."""
    asked: list[Any] = []
    model, store = FakeChatModel(), InMemoryStore()

    def write(prompt: Any) -> str:
        asked.append(prompt)
        return "Facts were told."

    fit = create_history_preprocessor(
        write, max_tokens=400, trigger=("messages", 8), keep=("messages", 3), store=LangGraphKeyValueStore(store)
    )

    def answer(state: MessagesState, config: RunnableConfig) -> Any:
        return {"messages": [(fit | model).invoke(state["messages"], config)]}

    async def aanswer(state: MessagesState, config: RunnableConfig) -> Any:
        return {"messages": [await (fit | model).ainvoke(state["messages"], config)]}

    graph = chain_of(answer if style == "sync" else aanswer, checkpointer=InMemorySaver())

    async def say(text: str, config: Any) -> Any:
        value = {"messages": [HumanMessage(text)]}
        return graph.invoke(value, config) if style == "sync" else await graph.ainvoke(value, config)

    for i in range(10):
        state = await say(f"This is fact {i}.", T1)
    assert len(state["messages"]) == 20
    assert "Facts were told." in model.calls[-1][0].text
    assert max(len(call) for call in model.calls) < 10
    assert 1 < len(asked) < 5
    assert {item.namespace for item in store.search(())} == {("memkit", "u1")}
    await say("Hello.", {"configurable": {"thread_id": "t2"}})
    assert [m.text for m in model.calls[-1]] == ["Hello."]


async def test_the_store_of_the_graph(tmp_path: Path) -> None:
    """A node keeps a user's entries in the store that the graph was compiled with, async only or not."""

    async def answer(state: MessagesState, config: RunnableConfig, runtime: Runtime[Any]) -> Any:
        assert runtime.store is not None
        books = KeyValueMemory(store=LangGraphKeyValueStore(runtime.store), user_id=config["configurable"]["user_id"])
        await books.aadd({"My Diary": "Dear diary ..."})
        return {"messages": [AIMessage((await books.aload(state["messages"][-1].text))[0].text)]}

    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
        await store.setup()
        for given in (store, InMemoryStore()):
            graph = chain_of(answer, store=given)
            state = await graph.ainvoke({"messages": [HumanMessage("Read My Diary.")]}, T1)
            assert "Dear diary" in state["messages"][-1].text


@pytest.mark.parametrize("mode", ["invoke", "ainvoke", "stream", "astream"])
async def test_a_graph_with_tools_under_the_factory(histories: Any, mode: str) -> None:
    """Question, tool call, result and answer are one turn, and the next turn sees them, in each call style."""
    call = {"name": "add", "args": {"a": 1}, "id": "1", "type": "tool_call"}
    model = FakeChatModel()

    def ask(state: MessagesState) -> Any:
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def tool(state: MessagesState) -> Any:
        return {"messages": [ToolMessage("42", tool_call_id="1")]}

    def answer(state: MessagesState) -> Any:
        return {"messages": [model.invoke(state["messages"])]}

    chat: Any = create_runnable_with_message_history(
        chain_of(ask, tool, answer), histories, input_messages_key="messages"
    )
    for question in ("My name is Nemo.", "What is my name?"):
        value = {"messages": [HumanMessage(question)]}
        if mode == "invoke":
            chat.invoke(value, T1)
        elif mode == "ainvoke":
            await chat.ainvoke(value, T1)
        elif mode == "stream":
            list(chat.stream(value, T1))
        else:
            [chunk async for chunk in chat.astream(value, T1)]
    turns = list(histories("t1", "u1").iter_turns())
    assert [[m.type for m in turn.messages] for turn in turns] == [["human", "ai", "tool", "ai"]] * 2
    assert turns[1].messages[-1].text == "You told me: My name is Nemo."
    assert len(model.calls[-1]) == 7


def test_a_run_that_is_repeated_is_stored_once(histories: Any, tmp_path: Path) -> None:
    """Nodes that read and write the transcript: a run that died after its save, resumed elsewhere, is stored once."""
    died = [True]

    def approve(state: MessagesState) -> Any:
        return {"messages": [HumanMessage(interrupt("Shall I answer?"))]}

    def record(state: MessagesState, config: RunnableConfig) -> None:
        history, said = histories("t1", "u1"), state["messages"]
        known = history.stored_ids([message.id for message in said])
        history.append_turn([message for message in said if message.id not in known])
        if died.pop() if died else False:
            raise OSError("the process is gone")

    def again() -> Any:
        """As another process would have it."""
        return SqliteSaver.from_conn_string(str(tmp_path / "saver.db"))

    with again() as saver:
        chain_of(approve, record, checkpointer=saver).invoke({"messages": [HumanMessage("Hi.")]}, T1)
    with again() as saver, pytest.raises(OSError, match="gone"):
        chain_of(approve, record, checkpointer=saver).invoke(Command(resume="Go on."), T1)
    with again() as saver:
        chain_of(approve, record, checkpointer=saver).invoke(None, T1)
    assert [m.text for m in histories("t1", "u1").messages] == ["Hi.", "Go on."]
