"""Entity memory with spaCy's trained pipeline: the seed's conversation, and the contract of all memories."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import EntityMemory, SpacyEntityExtractor
from langchain_memkit.messages.notes import records_of
from testkit.memories import HostileTexts, entities_on


class TestContract(HostileTexts):
    @pytest.fixture
    def make_memory(self) -> Any:
        """One store in this process."""
        return entities_on(None, SpacyEntityExtractor())


def test_harrison() -> None:
    """The seed's two turns with a real model: the second is given the first, and nothing else."""
    memory = EntityMemory(SpacyEntityExtractor(), "s1", user_id="u1")
    answer = "That's great to hear! Machine learning is a fascinating field. Have you ever studied it, Harrison?"
    memory.save([HumanMessage("Harrison likes machine learning"), AIMessage(answer)])
    [note] = memory.load("What do you think Harrison's favorite subject in college was?")
    assert [(record.about, record.text) for record in records_of(note)] == [
        ("Harrison", "Harrison likes machine learning"),
    ]
