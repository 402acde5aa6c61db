"""The sources of benchmarks/moving.py, and the drivers alone: rows read and rows like memkit's written, no more."""

from __future__ import annotations

import json
import sqlite3
import warnings
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import ormsgpack
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, message_to_dict
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.messages.codec import encode_message
from langchain_memkit.migrate import import_history

with warnings.catch_warnings():  # it says that nobody looks after it any more
    warnings.simplefilter("ignore", DeprecationWarning)
    from langchain_community.chat_message_histories import SQLChatMessageHistory

TURNS_AT_ONCE = 500
SESSIONS = 10
START_DATE = datetime(2026, 1, 2, tzinfo=UTC)
ANSWER = "The sea covers seven tenths of the Earth, and most of it nobody has seen. " * 3


class Sources:
    """Ten conversations of two messages a turn, everywhere.

    Args:
        folder: For files.
        uri: A server.
        messages: How many in all.
    """

    def __init__(self, folder: Path, uri: str, messages: int) -> None:
        self.messages = messages
        self.sessions = [f"s{i}" for i in range(SESSIONS)]
        self.last = [m.text for m in self.talk(self.sessions[-1])[-2:]]
        self.lines = folder / "source.jsonl"
        self._write_lines()
        self.sqlite_path = folder / "source.db"
        self.sqlite = SQLiteChatMessageHistory.factory(self.sqlite_path)
        self.turns = MongoDBChatMessageHistory.factory(uri, "sources", "turns")
        for store in (self.sqlite, self.turns):
            import_history(store, self.lines, progress=False)
        self.rows = MongoDBChatMessageHistory.factory(uri, "sources", "rows", layout="langchain")
        self._insert_rows(uri)
        self.sql = folder / "community.db"
        self._write_sql()
        self.checkpoints = folder / "checkpoints.db"
        self._write_checkpoints()

    def talk(self, session: str) -> list[BaseMessage]:
        """What was said in a session; every message is another."""
        pairs = range(self.messages // SESSIONS // 2)
        ids = f"{session}-0000-4000-8000-"
        return [
            m
            for i in pairs
            for m in (
                HumanMessage(f"What is in place {i} of {session}?", id=f"{ids}q{i:011d}"),
                AIMessage(f"{i}: {ANSWER}", id=f"{ids}a{i:011d}", response_metadata={"model_name": "fake"}),
            )
        ]

    def _write_lines(self) -> None:
        count = 0
        with self.lines.open("w") as file:
            file.write(json.dumps({"memkit": "export", "v": 1, "created_at": START_DATE.isoformat()}) + "\n")
            for session in self.sessions:
                said = self.talk(session)
                for begin in range(0, len(said), 2):
                    turn = {
                        "user_id": None,
                        "session_id": session,
                        "op": f"turn:{begin}",
                        "seq": begin // 2 + 1,
                        "created_at": (START_DATE + timedelta(minutes=begin)).isoformat(),
                        "messages": [encode_message(m) for m in said[begin : begin + 2]],
                        "tokens": [12, 60],
                        "token_counter": "approximate",
                        "v": 1,
                    }
                    file.write(json.dumps(turn) + "\n")
                    count += 1
            file.write(json.dumps({"memkit": "end", "turns": count}) + "\n")

    def _insert_rows(self, uri: str) -> None:
        with MongoClient[dict[str, str]](uri) as client:
            for session in self.sessions:
                rows = [{"SessionId": session, "History": json.dumps(message_to_dict(m))} for m in self.talk(session)]
                client["sources"]["rows"].insert_many(rows)
        self.rows.setup()

    def _write_sql(self) -> None:
        for session in self.sessions:
            history = SQLChatMessageHistory(session, connection=f"sqlite:///{self.sql}")
            history.add_messages(self.talk(session))
            history.engine.dispose()

    def _write_checkpoints(self) -> None:
        with closing(sqlite3.connect(self.checkpoints, check_same_thread=False)) as connection:
            graph = StateGraph(MessagesState).add_node("idle", lambda state: {}).add_edge(START, "idle")
            compiled = graph.compile(SqliteSaver(connection))
            for session in self.sessions:
                compiled.update_state(
                    {"configurable": {"thread_id": session}}, {"messages": self.talk(session)}, "idle"
                )


class Plain(NamedTuple):
    """A turn as rows of memkit hold it."""

    session: str
    created_at: str
    messages: list[dict[str, Any]]


class Copies:
    """Every move of benchmarks/moving.py by hand; each returns how many messages it copied.

    Args:
        folder: For files.
        uri: The server.
        sources: Where it reads.
    """

    def __init__(self, folder: Path, uri: str, sources: Sources) -> None:
        self._folder = folder
        self._sources = sources
        self._uri = uri
        self._client: MongoClient[dict[str, Any]] = MongoClient(uri, tz_aware=True)
        self._target = ""

    def new_target(self) -> None:
        """A new file and new collections, with memkit's tables and indexes."""
        self._target = uuid4().hex
        with SQLiteChatMessageHistory.factory(self._folder / f"{self._target}.db") as histories:
            histories.setup()
        for layout in ("turns", "langchain"):
            with MongoDBChatMessageHistory.factory(self._uri, layout, self._target, layout=layout) as histories:
                histories.setup()

    # -- moves

    def export(self) -> int:
        """Rows of SQLite to lines."""
        copied = 0
        with (self._folder / f"{self._target}.jsonl").open("w") as file:
            for turn in self._from_sqlite():
                file.write(json.dumps(turn._asdict(), ensure_ascii=False) + "\n")
                copied += len(turn.messages)
        return copied

    def lines_to_sqlite(self) -> int:
        """Lines to rows of SQLite."""
        with self._sources.lines.open() as file:
            found = (json.loads(line) for line in file)
            turns = (Plain(d["session_id"], d["created_at"], d["messages"]) for d in found if "messages" in d)
            return self._to_sqlite(turns)

    def sqlite_to_sqlite(self) -> int:
        """Rows of SQLite to rows of SQLite."""
        return self._to_sqlite(self._from_sqlite())

    def sqlite_to_mongodb(self) -> int:
        """Rows of SQLite to documents."""
        return self._to_mongodb(self._from_sqlite())

    def rows(self) -> int:
        """langchain-mongodb's rows to documents."""
        collection = self._client["sources"]["rows"]
        found = (row for s in self._sources.sessions for row in collection.find({"SessionId": s}).sort("_id", 1))
        return self._to_mongodb(paired((row["SessionId"], json.loads(row["History"])["data"]) for row in found))

    def back(self) -> int:
        """Documents to langchain-mongodb's rows."""
        copied = 0
        turns = self._client["sources"]["turns"]
        target = self._client["langchain"].get_collection(self._target, write_concern=WriteConcern("majority", j=True))
        for session in self._sources.sessions:
            found = turns.find({"user_id": "", "session_id": session, "seq": {"$gt": 0}}).sort("seq", 1)
            rows = [{"SessionId": session, "History": json.dumps(m)} for turn in found for m in turn["messages"]]
            for begin in range(0, len(rows), 2 * TURNS_AT_ONCE):
                target.insert_many(rows[begin : begin + 2 * TURNS_AT_ONCE])
            copied += len(rows)
        return copied

    def sql_to_sqlite(self) -> int:
        """langchain-community's rows to rows of SQLite."""
        with closing(sqlite3.connect(self._sources.sql)) as connection:
            rows = connection.execute("SELECT session_id, message FROM message_store ORDER BY session_id, id")
            return self._to_sqlite(paired((session, json.loads(text)["data"]) for session, text in rows))

    def checkpoints_to_sqlite(self) -> int:
        """Checkpoints to rows of SQLite."""
        newest = "SELECT thread_id, checkpoint, MAX(checkpoint_id) FROM checkpoints GROUP BY thread_id"
        option = ormsgpack.OPT_NON_STR_KEYS

        def data(code: int, inner: bytes) -> Any:
            return ormsgpack.unpackb(inner, ext_hook=data, option=option)[2]

        with closing(sqlite3.connect(self._sources.checkpoints)) as connection:
            found = (
                (thread, message)
                for thread, blob, _ in connection.execute(newest)
                for message in ormsgpack.unpackb(blob, ext_hook=data, option=option)["channel_values"]["messages"]
            )
            return self._to_sqlite(paired(found))

    # -- reading and writing

    def _from_sqlite(self) -> Iterator[Plain]:
        with closing(sqlite3.connect(self._sources.sqlite_path)) as connection:
            query = "SELECT session_id, created_at, messages FROM turns WHERE kind = 'turn' ORDER BY session_id, seq"
            for session, created_at, messages in connection.execute(query):
                yield Plain(session, created_at, json.loads(messages))

    def _to_sqlite(self, turns: Iterable[Plain]) -> int:
        copied = 0
        places: dict[str, int] = {}
        with closing(sqlite3.connect(self._folder / f"{self._target}.db", isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            for some in chunks(turns):
                rows, ids = [], []
                for turn in some:
                    seq = places[turn.session] = places.get(turn.session, 0) + 1
                    messages = json.dumps(turn.messages, ensure_ascii=False)
                    head = ("", turn.session, seq, f"turn:{seq}", "turn", 1, 1, 0, turn.created_at, None, 0)
                    rows.append((*head, messages, "[12, 60]", "approximate"))
                    ids += [("", turn.session, str(m.get("id")), seq) for m in turn.messages]
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(
                    "INSERT INTO turns VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL)", rows
                )
                connection.executemany("INSERT OR IGNORE INTO message_ids VALUES (?, ?, ?, ?)", ids)
                connection.execute("COMMIT")
                copied += sum(len(turn.messages) for turn in some)
        return copied

    def _to_mongodb(self, turns: Iterable[Plain]) -> int:
        copied = 0
        places: dict[str, int] = {}
        target = self._client["turns"].get_collection(self._target, write_concern=WriteConcern("majority", j=True))
        for some in chunks(turns):
            documents = []
            for turn in some:
                seq = places[turn.session] = places.get(turn.session, 0) + 1
                head = {"user_id": "", "session_id": turn.session, "seq": seq, "op": f"turn:{seq}", "kind": "turn"}
                when = datetime.fromisoformat(turn.created_at)
                tail = {
                    "createdAt": when,
                    "tokens": [12, 60],
                    "token_counter": "approximate",
                    "epoch": 1,
                    "base": 0,
                    "v": 1,
                }
                documents.append({**head, "messages": turn.messages, **tail})
            target.insert_many(documents)
            copied += sum(len(turn.messages) for turn in some)
        return copied


def chunks(turns: Iterable[Plain]) -> Iterator[list[Plain]]:
    """So many turns at once as memkit writes."""
    rest = iter(turns)
    while some := list(islice(rest, TURNS_AT_ONCE)):
        yield some


def paired(messages: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Plain]:
    """Two messages a turn."""
    rest = iter(messages)
    while pair := list(islice(rest, 2)):
        yield Plain(pair[0][0], "2026-01-02T00:00:00+00:00", [message for _, message in pair])
