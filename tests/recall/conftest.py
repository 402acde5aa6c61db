"""The recall set, saved once for each embedder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from benchmarks.dialogues import RecallSet, recall_set
from benchmarks.recall_floors import Kept, kept


@pytest.fixture(scope="session")
def conversations() -> RecallSet:
    """The set."""
    return recall_set()


@pytest.fixture(scope="session")
def saved(conversations: RecallSet) -> Iterator[Callable[[str], list[Kept]]]:
    """`saved(embedder)`: its conversations in vector memories."""
    with ExitStack() as open_:

        @cache
        def of(embedder: str) -> list[Kept]:
            return open_.enter_context(kept(embedder, conversations.dialogues))

        yield of
