"""What memories recalled, as `explain_turn` shows it: by whom, how well it answers, from where and when."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from rich.console import Console

from langchain_memkit import (
    ChatHistoryMemory,
    ComposedMemory,
    KeyValueMemory,
    SQLiteChatMessageHistory,
    VectorMemory,
    create_runnable_with_message_history,
    explain_turn,
)
from langchain_memkit.explain import TurnTrace
from langchain_memkit.testing import FakeChatModel

S1: Any = {"configurable": {"session_id": "s1", "user_id": "u1"}}
HOSTILE = "[bold red]x[/] <script>alert('x')</script> \x1b[31m"
DOCUMENTS = [
    Document(HOSTILE, metadata={"source": "house.md", "date": "2026-03-04", "relevance_score": 0.5}),
    Document("No shoes.", metadata={"title": "Rules"}),
]
QUESTION = "What tea does Harrison like, and what are The Skeleton Songs?"
BOOKS = KeyValueMemory({"The Skeleton Songs": "Poems by Arabella Dusk."})


@pytest.fixture
def histories() -> Iterator[Any]:
    """A factory in memory."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        yield factory


@pytest.fixture
def vectors(histories: Any) -> Any:
    """A vector memory that knows two rounds of another session."""
    for i, text in enumerate(["Harrison likes green tea.", "The train leaves at nine."]):
        histories("s0", "u1").add_messages([HumanMessage(text, id=f"h{i}"), AIMessage("Noted.", id=f"a{i}")])
    return VectorMemory.factory(histories, DeterministicFakeEmbedding(size=8))


def check(seen: TurnTrace) -> None:
    """Each record with its memory; a score where the memory has one."""
    found = {r.memory.partition("(")[0]: r for r in reversed(seen.recalled)}
    assert found.keys() == {"KeyValueMemory", "VectorMemory", "RetrieverMemory"}
    assert found["VectorMemory"].text.startswith("human: Harrison likes green tea.")
    assert found["VectorMemory"].source == "session s0"
    assert found["VectorMemory"].score is not None
    assert found["VectorMemory"].score > 0
    book = found["KeyValueMemory"]
    assert (book.about, book.text, book.score) == ("The Skeleton Songs", "Poems by Arabella Dusk.", None)
    documents = [r for r in seen.recalled if r.memory.startswith("RetrieverMemory")]
    assert [(r.score, r.source, r.about) for r in documents] == [(0.5, "house.md", ""), (None, "", "Rules")]
    assert seen.to_dict()["recalled"][-2]["date"].startswith("2026-03-04")


def test_every_memory_is_named(histories: Any, vectors: Any) -> None:
    """Memories beside the history: who recalled what, with score, source and date."""
    memories = [BOOKS, vectors, RunnableLambda(lambda query: DOCUMENTS)]
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=memories)
    check(explain_turn(chat, QUESTION, S1))


@pytest.mark.parametrize("position", ["before_input", "system"])
def test_the_parts_of_a_composed_memory_are_named(position: Any, histories: Any, vectors: Any) -> None:
    """In a composition each record names the memory that it comes from, wherever the records stand."""
    others = [BOOKS, vectors, RunnableLambda(lambda query: DOCUMENTS)]
    composed = ComposedMemory.factory(ChatHistoryMemory.factory(histories), *others, position=position)
    chat = create_runnable_with_message_history(FakeChatModel(), histories, memories=[composed])
    check(explain_turn(chat, QUESTION, S1))


def test_people_see_it(histories: Any, vectors: Any) -> None:
    """As text, in a notebook and with rich: memory, score and source; hostile text is shown as text."""
    memories = [vectors, RunnableLambda(lambda query: DOCUMENTS)]
    seen = explain_turn(
        create_runnable_with_message_history(FakeChatModel(), histories, memories=memories), QUESTION, S1
    )
    score = f"{seen.recalled[0].score:.2f}"
    assert "0 messages kept, 0 summarized, 0 dropped, 3 records recalled" in str(seen)
    line = next(line for line in str(seen).splitlines() if "VectorMemory" in line)
    assert line.split()[:2] == ["recalled", score]
    assert "session s0" in line
    assert f"<td>VectorMemory</td><td>{score}</td>" in seen._repr_html_()
    assert "<script" not in seen._repr_html_()
    printed = StringIO()
    Console(file=printed, width=160, force_terminal=True, color_system="truecolor").print(seen)
    assert "[bold red]x[/]" in printed.getvalue(), "what was said is no markup"
    assert "\x1b[31m" not in printed.getvalue(), "nor a colour of the terminal's"
    for part in ("VectorMemory", score, "session s0", "3 records recalled"):
        assert part in printed.getvalue()


def test_without_memories_nothing_is_said_of_them(histories: Any) -> None:
    """No table and no line of what was recalled."""
    seen = explain_turn(create_runnable_with_message_history(FakeChatModel(), histories), "Hi.", S1)
    assert seen.recalled == []
    assert "recalled" not in str(seen) + seen._repr_html_()
