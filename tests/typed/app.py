"""What a user's type checker sees: an app of every part, checked by `mypy --strict` and never run.

`make types` checks it against the tree, `make wheel` against the installed wheel, as a user has it. Each
`assert_type` names a result that must not be `Any`.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, assert_type

import pytest
from langchain.agents import create_agent
from langchain_classic.storage import create_kv_docstore
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.stores import BaseStore

import langchain_memkit
from langchain_memkit import (
    BaseChatMessageHistory,
    ChatHistoryMemory,
    ComposedMemory,
    CondenseQuestionRetriever,
    EntityMemory,
    InMemoryChatMessageHistory,
    KeyValueMemory,
    LangGraphKeyValueStore,
    Memory,
    MessageHistoryMiddleware,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    PreferenceMemory,
    RunnableWithMessageHistory,
    SpacyEntityExtractor,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    VectorMemory,
    WordLlamaEmbeddings,
    create_conversational_rag_chain,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    explain_last_turn,
    explain_stored_turn,
    explain_turn,
    find_english_preferences,
    purge_user,
    session,
    testing,
)
from langchain_memkit.base import FoundMessage, MemoryFactory, SessionInfo
from langchain_memkit.classic import as_classic_memory
from langchain_memkit.errors import HistoryWriteError, MemkitError
from langchain_memkit.explain import ModelCall, RecalledRecord, ShownMessage, TurnTrace, aexplain_turn
from langchain_memkit.memories.composed import ComposedMemoryFactory
from langchain_memkit.memories.entity import EntityMemoryFactory
from langchain_memkit.memories.key_value import KeyValueMemoryFactory
from langchain_memkit.memories.preferences import Preference
from langchain_memkit.memories.vector import Hit, HitList, VectorMemoryFactory
from langchain_memkit.migrate import (
    MigrationReport,
    amigrate,
    export_history,
    import_history,
    langchain_sql_source,
    migrate,
)
from langchain_memkit.preprocessors.summarize import HistoryPreprocessor
from langchain_memkit.preprocessors.trim import TrimPreprocessor
from langchain_memkit.stores import HistoryFactory
from langchain_memkit.testing import (
    ChatMessageHistoryContract,
    FakeChatModel,
    FrozenClock,
    KeyValueStoreContract,
    MemoryContract,
)

URI = "mongodb://localhost:27017"
CONFIG = session("s1", user_id="u1")

assert_type(CONFIG, RunnableConfig)
assert_type(session("s1", turn_id="t1", thread_id="t1", tags=["web"]), RunnableConfig)
session(7)  # type: ignore[arg-type]  # ids are strings
session("s1", "u1")  # type: ignore[call-arg]  # and are told apart by name

assert_type(langchain_memkit.__version__, str)
langchain_memkit.VektorMemory  # type: ignore[attr-defined]  # noqa: B018  # a misspelt name is an error
assert_type(langchain_memkit.testing.FakeChatModel().invoke("hi"), AIMessage)  # modules are attributes
assert_type(langchain_memkit.errors.MemkitError("no"), MemkitError)
langchain_memkit.migrate.migrate, langchain_memkit.classic.as_classic_memory  # noqa: B018  # all four
testing.FakeChatModle  # type: ignore[attr-defined]  # noqa: B018


def histories_of_both_kinds() -> None:
    """Factories give the history that they name, and a history gives messages."""
    sqlite = SQLiteChatMessageHistory.factory("chat.db", history_size=100)
    assert_type(sqlite("s1", "u1"), SQLiteChatMessageHistory)
    assert_type(sqlite("s1", "u1").messages, list[BaseMessage])
    assert_type(sqlite.list_sessions("u1", limit=5, where={"folder": "a"}), list[SessionInfo])
    assert_type(sqlite.search_messages("u1", "reef"), list[FoundMessage])
    with MongoDBChatMessageHistory.factory(URI, history_size=100) as mongodb:
        assert_type(mongodb("s1"), MongoDBChatMessageHistory)
        assert_type(mongodb("s1", "u1").messages, list[BaseMessage])
    history = MongoDBChatMessageHistory(URI, "s1", user_id="u1")
    history.add_messages([HumanMessage("hi"), AIMessage("hello")])
    history.add_user_message("hi")
    assert_type(history.tail(max_tokens=100), list[BaseMessage])
    assert_type(SQLiteChatMessageHistory("chat.db", "s1").append_turn([HumanMessage("hi")], turn_id="t1"), int)


def histories_of_langchain(sessions: dict[str, BaseChatMessageHistory], model: BaseChatModel) -> None:
    """An app annotates with LangChain's names and keeps its own kind beside ours."""

    def history_of(session_id: str) -> BaseChatMessageHistory:
        return sessions.setdefault(session_id, InMemoryChatMessageHistory())

    assert_type(InMemoryChatMessageHistory().messages, list[BaseMessage])
    sessions["s1"] = SQLiteChatMessageHistory("chat.db", "s1")
    create_runnable_with_message_history(model, history_of)


