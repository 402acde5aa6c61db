"""One real standalone mongod and one real three-node replica set per test process. Missing server: tests fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from langchain_memkit.testing import local_mongodb


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


@pytest.fixture(params=["standalone", "replica_set"])
def server(request: pytest.FixtureRequest) -> Any:
    """Each of the two."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def database() -> str:
    """A database name of the test's own."""
    return f"test_{uuid4().hex[:12]}"
