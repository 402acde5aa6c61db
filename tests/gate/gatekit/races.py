"""Races: a writer is stopped at each step, the other side clears, purges and appends, then the writer goes on or dies.

A step is the moment before or after a command to a MongoDB server, or a statement of SQLite, or the moment in which the
model is asked. All runs in lockstep, and a reader looks at the session at each step of either side, so that no state
goes by unseen and no clock decides anything.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableLambda
from pymongo import monitoring

from gatekit.systems import SYSTEMS, Place, answer_to, config, split_turns, texts
from langchain_memkit import create_runnable_with_message_history
from langchain_memkit.errors import HistoryWriteError

SAID = re.compile(rb"said-[a-z0-9]+-[a-z0-9]+")
STATES = {  # what the session went through before
    "new": (),
    "going": ("i1", "i2"),
    "cleared": ("i1", "clear"),
    "purged": ("i1", "purge"),  # a user's only
}
THINGS = {  # what the other side does meanwhile, for a user's session and for one that belongs to nobody
    True: ("clear", "purge", "append", "clear append", "purge append", "clear clear", "purge clear append"),
    False: (
        *("clear", "append", "clear append", "clear clear"),
        *("append clear", "clear append clear", "append clear append"),
    ),
}
ERASING = ("clear", "purge")
QUIET = ("endSessions", "hello", "ping")  # commands that say nothing of a conversation
READS = ("find", "aggregate", "getMore", "listIndexes", "createIndexes", "SELECT", "BEGIN")
LOCKED = " in a transaction"  # which others wait for
NEVER = 10**6  # a step that no writer comes to
LIMIT = 60.0  # seconds that the other side of a line may take; only what hangs takes so long

_here = threading.local()
_numbers = itertools.count(1)


class Killed(BaseException):
    """Ends a thread at once, as SIGKILL ends a process: nothing is sent any more."""


class Case(NamedTuple):
    """One race.

    Attributes:
        writer: "chain", "async chain" or "append".
        state: How the session stands, one of `STATES`.
        owned: Whether it is a user's.
        stop: The step at which the writer stops.
        things: What the other side does then, one of `THINGS`.
        dies: After how many more writes the writer dies; 0: where it stopped, None: it goes on to its end.
    """

    writer: str
    state: str
    owned: bool
    stop: int
    things: str
    dies: int | None


def step(name: str) -> None:
    """Tells the hook of this thread, if it has one, that the work is at a step."""
    hook = getattr(_here, "hook", None)
    if hook is not None:
        hook(name)


@contextmanager
def hooked(hook: Callable[[str], None] | None) -> Iterator[None]:
    """Calls `hook(name)` at each step of this thread meanwhile; None: nothing."""
    before = getattr(_here, "hook", None)
    _here.hook = hook
    try:
        yield
    finally:
        _here.hook = before


class _Steps(monitoring.CommandListener):
    """Each command is two steps. What a listener raises beside `Exception` reaches the caller of the command."""

    def started(self, event: Any) -> None:
        """The server does not have the command yet."""
        self._at("before", event)

    def succeeded(self, event: Any) -> None:
        """The server has answered."""
        self._at("after", event)

    def failed(self, event: Any) -> None:
        """The server has refused it."""
        self._at("after", event)

    def _at(self, when: str, event: Any) -> None:
        if event.command_name not in QUIET:
            step(f"{when} {event.command_name}")


monitoring.register(_Steps())  # for clients that are made after this; it cannot be taken back


def _model(messages: Any) -> AIMessage:
    step("model")
    return answer_to(messages)


async def _amodel(messages: Any) -> AIMessage:
    return _model(messages)


MODEL: Runnable[Any, Any] = RunnableLambda(_model, _amodel)


def write(case: Case, histories: Any, session: str, user: str | None, said: str) -> None:
    """What the writer does, once."""
    if case.writer == "append":
        histories(session, user).append_turn([HumanMessage(said), AIMessage(f"re: {said}")])
        return
    chain = create_runnable_with_message_history(MODEL, histories, on_dropped_turn="raise")
    if case.writer == "chain":
        chain.invoke(said, config(session, user))
    else:

        async def turn() -> None:
            await chain.ainvoke(said, config(session, user))

        asyncio.run(turn())


def changes(name: str) -> bool:
    """Whether others may see something new after this step: a write that is no part of a transaction."""
    return name.startswith("after ") and not name.endswith(LOCKED) and name.split()[1] not in READS


def take_part(line: Any, stop: int, work: Callable[[], None]) -> None:
    """The writer's side of a line: waits at its `stop`th step and after each write behind it; says how it ended."""
    names: list[str] = []
    dead = False

    def at(name: str) -> None:
        nonlocal dead
        names.append(name)
        here = len(names) - 1
        if not dead and (here == stop or (here > stop and changes(name))):
            line.send(names)
            dead = line.recv() == "die"
        if dead:
            raise Killed

    outcome: tuple[str, bool | None] = ("stored", None)
    with hooked(at):
        try:
            work()
        except Killed:
            outcome = ("killed", None)
        except HistoryWriteError as error:
            outcome = (type(error).__name__, error.maybe_stored)
        except Exception as error:
            outcome = (f"{type(error).__name__}: {error}"[:200], None)
    line.send((names, *outcome))


