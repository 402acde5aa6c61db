"""Subclasses of langchain-mongodb's history that know its rows and its collection: with its class and with ours."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import langchain_mongodb
import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, message_to_dict, messages_from_dict
from langchain_core.runnables.history import RunnableWithMessageHistory as LangChainsChain
from pymongo import AsyncMongoClient, MongoClient

import langchain_memkit
from langchain_memkit import MessageHistoryMiddleware, MongoDBChatMessageHistory, create_trim_preprocessor
from langchain_memkit.backends.mongodb import history as mongodb_history
from langchain_memkit.testing import FakeChatModel

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")

CONFIG: Any = {"configurable": {"session_id": "s1"}}
LANGCHAINS = (LangChainsChain, langchain_mongodb.MongoDBChatMessageHistory)
OURS = (langchain_memkit.RunnableWithMessageHistory, MongoDBChatMessageHistory)


def ask(chain: Any, question: Any, style: str) -> Any:
    """One turn, in either call style."""
    if style == "async":
        return asyncio.run(chain.ainvoke(question, CONFIG))
    return chain.invoke(question, CONFIG)


def texts(history: Any) -> list[str]:
    """What was said."""
    return [message.text for message in history.messages]


@pytest.fixture
def both(standalone: Any, database: str) -> Any:
    """Runs a test's function with LangChain's classes and with ours, each in a database of its own."""

    def run(function: Callable[..., Any]) -> tuple[Any, Any]:
        with MongoClient(standalone.uri) as client:
            theirs = function(*LANGCHAINS, {"client": client, "database_name": f"{database}_theirs"}, client)
            ours = function(*OURS, {"client": client, "database_name": f"{database}_ours"}, client)
        return theirs, ours

    return run


def per_user(base: Any) -> Any:
    """Documents of its own, read by the user's e-mail."""

    class PerUser(base):
        def __init__(self, uri: Any, session_id: str, email: str, **options: Any) -> None:
            super().__init__(uri, session_id, **options)
            self.email = email

        @property
        def messages(self) -> list[BaseMessage]:
            found = self.collection.find({"thread": self.session_id, "email": self.email}).sort("_id", 1)
            return messages_from_dict([json.loads(row["message"]) for row in found])

        def add_message(self, message: BaseMessage) -> None:
            row = {"thread": self.session_id, "email": self.email, "message": json.dumps(message_to_dict(message))}
            self.collection.insert_one(row)

        def clear(self) -> None:
            self.collection.delete_many({"thread": self.session_id, "email": self.email})

    return PerUser


@pytest.mark.parametrize("style", ["sync", "async"])
def test_documents_of_its_own_by_e_mail(both: Any, style: str) -> None:
    """Two users in one session: the second is told nothing of what the first one said."""

    def users(chain_class: Any, base: Any, options: dict[str, Any], client: Any) -> Any:
        kind, answers, model = per_user(base), [], FakeChatModel()
        for email, question in (("a@x", "My name is Nemo."), ("b@x", "What is my name?"), ("a@x", "What is my name?")):
            chain = chain_class(model, lambda session_id, email=email: kind(None, session_id, email, **options))
            answers.append(ask(chain, [HumanMessage(question)], style).text)
        history = kind(None, "s1", "a@x", **options)
        stored = texts(history)
        asyncio.run(history.aclear())
        left = [texts(kind(None, "s1", email, **options)) for email in ("a@x", "b@x")]
        seen = [[m.text for m in call] for call in model.calls]
        return answers, seen, stored, left, client[options["database_name"]]["message_store"].count_documents({})

    theirs, ours = both(users)
    assert ours == theirs
    assert ours[0] == ["Noted.", "You have not told me that.", "You told me: My name is Nemo."]
    assert ours[1][1] == ["What is my name?"]
    assert ours[4] == 2


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("trimmed", [False, True])
def test_documents_of_its_own_under_an_agent(standalone: Any, database: str, style: str, *, trimmed: bool) -> None:
    """The agents' middleware reads and writes them through the application as well."""
    kind, model = per_user(MongoDBChatMessageHistory), FakeChatModel()
    preprocessor = create_trim_preprocessor(max_tokens=1000) if trimmed else None
    answers = []
    for email, question in (("a@x", "My name is Nemo."), ("b@x", "What is my name?"), ("a@x", "What is my name?")):
        middleware = MessageHistoryMiddleware(
            lambda session_id, email=email: kind(standalone.uri, session_id, email, database_name=database),
            preprocessor=preprocessor,
        )
        agent = create_agent(model, [], middleware=[middleware])
        answers.append(ask(agent, {"messages": [("user", question)]}, style)["messages"][-1].text)
    assert answers == ["Noted.", "You have not told me that.", "You told me: My name is Nemo."]
    assert texts(kind(standalone.uri, "s1", "b@x", database_name=database)) == ["What is my name?", answers[1]]


