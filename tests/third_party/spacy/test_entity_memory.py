"""Entity memory with spaCy's trained pipeline: the seed's conversation, and the contract of all memories."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import EntityMemory, SpacyEntityExtractor, SQLiteChatMessageHistory
from langchain_memkit.messages.notes import records_of
from testkit.entity_cases import entity_cases, problems, shown, told
from testkit.memories import HostileTexts, entities_on


class TestContract(HostileTexts):
    @pytest.fixture
    def make_memory(self) -> Any:
        """Histories in this process."""
        return entities_on(SQLiteChatMessageHistory.factory(":memory:"), SpacyEntityExtractor())


def test_harrison() -> None:
    """The seed's two turns with a real model: the second is given the first, and nothing else."""
    memory = EntityMemory(SQLiteChatMessageHistory.factory(":memory:"), SpacyEntityExtractor(), "s1", user_id="u1")
    answer = "That's great to hear! Machine learning is a fascinating field. Have you ever studied it, Harrison?"
    memory.save([HumanMessage("Harrison likes machine learning"), AIMessage(answer)])
    [note] = memory.load("What do you think Harrison's favorite subject in college was?")
    assert [(record.about, record.text) for record in records_of(note)] == [
        ("Harrison", "Harrison likes machine learning"),
    ]


def test_cases() -> None:
    """Of a hundred cases ninety hold with the small model.

    Which ones do differs between processors, whose last digits decide where the model is
    undecided. What it often misses are names in lower case and names at a sentence's beginning;
    tests/unit_tests/memories/test_entity_rules.py holds each case with a perfect extractor.
    """
    extractor = SpacyEntityExtractor()
    found = {name: problems(case, extractor) for name, case in entity_cases().items()}
    missed = {name: problem for name, problem in found.items() if problem}
    assert len(found) == 100
    assert len(missed) <= 10, missed


def test_found_from_outside() -> None:
    """What was reported of the memory with the small model."""
    extractor = SpacyEntityExtractor()
    memory = told(extractor, "My boss is Anna Keller.", "Anna likes tea.")
    assert [fact.text for entity in memory.entities() for fact in entity.facts] == [
        "My boss is Anna Keller.",
        "Anna likes tea.",
    ]
    memory = told(extractor, "Bob owes Priya 40 euros.", "Bob is my neighbour. He works at Siemens.")
    assert {entity.name for entity in memory.entities()} == {"Bob", "Priya", "Siemens"}
    assert shown(memory, "what does priya do") == ["Bob owes Priya 40 euros."]
    assert "He works at Siemens." in shown(memory, "Where does Bob work?")
    memory = told(extractor, "Priya Raman is a nurse.", "Priya Sharma is a vet.", "What does Priya do?")
    assert shown(memory, "What does Priya do?") == ["Priya Raman is a nurse.", "Priya Sharma is a vet."]
