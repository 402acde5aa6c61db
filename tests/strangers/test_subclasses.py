"""Histories that applications subclass, in the shapes of public code: with LangChain's classes and with ours, alike."""

from __future__ import annotations

import asyncio
import base64
import logging
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import langchain_mongodb
import pytest
from bson import encode
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.runnables.history import RunnableWithMessageHistory as LangChainsChain
from pydantic import Field
from pymongo import MongoClient

import langchain_memkit
from langchain_memkit import (
    ChatHistoryMemory,
    ComposedMemory,
    InMemoryChatMessageHistory,
    MessageHistoryMiddleware,
    MongoDBChatMessageHistory,
    SQLiteChatMessageHistory,
    create_conversational_rag_chain,
    create_history_preprocessor,
    create_runnable_with_message_history,
    create_trim_preprocessor,
    explain_turn,
    purge_user,
)
from langchain_memkit._histories import is_native
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.migrate import export_history, import_history, migrate
from langchain_memkit.retrievers.history import read_past
from langchain_memkit.testing import FakeChatModel

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it says so itself
    from langchain_community.chat_message_histories import SQLChatMessageHistory

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")

CONFIG: Any = {"configurable": {"session_id": "s1"}}
SECRET = "Nemo has diabetes."
QUESTIONS = [SECRET, "What is it that Nemo has?", "Thank you.", "Good bye, Nemo."]


# -- what applications do


def locked(message: BaseMessage) -> BaseMessage:
    """The message with a text that only this application reads."""
    return message.model_copy(update={"content": base64.b64encode(str(message.content).encode()).decode()})


def unlocked(message: BaseMessage) -> BaseMessage:
    """The message as it was said."""
    return message.model_copy(update={"content": base64.b64decode(str(message.content)).decode()})


def encrypts_one(base: Any) -> Any:
    """The medical app: encrypts in `add_message`, decrypts in `messages`."""

    class Encrypted(base):
        def add_message(self, message: BaseMessage) -> None:
            super().add_message(locked(message))

        @property
        def messages(self) -> list[BaseMessage]:
            return [unlocked(message) for message in super().messages]

    return Encrypted


def encrypts_one_and_loops(base: Any) -> Any:
    """Overrides both, `add_messages` as a loop over `add_message`."""

    class Looping(encrypts_one(base)):
        def add_message(self, message: BaseMessage) -> None:
            super().add_message(message)

        def add_messages(self, messages: Sequence[BaseMessage]) -> None:
            for message in messages:
                self.add_message(message)

    return Looping


def encrypts_many(base: Any) -> Any:
    """Encrypts in `add_messages` alone."""

    class Batches(base):
        def add_messages(self, messages: Sequence[BaseMessage]) -> None:
            super().add_messages([locked(message) for message in messages])

        @property
        def messages(self) -> list[BaseMessage]:
            return [unlocked(message) for message in super().messages]

    return Batches


def encrypts_both(base: Any) -> Any:
    """Encrypts in both, each through its own `super()`, as subclasses of langchain-community's SQL history do."""

    class Both(encrypts_many(base)):
        def add_message(self, message: BaseMessage) -> None:
            super().add_message(locked(message))

        def add_messages(self, messages: Sequence[BaseMessage]) -> None:
            base.add_messages(self, [locked(message) for message in messages])

    return Both


def encrypts_twins(base: Any) -> Any:
    """Encrypts in `add_messages` and in its async twin: a class for histories that are async themselves."""

    class Twins(base):
        def add_messages(self, messages: Sequence[BaseMessage]) -> None:
            super().add_messages([locked(message) for message in messages])

        async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
            await super().aadd_messages([locked(message) for message in messages])

        @property
        def messages(self) -> list[BaseMessage]:
            return [unlocked(message) for message in super().messages]

    return Twins


def encrypts_as_mixin(base: Any) -> Any:
    """Encrypts in a class of its own that knows no store, under a class that stamps in `add_messages`."""

    class Encrypting:
        def add_message(self, message: BaseMessage) -> None:
            super().add_message(locked(message))  # type: ignore[misc]

        @property
        def messages(self) -> list[BaseMessage]:
            return [unlocked(message) for message in super().messages]  # type: ignore[misc]

    class Stamping(Encrypting, base):
        def add_messages(self, messages: Sequence[BaseMessage]) -> None:
            super().add_messages([m.model_copy(update={"name": "stamped"}) for m in messages])

    return Stamping


