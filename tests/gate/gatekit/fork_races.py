"""Forks beside writers, clears, edits and purges: does any order of the calls explain what is there in the end?

A race is a few calls at about the same time on two sessions of a user of its own, a source and a copy, by threads of
two processes. Each call is noted with when it began and ended and what it said. Afterwards the two sessions are read,
and the documents or rows behind them. `explained` looks for an order of the calls, each somewhere between its begin and
its end, in which a model of a few lines comes to the same: that is all that may be seen of two sessions.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, HumanMessage

from gatekit.checker import NEVER_STORED
from gatekit.races import SAID
from gatekit.systems import SYSTEMS, Place, split_turns, texts
from langchain_memkit.errors import MemkitError

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
    "another fork": ("fork",),
    "another fork, and a writer": ("fork", "append source"),
}
ANY = ("append source", "append copy", "clear source", "clear copy", "edit source", "undo source", "purge", "fork")


class Call(NamedTuple):
    """What is called, and when.

    Attributes:
        verb: "append", "clear", "edit", "undo", "purge", "fork" or "look".
        session: Of which session.
        token: What an append or an edit says.
        delay: Seconds after the begin of the race.
    """

    verb: str
    session: str
    token: str = ""
    delay: float = 0.0


class Done(NamedTuple):
    """What became of a call, or of one try of it."""

    call: Call
    began: float
    ended: float
    error: str = ""
    maybe_stored: bool | None = None
    answer: Any = None  # of an undo: whether there was an edit; of a look: what it saw
    text: str = ""

    @property
    def may_have_changed(self) -> bool:
        """Whether its error leaves open that it did what it was to do."""
        return bool(self.error) and self.maybe_stored is not False and self.error not in NEVER_STORED

    @property
    def latest(self) -> float:
        """Until when it may have changed something: what is not known may arrive late."""
        return float("inf") if self.may_have_changed else self.ended

    def overlaps(self, other: Done) -> bool:
        """Whether either may have come first."""
        return self.began <= other.ended and other.began <= self.ended


class Rows(NamedTuple):
    """The model of a session."""

    shown: tuple[str, ...] = ()
    hidden: frozenset[str] = frozenset()  # stored, but replaced, or taken back
    before: tuple[tuple[str, ...], ...] = ()  # what was shown before each edit, the newest last

    @property
    def stored(self) -> frozenset[str]:
        """All that lies in the store."""
        return self.hidden | {*self.shown}

    def showing(self, shown: tuple[str, ...], before: tuple[tuple[str, ...], ...]) -> Rows:
        """The same, with something else shown."""
        return Rows(shown, (self.hidden | {*self.shown}) - {*shown}, before)


class State(NamedTuple):
    """The model of both sessions of a race."""

    source: Rows
    copy: Rows = Rows()
    copy_purged_first: bool = False  # a purge has reached the copy and not yet the source

    def with_rows(self, session: str, rows: Rows) -> State:
        """The same, with other rows in one session."""
        return self._replace(source=rows) if session == SOURCE else self._replace(copy=rows)


def forked(state: State) -> list[State]:
    """What a fork that succeeds makes of it; nothing if it cannot succeed here."""
    if not state.copy.stored and not state.copy_purged_first:
        return [state.with_rows(COPY, Rows(state.source.shown))]
    return [state] if state.copy == Rows(state.source.shown) else []


def done_here(state: State, call: Call, edited: str) -> list[State]:
    """What a call that succeeds makes of a state."""
    if call.verb == "fork":
        return forked(state)
    rows: Rows = getattr(state, call.session)
    shown = rows.shown
    if call.verb == "append":
        same = call.token in rows.stored  # it was stored by a try before
        return [state if same else state.with_rows(call.session, rows._replace(shown=(*shown, call.token)))]
    if call.verb == "edit":
        if call.token in rows.stored:
            return [state]
        if edited not in shown:
            return []
        made = rows.showing((*shown[: shown.index(edited)], call.token), (*rows.before, shown))
        return [state.with_rows(call.session, made)]
    if call.verb == "undo":
        made = rows.showing(rows.before[-1], rows.before[:-1]) if rows.before else rows
        return [state.with_rows(call.session, made)]
    purged_first = state.source.stored and call.verb == "purge" and call.session == COPY
    return [state.with_rows(call.session, Rows())._replace(copy_purged_first=bool(purged_first))]


def outcomes(state: State, done: Done, edited: str, is_excused: bool) -> list[State]:
    """What a state may be after a call that ended in this way; nothing if it cannot have ended so here.

    Args:
        state: Before.
        done: The call.
        edited: What an edit replaces, with all after it.
        is_excused: Whether a call at the same time explains a refusal.
    """
    call = done.call
    if done.may_have_changed:
        return [state, *done_here(state, call, edited)]
    if done.error:
        explained = is_excused or (call.verb == "fork" and not forked(state))
        explained = explained or (call.verb == "edit" and edited not in state.source.shown)
        return [state] if explained else []
    if call.verb == "undo" and done.answer is not bool(getattr(state, call.session).before):
        return []
    return done_here(state, call, edited)


def excuses(done: Done, others: Sequence[Done]) -> bool:
    """Whether a refusal of a call can be the doing of another one at the same time."""
    to_copy = [o for o in others if o.overlaps(done) and (o.call.session == COPY or o.call.verb in ("fork", "purge"))]
    erases = [o for o in others if o.overlaps(done) and o.call.verb in ("clear", "purge")]
    if done.error == "StaleTurnError":
        return bool(erases)
    return bool(to_copy) and (done.call.verb == "fork" or done.call.session == COPY)


def explained(start: State, calls: Sequence[Done], edited: str, is_end: Callable[[State], bool]) -> bool:
    """Whether some order of the calls, each between its begin and its end, leads from one state to the end."""
    steps = [done for done in calls if done.call.verb not in ("look", "purge")]
    for purge in (done for done in calls if done.call.verb == "purge"):  # it reaches one session after the other
        steps += [purge._replace(call=purge.call._replace(session=session)) for session in (SOURCE, COPY)]
    excused = [excuses(done, [each for each in calls if each is not done]) for done in steps]

    @cache
    def leads_on(state: State, left: frozenset[int]) -> bool:
        if not left:
            return is_end(state)
        first_end = min(steps[i].latest for i in left)
        return any(
            leads_on(after, left - {i})
            for i in left
            if steps[i].began <= first_end
            for after in outcomes(state, steps[i], edited, excused[i])
        )

    return leads_on(start, frozenset(range(len(steps))))


@dataclass
class Ran:
    """A race that is over."""

    number: int
    kind: str
    calls: list[Done]
    shown: dict[str, tuple[str, ...]]
    stored: dict[str, set[str]]
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """In words."""
        first = min((done.began for done in self.calls), default=0.0)
        said = [
            f"{done.call.verb} {done.call.session} {done.call.token} {1000 * (done.began - first):.1f}-"
            f"{1000 * (done.ended - first):.1f} ms {done.error or ''}{done.text and ': '}{done.text}"
            for done in self.calls
        ]
        return f"race {self.number}, {self.kind}: {'; '.join(self.wrong)}\n    " + "\n    ".join(
            [*said, f"shown {self.shown}", f"stored {self.stored}"]
        )


def base_of(number: int) -> tuple[str, ...]:
    """What the source says before the race."""
    return tuple(f"said-{number}-b{n}" for n in range(BASE))


def planned(number: int, kind: str, chance: random.Random) -> list[Call]:
    """The calls of a race."""
    wanted = [chance.choice(ANY) for _ in range(4)] if kind == "anything" else [*KINDS[kind]]
    calls = []
    for n, each in enumerate(["fork", *wanted, "look copy", "look copy"]):
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


def call_once(histories: Any, number: int, call: Call, edited_at: int) -> Any:
    """One try of a call; returns its answer."""
    user = user_of(number)
    history = histories(f"{call.session}{number}", user)
    if call.verb == "append":
        return history.append_turn(turn(call.token), turn_id=call.token)
    if call.verb == "edit":
        return history.edit(edited_at, turn(call.token), turn_id=call.token)
    if call.verb == "undo":
        return history.undo_edit()
    if call.verb == "purge":
        return histories.purge(user)
    if call.verb == "fork":
        return texts(history.fork(f"{COPY}{number}")) and None
    if call.verb == "look":
        return texts(history)
    return history.clear()


def tried(histories: Any, number: int, call: Call, edited_at: int) -> Iterator[Done]:
    """A call, again as long as it says that it may have been stored."""
    for _ in range(TRIES):
        began = time.monotonic()
        try:
            answer = call_once(histories, number, call, edited_at)
        except Exception as error:
            maybe = getattr(error, "maybe_stored", None)
            done = Done(call, began, time.monotonic(), type(error).__name__, maybe, text=str(error)[:300])
            yield done if isinstance(error, MemkitError) else done._replace(error=f"! {done.error}")
            if not maybe or call.verb == "undo":
                return
        else:
            yield Done(call, began, time.monotonic(), answer=answer)
            return


def serve(system: str, place: Place, line: Any) -> None:
    """In a process of its own: makes the calls that it is sent, each in a thread, until None comes."""
    histories = SYSTEMS[system]().histories(place)
    histories("warm", "warm").add_user_message("warm")
    line.send("ready")
    while (sent := line.recv()) is not None:
        number, calls, at, edited_at = sent
        done: list[Done] = []

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
        source = self.histories(f"{SOURCE}{number}", user_of(number))
        base = base_of(number)
        seqs = [source.append_turn(turn(token)) for token in base]
        calls = planned(number, kind, self.chance)
        self.chance.shuffle(calls)
        at = time.monotonic() + LEAD
        for i, line in enumerate(self.lines):
            line.send((number, calls[i::2], at, seqs[1]))
        done = [each for line in self.lines for each in line.recv()]
        done.sort(key=lambda each: each.began)
        shown = {name: self._shown(number, name) for name in (SOURCE, COPY)}
        ran = Ran(number, kind, done, shown, self._stored(number))
        ran.wrong += faults(ran, base)
        ran.wrong += self._stuck(number)
        return ran

    def _shown(self, number: int, session: str) -> tuple[str, ...]:
        said = texts(self.histories(f"{session}{number}", user_of(number)))
        assert said == [m.text for m in self.histories(f"{session}{number}", user_of(number)).iter_messages()]
        broken = split_turns(said)
        return tuple(f"half a turn: {text}" for text in broken) or tuple(said[::2])

    def _stored(self, number: int) -> dict[str, set[str]]:
        """What lies in the documents or rows of each session."""
        names = {f"{session}{number}": session for session in (SOURCE, COPY, THIRD)}
        found: dict[str, set[str]] = {name: set() for name in names.values()}
        for session, content in self.raw_rows(user_of(number)):
            found[names[session]] |= {said.decode() for said in SAID.findall(content)}
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


def faults(ran: Ran, base: tuple[str, ...]) -> list[str]:
    """What is wrong after a race, by name; `unexplained` if it has no other name."""
    found = [f"no error of memkit's: {done.error[2:]}: {done.text}" for done in ran.calls if done.error[:1] == "!"]
    found += [f"stuck: {d.call.verb} took {d.ended - d.began:.1f} s" for d in ran.calls if d.ended - d.began > SLOW]
    found += [f"gave up: {done.call.verb}: {done.text}" for done in _last_tries(ran.calls) if done.may_have_changed]
    looks = [done for done in ran.calls if done.call.verb == "look" and not done.error]
    purges = [done for done in ran.calls if done.call.verb == "purge" and not done.error]
    if purges:
        said_before = {*base} | {
            done.call.token
            for done in ran.calls
            if done.call.verb in ("append", "edit") and done.ended < purges[0].began
        }
        found += ["purged, and left"] * bool(said_before & {*ran.stored[SOURCE], *ran.stored[COPY]})
        shown_later = [set(look.answer) for look in looks if look.began > purges[0].ended]
        shown_later += [set(shown) for shown in ran.shown.values()]
        found += ["purged, and shown"] * any(said_before & shown for shown in shown_later)
    found += ["left in the copy, and not shown"] * bool(ran.stored[COPY] - {*ran.shown[COPY]})
    is_edited = any(done.call.verb == "edit" for done in ran.calls)
    for said in [*(set(look.answer) for look in looks), set(ran.shown[COPY])]:
        if not is_edited and 0 < len(said & {*base}) < BASE:
            found.append("half a copy shown")
    erases = [d for d in ran.calls if d.call.verb == "purge" or (d.call.verb == "clear" and d.call.session == COPY)]
    succeeded = {done.call.verb for done in ran.calls if not done.error}
    if not erases:
        to_copy = [d for d in ran.calls if d.call.verb == "append" and d.call.session == COPY and not d.error]
        found += ["a turn lost"] * any(done.call.token not in ran.shown[COPY] for done in to_copy)
        is_whole = set(base[:1]) <= {*ran.shown[COPY]}
        may_be_empty = any(done.call.verb == "clear" and done.call.session == SOURCE for done in ran.calls)
        found += ["a copy lost"] * ("fork" in succeeded and not is_whole and not may_be_empty)

    def is_end(state: State) -> bool:
        as_stored = all(getattr(state, name).stored == ran.stored[name] for name in (SOURCE, COPY))
        return as_stored and all(getattr(state, name).shown == ran.shown[name] for name in (SOURCE, COPY))

    if not explained(State(Rows(base)), ran.calls, base[1], is_end):
        found += [] if found else ["unexplained"]
    return found


def _last_tries(calls: Sequence[Done]) -> list[Done]:
    return [*{done.call: done for done in calls}.values()]


def summary(name: str, ran: Sequence[Ran]) -> str:
    """The counts of many races."""
    kinds = Counter(text.partition(":")[0] for each in ran for text in set(each.wrong))
    refused = Counter(f"{d.call.verb} {d.error}" for each in ran for d in each.calls if d.error)
    slowest = max((d.ended - d.began for each in ran for d in each.calls), default=0.0)
    bad = sum(bool(each.wrong) for each in ran)
    return (
        f"{name}: {len(ran)} races, {sum(len(each.calls) for each in ran)} calls, the slowest {slowest:.2f} s;"
        f" refused {dict(refused)}; {bad} races wrong: {dict(kinds)}"
    )
