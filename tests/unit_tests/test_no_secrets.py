"""What an app knows of its database is told to nobody: no object, error, log line or event shows a password."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import pickle
import pprint
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from langchain.agents import create_agent
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable

from langchain_memkit import (
    BaseChatMessageHistory,
    ChatHistoryMemory,
    ComposedMemory,
    EntityMemory,
    KeyValueMemory,
    MessageHistoryMiddleware,
    MongoDBChatMessageHistory,
    MongoDBKeyValueStore,
    SQLiteChatMessageHistory,
    SQLiteKeyValueStore,
    VectorMemory,
    create_history_preprocessor,
    create_runnable_with_message_history,
    purge_user,
)
from langchain_memkit.base import Mention
from langchain_memkit.errors import ConfigurationError, MemkitError
from langchain_memkit.migrate import (
    export_history,
    import_history,
    langchain_file_source,
    langchain_sql_source,
    langgraph_source,
    migrate,
    vector_records_source,
)
from langchain_memkit.stores import KeyValueBackend
from langchain_memkit.stores.key_value import KeyValueStore
from langchain_memkit.testing import FakeChatModel

PASSWORD = "hunter2/:@s3a?#%"
SECRETS = ("clownfish", "hunter", "s3a", quote(PASSWORD, safe=""), "t0ken", "k3y")
OPTIONS = (
    "serverSelectionTimeoutMS=150&authMechanismProperties=AWS_SESSION_TOKEN:t0ken&tlsCertificateKeyFilePassword=k3y"
)
DOWN = f"mongodb://clownfish:{quote(PASSWORD, safe='')}@127.0.0.1:1/?authSource=admin&{OPTIONS.partition('&')[0]}"
WRONG = {
    "scheme": "http://clownfish:hunter2@127.0.0.1:1/",
    "port": "mongodb://clownfish:hunter2@127.0.0.1:99999/",
    "not quoted": f"mongodb://clownfish:{PASSWORD}@127.0.0.1:1/",
    "two colons": "mongodb://clown:fish:hunter2@127.0.0.1:1/",
    "two ats": "mongodb://clownfish:hunter2@hunter3@127.0.0.1:1/",
    "percent": "mongodb://clownfish:hunter%zz2@127.0.0.1:1/",
    "no host": "mongodb://clownfish:hunter2@/",
    "option": "mongodb://clownfish:hunter2@127.0.0.1:1/?w=hunter3&maxPoolSize=hunter3",
    "token": f"mongodb://clownfish:hunter2@127.0.0.1:1/?{OPTIONS}",
}
EMBEDDING = DeterministicFakeEmbedding(size=8)
TURN = [HumanMessage("hi"), AIMessage("hello")]
# pymongo leaves a socket to the garbage collector if its connecting is cancelled
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed:ResourceWarning",
    "ignore::UserWarning",  # the driver's, of options; where they may go is the app's business
)


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever a test does, our loggers tell nothing secret, at any level."""
    with caplog.at_level(logging.DEBUG, "langchain_memkit"):
        yield
    told = "".join(r.getMessage() + str(r.exc_text) for r in caplog.records if r.name.startswith("langchain_memkit"))
    clean(told)
    gc.collect()


def clean(text: str) -> None:
    """Fails if a text tells a part of the credentials."""
    assert [secret for secret in SECRETS if secret in text] == [], text


def told_by(error: BaseException) -> str:
    """All that an error says: its text, its traceback with causes, its fields, and what of it is pickled."""
    parts = [str(error), repr(error), repr(vars(error)), *traceback.format_exception(error)]
    try:
        parts.append(repr(pickle.dumps(error)))
    except (TypeError, AttributeError, pickle.PicklingError):
        parts.append("cannot be pickled")
    return "\n".join(parts)


def vector_memory(histories: Any) -> VectorMemory:
    """A vector memory of a user."""
    return VectorMemory(histories, EMBEDDING, "s1", user_id="u1")


