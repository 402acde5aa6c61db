"""Drop-in replacement for `create_history_aware_retriever` of langchain-classic."""

from __future__ import annotations

from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import LanguageModelLike
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda

from langchain_memkit.retrievers.condense import QUESTION, CondenseQuestionRetriever

__all__ = ["create_history_aware_retriever"]


def create_history_aware_retriever(
    llm: LanguageModelLike, retriever: Runnable[str, list[Document]], prompt: BasePromptTemplate[Any], **options: Any
) -> Runnable[Any, list[Document]]:
    """Create a history-aware retriever like LangChain's, that survives model failures and skips standalone questions.

    For existing apps: their prompt may ask for anything, so the model's rewrite is searched for unchecked, and
    documents come back as the retriever returned them. New code should use `CondenseQuestionRetriever`, which validates
    a rewrite and reports it.

    Args:
        llm: A chat or string model.
        retriever: A LangChain retriever, or a runnable from a string to documents.
        prompt: A template that takes `input` and `chat_history`.
        **options: Arguments of `CondenseQuestionRetriever`, here with the defaults `check=None`, `timeout=None` and
            `cache_size=0`.

    Returns:
        A runnable from `{"input": question, "chat_history": messages}` to documents, best first.

    Raises:
        ValueError: The prompt does not take `input` and `chat_history`.

    Example:
        >>> from langchain_core.prompts import ChatPromptTemplate
        >>> prompt = ChatPromptTemplate([("placeholder", "{chat_history}"), ("human", "{input}")])
        >>> model = RunnableLambda(lambda messages: "How old is Emmanuel Macron?")
        >>> parrot = RunnableLambda(lambda question: [Document(question)])
        >>> aware = create_history_aware_retriever(model, parrot, prompt)
        >>> talk = [("human", "Who is the president of France?"), ("ai", "Emmanuel Macron.")]
        >>> aware.invoke({"input": "How old is he?", "chat_history": talk})[0].page_content
        'How old is Emmanuel Macron?'
    """
    unchecked: dict[str, Any] = {"check": None, "timeout": None, "cache_size": 0}
    ours = CondenseQuestionRetriever(retriever=retriever, llm=llm, prompt=prompt, **{**unchecked, **options})
    # Wrap it in a function: create_retrieval_chain passes a BaseRetriever the question without the conversation.
    chain: Runnable[Any, Any] = RunnableLambda(ours.invoke, ours.ainvoke) | _unmarked
    return chain.with_config(run_name="history_aware_retriever")


def _unmarked(documents: list[Document]) -> list[Document]:
    return [
        document.model_copy(update={"metadata": {k: v for k, v in document.metadata.items() if k != QUESTION}})
        for document in documents
    ]
