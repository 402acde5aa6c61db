"""Entities: who and what a user talked about, and what was said of them, in any key-value store."""

from langchain_memkit.memories.entity.factory import EntityMemoryFactory
from langchain_memkit.memories.entity.listing import Entity, EntityList, Fact
from langchain_memkit.memories.entity.memory import EntityMemory

__all__ = ["Entity", "EntityList", "EntityMemory", "EntityMemoryFactory", "Fact"]
