"""What langchain-classic and langchain-core do with stores, done with ours: caches, docstores, indexes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_classic.embeddings import CacheBackedEmbeddings
from langchain_classic.indexes import SQLRecordManager
from langchain_classic.retrievers import ParentDocumentRetriever
from langchain_classic.storage import create_kv_docstore
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings
from langchain_core.indexing import aindex, index
from langchain_text_splitters import CharacterTextSplitter
from langgraph.store.memory import InMemoryStore

from langchain_memkit import (
    LangGraphKeyValueStore,
    MongoDBKeyValueStore,
    MongoDBVectorStore,
    SQLiteKeyValueStore,
    SQLiteVectorStore,
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


@pytest.fixture(params=["sqlite", "mongodb"])
def vectors(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A vector store of each backend."""
    if request.param == "sqlite":
        made: Any = SQLiteVectorStore(tmp_path / "chat.db", EMBEDDING)
    else:
        server, database = request.getfixturevalue("standalone"), request.getfixturevalue("database")
        made = MongoDBVectorStore(server.uri, EMBEDDING, database)
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
def test_parent_documents(store: Any, vectors: Any, kept: str, style: str) -> None:
    """`ParentDocumentRetriever` finds pieces in our vector store and returns whole documents from our store."""
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


@pytest.mark.parametrize("style", ["sync", "async"])
def test_index_with_records_in_sql(vectors: Any, tmp_path: Path, style: str) -> None:
    """`index` and `aindex` with a record manager on disk: new documents come, unchanged ones stay, old ones go."""
    url = f"sqlite+aiosqlite:///{tmp_path}/records.db" if style == "async" else f"sqlite:///{tmp_path}/records.db"
    records = SQLRecordManager("documents", db_url=url, async_mode=style == "async")

    async def arun(documents: list[Document]) -> Any:
        await records.acreate_schema()
        options: Any = {"cleanup": "full", "key_encoder": "sha256"}
        try:
            return await aindex(documents, records, vectors, **options)
        finally:
            await records.engine.dispose()  # type: ignore[misc]  # an async engine

    def run(documents: list[Document]) -> Any:
        if style == "async":
            return asyncio.run(arun(documents))
        records.create_schema()
        try:
            return index(documents, records, vectors, cleanup="full", key_encoder="sha256")
        finally:
            records.engine.dispose()  # type: ignore[unused-coroutine]  # a sync engine

    assert run(DOCUMENTS[:2])["num_added"] == 2
    assert run(DOCUMENTS[1:]) == {"num_added": 1, "num_updated": 0, "num_skipped": 1, "num_deleted": 1}
    found = vectors.similarity_search("word", k=9)
    assert sorted(document.metadata["n"] for document in found) == [1, 2]