class Everything:
    """Each kind of public object that an app may make of a connection string."""

    def __init__(self, uri: str) -> None:
        self.history = MongoDBChatMessageHistory(uri, "s1", user_id="u1", timeout=0.15)
        self.histories = MongoDBChatMessageHistory.factory(uri, timeout=0.15)
        self.keys = MongoDBKeyValueStore(uri, timeout=0.15)
        self.memories = {
            "entities": EntityMemory.factory(self.histories, lambda text: [Mention("hi", "X", 0, 2)]),
            "key values": KeyValueMemory.factory(self.keys),
            "vectors": VectorMemory.factory(self.histories, EMBEDDING),
            "dialogue": ChatHistoryMemory.factory(self.histories),
        }
        self.composed = ComposedMemory.factory(self.memories["dialogue"], self.memories["entities"])
        self.preprocessor = create_history_preprocessor(lambda given: "short", max_tokens=500, store=self.keys)
        self.chain = create_runnable_with_message_history(
            FakeChatModel(), self.histories, preprocessor=self.preprocessor, memories=[*self.memories.values()]
        )
        self.middleware = MessageHistoryMiddleware(self.histories, memories=[self.memories["vectors"]])
        self.agent = create_agent(FakeChatModel(), [], middleware=[self.middleware])
        self.source = langgraph_source(uri)
        self.records = vector_records_source(uri)

    def all(self) -> dict[str, Any]:
        """By name, with what the factories make."""
        made = {f"made by {name}": memory("s1", "u1") for name, memory in self.memories.items()}
        return {**vars(self), **self.memories, **made, "made by composed": self.composed("s1", "u1")}

    def doors(self) -> dict[str, Callable[[], Any]]:
        """Everything that goes to the server."""
        config: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
        asked = {"messages": [HumanMessage("hi")]}
        return {
            "read": lambda: self.history.messages,
            "aread": lambda: asyncio.run(self.history.aget_messages()),
            "write": lambda: self.history.add_messages(TURN),
            "awrite": lambda: asyncio.run(self.history.aadd_messages(TURN)),
            "clear": self.history.clear,
            "setup": self.histories.setup,
            "list": lambda: self.histories.list_sessions("u1"),
            "keys": lambda: self.keys.mget(["a"]),
            "akeys": lambda: asyncio.run(self.keys.amset([("a", {})])),
            "search": lambda: self.memories["vectors"]("s1", "u1").search("hi"),
            "asearch": lambda: asyncio.run(self.memories["vectors"]("s1", "u1").asearch("hi")),
            "composed": lambda: self.composed("s1", "u1").load("hi"),
            "remember": lambda: self.memories["vectors"]("s1", "u1").save(TURN),
            "purge": lambda: purge_user("u1", self.histories, self.keys, self.memories["vectors"]),
            "migrate": lambda: migrate(self.records, SQLiteChatMessageHistory.factory(":memory:"), progress=False),
            "chain": lambda: self.chain.invoke("hi", config),
            "achain": lambda: asyncio.run(self.chain.ainvoke("hi", config)),
            "agent": lambda: self.agent.invoke(asked, config),
        }


def test_objects() -> None:
    """No object shows credentials: printed, formatted, as a graph, or as what a tracing service is sent of it."""
    for name, thing in Everything(DOWN).all().items():
        shown = [
            repr(thing),
            pprint.pformat(thing),
            pprint.pformat([{name: thing}]),
            repr(getattr(thing, "__dict__", "")),
        ]
        if isinstance(thing, BaseChatMessageHistory):  # LangChain's says what is in it
            with pytest.raises(MemkitError) as raised:
                str(thing)
            shown.append(told_by(raised.value))
            del raised
        else:
            shown.append(str(thing))
        if isinstance(thing, Runnable):
            shown += [repr(dumpd(thing)), json.dumps(thing.get_graph().to_json()), thing.get_name()]
        for text in shown:
            clean(text)


def test_backends_of_others() -> None:
    """A store names the type of a backend that memkit does not know: its own repr may show an address."""

    @dataclass
    class Theirs(KeyValueBackend):
        url: str = "redis://:hunter2@host"

    Theirs.__abstractmethods__ = frozenset()
    kept = KeyValueStore(Theirs())  # type: ignore[abstract]
    for thing in (kept, KeyValueMemory.factory(kept)):
        assert "Theirs" in repr(thing)
        assert "hunter2" not in repr(thing)


DOORS = tuple(Everything(DOWN).doors())


