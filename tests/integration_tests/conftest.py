"""One real standalone mongod and one real three-node replica set per test process. Missing server: tests fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tools.local_mongodb import OPTIONS, Node, find_mongod, guarded, local_mongodb


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what runs on three nodes: `make test-replica-set` runs these tests, `make test` the others."""
    for item in items:
        if "replica_set" in item.name or "replica_set" in getattr(item, "fixturenames", ()):
            item.add_marker("replica_set")


@pytest.fixture(scope="session")
def standalone() -> Iterator[Any]:
    """A standalone server."""
    with local_mongodb() as server:
        yield server


@pytest.fixture(scope="session")
def replica_set() -> Iterator[Any]:
    """A replica set of three nodes."""
    with local_mongodb(nodes=3) as server:
        yield server


@pytest.fixture(scope="module")
def root_of_guarded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of root's to a real server that asks for a password; its users are the test's to make."""
    folder = tmp_path_factory.mktemp("auth")
    with guarded(folder) as members:
        node = Node(find_mongod(folder), folder / "node", [*OPTIONS, "--auth"])
        members.append(node)
        node.launch()
        with MongoClient(f"mongodb://{node.host}/") as client:
            client.admin.command("createUser", "root", pwd="root-pass", roles=["root"])
        with MongoClient(f"mongodb://root:root-pass@{node.host}/") as client:
            yield client


@pytest.fixture(params=["standalone", "replica_set"])
def server(request: pytest.FixtureRequest) -> Any:
    """Each of the two."""
    return request.getfixturevalue(request.param)


class Commands(CommandListener):
    """Notes the commands that a client sends."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []

    def started(self, event: CommandStartedEvent) -> None:
        """Note name and body."""
        self.sent.append((event.command_name, event.command))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing to note."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing to note."""


@pytest.fixture
def listener() -> Commands:
    """What was sent, for `MongoClient(uri, event_listeners=[listener])`."""
    return Commands()


@pytest.fixture
def database() -> str:
    """A database name of the test's own."""
    return f"test_{uuid4().hex[:12]}"
