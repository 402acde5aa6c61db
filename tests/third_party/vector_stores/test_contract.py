"""The contract of recall on vector stores of others."""

from __future__ import annotations

import warnings
from pathlib import Path
from uuid import uuid4

import pytest
from langchain_core.vectorstores import VectorStore

from langchain_memkit import WordLlamaEmbeddings
from testkit.memories import RecallCases


class TestChroma(RecallCases):
    @pytest.fixture
    def store(self, tmp_path: Path) -> VectorStore:
        """Persistent."""
        from chromadb.config import Settings
        from langchain_chroma import Chroma

        return Chroma(
            f"c{uuid4().hex}",
            WordLlamaEmbeddings(),
            persist_directory=str(tmp_path),
            client_settings=Settings(anonymized_telemetry=False, is_persistent=True, persist_directory=str(tmp_path)),
        )


class TestFAISS(RecallCases):
    @pytest.fixture
    def store(self) -> VectorStore:
        """An exact index."""
        import faiss

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the package says that it is being sunset
            from langchain_community.docstore.in_memory import InMemoryDocstore
            from langchain_community.vectorstores import FAISS

        return FAISS(WordLlamaEmbeddings(), faiss.IndexFlatL2(256), InMemoryDocstore(), {})
