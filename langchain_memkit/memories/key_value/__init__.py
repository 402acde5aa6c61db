"""Documents keyed by title, shown to the model when a title is mentioned.

`store` defines and validates entries, keeps them, and finds them in a text; `memory` shows them within a token budget;
`matching` asks a model which titles are meant.
"""

from langchain_memkit.memories.key_value.matching import create_model_matcher
from langchain_memkit.memories.key_value.memory import KeyValueMemory, KeyValueMemoryFactory
from langchain_memkit.memories.key_value.store import TitleMatch

__all__ = ["KeyValueMemory", "KeyValueMemoryFactory", "TitleMatch", "create_model_matcher"]
