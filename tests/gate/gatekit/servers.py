"""Servers with options that `local_mongodb` does not have, and what servers say of their connections."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pymongo import MongoClient

from gatekit.systems import Place
from tools.local_mongodb import OPTIONS, Node, find_mongod, guarded


@contextlib.contextmanager
def server(folder: Path, *options: str) -> Iterator[str]:
    """A standalone server for the length of a `with` block; yields its `host:port`."""
    with guarded(folder) as members:
        node = Node(find_mongod(folder), folder / "node0", [*OPTIONS, *options])
        members.append(node)
        node.launch()
        yield node.host


def connections(place: Place, app: str) -> int:
    """Connections of the clients with this appName, counted by the server, or by all nodes of the set."""
    count = 0
    for host in place.hosts:  # none for a file
        with MongoClient(place.through(host).uri) as client:
            found = client.admin.aggregate(
                [{"$currentOp": {"allUsers": True, "idleConnections": True}}, {"$match": {"appName": app}}]
            )
            count += len({entry["client"] for entry in found})
    return count
