"""Writers, forgetters and deleters of `MongoDBVectorStore` that meet, or are killed in between, on a real server."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.embeddings import Embeddings
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from pymongo import MongoClient, monitoring

from langchain_memkit import MongoDBVectorStore, VectorMemory
from langchain_memkit._sync import drive
from langchain_memkit.errors import HistoryConflictError
from langchain_memkit.testing.vectors import AT, EMBEDDING, expected_entries, facts, record

RECORDS = {"stamp": {"$gt": 0}}
SESSIONS = {"stamp": {"$lte": 0}}


class Killed(BaseException):
    """The process ends here, as far as the store can see."""


def kill() -> None:
    """Ends it."""
    raise Killed


class Meddler(monitoring.CommandListener):
    """Notes the commands of a client, and does something once, right before or after one of them."""

    def __init__(self) -> None:
        self.before: dict[str, Callable[[], Any]] = {}
        self.after: dict[str, Callable[[], Any]] = {}
        self.sent: list[tuple[str, Any]] = []

    def started(self, event: Any) -> None:
        """Notes it, and acts before it."""
        self.sent.append((event.command_name, event.command))
        self.before.pop(event.command_name, int)()

    def succeeded(self, event: Any) -> None:
        """Acts after it."""
        self.after.pop(event.command_name, int)()

    def failed(self, event: Any) -> None:
        """Nothing to do."""


class Embedding(Embeddings):
    """Does something once, while it embeds."""

    action: Callable[[], Any] = int

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Acts, and embeds."""
        action, self.action = self.action, int
        action()
        return EMBEDDING.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """Embeds."""
        return EMBEDDING.embed_query(text)


@pytest.fixture
def meddler() -> Meddler:
    """What acts in between."""
    return Meddler()


@pytest.fixture
def embedding() -> Embedding:
    """What acts while a turn is embedded."""
    return Embedding()


@pytest.fixture
def collection(standalone: Any, database: str) -> Any:
    """The collection behind memkit's back, with the driver's defaults."""
    with MongoClient(standalone.uri) as client:
        yield client[database]["vectors"]


@pytest.fixture
def store(standalone: Any, database: str, meddler: Meddler, embedding: Embedding) -> Iterator[Any]:
    """A store with which somebody meddles."""
    with MongoClient(standalone.uri, event_listeners=[meddler]) as client:
        yield MongoDBVectorStore(None, embedding, database, client=client)


@pytest.fixture
def other(standalone: Any, database: str) -> Any:
    """Another store on the same collection, as another process has."""
    return MongoDBVectorStore(standalone.uri, EMBEDDING, database)


def turn(n: int) -> list[BaseMessage]:
    """A question with its answer."""
    return [HumanMessage(f"Question {n} of the day?", id=f"q{n}"), AIMessage(f"It is {n}.", id=f"a{n}")]


def memory(store: Any) -> VectorMemory:
    """A memory over a store."""
    return VectorMemory(store, "s1", user_id="u1")


def begin_warm(store: Any, n: int = 2) -> dict[str, Any]:
    """What a write says of a session that its turn looked at when it was loaded."""
    begun = drive(store.records.begin("u1", "s1"))
    assert drive(
        store.records.write(
            "u1", "s1", begun.generation, [record(n)], drive(store.records.embed([record(n).page_content]))
        )
    )
    _, looked = drive(store.records.read("u1", "s1"))
    warm = looked.begun(["d"], [str(record(n + 1).id)])
    assert warm.generation == begun.generation
    assert warm.last is not None
    return {"generation": warm.generation, "state": warm.state}


def positions(store: Any) -> list[int]:
    """Where the records stand that a store finds."""
    return sorted(entry.position for entry in drive(store.records.index("u1")).entries)


def said(store: Any) -> list[Sequence[str]]:
    """The messages of the records that a store finds, in order."""
    return [
        entry.messages for entry in sorted(drive(store.records.index("u1")).entries, key=lambda entry: entry.position)
    ]


