"""The systems that are compared, behind the same few verbs."""

from __future__ import annotations

import json
import logging
import sqlite3
import warnings
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol
from uuid import uuid4

from langchain_core.language_models import SimpleChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, message_to_dict, trim_messages
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import Runnable, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_mongodb import MongoDBChatMessageHistory as PeerHistory
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.read_concern import ReadConcern

from langchain_memkit import (
    MongoDBChatMessageHistory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
)

WINDOW = 20
TEXT = "message {}: the quick brown fox jumps over the lazy dog, and the dog goes on sleeping in the warm sun."
QUESTION = "And what does the fox do after that?"


def conversation(count: int) -> list[BaseMessage]:
    """Questions and answers in turn, without ids, about 110 characters each."""
    return [(HumanMessage, AIMessage)[i % 2](TEXT.format(i)) for i in range(count)]


class Model(SimpleChatModel):
    """Answers at once, and notes how much it was given."""

    seen: int = 0

    @property
    def _llm_type(self) -> str:
        return "benchmark"

    def _call(self, messages: list[BaseMessage], *_: Any, **__: Any) -> str:
        self.seen = len(messages)
        return "It goes home."


PROMPT = ChatPromptTemplate.from_messages([MessagesPlaceholder("chat_history"), ("human", "{input}")])
KEYS: dict[str, Any] = {"input_messages_key": "input", "history_messages_key": "chat_history"}


class Turns(Protocol):
    """What makes chain turns in sessions that were filled before."""

    name: str

    def fill(self, session: str, count: int) -> None: ...
    def turn(self, session: str) -> None: ...
    def take_back(self, session: str) -> None:
        """Brings a session back to what it held when this was first called for it."""


class History(Turns, Protocol):
    """A chat history with its chain."""

    def add(self, session: str, messages: Sequence[BaseMessage]) -> None: ...
    def last(self, session: str) -> Sequence[BaseMessage]: ...


def ask(chain: Runnable[Any, Any], model: Model, session: str) -> None:
    """One turn; the model must have been given the window and the question."""
    chain.invoke({"input": QUESTION}, {"configurable": {"session_id": session}})
    if model.seen != WINDOW + 1:
        raise AssertionError(f"the model was given {model.seen} messages, not {WINDOW + 1}")


class Memkit:
    """A memkit history: factory, `history_size=20`, `create_runnable_with_message_history`."""

    name = "memkit"

    def __init__(self, histories: Any, pairs: Callable[[str, int], None], cut: Callable[[str], None]) -> None:
        self.histories = histories
        self._pairs = pairs
        self.take_back = cut
        self._model = Model()
        self._chain = create_runnable_with_message_history(PROMPT | self._model, histories, **KEYS)
        histories.setup()

    def add(self, session: str, messages: Sequence[BaseMessage]) -> None:
        self.histories(session).add_messages(messages)

    def fill(self, session: str, count: int) -> None:
        """By one call (rows of up to 100 messages), or, if the session is named so, as rows of two messages."""
        if session.startswith("pairs"):
            self._pairs(session, count)
        else:
            self.add(session, conversation(count))

    def last(self, session: str) -> Sequence[BaseMessage]:
        found: list[BaseMessage] = self.histories(session).messages
        return found

    def turn(self, session: str) -> None:
        ask(self._chain, self._model, session)


def memkit_on_mongodb(uri: str, history_size: int | None = WINDOW) -> Memkit:
    """Memkit with its defaults."""
    logging.getLogger("langchain_memkit").setLevel(logging.ERROR)  # it says of `collection` what is known here
    histories = MongoDBChatMessageHistory.factory(uri, history_size=history_size)
    first = histories("template")
    first.add_messages(conversation(2))
    collection = first.collection

    def pairs(session: str, count: int) -> None:
        """Copies of a row that memkit wrote: 50,000 calls would take the time of the whole run."""
        (template,) = collection.find({"session_id": "template"}).limit(1)
        documents = paired_documents(template, session, count)
        collection.insert_many(documents, ordered=False)

    return Memkit(histories, pairs, cut_of(collection))


def cut_of(collection: Collection[dict[str, Any]]) -> Callable[[str], None]:
    """What brings a session of documents like memkit's back to what it held when it was first called for it."""
    ends: dict[str, int] = {}

    def cut(session: str) -> None:
        where: dict[str, Any] = {"user_id": "", "session_id": session, "seq": {"$gt": 0}}
        if session not in ends:  # called once after the session was filled
            (newest,) = collection.find(where).sort("seq", -1).limit(1)
            ends[session] = newest["seq"]
        collection.delete_many({**where, "seq": {"$gt": ends[session]}})

    return cut


