"""An id is text or it is refused, before anything is sent."""

from __future__ import annotations

import asyncio
import inspect
import re
from typing import Any

import pytest
from bson import ObjectId
from gatekit.systems import Place, config, echo
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.store.memory import InMemoryStore

import langchain_memkit
from langchain_memkit import (
    EntityMemory,
    LangGraphKeyValueStore,
    MongoDBChatMessageHistory,
    PreferenceMemory,
    SQLiteChatMessageHistory,
    VectorMemory,
)
from langchain_memkit.errors import MemkitError

HOSTILE: dict[str, tuple[Any, type[Exception]]] = {
    "$ne": ({"$ne": None}, TypeError),
    "$gt": ({"$gt": ""}, TypeError),
    "regex": (re.compile(".*"), TypeError),
    "number": (123, TypeError),
    "true": (True, TypeError),
    "bytes": (b"s1", TypeError),
    "list": (["s1"], TypeError),
    "ObjectId": (ObjectId(), TypeError),
    "empty": ("", ValueError),
    "NUL": ("a\x00b", ValueError),
    "lone surrogate": ("\ud800", ValueError),
    "513 bytes": ("x" * 513, ValueError),
}
EMBEDDING = DeterministicFakeEmbedding(size=8)
IDS = ("session_id", "user_id", "turn_id", "thread_id")


def no_names(text: str) -> list[str]:
    """Finds none."""
    return []


def touch(system: Any, place: Place, way: str, value: Any) -> None:
    """Uses a session id, given to the class or in the config."""
    if way == "history":
        assert system.history(place, value, create_index=False).messages == []
    else:
        system.chain(echo, system.histories(place, create_index=False)).invoke("hello", config(value))


def wrong_with(system: Any, place: Place, way: str, name: str, sent: Any) -> str:
    """What a hostile session id does other than to raise at once; empty if nothing."""
    value, error = HOSTILE[name]
    with sent() as names:
        try:
            touch(system, place, way, value)
        except error:
            return f"sent {names}" if names else ""
        except Exception as other:
            return f"raised {other!r:.80}"
    return f"was taken, and sent {names}"


@pytest.mark.gate(row=7)
@pytest.mark.parametrize("way", ["history", "config"])
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_session_ids(way: str, place: Place, system: Any, sent: Any) -> None:
    """A hostile session id raises, given to the class or in the config, and no command is sent."""
    system.history(place, "s1").add_user_message("of somebody else")
    there = place.with_options("appName=hostile")
    outcomes = {name: wrong_with(system, there, way, name, sent) for name in HOSTILE}
    assert {name: wrong for name, wrong in outcomes.items() if wrong} == {}
    assert [m.text for m in system.history(place, "s1").messages] == ["of somebody else"]


@pytest.mark.gate(row=7, memkit_only=True)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("key", IDS)
@pytest.mark.parametrize("style", ["invoke", "ainvoke"])
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_config_ids(name: str, key: str, style: str, place: Place, system: Any, sent: Any) -> None:
    """So does every other id in the config, in both call styles."""
    value, error = HOSTILE[name]
    chain = system.chain(echo, system.histories(place))
    ids = {"session_id": "s1", key: value} if key != "thread_id" else {key: value}

    def call() -> Any:
        if style == "invoke":
            return chain.invoke("hello", {"configurable": ids})
        return asyncio.run(chain.ainvoke("hello", {"configurable": ids}))

    with sent() as names, pytest.raises(error):
        call()
    assert names == []


@pytest.fixture(scope="module")
def public_ids() -> list[tuple[str, str]]:
    """(function, parameter) for each id that a public function, method or factory takes, found by looking.

    A fixture, since this imports all of memkit and of what it stands on, which the row's time is not about.
    """
    found = []
    for name in langchain_memkit.__all__:
        thing = getattr(langchain_memkit, name)
        if inspect.isfunction(thing):
            found += [(name, p) for p in inspect.signature(thing).parameters if p in IDS]
        elif inspect.isclass(thing):
            for method, function in inspect.getmembers(thing, inspect.isfunction):
                if not method.startswith("_") or method == "__init__":
                    found += [(f"{name}.{method}", p) for p in inspect.signature(function).parameters if p in IDS]
    for cls in (MongoDBChatMessageHistory, SQLiteChatMessageHistory):
        factory = type(cls.factory("mongodb://localhost" if cls is MongoDBChatMessageHistory else ":memory:"))
        for method, function in inspect.getmembers(factory, inspect.isfunction):
            if not method.startswith("_") or method == "__call__":
                parameters = inspect.signature(function).parameters
                found += [(f"{cls.__name__}.factory().{method}", p) for p in parameters if p in IDS]
    return found