def encrypts_on_the_object(base: Any) -> Any:
    """Puts functions onto the object, below a class that decrypts."""

    class Patched(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            plain = super().add_message
            self.add_message = lambda message: plain(locked(message))

        @property
        def messages(self) -> list[BaseMessage]:
            return [unlocked(message) for message in super().messages]

    return Patched


def encrypts_and_prunes(base: Any) -> Any:
    """Encrypts in `add_message` and keeps the newest six through `add_messages`."""

    class Pruned(encrypts_one(base)):
        def add_message(self, message: BaseMessage) -> None:
            super().add_message(message)
            if len(messages := self.messages) > 6:
                self.clear()
                self.add_messages(messages[-6:])

    return Pruned


def stamps(base: Any) -> Any:
    """Stamps and calls back in `add_message`."""

    class Stamped(base):
        heard: list[str] = []  # noqa: RUF012  # the application's own habit

        def add_message(self, message: BaseMessage) -> None:
            stamp = {**message.additional_kwargs, "stamp": "2026-01-01"}
            super().add_message(message.model_copy(update={"additional_kwargs": stamp}))
            self.heard.append(message.text)

    return Stamped


def last_four(base: Any) -> Any:
    """Shows the model the last four."""

    class LastFour(base):
        @property
        def messages(self) -> list[BaseMessage]:
            return super().messages[-4:]

    return LastFour


def prunes_async(base: Any) -> Any:
    """Keeps the newest four, in `aadd_messages`."""

    class AsyncPruned(base):
        async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
            await super().aadd_messages(messages)
            kept = (await self.aget_messages())[-4:]
            await self.aclear()
            await super().aadd_messages(kept)

    return AsyncPruned


def shows_async(base: Any) -> Any:
    """Cuts in `aget_messages`, over a class that decrypts in `messages`."""

    class Shown(encrypts_one(base)):
        async def aget_messages(self) -> list[BaseMessage]:
            return (await super().aget_messages())[-2:]

    return Shown


def only_adds(base: Any) -> Any:
    """Adds methods of its own."""

    class Counted(base):
        def count(self) -> int:
            return len(self.messages)

    return Counted


SHAPES: list[Callable[[Any], Any]] = [
    encrypts_one,
    encrypts_one_and_loops,
    encrypts_many,
    encrypts_as_mixin,
    encrypts_on_the_object,
    encrypts_and_prunes,
    stamps,
    last_four,
    prunes_async,
    shows_async,
    only_adds,
]
ENCRYPTING = [*SHAPES[:6], shows_async, encrypts_both, encrypts_twins]


# -- how it is run


class Place(NamedTuple):
    """Where histories of ours are, and how all that lies there is read as bytes."""

    kind: str
    where: str
    database: str

    def open(self, shape: Callable[[Any], Any]) -> Callable[..., Any]:
        """A function of ids that makes the application's histories."""
        if self.kind == "sqlite":
            kind = shape(SQLiteChatMessageHistory)
            return lambda session_id, **ids: kind(self.where, session_id, **ids)
        kind = shape(MongoDBChatMessageHistory)
        return lambda session_id, **ids: kind(self.where, session_id, self.database, **ids)

    def factory(self, shape: Callable[[Any], Any]) -> Any:
        """The factory of the application's class."""
        if self.kind == "sqlite":
            return shape(SQLiteChatMessageHistory).factory(self.where)
        return shape(MongoDBChatMessageHistory).factory(self.where, self.database)

    def content(self) -> bytes:
        """All that is stored, as it lies there."""
        if self.kind == "sqlite":
            return b"".join(path.read_bytes() for path in Path(self.where).parent.iterdir() if path.is_file())
        with MongoClient(self.where) as client:
            found = client[self.database]
            return b"".join(encode(row) for name in found.list_collection_names() for row in found[name].find())


@pytest.fixture(params=["sqlite", "mongodb"])
def place(request: pytest.FixtureRequest, tmp_path: Path, database: str) -> Place:
    """Both stores."""
    if request.param == "sqlite":
        (tmp_path / "ours").mkdir()
        return Place("sqlite", str(tmp_path / "ours" / "chat.db"), "")
    return Place("mongodb", request.getfixturevalue("standalone").uri, f"{database}_ours")


def run(function: Callable[[], Any]) -> Any:
    """The result, awaited if need be."""
    result = function()
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


def kind_of(message: BaseMessage) -> str:
    """Whose message it is: core's chain stores a streamed answer as a chunk, ours as a message."""
    return message.type.removesuffix("MessageChunk").lower()


class Outcome(NamedTuple):
    """What a user, a model and an application see of some turns."""

    answers: list[str]
    seen: list[list[tuple[str, str]]]
    messages: list[tuple[str, Any, str | None, dict[str, Any]]]


def converse(chain_class: Any, histories: Callable[..., Any], style: str, *, stream: bool = False) -> Outcome:
    """Four turns of a chain, and what the history holds then."""
    model = FakeChatModel()
    prompt = ChatPromptTemplate([MessagesPlaceholder("history"), ("human", "{input}")])
    keys = {"input_messages_key": "input", "history_messages_key": "history"}
    chain = chain_class(prompt | model, lambda session_id: histories(session_id), **keys)

    async def turns() -> list[str]:
        if stream:
            return ["".join([c.text async for c in chain.astream({"input": q}, CONFIG)]) for q in QUESTIONS]
        return [(await chain.ainvoke({"input": q}, CONFIG)).text for q in QUESTIONS]

    if style == "async":
        answers = asyncio.run(turns())
    elif stream:
        answers = ["".join(c.text for c in chain.stream({"input": q}, CONFIG)) for q in QUESTIONS]
    else:
        answers = [chain.invoke({"input": q}, CONFIG).text for q in QUESTIONS]
    seen = [[(kind_of(m), m.text) for m in call] for call in model.calls]
    messages = [(kind_of(m), m.content, m.name, m.additional_kwargs) for m in histories("s1").messages]
    return Outcome(answers, seen, messages)


@pytest.mark.parametrize("stream", [False, True], ids=["invoke", "stream"])
@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_behaves_as_with_langchain(
    place: Place, standalone: Any, database: str, shape: Any, style: str, *, stream: bool
) -> None:
    """Answers, what the model was given and what is stored are those of langchain-mongodb's class in core's chain."""
    with MongoClient(standalone.uri) as client:
        kind = shape(langchain_mongodb.MongoDBChatMessageHistory)
        theirs = lambda session_id: kind(None, session_id, database, client=client)  # noqa: E731
        wanted = converse(LangChainsChain, theirs, style, stream=stream)
        got = converse(langchain_memkit.RunnableWithMessageHistory, place.open(shape), style, stream=stream)
    assert got == wanted
    if shape not in (last_four, shows_async, encrypts_and_prunes) and not (shape is prunes_async and style == "async"):
        assert len(got.messages) == 8


@pytest.mark.parametrize("style", ["sync", "async"])
def test_encrypting_in_both_is_as_with_langchains_sql_history(place: Place, tmp_path: Path, style: str) -> None:
    """A subclass written for a class that stores by itself in both methods encrypts once."""
    kind = encrypts_both(SQLChatMessageHistory)
    url = f"sqlite:///{tmp_path / 'theirs.db'}"
    opened: dict[str, Any] = {}

    def theirs(session_id: str) -> Any:
        return opened.setdefault(session_id, kind(session_id, connection=url))

    wanted = converse(LangChainsChain, theirs, "sync")  # that class has no async methods over a plain engine
    theirs("s1").engine.dispose()
    got = converse(langchain_memkit.RunnableWithMessageHistory, place.open(encrypts_both), style)
    assert got == wanted
    assert len(got.messages) == 8


# -- nothing in plain text


class Papers(BaseRetriever):
    """A retriever that finds one paper."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [Document("Insulin lowers it.", id="d1")]


def chain_of(histories: Any) -> Any:
    """A chain."""
    return create_runnable_with_message_history(FakeChatModel(), histories)


def rag_chain_of(histories: Any) -> Any:
    """A RAG chain."""
    return create_conversational_rag_chain(FakeChatModel(), Papers(), histories)


def agent_of(histories: Any) -> Any:
    """An agent."""
    return create_agent(FakeChatModel(), [], middleware=[MessageHistoryMiddleware(histories)])


def input_of(door: Any, question: str) -> Any:
    """A question as a door takes it."""
    if door is agent_of:
        return {"messages": [("user", question)]}
    return {"input": question} if door is rag_chain_of else question


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("door", [chain_of, rag_chain_of, agent_of], ids=lambda door: door.__name__)
@pytest.mark.parametrize("shape", ENCRYPTING, ids=lambda shape: shape.__name__)
def test_nothing_is_stored_in_plain_text(place: Place, shape: Any, door: Any, style: str) -> None:
    """Chain, RAG chain and agent store what the application encrypts, and read it through the application."""
    histories = place.open(shape)
    chain = door(lambda session_id: histories(session_id))

    async def turns() -> None:
        for question in QUESTIONS:
            await chain.ainvoke(input_of(door, question), CONFIG)

    if style == "async":
        asyncio.run(turns())
    else:
        for question in QUESTIONS:
            chain.invoke(input_of(door, question), CONFIG)
    content = place.content()
    assert b"diabetes" not in content
    assert base64.b64encode(b"Good bye, Nemo.") in content  # which cannot pass if nothing was stored
    stored = [m.text for m in histories("s1").messages]
    assert stored[-2] == "Good bye, Nemo."
    assert shape is encrypts_and_prunes or stored[0] == SECRET
    assert asyncio.run(histories("s1").aget_messages())[-2].text == "Good bye, Nemo."


@pytest.mark.parametrize("shape", ENCRYPTING, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("verb", ["add_user_message", "add_message", "add_messages", "aadd_messages"])
def test_each_method_encrypts(place: Place, shape: Any, verb: str) -> None:
    """By whatever method an application adds a message: it is encrypted once, and read back as it was."""
    history = place.open(shape)("s1")
    given: Any = {"add_user_message": SECRET, "add_message": HumanMessage(SECRET)}.get(verb, [HumanMessage(SECRET)])
    run(lambda: getattr(history, verb)(given))
    assert b"diabetes" not in place.content()
    assert [m.content for m in history.messages] == [SECRET]
    assert [m.content for m in asyncio.run(history.aget_messages())] == [SECRET]
    assert SECRET in str(history)


def test_other_readers_and_writers_go_through_the_application(place: Place, tmp_path: Path) -> None:
    """Memories, retrievers, export, import and migrate read and write what the application encrypts as it does."""
    histories = place.factory(encrypts_one)
    memory = ChatHistoryMemory(histories("s1", "u1"))
    memory.save([HumanMessage(SECRET), AIMessage("Noted.")])
    assert [m.text for m in memory.load()] == [SECRET, "Noted."]
    assert [m.text for m in asyncio.run(memory.aload())] == [SECRET, "Noted."]
    assert [m.text for m in read_past(histories("s1", "u1"), "").sync()] == [SECRET, "Noted."]
    trimmed = create_trim_preprocessor(max_tokens=1000)
    config: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
    seen = explain_turn(
        create_runnable_with_message_history(FakeChatModel(), histories, preprocessor=trimmed), "?", config
    )
    assert [m.text for m in seen.messages] == [SECRET, "Noted.", "?"]
    exported = tmp_path / "export.jsonl"
    report = export_history(histories, exported, progress=False)
    assert (report.messages, report.skipped) == (2, [])
    assert "diabetes" in exported.read_text()  # an export is what the conversations say
    others = SQLiteChatMessageHistory.factory(tmp_path / "other.db")
    for _ in range(2):
        assert migrate(histories, others, progress=False).skipped == []
        assert [m.text for m in others("s1", "u1").messages] == [SECRET, "Noted."]
    for _ in range(2):  # the messages' ids tell what is there
        import_history(histories, exported, progress=False)
        assert migrate(others, histories, progress=False).skipped == []
        assert [m.text for m in histories("s1", "u1").messages] == [SECRET, "Noted."]
    assert b"diabetes" not in place.content()
    with pytest.raises(ConfigurationError, match="move to another place"):
        migrate(histories, place.factory(encrypts_one), user_id="u2", progress=False)
    histories.close()
    others.close()


def test_memories_beside_it_keep_the_turn(place: Place) -> None:
    """A memory that is told of a turn is not told to forget it because the application stored it under other ids."""

    def renames(base: Any) -> Any:
        class Renamed(base):
            def add_message(self, message: BaseMessage) -> None:
                super().add_message(message.model_copy(update={"id": None}))

        return Renamed

    told: list[str] = []

    class Told(ChatHistoryMemory):
        def save(self, messages: Sequence[BaseMessage]) -> None:
            told.extend(m.text for m in messages)

        def forget_messages(self, ids: Sequence[str]) -> None:
            told.clear()

        async def aforget_messages(self, ids: Sequence[str]) -> None:
            told.clear()

    history = place.open(renames)("s1")
    beside = Told(SQLiteChatMessageHistory(":memory:", "s1"))
    memory = ComposedMemory(ChatHistoryMemory(history), beside)
    memory.save([HumanMessage("hi", id="a"), AIMessage("Hello", id="b")])
    assert told == ["hi", "Hello"]
    create_runnable_with_message_history(FakeChatModel(), lambda session_id: history, memories=[beside]).invoke(
        "x", CONFIG
    )
    assert told == ["hi", "Hello", "x", "Noted."]


def test_summaries_are_of_what_the_application_reads(place: Place) -> None:
    """A summarizing preprocessor is given decrypted messages, and its summary serves the next turn."""
    asked: list[str] = []

    def summarize(prompt: Any) -> AIMessage:
        asked.append(str(prompt))
        return AIMessage("They spoke of Nemo.")

    keep = create_history_preprocessor(
        RunnableLambda(summarize), max_tokens=60, trigger=("messages", 4), keep=("messages", 2)
    )
    histories, model = place.open(encrypts_one), FakeChatModel()
    chain = create_runnable_with_message_history(model, lambda session_id: histories(session_id), preprocessor=keep)
    for question in QUESTIONS:
        chain.invoke(question, CONFIG)
    assert any("diabetes" in text for text in asked)
    assert any("They spoke of Nemo." in m.text for m in model.calls[-1])


# -- clear, purge, factories


def test_clear_and_purge_call_the_application(place: Place) -> None:
    """An overridden `clear` runs in sync and async, in a memory's clear, and for each session of a purge."""
    cleared: list[str] = []

    def audits(base: Any) -> Any:
        class Audited(base):
            def clear(self) -> None:
                cleared.append(self.session_id)
                super().clear()

        return Audited

    histories = place.factory(audits)
    for session in ("s1", "s2", "s3", "s4"):
        histories(session, "u1").add_messages([HumanMessage("hi"), AIMessage("Hello")])
    histories("s1", "u1").clear()
    asyncio.run(histories("s2", "u1").aclear())
    ChatHistoryMemory(histories("s2", "u1")).clear()
    assert cleared == ["s1", "s2", "s2"]
    assert purge_user("u1", histories) == [{"sessions": 2, "turns": 2}]
    assert sorted(cleared[3:]) == ["s3", "s4"]
    histories("s5", "u1").add_user_message("hi")
    assert asyncio.run(histories.apurge("u1")) == {"sessions": 1, "turns": 1}
    assert (cleared[-1], histories.list_sessions("u1")) == ("s5", [])
    for factory in (histories, place.factory(only_adds)):
        for purge in (factory.purge, factory.apurge):
            with pytest.raises(TypeError, match="user_id must be a str"):
                run(lambda purge=purge: purge({"$gt": ""}))
    histories.close()


def test_factory_hands_out_the_subclass(place: Place) -> None:
    """`Subclass.factory` makes the subclass, with what its constructor takes and does for each session."""

    def keyed(base: Any) -> Any:
        class Keyed(base):
            def __init__(self, where: Any, session_id: str, *args: Any, key: str, **kwargs: Any) -> None:
                super().__init__(where, session_id, *args, **kwargs)
                self.label = f"{key}/{session_id}"

        return Keyed

    if place.kind == "sqlite":
        kind, names = keyed(SQLiteChatMessageHistory), ()
    else:
        kind, names = keyed(MongoDBChatMessageHistory), (place.database,)
    with kind.factory(place.where, *names, key="k", history_size=2) as histories:
        history = histories("s1", "u1")
        assert (type(history), history.label, history.history_size) == (kind, "k/s1", 2)
        history.add_messages([HumanMessage("hi"), AIMessage("Hello")])
        assert len(histories("s1", "u1").messages) == 2
        assert histories("s1", "u2").messages == []
    assert type(place.factory(only_adds)("s1")).__name__ == "Counted"


def test_factory_in_memory_and_with_other_constructors() -> None:
    """A subclass's histories share one in-memory database; constructors that a factory cannot call are refused."""

    class Labelled(SQLiteChatMessageHistory):
        def __init__(self, path: Any, session_id: str) -> None:
            super().__init__(path, session_id)
            self.label = session_id

    class Turned(SQLiteChatMessageHistory):
        def __init__(self, session_id: str, path: Any) -> None:
            super().__init__(path, session_id)

    with Labelled.factory(":memory:") as histories:
        histories("s1").add_user_message("hi")
        assert (len(histories("s1").messages), histories("s1").label) == (1, "s1")
        with pytest.raises(ConfigurationError, match=r"takes no user_id, so users would share.*lambda session_id"):
            histories("s1", "u1")
    with pytest.raises(ConfigurationError, match="Give a function in place of the factory"):
        Turned.factory(":memory:")


# -- refusals


def test_a_history_stays_with_its_session(place: Place) -> None:
    """What a manager sets is refused, in words that name the way out, and nothing goes to the wrong session."""
    history = place.open(only_adds)("one", user_id="u1")
    history.session_id = "one"  # as a constructor of a subclass may do
    for name, value in (("session_id", "two"), ("user_id", "u2"), ("user_id", None)):
        with pytest.raises(AttributeError, match=rf"{name} of a Counted cannot be changed: .*constructor or the fact"):
            setattr(history, name, value)
    assert (history.session_id, history.user_id) == ("one", "u1")


def test_a_constructor_may_set_what_ours_sets(place: Place) -> None:
    """A subclass that assigns before it calls our constructor works, as with LangChain's classes."""

    def assigns(base: Any) -> Any:
        class Assigning(base):
            def __init__(self, where: Any, session_id: str, *args: Any, **kwargs: Any) -> None:
                self.session_id = session_id
                self.client = self.db = self.collection = None
                super().__init__(where, session_id, *args, **kwargs)

        return Assigning

    history = place.open(assigns)("s1")
    history.add_user_message("hi")
    assert (history.session_id, len(history.messages)) == ("s1", 1)


def test_an_add_message_that_calls_itself_is_refused(place: Place) -> None:
    """`add_message` through `add_messages` recursed with langchain-mongodb; here the error says what to call."""

    def recurses(base: Any) -> Any:
        class Recursing(base):
            def add_message(self, message: BaseMessage) -> None:
                super().add_messages([locked(message)])

        return Recursing

    history = place.open(recurses)("s1")
    for call in (
        lambda: history.add_message(HumanMessage("hi")),
        lambda: history.add_messages([HumanMessage("hi")]),
        lambda: history.aadd_messages([HumanMessage("hi")]),
    ):
        with pytest.raises(ConfigurationError, match=r"call super\(\)\.add_message\(message\) there, or override"):
            run(call)
    assert history.messages == []


# -- what is native


def test_the_log_says_it_once(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A class that is used through its methods is named once, with the cost and the better place."""

    def halves(base: Any) -> Any:
        class Halved(base):
            def add_message(self, message: BaseMessage) -> None:
                super().add_message(message)

        Halved.__qualname__ = f"Halved_{place.kind}"
        return Halved

    histories = place.open(halves)
    chain = chain_of(lambda session_id: histories(session_id))
    with caplog.at_level(logging.WARNING, logger="langchain_memkit"):
        for question in QUESTIONS:
            chain.invoke(question, CONFIG)
    (line,) = [record.getMessage() for record in caplog.records]
    for words in (f"Halved_{place.kind} overrides add_message,", "a turn of its own", "before_save=", "preprocessor="):
        assert words in line
    assert "Nemo" not in line


def test_what_stays_native(place: Place) -> None:
    """Methods of its own, wrappers that delegate, watched objects and other classes with `append_turn` stay native."""
    history = place.open(only_adds)("s1")

    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    class Counting(Wrapper):
        def append_turn(self, *args: Any, **kwargs: Any) -> Any:
            return self.inner.append_turn(*args, **kwargs)

    class Other:
        messages: list[BaseMessage] = []  # noqa: RUF012  # never changed

        def append_turn(self) -> None: ...
        def view(self) -> None: ...
        def add_messages(self) -> None: ...

    class Below(Other):
        def clear(self) -> None: ...

    class Encrypting(Wrapper):
        def add_messages(self, messages: Sequence[BaseMessage]) -> None:
            self.inner.add_messages([locked(message) for message in messages])

    watched = place.open(only_adds)("s1")
    watched.append_turn = watched.append_turn
    assert [is_native(found) for found in (history, Wrapper(history), Counting(history), watched, Other())] == [
        True
    ] * 5
    assert not is_native(Encrypting(history))
    assert not is_native(Below())
    watched.clear = watched.clear
    assert not is_native(watched)


def test_a_wrapper_that_encrypts_is_not_passed_over(place: Place) -> None:
    """A wrapper with a method of its own, which leaves the rest to the history within, is used through it."""

    class Encrypting:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def add_messages(self, messages: Sequence[BaseMessage]) -> None:
            self.inner.add_messages([locked(message) for message in messages])

        async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
            await self.inner.aadd_messages([locked(message) for message in messages])

        @property
        def messages(self) -> list[BaseMessage]:
            return [unlocked(message) for message in self.inner.messages]

        async def aget_messages(self) -> list[BaseMessage]:
            return [unlocked(message) for message in await self.inner.aget_messages()]

    histories = place.open(only_adds)
    chain = chain_of(lambda session_id: Encrypting(histories(session_id)))
    chain.invoke(SECRET, CONFIG)
    assert asyncio.run(chain.ainvoke(QUESTIONS[1], CONFIG)).text == f"You told me: {SECRET}"
    assert b"diabetes" not in place.content()


# -- chains and the ways in which histories are kept


@pytest.mark.parametrize("style", ["sync", "async"])
def test_subclassed_chains_and_kept_histories(place: Place, standalone: Any, database: str, style: str) -> None:
    """A subclass of the chain, histories in a dict, and one that a manager hands out behave as with LangChain."""

    def kept(make: Callable[..., Any]) -> Callable[..., Any]:
        sessions: dict[str, Any] = {}
        return lambda session_id: sessions.setdefault(session_id, make(session_id))

    def logged(base: Any) -> tuple[Any, list[str]]:
        log: list[str] = []

        class Logging(base):
            def invoke(self, given: Any, config: Any = None, **kwargs: Any) -> Any:
                log.append("invoke")
                return super().invoke(given, config, **kwargs)

            async def ainvoke(self, given: Any, config: Any = None, **kwargs: Any) -> Any:
                log.append("ainvoke")
                return await super().ainvoke(given, config, **kwargs)

        return Logging, log

    outcomes = []
    with MongoClient(standalone.uri) as client:
        kind = only_adds(langchain_mongodb.MongoDBChatMessageHistory)
        for base, make in (
            (LangChainsChain, lambda session_id: kind(None, session_id, database, client=client)),
            (langchain_memkit.RunnableWithMessageHistory, place.open(only_adds)),
        ):
            chain, log = logged(base)
            found = converse(chain, kept(make), style)
            held = make("s2")
            outcomes.append((found, log, converse(chain, lambda session_id, held=held: held, style), held.count()))
    assert outcomes[0] == outcomes[1]
    assert outcomes[1][3] == 8


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("_get_input_messages", "before_save="),
        ("_get_output_messages", "before_save="),
        ("_enter_history", "preprocessor="),
        ("_aenter_history", "preprocessor="),
        ("_exit_history", "before_save="),
        ("_aexit_history", "before_save="),
    ],
)
def test_methods_of_a_chain_that_are_not_called_are_refused(name: str, way: str) -> None:
    """LangChain's class calls them; a subclass of ours, a mixin's too, is refused with the way out where it is made."""

    def method(self: Any, *args: Any) -> Any:
        return getattr(super(type(self), self), name)(*args)

    assert callable(getattr(type("Fine", (LangChainsChain,), {name: method}), name))
    for bases, namespace in (((), {name: method}), ((type("Mixin", (), {name: method}),), {})):
        with pytest.raises(ConfigurationError, match=rf"^Card overrides {name}, which .*{way}"):
            type("Card", (*bases, langchain_memkit.RunnableWithMessageHistory), namespace)


def test_what_is_stored_is_changed_by_the_way_out(place: Place) -> None:
    """What `_get_input_messages` does in LangChain's class, `before_save=` does; other overrides are called."""

    class Masking(LangChainsChain):
        def _get_input_messages(self, value: Any) -> list[BaseMessage]:
            return [m.model_copy(update={"content": "My card is ****."}) for m in super()._get_input_messages(value)]

    class Merging(langchain_memkit.RunnableWithMessageHistory):
        def _merge_configs(self, *configs: Any) -> Any:
            merged = super()._merge_configs(*configs)
            return {**merged, "tags": [*merged.get("tags", []), "merged"]}

    def masked(messages: list[BaseMessage]) -> list[BaseMessage]:
        return [m.model_copy(update={"content": "My card is ****."}) if m.type == "human" else m for m in messages]

    kept = InMemoryChatMessageHistory()
    histories = place.open(only_adds)
    Masking(FakeChatModel(), lambda session_id: kept).invoke("My card is 4111-1111-1111-1111.", CONFIG)
    tags: list[str] = []
    model = RunnableLambda(lambda messages, config: tags.extend(config["tags"]) or FakeChatModel().invoke(messages))
    Merging(model, histories, before_save=masked).invoke("My card is 4111-1111-1111-1111.", CONFIG)
    assert tags == ["merged"]
    assert [m.text for m in histories("s1").messages] == [m.text for m in kept.messages]
    # The whole number: four digits alone may stand in an id that was drawn at random.
    assert b"4111-1111" not in place.content()


@pytest.mark.parametrize(
    "name",
    [
        "get_session_history",
        "input_messages_key",
        "output_messages_key",
        "history_messages_key",
        "history_factory_config",
    ],
)
def test_what_a_chain_was_made_with_cannot_be_changed(name: str) -> None:
    """Its turns would not see it: set or given to `model_copy`, it is refused, and the text names the way out."""
    histories, others = (SQLiteChatMessageHistory.factory(":memory:") for _ in range(2))
    for make in (langchain_memkit.RunnableWithMessageHistory, create_runnable_with_message_history):
        chain = make(FakeChatModel(), histories)
        way = f"{name} of a chain cannot be changed.*make another chain with {name}="
        with pytest.raises(AttributeError, match=way):
            setattr(chain, name, others)
        with pytest.raises(AttributeError, match=way):
            chain.model_copy(update={name: others})
        chain.model_copy(update={"config": {"tags": ["copy"]}}).invoke(SECRET, CONFIG)
        assert chain.model_copy().invoke(QUESTIONS[1], CONFIG).text == f"You told me: {SECRET}"
        chain.custom_input_type = str
        assert chain.InputType is str
    assert len(histories("s1").messages) == 8


def test_a_chain_with_fields_of_its_own(place: Place) -> None:
    """A subclass's fields are given by name or alias, as with LangChain's class, and can be set; others are refused."""
    answers = []
    for base in (LangChainsChain, langchain_memkit.RunnableWithMessageHistory):
        kept: Any = InMemoryChatMessageHistory()

        class Tagged(base):  # type: ignore[misc, valid-type]  # either class
            tag: str = "none"
            note: str = Field(default="", alias="remark")

            def invoke(self, given: Any, config: Any = None, **kwargs: Any) -> Any:
                return self.tag, self.note, super().invoke(given, config, **kwargs).text

        chain = Tagged(FakeChatModel(), lambda session_id, kept=kept: kept, tag="y", remark="z")
        chain.tag += "!"
        answers.append(chain.invoke(SECRET, CONFIG))
    assert answers[0] == answers[1]
    assert answers[1][:2] == ("y!", "z")
    with pytest.raises(ConfigurationError, match="no such argument: tga"):
        Tagged(FakeChatModel(), place.open(only_adds), tga="y")
