"""Vector memory: semantic and lexical recall over all conversations of a user.

From the public API inwards: `memory` and `verbs` hold the methods that callers use. Saving turns messages into records
(`rounds`), plans which of them are new (`plan`) and writes those (`saving`); `rebuild` does the same for whole
transcripts. Loading ranks the records and quotes the best ones (`recalling`, `hits`). `core` holds the options and the
store; `foreign` adapts any third-party LangChain vector store.
"""

from langchain_memkit.memories.vector.importance import create_model_importance, plain_importance
from langchain_memkit.memories.vector.memory import VectorMemory, VectorMemoryFactory
from langchain_memkit.memories.vector.recalling import Hit, HitList
from langchain_memkit.ranking.ranking import Ranking

__all__ = [
    "Hit",
    "HitList",
    "Ranking",
    "VectorMemory",
    "VectorMemoryFactory",
    "create_model_importance",
    "plain_importance",
]
