"""Documents keyed by title, shown to the model when a title is mentioned.

`entries` defines and validates what is stored, `shelf` stores and caches it, `catalog` finds entries in a text (or
`matching` asks a model), `note` renders them within a token budget, and `memory` combines these.
"""

from langchain_memkit.memories.key_value.matching import create_model_matcher
from langchain_memkit.memories.key_value.memory import KeyValueMemory, KeyValueMemoryFactory
from langchain_memkit.memories.key_value.store import TitleMatch

__all__ = ["KeyValueMemory", "KeyValueMemoryFactory", "TitleMatch", "create_model_matcher"]
