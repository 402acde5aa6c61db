"""Documents keyed by title, shown when the title is mentioned."""

from langchain_memkit.memories.key_value.catalog import Hit
from langchain_memkit.memories.key_value.factory import KeyValueMemoryFactory
from langchain_memkit.memories.key_value.matching import create_model_matcher
from langchain_memkit.memories.key_value.memory import KeyValueMemory

__all__ = ["Hit", "KeyValueMemory", "KeyValueMemoryFactory", "create_model_matcher"]