def reported(base: Any, **more: Any) -> Any:
    """Stamps in `add_message`, and an admin's report over the rows of langchain-mongodb."""

    class Reported(base):
        heard: list[str] = []  # noqa: RUF012  # the application's own habit

        def __init__(self, uri: Any, session_id: str, **options: Any) -> None:
            super().__init__(uri, session_id, **options, **more)

        def add_message(self, message: BaseMessage) -> None:
            super().add_message(message.model_copy(update={"additional_kwargs": {"stamp": 1}}))
            self.heard.append(message.text)

        def report(self) -> list[Any]:
            found = self.collection.find({"SessionId": self.session_id}).sort("_id", 1)
            rows = [json.loads(row["History"])["data"] for row in found]
            return [(row["content"], row["additional_kwargs"]) for row in rows]

    return Reported


@pytest.mark.parametrize("style", ["sync", "async"])
def test_report_over_langchains_rows(both: Any, style: str, caplog: pytest.LogCaptureFixture) -> None:
    """Stamps, callbacks and the report are the same with `layout="langchain"`; without it the log tells costs."""

    def turns(chain_class: Any, base: Any, options: dict[str, Any], client: Any) -> Any:
        more = {"layout": "langchain"} if base is MongoDBChatMessageHistory else {}
        kind = reported(base, **more)
        chain = chain_class(FakeChatModel(), lambda session_id: kind(None, session_id, **options))
        for question in ("My name is Nemo.", "What is my name?"):
            ask(chain, [HumanMessage(question)], style)
        history = kind(None, "s1", **options)
        return history.report(), kind.heard, history.collection.count_documents({"SessionId": "s1"})

    theirs, ours = both(turns)
    assert ours == theirs
    assert (len(ours[0]), len(ours[1]), ours[2]) == (4, 4, 4)

    def default(chain_class: Any, base: Any, options: dict[str, Any], client: Any) -> Any:
        kind = reported(base)
        kind.__qualname__ = f"reported_{style}"
        chain = chain_class(FakeChatModel(), lambda session_id: kind(None, session_id, **options))
        ask(chain, [HumanMessage("My name is Nemo.")], style)
        history = kind(None, "s1", **options)
        return [m.additional_kwargs for m in history.messages], kind.heard

    with caplog.at_level(logging.WARNING, logger="langchain_memkit"):
        theirs, ours = both(default)
    assert ours == theirs
    said = [record.getMessage() for record in caplog.records if f"reported_{style}" in record.getMessage()]
    assert len(said) == 1
    assert "docs/subclasses.md" in said[0]


@pytest.mark.parametrize("style", ["sync", "async"])
def test_sets_the_collection(both: Any, style: str) -> None:
    """A subclass that sets `collection` has its conversation there, whichever way it is written or read."""

    def moves(base: Any) -> Any:
        class Moved(base):
            def __init__(self, uri: Any, session_id: str, **options: Any) -> None:
                super().__init__(uri, session_id, **options)
                self.collection = self.client[self.database_name]["elsewhere"]

        return Moved

    def turns(chain_class: Any, base: Any, options: dict[str, Any], client: Any) -> Any:
        kind = moves(base)
        chain = chain_class(FakeChatModel(), lambda session_id: kind(None, session_id, **options))
        for question in ("My name is Nemo.", "What is my name?"):
            answer = ask(chain, [HumanMessage(question)], style)
        history, found = kind(None, "s1", **options), client[options["database_name"]]
        full = found["elsewhere"].count_documents({}) > 0
        return (
            answer.text,
            texts(history),
            full,
            found["message_store"].count_documents({}),
            history.collection.full_name,
        )

    theirs, ours = both(turns)
    assert ours[:4] == theirs[:4]
    assert ours[:4] == (
        "You told me: My name is Nemo.",
        ["My name is Nemo.", "Noted.", "What is my name?", ours[0]],
        True,
        0,
    )
    assert ours[4].endswith("_ours.elsewhere")


