"""What a checkpointer keeps of a conversation, what the transcript keeps, and every documented way to keep less."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.mongodb import MongoDBSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from pymongo import MongoClient

from langchain_memkit import (
    MongoDBChatMessageHistory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
)
from langchain_memkit.messages.codec import encode_messages

PAGE = Path(__file__).parents[3] / "docs" / "langgraph.md"
TURNS = 100
QUESTION = "Question {}: what should I know about the fish of the Great Barrier Reef?"
ANSWER = "There are over 1500 species of fish on the reef. The best known of them lives in anemones. " * 3
CONFIG: Any = {"configurable": {"thread_id": "t1"}}


def graph(saver: Any = None) -> Any:
    """A graph with one node, as small as they come."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(ANSWER)]})
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def talk(chain: Any, **options: Any) -> list[BaseMessage]:
    """A hundred turns; returns the messages."""
    for i in range(TURNS):
        state = chain.invoke({"messages": [HumanMessage(QUESTION.format(i))]}, CONFIG, **options)
    return list(state["messages"])


def json_size(messages: list[BaseMessage]) -> int:
    """The messages alone, as JSON."""
    return len(json.dumps(encode_messages(messages)))


def used(connection: sqlite3.Connection) -> int:
    """Bytes of a database that are in use."""
    numbers = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count")]
    return (numbers[0] - numbers[1]) * int(connection.execute("PRAGMA page_size").fetchone()[0])


