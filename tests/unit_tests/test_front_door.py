"""What the front door says of itself: configs with ids, misspelt arguments, and what a prompt shows of an object."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler

from langchain_memkit import (
    ChatHistoryMemory,
    ComposedMemory,
    CondenseQuestionRetriever,
    EntityMemory,
    KeyValueMemory,
    MongoDBChatMessageHistory,
    RunnableWithMessageHistory,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    VectorMemory,
    WordLlamaEmbeddings,
    create_conversational_rag_chain,
    create_runnable_with_message_history,
    session,
)
from langchain_memkit.errors import ConfigurationError
from langchain_memkit.testing import FakeChatModel

URI = "mongodb://nemo:secret@localhost:27017/?authSource=admin"


@pytest.fixture
def histories() -> Any:
    """A factory in memory."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        yield factory


def test_session_is_a_config(histories: Any) -> None:
    """It is what chains take, keys of a config stand where they belong, others are configurable."""
    assert session("s1") == {"configurable": {"session_id": "s1"}}
    assert session("s1", user_id="u1", turn_id="t1", thread_id="x", tags=["web"], configurable={"a": 1}) == {
        "tags": ["web"],
        "configurable": {"a": 1, "session_id": "s1", "user_id": "u1", "turn_id": "t1", "thread_id": "x"},
    }
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    chat.invoke("My name is Nemo.", session("s1", user_id="u1"))
    assert chat.invoke("What is my name?", session("s1", user_id="u1")).text == "You told me: My name is Nemo."
    assert chat.invoke("What is my name?", session("s1", user_id="u2")).text == "You have not told me that."


async def test_session_reaches_callbacks_and_stores_once(histories: Any) -> None:
    """Callbacks are called; a call that is repeated with its `turn_id` is stored once."""
    seen: list[Any] = []

    class Tags(BaseCallbackHandler):
        def on_chain_start(self, *args: Any, **kwargs: Any) -> None:
            seen.append(kwargs["tags"])

    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    for _ in range(2):
        await chat.ainvoke("Hello!", session("s1", turn_id="t1", callbacks=[Tags()], tags=["web"]))
    assert "web" in seen[0]
    assert len(histories("s1").messages) == 2


@pytest.mark.parametrize("name", ["session_id", "user_id", "turn_id"])
@pytest.mark.parametrize("bad", [7, {"$ne": None}, "", "a\x00b", "x" * 513], ids=lambda bad: repr(bad)[:8])
def test_session_checks_ids(histories: Any, name: str, bad: Any) -> None:
    """Each bad id is refused as the chain refuses it, with the same words."""
    given = {"session_id": "s1", name: bad}
    with pytest.raises((TypeError, ValueError), match=name) as made:
        session(**given)
    chat = create_runnable_with_message_history(FakeChatModel(), histories)
    with pytest.raises(type(made.value)) as called:
        chat.invoke("Hello!", {"configurable": given})
    assert str(called.value) == str(made.value)


def test_session_needs_a_session() -> None:
    """None is no session, though it is no user and no turn."""
    with pytest.raises(TypeError, match="session_id must be a str, not NoneType"):
        session(None)  # type: ignore[arg-type]
    assert session("s1", user_id=None, turn_id=None) == session("s1")


def vectors(cls: Any = VectorMemory, **options: Any) -> Any:
    """Vector memories over histories in memory."""
    return cls.factory(SQLiteChatMessageHistory.factory(":memory:"), WordLlamaEmbeddings(), **options)


def rag(**options: Any) -> Any:
    """A RAG chain."""
    histories = SQLiteChatMessageHistory.factory(":memory:")
    return create_conversational_rag_chain(FakeChatModel(), lambda question: [], histories, **options)