class Writer:
    """The controller's side: where the writer stands, and what it is told."""

    def __init__(self, line: Any, kill: Callable[[], None]) -> None:
        self._line, self._kill = line, kill
        self.names: list[str] = []  # of the steps that it came to
        self.outcome: str | None = None
        self.maybe_stored: bool | None = None

    def arrive(self) -> bool:
        """Waits until it stands; False if it ended."""
        assert self._line.poll(LIMIT), f"the writer hangs after {self.names[-1:]}"
        said = self._line.recv()
        if isinstance(said, list):
            self.names = said
            return True
        self.names, self.outcome, self.maybe_stored = said
        return False

    def go_on(self) -> None:
        """Lets it do what comes next."""
        self._line.send("go")

    def kill(self) -> None:
        """Ends it where it stands."""
        self.outcome = "killed"
        self._kill()


@contextmanager
def in_thread(stop: int, work: Callable[[], None]) -> Iterator[Writer]:
    """A writer in a thread: killed means that it sends nothing any more, which is all that a server sees of a death."""
    ours, theirs = Pipe()
    thread = threading.Thread(target=take_part, args=(theirs, stop, work), daemon=True)
    thread.start()
    writer = Writer(ours, lambda: ours.send("die"))
    yield writer
    thread.join(LIMIT)
    assert not thread.is_alive(), f"the writer hangs after {writer.names[-1:]}"
    ours.close()
    theirs.close()


@dataclass
class Event:
    """Something that took from `began` to `ended`, in the order in which things happened; None: it never ended."""

    kind: str  # append, erase, look
    tokens: tuple[str, ...]
    began: int
    ended: int | None = None
    acknowledged: bool = False
    guarded: bool = False  # began with a read: what is erased after that must not be followed by it


@dataclass
class Log:
    """What happened, in order. Only the controller and the other side write into it, each when its turn is."""

    events: list[Event] = field(default_factory=list)
    _clock: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def begin(self, kind: str, *tokens: str) -> Event:
        """Notes that something begins."""
        event = Event(kind, tokens, next(self._clock))
        self.events.append(event)
        return event

    def end(self, event: Event, *, acknowledged: bool = True) -> None:
        """Notes that it has ended, and whether it said so."""
        event.ended, event.acknowledged = next(self._clock), acknowledged


def wrong(log: Log, final: Sequence[str], stored: set[str]) -> list[str]:
    """What must not be: `final` is what the session shows in the end, `stored` what lies in the store.

    An erase is a clear or a purge. A turn that began (for a chain: whose context was read) before an erase began is not
    there once that has ended. What was shown and is not stored in the end was erased after it was shown.
    """
    found = []
    erases = [event for event in log.events if event.kind == "erase"]
    looks = [event for event in log.events if event.kind == "look"]
    appends = {event.tokens[0]: event for event in log.events if event.kind == "append"}
    if left := stored - set(final):
        found += [f"content left: {token}" for token in sorted(left)]
    for token, append in appends.items():
        shown = [look for look in looks if token in look.tokens]
        first = min((look.ended for look in shown if look.ended), default=None)
        known = [append.ended if append.acknowledged else None, append.began if append.guarded else None, first]
        since = min((n for n in known if n is not None), default=None)  # what is erased after this takes it along
        for erase in (e for e in erases if e.ended is not None):
            if since is not None and since < erase.began:
                late = [look for look in shown if look.began > erase.ended]
                found += [f"erased, and shown again: {token}"] * bool(late or token in final)
        if token not in final:
            void = [look for look in shown if not any((e.ended or look.began + 1) > look.began for e in erases)]
            found += [f"shown, and never stored: {token}"] * bool(void)
            overlapped = any((e.ended or append.began + 1) > append.began for e in erases)
            found += [f"acknowledged, and lost: {token}"] * (append.acknowledged and not overlapped)
    order = [token for token in final if token in appends]
    for a, b in itertools.combinations(order, 2):
        later, earlier = appends[a], appends[b]
        if earlier.acknowledged and earlier.ended is not None and earlier.ended < later.began:
            found.append(f"out of order: {a} before {b}")
    if len(set(final)) < len(final):
        found.append(f"doubled: {list(final)}")
    return sorted(set(found))