# -- forgotten while a turn is saved


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("whole", [False, True], ids=["session", "user"])
def test_a_turn_that_a_forget_overtakes(
    store: Any, other: Any, collection: Any, embedding: Embedding, whole: bool, style: str
) -> None:
    """What another process forgets while a turn is embedded does not come back with it; the next turn is kept."""

    def save(n: int) -> None:
        if style == "sync":
            memory(store).save(turn(n))
        else:
            asyncio.run(memory(store).asave(turn(n)))

    for n in (0, 1):
        save(n)
    embedding.action = lambda: other.forget("u1", *([] if whole else ["s1"]))
    save(2)
    assert embedding.action is int
    assert collection.count_documents(RECORDS) == 0
    save(3)
    other.forget("u1", *([] if whole else ["s1"]))
    save(4)
    assert said(other) == said(store) == [("q4", "a4")]


def test_begun_anew_after_a_forget(store: Any, other: Any) -> None:
    """A turn that began before a forget is refused, although another one has begun since; that one is kept."""
    for forgetful in (store, other):
        before = begin_warm(store)
        forgetful.forget("u1", "s1")
        after = drive(store.records.begin("u1", "s1")).generation
        assert not drive(store.records.write("u1", "s1", documents=[record(3)], vectors=[None], **before))
        assert drive(store.records.write("u1", "s1", after, [record(4)], [None]))
        assert not drive(store.records.write("u1", "s1", documents=[record(3)], vectors=[None], **before))
        assert positions(store) == positions(other) == [4]


@pytest.mark.parametrize("style", ["sync", "async"])
@pytest.mark.parametrize("whole", [False, True], ids=["session", "user"])
def test_forgotten_after_the_turn_was_loaded(store: Any, other: Any, collection: Any, whole: bool, style: str) -> None:
    """A turn that was loaded before a forget is not stored after it, however long the model takes; the next one is."""

    def told(n: int, between: Callable[[], Any] = int) -> None:
        mine = memory(store)
        if style == "sync":
            mine.load("What is the question of the day?")
            between()
            mine.save(turn(n))
        else:
            asyncio.run(mine.aload("What is the question of the day?"))
            between()
            asyncio.run(mine.asave(turn(n)))

    for n in (0, 1):
        told(n)
    told(2, lambda: other.forget("u1", *([] if whole else ["s1"])))
    assert collection.count_documents(RECORDS) == 0
    told(3)
    told(4)
    assert said(other) == said(store) == [("q3", "a3"), ("q4", "a4")]


def test_many_records_after_a_forget(store: Any, other: Any, collection: Any) -> None:
    """More records than go into one command are refused as well."""
    warm = begin_warm(store)
    other.forget("u1", "s1")
    many = [record(n) for n in range(3, 1203)]
    assert not drive(store.records.write("u1", "s1", documents=many, vectors=[None] * len(many), **warm))
    assert collection.count_documents(RECORDS) == 0


def test_forgets_among_saves(standalone: Any, database: str, other: Any) -> None:
    """Whatever began before the last forget did is gone, whatever came after it was done is there."""
    for n in range(12):
        user, began, asked = f"u{n}", dict[str, float](), dict[str, float]()

        def write(writer: int, user: str = user, began: Any = began, asked: Any = asked) -> None:
            slow = Embedding()
            store: Any = MongoDBVectorStore(standalone.uri, slow, database)
            begin = store.records.begin

            async def noted(user_id: str, session_id: str, *arguments: Any) -> Any:
                found = await begin(user_id, session_id, *arguments)
                for message in arguments[2] or ():
                    began.setdefault(message, time.monotonic())
                return found

            store.records.begin = noted
            for i in range(6):
                slow.action = lambda: time.sleep(random.uniform(0, 0.01))
                name = f"q{writer}-{i}"
                asked[name] = time.monotonic()
                said = [HumanMessage(f"Question {i} of {writer}?", id=name), AIMessage(f"It is {i}.", id=f"a{name}")]
                VectorMemory(store, "s1", user_id=user).save(said)

        with ThreadPoolExecutor(2) as pool:
            writing = [pool.submit(write, writer) for writer in range(2)]
            for _ in range(2):
                time.sleep(random.uniform(0, 0.04))
                forgetting = time.monotonic()
                other.forget(user, random.choice([None, "s1"]))
                forgotten = time.monotonic()
            for each in writing:
                each.result()
        there = {message for entry in drive(other.records.index(user)).entries for message in entry.messages}
        assert [name for name, when in began.items() if when < forgetting and name in there] == []
        assert [name for name, when in asked.items() if when > forgotten and name not in there] == []


