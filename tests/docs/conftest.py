"""A real MongoDB for the documentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tools.local_mongodb import local_mongodb


@pytest.fixture(scope="session")
def standalone() -> Iterator[Any]:
    """A standalone server."""
    with local_mongodb() as server:
        yield server