def paired_documents(template: dict[str, Any], session: str, count: int) -> list[dict[str, Any]]:
    """Rows of two messages as memkit stores them: ids and positions of their own, all else as in the template."""
    texts = [message.content for message in conversation(count)]
    documents = []
    for i in range(0, count, 2):
        both = [
            {**message, "content": text, "id": str(uuid4())}
            for message, text in zip(template["messages"], texts[i : i + 2], strict=True)
        ]
        own = {"session_id": session, "seq": i // 2 + 1, "op": f"ids:{uuid4()}", "messages": both}
        documents.append({key: value for key, value in {**template, **own}.items() if key != "_id"})
    return documents


def memkit_on_sqlite(path: str, history_size: int | None = WINDOW) -> Memkit:
    """Memkit in a file; the benchmark's own connection fills and cuts."""
    histories = SQLiteChatMessageHistory.factory(path, history_size=history_size)
    histories("template").add_messages(conversation(2))
    database = sqlite3.connect(path, isolation_level=None)
    database.row_factory = sqlite3.Row
    ends: dict[str, int] = {}

    def pairs(session: str, count: int) -> None:
        template = database.execute("SELECT * FROM turns WHERE session_id = 'template'").fetchone()
        decoded = {**dict(template), "messages": json.loads(template["messages"])}
        rows = paired_documents(decoded, session, count)
        places = ", ".join(f":{name}" for name in rows[0])
        database.execute("BEGIN")
        database.executemany(
            f"INSERT INTO turns ({', '.join(rows[0])}) VALUES ({places})",  # noqa: S608  # column names of the table
            [{**row, "messages": json.dumps(row["messages"]), "checksum": None} for row in rows],
        )
        ids = [("", session, message["id"], row["seq"]) for row in rows for message in row["messages"]]
        database.executemany("INSERT INTO message_ids VALUES (?, ?, ?, ?)", ids)
        database.execute("COMMIT")

    def cut(session: str) -> None:
        if session not in ends:
            newest = database.execute("SELECT MAX(seq) FROM turns WHERE user_id = '' AND session_id = ?", (session,))
            ends[session] = newest.fetchone()[0]
        where = "user_id = '' AND session_id = ? AND seq > ?"
        database.execute(f"DELETE FROM turns WHERE {where}", (session, ends[session]))  # noqa: S608  # a constant

    return Memkit(histories, pairs, cut)


class Peer:
    """langchain-mongodb's history with langchain-core's `RunnableWithMessageHistory`, given every advantage.

    One shared client and one kept history object per session, so that a turn pays for neither connection nor index.

    Args:
        uri: With the write concern to use.
        history_size: None reads everything and cuts with `trim_messages`; a number uses the history's own option.
    """

    def __init__(self, name: str, uri: str, history_size: int | None = None) -> None:
        self.name = name
        self.client: MongoClient[dict[str, Any]] = MongoClient(uri)
        self._size = history_size
        self._kept: dict[str, PeerHistory] = {}
        self._ends: dict[str, Any] = {}
        self._model = Model()
        trimmer = trim_messages(max_tokens=WINDOW, token_counter=len, strategy="last")
        trimmed = RunnablePassthrough.assign(chat_history=itemgetter("chat_history") | trimmer)
        chain = PROMPT | self._model if history_size else trimmed | PROMPT | self._model
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # LangChain has deprecated the class
            self._chain = RunnableWithMessageHistory(chain, self.history, **KEYS)

    def history(self, session_id: str) -> PeerHistory:
        if session_id not in self._kept:
            self._kept[session_id] = PeerHistory(
                None, session_id, database_name="peer", client=self.client, history_size=self._size
            )
        return self._kept[session_id]

    def add(self, session: str, messages: Sequence[BaseMessage]) -> None:
        self.history(session).add_messages(messages)

    def fill(self, session: str, count: int) -> None:
        """Documents of its own shape, by one insert_many."""
        rows = [{"SessionId": session, "History": json.dumps(message_to_dict(m))} for m in conversation(count)]
        self.history(session).collection.insert_many(rows)

    def last(self, session: str) -> Sequence[BaseMessage]:
        return self.history(session).messages[-WINDOW:]

    def turn(self, session: str) -> None:
        ask(self._chain, self._model, session)

    def take_back(self, session: str) -> None:
        collection = self.history(session).collection
        if session not in self._ends:
            (newest,) = collection.find({"SessionId": session}).sort("_id", -1).limit(1)
            self._ends[session] = newest["_id"]
        collection.delete_many({"SessionId": session, "_id": {"$gt": self._ends[session]}})


class Floor:
    """Bare pymongo on documents like memkit's, with one index: find the newest 20 messages, insert one turn."""

    name = "floor"

    def __init__(self, memkit: Memkit) -> None:
        source = memkit.histories("template").collection
        self._template = source.find_one({"session_id": "template"})
        self._collection = source.database.client["floor"].get_collection(
            "turns", write_concern=source.write_concern, read_concern=ReadConcern("majority")
        )
        self._collection.create_index([("user_id", 1), ("session_id", 1), ("seq", 1)], unique=True)
        self.take_back = cut_of(self._collection)

    def fill(self, session: str, count: int) -> None:
        self._collection.insert_many(paired_documents(self._template, session, count))

    def turn(self, session: str) -> None:
        where = {"user_id": "", "session_id": session, "seq": {"$gt": 0}}
        newest, *_ = self._collection.find(where).sort("seq", -1).limit(WINDOW // 2).to_list()
        document = {**newest, "seq": newest["seq"] + 1, "op": str(uuid4())}
        del document["_id"]
        self._collection.insert_one(document)


class ChainAlone:
    """The prompt and the model, given the same 20 messages from memory."""

    def __init__(self) -> None:
        self._given = {"input": QUESTION, "chat_history": conversation(WINDOW)}
        self._chain = PROMPT | Model()

    def run(self) -> None:
        self._chain.invoke(self._given)
