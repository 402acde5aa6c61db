"""Forks beside writers, clears, edits and purges: does any order of the calls explain what is there in the end?

A race is a few calls at about the same time on two sessions of a user of its own, a source and a copy, by threads of
two processes. Each call is noted with when it began and ended and what it said. Afterwards the two sessions are read,
and the documents or rows behind them. `gatekit.model` says whether an order of the calls explains all that.
"""

from __future__ import annotations

import math
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage

from gatekit.checker import TYPED, Operation
from gatekit.model import Family
from gatekit.races import SAID
from gatekit.systems import SYSTEMS, Place, split_turns, texts

SOURCE, COPY, THIRD = "source", "copy", "third"
BASE = 5  # turns of the source before the race
SPREAD = 0.015  # seconds in which the calls begin; a fork takes about as long
LEAD = 0.004  # seconds until they begin, in which each process hears of them
SLOW = 10.0  # seconds after which a call counts as stuck
TRIES = 3  # of a call that says that it may be stored
KINDS = {  # what is called beside a fork of the source into the copy
    "writers of the source": ("append source", "append source"),
    "writers of the copy": ("append copy", "append copy"),
    "clear of the source": ("clear source", "append source"),
    "clear of the copy": ("clear copy",),
    "clear and writer of the copy": ("clear copy", "append copy"),
    "edits": ("edit source", "undo source"),
    "purge": ("purge",),
    "purge and writers": ("purge", "append source", "append copy"),
    "purge, and the copy is in use": ("purge",),
    "another fork": ("fork",),
    "another fork, and a writer": ("fork", "append source"),
}
ANY = ("append source", "append copy", "clear source", "clear copy", "edit source", "undo source", "purge", "fork")


class Call(NamedTuple):
    """What is called, and when.

    Attributes:
        verb: "append", "clear", "edit", "undo", "purge", "fork" or "read".
        session: Of which session.
        token: What an append or an edit says.
        delay: Seconds after the begin of the race.
    """

    verb: str
    session: str
    token: str = ""
    delay: float = 0.0


@dataclass
class Ran:
    """A race that is over."""

    number: int
    kind: str
    operations: list[Operation]
    stored: dict[str, set[str]]
    wrong: list[str] = field(default_factory=list)

    @property
    def calls(self) -> list[Operation]:
        """What was called at about the same time."""
        return [each for each in self.operations if each.id.startswith("call")]

    def __str__(self) -> str:
        """In words."""
        first = self.calls[0].began
        lines = [f"race {self.number}, {self.kind}: {'; '.join(self.wrong)}"]
        for each in (e for e in self.operations if not e.id.startswith("base")):
            when = f"{1000 * (each.began - first):.1f}-{1000 * ((each.ended or 0) - first):.1f} ms"
            said = " ".join([*each.tokens, *(token for token, _ in each.seen)])
            lines.append(f"{each.kind} {each.session} {each.into} {when} {said} {each.error} {each.text}")
        return "\n    ".join([*lines, f"stored {self.stored}"])


def base_of(number: int) -> tuple[str, ...]:
    """What the source says before the race."""
    return tuple(f"said-{number}-b{n}" for n in range(BASE))


def planned(number: int, kind: str, chance: random.Random) -> list[Call]:
    """The calls of a race."""
    wanted = [chance.choice(ANY) for _ in range(4)] if kind == "anything" else [*KINDS[kind]]
    calls = []
    for n, each in enumerate(["fork", *wanted, "read copy", "read copy"]):
        verb, _, session = each.partition(" ")
        delay = chance.uniform(0, SPREAD / 3 if n == 0 else SPREAD)
        calls.append(Call(verb, session or SOURCE, f"said-{number}-{verb[0]}{n}", delay))
    return calls


def user_of(number: int) -> str:
    """Whose sessions these are."""
    return f"u{number}"


def turn(token: str) -> list[Any]:
    """What is said with a token."""
    return [HumanMessage(token), AIMessage(f"re: {token}")]


def call_once(histories: Any, noted: Operation, edited_at: int) -> None:
    """One try of a call; what it answers is noted."""
    history = histories(noted.session, noted.user)
    token = noted.tokens[0] if noted.tokens else ""
    if noted.kind == "append":
        history.append_turn(turn(token), turn_id=token)
    elif noted.kind == "edit":
        history.edit(edited_at, turn(token), turn_id=token)
    elif noted.kind == "undo":
        noted.answer = history.undo_edit()
    elif noted.kind == "purge":
        histories.purge(noted.user)
    elif noted.kind == "fork":
        history.fork(noted.into)
    elif noted.kind == "clear":
        history.clear()
    else:
        said = texts(history)
        noted.seen, noted.half = [(text, 0) for text in said if not text.startswith("re: ")], split_turns(said)


