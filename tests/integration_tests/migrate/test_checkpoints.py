"""Threads of real `create_agent` graphs, from the real savers on SQLite and MongoDB, moved into histories of ours."""

from __future__ import annotations

import operator
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import SummarizationMiddleware
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.types import Overwrite, interrupt

from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.errors import ConfigurationError, HistoryReadError
from langchain_memkit.middleware import MessageHistoryMiddleware
from langchain_memkit.migrate import langgraph_source, migrate
from testkit.checkpoints import Store, ask, config, look, model, shapes


def test_threads_become_sessions(store: Store, target: Any) -> None:
    """Messages arrive as the state has them, ids and artifacts included, in whole turns, with the config's user."""
    graph = create_agent(model("call", "a1", "a2", "b1"), [look], checkpointer=store.saver)
    ask(graph, "q1", config("t1", user_id="u1"))
    mine = ask(graph, "q2", config("t1", user_id="u1"))
    nobodys = ask(graph, "q3", config("t2"))
    report = migrate(store.source(), target, progress=False)
    assert (report.sessions, report.turns, report.messages, report.skipped) == (2, 3, 8, [])
    assert target("t1", "u1").messages == mine
    assert target("t2").messages == nobodys
    assert shapes(target("t1", "u1")) == [["human", "ai", "tool", "ai"], ["human", "ai"]]
    assert all(turn.created_at for turn in target("t1", "u1").iter_turns())


def test_twice_is_once_and_what_came_since_is_added(store: Store, target: Any) -> None:
    """A second run adds nothing; after the thread went on it adds what came."""
    graph = create_agent(model("a1", "call", "a2", "a3"), [look], checkpointer=store.saver)
    ask(graph, "q1", config("t1"))
    reports = [migrate(store.source(), target, progress=False) for _ in range(2)]
    assert [report.messages for report in reports] == [2, 0]
    ask(graph, "q2", config("t1"))
    said = ask(graph, "q3", config("t1"))
    assert migrate(store.source(), target, progress=False).turns == 2
    assert target("t1").messages == said
    assert shapes(target("t1")) == [["human", "ai"], ["human", "ai", "tool", "ai"], ["human", "ai"]]


def test_turns_that_are_there_already(store: Store, target: Any) -> None:
    """Messages that the target has under turns of its own, as an agent with our middleware saves them, stay single."""
    graph = create_agent(model("a1", "a2"), [], checkpointer=store.saver)
    first = ask(graph, "q1", config("t1"))
    target("t1").append_turn(first, turn_id="run-1")
    said = ask(graph, "q2", config("t1"))
    assert migrate(store.source(), target, progress=False).messages == 2
    assert target("t1").messages == said


def test_to_mongodb_and_to_a_user(store: Store, standalone: Any, database: str) -> None:
    """Any of our backends takes it, and `user_id` gives all threads to one user."""
    graph = create_agent(model("a1"), [], checkpointer=store.saver)
    said = ask(graph, "q1", config("t1", user_id="somebody"))
    native = MongoDBChatMessageHistory.factory(standalone.uri, database)
    migrate(store.source(), native, user_id="u2", progress=False)
    migrate(store.source(), native, user_id="u2", progress=False)
    assert native("t1", "u2").messages == said
    assert native("t1", "somebody").messages == []


def test_summaries_are_left_out(store: Store, target: Any) -> None:
    """What SummarizationMiddleware left is moved; its summary is named, because what it stands for is not there."""
    middleware = SummarizationMiddleware(model("what was said"), trigger=("messages", 4), keep=("messages", 2))
    graph = create_agent(model("a1", "a2", "a3"), [], checkpointer=store.saver, middleware=[middleware])
    for text in ("q1", "q2", "q3"):
        said = ask(graph, text, config("t1"))
    assert said[0].additional_kwargs["lc_source"] == "summarization"
    report = migrate(store.source(), target, progress=False)
    assert target("t1").messages == said[1:]
    assert report.skipped == [
        "session 't1', message 0: a summary of SummarizationMiddleware; what it stands for is not there"
    ]


def test_interrupted_threads(store: Store, target: Any) -> None:
    """A thread that waits for its tools is moved as it is, which is said; after its resume the rest is added."""
    graph = create_agent(model("call", "a1", "a2"), [look], checkpointer=store.saver, interrupt_before=["tools"])
    said = ask(graph, "q1", config("t1"))
    report = migrate(store.source(), target, progress=False)
    assert [m.type for m in target("t1").messages] == ["human", "ai"]
    assert len(report.skipped) == 1
    assert "1 tool calls have no results yet" in report.skipped[0]
    graph.invoke(None, config("t1"))
    said = ask(graph, "q2", config("t1"))
    assert migrate(store.source(), target, progress=False).skipped == []
    assert target("t1").messages == said
    assert len(said) == 6


