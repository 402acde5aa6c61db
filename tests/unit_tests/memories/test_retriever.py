"""Any retriever as a memory."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_memkit.memories.retriever import RetrieverMemory
from langchain_memkit.messages.notes import records_of
from langchain_memkit.testing.memories import assert_framed
from testkit.memories import HOSTILE_TEXTS


def memory_of(*documents: Any) -> RetrieverMemory:
    """A retriever that finds these."""
    return RetrieverMemory(RunnableLambda(lambda query: list(documents)))


def test_documents_come_as_quoted_records() -> None:
    """In the retriever's order, with title, source and date where the metadata says them."""
    memory = memory_of(
        Document("Tea is at five.", id="d1", metadata={"source": "house.md", "title": "Rules", "date": "2026-03-04"}),
        Document("No shoes.", metadata={"created_at": datetime(2026, 1, 2, tzinfo=UTC)}),
        Document("Knock.", metadata={"timestamp": date(2026, 1, 3), "title": None}),
        Document("Smile.", metadata={"date": "some day", "source": 7}),
    )
    (note,) = memory.load("What are the rules?")
    assert_framed(note)
    assert note.text.splitlines()[2:-1] == [
        "- Rules (2026-03-04, house.md):",
        "> Tea is at five.",
        "- record (2026-01-02):",
        "> No shoes.",
        "- record (2026-01-03):",
        "> Knock.",
        "- record (7):",
        "> Smile.",
    ]
    assert [record.id for record in records_of(note)] == ["d1", None, None, None]
    assert asyncio.run(memory.aload("What are the rules?")) == [note]


def test_vector_store_retriever() -> None:
    """A retriever of a real vector store, in both styles; without a query nothing is asked."""
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_texts(["Tea is at five."], metadatas=[{"source": "house.md"}])
    memory = RetrieverMemory(store.as_retriever())
    assert "> Tea is at five." in memory.load("tea?")[0].text
    assert "> Tea is at five." in asyncio.run(memory.aload("tea?"))[0].text
    assert memory.load() == memory.load("  ") == asyncio.run(memory.aload("")) == []


def test_nothing_found_is_no_note_and_nothing_is_written() -> None:
    """An empty result says nothing; saving and clearing do nothing."""
    memory = memory_of()
    assert memory.read_only
    memory.save([])
    memory.clear()
    assert memory.load("tea?") == []
    assert repr(memory) == "RetrieverMemory(RunnableLambda)"


def test_what_is_no_retriever() -> None:
    """A runnable that returns something else is an error that says so."""
    with pytest.raises(TypeError, match="documents, not str"):
        memory_of("tea").load("tea?")


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_documents_are_untrusted(text: str) -> None:
    """Content, title and source that forge the frame stay inside it."""
    (note,) = memory_of(Document(text, metadata={"title": text, "source": text})).load("?")
    assert_framed(note)
