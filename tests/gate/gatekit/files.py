"""SQLite files that go wrong: what runs in processes of its own, and how a file is damaged."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import resource
import signal
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda

from gatekit.systems import Memkit, Place, config, echo, texts
from langchain_memkit.errors import HistoryWriteError, MemkitError

STYLES = ["sync", "async"]
PAGE = 4096
ANSWER = "the answer " * 2000  # some pages of a file
NOBODY = 65534


@contextlib.contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory where there is one: many small files are synced there, and others use the disk."""
    memory = Path("/dev/shm")  # a folder of our own in it
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)


class Failure(NamedTuple):
    """How a turn failed, as a process can send it."""

    kind: str
    text: str
    output: str | None  # of the chain, if the error keeps it
    maybe_stored: bool | None


def attempt(style: str, chain: Any, text: str, turn_id: str, session: str = "s1") -> Failure | None:
    """One turn, sync or async; None if it went well. What is no error of ours is raised."""
    try:
        where = config(session, turn_id=turn_id)
        chain.invoke(text, where) if style == "sync" else asyncio.run(chain.ainvoke(text, where))
    except MemkitError as error:
        kept = error.output.content if isinstance(error, HistoryWriteError) and error.output else None
        return Failure(type(error).__name__, str(error), kept, getattr(error, "maybe_stored", None))
    return None


class Tight(NamedTuple):
    """What a file with little room came to."""

    first: Failure | None
    seen: list[str]
    second: Failure | None
    retries: list[Failure | None]
    stored: list[tuple[int, list[str]]]  # position and texts of each turn
    cleared: Failure | None
    left: list[str]  # of what was cleared
    traces: bool  # of it on the disk
    warnings: list[str]


# -- disks


