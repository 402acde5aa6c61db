"""R3: the writing process is killed, or one command of a turn fails: no half turn, and a retry stores once."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import pytest
from gatekit.jobs import write_until_killed
from gatekit.systems import Place, config, echo, split_turns, texts
from gatekit.wire import CutError

KILLS = {"replica_set": 60, "standalone": 40, "sqlite": 10}


def acknowledged(reader: Any) -> int:
    """How many turns the killed writer had acknowledged."""
    count = 0
    try:
        while reader.poll(0.05):
            count = reader.recv() + 1
    except (EOFError, OSError):
        pass
    return count


@pytest.mark.gate("R3")
def test_killed_while_writing(place: Place, system: Any, forks: Any, figure: Any) -> None:
    """After dozens of SIGKILLs no turn is half stored and no acknowledged one is lost; a retry stores it once."""
    chance = random.Random(0)
    system.history(place, "warm").add_user_message("warm")
    kills, half, lost, doubled = KILLS[place.kind], 0, 0, 0
    for k in range(kills):
        reader, writer = forks.Pipe(duplex=False)
        process = forks.Process(target=write_until_killed, args=(system.name, place, f"s{k}", writer))
        process.start()
        writer.close()
        assert reader.poll(20), "the writer did not begin"
        time.sleep(chance.uniform(0, 0.03))
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        count = acknowledged(reader)
        reader.close()
        said = texts(system.history(place, f"s{k}"))
        half += len(split_turns(said))
        lost += said[: 2 * count] != [text for i in range(count) for text in (f"q{i}", f"re: q{i}")]
        if system.name == "memkit":
            system.chain(echo, system.histories(place)).invoke(f"q{count}", config(f"s{k}", turn_id=f"t{count}"))
            doubled += len(texts(system.history(place, f"s{k}"))) != 2 * (count + 1)
    figure(f"{place.kind}: half turns after {kills} kills", half, at_most=0)
    figure(f"{place.kind}: acknowledged turns lost or out of order", lost, at_most=0)
    figure(f"{place.kind}: retries not stored exactly once", doubled, at_most=0)


def turn_with_fault(system: Any, place: Place, wire: Any, session: str, fault: int | None, how: str) -> int:
    """One turn, repeated with its turn_id if it raises; the n-th command of the first try fails. Returns how many."""
    count = 0

    def on_command(name: str) -> str | None:
        nonlocal count
        count += 1
        if count - 1 != fault:
            return None
        if how == "never sent":
            raise CutError
        return "deaf"

    chain = system.chain(echo, system.histories(wire.place, size=20))
    wire.on_command = on_command
    try:
        for _ in range(3):
            try:
                chain.invoke("hello", config(session, turn_id="t1"))
                break
            except Exception as error:
                failure = error
        else:
            raise AssertionError("three tries were not enough") from failure
    finally:
        wire.on_command = lambda name: None
    return count


@pytest.mark.gate("R3")
@pytest.mark.parametrize("how", ["never sent", "reply lost"])
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_each_command_of_a_turn_fails(how: str, place: Place, wire: Any, system: Any, figure: Any) -> None:
    """Whichever command of a turn breaks off, before or after the server had it, the turn is stored exactly once."""
    system.history(wire.place, "warm").add_user_message("warm")
    both = place.kind == "standalone" and how == "never sent"
    for begun in (False, True) if both else (True,):  # a new session sends other commands than one that has begun
        n, wrong, reached = 0, [], True
        while reached:
            session = f"s{n}-{begun}"
            before = ["before", "re: before"] if begun else []
            if begun:
                turn_with_fault(system, place, wire, f"{session}-x", None, how)
                system.chain(echo, system.histories(place)).invoke("before", config(session))
            reached = turn_with_fault(system, place, wire, session, n, how) > n
            said = texts(system.history(place, session))
            if said != [*before, "hello", "re: hello"]:
                wrong.append((n, said))
            n += reached
        assert wrong == [], f"{how} at command n: {wrong}"
    figure(f"{place.kind}: commands of a turn broken, {how}", n, at_least=2)
