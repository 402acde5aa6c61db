"""Turns that replace others, under faults: never half a tail, never both, and none that was acknowledged is lost."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from gatekit.failover import crashes
from gatekit.jobs import edit_until_killed, fork_until_killed
from gatekit.systems import Place, echo, texts
from gatekit.wire import CutError
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit.errors import HistoryConflictError, MemkitError, StaleTurnError
from langchain_memkit.stores.history_rows import Batch, ReadVersion, prepare_batch

KILLS = {"replica_set": 30, "standalone": 30, "sqlite": 12}
AT_ONCE = 2
BASE = ["b0", "re: b0"]
OLD = ["b1", "re: b1", "b2", "re: b2"]
EDITORS, EDITS = 4, 12
COMMANDS = 14  # that an edit, an undo or a fork sends at most, which the tests prove


def exchange(text: str) -> list[Any]:
    """A question and its answer, as the gate's model gives it."""
    return [HumanMessage(text), AIMessage(f"re: {text}")]


def filled(history: Any) -> Any:
    """A history of three turns, two of which will be replaced."""
    for text in ("b0", "b1", "b2"):
        history.append_turn(exchange(text), turn_id=text)
    return history


def edit_killed(system: Any, place: Place, forks: Any, session: str, delay: float) -> tuple[int, int, int, int]:
    """One killed editor: tails that are half there or doubled, edits lost, not stored once; stored unheard."""
    filled(system.history(place, session))
    reader, writer = forks.Pipe(duplex=False)
    process = forks.Process(target=edit_until_killed, args=(system.name, place, session, writer))
    process.start()
    writer.close()
    assert reader.poll(20), "the editor did not begin"
    time.sleep(delay)
    process.kill()
    process.join(10)
    begun = done = (-1, 0, False)
    try:
        while reader.poll(0.05):
            begun = (note := reader.recv())
            done = note if note[2] else done
    except (EOFError, OSError):
        pass
    reader.close()
    history = system.history(place, session)
    before = [*BASE, "b1", "re: b1", "b2"]
    last = "re: b2" if done[0] < 0 else f"answer {done[0]}"
    said = texts(history)
    while said != (again := [m.text for m in history.iter_messages()]):  # what the process had sent may arrive now
        assert texts(history) != said, f"{said} and {again}"
        said = texts(history)
    torn = said[:-1] != before
    unheard = begun != done and said[-1] == f"answer {begun[0]}"
    lost = said[-1] != last and not unheard
    i, seq, _ = begun
    answered = [HumanMessage("b2"), AIMessage(f"answer {i}")]
    for _ in range(2):  # the retry that an app makes of what it heard nothing of
        history.append_turn(answered, turn_id=f"t{i}") if unheard else history.edit(seq, answered, turn_id=f"t{i}")
    stored = [turn.op for turn in history.iter_turns(hidden=True)]
    doubled = texts(history) != [*before, f"answer {i}"] or stored.count(f"turn:t{i}") != 1
    return int(torn), int(lost), int(doubled), int(unheard)


@pytest.mark.gate(row=3, memkit_only=True)
def test_killed_while_editing(place: Place, system: Any, forks: Any, figure: Any) -> None:
    """After dozens of SIGKILLs the session shows one whole tail, the last that was acknowledged or the one after it."""
    chance = random.Random(0)
    system.history(place, "warm").add_user_message("warm")
    kills = KILLS[place.kind]
    delays = [chance.uniform(0, 0.06) for _ in range(kills)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda k: edit_killed(system, place, forks, f"s{k}", delays[k]), range(kills)))
    torn, lost, doubled, unheard = (sum(each) for each in zip(*outcomes, strict=True))
    print(f"{place.kind}: {unheard} of {kills} were killed between storing and acknowledging")
    figure(f"{place.kind}: half tails, or both, after {kills} kills", torn, at_most=0)
    figure(f"{place.kind}: acknowledged edits lost", lost, at_most=0)
    figure(f"{place.kind}: edits not stored exactly once", doubled, at_most=0)


class Readers:
    """Reads a session over and over, in both directions, and notes what is no whole state of it."""

    def __init__(self, history: Any) -> None:
        self.wrong: list[list[str]] = []
        self.looks = 0
        self._history = history
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(way,)) for way in ("messages", "iter_messages")]

    def _read(self, way: str) -> None:
        while not self._stop.is_set():
            found = getattr(self._history, way)
            said = [m.text for m in (found() if callable(found) else found)]
            tail = said[2:]
            is_whole = tail == OLD or (len(tail) == 2 and tail[0].startswith("e") and tail[1] == f"re: {tail[0]}")
            self.looks += 1
            if said[:2] != BASE or not is_whole:
                self.wrong.append(said)

    def __enter__(self) -> Readers:
        """They begin."""
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """They end."""
        self._stop.set()
        for thread in self._threads:
            thread.join()