def test_only_the_root_namespace(store: Store, target: Any) -> None:
    """Checkpoints of subgraphs, which are in the same place, are no conversations of their own."""

    def inner(state: MessagesState) -> dict[str, Any]:
        interrupt("wait")
        return {"messages": [AIMessage("never said")]}

    below = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile(checkpointer=True)
    graph = StateGraph(MessagesState).add_node("below", below).add_edge(START, "below").compile(store.saver)
    said = ask(graph, "q1", config("t1"))
    spaces = {found.config["configurable"]["checkpoint_ns"] for found in store.saver.list(config("t1"))}
    assert len(spaces) == 2
    report = migrate(store.source(), target, progress=False)
    assert (report.sessions, report.messages) == (1, 1)
    assert target("t1").messages == said


class Other(TypedDict):
    """A state without messages, but with a list of them under another key."""

    log: Annotated[list[AnyMessage], add_messages]
    total: Annotated[int, operator.add]


def test_other_states(store: Store, target: Any) -> None:
    """A graph without messages is named; another key of the state can be given."""
    graph = StateGraph(Other).add_node("add", lambda state: {"total": 1}).add_edge(START, "add").compile(store.saver)
    graph.invoke({"log": [HumanMessage("noted")], "total": 1}, config("t1"))
    assert migrate(store.source(), target, progress=False).skipped == [
        "session 't1', thread: its state has no 'messages'"
    ]
    for _ in range(2):
        migrate(store.source(channel="log"), target, progress=False)
    assert [m.text for m in target("t1").messages] == ["noted"]


def test_plain_lists_of_messages(store: Store, target: Any) -> None:
    """A state that appends plainly holds messages as they were given: ids are made, what is none is named."""

    class Plain(TypedDict):
        messages: Annotated[list[Any], operator.add]

    graph = StateGraph(Plain).add_node("x", lambda state: {"messages": [AIMessage("a")]}).add_edge(START, "x")
    graph.compile(store.saver).invoke({"messages": [HumanMessage("q"), ("user", "hi"), {"role": "user"}]}, config("t1"))
    for _ in range(2):
        report = migrate(store.source(), target, progress=False)
        assert report.skipped == ["session 't1', message 2: a dict is not a message of langchain-core"]
    assert [m.text for m in target("t1").messages] == ["q", "hi", "a"]
    assert len({m.id for m in target("t1").messages}) == 3


def _by_id(state: list[Any], writes: list[Any]) -> Any:
    """The reducer of add_messages, for differences."""
    return add_messages(state, [m for write in writes for m in (write if isinstance(write, list) else [write])])


@pytest.mark.parametrize("often", [1, 2, 3, 100])
@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_differences_of_every_kind(store: Store, target: Any, often: int, durability: Any) -> None:
    """What is replaced, removed, overwritten, put in from outside and forked is as LangGraph reads it itself."""
    delta: Any = Annotated[list[AnyMessage], DeltaChannel(_by_id, snapshot_frequency=often)]
    state_of_deltas: Any = TypedDict("state_of_deltas", {"messages": delta})  # made anew for each case

    def answer(state: Any) -> dict[str, Any]:
        text = state["messages"][-1].text
        if text == "forget the first":
            return {"messages": [RemoveMessage(id=str(state["messages"][0].id)), AIMessage("done")]}
        if text == "begin again":
            return {"messages": Overwrite([HumanMessage("begun"), AIMessage("again")])}
        return {"messages": [HumanMessage(f"{text}!", id=state["messages"][-1].id), AIMessage(f"to {text}")]}

    def add(state: Any) -> dict[str, Any]:
        return {"messages": {"role": "ai", "content": "as a dict"}}

    graph: Any = StateGraph(state_of_deltas).add_node("answer", answer).add_node("add", add)
    graph = graph.add_edge(START, "answer").add_edge("answer", "add").compile(store.saver)

    def say(text: str, **where: Any) -> list[Any]:
        graph.invoke({"messages": [HumanMessage(text)]}, where or config("t1"), durability=durability)
        whole = graph.get_state(config("t1")).values["messages"]
        new = SQLiteChatMessageHistory.factory(":memory:")
        assert migrate(store.source(), new, progress=False).skipped == []
        assert new("t1").messages == whole
        return list(whole)

    say("q1")
    past = graph.get_state(config("t1")).config
    say("q2")
    say("forget the first")
    graph.update_state(config("t1"), {"messages": [AIMessage("put in")]})
    say("q3")
    say("begin again")
    say("q4")
    branch = say("q5", **past)
    assert [m.text for m in branch if m.type == "human"] == ["q1!", "q5!"]
    assert [m.text for m in say("q6") if m.type == "human"] == ["q1!", "q5!", "q6!"]
    migrate(store.source(), target, progress=False)
    assert migrate(store.source(), target, progress=False).messages == 0


