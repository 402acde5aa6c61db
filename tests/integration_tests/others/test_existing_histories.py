"""Every existing history under our factory: what holds, and what does not, is written down here and in the docs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.chat_history import BaseChatMessageHistory, InMemoryChatMessageHistory
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableLambda
from langchain_mongodb import MongoDBChatMessageHistory as PeerHistory
from pymongo import MongoClient
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from langchain_memkit import (
    ChatHistoryMemory,
    EntityMemory,
    MongoDBChatMessageHistory,
    RunnableWithMessageHistory,
    SQLiteChatMessageHistory,
    create_runnable_with_message_history,
)
from langchain_memkit._sync import arun_step
from langchain_memkit.base import Window
from langchain_memkit.errors import ConfigurationError, HistoryWriteError
from langchain_memkit.retrievers.history import read_past
from langchain_memkit.testing import FakeChatModel

with warnings.catch_warnings():  # that nobody looks after it any more
    warnings.simplefilter("ignore", DeprecationWarning)
    from langchain_community import chat_message_histories as community
    from langchain_community.chat_message_histories import (
        ChatMessageHistory,
        FileChatMessageHistory,
        SQLChatMessageHistory,
    )


# core's deprecation of the class that is tested
pytestmark = pytest.mark.filterwarnings("ignore:The class `InMemoryChatMessageHistory` was deprecated")

PAGE = Path(__file__).parents[3] / "docs" / "existing_histories.md"
CONFIG: Any = {"configurable": {"session_id": "s1"}}


@dataclass
class Kind:
    """A kind of history: `histories(session_id)` makes one anew; `ruin()` lets every later write fail."""

    histories: Callable[..., Any]
    ruin: Callable[[], None] | None = None

    def chat(self, runnable: Any = None, **options: Any) -> RunnableWithMessageHistory:
        """A chain over it."""
        return create_runnable_with_message_history(runnable or FakeChatModel(), self.histories, **options)

    def stored(self, session_id: str = "s1") -> list[BaseMessage]:
        """What is stored."""
        return list(self.histories(session_id).messages)


# -- the rows: how each history is made


def sqlite_ours(folder: Path, uri: str) -> Iterator[Kind]:
    """Ours, in a file."""

    def ruin() -> None:
        with sqlite3.connect(folder / "chat.db") as connection:
            connection.execute("CREATE TRIGGER t BEFORE INSERT ON turns BEGIN SELECT RAISE(ABORT, 'ruined'); END")
        connection.close()

    with SQLiteChatMessageHistory.factory(folder / "chat.db") as histories:
        yield Kind(histories, ruin)


def refuse_writes(client: MongoClient[Any], database: str) -> None:
    """The server refuses every document from now on."""
    client[database].command("collMod", "message_store", validator={"never": {"$exists": True}})


def mongodb_ours(folder: Path, uri: str) -> Iterator[Kind]:
    """Ours, on a server."""
    database = f"others_{uuid4().hex[:12]}"
    with MongoClient(uri) as client, MongoDBChatMessageHistory.factory(uri, database) as histories:
        yield Kind(histories, lambda: refuse_writes(client, database))
        client.drop_database(database)


def mongodb_peer(folder: Path, uri: str) -> Iterator[Kind]:
    """langchain-mongodb's."""
    database = f"others_{uuid4().hex[:12]}"
    with MongoClient(uri) as client:
        yield Kind(
            lambda session_id: PeerHistory(None, session_id, database, client=client),
            lambda: refuse_writes(client, database),
        )
        client.drop_database(database)


def sql(folder: Path, uri: str) -> Iterator[Kind]:
    """langchain-community's, on SQLite, with a plain engine."""
    engine = create_engine(f"sqlite:///{folder / 'sql.db'}")

    def ruin() -> None:
        with engine.begin() as connection:
            connection.execute(text("DROP TABLE message_store"))
            connection.execute(text("CREATE TABLE message_store (id INTEGER PRIMARY KEY)"))

    SQLChatMessageHistory("first", connection=engine)  # two that create the table at once get in each other's way
    yield Kind(lambda session_id: SQLChatMessageHistory(session_id, connection=engine), ruin)
    engine.dispose()


