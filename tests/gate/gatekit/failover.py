"""Writers that go on through a failover, the crashes themselves, and the count of what is there afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from gatekit.systems import Place, config, texts
from langchain_memkit import MongoDBChatMessageHistory
from langchain_memkit.errors import MemkitError

WHOLE = 120  # seconds: a primary that was killed may roll back for a minute (50 s once, in some 80 crashes)


@dataclass(frozen=True)
class Held:
    """How one turn of a writer ended."""

    session: str
    said: str
    seconds: float
    error: Exception | None


class Writers:
    """Threads, and tasks of one event loop, that hold turns and write down how each ended.

    Args:
        chain: What they call.
        threads: The session of each thread; one that stands there twice has two writers.
        turns: How many each of them holds.
        tasks: The session of each task, which holds half as many.
    """

    def __init__(self, chain: Any, threads: Sequence[str], turns: int, tasks: Sequence[str] = ()) -> None:
        self.total = turns * len(threads) + turns // 2 * len(tasks)
        self.held: list[Held] = []
        self._chain = chain
        self._turns = turns
        self._changed = threading.Condition()
        self._acknowledged = 0
        calls = [(self._write, (f"t{i}", session)) for i, session in enumerate(threads)]
        if tasks:
            calls.append((self._run_tasks, (tasks,)))
        self._threads = [threading.Thread(target=call, args=args, daemon=True) for call, args in calls]

    @property
    def acknowledged(self) -> int:
        """How many turns returned an answer."""
        with self._changed:
            return self._acknowledged

    def start(self) -> None:
        """They begin."""
        for thread in self._threads:
            thread.start()

    def wait(self, count: int, seconds: float) -> bool:
        """Waits until so many turns are acknowledged; whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: self._acknowledged >= count, seconds)

    def join(self, seconds: float) -> int:
        """Waits until all have ended; returns how many have not."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)

    def _note(self, session: str, said: str, started: float, error: Exception | None) -> None:
        with self._changed:
            self.held.append(Held(session, said, time.monotonic() - started, error))
            self._acknowledged += error is None
            self._changed.notify_all()

    def _write(self, name: str, session: str) -> None:
        for i in range(self._turns):
            said, started, failure = f"{name}-{i}", time.monotonic(), None
            try:
                self._chain.invoke(said, config(session))
            except Exception as error:
                failure = error
            self._note(session, said, started, failure)

    async def _awrite(self, name: str, session: str) -> None:
        for i in range(self._turns // 2):
            said, started, failure = f"{name}-{i}", time.monotonic(), None
            try:
                await self._chain.ainvoke(said, config(session))
            except Exception as error:
                failure = error
            self._note(session, said, started, failure)

    def _run_tasks(self, sessions: Sequence[str]) -> None:
        async def together() -> None:
            await asyncio.gather(*(self._awrite(f"a{i}", session) for i, session in enumerate(sessions)))

        asyncio.run(together())


class Crashes:
    """Crashes of nodes of a set, one after the other."""

    def __init__(self, server: Any) -> None:
        self.server = server
        self.down: list[int] = []
        self._since: float | None = None

    def kill(self, *indexes: int) -> None:
        """SIGKILL, by process id."""
        self._since = self._since or time.monotonic()
        for index in indexes:
            self.down.append(index)
            self.server.kill(index)

    def restart(self, *indexes: int) -> None:
        """On the same data and port."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.server.restart, indexes))
        self.down = [index for index in self.down if index not in indexes]

    def elected(self) -> float:
        """Waits until there is a primary again; seconds since the first crash."""
        assert self._since is not None, "nothing was killed"
        self.server.primary_index(30)
        return time.monotonic() - self._since


@contextlib.contextmanager
def crashes(server: Any) -> Iterator[Crashes]:
    """Crashes for the length of a `with` block, after which all nodes run and have caught up, whatever happened."""
    made = Crashes(server)
    try:
        yield made
    finally:
        made.restart(*made.down)
        server.wait_ready(WHOLE)


def on_every_node(system: Any, place: Place, sessions: Sequence[str]) -> list[dict[str, list[str]]]:
    """What each node, asked alone, shows of each session, once they have all heard what a majority has."""
    nodes = [place.through(host) for host in place.hosts]
    deadline = time.monotonic() + 3
    while True:
        seen = [{s: texts(system.history(node, s, create_index=False)) for s in sessions} for node in nodes]
        if len({sum(map(len, each.values())) for each in seen}) == 1 or time.monotonic() > deadline:
            return seen


