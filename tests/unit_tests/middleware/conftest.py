"""Histories, checkpointers and styles for the tests of the middleware."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from langchain_memkit import SQLiteChatMessageHistory
from testkit.styles import Styles

sys.path.append(str(Path(__file__).resolve().parent))  # --import-mode=importlib puts no folder of tests there


@pytest.fixture
def histories(tmp_path: Path) -> Iterator[Any]:
    """A factory on one file."""
    with SQLiteChatMessageHistory.factory(tmp_path / "chat.db") as factory:
        yield factory


@pytest.fixture
def history(histories: Any) -> Any:
    """The conversation that `CONFIG` names."""
    return histories("s1", "u1")


@pytest.fixture(params=["without", "with"])
def checkpointer(request: pytest.FixtureRequest) -> Any:
    """None and a real one."""
    return None if request.param == "without" else InMemorySaver()


@pytest.fixture(params=["invoke", "ainvoke"])
def run(request: pytest.FixtureRequest) -> Styles:
    """`run(agent, value, config)` in both styles."""
    return Styles(request.param)


@pytest.fixture(params=["stream", "astream"])
def stream(request: pytest.FixtureRequest) -> Styles:
    """`stream(agent, value, config, stop_after=n)` in both styles."""
    return Styles(request.param)
