"""Vector memory: semantic and lexical recall over all conversations of a user.

From the public API inwards: `memory` holds the methods that callers use. Saving turns messages into records and plans
which of them are new (`rounds`), and writes those (`saving`). Loading ranks the records and quotes the best ones
(`recalling`). `core` holds the options and the store; `adapter` adapts any other LangChain vector store.
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
