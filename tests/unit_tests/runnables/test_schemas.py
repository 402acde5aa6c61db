"""Schemas that a server can tell apart: FastAPI and LangServe know them by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableLambda

from langchain_memkit import (
    SQLiteChatMessageHistory,
    create_conversational_rag_chain,
    create_runnable_with_message_history,
)
from langchain_memkit.testing import FakeChatModel

S1: Any = {"configurable": {"session_id": "s1"}}
KEYS: Any = {"history_messages_key": "chat_history"}


@pytest.fixture
def histories() -> Any:
    """A factory in memory."""
    with SQLiteChatMessageHistory.factory(":memory:") as factory:
        yield factory


def chains(histories: Any) -> list[Any]:
    """Chains that take and return various things."""
    model = FakeChatModel()
    answer = RunnableLambda(lambda value: value["chat_history"]) | model | StrOutputParser()
    found = RunnableLambda(lambda _: [Document("Tea is at five.", id="d1")])
    return [
        create_runnable_with_message_history(model, histories),
        create_runnable_with_message_history(answer, histories, input_messages_key="input", **KEYS),
        create_runnable_with_message_history(answer, histories, input_messages_key="question", **KEYS),
        create_conversational_rag_chain(model, found, histories, condense="off"),
    ]


@pytest.mark.parametrize("verb", ["get_input_schema", "get_output_schema"])
def test_other_content_has_another_name(histories: Any, verb: str) -> None:
    """Of the same name is only what says the same; LangChain's titles stay."""
    schemas = [getattr(chain, verb)() for chain in chains(histories)]
    by_name: dict[str, Any] = {}
    for schema in schemas:
        content = schema.model_json_schema()
        assert by_name.setdefault(schema.__name__, content) == content
        assert content["title"] == f"RunnableWithChatHistory{'Input' if 'input' in verb else 'Output'}"
    assert len(by_name) == 3


NAMES = """
from langchain_core.output_parsers import StrOutputParser
from langchain_memkit import SQLiteChatMessageHistory, create_runnable_with_message_history
from langchain_memkit.testing import FakeChatModel
histories = SQLiteChatMessageHistory.factory(":memory:")
chain = create_runnable_with_message_history(FakeChatModel() | StrOutputParser(), histories)
print(chain.get_input_schema().__name__, chain.get_output_schema().__name__)
"""


def test_names_are_the_same_everywhere(histories: Any) -> None:
    """Every process of a server gives the same names."""
    command = [sys.executable, "-c", NAMES]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    chain = create_runnable_with_message_history(FakeChatModel() | StrOutputParser(), histories)
    assert said.split() == [chain.get_input_schema().__name__, chain.get_output_schema().__name__]
    assert said.startswith("RunnableWithChatHistoryInput_")


def test_what_json_cannot_say(histories: Any) -> None:
    """An output that has no JSON schema has a name as well."""

    def timer(messages: Any) -> Callable[[], int]:
        return lambda: 1

    chain = create_runnable_with_message_history(RunnableLambda(timer), histories)
    assert chain.get_output_schema().__name__.startswith("RunnableWithChatHistoryOutput_")


def test_bare_messages_of_a_request(histories: Any) -> None:
    """A `BaseMessage`, which servers make of a message in a request, is stored as the kind that its type names."""
    chain = create_runnable_with_message_history(FakeChatModel(), histories)
    chain.invoke([BaseMessage(type="human", content="hi", id="m1", name="Ann")], S1)
    chain.invoke(BaseMessage(type="human", content="ho"), S1)
    first, _, second, _ = histories("s1").messages
    assert first == HumanMessage("hi", id="m1", name="Ann")
    assert (type(second), second.content) == (HumanMessage, "ho")
    with pytest.raises(ValueError, match="unexpected message type: nobody"):
        chain.invoke([BaseMessage(type="nobody", content="hi")], S1)
