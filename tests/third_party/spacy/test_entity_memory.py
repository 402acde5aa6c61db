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


# case -> what the model does not see
MISSED = {
    "things-4": 'Acme, at the beginning of "Acme has an office in Zurich."',
    "in_order-9": "marisol in lower case, since the model has not seen that Marisol is a person",
    "apart-6": "that New York has nothing to do with York",
    "apart-10": "that Morgan Stanley has nothing to do with little Stanley",
}


@pytest.mark.parametrize("name", list(entity_cases()))
def test_cases(name: str) -> None:
    """All cases but those that are listed hold with the small model."""
    assert bool(problems(entity_cases()[name], SpacyEntityExtractor())) == (name in MISSED)


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
