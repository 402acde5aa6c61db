"""Shared parts of the cases for vector stores: records, embedding models, and fixtures for stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import NAMESPACE_URL, uuid5

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

from langchain_memkit.scoring.index import entry_of
from langchain_memkit.testing._styles import BothStyles, Call

MakeStore: TypeAlias = Callable[..., Any]

AT = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
EMBEDDING = DeterministicFakeEmbedding(size=16)


class Wrong(Embeddings):
    """Embedding model that returns given vectors, right or wrong."""

    def __init__(self, *vectors: Any) -> None:
        self.vectors = vectors

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return the given vectors in order, then the last one again."""
        return [*self.vectors[: len(texts)], *[self.vectors[-1]] * (len(texts) - len(self.vectors))]

    def embed_query(self, text: str) -> list[float]:
        """Return the first vector."""
        return self.vectors[0]  # type: ignore[no-any-return]  # wrong on purpose


def record(n: int, text: str = "", user_id: str = "u1", session_id: str = "s1", **more: Any) -> Document:
    """Make the record of a round of two messages, as `VectorMemory` does; `n` is its position."""
    asked = text or f"what about number {n}"
    page = f"human: {asked}\nai: it is fine"
    name = str(uuid5(NAMESPACE_URL, f"{user_id}/{session_id}/{n}"))
    known = {
        "user_id": user_id,
        "session_id": session_id,
        "round_id": name,
        "position": n,
        "created_at": (AT + timedelta(minutes=n)).isoformat(),
        "said": [["human", "", 7, 7 + len(asked)], ["ai", "Bot", len(page) - 10, len(page)]],
        "messages": [f"q{n}", f"a{n}"],
    }
    return Document(page, id=name, metadata={**known, **more})


def facts(index: Any) -> list[Any]:
    """Return the contents of an index in comparable form, without row numbers."""
    with index.lock:
        assert index.count == len(index) == len(index.entries)
        return sorted((e.id, e.session, e.position, e.at, e.said, e.messages) for e in index.entries)


def expected(documents: Sequence[Document]) -> list[Any]:
    """Return the contents that an index of these documents should have, in the form of `facts`."""
    entries = [entry_of(document) for document in documents]
    return sorted((e.id, e.session, e.position, e.at, e.said, e.messages) for e in entries)


class Stores(BothStyles):
    """Fixtures for the cases."""

    @pytest.fixture
    def make_store(self) -> MakeStore:
        """Return a function that opens a store for an embedding model; override it."""
        raise RuntimeError("give the contract a `make_store` fixture")

    @pytest.fixture
    def store(self, make_store: MakeStore) -> Any:
        """Return a store."""
        return make_store(EMBEDDING)

    @pytest.fixture
    def other(self, make_store: MakeStore) -> Any:
        """Return a second store object over the same data, as another process would have."""
        return make_store(EMBEDDING)

    @pytest.fixture
    def save(self, call: Call) -> Call:
        """Return `save(store, documents)`, which saves like `VectorMemory`; `embedded=False` stores no vectors."""

        def save(store: Any, documents: Sequence[Document], embedded: bool = True, **options: Any) -> bool:
            user, session = (documents[0].metadata[name] for name in ("user_id", "session_id"))
            begun = call(store, "begin", user, session)
            vectors: list[Any] = [None] * len(documents)
            if embedded:
                vectors = call(store, "embed", [document.page_content for document in documents])
            return bool(call(store, "write", user, session, begun.generation, documents, vectors, **options))

        return save