def file(folder: Path, uri: str) -> Iterator[Kind]:
    """langchain-community's, a file for each session."""

    def ruin() -> None:
        (folder / "s1.json").unlink()
        (folder / "s1.json").mkdir()

    yield Kind(lambda session_id: FileChatMessageHistory(str(folder / f"{session_id}.json")), ruin)


def in_memory(cls: type[Any]) -> Callable[[Path, str], Iterator[Kind]]:
    """One that is its own store: the app keeps the objects, as LangChain's documentation shows."""

    def kind(folder: Path, uri: str) -> Iterator[Kind]:
        kept: dict[str, Any] = {}
        yield Kind(lambda session_id: kept.setdefault(session_id, cls()))

    return kind


ROWS: dict[str, Callable[[Path, str], Iterator[Kind]]] = {
    "memkit SQLite": sqlite_ours,
    "memkit MongoDB": mongodb_ours,
    "langchain-mongodb": mongodb_peer,
    "community SQL": sql,
    "community file": file,
    "community in-memory": in_memory(ChatMessageHistory),
    "core in-memory": in_memory(InMemoryChatMessageHistory),
}


# -- the columns: what is tried; each returns what came of it


def _remembers(kind: Kind, answer: Callable[[Any, str], str]) -> str:
    """Two turns, by two chains, in one call style."""
    assert answer(kind.chat(), "My name is Nemo.") == "Noted."
    assert answer(kind.chat(), "What is my name?") == "You told me: My name is Nemo."
    assert [m.type for m in kind.stored()] == ["human", "ai"] * 2
    assert type(kind.stored()[-1]) is AIMessage
    return "yes"


async def _astreamed(chat: Any, question: str) -> str:
    return "".join([chunk.text async for chunk in chat.astream(question, CONFIG)])


def invoke(kind: Kind) -> str:
    """`invoke`."""
    return _remembers(kind, lambda chat, question: chat.invoke(question, CONFIG).text)


def stream(kind: Kind) -> str:
    """`stream`."""
    return _remembers(kind, lambda chat, question: "".join(chunk.text for chunk in chat.stream(question, CONFIG)))


def ainvoke(kind: Kind) -> str:
    """`ainvoke`."""
    return _remembers(kind, lambda chat, question: asyncio.run(chat.ainvoke(question, CONFIG)).text)


def astream(kind: Kind) -> str:
    """`astream`."""
    return _remembers(kind, lambda chat, question: asyncio.run(_astreamed(chat, question)))


def batch(kind: Kind) -> str:
    """`batch`, several sessions."""
    configs: Any = [{"configurable": {"session_id": f"s{i}"}} for i in range(4)]
    kind.chat().batch([f"My name is Nemo {i}." for i in range(4)], configs)
    answers = kind.chat().batch(["What is my name?"] * 4, configs)
    assert [a.text for a in answers] == [f"You told me: My name is Nemo {i}." for i in range(4)]
    return "yes"


def second_object(kind: Kind) -> str:
    """A second history object sees the turn."""
    first = kind.histories("s1")
    create_runnable_with_message_history(FakeChatModel(), lambda session_id: first).invoke("Hello.", CONFIG)
    if (second := kind.histories("s1")) is first:
        assert len(second.messages) == 2
        return "no: the object is the store"
    return "yes" if len(second.messages) == 2 else "no"


def model_raises(kind: Kind) -> str:
    """A model that raises leaves nothing behind."""
    with pytest.raises(OSError, match="gone"):
        kind.chat(FakeChatModel(error=OSError("gone"))).invoke("Hello.", CONFIG)
    return "yes" if kind.stored() == [] else "no"


def abandoned(kind: Kind) -> str:
    """An abandoned stream keeps its part, marked."""
    kind.chat().invoke("My name is Nemo.", CONFIG)
    chunks = kind.chat().stream("What is my name?", CONFIG)
    assert next(chunks).text == "You "
    chunks.close()
    part = kind.stored()[-1]
    assert (part.text, len(kind.stored())) == ("You ", 4)
    return "yes" if part.response_metadata.get("memkit_status") == "aborted" else "no"


