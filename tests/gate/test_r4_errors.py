"""R4: a turn that could not be stored is an error, in every call style, with the answer in it."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from gatekit.servers import server
from gatekit.systems import Place, answering, config
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from pymongo import MongoClient

from langchain_memkit.errors import HistoryWriteError

STYLES = ["invoke", "batch", "stream", "ainvoke", "astream"]
ANSWER = AIMessage("the answer")
LARGE = AIMessage("x" * 17_000_000)
ODD = AIMessage("the answer", additional_kwargs={"odd": object()})


def call(style: str, chain: Any, session: str) -> Any:
    """One turn in one of the five styles."""

    async def astream() -> list[Any]:
        return [chunk async for chunk in chain.astream("hello", config(session))]

    if style == "invoke":
        return chain.invoke("hello", config(session))
    if style == "batch":
        return chain.batch(["hello"], [config(session)])
    if style == "stream":
        return list(chain.stream("hello", config(session)))
    return asyncio.run(astream() if style == "astream" else chain.ainvoke("hello", config(session)))


def surfaces(system: Any, chain: Any, style: str, answer: AIMessage) -> None:
    """The call raises; with memkit the error is typed and holds the answer."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  # which one is asked below, where it is promised
        call(style, chain, "s1")
    if system.name == "memkit":
        assert isinstance(raised.value, HistoryWriteError)
        assert raised.value.output.content == answer.content
        assert str(raised.value)


@pytest.mark.gate("R4")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("place", ["standalone"], indirect=True)
def test_server_goes_down(style: str, place: Place, wire: Any, system: Any) -> None:
    """The server goes away while the model answers: the turn raises, and the answer is not lost."""

    def model(_: Any) -> AIMessage:
        wire.go_down()
        return ANSWER

    # the peer waits for a server as long as the first says; the end of asyncio.run, at times, as long as the second
    there = wire.place.with_options("serverSelectionTimeoutMS=500&heartbeatFrequencyMS=500")
    chain = system.chain(RunnableLambda(model), system.histories(there, timeout=0.5, save_timeout=0.5))
    system.history(place, "s1").add_user_message("warm")
    surfaces(system, chain, style, ANSWER)


@pytest.mark.gate("R4")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("place", ["standalone"], indirect=True)
def test_server_refuses_the_write(style: str, place: Place, collection: Any, system: Any) -> None:
    """The server answers with a WriteError (a validator that nothing passes)."""
    collection.database.create_collection(collection.name, validator={"never": {"$exists": True}})
    surfaces(system, system.chain(answering(ANSWER), system.histories(place)), style, ANSWER)


@pytest.mark.gate("R4")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("place", ["standalone"], indirect=True)
def test_too_large(style: str, place: Place, system: Any) -> None:
    """The answer is larger than a document may be."""
    surfaces(system, system.chain(answering(LARGE), system.histories(place)), style, LARGE)


@pytest.mark.gate("R4")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("place", ["standalone", "sqlite"], indirect=True)
def test_not_encodable(style: str, place: Place, system: Any) -> None:
    """The answer holds an object that cannot be stored; then nothing is, not even the question."""
    histories = system.histories(place)
    surfaces(system, system.chain(answering(ODD), histories), style, ODD)
    assert histories("s1").messages == []


@pytest.fixture(scope="module")
def secured(system: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server with users; ours may only read."""
    with server(tmp_path_factory.mktemp("secured"), "--auth") as host:
        with MongoClient(f"mongodb://{host}/") as client:
            client.admin.command("createUser", "root", pwd="r00t", roles=["root"])
        with MongoClient(f"mongodb://root:r00t@{host}/") as client:
            client.admin.command("createUser", "nemo", pwd="s3cr3t", roles=["readAnyDatabase"])
        yield Place("standalone", f"mongodb://nemo:s3cr3t@{host}/?authSource=admin", "gate", (host,))
        system.leave(host)


@pytest.mark.gate("R4")
@pytest.mark.parametrize("style", STYLES)
def test_unauthorized(style: str, secured: Place, system: Any) -> None:
    """The user may read, but not write; the error shows no password."""
    owner = Place("standalone", f"mongodb://root:r00t@{secured.hosts[0]}/", "gate")
    system.history(owner, "other").add_user_message("as the owner")
    surfaces(system, system.chain(answering(ANSWER), system.histories(secured)), style, ANSWER)


SQLITE_TROUBLE = {
    "locked": "BEGIN IMMEDIATE",
    "refused": "CREATE TRIGGER no BEFORE INSERT ON turns BEGIN SELECT RAISE(ABORT, 'refused'); END",
}


@pytest.mark.gate("R4", memkit_only=True)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("trouble", SQLITE_TROUBLE.values(), ids=SQLITE_TROUBLE.keys())
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_file_refuses(style: str, trouble: str, place: Place, system: Any) -> None:
    """A file that another process locks, or that refuses the row, is the same typed error."""
    histories = system.histories(place, timeout=0.1)
    histories("s1").messages  # noqa: B018  # makes the tables
    other = sqlite3.connect(place.uri, isolation_level=None)
    other.execute(trouble)
    surfaces(system, system.chain(answering(ANSWER), histories), style, ANSWER)
    other.close()