def replace_tail(history: Any, text: str) -> int:
    """One edit of all after the first turn, again while others are faster; the position of the new turn."""
    while True:
        [first, *_] = history.iter_turns(after_seq=1)
        try:
            return int(history.edit(first.seq, exchange(text), turn_id=text))
        except HistoryConflictError:
            continue


@pytest.mark.gate(row=2, memkit_only=True)
def test_editors_at_once(place: Place, system: Any, figure: Any) -> None:
    """Several editors of one turn: every reader sees one whole tail, none is lost, and all can be taken back."""
    history = filled(system.history(place, "s1"))
    histories = [system.history(place, "s1") for _ in range(EDITORS)]
    with Readers(system.history(place, "s1")) as readers, ThreadPoolExecutor(EDITORS) as pool:
        done = pool.map(lambda i: [replace_tail(histories[i], f"e{i}-{n}") for n in range(EDITS)], range(EDITORS))
        seqs = [seq for each in done for seq in each]
    figure(f"{place.kind}: states with half a tail, or both, of {readers.looks}", len(readers.wrong), at_most=0)
    assert sorted(seqs) == list(range(4, 4 + EDITORS * EDITS))
    order = {turn.seq: turn.messages[0].text for turn in history.iter_turns(hidden=True)}
    for seq in sorted(seqs, reverse=True):
        assert texts(history) == [*BASE, order[seq], f"re: {order[seq]}"]
        assert history.undo_edit()
    assert texts(history) == [*BASE, *OLD]


@pytest.mark.gate(row=1, memkit_only=True, limit=120)
@pytest.mark.parametrize("place", ["replica_set"], indirect=True)
def test_primary_is_killed_between_edits(place: Place, replica_set: Any, system: Any, figure: Any) -> None:
    """Editing goes on through the election; an acknowledged edit is kept once, and one whole tail is shown."""
    history = filled(system.history(place, "s1"))
    acknowledged: list[str] = []
    errors: list[Exception] = []
    stop = threading.Event()

    def edit(editor: int) -> None:
        mine, n = system.history(place, "s1"), 0
        while not stop.is_set():
            try:
                replace_tail(mine, f"e{editor}-{n}")
                acknowledged.append(f"e{editor}-{n}")
            except MemkitError as error:
                errors.append(error)
            n += 1

    with crashes(replica_set) as crash, ThreadPoolExecutor(2) as pool:
        editors = [pool.submit(edit, i) for i in range(2)]
        wait_until(lambda: len(acknowledged) >= 10)
        primary = replica_set.primary_index()
        crash.kill(primary)
        election = crash.elected()
        before = len(acknowledged)
        wait_until(lambda: len(acknowledged) >= before + 10)
        crash.restart(primary)
        stop.set()
        for each in editors:
            each.result(40)
    ops = [turn.op for turn in history.iter_turns(hidden=True)]
    figure(
        "edits: acknowledged ones lost or doubled", sum(ops.count(f"turn:{e}") != 1 for e in acknowledged), at_most=0
    )
    said = texts(history)
    assert said == [m.text for m in history.iter_messages()]
    figure(
        "edits: half tails, or both", int(said[:2] != BASE or ops[-1] != f"turn:{said[2]}" or len(said) != 4), at_most=0
    )
    figure("edits: turns that raised", len(errors), at_most=0 if election < 5 else 2)


