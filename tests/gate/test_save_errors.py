"""A turn that could not be stored is an error, in every call style, with the answer in it."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
ODD = AIMessage([{"type": "text", "text": "odd", "value": object()}])


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


def surfaces(system: Any, chain: Any, style: str, answer: AIMessage) -> str:
    """The call raises; with memkit the error is typed and holds the answer. Returns what it says."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  # which one is asked below, where it is promised
        call(style, chain, "s1")
    if system.name == "memkit":
        assert isinstance(raised.value, HistoryWriteError)
        assert raised.value.output.content == answer.content
        assert str(raised.value)
    return f"{raised.value} {raised.value!r}"


@pytest.mark.gate(row=4)
@pytest.mark.filterwarnings(  # pymongo's monitor is cancelled while it connects
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_server_goes_down(place: Place, wires: Any, system: Any) -> None:
    """The server goes away while the model answers: the turn raises in every style, and the answer is not lost."""

    def lose(style: str) -> None:
        wire = wires()

        def model(_: Any) -> AIMessage:
            wire.go_down()
            return ANSWER

        # the peer waits for a server as long as the first says; the end of asyncio.run, at times, as long as the second
        there = wire.place.with_options("serverSelectionTimeoutMS=500&heartbeatFrequencyMS=500")
        chain = system.chain(RunnableLambda(model), system.histories(there, timeout=0.5, save_timeout=0.5))
        surfaces(system, chain, style, ANSWER)

    system.history(place, "s1").add_user_message("warm")
    with ThreadPoolExecutor(len(STYLES)) as pool:  # each waits for the server half a second and longer
        outcomes = [pool.submit(lose, style) for style in STYLES]
    failed = {style: f"{e!r:.120}" for style, o in zip(STYLES, outcomes, strict=True) if (e := o.exception())}
    gc.collect()  # here, where the warnings are expected
    assert not failed


@pytest.mark.gate(row=4)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_server_refuses_the_write(style: str, place: Place, collection: Any, system: Any) -> None:
    """The server answers with a WriteError (a validator that nothing passes)."""
    collection.database.create_collection(collection.name, validator={"never": {"$exists": True}})
    surfaces(system, system.chain(answering(ANSWER), system.histories(place)), style, ANSWER)


@pytest.mark.gate(row=4)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_too_large(style: str, place: Place, system: Any) -> None:
    """The answer is larger than a document may be."""
    surfaces(system, system.chain(answering(LARGE), system.histories(place)), style, LARGE)


@pytest.mark.gate(row=4)
@pytest.mark.parametrize("style", STYLES)
def test_not_encodable(style: str, place: Place, system: Any) -> None:
    """The answer holds an object that cannot be stored; then nothing is, not even the question."""
    histories = system.histories(place)
    surfaces(system, system.chain(answering(ODD), histories), style, ODD)
    assert histories("s1").messages == []


@pytest.fixture(scope="module", params=["standalone", "replica_set"])
def secured(request: pytest.FixtureRequest, system: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A server with users, or a replica set of one (users are the same thing in three); ours may only read."""
    folder, options = tmp_path_factory.mktemp("secured"), ["--auth"]
    if request.param == "replica_set":
        key = folder / "key"
        key.write_text("members of a set know each other by this")
        key.chmod(0o600)
        options += ["--replSet", "rs1", "--keyFile", str(key)]
    with server(folder, *options) as host:
        with MongoClient(f"mongodb://{host}/?directConnection=true") as client:
            if request.param == "replica_set":
                client.admin.command("replSetInitiate", {"_id": "rs1", "members": [{"_id": 0, "host": host}]})
                wait_for_primary(client)
            client.admin.command("createUser", "root", pwd="r00t", roles=["root"])
        with MongoClient(f"mongodb://root:r00t@{host}/") as client:
            client.admin.command("createUser", "nemo", pwd="s3cr3t", roles=["readAnyDatabase"])
        name = "&replicaSet=rs1" if request.param == "replica_set" else ""
        yield Place(request.param, f"mongodb://nemo:s3cr3t@{host}/?authSource=admin{name}", "gate", (host,))
        system.leave(host)


def wait_for_primary(client: Any) -> None:
    """Until the set has elected its only member."""
    deadline = time.monotonic() + 20
    while not client.admin.command("hello").get("isWritablePrimary"):
        assert time.monotonic() < deadline, "the set of one elects nobody"
        time.sleep(0.05)


@pytest.mark.gate(row=4)
@pytest.mark.parametrize("style", STYLES)
def test_unauthorized(style: str, secured: Place, system: Any) -> None:
    """The user may read, but not write; the error shows no password."""
    owner = replace(secured, uri=secured.uri.replace("nemo:s3cr3t", "root:r00t"))
    system.history(owner, "other").add_user_message("as the owner")
    said = surfaces(system, system.chain(answering(ANSWER), system.histories(secured)), style, ANSWER)
    assert "s3cr3t" not in said


SQLITE_TROUBLE = {
    "locked": "BEGIN IMMEDIATE",
    "refused": "CREATE TRIGGER no BEFORE INSERT ON turns BEGIN SELECT RAISE(ABORT, 'refused'); END",
}


@pytest.mark.gate(row=4, memkit_only=True)
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
