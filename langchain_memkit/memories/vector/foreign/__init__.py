"""Adapter that lets any LangChain vector store serve as the store of a vector memory."""

from langchain_memkit.memories.vector.foreign.store import ForeignStore, Similar

__all__ = ["ForeignStore", "Similar"]
