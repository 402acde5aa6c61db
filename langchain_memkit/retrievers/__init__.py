"""Retrieval for follow-up questions: turn a question into a standalone one before searching.

`condense` wraps this around any retriever. `rewriter` prompts a model to rewrite the question and checks the rewrite,
`expansion` adds weighted terms without a model, and `search` calls the retriever. `history` reads the conversation for
all of them.
"""

from langchain_memkit.retrievers.condense import CondenseQuestionRetriever, create_history_aware_retriever
from langchain_memkit.retrievers.history import document_key
from langchain_memkit.retrievers.rewriter import StandaloneQuestion, refusal

__all__ = [
    "CondenseQuestionRetriever",
    "StandaloneQuestion",
    "create_history_aware_retriever",
    "document_key",
    "refusal",
]
