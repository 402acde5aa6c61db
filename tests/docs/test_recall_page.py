"""The numbers of docs/recall.md: weights, floor and the table of words are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage

from langchain_memkit import SQLiteChatMessageHistory, VectorMemory
from langchain_memkit.memories.vector import Ranking
from langchain_memkit.ranking.floor import FLOOR

PAGE = (Path(__file__).parents[2] / "docs" / "recall.md").read_text()
ROWS = re.findall(r"^\| (\d), (\d) \| ([\d.]+) \| ([\d.]+) \|", PAGE, re.MULTILINE)


def test_it_is_a_guide() -> None:
    """It has at most 2,500 words, code and tables included."""
    assert len(re.findall(r"\S*\w\S*", PAGE)) <= 2500


def test_weights_and_floor_are_those_of_the_code() -> None:
    """The table of parts names each default weight that is not 0, and the page the default floor."""
    told = {name: float(weight) for name, weight in re.findall(r"`(\w+)=([\d.]+)` \|", PAGE)}
    weights = {name: getattr(Ranking(), name) for name in told}
    assert told == weights
    assert set(told) == {"lexical", "relevance", "neighbours", "session", "name", "speaker", "date"}
    assert f"(`others={Ranking().others}`)" in PAGE
    assert f"one number, by default {FLOOR}" in PAGE


@pytest.fixture(scope="module")
def fifty() -> VectorMemory:
    """Fifty records of eight words each, no word in two of them; the first has "word0" to "word7"."""
    histories, embedding = SQLiteChatMessageHistory.factory(":memory:"), DeterministicFakeEmbedding(size=8)
    memories = VectorMemory.factory(histories, embedding)
    for n in range(50):
        text = " ".join(f"word{i}" for i in range(8 * n, 8 * n + 8))
        memories(f"session {n}", "u1").save([HumanMessage(text), AIMessage("Well.")])
    return memories("today", "u1")


@pytest.mark.parametrize(("asked", "held", "words", "stated"), ROWS)
def test_words_have_these_points(asked: str, held: str, words: str, stated: str, fifty: VectorMemory) -> None:
    """A question of so many words, so many of them in a record, gives it these points, and more as the user's."""
    question = [f"word{i}" for i in range(int(held))] + [f"nowhere{i}" for i in range(int(asked) - int(held))]
    hits = fifty.search(f"What is {' '.join(question)}?", k=50)
    best = next(hit for hit in hits if "word0 word1" in hit.text)
    assert best.parts["lexical"] == pytest.approx(float(words), abs=0.015)
    assert best.parts["lexical"] * (1 + Ranking().speaker) == pytest.approx(float(stated), abs=0.015)


def test_the_table_of_words_has_rows() -> None:
    """The tests above have cases."""
    assert len(ROWS) >= 5
