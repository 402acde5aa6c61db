"""What a real model makes of the questions, if there is one: LangChain's way and memkit's, each question asked once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import openai
from langchain_classic.chains import create_history_aware_retriever
from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from benchmarks.followups_data import Question
from benchmarks.followups_systems import Key, Rewrites, key
from langchain_memkit.retrievers import CondenseQuestionRetriever

__all__ = ["HISTORY_AWARE", "LLM", "rewrites"]

HISTORY_AWARE, LLM = "create_history_aware_retriever", "memkit llm"
SECONDS = 120.0  # that a call may take
PROMPT = ChatPromptTemplate.from_messages(  # the prompt of LangChain's own documentation
    [
        (
            "system",
            "Given a chat history and the latest user question which might reference context in the chat history, "
            "formulate a standalone question which can be understood without the chat history. Do NOT answer the "
            "question, just reformulate it if needed and otherwise return it as is.",
        ),
        MessagesPlaceholder("chat_history"),
        ("human", "{input}"),
    ]
)


def rewrites(url: str, questions: Sequence[Question]) -> dict[str, Rewrites]:
    """Asks the model for each question once in either way.

    Args:
        url: Of an OpenAI-compatible server, with `/v1`.
        questions: What is asked.
    """
    made = {}
    for name, asking in ((HISTORY_AWARE, _history_aware), (LLM, _memkit)):
        with _model(url) as (model, calls):
            write = asking(model)
            found = Rewrites()
            begin = time.perf_counter()
            for question in questions:
                write(question, found.texts)
            found.ms = 1000 * (time.perf_counter() - begin) / len(questions)
            found.calls = len(calls) / len(questions)
            found.weighted = 1 - len(found.texts) / len(questions)
            found.failed = sum(text is None for text in found.texts.values()) / len(questions)
            made[name] = found
    return made


Ask = Callable[[Question, dict[Key, str | None]], None]


def _history_aware(model: ChatOpenAI) -> Ask:
    chain = create_history_aware_retriever(model, RunnableLambda(lambda text: [Document(text)]), PROMPT)

    def ask(question: Question, texts: dict[Key, str | None]) -> None:
        said = [message for message in question.messages if message.text]
        try:
            (document,) = chain.invoke({"input": question.turn.asked, "chat_history": said})
            texts[key(question)] = document.page_content
        except openai.OpenAIError:
            texts[key(question)] = None

    return ask


def _memkit(model: ChatOpenAI) -> Ask:
    retriever = CondenseQuestionRetriever(retriever=lambda _: [], llm=model, mode="llm", timeout=SECONDS)

    def ask(question: Question, texts: dict[Key, str | None]) -> None:
        found = retriever.condense_question(question.turn.asked, question.messages)
        if found.by != "weighted":
            texts[key(question)] = found.question

    return ask


@contextmanager
def _model(url: str) -> Iterator[tuple[ChatOpenAI, list[Any]]]:
    """The model, and the requests that it was sent."""
    calls: list[Any] = []
    hooks = {"request": [calls.append]}
    with openai.DefaultHttpxClient(trust_env=False, event_hooks=hooks) as http:
        yield (
            ChatOpenAI(
                base_url=url,
                api_key=SecretStr("none"),
                model="local",
                max_completion_tokens=300,
                temperature=0,
                timeout=SECONDS,
                max_retries=0,
                http_client=http,
            ),
            calls,
        )