def tried(histories: Any, number: int, call: Call, edited_at: int) -> Iterator[Operation]:
    """A call, again as long as it says that it may have been stored."""
    kept = Operation(f"call-{call.token}", call.verb, user_of(number), f"{call.session}{number}")
    if call.verb in ("append", "edit"):
        kept.tokens = [call.token]
    if call.verb == "edit":
        kept.turn, kept.known = base_of(number)[1], 0.0
    if call.verb == "fork":
        kept.into = f"{COPY}{number}"
    for n in range(TRIES):
        noted = replace(kept, id=f"{kept.id}-{n}", began=time.monotonic())
        try:
            call_once(histories, noted, edited_at)
        except Exception as error:
            noted.error, noted.maybe_stored = type(error).__name__, getattr(error, "maybe_stored", None)
            noted.text = str(error)[:300]
        noted.ended = time.monotonic()
        yield noted
        if not noted.maybe_stored or call.verb == "undo":
            return


def serve(system: str, place: Place, line: Any) -> None:
    """In a process of its own: makes the calls that it is sent, each in a thread, until None comes."""
    histories = SYSTEMS[system]().histories(place)
    histories("warm", "warm").add_user_message("warm")
    line.send("ready")
    while (sent := line.recv()) is not None:
        number, calls, at, edited_at = sent
        done: list[Operation] = []

        def make(
            call: Call, number: int = number, at: float = at, edited_at: int = edited_at, done: Any = done
        ) -> None:
            time.sleep(max(0.0, at + call.delay - time.monotonic()))
            done.extend(tried(histories, number, call, edited_at))

        threads = [threading.Thread(target=make, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        line.send(done)
    histories.close()


class Lane:
    """One race after the other, by two processes.

    Args:
        forks: Where processes come from.
        system: What is tried.
        place: Where.
        raw_rows: What is stored of a user, behind memkit's back: session and content of each row.
        seed: What the dice begin with.
    """

    def __init__(
        self, forks: Any, system: Any, place: Place, raw_rows: Callable[[str], list[tuple[str, bytes]]], seed: int
    ) -> None:
        self.raw_rows, self.chance, self.histories = raw_rows, random.Random(seed), system.histories(place)
        self.lines, self.processes = [], []
        for _ in range(2):
            line, end = forks.Pipe()
            process = forks.Process(target=serve, args=(system.name, place, end), daemon=True)
            process.start()
            end.close()
            self.lines.append(line)
            self.processes.append(process)
        for line in self.lines:
            assert line.recv() == "ready"

    def close(self) -> None:
        """Ends its processes."""
        for line, process in zip(self.lines, self.processes, strict=True):
            line.send(None)
            process.join(10)
            line.close()

    def race(self, number: int, kind: str) -> Ran:
        """One race, and what is wrong after it."""
        calls = planned(number, kind, self.chance)
        base = [next(tried(self.histories, number, Call("append", SOURCE, token), 0)) for token in base_of(number)]
        if kind.endswith("in use"):
            base.append(next(tried(self.histories, number, Call("append", COPY, f"said-{number}-c"), 0)))
        [_, second, *_] = self.histories(f"{SOURCE}{number}", user_of(number)).iter_turns()
        self.chance.shuffle(calls)
        at = time.monotonic() + LEAD
        for i, line in enumerate(self.lines):
            line.send((number, calls[i::2], at, second.seq))
        done = sorted((each for line in self.lines for each in line.recv()), key=lambda each: each.began)
        reads = [next(tried(self.histories, number, Call("read", name), 0)) for name in (SOURCE, COPY)]
        operations = [replace(each, id=f"base-{each.id}") for each in base] + done
        operations += [replace(each, id=f"end-{each.id}") for each in reads]
        ran = Ran(number, kind, operations, self._stored(number))
        ran.wrong += faults(ran)
        ran.wrong += self._stuck(number)
        return ran

    def _stored(self, number: int) -> dict[str, set[str]]:
        """What lies in the documents or rows of each session."""
        found: dict[str, set[str]] = {f"{session}{number}": set() for session in (SOURCE, COPY, THIRD)}
        for session, content in self.raw_rows(user_of(number)):
            found[session] |= {said.decode() for said in SAID.findall(content)}
        return found

    def _stuck(self, number: int) -> list[str]:
        """What does not work afterwards: turns, a clear of the copy and another fork into it, another copy, a purge."""
        user = user_of(number)
        source, copy = (self.histories(f"{session}{number}", user) for session in (SOURCE, COPY))
        last, more = f"said-{number}-z1", f"said-{number}-z2"

        def grow() -> bool:
            copy.append_turn(turn(last))
            source.append_turn(turn(more))
            return texts(copy)[-2:] == [last, f"re: {last}"] and texts(source)[-2:] == [more, f"re: {more}"]

        def fork_again() -> bool:
            copy.clear()
            return texts(source.fork(f"{COPY}{number}")) == texts(source)

        def purge() -> bool:
            self.histories.purge(user)
            return not any(self._stored(number).values()) and self.histories.list_sessions(user) == []

        checks: dict[str, Callable[[], bool]] = {
            "a turn afterwards": grow,
            "a fork afterwards into the copy, cleared": fork_again,
            "a fork afterwards into a third": lambda: texts(source.fork(f"{THIRD}{number}")) == texts(source),
            "a purge in the end": purge,
        }
        found = []
        for name, work in checks.items():
            began = time.monotonic()
            try:
                good = work()
            except Exception as error:
                found.append(f"stuck: {name}: {type(error).__name__}: {error}"[:300])
            else:
                found += [] if good else [f"stuck: {name}"]
            if time.monotonic() - began > SLOW:
                found.append(f"stuck: {name} took {time.monotonic() - began:.1f} s")
        return found


def rows_of_file(file: str, user: str) -> list[tuple[str, bytes]]:
    """What lies in a file of a user, behind memkit's back: session and content of each row."""
    with closing(sqlite3.connect(file)) as connection:
        query = "SELECT session_id, messages FROM turns WHERE user_id = ? AND session_id <> ''"
        return [(session, str(content).encode()) for session, content in connection.execute(query, (user,))]


def documents_of(collection: Any, user: str) -> list[tuple[str, bytes]]:
    """What lies in a collection of a user, behind memkit's back: session and content of each document."""
    found = collection.find({"user_id": user, "session_id": {"$ne": ""}})
    return [(document["session_id"], repr(document).encode()) for document in found]


def faults(ran: Ran) -> list[str]:
    """What is wrong after a race, by name."""
    last_tries = {each.id.rpartition("-")[0]: each for each in ran.calls}.values()
    found = [f"no error of memkit's: {e.error}: {e.text}" for e in ran.calls if e.error and e.error not in TYPED]
    found += [f"stuck: {e.kind} took {_seconds(e):.1f} s" for e in ran.calls if _seconds(e) > SLOW]
    found += [f"gave up: {each.kind}: {each.text}" for each in last_tries if each.maybe_stored]
    for purge in (each for each in ran.calls if each.kind == "purge" and each.done):
        before = {t for e in ran.operations if (e.ended or 0) < purge.began for t in e.tokens}
        later = [each for each in ran.operations if each.kind == "read" and each.began > (purge.ended or 0)]
        found += ["purged, and shown"] * any(before & {token for token, _ in each.seen} for each in later)
        found += ["purged, and left"] * bool(before & set().union(*ran.stored.values()))
    names = [f"{SOURCE}{ran.number}", f"{COPY}{ran.number}"]
    unexplained = Family(user_of(ran.number), names, ran.operations).check(ran.stored)
    return [*found, *(f"{what}: {where.id} {details}" for what, where, details in unexplained)]


def _seconds(call: Operation) -> float:
    return (call.ended or math.inf) - call.began


def summary(name: str, ran: Sequence[Ran]) -> str:
    """The counts of many races."""
    kinds = Counter(text.partition(":")[0] for each in ran for text in set(each.wrong))
    calls = [each for race in ran for each in race.calls]
    refused = Counter(f"{each.kind} {each.error}" for each in calls if each.error)
    slowest, bad = max(map(_seconds, calls), default=0.0), sum(bool(each.wrong) for each in ran)
    return (
        f"{name}: {len(ran)} races, {len(calls)} calls, the slowest {slowest:.2f} s; refused {dict(refused)};"
        f" {bad} races wrong: {dict(kinds)}"
    )
