"""Vector memory: recall of what was said in any of a user's conversations.

From the door inwards: `memory` and its `verbs` are what people call. Saving makes records of messages (`rounds`),
finds out what of them is new (`plan`) and writes it (`saving`); `rebuild` does so for whole transcripts. Loading ranks
records and quotes the best (`recalling`, `hits`). `core` has the options and the store; `foreign` takes a store of
others.
"""

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