def invoke_with(path: str, parameter: str, value: Any, place: Place) -> Any:
    """Calls a public function with one hostile id and everything else in order."""
    owner, _, method = path.rpartition(".")
    where: Any = place.uri if owner.startswith("MongoDB") else ":memory:"
    if not owner or owner == "langchain_memkit":
        function = getattr(langchain_memkit, path)
        first = {"session_id": "s1"} if "session_id" in inspect.signature(function).parameters else {}
        return function(**first | {parameter: value})
    cls = getattr(langchain_memkit, owner.removesuffix(".factory()"))
    known = inspect.signature(cls).parameters
    given: dict[str, Any] = {"session_id": "s1"} if "session_id" in known else {}
    given |= {"embedding": EMBEDDING} if "embedding" in known else {}
    given |= {"extractor": no_names} if "extractor" in known else {}
    if cls is LangGraphKeyValueStore:
        where = InMemoryStore()
    if cls in (EntityMemory, PreferenceMemory, VectorMemory):
        where, given = SQLiteChatMessageHistory.factory(":memory:"), {**given, "user_id": "u1"}
    if method == "__init__":
        return cls(where, **given | {parameter: value})
    target = cls.factory(where) if owner.endswith("factory()") else cls(where, **given)
    needed = {
        "messages": [HumanMessage("x")],
        "session_id": "s1",
        "user_id": "u1",
        "query": "x",
        "text": "x",
        "seq": 1,
        "llm": RunnableLambda(lambda prompt: "A title."),
        "ids": ["i"],
    }
    function = getattr(target, method)
    parameters = inspect.signature(function).parameters
    arguments = {
        p: needed[p] for p, spec in parameters.items() if p in needed and spec.default is spec.empty and p != parameter
    }
    first = [arguments.pop(p) for p, spec in parameters.items() if spec.kind is spec.POSITIONAL_ONLY]
    result = function(*first, **arguments, **{parameter: value})
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def outcome(path: str, parameter: str, value: Any, place: Place) -> Exception | None:
    """What the call raises."""
    try:
        invoke_with(path, parameter, value, place)
    except Exception as error:
        return error
    return None


@pytest.mark.gate(row=7, memkit_only=True)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_every_public_id(name: str, place: Place, sent: Any, public_ids: list[tuple[str, str]]) -> None:
    """Every parameter of the public surface that is an id refuses it, and no command is sent."""
    value, error = HOSTILE[name]
    assert len(public_ids) >= 12, "the search for ids has gone blind"
    for path, parameter in public_ids:
        with sent() as names:
            raised = outcome(path, parameter, value, place)
        assert isinstance(raised, error), f"{path}({parameter}={value!r:.40}): {raised!r:.80}"
        assert names == [], f"{path}({parameter}=...) sent {names}"


FILTERS = [
    ("iter_turns", "after_seq"),
    ("iter_turns", "before_seq"),
    ("iter_messages", "after_seq"),
    ("delete_turn", "seq"),
    ("restore_turn", "seq"),
    ("tail", "max_messages"),
    ("tail", "max_tokens"),
    ("view", "max_messages"),
    ("append_turn", "expected_seq"),
    ("append_turn", "epoch"),
]


def use(history: Any, method: str, parameter: str, value: Any) -> None:
    """Calls a method with one position or limit."""
    batch = [[HumanMessage("x")]] if method == "append_turn" else []
    list(getattr(history, method)(*batch, **{parameter: value}))


@pytest.mark.gate(row=7, memkit_only=True)
@pytest.mark.parametrize("value", [{"$gt": 0}, {"$ne": None}, [1]], ids=repr)
def test_filter_parameters(value: Any, place: Place, system: Any) -> None:
    """A position or a limit that is an operator is an error, and changes nothing."""
    history = system.history(place, "s1")
    history.add_user_message("stays")
    for method, parameter in FILTERS:
        with pytest.raises((TypeError, ValueError, MemkitError)):
            use(history, method, parameter, value)
    assert [m.text for m in history.messages] == ["stays"]


@pytest.mark.gate(row=7, memkit_only=True)
def test_message_ids(place: Place, system: Any, sent: Any) -> None:
    """`stored_ids` takes text only, and sends nothing else."""
    history = system.history(place, "s1")
    history.add_messages([HumanMessage("x", id="1")])
    for value in ({"$ne": None}, {"$gt": ""}, 5, None):
        with sent() as names, pytest.raises(TypeError):
            history.stored_ids([value])
        assert names == []
