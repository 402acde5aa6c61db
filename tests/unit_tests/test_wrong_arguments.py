"""Mistakes of the kind that everybody makes are told at once, and without what is secret."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableFieldSpec
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_memkit import (
    CondenseQuestionRetriever,
    InMemoryChatMessageHistory,
    MessageHistoryMiddleware,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    RunnableWithMessageHistory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    VectorMemory,
    create_conversational_rag_chain,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    purge_user,
    session,
)
from langchain_memkit.base import apurge_user
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate import migrate
from langchain_memkit.testing import FakeChatModel

THEIRS = pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")
URI = "mongodb://clownfish:hunter2@h1,h2/"
MODEL, HISTORIES = FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:")
RAG: Any = create_conversational_rag_chain

EMBEDDING = DeterministicFakeEmbedding(size=8)
RETRIEVER = InMemoryVectorStore(EMBEDDING).as_retriever()
PATH = Path("chat.db")


class Foreign:
    """A history of another package, which needs an address besides the session."""

    def __init__(self, session_id: str, url: str) -> None: ...


class WithDefault:
    """A history of another package, which needs a path and has a session of its own choice."""

    def __init__(self, path: str, session_id: str = "main") -> None: ...


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "swapped": (lambda: MongoDBChatMessageHistory("s1", URI), "session_id is a connection string"),
    "swapped, with a user": (lambda: SQLiteChatMessageHistory("x.db", "s1", user_id=URI), "user_id is a connection"),
    "twice": (lambda: MongoDBKeyValueStore(URI, URI), "database_name must be a str without"),
    "a blank": (lambda: MongoDBChatMessageHistory(URI, "s1", "my db"), "database_name must be"),
    "a number": (lambda: MongoDBChatMessageHistory(URI, "s1", 5), "database_name must be"),  # type: ignore[arg-type]
    "a dollar": (lambda: MongoDBChatMessageHistory(URI, "s1", "db", "$x"), "collection_name must be"),
    "misspelt": (lambda: RunnableWithMessageHistory(MODEL, HISTORIES, input_message_key="x"), "input_message_key"),
    "misspelt, in the function": (
        lambda: create_runnable_with_message_history(MODEL, HISTORIES, bevor_save=None),  # type: ignore[call-arg]
        "no such argument: bevor_save; did you mean 'before_save'",
    ),
    "misspelt, agents": (
        lambda: MessageHistoryMiddleware(HISTORIES, on_save_eror="log"),  # type: ignore[call-arg]
        "no such argument: on_save_eror; did you mean 'on_save_error'",
    ),
    "misspelt, in rag": (lambda: RAG(MODEL, lambda q: [], HISTORIES, on_save_eror="log"), "on_save_eror"),
    "no seconds": (lambda: SQLiteChatMessageHistory(":memory:", "s1", ttl="1d"), "ttl must be seconds above 0, or"),  # type: ignore[arg-type]
    "no time": (lambda: MongoDBChatMessageHistory(URI, "s1", ttl=-1), "ttl must be seconds above 0, or None to keep"),
    "quoted": (lambda: SQLiteKeyValueStore(":memory:", timeout="5"), "timeout must be seconds above 0; got '5'"),  # type: ignore[arg-type]
    "quoted, MongoDB": (lambda: MongoDBChatMessageHistory(URI, "s1", timeout="5"), "timeout must be seconds above 0"),  # type: ignore[arg-type]
    "endless": (lambda: MongoDBChatMessageHistory(URI, "s1", save_timeout=float("inf")), r"at most 9e\+09; got inf"),
    "a path": (lambda: MongoDBChatMessageHistory("chat.db", "s1"), "as in mongodb://localhost:27017, .*SQLiteChatMess"),
    "a path, factory": (lambda: MongoDBChatMessageHistory.factory(PATH), "a PosixPath does not. For a file use SQLite"),  # type: ignore[arg-type]
    "a path, keys": (lambda: MongoDBKeyValueStore(":memory:"), "For a file use .*SQLiteKeyValueStore"),
    "a path, memory": (
        lambda: VectorMemory.factory("chat.db", EMBEDDING),  # type: ignore[arg-type]
        r"histories, as in VectorMemory\.factory\(SQLiteChatMessageHistory\.factory\(.*, embedding\), not str",
    ),
    "a bare host": (lambda: MongoDBKeyValueStore("clownfish:hunter2@h1:27017"), "must begin with mongodb:// or"),
    "a URI": (lambda: SQLiteChatMessageHistory(URI, "s1"), "begins with 'mongodb:'; the classes .* begin with MongoDB"),
    "a URI, keys": (lambda: SQLiteKeyValueStore(URI), "the classes for a server begin with MongoDB"),
    "a URI, memory": (
        lambda: VectorMemory(URI, EMBEDDING, "s1", user_id="u1"),  # type: ignore[arg-type]
        "must be a factory of our histories, .*, not str",
    ),
    "a class without ids": (
        lambda: create_runnable_with_message_history(MODEL, InMemoryChatMessageHistory),
        r"InMemoryChatMessageHistory, which takes no session_id .* give lambda session_id: sessions\.setdefault\(",
    ),
    "a class without ids, agents": (
        lambda: MessageHistoryMiddleware(InMemoryChatMessageHistory),
        r"give lambda session_id: sessions\.setdefault\(session_id, InMemoryChatMessageHistory\(\)\), or SQLiteChat",
    ),
    "a class": (
        lambda: create_runnable_with_message_history(MODEL, SQLiteChatMessageHistory),
        r"needs path besides session_id: give SQLiteChatMessageHistory\.factory\(path\), or a function, as in lambda",
    ),
    "a class, drop-in": (
        lambda: RunnableWithMessageHistory(MODEL, MongoDBChatMessageHistory),
        r"give MongoDBChatMessageHistory\.factory\(connection_string\), or",
    ),
    "a class, agents": (
        lambda: MessageHistoryMiddleware(Foreign),
        r"needs url .*as in lambda session_id: Foreign",
    ),
    "a class whose session_id has a default": (
        lambda: create_runnable_with_message_history(MODEL, WithDefault),
        r"needs path besides .* lambda session_id: WithDefault\(path, session_id=session_id\)",
    ),
    "a class, memories": (
        lambda: create_runnable_with_message_history(MODEL, HISTORIES, memories=[VectorMemory]),
        r"memories\[0\] .*\(VectorMemory\.factory\(\.\.\.\)\), .* not the class VectorMemory",
    ),
    "a class, to move": (
        lambda: migrate(HISTORIES, SQLiteChatMessageHistory),
        "not the class SQLiteChatMessageHistory",
    ),  # type: ignore[arg-type]
    "a URI of SQLAlchemy": (
        lambda: SQLiteChatMessageHistory.factory("sqlite:///chat.db"),
        "give the path alone, 'chat.db'",
    ),
    "swapped, SQLAlchemy": (
        lambda: SQLiteChatMessageHistory("a", "sqlite:///x.db"),
        "session_id is a connection string",
    ),
    "swapped, no password": (
        lambda: MongoDBChatMessageHistory("a", "mongodb://h1/"),
        "session_id is a connection string",
    ),
    "not called": (
        lambda: create_runnable_with_message_history(MODEL, HISTORIES, preprocessor=create_trim_preprocessor),  # type: ignore[arg-type]
        "preprocessor is the function create_trim_preprocessor itself: call it",
    ),
    "not called, agents": (
        lambda: MessageHistoryMiddleware(HISTORIES, preprocessor=create_history_preprocessor),  # type: ignore[arg-type]
        "preprocessor is the function create_history_preprocessor itself: call it",
    ),
    "a factory not called": (
        lambda: create_runnable_with_message_history(MODEL, SQLiteChatMessageHistory.factory),
        r"is the method SQLiteChatMessageHistory\.factory itself: call it",
    ),
    "swapped arguments": (
        lambda: create_runnable_with_message_history(HISTORIES, MODEL),  # type: ignore[arg-type]
        r"the runnable is a HistoryFactory, .*comes second: create_runnable_with_message_history\(model, histories\)",
    ),
    "swapped arguments, drop-in": (
        lambda: RunnableWithMessageHistory(lambda session_id: HISTORIES(session_id), MODEL),  # type: ignore[arg-type]
        r"must be a function .*not a FakeChatModel\. Runnables come first: .*history\(model, SQLiteChat",
    ),
    "swapped arguments, both can be called": (
        lambda: create_runnable_with_message_history(HISTORIES, lambda text: "yes"),
        r"the runnable is a HistoryFactory, .*create_runnable_with_message_history\(model, histories\)",
    ),
    "a model, agents": (
        lambda: MessageHistoryMiddleware(MODEL),  # type: ignore[arg-type]
        r"not a FakeChatModel\. .*a model of an agent goes into create_agent\(model, ",
    ),
    "a file": (
        lambda: create_runnable_with_message_history(MODEL, "chat.db"),  # type: ignore[arg-type]
        r"not 'chat\.db'\. For a file write SQLiteChatMessageHistory\.factory\('chat\.db'\)$",
    ),
    "a file, drop-in": (
        lambda: RunnableWithMessageHistory(MODEL, PATH),  # type: ignore[arg-type]
        r"not a PosixPath\. For a file write SQLiteChatMessageHistory\.factory\('chat\.db'\)$",
    ),
    "a file, agents": (
        lambda: MessageHistoryMiddleware("chat.db"),  # type: ignore[arg-type]
        r"SQLiteChatMessageHistory\.factory\('chat\.db'\)$",
    ),
    "a server": (
        lambda: create_runnable_with_message_history(MODEL, URI),  # type: ignore[arg-type]
        r"not an address\. For a MongoDB server write MongoDBChatMessageHistory\.factory\(connection_string\)$",
    ),
    "another server": (
        lambda: MessageHistoryMiddleware("redis://:hunter2@h/0"),  # type: ignore[arg-type]
        r"not an address\. Give a function, as in lambda session_id: YourHistory\(session_id\)$",
    ),
    "a history": (
        lambda: create_runnable_with_message_history(MODEL, HISTORIES("s1")),  # type: ignore[arg-type]
        r"not a SQLiteChatMessageHistory, which is the history of one session\. .*SQLiteChatMessageHistory\.factory\(",
    ),
    "a history, drop-in": (
        lambda: RunnableWithMessageHistory(MODEL, MongoDBChatMessageHistory(URI, "s1")),  # type: ignore[arg-type]
        r"one session\. Write MongoDBChatMessageHistory\.factory\(\.\.\.\), which makes one for each",
    ),
    "a number, no function": (
        lambda: create_runnable_with_message_history(MODEL, 7),  # type: ignore[arg-type]
        r"not a int\. As in SQLiteChatMessageHistory\.factory\('chat\.db'\)$",
    ),
    "rag, swapped": (
        lambda: RAG(RETRIEVER, MODEL, HISTORIES),
        r"retriever is a FakeChatModel, which is a model, .*_rag_chain\(llm, retriever, histories\)",
    ),
    "rag, a retriever as the model": (
        lambda: RAG(RETRIEVER, CondenseQuestionRetriever(retriever=RETRIEVER), HISTORIES),
        "llm is a VectorStoreRetriever, which is a retriever",
    ),
    "rag, bound": (lambda: RAG(MODEL, MODEL.with_retry(), HISTORIES), "retriever is a FakeChatModel, which is a model"),
    "a retriever, swapped": (
        lambda: CondenseQuestionRetriever(retriever=MODEL, llm=RETRIEVER),
        r"retriever is a FakeChatModel, which is a model, .* CondenseQuestionRetriever\(retriever=retriever, llm=llm\)",
    ),
    "a retriever as the model": (
        lambda: CondenseQuestionRetriever(retriever=RETRIEVER, llm=RETRIEVER),
        "llm is a VectorStoreRetriever, which is a retriever",
    ),
    "a user who is no user": (
        lambda: purge_user(HISTORIES, "u1"),  # type: ignore[arg-type]
        r"the user comes first: purge_user\(user_id, histories, \.\.\.\).* Nothing was deleted",
    ),
    "text": (lambda: HISTORIES("s1").add_message("hi"), "add_user_message"),  # type: ignore[arg-type]
    "no parts": (lambda: purge_user("u1"), "without them nothing is deleted"),
    "no part": (lambda: purge_user("u1", HISTORIES, "w.db"), r"parts\[1\], a str, has no purge"),  # type: ignore[arg-type]
}


class OfTheirOwn(SQLiteChatMessageHistory):
    """A subclass that is made of a session alone."""

    def __init__(self, session_id: str, user_id: str | None = None) -> None:
        super().__init__(":memory:", session_id, user_id=user_id)


class OfTwo(OfTheirOwn):
    """One that `history_factory_config` names the arguments of."""

    def __init__(self, tenant: str, session_id: str) -> None:
        super().__init__(f"{tenant}/{session_id}")


def test_classes_that_are_functions_of_a_session() -> None:
    """A class that a call can make is taken, as LangChain takes it."""
    config: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
    assert create_runnable_with_message_history(MODEL, OfTheirOwn).invoke("hi", config)
    specs = [ConfigurableFieldSpec(id=name, annotation=str) for name in ("tenant", "session_id")]
    chat = RunnableWithMessageHistory(MODEL, OfTwo, history_factory_config=specs)
    assert chat.invoke("hi", {"configurable": {"tenant": "t", "session_id": "s1"}})


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name: str) -> None:
    """Each is a ValueError that names the argument, before anything is read or written, and shows no password."""
    make, said = MISTAKES[name]
    with pytest.raises(ValueError, match=said) as raised:
        make()
    assert "hunter2" not in f"{raised.value!r}"


async def test_nothing_is_purged_by_mistake() -> None:
    """A part that cannot forget is told before the others have forgotten; the same in async."""
    HISTORIES("s1", "u1").add_user_message("hi")
    parts: Any = (HISTORIES, object())
    with pytest.raises(ValueError, match="Nothing was deleted"):
        purge_user("u1", *parts)
    with pytest.raises(ValueError, match="Nothing was deleted"):
        await apurge_user("u1", *parts)
    assert len(HISTORIES("s1", "u1").messages) == 1


@pytest.mark.parametrize("style", ["sync", "async"])
async def test_one_message_is_no_list(style: str) -> None:
    """A message where a list belongs is refused with the way out, and nothing is stored."""
    history = HISTORIES("one")
    for value in (HumanMessage("hi"), "hi"):
        with pytest.raises(TypeError, match="pass a list"):
            history.add_messages(value) if style == "sync" else await history.aadd_messages(value)  # type: ignore[arg-type]
    assert history.messages == []


async def test_a_forgotten_return() -> None:
    """A get_session_history that returns nothing is told so, plain and async, in chains and agents."""

    def plain(session_id: str) -> Any:
        HISTORIES(session_id)

    async def asynchronous(session_id: str) -> Any:
        HISTORIES(session_id)

    for function in (plain, asynchronous):
        chat = create_runnable_with_message_history(MODEL, function)
        with pytest.raises(ConfigurationError, match=r"get_session_history returned None: .* `return` is missing"):
            await chat.ainvoke("hi", session("s1"))
    agent = create_agent(MODEL, [], middleware=[MessageHistoryMiddleware(plain)])
    for run in (create_runnable_with_message_history(MODEL, plain), agent):
        value: Any = {"messages": [("user", "hi")]} if run is agent else "hi"
        with pytest.raises(ConfigurationError, match="get_session_history returned None"):
            run.invoke(value, session("s1"))


RETURNED: dict[str, tuple[Callable[[str], Any], str]] = {
    "a list": (lambda session_id: [HumanMessage("hi")], "returned a list, which is no chat history"),
    "a dict": (lambda session_id: {"messages": []}, "returned a dict, which is no chat history"),
    "a session": (lambda session_id: session_id, "returned a str, which is no chat history"),
    "a factory": (lambda session_id: HISTORIES, "returned a HistoryFactory, which .* call it, or give it as it is"),
    "a class": (lambda session_id: InMemoryChatMessageHistory, "returned the class InMemoryChatMessageHistory.* call"),
    "a memory": (
        lambda session_id: VectorMemory(HISTORIES, EMBEDDING, session_id, user_id="u1"),
        "returned a VectorMemory, which .*memories=",
    ),
}


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("door", ["chain", "agent"])
@pytest.mark.parametrize("name", RETURNED)
async def test_what_is_returned_is_no_history(name: str, door: str, style: str) -> None:
    """The function is told what it must return, before the model is called; what it returned is not shown."""
    function, said = RETURNED[name]
    run: Any = create_runnable_with_message_history(MODEL, function)
    value: Any = "hi"
    if door == "agent":
        run, value = create_agent(MODEL, [], middleware=[MessageHistoryMiddleware(function)]), {"messages": ["hi"]}
    with pytest.raises(ConfigurationError, match=f"get_session_history {said}") as raised:
        await asyncio.to_thread(run.invoke, value, session("s1")) if style == "sync" else await run.ainvoke(
            value, session("s1")
        )
    assert "HumanMessage" not in str(raised.value)


def test_a_coroutine_where_a_history_is_due() -> None:
    """An async function is named as such in sync code."""

    async def asynchronous(session_id: str) -> Any:
        return HISTORIES(session_id)

    with pytest.raises(ConfigurationError, match="get_session_history is async, so use the async verbs: ainvoke"):
        create_runnable_with_message_history(MODEL, asynchronous).invoke("hi", session("s1"))


def test_histories_that_only_behave_like_one() -> None:
    """What has `messages` and one of the verbs is taken, whatever its class."""

    class Slim:
        def __init__(self) -> None:
            self.messages: list[Any] = []

        def add_messages(self, messages: Any) -> None:
            self.messages.extend(messages)

    class Proxy:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    slim = Slim()
    for history in (slim, Proxy(slim)):
        create_runnable_with_message_history(MODEL, lambda session_id, history=history: history).invoke(
            "hi", session("s1")
        )
    assert len(slim.messages) == 4


async def test_a_user_who_is_no_user() -> None:
    """The same in async."""
    with pytest.raises(ConfigurationError, match="the user comes first"):
        await apurge_user(HISTORIES, "u1")  # type: ignore[arg-type]


def test_addresses_that_are_ids() -> None:
    """An address without a password is an id like any other."""
    assert SQLiteChatMessageHistory(":memory:", "https://example.org/rooms/5").session_id.endswith("/5")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("userid", "user_id"),
        ("userId", "user_id"),
        ("user", "user_id"),
        ("suer_id", "user_id"),
        ("turnid", "turn_id"),
        ("threadid", "thread_id"),
        ("thread", "thread_id"),
        ("sessionId", "session_id"),
    ],
)
def test_misspelt_ids_of_a_session(name: str, meant: str) -> None:
    """They are refused, since all users would share the conversation; `configurable` takes such a key all the same."""
    with pytest.raises(ConfigurationError, match=f"has no '{name}'; did you mean '{meant}'"):
        session("s1", **{name: "u1"})
    assert session("s1", configurable={name: "u1"})["configurable"] == {name: "u1", "session_id": "s1"}


@pytest.mark.parametrize("name", ["sesion_id", "sessionId", "session"])
def test_a_misspelt_session_of_a_config(name: str) -> None:
    """A plain config is told what it has in place of the session, or of a custom key; other ids are no slip."""
    chat = create_runnable_with_message_history(MODEL, HISTORIES)
    with pytest.raises(ValueError, match=rf"\}}\)\. It has '{name}'; did you mean 'session_id'\?$"):
        chat.invoke("hi", {"configurable": {name: "s1", "user_id": "u1"}})
    with pytest.raises(ValueError, match=r"\}\)$"):
        chat.invoke("hi", {"configurable": {"user_id": "u1", "turn_id": "t1"}})
    specs = [ConfigurableFieldSpec(id="conversation_id", annotation=str)]
    own = RunnableWithMessageHistory(MODEL, HISTORIES, history_factory_config=specs)
    with pytest.raises(ValueError, match="It has 'conversationid'; did you mean 'conversation_id'"):
        own.invoke("hi", {"configurable": {"conversationid": "s1"}})


@pytest.mark.parametrize(
    "name",
    ["thread_id", "checkpoint_id", "checkpoint_ns", "thread_ts", "customer_id", "cluster_id", "user_name", "run_id"],
)
def test_other_keys_of_a_session(name: str) -> None:
    """Keys that only share an ending stay legal."""
    config = session("s1", **{name: "x"})
    assert {**config, **config["configurable"]}[name] == "x"


@THEIRS
def test_classes_that_can_be_called_with_a_session() -> None:
    """What takes the session by position is taken as it is, and so is what the refusal of others says to give."""

    class Known(InMemoryChatMessageHistory):
        def __init__(self, session_id: str) -> None:
            super().__init__(messages=[HumanMessage(f"I am in {session_id}.")])

    class Handing(Known):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)

    config: Any = {"configurable": {"session_id": "s1"}}
    for known in (Known, Handing):
        assert create_runnable_with_message_history(MODEL, known).invoke("Where?", config).text
    sessions: dict[str, Any] = {}
    chat = create_runnable_with_message_history(
        MODEL, lambda session_id: sessions.setdefault(session_id, InMemoryChatMessageHistory())
    )
    chat.invoke("My name is Nemo.", config)
    assert chat.invoke("What is my name?", config).text == "You told me: My name is Nemo."


@THEIRS
def test_a_history_of_another_package_in_place_of_a_function() -> None:
    """It is told how to keep one for each session."""
    with pytest.raises(
        ConfigurationError, match=r"of one session\. .*setdefault\(session_id, InMemoryChatMessageHistory"
    ):
        MessageHistoryMiddleware(InMemoryChatMessageHistory())  # type: ignore[arg-type]
