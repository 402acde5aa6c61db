"""Vector memory: recall of what was said in any of a user's conversations."""

from langchain_memkit.memories.vector.factory import VectorMemoryFactory
from langchain_memkit.memories.vector.hits import Hit, HitList
from langchain_memkit.memories.vector.importance import create_model_importance, plain_importance
from langchain_memkit.memories.vector.memory import VectorMemory
from langchain_memkit.scoring.ranking import Ranking

__all__ = [
    "Hit",
    "HitList",
    "Ranking",
    "VectorMemory",
    "VectorMemoryFactory",
    "create_model_importance",
    "plain_importance",
]
