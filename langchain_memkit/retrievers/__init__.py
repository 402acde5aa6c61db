"""Retrieval for follow-up questions: a question is made to stand alone before it is searched for.

`question` goes through it: `gate` tells whether a question stands alone, `asking` has a model rewrite it, `checking`
refuses what is no such question, `contextualize` weighs terms without a model. `condense` puts it before any retriever,
which `searching` and `weighing` then ask; `past` is the conversation as all of them see it.
"""

from langchain_memkit.retrievers.checking import refusal
from langchain_memkit.retrievers.condense import CondenseQuestionRetriever
from langchain_memkit.retrievers.gate import stands_alone
from langchain_memkit.retrievers.history_aware import create_history_aware_retriever
from langchain_memkit.retrievers.past import document_key
from langchain_memkit.retrievers.question import StandaloneQuestion

__all__ = [
    "CondenseQuestionRetriever",
    "StandaloneQuestion",
    "create_history_aware_retriever",
    "document_key",
    "refusal",
    "stands_alone",
]