def count(held: Sequence[Held], stored: Mapping[str, list[str]]) -> dict[str, int]:
    """What went wrong, by the words of the gate's row R1.

    A turn that raised may be there whole, once, or not at all; only an error that says "nothing was stored" must be
    right about it. Order is that of each writer, which waits for a turn before it begins the next.
    """
    found = {session: Counter(said) for session, said in stored.items()}
    wrong = Counter[str]()
    for turn in held:
        question, answer = (found[turn.session][text] for text in (turn.said, f"re: {turn.said}"))
        wrong["acknowledged turns lost"] += turn.error is None and not (question and answer)
        wrong["duplicated"] += question > 1 or answer > 1
        wrong["half"] += (question == 0) != (answer == 0)
        wrong["silent failures"] += getattr(turn.error, "maybe_stored", None) is False and bool(question or answer)
    wrong["order inversions"] = sum(inversions(said) for said in stored.values())
    return dict(wrong)


def inversions(said: Sequence[str]) -> int:
    """Neighbours of one writer in the wrong order: a later turn, or the answer before its question."""
    places: dict[str, list[tuple[int, bool]]] = {}
    for text in said:
        writer, _, number = text.removeprefix("re: ").rpartition("-")
        places.setdefault(writer, []).append((int(number), text.startswith("re: ")))
    return sum(first > second for mine in places.values() for first, second in pairwise(mine))


class Note(NamedTuple):
    """One message, or one document, that a process wrote and the server acknowledged; times of day."""

    session: str
    said: str
    process: str
    began: float
    ended: float


def write_rows(place: Place, process: str, threads: int, turns: int, out: Any) -> None:
    """In a process of its own: langchain-mongodb's class writes, in a session per thread and in one of all threads."""
    from langchain_mongodb.chat_message_histories import MongoDBChatMessageHistory as Peer

    def open_history(session: str) -> Callable[[str], None]:
        history = Peer(place.uri, session, place.database)
        return lambda said: history.add_message((AIMessage if said.startswith("re: ") else HumanMessage)(said))

    def write(thread: int, note: Callable[..., None]) -> None:
        sessions = {name: open_history(name) for name in (f"{process}-{thread}", "shared")}
        for i in range(turns):
            session = "shared" if i % 4 == 3 else f"{process}-{thread}"
            for said in (f"{process}.{thread}-{i}", f"re: {process}.{thread}-{i}"):
                note(session, said, lambda said=said, add=sessions[session]: add(said))

    _write_noted(process, [partial(write, thread) for thread in range(threads)], out)


def write_documents(place: Place, process: str, turns: int, out: Any) -> None:
    """The same with documents of questions and answers, by an app of its own and by memkit, also in one chat."""
    collection: Any = MongoClient(place.uri)[place.database]["qa"]
    histories = MongoDBChatMessageHistory.factory(place.uri, place.database, "qa", layout="qa")

    def plain(chat: str, said: str) -> None:
        now = datetime.now(UTC)
        names = {"question": said, "response": f"re: {said}", "chatId": chat, "userId": "u1"}
        flags = {"isActive": True, "isDeleted": False, "createdAt": now, "updatedAt": now}
        collection.insert_one(names | flags)

    def ours(chat: str, said: str) -> None:
        histories(chat, "u1").add_messages([HumanMessage(said), AIMessage(f"re: {said}")])

    def write(name: str, add: Callable[[str, str], None], note: Callable[..., None]) -> None:
        for i in range(turns):
            chat, said = "shared" if i % 4 == 3 else name, f"{process}.{name}-{i}"
            note(chat, said, partial(add, chat, said))

    _write_noted(process, [partial(write, "plain", plain), partial(write, "ours", ours)], out)


def _write_noted(process: str, writers: Sequence[Callable[..., None]], out: Any) -> None:
    """Runs the writers at once; sends a note of everything that the server acknowledged, then None."""
    lock = threading.Lock()

    def note(session: str, said: str, write: Callable[[], None]) -> None:
        began = time.time()
        with contextlib.suppress(PyMongoError, MemkitError):  # not acknowledged: nothing is said about it
            write()
            with lock:
                out.send(Note(session, said, process, began, time.time()))

    threads = [threading.Thread(target=writer, args=(note,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.send(None)


def known_inversions(notes: Sequence[Note], said: Sequence[str], resolution: float) -> int:
    """Pairs that stand the wrong way round, of those whose order can be known from what is stored.

    That is the order of acknowledgement: always within one process, whose ids count up; between processes only as far
    as the stored times can tell, in steps of `resolution` seconds.
    """
    places = {text: i for i, text in enumerate(said)}
    there = [note for note in notes if note.said in places]
    return sum(
        places[first.said] > places[second.said]
        for first in there
        for second in there
        if first.ended <= second.began
        and (first.process == second.process or first.ended // resolution < second.began // resolution)
    )
