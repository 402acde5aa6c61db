"""Stored data that asks to be run: what it is, where it is planted, and a process that reads it all under watch."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ormsgpack
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from pymongo import MongoClient

from gatekit.systems import config
from langchain_memkit import (
    EntityMemory,
    KeyValueMemory,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    VectorMemory,
    create_history_preprocessor,
    create_runnable_with_message_history,
)
from langchain_memkit.base import Mention

CANARY, SECRET = "MEMKIT_CANARY", "the-bird-sings-7f3a"
TRAP = "memkit_trap"  # a module that is there and that nothing has imported
LET_OUT = {"lc": 1, "type": "secret", "id": [CANARY]}
HOSTILE: list[Any] = [
    {"lc": 1, "type": "constructor", "id": [TRAP, "Boom"], "kwargs": {"key": LET_OUT}},
    {"lc": 1, "type": "constructor", "id": ["langchain_core", TRAP, "Boom"], "kwargs": {}},
    {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "HumanMessage"], "kwargs": {"content": LET_OUT}},
    LET_OUT,
    {"lc": 1, "type": "not_implemented", "id": ["os", "system"], "repr": f"os.system('echo ${CANARY}')"},
    {"lc": 2, "type": "constructor", "id": ["builtins", "eval"], "args": [f"__import__('{TRAP}')"], "kwargs": {}},
    {"lc": 1, "type": "constructor", "id": ["subprocess", "Popen"], "kwargs": {"args": ["touch", "sprung"]}},
    {
        "lc": 2,
        "type": "constructor",
        "id": ["langchain_core", "messages", "human", "HumanMessage"],
        "kwargs": {"content": LET_OUT},
    },
    {"_memkit": "code", "value": f"__import__('{TRAP}')"},
    f"{{{CANARY}}} ${{{CANARY}}} %({CANARY})s {{{{ {CANARY} }}}} $({CANARY}) __import__('{TRAP}')",
]
HOSTILE.append(json.dumps(HOSTILE[0]))


def disarmed(value: Any) -> Any:
    """The same shape that asks for nothing."""
    if isinstance(value, dict):
        return {("ab" if k == "lc" else k): disarmed(v) for k, v in value.items()}
    if isinstance(value, list):
        return [disarmed(item) for item in value]
    if not isinstance(value, str):
        return value
    for word, other in (
        ('"lc"', '"ab"'),
        ("constructor", "thing"),
        ("secret", "quiet"),
        (TRAP, "nothing"),
        ("os", "it"),
    ):
        value = value.replace(word, other)
    return value.replace("not_implemented", "not_asked_for").replace(CANARY, "NOTHING")


@dataclass(frozen=True)
class World:
    """A file or database with everything that memkit stores."""

    kind: str
    folder: Path
    uri: str
    database: str
    hostile: bool

    @property
    def bombs(self) -> list[Any]:
        """What is planted."""
        return HOSTILE if self.hostile else [disarmed(bomb) for bomb in HOSTILE]

    @property
    def file(self) -> Path:
        """Of SQLite."""
        return self.folder / "chat.db"

    def histories(self, **options: Any) -> Any:
        """A factory of histories."""
        if self.kind == "sqlite":
            return SQLiteChatMessageHistory.factory(self.file)
        return MongoDBChatMessageHistory.factory(self.uri, self.database, **options)

    def key_values(self) -> Any:
        """A store of entries, facts and summaries."""
        if self.kind == "sqlite":
            return SQLiteKeyValueStore(self.file)
        return MongoDBKeyValueStore(self.uri, self.database)

    def vectors(self, histories: Any) -> Any:
        """Memories of what is in histories."""
        return VectorMemory.factory(histories, DeterministicFakeEmbedding(size=8))

    def chain(self, given: list[Any], model: Any = None) -> Any:
        """Everything at once, around a prompt with a template and a model, or a function that notes its input."""
        store, histories = self.key_values(), self.histories()
        prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("chat_history"), ("human", "{input}")])
        summary = RunnableLambda(lambda _: AIMessage(f"Nemo said {self.bombs}"))
        summarizing = create_history_preprocessor(summary, max_tokens=2000, keep=("tokens", 500), store=store)
        return create_runnable_with_message_history(
            prompt | (model or RunnableLambda(lambda value: given.append(value) or AIMessage("I see."))),
            histories,
            input_messages_key="input",
            history_messages_key="chat_history",
            preprocessor=summarizing,
            memories=[
                KeyValueMemory.factory(store),
                EntityMemory.factory(histories, find_nemo),
                self.vectors(histories),
            ],
        )


def find_nemo(text: str) -> list[Mention]:
    """The one name of this world."""
    return [Mention("Nemo", "PERSON", i, i + 4) for i in [text.find("Nemo")] if i >= 0]


# -- planting


def plant(world: World) -> None:
    """Fills a world through the public ways, then spoils what is stored behind their back."""
    bombs = world.bombs
    everywhere = {"bombs": bombs}
    call = {"name": "look", "args": everywhere, "id": "c1", "type": "tool_call"}
    fields = [
        HumanMessage([{"type": "text", "text": "Nemo?", **everywhere}], additional_kwargs=everywhere),
        AIMessage("calling", tool_calls=[call], response_metadata=everywhere),
        ToolMessage("looked", tool_call_id="c1", artifact=everywhere),
    ]
    world.histories()("fields", "u1").add_messages(fields)
    chain, entries = world.chain([]), KeyValueMemory.factory(world.key_values())("s1", "u1")
    entries.add({f"Diary {i}": f"Nemo wrote {bomb}" for i, bomb in enumerate(bombs)})
    for i in range(16):
        text = f"Nemo says {bombs[i % len(bombs)]}"
        chain.invoke({"input": text}, config("s1", "u1"))
    world.key_values().mset([(f"u1/bomb/{i}", {"bomb": bomb}) for i, bomb in enumerate(bombs)])
    {"sqlite": _spoil_file, "mongodb": _spoil_database}[world.kind](world)
    _plant_checkpoints(world)
    lines = [json.dumps({"memkit": "export", "v": 1, "created_at": "2026-01-01T00:00:00+00:00"})]
    for i, message in enumerate(_messages(bombs)):
        line = {
            "user_id": "u1",
            "session_id": "s1",
            "op": f"line {i}",
            "messages": [message, *bombs],
            "tokens": bombs,
            "v": 1,
        }
        lines += [
            json.dumps(line),
            json.dumps({**line, "op": bombs[i % len(bombs)]}),
            json.dumps(bombs[i % len(bombs)]),
        ]
    (world.folder / "lines.jsonl").write_text("\n".join(lines) + "\n")
    legacy = [_legacy(message) for message in _messages(bombs)]
    (world.folder / "messages").mkdir()
    (world.folder / "messages" / "s1.json").write_text(json.dumps([*legacy, *bombs]))
    with closing(sqlite3.connect(world.folder / "community.db")) as connection, connection:
        connection.execute("CREATE TABLE message_store (id INTEGER PRIMARY KEY, session_id TEXT, message TEXT)")
        rows = [("s1", json.dumps(data)) for data in [*legacy, *bombs]]
        connection.executemany("INSERT INTO message_store (session_id, message) VALUES (?, ?)", rows)


def _messages(bombs: list[Any]) -> Iterator[dict[str, Any]]:
    """Messages of ours with a bomb in each place."""
    whole = {"role": "ai", "content": "Nemo", "id": "m", "additional_kwargs": {}, "extra": {}, "tool_calls": []}
    yield {**whole, "bombs": bombs}
    for name in whole:
        for bomb in bombs:
            yield {**whole, name: bomb}


def _legacy(message: dict[str, Any]) -> dict[str, Any]:
    """The same in LangChain's own dict form."""
    return {"type": message["role"], "data": {k: v for k, v in message.items() if k != "role"}}