def wait_until(condition: Any) -> None:
    """Until it holds, for a minute at most."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it took a minute"
        time.sleep(0.01)


def with_fault(wire: Any, fault: int, how: str, work: Any) -> bool:
    """Runs it, again after an error, while its n-th command fails; whether there were so many."""
    count = 0

    def on_command(name: str) -> str | None:
        nonlocal count
        count += 1
        if count - 1 != fault:
            return None
        if how == "never sent":
            raise CutError
        return "deaf"

    wire.on_command = on_command
    try:
        for _ in range(3):
            try:
                work()
                break
            except (MemkitError, CutError) as error:
                failure = error
        else:
            raise AssertionError("three tries were not enough") from failure
    finally:
        wire.on_command = lambda name: None
    return count > fault


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("how", ["never sent", "reply lost"])
@pytest.mark.parametrize("place", ["standalone", "replica_set"], indirect=True)
def test_each_command_of_an_edit_fails(how: str, place: Place, wires: Any, system: Any) -> None:
    """Whichever command breaks off, an edit is stored once, a regenerated answer too, and a copy is whole."""

    def broken_at(n: int) -> tuple[list[bool], list[list[str]]]:
        wire = wires()
        for name in ("edit", "chain", "fork"):
            filled(system.history(place, f"{name}{n}"))
        system.history(wire.place, "warm").add_user_message("warm")
        edited, again, source = (system.history(wire.place, f"{name}{n}") for name in ("edit", "chain", "fork"))
        chain = system.chain(echo, system.histories(wire.place))
        keys = {"session_id": f"chain{n}", "turn_id": "e", "replaces": 2}
        reached = [
            with_fault(wire, n, how, work)
            for work in (
                lambda: edited.edit(2, exchange("e"), turn_id="e"),
                lambda: chain.invoke("e", {"configurable": keys}),
                lambda: source.fork(f"copy{n}", at=2),
            )
        ]
        copy = system.history(place, f"copy{n}")
        assert [turn.seq for turn in again.iter_turns(hidden=True)] == [1, 2, 3, 4]
        assert [turn.seq for turn in copy.iter_turns(hidden=True)] == [1, 2]
        return reached, [texts(edited), texts(again), texts(copy)]

    with ThreadPoolExecutor(COMMANDS) as pool:
        outcomes = list(pool.map(broken_at, range(COMMANDS)))
    assert all(not any(reached) for reached, _ in outcomes[-1:]), "more commands were sent than failed here"
    told = [[*BASE, "e", "re: e"], [*BASE, "e", "re: e"], [*BASE, *OLD[:2]]]
    assert [(n, said) for n, (_, said) in enumerate(outcomes) if said != told] == []


@pytest.mark.gate(row=3, memkit_only=True)
def test_killed_while_copying(place: Place, system: Any, forks: Any, figure: Any) -> None:
    """A copy of 1,200 turns is whole or not there at all, whenever its process is killed; a second call finishes it."""
    history = system.history(place, "s1")
    batches = [prepare_batch(exchange(f"b{n}"), f"t{n}", None) for n in range(1200)]
    rows = [row for batch in batches for row in batch.rows]
    given = [message for batch in batches for message in batch.given]
    store, scope = history.turn_store, history._scope
    store.run(store.append(scope, Batch(given, given, rows, None), None, ReadVersion()))
    history.edit(1100, exchange("b1099"))
    chance, partly, whole, kills = random.Random(1), 0, 0, 12
    for k in range(kills):
        reader, writer = forks.Pipe(duplex=False)
        process = forks.Process(target=fork_until_killed, args=(system.name, place, "s1", writer))
        process.start()
        writer.close()
        assert reader.recv() == "ready"
        time.sleep(chance.uniform(0, 0.25))
        process.kill()
        process.join(10)
        reader.close()
        copy = system.history(place, "s1-copy")
        said = texts(copy)
        whole += len(said) == 2200
        partly += len(said) not in (0, 2200)
        if k % 3 == 2:  # else the next one goes on with what is there
            assert texts(history.fork("s1-copy")) == texts(history)
            assert [turn.seq for turn in copy.iter_turns()][::1099] == [copy.view().seq - 1099, copy.view().seq]
            copy.clear()
    print(f"{place.kind}: {whole} of {kills} copies were done before the kill")
    figure(f"{place.kind}: copies of which a part was shown, after {kills} kills", partly, at_most=0)


@pytest.mark.gate(row=8, memkit_only=True)
def test_erased_after_an_edit(place: Place, system: Any) -> None:
    """A clear or a purge takes what was replaced as well, with undos and copies, and no late turn brings it back."""
    histories = system.histories(place)
    history = filled(histories("s1", "u1"))
    history.edit(2, exchange("secret"))
    history.undo_edit()
    history.edit(3, exchange("secret too"))
    before = history.view()
    copy = history.fork("s2")
    histories.purge("u1")
    for each in (history, copy):
        assert list(each.iter_turns(hidden=True)) == []
        assert not each.undo_edit()
    with pytest.raises(StaleTurnError):
        history.append_turn(exchange("late"), epoch=before.epoch)
    assert histories.list_sessions("u1") == []