MISSPELT: dict[str, tuple[Callable[[], Any], str]] = {
    "class": (
        lambda: RunnableWithMessageHistory(FakeChatModel(), SQLiteChatMessageHistory.factory(":memory:"), bevor_save=1),
        "bevor_save; did you mean 'before_save'?",
    ),
    "rag chain": (lambda: rag(max_token=100), "max_token; did you mean 'max_tokens'?"),
    "rag chain, an option": (lambda: rag(memory=[]), "memory; did you mean 'memories'?"),
    "vector memories": (lambda: vectors(max_token=3), "max_token; did you mean 'max_tokens'?"),
    "key-value memories": (
        lambda: KeyValueMemory.factory(SQLiteKeyValueStore(":memory:"), macher=print),
        "macher; did you mean 'matcher'?",
    ),
    "entries of a file": (lambda: KeyValueMemory.from_file("x.json", lookbak=1), "lookbak; did you mean 'lookback'?"),
    "composed memories": (
        lambda: ComposedMemory.factory(ChatHistoryMemory.factory(SQLiteChatMessageHistory.factory(":memory:")), max=1),
        "max; did you mean 'max_tokens'?",
    ),
    "mongodb": (
        lambda: MongoDBChatMessageHistory.factory(URI, databse_name="x"),
        "databse_name; did you mean 'database_name'?",
    ),
    "mongodb, the beginning": (
        lambda: MongoDBChatMessageHistory.factory(URI, database="x"),
        "database; did you mean 'database_name'?",
    ),
    "sqlite": (
        lambda: SQLiteChatMessageHistory.factory(":memory:", history_sise=1),
        "history_sise; did you mean 'history_size'?",
    ),
    "mongodb, an option": (lambda: MongoDBChatMessageHistory.factory(URI, tttl=60), "tttl; did you mean 'ttl'?"),
    "retriever": (
        lambda: CondenseQuestionRetriever(retriever=lambda q: [], skip_anwered=True),
        "skip_anwered; did you mean 'skip_answered'?",
    ),
}


@pytest.mark.parametrize("name", MISSPELT)
def test_misspelt_arguments(name: str) -> None:
    """Where options are handed on, a misspelt one is refused at once, and the right one is named."""
    make, said = MISSPELT[name]
    with pytest.raises(ConfigurationError) as raised:
        make()
    assert str(raised.value) == f"no such argument: {said}"


def test_arguments_of_subclasses() -> None:
    """A subclass may take more, by name or with `**kwargs`: what it knows is not refused."""

    class Named(VectorMemory):
        def __init__(
            self, histories: Any, embedding: Any, session_id: str, *, user_id: str | None = None, colour: str = "red"
        ) -> None:
            super().__init__(histories, embedding, session_id, user_id=user_id)
            self.colour = colour

    class Open(VectorMemory):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.colour = kwargs.pop("colour")
            super().__init__(*args, **kwargs)

    for cls in (Named, Open):
        assert vectors(cls, colour="blue")._memory.colour == "blue"
    with pytest.raises(ConfigurationError, match="no such argument: color; did you mean 'colour'"):
        vectors(Named, color="blue")


@pytest.mark.parametrize("place", ["sqlite", "mongodb"])
def test_arguments_of_subclassed_histories(place: str) -> None:
    """What a constructor takes before the `*` is known as well; ids are refused, since a factory serves every user."""
    base, where = {
        "sqlite": (SQLiteChatMessageHistory, ":memory:"),
        "mongodb": (MongoDBChatMessageHistory, URI),
    }[place]

    class Mailed(base):  # type: ignore[misc, valid-type]
        def __init__(self, place: str, session_id: str, email: str) -> None:
            super().__init__(place, session_id)
            self.email = email

    assert Mailed.factory(where, email="a@b")("s1").email == "a@b"
    with pytest.raises(ConfigurationError, match="no such argument: e_mail; did you mean 'email'"):
        Mailed.factory(where, e_mail="a@b")
    for kind in (base, Mailed):
        for name in ("session_id", "user_id"):
            with pytest.raises(ConfigurationError, match=rf"takes no {name}, .* histories\('s1', user_id='u1'\)"):
                kind.factory(where, **{name: "u1"})


def test_one_suggestion() -> None:
    """A misspelt name of the package is corrected once, whatever the interpreter adds to a traceback."""
    code = "import langchain_memkit; langchain_memkit.MongoDBChatMesageHistory"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.lower().count("did you mean") == 1
    assert "did you mean 'MongoDBChatMessageHistory'?" in done.stderr


