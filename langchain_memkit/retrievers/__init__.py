"""Retrieval for follow-up questions: turn a question into a standalone one before searching.

`condense` wraps this around any retriever. `standalone` decides by rules whether a question is standalone already,
`rewriter` prompts a model to rewrite it and checks the rewrite, `expansion` adds weighted terms without a model, and
`search` calls the retriever. `history` reads the conversation for all of them.
"""

from langchain_memkit.retrievers.condense import CondenseQuestionRetriever, create_history_aware_retriever
from langchain_memkit.retrievers.history import document_key
from langchain_memkit.retrievers.rewriter import StandaloneQuestion, refusal
from langchain_memkit.retrievers.standalone import stands_alone

__all__ = [
    "CondenseQuestionRetriever",
    "StandaloneQuestion",
    "create_history_aware_retriever",
    "document_key",
    "refusal",
    "stands_alone",
]
