"""Retrieval for follow-up questions: a question is made to stand alone before it is searched for."""

from langchain_memkit.retrievers.condense import CondenseQuestionRetriever
from langchain_memkit.retrievers.gate import stands_alone
from langchain_memkit.retrievers.past import document_key
from langchain_memkit.retrievers.question import StandaloneQuestion

__all__ = ["CondenseQuestionRetriever", "StandaloneQuestion", "document_key", "stands_alone"]