def spoiled(value: Any, n: int, bombs: list[Any]) -> Any:
    """Stored data with bombs in it, one of them in the place of its n-th value."""
    if isinstance(value, list):
        return [*(spoiled(item, n, bombs) for item in value), *bombs]
    if not isinstance(value, dict):
        return value
    names = [*value, ""]
    chosen = names[n % len(names)]
    return {**value, "bombs": bombs} | ({chosen: bombs[n % len(bombs)]} if chosen else {})


OF_VECTORS = b"\x01"  # the first byte of the index of a vector memory; those of others are compressed whole


def spoiled_index(made: bytes, n: int, bombs: list[Any]) -> bytes:
    """An index of a turn with a bomb in the place of the n-th value of each of its records, or of its head."""
    if made[:1] != OF_VECTORS:
        version, messages = json.loads(zlib.decompress(made))
        for message in messages:
            message[n % len(message)] = bombs[n // len(message) % len(bombs)]
        return zlib.compress(json.dumps([version, bombs[n % len(bombs)] if n % 5 == 4 else messages]).encode())
    end = 5 + int.from_bytes(made[1:5], "big")
    version, sketch, records = json.loads(zlib.decompress(made[5:end]))
    for record in records:
        record[n % len(record)] = bombs[n // len(record) % len(bombs)]
    head = [version, sketch, records]
    if n % 5 == 4:
        head[n % len(head)] = bombs[n % len(bombs)]
    packed = zlib.compress(json.dumps(head).encode())
    return made[:1] + len(packed).to_bytes(4, "big") + packed + made[end:]


SPOILED = {
    "turns": ["messages", "tokens", "token_counter", "created_at"],
    "key_values": ["value"],
    "turn_indexes": ["made"],
}


def _spoil_file(world: World) -> None:
    with closing(sqlite3.connect(world.file)) as connection, connection:
        for table, columns in SPOILED.items():
            for column in columns:
                rows = connection.execute(f"SELECT rowid, {column} FROM {table} WHERE rowid > 1").fetchall()
                for n, (row, stored) in enumerate(rows):
                    if column == "messages" and n in FULL:
                        data: Any = [*json.loads(stored), *_messages(world.bombs), *world.bombs]
                    elif column == "made":
                        data = spoiled_index(stored, n, world.bombs)
                    elif column in ("created_at", "token_counter"):
                        data = world.bombs[n % len(world.bombs)] if n % 3 == 0 else stored
                    else:
                        data = spoiled(json.loads(stored), n // 2, world.bombs) if n % 2 else json.loads(stored)
                    text = data if isinstance(data, (str, bytes)) else json.dumps(data)
                    connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (text, row))


KEPT = ["_id", "user_id", "session_id", "seq", "epoch", "base", "kind", "v"]
FULL = [2, 3, 12, 13]  # turns that hold every message of `_messages`


def _spoil_database(world: World) -> None:
    bombs = world.bombs
    with MongoClient(world.uri) as client:
        database = client[world.database]
        for name in ("message_store", "key_value"):
            for n, document in enumerate(database[name].find({"session_id": {"$ne": "fields"}})):
                if n % 2:
                    free = {k: v for k, v in document.items() if k not in KEPT}
                    changed = {k: spoiled(v, n // 2, bombs) for k, v in free.items()} | {"bombs": bombs}
                    for k, made in free.get("index", {}).items():
                        changed["index"][k] = spoiled_index(made, n // 2, bombs)
                    if any(free.values()) and (name != "key_value" or n % 8 == 7):
                        changed[[*free][n // 2 % len(free)]] = bombs[n % len(bombs)]
                    database[name].update_one({"_id": document["_id"]}, {"$set": changed})
            more = {"$push": {"messages": {"$each": [*_messages(bombs), *bombs]}}}
            chosen = {"session_id": "s1", "messages": {"$type": "array"}, "seq": {"$in": FULL}}
            database["message_store"].update_many(chosen, more)
        legacy = [*map(_legacy, _messages(bombs)), *bombs]
        rows = [json.dumps(data) for data in legacy] + legacy
        database["message_store"].insert_many({"SessionId": "s1", "History": row} for row in rows)
        whole = {
            "question": "Nemo?",
            "response": "Nemo.",
            "chatId": "s1",
            "userId": "u1",
            "messages": [],
            "op": "x",
            "v": 1,
        }
        pairs = [{**whole, name: bomb} for name in whole if name not in ("chatId", "userId") for bomb in bombs]
        database["pairs"].insert_many([*pairs, {**whole, "messages": [*_messages(bombs)]}])


def _plant_checkpoints(world: World) -> None:
    """Threads of LangGraph: JSON, and msgpack that names modules."""
    bombs = world.bombs
    names = (TRAP, "Boom") if world.hostile else ("nothing", "Thing")
    called = [ormsgpack.Ext(code, ormsgpack.packb([*names, {"content": "Nemo"}, "go"])) for code in range(8)]
    blobs = [("json", json.dumps({"channel_values": {"messages": bombs}}).encode())]
    blobs += [("json", json.dumps(bomb).encode()) for bomb in bombs]
    blobs.append(("msgpack", ormsgpack.packb({"channel_values": {"messages": [*called, *bombs]}})))
    blobs += [("msgpack", ormsgpack.packb(call)) for call in called]
    blobs.append(("pickle", f"c{names[0]}\n{names[1]}\n.".encode()))
    metadata = json.dumps({"user_id": bombs[0]}).encode()
    rows = [(f"t{i}", "", "1", kind, blob, metadata) for i, (kind, blob) in enumerate(blobs)]
    columns = ("thread_id", "checkpoint_ns", "checkpoint_id", "type", "checkpoint", "metadata")
    if world.kind == "mongodb":
        with MongoClient(world.uri) as client:
            documents = [dict(zip(columns, row, strict=True)) for row in rows]
            client[world.database]["checkpoints"].insert_many(documents)
        return
    with closing(sqlite3.connect(world.folder / "checkpoints.db")) as connection, connection:
        connection.execute(f"CREATE TABLE checkpoints ({', '.join(columns)})")
        connection.executemany("INSERT INTO checkpoints VALUES (?, ?, ?, ?, ?, ?)", rows)
