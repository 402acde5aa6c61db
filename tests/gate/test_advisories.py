"""Published attacks by stored data that names code, replayed at the doors of memkit. A test for each advisory."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import ormsgpack
import pytest
from gatekit.systems import Place, config
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from pymongo import MongoClient

from langchain_memkit import (
    MongoDBKeyValueStore,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    VectorMemory,
)
from langchain_memkit.migrate import export_history, import_history, langgraph_source, migrate

STORES = pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
CANARY = "canary-4711"
EMBEDDING = DeterministicFakeEmbedding(size=8)


@pytest.fixture
def key_values(place: Place) -> Iterator[Any]:
    """A key-value store at the place."""
    sqlite = place.kind == "sqlite"
    with SQLiteKeyValueStore(place.uri) if sqlite else MongoDBKeyValueStore(place.uri, place.database) as store:
        yield store


# -- CVE-2025-68664 (GHSA-c67j-w6g6-q2cm), and its kin CVE-2026-44843 (GHSA-pjwx-r37v-7724)

LC: dict[str, Any] = {
    "secret": {"lc": 1, "type": "secret", "id": ["MEMKIT_CANARY"]},
    "message": {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", "AIMessage"],
                "kwargs": {"content": {"lc": 1, "type": "secret", "id": ["MEMKIT_CANARY"]}}},
    "template": {"lc": 1, "type": "constructor", "id": ["langchain", "prompts", "prompt", "PromptTemplate"],
                 "kwargs": {"template": "{{ cycler.__init__.__globals__.os.environ }}", "input_variables": [],
                            "template_format": "jinja2"}},
    "model": {"lc": 1, "type": "constructor", "id": ["langchain", "chat_models", "openai", "ChatOpenAI"],
              "kwargs": {"base_url": "http://127.0.0.1:1", "api_key": {"lc": 1, "type": "secret", "id": ["PATH"]}}},
    "not implemented": {"lc": 1, "type": "not_implemented", "id": ["os", "system"], "repr": "x"},
    "escaped": {"__lc_escaped__": {"lc": 1, "type": "secret", "id": ["MEMKIT_CANARY"]}},
}  # fmt: skip


def carriers(data: dict[str, Any]) -> list[Any]:
    """Messages that hold user-controlled data wherever the advisory found it."""
    call = {"name": "look", "args": data, "id": "c1", "type": "tool_call"}
    return [
        HumanMessage([{"type": "text", "text": "hi"}, {"type": "custom", "data": data}], id="1"),
        AIMessage("", id="2", tool_calls=[call], additional_kwargs={"n": data}, response_metadata={"nested": [data]}),
        ToolMessage("seen", id="3", tool_call_id="c1", artifact={"found": data}),
        AIMessage(json.dumps(data), id="4"),
    ]


@pytest.mark.gate(row=20, memkit_only=True)
@STORES
def test_cve_2025_68664_serialization_injection(
    place: Place, system: Any, key_values: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lc` keys in what users and models say are data: equal on return through every store, no secret, no object."""
    monkeypatch.setenv("MEMKIT_CANARY", CANARY)
    histories = system.histories(place)
    seen: list[Any] = []
    for name, data in LC.items():
        said = carriers(data)
        chain = system.chain(RunnableLambda(lambda messages, said=said: said[1:]), histories)
        chain.invoke([said[0]], config(name))
        file = tmp_path / f"{name}.jsonl"
        export_history(histories, file)
        moved = SQLiteChatMessageHistory.factory(":memory:")
        import_history(moved, file)
        key_values.mset([(name, {"value": data})])
        VectorMemory(histories, EMBEDDING, name, user_id="u1").save([HumanMessage("Keys?"), said[-1]])
        assert histories(name).messages == moved(name).messages == said
        assert key_values.mget([name]) == [{"value": data}]
        found = VectorMemory(histories, EMBEDDING, "-", user_id="u1").search("Keys?", k=20, session_id=name)
        assert json.dumps(data) in " ".join(hit.text for hit in found)
        seen += [histories(name).messages, found, file.read_text()]
    assert CANARY not in repr(seen)


