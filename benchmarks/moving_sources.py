"""The same conversations in every kind of source that benchmarks/moving.py moves."""

from __future__ import annotations

import json
import sqlite3
import warnings
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, message_to_dict
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from pymongo import MongoClient

from langchain_memkit import MongoDBChatMessageHistory, SQLiteChatMessageHistory
from langchain_memkit.messages.codec import encode_message
from langchain_memkit.migrate import import_history

with warnings.catch_warnings():  # it says that nobody looks after it any more
    warnings.simplefilter("ignore", DeprecationWarning)
    from langchain_community.chat_message_histories import SQLChatMessageHistory

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
