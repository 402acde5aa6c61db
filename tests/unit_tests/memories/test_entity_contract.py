"""Entity memory under the contract of all memories, over histories in this process and in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from langchain_memkit import SQLiteChatMessageHistory
from testkit.memories import HostileTexts, entities_on


class TestOnSQLite(HostileTexts):
    @pytest.fixture(params=[":memory:", "chat.db"])
    def make_memory(self, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
        """One place."""
        place = request.param if request.param == ":memory:" else tmp_path / request.param
        return entities_on(SQLiteChatMessageHistory.factory(place))
