"""Vector memory: semantic and lexical recall over all conversations of a user.

From the public API inwards: `memory` holds the methods that callers use. `turn_log` holds the records of users in
process, and keeps them up to date; `turn_index` is what lies in the row of a turn, made of `rounds`. Loading ranks the
records and quotes the best ones (`recalling`). `core` holds the options.
"""

from langchain_memkit.memories.vector.importance import create_model_importance, plain_importance
from langchain_memkit.memories.vector.memory import VectorMemory, VectorMemoryFactory
from langchain_memkit.memories.vector.recalling import Hit, HitList
from langchain_memkit.ranking.score import Ranking

__all__ = [
    "Hit",
    "HitList",
    "Ranking",
    "VectorMemory",
    "VectorMemoryFactory",
    "create_model_importance",
    "plain_importance",
]
