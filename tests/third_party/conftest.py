"""Tests with packages that are too large for `make test`: `make test-third-party`. Missing package: tests fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tools.local_mongodb import local_mongodb


@pytest.fixture(scope="session")
def standalone() -> Iterator[Any]:
    """A standalone server."""
    with local_mongodb() as server:
        yield server


@pytest.fixture
def database() -> str:
    """A database name of the test's own."""
    return f"test_{uuid4().hex[:12]}"
