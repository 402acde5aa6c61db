"""Several memories as one."""

from langchain_memkit.memories.composed.factory import ComposedMemoryFactory
from langchain_memkit.memories.composed.memory import ComposedMemory
from langchain_memkit.memories.composed.sources import Source
from langchain_memkit.memories.composed.templates import llama_index_template

__all__ = ["ComposedMemory", "ComposedMemoryFactory", "Source", "llama_index_template"]