class Sqlite:
    """The saver and the transcript, each in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.connection = sqlite3.connect(folder / "saver.db", check_same_thread=False)
        self.saver = SqliteSaver(self.connection)
        self.histories = SQLiteChatMessageHistory.factory(folder / "chat.db")

    def empty(self) -> tuple[int, int]:
        """What the tables and indexes take, without content: of the saver, and of the transcript."""
        self.saver.setup()
        self.histories.setup()
        return self.saved(), self.transcript()

    def saved(self) -> int:
        """What the saver holds."""
        return used(self.connection)

    def transcript(self) -> int:
        """What the history holds."""
        with closing(sqlite3.connect(self.folder / "chat.db")) as connection:
            return used(connection)

    def keep_newest(self) -> None:
        """As documented."""
        namespace: dict[str, Any] = {}
        exec(documented("keep_newest_sqlite"), namespace)
        namespace["keep_newest"](self.connection, "t1")

    def close(self) -> None:
        """Closes both."""
        self.connection.close()
        self.histories.close()


class Mongo:
    """The saver and the transcript, each in collections of their own."""

    def __init__(self, uri: str) -> None:
        self.client: Any = MongoClient(uri)
        self.name = f"others_{uuid4().hex[:12]}"
        self.saver = MongoDBSaver(self.client, self.name)
        self.histories = MongoDBChatMessageHistory.factory(uri, self.name)

    def empty(self) -> tuple[int, int]:
        """Nothing: documents are counted."""
        return 0, 0

    def _size(self, *names: str) -> int:
        return sum(self.client[self.name].command("collStats", name)["size"] for name in names)

    def saved(self) -> int:
        """What the saver holds."""
        return self._size("checkpoints", "checkpoint_writes")

    def transcript(self) -> int:
        """What the history holds."""
        return self._size("message_store")

    def keep_newest(self) -> None:
        """As documented."""
        namespace: dict[str, Any] = {}
        exec(documented("keep_newest_mongodb"), namespace)
        namespace["keep_newest"](self.client[self.name], "t1")

    def close(self) -> None:
        """Closes both."""
        self.client.drop_database(self.name)
        self.histories.close()
        self.client.close()


@pytest.fixture(params=["SQLite", "MongoDB"])
def place(request: pytest.FixtureRequest, tmp_path: Path, standalone: Any) -> Iterator[Any]:
    """Each backend."""
    made: Any = Sqlite(tmp_path) if request.param == "SQLite" else Mongo(standalone.uri)
    made.label = request.param
    yield made
    made.close()


def documented(name: str) -> str:
    """The block of docs/langgraph.md that defines a function for a backend."""
    backend = {"keep_newest_sqlite": "connection", "keep_newest_mongodb": "database"}[name]
    (block,) = re.findall(
        rf"^```python\n(def keep_newest\({backend}.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE
    )
    return str(block)


def figures(label: str) -> dict[str, float]:
    """The table of docs/langgraph.md, in kB, for a backend."""
    rows = re.findall(r"^\| ([^|]*) \| ([\d,.]+) \| ([\d,.]+) \|$", PAGE.read_text(), re.MULTILINE)
    return {row[0]: float(row[1 if label == "SQLite" else 2].replace(",", "")) for row in rows}


def test_sizes(place: Any) -> None:
    """A saver holds a multiple of the transcript, each documented way keeps less, and the page has the figures."""
    empty = place.empty()
    messages = talk(graph(place.saver))
    measured = {"the messages, as JSON": json_size(messages), "the saver, as it comes": place.saved() - empty[0]}
    place.keep_newest()
    measured["the saver, newest checkpoint only"] = place.saved() - empty[0]
    assert graph(place.saver).get_state(CONFIG).values["messages"] == messages
    place.saver.delete_thread("t1")
    assert place.saved() - empty[0] == 0
    assert graph(place.saver).get_state(CONFIG).values == {}
    talk(graph(place.saver), durability="exit")
    measured['the saver, `durability="exit"`'] = place.saved() - empty[0]
    assert len(list(place.saver.list(CONFIG))) == TURNS
    talk(create_runnable_with_message_history(graph(), place.histories, input_messages_key="messages"))
    measured["the transcript of memkit"] = place.transcript() - empty[1]
    print({name: f"{size / 1000:,.0f}" for name, size in measured.items()})
    assert [m.text for m in place.histories("t1").messages] == [m.text for m in messages]
    assert figures(place.label) == pytest.approx({name: size / 1000 for name, size in measured.items()}, rel=0.15)


def test_what_stays_is_enough_to_resume(place: Any) -> None:
    """A run that waits for a person goes on after all but its newest checkpoint went, in a subgraph too."""
    inner: Any = StateGraph(MessagesState)
    inner.add_node("ask", lambda state: {"messages": [HumanMessage(interrupt("Shall I?"))]})
    inner.add_edge(START, "ask")
    outer: Any = StateGraph(MessagesState)
    outer.add_node("greet", lambda state: {"messages": [AIMessage("Hello.")]})
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "greet")
    outer.add_edge("greet", "inner")
    chain, other = outer.compile(checkpointer=place.saver), {"configurable": {"thread_id": "t2"}}
    for config in (CONFIG, other):
        chain.invoke({"messages": [HumanMessage("Hi.")]}, config)
    before = len(list(place.saver.list(other)))
    place.keep_newest()
    kept = [checkpoint.config["configurable"]["checkpoint_ns"] for checkpoint in place.saver.list(CONFIG)]
    assert len(kept) == len(set(kept))  # one for the graph, one for the subgraph
    assert len(list(place.saver.list(other))) == before > 1
    for config in (CONFIG, other):
        state = chain.invoke(Command(resume="Do."), config)
        assert [m.text for m in state["messages"]] == ["Hi.", "Hello.", "Do."]


@pytest.mark.parametrize("saver", [InMemorySaver, SqliteSaver, MongoDBSaver])
def test_what_the_savers_have(saver: type[BaseCheckpointSaver[Any]]) -> None:
    """`delete_thread` is there; `prune` and `delete_for_runs` are names only, as documented."""
    assert saver.delete_thread is not BaseCheckpointSaver.delete_thread
    for name in ("prune", "delete_for_runs"):
        with pytest.raises(NotImplementedError):
            getattr(saver, name)(object.__new__(saver), ["t1"])


def test_ttl_of_the_mongodb_saver(standalone: Any) -> None:
    """`ttl=` gives both collections an index that lets the server remove what is old."""
    name = f"others_{uuid4().hex[:12]}"
    with MongoClient(standalone.uri) as client:
        graph(MongoDBSaver(client, name, ttl=3600)).invoke({"messages": [HumanMessage("Hi.")]}, CONFIG)
        for collection in ("checkpoints", "checkpoint_writes"):
            indexes = client[name][collection].index_information().values()
            assert [dict(i["key"]) for i in indexes if i.get("expireAfterSeconds") == 3600] == [{"created_at": 1}]
            assert all("created_at" in document for document in client[name][collection].find())
        client.drop_database(name)