class Ran(NamedTuple):
    """What became of a race."""

    case: Case
    reached: bool  # whether the writer came to the step at all
    steps: list[str]
    wrong: list[str]
    number: int  # in what was said
    shown: set[str]  # what is there in the end
    looks: int


def run(case: Case, histories: Any, start: Callable[..., Any], erased: Callable[[str], set[str]] | None = None) -> Ran:
    """One race in a session of its own.

    Args:
        case: Which.
        histories: A factory of the place.
        start: `start(case, session, user, said)`, a context manager: a `Writer` that does the work.
        erased: What lies in the store, asked in the end; None if the caller looks into the store of many races.
    """
    number = next(_numbers)
    session, user = f"s{number}", f"u{number}" if case.owned else None
    race = _Race(histories, session, user, number)
    with hooked(None):
        for name in STATES[case.state]:
            race.do(name)
    token = f"said-{number}-w"
    writing: Event | None = None
    with start(case, session, user, token) as writer:

        def arrives() -> bool:
            nonlocal writing
            going: bool = writer.arrive()
            if writing is None and (case.writer == "append" or "model" in writer.names):
                writing = race.log.begin("append", token)
                writing.guarded = case.writer != "append"
            return going

        reached = arrives()
        if reached:
            race.look()
            race.meanwhile(case.things, writer, dies=case.dies == 0)
            writes = 0
            while writer.outcome is None and arrives():
                race.look()
                writes += 1
                if writes == case.dies:
                    writer.kill()
                else:
                    writer.go_on()
            race.settle()
    if writing is not None and writer.outcome == "stored":
        race.log.end(writing)
    race.look()
    listed = {info.session_id for info in histories.list_sessions(user)}
    found = (
        [] if (session in listed) == bool(texts(histories(session, user))) else ["listed, and empty, or the reverse"]
    )
    for name in ("l1", "l2"):
        race.do(name)
    said = texts(histories(session, user))
    final = [text for text in said if not text.startswith("re: ")]
    stored = erased(session) if erased else set(final)
    found += wrong(race.log, final, stored)
    found += [f"half a turn: {text}" for text in split_turns(said)]
    if writer.maybe_stored is False and token in final:
        found.append(f"said that nothing was stored: {token}")
    if writer.outcome not in ("stored", "killed", "StaleTurnError"):
        found.append(f"the writer ended with {writer.outcome}")
    found += race.failures
    looks = sum(event.kind == "look" for event in race.log.events)
    return Ran(case, reached, writer.names, found, number, set(final), looks)


class _Race:
    """The other side, and the reader."""

    def __init__(self, histories: Any, session: str, user: str | None, number: int) -> None:
        self.histories, self.session, self.user, self.number = histories, session, user, number
        self.log = Log()
        self.failures: list[str] = []
        self._appends = itertools.count(1)
        self._thread: threading.Thread | None = None

    def look(self) -> None:
        """Reads the session, as any reader may at any time."""
        with hooked(None):
            event = self.log.begin("look")
            said = texts(self.histories(self.session, self.user))
            event.tokens = tuple(text for text in said if not text.startswith("re: "))
            self.log.end(event)

    def do(self, name: str) -> None:
        """One thing of the other side."""
        history = self.histories(self.session, self.user)
        if name in ERASING:
            event = self.log.begin("erase")
            if name == "clear":
                history.clear()
            else:
                self.histories.purge(self.user)
        else:
            label = f"a{next(self._appends)}" if name == "append" else name
            said = f"said-{self.number}-{label}"
            event = self.log.begin("append", said)
            history.append_turn([HumanMessage(said), AIMessage(f"re: {said}")])
        self.log.end(event)

    def meanwhile(self, things: str, writer: Writer, *, dies: bool) -> None:
        """Does all the things while the writer stands; if it holds a lock, begins them, and lets them wait for it."""
        waiting = threading.Event()

        def all_of_them() -> None:
            def at(name: str) -> None:
                if name == "before BEGIN":
                    waiting.set()
                if changes(name):
                    self.look()

            try:
                with hooked(at):
                    for thing in things.split():
                        self.do(thing)
            except Exception as error:
                self.failures.append(f"{things} failed: {type(error).__name__}: {error}"[:200])
            waiting.set()

        if writer.names[-1].endswith(LOCKED):
            self._thread = threading.Thread(target=all_of_them)
            self._thread.start()
            waiting.wait(LIMIT)
        else:
            all_of_them()
            self.look()
        if dies:
            writer.kill()
        else:
            writer.go_on()

    def settle(self) -> None:
        """Waits until the things are done."""
        if self._thread is not None:
            self._thread.join(LIMIT)
            assert not self._thread.is_alive(), "the other side hangs"


