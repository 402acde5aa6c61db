"""What other apps wrote across a failover is read in the order in which it was acknowledged, and moves once."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import wait
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import pytest
from gatekit.failover import Crashes, Note, crashes, known_inversions, on_every_node, write_documents, write_rows
from gatekit.systems import Place, texts
from langchain_core.messages import AIMessage, HumanMessage, message_to_dict
from pymongo import MongoClient

from langchain_memkit.errors import HistoryReadError, HistoryWriteError
from langchain_memkit.migrate import MigrationReport, migrate

PROCESSES, THREADS, TURNS = 2, 4, 24
DOCUMENTS = 40
SECOND, MILLISECOND = 1.0, 0.001  # of the times in ids, and of dates


class Legacy:
    """What was left behind: where, and what its writers know of it."""

    def __init__(self, place: Place, notes: list[Note]) -> None:
        self.place = place
        self.rows = [note for note in notes if not note.process.startswith("qa")]
        self.documents = [note for note in notes if note.process.startswith("qa")]
        self.sessions = sorted({note.session for note in self.rows})
        self.chats = sorted({note.session for note in self.documents})


def gather(pipes: list[Any], expected: int, crash: Crashes) -> list[Note]:
    """The notes of all processes; the primary is killed when two of five messages are acknowledged."""
    notes: list[Note] = []
    failing = None
    while pipes:
        for pipe in wait(pipes, 40):
            note = pipe.recv()
            if note is None:
                pipes.remove(pipe)
            else:
                notes.append(note)
        if failing is None and len(notes) >= expected * 2 // 5:
            failing = threading.Thread(target=crash.kill, args=(crash.server.primary_index(),))
            failing.start()
    assert failing is not None, f"{len(notes)} of {expected} messages were acknowledged, and nothing was killed"
    failing.join()
    return notes


@pytest.fixture(scope="module")
def legacy(replica_set: Any, forks: Any) -> Iterator[Legacy]:
    """Rows of langchain-mongodb by two processes, and documents of questions and answers, across a failover."""
    place = Place("replica_set", replica_set.uri, f"gate_{uuid4().hex[:12]}", replica_set.hosts)
    jobs = [(write_rows, (place, f"p{i}", THREADS, TURNS)) for i in range(PROCESSES)]
    jobs.append((write_documents, (place, "qa", DOCUMENTS)))
    processes, pipes = [], []
    for job, args in jobs:
        reader, writer = forks.Pipe(duplex=False)
        processes.append(forks.Process(target=job, args=(*args, writer)))
        processes[-1].start()
        writer.close()
        pipes.append(reader)
    try:
        with crashes(replica_set) as crash:
            notes = gather(pipes, PROCESSES * THREADS * TURNS * 2 + 2 * DOCUMENTS, crash)
    finally:
        for process in processes:
            process.kill()
            process.join(5)
    yield Legacy(place, notes)
    with MongoClient(place.uri) as client:
        client.drop_database(place.database)


def wrong_in(notes: list[Note], said: dict[str, list[str]], resolution: float) -> dict[str, int]:
    """What is missing, doubled or out of order in sessions, as their writers know it."""
    counted = {session: Counter(texts) for session, texts in said.items()}
    mine = {session: [note for note in notes if note.session == session] for session in said}
    return {
        "acknowledged, not shown": sum(not counted[note.session][note.said] for note in notes),
        "shown twice": sum(n - 1 for each in counted.values() for n in each.values()),
        "inversions": sum(known_inversions(mine[s], said[s], resolution) for s in said),
    }


def as_they_lie(legacy: Legacy) -> list[dict[str, list[str]]]:
    """The texts of each session on each node in the order in which langchain-mongodb's class shows them."""
    found = []
    for host in legacy.place.hosts:
        with MongoClient(legacy.place.through(host).uri) as client:
            rows = client[legacy.place.database]["message_store"]
            found.append({s: [text_of(row) for row in rows.find({"SessionId": s})] for s in legacy.sessions})
    return found


def text_of(row: Any) -> str:
    """What a row of langchain-mongodb says."""
    return str(json.loads(row["History"])["data"]["content"])


def read(histories: Any, sessions: list[str], user_id: str | None = None) -> dict[str, list[str]]:
    """The texts of each session."""
    return {session: texts(histories(session, user_id)) for session in sessions}


@pytest.mark.gate(row=15, memkit_only=True)
@pytest.mark.parametrize("layout", ["turns", "langchain"])
def test_rows_read_in_place(layout: str, legacy: Legacy, system: Any, figure: Any) -> None:
    """Rows of langchain-mongodb stand in the order of their acknowledgement, on every node, in both directions."""
    histories = system.histories(legacy.place, layout=layout)
    said = read(histories, legacy.sessions)
    for name, wrong in wrong_in(legacy.rows, said, SECOND).items():
        figure(f"rows as {layout}: {name}", wrong, at_most=0)
    assert {s: [m.text for m in histories(s).iter_messages()] for s in legacy.sessions} == said
    assert all(node == said for node in on_every_node(system, legacy.place, legacy.sessions))


@pytest.mark.gate(row=15, memkit_only=True)
def test_rows_lie_in_another_order(legacy: Legacy, figure: Any) -> None:
    """What the other tests mend is there: on the nodes the rows do not lie as they were acknowledged."""
    wrong = sum(wrong_in(legacy.rows, node, SECOND)["inversions"] for node in as_they_lie(legacy))
    figure("rows as they lie on the nodes: inversions", wrong, at_least=1)