def cancelled(kind: Kind) -> str:
    """A task that is cancelled while it streams keeps its part, marked."""
    kind.chat().invoke("My name is Nemo.", CONFIG)

    async def listen(heard: asyncio.Event) -> None:
        async for _ in kind.chat(FakeChatModel(delay=0.05)).astream("What is my name?", CONFIG):
            heard.set()

    async def leave() -> None:
        heard = asyncio.Event()
        task = asyncio.create_task(listen(heard))
        await heard.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    part = kind.stored()[-1]
    assert (part.text, len(kind.stored())) == ("You ", 4)
    return "yes" if part.response_metadata.get("memkit_status") == "aborted" else "no"


def _failure(chat: RunnableWithMessageHistory, question: str) -> HistoryWriteError | None:
    try:
        chat.invoke(question, CONFIG)
    except HistoryWriteError as error:
        return error
    return None


def failing_write(kind: Kind) -> str:
    """A failing write raises, and the error holds the answer."""
    if kind.ruin is None:
        return "cannot fail"
    kind.chat().invoke("My name is Nemo.", CONFIG)
    ruin = kind.ruin

    def model(messages: list[BaseMessage]) -> AIMessage:
        ruin()
        return AIMessage("42")

    failure = _failure(kind.chat(model), "How much?")
    if failure is None:
        return "no: it is logged, and the turn is lost"
    assert failure.output.text == "42"
    return "yes"


def whole_turns(kind: Kind) -> str:
    """A turn is stored whole or not at all."""
    answer = AIMessage("Here you are.", additional_kwargs={"handle": object()})  # what few stores can keep
    failure = _failure(kind.chat(lambda messages: answer), "Open it.")
    assert failure is None or failure.output is answer
    return {0: "yes", 1: "no: half a turn", 2: "yes"}[len(kind.stored())]


def preprocessor(kind: Kind) -> str:
    """A preprocessor trims what the model sees, not what is stored."""
    model = FakeChatModel()
    chat = kind.chat(model, preprocessor=lambda messages: messages[-2:])
    for i in range(3):
        chat.invoke(f"Fact {i}.", CONFIG)
    assert [m.text for m in model.calls[-1]] == ["Fact 1.", "Noted.", "Fact 2."]
    return "yes" if len(kind.stored()) == 6 else "no"


def sessions_apart(kind: Kind) -> str:
    """Sessions are kept apart."""
    kind.chat().invoke("My name is Nemo.", CONFIG)
    answer = kind.chat().invoke("What is my name?", {"configurable": {"session_id": "s2"}})
    return "yes" if answer.text == "You have not told me that." else "no"


def users_apart(kind: Kind) -> str:
    """Users are kept apart (`user_id`)."""
    try:
        kind.chat().invoke("My name is Nemo.", {"configurable": {"session_id": "s1", "user_id": "u1"}})
    except ConfigurationError:
        return "refused"
    answer = kind.chat().invoke("What is my name?", {"configurable": {"session_id": "s1", "user_id": "u2"}})
    return "yes" if answer.text == "You have not told me that." else "no"


def _with_tools(artifact: Any) -> list[BaseMessage]:
    call = {"name": "add", "args": {"a": 1, "b": [2, {"c": None}]}, "id": "call_1", "type": "tool_call"}
    return [
        AIMessage("", tool_calls=[call], id="a1"),  # type: ignore[list-item]  # a tool call is a dict
        ToolMessage("3", tool_call_id="call_1", name="add", artifact=artifact, status="success", id="t1"),
        AIMessage("It is 3.", usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}, id="a2"),
    ]


def tool_messages(kind: Kind) -> str:
    """Tool calls, results and token counts come back."""
    said = _with_tools({"n": 3, "of": [1, 2]})
    kind.chat(lambda messages: said).invoke([HumanMessage("1 + 2?", id="q1")], CONFIG)
    return "yes" if kind.stored()[1:] == said else "no"


def exact_values(kind: Kind) -> str:
    """An artifact with tuples and int keys comes back equal."""
    said = _with_tools({"seats": (2, 3), 7: "G"})
    kind.chat(lambda messages: said).invoke([HumanMessage("1 + 2?", id="q1")], CONFIG)
    back = kind.stored()[2].artifact  # type: ignore[attr-defined]  # a tool message
    return {str({"seats": (2, 3), 7: "G"}): "yes", str({"seats": [2, 3], "7": "G"}): "no: lists, str keys"}[str(back)]