@pytest.mark.gate(row=20, memkit_only=True)
@STORES
def test_cve_2026_44843_runs_with_lc_inputs(place: Place, system: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Core's conversations rebuilt their runs with `load(allowed_objects="all")`; ours stores what was given."""
    monkeypatch.setenv("MEMKIT_CANARY", CANARY)
    histories = system.histories(place)
    keys = {"input_messages_key": "input", "history_messages_key": "past", "output_messages_key": "answer"}
    heard: list[Any] = []
    chain = system.chain(
        RunnableLambda(lambda given: heard.append(given) or {"answer": AIMessage("ok", additional_kwargs=given["x"])}),
        histories,
        **keys,
    )

    async def events(data: Any, name: str) -> list[Any]:
        return [e async for e in chain.astream_events({"input": "hi", "x": data}, config(name), version="v2")]

    for name, data in LC.items():
        told = asyncio.run(events(data, name))
        question, answer = histories(name).messages
        assert (question.content, answer.additional_kwargs, heard[-1]["x"]) == ("hi", data, data)
        assert CANARY not in repr(told)


# -- CVE-2025-64439 (GHSA-wwqv-p2pp-99h5), and CVE-2026-28277, CVE-2026-48775 with it


def published(folder: Path) -> dict[str, tuple[str, bytes]]:
    """Checkpoints as an attacker writes them, as `(type, bytes)`; each would leave a file in the folder."""
    shell = {"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": f"touch {folder}/json"}}
    eval_ = {"lc": 2, "type": "constructor", "id": ["builtins", "eval"], "args": [f"open('{folder}/eval', 'w')"]}
    method = {**shell, "id": ["pathlib", "Path"], "method": ["touch"], "args": [f"{folder}/method"]}

    def packed(code: int, *parts: Any) -> Any:
        return ormsgpack.Ext(code, ormsgpack.packb(list(parts)))

    def state(*messages: Any) -> dict[str, Any]:
        return {"v": 4, "ts": "2026-01-02T00:00:00+00:00", "channel_values": {"messages": list(messages)}}

    binary = {
        "function": state(packed(0, "os", "system", f"touch {folder}/function")),
        "keywords": state(packed(2, "subprocess", "Popen", {"args": ["touch", f"{folder}/keywords"]})),
        "call": state(packed(3, "builtins", "eval", f"open('{folder}/call', 'w')", "__call__")),
        "not in a message": {**state(), "versions": packed(0, "os", "system", f"touch {folder}/elsewhere")},
    }
    text = {
        "json": state(shell, eval_, method),
        "surrogate": state({**shell, "note": "\ud800"}),  # msgpack refuses it: how the JSON mode was reached
    }
    pickled = b"cos\nsystem\n(S'touch " + f"{folder}/pickle".encode() + b"'\ntR."
    return {
        **{name: ("msgpack", ormsgpack.packb(value)) for name, value in binary.items()},
        **{name: ("json", json.dumps(value).encode()) for name, value in text.items()},
        "pickle": ("pickle", pickled),
    }


def good() -> dict[str, tuple[str, bytes]]:
    """What LangGraph writes, and wrote, of a conversation with half an emoji in it."""
    ts = "2026-01-02T00:00:00+00:00"
    messages = [HumanMessage("hi", id="1"), AIMessage("half an emoji: \ud83d", id="2")]
    kind, blob = JsonPlusSerializer().dumps_typed({"v": 4, "ts": ts, "channel_values": {"messages": messages}})
    names = ["langchain_core", "messages"]
    old = [
        {"lc": 2, "type": "constructor", "id": [*names, *path], "kwargs": {"content": m.content, "id": m.id}}
        for m, path in zip(messages, (["human", "HumanMessage"], ["ai", "AIMessage"]), strict=True)
    ]
    text = json.dumps({"v": 1, "ts": ts, "channel_values": {"messages": old}})
    return {"good": (kind, blob), "good json": ("json", text.encode())}


@pytest.mark.gate(row=20, memkit_only=True)
@STORES
def test_cve_2025_64439_checkpoint_deserialization(place: Place, tmp_path: Path) -> None:
    """Checkpoints that name what to call are moved as data: nothing runs, all is reported, good threads arrive."""
    marks = tmp_path / "marks"
    marks.mkdir()
    threads = {**published(marks), **good()}
    row = {"checkpoint_ns": "", "checkpoint_id": "1", "metadata": {}}
    if place.kind == "sqlite":
        file = tmp_path / "checkpoints.db"
        with closing(sqlite3.connect(file)) as connection, connection:
            SqliteSaver(connection).setup()
            insert = "INSERT INTO checkpoints VALUES (?, '', '1', NULL, ?, ?, x'7b7d')"
            connection.executemany(insert, [(name, kind, blob) for name, (kind, blob) in threads.items()])
        source = langgraph_source(file)
    else:
        with MongoClient(place.uri) as client:
            MongoDBSaver(client, place.database)
            rows = [{**row, "thread_id": n, "type": kind, "checkpoint": blob} for n, (kind, blob) in threads.items()]
            client[place.database]["checkpoints"].insert_many(rows)
        source = langgraph_source(place.uri, database_name=place.database)
    target = SQLiteChatMessageHistory.factory(":memory:")
    report = migrate(source, target, progress=False)
    assert list(marks.iterdir()) == []
    assert {session.session_id for session in target.list_sessions()} == set(good())
    assert [m.text for m in target("good").messages] == ["hi", "half an emoji: ?"]  # as LangGraph itself reads it
    assert [m.text for m in target("good json").messages] == ["hi", "half an emoji: \ud83d"]
    told = str(report) + repr(report)
    for named in ("os.system", "builtins.eval", "subprocess.Popen", "pathlib.Path", "pickled"):
        assert named in told