class Watched(sqlite3.Connection):
    """Each statement is two steps; those that set up a connection are none."""

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """As a connection does."""
        return self._stepped(super().execute, sql, *parameters)

    def executemany(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        """As a connection does."""
        return self._stepped(super().executemany, sql, *parameters)

    def _stepped(self, execute: Callable[..., sqlite3.Cursor], sql: str, *parameters: Any) -> sqlite3.Cursor:
        verb = sql.split(maxsplit=1)[0]
        if verb == "PRAGMA":
            return execute(sql, *parameters)
        step(f"before {verb}{LOCKED if self.in_transaction else ''}")
        cursor = execute(sql, *parameters)
        step(f"after {verb}{LOCKED if self.in_transaction else ''}")
        return cursor


@contextmanager
def in_process(stop: int, work: Callable[[], None]) -> Iterator[Writer]:
    """A writer in a process that is forked here, and killed by SIGKILL."""
    ours, theirs = Pipe()
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            take_part(theirs, stop, work)
        finally:
            os._exit(0)
    theirs.close()
    writer = Writer(ours, lambda: os.kill(child, signal.SIGKILL))
    try:
        yield writer
    finally:
        if writer.outcome is None:
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ours.close()


def on_server(place: Place, system: Any) -> Callable[[Case], Ran]:
    """Races on one collection of a server, any number at a time."""
    histories = system.histories(place)
    histories("warm").add_user_message("warm")

    def start(case: Case, session: str, user: str | None, said: str) -> Any:
        return in_thread(case.stop, lambda: write(case, histories, session, user, said))

    return lambda case: run(case, histories, start)


def in_file(case: Case, folder: Path, system: Any) -> Ran:
    """One race on a SQLite file of its own, in a process without other threads."""
    file = folder / "chat.db"
    folder.mkdir()
    histories = system.histories(Place("sqlite", str(file)))
    histories.setup()  # who opens a new file waits for whoever makes its tables, the reader also

    def start(case: Case, session: str, user: str | None, said: str) -> Any:
        histories.close()  # connections do not survive a fork
        return in_process(case.stop, lambda: write(case, histories, session, user, said))

    def stored(session: str) -> set[str]:
        histories.close()
        return {said.decode() for each in folder.iterdir() for said in SAID.findall(each.read_bytes())}

    ran = run(case, histories, start, stored)
    shutil.rmtree(folder)
    return ran


def run_in_files(system: str, folder: Path, line: Any) -> None:
    """In a process of its own: runs races that it is sent, until None comes."""
    connect = sqlite3.connect
    sqlite3.connect = partial(connect, factory=Watched)  # type: ignore[assignment]  # for this process only
    made = SYSTEMS[system]()
    while (cases := line.recv()) is not None:
        line.send([in_file(case, folder / f"{os.getpid()}-{next(_numbers)}", made) for case in cases])


def all_cases(run_all: Callable[[Sequence[Case]], Sequence[Ran]], writers: Sequence[str]) -> list[Case]:
    """Every race: how many steps there are to stop at is asked by one that is not stopped."""
    whole = [
        Case(writer, state, owned, NEVER, "append", dies=None)
        for writer in writers
        for state in STATES
        for owned in (True, False)
        if owned or state != "purged"
    ]
    ran = run_all(whole)
    assert [each for each in ran if each.wrong] == [], "wrong without a race"
    return [
        each.case._replace(stop=stop, things=things, dies=dies)
        for each in ran
        for stop in range(len(each.steps))
        for things in THINGS[each.case.owned]
        for dies in _endings(each.steps, stop)
    ]


def _endings(steps: Sequence[str], stop: int) -> list[int | None]:
    """How a writer that stops there may end; from the step after a command it is the same as before the next one."""
    writes = sum(changes(name) for name in steps[stop + 1 :])
    return [None, 0, *(range(1, min(writes, 3) + 1) if steps[stop].startswith("before") else ())]


def left_on_server(collections: Sequence[Any]) -> set[str]:
    """What was said and lies in any field of any document."""
    batches = (batch for each in collections for batch in each.find_raw_batches())
    return {said.decode() for batch in batches for said in SAID.findall(batch)}