async def histories_without_blocking() -> None:
    """The async twins say the same."""
    async with SQLiteChatMessageHistory.factory("chat.db") as histories:
        assert_type(histories("s1"), SQLiteChatMessageHistory)
        assert_type(await histories("s1").aget_messages(), list[BaseMessage])
        await histories("s1").aadd_messages([HumanMessage("hi")])
        assert_type(await histories.apurge("u1"), dict[str, int])


def chains(model: BaseChatModel) -> None:
    """Both doors take a model or a chain, and return one runnable."""
    histories = SQLiteChatMessageHistory.factory("chat.db")
    fits = create_history_preprocessor(model, max_tokens=8000, store=SQLiteKeyValueStore("chat.db"))
    assert_type(fits, HistoryPreprocessor)
    assert_type(fits.invoke([HumanMessage("hi")]), list[BaseMessage])
    assert_type(create_trim_preprocessor(8000), TrimPreprocessor)
    chat = create_runnable_with_message_history(model, histories, preprocessor=fits, before_save=redacted)
    assert_type(chat, RunnableWithMessageHistory)
    chat.invoke("My name is Nemo.", CONFIG)
    chat.invoke("My name is Nemo.", session("s1"))
    chat.invoke("My name is Nemo.", {"configurable": {"session_id": "s1"}})  # a dict in its place has the type
    loose = {"configurable": {"session_id": "s1"}}
    chat.invoke("My name is Nemo.", loose)  # type: ignore[arg-type]  # a dict in a variable is a dict of anything
    with_callbacks: RunnableConfig = {**session("s1"), "callbacks": []}
    chat.invoke("My name is Nemo.", with_callbacks)
    prompt = ChatPromptTemplate.from_messages([MessagesPlaceholder("chat_history"), ("human", "{input}")])
    RunnableWithMessageHistory(
        prompt | model,
        lambda session_id: MongoDBChatMessageHistory(URI, session_id),
        input_messages_key="input",
        history_messages_key="chat_history",
    ).invoke({"input": "hi"}, CONFIG)
    for _ in chat.stream("hi", CONFIG):
        pass


def redacted(messages: list[BaseMessage]) -> list[BaseMessage]:
    """A `before_save`."""
    return messages


def errors(chat: RunnableWithMessageHistory) -> str:
    """Ours have one root, and say what is known."""
    try:
        return str(chat.invoke("hi", CONFIG))
    except HistoryWriteError as error:
        assert_type(error.maybe_stored, bool)
        return str(error.output)
    except MemkitError as error:
        return str(error)


def views(chat: RunnableWithMessageHistory, histories: HistoryFactory[SQLiteChatMessageHistory]) -> None:
    """A trace is data with types."""
    seen = explain_turn(chat, "What is my name?", CONFIG)
    assert_type(seen, TurnTrace)
    assert_type(seen.tokens, dict[str, int])
    assert_type(seen.messages, list[ShownMessage])
    assert_type(seen.messages[0].text, str)
    assert_type(seen.recalled, list[RecalledRecord])
    assert_type(seen.recalled[0].score, float | None)
    assert_type(seen.calls, list[ModelCall])
    assert_type(seen.calls[0].usage, dict[str, Any] | None)
    assert_type(seen.to_dict(), dict[str, Any])
    assert_type(explain_last_turn(chat, CONFIG), TurnTrace | None)
    assert_type(explain_stored_turn(histories("s1", "u1")), TurnTrace | None)
    assert_type(explain_turn(chat, "What is my name?", CONFIG, run_inner=False).ran, list[str])


async def views_without_blocking(chat: RunnableWithMessageHistory) -> None:
    """The async twin says the same."""
    assert_type(await aexplain_turn(chat, "What is my name?", CONFIG), TurnTrace)


class Motto(Memory):
    """A memory of the user's own."""

    read_only = True

    def load(self, query: str = "") -> list[BaseMessage]:
        """The same to every query."""
        return [HumanMessage("Our motto: be brief.")]

    def save(self, messages: Any) -> None:
        """Nothing to keep."""

    def clear(self) -> None:
        """Nothing to forget."""


