"""A real MongoDB for applications of others, and the kit beside the tests. Missing server: tests fail."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from langchain_memkit._sync import report_blocking
from tools.local_mongodb import local_mongodb

sys.path.append(str(Path(__file__).resolve().parent))  # --import-mode=importlib puts no folder of tests there


@pytest.fixture(scope="session", autouse=True)
def _blocking_is_told() -> None:
    """Tests here are coroutines and make sync calls on purpose, which is told once in a process, so before them all."""
    report_blocking()


@pytest.fixture(scope="session")
def standalone() -> Iterator[Any]:
    """A standalone server."""
    with local_mongodb() as server:
        yield server


@pytest.fixture
def database() -> str:
    """A database name of the test's own."""
    return f"test_{uuid4().hex[:12]}"
