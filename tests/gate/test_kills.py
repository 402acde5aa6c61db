"""The writing process is killed, or one command of a turn fails: no half turn, and a retry stores once."""

from __future__ import annotations

import os
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gatekit.jobs import write_until_killed
from gatekit.systems import Place, config, echo, split_turns, texts
from gatekit.wire import CutError

KILLS = {"replica_set": 60, "standalone": 60, "sqlite": 20}
AT_ONCE = 2  # writers of a session each; the one that begins waits for its processor, the other for the server
COMMANDS = 8  # that a turn sends at most, which the test proves


def acknowledged(reader: Any) -> int:
    """How many turns the killed writer had acknowledged."""
    count = 0
    try:
        while reader.poll(0.05):
            count = reader.recv() + 1
    except (EOFError, OSError):
        pass
    return count


def kill_a_writer(system: Any, place: Place, forks: Any, session: str, delay: float) -> tuple[int, int, int, int]:
    """One killed process: turns half there, lost or out of order, not stored once after a retry; stored unheard."""
    reader, writer = forks.Pipe(duplex=False)
    process = forks.Process(target=write_until_killed, args=(system.name, place, session, writer))
    process.start()
    writer.close()
    assert reader.poll(20), "the writer did not begin"
    time.sleep(delay)
    os.kill(process.pid, signal.SIGKILL)
    process.join(10)
    count = acknowledged(reader)
    reader.close()
    said = texts(system.history(place, session))
    lost = said[: 2 * count] != [text for i in range(count) for text in (f"q{i}", f"re: q{i}")]
    doubled = False
    if system.name == "memkit":
        system.chain(echo, system.histories(place)).invoke(f"q{count}", config(session, turn_id=f"t{count}"))
        doubled = len(texts(system.history(place, session))) != 2 * (count + 1)
    return len(split_turns(said)), int(lost), int(doubled), int(len(said) > 2 * count)


@pytest.mark.gate(row=3)
def test_killed_while_writing(place: Place, system: Any, forks: Any, figure: Any) -> None:
    """After dozens of SIGKILLs no turn is half stored and no acknowledged one is lost; a retry stores it once."""
    chance = random.Random(0)
    system.history(place, "warm").add_user_message("warm")
    kills = KILLS[place.kind]
    delays = [chance.uniform(0, 0.03) for _ in range(kills)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda k: kill_a_writer(system, place, forks, f"s{k}", delays[k]), range(kills)))
    half, lost, doubled, unheard = (sum(each) for each in zip(*outcomes, strict=True))
    figure(f"{place.kind}: half turns after {kills} kills", half, at_most=0)
    figure(f"{place.kind}: acknowledged turns lost or out of order", lost, at_most=0)
    figure(f"{place.kind}: retries not stored exactly once", doubled, at_most=0)
    figure(f"{place.kind}: kills between storing and acknowledging", unheard, at_least=int(place.kind != "sqlite"))


def turn_with_fault(system: Any, wire: Any, session: str, fault: int | None, how: str) -> int:
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


@pytest.mark.gate(row=3)
@pytest.mark.parametrize("how", ["never sent", "reply lost"])
@pytest.mark.parametrize("begun", [False, True], ids=["new session", "begun session"])
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_each_command_of_a_turn_fails(
    how: str, begun: bool, place: Place, wires: Any, system: Any, figure: Any
) -> None:
    """Whichever command of a turn breaks off, before or after the server had it, the turn is stored exactly once."""
    before = ["before", "re: before"] if begun else []  # a new session sends other commands than one that has begun

    def broken_at(n: int) -> tuple[bool, list[str]]:
        wire = wires()
        system.history(wire.place, "warm").add_user_message("warm")
        if begun:
            system.chain(echo, system.histories(place)).invoke("before", config(f"s{n}"))
        reached = turn_with_fault(system, wire, f"s{n}", n, how) > n
        return reached, texts(system.history(place, f"s{n}"))

    with ThreadPoolExecutor(COMMANDS) as pool:  # after a fault the driver waits half a second before it looks again
        outcomes = list(pool.map(broken_at, range(COMMANDS)))
    wrong = [(n, said) for n, (_, said) in enumerate(outcomes) if said != [*before, "hello", "re: hello"]]
    assert wrong == [], f"{how} at command n: {wrong}"
    reached = [reached for reached, _ in outcomes]
    assert not reached[-1], f"a turn sends more than {COMMANDS - 1} commands: break them all"
    figure(f"{place.kind}: commands of a turn broken, {how}", sum(reached), at_least=2)