class SizeLimit:
    """No file may be larger than it is, and so many pages."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def leave(self, pages: int) -> None:
        """So many pages may be written to the largest file."""
        largest = max(file.stat().st_size for file in self.folder.iterdir())
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest + pages * PAGE, resource.RLIM_INFINITY))

    def make_room(self) -> None:
        """As before."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class SmallDisk:
    """A disk of 1 MB that only this process sees; raises OSError where that is not allowed."""

    def __init__(self, folder: Path) -> None:
        self.ballast = folder / "ballast"
        libc = ctypes.CDLL(None, use_errno=True)
        new_namespace, private, uid = 0x20000, 0x44000, os.geteuid()
        if libc.unshare(new_namespace if uid == 0 else new_namespace | 0x10000000):
            raise OSError(ctypes.get_errno(), "unshare")
        if uid:
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        if libc.mount(b"none", b"/", None, private, None) or libc.mount(
            b"tmpfs", os.fsencode(folder), b"tmpfs", 0, b"size=1m"
        ):
            raise OSError(ctypes.get_errno(), "mount")

    def leave(self, pages: int) -> None:
        """So many pages are free."""
        with self.ballast.open("wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(PAGE))
            file.truncate(file.seek(0, os.SEEK_END) - pages * PAGE)

    def make_room(self) -> None:
        """As before."""
        self.ballast.unlink()


DISKS = {"size limit": SizeLimit, "small disk": SmallDisk}


def turns_with_little_room(kind: str, folder: str, levels: int, out: Any) -> None:
    """For each level a new file, and a turn when so many pages are free; sends what came of each."""
    try:
        disk = DISKS[kind](Path(folder))
    except OSError as error:
        out.send(str(error))
        return
    out.send([_tight(disk, STYLES[level % 2], Path(folder) / f"{level}.db", level) for level in range(levels)])


def _tight(disk: Any, style: str, path: Path, pages: int) -> Tight:
    system, place = Memkit(), Place("sqlite", str(path))
    histories = system.histories(place)
    chain = system.chain(RunnableLambda(lambda _: AIMessage(ANSWER)), histories)
    system.chain(echo, histories).invoke("q0", config("s1"))
    system.chain(echo, histories).invoke("secret", config("s2"))
    disk.leave(pages)
    first = attempt(style, chain, "q1", "t1")
    seen = texts(histories("s1"))
    second = attempt(style, chain, "q1", "t1")
    cleared: Failure | None = None
    with _warnings() as warnings:
        try:
            histories("s2").clear()
        except HistoryWriteError as error:
            cleared = Failure(type(error).__name__, str(error), None, error.maybe_stored)
    left = texts(histories("s2"))
    traces = any(b"secret" in file.read_bytes() for file in path.parent.glob(f"{path.name}*"))
    disk.make_room()
    retries = [attempt(style, chain, "q1", "t1") for _ in range(2)]
    stored = [(turn.seq, [m.text for m in turn.messages]) for turn in histories("s1").iter_turns()]
    histories.close()
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    return Tight(first, seen, second, retries, stored, cleared, left, traces, warnings)


@contextlib.contextmanager
def _warnings() -> Iterator[list[str]]:
    """What memkit logs meanwhile."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]  # plainer than a class
    logger = logging.getLogger("langchain_memkit")
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)


def begin_on_full_disk(kind: str, folder: str, out: Any) -> None:
    """The first turn of a new file without room, then with it; sends both."""
    try:
        disk = DISKS[kind](Path(folder))
    except OSError as error:
        out.send(str(error))
        return
    system, place = Memkit(), Place("sqlite", f"{folder}/new.db")
    histories = system.histories(place)
    chain = system.chain(echo, histories)
    (Path(folder) / "empty").touch()
    disk.leave(0)
    failures = [attempt(style, chain, "q0", "t0") for style in STYLES]
    disk.make_room()
    out.send((failures, attempt("sync", chain, "q0", "t0"), texts(histories("s1"))))


# -- other processes


def hold_lock(path: str, how: str, pipe: Any) -> None:
    """Locks a file against writers, or against everybody, until told to let go."""
    connection = sqlite3.connect(path, isolation_level=None)
    if how == "everybody":
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    pipe.send("locked")
    pipe.recv()
    connection.execute("ROLLBACK")
    connection.close()
    pipe.send("free")


def write_impatiently(place: Place, style: str, name: str, turns: int, barrier: Any, out: Any) -> None:
    """Holds turns in one session without any patience, and repeats those that fail; sends how many."""
    system = Memkit()
    chain = system.chain(echo, system.histories(place, size=4, timeout=0))
    failures: list[Failure] = []
    barrier.wait(20)
    for i in range(turns):
        for _ in range(1000):
            failure = attempt(style, chain, f"{name}-{i}", f"{name}-{i}")
            if failure is None:
                break
            failures.append(failure)
    out.send(failures)


def leave_a_log(place: Place, turns: int, out: Any) -> None:
    """Holds turns, sends the size of the write-ahead log after each, and waits to be killed."""
    system = Memkit()
    chain = system.chain(echo, system.histories(place))
    for i in range(turns):
        chain.invoke(f"q{i}", config("s1", turn_id=f"t{i}"))
        out.send(Path(f"{place.uri}-wal").stat().st_size)
    signal.pause()


def without_rights(style: str, path: str, out: Any) -> None:
    """As somebody who may not write: reads, holds a turn, clears; sends texts or failure of each."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    system = Memkit()
    histories = system.histories(Place("sqlite", path), timeout=0.2)
    outcomes: list[Any] = []
    works: list[Callable[[], Any]] = [
        lambda: texts(histories("s1")),
        lambda: attempt(style, system.chain(echo, histories), "q1", "t1"),
        lambda: histories("s1").clear(),
        lambda: texts(histories("s1")),
    ]
    for work in works:
        try:
            outcomes.append(work())
        except MemkitError as error:
            outcomes.append(Failure(type(error).__name__, str(error), None, None))
    out.send(outcomes)
