"""Documents keyed by title, shown when the title is mentioned.

`entries` are what is stored, `shelf` stores and reads them, `catalog` finds them in a text (or `matching` asks a
model), `note` shows them within a budget, `memory` puts it together.
"""

from langchain_memkit.memories.key_value.catalog import Hit
from langchain_memkit.memories.key_value.factory import KeyValueMemoryFactory
from langchain_memkit.memories.key_value.matching import create_model_matcher
from langchain_memkit.memories.key_value.memory import KeyValueMemory

__all__ = ["Hit", "KeyValueMemory", "KeyValueMemoryFactory", "create_model_matcher"]
