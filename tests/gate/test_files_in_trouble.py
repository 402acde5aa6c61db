"""A file on a full disk, locked, left by a killed process or read-only: whole turns, or typed errors."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gatekit import files
from gatekit.files import ANSWER, STYLES, Failure, attempt
from gatekit.systems import Place, config, echo, split_turns, texts

from langchain_memkit.errors import HistoryReadError, HistoryWriteError

LEVELS = 18  # pages of room, from none to what a turn takes
TURNS, MANY = 12, 40


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that is not slowed down by what others write."""
    with files.quick_folder() as found:
        yield found


@pytest.fixture
def job(forks: Any) -> Iterator[Callable[..., Any]]:
    """Begins a function in a process of its own, with the end of a pipe last; returns the process and our end."""
    begun = []

    def begin(function: Any, *arguments: Any) -> tuple[Any, Any]:
        ours, theirs = forks.Pipe()
        process = forks.Process(target=function, args=(*arguments, theirs))
        process.start()
        theirs.close()
        begun.append((process, ours))
        return process, ours

    yield begin
    for process, ours in begun:
        ours.close()
        process.join(5)
        process.kill()
        process.join()


def received(pipe: Any) -> Any:
    """What a process sends."""
    assert pipe.poll(20), "a process does not answer"
    return pipe.recv()


def outcome(pipe: Any) -> Any:
    """What became of a disk; skips where processes may not have disks of their own."""
    got = received(pipe)
    if isinstance(got, str):
        pytest.skip(f"no small disk here: {got}")
    return got


def assert_nothing_stored(failure: Failure | None, path: str, advice: str) -> None:
    """A write that failed says so, keeps the answer, names the file and says what to do."""
    assert failure is not None
    assert (failure.kind, failure.maybe_stored) == ("HistoryWriteError", False)
    assert path in failure.text
    assert advice in failure.text


# -- full disks


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("kind", files.DISKS)
def test_disk_full(kind: str, folder: Path, job: Any, figure: Any) -> None:
    """However little room there is: a turn is stored whole or raises with its answer; with room a retry stores once."""
    _, pipe = job(files.turns_with_little_room, kind, str(folder), LEVELS)
    before = ["q0", "re: q0"]
    came = outcome(pipe)
    for level, tight in enumerate(came):
        path = str(folder / f"{level}.db")
        if tight.first is None:
            assert tight.seen == [*before, "q1", ANSWER], f"{level} pages: acknowledged, and not there"
        else:
            for failure in (tight.first, tight.second):
                assert_nothing_stored(failure, path, "make room")
                assert failure.output == ANSWER, "the answer is lost"
            assert tight.seen == before, f"{level} pages: half stored"
        assert tight.retries == [None, None]
        assert tight.stored == [(1, before), (2, ["q1", ANSWER])]
        if tight.cleared is not None:
            assert_nothing_stored(tight.cleared, path, "make room")
        assert tight.left == ([] if tight.cleared is None else ["secret", "re: secret"]), f"{level} pages: half cleared"
        assert tight.cleared or tight.traces == any("text may stay" in said for said in tight.warnings)
    full = sum(tight.first is not None for tight in came)
    figure(f"sqlite, {kind}: fill levels at which a turn was refused whole", full, at_least=5)
    assert came[-1].first is None, "more levels are needed until a turn fits"
    # a clear makes room for itself with what the log gives back; a disk without any cannot take the log into the file
    assert {tight.cleared is None for tight in came} == ({True} if kind == "size limit" else {True, False})


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("kind", files.DISKS)
def test_begins_on_a_full_disk(kind: str, folder: Path, job: Any) -> None:
    """A new file that finds no room is a typed error that says so; with room it begins."""
    _, pipe = job(files.begin_on_full_disk, kind, str(folder))
    failures, again, said = outcome(pipe)
    for failure in failures:
        assert failure.kind == "HistoryReadError"
        assert str(folder / "new.db") in failure.text
        assert "make room" in failure.text
    assert (again, said) == (None, ["q0", "re: q0"])


