"""What runs in processes of its own: forked from a warm parent, told everything by its arguments."""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda

from gatekit.systems import SYSTEMS, Place, config, echo

SETTLED = 0.7  # seconds until a client watches each node of a set, with two threads and connections: its own cost

warnings.simplefilter("ignore")  # what a job raises counts, what its libraries say does not


def write_turns(system: str, place: Place, session: str, name: str, turns: int, barrier: Any, out: Any) -> None:
    """Two threads that hold `turns` turns each in one session; sends the list of errors."""
    made = SYSTEMS[system]()
    chain = made.chain(echo, made.histories(place, size=20))
    errors: list[str] = []

    def write(thread: int) -> None:
        try:
            for i in range(turns):
                chain.invoke(f"{name}.{thread}-{i}", config(session))
        except Exception as error:
            errors.append(repr(error)[:300])

    chain.invoke("warm", config(f"{session}-warm-{name}"))
    barrier.wait(20)
    threads = [threading.Thread(target=write, args=(t,)) for t in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out.send(errors)


def write_until_killed(system: str, place: Place, session: str, out: Any) -> None:
    """Holds turns in one session and acknowledges each, until somebody kills it."""
    made = SYSTEMS[system]()
    chain = made.chain(echo, made.histories(place, size=4))
    i = 0
    while True:
        chain.invoke(f"q{i}", config(session, turn_id=f"t{i}"))
        out.send(i)
        i += 1


def keep_histories(system: str, place: Place, count: int, go: Any, out: Any) -> None:
    """Keeps many histories, each with a turn, and sends how many threads that took; ends when told."""
    made = SYSTEMS[system]()
    first = made.history(place, "first")
    first.add_user_message("warm")
    time.sleep(SETTLED if place.hosts else 0)
    before = threading.active_count()
    out.send(before)
    go.recv()
    kept = [made.history(place, f"s{i}") for i in range(count)]
    for history in kept:
        history.add_user_message("hello")
    out.send(threading.active_count() - before)
    go.recv()


def fork_under_load(system: str, place: Place, count: int, out: Any) -> None:
    """Forks while four threads write; each child adds a turn and reads it; sends the exit codes."""
    made = SYSTEMS[system]()
    histories = made.histories(place, size=20)
    chain = made.chain(echo, histories)
    chain.invoke("warm", config("warm"))
    stop = threading.Event()
    failures: list[str] = []

    def load(i: int) -> None:
        n = 0
        while not stop.is_set():
            try:
                chain.invoke(f"q{n}", config(f"load-{i}"))
            except Exception as error:
                failures.append(repr(error)[:300])
                return
            n += 1

    threads = [threading.Thread(target=load, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    children = []
    for k in range(count):
        time.sleep(0.02)
        child = os.fork()
        if child == 0:
            _turn_in_fork(chain, histories, f"fork-{k}")
        children.append(child)
    deadline = time.monotonic() + 12
    codes = [_wait(child, deadline) for child in children]
    stop.set()
    for thread in threads:
        thread.join(10)
    out.send((codes, failures))


def _turn_in_fork(chain: Any, histories: Any, session: str) -> None:
    try:
        chain.invoke("hello", config(session))
        said = [m.text for m in histories(session).messages]
        os._exit(0 if said == ["hello", "re: hello"] else 1)
    except BaseException as error:
        print(f"{session}: {error!r}", file=sys.stderr)
        os._exit(2)


def _wait(child: int, deadline: float) -> int:
    """The exit code of a child; -1 after the deadline, when it is ended."""
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


def edit_until_killed(system: str, place: Place, session: str, out: Any) -> None:
    """Replaces the last turn again and again, by a chain and by hand; says what it begins and acknowledges it."""
    made = SYSTEMS[system]()
    histories = made.histories(place)
    history, i = histories(session), 0
    while True:
        again, answer = history.regenerate(), AIMessage(f"answer {i}")
        out.send((i, again.replaces, False))
        if i % 2:
            history.edit(again.replaces, [*again.messages, answer], turn_id=f"t{i}")
        else:
            keys = {"session_id": session, "turn_id": f"t{i}", "replaces": again.replaces}
            chain = made.chain(RunnableLambda(lambda _, answer=answer: answer), histories)
            chain.invoke(again.messages, {"configurable": keys})
        out.send((i, again.replaces, True))
        i += 1


def fork_until_killed(system: str, place: Place, session: str, out: Any) -> None:
    """Copies a session."""
    history = SYSTEMS[system]().history(place, session)
    out.send("ready")
    history.fork(f"{session}-copy")
    out.send("done")