@pytest.mark.parametrize("how", ["warm", "looked at"])
def test_a_second_try_is_of_the_same_turn(store: Any, other: Any, collection: Any, meddler: Meddler, how: str) -> None:
    """A turn that has to begin again, since somebody went on with its session, is refused after a forget, too."""
    for n in (0, 1):
        memory(store).save(turn(n))
    answer: list[BaseMessage] = [AIMessage("And it stays so.", id="b1")]
    question = [turn(3)[0]]

    def forget() -> None:
        other.forget("u1")

    def go_on() -> None:
        if how == "warm":
            memory(other).save(turn(2))
        else:  # it goes on with the same round
            memory(other).save([AIMessage("For ever.", id="c1")])
        meddler.before["find"] = forget

    if how == "warm":
        mine = memory(store)
        mine.load("Which question?")
        meddler.before["update"] = go_on
        mine.save(turn(4))
    else:
        memory(store).save(question)
        meddler.before["update"] = go_on
        memory(store).save(answer)
    assert not meddler.before
    assert collection.count_documents(RECORDS) == 0


def test_what_is_left_of_a_forgotten_user(store: Any, collection: Any) -> None:
    """Nothing."""
    begin_warm(store)
    store.forget("u1", "s1")
    store.forget("u1")
    assert list(collection.find({"_id": {"$ne": {"probe": 1}}})) == []
    assert len(drive(store.records.index("u1"))) == 0


def test_a_forget_that_failed(store: Any, collection: Any, meddler: Meddler) -> None:
    """It is no reason to delete what another record of a turn has met."""
    begin_warm(store, 1)
    warm = begin_warm(store)
    meddler.before["delete"] = kill
    with pytest.raises(Killed):
        store.forget("u1", "s1")
    again = record(3).model_copy(update={"id": record(1).id})
    with pytest.raises(HistoryConflictError):
        drive(store.records.write("u1", "s1", documents=[again], vectors=[None], **warm))
    assert positions(store) == [1, 2]


# -- killed before others were told


@pytest.mark.parametrize("ids", [True, False], ids=["ids", "no ids"])
def test_a_repeat_tells_others(store: Any, other: Any, standalone: Any, collection: Any, ids: bool) -> None:
    """A turn whose writer was killed before others were told of it is seen by all once it was saved again."""
    repeated = turn(1) if ids else [message.model_copy(update={"id": None}) for message in turn(1)]
    memory(store).save(turn(0))
    assert len(said(other)) == 1
    before = collection.find_one(SESSIONS)
    memory(store).save(repeated)
    collection.replace_one({"_id": before["_id"]}, before)
    third = MongoDBVectorStore(standalone.uri, EMBEDDING, collection.database.name)
    memory(third).save(repeated)
    assert len(said(other)) == len(said(third)) == collection.count_documents(RECORDS) == 2


@pytest.mark.parametrize("verb", ["delete", "evict"])
def test_killed_after_it_deleted(store: Any, other: Any, standalone: Any, meddler: Meddler, verb: str) -> None:
    """Records whose deleter was killed before others were told are not held by them once it was called again."""
    for n in (1, 2):
        begin_warm(store, n)
    assert positions(other) == [1, 2]
    arguments = ("u1", [str(record(1).id)]) if verb == "delete" else ("u1", 1)
    meddler.after["delete"] = kill
    with pytest.raises(Killed):
        drive(getattr(store.records, verb)(*arguments))
    drive(getattr(store.records, verb)(*arguments))
    assert positions(other) == [2]