def test_differences_of_one_step(store: Store, target: Any) -> None:
    """Nodes that run beside each other: their messages stand in the order in which the run put them."""
    delta: Any = Annotated[list[AnyMessage], DeltaChannel(_by_id)]
    graph: Any = StateGraph(TypedDict("state_of_deltas", {"messages": delta}))  # type: ignore[misc]
    for name in ("c", "a", "b"):
        graph = graph.add_node(name, lambda _, name=name: {"messages": [AIMessage(name)]}).add_edge(START, name)
    said = graph.compile(store.saver).invoke({"messages": [HumanMessage("q")]}, config("t1"))["messages"]
    migrate(store.source(), target, progress=False)
    assert target("t1").messages == said
    assert [m.text for m in said] == ["q", "a", "b", "c"]


def test_damaged_threads_stop_nothing(store: Store, target: Any) -> None:
    """Threads with damaged or foreign checkpoints and ids that are none are named; the others move."""
    graph = create_agent(model("a1"), [], checkpointer=store.saver)
    said = ask(graph, "q1", config("good"))
    bad = [
        ("broken", "msgpack", b"\xc1"),
        ("pickled", "pickle", b"."),
        ("nothing", "msgpack", b"\xc0"),
        ("", "json", b"{}"),
    ]
    if store.kind == "sqlite":
        for thread, kind, blob in bad:
            row = (thread, "", "1", None, kind, blob, b"{}")
            store.saver.conn.execute("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        store.saver.conn.commit()
    else:
        whole = JsonPlusSerializer().dumps_typed({"channel_values": {"messages": said}})
        for thread, kind, blob in [*bad, ({"$ne": ""}, *whole), (7, *whole)]:
            document = {
                "thread_id": thread,
                "checkpoint_ns": "",
                "checkpoint_id": "1",
                "type": kind,
                "checkpoint": blob,
            }
            store.saver.checkpoint_collection.insert_one(document)
    report = migrate(store.source(), target, progress=False)
    assert target("good").messages == said
    assert report.messages == 2
    assert len(report.skipped) == (4 if store.kind == "sqlite" else 6)
    assert any("never read" in line for line in report.skipped)


@pytest.mark.parametrize(("given", "owner"), [(42, "42"), (True, None), ("x" * 600, None), (None, None)])
def test_owners_that_are_no_text(store: Store, target: Any, given: Any, owner: str | None) -> None:
    """A number is a user as well; what is no id at all is named, and its thread is nobody's."""
    graph = create_agent(model("a1"), [], checkpointer=store.saver)
    said = ask(graph, "q1", {"configurable": {"thread_id": "t1"}, "metadata": {"user_id": given}})
    report = migrate(store.source(), target, progress=False)
    assert target("t1", owner).messages == said
    wrong = owner is None and given is not None
    assert ["moved as nobody's: user_id must be" in line for line in report.skipped] == [True] * wrong


async def test_the_async_saver(tmp_path: Path, target: Any) -> None:
    """AsyncSqliteSaver writes the same file; it may still be open while it is read."""
    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "checkpoints.db")) as saver:
        graph = create_agent(model("a1"), [], checkpointer=saver)
        result = await graph.ainvoke({"messages": [HumanMessage("q1")]}, config("t1", user_id="u1"))
        migrate(langgraph_source(tmp_path / "checkpoints.db"), target, progress=False)
    assert target("t1", "u1").messages == result["messages"]


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda path: path / "nowhere.db", ConfigurationError, "there is no file"),
        (lambda path: _empty(path / "x.db"), ConfigurationError, "no table 'checkpoints'; its tables: none"),
        (lambda path: "mongodb://me:geheim@localhost:9", HistoryReadError, "cannot read .* from localhost:9"),
        (lambda path: "mongodb://me:geheim@[x", ConfigurationError, "connection_string is not valid"),
    ],
)
def test_places_that_are_none(
    tmp_path: Path,
    target: Any,
    make: Callable[[Path], Any],
    error: type[Exception],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A missing file, table or server is an error of ours, without a password in its text."""
    monkeypatch.setattr("langchain_memkit.backends.mongodb.inspection.FIRST_SECONDS", 0.3)
    with pytest.raises(error, match=said) as raised:
        migrate(langgraph_source(make(tmp_path)), target, progress=False)
    assert "geheim" not in str(raised.value)


def _empty(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")
    return path


def test_a_moved_thread_goes_on_with_our_middleware(store: Store, target: Any) -> None:
    """An agent that gets `MessageHistoryMiddleware` on a thread that was moved adopts nothing again, and goes on."""
    before = create_agent(model("call", "a1"), [look], checkpointer=store.saver)
    ask(before, "q1", config("t1", user_id="u1"))
    migrate(store.source(), target, progress=False)
    after = create_agent(model("a2"), [look], checkpointer=store.saver, middleware=[MessageHistoryMiddleware(target)])
    said = ask(after, "q2", config("t1", user_id="u1"))
    assert target("t1", "u1").messages == said
    assert len(said) == 6
    assert migrate(store.source(), target, progress=False).messages == 0