def test_a_factory_of_a_subclass_that_moved(standalone: Any, database: str) -> None:
    """A factory's histories are where the subclass's constructor has put them, and so are its sessions."""

    class Moved(MongoDBChatMessageHistory):
        def __init__(self, uri: Any, session_id: str, **options: Any) -> None:
            super().__init__(uri, session_id, **options)
            self.collection = self.db["elsewhere"]

    with Moved.factory(standalone.uri, database) as histories:
        histories("s1", "u1").add_messages([HumanMessage("hi"), AIMessage("Hello")])
        asyncio.run(histories("s1", "u1").aadd_messages([HumanMessage("hi"), AIMessage("Hello")]))
        assert [session.turns for session in histories.list_sessions("u1")] == [2]
        assert histories("s1", "u1").collection_name == "elsewhere"
    with MongoClient(standalone.uri) as client:
        assert client[database].list_collection_names() == ["elsewhere"]


def test_attributes_of_langchains_class(both: Any) -> None:
    """`client`, `db`, `collection`, `history_size` and the names are there and mean the same; `history_size` is set."""

    def read(chain_class: Any, base: Any, options: dict[str, Any], client: Any) -> Any:
        history = base(None, "s1", **options, collection_name="chats", history_size=2)
        for text in "abc":
            history.add_messages([HumanMessage(text), AIMessage(text.upper())])
        history.db["other"].insert_one({})
        found = [texts(history)]
        history.history_size = 4
        found += [texts(history)]
        history.history_size = None
        found += [texts(history)]
        names = (history.collection.name, history.collection_name, history.session_id_key, history.history_key)
        assert history.db.name == history.database_name == history.collection.database.name
        assert history.client is client
        history.close = lambda: None
        return found, names, sorted(history.db.list_collection_names())

    theirs, ours = both(read)
    assert ours == theirs


def test_what_cannot_be_set_says_what_to_do(standalone: Any, database: str) -> None:
    """Client, database and names of a history that exists are refused, with the way out; so is an async collection."""
    history = MongoDBChatMessageHistory(standalone.uri, "s1", database)
    history.client, history.db, history.database_name = history.client, history.db, database  # the same is no change
    with MongoClient("localhost:1", connect=False) as client:
        for name, value in (("client", client), ("db", client["other"]), ("database_name", "other")):
            with pytest.raises(AttributeError, match=rf"{name} of a .* cannot be changed: .* or set `collection`"):
                setattr(history, name, value)
    for name in ("session_id_key", "history_key"):
        with pytest.raises(AttributeError, match="give it to the constructor"):
            setattr(history, name, "other")
    with pytest.raises(TypeError, match="a collection of pymongo's MongoClient, not AsyncCollection"):
        history.collection = AsyncMongoClient(standalone.uri, connect=False)[database]["c"]
    same = history._store
    history.collection = history.collection
    assert history._store is same


def test_queries_of_its_own(standalone: Any, database: str, caplog: pytest.LogCaptureFixture, monkeypatch: Any) -> None:
    """The first look at `collection` under our layout is told its fields; `layout="langchain"` has LangChain's."""
    monkeypatch.setattr(mongodb_history, "_said", set())
    deleted = {}
    for layout in ("langchain", "turns"):
        history = MongoDBChatMessageHistory(standalone.uri, "s1", database, layout, layout=layout)  # type: ignore[arg-type]
        history.add_user_message("My name is Nemo.")
        with caplog.at_level(logging.WARNING, logger="langchain_memkit"):
            found = [history.collection.delete_many({"SessionId": "s1"}).deleted_count for _ in range(2)]
        deleted[layout] = (sum(found), len(texts(history)), len(caplog.messages))
    assert deleted == {"langchain": (1, 0, 0), "turns": (0, 1, 1)}
    for words in ("user_id, session_id, seq and messages", "SessionId and History", "layout='langchain'"):
        assert words in caplog.messages[0]
    assert "Nemo" not in caplog.text
