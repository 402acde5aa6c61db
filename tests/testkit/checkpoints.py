"""Threads of LangGraph that are moved: real savers, a scripted model, and where they go."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from pymongo import MongoClient

from langchain_memkit import SQLiteChatMessageHistory
from langchain_memkit.migrate import langgraph_source


class Model(GenericFakeChatModel):
    """Answers from a script; takes tools."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        """The tools are in the script."""
        return self


def model(*answers: str) -> Model:
    """A model that calls the tool at "call" and says the rest."""

    def said(number: int, text: str) -> AIMessage:
        calls = [{"name": "look", "args": {"at": number}, "id": f"c{number}"}]
        return AIMessage("", tool_calls=calls) if text == "call" else AIMessage(text)

    return Model(messages=iter([said(i, text) for i, text in enumerate(answers)]))


@tool(response_format="content_and_artifact")
def look(at: int) -> tuple[str, dict[str, Any]]:
    """Looks at something."""
    return f"seen {at}", {"seen": {at}, "pair": [at, at]}


class Store:
    """A saver of a kind, and how `langgraph_source` is told where it is."""

    def __init__(self, kind: str, saver: Any, where: dict[str, Any]) -> None:
        self.kind = kind
        self.saver = saver
        self._where = where

    def source(self, **options: Any) -> Any:
        """The source."""
        return langgraph_source(**self._where, **options)


@pytest.fixture(params=["sqlite", "mongodb"])
def store(request: pytest.FixtureRequest, tmp_path: Path, standalone: Any, database: str) -> Iterator[Store]:
    """Each of the savers."""
    if request.param == "sqlite":
        with closing(sqlite3.connect(tmp_path / "checkpoints.db", check_same_thread=False)) as connection:
            yield Store("sqlite", SqliteSaver(connection), {"url_or_path": tmp_path / "checkpoints.db"})
        return
    with MongoClient(standalone.uri) as client:
        where = {"url_or_path": standalone.uri, "database_name": database}
        yield Store("mongodb", MongoDBSaver(client, database), where)


@pytest.fixture
def target(tmp_path: Path) -> Any:
    """Where it goes."""
    return SQLiteChatMessageHistory.factory(tmp_path / "memkit.db")


def config(thread: str, **more: str) -> Any:
    """A graph's config."""
    return {"configurable": {"thread_id": thread, **more}}


def ask(graph: Any, text: str, where: Any) -> list[BaseMessage]:
    """One turn; returns the state's messages."""
    graph.invoke({"messages": [HumanMessage(text)]}, where)
    return list(graph.get_state(where).values["messages"])


def shapes(history: Any) -> list[list[str]]:
    """The types of the messages, turn by turn."""
    return [[m.type for m in turn.messages] for turn in history.iter_turns()]