IMPORTS = {
    "from langchain_memkit import SQLiteChatHistory": "; did you mean 'SQLiteChatMessageHistory'?",
    "from langchain_memkit import session, create_runable_with_message_history": (
        "; did you mean 'create_runnable_with_message_history'?"
    ),
    "from langchain_memkit import StaleTurnError": "; it is in langchain_memkit.errors",
    "from langchain_memkit import FakeChatModel": "; it is in langchain_memkit.testing",
    "from langchain_memkit import import_history": "; it is in langchain_memkit.migrate",
    "from langchain_memkit.errors import StaleTurn": "; did you mean 'StaleTurnError'?",
    "from langchain_memkit.testing import ChatMessageHistoryContracts": "; did you mean 'ChatMessageHistoryContract'?",
    "from langchain_memkit.migrate import export_histories": "; did you mean 'export_history'?",
    "from langchain_memkit.migrate import ConfigurationErrors": "",
    "from langchain_memkit import nonsense": "",
}


@pytest.mark.parametrize("line", IMPORTS)
def test_misspelt_imports(line: str) -> None:
    """An ImportError tells the right name, or where it is; and what asks politely is still told no."""
    _, module, _, *names = line.replace(",", "").split()
    with pytest.raises(ImportError) as raised:
        exec(line)
    assert str(raised.value) == f"cannot import name {names[-1]!r} from {module!r}{IMPORTS[line]}"
    assert raised.value.name == module
    assert not hasattr(importlib.import_module(module), names[-1])
    assert getattr(importlib.import_module(module), names[-1], None) is None
    with pytest.raises(AttributeError, match=names[-1]):
        getattr(importlib.import_module(module), names[-1])


def test_imports_that_are_right() -> None:
    """Modules that nobody has loaded are found, star imports work, and nothing is loaded to find a name."""
    code = """
from langchain_memkit import base, memories, classic, runnables
from langchain_memkit.testing import histories, FakeChatModel
from langchain_memkit.migrate import jsonl
from langchain_memkit.errors import *
from langchain_memkit import *
print(base.__name__, memories.__name__, histories.__name__, jsonl.__name__, SQLiteChatMessageHistory.__name__)
import inspect, langchain_memkit
print([name for name in ("x", "__wrapped__", "__path__") if hasattr(langchain_memkit, name)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "['__path__']"


def test_representations(tmp_path: Path) -> None:
    """Factories and chains name class, file or collection and keys; what is secret or was said is not there."""
    path = tmp_path / "chat.db"
    histories = SQLiteChatMessageHistory.factory(path)
    mongodb = MongoDBChatMessageHistory.factory(URI)
    assert repr(histories) == f"HistoryFactory(SQLiteTurnStore({str(path)!r}))"
    assert repr(mongodb) == "HistoryFactory(MongoTurnStore(localhost:27017, chat_history.message_store))"
    assert repr(ChatHistoryMemory.factory(histories)) == f"ChatHistoryMemoryFactory({histories!r})"
    assert repr(ChatHistoryMemory.factory(lambda session_id: histories(session_id))) == (
        "ChatHistoryMemoryFactory(<lambda>)"
    )
    assert repr(VectorMemory.factory(histories, WordLlamaEmbeddings())) == f"VectorMemoryFactory({histories!r})"
    assert repr(EntityMemory.factory(histories, lambda text: [])) == f"EntityMemoryFactory({histories!r})"
    assert repr(KeyValueMemory.factory(SQLiteKeyValueStore(path))) == (
        f"KeyValueMemoryFactory(SQLiteKeyValueStore({str(path)!r}))"
    )
    mongodb.close()


def test_representation_of_chains(histories: Any) -> None:
    """A chain names what it wraps, its histories and its keys."""

    def get_session_history(session_id: str) -> Any:
        return histories(session_id)

    chat = create_runnable_with_message_history(FakeChatModel(), get_session_history)
    chat.invoke("My name is Nemo.", session("s1"))
    assert repr(chat) == str(chat) == "RunnableWithMessageHistory(FakeChatModel, get_session_history)"
    keyed = create_runnable_with_message_history(
        FakeChatModel(), histories, input_messages_key="input", history_messages_key="chat_history"
    )
    assert repr(keyed) == (
        "RunnableWithMessageHistory(FakeChatModel, HistoryFactory(SQLiteTurnStore(':memory:')), "
        "input_messages_key='input', history_messages_key='chat_history')"
    )