def ids_kept(kind: Kind) -> str:
    """Message ids are kept."""
    kind.chat(lambda messages: AIMessage("Hello.", id="a1")).invoke([HumanMessage("Hi.", id="q1")], CONFIG)
    return "yes" if [m.id for m in kind.stored()] == ["q1", "a1"] else "no"


def ids_given(kind: Kind) -> str:
    """Messages without an id get one."""
    kind.chat(lambda messages: AIMessage("Hello.")).invoke("Hi.", CONFIG)
    return "yes" if all(m.id for m in kind.stored()) else "no"


def sent_again(kind: Kind) -> str:
    """A client that sends the whole list, with ids, is stored once."""
    sent: list[BaseMessage] = [HumanMessage("My name is Nemo.", id="q1")]
    sent.append(kind.chat().invoke(sent, CONFIG))
    sent.append(HumanMessage("What is my name?", id="q2"))
    model = FakeChatModel()
    assert kind.chat(model).invoke(sent, CONFIG).text == "You told me: My name is Nemo."
    assert len(model.calls[0]) == 3
    return "yes" if len(kind.stored()) == 4 else "no"


def retried(kind: Kind) -> str:
    """A retry with the same `turn_id` is stored once."""
    config: Any = {"configurable": {"session_id": "s1", "turn_id": "t1"}}
    for _ in range(2):
        kind.chat().invoke("My name is Nemo.", config)
    return {2: "yes", 4: "no: stored twice"}[len(kind.stored())]


def cleared(kind: Kind) -> str:
    """A clear drops the turn that is under way."""
    kind.chat().invoke("My name is Nemo.", CONFIG)

    def model(messages: list[BaseMessage]) -> AIMessage:
        kind.histories("s1").clear()
        return AIMessage("Too late.")

    kind.chat(model).invoke("Forget me.", CONFIG)
    return {0: "yes", 2: "no: it is stored after it"}[len(kind.stored())]


def memories(kind: Kind) -> str:
    """Memories beside it are told of the turn, and recall it in another session."""
    own = SQLiteChatMessageHistory.factory(":memory:")
    people = EntityMemory.factory(own, lambda said: [word.strip(".?") for word in said.split() if word.istitle()])
    model = FakeChatModel()
    chat = create_runnable_with_message_history(
        model, lambda session_id, user_id: kind.histories(f"{user_id}-{session_id}"), memories=[people]
    )
    chat.invoke("Dory lives in Sydney.", {"configurable": {"session_id": "s1", "user_id": "u1"}})
    chat.invoke("Where is Dory?", {"configurable": {"session_id": "s2", "user_id": "u1"}})
    note, question = model.calls[-1]
    assert question.text == "Where is Dory?"
    return "yes" if "Dory lives in Sydney." in note.text else "no"


def read_of_it(kind: Kind) -> str:
    """A turn reads no more than its preprocessor needs."""
    for _ in range(30):
        kind.histories("s1").add_messages([HumanMessage("Hi."), AIMessage("Ho.")])
    seen: list[int] = []

    class Narrow(RunnableLambda):  # type: ignore[type-arg]  # of messages
        """Wants four messages, says so, and counts what it gets."""

        def window(self, config: Any) -> Window:
            """What preprocessors of ours have."""
            return Window(max_messages=4)

    chat = kind.chat(preprocessor=Narrow(lambda messages: seen.append(len(messages)) or messages))
    chat.invoke("Hello.", CONFIG)
    return "no: everything" if seen == [60] else "yes"  # whole turns, so somewhat more than four


COLUMNS = [
    invoke, stream, batch, ainvoke, astream, second_object, model_raises, abandoned, cancelled, failing_write,
    whole_turns, preprocessor, sessions_apart, users_apart, tool_messages, exact_values, ids_kept, ids_given,
    sent_again, retried, cleared, memories, read_of_it,
]  # fmt: skip

FOREIGN = {
    users_apart: "refused",
    ids_given: "no",
    retried: "no: stored twice",
    cleared: "no: it is stored after it",
    read_of_it: "no: everything",
}
AS_JSON = {exact_values: "no: lists, str keys"}
IN_MEMORY = {second_object: "no: the object is the store", failing_write: "cannot fail"}
LOOSE = {whole_turns: "no: half a turn"}