# -- locks


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_locked_for_longer(style: str, place: Place, system: Any, job: Any, figure: Any) -> None:
    """A file that is not let go within `timeout` is a typed error by then; the retry stores once."""
    system.history(place, "s1").add_user_message("before")
    chain = system.chain(echo, system.histories(place, timeout=0.3))
    _, pipe = job(files.hold_lock, place.uri, "writers")
    assert received(pipe) == "locked"
    began = time.monotonic()
    failure = attempt(style, chain, "q1", "t1")
    figure("sqlite: a lock is reported after", time.monotonic() - began, at_most=0.3 + 0.5, unit=" s")
    assert_nothing_stored(failure, place.uri, "timeout=")
    assert failure is not None
    assert failure.output == "re: q1"
    assert texts(system.history(place, "s1")) == ["before"], "readers wait for no writer"
    pipe.send("go")
    assert received(pipe) == "free"
    assert [attempt(style, chain, "q1", "t1") for _ in range(2)] == [None, None]
    assert texts(system.history(place, "s1")) == ["before", "q1", "re: q1"]


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_locked_against_readers(place: Place, system: Any, job: Any, figure: Any) -> None:
    """A file that nobody else may even open is a typed error within two time-outs: opening and reading."""
    system.history(place, "s1").add_user_message("before")
    system.histories(place).close()
    _, pipe = job(files.hold_lock, place.uri, "everybody")
    assert received(pipe) == "locked"
    histories = system.histories(place, timeout=0.2)
    began = time.monotonic()
    with pytest.raises(HistoryReadError, match="timeout="):
        texts(histories("s1"))
    with pytest.raises(HistoryWriteError, match="timeout="):
        histories("s1").add_user_message("never")
    figure("sqlite: two calls on a file locked for all", time.monotonic() - began, at_most=2 * 2 * 0.2 + 0.5, unit=" s")
    pipe.send("go")
    assert received(pipe) == "free"
    assert texts(histories("s1")) == ["before"]


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_locked_for_shorter(style: str, place: Place, system: Any, job: Any) -> None:
    """A file that is let go within `timeout` costs the wait; the event loop goes on meanwhile."""
    system.history(place, "s1").add_user_message("before")
    chain = system.chain(echo, system.histories(place, timeout=20))
    _, pipe = job(files.hold_lock, place.uri, "writers")
    assert received(pipe) == "locked"
    if style == "sync":
        threading.Timer(0.2, pipe.send, ["go"]).start()
        chain.invoke("q1", config("s1"))
    else:

        async def both() -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(chain.ainvoke("q1", config("s1")))
                await asyncio.sleep(0.2)
                pipe.send("go")  # would never be sent by a loop that waits for the lock

        asyncio.run(both())
    assert received(pipe) == "free"
    assert texts(system.history(place, "s1")) == ["before", "q1", "re: q1"]


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("processes", [2, 4])
def test_impatient_processes(processes: int, folder: Path, system: Any, forks: Any, job: Any, figure: Any) -> None:
    """Processes that give up waiting and repeat the turn: no gap, none lost, none twice, none split, in their order."""
    place = Place("sqlite", str(folder / "chat.db"))
    system.history(place, "warm").add_user_message("warm")
    barrier = forks.Barrier(processes)
    names = [f"p{i}" for i in range(processes)]
    pipes = [job(files.write_impatiently, place, STYLES[i % 2], name, MANY, barrier)[1] for i, name in enumerate(names)]
    refused = [failure for pipe in pipes for failure in received(pipe)]
    turns = list(system.history(place, "s1").iter_turns())
    assert [turn.seq for turn in turns] == list(range(1, processes * MANY + 1))
    said = [message.text for turn in turns for message in turn.messages]
    assert split_turns(said) == []
    for name in names:
        assert [s for s in said[::2] if s.startswith(name)] == [f"{name}-{i}" for i in range(MANY)]
    assert {failure.kind for failure in refused} <= {"HistoryWriteError", "HistoryReadError"}
    assert all("timeout=" in failure.text for failure in refused)
    figure(f"sqlite, {processes} impatient processes: times refused and repeated", len(refused), at_least=0)


# -- logs that a killed process left


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_log_left_behind(place: Place, system: Any, job: Any, folder: Path, figure: Any) -> None:
    """What was acknowledged is in the log that a killed process left: without its index, and with a torn last frame."""
    process, pipe = job(files.leave_a_log, place, TURNS)
    sizes = [received(pipe) for _ in range(TURNS)]
    os.kill(process.pid, signal.SIGKILL)
    process.join(5)
    said = [text for i in range(TURNS) for text in (f"q{i}", f"re: q{i}")]
    log = Path(f"{place.uri}-wal").read_bytes()
    assert len(log) == sizes[-1], "the log was folded in: fewer turns, please"
    torn = range(sizes[-2], sizes[-1], max(1, (sizes[-1] - sizes[-2]) // 20))  # while the last turn was being written
    wrong = []
    for case, end in enumerate([len(log), *torn]):
        copy = Place("sqlite", str(folder / f"{case}.db"))
        shutil.copyfile(place.uri, copy.uri)
        Path(f"{copy.uri}-wal").write_bytes(log[:end])  # its index, the -shm, is left out
        histories = system.histories(copy)
        found = texts(histories("s1"))
        last = TURNS if end == len(log) else TURNS - 1
        if found != said[: 2 * last]:
            wrong.append((end, found))
        retried = attempt("sync", system.chain(echo, histories), f"q{last - 1}", f"t{last - 1}")
        retried = retried or attempt("async", system.chain(echo, histories), f"q{TURNS - 1}", f"t{TURNS - 1}")
        if retried is not None or texts(histories("s1")) != said:
            wrong.append((end, retried))
        histories.close()
    assert texts(system.history(place, "s1")) == said, "with its own index, as it was left"
    assert wrong == []
    figure("sqlite: places at which a log was torn", len(torn), at_least=15)


# -- rights


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user reaches."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.gate(row=3, memkit_only=True)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(("of_file", "of_folder"), [(0o444, 0o777), (0o666, 0o555), (0o444, 0o555), (0o000, 0o777)])
def test_read_only(style: str, of_file: int, of_folder: int, open_folder: Path, system: Any, job: Any) -> None:
    """Without rights: what can be read is whole, everything else a typed error that asks for them."""
    path = open_folder / "chat.db"
    histories = system.histories(Place("sqlite", str(path)))
    system.chain(echo, histories).invoke("q0", config("s1"))
    histories.close()
    path.chmod(of_file)
    open_folder.chmod(of_folder)
    _, pipe = job(files.without_rights, style, str(path))
    read, turn, cleared, again = received(pipe)
    for came in (read, again):
        if of_file:
            assert came == ["q0", "re: q0"], "what may be read is not"
        else:
            assert str(path) in came.text
            assert "may" in came.text
    for came in (turn, cleared):
        assert str(path) in came.text
        assert "may" in came.text
    open_folder.chmod(0o777)
    path.chmod(0o666)
    assert texts(histories("s1")) == ["q0", "re: q0"]