def test_a_search_misses_what_is_gone(store: Any, other: Any, collection: Any) -> None:
    """After a search that met what somebody removed without a word nothing of it is held."""
    for n in (1, 2):
        begin_warm(store, n)
    assert positions(other) == [1, 2]
    collection.delete_one({"_id.id": record(1).id})
    found = other.similarity_search("what about number 1", k=5, filter={"user_id": "u1"})
    assert [document.metadata["position"] for document in found] == [2]
    assert positions(other) == [2]


def test_a_round_that_is_gone_loses_no_answer(store: Any, other: Any, collection: Any) -> None:
    """What goes on with a round that somebody removed meanwhile is stored as a round of its own."""
    call = AIMessage("I look.", id="a0", tool_calls=[{"name": "look", "args": {}, "id": "t"}])
    memory(store).save([turn(0)[0], call])
    memory(store).save(turn(1))
    assert said(store) == [("q0", "a0"), ("q1", "a1")]
    collection.delete_one({"messages": "a0"})
    memory(store).save([call, ToolMessage("A heron.", tool_call_id="t", id="r0"), AIMessage("A bird.", id="b0")])
    assert said(other) == [("q1", "a1"), ("r0", "b0")]


@pytest.mark.parametrize("mine", [{}, {"open": True}], ids=["finished", "open"])
def test_an_open_round_of_a_killed_writer(store: Any, other: Any, collection: Any, mine: dict[str, Any]) -> None:
    """A look by another writer, who was killed then, has a warm session begun again."""
    warm = begin_warm(store)
    before = collection.find_one(SESSIONS)
    began = drive(other.records.begin("u1", "s1"))
    waiting = record(5, open=True)
    assert drive(other.records.write("u1", "s1", began.generation, [waiting], [None]))
    before["last"]["waits"] = True
    collection.replace_one({"_id": before["_id"]}, before)
    with pytest.raises(HistoryConflictError, match="begin again"):
        drive(store.records.write("u1", "s1", documents=[record(3, **mine)], vectors=[None], **warm))
    assert drive(store.records.begin("u1", "s1", ["d"], [], ["q6"])).last == waiting


@pytest.mark.parametrize("kept", [1, 2])
def test_a_long_round_stored_in_part(store: Any, other: Any, collection: Any, kept: int) -> None:
    """The rest of a turn whose writer was killed within it comes with the retry, once, and in order."""
    long = " ".join(f"word{i}" for i in range(330))
    said_at_length = [HumanMessage(long, id="q1"), AIMessage(long[::-1], id="a1")]
    memory(store).save(turn(0))
    before = collection.find_one(SESSIONS)
    memory(store).save(said_at_length)
    fields = {"stamp": 0, "step": 0, "created_at": 0, "metadata.created_at": 0}
    whole = list(collection.find(RECORDS, fields, sort=[("position", 1)]))
    assert len(whole) > 4
    collection.delete_many({"_id": {"$in": [document["_id"] for document in whole[1 + kept :]]}})
    collection.replace_one({"_id": before["_id"]}, before)
    for _ in range(2):
        memory(other).save(said_at_length)
        assert list(collection.find(RECORDS, fields, sort=[("position", 1)])) == whole
    assert len(said(store)) == len(said(other)) == len(whole)
    memory(other).save([*said_at_length, *turn(2)])
    assert collection.count_documents(RECORDS) == len(whole) + 1


def test_every_update_names_its_shard(store: Any, meddler: Meddler) -> None:
    """Updates of one document name user and session: a sharded cluster before 7.0 takes no others."""
    begin_warm(store, 1)
    warm = begin_warm(store)
    assert drive(store.records.write("u1", "s1", documents=[record(3)], vectors=[None], **warm))
    drive(store.records.touch("u1", [str(record(1).id)], AT))
    drive(store.records.evict("u1", 2))
    store.delete([str(record(3).id)], user_id="u1")
    store.forget("u1", "s1")
    store.forget("u1")
    updates = [each for name, body in meddler.sent if name == "update" for each in body["updates"]]
    alone = [each["q"] for each in updates if not each.get("multi")]
    assert len(alone) > 8
    assert [query for query in alone if not {"user_id", "session_id"} <= query.keys()] == []
    assert facts(drive(store.records.index("u1"))) == expected_entries([])