@pytest.mark.parametrize("door", DOORS)
def test_a_server_that_is_down(door: str) -> None:
    """Every way to it ends in an error of ours that names the host; neither its text nor its traceback tells more."""
    with pytest.raises(MemkitError) as raised:
        Everything(DOWN).doors()[door]()
    said = told_by(raised.value)
    del raised
    assert "127.0.0.1:1" in said
    clean(said)


@pytest.mark.parametrize("name", WRONG)
def test_connection_strings_that_are_none(name: str) -> None:
    """A mistake in a connection string is told without the string."""
    makers: list[Callable[[str], Any]] = [
        lambda uri: MongoDBChatMessageHistory(uri, "s1", timeout=0.1).messages,
        lambda uri: MongoDBChatMessageHistory.factory(uri, timeout=0.1)("s1").messages,
        lambda uri: MongoDBChatMessageHistory(uri, "s1", layout="qa", user_id="u1", timeout=0.1).messages,
        lambda uri: asyncio.run(MongoDBChatMessageHistory(uri, "s1", timeout=0.1).aget_messages()),
        lambda uri: MongoDBKeyValueStore(uri, timeout=0.1).mget(["a"]),
        lambda uri: vector_memory(MongoDBChatMessageHistory.factory(uri, timeout=0.1)).search("a"),
    ]

    def tried(make: Callable[[str], Any]) -> str:
        with pytest.raises((MemkitError, OSError)) as raised:
            make(WRONG[name])
        said = told_by(raised.value)
        del raised
        return said

    with ThreadPoolExecutor(len(makers)) as pool:  # the driver waits half a second for a server, whatever it is told
        for said in pool.map(tried, makers):
            clean(said)


def test_connection_strings_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was given where a file is expected stands in no error and names no file."""
    monkeypatch.chdir(tmp_path)
    target = SQLiteChatMessageHistory.factory(":memory:")
    makers: list[Callable[[str], Any]] = [
        lambda uri: SQLiteChatMessageHistory(uri, "s1"),
        SQLiteChatMessageHistory.factory,
        SQLiteKeyValueStore,
        lambda uri: export_history(target, uri),
        lambda uri: import_history(target, uri),
        langchain_file_source,
    ]
    others = ("http://clownfish:hunter2@127.0.0.1:1/", "postgresql://clownfish:hunter2@h/x")
    for uri in (DOWN, *others, " mongodb+srv://clownfish:hunter2@h/"):
        for make in makers:
            with pytest.raises(ConfigurationError, match="a file was expected") as raised:
                make(uri)
            clean(told_by(raised.value))
    for uri in others:
        for source in (langgraph_source, vector_records_source):
            with pytest.raises(ConfigurationError, match="a file was expected") as raised:
                source(uri)
            clean(told_by(raised.value))
    assert list(tmp_path.iterdir()) == []
    SQLiteChatMessageHistory(tmp_path / "a:b", "s1").add_messages(TURN)  # a name with a colon is one


@pytest.mark.parametrize("scheme", ["postgresql+nodriver", "mysql+nodriver", "nonsense", "sqlite"])
def test_other_databases(scheme: str) -> None:
    """URLs of SQLAlchemy are as secret."""
    source = langchain_sql_source(f"{scheme}://clownfish:hunter2@127.0.0.1:1/chats?password=hunter3")
    clean(repr(source))
    with pytest.raises((ConfigurationError, MemkitError)) as raised:
        migrate(source, SQLiteChatMessageHistory.factory(":memory:"), progress=False)
    clean(told_by(raised.value))


class Ear(BaseCallbackHandler):
    """Hears all that handlers are told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("on_"):
            return lambda *args, **kwargs: self.told.append(f"{name} {args!r} {kwargs!r}")
        return super().__getattribute__(name)


def test_events() -> None:
    """What handlers are told of a turn whose memories, and then whose history, cannot be reached."""
    things, ear = Everything(DOWN), Ear()
    config: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}, "callbacks": [ear]}
    memories = [things.memories["vectors"], things.memories["entities"], things.composed]
    histories = SQLiteChatMessageHistory.factory(":memory:")
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=memories, on_save_error="log")
    assert chat.invoke("hi", config).content == "Noted."
    with pytest.raises(MemkitError):
        things.chain.invoke("hi", config)
    heard = "\n".join(ear.told)
    assert "memkit_load_error" in heard
    assert "on_chain_error" in heard
    clean(heard)