@pytest.mark.gate(row=15, memkit_only=True)
def test_documents_read(legacy: Legacy, system: Any, figure: Any) -> None:
    """Documents of questions and answers, of another app and of ours, stand in the order of their acknowledgement."""
    histories = system.histories(legacy.place, collection_name="qa", layout="qa")
    said = read(histories, legacy.chats, "u1")
    questions = {chat: each[::2] for chat, each in said.items()}
    assert all(each[1::2] == [f"re: {question}" for question in questions[chat]] for chat, each in said.items())
    for name, wrong in wrong_in(legacy.documents, questions, MILLISECOND).items():
        figure(f"documents: {name}", wrong, at_most=0)
    for chat, each in questions.items():
        assert histories(chat, "u1").last_questions(5) == each[:-6:-1]


def moved(source: Any, target: Any, count: Any) -> MigrationReport:
    """Moves everything twice: the second run says the same and adds nothing."""
    first = migrate(source, target, progress=False)
    stored = count()
    assert migrate(source, target, progress=False) == first
    assert count() == stored
    assert first.skipped == []
    return first


@pytest.fixture
def many(legacy: Legacy) -> dict[str, list[str]]:
    """More rows of langchain-mongodb, in several sessions, so that a move has a middle: the texts of each."""
    said = {f"m{s}": [f"{word}{s}-{i}" for i in range(50) for word in ("", "re: ")] for s in range(6)}
    with MongoClient(legacy.place.uri) as client:
        collection = client[legacy.place.database]["many"]
        for session, each in said.items():
            messages = [(AIMessage if text.startswith("re: ") else HumanMessage)(text) for text in each]
            rows = [{"SessionId": session, "History": json.dumps(message_to_dict(m))} for m in messages]
            collection.insert_many(rows)
    return said


@pytest.fixture
def crash(replica_set: Any) -> Iterator[Crashes]:
    """Crashes of the set, whose nodes all run again when the test is over."""
    with crashes(replica_set) as made:
        yield made


class Halfway:
    """Counts tokens for a move, and stops it when it has come to its middle, until it is told to go on."""

    def __init__(self, messages: int) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._left = messages

    def __call__(self, messages: Any) -> int:
        """One token each."""
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            assert self.go_on.wait(20)
        return 1


@pytest.mark.gate(row=15, memkit_only=True)
def test_moved_through_a_failover(legacy: Legacy, many: Any, crash: Crashes, system: Any, figure: Any) -> None:
    """The primary is killed in the middle of two moves: the patient one goes on, the other one raises.

    Repeated, both come to the same end.
    """
    messages = sum(map(len, many.values()))
    limits: list[dict[str, float]] = [{}, {"timeout": 0.5, "save_timeout": 0.5}]  # an election takes 2 s
    counters = [Halfway(messages // 2) for _ in limits]
    with ThreadPoolExecutor(2) as pool:
        jobs = zip(("many_0", "many_1"), limits, counters, strict=True)
        moves = [pool.submit(move_many, system, legacy.place, name, kept, counter) for name, kept, counter in jobs]
        assert all(counter.reached.wait(20) for counter in counters), [str(move) for move in moves]
        crash.kill(crash.server.primary_index())
        for counter in counters:
            counter.go_on.set()
        assert moves[0].result().messages == messages
        assert isinstance(moves[1].exception(), (HistoryReadError, HistoryWriteError))
    for name in ("many_0", "many_1"):
        report = move_many(system, legacy.place, name)
        assert (report.sessions, report.turns, report.messages) == (len(many), messages // 2, messages)
        histories = system.histories(legacy.place, collection_name=name)
        wrong = abs(sum(found.turns for found in histories.list_sessions()) - messages // 2)
        figure("moved through a failover: turns too many or too few", wrong, at_most=0)
        said = read(histories, list(many))
        wrong = sum(said[session] != many[session] for session in many)
        figure("moved through a failover: sessions not as they were", wrong, at_most=0)


def move_many(
    system: Any, place: Place, name: str, limits: Mapping[str, float] = MappingProxyType({}), counter: Any = None
) -> MigrationReport:
    """Moves many rows into a collection."""
    source = system.histories(place, collection_name="many", layout="langchain", **limits)
    target = system.histories(place, collection_name=name, token_counter=counter, **limits)
    return migrate(source, target, progress=False)


@pytest.mark.gate(row=15, memkit_only=True)
@pytest.mark.parametrize("kind", ["rows", "documents"])
def test_moved_twice_is_once(kind: str, legacy: Legacy, system: Any, figure: Any) -> None:
    """A move keeps that order and counts what is there; moved again, nothing is added."""
    name, layout, user = ("message_store", "langchain", None) if kind == "rows" else ("qa", "qa", "u1")
    notes, sessions = (legacy.rows, legacy.sessions) if kind == "rows" else (legacy.documents, legacy.chats)
    source = system.histories(legacy.place, collection_name=name, layout=layout)
    target = system.histories(legacy.place, collection_name=f"moved_{kind}")
    with MongoClient(legacy.place.uri) as client:
        database = client[legacy.place.database]
        report = moved(source, target, lambda: database[f"moved_{kind}"].count_documents({}))
        there = database[name].count_documents({})
    assert (report.sessions, report.messages) == (len(sessions), there * (1 if kind == "rows" else 2))
    said = read(target, sessions, user)
    assert said == read(source, sessions, user)
    shown = said if kind == "rows" else {chat: each[::2] for chat, each in said.items()}
    resolution = SECOND if kind == "rows" else MILLISECOND
    for word, wrong in wrong_in(notes, shown, resolution).items():
        figure(f"moved {kind}: {word}", wrong, at_most=0)
