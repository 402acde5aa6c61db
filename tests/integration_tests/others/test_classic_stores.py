"""What langchain-classic does with stores, done with ours: caches, docstores."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_classic.embeddings import CacheBackedEmbeddings
from langchain_classic.retrievers import ParentDocumentRetriever
from langchain_classic.storage import create_kv_docstore
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import CharacterTextSplitter
from langgraph.store.memory import InMemoryStore

from langchain_memkit import (
    LangGraphKeyValueStore,
    MongoDBKeyValueStore,
    SQLiteKeyValueStore,
)

EMBEDDING = DeterministicFakeEmbedding(size=16)
BACKENDS = ["sqlite", "mongodb", "langgraph"]
DOCUMENTS = [Document(f"word {n} " * 30, metadata={"n": n, "tags": ["a", "b"]}) for n in range(3)]


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A key-value store of each backend."""
    if request.param == "langgraph":
        yield LangGraphKeyValueStore(InMemoryStore())
        return
    if request.param == "sqlite":
        made: Any = SQLiteKeyValueStore(tmp_path / "chat.db")
    else:
        server, database = request.getfixturevalue("standalone"), request.getfixturevalue("database")
        made = MongoDBKeyValueStore(server.uri, database)
    with made:
        yield made


class Counting(Embeddings):
    """Counts the texts that it embeds."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """As the fake model does."""
        self.texts += texts
        return EMBEDDING.embed_documents(texts)

    def embed_query(self, text: str) -> list[float]:
        """As the fake model does."""
        return EMBEDDING.embed_query(text)


@pytest.mark.parametrize("style", ["sync", "async"])
def test_cached_embeddings(store: Any, style: str) -> None:
    """`CacheBackedEmbeddings` embeds a text once, and finds the same vector in the store."""
    model = Counting()
    cached = CacheBackedEmbeddings.from_bytes_store(model, store, namespace="m", key_encoder="blake2b")
    for _ in range(2):
        if style == "async":
            found = asyncio.run(cached.aembed_documents(["one", "two"]))
        else:
            found = cached.embed_documents(["one", "two"])
        assert found == EMBEDDING.embed_documents(["one", "two"])
    assert model.texts == ["one", "two"]
    assert all(type(value) is bytes for value in store.mget(list(store.yield_keys())))


@pytest.mark.parametrize("style", ["sync", "async"])
def test_kv_docstore(store: Any, style: str) -> None:
    """`create_kv_docstore` keeps Documents in the store as bytes, and reads them back equal."""
    docstore = create_kv_docstore(store)
    pairs = [(str(document.metadata["n"]), document) for document in DOCUMENTS]
    if style == "async":
        asyncio.run(docstore.amset(pairs))
        assert asyncio.run(docstore.amget(["0", "2", "9"])) == [DOCUMENTS[0], DOCUMENTS[2], None]
    else:
        docstore.mset(pairs)
        assert docstore.mget(["0", "2", "9"]) == [DOCUMENTS[0], DOCUMENTS[2], None]
    assert sorted(docstore.yield_keys()) == ["0", "1", "2"]
    docstore.mdelete(["0"])
    assert store.mget(["0"]) == [None]


@pytest.mark.parametrize("kept", ["docstore", "byte_store"])
@pytest.mark.parametrize("style", ["sync", "async"])
def test_parent_documents(store: Any, kept: str, style: str) -> None:
    """`ParentDocumentRetriever` finds pieces in a vector store and returns whole documents from our store."""
    vectors = InMemoryVectorStore(EMBEDDING)
    splitter = CharacterTextSplitter(separator=" ", chunk_size=40, chunk_overlap=0)
    retriever = ParentDocumentRetriever(vectorstore=vectors, child_splitter=splitter, **{kept: store})
    if style == "async":
        asyncio.run(retriever.aadd_documents(DOCUMENTS))
        found = asyncio.run(retriever.ainvoke(DOCUMENTS[1].page_content[:39].strip()))
    else:
        retriever.add_documents(DOCUMENTS)
        found = retriever.invoke(DOCUMENTS[1].page_content[:39].strip())
    assert found[0] == DOCUMENTS[1]
    kinds = {type(value) for value in store.mget(list(store.yield_keys()))}
    assert kinds == ({Document} if kept == "docstore" else {bytes})
