"""For tests of code that others wrote: the kit beside it can be imported, and one real mongod per test process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from langchain_memkit.testing import local_mongodb

sys.path.append(str(Path(__file__).resolve().parent))  # --import-mode=importlib puts no folder of tests there


@pytest.fixture(scope="session")
def mongod() -> Iterator[Any]:
    """A standalone server."""
    with local_mongodb() as server:
        yield server