# everything else is "yes"
GAPS: dict[str, dict[Callable[[Kind], str], str]] = {
    "memkit SQLite": {},
    "memkit MongoDB": {},
    "langchain-mongodb": FOREIGN | AS_JSON | LOOSE | {failing_write: "no: it is logged, and the turn is lost"},
    "community SQL": FOREIGN | AS_JSON,
    "community file": FOREIGN | AS_JSON | LOOSE,
    "community in-memory": FOREIGN | IN_MEMORY,
    "core in-memory": FOREIGN | IN_MEMORY,
}


@pytest.fixture
def kind(request: pytest.FixtureRequest, tmp_path: Path, standalone: Any) -> Iterator[Kind]:
    """A history of the row's."""
    yield from ROWS[request.param](tmp_path, standalone.uri)


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.__name__)
@pytest.mark.parametrize(("kind", "row"), [(name, name) for name in ROWS], indirect=["kind"], ids=list(ROWS))
def test_matrix(kind: Kind, row: str, column: Callable[[Kind], str]) -> None:
    """Each history does what the table says: a gap that closes, or a new one, fails here."""
    assert column(kind) == GAPS[row].get(column, "yes")


async def test_async_engine(tmp_path: Path) -> None:
    """SQLChatMessageHistory over an async engine works with the async verbs; the sync ones say which to use."""
    engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'sql.db'}")

    def chat() -> Any:
        return create_runnable_with_message_history(
            FakeChatModel(), lambda session_id: SQLChatMessageHistory(session_id, connection=engine)
        )

    await chat().ainvoke("My name is Nemo.", CONFIG)
    assert await _astreamed(chat(), "What is my name?") == "You told me: My name is Nemo."
    with pytest.raises(ValueError, match="async mode is turned on"):
        chat().invoke("Hello.", CONFIG)
    await engine.dispose()


async def test_a_plain_engine_beside_the_chain(tmp_path: Path) -> None:
    """The async verbs of a memory and of a retriever reach SQLChatMessageHistory over a plain engine as well."""
    engine = create_engine(f"sqlite:///{tmp_path / 'sql.db'}")
    history = SQLChatMessageHistory("s1", connection=engine)
    memory = ChatHistoryMemory(history)
    await memory.asave([HumanMessage("My name is Nemo."), AIMessage("Hello.")])
    assert [m.text for m in await memory.aload()] == ["My name is Nemo.", "Hello."]
    assert [m.text for m in await arun_step(read_past(history, "?"))] == ["My name is Nemo.", "Hello."]
    await memory.aclear()
    assert history.messages == []
    engine.dispose()


VERBS = {"add_messages": 1, "aadd_messages": 1, "aget_messages": 0, "clear": 0, "aclear": 0}


@pytest.mark.parametrize("name", community.__all__)
def test_the_others_by_interface(name: str) -> None:
    """Every history of langchain-community can be made and has the verbs that the factory calls, with its arguments."""
    cls = getattr(community, name)
    assert issubclass(cls, BaseChatMessageHistory)
    assert not getattr(cls, "__abstractmethods__", ())
    assert not {"append_turn", "view"} & set(dir(cls))  # else it would be taken for one of ours
    for verb, arguments in VERBS.items():
        inspect.signature(getattr(cls, verb)).bind(*[None] * (arguments + 1))
        assert inspect.iscoroutinefunction(getattr(cls, verb)) is verb.startswith(("aa", "ag", "ac"))
    written = (cls.add_message, cls.add_messages)
    assert written != (BaseChatMessageHistory.add_message, BaseChatMessageHistory.add_messages)
    # a property, or set when it is made
    assert isinstance(inspect.getattr_static(cls, "messages", None), property) or "self.messages" in inspect.getsource(
        cls
    )


def table() -> str:
    """The matrix as it stands in the documentation."""
    head = ["", *ROWS]
    rows = [[str(column.__doc__).rstrip("."), *(GAPS[row].get(column, "yes") for row in ROWS)] for column in COLUMNS]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def test_the_documentation_has_this_table() -> None:
    """docs/existing_histories.md shows the matrix as it is."""
    assert table() in PAGE.read_text(), f"put this there:\n{table()}"
