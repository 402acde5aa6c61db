"""Threads of deep agents move over: their state keeps differences, and messages without ids."""

from __future__ import annotations

from typing import Any

from deepagents import create_deep_agent
from langgraph.checkpoint.mongodb import MongoDBSaver
from pymongo import MongoClient

from langchain_memkit.migrate import langgraph_source, migrate
from testkit.checkpoints import Store, ask, config, look, model, shapes


def test_differences_are_put_together(store: Store, target: Any) -> None:
    """A thread of a deep agent, whose state keeps differences (DeltaChannel), moves as its state is, once."""
    graph = create_deep_agent(model("a1", "call", "a2", "a3"), [look], checkpointer=store.saver)
    for text in ("q1", "q2", "q3"):
        said = ask(graph, text, config("t1", user_id="u1"))
    reports = [migrate(store.source(), target, progress=False) for _ in range(2)]
    assert [(report.turns, report.messages, report.skipped) for report in reports] == [(3, 8, []), (0, 0, [])]
    assert target("t1", "u1").messages == said
    assert shapes(target("t1", "u1")) == [["human", "ai"], ["human", "ai", "tool", "ai"], ["human", "ai"]]


def test_differences_without_ids(store: Store, target: Any) -> None:
    """Messages that have no ids get the same each time, of thread and place: what is said again is another message."""
    graph = create_deep_agent(model(*"abcdef"), checkpointer=store.saver)
    for thread in ("t1", "t2"):
        for _ in range(2):
            graph.invoke({"messages": [("user", "hi")]}, config(thread))
        assert [m.id for m in graph.get_state(config(thread)).values["messages"]][::2] == [None, None]
    assert [migrate(store.source(), target, progress=False).messages for _ in range(2)] == [8, 0]
    assert [m.text for m in target("t1").messages] == ["hi", "a", "hi", "b"]
    assert len({m.id for thread in ("t1", "t2") for m in target(thread).messages}) == 8
    graph.invoke({"messages": [("user", "hi")]}, config("t1"))
    assert migrate(store.source(), target, progress=False).messages == 2
    assert [m.text for m in target("t1").messages] == ["hi", "a", "hi", "b", "hi", "e"]


def test_differences_that_are_gone_are_named(store: Store, target: Any) -> None:
    """Older checkpoints or writes that were deleted, or cannot be read: the thread is named, never taken for whole."""
    graph = create_deep_agent(model(*"abcdefghij"), checkpointer=store.saver)
    for thread in ("pruned", "no writes", "encrypted"):
        for i in range(2):
            ask(graph, f"q{i}", config(thread))
    kept = [found.config["configurable"]["checkpoint_id"] for found in store.saver.list(config("pruned"))][:3]
    if store.kind == "sqlite":
        run = store.saver.conn.execute
        run("DELETE FROM checkpoints WHERE thread_id = 'pruned' AND checkpoint_id < ?", (kept[-1],))
        run("DELETE FROM writes WHERE thread_id = 'no writes'")
        run("UPDATE writes SET type = 'msgpack+aes' WHERE thread_id = 'encrypted'")
        store.saver.conn.commit()
    else:
        store.saver.checkpoint_collection.delete_many({"thread_id": "pruned", "checkpoint_id": {"$lt": kept[-1]}})
        store.saver.writes_collection.delete_many({"thread_id": "no writes"})
        store.saver.writes_collection.update_many({"thread_id": "encrypted"}, {"$set": {"type": "msgpack+aes"}})
    report = migrate(store.source(), target, progress=False)
    assert len(report.skipped) == 3
    for thread, problem in [("pruned", "is gone"), ("no writes", "no writes"), ("encrypted", "cannot be read")]:
        assert any(f"'{thread}'" in line and problem in line for line in report.skipped)
    assert [m.text for m in target("pruned").messages] == ["b"]
    assert target("no writes").messages == target("encrypted").messages == []


def test_writes_in_another_collection(standalone: Any, database: str, target: Any) -> None:
    """MongoDBSaver's collections may have other names, also that of the writes."""
    with MongoClient(standalone.uri) as client:
        saver = MongoDBSaver(client, database, "points", "log")
        said = ask(create_deep_agent(model("a"), checkpointer=saver), "q", config("t1"))
    where = {"database_name": database, "collection_name": "points"}
    assert (
        "writes_collection_name"
        in migrate(langgraph_source(standalone.uri, **where), target, progress=False).skipped[0]
    )
    migrate(langgraph_source(standalone.uri, **where, writes_collection_name="log"), target, progress=False)
    assert target("t1").messages == said