def memories(model: BaseChatModel, retriever: BaseRetriever) -> None:
    """Factories of memories give the memory that they name, and all of them go into a chain."""
    histories = SQLiteChatMessageHistory.factory("chat.db")
    vectors = VectorMemory.factory(histories, WordLlamaEmbeddings())
    assert_type(vectors, VectorMemoryFactory)
    assert_type(vectors("s1", "u1"), VectorMemory)
    assert_type(vectors("s1", "u1").index(progress=False), int)
    found = vectors("s1", "u1").search("parrot", k=3)
    assert_type(found, HitList)
    assert_type(found[0], Hit)
    assert_type(found[0].score, float)
    assert_type(found[0].date, datetime | None)
    entities = EntityMemory.factory(SQLiteChatMessageHistory.factory("chat.db"), SpacyEntityExtractor())
    assert_type(entities, EntityMemoryFactory)
    assert_type(entities("s1", "u1"), EntityMemory)
    assert_type(find_english_preferences("Never use emojis."), list[str])
    histories = SQLiteChatMessageHistory.factory("chat.db")
    wishes = PreferenceMemory.factory(histories, find=find_english_preferences)
    assert_type(wishes("s1", "u1"), PreferenceMemory)
    assert_type(wishes("s1", "u1").preferences(), list[Preference])
    books = KeyValueMemory({"The Skeleton Songs": "Poems by Arabella Dusk."})
    assert_type(books.load("Skeleton Songs"), list[BaseMessage])
    assert_type(KeyValueMemory.factory(MongoDBKeyValueStore(URI)), KeyValueMemoryFactory)
    dialogue = ChatHistoryMemory(histories("s1", "u1"))
    assert_type(ComposedMemory(dialogue, books, retriever, max_tokens=4000).load("hi"), list[BaseMessage])
    composed = ComposedMemory.factory(ChatHistoryMemory.factory(histories), entities, books, max_tokens=4000)
    assert_type(composed, ComposedMemoryFactory)
    assert_type(composed("s1", "u1"), ComposedMemory)
    as_runnable: Runnable[str, list[BaseMessage]] = RunnableLambda(books.load, books.aload)
    several: list[Memory | MemoryFactory] = [vectors, entities, books]
    create_runnable_with_message_history(model, histories, memories=several)
    create_runnable_with_message_history(
        model, histories, memories=[vectors, entities, books, Motto(), retriever, as_runnable, composed]
    )
    as_classic_memory(dialogue)


async def memories_without_blocking(memory: VectorMemory) -> None:
    """The async twins say the same."""
    assert_type(await memory.asearch("parrot"), HitList)
    assert_type(await memory.aload("parrot"), list[BaseMessage])


def stores(store: Any) -> None:
    """Key-value stores are LangChain's: of dicts, or of what the brackets say."""
    assert_type(SQLiteKeyValueStore("chat.db").mget(["a"]), list[dict[str, Any] | None])
    assert_type(SQLiteKeyValueStore[bytes]("chat.db").mget(["a"]), list[bytes | None])
    texts: BaseStore[str, Document] = MongoDBKeyValueStore(URI)
    texts.mset([("a", Document("b"))])
    create_kv_docstore(SQLiteKeyValueStore[bytes]("chat.db"))
    LangGraphKeyValueStore(store, ("memkit",)).mset([("a", {"b": 1})])


def retrieval(model: BaseChatModel, retriever: BaseRetriever) -> None:
    """A retriever for follow-up questions, and the whole way to a stored answer."""
    condensed = CondenseQuestionRetriever(retriever=retriever, llm=model)
    assert_type(condensed.invoke("Where does it leave?"), list[Document])
    rag = create_conversational_rag_chain(model, retriever, SQLiteChatMessageHistory.factory("chat.db"))
    assert_type(rag, RunnableWithMessageHistory)
    rag.invoke({"input": "Where does it leave?"}, CONFIG)


def agents(model: BaseChatModel) -> None:
    """The middleware goes into LangChain's agents."""
    histories = MongoDBChatMessageHistory.factory(URI)
    fits = create_history_preprocessor(model, max_tokens=8000)
    history = MessageHistoryMiddleware(histories, preprocessor=fits, tools=True)
    agent = create_agent(model, [], middleware=[history])
    agent.invoke({"messages": [HumanMessage("hi")]}, CONFIG)


def forgetting_and_moving() -> None:
    """Counts and reports."""
    histories = SQLiteChatMessageHistory.factory("chat.db")
    store = SQLiteKeyValueStore("chat.db")
    entities = EntityMemory.factory(histories, SpacyEntityExtractor())
    assert_type(purge_user("u1", histories, entities, store), list[Mapping[str, int]])
    report = migrate(SQLiteChatMessageHistory.factory("old.db"), histories, progress=False)
    assert_type(report, MigrationReport)
    assert_type(report.messages, int)
    assert_type(migrate(langchain_sql_source("old.db"), histories), MigrationReport)
    export_history(histories, "chat.jsonl")
    import_history(histories, "chat.jsonl")


async def moving_without_blocking() -> None:
    """The async twin says the same."""
    old, new = (SQLiteChatMessageHistory.factory(path) for path in ("old.db", "new.db"))
    assert_type(await amigrate(old, new), MigrationReport)


class TestMyHistory(ChatMessageHistoryContract):
    """The contracts are classes to subclass."""

    @pytest.fixture
    def make_history(self) -> Any:
        """Histories over one file."""
        return SQLiteChatMessageHistory.factory(":memory:")


class TestMyStore(KeyValueStoreContract):
    """The same for stores."""

    @pytest.fixture
    def make_store(self) -> Any:
        """Stores over one file."""
        return lambda **options: SQLiteKeyValueStore(":memory:", **options)


class TestMyMemory(MemoryContract):
    """The same for memories."""


def fakes() -> None:
    """What tests of the user's need."""
    assert_type(FakeChatModel().invoke("hi"), AIMessage)
    scripted = FakeChatModel(responses=["Noted.", AIMessage("hello")])
    assert_type(scripted.bind_tools([print]).invoke("hi"), AIMessage)
    assert_type(scripted.get_num_tokens_from_messages([HumanMessage("hi")]), int)
    assert_type(FrozenClock()(), datetime)
