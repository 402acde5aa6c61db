"""Processes that append, import, edit, copy, title, clear, purge, hide and read at random, and what happens meanwhile.

Sessions are of a generation: after some seconds others take their place, so that each stays small and what is not known
of one session (its purge was killed) says nothing of the next.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from gatekit.checker import Journal, read_journals
from gatekit.races import LOCKED, Watched, hooked
from gatekit.systems import SYSTEMS, Place, answer_to, config, split_turns
from langchain_memkit import VectorMemory, WordLlamaEmbeddings
from langchain_memkit._histories import keeps_index
from langchain_memkit._sync import drive
from langchain_memkit.errors import ConfigurationError, MemkitError
from langchain_memkit.memories.vector.turn_index import ROOM
from langchain_memkit.stores.history import HistoryFactory

GENERATION = 3.0  # seconds
PLAIN = [("u1", "s1"), ("u1", "s2"), ("u2", "s1"), ("", "s1"), ("u3", "soft"), ("u3", "ttl")]
EDITED = [*[("u4", "edited")] * 3, ("u4", "copy1"), ("u4", "copy2"), ("", "edited"), ("", "copy1")]  # and copied
HALTED = ("fork", "fork", "edit", "undo", "title", "clear")
ONLY_EDITED = ("edit", "retried edit", "undo", "restore", "fork")
ONLY_PLAIN = ("import",)  # which may break off in the middle
TTL = {"sqlite": 3.0}
LONGEST_TTL = 60.0  # seconds; a server has no shorter
WEIGHTS = {
    "append": 20,
    "retried append": 10,
    "guarded append": 12,
    "guarded append, cleared meanwhile": 2,
    "chain": 12,
    "expecting append": 8,
    "import": 2,
    "retry": 6,
    "clear": 4,
    "purge": 2,
    "delete": 4,
    "read": 30,
    "read turns": 14,
    "look": 14,
    "edit": 8,
    "retried edit": 3,
    "undo": 4,
    "restore": 3,
    "fork": 8,
    "title": 5,
    "generated title": 2,
    "titles": 6,
}


class Worker:
    """One process's operations, drawn from a seed; each is written down before and after."""

    def __init__(self, place: Place, histories: Any, expiring: Any, journal: Journal, name: str, seed: int) -> None:
        self.histories, self.expiring, self.journal, self.name = histories, expiring, journal, name
        self.chance = random.Random(seed)
        self.ttl = TTL.get(place.kind, LONGEST_TTL)
        self.generation: Callable[[], int] = lambda: int(time.monotonic() / GENERATION)
        self.count = 0
        self.mine: list[tuple[tuple[str, str], str, list[BaseMessage]]] = []  # what can be repeated: where, turn_id
        self.hidden: list[tuple[Any, ...]] = []  # to be shown again
        self.edits: list[tuple[Any, ...]] = []  # arguments of `_replace`
        self.stored: list[tuple[Any, ...]] = []  # to be hidden: where, token, position, since when
        # What it recalls is kept up to date by looks, as long as this process lives.
        # A factory with a fault (the checker's own tests) is no factory of histories, and is not looked at.
        able = isinstance(histories, HistoryFactory) and keeps_index(histories("-"))
        self.recalls = VectorMemory.factory(histories, WordLlamaEmbeddings(64), floor=None) if able else None

    def do(
        self,
        kind: str | None = None,
        halt: Callable[[str], None] | None = None,
        where: tuple[str, str] | None = None,
    ) -> None:
        """One operation; `halt(step)` is called at each step of what it sends."""
        if kind is None:
            kind = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        with hooked(halt):
            getattr(self, "_" + kind.replace(",", "").replace(" ", "_"))(where or self.somewhere(kind))

    def somewhere(self, kind: str) -> tuple[str, str]:
        """A user and a session of the present generation, for an operation."""
        wheres = EDITED if kind in ONLY_EDITED else PLAIN if kind in ONLY_PLAIN else [*PLAIN, *EDITED]
        user, session = self.chance.choice(wheres)
        generation = self.generation()
        return f"{user}-{generation}" if user else "", f"{session}-{generation}"

    def _open(self, where: tuple[str, str]) -> Any:
        user, session = where
        return (self.expiring if session.startswith("ttl") else self.histories)(session, user or None)

    def _turn(self) -> tuple[str, list[BaseMessage]]:
        self.count += 1
        token = f"said-{self.name}-{self.count}"
        return token, [HumanMessage(token), AIMessage(f"re: {token}")]

    @contextlib.contextmanager
    def _noted(self, kind: str, where: tuple[str, str], **fields: Any) -> Iterator[dict[str, Any]]:
        """Notes begin and end of an operation; errors are noted and not raised."""
        user, session = where
        ttl = self.ttl if session.startswith("ttl") else None
        note: dict[str, Any] = {}
        began = {"kind": kind, "user": user, "session": session, "ttl": ttl, "began": time.monotonic(), **fields}
        note["id"] = self.journal.begin(**began)
        name = note["id"]
        try:
            yield note
        except Exception as error:
            maybe = getattr(error, "maybe_stored", None)
            note |= {"error": type(error).__name__, "maybe_stored": maybe}
            if not isinstance(error, MemkitError):
                note["text"] = repr(error)[:300]
        with hooked(None):
            self.journal.note(name, ended=time.monotonic(), **{k: v for k, v in note.items() if k != "id"})

    def _loaded(self, note: dict[str, Any]) -> None:
        """Notes that the session was loaded, at once: the process may not come to the end."""
        self.journal.note(note["id"], loaded=time.monotonic())

    def _append(self, where: tuple[str, str], turn_id: str | None = None) -> None:
        token, messages = self._turn()
        began = time.monotonic()
        with self._noted("append", where, tokens=[token]) as note:
            note["seq"] = self._open(where).append_turn(messages, turn_id=turn_id)
            self.stored = [*self.stored[-20:], (where, token, note["seq"], began)]
        if turn_id is not None:
            self.mine = [*self.mine[-20:], (where, turn_id, messages)]

    def _retried_append(self, where: tuple[str, str]) -> None:
        self._append(where, turn_id=f"t-{self.name}-{self.count}")

    def _retry(self, where: tuple[str, str]) -> None:
        """What was sent before, acknowledged or not, is sent again under the same turn_id."""
        if not self.mine:
            return
        where, turn_id, messages = self.chance.choice(self.mine)
        with self._noted("append", where, tokens=[messages[0].text]) as note:
            note["seq"] = self._open(where).append_turn(messages, turn_id=turn_id)

    def _guarded_append(self, where: tuple[str, str], meanwhile: Callable[[], None] = lambda: None) -> None:
        token, messages = self._turn()
        with self._noted("append", where, tokens=[token], guarded=True) as note:
            view = self._open(where).view(max_messages=4)
            self._loaded(note)
            meanwhile()
            note["seq"] = self._open(where).append_turn(messages, epoch=view.epoch, since=view.read_at)

    def _guarded_append_cleared_meanwhile(self, where: tuple[str, str]) -> None:
        self._guarded_append(where, lambda: self._clear(where))

    def _chain(self, where: tuple[str, str]) -> None:
        token, _ = self._turn()
        user, session = where

        def model(messages: Any) -> AIMessage:
            self._loaded(note)
            return answer_to(messages)

        with self._noted("append", where, tokens=[token], guarded=True) as note:
            # A memory has something stored in the row of the turn, and reads while the history is read.
            memories = [self.recalls] if self.recalls and user and self.chance.random() < 0.5 else []
            chain = SYSTEMS["memkit"]().chain(
                RunnableLambda(model),
                lambda session_id, user_id=None: self._open(where),
                memories=memories,
                on_dropped_turn="raise",
            )
            chain.invoke(token, config(session, user or None))

    def _expecting_append(self, where: tuple[str, str]) -> None:
        token, messages = self._turn()
        at = None
        with contextlib.suppress(MemkitError):
            at = self._open(where).view(max_messages=1).seq
        if at is not None:
            with self._noted("append", where, tokens=[token], expected=at) as note:
                note["seq"] = self._open(where).append_turn(messages, expected_seq=at)

    def _import(self, where: tuple[str, str]) -> None:
        turns = [self._turn() for _ in range(60)]
        with self._noted("append", where, tokens=[token for token, _ in turns]):
            self._open(where).add_messages([message for _, messages in turns for message in messages])

    def _clear(self, where: tuple[str, str]) -> None:
        with self._noted("clear", where):
            self._open(where).clear()

    def _purge(self, where: tuple[str, str]) -> None:
        user, _ = where
        if user:
            with self._noted("purge", (user, "")):
                self.histories.purge(user)

    def _delete(self, where: tuple[str, str]) -> None:
        """A turn that was stored is hidden, in a session where that is done."""
        mine = [each for each in self.stored if each[0][1].startswith(("soft", "edited", "copy"))]
        if mine:
            self.hidden = [*self.hidden[-5:], self.chance.choice(mine)]
            self._flag("delete", *self.hidden[-1])

    def _restore(self, where: tuple[str, str]) -> None:
        """A turn that was hidden, or was to be, is shown again."""
        if mine := [each for each in self.hidden if not each[0][1].startswith("soft")]:
            self._flag("restore", *self.chance.choice(mine))

    def _flag(self, kind: str, where: tuple[str, str], token: str, seq: int, known: float) -> None:
        with self._noted(kind, where, tokens=[token], known=known) as note:
            history = self._open(where)
            if not (history.delete_turn(seq) if kind == "delete" else history.restore_turn(seq)):
                note["error"] = "HistoryConflictError"  # it was cleared before

    def _read(self, where: tuple[str, str]) -> None:
        with self._noted("read", where) as note:
            said = [message.text for message in self._open(where).messages]
            note["seen"] = [(text, 0) for text in said if not text.startswith("re: ")]
            note["half"] = split_turns(said)

    def _read_turns(self, where: tuple[str, str]) -> list[tuple[str, int]]:
        seen: list[tuple[str, int]] = []
        with self._noted("read", where) as note:
            turns = list(self._open(where).iter_turns())
            said = [(message.text, turn.seq) for turn in turns for message in turn.messages]
            seen += [(text, seq) for text, seq in said if not text.startswith("re: ")]
            note["seen"] = seen
            note["half"] = split_turns([text for text, _ in said])
        return seen

    def _look(self, where: tuple[str, str]) -> None:
        """What a memory that is kept up to date by what changed would recall of a session."""
        user, session = where
        if not user or self.recalls is None:
            return
        log: Any = self.recalls._core.log
        with self._noted("read", where) as note:
            held = drive(log.look(user))
            entries = [entry for entry in held.index.entries if entry.session == session]
            found = [(entry.position, held.stored[entry.id].record.text) for entry in entries]
            said = [(line.partition(": ")[2], at // ROOM) for at, text in sorted(found) for line in text.split("\n")]
            note["seen"] = [(text, seq) for text, seq in said if not text.startswith("re: ")]
            note["half"] = split_turns([text for text, _ in said])
            note["look"] = True

    def _edit(self, where: tuple[str, str]) -> None:
        """One of the last turns of the session, which is read first, is replaced with all after it."""
        known = time.monotonic()
        if turns := self._read_turns(where)[-3:]:
            token, seq = self.chance.choice(turns)
            _, messages = self._turn()
            self._replace(where, f"e-{self.name}-{self.count}", messages, token, seq, known)

    def _retried_edit(self, where: tuple[str, str]) -> None:
        """An edit is sent again under the same turn_id."""
        if self.edits:
            self._replace(*self.chance.choice(self.edits))

    def _replace(self, *edit: Any) -> None:
        where, turn_id, messages, replaced, seq, known = edit
        self.edits = [*self.edits[-5:], edit]
        with self._noted("edit", where, tokens=[messages[0].text], turn=replaced, known=known) as note:
            note["seq"] = self._open(where).edit(seq, messages, turn_id=turn_id)

    def _undo(self, where: tuple[str, str]) -> None:
        with self._noted("undo", where) as note:
            note["answer"] = self._open(where).undo_edit()

    def _fork(self, where: tuple[str, str]) -> None:
        """A session is copied into another one of its user, whole or up to a turn."""
        name, _, generation = where[1].partition("-")
        into = self.chance.choice([copy for copy in ("copy1", "copy2", "copy3") if copy != name])
        turns = self._read_turns(where) if self.chance.random() < 0.3 else []
        token, seq = self.chance.choice(turns) if turns else ("", None)
        with self._noted("fork", where, into=f"{into}-{generation}", turn=token):
            self._open(where).fork(f"{into}-{generation}", at=seq)

    def _title(self, where: tuple[str, str]) -> None:
        user, session = where
        with self._titled(where) as (title, _):
            self.histories.update_session(session, user or None, title=title)

    def _generated_title(self, where: tuple[str, str]) -> None:
        user, session = where
        with self._titled(where, guarded=True) as (title, note):

            def model(_: Any) -> AIMessage:
                self._loaded(note)
                return AIMessage(title)

            if self.histories.generate_title(session, RunnableLambda(model), user or None) != title:
                note["error"] = "HistoryConflictError"  # it held no turns when they were read, so no model was asked

    @contextlib.contextmanager
    def _titled(self, where: tuple[str, str], **fields: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        self.count += 1
        title = f"said-{self.name}-t{self.count}"
        with self._noted("title", where, tokens=[title], **fields) as note:
            try:
                yield title, note
            except ConfigurationError:
                note["error"] = "HistoryConflictError"  # the session holds no turns, or was erased

    def _titles(self, where: tuple[str, str]) -> None:
        """The titles of all sessions of a user: an empty string if a session has none."""
        user, _ = where
        if user:
            with self._noted("titles", (user, "")) as note:
                listed = {info.session_id: info.title for info in self.histories.list_sessions(user)}
                note["titles"] = {name: title if "-t" in title else "" for name, title in listed.items()}


def work(system: str, place: Place, folder: Path, name: str, seed: int, line: Any) -> None:
    """In a process of its own: operations until it is told to end, or killed. At some it stops in the middle."""
    if place.kind == "sqlite":
        sqlite3.connect = partial(sqlite3.connect, factory=Watched)  # type: ignore[assignment]  # in this process only
    made = SYSTEMS[system]()
    ttl = TTL.get(place.kind, LONGEST_TTL)
    journal = Journal(folder / f"{name}.jsonl", name)
    worker = Worker(place, made.histories(place), made.histories(place, ttl=ttl), journal, name, seed)
    line.send(("ready", None))
    while not line.poll():
        if worker.chance.random() < 0.02:
            _halted(worker, line)
        else:
            worker.do()
    journal.close()
    os._exit(0)  # a server that is about to end does not need to be told


def _halted(worker: Worker, line: Any) -> None:
    """An append that stops itself at one of its steps, after it has said where."""
    left = worker.chance.randrange(1, 14)
    kind = worker.chance.choice([*["append", "guarded append", "chain", "retried append"] * 2, *HALTED])
    where = worker.somewhere(kind)

    def halt(step: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0 and not stopped and not step.endswith(LOCKED):  # others would wait for the lock
            stopped.append(step)
            line.send(("stopped", where))
            os.kill(os.getpid(), signal.SIGSTOP)
            line.send(("going on", None))

    stopped: list[str] = []
    worker.do(kind, halt, where)


class Storm:
    """The processes, and what is done to them.

    Args:
        forks: Where processes come from.
        system: What is tried.
        place: Where.
        folder: Where the processes write down what they do.
        seed: What the dice begin with.
        server: The replica set, whose primary is to step down; None if there is none.
    """

    def __init__(self, forks: Any, system: Any, place: Place, folder: Path, seed: int, server: Any = None) -> None:
        self.forks, self.system, self.place, self.folder, self.server = forks, system, place, folder, server
        self.chance = random.Random(seed)
        self.counts = dict.fromkeys(("killed", "stopped", "stopped in an append", "stepped down"), 0)
        self._workers: dict[Any, Any] = {}
        self._number = 0
        journal = Journal(folder / "own.jsonl", "own")
        ttl = TTL.get(place.kind, LONGEST_TTL)
        histories = (system.histories(place), system.histories(place, ttl=ttl))
        self.own = Worker(place, *histories, journal, "own", seed)

    def run(self, workers: int, enough: Callable[[], bool]) -> None:
        """Lets them work until it is enough."""
        try:
            for _ in range(workers):
                self._fork()
            self._disturb(enough)
            self._end()
        finally:
            for process in self._workers.values():  # none, unless something failed
                process.kill()

    def _disturb(self, enough: Callable[[], bool]) -> None:
        step_down = time.monotonic() + 3
        while not enough():
            for line in wait(list(self._workers), self.chance.uniform(0.02, 0.2)):
                self._hear(line)
            dice = self.chance.random()
            if dice < 0.06:
                self._kill(self.chance.choice(list(self._workers)))
            elif dice < 0.15:
                self._stop(self.chance.choice(list(self._workers)))
            if self.server is not None and time.monotonic() > step_down:
                self._step_down()
                step_down = time.monotonic() + 7

    def _fork(self) -> None:
        self._number += 1
        line, end = self.forks.Pipe()
        name, seed = f"w{self._number}", self.chance.randrange(10**9)
        process = self.forks.Process(target=work, args=(self.system.name, self.place, self.folder, name, seed, end))
        process.start()
        end.close()
        self._workers[line] = process

    def _hear(self, line: Any) -> None:
        """One that has stopped in the middle of an append: its session is cleared or its user purged, then it ends."""
        what, where = line.recv()  # one that has failed says nothing: EOFError
        if what != "stopped":
            return
        self.counts["stopped in an append"] += 1
        for kind in self.chance.choice([("clear",), ("purge",), ("clear", "append"), ("purge", "append"), ()]):
            self.own.do(kind, where=where)
        if self.chance.random() < 0.4:
            self._kill(line)
            return
        while not line.poll(0.05):  # it may not have stopped yet when it is told to go on
            os.kill(self._workers[line].pid, signal.SIGCONT)

    def _kill(self, line: Any) -> None:
        process = self._workers.pop(line)
        process.kill()
        process.join(10)
        line.close()
        self.counts["killed"] += 1
        self._fork()

    def _stop(self, line: Any) -> None:
        """For a moment, in which the others go on."""
        process = self._workers[line]
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(self.chance.uniform(0, 0.3))
        os.kill(process.pid, signal.SIGCONT)
        self.counts["stopped"] += 1

    def _step_down(self) -> None:
        host = self.server.hosts[self.server.primary_index()]
        with contextlib.suppress(PyMongoError), MongoClient[Any](f"mongodb://{host}/?directConnection=true") as client:
            client.admin.command("replSetStepDown", 3, force=True)
        self.counts["stepped down"] += 1

    def _end(self) -> None:
        for line, process in self._workers.items():
            line.send("end")
            deadline = time.monotonic() + 60
            while process.is_alive() and time.monotonic() < deadline:
                with contextlib.suppress(ProcessLookupError):  # it has ended just now
                    os.kill(process.pid, signal.SIGCONT)
                process.join(0.1)
            assert process.exitcode == 0, f"a worker hangs, or has failed: {process.exitcode}"
            line.close()
        self._workers.clear()

    @property
    def written(self) -> int:
        """Bytes that were written down so far, some 150 for each operation's begin and end."""
        return sum(file.stat().st_size for file in self.folder.iterdir())

    def look_at_all(self) -> None:
        """Ends what was killed in the middle of clearing or purging, and reads each session, in both ways."""
        operations = read_journals(self.folder.iterdir())
        for each in operations:
            if each.kind in ("clear", "purge") and not each.done:
                self.own.do(each.kind, where=(each.user, each.session))
        wheres = {(each.user, name) for each in operations for name in (each.session, each.into) if name}
        for user in sorted({user for user, _ in wheres}):
            self.own.do("titles", where=(user, ""))
        for where in sorted(wheres):
            self.own.do("read", where=where)
            self.own.do("read turns", where=where)
        self.own.journal.close()
